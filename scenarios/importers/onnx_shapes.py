"""Shapes of every value of an ONNX model, at any batch size.

The model is run in the abstract, node by node in the order of the file. Of each value this knows type
and shape (ONNX's own inference, one node at a time) and, for small ones, the content, so that a target
shape that the model computes (``Shape -> Gather -> Concat -> Reshape``) is just numbers here::

    input (1, 3, 224, 224) ──Conv──► (1, 64, 112, 112) ──Shape──► [1, 64, 112, 112] (content known)

A model is often exported with its batch baked in: a Reshape to the constant (1, 1024). At another batch
size the constant is wrong. The batch is the outermost axis, so n samples are n copies one after the
other, and the reshaped tensor is n copies of what one sample gives: the right target is the old result
with its first axis n times as long. `check_scaled` then looks at every value: it must have grown along
exactly one axis, or not at all; otherwise the model mixes samples in a way that no rule here covers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.errors import InputError

__all__ = ["Value", "Values", "check_scaled", "infer", "node_name"]

_SMALL = 64
"""Elements up to which the content of a value is followed: shapes, axes, sizes, not weights."""

_SHAPE_ARITHMETIC = """Abs Add And Cast Ceil Concat ConstantOfShape Div Equal Expand Floor Gather Greater
    GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Not Or Range ReduceMax ReduceMin ReduceProd
    ReduceSum Reshape Slice Split Sqrt Squeeze Sub Transpose Unsqueeze Where Constant"""
_FOLLOWED = frozenset(_SHAPE_ARITHMETIC.split())
"""Operators with which models compute shapes: evaluated when all they read is known."""

_RESHAPING = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})

_SUBGRAPHS = frozenset({"If", "Loop", "Scan", "SequenceMap"})


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
    """

    elem: int
    shape: tuple[int, ...]
    data: npt.NDArray[Any] | None = None
    constant: bool = False
    from_shape: bool = False


Values = dict[str, Value]


def node_name(node: Any) -> str:
    """Return how messages and ops call a node: its name, or that of its first output."""
    return str(node.name or next((name for name in node.output if name), node.op_type))


def infer(model: Any, inputs: Mapping[str, Value], base: Values | None, factor: Fraction) -> Values:
    """Return every value of `model`.

    Parameters
    ----------
    model : onnx.ModelProto
    inputs : mapping
        The model's inputs, at the batch size wanted.
    base : dict, optional
        The values at the model's own batch size, when the batch wanted is another one.
    factor : Fraction
        Batch wanted / own batch.

    Raises
    ------
    InputError
        A node with subgraphs, a shape that cannot be known before the run, or a batch that is baked into
        the model in a way that cannot be undone; the node is named.
    """
    versions = {opset.domain: opset.version for opset in model.opset_import}
    declared = {} if base is not None else _declared(model)
    values: Values = {"": Value(0, (0,)), **inputs}
    for tensor in model.graph.initializer:
        values[tensor.name] = _initializer(tensor)
    for node in model.graph.node:
        if node.op_type in _SUBGRAPHS:
            raise InputError(
                f"node {node_name(node)!r} is control flow ({node.op_type}), which a static graph cannot hold"
            )
        _check_known(f"node {node_name(node)!r}", node.input, values, model)
        values.update(_outputs(node, values, base, factor, versions, declared))
    _check_known("the caller", [output.name for output in model.graph.output], values, model)
    del values[""]
    return values


def _check_known(reader: str, names: Iterable[str], values: Values, model: Any) -> None:
    """Check that what is read has been written, with a shape."""
    for name in names:
        if name not in values:
            writer = next((node for node in model.graph.node if name in node.output), None)
            if writer is None:
                raise InputError(f"{reader} reads {name!r}, which no node writes")
            raise InputError(
                f"{reader} reads {name!r}, which node {node_name(writer)!r} ({writer.op_type}) writes later "
                "or in a shape that is not known before the run"
            )


def check_scaled(base: Values, values: Values, factor: Fraction) -> None:
    """Check that every value of `values` is that of `base`, or that with one axis `factor` times as long.

    Raises
    ------
    InputError
        Some value is neither; it is named.
    """
    for name, value in values.items():
        before = base[name].shape
        grown = [axis for axis, (a, b) in enumerate(zip(before, value.shape, strict=False)) if a != b]
        straight = len(before) == len(value.shape) and all(
            value.shape[i] == before[i] * factor for i in grown
        )
        if len(grown) > 1 or not straight:
            raise InputError(
                f"the batch cannot be changed: {name!r} is {_text(before)} at the model's own batch and "
                f"{_text(value.shape)} at {factor} times that: not so many samples one after the other"
            )


# -- one node -------------------------------------------------------------------------------------


def _outputs(
    node: Any,
    values: Values,
    base: Values | None,
    factor: Fraction,
    versions: dict[str, int],
    declared: Values,
) -> Values:
    """Return the values that `node` writes."""
    given = {name: values[name] for name in node.input if name}
    if node.op_type == "Shape" and not node.domain:
        return {node.output[0]: _shape_of(node, values[node.input[0]])}
    if node.op_type == "Reshape" and base is not None:
        given |= _retarget(node, given, base, factor)
    inferred = _infer_node(node, given, versions)
    constant = all(value.constant for value in given.values()) and not node.op_type.startswith("Random")
    from_shape = any(value.from_shape for value in given.values())
    written: Values = {}
    for name in filter(None, node.output):
        value = inferred.get(name) or declared.get(name)
        if value is not None:  # otherwise whoever reads it complains
            written[name] = Value(value.elem, value.shape, None, constant, from_shape)
    if node.op_type == "Reshape" and node.output[0] in written:
        _check_elements(node, given[node.input[0]], written[node.output[0]])
    return written | _evaluate(node, given, written, versions)


def _infer_node(node: Any, given: Values, versions: dict[str, int]) -> Values:
    """Ask ONNX for the types of what `node` writes; what it cannot tell is left out."""
    import onnx
    from onnx import helper, numpy_helper, shape_inference

    try:
        schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return {}
    types = {name: helper.make_tensor_type_proto(value.elem, value.shape) for name, value in given.items()}
    known = {
        name: numpy_helper.from_array(value.data, name)
        for name, value in given.items()
        if value.data is not None
    }
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    try:
        found = shape_inference.infer_node_outputs(schema, node, types, known, opset_imports=opsets)
    except (shape_inference.InferenceError, ValueError) as error:
        reason = " ".join(str(error).split()).rpartition(") ")[2]
        raise InputError(f"node {node_name(node)!r} ({node.op_type}): {reason or error}") from None
    return {name: value for name, kind in found.items() if (value := _typed(kind)) is not None}


def _typed(kind: Any) -> Value | None:
    """Return what a ``TypeProto`` says, or None when it leaves a dimension open."""
    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    if not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return Value(tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim))


def _declared(model: Any) -> Values:
    """Return the shapes that the file states: for operators that ONNX knows nothing about."""
    stated = {info.name: _typed(info.type) for info in [*model.graph.value_info, *model.graph.output]}
    return {name: value for name, value in stated.items() if value is not None}


def _initializer(tensor: Any) -> Value:
    from onnx import numpy_helper

    shape = tuple(tensor.dims)
    inside = tensor.data_location != tensor.EXTERNAL  # weights in other files are never needed
    data = numpy_helper.to_array(tensor) if inside and math.prod(shape) <= _SMALL else None
    return Value(tensor.data_type, shape, data, constant=True)


def _shape_of(node: Any, value: Value) -> Value:
    from onnx import TensorProto

    ends = {attribute.name: attribute.i for attribute in node.attribute}
    shape = value.shape[ends.get("start", 0) : ends.get("end")]
    data = np.array(shape, dtype=np.int64)
    return Value(TensorProto.INT64, data.shape, data, constant=True, from_shape=not value.constant)


def _evaluate(node: Any, given: Values, written: Values, versions: dict[str, int]) -> Values:
    """Return `written` with its content, where all that is read is known and small."""
    from onnx.reference import ReferenceEvaluator

    small = all(math.prod(value.shape) <= _SMALL for value in written.values())
    known = all(value.data is not None for value in given.values())
    if not (small and known and node.op_type in _FOLLOWED):
        return {}
    if node.op_type in _RESHAPING:
        (name, value), source = next(iter(written.items())), given[node.input[0]].data
        assert source is not None
        data = source.reshape(value.shape)
        return {name: Value(value.elem, value.shape, data, value.constant, value.from_shape)}
    contents = {name: value.data for name, value in given.items()}
    try:
        results = ReferenceEvaluator(node, opsets=versions).run(None, contents)
    except (
        TypeError,
        NotImplementedError,
    ):  # what ONNX's own evaluator cannot do (old versions) stays unknown
        return {}
    return {
        name: Value(value.elem, value.shape, np.asarray(data), value.constant, value.from_shape)
        for (name, value), data in zip(written.items(), results, strict=False)
    }


# -- a batch baked in -----------------------------------------------------------------------------


def _retarget(node: Any, given: Values, base: Values, factor: Fraction) -> Values:
    """Return the target of a Reshape to constant numbers, for a batch `factor` times the model's own."""
    source, target = given[node.input[0]], given[node.input[1]]
    before, after = base[node.input[0]].shape, base[node.output[0]].shape
    if target.data is None or target.from_shape or source.shape == before:
        return {}
    if not after or source.shape[1:] != before[1:] or (after[0] * factor).denominator != 1:
        return {}  # not the outermost axis: keep the target, which holds if it says -1 in the right place
    data = np.array([after[0] * factor, *after[1:]], dtype=np.int64)
    return {node.input[1]: Value(target.elem, data.shape, data, constant=True)}


def _check_elements(node: Any, source: Value, result: Value) -> None:
    if math.prod(source.shape) != math.prod(result.shape):
        raise InputError(
            f"node {node_name(node)!r} (Reshape) makes {_text(result.shape)} of {_text(source.shape)}: its "
            "target is for another batch size; import at the batch of the export, or export again"
        )


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a scalar"
