"""A graph with control flow as a linear program, as TVM's and Relax's virtual machines run it.

::

    while i < n: i = step(i)                    if p: y = f(x)  else: y = g(x)

        0  call zero                                0  call x
        1  call test      ◄────┐                    1  call p
        2  if test else +3  ───┼─┐                  2  if p else +3  ─────┐
        3  call step           │ │                  3  call f             │
        4  goto -3  ───────────┘ │                  4  goto +2  ──────┐   │
        5  ret            ◄──────┘                  5  call g     ◄───┼───┘
                                                    6  ret        ◄───┘

Switches, merges, enters, exits and loop conditions are not instructions: they pass values on in no time.

The ops of a frame are put in order, with each inner loop as one item; jumps between two ops with different
guards (see below) leave one guard and enter the other. So every graph that the executor can run has a
program, whether or not it was written in structured form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from sim import Graph
from sim.graph.frames import CONTROL_FLOW_KINDS, FrameStructure, frame_structure, has_control_flow
from sim.graph.rendezvous_keys import program_edges, program_order, rendezvous_keys
from sim.readiness.eligibility import non_strict_ops

# ----------------------------------------------------------------------------------------------------------
# Instructions of a virtual machine, and programs of them.
#
# Four instructions, as in TVM's and Relax's VM (tvm/include/tvm/runtime/vm/bytecode.h), without registers,
# because the simulator has no values:
#
#     call step      if p else +4      goto -6      ret
#
# Jumps are relative to the instruction itself. `compile_program` generates the instructions and
# `policies.issue.virtual_machine` walks them.


class JumpInstruction(NamedTuple):
    """One of the four instructions.

    Attributes
    ----------
    do : {"call", "if", "goto", "ret"}
        Run an op; go on with the next instruction if a predicate is true, else jump; jump; end.
    op : int
        Op to run, or predicate to test.
    offset : int
        Distance to jump.
    """

    do: str
    op: int = -1
    offset: int = 0


@dataclass
class JumpProgram:
    """Instructions and the positions of loops.

    Attributes
    ----------
    instructions : list of JumpInstruction
    frame : list of int
        Frame (`sim.graph.frames.FrameStructure`) of each instruction.
    head : dict of int to int
        Position of a loop's first instruction → its frame.
    structure : FrameStructure or None
        None for a graph without control flow.
    """

    instructions: list[JumpInstruction] = field(default_factory=list)
    frame: list[int] = field(default_factory=list)
    head: dict[int, int] = field(default_factory=dict)
    structure: FrameStructure | None = None


# ----------------------------------------------------------------------------------------------------------
# Guards: the predicates under which an op runs, derived from the switches and merges before it.
#
#     x ─► switch ─true──► f ─► merge ─► y        guard of f: ((p, 1),)    of g: ((p, 0),)
#     p ─────┘ └──false──► g ─────┘               of the switch, the merge and y: ()
#
# A guard is local to an op's frame; the condition for entering a loop is the guard of the loop.

Literal = tuple[int, int]
"""(predicate op, side): side 1 is true."""

Guard = tuple[Literal, ...]
"""A conjunction of literals, outer conditions first."""


def find_guards(graph: Graph, structure: FrameStructure) -> tuple[list[Guard], dict[int, Guard]]:
    """Return the guard of each op of a graph with control flow, and the guard of entering each frame.

    Parameters
    ----------
    graph : Graph
    structure : FrameStructure
        Frame structure of `graph`.
    """
    kind = [graph.kinds[int(code)] for code in graph.kind_code]
    order = program_order(graph).tolist()
    at = {op: k for k, op in enumerate(order)}
    non_strict = non_strict_ops(graph).tolist()
    sends = {recv: send for send, recv in rendezvous_keys(graph).pairs}
    # Each literal with the place of its switch: an inner condition is known only after the outer one.
    guards: list[dict[Literal, int]] = [{} for _ in order]
    frames: dict[int, dict[Literal, int]] = {}

    def merge_values(found: Iterable[Mapping[Literal, int]]) -> dict[Literal, int]:
        place: dict[Literal, int] = {}
        for guard in found:
            place |= {literal: min(k, place.get(literal, k)) for literal, k in guard.items()}
        return dict(sorted(place.items(), key=itemgetter(1)))

    def behind(producer: int, slot: int) -> dict[Literal, int]:
        """Return the guard of an output of `producer`, in the frame that receives it."""
        if kind[producer] == "enter":
            return {}
        if kind[producer] == "exit":
            return frames.get(structure.frame_of[producer], {})
        own = guards[producer]
        if kind[producer] == "switch" and slot >= 0:
            return {(structure.predicate[producer], min(slot, 1)): at[producer], **own}
        return own

    for op in order:
        first, last = graph.inputs.indptr[op], graph.inputs.indptr[op + 1]
        read = zip(graph.inputs.row(op).tolist(), graph.input_distance[first:last].tolist(), strict=True)
        tensors = [t for t, distance in read if not distance and graph.tensor_producer[t] >= 0]
        producers = [int(graph.tensor_producer[t]) for t in tensors]
        data = [behind(p, t - int(graph.first_output[p])) for p, t in zip(producers, tensors, strict=True)]
        if (kind[op] == "merge" or non_strict[op]) and data:
            loops = any(kind[p] == "enter" for p in producers)
            data = [{p: k for p, k in data[0].items() if not loops and all(p in d for d in data)}]
        if kind[op] != "control_trigger":  # a control trigger runs even if its control inputs are dead
            first = [*graph.after.row(op).tolist(), *([sends[op]] if op in sends else [])]
            guards[op] = merge_values([*(behind(follows, -1) for follows in first), *data])
        if kind[op] == "enter":
            child = structure.child_of[op]
            frames[child] = merge_values([frames.get(child, {}), guards[op]])
    return [tuple(guard) for guard in guards], {frame: tuple(guard) for frame, guard in frames.items()}


# ----------------------------------------------------------------------------------------------------------


def compile_program(graph: Graph, order: Sequence[int]) -> JumpProgram:
    """Return the program of `graph`.

    Parameters
    ----------
    graph : Graph
    order : sequence of int
        Preferred order of the ops, kept within a frame as far as dependencies and guards allow. Ops not
        listed are left out; no listed op may depend on them.

    Raises
    ------
    GraphError
        If the control flow is malformed (see `sim.graph.frames`).

    Examples
    --------
    >>> from scenarios.ops.control_flow import while_loop
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("count")
    >>> _ = b.op("zero")
    >>> _ = while_loop(b, "loop", {"i": "zero"}, lambda b, v: {"i": b.op("step", inputs=[v["i"]])}, trips=3)
    >>> graph = b.build()
    >>> program = compile_program(graph, graph.topological_order.tolist())
    >>> [f"{do} {offset:+}" if offset else do for do, _, offset in program.instructions]
    ['call', 'call', 'if +3', 'call', 'goto -3', 'ret']
    """
    if not has_control_flow(graph):
        calls = [JumpInstruction("call", op) for op in order]
        return JumpProgram([*calls, JumpInstruction("ret")], [0] * (len(order) + 1))
    return _Compiler(graph, order).program


class _Compiler:
    """Compiles one frame after another; items are ops and child frames (as ``-1 - frame``)."""

    def __init__(self, graph: Graph, order: Sequence[int]) -> None:
        self.graph = graph
        self.kind = [graph.kinds[int(code)] for code in graph.kind_code]
        structure = frame_structure(graph)
        self.program = JumpProgram(structure=structure)
        self.guards, self.guards_of_frames = find_guards(graph, structure)
        self.frame_of, self.parent, self.child_of = structure.frame_of, structure.parent, structure.child_of
        self._rank = np.argsort(program_order(graph)).tolist()
        edges = program_edges(graph).within_iteration()
        self._edges = list(zip(edges.producer.tolist(), edges.consumer.tolist(), strict=True))
        self.place: dict[int, int] = {}
        for k, op in enumerate(order):
            self.place[op] = k
            for loop in self._loops_around(op):  # a loop takes the place of its first op
                self.place.setdefault(loop, k)
        self._items = [self._dependencies(frame) for frame in range(len(self.parent))]
        # Loops that contain a control trigger, which runs even after dead ops: walked even when dead.
        triggers = np.flatnonzero(graph.is_kind("control_trigger")).tolist()
        self._walked = {loop for op in triggers for loop in self._loops_around(op)}
        self._frame(0)
        self._emit("ret", 0)

    # -- order ---------------------------------------------------------------------------------

    def _loops_around(self, op: int) -> Iterator[int]:
        """Yield the items of the loops that contain `op`, from the inside out."""
        frame = self.frame_of[op]
        while frame > 0:
            yield -1 - frame
            frame = self.parent[frame]

    def _item(self, op: int, frame: int) -> int | None:
        """Return the item of `frame` that contains `op`; None: it is outside the frame."""
        item, inside = op, self.frame_of[op]
        while inside != frame:
            if inside <= 0:
                return None
            item, inside = -1 - inside, self.parent[inside]
        return item

    def _dependencies(self, frame: int) -> tuple[dict[int, set[int]], dict[int, list[int]]]:
        """Return item → items it waits for, and item → items that wait for it, within a frame."""
        ops = range(len(self.graph))
        item_of = [self._item(op, frame) if op in self.place else None for op in ops]
        before: dict[int, set[int]] = {item: set() for item in item_of if item is not None}
        after: dict[int, list[int]] = {item: [] for item in before}
        pairs = [(item_of[p], item_of[c]) for p, c in self._edges]
        # A loop waits for every value that enters it, even one that no op in it reads.
        pairs += [
            (item_of[e], -1 - child) for e, child in self.child_of.items() if self.parent[child] == frame
        ]
        for a, b in pairs:
            if a is not None and b in before and a != b and a not in before[b]:
                before[b].add(a)
                after[a].append(b)
        return before, after

    def _guard_of(self, item: int) -> Guard:
        if item in self._walked:
            return ()
        return self.guards[item] if item >= 0 else self.guards_of_frames.get(-1 - item, ())

    # -- emission ------------------------------------------------------------------------------

    def _frame(self, frame: int) -> None:
        """Emit a frame's ops or, for a loop, the test, a jump past the body, the body and the jump back.

        An op that runs in every iteration but follows, by a control trigger, ops that only some iterations
        run is emitted in the body and again after the loop.
        """
        before, after = self._items[frame]
        loop_conds = {op for op in before if op >= 0 and self.kind[op] == "loop_cond"}

        def side(item: int) -> int:
            """Return 0: in every iteration, the last one too; 1: in the body; 2: when the loop is over."""
            sides = [s for p, s in self._guard_of(item) if p in loop_conds]
            return 0 if not sides else (1 if sides[0] else 2)

        phases: list[list[int]] = [[], [], []]
        for item in before:
            phases[side(item)].append(item)
        behind = {*phases[1], *phases[2]}
        queue = [*behind]
        while queue:
            new = {*after[queue.pop()]} - behind
            behind |= new
            queue += new
        both = [item for item in phases[0] if item in behind]
        once = self._once(frame, [item for item in phases[0] if item not in behind])
        each = [item for item in phases[0] if item not in behind and item not in once]
        phases = [each, phases[1] + both, phases[2] + both]
        if loop_conds:
            self.program.head[len(self.program.instructions)] = frame
        self._run([*once], frame, loop_conds)
        head = len(self.program.instructions)
        self._run(phases[0], frame, loop_conds)
        if not loop_conds:
            return
        self.program.head[head] = frame
        condition = min(loop_conds)
        test = self._emit("if", frame, condition)
        self._run(phases[1], frame, loop_conds)
        back = len(self.program.instructions)
        self._emit("goto", frame, offset=head - back)
        self._patch(test)
        self._run(phases[2], frame, loop_conds)

    def _once(self, frame: int, items: list[int]) -> dict[int, None]:
        """Return the items that receive a loop's inputs past no merge: they run in its first iteration only.

        (A Send and a Recv, if an enter is on another device than its merge.)
        """
        once: dict[int, None] = {}
        for op in sorted((item for item in items if item >= 0), key=self._rank.__getitem__):
            for p in self.graph.predecessors.row(op).tolist():
                constant = self.graph.attributes.get(p, {}).get("constant", False)
                if self.kind[op] not in CONTROL_FLOW_KINDS and (
                    p in once or (self.child_of.get(p) == frame and not constant)
                ):
                    once[op] = None
        return once

    def _run(self, items: list[int], frame: int, implied: Iterable[int]) -> None:
        """Emit items in an order that respects dependencies, with jumps where the guard changes."""
        before, after = self._items[frame]
        inside = set(items)
        pending = {item: len(before[item] & inside) for item in items}
        free = _Free()
        jumps: list[int] = []  # per open guard, the instruction to patch when it is left
        opened: list[Literal] = []
        skip = set(implied)
        for first in items:
            if not pending[first]:
                free.add(first, self.place[first], self._local(first, skip))
        while (item := free.take(opened)) is not None:
            if item < 0:
                self._move(opened, jumps, self._local(item, skip), frame)
                self._frame(-1 - item)
            elif self.kind[item] not in CONTROL_FLOW_KINDS:
                self._move(opened, jumps, self._local(item, skip), frame)
                self._emit("call", frame, item)
            for follower in after[item]:
                if follower in inside:
                    pending[follower] -= 1
                    if not pending[follower]:
                        free.add(follower, self.place[follower], self._local(follower, skip))
        self._move(opened, jumps, (), frame)

    def _local(self, item: int, implied: set[int]) -> Guard:
        return tuple(p for p in self._guard_of(item) if p[0] not in implied)

    def _move(self, opened: list[Literal], jumps: list[int], target: Guard, frame: int) -> None:
        """Leave the open guards that `target` does not share, and enter its remaining ones."""
        keep = _common(target, opened)
        while len(opened) > keep:
            predicate, was = opened.pop()
            jump = jumps.pop()
            if was and len(opened) == keep and len(target) > keep and target[keep] == (predicate, 0):
                jumps.append(self._emit("goto", frame))  # the true side is done: jump past the false one
                self._patch(jump)
                opened.append((predicate, 0))
                keep += 1
            else:
                self._patch(jump)
        for predicate, value in target[len(opened) :]:
            jump = self._emit("if", frame, predicate, 0 if value else 2)
            if not value:
                jump = self._emit("goto", frame)
            opened.append((predicate, value))
            jumps.append(jump)

    def _emit(self, do: str, frame: int, op: int = -1, offset: int = 0) -> int:
        """Append an instruction and return its position."""
        self.program.instructions.append(JumpInstruction(do, op, offset))
        self.program.frame.append(frame)
        return len(self.program.frame) - 1

    def _patch(self, at: int) -> None:
        """Make the jump at `at` lead to the next instruction."""
        instructions = self.program.instructions
        instructions[at] = instructions[at]._replace(offset=len(instructions) - at)


class _Free:
    """Items that may come next: preferably within the most open guards, then the first in place."""

    def __init__(self) -> None:
        self._under: defaultdict[Guard, list[tuple[int, int]]] = defaultdict(list)
        """Prefix of a guard → heap of (place, item) under it."""
        self._taken: set[int] = set()

    def add(self, item: int, place: int, guard: Guard) -> None:
        """Add an item under its guard."""
        for depth in range(len(guard) + 1):
            heappush(self._under[guard[:depth]], (place, item))

    def take(self, opened: Sequence[Literal]) -> int | None:
        """Remove and return the next item; None: there is none."""
        for depth in reversed(range(len(opened) + 1)):
            under = self._under.get(tuple(opened[:depth]), [])
            while under:
                _, item = heappop(under)
                if item not in self._taken:
                    self._taken.add(item)
                    return item
        return None


def _common(a: Sequence[Literal], b: Sequence[Literal]) -> int:
    """Return the length of the common prefix of two guards."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((k for k, (x, y) in pairs if x != y), min(len(a), len(b)))
