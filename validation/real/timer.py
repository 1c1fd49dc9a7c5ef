"""The timer backend: kernels are sleeps, so that any machine can act as a device with any number of streams.

Everything except the arithmetic is real: threads, queues, events, the host that issues, the policy
that decides. An op of kind ``sleep`` takes its attribute ``sleep_ns`` (and its host ``issue_sleep_ns``
before it is issued). Its result is a number made from its name and from the results of its producers when it
*started*, so that an execution which did not wait for a producer ends with another number.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence

from sim.graph.graph import Graph
from sim.job.job import Job
from sim.machine.task import Task
from validation.real.clock import now_ns, prefer_this_thread, sleep_until
from validation.real.lanes import LaneBackend
from validation.real.work import producers_of

_UNMADE = 0x5EED


def mix(name: str, iteration: int, inputs: Sequence[int]) -> int:
    """Return a number that depends on all of its arguments and on their order."""
    return zlib.crc32(repr((name, iteration, *inputs)).encode())


class SleepWork:
    """Sleeping kernels of one graph.

    Parameters
    ----------
    graph : Graph
        Every op has the attribute ``sleep_ns``, or an explicit duration, for which it sleeps.
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
        """Sleep for the host time of a launch."""
        if self.issue_ns[task.op]:
            sleep_until(now_ns() + self.issue_ns[task.op])

    def run(self, task: Task) -> None:
        """Read the inputs, sleep, leave the result."""
        until_ns = now_ns() + self.sleep_ns[task.op]
        inputs = [self.left.get((task.iteration, p), _UNMADE) for p in self.producers[task.op]]
        sleep_until(until_ns)
        self.left[task.iteration, task.op] = mix(self.names[task.op], task.iteration, inputs)

    def pulse_ns(self, thread: int) -> None:
        """Return None: sleeping has no speed."""

    def wrong(self) -> list[str]:
        """Return the ops whose number differs from that of a serial execution."""
        wrong = []
        for iteration in sorted({iteration for iteration, _ in self.left}):
            serial: dict[int, int] = {}
            for op in self.order:
                serial[op] = mix(self.names[op], iteration, [serial[p] for p in self.producers[op]])
                if self.left.get((iteration, op)) != serial[op]:
                    wrong.append(self.names[op])
        return wrong


class Timer(LaneBackend):
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

    def work(self, job: Job) -> SleepWork:
        """Return the sleeps of a job."""
        return SleepWork(job.graph)

    def sentinel_ns(self) -> int:
        """Return the median of five sleeps of 2 ms, on a thread like those of a run."""
        taken: list[int] = []

        def body() -> None:
            prefer_this_thread()
            for _ in range(6):
                begin = now_ns()
                sleep_until(begin + 2_000_000)
                taken.append(now_ns() - begin)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        return sorted(taken[1:])[2]
