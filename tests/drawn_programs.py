"""Random programs of ops, conditions and loops, built twice: with control flow, and as what is left of it.

What is left of a program whose outcomes are known is a graph without control flow: branches not taken are
gone, loops are unrolled, and a switch, merge, enter or exit is a view that takes no time::

    if p: f(x) else g(x)        x ─► switch ─► f ─► merge         x ─► view ─► f ─► view
                                p ────┘ └────► g ────┘            p ────┘

Of a loop with `parallel_iterations`, an iteration begins when the one so many before is over, and what does
not change is held until the loop is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scenarios.ops.control_flow import cond, while_loop
from sim import Graph, GraphBuilder


@dataclass
class Op:
    """An op that reads some values, numbered as they come to be."""

    inputs: list[int]
    nbytes: int
    duration_ns: int
    where: int = 0


@dataclass
class If:
    """A condition: its predicate, its outcome, the values that it hands in, and its branches."""

    predicate: Op
    outcome: bool
    values: list[int]
    branches: tuple[Block, Block]  # taken if false, if true


@dataclass
class While:
    """A loop: variables and invariants that it hands in, and what its body makes of each variable."""

    variables: list[int]
    invariants: list[int]
    trips: int
    parallel: int
    body: Block


@dataclass
class Block:
    """Statements, each of which adds values to those that were handed in; and the values that it returns."""

    steps: list[Op | If | While] = field(default_factory=list)
    results: list[int] = field(default_factory=list)


def draw_program(rng: np.random.Generator, steps: int = 6, depth: int = 2, devices: int = 1) -> Block:
    """Return a program; all of its values begin with those of two ops that read nothing."""

    def some(values: Sequence[int], most: int, least: int = 1) -> list[int]:
        n = min(len(values), int(rng.integers(least, most + 1)))
        return sorted(int(v) for v in rng.choice(values, n, replace=False))

    def op(inputs: list[int], nbytes: int | None = None) -> Op:
        size = int(rng.integers(0, 4)) * int(rng.integers(1, 500)) if nbytes is None else nbytes
        return Op(inputs, size, int(rng.integers(1, 40)), int(rng.integers(devices)))

    def block(n_given: int, fresh: int, steps: int, depth: int, results: int) -> Block:
        """Each statement reads one of the values from `fresh` on, which are dead where the block is."""
        made = Block()
        n = n_given
        for _ in range(steps):
            old, new = list(range(fresh)), list(range(fresh, n))
            what = rng.random()
            if depth and what < 0.25:
                values = some(new, 2) + (some(old, 1) if old else [])
                inside = [block(len(values), 0, int(rng.integers(0, 3)), depth - 1, 1) for _ in range(2)]
                predicate = op(some(new, 2), 1)
                made.steps.append(If(predicate, bool(rng.random() < 0.5), values, (inside[0], inside[1])))
                n += 1
            elif depth and what < 0.5:
                variables = some(new, 2)
                rest = [v for v in [*old, *new] if v not in variables]
                invariants = some(rest, 2, 0) if rest else []
                given = len(invariants) + len(variables)
                body = block(given, len(invariants), int(rng.integers(1, 4)), depth - 1, len(variables))
                trips, parallel = int(rng.integers(0, 4)), int(rng.integers(1, 4))
                made.steps.append(While(variables, invariants, trips, parallel, body))
                n += len(variables)
            else:
                made.steps.append(op(some(new, 2) + (some(old, 1) if old and rng.random() < 0.5 else [])))
                n += 1
        made.results = [int(rng.integers(fresh, n)) for _ in range(results)]
        return made

    program = block(2, 0, steps, depth, 1)
    program.steps[:0] = [op([]), op([])]
    return program


class _Writer:
    """Adds the ops of a program to a graph."""

    def __init__(self, devices: Sequence[str | None]) -> None:
        self.b = GraphBuilder("drawn")
        self.devices = devices
        self.n = 0

    def name(self, what: str) -> str:
        self.n += 1
        return f"{what}{self.n}"

    def op(self, op: Op, values: Sequence[str], **more: Any) -> str:
        return self.b.op(
            self.name("op"),
            inputs=[values[k] for k in op.inputs],
            outputs=op.nbytes,
            duration_ns=op.duration_ns,
            device=self.devices[op.where % len(self.devices)],
            **more,
        )

    def block(self, block: Block, given: Sequence[str]) -> list[str]:
        values = list(given)
        for step in block.steps:
            if isinstance(step, Op):
                values.append(self.op(step, values))
            elif isinstance(step, If):
                values += self.condition(step, values)
            else:
                values += self.loop(step, values)
        return [values[k] for k in block.results]

    def condition(self, step: If, values: Sequence[str]) -> list[str]:
        raise NotImplementedError

    def loop(self, step: While, values: Sequence[str]) -> list[str]:
        raise NotImplementedError


class _Flowing(_Writer):
    def condition(self, step: If, values: Sequence[str]) -> list[str]:
        predicate = self.op(step.predicate, values, attributes={"outcome": step.outcome})
        given = [values[k] for k in dict.fromkeys(step.values)]

        def branch(block: Block) -> Callable[[GraphBuilder, Any], list[str]]:
            return lambda _, v: self.block(block, [v[x] for x in given])

        no, yes = step.branches
        return cond(
            self.b, self.name("if"), predicate, given, branch(yes), branch(no), device=self.devices[0]
        )

    def loop(self, step: While, values: Sequence[str]) -> list[str]:
        variables = {f"v{k}": values[v] for k, v in enumerate(step.variables)}
        invariants = list(dict.fromkeys(values[v] for v in step.invariants))

        def body(_: GraphBuilder, inside: dict[str, str]) -> dict[str, str]:
            results = self.block(
                step.body, [*(inside[x] for x in invariants), *(inside[x] for x in variables)]
            )
            return dict(zip(variables, results, strict=True))

        out = while_loop(
            self.b,
            self.name("while"),
            variables,
            body,
            trips=step.trips,
            invariants=invariants,
            parallel_iterations=step.parallel,
            device=self.devices[0],
        )
        return [out[x] for x in variables]


class _Unrolled(_Writer):
    def __init__(self) -> None:
        super().__init__([None])
        self.scopes: list[list[str]] = []  # ops of the iterations around it

    def view(self, value: str, *others: str, after: Sequence[str] = ()) -> str:
        name = self.name("view")
        self.b.op(name, inputs=[value, *others], after=after, duration_ns=0, attributes={"view_of": 0})
        self.made(name)
        return name

    def instant(self, inputs: Sequence[str], after: Sequence[str] = ()) -> str:
        """Add an op that takes no time and gives nothing, and return its name."""
        name = self.name("instant")
        self.b.op(name, inputs=inputs, after=after, duration_ns=0)
        self.made(name)
        return name

    def made(self, name: str) -> None:
        for scope in self.scopes:
            scope.append(name)

    def op(self, op: Op, values: Sequence[str], **more: Any) -> str:
        name = super().op(op, values)
        self.made(name)
        return name

    def condition(self, step: If, values: Sequence[str]) -> list[str]:
        predicate = self.op(step.predicate, values)
        given = [self.view(values[k], predicate) for k in dict.fromkeys(step.values)]
        return [self.view(result) for result in self.block(step.branches[step.outcome], given)]

    def loop(self, step: While, values: Sequence[str]) -> list[str]:
        invariants = [self.view(values[k]) for k in step.invariants]
        current = [self.view(values[k]) for k in step.variables]
        entered = [*invariants, *current]  # all of it belongs to the first iteration
        over: list[list[str]] = []  # the ops of each iteration, and of those before it
        for iteration in range(step.trips + 1):
            before = iteration - step.parallel
            begins = over[before] if before >= 0 else ()
            self.scopes.append([])
            merged = [self.view(value, after=begins) for value in current]
            test = self.instant([merged[0]])
            current = [self.view(value, test) for value in merged]
            if iteration < step.trips:
                current = [self.view(result) for result in self.block(step.body, [*invariants, *current])]
            over.append([*self.scopes.pop(), *(over[-1] if over else entered)])
        self.instant(invariants, over[-1])
        return [self.view(value) for value in current]


def flowing(program: Block, devices: Sequence[str | None] = (None,)) -> Graph:
    """Return a program as a graph with control flow, its ops on the devices that they were drawn for."""
    writer = _Flowing(devices)
    writer.block(program, [])
    return writer.b.build()


def unrolled(program: Block) -> Graph:
    """Return what is left of a program whose outcomes are known."""
    writer = _Unrolled()
    writer.block(program, [])
    return writer.b.build()
