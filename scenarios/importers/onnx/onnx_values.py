"""What is known of the values of an ONNX model before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

__all__ = [
    "Scope",
    "Value",
    "Values",
    "control_kind",
    "first_output",
    "graphs_of",
    "node_name",
    "nodes_of",
    "shape_text",
]


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of a value before the model runs.

    Attributes
    ----------
    elem : int
        Element type, a ``TensorProto.DataType``.
    shape : tuple of int
    data : array, optional
        The content, when it is small and known.
    constant : bool
        Whether it is the same in every run: a weight, or computed from weights and shapes only.
    from_shape : bool
        Whether the content depends on the shape of an activation.
    batch_first : bool
        Whether the samples of a batch, if it holds one, lie one after the other.
    """

    elem: int
    shape: tuple[int, ...]
    data: npt.NDArray[Any] | None = None
    constant: bool = False
    from_shape: bool = False
    batch_first: bool = True


Values = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Scope:
    """What is known of the values that a graph or subgraph sees.

    Attributes
    ----------
    values : dict
        Its own and those of the graphs around it.
    inside : dict
        (first output of a node, its attribute) -> what the subgraph there sees. Of an If whose condition is
        constant, only the branch that runs is there.
    trips : int or sequence of int, optional
        Of the body of a loop: how often it runs.
    """

    values: Values
    inside: dict[tuple[str, str], Scope] = field(default_factory=dict)
    trips: int | Sequence[int] | None = None


def control_kind(node: Any) -> str:
    """Return which of If and Loop a node is, or nothing."""
    return str(node.op_type) if node.op_type in ("If", "Loop") and node.domain in ("", "ai.onnx") else ""


def graphs_of(node: Any) -> dict[str, Any]:
    """Return the subgraphs of a node, by attribute."""
    return {a.name: a.g for a in node.attribute if a.type == a.GRAPH}


def nodes_of(graph: Any) -> Iterator[Any]:
    """Yield every node of a graph and of the subgraphs in it."""
    for node in graph.node:
        yield node
        for inner in graphs_of(node).values():
            yield from nodes_of(inner)


def first_output(node: Any) -> str:
    """Return the first output that is not left out."""
    return next(str(name) for name in node.output if name)


def node_name(node: Any) -> str:
    """Return how messages and ops call a node: its name, or that of its first output."""
    return str(node.name or next((name for name in node.output if name), node.op_type))


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as people write it."""
    return "x".join(map(str, shape)) or "a scalar"
