"""Builders of a CPU, a GPU or an NPU from a device's description."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import fields, replace
from fractions import Fraction
from functools import partial
from typing import Any, Final

from devices.cost.cost_description import make_cost
from devices.cost.cost_models import MATRIX_KINDS, Units
from devices.describe.field_types import DEFAULT
from devices.describe.fields import value_at
from sim.base.errors import InputError, UnknownNameError
from sim.base.plugins import NOWHERE, Origin
from sim.base.units import format_bytes
from sim.machine.device import Details, Device

# ----------------------------------------------------------------------------------------------------------
# What all kinds of device have in common: overheads, memory, and which ops they support.

_DETAIL_KEYS: Final = {field.name: field.name.removesuffix("_ns") for field in fields(Details)} | {
    "sms": "sms_in_use",
    "preset": "claims",
    "default_dtype": "dtype",
}
"""Attribute of `sim.machine.device.Details` -> key of a description, once read."""


def common_arguments(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `sim.Device` that mean the same on every kind of device.

    Parameters
    ----------
    name : str
    values : mapping
        The device's keys as `devices.describe.fields.read_fields` returns them.

    Raises
    ------
    InputError
        Virtual devices that are larger than the device.

    Examples
    --------
    >>> common_arguments("gpu0", {"kind": "gpu", "issue_cost": {"default": 4000, "copy": 9000}})["issue_ns"]
    4000
    """
    memory = values.get("memory")
    parts: Mapping[str, int] = values.get("virtual_devices", {})
    if memory is not None and sum(parts.values()) > memory:
        sizes = ", ".join(f"{part} {format_bytes(nbytes)}" for part, nbytes in parts.items())
        raise InputError(
            f"together they are more than the {format_bytes(memory)} of {name}: {sizes}",
            path=("virtual_devices",),
        )
    issue_ns = dict(values.get("issue_cost") or {})
    kinds = values.get("kinds")
    graph = values.get("cuda_graph", {})
    claims = "" if values.get("ideal") else values.get("preset")
    of_graphs = {"graph_launch": graph.get("issue_cost"), "graph_gap": graph.get("gap")}
    values = {**values, **of_graphs, "claims": claims}
    return {
        "name": name,
        "kind": values["kind"],
        "issue_ns": issue_ns.pop(DEFAULT, 0),
        "issue_ns_by_kind": issue_ns,
        "launch_latency_ns": values.get("launch_latency", 0),
        "gap_ns": values.get("gap", 0),
        "event_ns": values.get("event_hop", 0),
        "queue_depth": values.get("queue_depth"),
        "memory_bytes": memory,
        "kinds": None if kinds is None else frozenset(kinds),
        "details": Details(
            **{name: values[key] for name, key in _DETAIL_KEYS.items() if values.get(key) is not None}
        ),
    }


# ----------------------------------------------------------------------------------------------------------
# A CPU: worker threads that issue ops and execute them, each op on some of the cores.
#
# ::
#
#     workers   w0 ──op──► cores_per_op cores       TensorFlow's inter_op_parallelism_threads and
#               w1 ──op──► cores_per_op cores       intra_op_parallelism_threads, PyTorch's interop
#                        ...                            and intraop threads
#
# Missing keys mean the ideal: ``{kind: cpu, cores: 4}`` has four workers, one core per op, no overhead.
#
# More cores for one op help less and less. `speedup` is Amdahl's law (*Validity of the single processor
# approach to achieving large scale computing capabilities*, AFIPS 1967) for a `serial_fraction`, or a
# measured curve. It scales the cost model's durations; durations given by the graph are used unchanged.
#
# With ``intra_op_parallelism_threads`` ops have no cores of their own: all running ops share the threads of
# one pool (`devices.cores`).
#
# Two pools whose product exceeds the cores are oversubscribed. By default the operating system then slices
# time (``sharing: time``); with ``sharing: cores`` an op waits until its cores are free.


def speedup(
    cores: int | Fraction,
    serial_fraction: Fraction = Fraction(0),
    curve: Mapping[int, Fraction] | None = None,
) -> Fraction:
    """Return how much faster an op runs on `cores` cores than on one.

    Parameters
    ----------
    cores : int or Fraction
        At least 1.
    serial_fraction : Fraction
        Serial fraction of an op, which only one core works on.
    curve : mapping of int to Fraction, optional
        Measured speed-up by number of cores: linear in between, constant beyond the largest number, and by
        default 1 for one core.

    Examples
    --------
    >>> speedup(4), speedup(4, Fraction(1, 5)), speedup(3, curve={2: Fraction(2), 4: Fraction(3)})
    (Fraction(4, 1), Fraction(5, 2), Fraction(5, 2))
    """
    if curve is None:
        return 1 / (serial_fraction + (1 - serial_fraction) / cores)
    points = {1: Fraction(1), **curve}
    below = max(n for n in points if n <= cores)
    above = min((n for n in points if n >= cores), default=below)
    if above == below:
        return points[below]
    return points[below] + (points[above] - points[below]) * Fraction(cores - below, above - below)


def build_cpu(name: str, values: Mapping[str, Any], origin: Origin = NOWHERE) -> Device:
    """Return the device of a CPU's description.

    Parameters
    ----------
    name : str
    values : mapping
        The description as `devices.describe.fields.read_fields` returns it.
    origin : Origin
        Base of relative paths, and the code that it may name.

    Raises
    ------
    InputError
        If there are more cores per op than cores, two definitions of the speed-up, or a staging bandwidth
        for memory that is not pageable.

    Examples
    --------
    >>> device = build_cpu("cpu0", {"kind": "cpu", "cores": 4, "cores_per_op": 2})
    >>> device.workers, device.cores_per_op
    (2, 2)
    """
    from devices.cores import CorePool, CorePoolIfShort, IntraOpPool, TimeShare, least_ns

    cores, pool = values.get("cores", 1), values.get("intra_op_parallelism_threads")
    cores_per_op = values.get("cores_per_op", 1 if pool is None else min(pool, cores))
    if cores_per_op > cores:
        raise InputError(f"an op cannot use {cores_per_op} cores of {cores}", path=("cores_per_op",))
    if "speedup" in values and "serial_fraction" in values:
        raise InputError("give speedup or serial_fraction, not both")
    if pool is not None:
        cores_per_op = min(cores_per_op, pool)
    workers = values.get("workers", cores // cores_per_op if pool is None else cores)
    oversubscribed = workers * cores_per_op > cores
    sharing = values.get("sharing", "time" if oversubscribed else "none")
    if sharing not in ("none", "cores", "time"):
        raise InputError(f"a CPU shares none, cores or time, not {sharing!r}", path=("sharing",))
    pageable = not values.get("pin_memory", True)
    if "staging_bandwidth" in values and not pageable:
        raise InputError("it takes effect only with pin_memory: false", path=("staging_bandwidth",))
    serial, curve = values.get("serial_fraction", Fraction(0)), values.get("speedup")
    faster = speedup(cores_per_op, serial, curve)
    cost = make_cost(
        values,
        peak_share=faster / cores,
        bandwidth_share=_bandwidth_share(values, cores, faster),
        slowdown=1 / faster,
        origin=origin,
    )
    processor: Any = None if sharing == "time" else CorePoolIfShort()
    if oversubscribed:
        processor = {"none": None, "cores": CorePool, "time": TimeShare}[sharing]
    if pool is not None and sharing != "time" and "sharing" in values:
        raise InputError(
            "ops share one pool of threads (intra_op_parallelism_threads); say time, or leave it out",
            path=("sharing",),
        )
    bound = None
    if pool is not None and min(cores_per_op, workers) > 1:  # an op with one thread runs on its worker
        of_threads = partial(speedup, serial_fraction=serial, curve=curve)
        processor, bound = partial(IntraOpPool, of_threads), partial(least_ns, of_threads)
        values = {**values, "intra_op_pool": pool}
    return Device(
        **common_arguments(name, values),
        workers=workers,
        cores=cores,
        cores_per_op=cores_per_op,
        pageable=pageable,
        staging_bytes_per_s=values.get("staging_bandwidth"),
        cost=cost,
        processor=processor,
        least_ns=bound,
    )


def _bandwidth_share(values: Mapping[str, Any], cores: int, faster: Fraction) -> Fraction:
    """Return the part of the memory bandwidth that one op can draw."""
    bandwidth, of_core = values.get("bandwidth"), values.get("core_bandwidth")
    if bandwidth is None or of_core is None:
        return min(Fraction(1), faster / cores)
    return min(Fraction(1), faster * Fraction(of_core, bandwidth))


# ----------------------------------------------------------------------------------------------------------
# A GPU: a host thread launches ops on streams, whose tasks start in order.
#
# ::
#
#     host ──issue_cost──► stream 0: [k][k][k]      launch_latency: put on an idle stream -> earliest start
#          ──issue_cost──► stream 1: [k]   [k]      gap: between two tasks of a stream
#                               └ event ──┘         event_hop: between tasks of two streams
#
# Missing keys mean the ideal: ``{kind: gpu, streams: 2}`` launches at no cost, its streams do not slow one
# another, and its memory is unlimited. ``sharing: sm`` lets kernels compete for SMs, and ``sm+dram`` for
# memory bandwidth too (`devices.shared_sms`). Presets of real GPUs have ``sm+dram``; ``sharing:
# none`` and ``ideal: true`` switch it off.


def build_gpu(name: str, values: Mapping[str, Any], origin: Origin = NOWHERE) -> Device:
    """Return the device of a GPU's description.

    Parameters are those of `build_cpu`.

    Raises
    ------
    InputError
        If more SMs are used than exist, SMs are shared but their number is not given, or a number is wrong.

    Examples
    --------
    >>> build_gpu("gpu0", {"kind": "gpu", "streams": 2, "gap": 1000}).gap_ns
    1000
    """
    used, share = _sms_in_use(name, values)
    spec = values.get("streams", 1)
    streams = spec if isinstance(spec, int) else len(spec)
    sharing = values.get("sharing", "none")
    if sharing not in ("none", "sm", "sm+dram"):
        raise InputError(f"a GPU shares none, sm or sm+dram, not {sharing!r}", path=("sharing",))
    for key in ("partitions", "streams"):
        if isinstance(values.get(key, 1), Sized) and sharing == "none":
            raise InputError("it takes effect only with sharing: sm, or sm+dram", path=(key,))
    if sharing != "none" and used is None:
        raise InputError("kernels share SMs, and sms does not say how many there are", path=("sharing",))
    if sharing == "sm+dram" and values.get("bandwidth") is None:
        raise InputError("kernels share the memory's bandwidth, which is not given", path=("sharing",))
    dram = values["bandwidth"] if sharing == "sm+dram" else None
    specs = () if isinstance(spec, int) else spec
    priorities = tuple(one.get("priority", 0) for one in specs)
    partitions = [one["partition"] for one in specs if "partition" in one]
    values = {**values, "sms_in_use": used, "dram_bytes_per_s": dram, "stream_priorities": priorities}
    values["stream_partitions"] = partitions
    for_streams = partial(_gpu_streams, values)
    device = Device(
        **common_arguments(name, values),
        cost=make_cost(values, peak_share=share, origin=origin),
        for_streams=None if "streams" in values else for_streams,
        with_streams=None if partitions else for_streams,
        for_processes=partial(_for_processes, values),
    )
    return for_streams(device, streams)


def _gpu_streams(values: Mapping[str, Any], device: Device, streams: int) -> Device:
    """Return the GPU with `streams` streams and the resources that their kernels share."""
    sms, partition_of = _partitions(device.name, values, device.details.sms, streams)
    details = replace(device.details, partition_sms=sms, partition_of=partition_of)
    device = replace(device, streams=streams, details=details)
    if (streams == 1 and not sms) or values.get("sharing", "none") == "none":
        return device  # a single kernel at a time shares nothing
    from devices.sm_processor import least_ns, processor_of

    return replace(device, processor=processor_of(values, streams), least_ns=least_ns)


def _for_processes(values: Mapping[str, Any], one: Device, n: int) -> Device:
    """Return the GPU as used by n processes, each with as many streams of its own as `one` has.

    If streams share SMs, those of all processes do, as under NVIDIA's Multi-Process Service. Otherwise
    processes take turns.
    """
    from devices.sm_processor import TimeSlices, processor_of, time_sliced_least_ns

    streams = n * one.streams
    if one.processor is None:
        least_ns = partial(time_sliced_least_ns, one.streams)
        return replace(one, streams=streams, processor=TimeSlices, least_ns=least_ns)
    priorities = one.details.stream_priorities
    details = replace(
        one.details,
        partition_of=n * one.details.partition_of,
        stream_priorities=n * (*priorities, *[0] * (one.streams - len(priorities))) if priorities else (),
    )
    return replace(one, streams=streams, processor=processor_of(values, streams), details=details)


_PARTITION_STEP: Final = {
    **dict.fromkeys(("ampere", "ada"), 2),
    **dict.fromkeys(("hopper", "blackwell", "blackwell_ultra", "blackwell_rtx"), 8),
}
"""GPU generation -> number of SMs of which a partition is a multiple (CUDA Driver API, green contexts)."""


def _partitions(
    name: str, values: Mapping[str, Any], used: int | None, streams: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the SMs of each partition and the partition of each stream; empty without partitions."""
    partitions: Mapping[str, int] = values.get("partitions", {})
    if not partitions:
        if values["stream_partitions"]:
            raise InputError("there are no partitions", path=("streams",))
        return (), ()
    total = sum(partitions.values())
    step = _PARTITION_STEP.get(values.get("generation", ""), 1)
    if used is not None and total > used:
        raise InputError(f"{total} SMs are asked for and there are {used}", path=("partitions",))
    for i, (partition, sms) in enumerate(partitions.items()):
        is_rest = i == len(partitions) - 1 and total == used  # the last may take what the others leave
        if sms % step and not is_rest:
            raise InputError(f"{sms} SMs are no multiple of {step}", path=("partitions", partition))
    names = list(partitions)
    named = values["stream_partitions"] or [names[s % len(names)] for s in range(streams)]
    if len(named) != streams:
        raise InputError("some say their partition, and some do not", path=("streams",))
    for partition in named:
        if partition not in partitions:
            raise UnknownNameError(f"partition of {name}", partition, names)
    return tuple(partitions.values()), tuple(map(names.index, named))


def _sms_in_use(name: str, values: Mapping[str, Any]) -> tuple[int | None, Fraction]:
    """Return the number of SMs that may be used (None: not given), and their fraction of all."""
    sms: int | None = values.get("sms")
    if "use_sms" not in values:
        return sms, Fraction(1)
    if sms is None:
        raise InputError("it needs sms, the number of SMs that there are", path=("use_sms",))
    request = values["use_sms"]
    used = request if isinstance(request, int) else int(sms * request)
    if not used:
        raise InputError(f"{float(request):g} of {sms} SMs is less than one", path=("use_sms",))
    if used > sms:
        raise InputError(f"there are only {sms} SMs, not {used}", path=("use_sms",))
    return used, Fraction(used, sms)


# ----------------------------------------------------------------------------------------------------------
# An NPU: cores with queues that start in order, fed by a host, and DMA engines that move data.
#
# ::
#
#     host ──► queue 0 ──► cores 0 .. k-1      k = cores_per_op: one op runs on so many cores
#          ──► queue 1 ──► cores k .. 2k-1
#                           ▲
#     DMA engines ──────────┘ transfers to and from other devices
#
# One op has ``cores_per_op / cores`` of the peak rates. With ``cores_per_op`` equal to ``cores`` there is one
# queue and the whole chip works on one op, the usual arrangement of compilers for such chips.
#
# A core has a matrix and a vector unit with peak rates of their own, and a scratchpad through which the
# operands of an op pass in tiles, by DMA, double-buffered; the time of an op follows from its tiles
# (`devices.cost.npu_tiles`). With ``queues_per_core: 2`` both units of a core can run ops of two queues at
# once. A program that creates more streams than there are queues, for example for its collectives, gets them
# all (`devices.cores`).


def build_npu(name: str, values: Mapping[str, Any], origin: Origin = NOWHERE) -> Device:
    """Return the device of an NPU's description.

    Parameters are those of `build_cpu`.

    Raises
    ------
    InputError
        If cores do not divide into queues, cores that work together have several queues for their units, or
        a key for tiles is given without a scratchpad.

    Examples
    --------
    >>> build_npu("npu0", {"kind": "npu", "cores": 8, "cores_per_op": 2}).streams
    4
    """
    from devices.cores import CoreUnits

    written = values
    cores, per_op = values.get("cores", 1), values.get("cores_per_op", 1)
    queues = values.get("queues_per_core", 1)
    if cores % per_op:
        raise InputError(f"{cores} cores do not divide into queues of {per_op}", path=("cores_per_op",))
    if values.get("scratchpad") is None:
        for key in ("vector.scratchpad", "double_buffered", "granule", "latency"):
            if value_at(values, key) is not None:
                message = "it takes effect only with a scratchpad, which is not given"
                raise InputError(message, path=key.split("."))
    streams, share = cores // per_op * queues, Fraction(per_op, cores * queues)
    values = {**values, "queues_per_core": queues, "units": _units(values)}
    return Device(
        **common_arguments(name, values),
        streams=streams,
        cost=make_cost(values, peak_share=Fraction(per_op, cores), bandwidth_share=share, origin=origin),
        processor=CoreUnits if queues > 1 else None,
        for_streams=None if "queues_per_core" in written else partial(_npu_streams, streams),
    )


def _npu_streams(queues: int, device: Device, streams: int) -> Device:
    """Return the NPU with more streams than queues, which then take turns on the cores."""
    from devices.cores import CoreTurns

    return replace(device, streams=streams, processor=partial(CoreTurns, queues))


def _units(values: Mapping[str, Any]) -> Units:
    kinds, peaks = (value_at(values, f"matrix.{key}") for key in ("kinds", "peak"))
    vector = value_at(values, "vector.peak") or values.get("peak") or {}
    return Units(
        MATRIX_KINDS if kinds is None else frozenset(kinds),
        None if not peaks or DEFAULT in peaks else frozenset(peaks),
        None if DEFAULT in vector else frozenset(vector),
    )
