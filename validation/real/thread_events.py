"""Events between streams: recorded once, and every waiter has a lock of its own.

One lock that many threads wait for wakes them one after another, each taking it and giving it back; a lock a
waiter is one hand-over each, which is what an event of the hardware costs.
"""

from __future__ import annotations

import threading


class Event:
    """Happens once. `waiter` before it blocks, `record` lets everybody go."""

    __slots__ = ("_guard", "_happened", "_waiters")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._happened = False
        self._waiters: list[threading.Lock] = []

    def waiter(self) -> threading.Lock | None:
        """Return a lock that can be acquired once the event has happened; None when it has."""
        with self._guard:
            if self._happened:
                return None
            lock = threading.Lock()
            lock.acquire()
            self._waiters.append(lock)
            return lock

    def record(self) -> None:
        """Let the event happen."""
        with self._guard:
            self._happened = True
            waiters, self._waiters = self._waiters, []
        for lock in waiters:
            lock.release()
