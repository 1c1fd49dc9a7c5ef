"""If and Loop of an ONNX model, before it runs: the shapes of their results, and which way they go.

Nothing is computed here, so which branch is taken and how often a body runs has to be known::

    If      a constant condition, or ``outcome`` when the model runs
    Loop    a constant trip count with a condition that stays true, or ``trips``

Branches return the same shapes, and what a loop carries keeps its own, as each op has one cost. The
semantics are those of https://onnx.ai/onnx/operators/onnx__Loop.html and onnx__If.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from scenarios.importers.onnx.onnx_nodes import Scope, Value, Values, graphs_of, node_name, shape_text
from sim.base.errors import InputError

Told = Mapping[str, Mapping[str, Any]]
"""Name of a Loop or If -> attributes that say what it does."""

BRANCHES = {"then_branch": "then", "else_branch": "else"}
"""The subgraphs of an If, and how they are called in names of ops."""

_Enter = Callable[[str, str, Values], Scope]
"""(attribute, path, what the subgraph sees besides) -> what it sees in all."""

_KEYS = {"If": ("outcome",), "Loop": ("trips", "parallel_iterations")}


class SubgraphNames(NamedTuple):
    """What a node with subgraphs writes, and what these see, by attribute."""

    values: Values
    inside: dict[str, Scope]


def control_values(node: Any, values: Values, path: str, told: Told, enter: _Enter) -> SubgraphNames:
    """Return what an If or a Loop writes.

    Parameters
    ----------
    node : onnx.NodeProto
    values : dict
        What the node sees.
    path : str
        What stands before the names of its graph's ops.
    told : mapping
    enter : callable
        Looks at one of its subgraphs.

    Raises
    ------
    InputError
        An outcome or a trip count that is needed and not told, or shapes that differ between branches or
        iterations.
    """
    name = path + node_name(node)
    about = told.get(name, {})
    for key in about:
        if key not in _KEYS[node.op_type]:
            raise InputError(
                f"attributes of {name!r}: a node {node.op_type} has no {key!r} to be told, but "
                + " and ".join(_KEYS[node.op_type])
            )
    return (_if if node.op_type == "If" else _loop)(node, values, name, about, enter)


def constant(name: str, values: Values) -> Any:
    """Return the number or truth value that is known of a value, or None."""
    value = values[name]
    return value.data.reshape(-1)[0].item() if value.data is not None and value.data.size == 1 else None


# -- If -------------------------------------------------------------------------------------------


def _if(node: Any, values: Values, name: str, about: Mapping[str, Any], enter: _Enter) -> SubgraphNames:
    known, outcome = constant(node.input[0], values), about.get("outcome")
    if known is not None:  # as constant folding has it: the branch takes the node's place
        if outcome is not None and outcome != known:
            raise InputError(
                f"attributes of {name!r}: its condition is the constant {str(bool(known)).lower()}, "
                f"so its outcome cannot be {outcome!r}"
            )
        taken = "then_branch" if known else "else_branch"
        scope = enter(taken, f"{name}/", {})
        return SubgraphNames(_together(node, _ends(node, taken, scope)), {taken: scope})
    inside = {key: enter(key, f"{name}/{short}/", {}) for key, short in BRANCHES.items()}
    yes, no = (_ends(node, key, scope) for key, scope in inside.items())
    found: Values = {}
    for output, a, b in zip(node.output, yes, no, strict=True):
        if output and (a.shape, a.elem) != (b.shape, b.elem) and not isinstance(outcome, bool):
            raise InputError(
                f"node {name!r} (If) returns {output!r} as {shape_text(a.shape)} from one branch and "
                f"{shape_text(b.shape)} from the other, or of another type; "
                f"{_tell(name, 'outcome', 'true')}, always the same, and what follows has one shape"
            )
        end = b if outcome is False else a
        batch_first = a.batch_first and b.batch_first
        found[output] = replace(end, data=None, constant=False, from_shape=False, batch_first=batch_first)
    found.pop("", None)
    return SubgraphNames(found, inside)


def _ends(node: Any, attribute: str, scope: Scope) -> list[Value]:
    """Return the values that a subgraph hands back, at least as many as the node has outputs."""
    outputs = graphs_of(node)[attribute].output
    extra = 1 if attribute == "body" else 0  # whether to go on
    if len(outputs) < len(node.output) + extra:
        raise InputError(
            f"node {node_name(node)!r} ({node.op_type}) has {len(node.output)} outputs, and its {attribute} "
            f"returns {len(outputs)}"
        )
    return [scope.values[output.name] for output in outputs][: len(node.output) + extra]


def _together(node: Any, ends: Sequence[Value]) -> Values:
    """Return the results of a branch that always runs: constants if all are, as the node is one op."""
    folded = all(end.constant for end in ends)
    named = zip(node.output, ends, strict=True)
    return {output: replace(end, constant=folded) for output, end in named if output}


# -- Loop -----------------------------------------------------------------------------------------


def _loop(node: Any, values: Values, name: str, about: Mapping[str, Any], enter: _Enter) -> SubgraphNames:
    from onnx import TensorProto

    body = graphs_of(node)["body"]
    formal = [given.name for given in body.input]
    starts = [values[given] for given in node.input[2:]]
    if len(formal) != len(starts) + 2 or len(body.output) < len(starts) + 1:
        raise InputError(
            f"node {name!r} (Loop) carries {len(starts)} values; its body has {len(formal)} inputs and "
            f"{len(body.output)} outputs, where 2 inputs and 1 output more than values are needed"
        )
    before: Values = {
        formal[0]: Value(TensorProto.INT64, ()),
        # While the body runs, the condition is true.
        formal[1]: Value(TensorProto.BOOL, (), np.array(True), constant=True),
    }
    for carried, start in zip(formal[2:], starts, strict=True):
        before[carried] = replace(start, data=None, constant=False, from_shape=False)
    scope = enter("body", f"{name}/body/", before)
    ends = [scope.values[output.name] for output in body.output]
    for carried, start, end in zip(formal[2:], starts, ends[1:], strict=False):
        if start.shape != end.shape:
            raise InputError(
                f"node {name!r} (Loop) carries {carried!r}, which is {shape_text(start.shape)} in one "
                f"iteration and {shape_text(end.shape)} in the next; one op cannot have the costs of both, "
                "so pad it to its largest size in the model"
            )
    trips = _trips(node, values, name, about, constant(body.output[0].name, scope.values))
    found: Values = {}
    for k, end in enumerate(_ends(node, "body", scope)[1:]):
        plain = replace(end, data=None, constant=False, from_shape=False)
        if k >= len(starts):  # one row for each iteration
            if not isinstance(trips, int):
                raise InputError(
                    f"node {name!r} (Loop) collects {body.output[k + 1].name!r} over its iterations, so its "
                    f"trips must be one number, not {trips!r}"
                )
            plain = replace(plain, shape=(trips, *end.shape), batch_first=False)
        found[node.output[k]] = plain
    found.pop("", None)
    return SubgraphNames(found, {"body": replace(scope, trips=trips)})


def _trips(
    node: Any, values: Values, name: str, about: Mapping[str, Any], goes_on: bool | None
) -> int | Sequence[int]:
    """Return how often the body runs: what was told, or what follows from constants."""
    given = [node.input[i] if len(node.input) > i else "" for i in (0, 1)]
    limit = constant(given[0], values) if given[0] else None
    begins = constant(given[1], values) if given[1] else True
    if "trips" in about:
        return _checked(name, about["trips"], limit)
    if begins is False or (limit is not None and limit <= 0):
        return 0
    if begins and goes_on is False and (limit is not None or not given[0]):
        return 1
    if begins and goes_on and limit is not None:
        return int(limit)
    if not begins or goes_on is None:
        reason = "goes on as long as a condition holds that is computed in the run"
    elif given[0]:
        reason = "has a trip count that is computed in the run"
    else:
        reason = "has no trip count, and its condition is always true"
    most = f", at most {limit}" if limit is not None else ""
    raise InputError(f"node {name!r} (Loop) {reason}; {_tell(name, 'trips', '8')}{most}")


def _checked(name: str, trips: Any, limit: int | None) -> int | Sequence[int]:
    counts = trips if isinstance(trips, list | tuple) else [trips]
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in counts)
    if not counts or not whole:
        raise InputError(
            f"attributes of {name!r}: trips is a count of at least 0, or a list with one for each time the "
            f"loop is entered, not {trips!r}"
        )
    if limit is not None and max(counts) > max(limit, 0):
        raise InputError(
            f"attributes of {name!r}: trips {trips!r} is more than the model's own count, {limit}"
        )
    return trips if isinstance(trips, int) else list(counts)


def _tell(name: str, key: str, example: str) -> str:
    return f"tell it with attributes: {{{name}: {{{key}: {example}}}}}"
