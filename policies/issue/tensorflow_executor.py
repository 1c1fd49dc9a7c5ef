"""TensorFlow's executor: an inline queue per thread, and a work-stealing pool for expensive ops.

A thread that has finished an op goes through what became ready, in edge order::

    dead or cheap op   ──► back of this thread's inline queue
    expensive op       ──► the pool, except the last one, which this thread runs next if its
                           inline queue is empty

and takes its next op from the front of its inline queue, then from the front of its own deque in the
pool (where it also pushes: depth first), then from the back of another thread's. So on one thread a
fan-out of expensive ops f0 .. f5 runs f5, f4, ..., f0. With ``inter_op_parallelism_threads=-1`` every op
goes through one queue, breadth first: f0 .. f5. The ops that an asynchronous kernel makes ready then run at
once inside it, one after another, each with its own queue. Only a session whose ops are on a single device
runs like this; one with more devices uses the pool.

In a session, each device has its own executor for its part of the graph, which begins with a source node: a
thread takes it from the pool like any other node, and it makes every op without inputs ready.

An asynchronous kernel (`ASYNCHRONOUS_KINDS`, or ``attributes: {async: true}``) is only started by its thread
and goes on without it. Whatever it makes ready goes to the pool, never inline. A Recv is asynchronous: an
expensive node that takes its turn and asks the rendezvous when a thread runs it. If its Send came first, it
is done on the spot; if not, it completes inside the Send, before anything that the Send makes ready. A dead
Send or Recv goes inline like every dead node, but it executes, to transmit that it is dead.

Several sessions (ops with an attribute ``session``) share one pool or have one each::

    shared             all sessions ──► w0 w1 w2 w3
    per session        session a ──► w0 w1       session b ──► w2 w3

Rules 8 to 13 of the executor (tensorflow/core/common_runtime/executor.cc: ``ExecutorState::Process``,
``ProcessAsync``, ``ScheduleReady`` with its ``run_all_kernels_inline_``; direct_session.cc, where the calling
thread runs a closure by calling it, for a single executor only; sendrecv_ops.cc and local_rendezvous.cc,
which call the waiting Recv from inside the Send; Eigen's ``ThreadPoolTempl``). Where Eigen picks a victim at
random, we start the search at the thread after the thief, so that runs repeat. Orders recorded from
TensorFlow 2.21, with one thread and two devices, are test data (``tests/tensorflow_orders.py``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence, Set
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from policies.issue.program_order import in_turn
from policies.option_checks import whole
from sim import Issuer, Job, Policy, Task
from sim.base.errors import InputError
from sim.base.units import NS_PER_S
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.policy import Order

# ----------------------------------------------------------------------------------------------------------
# TensorFlow's inter-op thread pools: which threads run the ops of which session.
#
#     one pool           [w0 w1 w2 w3]              all sessions
#     one a session      [w0 w1] [w2 w3]            session a, session b
#     a list of sizes    [w0] [w1 w2 w3]            each session chooses one by number
#
# A pool's threads are workers of one CPU; host threads that only launch always form one pool. Threads are
# not cores: pools with more threads than the CPU has cores share its time (`devices.cores`).
#
# Source: tensorflow/core/common_runtime/direct_session.cc (``NewThreadPoolFromSessionOptions``) and the
# fields of ``ConfigProto``.


def _divide_threads(
    job: Job, size: int, per_session: bool, sizes: Sequence[int]
) -> tuple[list[list[int]], list[int], list[int]]:
    """Return the issuers of each pool, the pool of each op, and the pool of each issuer (-1: none).

    Parameters
    ----------
    job : Job
        Its ops carry the attributes ``session`` and ``inter_op_thread_pool``; without them they form one
        session.
    size : int
        Threads per pool; 0: all workers or, with a pool per session, as many as there are cores.
    per_session : bool
        Whether every session has its own pool.
    sizes : sequence of int
        Sizes of several pools, in place of `size`.

    Raises
    ------
    InputError
        If there are more threads than workers, or a session chooses a pool that does not exist.
    """
    session_of, pools = job.graph.attribute("session"), job.graph.attribute("inter_op_thread_pool")
    names = [session_of.get(op, "") for op in range(len(job.graph))]
    sessions = {name: k for k, name in enumerate(dict.fromkeys(names))}
    issuers = job.machine.issuers()
    members: list[list[int]] = []
    first_pool: list[int] = []
    several: list[bool] = []
    for group in range(job.n_groups):
        threads = [issuer for issuer in issuers if issuer.group == group]
        first_pool.append(len(members))
        executes = threads[0].stream >= 0
        several.append(executes and (per_session or bool(sizes)))
        counts = [len(threads)]
        if executes and per_session:
            cpu = next(d for k in threads[0].devices if (d := job.machine.devices[k]).workers)
            counts = [size or cpu.cores or len(threads)] * len(sessions)
        elif executes and (sizes or size):
            counts = list(sizes) or [size]
        if sum(counts) > len(threads):
            many = " and ".join(map(str, counts))
            raise InputError(
                f"tensorflow-executor: pools of {many} threads need {sum(counts)} workers, and the CPU has "
                f"{len(threads)}; give it workers: {sum(counts)}, or ask for fewer threads",
                path=("session_inter_op_thread_pool" if sizes else "inter_op_parallelism_threads",),
            )
        ends = accumulate(counts, initial=0)
        members += [[thread.index for thread in threads[a:b]] for a, b in pairwise(ends)]
    of_op = []
    for op, (name, group) in enumerate(zip(names, job.group_of.tolist(), strict=True)):
        chosen = 0
        if several[group]:
            chosen = sessions[name] if per_session else pools.get(op, 0)
        if several[group] and not per_session and chosen >= len(sizes):
            message = f"session {name!r} chooses inter_op_thread_pool {chosen!r}"
            text = f"{message}; there are {len(sizes)}, counted from 0"
            raise InputError(text, path=("session_inter_op_thread_pool",))
        of_op.append(first_pool[group] + chosen)
    of_thread = {thread: pool for pool, indices in enumerate(members) for thread in indices}
    return members, of_op, [of_thread.get(issuer.index, -1) for issuer in issuers]


CHEAP_KINDS: Final = CONTROL_FLOW_KINDS | {"const", "identity", "no_op", "arg", "retval", "control_trigger"}
"""Kinds whose kernels are cheap on every device."""

_TRANSMIT: Final = ("send", "recv")
"""Kinds that run even when dead, to notify the other side."""

ASYNCHRONOUS_KINDS: Final = frozenset(
    (
        *("recv", "iterator_get_next", "iterator_get_next_as_optional"),
        *("queue_enqueue", "queue_enqueue_many", "queue_dequeue", "queue_dequeue_many"),
        *("queue_dequeue_up_to", "queue_close", "barrier_insert_many", "barrier_take_many", "barrier_close"),
        *("reader_read", "reader_read_up_to", "accumulator_take_gradient"),
        *("sparse_accumulator_take_gradient", "partitioned_call", "stateful_partitioned_call", "remote_call"),
        *("symbolic_gradient", "collective_reduce", "collective_gather", "collective_bcast_send"),
        *("collective_bcast_recv", "batch", "unbatch", "batch_function"),
    )
)
"""Kinds whose kernels are asynchronous: subclasses of ``AsyncOpKernel`` in tensorflow/core/kernels
(sendrecv_ops.h, queue_op.h, barrier_ops.cc, reader_ops.cc, conditional_accumulator_base_op.h, function_ops.h,
partitioned_function_ops.h, collective_ops.cc, batch_kernels.cc, data/iterator_ops.h)."""

_FIRST_ESTIMATE: Final = 100_000_000
_EXPENSIVE_CYCLES: Final = 8000
"""Cycles: the initial estimate of an op's cost, and the cost above which an op is expensive."""


class TensorFlowExecutor(Policy):
    """TensorFlow's executor for one process; its threads are the workers of its CPU, or a host's threads.

    Parameters
    ----------
    inter_op_parallelism_threads : int
        Threads per pool; 0: all workers of the CPU or, with pools per session, as many as it has cores; -1:
        none, the calling thread runs everything, for a machine with one worker (a session on several
        devices uses the pool).
    use_per_session_threads : bool
        Whether every session has its own pool.
    session_inter_op_thread_pool : sequence of int
        Sizes of pools; a session chooses one by number (its attribute ``inter_op_thread_pool``).
    clock_hz : int
        Clock for judging ops by measured cost too, as later versions do. An op's estimate starts at 10^8
        cycles and becomes (9 · old + elapsed) / 10 after each run; the op is cheap once the estimate is at
        most 8000. By default only the flag counts, as in TensorFlow 1.
    runs : str
        How iterations follow one another (`policies.issue.program_order`): ``"in-turn"`` or
        ``"side-by-side"``.

    Raises
    ------
    InputError
        If an option has any other value, a size is below -1, or both ways to have several pools are given;
        when the run begins: if a pool does not exist or has more threads than the CPU has workers.

    Notes
    -----
    An op is expensive if it runs on a worker and its kind is not in `CHEAP_KINDS`; an op's attribute
    ``expensive`` overrides this. Synchronisation is ``"issue"``: for the executor, a GPU op is done
    when it is on the stream. So only ops that a worker executes can be asynchronous.

    Threads inside kernels belong to the device: ``intra_op_parallelism_threads`` of a scenario's policy, or
    of a CPU (`devices.cores`).
    """

    synchronisation = "issue"
    asks_in_turn = True
    on_failure = "abort"
    one_process = True

    def __init__(
        self,
        inter_op_parallelism_threads: int = 0,
        use_per_session_threads: bool = False,
        session_inter_op_thread_pool: Sequence[int] = (),
        clock_hz: int = 0,
        runs: str = "in-turn",
    ) -> None:
        self.runs_in_turn = in_turn("tensorflow-executor", runs, "side-by-side")
        self.size = whole(
            "tensorflow-executor", "inter_op_parallelism_threads", inter_op_parallelism_threads, least=-1
        )
        if use_per_session_threads and session_inter_op_thread_pool:
            raise InputError(
                "tensorflow-executor: give use_per_session_threads or session_inter_op_thread_pool, not both",
                path=("use_per_session_threads",),
            )
        if any(size < 1 for size in session_inter_op_thread_pool):
            message = "tensorflow-executor: session_inter_op_thread_pool must be sizes >= 1"
            raise InputError(message, path=("session_inter_op_thread_pool",))
        self.per_session = use_per_session_threads
        self.sizes = tuple(session_inter_op_thread_pool)
        self.clock_hz = whole("tensorflow-executor", "clock_hz", clock_hz, least=0)

    def prepare(self, job: Job) -> None:
        """Classify the ops, divide the threads, and make empty queues."""
        graph = job.graph
        costly = np.array([kind not in CHEAP_KINDS for kind in graph.kinds], bool)
        expensive = graph.column("expensive", costly[graph.kind_code] & ~job.launched)
        self._estimate = [_FIRST_ESTIMATE] * len(graph)
        self._transmits: list[bool] = graph.is_kind(*_TRANSMIT).tolist()
        self._asynchronous = self.asynchronous_ops(job)
        issuers = job.machine.issuers()
        pools = _divide_threads(job, max(0, self.size), self.per_session, self.sizes)
        self._members, self._pool_of_op, self._pool_of_thread = pools
        # Per thread, the queues of the nodes it is processing, innermost last; and that of the last node.
        self._inline: list[list[deque[Task]]] = [[deque()] for _ in issuers]
        self._current = [queues[0] for queues in self._inline]
        self._pool: list[deque[Task | list[Task]]] = [deque() for _ in issuers]
        # A run of a session has an executor for each device. Its source node, until a thread takes it from
        # the pool, is a list of the ops that are ready from the start.
        sessions, devices = map(graph.attribute("session").get, range(len(graph))), job.device_of.tolist()
        self._source_of = list(zip(self._pool_of_op, devices, sessions, strict=True))
        self._sources: dict[tuple[int, int, object], list[Task]] = {}
        # If asked to run everything, the calling thread runs only sessions that have a single executor.
        executors = Counter(session for _, session in {key[1:] for key in self._source_of})
        self._inlined = [self.size < 0 and executors[session] == 1 for *_, session in self._source_of]
        self._expensive: list[bool] = (expensive & ~np.array(self._inlined, bool)).tolist()

    def asynchronous_ops(self, job: Job) -> Set[int]:
        """Return the workers' ops that are asynchronous by kind or by attribute."""
        graph = job.graph
        asynchronous = graph.column("async", graph.is_kind(*ASYNCHRONOUS_KINDS))
        return frozenset(np.flatnonzero(asynchronous & ~job.launched).tolist())

    def as_data(self, job: Job) -> Order | None:
        """Return a work-stealing order, unless another rule changes which thread goes on with what."""
        self.prepare(job)
        root = np.ones(len(job.graph), bool)
        root[job.graph.edges.within_iteration().consumer] = False
        of_source = map(self._source_of.__getitem__, np.flatnonzero(root).tolist())
        pools = [pool for pool, *_ in set(of_source)]
        if self.clock_hz or self._asynchronous or len(pools) > len(set(pools)):
            return None
        cheap = 1 - np.array(self._expensive, np.int64)
        pool, of_issuer = np.array(self._pool_of_op), np.array(self._pool_of_thread)
        return Order("steal", cheap=cheap, pool=pool, pool_of_issuer=of_issuer)

    def ready(self, task: Task) -> None:
        """Keep a root op for its executor's source node, which an outside thread puts into the pool."""
        key = self._source_of[task.op]
        if key not in self._sources:
            self._sources[key] = []
            self._pool[self._members[key[0]][0]].append(self._sources[key])
        self._sources[key].append(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Schedule what became ready, as ScheduleReady does."""
        pool = -1 if issuer is None else self._pool_of_thread[issuer.index]
        local = [t for t in now_ready if self._pool_of_op[t.op] == pool]
        if len(local) < len(now_ready):
            for t in now_ready:
                if self._pool_of_op[t.op] != pool:  # to a thread's queue in its own executor, never inline
                    self._pool[self._members[self._pool_of_op[t.op]][0]].append(t)
        if issuer is None:
            return
        ran = not task.dead or self._transmits[task.op]
        asynchronous = ran and task.op in self._asynchronous
        if self.clock_hz and task.end_ns >= 0 and ran and not asynchronous:  # judge the kernel by its time
            elapsed = (task.end_ns - task.start_ns) * self.clock_hz // NS_PER_S
            self._estimate[task.op] = (9 * self._estimate[task.op] + elapsed) // 10
        if asynchronous:
            # The done callback hands all to the pool or, without a pool, runs it at once.
            inlined = [t for t in local if self._inlined[t.op]]
            self._inline[issuer.index] += [deque([t]) for t in reversed(inlined)]
            self._pool[issuer.index].extendleft(t for t in local if not self._inlined[t.op])
        else:
            self._schedule(local, issuer.index)

    def _schedule(self, now_ready: Sequence[Task], thread: int) -> None:
        inline, expensive = self._current[thread], list[Task]()
        for task in now_ready:
            costs = self._expensive[task.op] and self._estimate[task.op] > _EXPENSIVE_CYCLES
            (expensive if costs and not task.dead else inline).append(task)
        if expensive and not inline:
            inline.append(expensive.pop())
        self._pool[thread].extendleft(expensive)

    def next(self, issuer: Issuer) -> Task | None:
        """Return the thread's next op: inline, from its own deque, or stolen."""
        thread = issuer.index
        pool = self._pool_of_thread[thread]
        if pool < 0:
            return None  # a worker that belongs to no pool
        queues = self._inline[thread]
        while len(queues) > 1 and not queues[-1]:
            queues.pop()
        self._current[thread] = queues[-1]
        while not queues[-1]:
            entry = self._take_from_pool(pool, thread)
            if not isinstance(entry, list):
                return entry
            del self._sources[self._source_of[entry[0].op]]
            self._schedule(entry, thread)
        return queues[-1].popleft()

    def _take_from_pool(self, pool: int, thread: int) -> Task | list[Task] | None:
        """Return the front of the thread's own deque, else the back of another thread's."""
        if self._pool[thread]:
            return self._pool[thread].popleft()
        members = self._members[pool]
        index = members.index(thread)
        for victim in members[index + 1 :] + members[:index]:
            if self._pool[victim]:
                return self._pool[victim].pop()
        return None
