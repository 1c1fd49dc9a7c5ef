"""When a device is free: the gaps between what has been placed on it.

::

    lane 0   ▇▇▇▇····▇▇▇·······…      gaps: [4, 8) [11, ∞)
    lane 1   ▇▇▇▇▇▇▇···········…            [7, ∞)

Only gaps are kept, so that looking for one costs what the gaps cost and not what the tasks do.
"""

from __future__ import annotations

from bisect import bisect_left

from policies.placement.problem import NEVER

__all__ = ["Timeline"]


class Timeline:
    """The free time of one device with one or more lanes.

    Parameters
    ----------
    lanes : int
        Workers or streams: how many ops run at once.
    insertion : bool
        Whether an op may go into a gap between two others, or only after the last one of a lane.
    """

    def __init__(self, lanes: int = 1, insertion: bool = True) -> None:
        self.insertion = insertion
        self._gaps: list[list[tuple[int, int]]] = [[(0, NEVER)] for _ in range(lanes)]

    def earliest(self, ready_ns: int, duration_ns: int) -> tuple[int, int]:
        """Return the earliest start, not before `ready_ns`, and the first lane that offers it.

        Examples
        --------
        >>> t = Timeline()
        >>> t.take(5, 10, 0)
        >>> t.earliest(0, 5), t.earliest(0, 6), t.earliest(2, 3)
        ((0, 0), (15, 0), (2, 0))
        """
        return min((self._earliest_on(lane, ready_ns, duration_ns), lane) for lane in range(len(self._gaps)))

    def _earliest_on(self, lane: int, ready_ns: int, duration_ns: int) -> int:
        gaps = self._gaps[lane]
        # The first gap that ends late enough: ends are in the order of starts.
        first = len(gaps) - 1
        if self.insertion:
            first = bisect_left(gaps, ready_ns + duration_ns, key=lambda gap: gap[1])
        for begin, end in gaps[first:]:
            start = max(begin, ready_ns)
            if start + duration_ns <= end:
                return start
        return NEVER

    def take(self, start_ns: int, duration_ns: int, lane: int) -> None:
        """Occupy a lane from `start_ns` on; `earliest` has said that it is free."""
        gaps = self._gaps[lane]
        k = bisect_left(gaps, start_ns + duration_ns, key=lambda gap: gap[1])
        begin, end = gaps[k]
        parts = [(begin, start_ns), (start_ns + duration_ns, end)]
        gaps[k : k + 1] = [part for part in parts if part[0] < part[1]]
