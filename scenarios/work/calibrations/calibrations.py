"""Find a calibration: by name, in a file of our own or of SimuMax, or written into the scenario."""

from __future__ import annotations

import json
import warnings
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from devices.presets import device_preset
from scenarios.build.train.calibration import Calibration, Reach
from scenarios.build.train.kernels import Attention, Product
from scenarios.file.document import Document
from scenarios.file.faults import scenario_error
from scenarios.file.yaml_read import read_yaml_text
from scenarios.importers.files import in_file, read_bytes
from scenarios.work.calibrations.calibration_fields import CalibrationFields, ReachFields
from scenarios.work.calibrations.nccl_times import nccl_times
from scenarios.work.calibrations.simumax import from_simumax, is_simumax
from sim.words.errors import InputError, hint
from sim.words.units import parse_bandwidth, parse_bytes, parse_flop_rate

__all__ = ["calibration_names", "calibration_of", "named_calibration", "read_calibration", "to_calibration"]

_FOLDER: Final = files(__package__) / "data"


def calibration_names() -> list[str]:
    """Return the names of those that come with this project."""
    return sorted(Path(str(each)).stem for each in _FOLDER.iterdir() if str(each).endswith(".yaml"))


def calibration_of(
    given: str | CalibrationFields, document: Document, precision: str = "bf16", gradients: str = "fp32"
) -> Calibration:
    """Return the calibration that a scenario has: a name, a file, or numbers.

    Raises
    ------
    InputError
        There is none, or it says what it should not.
    """
    if not isinstance(given, str):
        return to_calibration(given, "calibration", precision)
    if given.removesuffix(".gz").endswith((".yaml", ".yml", ".json")):
        return read_calibration(document.file(given), precision, gradients)
    return named_calibration(given, precision)


@cache
def named_calibration(name: str, precision: str = "bf16") -> Calibration:
    """Return one that comes with this project.

    Raises
    ------
    InputError
        There is none of that name.

    Examples
    --------
    >>> named_calibration("h100-sxm").peak
    989400000000000.0
    """
    if name not in calibration_names():
        raise InputError(
            f"there is no calibration {name!r}{hint(name, calibration_names())} (files end in .yaml or .json)"
        )
    return _parsed((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), name, precision)


def read_calibration(path: Path, precision: str = "bf16", gradients: str = "fp32") -> Calibration:
    """Return the calibration in a file: YAML or JSON in our fields, or a system file of SimuMax.

    Raises
    ------
    InputError
        With file and place: it cannot be read, or says what it should not.
    """
    return _parsed(read_bytes(path).decode("utf-8", "replace"), str(path), precision, gradients)


def _parsed(text: str, name: str, precision: str, gradients: str = "fp32") -> Calibration:
    if text.lstrip().startswith("{"):
        try:
            content: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}: not JSON: {error}") from None
        if is_simumax(content):
            with in_file(name):
                _refuse_precision(precision, "the system file has one rate of products")
                return from_simumax(content, gradients=gradients)
    document = Document(read_yaml_text(text, name), Path(name))
    try:
        fields = CalibrationFields.model_validate(document.root.plain())
    except ValidationError as error:
        raise scenario_error(error, CalibrationFields, document) from None
    return to_calibration(fields, name, precision)


def to_calibration(fields: CalibrationFields, name: str, precision: str = "bf16") -> Calibration:
    """Return what the fields say; a device preset gives what they leave out.

    Raises
    ------
    InputError
        A rate or a bandwidth is missing, the preset is unknown, or the precision would change nothing.
    """
    preset = device_preset(fields.device) if fields.device is not None else {}
    peak, bandwidth, memory = fields.peak, fields.bandwidth, fields.memory
    if peak is not None:
        _refuse_precision(precision, f"{name} has one peak")
    elif precision in preset.get("peak", {}):
        peak = parse_flop_rate(preset["peak"][precision])
    if bandwidth is None and "bandwidth" in preset:
        bandwidth = parse_bandwidth(preset["bandwidth"])
    if memory is None and "memory" in preset:
        memory = parse_bytes(preset["memory"])
    for what, value in ((f"peak (of {precision})", peak), ("bandwidth", bandwidth)):
        if not value:
            raise InputError(f"{name}: {what} is missing; give it, or a device preset that has it")
    measured: dict[Product | Attention, float] = {}
    for each in fields.measured:
        if each.product is not None:
            m, k, n, *groups = each.product
            measured[Product(m, k, n, each.part, *groups)] = each.efficiency
        else:
            assert each.attention is not None
            batch, sequence, heads, kv_heads, query_head, value_head = each.attention
            kernel = Attention(batch, sequence, heads, kv_heads, query_head, value_head, each.backward)
            measured[kernel] = each.efficiency
    if fields.node is not None and fields.node.latency is None and not fields.node.fixed:
        warnings.warn(
            f"{name}: node has no latency, so that messages inside a node are counted by their bytes alone; "
            "give it latency: {default: 5us}, as h100-sxm has, or 0us if none is meant",
            stacklevel=2,
        )
    assert peak is not None
    assert bandwidth is not None
    return Calibration(
        name=name,
        peak=float(peak),
        memory_bandwidth=float(bandwidth),
        memory=memory,
        node=_reach(fields.node),
        between=_reach(fields.between, "nccl"),
        product=fields.product,
        attention_forward=fields.attention_forward,
        attention_backward=fields.attention_backward,
        pass_efficiency=fields.passes,
        gap_ns=float(fields.gap),
        sustained=fields.sustained,
        contention=fields.contention,
        hiding=fields.hiding,
        measured=measured,
        collective=None if fields.nccl is None else nccl_times(fields.nccl),
    )


def _refuse_precision(precision: str, why: str) -> None:
    """Refuse a precision that would have no effect: the one that is meant where nothing is said has none."""
    if precision != "bf16":
        raise InputError(
            f"{why}, and knows no precisions apart: with precision: {precision} it would say what it says of "
            "bf16; leave precision out, or take a calibration with a device whose preset has such a peak"
        )


def _reach(fields: ReachFields | None, unsaid: Literal["nccl"] | None = None) -> Reach:
    if fields is None:  # the calibration has another source of times
        return Reach(float("inf"))
    given = unsaid if fields.latency is None else fields.latency
    latency = {kind: float(ns) for kind, ns in given.items()} if isinstance(given, dict) else {}
    fixed = {kind: float(ns) for kind, ns in fields.fixed.items()}
    bandwidth = float(fields.bandwidth or 0) or float("inf")
    return Reach(bandwidth, fields.efficiency, latency, fixed, nccl=given == "nccl")
