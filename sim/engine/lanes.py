"""Where issued tasks stand: the streams of a device, and its queue of launches."""

from __future__ import annotations

from collections import deque

from sim.machine.task import Task

__all__ = ["LaunchQueue", "Stream"]


class Stream:
    """A queue of issued tasks, of which one runs at a time.

    Attributes
    ----------
    index, device : int
        Its lane, counted over the machine, and its device.
    launch_ns, gap_ns : int
        From issue to the earliest start, and from an end to the next start.
    queue : deque of Task
        Issued and not started.
    running : Task or None
    free_ns : int
        When the next task may start: the end of the last one and the gap.
    """

    __slots__ = ("device", "free_ns", "gap_ns", "index", "launch_ns", "queue", "running")

    def __init__(self, index: int, device: int, launch_ns: int, gap_ns: int) -> None:
        self.index, self.device, self.launch_ns, self.gap_ns = index, device, launch_ns, gap_ns
        self.queue: deque[Task] = deque()
        self.running: Task | None = None
        self.free_ns = 0


class LaunchQueue:
    """A device's places for launches that have not ended; whoever finds none is parked, with its issuer.

    Parameters
    ----------
    depth : int or None
        How many places; None is no limit.

    Examples
    --------
    >>> places, (a, b) = LaunchQueue(1), [Task(k, k, 0, 0) for k in range(2)]
    >>> places.enter(a), places.enter(b)
    (True, False)
    >>> places.leave() is b, places.leave() is None
    (True, True)
    """

    __slots__ = ("_left", "_parked")

    def __init__(self, depth: int | None) -> None:
        self._left = depth
        self._parked: deque[Task] = deque()

    def enter(self, task: Task) -> bool:
        """Take a place for `task`, or park it."""
        if self._left is None:
            return True
        if not self._left:
            self._parked.append(task)
            return False
        self._left -= 1
        return True

    def leave(self) -> Task | None:
        """Give a place back; return the task that was parked first, which has the place from now on."""
        if self._left is None:
            return None
        if self._parked:
            return self._parked.popleft()
        self._left += 1
        return None
