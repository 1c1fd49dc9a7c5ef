"""What is compared: the interpolated table, the fitted model, and rooflines, trained on some shapes only.

A predictor is a function ``train(shapes, latency_ns) -> predict``, and ``predict(shapes)`` returns latencies
and where it would warn. The plain roofline is trained on nothing: it is the data sheet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from devices.cost.attention import AttentionParameters, attention_ns, visible_pairs
from devices.cost.collective_fit import COLLECTIVES, NcclParameters, collective_ns
from devices.cost.cost_table import CostTable
from devices.cost.fitted import Region
from devices.cost.gemm import GemmParameters, gemm_ns
from devices.cost.parameters import from_vector, parameter, ranges
from devices.cost.roofline import KindEfficiency, roofline_ns
from devices.cost.unreliable import may_take_twice
from studies.h200.crossval import BoolArray, IntArray, Predict, Train
from studies.h200.measured import H200
from studies.h200.optimise import minimise_in_box

__all__ = [
    "KNOWN_REGIONS", "Problem", "RooflineParameters", "attention_problem", "collective_problem", "fit",
    "gemm_problem", "trainers",
]  # fmt: skip

P = TypeVar("P")

KNOWN_REGIONS = tuple(
    Region(
        known["model"], {size: (low, high) for size, (low, high) in known["where"].items()}, known["because"]
    )
    for known in H200["unreliable"]
)
"""Where the models are off by more than a factor of 2; every such shape elsewhere is counted by the fit."""
_PEAKS = H200["peaks"]
_SAMPLE = 3000  # shapes that a fit looks at: more change the parameters by less than the folds differ
_RESTARTS, _ITERATIONS = 3, 250


@dataclass(frozen=True)
class RooflineParameters:
    """A roofline with losses: what is left of the model when tiles, waves and caches are not looked at."""

    overhead_ns: float = parameter(3000, 100, 20000, "launch and drain")
    efficiency: float = parameter(0.7, 0.1, 1, "share of the peak flop rate that large ops reach")
    memory_efficiency: float = parameter(0.8, 0.1, 1, "share of the peak bandwidth that large ops reach")
    half_flops: float = parameter(1e9, 1e6, 1e11, "work at which half of the flop rate is reached")
    half_bytes: float = parameter(1e6, 1e4, 1e8, "traffic at which half of the bandwidth is reached")

    def to_kind_efficiency(self) -> KindEfficiency:
        """Return the same in the whole units of :mod:`devices.cost.roofline`."""
        return KindEfficiency(
            efficiency=float(f"{self.efficiency:.6g}"),
            memory_efficiency=float(f"{self.memory_efficiency:.6g}"),
            half_flops=int(self.half_flops + 0.5),
            half_bytes=int(self.half_bytes + 0.5),
            overhead_ns=int(self.overhead_ns + 0.5),
        )


@dataclass(frozen=True)
class Problem:
    """One kind of op: its measured table, its model and its work and traffic.

    Attributes
    ----------
    name : str
        ``"gemm"`` or ``"attention"``.
    table : CostTable
        What was measured.
    layer : tuple of int
        The columns of a shape that make its layer.
    size : int
        The column of which whole values are held out, to see what happens between the lines of a grid.
    parameters : type
        The model's parameter class.
    model_ns : callable
        From shapes and parameters to durations.
    work : callable
        From shapes to flops and bytes, the least that the op must do and move.
    bandwidth_bytes_per_s : int
        Of what moves the bytes.
    """

    name: str
    table: CostTable
    layer: tuple[int, ...]
    size: int
    parameters: type[Any]
    model_ns: Callable[[IntArray, Any], IntArray]
    work: Callable[[IntArray], tuple[IntArray, IntArray]]
    bandwidth_bytes_per_s: int = _PEAKS["bandwidth_bytes_per_s"]


def _gemm_model(shapes: IntArray, parameters: GemmParameters) -> IntArray:
    m, n, k = shapes.T
    return gemm_ns(m, n, k, parameters)


def _gemm_work(shapes: IntArray) -> tuple[IntArray, IntArray]:
    m, n, k = shapes.T
    return 2 * m * n * k, 2 * (m * n + n * k + m * k)


def _attention_sizes(shapes: IntArray) -> tuple[IntArray, ...]:
    """From a table's shape (batch x heads, length, heads per kv head, ...) to the model's arguments."""
    batch_heads, seq_len, group, kv_heads, head_dim, window = shapes.T
    return batch_heads // (group * kv_heads), seq_len, group * kv_heads, kv_heads, head_dim, window


def _attention_model(shapes: IntArray, parameters: AttentionParameters) -> IntArray:
    batch, seq_len, heads, kv_heads, head_dim, window = _attention_sizes(shapes)
    return attention_ns(batch, seq_len, heads, kv_heads, head_dim, parameters, window=window)


def _attention_work(shapes: IntArray) -> tuple[IntArray, IntArray]:
    batch, seq_len, heads, kv_heads, head_dim, window = _attention_sizes(shapes)
    flops = 4 * batch * heads * visible_pairs(seq_len, window) * head_dim
    return flops, 4 * batch * seq_len * (heads + kv_heads) * head_dim


def _collective_model(shapes: IntArray, parameters: NcclParameters) -> IntArray:
    duration = np.empty(len(shapes), np.int64)
    for number, name in enumerate(COLLECTIVES):
        rows = shapes[:, 0] == number
        duration[rows] = collective_ns(name, shapes[rows, 1], shapes[rows, 2], parameters)
    return duration


def _collective_work(shapes: IntArray) -> tuple[IntArray, IntArray]:
    """No arithmetic; what a rank must send: its share of the others' data, twice for a ring's all-reduce."""
    number, ranks, nbytes = shapes.T
    rounds = np.where(number == COLLECTIVES.index("all_reduce"), 2, 1)
    return np.zeros_like(nbytes), rounds * (ranks - 1) * nbytes // ranks


def gemm_problem(table: CostTable) -> Problem:
    """Return matrix products; a layer is a weight matrix n x k."""
    return Problem("gemm", table, (1, 2), 2, GemmParameters, _gemm_model, _gemm_work)


def attention_problem(table: CostTable) -> Problem:
    """Return prefill attention; a layer is a head configuration."""
    return Problem(
        "attention", table, (2, 3, 4, 5), 1, AttentionParameters, _attention_model, _attention_work
    )


def collective_problem(table: CostTable) -> Problem:
    """Return collectives of one node; a layer is a collective with a number of ranks."""
    return Problem(
        "collective",
        table,
        (0, 1),
        2,
        NcclParameters,
        _collective_model,
        _collective_work,
        _PEAKS["link_bytes_per_s"],
    )


def fit(
    kind: type[P],
    model_ns: Callable[[IntArray, P], IntArray],
    shapes: IntArray,
    latency_ns: IntArray,
    seed: int,
) -> P:
    """Return the parameters with the least mean ``|log(predicted / measured)|`` on a sample of the shapes.

    The loss is nearly the mean relative error, symmetric between too short and too long; no single shape can
    dominate it.
    """
    rows = np.random.default_rng(seed).permutation(len(shapes))[:_SAMPLE]
    sample, log_ns = shapes[rows], np.log(latency_ns[rows])

    def loss(values: npt.NDArray[np.float64]) -> float:
        return float(np.abs(np.log(model_ns(sample, from_vector(kind, values))) - log_ns).mean())

    starts, lows, highs = ranges(kind)
    best, _ = minimise_in_box(loss, starts, lows, highs, restarts=_RESTARTS, iterations=_ITERATIONS)
    return from_vector(kind, best)


def trainers(problem: Problem, seed: int) -> dict[str, Train]:
    """Return the predictors by name: ``table``, ``model``, ``fitted roofline``, ``plain roofline``."""

    def table(shapes: IntArray, latency_ns: IntArray) -> Predict:
        trained = dataclasses.replace(problem.table, shapes=shapes, latency_ns=latency_ns)

        def predict(asked: IntArray) -> tuple[IntArray, BoolArray]:
            found = trained.estimate(asked)
            return found.latency_ns, found.doubtful

        return predict

    def model(shapes: IntArray, latency_ns: IntArray) -> Predict:
        found = fit(problem.parameters, problem.model_ns, shapes, latency_ns, seed)
        return lambda asked: (problem.model_ns(asked, found), _doubtful(problem, asked))

    def fitted_roofline(shapes: IntArray, latency_ns: IntArray) -> Predict:
        found = fit(RooflineParameters, roofline_model(problem), shapes, latency_ns, seed)
        return lambda asked: (roofline_model(problem)(asked, found), np.zeros(len(asked), np.bool_))

    def plain_roofline(shapes: IntArray, latency_ns: IntArray) -> Predict:
        return lambda asked: (_roofline(problem, asked, KindEfficiency()), _exceeded(problem, asked))

    return {
        "table": table,
        "model": model,
        "fitted roofline": fitted_roofline,
        "plain roofline": plain_roofline,
    }


def _doubtful(problem: Problem, shapes: IntArray) -> BoolArray:
    """Return which shapes lie in a region where the model warns."""
    names = [axis.name for axis in problem.table.axes]
    sizes = dict(zip(names, shapes.T, strict=True))
    inside = np.zeros(len(shapes), np.bool_)
    for region in KNOWN_REGIONS:
        if region.model == problem.name:
            inside |= region.contains(sizes)
    return inside


def _exceeded(problem: Problem, shapes: IntArray) -> BoolArray:
    """Return which shapes may take more than twice their plain roofline."""
    flops, nbytes = problem.work(shapes)
    arithmetic_ns = flops / _PEAKS["flop_per_s"] * 1e9
    traffic_ns = nbytes / problem.bandwidth_bytes_per_s * 1e9
    return may_take_twice(problem.table.kind, arithmetic_ns, traffic_ns)


def roofline_model(problem: Problem) -> Callable[[IntArray, RooflineParameters], IntArray]:
    """Return the roofline of a problem as a model of its parameters."""
    return lambda shapes, parameters: _roofline(problem, shapes, parameters.to_kind_efficiency())


def _roofline(problem: Problem, shapes: IntArray, known: KindEfficiency) -> IntArray:
    flops, nbytes = problem.work(shapes)
    return roofline_ns(
        flops,
        nbytes,
        peak_flop_per_s=_PEAKS["flop_per_s"],
        bandwidth_bytes_per_s=problem.bandwidth_bytes_per_s,
        **dataclasses.asdict(known),
    )
