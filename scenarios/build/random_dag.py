"""Graphs without a model behind them: branches that fork and join, and layers wired at random.

::

    branchy(blocks=2, branches=3, depth=2)          random_dag(layers=3, width=(1, 3))

            ┌ 0.0 ─ 0.1 ┐       ┌ ...                 l0/0 ──► l1/0 ──► l2/0
    fork0 ──┼ 1.0 ─ 1.1 ┼ join0 ┼ ...                    └───► l1/1 ─┐
            └ 2.0 ─ 2.1 ┘       └ ...                          l1/2 ─┴► l2/1

A random graph is a function of its seed and its parameters alone.
"""

from __future__ import annotations

import numpy as np

from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph
from sim.words.errors import InputError

__all__ = ["Range", "branchy", "random_dag"]

Range = tuple[int, int]
"""Least and greatest value, both possible."""


def branchy(
    *, blocks: int = 1, branches: int = 4, depth: int = 1, duration_ns: int = 0, output_nbytes: int = 0
) -> Graph:
    """Return blocks of parallel chains between a fork and a join, one after another.

    Parameters
    ----------
    blocks, branches, depth : int
        How many blocks, chains in a block, ops in a chain; at least 1.
    duration_ns, output_nbytes : int
        Of every op.

    Returns
    -------
    Graph
        ``blocks * (branches * depth + 2)`` ops; the longest path has ``blocks * (depth + 2)``.

    Examples
    --------
    >>> graph = branchy(branches=2, depth=2, duration_ns=10)
    >>> graph.op_names
    ['fork0', 'block0/0.0', 'block0/0.1', 'block0/1.0', 'block0/1.1', 'join0']
    """
    if min(blocks, branches, depth) < 1:
        raise InputError(
            f"blocks, branches and depth must be at least 1, found {blocks}, {branches}, {depth}"
        )
    builder = GraphBuilder("branchy")

    def op(name: str, kind: str, inputs: list[str]) -> str:
        return builder.op(name, kind=kind, inputs=inputs, outputs=output_nbytes, duration_ns=duration_ns)

    joined: list[str] = []
    for k in range(blocks):
        fork = op(f"fork{k}", "fork", joined)
        ends = []
        for branch in range(branches):
            at = fork
            for i in range(depth):
                at = op(f"block{k}/{branch}.{i}", "op", [at])
            ends.append(at)
        joined = [op(f"join{k}", "join", ends)]
    return builder.build()


def random_dag(
    *,
    layers: int = 10,
    width: Range = (1, 4),
    edge_probability: float = 0.2,
    duration_ns: Range = (0, 0),
    output_nbytes: Range = (0, 0),
    seed: int = 0,
) -> Graph:
    """Return a layered random graph: every op reads one of the layer before, and maybe earlier ones.

    Parameters
    ----------
    layers : int
    width : (int, int)
        Least and greatest number of ops in a layer, drawn uniformly.
    edge_probability : float
        Of each further edge, from any op of an earlier layer.
    duration_ns, output_nbytes : (int, int)
        Ranges, drawn uniformly for each op.
    seed : int

    Returns
    -------
    Graph
        The longest path has at least `layers` ops, as each layer waits for the one before.

    Raises
    ------
    InputError
        An empty or negative range, no layer, or a probability outside 0 ... 1.

    Examples
    --------
    >>> random_dag(layers=3, width=(2, 2), duration_ns=(10, 20), seed=1)
    <Graph 'random-dag': 6 ops, 6 tensors, 5 edges>
    """
    for what, (least, most) in {"width": width, "duration": duration_ns, "output": output_nbytes}.items():
        if not (what == "width") <= least <= most:
            raise InputError(f"{what}: [{least}, {most}] is no range from least to greatest")
    if layers < 1 or not 0 <= edge_probability <= 1:
        raise InputError(
            f"layers must be at least 1, found {layers}; edge_probability 0 to 1, found {edge_probability}"
        )
    rng = np.random.default_rng([seed, *b"random-dag"])
    builder = GraphBuilder("random-dag")
    earlier: list[str] = []
    before: list[str] = []

    def draw(between: Range) -> int:
        return int(rng.integers(between[0], between[1], endpoint=True))

    for layer in range(layers):
        here = []
        for i in range(draw(width)):
            inputs = [before[draw((0, len(before) - 1))]] if before else []
            extra = rng.random(len(earlier)) < edge_probability
            inputs += [
                name
                for name, drawn in zip(earlier, extra.tolist(), strict=True)
                if drawn and name not in inputs
            ]
            here.append(
                builder.op(
                    f"l{layer}/{i}",
                    inputs=inputs,
                    outputs=draw(output_nbytes),
                    duration_ns=draw(duration_ns),
                )
            )
        earlier += here
        before = here
    return builder.build()
