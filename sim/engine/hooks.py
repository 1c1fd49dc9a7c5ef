"""Hooks into a run: observers, which only watch, and memory, which may hold a task back."""

from __future__ import annotations

import warnings
from operator import attrgetter
from typing import Final, Protocol

from sim.base.arrays import IntArray
from sim.machine.task import Task
from sim.readiness.tokens import TokenWatcher

_TASK_VALUES: Final = attrgetter(*Task.__slots__)  # six times as fast as a shallow copy


class Observer(Protocol):
    """Watches a run, by copies of its tasks as they are then.

    Costs nothing when absent; one that raises is dropped with a warning.
    """

    def started(self, task: Task) -> None:
        """Called when `task` began to execute at ``task.start_ns``."""

    def ended(self, task: Task) -> None:
        """Called when `task` finished at ``task.end_ns``."""


def notify(observers: list[Observer], event: str, task: Task) -> None:
    """Notify all observers that `task` has ``"started"`` or ``"ended"``; drop one that raises."""
    for observer in tuple(observers):
        try:
            getattr(observer, event)(Task(*_TASK_VALUES(task)))
        except (Exception, SystemExit) as error:
            observers.remove(observer)
            message = f"observer {observer!r} raised {error!r} and was dropped"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


class Memory(Protocol):
    """Gives tasks the memory of their outputs and takes it back after the last consumer."""

    at_issue: bool
    """Whether memory is taken when a task is issued, rather than when it starts."""

    follows_ends: bool
    """Whether the end of a task may free memory, so that `release` has to be called."""

    @property
    def watcher(self) -> TokenWatcher | None:
        """The watcher that follows tokens under control flow; None: nothing has to."""

    def acquire(self, task: Task) -> int:
        """Take the memory that `task` needs; return its cost to the caller in ns, or `WAIT`: none is free.

        It is called again for the same task after a `WAIT`, or after the grant: then it returns 0.

        Raises
        ------
        OutOfMemoryError
            The memory is not available and waiting is not an option.
        """

    def has_freed(self) -> bool:
        """Whether anything was freed since the last call, other than by `release`.

        Taking memory may free the inputs of a task, and tokens may drop their last reference.
        """

    def release(self, task: Task) -> bool:
        """Free what nothing needs after the end of `task`; return whether anything was freed."""

    def on_meeting(self, send: Task, recv: Task) -> None:
        """Note that a Recv reads, in place and until it ends, what a Send of its key offers."""

    def lacks(self, task: Task) -> str:
        """Describe what a task answered with `WAIT` waits for: how many bytes, where, and who has them."""

    def columns(self) -> dict[str, IntArray]:
        """Return the log: its columns are in `sim.trace.Trace`, its rows in order."""
