"""TensorFlow's executor: an inline queue per thread, and a work-stealing pool for expensive ops.

A thread that finished an op looks at what became ready, in edge order::

    dead or cheap op   ──► back of this thread's inline queue
    expensive op       ──► the pool, except the last one: when the inline queue is empty, this
                           thread runs it next

and takes its next op from the front of its inline queue, then from the front of its own deque in the
pool (where it also pushes: depth first), then from the back of another thread's. So on one thread a
fan-out of expensive ops f0 .. f5 runs f5, f4, ..., f0. With ``threads="caller"`` everything goes through
one queue, breadth first: f0 .. f5.

Rules 8 to 13 of the executor (tensorflow/core/common_runtime/executor.cc: ``ExecutorState::Process``,
``ScheduleReady``; Eigen's ``ThreadPoolTempl``). Where Eigen picks a victim at random, ours starts the search
at the thread after the thief, so that a run repeats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from sim import Issuer, Job, Policy, Task
from sim.errors import InputError
from sim.frames import CONTROL_FLOW_KINDS

__all__ = ["TensorFlowExecutor"]

CHEAP_KINDS: Final = CONTROL_FLOW_KINDS | {"const", "identity", "no_op", "arg", "retval", "control_trigger"}
"""Kinds whose kernels are cheap on every device."""


class TensorFlowExecutor(Policy):
    """The executor of one process: its threads are the workers of its CPU, or a host's threads.

    Parameters
    ----------
    threads : str
        ``"pool"``: the inter-op thread pool; ``"caller"``: the calling thread runs everything
        (an inter-op pool of size -1), for a machine with one worker.

    Raises
    ------
    InputError
        Another word.

    Notes
    -----
    An op is expensive when it runs on a worker and its kind is not in `CHEAP_KINDS`; an op's attribute
    ``expensive`` overrides that. Synchronisation is ``"issue"``: an op on a GPU is done, for the
    executor, when it is on the stream.
    """

    synchronisation = "issue"

    def __init__(self, threads: str = "pool") -> None:
        if threads not in ("pool", "caller"):
            raise InputError(f"tensorflow-executor: threads must be pool or caller, found {threads!r}")
        self.threads = threads

    def prepare(self, job: Job) -> None:
        """Classify the ops and make empty queues."""
        graph = job.graph
        cheap = [kind in CHEAP_KINDS for kind in graph.kinds]
        workers = [device.workers > 0 for device in job.machine.devices]
        self._expensive = [
            workers[d] and not cheap[k]
            for d, k in zip(job.device_of.tolist(), graph.kind_code.tolist(), strict=True)
        ]
        for op, attributes in graph.attributes.items():
            if "expensive" in attributes:
                self._expensive[op] = bool(attributes["expensive"])
        issuers = job.machine.issuers()
        self._group: list[list[int]] = [[] for _ in range(job.n_groups)]
        for issuer in issuers:
            self._group[issuer.group].append(issuer.index)
        self._inline: list[deque[Task]] = [deque() for _ in issuers]
        self._pool: list[deque[Task]] = [deque() for _ in issuers]
        self._roots: list[list[Task]] = [[] for _ in range(job.n_groups)]

    def ready(self, task: Task) -> None:
        """Keep a root until the first thread of its group asks: the source node makes all of them ready."""
        self._roots[task.group].append(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Schedule what became ready, as ScheduleReady does."""
        if issuer is None or any(t.group != issuer.group for t in now_ready):
            mine = [] if issuer is None else [t for t in now_ready if t.group == issuer.group]
            for t in now_ready:
                if issuer is None or t.group != issuer.group:
                    # From outside: onto the queue of a thread of its own executor, none inline.
                    self._pool[self._group[t.group][0]].append(t)
            now_ready = mine
        if issuer is not None and now_ready:
            self._schedule(now_ready, issuer.index)

    def _schedule(self, now_ready: Sequence[Task], thread: int) -> None:
        inline = self._inline[thread]
        if self.threads == "caller":
            inline.extend(now_ready)
            return
        last: Task | None = None
        for task in now_ready:
            if task.dead or not self._expensive[task.op]:
                inline.append(task)
            else:
                if last is not None:
                    self._pool[thread].appendleft(last)
                last = task
        if last is not None:
            if inline:
                self._pool[thread].appendleft(last)
            else:
                inline.append(last)

    def next(self, issuer: Issuer) -> Task | None:
        """Return the thread's next op: inline, from its own deque, or stolen."""
        thread = issuer.index
        if self._roots[issuer.group]:
            roots, self._roots[issuer.group] = self._roots[issuer.group], []
            self._schedule(roots, thread)
        if self._inline[thread]:
            return self._inline[thread].popleft()
        if self._pool[thread]:
            return self._pool[thread].popleft()
        group = self._group[issuer.group]
        at = group.index(thread)
        for victim in group[at + 1 :] + group[:at]:
            if self._pool[victim]:
                return self._pool[victim].pop()
        return None
