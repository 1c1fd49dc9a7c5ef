"""TensorFlow's executor: an inline queue per thread, and a work-stealing pool for expensive ops.

A thread that finished an op looks at what became ready, in edge order::

    dead or cheap op   ──► back of this thread's inline queue
    expensive op       ──► the pool, except the last one: when the inline queue is empty, this
                           thread runs it next

and takes its next op from the front of its inline queue, then from the front of its own deque in the
pool (where it also pushes: depth first), then from the back of another thread's. So on one thread a
fan-out of expensive ops f0 .. f5 runs f5, f4, ..., f0. With ``threads="caller"`` everything goes through
one queue, breadth first: f0 .. f5.

A Recv that becomes ready when its Send ends completes inside the Send: before anything else that the Send
made ready. Whatever a Recv makes ready goes to the pool, none inline.

Several sessions (ops with an attribute ``session``) share one pool, or have a pool each::

    shared             all sessions ──► w0 w1 w2 w3
    per session        session a ──► w0 w1       session b ──► w2 w3

Rules 8 to 13 of the executor (tensorflow/core/common_runtime/executor.cc: ``ExecutorState::Process``,
``ScheduleReady``; Eigen's ``ThreadPoolTempl``). Where Eigen picks a victim at random, ours starts the search
at the thread after the thief, so that a run repeats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from policies.issue.executors.thread_pools import PoolLayout
from policies.option_checks import one_of, whole
from sim import Issuer, Job, Policy, Task
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.policy.order import Order
from sim.words.errors import InputError

__all__ = ["TensorFlowExecutor"]

CHEAP_KINDS: Final = CONTROL_FLOW_KINDS | {"const", "identity", "no_op", "arg", "retval", "control_trigger"}
"""Kinds whose kernels are cheap on every device."""


_FIRST_ESTIMATE: Final = 100_000_000
_EXPENSIVE_CYCLES: Final = 8000
"""Cycles: what an op is taken to cost before it ever ran, and what it has to cost to be expensive."""


class TensorFlowExecutor(Policy):
    """TensorFlow's executor for one process; its threads are the workers of its CPU, or a host's threads.

    Parameters
    ----------
    threads : str
        ``"pool"``: the inter-op thread pool; ``"caller"``: the calling thread runs everything
        (an inter-op pool of size -1), for a machine with one worker.
    inter_op_parallelism_threads : int
        Threads of a pool; 0: all workers of the CPU, or with pools per session as many as it has cores.
    use_per_session_threads : bool
        Whether every session has a pool of its own.
    session_inter_op_thread_pool : sequence of int
        Sizes of pools, of which a session chooses one by number (its attribute ``inter_op_thread_pool``).
    cycles_per_us : int
        Clock by which ops are judged expensive as later versions do: by what they took, too. An op's estimate
        starts at 10^8 cycles, becomes (9 · old + elapsed) / 10 after each run, and the op is cheap once that
        is at most 8000. 0: the flag alone, as in TensorFlow 1.

    Raises
    ------
    InputError
        Another word, a negative number, two ways to have several pools; when the run begins: more threads
        than the CPU has workers, or a pool that does not exist.

    Notes
    -----
    An op is expensive when it runs on a worker and its kind is not in `CHEAP_KINDS`; an op's attribute
    ``expensive`` overrides that. Synchronisation is ``"issue"``: an op on a GPU is done, for the
    executor, when it is on the stream.
    """

    synchronisation = "issue"

    def __init__(
        self,
        threads: str = "pool",
        inter_op_parallelism_threads: int = 0,
        use_per_session_threads: bool = False,
        session_inter_op_thread_pool: Sequence[int] = (),
        cycles_per_us: int = 0,
    ) -> None:
        self.threads = one_of("tensorflow-executor", "threads", threads, ("pool", "caller"))
        if inter_op_parallelism_threads < 0:
            raise InputError(
                "tensorflow-executor: inter_op_parallelism_threads must be >= 0, found "
                f"{inter_op_parallelism_threads}; for the calling thread alone give threads: caller",
                path=("inter_op_parallelism_threads",),
            )
        if use_per_session_threads and session_inter_op_thread_pool:
            raise InputError(
                "tensorflow-executor: give use_per_session_threads or session_inter_op_thread_pool, not both",
                path=("use_per_session_threads",),
            )
        if any(size < 1 for size in session_inter_op_thread_pool):
            message = "tensorflow-executor: session_inter_op_thread_pool must be sizes >= 1"
            raise InputError(message, path=("session_inter_op_thread_pool",))
        self.size = inter_op_parallelism_threads
        self.per_session = use_per_session_threads
        self.sizes = tuple(session_inter_op_thread_pool)
        self.cycles_per_us = whole("tensorflow-executor", "cycles_per_us", cycles_per_us, least=0)

    def prepare(self, job: Job) -> None:
        """Classify the ops, divide the threads, and make empty queues."""
        graph = job.graph
        costly = np.array([kind not in CHEAP_KINDS for kind in graph.kinds], bool)
        self._expensive: list[bool] = (costly[graph.kind_code] & ~job.launched).tolist()
        for op, attributes in graph.attributes.items():
            if "expensive" in attributes:
                self._expensive[op] = bool(attributes["expensive"])
        self._estimate = [_FIRST_ESTIMATE] * len(graph)
        self._is_recv = (np.array(graph.kinds, dtype=str) == "recv")[graph.kind_code].tolist()
        issuers = job.machine.issuers()
        layout = PoolLayout(job, self.size, self.per_session, self.sizes)
        self._pool_of_op, self._pool_of_thread = layout.of_op, layout.of_thread
        self._members = layout.members
        self._inline: list[deque[Task]] = [deque() for _ in issuers]
        self._pool: list[deque[Task]] = [deque() for _ in issuers]
        self._roots: list[list[Task]] = [[] for _ in self._members]
        self._after_recv: dict[int, list[Task]] = {}

    def as_data(self, job: Job) -> Order | None:
        """Return that threads steal, unless estimates or Recvs change who goes on with what."""
        self.prepare(job)
        if self.cycles_per_us or any(self._is_recv):
            return None
        cheap = 1 - np.array(self._expensive, np.int64) * (self.threads == "pool")
        pool, of_issuer = np.array(self._pool_of_op), np.array(self._pool_of_thread)
        return Order("steal", cheap=cheap, pool=pool, pool_of_issuer=of_issuer)

    def ready(self, task: Task) -> None:
        """Keep a root until the first thread of its pool asks: the source node makes all of them ready."""
        self._roots[self._pool_of_op[task.op]].append(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Schedule what became ready, as ScheduleReady does."""
        if self.cycles_per_us and issuer is not None and task.end_ns >= 0 and not task.dead:
            elapsed = (task.end_ns - task.start_ns) * self.cycles_per_us // 1000
            self._estimate[task.op] = (9 * self._estimate[task.op] + elapsed) // 10
        pool = -1 if issuer is None else self._pool_of_thread[issuer.index]
        mine: list[Task] = []
        for t in now_ready:
            if self._pool_of_op[t.op] == pool:
                mine.append(t)
            else:  # from outside: onto the queue of a thread of its own executor, none inline
                self._pool[self._members[self._pool_of_op[t.op]][0]].append(t)
        if issuer is None:
            return
        thread = issuer.index
        if self.threads == "caller":
            pass  # one queue for all
        elif self._is_recv[task.op] and not task.dead:
            for t in mine:  # the done callback
                self._pool[thread].appendleft(t)
            mine = self._after_recv.pop(task.id, [])
        else:
            recvs = [t for t in mine if self._is_recv[t.op] and not t.dead]
            if recvs:
                mine = [t for t in mine if t not in recvs]
                self._inline[thread].extendleft(reversed(recvs))
                self._after_recv[recvs[-1].id] = mine
                return
        if mine:
            self._schedule(mine, thread)

    def _schedule(self, now_ready: Sequence[Task], thread: int) -> None:
        inline = self._inline[thread]
        if self.threads == "caller":
            inline.extend(now_ready)
            return
        last: Task | None = None
        for task in now_ready:
            if task.dead or not self._is_expensive(task.op):
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

    def _is_expensive(self, op: int) -> bool:
        return self._expensive[op] and self._estimate[op] > _EXPENSIVE_CYCLES

    def next(self, issuer: Issuer) -> Task | None:
        """Return the thread's next op: inline, from its own deque, or stolen."""
        thread = issuer.index
        pool = self._pool_of_thread[thread]
        if pool < 0:
            return None  # a worker that belongs to no pool
        if self._roots[pool]:
            roots, self._roots[pool] = self._roots[pool], []
            self._schedule(roots, thread)
        if self._inline[thread]:
            return self._inline[thread].popleft()
        if self._pool[thread]:
            return self._pool[thread].popleft()
        members = self._members[pool]
        at = members.index(thread)
        for victim in members[at + 1 :] + members[:at]:
            if self._pool[victim]:
                return self._pool[victim].pop()
        return None
