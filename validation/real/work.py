"""Work of a graph's ops in real execution, and the check that they ran in the right order.

Every op reads the results of its producers and leaves something that depends on them, so that a run which
broke an order leaves something else than a serial run. `Work.wrong` compares the two.
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
        """Discard all results: reading one before it is made then gives a wrong value."""

    def issue(self, task: Task) -> None:
        """Spend the host time of issuing `task` beyond putting it on a queue."""

    def run(self, task: Task) -> None:
        """Execute the op of `task` on the calling thread and leave its result."""

    def pulse_ns(self, thread: int) -> int | None:
        """Return the current time of a fixed piece of work on the calling thread, and leave the thread warm.

        None if threads only sleep, and so have no speed. `thread` counts those of the run.
        """

    def wrong(self) -> list[str]:
        """Return the names of the ops whose result differs from that of a serial execution."""


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
        How long the machine delayed the run, as far as visible from outside: the largest of the time a
        thread was runnable without running, of the time a hypervisor took, and of the latest beat of a heart.
    priority : str
        ``"fifo"`` if the threads had real-time priority, else ``"normal"``.
    truth_ns : int or None
        The makespan, if measured without events around single ops; None: the trace's own.
    probe_error : float
        Relative change of the makespan by events around single ops.
    looked_ns : int or None
        The makespan of the run with events around single ops, which is the one in `trace`;
        None: there was one run.
    host_ns : int or None
        Host time to issue all of a plan, in the run without such events; None: not measured.
    pulses : tuple of (int, int)
        For every thread that has a pulse: the time of its fixed piece of work right before the run and right
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
