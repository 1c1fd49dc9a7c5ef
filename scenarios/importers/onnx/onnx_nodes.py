"""Single nodes of an ONNX model, in our words: kind, name, attributes, sizes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from scenarios.ops import attributes as dtypes
from scenarios.ops.op_formulas import OpFacts, TensorFacts
from sim.base.errors import InputError

# ----------------------------------------------------------------------------------------------------------
# What is known of the values of an ONNX model before it runs.


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


# ----------------------------------------------------------------------------------------------------------

_KINDS = {
    "MatMul": "matmul", "PRelu": "prelu", "ArgMax": "argmax", "ArgMin": "argmin", "IsNaN": "is_nan",
    "Sum": "add_n", "Max": "maximum", "Min": "minimum", "Mean": "mean_n", "Swish": "silu",
    "Upsample": "resize", "SoftmaxCrossEntropyLoss": "softmax_cross_entropy",
}  # fmt: skip
"""Operators that are not called what the rule of `kind_of` gives."""

_HOW = """shape axes starts ends steps split sizes scales roi pads constant_value repeats depth values ratio
    training_mode min max start limit delta K"""
_OPERANDS = frozenset(_HOW.split())
"""Inputs, by their formal names, that say how and not what: no tensor is read when they are known."""

_BATCH_DEPENDENT = frozenset({"shape", "sizes"})
"""Of these the ones that the sizes of the output tell, and that change with the batch."""


def kind_of(op_type: str) -> str:
    """Return the kind of op that an ONNX operator is.

    Examples
    --------
    >>> [kind_of(name) for name in ("Conv", "MaxPool", "BatchNormalization", "LRN", "Sum", "ReduceL1")]
    ['conv', 'max_pool', 'batch_norm', 'lrn', 'add_n', 'reduce_l1']
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", op_type).lower()
    return _KINDS.get(op_type, re.sub(r"_normalization$", "_norm", words))


def operands_of(node: Any, values: Values) -> dict[int, tuple[str, Any]]:
    """Return position -> (formal name, content) of the inputs that only say how."""
    import onnx

    try:
        schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    except onnx.defs.SchemaError:
        return {}
    found: dict[int, tuple[str, Any]] = {}
    for i, name in enumerate(node.input):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)].name
        if name and formal in _OPERANDS and (data := values[name].data) is not None:
            found[i] = (formal, _plain(data.tolist()))
    return found


def op_facts(
    node: Any, outputs: Iterable[str], values: Values, dtype: str | None
) -> tuple[OpFacts, list[str]]:
    """Return what the cost formulas look at, and the values that are read; `outputs` are those that count."""
    operands = operands_of(node, values)
    sources = [None if i in operands or not value else value for i, value in enumerate(node.input)]
    told = {key: content for key, content in operands.values() if key not in _BATCH_DEPENDENT}
    facts = OpFacts(
        kind_of(node.op_type),
        tuple(None if source is None else tensor_facts(values[source], dtype) for source in sources),
        tuple(tensor_facts(values[o], dtype) if o in values else TensorFacts((0,), 0) for o in outputs),
        _attributes_of(node) | told,
    )
    return facts, [source for source in sources if source is not None]


def tensor_facts(value: Value, dtype: str | None) -> TensorFacts:
    """Return shape and size of a value; `dtype` replaces the floating-point type of the file."""
    return TensorFacts(value.shape, dtypes.nbytes(value.shape, _dtype_of(value, dtype)))


def _dtype_of(value: Value, dtype: str | None) -> str:
    from onnx import TensorProto

    theirs: str = TensorProto.DataType.Name(value.elem)
    if theirs not in dtypes.ONNX:
        raise InputError(f"tensors of {theirs} have no size")
    ours = dtypes.ONNX[theirs]
    return dtype if dtype is not None and ours in dtypes.FLOATING else ours


def compute_dtype(node: Any, values: Values, dtype: str | None) -> str:
    """Return the type a node computes in: that of its result, or of what it compares."""
    result = _dtype_of(values[first_output(node)], dtype)
    if result == "bool" and node.input and node.input[0]:
        return _dtype_of(values[node.input[0]], dtype)
    return result


def _attributes_of(node: Any) -> dict[str, Any]:
    """Return the attributes that are numbers or words."""
    from onnx import AttributeProto, helper

    kinds = ("TENSOR", "TENSORS", "SPARSE_TENSOR", "GRAPH", "GRAPHS")
    skipped = {AttributeProto.AttributeType.Value(kind) for kind in kinds}
    return {
        attribute.name: _plain(helper.get_attribute_value(attribute))
        for attribute in node.attribute
        if attribute.type not in skipped
    }


def _plain(value: Any) -> Any:
    """Return `value` as JSON has it: text for bytes, lists, and words for numbers that are not finite."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return [_plain(item) for item in value]


def op_name(node: Any, taken: Container[str], spoken: set[str], n_outputs: int) -> str:
    """Return a name for the op of a node: the node's own, unless it is taken or ambiguous.

    Parameters
    ----------
    node : onnx.NodeProto
    taken : container of str
        The names there are already.
    spoken : set of str
        Every name in the model: ``a:1`` must not mean both one of them and the second output of ``a``.
    n_outputs : int
    """
    candidates = itertools.chain(
        [node_name(node), first_output(node)], (f"{node_name(node)}#{i}" for i in itertools.count(2))
    )
    return next(
        name
        for name in candidates
        if name not in taken and not any(f"{name}:{k}" in spoken for k in range(1, n_outputs))
    )
