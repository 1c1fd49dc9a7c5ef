"""ONNX models (.onnx), by shape inference: what each node computes, reads and writes.

One op for every node that runs. Weights are parameters, and so is whatever is computed from weights and
shapes alone, as every runtime folds that before the first run::

    ConstantOfShape ──► w ──Reshape──► w' ─┐             parameter w ─┐
    data ──────────────────────────────Conv──►    =>     input data ─conv──►

* Costs come from `scenarios.ops.op_costs`; the shape operands of Reshape, Slice, ... are no inputs.
* The batch is the first axis of the model's inputs; any batch size can be asked for, and a batch baked
  into constants is put right, or the model refused (`scenarios.importers.onnx.onnx_batch`).
* Views (reshape, squeeze, dropout at inference, ...) are ops of no cost with the attribute ``view_of``.
* Outputs that nobody reads (masks of dropout, ...) are left out.
* If and Loop become the ops of `scenarios.ops.inlining`, their subgraphs functions; the condition of an
  If is told by ``outcome`` and how often a Loop runs by ``trips``, unless the model has them as constants
  (`scenarios.importers.onnx.onnx_control`). Scan is refused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Literal

import yaml

from scenarios.importers.files import choice, in_file
from scenarios.importers.onnx.onnx_batch import Rebatch, check_scaled, inputs_at, inputs_of
from scenarios.importers.onnx.onnx_nodes import kind_of, node_name, nodes_of
from scenarios.importers.onnx.onnx_ops import build_graph
from scenarios.importers.onnx.onnx_shapes import infer
from scenarios.ops import attributes as dtypes
from scenarios.ops.op_costs import COSTS, UNKNOWN_BYTES, without_formula
from sim.base.errors import InputError, extra
from sim.base.files import StrPath, read_bytes
from sim.graph.graph import Graph


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
    attributes: Mapping[str, Mapping[str, Any]] | str | None = None,
) -> Graph:
    """Return the graph of an ONNX model.

    Parameters
    ----------
    model : path or onnx.ModelProto
        Weights may be absent or in other files; only their shapes matter.
    batch : int, optional
        First axis of the inputs; by default as in the file, if it is fixed there.
    dtype : str, optional
        Type to compute and store in (``"fp16"``, ``"bf16"``, ``"int8"``) instead of the file's floating-point
        types; ``"tf32"``: products compute in it, and everything is stored in fp32.
    dims : mapping of str to int, or str, optional
        Sizes of the file's other symbolic dimensions: ``{"sequence": 128}``, or ``"sequence=128"`` with
        commas between several.
    unknown : {"error", "bytes"}
        What to do about operators without a cost formula: refuse them, naming all, or count their
        bytes and no flop, with a warning that names them.
    attributes : mapping, or str, optional
        Added to ops, and where control flow goes: ``{"l": {"trips": 8}, "l/body/if": {"outcome": True}}``.
        Ops of subgraphs are called by their node, behind ``l/body/``, ``if/then/`` or ``if/else/``.
        As text it is YAML: ``"{l: {trips: 8}}"``.

    Raises
    ------
    InputError
        No ONNX model, unknown operators, control flow that is not told where it goes, open dimensions, or a
        batch that cannot be set.
    UnknownNameError
        `attributes` or `dims` name something that the model does not have.
    MissingExtraError
        The package `onnx` is not installed.

    Examples
    --------
    >>> graph = import_onnx("light_resnet50.onnx", batch=32, dtype="bf16")  # doctest: +SKIP
    """
    choice("unknown", unknown, ("error", "bytes"))
    stored = dtypes.stored_in(dtype)
    named = isinstance(model, (str, os.PathLike))
    name = os.fspath(model) if named else "the model"
    if named:
        model = _parse(model)
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    with in_file(name):
        _check_outputs(model)
        _check_kinds(model, unknown)
        told = _told(attributes)
        own, wanted = inputs_at(model, batch, _sizes(dims))
        if own is None:
            scope = infer(model, wanted, told=told)
        else:
            base = infer(model, own, told=told)
            rebatch = Rebatch.between(base, own, wanted)
            scope = infer(model, wanted, rebatch, told)
            check_scaled(scope, rebatch)
        graph = build_graph(model.graph, scope, stored, told, model.graph.name or PurePath(name).stem)
    return dtypes.computed_in(dtype, graph)


load = import_onnx


def own_batch(path: StrPath) -> int | None:
    """Return the batch size that a file fixes, if it does: the first axis of its first input."""
    shapes = [given.type.tensor_type.shape.dim for given in inputs_of(_parse(path))]
    first = next((shape[0] for shape in shapes if shape), None)
    return int(first.dim_value) if first is not None and first.HasField("dim_value") else None


def _parse(path: StrPath) -> Any:
    with extra("onnx", "reading ONNX models"):
        import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        model = onnx.load_model_from_string(read_bytes(path))
    except DecodeError as error:
        raise InputError(f"{path}: not an ONNX model ({error})") from None
    if not model.graph.node or not model.opset_import:
        raise InputError(f"{path}: not an ONNX model (it has no node, or no operator set)")
    if not _is_text(model):
        raise InputError(f"{path}: damaged, or not an ONNX model: a name in it is no UTF-8 text")
    return model


def _is_text(message: Any) -> bool:
    """Whether all text in a message is text: protobuf hands over what is no UTF-8 as bytes."""
    for field, value in message.ListFields():
        several = value if hasattr(value, "append") else [value]
        if field.type == field.TYPE_STRING and not all(isinstance(text, str) for text in several):
            return False
        if field.type == field.TYPE_MESSAGE and not all(map(_is_text, several)):
            return False
    return True


def _sizes(dims: Mapping[str, int] | str | None) -> dict[str, int]:
    """Return the sizes of symbolic dimensions, from a mapping or from text.

    Examples
    --------
    >>> _sizes("sequence=128, past=7")
    {'sequence': 128, 'past': 7}
    """
    if isinstance(dims, str):
        pairs = [part.partition("=") for part in dims.split(",")]
        if not all(equals and size.strip().isdigit() for _, equals, size in pairs):
            raise InputError(f"dims: should be NAME=SIZE, as in sequence=128, not {dims!r}")
        dims = {name.strip(): int(size) for name, _, size in pairs}
    for name, size in (dims or {}).items():
        if size < 1:
            raise InputError(f"dims: {name} must be at least 1, not {size}")
    return dict(dims or {})


def _told(attributes: Mapping[str, Mapping[str, Any]] | str | None) -> Mapping[str, Mapping[str, Any]]:
    """Return the attributes of ops, from a mapping or from text."""
    told: Any = attributes
    wrong = InputError("attributes: should be {OP: {KEY: VALUE}}, as in {loop: {trips: 8}}")
    if isinstance(attributes, str):
        try:
            told = yaml.safe_load(attributes)
        except yaml.YAMLError:
            raise wrong from None
    if told is None:
        return {}
    if not isinstance(told, Mapping) or not all(isinstance(more, Mapping) for more in told.values()):
        raise wrong
    return told


def _check_outputs(model: Any) -> None:
    """Refuse nodes that write nothing: ONNX's intermediate representation asks for one output at least."""
    for node in nodes_of(model.graph):
        if not any(node.output):
            raise InputError(
                f"node {node_name(node)!r} ({node.op_type}) has no output; the file may be damaged"
            )


def _check_kinds(model: Any, unknown: str) -> None:
    """Refuse, or warn of, operators that have no cost formula."""
    counts = Counter(
        node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
        for node in nodes_of(model.graph)
        if node.op_type not in ("Constant", "If", "Loop", "Scan", "SequenceMap")
        and kind_of(node.op_type) not in COSTS
    )
    without_formula(counts, unknown, UNKNOWN_BYTES)
