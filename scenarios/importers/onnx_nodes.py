"""Single nodes of an ONNX model in our terms: kind, name, attributes, sizes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from devices.describe.field_types import sized_dtype
from scenarios.ops import attributes as dtypes
from scenarios.ops.op_formulas import OpFacts, TensorFacts
from sim.base.errors import InputError, in_file
from sim.base.units import format_count
from sim.graph.attributes import READERS
from sim.graph.views import VIEWS

# ----------------------------------------------------------------------------------------------------------
# Values of an ONNX model, as far as known before it runs.


@dataclass(frozen=True, slots=True)
class Value:
    """A value, as far as known before the model runs.

    Attributes
    ----------
    elem : int
        Element type, a ``TensorProto.DataType``.
    shape : tuple of int
    data : array, optional
        The content, if it is small and known.
    constant : bool
        Whether it is the same in every run: a weight, or computed from weights and shapes only.
    from_shape : bool
        Whether the content depends on the shape of an activation.
    batch_first : bool
        Whether the samples of a batch, if it holds one, are contiguous one after the other.
    stored : int, optional
        Element type of the quantized weight that this is, dequantized by its readers.
    """

    elem: int
    shape: tuple[int, ...]
    data: npt.NDArray[Any] | None = None
    constant: bool = False
    from_shape: bool = False
    batch_first: bool = True
    stored: int | None = None


Values = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Scope:
    """The values that a graph or subgraph sees.

    Attributes
    ----------
    values : dict
        Its own and those of the graphs around it.
    inner : dict
        (first output of a node, its attribute) -> scope of that subgraph. For an If whose condition is
        constant, only the branch that runs is there.
    trips : int or sequence of int, optional
        For the body of a loop: its number of iterations.
    """

    values: Values
    inner: dict[tuple[str, str], Scope] = field(default_factory=dict)
    trips: int | Sequence[int] | None = None


def control_kind(node: Any) -> str:
    """Return "If" or "Loop" if the node is one, otherwise ""."""
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
    """Return the first output that is not omitted."""
    for name in node.output:
        if name:
            return str(name)
    raise InputError(f"node {node_name(node)!r} ({node.op_type}) has no output; the file may be damaged")


def node_name(node: Any) -> str:
    """Return the name of a node for messages and ops: its own, or that of its first output."""
    return str(node.name or next((name for name in node.output if name), node.op_type))


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape in the usual notation."""
    return "x".join(map(str, shape)) or "a scalar"


# ----------------------------------------------------------------------------------------------------------

_KINDS = {
    "MatMul": "matmul", "PRelu": "prelu", "ArgMax": "argmax", "ArgMin": "argmin", "IsNaN": "is_nan",
    "Sum": "add_n", "Max": "maximum", "Min": "minimum", "Mean": "mean_n", "Swish": "silu",
    "Upsample": "resize", "SoftmaxCrossEntropyLoss": "softmax_cross_entropy", "CastLike": "cast",
    "Scatter": "scatter_elements", "DynamicQuantizeLinear": "quantize_linear", "QLinearConv": "conv",
    "ConvInteger": "conv", "QLinearMatMul": "matmul", "MatMulInteger": "matmul",
    "com.microsoft.Attention": "packed_attention", "ai.onnx.preview.training.Adam": "adam_updates",
}  # fmt: skip
"""Operators whose kind differs from the rule of `kind_of`; two have a namesake that reads other inputs."""

_FACTORS = {
    "QLinearConv": (0, 3, 8),
    "QLinearMatMul": (0, 3, -1),
    **dict.fromkeys(("ConvInteger", "MatMulInteger"), (0, 1, -1)),
}
"""Positions of both factors and of a bias, in operators with scales and zero points between them."""

_PARAMETER_NAMES = """shape axis axes starts ends steps split sizes scales roi pads constant_value repeats
    depth values ratio training_mode min max start limit delta K"""
_PARAMETERS = frozenset(_PARAMETER_NAMES.split())
"""Inputs, by formal name, that parametrise the operator; they are not read as tensors if known."""

_FROM_OUTPUT = frozenset({"shape", "sizes", "target_type"})
"""Those that follow from size and type of the output: the former change with the batch."""


def kind_of(op_type: str, domain: str = "") -> str:
    """Return the op kind of an ONNX operator.

    Examples
    --------
    >>> [kind_of(name) for name in ("Conv", "MaxPool", "BatchNormalization", "LRN", "Sum", "ReduceL1")]
    ['conv', 'max_pool', 'batch_norm', 'lrn', 'add_n', 'reduce_l1']
    """
    plain = _KINDS.get(op_type, re.sub(r"_normalization$", "_norm", dtypes.snake_case(op_type)))
    return _KINDS.get(f"{domain}.{op_type}", plain)


def views_weight(node: Any) -> bool:
    """Return whether its result, if it is constant, is its first input as it is stored."""
    return kind_of(node.op_type, node.domain) in (*VIEWS, "dequantize_linear")


def operands_of(node: Any, values: Values) -> dict[int, tuple[str, Any]]:
    """Return position -> (formal name, content) of the inputs that are only parameters."""
    import onnx

    try:
        schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    except onnx.defs.SchemaError:
        return {}
    operands: dict[int, tuple[str, Any]] = {}
    for i, name in enumerate(node.input):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)].name
        if name and formal == "target_type":
            operands[i] = formal, None
        elif name and formal in _PARAMETERS and (data := values[name].data) is not None:
            operands[i] = (formal, _plain(data.tolist()))
    return operands


def op_facts(
    node: Any, outputs: Iterable[str], values: Values, dtype: str | None
) -> tuple[OpFacts, list[str]]:
    """Return the facts for cost formulas, and the values read; `outputs` are the outputs to count."""
    operands = operands_of(node, values)
    sources = [None if i in operands or not value else value for i, value in enumerate(node.input)]
    parameters = {key: content for key, content in operands.values() if key not in _FROM_OUTPUT}
    inputs = [None if source is None else tensor_facts(values[source], dtype) for source in sources]
    if first := _FACTORS.get(node.op_type):
        others = [tensor for i, tensor in enumerate(inputs) if i not in first]
        inputs = [inputs[i] if 0 <= i < len(inputs) else None for i in first] + others
    written = (tensor_facts(values[o], dtype) if o in values else TensorFacts((0,), 0) for o in outputs)
    kind = kind_of(node.op_type, node.domain)
    facts = OpFacts(kind, tuple(inputs), tuple(written), _attributes_of(node) | parameters)
    return facts, [source for source in sources if source is not None]


def tensor_facts(value: Value, dtype: str | None) -> TensorFacts:
    """Return shape and size of a value; `dtype` replaces the floating-point type of the file."""
    return TensorFacts(value.shape, dtypes.nbytes(value.shape, _dtype_of(value, dtype, value.stored)))


def _dtype_of(value: Value, dtype: str | None, stored: int | None = None) -> str:
    from onnx import TensorProto

    onnx_name: str = TensorProto.DataType.Name(value.elem if stored is None else stored)
    name = sized_dtype(onnx_name)
    if name is None:
        raise InputError(f"tensors of {onnx_name} have no size")
    return dtype if dtype is not None and name in dtypes.FLOATING else name


def compute_dtype(node: Any, values: Values, dtype: str | None) -> str:
    """Return the type in which a node computes: that of its result, or of what it compares or sums up."""
    result = _dtype_of(values[first_output(node)], dtype)
    if (result == "bool" or node.op_type in _FACTORS) and node.input and node.input[0]:
        return _dtype_of(values[node.input[0]], dtype)
    return result


def _attributes_of(node: Any) -> dict[str, Any]:
    """Return the attributes that are numbers or words."""
    from onnx import AttributeProto, helper

    tensors = (AttributeProto.TENSOR, AttributeProto.TENSORS, AttributeProto.SPARSE_TENSOR)
    attributes = {
        attribute.name: _plain(helper.get_attribute_value(attribute))
        for attribute in node.attribute
        if attribute.type not in (*tensors, AttributeProto.GRAPH, AttributeProto.GRAPHS)
    }
    return attributes | {key: bool(attributes[key]) for key in attributes.keys() & {"training_mode"}}


def _plain(value: Any) -> Any:
    """Return `value` as JSON: text for bytes, lists, and words for numbers that are not finite."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return [_plain(item) for item in value]


def op_name(node: Any, taken: Container[str], all_names: set[str], n_outputs: int) -> str:
    """Return a name for the op of a node: the node's own, unless it is taken or ambiguous.

    Parameters
    ----------
    node : onnx.NodeProto
    taken : container of str
        The existing names.
    all_names : set of str
        Every name in the model: ``a:1`` must not mean both one of them and the second output of ``a``.
    n_outputs : int
    """
    candidates = itertools.chain(
        [node_name(node), first_output(node)], (f"{node_name(node)}#{i}" for i in itertools.count(2))
    )
    return next(
        name
        for name in candidates
        if name not in taken and not any(f"{name}:{k}" in all_names for k in range(1, n_outputs))
    )


# ----------------------------------------------------------------------------------------------------------
# If and Loop of an ONNX model, before it runs: the shapes of their results, and the path of control flow.
#
# Nothing is computed here, so the branch taken and the number of iterations must be given::
#
#     If      a constant condition, or ``outcome`` when the model runs
#     Loop    a constant trip count with a condition that stays true, or ``trips``
#
# Branches return the same shapes, and what a loop carries keeps its own, as each op has one cost. The
# semantics are those of https://onnx.ai/onnx/operators/onnx__Loop.html and onnx__If.html.

Extras = Mapping[str, Mapping[str, Any]]
"""Name of a Loop or If -> attributes that give its outcome or trips."""

BRANCHES = {"then_branch": "then", "else_branch": "else"}
"""The subgraphs of an If, and their names in names of ops."""

_Enter = Callable[[str, str, Values], Scope]
"""(attribute, path, additional values of the subgraph) -> its whole scope."""

_STEERING_KEYS = {"If": ("outcome",), "Loop": ("trips", "parallel_iterations")}


_Written = tuple[Values, dict[str, Scope]]
"""Outputs of a node with subgraphs, and the scopes of these, by attribute."""


def control_values(node: Any, values: Values, path: str, extras: Extras, enter: _Enter) -> _Written:
    """Return the outputs of an If or a Loop, and the scopes of its subgraphs, by attribute.

    Parameters
    ----------
    node : onnx.NodeProto
    values : dict
        The values that the node sees.
    path : str
        Prefix of the names of its graph's ops.
    extras : mapping
    enter : callable
        Infers one of its subgraphs.

    Raises
    ------
    InputError
        A required outcome or trip count is not given, or shapes differ between branches or
        iterations.
    """
    name = path + node_name(node)
    about = extras.get(name, {})
    for key, value in about.items():
        if key not in _STEERING_KEYS[node.op_type]:
            accepted = " and ".join(_STEERING_KEYS[node.op_type])
            raise InputError(
                f"attributes of {name!r}: a node {node.op_type} has no {key!r} to be told, but {accepted}"
            )
        with in_file(f"attributes of {name!r}: {key}"):
            READERS[key](value)
    return (_if if node.op_type == "If" else _loop)(node, values, name, about, enter)


def constant(name: str, values: Values) -> Any:
    """Return the known number or truth value of a value, or None."""
    value = values[name]
    return value.data.reshape(-1)[0].item() if value.data is not None and value.data.size == 1 else None


# -- If -------------------------------------------------------------------------------------------


def _if(node: Any, values: Values, name: str, about: Mapping[str, Any], enter: _Enter) -> _Written:
    condition, outcome = constant(node.input[0], values), about.get("outcome")
    if condition is not None:  # as in constant folding, the branch replaces the node
        if outcome is not None and outcome != condition:
            reason = f"its condition is the constant {str(bool(condition)).lower()}"
            raise InputError(f"attributes of {name!r}: {reason}, so its outcome cannot be {outcome!r}")
        branch = "then_branch" if condition else "else_branch"
        scope = enter(branch, f"{name}/", {})
        ends = _branch_results(node, branch, scope)
        folded = all(end.constant for end in ends)  # constant only if all are, as the node is one op
        named = zip(node.output, ends, strict=True)
        return {output: replace(end, constant=folded) for output, end in named if output}, {branch: scope}
    scopes = {key: enter(key, f"{name}/{short}/", {}) for key, short in BRANCHES.items()}
    yes, no = (_branch_results(node, key, scope) for key, scope in scopes.items())
    results: Values = {}
    for output, a, b in zip(node.output, yes, no, strict=True):
        if output and (a.shape, a.elem) != (b.shape, b.elem) and not isinstance(outcome, bool):
            shapes = f"{shape_text(a.shape)} from one branch and {shape_text(b.shape)} from the other"
            raise InputError(
                f"node {name!r} (If) returns {output!r} as {shapes}, or of another type; "
                f"{_advice(name, 'outcome', 'true')}, always the same, and what follows has one shape"
            )
        end = b if outcome is False else a
        batch_first = a.batch_first and b.batch_first
        results[output] = replace(end, data=None, constant=False, from_shape=False, batch_first=batch_first)
    results.pop("", None)
    return results, scopes


def _branch_results(node: Any, attribute: str, scope: Scope) -> list[Value]:
    """Return the results of a branch, one for each output of the node."""
    outputs = graphs_of(node)[attribute].output
    if len(outputs) < len(node.output):
        counts = f"has {format_count(len(node.output), 'output')}, and its {attribute} returns {len(outputs)}"
        raise InputError(f"node {node_name(node)!r} (If) {counts}")
    return [scope.values[output.name] for output in outputs[: len(node.output)]]


# -- Loop -----------------------------------------------------------------------------------------


def _loop(node: Any, values: Values, name: str, about: Mapping[str, Any], enter: _Enter) -> _Written:
    from onnx import TensorProto

    body = graphs_of(node)["body"]
    formal = [argument.name for argument in body.input]
    starts = [values[argument] for argument in node.input[2:]]
    inputs, outputs = len(starts) + 2, max(len(starts), len(node.output)) + 1
    if len(formal) != inputs or len(body.output) < outputs:
        n_inputs, n_results = format_count(len(formal), "input"), format_count(len(body.output), "output")
        raise InputError(
            f"node {name!r} (Loop): its body has {n_inputs} and {n_results}, and should have {inputs} and "
            f"{outputs}: those of the node, and the number of the iteration and the condition"
        )
    before: Values = {
        formal[0]: Value(TensorProto.INT64, ()),
        # While the body runs, the condition is true.
        formal[1]: Value(TensorProto.BOOL, (), np.array(True), constant=True),
    }
    for carried, start in zip(formal[2:], starts, strict=True):
        before[carried] = replace(start, data=None, constant=False, from_shape=False)
    scope = enter("body", f"{name}/body/", before)
    ends = [scope.values[output.name] for output in body.output[1:]]
    for carried, start, end in zip(formal[2:], starts, ends[: len(starts)], strict=True):
        if start.shape != end.shape:
            shapes = f"{shape_text(start.shape)} in one iteration and {shape_text(end.shape)} in the next"
            problem = f"node {name!r} (Loop) carries {carried!r}, which is {shapes}"
            raise InputError(f"{problem}; pad it to its largest size in the model")
    trips = _trips(node, values, name, about, constant(body.output[0].name, scope.values))
    results: Values = {}
    for k, (output, end) in enumerate(zip(node.output, ends[: len(node.output)], strict=True)):
        plain = replace(end, data=None, constant=False, from_shape=False)
        if k >= len(starts):  # a scan output: one row per iteration
            if not isinstance(trips, int):
                problem = f"node {name!r} (Loop) collects {body.output[k + 1].name!r} over its iterations"
                raise InputError(f"{problem}, so its trips must be one number, not {trips!r}")
            plain = replace(plain, shape=(trips, *end.shape), batch_first=False)
        results[output] = plain
    results.pop("", None)
    return results, {"body": replace(scope, trips=trips)}


def _trips(
    node: Any, values: Values, name: str, about: Mapping[str, Any], goes_on: bool | None
) -> int | Sequence[int]:
    """Return the number of iterations: as given, or as it follows from constants."""
    names = [node.input[i] if len(node.input) > i else "" for i in (0, 1)]
    limit = constant(names[0], values) if names[0] else None
    begins = constant(names[1], values) if names[1] else True
    if (trips := about.get("trips")) is not None:
        if limit is not None and np.max(trips) > max(limit, 0):
            raise InputError(
                f"attributes of {name!r}: trips {trips!r} is more than the model's own count, {limit}"
            )
        return trips if isinstance(trips, int) else list(trips)
    if begins is False or (limit is not None and limit <= 0):
        return 0
    if begins and goes_on is False and (limit is not None or not names[0]):
        return 1
    if begins and goes_on and limit is not None:
        return int(limit)
    if not begins or goes_on is None:
        reason = "goes on as long as a condition holds that is computed in the run"
    elif names[0]:
        reason = "has a trip count that is computed in the run"
    else:
        reason = "has no trip count, and its condition is always true"
    limit_text = f", at most {limit}" if limit is not None else ""
    raise InputError(f"node {name!r} (Loop) {reason}; {_advice(name, 'trips', '8')}{limit_text}")


def _advice(name: str, key: str, example: str) -> str:
    return f"tell it with attributes: {{{name}: {{{key}: {example}}}}}"
