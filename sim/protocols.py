"""What a cost model, a processor and a network have to offer, and what decides besides the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from sim.graph import Graph, IntArray

if TYPE_CHECKING:
    from sim.device import Device
    from sim.job import Job
    from sim.machine import Machine
    from sim.task import Task
    from sim.transfers import Flow

__all__ = [
    "MANAGED",
    "WAIT",
    "Context",
    "CostModel",
    "Linearizer",
    "Network",
    "Placement",
    "Processor",
    "StreamAssignment",
]


class CostModel(Protocol):
    """How long ops take on a device.

    A model that refuses ops may have a method ``why_not(graph, op, device)``, which returns in words why an
    op cannot run there, or None.
    """

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns; -1 where the model does not know the op."""


WAIT: Final = -1
"""`Processor.start`: not now; the engine asks again when a task of the device ends."""

MANAGED: Final = -2
"""`Processor.start`: begun; the processor itself calls `Context.finish` when it is over."""


class Context(Protocol):
    """What the engine offers to processors and networks."""

    job: Job
    flow: Flow
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

    def finish(self, task: Task) -> None:
        """End a task at the present instant."""


class Processor(Protocol):
    """What the tasks of one device share: cores, SMs, memory bandwidth.

    A class of processors may have a static method ``least_ns(device, job, duration_ns, runs)``: a lower
    bound, in ns, of the time in which any schedule gets through the work of `device`, where each op takes
    ``duration_ns`` alone and runs ``runs`` times (`sim.bounds` asks for it).
    """

    def start(self, task: Task) -> int:
        """Begin `task` and return how many ns it takes, or `WAIT`, or `MANAGED`.

        ``task.start_ns`` is now. A processor that takes a task but begins it later puts down when; where it
        does not know yet, it says `Context.started` at that instant.
        """

    @property
    def end(self) -> Callable[[Task], None] | None:
        """``end(task)``: `task` is over, release what it held. None: they hold nothing, and none waits."""


class Network(Protocol):
    """Carries transfers over links."""

    def start(self, task: Task) -> None:
        """Take a transfer that is ready; say `started` when it begins and `finish` when it has arrived."""


class Placement(Protocol):
    """Chooses a device for every op."""

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op. ``cost_ns[d][op]`` is -1 where device d cannot run op."""


class Linearizer(Protocol):
    """Puts all ops in one program order."""

    def order(self, job: Job) -> Sequence[int]:
        """Return a permutation of the ops; producers need not come first, but a stuck run is an error."""


class StreamAssignment(Protocol):
    """Chooses a stream of its device for every op that is launched."""

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device."""
