"""PyTorch's caching allocator once more, as plainly as it can be written, to compare another one with.

Segments are lists of [nbytes, live]; everything is searched through; nothing is shared with the package.
"""

from __future__ import annotations

KIB, MIB = 1 << 10, 1 << 20


class Segment:
    """What one call of the device's malloc gave."""

    def __init__(self, nbytes: int, stream: int, small: bool, address: int) -> None:
        self.stream, self.small, self.address = stream, small, address
        self.parts = [Part(nbytes)]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class Part:
    """A block of a segment."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.live = nbytes, False


class Place:
    """Frees its block when nobody holds it any more, as a tensor's storage does."""

    def __init__(self, allocator: FakeAllocator, segment: Segment, part: Part) -> None:
        self.allocator, self.segment, self.part = allocator, segment, part

    def __del__(self) -> None:
        self.allocator.free(self.segment, self.part)


class FakeAllocator:
    """The rules of a recent PyTorch with default settings."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.allocated = 0
        self.next = 0

    @property
    def reserved(self) -> int:
        return sum(segment.nbytes for segment in self.segments)

    def alloc(self, nbytes: int, stream: int) -> Place | None:
        if nbytes == 0:
            return None
        need = -(-nbytes // 512) * 512
        small = need <= MIB
        fitting = []
        for segment in self.segments:
            if (segment.stream, segment.small) != (stream, small):
                continue
            offset = segment.address
            for part in segment.parts:
                if not part.live and part.nbytes >= need:
                    fitting.append((part.nbytes, offset, segment, part))
                offset += part.nbytes
        if fitting:
            _, _, segment, part = min(fitting, key=lambda entry: entry[:2])
        else:
            size = 2 * MIB if small else 20 * MIB if need < 10 * MIB else -(-need // (2 * MIB)) * 2 * MIB
            segment = Segment(size, stream, small, self.next)
            self.next += size
            self.segments.append(segment)
            part = segment.parts[0]
        left = part.nbytes - need
        if left >= 512 if small else left > MIB:
            part.nbytes = need
            segment.parts.insert(segment.parts.index(part) + 1, Part(left))
        part.live = True
        self.allocated += part.nbytes
        return Place(self, segment, part)

    def free(self, segment: Segment, part: Part) -> None:
        part.live = False
        self.allocated -= part.nbytes
        merged: list[Part] = []
        for piece in segment.parts:
            if merged and not piece.live and not merged[-1].live:
                merged[-1].nbytes += piece.nbytes
            else:
                merged.append(piece)
        segment.parts = merged

    def empty_cache(self) -> None:
        self.segments = [s for s in self.segments if any(part.live for part in s.parts)]
