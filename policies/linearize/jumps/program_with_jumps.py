"""A graph with control flow as a linear program, as TVM's and Relax's virtual machines run it.

::

    while i < n: i = step(i)                    if p: y = f(x)  else: y = g(x)

        0  r0 = call zero                           0  r0 = call x
        1  r1 = copy r0            (enter)          1  r1 = call p
        2  r2 = call test r1    ◄──┐                2  if r1 else +4  ─────┐
        3  if r2 else +4  ─────┐   │                3  r2 = call f r0      │
        4  r3 = call step r1   │   │                4  r3 = copy r2        │
        5  r1 = copy r3        │   │                5  goto +3  ──────┐    │
        6  goto -4  ───────────┼───┘                6  r4 = call g r0 │ ◄──┘
        7  ret r1           ◄──┘                    7  r3 = copy r4   │
                                                    8  ret r3      ◄──┘

Switches, enters, exits and loop conditions are no instructions: they are other names for a register. A merge
is a register that each side copies its value into.

Ops of a frame are put in order, a loop inside it as one item; between two ops whose guards
(`policies.linearize.jumps.guards`) differ stand the jumps that leave one and enter the other. So any graph
that the executor can run has a program, whether it was written as a structured one or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from policies.linearize.jumps.guards import Guard, Guards, Literal, find_guards, slot_of
from policies.linearize.jumps.instructions import COPY, Call, Goto, If, Instruction, Program, Ret
from sim import Graph
from sim.graph.frames import CONTROL_FLOW_KINDS, frame_structure, has_control_flow

__all__ = ["compile_program"]

ALIASES: Final = frozenset({"switch", "exit", "loop_cond", "enter", "next_iteration"})
"""Kinds whose output is the register of their first input."""


def compile_program(graph: Graph, order: Sequence[int]) -> Program:
    """Return the program of `graph`.

    Parameters
    ----------
    graph : Graph
    order : sequence of int
        Preferred order of the ops: it is kept within a frame as far as dependencies and guards allow.

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
    >>> print(compile_program(graph, graph.topological_order.tolist()).listing(graph))
    0  r0 = call zero
    1  r1 = copy r0
    2  r2 = call loop/test r1
    3  if r2 else +4
    4  r3 = call step r1
    5  r1 = copy r3
    6  goto -4
    7  ret r1
    """
    return _Compiler(graph, order).program


class _Compiler:
    """Compiles frame after frame; items are ops, and child frames as ``-1 - frame``."""

    def __init__(self, graph: Graph, order: Sequence[int]) -> None:
        self.graph = graph
        self.kind = [graph.kinds[int(code)] for code in graph.kind_code]
        self.inputs = graph.inputs.lists()
        self.register_of: dict[int, int] = {}
        self.n_registers = 0
        if not has_control_flow(graph):
            self.program = Program()
            self.guards = Guards([()] * len(graph))
            self.frame_of = [0] * len(graph)
            for op in order:
                self._code(op, 0)
        else:
            structure = frame_structure(graph)
            self.program = Program(structure=structure)
            self.guards = find_guards(graph, structure)
            self.frame_of, self.parent = structure.frame_of, structure.parent
            self.place: dict[int, int] = {}
            for k, op in enumerate(order):
                self.place[op] = k
                frame = self.frame_of[op]
                while frame > 0:  # a loop stands where its first op does
                    self.place.setdefault(-1 - frame, k)
                    frame = self.parent[frame]
            self._items = self._dependencies()
            self._frame(0)
        results = [self._register(op) for op in range(len(graph)) if self._is_result(op)]
        self._emit(Ret(tuple(dict.fromkeys(results))), 0)

    def _is_result(self, op: int) -> bool:
        """Whether nobody reads `op`, and it runs once, whatever the predicates say."""
        if len(self.graph.successors.row(op)):
            return False
        frame = self.frame_of[op]
        if frame and self.kind[op] == "exit" and self.parent[frame] == 0:
            return not self.guards.frames.get(frame)
        return frame == 0 and not self.guards.ops[op]

    # -- order ---------------------------------------------------------------------------------

    def _item(self, op: int, frame: int) -> int | None:
        """Return the item of `frame` that `op` belongs to; None when it is in none."""
        if self.frame_of[op] == frame:
            return op
        child = self.frame_of[op]
        while child > 0:
            if self.parent[child] == frame:
                return -1 - child
            child = self.parent[child]
        return None

    def _dependencies(self) -> dict[int, tuple[dict[int, set[int]], dict[int, list[int]]]]:
        """Return for each frame: item → items it waits for, and item → items that wait for it."""
        edges = self.graph.edges.within_iteration()
        pairs = list(zip(edges.producer.tolist(), edges.consumer.tolist(), strict=True))
        out: dict[int, tuple[dict[int, set[int]], dict[int, list[int]]]] = {}
        for frame in range(len(self.parent)):
            items = (self._item(op, frame) for op in range(len(self.graph)))
            before: dict[int, set[int]] = {item: set() for item in items if item is not None}
            after: dict[int, list[int]] = {item: [] for item in before}
            for p, c in pairs:
                a, b = self._item(p, frame), self._item(c, frame)
                if a is not None and b is not None and a != b and a not in before[b]:
                    before[b].add(a)
                    after[a].append(b)
            out[frame] = before, after
        return out

    def _guard_of(self, item: int) -> Guard:
        return self.guards.ops[item] if item >= 0 else self.guards.frames.get(-1 - item, ())

    # -- emission ------------------------------------------------------------------------------

    def _frame(self, frame: int) -> None:
        """Emit a frame: its ops; of a loop the test, a jump past the body, the body, the jump back."""
        before, _ = self._items[frame]
        loop_conds = {op for op in before if op >= 0 and self.kind[op] == "loop_cond"}

        def side(item: int) -> int:
            """0: each iteration, the last one too; 1: the body; 2: when the loop is over."""
            sides = [s for p, s in self._guard_of(item) if p in loop_conds]
            return 0 if not sides else (1 if sides[0] else 2)

        phases: list[list[int]] = [[], [], []]
        for item in before:
            phases[side(item)].append(item)
        if not loop_conds:
            self._run([*phases[0], *phases[1], *phases[2]], frame, frozenset())
            return
        head = len(self.program.instructions)
        self.program.head[head] = frame
        self._run(phases[0], frame, loop_conds)
        condition = min(loop_conds)
        test = len(self.program.instructions)
        self._emit(If(self._register(condition), condition), frame)
        self._run(phases[1], frame, loop_conds)
        self._next_values(frame)
        back = len(self.program.instructions)
        self._emit(Goto(head - back), frame)
        self._patch(test)
        self._run(phases[2], frame, loop_conds)

    def _run(self, items: list[int], frame: int, implied: Iterable[int]) -> None:
        """Emit items in an order that their dependencies allow, with jumps where the guard changes."""
        before, after = self._items[frame]
        inside = set(items)
        pending = {item: len(before[item] & inside) for item in items}
        free = [item for item in items if not pending[item]]
        jumps: list[int] = []  # one for each open guard: the instruction to patch when it is left
        opened: list[Literal] = []
        skip = set(implied)
        while free:
            item = max(free, key=lambda i: (_common(self._local(i, skip), opened), -self.place[i]))
            free.remove(item)
            for switch, literal in self._passed_through(item):  # a branch that returns what it was given
                self._move(opened, jumps, (*self._local(switch, skip), literal), frame)
                self._emit(Call(COPY, (self._register(switch),), self._register(item)), frame)
            if self._has_code(item):
                self._move(opened, jumps, self._local(item, skip), frame)
            self._code(item, frame)
            for follower in after[item]:
                if follower in inside:
                    pending[follower] -= 1
                    if not pending[follower]:
                        free.append(follower)
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
                over = len(self.program.instructions)
                self._emit(Goto(), frame)  # the true side is done: past the false one
                self._patch(jump)
                opened.append((predicate, 0))
                jumps.append(over)
                keep += 1
            else:
                self._patch(jump)
        for predicate, value in target[len(opened) :]:
            jump = len(self.program.instructions)
            self._emit(If(self._register(predicate), predicate, 0 if value else 2), frame)
            if not value:
                jump += 1
                self._emit(Goto(), frame)
            opened.append((predicate, value))
            jumps.append(jump)

    def _has_code(self, item: int) -> bool:
        return item < 0 or self.kind[item] not in CONTROL_FLOW_KINDS or bool(self._copies(item))

    def _passed_through(self, item: int) -> list[tuple[int, Literal]]:
        """Return the switches that a merge reads directly, each with the side on which it does."""
        structure = self.program.structure
        if item < 0 or self.kind[item] != "merge" or structure is None:
            return []
        graph, found = self.graph, []
        for tensor in self.inputs[item]:
            switch = int(graph.tensor_producer[tensor])
            if switch >= 0 and self.kind[switch] == "switch":
                found.append((switch, (structure.predicate[switch], min(slot_of(graph, tensor), 1))))
        return found

    def _copies(self, op: int) -> list[int]:
        """Return the merges into whose register the value of `op` is copied right behind it."""
        if self.kind[op] == "next_iteration":
            return []  # at the end of the body, all at once
        graph = self.graph
        merges = []
        for tensor in graph.outputs.row(op).tolist():
            for reader in dict.fromkeys(graph.consumers.row(tensor).tolist()):
                if self.kind[reader] == "merge" and self.kind[op] != "switch":
                    merges.append(reader)
        return merges

    def _code(self, item: int, frame: int) -> None:
        if item < 0:
            self._frame(-1 - item)
            return
        if self.kind[item] not in CONTROL_FLOW_KINDS:
            made = (t for t in self.inputs[item] if self.graph.tensor_producer[t] >= 0)
            arguments = tuple(self._register(int(self.graph.tensor_producer[t])) for t in made)
            self._emit(Call(item, arguments, self._register(item)), frame)
        for merge in self._copies(item):
            self._emit(Call(COPY, (self._register(item),), self._register(merge)), frame)

    def _next_values(self, frame: int) -> None:
        """Give the loop's variables their next values, as if all at once."""
        pairs = []
        for op in self._items[frame][0]:
            if op >= 0 and self.kind[op] == "next_iteration":
                for merge in dict.fromkeys(self.graph.successors.row(op).tolist()):
                    pairs.append((self._register(op), self._register(merge)))
        pairs = [(source, target) for source, target in pairs if source != target]
        targets = {target for _, target in pairs}
        safe = []
        for source, target in pairs:
            if source in targets:  # another variable's old value: put it aside first
                self._emit(Call(COPY, (source,), self.n_registers), frame)
                source, self.n_registers = self.n_registers, self.n_registers + 1
            safe.append((source, target))
        for source, target in safe:
            self._emit(Call(COPY, (source,), target), frame)

    def _register(self, op: int) -> int:
        """Return the register of an op's value."""
        while self.kind[op] in ALIASES:
            producer = int(self.graph.tensor_producer[self.inputs[op][0]]) if self.inputs[op] else -1
            if producer < 0:
                break
            op = producer
        if op not in self.register_of:
            self.register_of[op] = self.n_registers
            self.n_registers += 1
        return self.register_of[op]

    def _emit(self, instruction: Instruction, frame: int) -> None:
        self.program.instructions.append(instruction)
        self.program.frame.append(frame)

    def _patch(self, at: int) -> None:
        """Let the jump at `at` lead to the next instruction."""
        instruction = self.program.instructions[at]
        offset = len(self.program.instructions) - at
        if isinstance(instruction, If):
            self.program.instructions[at] = replace(instruction, false_offset=offset)
        else:
            self.program.instructions[at] = Goto(offset)


def _common(a: Sequence[Literal], b: Sequence[Literal]) -> int:
    """Return how many literals two guards share at their beginning."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n
