"""Single nodes of an ONNX model, in our words: kind, name, attributes, sizes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Container, Iterable
from typing import Any

from scenarios.importers.onnx.onnx_values import Value, Values, first_output, node_name
from scenarios.ops import dtypes
from scenarios.ops.op_costs import OpFacts, TensorFacts
from sim.words.errors import InputError

__all__ = ["compute_dtype", "kind_of", "op_facts", "op_name", "operands_of", "tensor_facts"]

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
