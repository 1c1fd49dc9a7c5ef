"""ONNX models (.onnx), by shape inference: what each node computes, reads and writes.

One op for every node that runs. Weights are parameters, and so is whatever is computed from weights and
shapes alone, as every runtime folds that before the first run::

    ConstantOfShape ──► w ──Reshape──► w' ─┐             parameter w ─┐
    data ──────────────────────────────Conv──►    =>     input data ─conv──►

* Costs come from `scenarios.importers.op_costs`; the shape operands of Reshape, Slice, ... are no inputs.
* The batch is the first axis of the model's inputs; any batch size can be asked for, and a batch baked
  into constants is put right, or the model refused (`scenarios.importers.onnx_batch`).
* Views (reshape, squeeze, dropout at inference, ...) are ops of no cost with the attribute ``view_of``.
* Outputs that nobody reads (masks of dropout, ...) are left out.
* Control flow (If, Loop, Scan) is refused, by name.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Literal

from scenarios.importers import dtypes
from scenarios.importers.files import StrPath, read_bytes
from scenarios.importers.onnx_batch import Rebatch, batches, check_scaled, inputs_at
from scenarios.importers.onnx_shapes import infer
from scenarios.importers.onnx_values import Value, Values, node_name
from scenarios.importers.op_costs import COSTS, VIEWS, Cost, OpFacts, TensorFacts, cost_of
from sim.errors import GraphError, InputError, MissingExtraError
from sim.graph import Graph
from sim.graph_builder import GraphBuilder

__all__ = ["import_onnx", "kind_of", "load", "own_batch", "recognises"]

_KINDS = {
    "MatMul": "matmul",
    "PRelu": "prelu",
    "ArgMax": "argmax",
    "ArgMin": "argmin",
    "IsNaN": "is_nan",
    "Sum": "add_n",
    "Max": "maximum",
    "Min": "minimum",
    "Mean": "mean_n",
    "Swish": "silu",
    "Upsample": "resize",
    "SoftmaxCrossEntropyLoss": "softmax_cross_entropy",
}
"""Operators that are not called what the rule of `kind_of` gives."""

_HOW = """shape axes starts ends steps split sizes scales roi pads constant_value repeats depth values ratio
    training_mode min max start limit delta"""
_OPERANDS = frozenset(_HOW.split())
"""Inputs, by their formal names, that say how and not what: no tensor is read when they are known."""

_BATCH_DEPENDENT = frozenset({"shape", "sizes"})
"""Of these the ones that the sizes of the output tell, and that change with the batch."""


def recognises(name: str, head: bytes) -> bool:
    """Whether the file is an ONNX model: by its name, as a protobuf has no mark of its own."""
    return name.removesuffix(".gz").endswith(".onnx")


def kind_of(op_type: str) -> str:
    """Return the kind of op that an ONNX operator is.

    Examples
    --------
    >>> [kind_of(name) for name in ("Conv", "MaxPool", "BatchNormalization", "LRN", "Sum", "ReduceL1")]
    ['conv', 'max_pool', 'batch_norm', 'lrn', 'add_n', 'reduce_l1']
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", op_type).lower()
    return _KINDS.get(op_type, re.sub(r"_normalization$", "_norm", words))


def import_onnx(
    model: Any,
    *,
    batch: int | None = None,
    dtype: str | None = None,
    dims: Mapping[str, int] | None = None,
    unknown: Literal["error", "bytes"] = "error",
) -> Graph:
    """Return the graph of an ONNX model.

    Parameters
    ----------
    model : path or onnx.ModelProto
        Weights may be absent or in other files; only their shapes matter.
    batch : int, optional
        First axis of the inputs; by default as in the file, if it is fixed there.
    dtype : str, optional
        Floating-point type to compute and store in (``"fp16"``, ``"bf16"``) instead of the file's.
    dims : mapping of str to int, optional
        Sizes of the file's other symbolic dimensions (``{"sequence": 128}``).
    unknown : {"error", "bytes"}
        What to do about operators without a cost formula: refuse them, naming all, or count their
        bytes and no flop, with a warning that names them.

    Raises
    ------
    InputError
        No ONNX model, unknown operators, control flow, open dimensions, or a batch that cannot be set.
    MissingExtraError
        The package `onnx` is not installed.

    Examples
    --------
    >>> graph = import_onnx("light_resnet50.onnx", batch=32, dtype="bf16")  # doctest: +SKIP
    """
    if dtype is not None:
        dtypes.check_dtype(dtype)
    named = isinstance(model, (str, os.PathLike))
    name = os.fspath(model) if named else "the model"
    if named:
        model = _parse(model)
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    try:
        _check_kinds(model, unknown)
        own, wanted = inputs_at(model, batch, dims or {})
        if own is None:
            values = infer(model, wanted)
        else:
            rebatch = Rebatch(infer(model, own), *batches(own, wanted))
            values = infer(model, wanted, rebatch)
            check_scaled(values, rebatch)
        return _build(model, values, dtype, model.graph.name or PurePath(name).stem)
    except GraphError as error:
        raise GraphError(f"{name}: {error}") from None
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


load = import_onnx


def own_batch(path: StrPath) -> int | None:
    """Return the batch size that a file fixes, if it does: the first axis of its first input."""
    model = _parse(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    shapes = [given.type.tensor_type.shape.dim for given in model.graph.input if given.name not in weights]
    first = next((shape[0] for shape in shapes if shape), None)
    return int(first.dim_value) if first is not None and first.HasField("dim_value") else None


def _parse(path: StrPath) -> Any:
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("reading ONNX models", "onnx") from None
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        model = onnx.load_model_from_string(read_bytes(path))
    except DecodeError as error:
        raise InputError(f"{path}: not an ONNX model ({error})") from None
    if not model.graph.node or not model.opset_import:
        raise InputError(f"{path}: not an ONNX model (it has no node, or no operator set)")
    return model


def _check_kinds(model: Any, unknown: str) -> None:
    """Refuse, or warn of, operators that have no cost formula."""
    counts = Counter(
        node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
        for node in model.graph.node
        if node.op_type not in ("Constant", "If", "Loop", "Scan") and kind_of(node.op_type) not in COSTS
    )
    if not counts:
        return
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
    if unknown == "error":
        raise InputError(
            f"operators without a cost formula: {listed}; count them by their bytes with unknown='bytes', "
            "or add a formula to scenarios/importers/op_costs.py"
        )
    warnings.warn(f"counted by their bytes, with no flop: {listed}", stacklevel=3)


# -- the graph ------------------------------------------------------------------------------------


def _build(model: Any, values: Values, dtype: str | None, name: str) -> Graph:
    """Make one op of every node that runs."""
    builder = GraphBuilder(name)
    running = [node for node in model.graph.node if not values[_first_output(node)].constant]
    read = {value for node in running for value in node.input} | {o.name for o in model.graph.output}
    refs = _externals(builder, model, running, values, dtype)
    spoken = {*values, *(node.name for node in model.graph.node)}
    for node in running:
        kind, operands = kind_of(node.op_type), _operands(node, values)
        sources = [None if i in operands or not v else v for i, v in enumerate(node.input)]
        outputs = list(node.output)
        while len(outputs) > 1 and outputs[-1] not in read:
            outputs.pop()
        facts = OpFacts(
            kind,
            tuple(None if v is None else _facts(values[v], dtype) for v in sources),
            tuple(_facts(values[o], dtype) if o in values else TensorFacts((0,), 0) for o in outputs),
            _attributes(node)
            | {key: value for key, value in operands.values() if key not in _BATCH_DEPENDENT},
        )
        cost = _cost(facts, node)
        attributes = dict(facts.attributes)
        if kind in VIEWS and sources[0] is not None:
            attributes["view_of"] = 0
        op = builder.op(
            _op_name(node, builder, spoken, len(outputs)),
            kind=kind,
            inputs=[refs[v] for v in sources if v is not None],
            outputs=[output.nbytes for output in facts.outputs],
            flops=cost.flops,
            bytes_read=cost.bytes_read,
            bytes_written=cost.bytes_written,
            dtype=_compute_dtype(node, values, dtype),
            attributes=attributes,
        )
        refs |= {output: f"{op}:{k}" if k else op for k, output in enumerate(outputs)}
    return builder.build()


def _externals(
    builder: GraphBuilder, model: Any, running: list[Any], values: Values, dtype: str | None
) -> dict[str, str]:
    """Declare inputs, and the parameters that are read; return value -> how an op refers to it."""
    refs: dict[str, str] = {}
    for given in model.graph.input:
        if not values[given.name].constant:
            refs[given.name] = builder.input(given.name, _facts(values[given.name], dtype).nbytes)
    origin: dict[str, str] = {}  # a view of a weight is that weight
    for node in model.graph.node:
        if kind_of(node.op_type) in VIEWS and values[_first_output(node)].constant:
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
    for node in running:
        operands = _operands(node, values)
        for i, name in enumerate(node.input):
            if name and values[name].constant and i not in operands:
                weight = origin.get(name, name)
                if weight not in builder:
                    builder.parameter(weight, _facts(values[weight], dtype).nbytes)
                refs[name] = weight
    return refs


def _operands(node: Any, values: Values) -> dict[int, tuple[str, Any]]:
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


def _first_output(node: Any) -> str:
    return next(str(name) for name in node.output if name)


def _facts(value: Value, dtype: str | None) -> TensorFacts:
    return TensorFacts(value.shape, dtypes.nbytes(value.shape, _dtype_of(value, dtype)))


def _dtype_of(value: Value, dtype: str | None) -> str:
    from onnx import TensorProto

    theirs: str = TensorProto.DataType.Name(value.elem)
    if theirs not in dtypes.ONNX:
        raise InputError(f"tensors of {theirs} have no size")
    ours = dtypes.ONNX[theirs]
    return dtype if dtype is not None and ours in dtypes.FLOATING else ours


def _compute_dtype(node: Any, values: Values, dtype: str | None) -> str:
    """Return the type a node computes in: that of its result, or of what it compares."""
    result = _dtype_of(values[_first_output(node)], dtype)
    if result == "bool" and node.input and node.input[0]:
        return _dtype_of(values[node.input[0]], dtype)
    return result


def _attributes(node: Any) -> dict[str, Any]:
    """Return the attributes that are numbers or words."""
    from onnx import AttributeProto, helper

    skipped = {AttributeProto.TENSOR, AttributeProto.TENSORS, AttributeProto.SPARSE_TENSOR}
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


def _cost(facts: OpFacts, node: Any) -> Cost:
    if facts.kind not in COSTS:
        return Cost(0, facts.read, facts.written)
    try:
        return cost_of(facts)
    except GraphError as error:
        raise GraphError(f"node {node_name(node)!r} ({node.op_type}): {error}") from None


def _op_name(node: Any, builder: GraphBuilder, spoken: set[str], n_outputs: int) -> str:
    """Return a name for the op: the node's, unless something else has it or it would be ambiguous."""
    candidates = itertools.chain(
        [node_name(node), _first_output(node)],
        (f"{node_name(node)}#{i}" for i in itertools.count(2)),
    )
    return next(
        name
        for name in candidates
        if name not in builder and not any(f"{name}:{k}" in spoken for k in range(1, n_outputs))
    )
