"""What if the program had run on another GPU: recorded durations, converted by the models of both GPUs.

::

    sizes or bytes known   the other GPU's cost model (`devices.cost`), times the ratio of recorded and
                           modelled time on its own GPU: all of it in one generation, else its square root
    its kind moves data    the ratio of the bandwidths                      (elementwise, copy, reduce, ...)
    any other kind         between the ratio of bandwidths and that of peak rates in its data type (else
                           in those that both devices have)
    ... with fewer blocks than SMs   between that and 1: it is bound by latencies, not rates

The middle of a range is its geometric mean. Collectives, copies between host and device, and the host stay
as they are; launch latency and gaps are the device's.

The ratio of actual to modelled time is partly the same on another GPU: 0.70 of its logarithm in one
generation, 0.46 across generations, from the same kernels on pairs of GPUs (`studies.kernels.moved`). In a
recording the ratio is larger: its library, strides and caches are not those of the tables.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from devices.describe.field_types import DEFAULT
from devices.machine import make_device
from devices.presets import device_preset, presets
from scenarios.recorded import select as roles
from sim.base.arrays import BoolArray, FloatArray
from sim.base.errors import InputError, UnknownNameError, error_path
from sim.base.units import parse_bandwidth, parse_flop_rate
from sim.graph.graph import Graph
from sim.machine.device import Device

Bound = Literal["low", "middle", "high"]
"""Which end, or the middle, of the range of possible durations."""

_SHARED: Final = 0.5
"""Share of the logarithm of actual over modelled time that carries over to another generation of GPU."""
_DOUBTFUL: Final = 2.5
"""Doubtful ratio of actual to modelled time: recordings of six GPUs had 0.9 to 1.9."""
_ANOTHER: Final = 20.0
"""Beyond this ratio, or its inverse, the kernel must have other sizes than given."""
_MOVES: Final = frozenset(
    {"elementwise", "copy", "fill", "reduce", "gather", "layer_norm", "batch_norm", "softmax", "cat"}
)


class _Gpu(NamedTuple):
    name: str
    generation: str
    peak: dict[str, int]
    bandwidth: int
    sms: int
    device: Device

    @classmethod
    def of(cls, name: str) -> _Gpu:
        """Return the GPU of a preset, given its name or the beginning of it."""
        known = _gpu_presets()
        fitting = [each for each in known if each == name] or [x for x in known if x.startswith(name)]
        if len(fitting) > 1:  # several boards: prefer that of a server
            fitting = [each for each in fitting if "-sxm" in each] or fitting
        if len(fitting) > 1:
            raise InputError(f"{name!r} may be {' or '.join(fitting)}")
        if not fitting:
            raise UnknownNameError("GPU preset", name, known)
        spec: dict[str, Any] = device_preset(fitting[0])
        peak = spec["peak"] if isinstance(spec["peak"], dict) else {DEFAULT: spec["peak"]}
        return cls(
            fitting[0],
            spec.get("generation", fitting[0]),
            {dtype: parse_flop_rate(rate) for dtype, rate in peak.items()},
            parse_bandwidth(spec["bandwidth"]),
            int(spec["sms"]),
            make_device("gpu0", {"preset": fitting[0]}),
        )

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
    with error_path("from"):
        before = _Gpu.of(source)
    with error_path("to"):
        after = _Gpu.of(target)
    if (contradiction := _recorded_elsewhere(graph, source)) is not None:
        warnings.warn(contradiction, stacklevel=2)
    which = roles.tasks(graph) & ~roles.collectives(graph) & ~roles.transfers(graph)
    if not which.any():
        raise InputError("there is no kernel of a GPU")
    if before.name == after.name:
        return graph
    low, high, known, few = _ratios(graph, which, before, after)
    ends = {"low": low, "middle": np.sqrt(low * high), "high": high}
    was = graph.duration_ns[which]
    ns = graph.duration_ns.copy()
    ns[which] = np.floor(was * ends[bound] + 0.5).astype(np.int64)
    if (ns == graph.duration_ns).all():
        return graph
    of = {end: f"x{(was * each).sum() / max(was.sum(), 1):.2f}" for end, each in ends.items()}
    warnings.warn(
        f"device: kernels take {of['low']} to {of['high']} of their time on {target}, taken as {of[bound]}; "
        f"the sizes of {known} of {len(was)} are known, {few} others are too small to fill the GPU",
        stacklevel=2,
    )
    facts = {pin: {**own, "description": target} for pin, own in graph.device_facts.items()}
    return replace(graph, duration_ns=ns, device_facts=facts)


def moved_ns(
    ns: npt.ArrayLike, own_ns: FloatArray, other_ns: FloatArray, *, same_generation: bool
) -> FloatArray:
    """Return times on another GPU of kernels that took `ns`, given both models' times `own_ns`, `other_ns`.

    Examples
    --------
    >>> moved_ns(90.0, np.array([10.0]), np.array([20.0]), same_generation=False)
    array([60.])
    """
    beyond: FloatArray = np.asarray(ns) / own_ns
    return other_ns * beyond ** (1.0 if same_generation else _SHARED)


def _ratios(
    graph: Graph, which: BoolArray, before: _Gpu, after: _Gpu
) -> tuple[FloatArray, FloatArray, int, int]:
    """Return the lowest and highest factor of each kernel's time; the number of kernels of known size, and of
    others with fewer blocks than the GPU has SMs.
    """
    (own, _), (other, width) = (gpu.ask(graph) for gpu in (before, after))
    same = before.generation == after.generation
    sure = which & np.isfinite(own)
    beyond = graph.duration_ns[sure].sum() / max(own[sure].sum(), 1.0)
    if sure.any() and not 1 / _DOUBTFUL < beyond < _DOUBTFUL:
        warnings.warn(
            f"device: from: recorded kernels take x{beyond:.3g} of what the cost model of {before.name} "
            "says: is it the GPU of the recording?",
            stacklevel=3,
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        its_own = np.abs(np.log(graph.duration_ns / own)) < np.log(_ANOTHER)
        moved = moved_ns(graph.duration_ns, own, other, same_generation=same) / graph.duration_ns
    middle = np.where(its_own, moved, np.nan)[which]
    low, high = middle * np.exp(-width[which]), middle * np.exp(width[which])
    few, unknown = 0, np.flatnonzero(np.isnan(middle))
    for i, op in zip(unknown.tolist(), np.flatnonzero(which)[unknown].tolist(), strict=True):
        low[i], high[i] = _by_kind(graph, op, before, after)
        grid = graph.attributes.get(op, {}).get("grid")
        if grid is not None and math.prod(grid) < before.sms:
            low[i], high[i], few = min(low[i], 1.0), max(high[i], 1.0), few + 1
    return low, high, len(middle) - len(unknown), few


def _by_kind(graph: Graph, op: int, before: _Gpu, after: _Gpu) -> tuple[float, float]:
    memory = before.bandwidth / after.bandwidth
    if graph.kind(op) in _MOVES:
        return memory, memory
    both = [dtype for dtype in before.peak if dtype in after.peak]
    code = int(graph.dtype_code[op])
    given = graph.dtypes[code] if code >= 0 else None
    asked = [given] if given in both else [d for d in both if d in ("fp32", "tf32", "fp16", "bf16")]
    ratios = [memory, *(before.peak[d] / after.peak[d] for d in asked)]
    return min(ratios), max(ratios)


def is_of_model(description: str, preset: str) -> bool:
    """Whether a GPU, given as its driver's name for it or as a preset, is of the model of a preset.

    Only the model is compared: the beginning of presets' names, and a word in drivers' names. Sizes and
    boards are written in too many ways.

    Examples
    --------
    >>> is_of_model("NVIDIA H100 80GB HBM3", "h100-sxm"), is_of_model("Tesla T4", "a100-pcie-40")
    (True, False)
    """
    model = re.findall("^rtx-pro|[a-z0-9]+", preset)[0].split("-")
    return {*model} <= {*re.findall("[a-z0-9]+", description.lower())}


def _recorded_elsewhere(graph: Graph, source: str) -> str | None:
    """Return what is wrong if the recording names another GPU than `source`, else None."""
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
