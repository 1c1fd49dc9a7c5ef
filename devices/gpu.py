"""A GPU: a host thread launches ops on streams, whose tasks start in order.

::

    host ──issue_cost──► stream 0: [k][k][k]      launch_latency: put on an idle stream -> earliest start
         ──issue_cost──► stream 1: [k]   [k]      gap: between two tasks of a stream
                              └ event ──┘         event_hop: between tasks of two streams

What is left out is the ideal: ``{kind: gpu, streams: 2}`` launches at no cost, its streams do not disturb
one another, and its memory has no end. ``sharing: sm`` lets kernels compete for SMs, ``sm+dram`` for the
memory's bandwidth too (`devices.processor.gpu`).
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
    values = {**values, "sms_in_use": used}
    sharing = values.get("sharing", "none")
    if sharing not in ("none", "sm", "sm+dram"):
        raise InputError(f"{name}.sharing: a GPU shares none, sm or sm+dram, not {sharing!r}")
    return Device(
        **common_arguments(name, values),
        streams=values.get("streams", 1),
        cost=make_cost(values, name, peak_share=share, directory=directory),
    )


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
