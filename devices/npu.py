"""An NPU: cores with queues that start in order, fed by a host, and DMA engines that move data.

::

    host ──► queue 0 ──► cores 0 .. k-1      k = cores_per_op: one op runs on so many cores
         ──► queue 1 ──► cores k .. 2k-1
                          ▲
    DMA engines ──────────┘ transfers to and from other devices

One op has ``cores_per_op / cores`` of the peak rates. With ``cores_per_op`` equal to ``cores`` there is one
queue and the whole chip works on one op, as compilers for such chips usually arrange it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from devices.common import common_arguments
from devices.cost_spec import make_cost
from sim.errors import InputError
from sim.model import Device

__all__ = ["build"]


def build(name: str, values: Mapping[str, Any], directory: Path | None = None) -> Device:
    """Return the device of an NPU's description.

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
        Cores that do not divide into queues.

    Examples
    --------
    >>> build("npu0", {"kind": "npu", "cores": 8, "cores_per_op": 2}).streams
    4
    """
    cores, per_op = values.get("cores", 1), values.get("cores_per_op", 1)
    if cores % per_op:
        raise InputError(f"{name}.cores_per_op: {cores} cores do not divide into queues of {per_op}")
    share = Fraction(per_op, cores)
    values = {**values, "copy_engines": values.get("dma_engines")}
    return Device(
        **common_arguments(name, values),
        streams=cores // per_op,
        cost=make_cost(values, name, peak_share=share, bandwidth_share=share, directory=directory),
    )
