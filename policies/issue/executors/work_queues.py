"""Two executors in which a thread keeps some of the ops that it made ready, and queues the others.

``onnxruntime-parallel``
    The thread that finished an op goes on with the *first* consumer that became ready; the others go to
    a queue that all threads take from, in order (onnxruntime/core/framework/parallel_executor.cc). This
    executor ended with version 1.14 (github.com/microsoft/onnxruntime/issues/16158).
``tfrt``
    Kernels carry a stream id, which the compiler gives them. Ready kernels of the stream that the thread
    works on go to its inline stack (last in, first out), the others to the work queue (TFRT's
    ``BEFExecutor``). Kernels that block (on a file, on another machine) have threads of their own, so that
    they do not keep a core from working (``MultiThreadedWorkQueue``: one queue for tasks that do not block,
    one for those that do).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from policies.issue.executors.runs import in_turn
from policies.issue.executors.sequential import Sequential
from policies.issue.executors.stream_analysis import INPUT, assigned_streams
from policies.option_checks import whole
from sim import Graph, Issuer, Job, Policy, Task
from sim.policy.order import Order
from sim.words.arrays import IntArray
from sim.words.errors import InputError

__all__ = ["KeepFirst", "StreamStacks"]


class _KeepOrQueue(Policy):
    """A stack of its own for every thread, and one queue per pool of threads, as `as_data` says."""

    synchronisation = "issue"

    def prepare(self, job: Job) -> None:
        """Make empty queues."""
        order = self.as_data(job)
        assert order is not None
        assert order.pool is not None
        assert order.pool_of_issuer is not None
        self._label, self._pool, self._takes = order.label, order.pool.tolist(), order.pool_of_issuer.tolist()
        self._kept: list[list[Task]] = [[] for _ in self._takes]
        self._queues: dict[int, deque[Task]] = defaultdict(deque)  # by pool

    def ready(self, task: Task) -> None:
        """Queue `task`."""
        self._queues[self._pool[task.op]].append(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Keep what belongs to the thread, queue the rest."""
        for k, t in enumerate(now_ready):
            if (
                issuer is not None
                and self._pool[t.op] == self._takes[issuer.index]
                and (k == 0 if self._label is None else self._label[task.op] == self._label[t.op])
            ):
                self._kept[issuer.index].append(t)
            else:
                self.ready(t)

    def next(self, issuer: Issuer) -> Task | None:
        """Return the last kept op, else the first of the queue."""
        kept = self._kept[issuer.index]
        if kept:
            return kept.pop()
        queue = self._queues[self._takes[issuer.index]]
        return queue.popleft() if queue else None


class KeepFirst(Policy):
    """ONNX Runtime's parallel executor, as it was until version 1.13; since then there is none.

    With fewer than two workers, too, ONNX Runtime walks the program as its sequential executor does; give it
    the default order, ``linearize: reverse-depth-first``.

    Parameters
    ----------
    runs : str
        How iterations follow one another (`policies.issue.executors.runs`): ``"in-turn"`` or
        ``"side-by-side"``.

    Raises
    ------
    InputError
        Another word.
    """

    synchronisation = "issue"

    def __init__(self, runs: str = "in-turn") -> None:
        self.runs_in_turn = in_turn("onnxruntime-parallel", runs, "side-by-side")

    def prepare(self, job: Job) -> None:
        """Choose the executor."""
        self._executor = _executor(job)
        self._executor.prepare(job)

    def as_data(self, job: Job) -> Order | None:
        """Return the order of the executor that is chosen."""
        return _executor(job).as_data(job)

    def ready(self, task: Task) -> None:
        """Tell the executor."""
        self._executor.ready(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Tell the executor."""
        self._executor.ended(task, now_ready, issuer)

    def next(self, issuer: Issuer) -> Task | None:
        """Ask the executor."""
        return self._executor.next(issuer)


def _executor(job: Job) -> Policy:
    """Return what runs an ONNX Runtime session in parallel mode."""
    workers = sum(issuer.stream >= 0 for issuer in job.machine.issuers())
    return _KeepFirst() if workers > 1 else Sequential()


class _KeepFirst(_KeepOrQueue):
    """Of what it made ready, a thread keeps the first."""

    def as_data(self, job: Job) -> Order:
        """Return that a thread keeps the first consumer only."""
        of_issuer = np.array([issuer.group for issuer in job.machine.issuers()])
        return Order("keep", pool=job.group_of, pool_of_issuer=of_issuer)


class StreamStacks(_KeepOrQueue):
    """TFRT's executor; an op's attribute ``stream_id`` is the stream that it belongs to.

    The others are on the streams that TFRT's compiler would give them, by the durations that the policy may
    know (`policies.issue.executors.stream_analysis`), numbered behind those that are given.

    Parameters
    ----------
    cost_threshold_ns : int
        A stream with less to do is merged with others; 0: as long as they stay below the longest path.
    blocking_threads : int
        Workers, the last ones of a CPU, that run the ops with the attribute ``blocking: true`` and no others;
        0: those ops run as all do.
    runs : str
        How iterations follow one another (`policies.issue.executors.runs`): ``"in-turn"`` or
        ``"side-by-side"``.

    Raises
    ------
    InputError
        A negative number, another word; when the run begins: no worker is left for the other ops.

    Notes
    -----
    Kernels wait for all their arguments; non-strict ones (the attribute ``strict: false``) for the first.
    What is downstream of a kernel that fails never runs, and everything else does.
    """

    on_failure = "skip"
    one_process = True

    def __init__(self, blocking_threads: int = 0, cost_threshold_ns: int = 0, runs: str = "in-turn") -> None:
        self.runs_in_turn = in_turn("tfrt", runs, "side-by-side")
        self.cost_threshold_ns = whole("tfrt", "cost_threshold_ns", cost_threshold_ns, least=0)
        self.blocking_threads = whole("tfrt", "blocking_threads", blocking_threads, least=0)

    def as_data(self, job: Job) -> Order:
        """Return that a thread keeps the ops of its stream, and which threads run what blocks."""
        set_aside = bool(self.blocking_threads)
        blocks = np.zeros(len(job.graph), np.int64)
        for op, blocking in job.graph.attribute("blocking").items():
            blocks[op] = set_aside and blocking and not job.launched[op]
        issuers = job.machine.issuers()
        may_block = np.zeros(len(issuers), np.int64)
        threads: dict[int, list[int]] = {}
        for issuer in issuers:
            if set_aside and issuer.stream >= 0:
                threads.setdefault(issuer.group, []).append(issuer.index)
        for members in threads.values():
            if self.blocking_threads >= len(members):
                raise InputError(
                    f"tfrt: blocking_threads is {self.blocking_threads}, and the CPU has {len(members)} "
                    "workers; leave one at least for ops that do not block (inter_op gives it more)"
                )
            may_block[members[-self.blocking_threads :]] = 1
        of_issuer = 2 * np.array([issuer.group for issuer in issuers]) + may_block
        label = self._streams(job)
        return Order("keep", label=label, pool=2 * job.group_of + blocks, pool_of_issuer=of_issuer)

    def _streams(self, job: Job) -> IntArray:
        """Return the stream of each op: as given, else as assigned."""
        graph = job.graph
        given = graph.attribute("stream_id")
        label = np.zeros(len(graph), np.int64)
        if len(given) < len(graph):
            order = graph.topological_order
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            operands = _operands(graph, place)
            costs = np.maximum(job.known_ns, 1)[order].tolist()
            label[order] = assigned_streams(operands, costs, self.cost_threshold_ns)
            label += max(given.values(), default=-1) + 1
        for op, stream in given.items():
            label[op] = stream
        return label


def _operands(graph: Graph, place: IntArray) -> list[list[int]]:
    """Return, by place in a topological order, the places of what each op waits for in its own iteration."""
    operands: list[list[int]] = [[] for _ in range(len(graph))]
    producer = graph.tensor_producer[graph.inputs.indices]
    for rows, makers, distance in (
        (graph.inputs.rows(), producer, graph.input_distance),
        (graph.after.rows(), graph.after.indices, graph.after_distance),
    ):
        now = distance == 0
        found = np.where(makers >= 0, place[makers], INPUT)[now]
        for op, maker in zip(place[rows[now]].tolist(), found.tolist(), strict=True):
            operands[op].append(maker)
    return operands
