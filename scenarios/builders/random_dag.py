"""Graphs without a model behind them: branches that fork and join, and layers wired at random.

::

    branchy(blocks=2, width=3, layers=2)          random_dag(layers=3, width=(1, 3))

            ┌ 0.0 ─ 0.1 ┐       ┌ ...                 l0/0 ──► l1/0 ──► l2/0
    fork0 ──┼ 1.0 ─ 1.1 ┼ join0 ┼ ...                    └───► l1/1 ─┐
            └ 2.0 ─ 2.1 ┘       └ ...                          l1/2 ─┴► l2/1

A random graph is a function of its seed and its parameters alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field

from devices.describe.field_types import Bytes, Duration, fault
from devices.describe.quantities import Size, Whole
from scenarios.builders.builder import Builder
from sim.base.arrays import MOST_BUILT, MOST_TASKS, at_most
from sim.base.room import BUILT_EDGE_BYTES, check_room
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph


class Branchy(Builder):
    """Blocks of parallel chains between a fork and a join.

    Attributes
    ----------
    model
        which builder
    blocks
        blocks, one after another
    width
        parallel chains in a block
    layers
        ops in a chain
    duration
        duration of every op
    output
        output size of every op
    """

    model: Literal["branchy"]
    blocks: Size = 1
    width: Size = 4
    layers: Size = 1
    duration: Annotated[Duration, Field(default="10us")]
    output: Bytes = 0

    def graph(self) -> Graph:
        """Return the graph.

        There are ``blocks * (width * depth + 2)`` ops; the longest path has ``blocks * (depth + 2)`` ops.

        Examples
        --------
        >>> Branchy(model="branchy", width=2, layers=2).graph().op_names
        ('fork0', 'block0/0.0', 'block0/0.1', 'block0/1.0', 'block0/1.1', 'join0')
        """
        at_most(MOST_BUILT, self.blocks * (self.width * self.layers + 2), "ops")
        builder = GraphBuilder("branchy")

        def op(name: str, kind: str, inputs: list[str]) -> str:
            return builder.op(name, kind=kind, inputs=inputs, outputs=self.output, duration_ns=self.duration)

        joined: list[str] = []
        for k in range(self.blocks):
            fork = op(f"fork{k}", "fork", joined)
            ends = []
            for branch in range(self.width):
                tail = fork
                for i in range(self.layers):
                    tail = op(f"block{k}/{branch}.{i}", "op", [tail])
                ends.append(tail)
            joined = [op(f"join{k}", "join", ends)]
        return builder.build()


def _check_range(value: list[int]) -> list[int]:
    if value[0] > value[1]:
        raise fault(f"[{value[0]}, {value[1]}] is no range from least to greatest")
    return value


_PAIR = Field(min_length=2, max_length=2)
_RANGE = AfterValidator(_check_range)


class RandomDag(Builder):
    """Layers of ops wired at random; the same seed gives the same graph.

    Attributes
    ----------
    model
        which builder
    layers
        how many layers of ops
    width
        ops of a layer, or [least, greatest]
    probability
        probability of an edge from each op of each earlier layer
    duration
        of an op, or [least, greatest]
    output
        size of an op's output, or [least, greatest]
    seed
        seed of the graph; the scenario's seed is for the run
    """

    model: Literal["random-dag"]
    layers: Size = 10
    width: Size | Annotated[list[Size], _PAIR, _RANGE] = Field([1, 4])
    probability: float = Field(0.2, ge=0, le=1, strict=False)
    duration: Annotated[Duration | Annotated[list[Duration], _PAIR, _RANGE], Field(default=["1us", "100us"])]
    output: Bytes | Annotated[list[Bytes], _PAIR, _RANGE] = 0
    seed: Whole = 0

    def graph(self) -> Graph:
        """Return the graph.

        Every op reads one op of the layer before, drawn uniformly like all else, and maybe earlier ones: the
        longest path has at least `layers` ops.

        Examples
        --------
        >>> RandomDag(model="random-dag", layers=3, width=2, duration=["10ns", "20ns"], seed=1).graph()
        <Graph 'random-dag': 6 ops, 6 tensors, 6 edges>
        """
        ops = at_most(MOST_BUILT, self.layers * np.max(self.width).item(), "ops")
        edges = at_most(MOST_TASKS, int(self.probability * ops * (ops - 1) / 2), "edges")
        check_room(edges * BUILT_EDGE_BYTES, f"{edges:,} edges")
        rng = np.random.default_rng([self.seed, *b"random-dag"])
        builder = GraphBuilder("random-dag")
        earlier: list[str] = []
        previous: list[str] = []

        sizes = [n if isinstance(n, list) else [n, n] for n in (self.width, self.output, self.duration)]

        def draw(between: Sequence[int]) -> int:
            return int(rng.integers(between[0], between[1], endpoint=True))

        for layer in range(self.layers):
            current = []
            for i in range(draw(sizes[0])):
                inputs = [previous[draw((0, len(previous) - 1))]] if previous else []
                n_drawn = rng.binomial(len(earlier), self.probability)  # not pair by pair: most have no edge
                drawn = rng.choice(len(earlier), n_drawn, replace=False)
                inputs += [earlier[k] for k in sorted(drawn.tolist()) if earlier[k] != inputs[0]]
                size, ns = draw(sizes[1]), draw(sizes[2])
                current.append(builder.op(f"l{layer}/{i}", inputs=inputs, outputs=size, duration_ns=ns))
            earlier += current
            previous = current
        return builder.build()
