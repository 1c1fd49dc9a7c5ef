"""The interface of the engine for shared resources: processors and networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sim.faults import Conditions
    from sim.job.job import Job
    from sim.job.transfers import Flow
    from sim.machine.links import Message
    from sim.machine.task import Task


class Context(Protocol):
    """The interface of the engine for processors and networks.

    `conditions` gives the speed of links if it changes or if they fail; a network has to respect it.
    """

    job: Job
    flow: Flow
    conditions: Conditions | None
    now_ns: int

    def call_at(self, time_ns: int, callback: Callable[[Any], None], value: Any = None) -> None:
        """Call ``callback(value)`` at `time_ns`. It cannot be cancelled: stale calls must do nothing."""

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` once, at the present instant, after its ends, issues and starts.

        So all ends and starts of an instant are known before freed resources are given away. The callback
        may plan (`call_at`) and call `started`; it must not finish tasks.
        """

    def started(self, task: Task) -> None:
        """Record that a task whose start its processor or network has delayed begins now."""

    def duration_of(self, task: Task) -> int:
        """Return the undisturbed duration of `task`, including noise."""

    def carried(self, message: Message) -> None:
        """Record a message that is not a transfer of a tensor and has arrived now."""

    def finish(self, task: Task) -> None:
        """End a task at the present instant."""
