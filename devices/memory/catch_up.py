"""Makes the calls that follow from what was put down (`devices.memory.deferred`), as fast as may be.

Each call and its consequences are those of `devices.memory.lifetimes.Lifetimes.take` and `give`, which are
asked one task at a time: a test compares the two.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from devices.memory.base import Block
from devices.memory.deferred import Deferred
from sim.graph import IntArray

if TYPE_CHECKING:
    from devices.memory.lifetimes import Lifetimes

__all__ = ["CatchUp"]


class CatchUp:
    """Brings a run's memory up to date, where nothing is copied from device to device.

    Parameters
    ----------
    lives : Lifetimes
        Who lies where; read and written.
    nowhere : Block
        Where a buffer lies that has no memory.
    """

    def __init__(self, lives: Lifetimes, nowhere: Block) -> None:
        self._lives, self._nowhere = lives, nowhere
        self._launched, self._stream = np.array(lives.launched), np.array(lives.stream_of)
        self._device = np.array(lives.device_of)
        buffers = lives.buffers
        made_on = np.zeros(lives.n_buffers, np.int64)
        made_on[buffers.writes.indices] = np.repeat(self._stream, buffers.writes.counts())
        self._made_on: list[int] = made_on.tolist()
        uses = np.frombuffer(lives.uses, np.int64)  # the same memory: counted down by whoever counts
        self._deferred = Deferred(buffers, self._launched, uses, self._stream if lives.by_stream else None)

    def run(self, tasks: IntArray, when: IntArray) -> None:
        """Do what these tasks did: took, at a time t, what was certain to be had, or ended, at ~t."""
        lives, nowhere, made_on = self._lives, self._nowhere, self._made_on
        node = tasks % len(self._launched)
        stream = self._stream[node]
        last: _LastOnStream | None = None
        if lives.by_stream:
            taking = np.flatnonzero((when >= 0) & self._launched[node])
            last = _LastOnStream(lives.last_on_stream, stream[taking], taking, tasks[taking])
            self._count_outstanding(node, when)
        calls = self._deferred.calls(tasks, when)
        allocators, reserved, blocks, home = lives.allocators, lives.reserved, lives.blocks, lives.home
        nbytes, names, n, n_keys = lives.nbytes, lives.names, lives.n_buffers, len(lives.home)
        taken = lives.log.taken
        row = len(lives.log.key)
        for code, place in zip(calls.code.tolist(), calls.place.tolist(), strict=True):
            if code < 0:
                key = ~code
                device = home[key]
                allocator, block = allocators[device], blocks[key]
                blocks[key] = nowhere
                for used_on in allocator.free(block):
                    assert last is not None
                    lives.wait_for(last.before(used_on, place, int(tasks[place])), allocator, block)
            elif code < n_keys:
                buffer, device = code % n, home[code]
                allocator = allocators[device]
                blocks[code] = new = allocator.try_alloc(nbytes[buffer], made_on[buffer], names[buffer])
                taken.append(new.nbytes)
            elif code < 2 * n_keys:
                key = code - n_keys
                allocators[home[key]].record_use(blocks[key], int(stream[place]))
                continue
            else:
                lives.reached(code - 2 * n_keys)
                continue
            if allocator.reserved != reserved[device]:
                lives.reserve(device, row)
            row += 1
        rows = calls.code < n_keys
        lives.log.key.frombytes(calls.code[rows].tobytes())
        lives.log.when.frombytes(calls.when[rows].tobytes())
        if last is not None:
            last.keep()

    def _count_outstanding(self, node: IntArray, when: IntArray) -> None:
        """Count launches that began and ended, by device."""
        launched = self._launched[node]
        change = np.where(when[launched] < 0, -1, 1)
        counts = np.bincount(
            self._device[node[launched]], weights=change, minlength=len(self._lives.outstanding)
        )
        for device, count in enumerate(counts.tolist()):
            if self._lives.charged[device]:
                self._lives.outstanding[device] += int(count)


class _LastOnStream:
    """Which task was the last to be launched on a stream, at any of the places.

    Parameters
    ----------
    last : list of int
        Stream → task id before all of them (-1: none); brought up to date by `keep`.
    stream, place, task : (n,) arrays of int
        The launches in order.
    """

    def __init__(self, last: list[int], stream: IntArray, place: IntArray, task: IntArray) -> None:
        self._last = last
        self._stream, self._place, self._task = stream, place, task
        self._on: dict[int, tuple[list[int], list[int]]] = {}

    def before(self, stream: int, place: int, otherwise: int) -> int:
        """Return the last one launched on `stream` up to `place`, this one included; if none, `otherwise`."""
        if stream not in self._on:
            here = self._stream == stream
            self._on[stream] = self._place[here].tolist(), self._task[here].tolist()
        places, tasks = self._on[stream]
        n = bisect_right(places, place)
        if n:
            return tasks[n - 1]
        return self._last[stream] if self._last[stream] >= 0 else otherwise

    def keep(self) -> None:
        """Put down the last of each stream for those who come after."""
        for stream, task in dict(zip(self._stream.tolist(), self._task.tolist(), strict=True)).items():
            self._last[stream] = task
