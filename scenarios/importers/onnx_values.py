"""What is known of the values of an ONNX model before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

__all__ = ["Value", "Values", "node_name", "shape_text"]


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


def node_name(node: Any) -> str:
    """Return how messages and ops call a node: its name, or that of its first output."""
    return str(node.name or next((name for name in node.output if name), node.op_type))


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as people write it."""
    return "x".join(map(str, shape)) or "a scalar"
