"""An NPU: cores with queues that start in order, fed by a host, and DMA engines that move data.

::

    host ──► queue 0 ──► cores 0 .. k-1      k = cores_per_op: one op runs on so many cores
         ──► queue 1 ──► cores k .. 2k-1
                          ▲
    DMA engines ──────────┘ transfers to and from other devices

One op has ``cores_per_op / cores`` of the peak rates. With ``cores_per_op`` equal to ``cores`` there is one
queue and the whole chip works on one op, as compilers for such chips usually arrange it.

A core has a matrix and a vector unit with peak rates of their own, and a scratchpad through which the
operands of an op pass in tiles, by DMA, double-buffered; the time of an op follows from its tiles
(`devices.cost.npu_tiles`). With ``queues_per_core: 2`` both units of a core can run ops of two queues at
once (`devices.processor.npu_cores`). A program that makes more streams than there are queues, as for
its collectives, has them all (`devices.processor.npu_cores`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from devices.cost.cost_description import make_cost
from devices.cost.npu_units import MATRIX_KINDS, Units
from devices.describe.field_reading import common_arguments
from devices.describe.field_types import DEFAULT
from devices.processor.npu_cores import CoreTurns, CoreUnits
from sim.base.errors import InputError
from sim.base.plugins import NOWHERE, Origin
from sim.machine.device import Device


def build(name: str, values: Mapping[str, Any], origin: Origin = NOWHERE) -> Device:
    """Return the device of an NPU's description.

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
        Cores that do not divide into queues; several queues for the units of cores that work together; a key
        of tiles without a scratchpad.

    Examples
    --------
    >>> build("npu0", {"kind": "npu", "cores": 8, "cores_per_op": 2}).streams
    4
    """
    given = values
    cores, per_op = values.get("cores", 1), values.get("cores_per_op", 1)
    queues = values.get("queues_per_core", 1)
    if cores % per_op:
        raise InputError(f"{cores} cores do not divide into queues of {per_op}", path=("cores_per_op",))
    if values.get("scratchpad") is None:
        for key in ("vector_scratchpad", "double_buffered", "granule", "dma_latency"):
            if key in values:
                raise InputError("it takes effect only with a scratchpad, which is not given", path=(key,))
    streams, share = cores // per_op * queues, Fraction(per_op, cores * queues)
    values = {**values, "queues_per_core": queues, "units": _units(values)}
    return Device(
        **common_arguments(name, values),
        streams=streams,
        cost=make_cost(values, peak_share=Fraction(per_op, cores), bandwidth_share=share, origin=origin),
        processor=CoreUnits if queues > 1 else None,
        for_streams=None if "queues_per_core" in given else partial(_for_streams, streams),
    )


def _for_streams(queues: int, device: Device, streams: int) -> Device:
    """Return the NPU with more streams than its cores make queues, which then take turns on the cores."""
    return replace(device, streams=streams, processor=partial(CoreTurns, queues))


def _units(values: Mapping[str, Any]) -> Units:
    kinds = values.get("matrix_kinds")
    peaks = values.get("matrix_peak")
    vector = values.get("vector_peak") or values.get("peak") or {}
    return Units(
        MATRIX_KINDS if kinds is None else frozenset(kinds),
        None if not peaks or DEFAULT in peaks else frozenset(peaks),
        None if DEFAULT in vector else frozenset(vector),
    )
