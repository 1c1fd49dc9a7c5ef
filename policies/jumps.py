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

Switches, merges, enters, exits and loop conditions are no instructions: they pass values on, which takes no
time.

Ops of a frame are put in order, a loop inside it as one item; between two ops whose guards
(`policies.jumps`) differ stand the jumps that leave one and enter the other. So any graph
that the executor can run has a program, whether it was written as a structured one or not.
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
# Four instructions, as in TVM's and Relax's VM (tvm/include/tvm/runtime/vm/bytecode.h), without the registers
# that hold its values, as the simulator has none:
#
#     call step      if p else +4      goto -6      ret
#
# Jumps are relative to the instruction itself. `policies.jumps` compiles graphs
# to them, `policies.issue.virtual_machine` walks them.


class JumpInstruction(NamedTuple):
    """One of the four.

    Attributes
    ----------
    do : {"call", "if", "goto", "ret"}
        Run an op; go on with the next instruction where one is true, else jump; jump; the end.
    op : int
        That is run, or asked.
    offset : int
        How far is jumped.
    """

    do: str
    op: int = -1
    offset: int = 0


@dataclass
class JumpProgram:
    """Instructions, and where loops are.

    Attributes
    ----------
    instructions : list of JumpInstruction
    frame : list of int
        Frame (`sim.graph.frames.FrameStructure`) in which each instruction stands.
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
# Under which predicates an op runs, read off the switches and merges before it.
#
#     x ─► switch ─true──► f ─► merge ─► y        guard of f: ((p, 1),)    of g: ((p, 0),)
#     p ─────┘ └──false──► g ─────┘               of the switch, the merge and y: ()
#
# A guard is local to an op's frame: what it takes to enter a loop is the guard of the loop.

Literal = tuple[int, int]
"""(predicate op, side): 1 where it is true."""

Guard = tuple[Literal, ...]
"""All of them hold; outer conditions come first."""


def find_guards(graph: Graph, structure: FrameStructure) -> tuple[list[Guard], dict[int, Guard]]:
    """Return the guards of all ops of a graph with control flow, and those of entering each frame.

    Parameters
    ----------
    graph : Graph
    structure : FrameStructure
        Of `graph`.
    """
    kind = [graph.kinds[int(code)] for code in graph.kind_code]
    order = program_order(graph).tolist()
    at = {op: k for k, op in enumerate(order)}
    non_strict = non_strict_ops(graph).tolist()
    sends = {recv: send for send, recv in rendezvous_keys(graph).pairs}
    # Of each literal the place of the switch that asks: one that is inside another is known only behind it.
    guards: list[dict[Literal, int]] = [{} for _ in order]
    frames: dict[int, dict[Literal, int]] = {}

    def merged(found: Iterable[Mapping[Literal, int]]) -> dict[Literal, int]:
        place: dict[Literal, int] = {}
        for guard in found:
            place |= {literal: min(k, place.get(literal, k)) for literal, k in guard.items()}
        return dict(sorted(place.items(), key=itemgetter(1)))

    def behind(producer: int, slot: int) -> dict[Literal, int]:
        """Return the guard of what `producer` gives, in the frame that it gives it to."""
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
        if kind[op] != "control_trigger":  # which runs even if what it follows is dead
            first = [*graph.after.row(op).tolist(), *([sends[op]] if op in sends else [])]
            guards[op] = merged([*(behind(follows, -1) for follows in first), *data])
        if kind[op] == "enter":
            child = structure.child_of[op]
            frames[child] = merged([frames.get(child, {}), guards[op]])
    return [tuple(guard) for guard in guards], {frame: tuple(guard) for frame, guard in frames.items()}


# ----------------------------------------------------------------------------------------------------------


def compile_program(graph: Graph, order: Sequence[int]) -> JumpProgram:
    """Return the program of `graph`.

    Parameters
    ----------
    graph : Graph
    order : sequence of int
        Preferred order of the ops: it is kept within a frame as far as dependencies and guards allow. Ops
        that are not in it, on which those in it may not depend, are left out.

    Raises
    ------
    GraphError
        Control flow that makes no sense (see `sim.graph.frames`).

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
    """Compiles frame after frame; items are ops, and child frames as ``-1 - frame``."""

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
            for loop in self._loops_around(op):  # a loop stands where its first op does
                self.place.setdefault(loop, k)
        self._items = [self._dependencies(frame) for frame in range(len(self.parent))]
        # Loops with an op that runs whatever became of what it follows: they are walked though they are dead.
        triggers = np.flatnonzero(graph.is_kind("control_trigger")).tolist()
        self._walked = {loop for op in triggers for loop in self._loops_around(op)}
        self._frame(0)
        self._emit("ret", 0)

    # -- order ---------------------------------------------------------------------------------

    def _loops_around(self, op: int) -> Iterator[int]:
        """Yield the items of the loops that an op is in, from the inside out."""
        frame = self.frame_of[op]
        while frame > 0:
            yield -1 - frame
            frame = self.parent[frame]

    def _item(self, op: int, frame: int) -> int | None:
        """Return the item of `frame` that `op` belongs to; None when it is in none."""
        item, inside = op, self.frame_of[op]
        while inside != frame:
            if inside <= 0:
                return None
            item, inside = -1 - inside, self.parent[inside]
        return item

    def _dependencies(self, frame: int) -> tuple[dict[int, set[int]], dict[int, list[int]]]:
        """Return, of a frame, item → items it waits for, and item → items that wait for it."""
        ops = range(len(self.graph))
        item_of = [self._item(op, frame) if op in self.place else None for op in ops]
        before: dict[int, set[int]] = {item: set() for item in item_of if item is not None}
        after: dict[int, list[int]] = {item: [] for item in before}
        pairs = [(item_of[p], item_of[c]) for p, c in self._edges]
        # A loop waits for all that enters it, also for what no op in it reads.
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
        """Emit a frame: its ops; of a loop the test, a jump past the body, the body, the jump back.

        What runs in each iteration, and follows what only some run (by a control trigger), stands in the
        body and again where the loop is over.
        """
        before, after = self._items[frame]
        loop_conds = {op for op in before if op >= 0 and self.kind[op] == "loop_cond"}

        def side(item: int) -> int:
            """0: each iteration, the last one too; 1: the body; 2: when the loop is over."""
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
        """Return the items that get what enters a loop, past no merge: they run in its first iteration only.

        (A Send and a Recv, where an enter is on another device than its merge.)
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
        """Emit items in an order that their dependencies allow, with jumps where the guard changes."""
        before, after = self._items[frame]
        inside = set(items)
        pending = {item: len(before[item] & inside) for item in items}
        free = _Free()
        jumps: list[int] = []  # one for each open guard: the instruction to patch when it is left
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
        """Leave the guards that `target` does not share, and enter those that it has besides."""
        keep = _common(target, opened)
        while len(opened) > keep:
            predicate, was = opened.pop()
            jump = jumps.pop()
            if was and len(opened) == keep and len(target) > keep and target[keep] == (predicate, 0):
                jumps.append(self._emit("goto", frame))  # the true side is done: past the false one
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
        """Append an instruction, and return where it is."""
        self.program.instructions.append(JumpInstruction(do, op, offset))
        self.program.frame.append(frame)
        return len(self.program.frame) - 1

    def _patch(self, at: int) -> None:
        """Let the jump at `at` lead to the next instruction."""
        instructions = self.program.instructions
        instructions[at] = instructions[at]._replace(offset=len(instructions) - at)


class _Free:
    """Items that may come next: those that stay within the most open guards, of these the first in place."""

    def __init__(self) -> None:
        self._under: defaultdict[Guard, list[tuple[int, int]]] = defaultdict(list)
        """How a guard begins → (place, item) of those that are under it, as a heap."""
        self._taken: set[int] = set()

    def add(self, item: int, place: int, guard: Guard) -> None:
        """Add an item that is under a guard."""
        for depth in range(len(guard) + 1):
            heappush(self._under[guard[:depth]], (place, item))

    def take(self, opened: Sequence[Literal]) -> int | None:
        """Take out the next item; None: there is none."""
        for depth in reversed(range(len(opened) + 1)):
            under = self._under.get(tuple(opened[:depth]), [])
            while under:
                _, item = heappop(under)
                if item not in self._taken:
                    self._taken.add(item)
                    return item
        return None


def _common(a: Sequence[Literal], b: Sequence[Literal]) -> int:
    """Return how many literals two guards share at their beginning."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((k for k, (x, y) in pairs if x != y), min(len(a), len(b)))
