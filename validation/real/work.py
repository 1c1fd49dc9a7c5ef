"""What the ops of a graph do when they really run, and how we know that they ran in the right order.

Every op reads what its producers have left and leaves something that depends on it, so that a run which broke
an order leaves something else than a serial run does. `Work.wrong` compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from sim.graph.graph import Graph
from sim.job.job import Job
from sim.job.transfers import make_flow
from sim.machine.task import Task
from sim.policy import Policy
from sim.trace import Trace


class Work(Protocol):
    """The kernels of one graph with their data. One object serves many runs."""

    def reset(self) -> None:
        """Forget all results: whoever reads one before it is made reads something wrong."""

    def issue(self, task: Task) -> None:
        """Spend what issuing `task` costs its host beyond putting it on a queue."""

    def run(self, task: Task) -> None:
        """Execute the op of `task` on the calling thread and leave its result."""

    def pulse_ns(self, thread: int) -> int | None:
        """Return how long a fixed piece of work takes on the calling thread now, and leave the thread warm.

        None where threads only sleep, and have no speed. `thread` counts those of the run.
        """

    def wrong(self) -> list[str]:
        """Return the names of the ops whose result is not that of a serial execution."""


@dataclass(frozen=True)
class Observation:
    """One real run.

    Attributes
    ----------
    trace : Trace
        Measured times, ns from the beginning of the run.
    wrong : list of str
        Ops with a wrong result: the run broke an order.
    delayed_ns : int
        How long the machine held the run up, as far as that can be seen from outside: the worst of the time a
        thread was runnable without running, of the time a hypervisor took, and of the latest beat of a heart.
    priority : str
        ``"fifo"`` when the threads had real-time priority, else ``"normal"``.
    truth_ns : int or None
        The makespan, when it was measured without looking at single ops; None: the trace's own.
    probe_error : float
        By how much looking at single ops changed the makespan, as a share of it.
    looked_ns : int or None
        The makespan of the run in which single ops were looked at, which is the one that `trace` tells of;
        None: there was one run.
    host_ns : int or None
        How long the host took to issue all of a plan, in the run without a look; None: nobody measured it.
    pulses : tuple of (int, int)
        Of every thread that has one: how long its fixed piece of work took right before the run and right
        after it.
    """

    trace: Trace
    wrong: list[str]
    delayed_ns: int = 0
    priority: str = "normal"
    truth_ns: int | None = None
    probe_error: float = 0.0
    looked_ns: int | None = None
    host_ns: int | None = None
    pulses: tuple[tuple[int, int], ...] = ()

    @property
    def makespan_ns(self) -> int:
        """The measured makespan."""
        return self.trace.makespan_ns if self.truth_ns is None else self.truth_ns

    @property
    def delayed(self) -> float:
        """The delay as a share of the makespan."""
        return self.delayed_ns / max(1, self.makespan_ns)


def measured_trace(job: Job, tasks: Iterable[Task], policy: str = "plan") -> Trace:
    """Return the trace of tasks that ran elsewhere, in order of start; `policy` names what decided."""
    in_order = sorted(tasks, key=lambda task: (task.start_ns, task.id))
    return replace(Trace.from_tasks(job, make_flow(job), Policy(), in_order), policy=policy)


def producers_of(graph: Graph) -> list[list[int]]:
    """Return the producers of every op within an iteration, data edges first, without repetition."""
    return [list(dict.fromkeys(row)) for row in graph.dag().predecessors]
