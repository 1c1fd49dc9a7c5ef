"""The cost model selected by a device's description.

::

    cost: roofline                    from peak, bandwidth, efficiency, ...; the default where these are given
    cost: {fixed: 10us}               or {fixed: {matmul: 10us, default: 2us}}
    cost: {table: gemm.json.gz}       measured (`devices.cost.cost_table`); a list of files is allowed
    cost: fitted                      a GPU's kernels, from measured ones (`devices.cost.kernel_costs`)
    cost: {fitted: h200-sxm}          the same with the fits of another preset and the device's own numbers
    cost: {fitted: kernels.csv}       the same, moved towards kernels that you measured
    cost: tiles                       an NPU with scratchpads, see `devices.cost.npu_tiles`; its default
    cost: {my-model: {...}}           a plugin of the group sim.costs: factory(parameters, device's values)
    cost: [fitted, roofline]          the first that knows an op
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from devices.cost.cost_models import FirstCost, FixedCost, KindEfficiency, RooflineCost, TableCost
from devices.describe.field_types import DEFAULT, TYPES, read_part
from devices.describe.fields import DEVICE_FIELDS, read_fields, value_at
from sim.base import plugins
from sim.base.errors import InputError, UnknownNameError, error_path
from sim.base.options import require_call
from sim.base.units import round_half_up
from sim.machine.device import CostModel

if TYPE_CHECKING:  # what few devices have is imported where it is asked for
    from devices.cost.kernel_costs import FittedCost
    from devices.cost.npu_tiles import TiledCost


def make_cost(
    values: Mapping[str, Any],
    *,
    peak_share: Fraction = Fraction(1),
    bandwidth_share: Fraction = Fraction(1),
    slowdown: Fraction = Fraction(1),
    origin: plugins.Origin = plugins.NOWHERE,
) -> CostModel | None:
    """Build the cost model that a description asks for.

    Parameters
    ----------
    values : mapping
        A device's keys as `devices.describe.fields.read_fields` returns them.
    peak_share, bandwidth_share : Fraction
        Part of the device's peak rates that one op can use (its cores, the SMs in use).
    slowdown : Fraction
        Factor for fixed durations, which are given for one core.
    origin : Origin
        Where relative paths of tables begin, and what code it may name.

    Returns
    -------
    CostModel or None
        None when nothing is known: then ops need durations of their own.

    Raises
    ------
    InputError
        A model nobody knows, or wrong parameters.
    """
    spec = values.get("cost")
    if spec is None:
        if "units" in values and any(value_at(values, key) is not None for key in _OF_CORES):
            spec = "tiles"
        elif all(values.get(key) is None for key in ("peak", "bandwidth", "op_overhead", "kernel_floor")):
            return None
        else:
            spec = "roofline"

    def build(spec: object, *place: int) -> CostModel:
        with error_path(*place):
            if isinstance(spec, str):
                return build_one(spec, None)
            if isinstance(spec, Sequence):
                return FirstCost(tuple(build(item, i) for i, item in enumerate(spec)))
            if isinstance(spec, Mapping) and [*map(type, spec)] == [str]:
                return build_one(*next(iter(spec.items())))
            raise InputError(
                f"{spec!r} is no cost model; accepted: roofline, {{fixed: 10us}}, {{table: FILE}}, "
                f"fitted, {{NAME: parameters}} of a plugin, or a list of these"
            )

    def roofline(parameters: Any) -> CostModel:
        given = {} if parameters is None else read_fields(parameters, _ROOFLINE, "roofline")
        return _roofline({**values, **given}, peak_share, bandwidth_share)

    def fixed_durations(parameters: Any) -> CostModel:
        read = read_part("fixed", TYPES["duration by kind"].read, parameters)
        scaled = {kind: round_half_up(ns * slowdown) for kind, ns in read.items()}
        return FixedCost(scaled.pop(DEFAULT, None), scaled)

    def measured_tables(parameters: Any) -> CostModel:
        from devices.cost.calibration import load_tables

        files = [parameters] if isinstance(parameters, str) else parameters
        with error_path("table"):
            files = TYPES["words"].read(files)
        found = (load_tables(origin.file(file)) for file in files)
        return TableCost(tuple(table for tables in found for table in tables))

    def fitted_kernels(parameters: Any) -> CostModel:
        with error_path("fitted"):
            return _make_fitted(values, parameters, peak_share, origin)

    built_in: dict[str, Callable[[Any], CostModel]] = {
        "fitted": fitted_kernels,
        "fixed": fixed_durations,
        "roofline": roofline,
        "table": measured_tables,
    }
    if values.get("kind") == "npu":
        built_in["tiles"] = lambda _: _tiles(values)

    def build_one(name: str, parameters: Any) -> CostModel:
        if name in built_in:
            return built_in[name](parameters)
        try:
            make = origin.lookup("sim.costs", name)
        except UnknownNameError as error:
            raise UnknownNameError(error.what, name, [*error.known, *built_in]) from None
        return _from_plugin(make, name, parameters, values)

    with error_path("cost"):
        return build(spec)


def _from_plugin(make: Any, name: str, parameters: Any, values: Mapping[str, Any]) -> CostModel:
    """Return the cost model of a plugin, once it can be called as it is going to be."""
    require_call(f"the cost model {name!r}", make, "parameters", "device")
    model: CostModel = make(parameters, values)
    maker = f"what the cost model {name!r} makes"
    require_call(maker, model, "graph", "device", method="durations_ns")
    if not isinstance(model, CostModel):
        raise InputError(f"{maker}, a {type(model).__name__}, should extend sim.machine.device.CostModel")
    return model


def _make_fitted(
    values: Mapping[str, Any], like: object, peak_share: Fraction, origin: plugins.Origin
) -> FittedCost:
    """Return a GPU's kernels, with the fits of its preset, or of the GPU `like`.

    If that is a file of `devices.cost.calibration`, they move towards what was measured. Kinds whose loss
    the description gives are left to the roofline.
    """
    from devices.cost.calibration import read_kernels
    from devices.cost.kernel_costs import FittedCost, sheet_of
    from devices.cost.kernel_fits import KernelFits, fits

    if values.get("kind") != "gpu":
        raise InputError("it is for GPUs")
    if isinstance(like, Mapping):
        raise InputError(
            "takes the name of a GPU, as in {fitted: h200-sxm}, or a file of measured kernels; single "
            "parameters are fitted, and not set"
        )
    name = values.get("preset", "") if like is None else str(TYPES["word"].read(like))
    kernels = name if name.endswith((".csv", ".csv.gz", ".json")) else None
    if kernels:
        name = values.get("preset", "")
    elif like is not None and name not in fits():
        raise UnknownNameError("fitted device", name, fits())
    others = frozenset(kind for loss in _LOSSES for kind in values.get(loss) or {})
    least_ns = max(1, values.get("kernel_floor") or 0)
    unmoved = KernelFits(sheet_of(values, float(peak_share)), name)
    model = FittedCost(unmoved, values.get("dtype", "fp32"), others, least_ns)
    if kernels is None:
        return model
    measured = model.as_measured(*read_kernels(origin.file(kernels)), values.get("gap") or 0)
    return replace(model, fits=KernelFits(unmoved.sheet, name, tuple(measured)))


_OF_CORES: Final = ("scratchpad", "vector.scratchpad", "matrix.peak", "vector.peak", "core_bandwidth")
"""Keys of an NPU's cores: where one is given, the time of an op comes from its tiles."""
_LOSSES: Final = ("efficiency", "memory_efficiency", "op_overhead")
"""Keys that tell by kind of op how far it stays below the roofline."""
_ROOFLINE: Final = {
    name: DEVICE_FIELDS[name] for name in ("peak", "bandwidth", "dtype", *_LOSSES, "kernel_floor")
}


def _roofline(values: Mapping[str, Any], peak_share: Fraction, bandwidth_share: Fraction) -> RooflineCost:
    bandwidth = values.get("bandwidth")
    peaks = values.get("peak") or {
        **(value_at(values, "vector.peak") or {}),
        **(value_at(values, "matrix.peak") or {}),
    }
    return RooflineCost(
        {dtype: None if peak is None else max(1, int(peak * peak_share)) for dtype, peak in peaks.items()},
        None if bandwidth is None else max(1, int(bandwidth * bandwidth_share)),
        _efficiencies(values),
        values.get("dtype", "fp32"),
        _hardware(values),
        values.get("kernel_floor", 0),
    )


def _tiles(values: Mapping[str, Any]) -> TiledCost:
    """Return the model of one core with its share of everything."""
    from devices.cost.npu_tiles import TiledCost
    from devices.memory.pool import TILE_ALIGNMENT_BYTES

    cores, queues = values.get("cores", 1), values.get("queues_per_core", 1)

    def rates(name: str) -> dict[str, Fraction | None]:
        peaks = value_at(values, name) or values.get("peak") or {}
        return {dtype: None if p is None else Fraction(p, cores) for dtype, p in peaks.items()}

    def part(nbytes: int | None) -> int | None:
        return None if nbytes is None else nbytes // queues

    bandwidth, dma = values.get("bandwidth"), values.get("core_bandwidth")
    of_memory = None if bandwidth is None else Fraction(bandwidth, cores * queues)
    scratchpad = values.get("scratchpad")
    of_vector = values.get("vector", {}).get("scratchpad", scratchpad)
    return TiledCost(
        units=values["units"],
        peak_flop_per_s=(rates("matrix.peak"), rates("vector.peak")),
        scratchpad_bytes=(part(scratchpad), part(of_vector)),
        dma_bytes_per_s=of_memory if dma is None else Fraction(dma, queues),
        bandwidth_bytes_per_s=of_memory,
        cores=values.get("cores_per_op", 1),
        double_buffered=values.get("double_buffered", True),
        granule_bytes=values.get("granule") or TILE_ALIGNMENT_BYTES,
        latency_ns=values.get("latency", 0),
        matrix_block=value_at(values, "matrix.block_size") or 1,
        by_kind=_efficiencies(values),
        default_dtype=values.get("dtype", "fp32"),
        hardware=_hardware(values),
    )


def _hardware(values: Mapping[str, Any]) -> str:
    """Return the preset of a real GPU or NPU, about which its plain peaks are a claim.

    ``ideal: true`` asks for the ideal, and a loss given for all kinds of op says what the user thinks of it.
    """
    is_ideal = values.get("ideal") or any(DEFAULT in (values.get(name) or {}) for name in _LOSSES)
    return values.get("preset", "") if values.get("kind") in ("gpu", "npu") and not is_ideal else ""


def _efficiencies(values: Mapping[str, Any]) -> dict[str, KindEfficiency]:
    given = [values.get(name) or {} for name in _LOSSES]

    def of(kind: str) -> KindEfficiency:
        losses = zip(given, (1, 1, 0), strict=True)
        compute, memory, overhead_ns = (loss.get(kind, loss.get(DEFAULT, ideal)) for loss, ideal in losses)
        return KindEfficiency(float(compute), float(memory), overhead_ns)

    return {kind: of(kind) for kind in (DEFAULT, *chain(*given))}
