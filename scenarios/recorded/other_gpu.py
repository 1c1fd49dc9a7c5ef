"""What if the program had run on another GPU: recorded durations, scaled by the rates of both.

A kernel takes the ratio of its rooflines on the two devices. Both are plain rooflines, from peak rates, so
that what real kernels lose against them cancels, as far as they lose alike. What a recording tells of a
kernel decides how well the ratio is known::

    its flop and bytes         the ratio of the two rooflines
    its kind moves data        the ratio of the bandwidths             (elementwise, copy, reduce, gather ...)
    any other kind             between the ratio of bandwidths and that of peak rates in its data type (of its
                               name: "bf16", "f16", "tf32", "sgemm"; else of all that both devices have)
    fewer blocks than SMs      between that and 1: it waits for latencies, not for rates

The middle of a range is its geometric mean. Collectives, copies between host and device, and the host stay
as they are; launch latency and gaps are the device's.

The roofline: Williams, Waterman and Patterson (CACM 52(4), 2009). Rates: `devices.presets`.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from devices.describe.field_types import DEFAULT
from devices.presets import device_preset, presets
from scenarios.recorded import select as roles
from sim.base.errors import InputError, UnknownNameError, located
from sim.base.units import parse_bandwidth, parse_flop_rate, round_half_up
from sim.graph.graph import Graph

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
    return replace(graph, duration_ns=ns)


def _recorded_elsewhere(graph: Graph, source: str) -> str | None:
    """Return what is wrong where the recording names another GPU than `source`; None: nothing is known to be.

    The model counts (``h100``): it is how names of presets begin, and a word in what drivers call a GPU
    (``NVIDIA H100 80GB HBM3``). Sizes and boards are written in too many ways.
    """
    known = _gpu_presets()
    for facts in graph.device_facts.values():
        words = re.findall("[a-z0-9]+", facts.get("description", "").lower())
        own = [name for name in known if name.partition("-")[0] in words]
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
