"""Real step time, not only the bubble: 48 measured throughputs of zero-bubble schedules on A100s.

The bare schedule (profiled F, I, W and transfer) promises 9 % more than was measured. Missing are::

    every slot     ┌ d ┐┌──────── k · profiled time ────────┐     d: dispatch of a slot, fitted
    a rank          F0   F1   ...  B0   F4   B1   ...             k: slow-down against the profile, fitted
    the step       └───── schedule ─────┘└ optimizer ┘            from parameters and bandwidth, not fitted

Two parameters are fitted on some of the rows and judged on those left out: by third, model or schedule
(`tools.pages.zero_bubble`).

Rows: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, tables 3, 4, 5 and 9, in
``zero_bubble/measured.csv``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from policies.pipeline.evaluate import (
    StageTimes,
    Turn,
    closed_form,
    evaluate,
    transformer_activations,
    with_senders,
)
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.registry import generate
from sim.base.errors import InputError
from sim.base.files import read_table
from sim.base.units import round_half_up

SCHEDULES: Final = ("1F1B", "1F1B-I", "ZB-1p", "ZB-2p")

_FILE: Final = Path(__file__).resolve().parents[2] / "scenarios/examples/zero_bubble/measured.csv"
_SEQUENCE: Final = 1024
_VOCABULARY: Final = 50304

OPTIMIZER_BYTES: Final = 30
"""Bytes per parameter that Adam in mixed precision reads and writes: gradient, master weight and two moments
are read (4 bytes each), the latter three and the 16-bit weight written."""

BANDWIDTH_BYTES_PER_S: Final = 1_631_200_000_000
"""80 % of an A100 80GB SXM's 2,039 GB/s (NVIDIA A100 datasheet), as reached by streaming kernels."""


@dataclass(frozen=True)
class Measured:
    """One configuration under one schedule.

    Attributes
    ----------
    schedule : str
        One of `SCHEDULES`.
    programs : Schedule
        The order, built from the profiled times, as its authors did.
    model : str
    devices, micro_batches, micro_batch : int
    chunks : int
        Stages per device.
    times_ns : tuple of int
        Profiled F, I, W of a device's layers.
    transfer_ns, optimizer_ns : int
    throughput : float
        Measured samples per GPU and second.
    group : int
        0, 1, 2: fewest, middle, most micro-batches of the model.
    known_ns : dict of Fit to int
        Cache of `schedule_ns`: all fits begin alike.
    """

    schedule: str
    programs: Schedule
    model: str
    devices: int
    micro_batches: int
    micro_batch: int
    chunks: int
    times_ns: tuple[int, int, int]
    transfer_ns: int
    optimizer_ns: int
    throughput: float
    group: int
    known_ns: dict[Fit, int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def synchronous(self) -> bool:
        """Whether all devices wait for the last one before the step, unlike in zero bubble (section 4)."""
        return not self.schedule.startswith("ZB")

    @cached_property
    def turns(self) -> list[Turn]:
        """Dependencies of its schedule, which is evaluated at many times."""
        return list(with_senders(self.programs))


class Fit(NamedTuple):
    """The two parameters: slow-down against the profile, and dispatch of a slot in ns."""

    slow_down: float
    dispatch_ns: float


BARE: Final = Fit(1.0, 0.0)
"""The bare schedule."""


def measured(*models: str) -> list[Measured]:
    """Return the 48 rows, or those of some models, with the order of each.

    Examples
    --------
    >>> rows = measured("1.5B")
    >>> len(rows), rows[0].throughput
    (12, 11.8)
    """
    lines = enumerate(line for _, line in read_table(_FILE)[1])
    of_models = [(i, line) for i, line in lines if not models or line["model"] in models]
    return [_row(line, name, i % 3) for i, line in of_models for name in SCHEDULES]


def _row(line: Mapping[str, str], name: str, group: int) -> Measured:
    count = {key: int(line[key]) for key in ("layers", "hidden", "heads", "devices", "micro_batches")}
    f, i, w, transfer = (
        round_half_up(Fraction(line[f"{key}_ms"]) * 1_000_000)
        for key in ("forward", "input_grad", "weight_grad", "transfer")
    )
    ranks, micro_batches = count["devices"], count["micro_batches"]
    chunks = count["layers"] // ranks if name == "1F1B-I" else 1
    hidden = count["hidden"]
    parameters = (count["layers"] * (12 * hidden + 13) + _VOCABULARY + _SEQUENCE) * hidden
    shape: dict[str, Any] = {"ranks": ranks, "micro_batches": micro_batches}
    if name == "1F1B":
        programs = generate("1f1b", **shape)
    elif name == "1F1B-I":
        programs = generate("interleaved-1f1b", chunks=chunks, **shape)
    else:
        held = transformer_activations(hidden=hidden, heads=count["heads"], sequence=_SEQUENCE)
        programs = generate(
            "zb-auto",
            solver="greedy",
            forward=f,
            input_grad=i,
            weight_grad=w,
            transfer=transfer,
            kept={"backward": held.full, "weight_grad": held.kept},
            in_flight=(1 if name == "ZB-1p" else 2) * ranks,
            **shape,
        )
    per_device = Fraction(OPTIMIZER_BYTES * parameters * 1_000_000_000, ranks * BANDWIDTH_BYTES_PER_S)
    return Measured(
        schedule=name,
        programs=programs,
        model=line["model"],
        devices=ranks,
        micro_batches=micro_batches,
        micro_batch=int(line["micro_batch"]),
        chunks=chunks,
        times_ns=(f, i, w),
        transfer_ns=transfer,
        optimizer_ns=round_half_up(per_device),
        throughput=float(line[name]),
        group=group,
    )


Step = Callable[["Measured", "Fit"], int]
"""A model of the time from one step to the next, in ns."""


def step_ns(row: Measured, by: Fit) -> int:
    """Return the time from one step to the next, from the times of all slots of the schedule.

    If all devices wait for the last one it is the makespan, otherwise the longest span of a
    device: the next step's first forward follows at once. The optimizer is added.
    """
    return schedule_ns(row, by) + row.optimizer_ns


def schedule_ns(row: Measured, by: Fit) -> int:
    """Return the same without the optimizer."""
    known = row.known_ns.get(by)
    if known is None:
        run = evaluate(row.programs, _slots(row, by), transfer=row.transfer_ns, turns=row.turns)
        known = row.known_ns[by] = run.makespan if row.synchronous else max(run.spans)
    return known


def closed_form_ns(row: Measured, by: Fit) -> int:
    """Return the same by textbook formulas, without an order of slots and with free transfers.

    1F1B and 1F1B-I by theirs, ZB-1p by that of ZB-H1, which has its memory, and ZB-2p by that of ZB-H2.
    """
    names = {"1F1B": "1f1b", "1F1B-I": "interleaved-1f1b", "ZB-1p": "zb-h1", "ZB-2p": "zb-h2"}
    form = closed_form(
        names[row.schedule],
        ranks=row.devices,
        micro_batches=row.micro_batches,
        chunks=row.chunks,
        times=_slots(row, by),
    )
    assert form is not None
    return form.value + row.optimizer_ns


def _slots(row: Measured, by: Fit) -> StageTimes:
    def slot(ns: int, parts: int = 1) -> int:
        return round(by.slow_down * ns / parts + by.dispatch_ns)

    f, i, w = row.times_ns
    if row.synchronous:
        return StageTimes(slot(f, row.chunks), slot(i + w, row.chunks))
    return StageTimes(slot(f), None, slot(i), slot(w))


def predict(row: Measured, by: Fit, step: Step = step_ns) -> float:
    """Return predicted samples per GPU and second."""
    return row.micro_batches * row.micro_batch * 1e9 / (row.devices * step(row, by))


def error(row: Measured, by: Fit, step: Step = step_ns) -> float:
    """Return the relative difference of the prediction from the measurement (positive: above)."""
    return predict(row, by, step) / row.throughput - 1


def fit(rows: Sequence[Measured], step: Step = step_ns, *, rounds: int = 2) -> Fit:
    """Fit the two parameters: least squares of relative errors, by Gauss-Newton from the bare schedule.

    Parameters
    ----------
    rows : sequence of Measured
    step : callable
        The model: `step_ns` or `closed_form_ns`.
    rounds : int
        Times are piecewise linear in both parameters, so two rounds suffice.

    Raises
    ------
    InputError
        There are fewer than two rows.
    """
    if len(rows) < 2:
        raise InputError("two parameters cannot be fitted on fewer than two rows")
    at = np.array([BARE.slow_down, BARE.dispatch_ns])
    width = np.array([0.01, 1e5])
    wanted = (
        np.array([row.micro_batches * row.micro_batch / (row.devices * row.throughput) for row in rows]) * 1e9
    )

    def steps(
        x: np.ndarray[tuple[int], np.dtype[np.float64]],
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([step(row, Fit(float(x[0]), float(x[1]))) for row in rows], dtype=np.float64)

    for _ in range(rounds):
        now = steps(at)
        slopes = [(steps(at + width * unit) - now) / wanted for unit in np.eye(2)]
        change, *_ = np.linalg.lstsq(np.stack(slopes, axis=1), (wanted - now) / wanted, rcond=None)
        at = at + change * width
    return Fit(float(at[0]), float(at[1]))


def mean_error(rows: Sequence[Measured], by: Fit, step: Step = step_ns) -> float:
    """Return the mean absolute error of predictions, relative to the measurements."""
    return float(np.mean([abs(error(row, by, step)) for row in rows]))
