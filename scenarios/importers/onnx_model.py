"""ONNX models (.onnx), by shape inference: what each node computes, reads and writes.

There is one op for every node that runs. Weights are parameters, and so is anything computed from weights
and shapes alone, which every runtime folds before the first run::

    ConstantOfShape ──► w ──Reshape──► w' ─┐             parameter w ─┐
    data ──────────────────────────────Conv──►    =>     input data ─conv──►

* Costs come from `scenarios.ops.op_costs`; the shape operands of Reshape, Slice, ... are not inputs.
* The batch is the first axis of the model's inputs; any batch size can be requested. A batch baked
  into constants is corrected, or the model refused (`scenarios.importers.onnx_shapes`).
* Views (reshape, squeeze, dropout at inference, ...) are ops of no cost with the attribute ``view_of``.
* Outputs that nothing reads (masks of dropout, ...) are omitted.
* If and Loop become ops of `scenarios.ops.inlining`, and their subgraphs functions; ``outcome`` gives the
  condition of an If and ``trips`` the iterations of a Loop, unless the model has them as constants
  (`scenarios.importers.onnx_nodes`). Scan is refused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

import yaml

from scenarios.importers import onnx_nodes as nodes
from scenarios.importers.onnx_nodes import Extras, Scope
from scenarios.importers.onnx_shapes import Rebatch, check_scaled, infer, inputs_at, inputs_of
from scenarios.ops import attributes as dtypes
from scenarios.ops.inlining import Function, add_ops
from scenarios.ops.op_costs import COSTS, UNKNOWN_BYTES, op_arguments, without_formula
from sim.base.errors import InputError, extra, in_file
from sim.base.files import StrPath, read_bytes
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph, output_name


def recognises(name: str, head: bytes) -> bool:
    """Whether the file is an ONNX model, by its name: a protobuf has no signature."""
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
        First axis of the inputs; default: as in the file, if it is fixed there.
    dtype : str, optional
        Type to compute and store in (``"fp16"``, ``"bf16"``, ``"int8"``) instead of the file's floating-point
        types; ``"tf32"``: products compute in it, and everything is stored in fp32.
    dims : mapping of str to int, or str, optional
        Sizes of the file's other open dimensions: ``{"sequence": 128}``, or ``"sequence=128"`` with commas
        between several; ``input[1]`` is one without a name, the second axis of `input`.
    unknown : {"error", "bytes"}
        What to do about operators without a cost formula: refuse them, naming all, or count their
        bytes and no flop, with a warning that names them.
    attributes : mapping, or str, optional
        Added to ops, also for control flow: ``{"l": {"trips": 8}, "l/body/if": {"outcome": True}}``.
        Ops of subgraphs are named after their node, behind ``l/body/``, ``if/then/`` or ``if/else/``.
        As text it is YAML: ``"{l: {trips: 8}}"``.

    Raises
    ------
    InputError
        It is not an ONNX model, operators are unknown, an outcome or trip count is missing, dimensions are
        open, or a batch cannot be set.
    UnknownNameError
        `attributes` or `dims` name something that the model does not have.
    MissingExtraError
        The package `onnx` is not installed.

    Examples
    --------
    >>> graph = import_onnx("light_resnet50.onnx", batch=32, dtype="bf16")  # doctest: +SKIP
    """
    stored = dtypes.stored_in(dtype)
    named = isinstance(model, (str, os.PathLike))
    name = os.fspath(model) if named else "the model"
    if named:
        model = _parse(model)
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    with in_file(name):
        _check_kinds(model, unknown)
        extras = _read_attributes(attributes)
        own_inputs, inputs = inputs_at(model, batch, _sizes(dims))
        if own_inputs is None:
            scope = infer(model, inputs, extras=extras)
        else:
            base = infer(model, own_inputs, extras=extras)
            rebatch = Rebatch.between(base, own_inputs, inputs)
            scope = infer(model, inputs, rebatch, extras)
            check_scaled(scope, rebatch)
        graph = build_graph(model.graph, scope, stored, extras, model.graph.name or PurePath(name).stem)
    return dtypes.computed_in(dtype, graph)


load = import_onnx


def own_batch(path: StrPath) -> int | None:
    """Return the batch size that a file fixes, if any: the first axis of its first input."""
    shapes = [tensor.type.tensor_type.shape.dim for tensor in inputs_of(_parse(path))]
    first = next((shape[0] for shape in shapes if shape), None)
    return int(first.dim_value) if first is not None and first.dim_value > 0 else None


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
    """Whether all text in a message is valid: protobuf returns text that is not UTF-8 as bytes."""
    for described, value in message.ListFields():
        several = value if hasattr(value, "append") else [value]
        if described.type == described.TYPE_STRING and not all(isinstance(text, str) for text in several):
            return False
        if described.type == described.TYPE_MESSAGE and not all(map(_is_text, several)):
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


def _read_attributes(
    attributes: Mapping[str, Mapping[str, Any]] | str | None,
) -> Mapping[str, Mapping[str, Any]]:
    """Return the attributes of ops, from a mapping or from text."""
    try:
        parsed: Any = yaml.safe_load(attributes) if isinstance(attributes, str) else attributes
    except yaml.YAMLError:
        parsed = attributes
    if parsed is None:
        return {}
    if isinstance(parsed, Mapping) and all(isinstance(more, Mapping) for more in parsed.values()):
        return parsed
    raise InputError("attributes: should be {OP: {KEY: VALUE}}, as in {loop: {trips: 8}}")


def _check_kinds(model: Any, unknown: str) -> None:
    """Raise, or warn, if operators have no cost formula."""
    counts = Counter(
        node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
        for node in nodes.nodes_of(model.graph)
        if node.op_type not in ("Constant", "If", "Loop", "Scan", "SequenceMap")
        and nodes.kind_of(node.op_type, node.domain) not in COSTS
    )
    without_formula(counts, unknown, UNKNOWN_BYTES)


# ----------------------------------------------------------------------------------------------------------
# The ops of an ONNX model with inferred values: one for every node that runs, and functions for subgraphs.
#
# A subgraph may read values of the graphs around it; a function has inputs for all that it reads::
#
#     Loop "l" (x) { y = MatMul(v, w) }          w: a weight, or computed outside of the loop
#
#     l: while(body="l/body")  inputs [x, w]     l/body(v, w): ops MatMul(v, w), results [MatMul, w]
#
# So the values that a body reads from outside are collected while its ops are written, and passed by
# the op that stands for it.

Record = dict[str, Any]


def build_graph(graph: Any, scope: Scope, dtype: str | None, extras: Extras, name: str) -> Graph:
    """Return the graph of an ONNX model.

    Parameters
    ----------
    graph : onnx.GraphProto
    scope : Scope
        Its values, at the batch size wanted.
    dtype : str, optional
        Floating-point type in place of the file's.
    extras : mapping
        Name of an op -> attributes to add to it, including control flow.
    name : str
        Name of the result.

    Raises
    ------
    GraphError
        A cost cannot be determined.
    UnknownNameError
        `extras` names an op that does not exist.
    """
    builder = GraphBuilder(name)
    for tensor in graph.input:
        if not scope.values[tensor.name].constant:
            builder.input(tensor.name, nodes.tensor_facts(scope.values[tensor.name], dtype).nbytes)
    state = _State(builder, {}, dtype, extras, frozenset(node.name for node in nodes.nodes_of(graph)))
    refs = {tensor.name: tensor.name for tensor in graph.input if tensor.name in builder}
    ops = _Ops(graph, scope, state, "", refs, None)
    ops.declare()
    ops.write()
    add_ops(builder, ops.records, state.functions)
    plain = {name: more for name, more in extras.items() if name not in state.steered}
    return dtypes.add_attributes(builder.build(), plain)


@dataclass
class _State:
    """State shared by the graphs of one model; `steered` are the Loops and Ifs that `extras` may name."""

    builder: GraphBuilder
    functions: dict[str, Function]
    dtype: str | None
    extras: Extras
    node_names: frozenset[str]
    steered: set[str] = field(default_factory=set)
    weights: dict[tuple[str, str], str] = field(default_factory=dict)


class _Ops:
    """The ops of the model's graph, or of a subgraph.

    Parameters
    ----------
    prefix : str
        Prefix of the names of its ops.
    refs : dict
        Value -> how an op refers to it; initially the inputs.
    parent : _Ops, optional
        The graph around it.
    """

    def __init__(
        self, graph: Any, scope: Scope, state: _State, prefix: str, refs: dict[str, str], parent: _Ops | None
    ) -> None:
        self.graph, self.scope, self.values = graph, scope, scope.values
        self.state, self.prefix, self.refs, self.parent = state, prefix, refs, parent
        self.root: _Ops = self if parent is None else parent.root
        self.records: list[Record] = []
        self.outside: dict[str, tuple[str, str]] = {}  # input of the function -> its argument
        self.taken = set(refs.values())
        if parent is not None:  # names for its weights
            own_values = self.values.keys() - parent.values.keys()
            self.taken |= {value for value in own_values if self.values[value].constant}
        # Other nodes are not read.
        written = [node for node in graph.node if nodes.first_output(node) in self.values]
        self.running = [node for node in written if not self.values[nodes.first_output(node)].constant]
        inner = [g for node in self.running for n in _with_inner(node) for g in nodes.graphs_of(n).values()]
        self.read_here = {value for node in self.running for n in _with_inner(node) for value in n.input}
        self.read_here |= {output.name for g in (graph, *inner) for output in g.output}
        self.spoken = {*self.values, *(node.name for node in graph.node)}
        self.origin: dict[str, str] = {}  # a view of a weight is that weight
        for node in written:
            if nodes.views_weight(node) and self.values[nodes.first_output(node)].constant:
                self.origin[node.output[0]] = self.origin.get(node.input[0], node.input[0])

    # -- what is read ----------------------------------------------------------------------------

    def declare(self) -> None:
        """Declare the weights that nodes of the model's own graph read, before any op gets a name."""
        for node in self.running:
            operands = nodes.operands_of(node, self.values)
            first = {"": 0, "If": 1, "Loop": 2}[nodes.control_kind(node)]  # after the input that steers it
            for i, value in enumerate(node.input):
                if i >= first and value and self.values[value].constant and i not in operands:
                    self.read(value)

    def read(self, value: str) -> str:
        """Return how an op refers to a value."""
        if value not in self.refs:
            if self.values[value].constant:
                self.refs[value] = self.hand("weight", self._weight(value))
            else:
                self.refs[value] = self._outside_name("value", value)
        return self.refs[value]

    def hand(self, kind: str, name: str) -> str:
        """Return how an op refers to a value that a function needs from outside."""
        if kind == "value":
            return self.read(name)
        return name if self.parent is None else self._outside_name(kind, name)

    def _outside_name(self, kind: str, name: str) -> str:
        self.outside[f"{kind}:{name}"] = (kind, name)
        return f"{kind}:{name}"

    def _weight(self, value: str) -> str:
        """Return the parameter behind a constant, declared when it is first read."""
        owner = self
        while True:
            while owner.parent is not None and value in owner.parent.values:
                owner = owner.parent
            if value not in owner.origin:
                break
            value = owner.origin[value]
        names, builder = self.state.weights, self.state.builder
        key = (owner.prefix, value)
        if key not in names:
            name = _unused_name(owner.prefix + value, builder, self.root.taken)
            self.root.taken.add(name)
            names[key] = builder.parameter(
                name, nodes.tensor_facts(self.values[value], self.state.dtype).nbytes
            )
        return names[key]

    # -- what is written -------------------------------------------------------------------------

    def write(self) -> None:
        """Write one record for every node that runs."""
        for node in self.graph.node:
            if nodes.control_kind(node):
                self.state.steered.add(self.prefix + nodes.node_name(node))
        for node in self.running:
            {"If": self._if, "Loop": self._loop, "": self._op}[nodes.control_kind(node)](node)

    def _add(self, name: str, kind: str, inputs: Sequence[str], **facts: Any) -> str:
        self.taken.add(name)
        self.records.append({"name": name, "kind": kind, "inputs": inputs, **facts})
        return name

    def _name(self, node: Any, n_outputs: int) -> str:
        name = nodes.op_name(node, self.taken, self.spoken, n_outputs)
        self.taken.add(name)
        return name

    def _op(self, node: Any) -> None:
        outputs = list(node.output)
        while len(outputs) > 1 and outputs[-1] not in self.read_here:
            outputs.pop()
        facts, sources = nodes.op_facts(node, outputs, self.values, self.state.dtype)
        where = f"node {nodes.node_name(node)!r} ({node.op_type})"
        inputs = [self.read(value) for value in sources]
        arguments = op_arguments(facts, where, facts.attributes, has_formula=facts.kind in COSTS)
        dtype = nodes.compute_dtype(node, self.values, self.state.dtype)
        name = self._add(self._name(node, len(outputs)), inputs=inputs, **arguments, dtype=dtype)
        self._refer(outputs, name)

    def _refer(self, outputs: Sequence[str], name: str, first: int = 0) -> None:
        for k, output in enumerate(outputs, start=first):
            if output:
                self.refs[output] = output_name(name, k)

    # -- nodes with subgraphs --------------------------------------------------------------------

    def _write_inner(self, node: Any, attribute: str, path: str, refs: dict[str, str]) -> _Ops:
        scope = self.scope.inner[nodes.first_output(node), attribute]
        inner = _Ops(nodes.graphs_of(node)[attribute], scope, self.state, f"{self.prefix}{path}/", refs, self)
        inner.write()
        return inner

    def _function(self, ops: _Ops, inputs: Sequence[str], results: Sequence[str]) -> str:
        name = ops.prefix[:-1]
        self.state.functions[name] = Function(name, tuple(inputs), tuple(ops.records), tuple(results))
        return name

    def _if(self, node: Any) -> None:
        name = self._name(node, len(node.output))
        keys = [key for key in nodes.BRANCHES if (nodes.first_output(node), key) in self.scope.inner]
        decided = len(keys) == 1
        paths = {key: name if decided else f"{name}/{nodes.BRANCHES[key]}" for key in keys}
        sides = {key: self._write_inner(node, key, path, {}) for key, path in paths.items()}
        returned = {key: ops.graph.output[: len(node.output)] for key, ops in sides.items()}
        results = {key: [ops.read(output.name) for output in returned[key]] for key, ops in sides.items()}
        outside = {marker: source for ops in sides.values() for marker, source in ops.outside.items()}
        inputs = [self.hand(*source) for source in outside.values()]
        bodies = {key: self._function(ops, list(outside), results[key]) for key, ops in sides.items()}
        if decided:
            self._add(name, "call", inputs, attributes={"body": bodies[keys[0]]})
        else:
            named = {nodes.BRANCHES[key]: body for key, body in bodies.items()}
            self._add(name, "if", [self._predicate(node, name), *inputs], attributes=named)
        self._refer(node.output, name)

    def _predicate(self, node: Any, name: str) -> str:
        """Return the op that decides: that of the condition if it has an outcome, or a new one."""
        extras, condition = self.state.extras, self.read(node.input[0])
        path = self.prefix + nodes.node_name(node)
        if "outcome" in extras.get(path, {}):
            outcome = {"outcome": extras[path]["outcome"]}
            return self._add(f"{name}/predicate", "identity", [condition], duration_ns=0, attributes=outcome)
        if "outcome" in extras.get(self.prefix + condition, {}):
            return condition
        raise InputError(
            f"node {path!r} (If) has a condition that is computed in the run; tell it with attributes: "
            f"{{{path}: {{outcome: true}}}}; its outcome may also be a list with one for each time, or "
            "{probability: 0.5}"
        )

    def _loop(self, node: Any) -> None:
        body, scope = nodes.graphs_of(node)["body"], self.scope.inner[nodes.first_output(node), "body"]
        formal = [_unused_name(argument.name, self.state.node_names) for argument in body.input]
        carried, named = len(formal) - 2, [argument.name for argument in body.input]
        is_computed = not scope.values[body.output[0].name].constant  # the condition is computed in the body
        refs = dict(zip(named, formal, strict=True))
        if not is_computed:
            del refs[named[1]]
        name = self._name(node, len(node.output) + 2)
        start = self._add(f"{name}/start", "const", [], outputs=8, duration_ns=0)
        ops = self._write_inner(node, "body", f"{name}/body", refs)
        returned = body.output[0 if is_computed else 1 : len(node.output) + 1]
        ends = [ops.read(output.name) for output in returned]
        count = ops._add(_unused_name("count", ops.taken), "identity", [formal[0]], outputs=8, duration_ns=0)
        rows = [_unused_name(f"rows{k}", self.state.node_names) for k in range(len(node.output) - carried)]
        initial = [self.read(value) for value in node.input[2:]]

        condition = [self.read(node.input[1]) if node.input[1] else start] if is_computed else []
        variables = [*formal[1:2][: len(condition)], formal[0], *formal[2:], *rows]
        first = [*condition, start, *initial, *[start] * len(rows)]
        following = [*ends[: len(condition)], count, *ends[len(condition) :]]
        inputs = [*first, *(self.hand(*source) for source in ops.outside.values())]
        extras = self.state.extras.get(self.prefix + nodes.node_name(node), {})
        attributes = {
            "body": self._function(ops, [*variables, *ops.outside], [*following, *ops.outside]),
            "trips": scope.trips,
            "parallel_iterations": extras.get("parallel_iterations", 1),
        }
        self._add(name, "while", inputs, attributes=attributes)
        offset = len(condition) + 1
        self._refer(node.output[:carried], name, offset)
        for k, output in enumerate(node.output[carried:], start=carried):
            if output in self.read_here:
                stack = _unused_name(f"{name}/stack{k - carried}", self.taken)
                nbytes = nodes.tensor_facts(self.values[output], self.state.dtype).nbytes
                moved = dict.fromkeys(("outputs", "bytes_read", "bytes_written"), nbytes)
                rows = [f"{name}:{offset + k}"]
                self.refs[output] = self._add(stack, "concat", rows, **moved, attributes={"axis": 0})


def _unused_name(name: str, *collections: Any) -> str:
    """Return a name that none of some collections has."""
    while any(name in names for names in collections):
        name += "'"
    return name


def _with_inner(node: Any) -> Iterator[Any]:
    yield node
    for graph in nodes.graphs_of(node).values():
        yield from nodes.nodes_of(graph)
