"""The timer backend: kernels are sleeps, so that any machine can play a device with any number of streams.

What is real here is everything but the arithmetic: threads, queues, events, the host that issues, the policy
that decides. An op of kind ``sleep`` takes its attribute ``sleep_ns`` (and its host ``issue_sleep_ns``
before it is issued). Its result is a number made of its name and of what its producers had left when it
*started*, so that an execution which did not wait for a producer ends with another number.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from sim.graph.graph import Graph
from sim.job.job import Job
from sim.machine.task import Task
from sim.policy.policy import Policy
from sim.record.plan import Plan
from validation.host.clock import now_ns, sleep_until
from validation.real.driver import Driver
from validation.real.follow import Follower
from validation.real.lanes import run_on_threads
from validation.real.work import Observation, producers_of

__all__ = ["SleepWork", "Timer"]

_UNMADE = 0x5EED


def mix(name: str, iteration: int, inputs: Sequence[int]) -> int:
    """Return a number that depends on all of its arguments and on their order."""
    return zlib.crc32(repr((name, iteration, *inputs)).encode())


class SleepWork:
    """Sleeping kernels of one graph.

    Parameters
    ----------
    graph : Graph
        Every op has the attribute ``sleep_ns``, or an explicit duration, which is slept then.
    """

    def __init__(self, graph: Graph) -> None:
        self.names = graph.op_names
        self.producers = producers_of(graph)
        facts = [graph.attributes.get(op, {}) for op in range(len(graph))]
        explicit = graph.duration_ns.tolist()
        self.sleep_ns = [
            int(fact.get("sleep_ns", max(0, ns))) for fact, ns in zip(facts, explicit, strict=True)
        ]
        self.issue_ns = [int(fact.get("issue_sleep_ns", 0)) for fact in facts]
        self.order = graph.topological_order.tolist()
        self.left: dict[tuple[int, int], int] = {}

    def reset(self) -> None:
        """Forget all results."""
        self.left = {}

    def issue(self, task: Task) -> None:
        """Sleep as long as launching takes the host."""
        if self.issue_ns[task.op]:
            sleep_until(now_ns() + self.issue_ns[task.op])

    def run(self, task: Task) -> None:
        """Read the inputs, sleep, leave the result."""
        until_ns = now_ns() + self.sleep_ns[task.op]
        inputs = [self.left.get((task.iteration, p), _UNMADE) for p in self.producers[task.op]]
        sleep_until(until_ns)
        self.left[task.iteration, task.op] = mix(self.names[task.op], task.iteration, inputs)

    def pulse_ns(self, thread: int) -> None:
        """Return None: who sleeps has no speed."""

    def wrong(self) -> list[str]:
        """Return the ops whose number is not that of a serial execution."""
        wrong = []
        for iteration in sorted({iteration for iteration, _ in self.left}):
            serial: dict[int, int] = {}
            for op in self.order:
                serial[op] = mix(self.names[op], iteration, [serial[p] for p in self.producers[op]])
                if self.left.get((iteration, op)) != serial[op]:
                    wrong.append(self.names[op])
        return wrong


class Timer:
    """Executes on threads that sleep.

    Examples
    --------
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", duration_ns=1_000_000); _ = b.op("b", inputs=["a"], duration_ns=1_000_000)
    >>> job = make_job(b.build(), Machine((Device("cpu0", "cpu", workers=2),)))
    >>> seen = Timer().drive(job, ReadyQueue())
    >>> seen.wrong, seen.trace.makespan_ns >= 2_000_000
    ([], True)
    """

    name = "timer"

    def drive(self, job: Job, policy: Policy) -> Observation:
        """Let `policy` decide while the tasks run for real.

        Raises
        ------
        InputError, StuckError
            See `validation.real.driver.Driver` and `validation.real.lanes.run_on_threads`.
        """
        work = SleepWork(job.graph)
        return run_on_threads(job, work, lambda now: Driver(job, policy, now), type(policy).__name__)

    def execute(self, job: Job, plan: Plan, *, gated: bool = True) -> Observation:
        """Execute `plan`; there is no gate here, hosts are fast beside these kernels.

        Raises
        ------
        InputError, UnknownNameError, StuckError
            See `validation.real.follow.Follower` and `validation.real.lanes.run_on_threads`.
        """
        return run_on_threads(job, SleepWork(job.graph), lambda now: Follower(job, plan, now), "plan")
