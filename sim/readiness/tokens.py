"""Readiness under TensorFlow's control flow: tagged tokens, frames, iterations, dead branches.

An op may run many times, once for each *tag*: a loop's frame and an iteration in it. Six kinds of op
move tokens between tags (Yu et al., "Dynamic control flow in large-scale machine learning", EuroSys 2018;
TensorFlow white paper 2015, section 4.4; rules numbered as in TensorFlow's executor)::

    switch          data, pred → (false side, true side); the side not taken is dead
    merge           passes on the first live input; dead when all are dead
    enter           a token goes into iteration 0 of a child frame (constant: into every iteration)
    next_iteration  a token goes to the next iteration of its frame
    exit            a token goes back to the parent
    loop_cond       the predicate of a loop

    while i < n:                enter ─► merge ─► switch ──true──► body ─► next_iteration ─┐
        body                              ▲  └──► cond ─► loop_cond ┘└─false─► exit        │
                                          └────────────────────────────────────────────────┘

A *dead* op executes nothing and makes all its outputs dead; that is how the branch not taken is
skipped, and how a loop learns that it is over. A non-strict op (`sim.readiness.strictness`) passes on its
first live input as a merge does; it is dead when all of them are, or when it follows a dead op by a control
edge. At most `parallel_iterations` iterations of a frame are in flight; a token that would begin one more is
parked until the oldest is over.

What predicates say comes from the graph's attributes (`sim.readiness.outcomes`): ops compute nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NoReturn

import numpy as np

from sim.graph.frames import FrameStructure, frame_structure
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.machine.task import Task
from sim.readiness.outcomes import Outcomes
from sim.readiness.strictness import inputs_from_the_start, non_strict_ops, refuse_launched
from sim.words.errors import RunError

__all__ = ["Asked", "TaggedTokenReadiness"]

Asked = tuple[int, str, int]
"""Which time a predicate is asked: repetition of the graph, frames and iterations, op."""

NOTHING_DECIDED: Final[Mapping[Asked, bool]] = MappingProxyType({})


@dataclass(eq=False)
class _Iteration:
    """One iteration of a frame: how far each of its ops is from being ready."""

    number: int
    pending: dict[int, int] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    """Non-strict ops that follow a dead op by a control edge."""
    says: dict[int, int] = field(default_factory=dict)
    """Predicate → what it said here: all switches that ask it agree."""
    producers: dict[int, list[Task]] = field(default_factory=dict)
    """Op → launched producers of tokens that have come, whose events it may have to wait for."""
    outstanding: int = 0
    child_frames: int = 0


@dataclass(eq=False)
class _Frame:
    """An instance of a loop, or the whole graph (no parent)."""

    name: str
    static: int
    parent: _Frame | None
    parent_iteration: _Iteration | None
    parallel: int
    pending_enters: int
    repetition: int
    entry: int = 0
    iterations: dict[int, _Iteration] = field(default_factory=dict)
    newest: int = 0
    parked: list[tuple[int, Task]] = field(default_factory=list)
    invariants: list[tuple[int, bool, Task]] = field(default_factory=list)
    dead_exits: list[tuple[int, Task]] = field(default_factory=list)
    children: dict[tuple[int, int], _Frame] = field(default_factory=dict)

    def path(self, iteration: int) -> str:
        """Return ``outer:2/inner:0``, or nothing for the whole graph."""
        if self.parent is None:
            return ""
        assert self.parent_iteration is not None
        before = self.parent.path(self.parent_iteration.number)
        return f"{before}/{self.name}:{iteration}" if before else f"{self.name}:{iteration}"


class Tag:
    """Where a task runs: frame and iteration; its text is what the trace shows.

    Of a switch that has passed its token on, `taken` is the side it took (0 false, 1 true).
    """

    __slots__ = ("frame", "iteration", "taken")

    def __init__(self, frame: _Frame, iteration: _Iteration) -> None:
        self.frame, self.iteration = frame, iteration
        self.taken = -1

    def __str__(self) -> str:
        """Return ``outer:2/inner:0``; empty outside all loops."""
        return self.frame.path(self.iteration.number)


class TaggedTokenReadiness:
    """Readiness of a graph with control flow (see the module).

    Parameters
    ----------
    job : Job
        Repetitions (`job.iterations`) of such a graph are independent of one another.
    flow : Flow
        Nodes and edges; a transfer carries a dead token as well as a live one.
    at_issue : bool
        Whether an op that is launched, and whose consumers all are, passes its tokens on when it is
        issued (TensorFlow: a GPU kernel completes when it is enqueued).
    decided : mapping, optional
        What predicates say, if that is known (`sim.readiness.decided_outcomes`); others are asked in the
        order of time.

    Raises
    ------
    InfeasibleError
        A non-strict op that would be launched on a stream.
    RunError
        A loop that is to make more than `MAX_ITERATIONS`.
    """

    MAX_ITERATIONS = 100_000
    """More trips than this, and a loop is taken for one that never ends."""

    def __init__(
        self, job: Job, flow: Flow, at_issue: bool = False, decided: Mapping[Asked, bool] = NOTHING_DECIDED
    ) -> None:
        graph = job.graph
        self.job, self.flow, self.decided = job, flow, decided
        non_strict = non_strict_ops(graph)
        refuse_launched(job, non_strict)
        self.structure: FrameStructure = frame_structure(graph)
        self.outcomes = Outcomes(job)
        for op, attributes in graph.attributes.items():
            trips = attributes.get("trips")
            if (
                isinstance(trips, int)
                and trips > self.MAX_ITERATIONS
                and op in self.structure.predicate.values()
            ):
                self._refuse_endless(
                    self.structure.name[self.structure.frame_of[op]], f"is to make {trips:,} iterations"
                )
        self.asynchronous = at_issue
        self.total = 0
        n, n_ops = flow.n_nodes, flow.n_ops
        self.kind = [graph.kinds[int(k)] for k in graph.kind_code] + ["transfer"] * (n - n_ops)
        self.group_of = job.group_of.tolist() + [-1] * (n - n_ops)
        self.edges: list[list[tuple[int, int]]] = [
            [] for _ in range(n)
        ]  # (consumer, output slot; -1 control)
        first = [int(graph.outputs.indices[p]) for p in graph.outputs.indptr[:-1]]
        self.n_data, self.n_control = [0] * n, [0] * n
        for producer, consumer, tensor in zip(
            flow.producer.tolist(), flow.consumer.tolist(), flow.carries.tolist(), strict=True
        ):
            slot = -1 if tensor < 0 else (tensor - first[producer] if producer < n_ops else 0)
            self.edges[producer].append((consumer, slot))
            (self.n_control if slot < 0 else self.n_data)[consumer] += 1
        launched = job.launched.tolist() + [True] * (n - n_ops)
        self.launched = launched
        self.early = [
            at_issue and launched[op] and all(launched[c] for c, _ in self.edges[op]) for op in range(n)
        ]
        # Ops that pass on their first live input; 0 where one is there from the start.
        self.first = {op: 1 for op in range(n_ops) if self.kind[op] == "merge"}
        if non_strict.any():
            there = inputs_from_the_start(graph, flow, 0)
            for op in np.flatnonzero(non_strict).tolist():
                in_loop = self.structure.frame_of[op] > 0  # where the first token says in which iteration
                self.first[op] = int(self.n_data[op] > 0 and (in_loop or not there[op]))
        self.entries = [0] * len(self.structure.parent)
        self.alive: dict[int, Task] = {}
        self.waits_for: dict[int, list[Task]] = {}
        self.refused: dict[int, Task] = {}

    # -- sim.readiness.counters.Readiness ---------------------------------------------------------------

    def roots(self) -> list[Task]:
        """Return the ops without inputs, once for each repetition."""
        ready: list[Task] = []
        for repetition in range(self.job.iterations):
            frame = _Frame("", 0, None, None, 1, 0, repetition)
            root = frame.iterations[0] = _Iteration(0)
            for op in range(len(self.kind)):
                if not self.n_control[op] and not self.first.get(op, self.n_data[op]):
                    self._make(op, frame, root, False, ready)
        return ready

    def issued(self, task: Task) -> list[Task]:
        """Pass on the tokens of a launched op whose consumers are launched, too."""
        return self._pass_on(task) if self.early[task.op] and not task.dead else []

    def ended(self, task: Task) -> list[Task]:
        """Pass on the tokens of `task`, unless that was done when it was issued."""
        self.alive.pop(task.id)
        return [] if self.early[task.op] and not task.dead else self._pass_on(task)

    def may_start(self, task: Task) -> bool:
        """Whether all launched producers of `task` have ended."""
        left = [producer for producer in self.waits_for.get(task.id, ()) if producer.end_ns < 0]
        if left:
            self.waits_for[task.id] = left
            self.refused[task.id] = task
            return False
        self.waits_for.pop(task.id, None)
        return True

    def released(self) -> list[Task]:
        """Return (and forget) the refused tasks whose producers have all ended since."""
        free = [t for t in self.refused.values() if all(p.end_ns >= 0 for p in self.waits_for[t.id])]
        for task in free:
            del self.refused[task.id]
        return free

    def unfinished(self, over: Set[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield every task that became eligible and is not over."""
        for id in self.alive:
            yield id, [producer.id for producer in self.waits_for.get(id, ()) if producer.end_ns < 0]

    def name(self, id: int) -> str:
        """Return what a task that is not over is called, its tag included."""
        task = self.alive[id]
        op = task.op
        name = self.job.graph.op_names[op] if op < self.flow.n_ops else f"transfer {op - self.flow.n_ops}"
        return f"{name} at {task.frame}" if str(task.frame) else name

    # -- tokens --------------------------------------------------------------------------------

    def _make(self, op: int, frame: _Frame, iteration: _Iteration, dead: bool, ready: list[Task]) -> None:
        task = Task(self.total, op, frame.repetition, self.group_of[op])
        self.total += 1
        task.frame = Tag(frame, iteration)
        task.dead = dead
        iteration.outstanding += 1
        self.alive[task.id] = task
        producers = iteration.producers.pop(op, None)
        if producers:
            self.waits_for[task.id] = producers
        ready.append(task)

    def _pass_on(self, task: Task) -> list[Task]:
        """Give `task`'s tokens to its consumers; return what became ready, in edge order."""
        ready: list[Task] = []
        op, dead = task.op, task.dead
        frame: _Frame = task.frame.frame
        iteration: _Iteration = task.frame.iteration
        kind = self.kind[op]
        if kind == "enter":
            self._enter(task, frame, iteration, ready)
        elif kind == "exit":
            if not dead:
                assert frame.parent is not None
                assert frame.parent_iteration is not None
                self._deliver(task, op, frame.parent, frame.parent_iteration, False, None, ready)
            elif iteration.number == frame.newest:
                frame.dead_exits.append((op, task))
        elif kind == "next_iteration":
            if not dead:
                self._next_iteration(task, frame, iteration, ready)
        else:
            taken = None
            if kind == "switch" and not dead:
                taken = task.frame.taken = self._taken(op, frame, iteration)
            self._deliver(task, op, frame, iteration, dead, taken, ready)
        iteration.outstanding -= 1
        self._maybe_over(frame, iteration, ready)
        return ready

    def _taken(self, switch: int, frame: _Frame, iteration: _Iteration) -> int:
        """Return the output of a switch that is live: all switches of a predicate agree within a tag."""
        predicate = self.structure.predicate[switch]
        while frame.static != self.structure.frame_of[predicate]:  # brought in by an enter
            assert frame.parent is not None
            assert frame.parent_iteration is not None
            iteration = frame.parent_iteration
            frame = frame.parent
        if predicate not in iteration.says:
            says = None
            if self.decided:
                says = self.decided.get((frame.repetition, frame.path(iteration.number), predicate))
            if says is None:
                says = self._ask(predicate, frame, iteration)
            iteration.says[predicate] = int(says)
        return iteration.says[predicate]

    def _ask(self, predicate: int, frame: _Frame, iteration: _Iteration) -> bool:
        if self.kind[predicate] == "loop_cond":
            return self.outcomes.continues(predicate, frame.entry, iteration.number)
        return self.outcomes.branch(predicate)

    def _deliver(
        self,
        task: Task,
        op: int,
        frame: _Frame,
        iteration: _Iteration,
        dead: bool,
        taken: int | None,
        ready: list[Task],
    ) -> None:
        for consumer, slot in self.edges[op]:
            lost = dead or (taken is not None and slot >= 0 and slot != taken)
            self._activate(task, consumer, slot < 0, lost, frame, iteration, ready)

    def _activate(
        self,
        task: Task,
        op: int,
        control: bool,
        dead: bool,
        frame: _Frame,
        iteration: _Iteration,
        ready: list[Task],
    ) -> None:
        """One token arrives at `op`: count it down, and make it a task when it is ready."""
        pending, n_dead = iteration.pending, iteration.dead
        if self.early[task.op] and self.launched[op] and not task.dead:
            iteration.producers.setdefault(op, []).append(task)
        if op not in self.first:
            left = pending.get(op, self.n_data[op] + self.n_control[op]) - 1
            pending[op] = left
            if dead:
                n_dead[op] = n_dead.get(op, 0) + 1
            if left == 0:
                kills = n_dead.get(op, 0) > 0 and self.kind[op] != "control_trigger"
                self._make(op, frame, iteration, kills, ready)
            return
        # Such an op counts two for each control input, and one for the first live data input.
        left = pending.get(op, self.first[op] + 2 * self.n_control[op])
        merges = self.kind[op] == "merge"
        if control:
            left -= 2
            if dead and not merges:
                iteration.killed.add(op)
            all_dead = n_dead.get(op, 0) == self.n_data[op]
            pending[op] = left
            if left == 0 or (left == 1 and all_dead):
                pending[op] = 0
                self._make(op, frame, iteration, left == 1 or op in iteration.killed, ready)
        elif dead:
            n_dead[op] = n_dead.get(op, 0) + 1
            if left == 1 and (n_dead[op] == self.n_data[op] or (merges and self.kind[task.op] == "enter")):
                pending[op] = 0
                self._make(op, frame, iteration, True, ready)
        else:
            pending[op] = left - left % 2
            if left == 1:
                self._make(op, frame, iteration, op in iteration.killed, ready)

    # -- frames --------------------------------------------------------------------------------

    def _enter(self, task: Task, frame: _Frame, iteration: _Iteration, ready: list[Task]) -> None:
        s = self.structure
        static = s.child_of[task.op]
        child = frame.children.get((static, iteration.number))
        if child is None:
            parallel = s.parallel_iterations[static]
            child = _Frame(
                s.name[static], static, frame, iteration, parallel, s.n_enters[static], frame.repetition
            )
            child.entry, self.entries[static] = self.entries[static], self.entries[static] + 1
            child.iterations[0] = _Iteration(0)
            frame.children[static, iteration.number] = child
            iteration.child_frames += 1
        child.pending_enters -= 1
        if self.job.graph.attributes[task.op].get("constant", False):
            child.invariants.append((task.op, task.dead, task))
            for number in range(child.newest + 1):
                if number in child.iterations:
                    self._deliver(task, task.op, child, child.iterations[number], task.dead, None, ready)
        else:
            self._deliver(task, task.op, child, child.iterations[0], task.dead, None, ready)
        self._maybe_over(child, child.iterations.get(0), ready)

    def _next_iteration(self, task: Task, frame: _Frame, iteration: _Iteration, ready: list[Task]) -> None:
        if iteration.number == frame.newest:
            if len(frame.iterations) == frame.parallel:
                frame.parked.append((task.op, task))
                return
            self._begin_iteration(frame, ready)
        self._deliver(task, task.op, frame, frame.iterations[iteration.number + 1], False, None, ready)

    def _begin_iteration(self, frame: _Frame, ready: list[Task]) -> None:
        """Start the next iteration: parked tokens first, then the invariants."""
        frame.newest += 1
        if frame.newest > self.MAX_ITERATIONS:
            self._refuse_endless(frame.name, f"has made {self.MAX_ITERATIONS:,} iterations and does not end")
        iteration = frame.iterations[frame.newest] = _Iteration(frame.newest)
        frame.dead_exits.clear()
        parked, frame.parked = frame.parked, []
        for op, task in parked:
            self._deliver(task, op, frame, iteration, False, None, ready)
        for op, dead, task in frame.invariants:
            self._deliver(task, op, frame, iteration, dead, None, ready)

    def _refuse_endless(self, loop: str, what: str) -> NoReturn:
        most = f"{self.MAX_ITERATIONS:,}"
        raise RunError(
            f"loop {loop!r} {what}, and no loop may make more than {most} iterations; "
            "give its loop_cond attributes: {trips: N}, N no larger than that"
        )

    def _maybe_over(self, frame: _Frame, iteration: _Iteration | None, ready: list[Task]) -> None:
        """Retire iterations that are over, oldest first; then the frame, when nothing of it is left."""
        while iteration is not None and self._over(frame, iteration):
            del frame.iterations[iteration.number]
            if frame.parked and len(frame.iterations) < frame.parallel:
                self._begin_iteration(frame, ready)
            iteration = frame.iterations.get(iteration.number + 1)
        if frame.parent is not None and not frame.iterations and not frame.pending_enters:
            self._leave(frame, ready)

    def _over(self, frame: _Frame, iteration: _Iteration) -> bool:
        if iteration.outstanding or iteration.child_frames:
            return False
        if iteration.number == 0:
            return frame.pending_enters == 0
        return iteration.number - 1 not in frame.iterations

    def _leave(self, frame: _Frame, ready: list[Task]) -> None:
        """The loop is over: exits that never were live go out dead."""
        parent, iteration = frame.parent, frame.parent_iteration
        assert parent is not None
        assert iteration is not None
        if parent.children.pop((frame.static, iteration.number), None) is None:
            return
        for op, task in frame.dead_exits:
            self._deliver(task, op, parent, iteration, True, None, ready)
        iteration.child_frames -= 1
        self._maybe_over(parent, iteration, ready)
