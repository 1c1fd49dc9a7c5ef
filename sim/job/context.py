"""What the engine offers to those who share: processors and networks."""

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
    """What the engine offers to processors and networks.

    `conditions` says how fast links carry bytes, where that changes or they fail; a network heeds it.
    """

    job: Job
    flow: Flow
    conditions: Conditions | None
    now_ns: int

    def call_at(self, time_ns: int, callback: Callable[[Any], None], value: Any = None) -> None:
        """Call ``callback(value)`` at `time_ns`. It cannot be cancelled: let stale calls do nothing."""

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` once, at the present instant, after its ends, issues and starts.

        So all that ends and starts at an instant is known before what it frees is given away. The callback
        may plan (`call_at`) and say `started`; it must not finish tasks.
        """

    def started(self, task: Task) -> None:
        """Put down that a task begins now whose start its processor or network has put off."""

    def duration_of(self, task: Task) -> int:
        """Return how long `task` takes when nothing else disturbs it, noise included."""

    def carried(self, message: Message) -> None:
        """Put down a message that is no transfer of a tensor and has arrived now."""

    def finish(self, task: Task) -> None:
        """End a task at the present instant."""
