"""What may be hung into a run: observers, which only watch, and memory, which may hold a task back."""

from __future__ import annotations

import warnings
from typing import Protocol

from sim.base.arrays import IntArray
from sim.machine.task import Task
from sim.readiness.tokens import TokenWatcher


class Observer(Protocol):
    """Watches a run. Costs nothing when absent; one that raises is dropped with a warning."""

    def started(self, task: Task) -> None:
        """`task` began to execute at ``task.start_ns``."""

    def ended(self, task: Task) -> None:
        """`task` finished at ``task.end_ns``."""


def tell(observers: list[Observer], what: str, task: Task) -> None:
    """Tell all observers that `task` has ``"started"`` or ``"ended"``; one that raises is dropped."""
    for observer in tuple(observers):
        try:
            getattr(observer, what)(task)
        except Exception as error:
            observers.remove(observer)
            warnings.warn(
                f"observer {observer!r} raised {error!r} and was dropped", RuntimeWarning, stacklevel=2
            )


class Memory(Protocol):
    """Gives tasks the memory of their outputs and takes it back after the last consumer."""

    at_issue: bool
    """Whether memory is taken when a task is issued (else when it starts)."""

    follows_ends: bool
    """Whether it has to be told when tasks end: whether that may free anything."""

    @property
    def watcher(self) -> TokenWatcher | None:
        """Who is told where tokens go, under control flow; None: nobody has to be."""

    def acquire(self, task: Task) -> int:
        """Take what `task` needs; return the ns it costs who asks, or `WAIT` until something is freed.

        Asked again for the same task after a `WAIT`, or after it was granted: then it returns 0.

        Raises
        ------
        OutOfMemoryError
            When it cannot be had and waiting is not wanted.
        """

    def freed(self) -> bool:
        """Whether anything was freed since this was last asked, other than by `release`.

        That is what a task read that took its memory, or what no token refers to any more.
        """

    def release(self, task: Task) -> bool:
        """`task` ended: free what nobody needs any more; return whether anything was freed."""

    def met(self, send: Task, recv: Task) -> None:
        """A Recv reads what a Send of its key offers, where that lies, until the Recv ends."""

    def lacks(self, task: Task) -> str:
        """Say what `task` waits for, which was answered `WAIT`: how many bytes, where, and who has them."""

    def columns(self) -> dict[str, IntArray]:
        """Return the log: its columns are in `sim.trace.Trace`, its rows in order."""
