"""What-ifs that change only the durations of ops: the same ops in the same order."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import PlainValidator, WithJsonSchema

from devices.describe.field_types import quantity_schema, reader
from devices.machine import make_device
from devices.presets import device_preset, presets
from policies.rewrite.records import proportion
from scenarios.recorded import select as roles
from scenarios.recorded.select import Names
from sim.base.arrays import UNSET, BoolArray, FloatArray, group_pairs
from sim.base.errors import InputError, UnitError, UnknownNameError, error_path
from sim.base.units import DURATION, parse_duration
from sim.explain.communication import INSIDE, inside_ns
from sim.graph.graph import Graph
from sim.machine.device import Device

# ----------------------------------------------------------------------------------------------------------
# A what-if changes a duration by a factor (``x0.5``), or to a new value (``2us``).

_FACTOR: Final = re.compile(r"\s*[x×]\s*([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)\s*")
_MAX_FACTOR: Final = 1_000_000


class Change(NamedTuple):
    """A factor, or a new value.

    Examples
    --------
    >>> Change(Fraction(1, 2)).apply([3, 10]), Change(value_ns=2000).apply([3, 10])
    ([2, 5], [2000, 2000])
    """

    factor: Fraction = Fraction(1)
    value_ns: int | None = None

    def apply(self, durations_ns: Iterable[int]) -> list[int]:
        """Return the durations after the change, each rounded half up."""
        if self.value_ns is not None:
            return [self.value_ns for _ in durations_ns]
        return [proportion(ns, self.factor.numerator, self.factor.denominator) for ns in durations_ns]

    def apply_to_part(self, part_ns: int, whole_ns: int) -> int:
        """Return a part of a duration after the change; its share of the whole stays the same."""
        if self.value_ns is None:
            return self.apply([part_ns])[0]
        return proportion(self.value_ns, part_ns, whole_ns)


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
    match = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InputError(f"{value!r} is no factor such as x0.5")
    factor = Fraction(match[1])
    if factor > _MAX_FACTOR:
        raise InputError(f"{value!r} is more than the x{_MAX_FACTOR:,} that there may be")
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

_PART_KEYS = "call_ns", "rest_of_call_ns", INSIDE
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
                graph = _change_communication(graph, names, change)
            else:
                graph = _change_durations(graph, names.find(word), change, stays=word == "kernels")
    return graph


def more_bandwidth(graph: Graph, collectives: Fraction, transfers: Fraction) -> Graph:
    """Return a graph whose links have a multiple of their bandwidth.

    All time of a copy, or of a collective's transfer, is attributed to bandwidth, including latency, which
    a recording does not distinguish. The result is thus the largest possible effect of bandwidth.
    """
    if collectives != 1:
        graph = _change_communication(graph, None, Change(1 / collectives))
    if transfers != 1:
        graph = _change_durations(
            graph, roles.transfers(graph) & ~roles.collectives(graph), Change(1 / transfers)
        )
    return graph


def faster_host(graph: Graph, factor: Fraction) -> Graph:
    """Return a graph with the host's own work, including launches, scaled by a factor.

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
        parts.append((op, "call_ns", call_ns, change.apply_to_part(call_ns, whole_ns)))
        if after is not None and rest_ns:
            parts.append((after, "rest_of_call_ns", rest_ns, change.apply_to_part(rest_ns, whole_ns)))
    return _with_parts(graph, parts)


def other_gap(graph: Graph, change: Change) -> Graph:
    """Return the graph of a recording with the gap between kernels of its GPUs scaled or replaced.

    Raises
    ------
    InputError
        The recording does not show a gap.
    """
    gaps = {pin: facts["gap"] for pin, facts in graph.device_facts.items() if "gap" in facts}
    if not gaps:
        raise InputError("this recording does not tell the gap between kernels")
    new_gaps = {pin: f"{change.apply([parse_duration(gap)])[0]}ns" for pin, gap in gaps.items()}
    if new_gaps == gaps:
        return graph
    changed = {pin: {**graph.device_facts[pin], "gap": gap} for pin, gap in new_gaps.items()}
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
    number = graph.attribute("thread")
    threads = group_pairs(((int(graph.pin_code[op]), number[op]), op) for op in number)
    return {op: after for thread in threads.values() for op, after in pairwise(thread)}


def _change_communication(graph: Graph, names: Names | None, change: Change) -> Graph:
    """Return a graph with changed durations of collectives, and of other ops' own communication."""
    communication_ns = inside_ns(graph)
    parts = np.flatnonzero(communication_ns).tolist() if change.value_ns is None else []
    if names is not None and not parts:
        names.find("collectives")  # raises if the graph has none
    graph = _change_durations(graph, roles.collectives(graph), change)
    before_ns = communication_ns[parts].tolist()
    changed = zip(parts, before_ns, change.apply(before_ns), strict=True)
    return _with_parts(graph, [(op, INSIDE, ns, now) for op, ns, now in changed])


def _change_durations(graph: Graph, selected: BoolArray, change: Change, *, stays: bool = False) -> Graph:
    """Return a graph with changed durations of some ops; the same graph if nothing changes.

    With `stays` the ops' own communication keeps its duration.
    """
    ops = np.flatnonzero(selected)
    fixed_ns = inside_ns(graph) if stays else np.zeros(len(graph), np.int64)
    single_rank = selected & roles.collectives(graph) & ~roles.has_key(graph, "communicator")
    single_rank &= roles.is_recording(graph)
    if single_rank.any():
        problem = "some collectives are of one rank alone: what they waited for other ranks"
        warnings.warn(f"{problem} is part of their time, and changes with it", stacklevel=4)
    old_columns = [graph.duration_ns, *graph.duration_by_kind.values()]
    unknown = ops[graph.longest_ns()[ops] == UNSET]
    if len(unknown):
        name = graph.op_names[int(unknown[0])]
        problem = f"{len(unknown)} of {len(ops)} ops, {name!r} for one, have no duration of their own"
        raise InputError(f"{problem} but that of a device's cost model; a what-if changes given ones")
    columns = []
    for column in old_columns:
        timed, new = ops[column[ops] != UNSET], column.copy()
        new[timed] = fixed_ns[timed] + change.apply((column[timed] - fixed_ns[timed]).tolist())
        columns.append(new)
    if all((new == column).all() for new, column in zip(columns, old_columns, strict=True)):
        return graph
    attributes = dict(graph.attributes)
    if change.value_ns is None:
        for op in ops.tolist():
            op_attributes = attributes.get(op, {})
            parts = {
                key: change.apply([int(op_attributes[key])])[0]
                for key in _PART_KEYS
                if key in op_attributes and not (stays and key == INSIDE)
            }
            if parts:
                attributes[op] = {**op_attributes, **parts}
    by_kind = dict(zip(graph.duration_by_kind, columns[1:], strict=True))
    return replace(graph, duration_ns=columns[0], duration_by_kind=by_kind, attributes=attributes)


# ----------------------------------------------------------------------------------------------------------
# What if the program had run on another GPU: recorded durations, converted by the models of both GPUs.
#
# ::
#
#     sizes or bytes known   the other GPU's cost model (`devices.cost`), times the ratio of recorded and
#                            modelled time on its own GPU: all of it in one generation, else its square root
#     its kind moves data    the ratio of the bandwidths                      (elementwise, copy, reduce, ...)
#     any other kind         between the ratio of bandwidths and that of peak rates in its data type (else
#                            in those that both devices have)
#     ... with fewer blocks than SMs   between that and 1: it is bound by latencies, not rates
#
# The middle of a range is its geometric mean. Collectives, copies between host and device, and the host stay
# as they are; launch latency and gaps are the device's.
#
# The ratio of actual to modelled time is partly the same on another GPU: 0.70 of its logarithm in one
# generation, 0.46 across generations, from the same kernels on pairs of GPUs (`studies.kernels.moved`). In a
# recording the ratio is larger: its library, strides and caches are not those of the tables.

Bound = Literal["low", "middle", "high"]
"""Which end, or the middle, of the range of possible durations."""

_CARRIED_OVER: Final = 0.5
"""Share of the logarithm of actual over modelled time that carries over to another generation of GPU."""
_DOUBTFUL_RATIO: Final = 2.5
"""Doubtful ratio of actual to modelled time: recordings of six GPUs had 0.9 to 1.9."""
_MAX_RATIO: Final = 20.0
"""Beyond this ratio, or its inverse, the kernel must have other sizes than those given."""
_MOVING_KINDS: Final = frozenset(
    {"elementwise", "copy", "fill", "reduce", "gather", "layer_norm", "batch_norm", "softmax", "cat"}
)


class _Gpu(NamedTuple):
    name: str
    generation: str
    device: Device
    roofline: Any
    """Its peak rates and bandwidth."""

    @classmethod
    def from_preset(cls, name: str) -> _Gpu:
        """Return the GPU of a preset, given its name or the beginning of it."""
        names = _gpu_presets()
        fitting = [preset for preset in names if preset == name] or [x for x in names if x.startswith(name)]
        if len(fitting) > 1:  # several boards: prefer that of a server
            fitting = [preset for preset in fitting if "-sxm" in preset] or fitting
        if len(fitting) > 1:
            raise InputError(f"{name!r} may be {' or '.join(fitting)}")
        if not fitting:
            raise UnknownNameError("GPU preset", name, names)
        spec = {"preset": fitting[0]}
        roofline = make_device("gpu0", {**spec, "cost": "roofline"}).cost
        generation = device_preset(fitting[0]).get("generation", fitting[0])
        return cls(fitting[0], generation, make_device("gpu0", spec), roofline)

    def ask(self, graph: Graph) -> tuple[FloatArray, FloatArray]:
        """Return the ns of each op, NaN if unknown, and the log half widths."""
        cost = self.device.cost
        assert cost is not None  # presets of GPUs have one
        ns, width = cost.durations_ns(graph, self.device).astype(float), cost.spread(graph, self.device)
        return np.where(ns > 0, ns, np.nan), np.nan_to_num(width)


def on_device(graph: Graph, source: str, target: str, bound: Bound = "middle") -> Graph:
    """Return the graph with the durations that its kernels would have on another GPU.

    Parameters
    ----------
    graph : Graph
    source, target : str
        Presets of the GPU of the recording and of the other one, or the beginning of their names.
    bound : str
        Low end, middle or high end of the possible durations; with a cost model, the ends are those
        of its 80 % interval.

    Raises
    ------
    InputError
        There is no such preset, it has no rates, or there are no kernels.

    Warns
    -----
    UserWarning
        How far apart the ends are, and what is unknown; or `source` is not the GPU of the recording.
    """
    from devices.cost.cost_warnings import warn_of_plain_ops

    with error_path("from"):
        before = _Gpu.from_preset(source)
    with error_path("to"):
        after = _Gpu.from_preset(target)
    if (contradiction := _recorded_elsewhere(graph, source)) is not None:
        warnings.warn(contradiction, stacklevel=2)
    kernels = roles.tasks(graph) & ~roles.collectives(graph) & ~roles.transfers(graph)
    if not kernels.any():
        raise InputError("there is no kernel of a GPU")
    if before.name == after.name:
        return graph
    untimed = np.where(kernels, UNSET, graph.duration_ns)
    warn_of_plain_ops(replace(graph, duration_ns=untimed, duration_by_kind={}), [after.device])
    low, high, sized, small = _ratios(graph, kernels, before, after)
    ends = {"low": low, "middle": np.sqrt(low * high), "high": high}
    before_ns = graph.duration_ns[kernels]
    ns = graph.duration_ns.copy()
    ns[kernels] = np.floor(before_ns * ends[bound] + 0.5).astype(np.int64)
    if (ns == graph.duration_ns).all():
        return graph
    text = {end: f"x{(before_ns * r).sum() / max(before_ns.sum(), 1):.2f}" for end, r in ends.items()}
    warnings.warn(
        f"device: kernels take {text['low']} to {text['high']} of their time on {target}, taken as "
        f"{text[bound]}; the sizes of {sized} of {len(before_ns)} are known, {small} others are too small to "
        "fill the GPU; communication, copies and the host keep their times",
        stacklevel=2,
    )
    facts = {pin: {**old, "description": target} for pin, old in graph.device_facts.items()}
    return replace(graph, duration_ns=ns, device_facts=facts)


def moved_ns(
    ns: npt.ArrayLike, source_ns: FloatArray, target_ns: FloatArray, *, same_generation: bool
) -> FloatArray:
    """Return times on another GPU of kernels that took `ns`, given the times of both GPUs' models.

    Examples
    --------
    >>> moved_ns(90.0, np.array([10.0]), np.array([20.0]), same_generation=False)
    array([60.])
    """
    ratio: FloatArray = np.asarray(ns) / source_ns
    return target_ns * ratio ** (1.0 if same_generation else _CARRIED_OVER)


def _ratios(
    graph: Graph, kernels: BoolArray, before: _Gpu, after: _Gpu
) -> tuple[FloatArray, FloatArray, int, int]:
    """Return the lowest and highest factor of each kernel's time; the number of kernels of known size, and of
    others with fewer blocks than the GPU has SMs.
    """
    (source_ns, _), (target_ns, width) = (gpu.ask(graph) for gpu in (before, after))
    same = before.generation == after.generation
    modelled = kernels & np.isfinite(source_ns)
    ratio = graph.duration_ns[modelled].sum() / max(source_ns[modelled].sum(), 1.0)
    if modelled.any() and not 1 / _DOUBTFUL_RATIO < ratio < _DOUBTFUL_RATIO:
        problem = f"recorded kernels take x{ratio:.3g} of what the cost model of {before.name} says"
        warnings.warn(f"device: from: {problem}: is it the GPU of the recording?", stacklevel=3)
    with np.errstate(divide="ignore", invalid="ignore"):
        plausible = np.abs(np.log(graph.duration_ns / source_ns)) < np.log(_MAX_RATIO)
        moved = moved_ns(graph.duration_ns, source_ns, target_ns, same_generation=same) / graph.duration_ns
    middle = np.where(plausible, moved, np.nan)[kernels]
    low, high = middle * np.exp(-width[kernels]), middle * np.exp(width[kernels])
    small, unknown = 0, np.flatnonzero(np.isnan(middle))
    for i, op in zip(unknown.tolist(), np.flatnonzero(kernels)[unknown].tolist(), strict=True):
        low[i], high[i] = _ratio_range(graph, op, before, after)
        grid = graph.attributes.get(op, {}).get("grid")
        if grid is not None and math.prod(grid) < (before.device.details.sms or 0):
            low[i], high[i], small = min(low[i], 1.0), max(high[i], 1.0), small + 1
    return low, high, len(middle) - len(unknown), small


def _ratio_range(graph: Graph, op: int, before: _Gpu, after: _Gpu) -> tuple[float, float]:
    memory = before.roofline.bandwidth_bytes_per_s / after.roofline.bandwidth_bytes_per_s
    if graph.kind(op) in _MOVING_KINDS:
        return memory, memory
    peak, other_peak = (gpu.roofline.peak_flop_per_s for gpu in (before, after))
    shared = [d for d in peak if d in other_peak]
    code = int(graph.dtype_code[op])
    dtype = graph.dtypes[code] if code >= 0 else None
    compared = [dtype] if dtype in shared else [d for d in shared if d in ("fp32", "tf32", "fp16", "bf16")]
    ratios = [memory, *(peak[d] / other_peak[d] for d in compared)]
    return min(ratios), max(ratios)


def is_of_model(description: str, preset: str) -> bool:
    """Whether a GPU, named by its driver or by a preset, is of the model that another preset describes.

    Only the model is compared: the beginning of presets' names, and a word in drivers' names. Sizes and
    boards are written in too many ways.

    Examples
    --------
    >>> is_of_model("NVIDIA H100 80GB HBM3", "h100-sxm"), is_of_model("NVIDIA RTX PRO 5000", "rtx-pro-6000")
    (True, False)
    """
    model = re.findall(r"^rtx[\w-]+|[a-z0-9]+", preset)[0].split("-")
    return {*model} <= {*re.findall("[a-z0-9]+", description.lower())}


def _recorded_elsewhere(graph: Graph, source: str) -> str | None:
    """Return what is wrong if the recording names another GPU than `source`, else None."""
    names = _gpu_presets()
    for facts in graph.device_facts.values():
        models = [name for name in names if is_of_model(facts.get("description", ""), name)]
        if models and not any(name.startswith(source) for name in models):
            known_as = f"{facts['description']} ({' or '.join(models)})"
            return f"device: from: {source} is not the GPU of the recording, {known_as}: the rates are wrong"
    return None


def _gpu_presets() -> list[str]:
    return [preset.name for preset in presets() if {"peak", "sms"} <= device_preset(preset.name).keys()]
