"""A GPU: a host thread launches ops on streams, whose tasks start in order.

::

    host ──issue_cost──► stream 0: [k][k][k]      launch_latency: put on an idle stream -> earliest start
         ──issue_cost──► stream 1: [k]   [k]      gap: between two tasks of a stream
                              └ event ──┘         event_hop: between tasks of two streams

What is left out is the ideal: ``{kind: gpu, streams: 2}`` launches at no cost, its streams do not disturb
one another, and its memory has no end. ``sharing: sm`` lets kernels compete for SMs, ``sm+dram`` for the
memory's bandwidth too (`devices.processor.shared_sms`). Presets of real GPUs say ``sm+dram``; ``sharing:
none`` and ``ideal: true`` switch it off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from devices.cost.cost_description import make_cost
from devices.describe.field_reading import common_arguments
from sim.base.errors import InputError, UnknownNameError
from sim.base.plugins import NOWHERE, Origin
from sim.machine.device import Device


def build(name: str, values: Mapping[str, Any], origin: Origin = NOWHERE) -> Device:
    """Return the device of a GPU's description.

    Parameters
    ----------
    name : str
    values : mapping
        The description as `devices.describe.field_reading.read_fields` returns it.
    origin : Origin
        Where relative paths in it begin, and what code it may name.

    Raises
    ------
    InputError
        More SMs than there are, SMs shared without saying how many there are, or another wrong number.

    Examples
    --------
    >>> build("gpu0", {"kind": "gpu", "streams": 2, "gap": 1000}).gap_ns
    1000
    """
    used, share = _sms_in_use(name, values)
    streams = values.get("streams", 1)
    sharing = values.get("sharing", "none")
    if sharing not in ("none", "sm", "sm+dram"):
        raise InputError(f"a GPU shares none, sm or sm+dram, not {sharing!r}", path=("sharing",))
    for key in ("partitions", "stream_partitions", "stream_priorities"):
        if key in values and sharing == "none":
            raise InputError("it takes effect only with sharing: sm, or sm+dram", path=(key,))
    if sharing != "none" and used is None:
        raise InputError("kernels share SMs, and sms does not say how many there are", path=("sharing",))
    if sharing == "sm+dram" and values.get("bandwidth") is None:
        raise InputError("kernels share the memory's bandwidth, which is not given", path=("sharing",))
    if len(values.get("stream_priorities", ())) > streams:
        n = len(values["stream_priorities"])
        message = f"{n} priorities for {streams} stream{'s' * (streams > 1)}; say streams: {n} or more"
        raise InputError(message, path=("stream_priorities",))
    dram = values["bandwidth"] if sharing == "sm+dram" else None
    values = {**values, "sms_in_use": used, "dram_bytes_per_s": dram}
    for_streams = partial(_for_streams, values)
    device = Device(
        **common_arguments(name, values),
        cost=make_cost(values, peak_share=share, origin=origin),
        for_streams=for_streams if values.keys().isdisjoint(("streams", "stream_partitions")) else None,
        with_streams=None if "stream_partitions" in values else for_streams,
        for_processes=partial(_for_processes, values),
    )
    return for_streams(device, streams)


def _for_streams(values: Mapping[str, Any], device: Device, streams: int) -> Device:
    """Return the GPU with so many streams, and what their kernels share."""
    sms, of = _partitions(device.name, values, device.details.sms, streams)
    details = replace(device.details, partition_sms=sms, partition_of=of)
    device = replace(device, streams=streams, details=details)
    if (streams == 1 and not sms) or values.get("sharing", "none") == "none":
        return device  # one kernel at a time shares nothing with anybody
    from devices.processor.sm_processor import least_ns, processor_of

    return replace(device, processor=processor_of(values, streams), least_ns=least_ns)


def _for_processes(values: Mapping[str, Any], one: Device, n: int) -> Device:
    """Return the GPU as n processes have it, each with as many streams of its own as `one` has.

    Where streams share SMs, so do those of all processes, as under NVIDIA's Multi-Process Service. Elsewhere
    processes take turns.
    """
    streams = n * one.streams
    if one.processor is None:
        from devices.processor.sm_processor import TimeSlices, time_sliced_least_ns

        return replace(
            one, streams=streams, processor=TimeSlices, least_ns=partial(time_sliced_least_ns, one.streams)
        )
    from devices.processor.sm_processor import processor_of

    given = one.details.stream_priorities
    details = replace(
        one.details,
        partition_of=n * one.details.partition_of,
        stream_priorities=n * (*given, *[0] * (one.streams - len(given))) if given else (),
    )
    return replace(one, streams=streams, processor=processor_of(values, streams), details=details)


def _partitions(
    name: str, values: Mapping[str, Any], used: int | None, streams: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return SMs of each partition and partition of each stream; nothing when there are no partitions."""
    partitions: Mapping[str, int] = values.get("partitions", {})
    if not partitions:
        if "stream_partitions" in values:
            raise InputError("there are no partitions", path=("stream_partitions",))
        return (), ()
    total, step = sum(partitions.values()), values.get("partition_step", 1)
    if used is not None and total > used:
        raise InputError(f"{total} SMs are asked for and there are {used}", path=("partitions",))
    for i, (partition, sms) in enumerate(partitions.items()):
        rest = i == len(partitions) - 1 and total == used  # the last may take what the others leave
        if sms % step and not rest:
            raise InputError(f"{sms} SMs are no multiple of {step}", path=("partitions", partition))
    names = list(partitions)
    given = values.get("stream_partitions") or [names[s % len(names)] for s in range(streams)]
    if len(given) != streams:
        message = (
            f"{len(given)} partitions for {streams} stream{'s' * (streams > 1)}; say streams: {len(given)}"
        )
        raise InputError(message, path=("stream_partitions",))
    for partition in given:
        if partition not in partitions:
            raise UnknownNameError(f"partition of {name}", partition, names)
    return tuple(partitions.values()), tuple(map(names.index, given))


def _sms_in_use(name: str, values: Mapping[str, Any]) -> tuple[int | None, Fraction]:
    """Return how many SMs may be used (None: not given) and which part of all they are."""
    sms: int | None = values.get("sms")
    if "use_sms" not in values:
        return sms, Fraction(1)
    if sms is None:
        raise InputError("it needs sms, the number of SMs that there are", path=("use_sms",))
    asked = values["use_sms"]
    used = asked if isinstance(asked, int) else int(sms * asked)
    if not used:
        raise InputError(f"{float(asked):g} of {sms} SMs is less than one", path=("use_sms",))
    if used > sms:
        raise InputError(f"there are only {sms} SMs, not {used}", path=("use_sms",))
    return used, Fraction(used, sms)
