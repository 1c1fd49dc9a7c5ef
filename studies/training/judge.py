"""Predict the published steps of each source, compare with simpler rules, and report the errors of all.

::

    source      calibrated on                                judged on
    SimuMax     its system file + 2 numbers of other layouts each layout
    vTrain      data sheet + 6 numbers of other layouts      each layout
    MosaicML    data sheet + 6 numbers of other groups       each group (GPU, model, sequence)
    Bridge      nothing, or three numbers on two of its models    each row
    others      calibrations fitted to the sources above, or other groups of their own

    constant MFU    the median MFU of the rows used for calibration
    formula         the same, with the bubble of the pipeline: 1 + (p − 1)/(v·m)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from scenarios.builders.train.calibration import HostFields, TrainingCalibration, at_rate
from scenarios.builders.train.layout import ORDER
from scenarios.builders.train.step import step_trace
from scenarios.builders.train.training import FULL_ITERATION
from scenarios.workloads.calibrations import (
    CalibrationFields,
    named_calibration,
    read_calibration,
    to_calibration,
)
from scenarios.workloads.train_report import peaks_of
from sim.base.arrays import group_pairs
from studies.training.calibrate import fit, folds, predicted_ms, predictions
from studies.training.published import Published, read_published

STEPS_FILE: Final = "cluster/training_steps.csv.gz"
SIMUMAX_FILE: Final = "cluster/simumax_b200_system.json.gz"


class Sheet(NamedTuple):
    """Preset of a GPU in the rows, and the bandwidth of its NVLink and network, each way, in GB/s."""

    device: str
    node: int
    between: int
    ring: float = 0.75
    """Part of NVLink that an all-gather of 512 MB reaches on eight GPUs: measured on A100 and H100
    (cluster/nccl_a100_h100.csv.gz)."""


SHEETS: Final[Mapping[str, Sheet]] = {
    "A100": Sheet("a100-sxm-80", 300, 25, 0.68),
    "A100_40GB": Sheet("a100-sxm-40", 300, 25, 0.68),
    "H100": Sheet("h100-sxm", 450, 50, 0.73),
    "H200": Sheet("h200-sxm", 450, 50, 0.73),
    "B200": Sheet("b200-sxm", 900, 50),
    "B300": Sheet("b300-sxm", 900, 100),
    "GB200": Sheet("gb200", 900, 50),
    "GB300": Sheet("gb300", 900, 100),
}


def _sheet_of(hardware: str) -> tuple[Sheet, str]:
    """Return the sheet of a GPU in a precision (``h100_80gb bf16``), and the precision."""
    gpu, _, precision = hardware.rpartition(" ")
    of = next(SHEETS[name] for name in sorted(SHEETS, key=len, reverse=True) if gpu.upper().startswith(name))
    return of, {"fp4": "nvfp4"}.get(precision, precision)


def shipped(hardware: str) -> TrainingCalibration:
    """Return the calibration that ships for a GPU, in a precision."""
    of, precision = _sheet_of(hardware)
    return named_calibration(of.device, precision)


@cache
def sheet(hardware: str) -> TrainingCalibration:
    """Return the prior calibration of a GPU in a precision (``h100_80gb bf16``): its kernels alone.

    It also has parts of the peak and of the bandwidth that any GPU might sustain in a long run.
    """
    of, precision = _sheet_of(hardware)
    given = {
        "device": of.device,
        "product": 0.75,
        "attention": {"forward": 0.5, "backward": 0.5},
        "memory_efficiency": {"elementwise": 0.8},
        "gap": "2us",
        "overlap": 0.7,
        "node": {
            "bandwidth": f"{of.node}GB/s",
            "efficiency": {"default": of.ring},
            "latency": {"default": "5us"},
        },
        "network": {"bandwidth": f"{of.between}GB/s", "efficiency": {"default": 0.8}, "latency": "nccl"},
    }
    return to_calibration(CalibrationFields.model_validate(given), hardware, precision)


def _in_precision(of: TrainingCalibration, hardware: str) -> TrainingCalibration:
    """Return a calibration for products in another precision; all else stays as fast as it was."""
    other = sheet(hardware)
    return replace(of, peak=other.peak, attention_peak=other.attention_peak, alone=other.alone)


class Judged(NamedTuple):
    """A row and its predictions, in ms."""

    row: Published
    predicted: float
    constant: float
    formula: float


class Error(NamedTuple):
    """Errors of predictions, as shares of the measurements."""

    rows: int
    mean: float
    median: float
    bias: float
    worst: float

    @classmethod
    def of(cls, predicted: Sequence[float], measured: Sequence[float]) -> Error:
        """Return the errors of predictions."""
        off = np.array(predicted) / np.array(measured) - 1
        size = np.abs(off)
        return cls(len(off), float(size.mean()), float(np.median(size)), float(off.mean()), float(size.max()))


@dataclass(frozen=True)
class Judgement:
    """The judged rows of a source.

    Attributes
    ----------
    title, how : str
        The source, and the rows used for calibration.
    judged : tuple of Judged
    beside : str
        Result under an alternative.
    """

    title: str
    how: str
    judged: tuple[Judged, ...]
    beside: str = ""

    def error(self, of: Callable[[Judged], float]) -> Error:
        """Return the errors of one of the predictions."""
        return Error.of([of(each) for each in self.judged], [each.row.step_ms for each in self.judged])


def _naive(rows: Sequence[Published], most_folds: int) -> dict[str, tuple[float, float]]:
    """Return the predictions of the two simpler rules for each row, from the rows of other groups."""

    def bubble(row: Published) -> float:
        of = row.training
        return 1 + (of.layout.pp - 1) / (of.layout.chunks * of.micro_batches)

    def work(row: Published) -> float:
        return row.training.flops / row.training.layout.ranks

    found = {}
    for out in folds(rows, most_folds):
        # a single group has nothing else to learn from
        others = [row for row in rows if row.group not in out] or list(rows)
        plain = float(np.median([row.step_ms / work(row) for row in others]))
        with_bubble = float(np.median([row.step_ms / work(row) / bubble(row) for row in others]))
        for row in rows:
            if row.group in out:
                found[row.id] = (plain * work(row), with_bubble * work(row) * bubble(row))
    return found


def _judged(rows: Sequence[Published], predicted: Mapping[str, float], most_folds: int) -> list[Judged]:
    naive = _naive(rows, most_folds)
    return [Judged(row, predicted[row.id], *naive[row.id]) for row in rows]


def _ordered(rows: Sequence[Published], order: tuple[str, ...] | None) -> list[Published]:
    """Return rows with their groups in another order."""
    if order is None:
        return list(rows)
    found = []
    for row in rows:
        layout = replace(row.training.layout, order=order)
        found.append(replace(row, training=replace(row.training, layout=layout)))
    return found


def _beside(rows: Sequence[Published], other: Mapping[str, float]) -> str:
    """Return the errors with an order of groups other than the source's."""
    of = Error.of([other[row.id] for row in rows], [row.step_ms for row in rows])
    told = f"{100 * of.mean:.1f} % on average, {100 * of.median:.1f} % at the median"
    return f"Calibrated and predicted in the order {', '.join(ORDER)}, the same rows are off by {told}"


_MOSAIC_FREE: Final = ("product", "attention", "elementwise", "gap", "between", "disturbance")
_VTRAIN_FREE: Final = ("product", "elementwise", "gap", "node", "between", "disturbance")


class Judge:
    """Predicts the rows of a data folder, one source at a time."""

    def __init__(self, data: Path) -> None:
        self.rows, self.refused = read_published(data / STEPS_FILE)
        self.simumax_base = replace(read_calibration(data / SIMUMAX_FILE), hiding=0.0, gap_ns=1000.0)

    def of(self, source: str) -> list[Published]:
        """Return the rows of a source."""
        return [row for row in self.rows if row.source == source]

    @cache  # noqa: B019 - one judge lives as long as its program
    def mosaic_h100(self) -> TrainingCalibration:
        """Return the calibration of all of MosaicML's H100 rows in bf16."""
        rows = [row for row in self.of("mosaicml-llm-foundry") if row.hardware == "h100_80gb bf16"]
        return fit(rows, sheet("h100_80gb bf16"), _MOSAIC_FREE)

    @cache  # noqa: B019
    def vtrain_a100(self, order: tuple[str, ...] | None = None) -> TrainingCalibration:
        """Return the calibration of all of vTrain's rows, in another order of groups if one is given."""
        return fit(_ordered(self.of("vtrain-a100-multi"), order), sheet("A100 bf16"), _VTRAIN_FREE)

    def simumax(self) -> Judgement:
        """SimuMax's B200 cases."""
        rows = self.of("simumax-b200-v1.2")
        found = predictions(rows, self.simumax_base, ("sustained", "contention"), most_folds=len(rows))
        how = "SimuMax's system file; sustained clock and contention of collectives fitted on other layouts"
        return Judgement("SimuMax, B200", how, tuple(_judged(rows, found, len(rows))))

    def vtrain(self) -> Judgement:
        """vTrain's A100 clusters."""
        rows = self.of("vtrain-a100-multi")
        found = predictions(rows, sheet("A100 bf16"), _VTRAIN_FREE)
        other = predictions(_ordered(rows, ORDER), sheet("A100 bf16"), _VTRAIN_FREE)
        how = "A100's data sheet; six numbers fitted on the other layouts (five folds)"
        return Judgement("vTrain, A100", how, tuple(_judged(rows, found, 5)), _beside(rows, other))

    def mosaic(self) -> Judgement:
        """MosaicML's FSDP rows, each GPU and precision by itself."""
        judged: list[Judged] = []
        for hardware in ("a100_40gb bf16", "a100_80gb bf16", "h100_80gb bf16"):
            rows = [row for row in self.of("mosaicml-llm-foundry") if row.hardware == hardware]
            judged += _judged(rows, predictions(rows, sheet(hardware), _MOSAIC_FREE), 5)
        rows = [row for row in self.of("mosaicml-llm-foundry") if row.hardware == "h100_80gb fp8"]
        base = _in_precision(self.mosaic_h100(), "h100_80gb fp8")
        judged += _judged(rows, predictions(rows, base, ("product",)), 5)
        how = "data sheets; six numbers fitted on other groups (five folds); for fp8 only speed of products"
        return Judgement("MosaicML, FSDP, A100 and H100", how, tuple(judged))

    def megatron(self) -> Judgement:
        """Megatron-LM's papers, with the calibration from vTrain's rows for the same GPU."""
        sources = ("megatron-2104.04473-T1", "megatron-2104.04473-T2", "megatron-2205.05198-T5")
        rows = [row for source in sources for row in self.of(source)]
        found = {row.id: predicted_ms(row, self.vtrain_a100()) for row in rows}
        other = {row.id: predicted_ms(row, self.vtrain_a100(ORDER)) for row in _ordered(rows, ORDER)}
        how = "vTrain's rows, none of its own"
        judged = _judged(rows, found, len(rows))
        return Judgement("Megatron-LM, A100", how, tuple(judged), _beside(rows, other))

    def torchtitan(self) -> Judgement:
        """Torchtitan, with the calibration from MosaicML's H100 rows; compiled passes from other groups."""
        rows = self.of("torchtitan-2024-12") + self.of("torchtitan-trainy-h200-2025-06")
        judged: list[Judged] = []
        for precision in ("bf16", "fp8"):
            mine = [row for row in rows if row.hardware.endswith(precision)]
            base = _in_precision(self.mosaic_h100(), f"h100_80gb {precision}")
            judged += _judged(mine, predictions(mine, base, ("elementwise",), most_folds=20), 20)
        how = "MosaicML's H100 rows; the speed of passes, which are compiled, fitted on the other groups"
        return Judgement("torchtitan, H100 and H200", how, tuple(judged))

    def llama(self) -> Judgement:
        """Llama 3's own rows, with the calibration from MosaicML's H100 rows."""
        rows = self.of("llama3-2407.21783-T4")
        found = {row.id: predicted_ms(row, self.mosaic_h100()) for row in rows}
        how = "MosaicML's H100 rows, none of its own"
        return Judgement("Llama 3, H100", how, tuple(_judged(rows, found, 20)))

    def _bridge(self, what: tuple[str, str], keep: Callable[[Published], bool]) -> Judgement:
        """Megatron Bridge's tables, with the calibrations that ship."""
        judged: list[Judged] = []
        rows = group_pairs((row.hardware, row) for row in self.of("nemo-megatron-bridge") if keep(row))
        for _, mine in sorted(rows.items()):
            judged += _judged(mine, {row.id: _shipped_ms(row) for row in mine}, len(mine))
        how = "calibrations as shipped: kernels alone, NCCL's measured times in nodes, data sheets"
        return Judgement(
            f"NeMo Megatron Bridge, H100 to GB300, {what[0]}", f"{how}; {what[1]}", tuple(judged)
        )

    def bridge_dense(self) -> Judgement:
        """Megatron Bridge's dense models."""
        return self._bridge(("dense models", "fitted to no step"), lambda row: not _has_experts(row))

    def bridge_experts(self) -> Judgement:
        """Models with experts on which the numbers for launches were chosen."""
        what = (
            "Qwen3 and DeepSeek-V3",
            "three numbers for all GPUs (host) were chosen on these rows",
        )
        return self._bridge(what, lambda row: _has_experts(row) and bool(CHOSEN_ON.search(row.group)))

    def bridge_others(self) -> Judgement:
        """Other models with experts."""
        what = (
            "gpt-oss and Nemotron 3",
            "one number for all GPUs (bias_gradients) was chosen on gpt-oss, nothing on Nemotron 3",
        )
        return self._bridge(what, lambda row: _has_experts(row) and not CHOSEN_ON.search(row.group))

    def bridge_experts_left_out(self) -> Judgement:
        """Errors if the numbers for launches are chosen on others of these models."""
        return _left_out(self.bridge_experts(), _HOSTS, {"model": _model, "GPU": _gpu})

    def bridge_biases_left_out(self) -> Judgement:
        """Errors if the time of bias gradients is chosen on other GPUs."""
        what = "gpt-oss", "one number chosen"
        return _left_out(self._bridge(what, _has_biases), _BIASES, {"GPU": _gpu})


CHOSEN_ON: Final = re.compile("Qwen3|DeepSeek")
"""Models of Megatron Bridge on whose rows `host` of the calibrations was chosen."""


_HOSTS: Final[tuple[Mapping[str, Any], ...]] = tuple(
    {"host": HostFields.model_construct(issue_cost=layer, experts=expert, factor=factor)}
    for layer, expert, factor in product(
        (2_000_000, 3_000_000, 4_000_000, 5_000_000), (85_000, 170_000, 255_000), (1.0, 1.5, 2.0)
    )
)
"""Candidates, one of which is chosen on the rows of other models or other GPUs."""

_BIASES: Final[tuple[Mapping[str, Any], ...]] = tuple({"bias_gradients": 1 + n / 2} for n in range(12))
"""The same for products that compute bias gradients."""


def _model(row: Published) -> str:
    return str(re.findall("DeepSeek|Qwen3_[0-9]+B", row.group)[0])


def _gpu(row: Published) -> str:
    return row.hardware.partition(" ")[0]


_KNOWN: Final[dict[str, float]] = {}
"""Predictions of `_shipped_ms`: releases of the same software repeat a layout."""


def _shipped_ms(row: Published, **choice: Any) -> float:
    """Return the step of a row by the calibration that ships, with some of its numbers chosen."""
    told = f"{row.hardware} {row.training!r} {choice}"
    if told not in _KNOWN:
        _KNOWN[told] = predicted_ms(row, replace(shipped(row.hardware), **choice))
    return _KNOWN[told]


def _left_out(
    found: Judgement, choices: Sequence[Mapping[str, Any]], parts: Mapping[str, Callable[[Published], str]]
) -> Judgement:
    """Return a judgement with the errors if numbers are chosen without each model, or without each GPU."""
    rows = [one.row for one in found.judged]

    def off(row: Published, choice: Mapping[str, Any]) -> float:
        if row.training.cuda_graph == FULL_ITERATION and "host" in choice:  # the host launches nothing
            choice = {"host": HostFields()}
        return abs(_shipped_ms(row, **choice) / row.step_ms - 1)

    said = []
    for name, what in parts.items():
        errors: list[float] = []
        for each in dict.fromkeys(map(what, rows)):
            others = [row for row in rows if what(row) != each]
            chosen = min(choices, key=lambda choice: sum(off(row, choice) for row in others))
            errors += [off(row, chosen) for row in rows if what(row) == each]
        said.append(
            f"with each {name} left out they are off by {100 * np.mean(errors):.1f} % on average "
            f"({100 * np.median(errors):.1f} % at the median)"
        )
    beside = f"Chosen of {len(choices)} on the others, {'; '.join(said)}"
    return replace(found, beside=beside)


def _has_biases(row: Published) -> bool:
    return _has_experts(row) and row.training.model.biases


def _has_experts(row: Published) -> bool:
    return bool(row.training.model.experts)


SOURCES: Final[Mapping[str, Callable[[Judge], Judgement]]] = {
    "simumax": Judge.simumax,
    "vtrain": Judge.vtrain,
    "mosaic": Judge.mosaic,
    "megatron": Judge.megatron,
    "torchtitan": Judge.torchtitan,
    "llama": Judge.llama,
    "bridge_dense": Judge.bridge_dense,
    "bridge_experts": Judge.bridge_experts,
    "bridge_others": Judge.bridge_others,
}
"""What is judged, in the order of the page."""

LEFT_OUT: Final[Mapping[str, Callable[[Judge], Judgement]]] = {
    "bridge_left_out": Judge.bridge_experts_left_out,
    "bridge_biases_left_out": Judge.bridge_biases_left_out,
}
"""Judged only on request: it takes longer than the whole page, which needs only one line of it."""


def memory_errors(rows: Sequence[Published]) -> list[tuple[Published, int, float, float]]:
    """Return (row, pipeline rank, predicted GiB, measured GiB) of each rank whose memory is published."""
    found = []
    for row in rows:
        if not row.memory_gib:
            continue
        training = replace(row.training, calibration=at_rate(10**15))  # times do not matter for memory
        peaks = peaks_of(training, step_trace(training))
        found += [
            (row, rank, peak["peak_bytes"] / 2**30, measured)
            for rank, (peak, measured) in enumerate(zip(peaks, row.memory_gib, strict=True))
        ]
    return found
