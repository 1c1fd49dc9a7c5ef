"""A virtual machine: one thread walks a linear program with jumps, one call after another.

::

    while i < n: i = step(i)              call zero
                                          call test                  ◄──┐
                                          if test, else go on below ──┐ │
                                          call step                   │ │
                                          goto test                 ──┼─┘
                                          ret                       ◄─┘

Each process (`sim.issuers`) has a program and a thread that walks it; threads that need the same
CPU workers take turns.

Done means executed for a CPU op and enqueued for a GPU op. TVM's and Relax's virtual machines work this way
(tvm/src/runtime/vm/vm.cc: ``VirtualMachine::RunLoop``; instructions: tvm/include/tvm/runtime/vm/bytecode.h).

Jumps take no time, so none is written down: the thread walks the ops of a frame in order, an inner loop as
one item, as often as its condition says, and passes over what the predicates known so far exclude. So every
graph that the executor can run has a program, whether or not it was written in structured form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import numpy as np

from policies.issue.program_order import in_turn
from sim import Graph, Issuer, Job, Policy, Task
from sim.graph.frames import CONTROL_FLOW_KINDS, FrameStructure, frame_structure, has_control_flow
from sim.graph.rendezvous_keys import program_edges, program_order, rendezvous_keys
from sim.graph.walks import Dag, Edges, least_first
from sim.policy import Order
from sim.readiness.eligibility import non_strict_ops

# ----------------------------------------------------------------------------------------------------------
# Guards: the predicates under which an op runs, derived from the switches and merges before it.
#
#     x ─► switch ─true──► f ─► merge ─► y        guard of f: {(p, 1)}     of g: {(p, 0)}
#     p ─────┘ └──false──► g ─────┘               of the switch, the merge and y: {}
#
# A guard is local to an op's frame; the condition for entering a loop is the guard of the loop.

_Guard = frozenset[tuple[int, int]]
"""All of these hold: (predicate op, side); side 1 is true."""


def _find_guards(graph: Graph, structure: FrameStructure) -> tuple[list[_Guard], dict[int, _Guard]]:
    """Return the guard of each op of a graph with control flow, and the guard of entering each frame."""
    kind = [graph.kinds[code] for code in graph.kind_code.tolist()]
    non_strict = non_strict_ops(graph).tolist()
    sends = {recv: send for send, recv in rendezvous_keys(graph).pairs}
    guards, frames = [_Guard()] * len(graph), dict[int, _Guard]()

    def behind(producer: int, slot: int = -1) -> _Guard:
        """Return the guard of an output of `producer`, in the frame that receives it."""
        if kind[producer] == "enter":
            return _Guard()
        if kind[producer] == "exit":
            return frames.get(structure.frame_of[producer], _Guard())
        if kind[producer] == "switch" and slot >= 0:
            return guards[producer] | {(structure.predicate[producer], min(slot, 1))}
        return guards[producer]

    for op in program_order(graph).tolist():
        first, last = graph.inputs.indptr[op], graph.inputs.indptr[op + 1]
        read = zip(graph.inputs.row(op).tolist(), graph.input_distance[first:last].tolist(), strict=True)
        tensors = [t for t, distance in read if not distance and graph.tensor_producer[t] >= 0]
        producers = [int(graph.tensor_producer[t]) for t in tensors]
        data = [behind(p, t - int(graph.first_output[p])) for p, t in zip(producers, tensors, strict=True)]
        if (kind[op] == "merge" or non_strict[op]) and data:
            loops = any(kind[p] == "enter" for p in producers)
            data = [] if loops else [_Guard.intersection(*data)]
        if kind[op] != "control_trigger":  # a control trigger runs even if its control inputs are dead
            follows = [*graph.after.row(op).tolist(), *([sends[op]] if op in sends else [])]
            guards[op] = _Guard().union(*map(behind, follows), *data)
        if kind[op] == "enter":
            child = structure.child_of[op]
            frames[child] = frames.get(child, _Guard()) | guards[op]
    return guards, frames


class _Program:
    """What a thread walks.

    Parameters
    ----------
    graph : Graph
    order : sequence of int
        Preferred order of the ops, kept within a frame as far as dependencies allow. Ops not listed are left
        out; no listed op may depend on them.

    Attributes
    ----------
    items : list of list of int
        Of each frame (`sim.graph.frames.FrameStructure`), in order: ops, and inner frames as -1 - frame.
        Switches, merges, enters, exits and loop conditions are left out: they pass values on in no time.
    guards : dict of int to set
        Item → the predicates under which it runs.
    condition : dict of int to int
        Loop → the op that says whether there is another iteration.
    once : set of int
        Ops that receive a loop's inputs past no merge: they run in its first iteration only. (A Send and a
        Recv, if an enter is on another device than its merge.)
    """

    def __init__(self, graph: Graph, order: Sequence[int]) -> None:
        self.structure = FrameStructure([0] * len(graph), [-1], [""], [1], {}, {})
        self.items = [list(order)]
        self.guards: dict[int, _Guard] = {}
        self.condition: dict[int, int] = {}
        self.once: set[int] = set()
        if not has_control_flow(graph):
            return
        self.structure = tree = frame_structure(graph)
        self.items = _items(graph, order, tree)
        guards, frames = _find_guards(graph, tree)
        self.guards = dict(enumerate(guards)) | {-1 - frame: guard for frame, guard in frames.items()}
        # A control trigger runs even after dead ops, so loops that contain one are walked even when dead.
        for op in np.flatnonzero(graph.is_kind("control_trigger")).tolist():
            for frame in _frames_around(op, tree):
                self.guards[-1 - frame] = _Guard()
        for op in reversed(np.flatnonzero(graph.is_kind("loop_cond")).tolist()):
            self.condition[tree.frame_of[op]] = op
        constant = graph.attribute("constant")
        for op in program_order(graph).tolist():
            if graph.kind(op) not in CONTROL_FLOW_KINDS and any(
                p in self.once or (tree.child_of.get(p) == tree.frame_of[op] and not constant.get(p, False))
                for p in graph.predecessors.row(op).tolist()
            ):
                self.once.add(op)


def _frames_around(op: int, structure: FrameStructure) -> list[int]:
    """Return the loops that contain an op, from the outside in."""
    frames, frame = list[int](), structure.frame_of[op]
    while frame > 0:
        frames.insert(0, frame)
        frame = structure.parent[frame]
    return frames


def _items(graph: Graph, order: Sequence[int], structure: FrameStructure) -> list[list[int]]:
    """Return the items of each frame, in an order that respects dependencies (see `_Program`)."""
    n = len(graph)
    paths = {op: [*(n + frame for frame in _frames_around(op, structure)), op] for op in order}
    rank: dict[int, int] = {}
    for k, path in enumerate(paths.values()):
        for item in path:  # a loop takes the place of its first op
            rank.setdefault(item, k)
    edges = program_edges(graph).within_iteration()
    pairs = [
        next((a, b) for a, b in zip(paths[p], paths[c], strict=False) if a != b)
        for p, c in zip(edges.producer.tolist(), edges.consumer.tolist(), strict=True)
        if p in paths and c in paths
    ]
    # A loop waits for every value that enters it, even one that no op in it reads.
    pairs += [(enter, n + child) for enter, child in structure.child_of.items() if enter in paths]
    before, after = np.array(pairs, np.int64).reshape(-1, 2).T
    now, size = np.zeros_like(before), n + len(structure.parent)
    dag = Dag.of(Edges(before, after, now, now), size)
    items: list[list[int]] = [[] for _ in structure.parent]
    for item in filter(rank.__contains__, least_first(dag, [rank.get(k, 0) for k in range(size)])):
        if item >= n:
            items[structure.parent[item - n]].append(n - 1 - item)
        elif graph.kind(item) not in CONTROL_FLOW_KINDS:
            items[structure.frame_of[item]].append(item)
    return items


# ----------------------------------------------------------------------------------------------------------


class Sequential(Policy):
    """One thread per process walks a program, executing or enqueueing one op before the next.

    ::

        host     a ▇▇▇ b ▇▇ ·c· ·d· e ▇▇▇      ▇ executes on the CPU; ·x· only enqueues on a stream
        stream                ▇▇▇▇▇▇▇c▇▇▇d▇▇▇

    TVM's graph executor and virtual machine, ONNX Runtime's sequential executor and an eager PyTorch script
    run this way; they differ only in the order of the program (`policies.linearize`). A graph with control
    flow is a program with jumps, which is walked strictly in order.

    Parameters
    ----------
    runs : str
        How iterations follow one another (`policies.issue.program_order`): ``"enqueued"`` or ``"in-turn"``.

    Raises
    ------
    InputError
        If `runs` is any other word.

    Notes
    -----
    An op on another device is handed over: an issuer that serves the device takes it, and the program goes on
    when that issuer is done with it. The simulator moves values through switches, merges, enters and exits,
    which are not instructions here: they pass between two calls as they become ready. If their issue cost
    matters, set it to zero (``issue_cost: {switch: 0, merge: 0, ...}``); a ``loop_cond`` stands for the If
    and a ``next_iteration`` for the Goto.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("independent")
    >>> for name in "abc":
    ...     _ = b.op(name, duration_ns=10)
    >>> simulate(b.build(), Machine((Device("cpu0", "cpu", workers=4),)), Sequential()).makespan_ns
    30
    """

    synchronisation = "issue"
    on_failure = "stop-machine"

    def __init__(self, runs: str = "enqueued") -> None:
        self.runs_in_turn = in_turn(type(self).__name__, runs, "enqueued")

    def prepare(self, job: Job) -> None:
        """Find the program, and put a thread of each process at the first instruction."""
        graph, order = job.graph, job.order
        process = np.zeros(len(graph), np.int64) if job.process_of is None else job.process_of
        orders = [order[process[order] == k].tolist() for k in range(len(job.processes) or 1)]
        self._threads = [_Thread(job, _Program(graph, program)) for program in orders]
        self._thread_of = [self._threads[k] for k in process.tolist()]

    def ready(self, task: Task) -> None:
        """Tell the thread of the task's process."""
        self._thread_of[task.op].ready(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Tell the threads of the processes."""
        if task.op < len(self._thread_of):
            self._thread_of[task.op].ended(task)
        super().ended(task, now_ready, issuer)

    def next(self, issuer: Issuer) -> Task | None:
        """Return what the next thread in turn wants done; a thread that was served goes last."""
        for k, thread in enumerate(self._threads):
            task = thread.next(issuer)
            if task is not None:
                if len(self._threads) > 1:
                    self._threads.append(self._threads.pop(k))
                return task
        return None

    def as_data(self, job: Job) -> Order | None:
        """Return the program if there is one thread and no jump; None otherwise."""
        if has_control_flow(job.graph) or job.process_of is not None:
            return None
        return Order("place", [job.order], 1, "machine", in_flight=1)


_Call = tuple[int, int, str]
"""Repetition of the graph, op, and the tag of its frame and iteration."""


class _Thread:
    """A thread that walks a program."""

    def __init__(self, job: Job, program: _Program) -> None:
        graph = job.graph
        self.program, self.predicate = program, program.structure.predicate
        self._moves = [kind in CONTROL_FLOW_KINDS for kind in graph.kinds]
        self._kind_code = graph.kind_code.tolist()
        self._waiting: dict[_Call, Task] = {}
        self._tokens: deque[Task] = deque()
        self._says: dict[_Call, int] = {}
        self._dead: set[_Call] = set()
        self._calls = (call for k in range(job.iterations) for call in self._walk(k, 0, ""))
        self._call: _Call | None = None
        self._current: Task | None = None

    def ready(self, task: Task) -> None:
        """Keep `task` for its call; a task that only moves tokens, or is dead, goes through at once."""
        if task.dead:  # for example behind a merge whose sides depend on different predicates
            asks = self.predicate.get(task.op, -1)
            self._dead |= {(task.iteration, op, _tag(task)) for op in (task.op, asks)}
        if task.dead or self._moves[self._kind_code[task.op]]:
            self._tokens.append(task)
        else:
            self._waiting[task.iteration, task.op, _tag(task)] = task

    def ended(self, task: Task) -> None:
        """Go on when the current call is done; note the outcome that a switch received."""
        if task is self._current:
            self._current = None
        if task.op in self.predicate and not task.dead:
            side = task.frame.taken.get(task.op)  # unknown at issue if a host reads its output
            if side is not None:
                self._says[task.iteration, self.predicate[task.op], _tag(task)] = side

    def next(self, issuer: Issuer) -> Task | None:
        """Return a task that moves tokens, else the op of the current call."""
        for k, task in enumerate(self._tokens):
            if task.group == issuer.group:
                del self._tokens[k]
                return task
        if self._current is not None or self._tokens:
            return None
        while self._call is None or self._call in self._dead:
            self._call = next(self._calls, None)
            if self._call is None:  # all is over, or a predicate is not known yet
                return None
        waiting = self._waiting.get(self._call)
        if waiting is None or waiting.group != issuer.group:
            return None
        self._current = self._waiting.pop(self._call)
        self._call = None
        return self._current

    def _walk(self, repetition: int, frame: int, outside: str) -> Iterator[_Call | None]:
        """Yield the calls of a frame in order; None while a predicate is not known yet."""
        program = self.program
        for iteration in count():
            name = f"{program.structure.name[frame]}:{iteration}" if frame else ""
            tag = f"{outside}/{name}" if outside else name
            for item in program.items[frame]:
                while (runs := self._holds(program.guards.get(item, ()), repetition, tag)) is None:
                    yield None
                if not runs or (iteration and item in program.once):
                    continue
                if item < 0:
                    yield from self._walk(repetition, -1 - item, tag)
                else:
                    yield repetition, item, tag
            if frame not in program.condition:
                return
            condition = repetition, program.condition[frame], tag
            while condition not in self._says and condition not in self._dead:
                yield None
            if not self._says.get(condition):
                return

    def _holds(self, guard: Iterable[tuple[int, int]], repetition: int, tag: str) -> bool | None:
        """Return whether a guard holds, as far as its predicates run at all; None: it is not known yet."""
        result: bool | None = True
        for predicate, side in guard:
            key = repetition, predicate, tag
            if self._says.get(key, side) != side:
                return False
            if key not in self._says and key not in self._dead:
                result = None
        return result


def _tag(task: Task) -> str:
    return "" if task.frame is None else str(task.frame)
