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

A *dead* op executes nothing and makes all its outputs dead; this is how the branch not taken is
skipped, and how a loop learns that it is over. A non-strict op (`sim.readiness.eligibility`) passes on its
first live input as a merge does; it is dead when all of them are, or when it follows a dead op by a control
edge. At most `parallel_iterations` iterations of a frame are in flight; a token that would begin one more is
parked until the oldest is over.

The values of predicates come from the graph's attributes (`sim.readiness.outcomes`): ops compute nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import Final, NoReturn, Protocol

import numpy as np

from sim.base.errors import RunError
from sim.graph.frames import FrameStructure, frame_structure
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.machine.task import Task
from sim.readiness.eligibility import (
    edges_at_issue,
    inputs_from_the_start,
    launched_nodes,
    non_strict_ops,
    parts,
    refuse_launched,
)
from sim.readiness.outcomes import Outcomes

# ----------------------------------------------------------------------------------------------------------
# Watching tokens under control flow: the memory frees tensors that no token refers to any more.


class TokenWatcher(Protocol):
    """Receives every live token, from the task that gives it to the task that reads it."""

    def on_token(self, task: Task, slot: int, consumer: int, place: object, late: bool) -> None:
        """Note that a token of output `slot` of `task` is kept for op `consumer` in the iteration `place`.

        It is late if the op does not wait for all its inputs and is already a task.
        """

    def on_creation(self, task: Task) -> None:
        """Note that `task` was created: it reads the tokens of its op in its iteration (``task.frame``)."""

    def on_tokens_given(self, task: Task) -> None:
        """Note that all tokens of `task` have been given; of an invariant, only when its loop is over."""


# ----------------------------------------------------------------------------------------------------------

Evaluation = tuple[int, str, int]
"""One evaluation of a predicate: repetition of the graph, frames and iterations, op."""

NOTHING_DECIDED: Final[Mapping[Evaluation, bool]] = MappingProxyType({})


@dataclass(eq=False)
class Tag:
    """An iteration of a frame: tasks run in it, and it tracks how far each op is from being ready.

    Its text, ``outer:2/inner:0`` and empty outside all loops, is what the trace shows.
    """

    frame: _Frame
    number: int
    pending: dict[int, int] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    """Ops that wait for their first live input and have it."""
    killed: set[int] = field(default_factory=set)
    """Non-strict ops that follow a dead op by a control edge."""
    run: set[int] = field(default_factory=set)
    """Ops that did not wait for all their inputs, and are already tasks."""
    taken: dict[int, int] = field(default_factory=dict)
    """Switch that has passed its token on → the side taken (0 false, 1 true)."""
    producers: dict[int, list[Task]] = field(default_factory=dict)
    """Op → launched producers of tokens that have arrived, whose events it may have to wait for."""
    children: dict[tuple[int, int], _Frame] = field(default_factory=dict)
    """Static frame and part of the graph → the loop entered from here that is not over."""
    outstanding: int = 0

    def __str__(self) -> str:
        """Return ``outer:2/inner:0``; empty outside all loops."""
        if self.frame.parent is None:
            return ""
        outer = str(self.frame.parent)
        return f"{outer}{'/' if outer else ''}{self.frame.name}:{self.number}"


@dataclass(eq=False)
class _Frame:
    """An instance of a loop, or the whole graph (no parent)."""

    name: str
    static: int
    part: int
    parent: Tag | None
    parallel: int
    pending_enters: int
    repetition: int
    iterations: dict[int, Tag] = field(default_factory=dict)
    newest: int = 0
    parked: list[Task] = field(default_factory=list)
    invariants: list[Task] = field(default_factory=list)
    dead_exits: list[Task] = field(default_factory=list)


class TaggedTokenReadiness:
    """Readiness of a graph with control flow (see the module docstring).

    Parameters
    ----------
    job : Job
        Repetitions (`job.iterations`) of such a graph are independent of one another.
    flow : Flow
        Nodes and edges; a transfer carries a dead token as well as a live one.
    synchronisation : str
        If all edges of a launched op count when it is issued (`sim.readiness.eligibility`), it passes its
        tokens on then (TensorFlow: a GPU kernel completes when it is enqueued).
    decided : mapping, optional
        Values of predicates that are already known (`sim.readiness.tokens`); others are evaluated in
        order of time.
    watcher : TokenWatcher, optional
        Follows the live tokens.

    Attributes
    ----------
    sides : list of (int, int)
        Results of switches: task id, and the index of its live output.

    Raises
    ------
    InfeasibleError
        A non-strict op would be launched on a stream.
    RunError
        A loop would make more than `MAX_ITERATIONS`.
    UnknownNameError
        There is no such synchronisation.
    """

    MAX_ITERATIONS = 100_000
    """A loop with more trips than this is taken for an endless one."""

    def __init__(
        self,
        job: Job,
        flow: Flow,
        synchronisation: str = "completion",
        decided: Mapping[Evaluation, bool] = NOTHING_DECIDED,
        watcher: TokenWatcher | None = None,
    ) -> None:
        graph = job.graph
        self.job, self.flow, self.watcher = job, flow, watcher
        non_strict = non_strict_ops(graph)
        refuse_launched(job, non_strict)
        self.structure: FrameStructure = frame_structure(graph)
        self.predicates = frozenset(self.structure.predicate.values())
        self._refuse_too_many_trips()
        self.outcomes = Outcomes(job)
        self.total = 0
        self.sides: list[tuple[int, int]] = []
        n, n_ops = flow.n_nodes, flow.n_ops
        self.kind = [graph.kinds[int(k)] for k in graph.kind_code] + ["transfer"] * (n - n_ops)
        self.group_of = job.group_of.tolist() + [-1] * (n - n_ops)
        # Edges out of each op: consumer and output slot (-1: control).
        self.edges: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        first = graph.first_output.tolist() + flow.tensor.tolist()
        self.n_data, self.n_control = [0] * n, [0] * n
        self.enters = {op for op in range(n_ops) if self.kind[op] == "enter"}  # and transfers of their tokens
        for producer, consumer, tensor in zip(
            flow.producer.tolist(), flow.consumer.tolist(), flow.carries.tolist(), strict=True
        ):
            slot = -1 if tensor < 0 else tensor - first[producer]
            self.edges[producer].append((consumer, slot))
            (self.n_control if slot < 0 else self.n_data)[consumer] += 1
            if consumer >= n_ops and producer in self.enters:
                self.enters.add(consumer)
        at_issue = edges_at_issue(synchronisation, job, flow)
        self.asynchronous = at_issue is not None
        self.early = [False] * n
        if at_issue is not None:
            early = launched_nodes(job, flow)
            early[flow.producer[~at_issue]] = False
            self.early = early.tolist()
        # Ops that pass on their first live input → whether it has to come, or is there from the start.
        self.first = {op: True for op in range(n_ops) if self.kind[op] == "merge"}
        if non_strict.any():
            available = inputs_from_the_start(graph, flow, 0)
            for op in np.flatnonzero(non_strict).tolist():
                in_loop = self.structure.frame_of[op] > 0  # there the first token determines the iteration
                self.first[op] = self.n_data[op] > 0 and (in_loop or not available[op])
        self.part_of = parts(job)
        self.n_enters = Counter((frame, self.part_of[op]) for op, frame in self.structure.child_of.items())
        # Shared by the parts: of each loop, where it was entered, in order; values of predicates.
        self.entered: list[dict[tuple[int, str], int]] = [{} for _ in self.structure.parent]
        self.values: dict[Evaluation, bool] = dict(decided)
        self.alive: dict[int, Task] = {}
        self.waits_for: dict[int, list[Task]] = {}
        self.refused: dict[int, Task] = {}
        self._ready: list[Task] = []  # made by the tokens that are being passed on

    # -- sim.readiness.counters.Readiness ---------------------------------------------------------------

    def roots(self) -> list[Task]:
        """Return the ops without inputs, once for each repetition."""
        for repetition in range(self.job.iterations):
            frame = _Frame("", 0, 0, None, 1, 0, repetition)
            root = frame.iterations[0] = Tag(frame, 0)
            for op in range(len(self.kind)):
                if not self.n_control[op] and not self.first.get(op, self.n_data[op]):
                    self._create_task(op, root, False)
        return self._take_ready()

    def on_issue(self, task: Task) -> list[Task]:
        """Pass on the tokens of a launched op whose consumers are launched, too."""
        return self._pass_on(task) if self._passes_early(task) else []

    def on_end(self, task: Task) -> list[Task]:
        """Pass on the tokens of `task`, unless that was done when it was issued."""
        self.alive.pop(task.id)
        return [] if self._passes_early(task) else self._pass_on(task)

    def may_start(self, task: Task) -> bool:
        """Whether all launched producers of `task` have ended."""
        running = [producer for producer in self.waits_for.get(task.id, ()) if producer.end_ns < 0]
        if running:
            self.waits_for[task.id] = running
            self.refused[task.id] = task
            return False
        self.waits_for.pop(task.id, None)
        return True

    def take_released(self) -> list[Task]:
        """Return and clear the refused tasks whose producers have all ended since."""
        free = [t for t in self.refused.values() if all(p.end_ns >= 0 for p in self.waits_for[t.id])]
        for task in free:
            del self.refused[task.id]
        return free

    def find_unfinished(self, finished: Set[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield every task that became eligible and has not ended."""
        for id in self.alive:
            yield id, [producer.id for producer in self.waits_for.get(id, ()) if producer.end_ns < 0]

    def name(self, id: int) -> str:
        """Return the name of a task that has not ended, including its tag."""
        task = self.alive[id]
        op = task.op
        name = self.job.graph.op_names[op] if op < self.flow.n_ops else f"transfer {op - self.flow.n_ops}"
        return f"{name} at {task.frame}" if str(task.frame) else name

    # -- tokens --------------------------------------------------------------------------------

    def _is_sent(self, node: int) -> bool:
        """Whether `node` is a transfer to a Recv that no edge leads to: no iteration waits for it."""
        return node >= self.flow.n_ops and not self.edges[node]

    def _passes_early(self, task: Task) -> bool:
        return self.early[task.op] and not task.dead

    def _create_task(self, op: int, tag: Tag, dead: bool) -> None:
        task = Task(self.total, op, tag.frame.repetition, self.group_of[op])
        self.total += 1
        task.frame, task.dead = tag, dead
        if not self._is_sent(op):
            tag.outstanding += 1
        self.alive[task.id] = task
        if op in self.first:
            tag.run.add(op)
        producers = tag.producers.pop(op, None)
        if producers:
            self.waits_for[task.id] = producers
        if self.watcher is not None:
            self.watcher.on_creation(task)
        self._ready.append(task)

    def _take_ready(self) -> list[Task]:
        ready, self._ready = self._ready, []
        return ready

    def _pass_on(self, task: Task) -> list[Task]:
        """Give the tokens of `task` to its consumers; return the ones that became ready, in edge order."""
        if self._is_sent(task.op):
            self._report_given(task)
            return []
        tag: Tag = task.frame
        frame, kind = tag.frame, self.kind[task.op]
        all_given = True
        if task.op in self.predicates and not task.dead:
            self._evaluate(task.op, tag)
        if kind == "enter":
            all_given = self._enter(task, tag)
        elif kind == "exit":
            if not task.dead:
                assert frame.parent is not None
                self._deliver(task, frame.parent)
            elif tag.number == frame.newest:
                frame.dead_exits.append(task)
        elif kind == "next_iteration":
            if not task.dead:
                all_given = self._next_iteration(task, tag)
        else:
            if kind == "switch" and not task.dead:
                tag.taken[task.op] = side = self._side(task.op, tag)
                self.sides.append((task.id, side))
            self._deliver(task, tag)
        if all_given:
            self._report_given(task)
        tag.outstanding -= 1
        self._retire(frame, tag)
        return self._take_ready()

    def _report_given(self, *tasks: Task) -> None:
        if self.watcher is not None:
            for task in tasks:
                self.watcher.on_tokens_given(task)

    def _side(self, switch: int, tag: Tag) -> int:
        """Return the live output of a switch: all switches of a predicate agree within a tag."""
        predicate = self.structure.predicate[switch]
        home = self.structure.frame_of[predicate]
        if self.kind[predicate] == "exit":  # it is evaluated where it leads to
            home = self.structure.parent[home]
        while tag.frame.static != home:  # brought in by an enter
            assert tag.frame.parent is not None
            tag = tag.frame.parent
        return int(self.values[tag.frame.repetition, str(tag), predicate])

    def _evaluate(self, predicate: int, tag: Tag) -> None:
        """Give a predicate that has run its value, whether or not a switch reads it."""
        if self.kind[predicate] == "exit":  # it is evaluated where it leads to
            assert tag.frame.parent is not None
            tag = tag.frame.parent
        key = tag.frame.repetition, str(tag), predicate
        if key in self.values:
            return
        if self.kind[predicate] == "loop_cond":
            entered = self.entered[tag.frame.static]
            entry = entered.setdefault((tag.frame.repetition, str(tag.frame.parent)), len(entered))
            self.values[key] = self.outcomes.continues(predicate, entry, tag.number)
        else:
            self.values[key] = self.outcomes.branch(predicate)

    def _deliver(self, task: Task, tag: Tag) -> None:
        """Give the tokens of `task` to its consumers, in the iteration `tag`."""
        side = tag.taken.get(task.op)
        for consumer, slot in self.edges[task.op]:
            dead = task.dead or (side is not None and slot >= 0 and slot != side)
            if self._passes_early(task):
                tag.producers.setdefault(consumer, []).append(task)
            if self.watcher is not None and slot >= 0 and not dead:
                self._keep(self.watcher, task, slot, consumer, tag)
            if consumer in self.first:
                self._count_first(task, consumer, slot < 0, dead, tag)
            else:
                self._count(consumer, dead, tag)

    def _keep(self, watcher: TokenWatcher, task: Task, slot: int, consumer: int, tag: Tag) -> None:
        """Report that a live token is kept for `consumer`; a merge keeps only the first."""
        late = consumer in tag.run
        if self.kind[consumer] != "merge" or not (late or consumer in tag.live):
            watcher.on_token(task, slot, consumer, tag, late)

    def _count(self, op: int, dead: bool, tag: Tag) -> None:
        """Count a token that arrives at `op`, which waits for all of them."""
        remaining = tag.pending[op] = tag.pending.get(op, self.n_data[op] + self.n_control[op]) - 1
        if dead:
            tag.dead[op] = tag.dead.get(op, 0) + 1
        if remaining == 0:
            self._create_task(op, tag, op in tag.dead and self.kind[op] != "control_trigger")

    def _count_first(self, task: Task, op: int, control: bool, dead: bool, tag: Tag) -> None:
        """Count a token of `task` that arrives at `op`, which waits for control inputs and one live input."""
        merges = self.kind[op] == "merge"
        controls = tag.pending.setdefault(op, self.n_control[op])
        if control:
            tag.pending[op] = controls = controls - 1
            if dead and not merges:
                tag.killed.add(op)
        elif dead:
            tag.dead[op] = tag.dead.get(op, 0) + 1
        else:
            tag.live.add(op)
        live = op in tag.live or not self.first[op]
        all_dead = tag.dead.get(op, 0) == self.n_data[op]
        never_entered = dead and not control and merges and task.op in self.enters
        if op not in tag.run and not controls and (live or all_dead or never_entered):
            self._create_task(op, tag, not live or op in tag.killed)

    # -- frames --------------------------------------------------------------------------------

    def _enter(self, task: Task, tag: Tag) -> bool:
        """Give the tokens of an enter to its frame; return whether no more will be given."""
        s = self.structure
        static, part = key = s.child_of[task.op], self.part_of[task.op]
        child = tag.children.get(key)
        if child is None:
            parallel, enters = s.parallel_iterations[static], self.n_enters[key]
            child = _Frame(s.name[static], static, part, tag, parallel, enters, tag.frame.repetition)
            tag.children[key] = child
            child.iterations[0] = Tag(child, 0)
        child.pending_enters -= 1
        constant = bool(self.job.graph.attributes[task.op].get("constant", False))
        if constant:
            child.invariants.append(task)
            for iteration in list(child.iterations.values()):
                self._deliver(task, iteration)
        else:
            self._deliver(task, child.iterations[0])
        self._retire(child, child.iterations.get(0))
        return not constant

    def _next_iteration(self, task: Task, tag: Tag) -> bool:
        """Give a token to the next iteration, or park it; return whether it was given."""
        frame = tag.frame
        if tag.number == frame.newest:
            if len(frame.iterations) == frame.parallel:
                frame.parked.append(task)
                return False
            self._begin_iteration(frame)
        self._deliver(task, frame.iterations[tag.number + 1])
        return True

    def _begin_iteration(self, frame: _Frame) -> None:
        """Start the next iteration: parked tokens first, then the invariants."""
        frame.newest += 1
        if frame.newest > self.MAX_ITERATIONS:
            self._refuse_endless(frame.name, f"has made {self.MAX_ITERATIONS:,} iterations and does not end")
        tag = frame.iterations[frame.newest] = Tag(frame, frame.newest)
        frame.dead_exits.clear()
        parked, frame.parked = frame.parked, []
        for task in (*parked, *frame.invariants):
            self._deliver(task, tag)
        self._report_given(*parked)

    def _refuse_too_many_trips(self) -> None:
        for op in sorted(self.predicates):
            trips = self.job.graph.attributes.get(op, {}).get("trips")
            if isinstance(trips, int) and trips > self.MAX_ITERATIONS:
                loop = self.structure.name[self.structure.frame_of[op]]
                self._refuse_endless(loop, f"is to make {trips:,} iterations")

    def _refuse_endless(self, loop: str, problem: str) -> NoReturn:
        limit = f"{self.MAX_ITERATIONS:,}"
        raise RunError(
            f"loop {loop!r} {problem}, and no loop may make more than {limit} iterations; "
            "give its loop_cond attributes: {trips: N}, N no larger than that"
        )

    def _retire(self, frame: _Frame, tag: Tag | None) -> None:
        """Retire finished iterations, oldest first; then the frame, when nothing of it is left."""
        while tag is not None and self._is_over(tag):
            del frame.iterations[tag.number]
            if frame.parked and len(frame.iterations) < frame.parallel:
                self._begin_iteration(frame)
            tag = frame.iterations.get(tag.number + 1)
        parent = frame.parent
        if parent is None or frame.iterations or frame.pending_enters:
            return
        if parent.children.pop((frame.static, frame.part), None) is not None:  # the loop is over
            for task in frame.dead_exits:  # exits that were never live go out dead
                self._deliver(task, parent)
            self._report_given(*frame.invariants)
            self._retire(parent.frame, parent)

    def _is_over(self, tag: Tag) -> bool:
        if tag.outstanding or tag.children:
            return False
        if tag.number == 0:
            return tag.frame.pending_enters == 0
        return tag.number - 1 not in tag.frame.iterations


# ----------------------------------------------------------------------------------------------------------
# Values of predicates, decided in program order, so that they do not depend on which task runs first.
#
# A list of outcomes has one entry, and a probability one draw, per evaluation of its op. But a predicate that
# does not feed its loop's counter may be evaluated in iteration 1 before iteration 0, even on one thread::
#
#     outcome: [true, false]       iteration 0    iteration 1
#     in the order of time         false          true           where 1 happens to come first
#     in program order             true           false          always
#
# So the graph is run once before time 0, without time and one iteration after another, as a plain program
# would; the values evaluated there, for each tag, are the answers under every runtime.


def predicate_values(job: Job, flow: Flow) -> Mapping[Evaluation, bool]:
    """Return the values of predicates, by repetition, frames and iterations, and op.

    Parameters
    ----------
    job : Job
        A graph with control flow.
    flow : Flow
        Nodes and edges, transfers included.

    Returns
    -------
    mapping
        Empty if the order does not matter, or if Sends and Recvs that no edge connects decide what is
        dead: then predicates are evaluated in order of time.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> from sim.job.transfers import make_flow
    >>> b = GraphBuilder()
    >>> _ = b.op("p", duration_ns=1, attributes={"outcome": [True, False]})
    >>> _ = b.op("switch", kind="switch", inputs=["p", "p"], outputs=[0, 0])
    >>> job = make_job(b.build(), Machine((Device("cpu0", "cpu", workers=1),)), iterations=2)
    >>> predicate_values(job, make_flow(job))
    {(0, '', 0): True, (1, '', 0): False}
    """
    values = (*job.graph.attribute("outcome").values(), *job.graph.attribute("trips").values())
    if all(isinstance(one, int) for one in values):  # whatever is asked, and however often, says the same
        return NOTHING_DECIDED
    if rendezvous_keys(job.graph).recvs:
        return NOTHING_DECIDED
    program = TaggedTokenReadiness(job, flow)
    program.structure = replace(program.structure, parallel_iterations=[1] * len(program.structure.parent))
    for _, roots in groupby(program.roots(), key=lambda task: task.iteration):
        queue = deque(roots)
        while queue:
            queue.extend(program.on_end(queue.popleft()))
    return program.values
