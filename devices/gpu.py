"""A GPU: a host thread launches ops on streams, whose tasks start in order.

::

    host ──issue_cost──► stream 0: [k][k][k]      launch_latency: put on an idle stream -> earliest start
         ──issue_cost──► stream 1: [k]   [k]      gap: between two tasks of a stream
                              └ event ──┘         event_hop: between tasks of two streams

What is left out is the ideal: ``{kind: gpu, streams: 2}`` launches at no cost, its streams do not disturb
one another, and its memory has no end. ``sharing: sm`` lets kernels compete for SMs, ``sm+dram`` for the
memory's bandwidth too (`devices.processor.gpu`). Presets of real GPUs say ``sm+dram``; ``sharing: none`` and
``ideal: true`` switch it off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from devices.common import common_arguments
from devices.cost_spec import make_cost
from sim.errors import InputError, UnknownNameError
from sim.model import Context, Device, Processor

__all__ = ["build"]


def build(name: str, values: Mapping[str, Any], directory: Path | None = None) -> Device:
    """Return the device of a GPU's description.

    Parameters
    ----------
    name : str
    values : mapping
        The description as `devices.fields.read_fields` returns it.
    directory : Path, optional
        Where relative paths in it begin.

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
        raise InputError(f"{name}.sharing: a GPU shares none, sm or sm+dram, not {sharing!r}")
    for key in ("partitions", "stream_partitions", "stream_priorities"):
        if key in values and sharing == "none":
            raise InputError(f"{name}.{key}: it takes effect only with sharing: sm, or sm+dram")
    if sharing != "none" and used is None:
        raise InputError(f"{name}.sharing: kernels share SMs, and sms does not say how many there are")
    if sharing == "sm+dram" and values.get("bandwidth") is None:
        raise InputError(f"{name}.sharing: kernels share the memory's bandwidth, which is not given")
    if len(values.get("stream_priorities", ())) > streams:
        raise InputError(f"{name}.stream_priorities: there are only {streams} streams")
    values = {**values, "sms_in_use": used, **_partitions(name, values, used, streams)}
    alone = streams == 1 and "partitions" not in values  # one kernel at a time shares nothing with anybody
    return Device(
        **common_arguments(name, values),
        streams=streams,
        cost=make_cost(values, name, peak_share=share, directory=directory),
        processor=None if alone else _processor_of(values, streams),
    )


def _partitions(name: str, values: Mapping[str, Any], used: int | None, streams: int) -> dict[str, list[int]]:
    """Return SMs of each partition and partition of each stream; nothing when there are no partitions."""
    partitions: Mapping[str, int] = values.get("partitions", {})
    if not partitions:
        if "stream_partitions" in values:
            raise InputError(f"{name}.stream_partitions: there are no partitions")
        return {}
    total, step = sum(partitions.values()), values.get("partition_step", 1)
    if used is not None and total > used:
        raise InputError(f"{name}.partitions: {total} SMs are asked for and there are {used}")
    for i, (partition, sms) in enumerate(partitions.items()):
        rest = i == len(partitions) - 1 and total == used  # the last may take what the others leave
        if sms % step and not rest:
            raise InputError(f"{name}.partitions.{partition}: {sms} SMs are no multiple of {step}")
    names = list(partitions)
    given = values.get("stream_partitions") or [names[s % len(names)] for s in range(streams)]
    if len(given) != streams:
        raise InputError(f"{name}.stream_partitions: {len(given)} partitions for {streams} streams")
    for partition in given:
        if partition not in partitions:
            raise UnknownNameError(f"partition of {name}", partition, names)
    return {"partition_sms": list(partitions.values()), "partition_of": [names.index(p) for p in given]}


def _sms_in_use(name: str, values: Mapping[str, Any]) -> tuple[int | None, Fraction]:
    """Return how many SMs may be used (None: not given) and which part of all they are."""
    sms: int | None = values.get("sms")
    if "use_sms" not in values and "sm_fraction" not in values:
        return sms, Fraction(1)
    if "use_sms" in values and "sm_fraction" in values:
        raise InputError(f"{name}: give use_sms or sm_fraction, not both")
    if sms is None:
        raise InputError(f"{name}: use_sms and sm_fraction need sms, the number of SMs that there are")
    used: int = values["use_sms"] if "use_sms" in values else int(sms * values["sm_fraction"])
    if not used:
        raise InputError(
            f"{name}.sm_fraction: {float(values['sm_fraction']):g} of {sms} SMs is less than one"
        )
    if used > sms:
        raise InputError(f"{name}.use_sms: there are only {sms} SMs, not {used}")
    return used, Fraction(used, sms)


def _processor_of(values: Mapping[str, Any], streams: int) -> Callable[[Device, Context], Processor] | None:
    if values.get("sharing", "none") == "none":
        return None
    from devices.processor.sharing import processor_of

    return processor_of(values, streams)
