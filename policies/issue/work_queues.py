"""Two executors in which a thread keeps some of the ops it made ready and queues the others.

``onnxruntime-parallel``
    The thread that finished an op goes on with the *first* consumer that became ready; the others go to
    a FIFO queue shared by all threads (onnxruntime/core/framework/parallel_executor.cc). This
    executor ended with version 1.14 (github.com/microsoft/onnxruntime/issues/16158).
``tfrt``
    Kernels carry a stream id, which the compiler assigns. Ready kernels of the stream that the thread
    works on go to its inline stack (last in, first out), the others to the work queue (TFRT's
    ``BEFExecutor``). Kernels that block (on a file, on another machine) have their own threads, so that
    they do not keep a core from working (``MultiThreadedWorkQueue``: one queue for tasks that do not block,
    one for those that do).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from policies.issue.program_order import in_turn
from policies.issue.virtual_machine import Sequential
from policies.option_checks import whole
from sim import Graph, Issuer, Job, Policy, Task
from sim.base.arrays import IntArray, group_pairs
from sim.base.errors import InputError
from sim.policy import Order

# ----------------------------------------------------------------------------------------------------------
# Stream that TFRT's compiler assigns to each kernel without a given one.
#
# A stream is a sequence that one thread executes. Each op hangs on the operand with the most expensive path
# from the start, which will be the last to arrive; then, from the end to the start, an op joins one of the
# streams of the ops that hang on it, and streams too cheap to be worth a thread are merged:
#
#     root ─┬─► a (9) ─► c (1) ─► return       root, a, c: the stream of the return
#           ├─► b (9) ───────►┤                b: a stream of its own
#           ├─► d (1) ───────►┤                d, e: one stream, since both are cheap
#           └─► e (1) ───────►┘
#
# As ``StreamAnalysis`` in lib/compiler/stream_analysis.cc of github.com/tensorflow/runtime, which runs
# whenever a program is written out for the executor (lib/bef_converter/mlir_to_bef/mlir_to_bef.cc), without
# its option ``merge_inter_dependent_streams``, which is off by default.

INPUT = -1
"""An operand that no op produces."""

_CHEAP_COST = 1
"""Cost of the root and of the return."""


def assigned_streams(operands: Sequence[Sequence[int]], cost: Sequence[int], threshold: int = 0) -> list[int]:
    """Return the stream of each op, numbered in the order found, from the end.

    Parameters
    ----------
    operands : sequence of sequence of int
        Ops that each op waits for, all before it, data before control; `INPUT` for a graph input. Ops that
        no other waits for are returned.
    cost : sequence of int
        Cost of each op, at least 1.
    threshold : int
        Cost from which a stream is worth a thread. 0: streams are merged while they stay below the longest
        path, as TFRT does without ``tfrt.cost_threshold``.

    Examples
    --------
    Six ops that read the same op: six streams, the first of which includes that op.

    >>> assigned_streams([[], *([0] for _ in range(6))], [1] * 7)
    [0, 0, 5, 4, 3, 2, 1]
    """
    n = len(operands)
    end, root = n, n + 1
    waited_for = bytearray(n)
    for row in operands:
        for op in row:
            if op >= 0:
                waited_for[op] = 1
    rows = [*operands, [op for op in range(n) if not waited_for[op]]]
    costs = [*cost, _CHEAP_COST, _CHEAP_COST]
    follow, path = _build_tree(rows, costs)
    automatic = threshold <= 0
    enough = max(path[: end + 1], default=1) if automatic else threshold

    stream_of = [-1] * (n + 2)
    total: list[int] = []  # the cost of each stream's ops
    merged_into: list[int] = []
    returning = -1  # the stream that contains the return

    def worth(op: int, *some: int) -> bool:
        """Whether streams behind `op` are together worth a thread."""
        together = sum(total[s] for s in some)
        return path[op] + together >= enough if automatic else total[some[0]] >= enough

    def merge(one: int, other: int) -> None:
        nonlocal returning
        total[other] += total[one]
        merged_into[one] = other
        returning = other if returning == one else returning

    for op in (*range(end, -1, -1), root):
        cheap: list[int] = []  # cheap streams, merged until they are worth a thread
        chosen, highest = -1, 0
        for child in follow[op]:
            stream = stream_of[child]
            if not worth(op, stream):
                if not cheap or worth(op, cheap[-1], stream):
                    cheap.append(stream)
                else:
                    merge(stream, cheap[-1])
                stream = cheap[-1]
            if stream == returning or (chosen != returning and total[stream] > highest):
                chosen, highest = stream, total[stream]
        if chosen < 0:
            chosen = len(total)
            total.append(0)
            merged_into.append(-1)
        stream_of[op] = chosen
        total[chosen] += costs[op]
        returning = chosen if op == end else returning
        if cheap and not automatic and cheap[-1] != chosen and not worth(op, cheap[-1]):
            merge(cheap[-1], chosen)
    return [_latest(stream_of[op], merged_into) for op in range(n)]


def _build_tree(rows: Sequence[Sequence[int]], costs: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Return the ops that hang on each op and on the final root, and the cost of each op's path."""
    root = len(rows)
    follow: list[list[int]] = [[] for _ in range(root + 1)]
    path = [0] * root + [_CHEAP_COST]
    for op, row in enumerate(rows):
        parent, longest = root, 0
        for operand in row:
            maker = root if operand == INPUT else operand
            if path[maker] > longest:
                parent, longest = maker, path[maker]
        follow[parent].append(op)
        path[op] = costs[op] + longest
    return follow, path


def _latest(stream: int, merged_into: Sequence[int]) -> int:
    """Return the stream that a stream has been merged into."""
    while merged_into[stream] >= 0:
        stream = merged_into[stream]
    return stream


# ----------------------------------------------------------------------------------------------------------


class _KeepOrQueue(Policy):
    """One stack per thread and one queue per thread pool, as `as_data` describes."""

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
        stack = self._kept[issuer.index]
        if stack:
            return stack.pop()
        queue = self._queues[self._takes[issuer.index]]
        return queue.popleft() if queue else None


class KeepFirst(Policy):
    """ONNX Runtime's parallel executor, as it was until version 1.13; later versions have none.

    With fewer than two workers ONNX Runtime also walks the program as its sequential executor does; give it
    the default order, ``linearize: reverse-depth-first``.

    Parameters
    ----------
    runs : str
        How iterations follow one another (`policies.issue.program_order`): ``"in-turn"`` or
        ``"side-by-side"``.

    Raises
    ------
    InputError
        If `runs` is any other word.
    """

    synchronisation = "issue"

    def __init__(self, runs: str = "in-turn") -> None:
        self.runs_in_turn = in_turn("onnxruntime-parallel", runs, "side-by-side")

    def prepare(self, job: Job) -> None:
        """Choose the executor."""
        self._executor = _executor(job)
        self._executor.prepare(job)

    def as_data(self, job: Job) -> Order | None:
        """Return the order of the chosen executor."""
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
    """Return the policy that runs an ONNX Runtime session in parallel mode."""
    workers = sum(issuer.stream >= 0 for issuer in job.machine.issuers())
    return _KeepFirst() if workers > 1 else Sequential()


class _KeepFirst(_KeepOrQueue):
    """A thread keeps the first op that it made ready."""

    def as_data(self, job: Job) -> Order:
        """Return an order in which a thread keeps only the first consumer."""
        of_issuer = np.array([issuer.group for issuer in job.machine.issuers()])
        return Order("keep", pool=job.group_of, pool_of_issuer=of_issuer)


class StreamStacks(_KeepOrQueue):
    """TFRT's executor; an op's attribute ``stream_id`` is its stream.

    Other ops are on the streams that TFRT's compiler would assign, by the durations that the policy may know
    (`policies.issue.work_queues`), numbered after the given ones.

    Parameters
    ----------
    cost_threshold_ns : int
        Work below which a stream is merged with others; 0: while they stay below the longest path.
    blocking_threads : int
        Workers, the last ones of a CPU, that run the ops with the attribute ``blocking: true`` and no others;
        0: those ops run as all do.
    runs : str
        How iterations follow one another (`policies.issue.program_order`): ``"in-turn"`` or
        ``"side-by-side"``.

    Raises
    ------
    InputError
        If a number is negative or `runs` is any other word; when the run begins: if no worker is left for
            the other ops.

    Notes
    -----
    Kernels wait for all their arguments; non-strict ones (attribute ``strict: false``) wait for the first.
    Ops downstream of a failed kernel never run; all others do.
    """

    on_failure = "skip"
    one_process = True

    def __init__(self, blocking_threads: int = 0, cost_threshold_ns: int = 0, runs: str = "in-turn") -> None:
        self.runs_in_turn = in_turn("tfrt", runs, "side-by-side")
        self.cost_threshold_ns = whole("tfrt", "cost_threshold_ns", cost_threshold_ns, least=0)
        self.blocking_threads = whole("tfrt", "blocking_threads", blocking_threads, least=0)

    def as_data(self, job: Job) -> Order:
        """Return an order in which a thread keeps its stream's ops, with a pool for blocking ops."""
        set_aside = bool(self.blocking_threads)
        blocks = (job.graph.column("blocking") > 0) & set_aside & ~job.launched
        issuers = job.machine.issuers()
        may_block = np.zeros(len(issuers), np.int64)
        threads = ((issuer.group, issuer.index) for issuer in issuers if set_aside and issuer.stream >= 0)
        for members in group_pairs(threads).values():
            if self.blocking_threads >= len(members):
                raise InputError(
                    f"tfrt: blocking_threads is {self.blocking_threads}, and the CPU has {len(members)} "
                    "workers; leave one at least for ops that do not block (workers gives it more)",
                    path=("blocking_threads",),
                )
            may_block[members[-self.blocking_threads :]] = 1
        of_issuer = 2 * np.array([issuer.group for issuer in issuers]) + may_block
        label = self._streams(job)
        return Order("keep", label=label, pool=2 * job.group_of + blocks, pool_of_issuer=of_issuer)

    def _streams(self, job: Job) -> IntArray:
        """Return the stream of each op, given or assigned."""
        graph = job.graph
        streams = graph.attribute("stream_id")
        label = np.zeros(len(graph), np.int64)
        if len(streams) < len(graph):
            order = graph.topological_order
            position = np.empty_like(order)
            position[order] = np.arange(len(order))
            operands = _operands(graph, position)
            costs = np.maximum(job.known_ns, 1)[order].tolist()
            label[order] = assigned_streams(operands, costs, self.cost_threshold_ns)
            label += max(streams.values(), default=-1) + 1
        for op, stream in streams.items():
            label[op] = stream
        return label


def _operands(graph: Graph, position: IntArray) -> list[list[int]]:
    """Return, by place in a topological order, the places of each op's dependencies in its own iteration."""
    operands: list[list[int]] = [[] for _ in range(len(graph))]
    producer = graph.tensor_producer[graph.inputs.indices]
    for rows, makers, distance in (
        (graph.inputs.rows(), producer, graph.input_distance),
        (graph.after.rows(), graph.after.indices, graph.after_distance),
    ):
        current = distance == 0
        operand = np.where(makers >= 0, position[makers], INPUT)[current]
        for op, maker in zip(position[rows[current]].tolist(), operand.tolist(), strict=True):
            operands[op].append(maker)
    return operands
