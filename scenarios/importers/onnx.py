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

import os
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Literal

from scenarios.importers import dtypes
from scenarios.importers.files import StrPath, choice, read_bytes
from scenarios.importers.onnx_batch import Rebatch, batches, check_scaled, inputs_at, sizes_of
from scenarios.importers.onnx_nodes import (
    BATCH_DEPENDENT,
    attributes_of,
    compute_dtype,
    first_output,
    kind_of,
    op_name,
    operands_of,
    tensor_facts,
)
from scenarios.importers.onnx_shapes import infer
from scenarios.importers.onnx_values import Values, node_name
from scenarios.importers.op_costs import COSTS, VIEWS, Cost, OpFacts, TensorFacts, cost_of
from scenarios.importers.op_formulas import measured_shape
from sim.errors import GraphError, InputError, MissingExtraError
from sim.graph import Graph
from sim.graph_builder import GraphBuilder

__all__ = ["import_onnx", "kind_of", "load", "own_batch", "recognises"]


def recognises(name: str, head: bytes) -> bool:
    """Whether the file is an ONNX model: by its name, as a protobuf has no mark of its own."""
    return name.removesuffix(".gz").endswith(".onnx")


def import_onnx(
    model: Any,
    *,
    batch: int | None = None,
    dtype: str | None = None,
    dims: Mapping[str, int] | str | None = None,
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
    dims : mapping of str to int, or str, optional
        Sizes of the file's other symbolic dimensions: ``{"sequence": 128}``, or ``"sequence=128"`` with
        commas between several.
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
    choice("unknown", unknown, ("error", "bytes"))
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
        own, wanted = inputs_at(model, batch, sizes_of(dims))
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
    written = [node for node in model.graph.node if first_output(node) in values]  # the others nobody reads
    running = [node for node in written if not values[first_output(node)].constant]
    read = {value for node in running for value in node.input} | {o.name for o in model.graph.output}
    refs = _externals(builder, model, running, values, dtype)
    spoken = {*values, *(node.name for node in model.graph.node)}
    for node in running:
        kind, operands = kind_of(node.op_type), operands_of(node, values)
        sources = [None if i in operands or not v else v for i, v in enumerate(node.input)]
        outputs = list(node.output)
        while len(outputs) > 1 and outputs[-1] not in read:
            outputs.pop()
        facts = OpFacts(
            kind,
            tuple(None if v is None else tensor_facts(values[v], dtype) for v in sources),
            tuple(tensor_facts(values[o], dtype) if o in values else TensorFacts((0,), 0) for o in outputs),
            attributes_of(node)
            | {key: value for key, value in operands.values() if key not in BATCH_DEPENDENT},
        )
        cost = _cost(facts, node)
        attributes = {**facts.attributes, **measured_shape(facts)}
        if kind in VIEWS and sources[0] is not None:
            attributes["view_of"] = 0
        op = builder.op(
            op_name(node, builder, spoken, len(outputs)),
            kind=kind,
            inputs=[refs[v] for v in sources if v is not None],
            outputs=[output.nbytes for output in facts.outputs],
            flops=cost.flops,
            bytes_read=cost.bytes_read,
            bytes_written=cost.bytes_written,
            dtype=compute_dtype(node, values, dtype),
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
            refs[given.name] = builder.input(given.name, tensor_facts(values[given.name], dtype).nbytes)
    origin: dict[str, str] = {}  # a view of a weight is that weight
    for node in model.graph.node:
        if (
            kind_of(node.op_type) in VIEWS
            and first_output(node) in values
            and values[first_output(node)].constant
        ):
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
    for node in running:
        operands = operands_of(node, values)
        for i, name in enumerate(node.input):
            if name and values[name].constant and i not in operands:
                weight = origin.get(name, name)
                if weight not in builder:
                    builder.parameter(weight, tensor_facts(values[weight], dtype).nbytes)
                refs[name] = weight
    return refs


def _cost(facts: OpFacts, node: Any) -> Cost:
    if facts.kind not in COSTS:
        return Cost(0, facts.read, facts.written)
    try:
        return cost_of(facts)
    except GraphError as error:
        raise GraphError(f"node {node_name(node)!r} ({node.op_type}): {error}") from None
