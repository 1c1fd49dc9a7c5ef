"""Find a calibration by name, in a file (our format or SimuMax's), or inline in the scenario."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from devices.collectives.groups import CollectiveKind, Fabric, NcclGroups, NodeFabrics
from devices.describe.field_types import Bandwidth, Bytes, Duration, FlopRate, fault
from devices.describe.fields import DEVICE_FIELDS, read_fields
from devices.describe.quantities import Count, Name, Size, Strict
from devices.machine import make_device
from devices.presets import device_preset, presets
from scenarios.builders.train.calibration import Factor, HostFields, KernelPrices, TrainingCalibration
from scenarios.builders.train.kernels import Attention, Product
from scenarios.file.document import Document
from scenarios.file.faults import scenario_error
from scenarios.file.yaml_read import read_yaml_text
from sim import Device, GraphBuilder
from sim.base.errors import InputError, hint, in_file
from sim.base.files import loads_once, read_bytes
from sim.base.units import format_bytes

# ----------------------------------------------------------------------------------------------------------
# What a calibration file may hold, as pydantic models.
#
#     device: h100-sxm                   default for peak, bandwidth and memory
#     product: 0.784                     shares of the peak, and of the bandwidth, that kernels reach
#     memory_efficiency: {elementwise: 0.466}
#     node: {bandwidth: 450GB/s, efficiency: {default: 0.73}}         collectives inside a node
#     network: {bandwidth: 50GB/s, latency: nccl}                     and between nodes


Share = Annotated[float, Field(gt=0, le=2)]
"""A share of a peak; shares measured in short runs may exceed 1."""

Kinds = dict[str, Share]
Times = dict[str, Duration]


class FabricFields(Strict):
    """Collectives inside a node, or between nodes.

    Attributes
    ----------
    bandwidth
        of a rank, each way
    efficiency
        part of it, by kind or `default`, or either of so many ranks: default/2
    latency
        of a message, by kind or `default`; `nccl`, of `network`: those of NCCL's protocols; default: of
        `network` nccl, of `node` none, with a warning
    fixed
        of a call, by kind, or kind/ranks as in all_to_all/4
    gpus
        of `node`: GPUs that it connects; default: 8
    """

    bandwidth: Bandwidth
    efficiency: Kinds = Field(default_factory=dict)
    latency: Times | Literal["nccl"] | None = None
    fixed: Times = Field(default_factory=dict)
    gpus: Size | None = None

    @model_validator(mode="after")
    def _kinds(self) -> FabricFields:
        kinds = ("default", *get_args(CollectiveKind))
        for name in ("efficiency", "latency", "fixed"):
            values = getattr(self, name)
            if not isinstance(values, dict):
                continue
            for key in values:
                kind = key if name == "latency" else key.partition("/")[0]
                if kind not in kinds:
                    raise fault(f"unknown kind of collective {kind!r}{hint(kind, kinds)}", (name, key))
        return self


class MeasuredShape(Strict):
    """One measured shape.

    Attributes
    ----------
    product
        m, k, n, and groups of a grouped product
    phase
        forward, input gradient or weight gradient of a product
    attention
        batch, sequence, heads, kv heads, width of queries, of values
    backward
        whether attention ran backward
    efficiency
        part of the peak that it reached
    """

    product: list[Count] | None = None
    phase: Literal["F", "I", "W"] = "F"
    attention: list[Count] | None = None
    backward: bool = False
    efficiency: Share

    @model_validator(mode="after")
    def _one(self) -> MeasuredShape:
        if (self.product is None) == (self.attention is None):
            raise fault("should have a product or an attention")
        if self.product is not None and len(self.product) not in (3, 4):
            raise fault(f"product should have m, k, n, and perhaps groups; found {len(self.product)}")
        if self.attention is not None and len(self.attention) != 6:
            raise fault(f"attention should have six numbers, not {len(self.attention)}")
        return self


class CalibrationFields(Strict):
    """What one kind of GPU achieves.

    Attributes
    ----------
    from_
        one that ships, whose numbers stand where none are given
    description
        what was calibrated, in a line
    device
        a device preset, for peak, bandwidth and memory that are not given
    peak
        of the products, in the training's precision
    bandwidth
        of the memory
    memory
        of a GPU
    product
        part of the peak that a step leaves products at most
    attention
        part of the peak that attention reaches, where its kernel is another than the cost model of the device
        has; default: that one, without a device the peak
    memory_efficiency
        part of the bandwidth: elementwise, permute, cross-entropy
    gap
        between two kernels
    sustained
        rate in a long run / rate of the measurements
    contention
        time of a collective in a step / alone
    overlap
        part of a collective that passes beside a kernel; default: what `sms` leave of the device's, without a
        device 1
    nccl
        collectives as NCCL chooses and times them there; with node and network, those of eight ranks or fewer
        in a node
    node
        inside a node
    network
        between nodes: a rank's part of its node's network
    host
        what launching kernels takes of the host
    sms
        SMs that a collective takes from what runs beside it
    measured
        efficiency of single shapes
    sources
        where numbers come from
    """

    from_: Name | None = Field(None, alias="from")
    description: str | None = None
    device: Name | None = None
    peak: FlopRate | None = None
    bandwidth: Bandwidth | None = None
    memory: Bytes | None = None
    product: Share = 1.0
    attention: dict[Literal["forward", "backward"], Share] = Field(default_factory=dict)
    memory_efficiency: Kinds = Field(default_factory=dict)
    gap: Duration = 0
    sustained: Share = 1.0
    contention: Factor = 1.0
    overlap: float | None = Field(None, ge=0, le=1)
    nccl: Literal["a100", "h100", "h200", "b200"] | None = None
    node: FabricFields | None = None
    network: FabricFields | None = None
    host: Annotated[HostFields, Field(default_factory=HostFields)]
    sms: Size = 32
    measured: list[MeasuredShape] = Field(default_factory=list)
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _fill_from(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or not isinstance(name := fields.get("from"), str):
            return fields
        if name not in calibration_names():
            raise fault(f"there is no calibration {name!r}{hint(name, calibration_names())}", ("from",))
        begun = read_yaml_text(_read_shipped(name), name).plain()
        instead = {"nccl": ("node", "network"), "node": ("nccl",)}  # what a key stands in place of
        gone = {key for name in instead if name in fields for key in instead[name] if key not in fields}
        begun = {key: value for key, value in begun.items() if key not in gone}
        for key, value in fields.items():
            merges = isinstance(value, dict) and isinstance(begun.get(key), dict)
            begun[key] = {**begun[key], **value} if merges else value
        return begun

    @model_validator(mode="after")
    def _one_way(self) -> CalibrationFields:
        for name, fabric, other in (("node", self.node, self.network), ("network", self.network, self.node)):
            if self.nccl is None and fabric is None:
                raise fault(f"{name} is missing: give it, or nccl")
            if self.nccl is not None and fabric is None and other is not None:
                raise fault(f"{name} is missing: nccl alone says what collectives take, or what is in nodes")
        if self.node is not None and self.node.latency == "nccl":
            raise fault("latency: nccl is of network, where messages cross nodes; give node a time")
        if self.network is not None and self.network.gpus is not None:
            raise fault("network.gpus: GPUs are of node")
        if self.network is not None and self.network.fixed and not isinstance(self.network.latency, dict):
            raise fault(
                "network: NCCL's latencies, the default, are all that a call takes besides its bytes; "
                "give fixed together with latency: {default: 5us}, or of 0us"
            )
        return self


# ----------------------------------------------------------------------------------------------------------
# Read a system file of SimuMax (MooreThreads/SimuMax, configs/system/*.json) as a calibration.
#
#     accelerator.op.matmul      tflops, efficient_factor, accurate_efficient_factor {"b=1, m=.., ..": 0.5}
#     accelerator.op.sdp_fwd     the same, by "batch=1, seq_len=.., .."; sdp_bwd; group_matmul by "ng=.., .."
#     accelerator.bandwidth      gbps (2**30 bytes/s), efficient_factor; also of permute_fwd, ce_fusion
#     networks.high_intra_node   bandwidth.gbps (2**30 bytes/s), op.all_gather.efficient_factor,
#                                latency_us per message, fixed_latency_us per call, _by_comm_num
#     networks.inter_node        gbps of a whole node
#
# They measure products as flop / (peak · factor) at the clock of a short run. Sources: docs/system.md
# and simumax/core/config.py of that repository (Apache-2.0).

_GIB: Final = 2**30
_SIMUMAX_KINDS: Final = {"all_to_all": "all2all", "send": "p2p"}
"""Kinds of collectives that have another name there."""
_LAYOUTS: Final = {"TN": "F", "NN": "I", "NT": "W"}
_HEADS: Final = ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
_STAGES: Final = {"fwd": "F", "bwd_grad_act": "I", "bwd_grad_w": "W"}


def from_simumax(content: Mapping[str, Any], *, gradients: str = "fp32") -> TrainingCalibration:
    """Return the calibration that a system file describes.

    Parameters
    ----------
    content : mapping
        The parsed file.
    gradients : {"fp32", "bf16"}
        Data type in which gradients of weights are summed; selects among their measurements.

    Raises
    ------
    InputError
        A part is missing, or a shape cannot be read.
    """
    try:
        accelerator, networks = content["accelerator"], content["networks"]
        ops, rates = accelerator["op"], accelerator["bandwidth"]
        memory_rate = float(rates["default"]["gbps"]) * _GIB
        passes = {
            "elementwise": rates["default"],
            "permute": rates.get("permute_fwd", rates["default"]),
            "cross-entropy": rates.get("ce_fusion", rates["default"]),
        }
        intra = next(networks[name] for name in ("high_intra_node", "intra_node_pcie_8x") if name in networks)
        outside, node = networks["inter_node"], int(content.get("num_per_node", 8))
        return TrainingCalibration(
            name=str(content.get("sys_name", "simumax")),
            peak=float(ops["matmul"]["tflops"]) * 1e12,
            memory_bandwidth=memory_rate,
            product=float(ops["matmul"]["efficient_factor"]),
            attention_forward=float(ops["sdp_fwd"]["efficient_factor"]),
            attention_backward=float(ops["sdp_bwd"]["efficient_factor"]),
            pass_efficiency={
                name: float(rate["efficient_factor"]) * float(rate["gbps"]) * _GIB / memory_rate
                for name, rate in passes.items()
            },
            measured=_shares_measured(ops, gradients),
            collectives=NodeFabrics(_simumax_fabric(intra, 1), _simumax_fabric(outside, node)),
        )
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise InputError(f"is no system file of SimuMax: {type(error).__name__} at {error}") from error


def _simumax_fabric(network: Mapping[str, Any], ranks: int) -> Fabric:
    """Return a network whose bandwidth `ranks` ranks share."""
    bandwidth = network["bandwidth"]
    efficiency = {"default": float(bandwidth.get("efficient_factor", 1.0))}
    latency = {"default": 1e3 * float(bandwidth["latency_us"])}
    fixed: dict[str, float] = {}
    for ours in get_args(CollectiveKind):
        op = network["op"].get(_SIMUMAX_KINDS.get(ours, ours), {})
        if op.get("efficient_factor") is not None:
            efficiency[ours] = float(op["efficient_factor"])
        for key, kinds in (("latency_us", latency), ("fixed_latency_us", fixed)):
            if op.get(key) is not None:
                kinds[ours] = 1e3 * float(op[key])
        for ranks_of, value in op.get("fixed_latency_us_by_comm_num", {}).items():
            fixed[f"{ours}/{ranks_of}"] = 1e3 * float(value)
    return Fabric(float(bandwidth["gbps"]) * _GIB / ranks, efficiency, latency, fixed)


def _shares_measured(ops: Mapping[str, Any], gradients: str) -> dict[Product | Attention, float]:
    """Return the share of the peak reached by each measured shape."""
    shares: dict[Product | Attention, float] = {}
    for row, factor in _shapes(ops["matmul"]):
        part = _LAYOUTS[row["layout"]]
        if int(row["b"]) == 1 and (part != "W" or row["out_dtype"] == gradients):
            shares[Product(int(row["m"]), int(row["k"]), int(row["n"]), part)] = factor  # type: ignore[arg-type]
    for row, factor in _shapes(ops.get("group_matmul", {})):
        if row["main_grad_dtype"] == gradients and row["dtype"] == "bf16":
            groups, m, n, k = (int(row[key]) for key in ("ng", "M", "N", "K"))  # always of the forward
            part = _STAGES[row["stage"]]
            sizes = {"F": (m, k, n), "I": (m, n, k), "W": (n, m, k)}[part]
            shares[Product(*sizes, part, groups)] = factor  # type: ignore[arg-type]
    for name, products in (("sdp_fwd", 2), ("sdp_bwd", 5)):
        for row, factor in _shapes(ops.get(name, {})):
            kernel = Attention(*(int(row[key]) for key in _HEADS), name == "sdp_bwd")  # type: ignore[call-arg,arg-type]
            # Inputs that are not one contiguous tensor, such as those with rotary positions, take precedence.
            if row.get("qkv_contiguous", "True") == "False" or kernel not in shares:
                # They count all scores, and backward products as half as wide as queries and values together.
                counted = products * kernel.batch * kernel.heads * kernel.sequence**2
                shares[kernel] = factor * kernel.flops / (counted * (kernel.query_head + kernel.value_head))
    return shares


def _shapes(op: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], float]]:
    """Yield each measured shape of an op, as sizes by name, with its share of the peak."""
    for shape, factor in op.get("accurate_efficient_factor", {}).items():
        yield dict(re.findall(r"(\w+)=([^,]+)", shape)), float(factor)


# ----------------------------------------------------------------------------------------------------------

_FOLDER: Final = files(__package__) / "calibrations_data"


def calibration_names() -> list[str]:
    """Return the names of the calibrations that ship with this project."""
    return sorted(Path(str(file)).stem for file in _FOLDER.iterdir() if str(file).endswith(".yaml"))


def calibration_of(
    source: str | CalibrationFields, document: Document, precision: str = "bf16", gradients: str = "fp32"
) -> TrainingCalibration:
    """Return the calibration of a scenario, given as a name, a file or numbers.

    Raises
    ------
    InputError
        There is no such calibration, or its content is invalid.
    """
    if not isinstance(source, str):
        return to_calibration(source, "calibration", precision)
    if source.removesuffix(".gz").endswith((".yaml", ".yml", ".json")):
        return read_calibration(document.file(source), precision, gradients)
    return named_calibration(source, precision)


@cache
def named_calibration(name: str, precision: str = "bf16") -> TrainingCalibration:
    """Return a calibration that ships with this project.

    Raises
    ------
    InputError
        There is no calibration of that name.

    Examples
    --------
    >>> named_calibration("h100-sxm").peak
    989400000000000.0
    """
    if name not in calibration_names():
        message = (
            f"there is no calibration {name!r}{hint(name, calibration_names())} (files end in .yaml or .json)"
        )
        if name in {preset.name for preset in presets()}:
            message += (
                f"; {name} is a device preset: give {{device: {name}, node: ..., network: ...}}, that is, "
                "how its GPUs are connected (docs/training.md)"
            )
        raise InputError(message)
    return _parse(_read_shipped(name), name, precision)


def _read_shipped(name: str) -> str:
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def read_calibration(path: Path, precision: str = "bf16", gradients: str = "fp32") -> TrainingCalibration:
    """Return the calibration in a file: YAML or JSON in our fields, or a system file of SimuMax.

    Raises
    ------
    InputError
        With file and position: the file cannot be read, or its content is invalid.
    """
    return _parse(read_bytes(path).decode("utf-8", "replace"), str(path), precision, gradients)


def _parse(text: str, name: str, precision: str, gradients: str = "fp32") -> TrainingCalibration:
    if text.lstrip().startswith("{"):
        try:
            content: Any = loads_once(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}: not JSON: {error}") from None
        if isinstance(content, Mapping) and {"accelerator", "networks"} <= set(content):
            with in_file(name):
                _refuse_precision(precision, "the system file has one rate of products")
                return from_simumax(content, gradients=gradients)
    document = Document(read_yaml_text(text, name), Path(name))
    try:
        fields = CalibrationFields.model_validate(document.root.plain())
    except ValidationError as error:
        raise scenario_error(error, CalibrationFields, document) from None
    return to_calibration(fields, name, precision)


def to_calibration(fields: CalibrationFields, name: str, precision: str = "bf16") -> TrainingCalibration:
    """Return the calibration that the fields describe; a device preset fills in missing ones.

    Raises
    ------
    InputError
        A rate or a bandwidth is missing, the preset is unknown, or the precision would change nothing.
    """
    preset: dict[str, Any] = {}
    if fields.device is not None:
        preset = read_fields(device_preset(fields.device), DEVICE_FIELDS, fields.device)
    peak, bandwidth = fields.peak, fields.bandwidth or preset.get("bandwidth")
    others = "fp16" if precision == "fp16" else "bf16"
    peaks, dtype = preset.get("peak", {}), precision.partition("-")[0]  # of a recipe, its data type
    attention_peak = None
    if peak is not None:
        _refuse_precision(precision, f"{name} has one peak")
    elif dtype in peaks:
        peak, attention_peak = peaks[dtype], peaks.get(others)
    for quantity, value in ((f"peak (of {precision})", peak), ("bandwidth", bandwidth)):
        if not value:
            raise InputError(f"{name}: {quantity} is missing; give it, or a device preset that has it")
    measured: dict[Product | Attention, float] = {}
    for row in fields.measured:
        if row.product is not None:
            m, k, n, groups = (*row.product, 1)[:4]
            measured[Product(m, k, n, row.phase, groups)] = row.efficiency
        else:
            assert row.attention is not None
            measured[Attention(*row.attention, row.backward)] = row.efficiency  # type: ignore[call-arg,arg-type]
    if fields.node is not None and fields.node.latency is None and not fields.node.fixed:
        warnings.warn(
            f"{name}: node has no latency, so that messages inside a node are counted by their bytes alone; "
            "give it latency: {default: 5us}, as h100-sxm has, or 0us if none is meant",
            stacklevel=2,
        )
    sm_share = min(1.0, fields.sms / preset.get("sms", 160))  # of 160 SMs where none are known
    hidden = 1 - sm_share if "sms" in preset else 1.0
    return TrainingCalibration(
        name=name,
        **fields.model_dump(include={"product", "sustained", "contention"}),
        peak=float(peak or 0),
        memory_bandwidth=float(bandwidth or 0),
        memory=preset.get("memory") if fields.memory is None else fields.memory,
        alone=_alone(fields.device, precision, others, fields.peak, fields.bandwidth),
        collectives=_collectives(fields),
        node=fields.node.gpus or 8 if fields.node is not None else 8,
        attention_forward=fields.attention.get("forward"),
        attention_backward=fields.attention.get("backward"),
        attention_peak=None if attention_peak is None else float(attention_peak),
        pass_efficiency=fields.memory_efficiency,
        gap_ns=float(fields.gap),
        hiding=hidden if fields.overlap is None else fields.overlap,
        measured=measured,
        host=fields.host,
        communication_sms=sm_share,
    )


@cache
def _alone(
    device: str | None, products: str, others: str, peak: int | None, bandwidth: int | None
) -> KernelPrices | None:
    """Return the kernel prices of a preset's cost model, with the given peak and bandwidth."""
    if device is None:
        return None
    changed: dict[str, Any] = {} if bandwidth is None else {"bandwidth": f"{bandwidth}B/s"}
    if peak is not None:
        changed["peak"] = dict.fromkeys((products, others), f"{peak}FLOP/s")
    return KernelPrices(make_device(device, {"preset": device, **changed}), others, products)


def _refuse_precision(precision: str, reason: str) -> None:
    """Raise if a precision would have no effect, unless it is the default."""
    if precision != "bf16":
        raise InputError(
            f"{reason}, and knows no precisions apart: with dtype: {precision} it would say what it says of "
            "bf16; leave dtype out, or take a calibration with a device whose preset has such a peak"
        )


def _collectives(fields: CalibrationFields) -> NcclGroups | NodeFabrics:
    if fields.node is None or fields.network is None:  # NCCL times all of them
        return NcclGroups(str(fields.nccl))
    measured = None if fields.nccl is None else NcclGroups(fields.nccl)
    own_latency = isinstance(fields.network.latency, dict)
    return NodeFabrics(_fabric(fields.node), _fabric(fields.network), not own_latency, measured)


def _fabric(fields: FabricFields) -> Fabric:
    latency = fields.latency if isinstance(fields.latency, dict) else {}
    return Fabric(float(fields.bandwidth or "inf"), fields.efficiency, latency, fields.fixed)


# ----------------------------------------------------------------------------------------------------------
# Which calibration matches the GPU of a device: the one with its peak and its bandwidth.


def why_another_gpu(calibration: TrainingCalibration, device: Device, dtype: str) -> str | None:
    """Return how the GPU of a calibration differs from a device; None if it does not, or if nothing is known.

    Parameters
    ----------
    calibration : TrainingCalibration
    device : Device
    dtype : str
        Data type of the products.
    """
    rates, roofs = (calibration.peak, calibration.memory_bandwidth), _roofs(device, dtype)
    pairs = zip(rates, roofs, strict=True)
    if all(math.isnan(roof) or abs(rate - roof) <= 0.01 * roof for rate, roof in pairs):
        return None
    return f"{calibration.name} is of a GPU of {_describe(*rates)}, and {device.name} has {_describe(*roofs)}"


def calibration_for(device: Device, dtype: str) -> TrainingCalibration | None:
    """Return the calibration of a device's GPU that was fitted to published steps, or None."""
    if any(map(math.isnan, _roofs(device, dtype))):
        return None
    for name in calibration_names():
        calibration = named_calibration(name)
        if not calibration.is_unfitted and why_another_gpu(calibration, device, dtype) is None:
            return calibration
    return None


def note_on_calibration(device: Device, fitted: TrainingCalibration) -> str:
    """Return a note that kernels by a device's cost model are shorter than in published steps."""
    return (
        f"kernels take the cost model of {device.name}, each as if alone; published training steps took "
        f"longer, to which {fitted.name} is fitted, a calibration of `train` (docs/builders.md)"
    )


def _roofs(device: Device, dtype: str) -> tuple[float, float]:
    """Return peak and bandwidth of a device, nan for a number that it lacks."""
    if device.cost is None:
        return float("nan"), float("nan")
    builder = GraphBuilder("product")
    builder.op("product", kind="matmul", flops=1, dtype=dtype)
    roofs = device.cost.roofs(builder.build(), device)
    return float(roofs.flop_per_s[0]), float(roofs.bytes_per_s)


def _describe(peak: float, bandwidth: float) -> str:
    return f"{peak / 1e12:,.4g} TFLOP/s and {format_bytes(bandwidth)}/s"
