"""What-ifs that change only the durations of ops: the same ops in the same order."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from pydantic import PlainValidator, WithJsonSchema

from devices.describe.field_types import quantity_schema, reader
from scenarios.recorded import select as roles
from scenarios.recorded.select import Names
from sim.base.arrays import UNSET, BoolArray
from sim.base.errors import InputError, UnitError, error_path
from sim.base.units import DURATION, parse_duration, round_half_up
from sim.explain.communication import INSIDE, inside_ns
from sim.graph.graph import Graph

# ----------------------------------------------------------------------------------------------------------
# A what-if changes a duration by a factor (``x0.5``), or to a new value (``2us``).

_FACTOR: Final = re.compile(r"\s*[x×]\s*([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)\s*")
_MOST: Final = 1_000_000


class Change(NamedTuple):
    """A factor, or a new value.

    Examples
    --------
    >>> Change(Fraction(1, 2)).of([3, 10]), Change(value_ns=2000).of([3, 10])
    ([2, 5], [2000, 2000])
    """

    factor: Fraction = Fraction(1)
    value_ns: int | None = None

    def of(self, durations_ns: Iterable[int]) -> list[int]:
        """Return the durations after the change, each rounded half up."""
        if self.value_ns is not None:
            return [self.value_ns for _ in durations_ns]
        above, below = 2 * self.factor.numerator, 2 * self.factor.denominator
        return [(above * ns + self.factor.denominator) // below for ns in durations_ns]

    def of_part(self, part_ns: int, whole_ns: int) -> int:
        """Return a part of a duration after the change; its share of the whole stays the same."""
        if self.value_ns is None:
            return self.of([part_ns])[0]
        return round_half_up(Fraction(self.value_ns * part_ns, whole_ns)) if whole_ns else self.value_ns


def read_factor(value: object) -> Fraction:
    """Read a factor.

    Raises
    ------
    InputError
        It is not a factor.

    Examples
    --------
    >>> read_factor("x0.1")
    Fraction(1, 10)
    """
    if isinstance(value, Fraction):
        return value
    found = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise InputError(f"{value!r} is no factor such as x0.5")
    factor = Fraction(found[1])
    if factor > _MOST:
        raise InputError(f"{value!r} is more than the x{_MOST:,} that there may be")
    return factor


def read_change(value: object) -> Change:
    """Read a factor or a new value.

    Raises
    ------
    InputError
        It is neither.

    Examples
    --------
    >>> read_change("2us").value_ns
    2000
    """
    if isinstance(value, str) and _FACTOR.fullmatch(value):
        return Change(read_factor(value))
    try:
        return Change(value_ns=parse_duration(value, what=""))
    except UnitError as error:
        message = f"{value!r} is neither a factor such as x0.5 nor a duration such as 2us ({error.message})"
        raise InputError(message) from None


_FACTOR_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "pattern": rf"^{_FACTOR.pattern}$",
    "description": "a factor, such as x0.5",
}

AnyFactor = Annotated[Fraction, PlainValidator(reader(read_factor)), WithJsonSchema(_FACTOR_SCHEMA)]
"""A factor in a file."""

AnyChange = Annotated[
    Change,
    PlainValidator(reader(read_change)),
    WithJsonSchema({"anyOf": [_FACTOR_SCHEMA, quantity_schema(DURATION)]}),
]
"""A factor or a new duration in a file."""


# ----------------------------------------------------------------------------------------------------------

_PARTS = "call_ns", "rest_of_call_ns", INSIDE
"""Attributes that are parts of an op's duration: of the host's work, and its own communication."""


def scale_durations(graph: Graph, changes: Mapping[str, Change]) -> Graph:
    """Return a graph in which the ops that words name (`select`) have scaled or new durations.

    If several words match an op, each changes it, in their order. For an op that computes and
    communicates in turn, ``kernels`` names the one part, ``collectives`` the other; any other word names all
    of it.

    Raises
    ------
    InputError
        A word matches no op, or an op without a duration of its own.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", kind="matmul", duration_ns=10); _ = b.op("b", duration_ns=10)
    >>> scale_durations(b.build(), {"gemm": Change(Fraction(1, 2))}).duration_ns.tolist()
    [5, 10]
    """
    names = Names(graph)
    for word, change in changes.items():
        with error_path(word):
            if word == "collectives":
                graph = _communicating(graph, names, change)
            else:
                graph = _change_durations(graph, names.find(word), change, stays=word == "kernels")
    return graph


def more_bandwidth(graph: Graph, collectives: Fraction, transfers: Fraction) -> Graph:
    """Return a graph whose links have a multiple of their bandwidth.

    All time of a copy, or of a collective's transfer, is attributed to bandwidth, including latency, which
    a recording does not distinguish. The result is thus the largest possible effect of bandwidth.
    """
    if collectives != 1:
        graph = _communicating(graph, None, Change(1 / collectives))
    if transfers != 1:
        graph = _change_durations(
            graph, roles.transfers(graph) & ~roles.collectives(graph), Change(1 / transfers)
        )
    return graph


def faster_host(graph: Graph, factor: Fraction) -> Graph:
    """Return a graph whose host's own work, including launches, is scaled by a factor.

    A call that waits still waits as long as it must; what it does afterwards is work. The time before the
    recording of a host began does not change.
    """
    return _change_durations(graph, roles.host_ops(graph), Change(factor))


def issue_cost(graph: Graph, change: Change) -> Graph:
    """Return a graph whose launch calls have their own time scaled or replaced.

    The host's work between calls stays.

    Raises
    ------
    InputError
        The recording has no launch calls.
    """
    launch = np.flatnonzero(roles.launches(graph)).tolist()
    if not launch:
        raise InputError("this recording has no launch calls of the host")
    parts: list[_Part] = []
    following, attributes = _next_on_thread(graph), graph.attributes
    for op in launch:
        call_ns, after = int(attributes[op].get("call_ns", graph.duration_ns[op])), following.get(op)
        rest_ns = 0 if after is None else int(attributes[after].get("rest_of_call_ns", 0))
        whole_ns = call_ns + rest_ns
        parts.append((op, "call_ns", call_ns, change.of_part(call_ns, whole_ns)))
        if after is not None and rest_ns:
            parts.append((after, "rest_of_call_ns", rest_ns, change.of_part(rest_ns, whole_ns)))
    return _with_parts(graph, parts)


def other_gap(graph: Graph, change: Change) -> Graph:
    """Return the graph of a recording with the gap between kernels of its GPUs scaled or replaced.

    Raises
    ------
    InputError
        The recording does not show a gap.
    """
    gaps = {pin: known["gap"] for pin, known in graph.device_facts.items() if "gap" in known}
    if not gaps:
        raise InputError("this recording does not tell the gap between kernels")
    now = {pin: f"{change.of([parse_duration(gap)])[0]}ns" for pin, gap in gaps.items()}
    if now == gaps:
        return graph
    changed = {pin: {**graph.device_facts[pin], "gap": gap} for pin, gap in now.items()}
    return replace(graph, device_facts={**graph.device_facts, **changed})


_Part = tuple[int, str, int, int]
"""An op, the attribute with a part of its duration, and that part before and after, in ns."""


def _with_parts(graph: Graph, parts: Iterable[_Part]) -> Graph:
    """Return a graph with changed parts of durations; the same graph if nothing changes."""
    ns, attributes = graph.duration_ns.copy(), dict(graph.attributes)
    for op, part, was_ns, now_ns in parts:
        if now_ns != was_ns:
            ns[op] += now_ns - was_ns
            attributes[op] = {**attributes[op], part: now_ns}
    return graph if (ns == graph.duration_ns).all() else replace(graph, duration_ns=ns, attributes=attributes)


def _next_on_thread(graph: Graph) -> dict[int, int]:
    """Return, for each op of a host thread, the next op of that thread."""
    last: dict[tuple[int, object], int] = {}
    following = {}
    for op, number in graph.attribute("thread").items():
        thread = int(graph.pin_code[op]), number
        if thread in last:
            following[last[thread]] = op
        last[thread] = op
    return following


def _communicating(graph: Graph, names: Names | None, change: Change) -> Graph:
    """Return a graph with changed durations of collectives, and of other ops' own communication."""
    inside = inside_ns(graph)
    parts = np.flatnonzero(inside).tolist() if change.value_ns is None else []
    if names is not None and not parts:
        names.find("collectives")  # raises if the graph has none
    graph = _change_durations(graph, roles.collectives(graph), change)
    was = inside[parts].tolist()
    changed = zip(parts, was, change.of(was), strict=True)
    return _with_parts(graph, [(op, INSIDE, ns, now) for op, ns, now in changed])


def _change_durations(graph: Graph, which: BoolArray, change: Change, *, stays: bool = False) -> Graph:
    """Return a graph with changed durations of some ops; the same graph if nothing changes.

    With `stays` the ops' own communication keeps its duration.
    """
    ops = np.flatnonzero(which)
    kept = inside_ns(graph) if stays else np.zeros(len(graph), np.int64)
    alone = which & roles.collectives(graph) & ~roles.has_key(graph, "communicator")
    alone &= roles.is_recording(graph)
    if alone.any():
        warnings.warn(
            f"{int(alone.sum())} collectives are of one rank alone: what they waited for other ranks is part "
            "of their time, and changes with it; all ranks of the job together tell it apart",
            stacklevel=4,
        )
    given = [graph.duration_ns, *graph.duration_by_kind.values()]
    unknown = ops[graph.longest_ns()[ops] == UNSET]
    if len(unknown):
        name = graph.op_names[int(unknown[0])]
        raise InputError(
            f"{len(unknown)} of {len(ops)} ops, {name!r} for one, have no duration of their own but that of "
            "a device's cost model; a what-if changes durations that are given"
        )
    columns = []
    for column in given:
        here, new = ops[column[ops] != UNSET], column.copy()
        new[here] = kept[here] + change.of((column[here] - kept[here]).tolist())
        columns.append(new)
    if all((new == column).all() for new, column in zip(columns, given, strict=True)):
        return graph
    attributes = dict(graph.attributes)
    if change.value_ns is None:
        for op in ops.tolist():
            own = attributes.get(op, {})
            parts = {
                key: change.of([int(own[key])])[0]
                for key in _PARTS
                if key in own and not (stays and key == INSIDE)
            }
            if parts:
                attributes[op] = {**own, **parts}
    by_kind = dict(zip(graph.duration_by_kind, columns[1:], strict=True))
    return replace(graph, duration_ns=columns[0], duration_by_kind=by_kind, attributes=attributes)
