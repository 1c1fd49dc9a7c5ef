"""What-ifs that change how long ops take, and nothing else: the same ops in the same order."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from pydantic import PlainValidator, WithJsonSchema

from devices.describe.field_types import DEFAULT, quantity_schema, reader
from devices.presets import device_preset, presets
from scenarios.recorded import select as roles
from scenarios.recorded.select import Names
from sim.base.arrays import UNSET, BoolArray
from sim.base.errors import InputError, UnitError, UnknownNameError, located
from sim.base.units import DURATION, parse_bandwidth, parse_duration, parse_flop_rate, round_half_up
from sim.explain.communication import INSIDE, inside_ns
from sim.graph.graph import Graph

# ----------------------------------------------------------------------------------------------------------
# How a what-if changes a duration: by a factor (``x0.5``), or to a new value (``2us``).

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
        """Return durations after the change, each rounded half up."""
        if self.value_ns is not None:
            return [self.value_ns for _ in durations_ns]
        above, below = 2 * self.factor.numerator, 2 * self.factor.denominator
        return [(above * ns + self.factor.denominator) // below for ns in durations_ns]

    def of_part(self, part_ns: int, whole_ns: int) -> int:
        """Return a part of a duration, which keeps its share of the whole."""
        if self.value_ns is None:
            return self.of([part_ns])[0]
        return round_half_up(Fraction(self.value_ns * part_ns, whole_ns)) if whole_ns else self.value_ns


def read_factor(value: object) -> Fraction:
    """Read a factor.

    Raises
    ------
    InputError
        It is none.

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
    """Read a factor, or a new value.

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
"""Attributes that are parts of an op: of the host's, and what it communicates itself."""


def scaled(graph: Graph, changes: Mapping[str, Change]) -> Graph:
    """Return a graph whose ops, by name (`select`), take a factor of their time, or another one.

    An op that several words are about is changed by each of them, in their order. Of an op that computes and
    communicates in turn ``kernels`` is the one part, ``collectives`` the other; any other word is about all
    of it.

    Raises
    ------
    InputError
        A word is about no op, or about one that has no duration of its own.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", kind="matmul", duration_ns=10); _ = b.op("b", duration_ns=10)
    >>> scaled(b.build(), {"gemm": Change(Fraction(1, 2))}).duration_ns.tolist()
    [5, 10]
    """
    names = Names(graph)
    for word, change in changes.items():
        with located(word):
            if word == "collectives":
                graph = _communicating(graph, names, change)
            else:
                graph = _changed(graph, names.find(word), change, stays=word == "kernels")
    return graph


def more_bandwidth(graph: Graph, collectives: Fraction, transfers: Fraction) -> Graph:
    """Return a graph whose links have so many times the bandwidth.

    All of a copy, or of a collective's transfer, is taken for bandwidth: its latency, too, which a recording
    does not tell apart. So what comes out is the most that bandwidth can do.
    """
    if collectives != 1:
        graph = _communicating(graph, None, Change(1 / collectives))
    if transfers != 1:
        graph = _changed(graph, roles.transfers(graph) & ~roles.collectives(graph), Change(1 / transfers))
    return graph


def faster_host(graph: Graph, factor: Fraction) -> Graph:
    """Return a graph whose host takes a factor of its time for its own work, launches among it.

    A call that waits still waits as long as it has to; what it does afterwards is work. What a host did
    before its recording began stays as it is.
    """
    return _changed(graph, roles.host_ops(graph), Change(factor))


def issue_cost(graph: Graph, change: Change) -> Graph:
    """Return a graph whose launch calls take a factor of their own time, or another one.

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
    """Return a graph of a recording whose GPUs take a factor of the gap between kernels, or another one.

    Raises
    ------
    InputError
        The recording does not tell a gap.
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
"""An op, the attribute that is a part of its duration, and how long that was and is now."""


def _with_parts(graph: Graph, parts: Iterable[_Part]) -> Graph:
    """Return a graph with other parts of durations; the same one if none changes."""
    ns, attributes = graph.duration_ns.copy(), dict(graph.attributes)
    for op, part, was_ns, now_ns in parts:
        if now_ns != was_ns:
            ns[op] += now_ns - was_ns
            attributes[op] = {**attributes[op], part: now_ns}
    return graph if (ns == graph.duration_ns).all() else replace(graph, duration_ns=ns, attributes=attributes)


def _next_on_thread(graph: Graph) -> dict[int, int]:
    """Return the op that a host's thread does next, of each op of it."""
    last: dict[tuple[int, object], int] = {}
    following = {}
    for op, number in graph.attribute("thread").items():
        thread = int(graph.pin_code[op]), number
        if thread in last:
            following[last[thread]] = op
        last[thread] = op
    return following


def _communicating(graph: Graph, names: Names | None, change: Change) -> Graph:
    """Return a graph in which collectives take another time, and what other ops communicate themselves."""
    inside = inside_ns(graph)
    parts = np.flatnonzero(inside).tolist() if change.value_ns is None else []
    if names is not None and not parts:
        names.find("collectives")  # refuses a graph that has none
    graph = _changed(graph, roles.collectives(graph), change)
    was = inside[parts].tolist()
    changed = zip(parts, was, change.of(was), strict=True)
    return _with_parts(graph, [(op, INSIDE, ns, now) for op, ns, now in changed])


def _changed(graph: Graph, which: BoolArray, change: Change, *, stays: bool = False) -> Graph:
    """Return a graph in which some ops take longer or shorter; the same one if nothing changes.

    `stays` keeps what they communicate themselves.
    """
    ops = np.flatnonzero(which)
    kept = inside_ns(graph) if stays else np.zeros(len(graph), np.int64)
    alone = which & roles.collectives(graph) & ~roles.has_key(graph, "communicator")
    alone &= roles.recorded(graph)
    if alone.any():
        warnings.warn(
            f"{int(alone.sum())} collectives are of one rank alone: what they waited for other ranks is part "
            "of their time, and changes with it; all ranks of the job together tell it apart",
            stacklevel=4,
        )
    given = [graph.duration_ns, *graph.duration_by_kind.values()]
    unknown = ops[np.all([column[ops] == UNSET for column in given], axis=0)]
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


# ----------------------------------------------------------------------------------------------------------
# What if the program had run on another GPU: recorded durations, scaled by the rates of both.
#
# A kernel takes the ratio of its rooflines on the two devices. Both are plain rooflines, from peak rates, so
# that what real kernels lose against them cancels, as far as they lose alike. What a recording tells of a
# kernel decides how well the ratio is known::
#
#   its flop and bytes         the ratio of the two rooflines
#   its kind moves data        the ratio of the bandwidths             (elementwise, copy, reduce, gather ...)
#   any other kind             between the ratio of bandwidths and that of peak rates in its data type (of its
#                              name: "bf16", "f16", "tf32", "sgemm"; else of all that both devices have)
#   fewer blocks than SMs      between that and 1: it waits for latencies, not for rates
#
# The middle of a range is its geometric mean. Collectives, copies between host and device, and the host stay
# as they are; launch latency and gaps are the device's.
#
# The roofline: Williams, Waterman and Patterson (CACM 52(4), 2009). Rates: `devices.presets`.

Bound = Literal["low", "middle", "high"]
"""Which end of what is possible: of durations."""

_MOVES: Final = frozenset(
    {"elementwise", "copy", "fill", "reduce", "gather", "layer_norm", "batch_norm", "softmax", "cat"}
)
_DTYPES: Final = (
    ("bf16", re.compile(r"bf16|bfloat16", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32", re.IGNORECASE)),
    ("fp16", re.compile(r"half|f16|h884|h1688|hgemm|s884|s1688|s16816", re.IGNORECASE)),
    ("fp64", re.compile(r"double|dgemm|f64", re.IGNORECASE)),
    ("fp32", re.compile(r"float|sgemm|f32", re.IGNORECASE)),
)


class _Rates(NamedTuple):
    peak: dict[str, int]
    bandwidth: int
    sms: int


class _Range(NamedTuple):
    low: float
    high: float

    def at(self, bound: Bound) -> float:
        """Return one end, or the geometric mean."""
        if bound == "middle":
            return self.low if self.low == self.high else math.sqrt(self.low * self.high)
        return self.low if bound == "low" else self.high


def on_device(graph: Graph, source: str, target: str, bound: Bound = "middle") -> Graph:
    """Return a graph whose kernels take as long as they would on another GPU.

    Parameters
    ----------
    graph : Graph
    source, target : str
        Presets of the GPU of the recording and of the other one, or how the name of one begins.
    bound : str
        The least, the middle or the most that the durations may be.

    Raises
    ------
    InputError
        No such preset, no rates in it, or no kernels.

    Warns
    -----
    UserWarning
        How far apart the ends are, and what is not known; a `source` that is not the GPU of the recording.
    """
    with located("from"):
        before = _rates(source)
    with located("to"):
        after = _rates(target)
    if (contradiction := _recorded_elsewhere(graph, source)) is not None:
        warnings.warn(contradiction, stacklevel=2)
    ops = np.flatnonzero(roles.tasks(graph) & ~roles.collectives(graph) & ~roles.transfers(graph)).tolist()
    if not ops:
        raise InputError("there is no kernel of a GPU")
    ns = graph.duration_ns.copy()
    total = dict.fromkeys(("was", "low", "middle", "high"), 0.0)
    shapes = few = 0
    for op in ops:
        own = graph.attributes[op]
        known = _by_shape(graph, op, before, after)
        ratio = _by_kind(graph, op, own, before, after) if known is None else _Range(known, known)
        blocks = math.prod(own["grid"]) if "grid" in own else before.sms
        if known is None and blocks < before.sms:
            ratio, few = _Range(min(ratio.low, 1.0), max(ratio.high, 1.0)), few + 1
        shapes += known is not None
        was = int(ns[op])
        ns[op] = round_half_up(was * ratio.at(bound))
        total["was"] += was
        for end in ("low", "middle", "high"):
            total[end] += was * ratio.at(end)
    if (ns == graph.duration_ns).all():
        return graph
    of = {end: f"x{total[end] / total['was']:.2f}" if total["was"] else "x1" for end in total}
    warnings.warn(
        f"device: kernels take {of['low']} to {of['high']} of their time on {target}, taken as {of[bound]}; "
        f"the shapes of {shapes} of {len(ops)} are known, {few} others are too small to fill the GPU",
        stacklevel=2,
    )
    facts = {pin: {**known, "description": target} for pin, known in graph.device_facts.items()}
    return replace(graph, duration_ns=ns, device_facts=facts)


def is_of_model(description: str, preset: str) -> bool:
    """Whether a GPU, by what its driver calls it or by a preset, is of the model of a preset.

    The model counts: it is how names of presets begin, and a word in what drivers say. Sizes and boards are
    written in too many ways.

    Examples
    --------
    >>> is_of_model("NVIDIA H100 80GB HBM3", "h100-sxm"), is_of_model("Tesla T4", "a100-pcie-40")
    (True, False)
    """
    return preset.partition("-")[0] in re.findall("[a-z0-9]+", description.lower())


def _recorded_elsewhere(graph: Graph, source: str) -> str | None:
    """Return what is wrong where the recording names another GPU than `source`; None: nothing is."""
    known = _gpu_presets()
    for facts in graph.device_facts.values():
        own = [name for name in known if is_of_model(facts.get("description", ""), name)]
        if own and not any(name.startswith(source) for name in own):
            return (
                f"device: from: {source} is not the GPU of the recording, {facts['description']} "
                f"({' or '.join(own)}): the durations are scaled by the wrong rates"
            )
    return None


def _gpu_presets() -> list[str]:
    return [each.name for each in presets() if {"peak", "sms"} <= device_preset(each.name).keys()]


def _rates(name: str) -> _Rates:
    """Return the rates of a preset, or of the one whose name begins so."""
    known = _gpu_presets()
    fitting = [each for each in known if each == name] or [each for each in known if each.startswith(name)]
    if len(fitting) > 1:  # the board of a server, where there are several
        fitting = [each for each in fitting if "-sxm" in each] or fitting
    if len(fitting) > 1:
        raise InputError(f"{name!r} may be {' or '.join(fitting)}")
    if not fitting:
        raise UnknownNameError("GPU preset", name, known)
    spec: dict[str, Any] = device_preset(fitting[0])
    peak = spec["peak"] if isinstance(spec["peak"], dict) else {DEFAULT: spec["peak"]}
    rates = {dtype: parse_flop_rate(rate) for dtype, rate in peak.items()}
    return _Rates(rates, parse_bandwidth(spec["bandwidth"]), int(spec["sms"]))


def _by_shape(graph: Graph, op: int, before: _Rates, after: _Rates) -> float | None:
    """Return the ratio of rooflines of an op whose flop or bytes are known; None: they are not."""
    flops, nbytes = int(graph.flops[op]), int(graph.bytes_read[op] + graph.bytes_written[op])
    if not (flops or (nbytes and graph.kind(op) in _MOVES)):
        return None
    dtypes = _dtypes(graph, op, before, after)
    if flops and len(dtypes) != 1:
        return None
    times = [
        max(nbytes / rates.bandwidth, *(flops / rates.peak[d] for d in dtypes[:1]))
        for rates in (before, after)
    ]
    return times[1] / times[0]


def _by_kind(graph: Graph, op: int, own: Any, before: _Rates, after: _Rates) -> _Range:
    memory = before.bandwidth / after.bandwidth
    if graph.kind(op) in _MOVES:
        return _Range(memory, memory)
    ratios = [memory, *(before.peak[d] / after.peak[d] for d in _dtypes(graph, op, before, after))]
    return _Range(min(ratios), max(ratios))


def _dtypes(graph: Graph, op: int, before: _Rates, after: _Rates) -> list[str]:
    """Return the data types in which an op may compute, of those for which both devices have a rate."""
    both = [dtype for dtype in before.peak if dtype in after.peak]
    name = str(graph.attributes.get(op, {}).get("kernel", graph.op_names[op]))
    code = int(graph.dtype_code[op])
    given = graph.dtypes[code] if code >= 0 else next((d for d, fits in _DTYPES if fits.search(name)), None)
    return [given] if given in both else [d for d in both if d in ("fp32", "tf32", "fp16", "bf16")]
