"""Shapes of every value of an ONNX model, at any batch size.

The model is interpreted abstractly, node by node in the order of the file. For each value this keeps type
and shape (from ONNX's own inference, one node at a time) and, for small ones, the content, so that a target
shape that the model computes (``Shape -> Gather -> Concat -> Reshape``) is just numbers here::

    input (1, 3, 224, 224) ──Conv──► (1, 64, 112, 112) ──Shape──► [1, 64, 112, 112] (content known)

A subgraph sees the values around it, and is inferred once: loop variables keep one shape, and
`scenarios.importers.onnx_nodes` gives the number of iterations. At a batch size other than the model's own,
`scenarios.importers.onnx_shapes` corrects baked-in sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from scenarios.importers import onnx_nodes as nodes
from scenarios.importers.onnx_nodes import Extras, Scope, Value, Values
from sim.base.errors import InputError, UnknownNameError

_SMALL = 64
"""Maximum number of elements of values whose content is tracked: shapes, axes, sizes, not weights."""

_SHAPE_ARITHMETIC = """Abs Add And Cast Ceil Concat ConstantOfShape Div Equal Expand Floor Gather Greater
    GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Not Or Range ReduceMax ReduceMin ReduceProd
    ReduceSum Reshape Slice Split Sqrt Squeeze Sub Transpose Unsqueeze Where Constant"""
_EVALUATED = frozenset(_SHAPE_ARITHMETIC.split())
"""Operators with which models compute shapes: evaluated if all their inputs are known."""

_RESHAPING = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})

_REFUSED = {
    "Scan": "export it as a Loop over an index, which is imported",
    "SequenceMap": "export it as a Loop over the sequence's tensors",
}
"""Operators with subgraphs that are not imported, and what to do instead."""


class _Model(NamedTuple):
    """State shared by all subgraphs."""

    graph: Any
    versions: dict[str, int]
    extras: Extras
    sizes: dict[str, int] | None  # of dimensions with a name; None: shapes that the file states do not hold


def infer(
    model: Any, inputs: Mapping[str, Value], rebatch: Rebatch | None = None, extras: Extras | None = None
) -> Scope:
    """Return every value of `model`.

    Parameters
    ----------
    model : onnx.ModelProto
    inputs : mapping
        The model's inputs, at the batch size wanted.
    rebatch : Rebatch, optional
        Given if that is not the model's own batch size.
    extras : mapping, optional
        Name of a Loop or If -> its ``trips`` or ``outcome``.

    Raises
    ------
    InputError
        There is a Scan, a trip count is missing, a shape cannot be known before the run, or a batch
        is baked into the model in a way that cannot be undone; the node is named.
    """
    versions = {opset.domain: opset.version for opset in model.opset_import}
    named: dict[str, int] = {}
    for info in model.graph.input:
        if info.name in inputs:
            dims = zip(info.type.tensor_type.shape.dim, inputs[info.name].shape, strict=True)
            named |= {dim.dim_param: size for dim, size in dims if dim.dim_param}
    shared = _Model(model.graph, versions, extras or {}, named if rebatch is None else None)
    return _infer_graph(model.graph, {"": Value(0, (0,)), **inputs}, rebatch, shared, "")


def _infer_graph(graph: Any, values: Values, rebatch: Rebatch | None, shared: _Model, path: str) -> Scope:
    """Return the scope of `graph`; `values` are its inputs and the values of the graphs around it."""
    declared = {} if shared.sizes is None else _declared_shapes(graph, shared.sizes)
    scope = Scope(values)
    for tensor in graph.initializer:
        values[tensor.name] = _initializer(tensor)
    for sparse in graph.sparse_initializer:  # runtimes store it in full
        values[sparse.values.name] = Value(sparse.values.data_type, tuple(sparse.dims), constant=True)

    for node in graph.node:
        if node.op_type in _REFUSED and not node.domain:
            raise InputError(
                f"node {path + nodes.node_name(node)!r} is a {node.op_type}, which is not imported; "
                f"{_REFUSED[node.op_type]}"
            )
        _check_known(f"node {path + nodes.node_name(node)!r}", node.input, values, shared)
        if not nodes.control_kind(node):
            values.update(_outputs(node, values, rebatch, shared.versions, declared))
            continue

        def enter(attribute: str, name: str, more: Values, node: Any = node) -> Scope:
            inner = None if rebatch is None else rebatch.for_subgraph((nodes.first_output(node), attribute))
            return _infer_graph(nodes.graphs_of(node)[attribute], {**values, **more}, inner, shared, name)

        written, scopes = nodes.control_values(node, values, path, shared.extras, enter)
        scope.inner.update({(nodes.first_output(node), key): inner for key, inner in scopes.items()})
        values.update(written)
    reader = f"the end of {path[:-1]!r}" if path else "the caller"
    _check_known(reader, [output.name for output in graph.output], values, shared)
    if not path:
        del values[""]
    return scope


def _check_known(reader: str, names: Iterable[str], values: Values, shared: _Model) -> None:
    """Raise if a value is read that has not been written, or has no known shape."""
    for name in names:
        if name not in values:
            writer = next((node for node in nodes.nodes_of(shared.graph) if name in node.output), None)
            if writer is None:
                raise InputError(f"{reader} reads {name!r}, which no node writes")
            where = f"node {nodes.node_name(writer)!r} ({writer.op_type})"
            raise InputError(
                f"{reader} reads {name!r}, which {where} writes later or in a shape not known before the run"
            )


# -- one node -------------------------------------------------------------------------------------


def _outputs(
    node: Any, values: Values, rebatch: Rebatch | None, versions: dict[str, int], declared: Values
) -> Values:
    """Return the values that `node` writes."""
    inputs = {name: values[name] for name in node.input if name}
    if node.op_type in ("Shape", "Size") and not node.domain:
        return {node.output[0]: _shape_of(node, values[node.input[0]])}
    if node.op_type == "Reshape" and rebatch is not None:
        inputs |= retarget(node, inputs, rebatch)
    inferred = _infer_node(node, inputs, versions)
    constant = all(value.constant for value in inputs.values()) and not node.op_type.startswith("Random")
    from_shape = any(value.from_shape for value in inputs.values())
    stored = None
    if constant and nodes.views_weight(node):
        source = inputs[node.input[0]]
        stored = source.elem if source.stored is None else source.stored
    written: Values = {}
    for name in filter(None, node.output):
        value = inferred.get(name) or declared.get(name)
        if value is not None:  # otherwise its readers raise
            first = rebatch is None or batch_first(name, value.shape, inputs, rebatch)
            written[name] = Value(value.elem, value.shape, None, constant, from_shape, first, stored)
    if node.op_type == "Reshape" and node.output[0] in written:
        check_elements(node, inputs[node.input[0]], written[node.output[0]])
    return written | _evaluate(node, inputs, written, versions)


def _infer_node(node: Any, inputs: Values, versions: dict[str, int]) -> Values:
    """Return the types that ONNX infers for the outputs of `node`; outputs without one are omitted."""
    import onnx
    from onnx import checker, helper, numpy_helper, shape_inference

    try:
        schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return {}
    if node.op_type == "DFT" and "axis" in {*schema.attributes} - {a.name for a in node.attribute}:
        node.attribute.append(schema.attributes["axis"].default_value)  # 1 before opset 20, then -2
    types = {name: helper.make_tensor_type_proto(value.elem, value.shape) for name, value in inputs.items()}
    contents = {name: value.data for name, value in inputs.items() if value.data is not None}
    tensors = {name: numpy_helper.from_array(data, name) for name, data in contents.items()}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    try:
        inferred = shape_inference.infer_node_outputs(schema, node, types, tensors, opset_imports=opsets)
    except (shape_inference.InferenceError, checker.ValidationError, ValueError) as error:
        reason = " ".join(str(error).split()).rpartition(") ")[2]
        raise InputError(f"node {nodes.node_name(node)!r} ({node.op_type}): {reason or error}") from None
    return {name: value for name, kind in inferred.items() if (value := _read_type(kind, {})) is not None}


def _read_type(kind: Any, named: Mapping[str, int]) -> Value | None:
    """Return the value described by a ``TypeProto``, or None if a dimension is open and its name unknown."""
    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    dims = tensor.shape.dim
    if not all(dim.HasField("dim_value") or dim.dim_param in named for dim in dims):
        return None
    return Value(tensor.elem_type, tuple(named.get(dim.dim_param, dim.dim_value) for dim in dims))


def _declared_shapes(graph: Any, named: Mapping[str, int]) -> Values:
    """Return the shapes that the file states, for operators unknown to ONNX."""
    stated = {info.name: _read_type(info.type, named) for info in [*graph.value_info, *graph.output]}
    return {name: value for name, value in stated.items() if value is not None}


def _initializer(tensor: Any) -> Value:
    from onnx import numpy_helper

    shape = tuple(tensor.dims)
    in_file = tensor.data_location != tensor.EXTERNAL  # weights in other files are never needed
    data = numpy_helper.to_array(tensor) if in_file and math.prod(shape) <= _SMALL else None
    return Value(tensor.data_type, shape, data, constant=True)


def _shape_of(node: Any, value: Value) -> Value:
    from onnx import TensorProto

    ends = {attribute.name: attribute.i for attribute in node.attribute}
    shape = value.shape[ends.get("start", 0) : ends.get("end")]
    data = np.array(math.prod(shape) if node.op_type == "Size" else shape, dtype=np.int64)
    return Value(TensorProto.INT64, data.shape, data, constant=True, from_shape=not value.constant)


def _evaluate(node: Any, inputs: Values, written: Values, versions: dict[str, int]) -> Values:
    """Return `written` with its content, if all inputs are known and small."""
    from onnx.reference import ReferenceEvaluator

    small = all(math.prod(value.shape) <= _SMALL for value in written.values())
    all_known = all(value.data is not None for value in inputs.values())
    if not (small and all_known and node.op_type in _EVALUATED):
        return {}
    if node.op_type in _RESHAPING:
        (name, value), source = next(iter(written.items())), inputs[node.input[0]].data
        assert source is not None
        return {name: replace(value, data=source.reshape(value.shape))}
    contents = {name: value.data for name, value in inputs.items()}
    try:
        results = ReferenceEvaluator(node, opsets=versions).run(None, contents)
    except (TypeError, NotImplementedError):  # old versions that ONNX's own evaluator lacks: not known
        return {}
    return {
        name: replace(value, data=np.asarray(data))
        for (name, value), data in zip(written.items(), results, strict=False)
    }


# ----------------------------------------------------------------------------------------------------------
# An ONNX model at another batch size than its own.
#
# The batch is the first axis of the inputs, and a model is often exported with it baked in: a Reshape to
# the constant (1, 1024). At another batch size the constant is wrong. While the batch is the outermost
# axis, n samples are n contiguous pieces of memory, and a reshape does not change memory: so the
# right target is the old result with its first axis n times as long::
#
#     own batch 1:    (1, 1024, 1, 1) ──Reshape to (1, 1024)──►  (1, 1024)
#     batch 32:      (32, 1024, 1, 1) ──Reshape to (32, 1024)──► (32, 1024)
#
# `check_scaled` then checks every value: it must have grown along exactly one axis, or not at all. Other
# cases are refused.


class Rebatch(NamedTuple):
    """A model at a batch size other than its own.

    Attributes
    ----------
    base : dict
        Its values at its own batch size.
    old, new : int
        The two batch sizes.
    inner : mapping
        The same for its subgraphs, by the keys of `Scope.inner`.
    """

    base: Values
    old: int
    new: int
    inner: Mapping[tuple[str, str], Scope] = {}

    @classmethod
    def between(cls, base: Scope, old: Values, new: Values) -> Rebatch:
        """Return the change between two sets of inputs that differ only in the batch."""
        changed = next(name for name, value in old.items() if new[name].shape != value.shape)
        return cls(base.values, old[changed].shape[0], new[changed].shape[0], base.inner)

    def for_subgraph(self, subgraph: tuple[str, str]) -> Rebatch:
        """Return the same for a subgraph."""
        scope = self.inner[subgraph]
        return self._replace(base=scope.values, inner=scope.inner)

    @property
    def factor(self) -> Fraction:
        """Ratio of the new batch size to the old one."""
        return Fraction(self.new, self.old)


def inputs_of(model: Any) -> list[Any]:
    """Return the inputs of a model other than weights."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in weights]


def inputs_at(model: Any, batch: int | None, dims: Mapping[str, int]) -> tuple[Values | None, Values]:
    """Return the inputs of `model` at its own batch size and at the one wanted.

    Parameters
    ----------
    model : onnx.ModelProto
    batch : int, optional
    dims : mapping of str to int
        Sizes of the symbolic dimensions; ``input[1]`` is the second axis of `input`.

    Returns
    -------
    old : dict or None
        None unless the file fixes a batch size and another one is wanted.
    new : dict

    Raises
    ------
    InputError
        The batch size is below 1, a dimension has no size, or an input is not a tensor.
    UnknownNameError
        `dims` has a name that the model does not have.
    """
    if batch is not None and batch < 1:
        raise InputError(f"a batch has at least 1 sample, not {batch}")
    shapes: dict[str, list[int | str]] = {}
    elems: dict[str, int] = {}
    symbols: set[str] = set()
    for tensor in inputs_of(model):
        if not tensor.type.HasField("tensor_type") or not tensor.type.tensor_type.HasField("shape"):
            raise InputError(f"input {tensor.name!r} is no tensor of a known rank")
        elems[tensor.name] = tensor.type.tensor_type.elem_type
        shape: list[int | str] = []
        for axis, dim in enumerate(tensor.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(dim.dim_value)
                continue
            axis_name = f"{tensor.name}[{axis}]"
            symbols |= {axis_name, dim.dim_param or axis_name}
            shape.append(dims.get(axis_name, dims.get(dim.dim_param, dim.dim_param)))
        shapes[tensor.name] = shape
    for symbol in dims:
        if symbol not in symbols:
            raise UnknownNameError("dimension", symbol, symbols)
    old = next((shape[0] for shape in shapes.values() if shape), None)
    new_shapes = shapes
    if batch is not None:
        if old is None:
            raise InputError(f"the model has no input, so its batch cannot be set to {batch}")
        if old == 0:
            raise InputError(f"the model's own batch is 0, and cannot be scaled to {batch}")
        named = isinstance(old, str) and old.isidentifier()  # some write "?" for any size
        new_shapes = {
            name: [batch if dim == old and (named or not axis) else dim for axis, dim in enumerate(shape)]
            for name, shape in shapes.items()
        }
    _check_closed(new_shapes)
    scaled = batch is not None and old != batch and not isinstance(old, str)
    return _values(shapes, elems) if scaled else None, _values(new_shapes, elems)


def _check_closed(shapes: Mapping[str, list[int | str]]) -> None:
    """Raise if a dimension is still open."""
    sizes = [(f"{name}[{i}]", dim) for name, shape in shapes.items() for i, dim in enumerate(shape)]
    unset = ", ".join(where + (f" = {dim!r}" if dim else "") for where, dim in sizes if isinstance(dim, str))
    if unset:
        raise InputError(
            f"dimensions without a size: {unset}; give the first axis as batch=, others as dims=, by name or "
            "INPUT[AXIS] (in a scenario onnx: FILE, batch: 8, dims: {NAME: 32}; "
            "sim import FILE --batch 8 --set dims=NAME=32)"
        )


def _values(shapes: Mapping[str, list[Any]], elems: Mapping[str, int]) -> Values:
    return {name: Value(elems[name], tuple(shape)) for name, shape in shapes.items()}


def check_scaled(scope: Scope, rebatch: Rebatch) -> None:
    """Check that every value, also in subgraphs, is unchanged by the batch or grew along one axis only.

    Raises
    ------
    InputError
        A value, which is named, did neither.
    """
    for key, inner in scope.inner.items():
        check_scaled(inner, rebatch.for_subgraph(key))
    for name, value in scope.values.items():
        before, after = rebatch.base[name].shape, value.shape
        grown = [axis for axis, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
        straight = len(before) == len(after) and all(after[i] == before[i] * rebatch.factor for i in grown)
        if len(grown) > 1 or not straight:
            old, new = nodes.shape_text(before), nodes.shape_text(after)
            raise InputError(
                f"the batch cannot be changed: {name!r} is {old} at the model's own batch, {rebatch.old}, "
                f"and {new} at {rebatch.new}: not so many samples more"
            )


def retarget(node: Any, inputs: Values, rebatch: Rebatch) -> Values:
    """Return the target of a Reshape to constant numbers, at the batch size wanted."""
    source, target = inputs[node.input[0]], inputs[node.input[1]]
    before, after = rebatch.base[node.input[0]].shape, rebatch.base[node.output[0]].shape
    unchanged = target.data is None or target.from_shape or source.shape == before or not source.batch_first
    if unchanged or not after:
        return {}  # the target is right already if it has -1 or 0 in the right place
    fits = [math.prod(after[: i + 1]) % rebatch.old == 0 for i in range(len(after))]
    axis = fits.index(True)
    shape = [math.ceil(n * rebatch.factor) if i == axis else n for i, n in enumerate(after)]
    data = np.array(shape, dtype=np.int64)
    return {node.input[1]: Value(target.elem, data.shape, data, constant=True)}


def batch_first(name: str, shape: tuple[int, ...], inputs: Values, rebatch: Rebatch) -> bool:
    """Whether the samples are still contiguous one after the other: only ones precede their axis."""
    if not all(value.batch_first for value in inputs.values()):
        return False
    pairs = zip(rebatch.base[name].shape, shape, strict=False)
    axis = next((i for i, (old, new) in enumerate(pairs) if old != new), 0)
    return math.prod(shape[:axis]) == 1


def check_elements(node: Any, source: Value, result: Value) -> None:
    """Raise if a Reshape changes the number of elements."""
    if math.prod(source.shape) != math.prod(result.shape):
        new, old = nodes.shape_text(result.shape), nodes.shape_text(source.shape)
        raise InputError(
            f"node {nodes.node_name(node)!r} (Reshape) makes {new} of {old}: its target is for another batch "
            "size; import at the batch of the export, or export again with a dynamic one"
        )
