"""What all kinds of device have in common: overheads, memory, and which ops they support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from devices.describe.field_types import DEFAULT
from sim.machine.device_details import Details
from sim.words.errors import InputError
from sim.words.units import format_bytes

__all__ = ["common_arguments"]


_DETAILS: Final = {field.name: field.name.removesuffix("_ns") for field in fields(Details)} | {
    "sms": "sms_in_use",
    "preset": "claims",
}
"""Attribute of `sim.machine.device_details.Details` -> key of a description, once read."""


def common_arguments(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `sim.Device` that mean the same on every kind of device.

    Parameters
    ----------
    name : str
    values : mapping
        The device's keys as `devices.describe.field_reading.read_fields` returns them.

    Raises
    ------
    InputError
        A fraction of a memory whose size is not given; virtual devices that are larger than the device.

    Examples
    --------
    >>> common_arguments("gpu0", {"kind": "gpu", "issue_cost": {"default": 4000, "copy": 9000}})["issue_ns"]
    4000
    """
    memory = _usable_memory(name, values)
    parts: Mapping[str, int] = values.get("virtual_devices", {})
    if memory is not None and sum(parts.values()) > memory:
        shown = ", ".join(f"{part} {format_bytes(nbytes)}" for part, nbytes in parts.items())
        raise InputError(
            f"together they are more than the {format_bytes(memory)} of {name}: {shown}",
            path=("virtual_devices",),
        )
    issue_ns = dict(values.get("issue_cost") or {})
    supports = values.get("supports")
    values = {**values, "claims": "" if values.get("ideal") else values.get("preset")}
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
        "supports": None if supports is None else frozenset(supports),
        "details": Details(
            **{name: values[key] for name, key in _DETAILS.items() if values.get(key) is not None}
        ),
    }


def _usable_memory(name: str, values: Mapping[str, Any]) -> int | None:
    """Return the capacity that may be used, in whole bytes."""
    memory, fraction = values.get("memory"), values.get("memory_fraction")
    if fraction is None:
        return memory
    if memory is None:
        raise InputError("a fraction of what? memory is not given (or unlimited)", path=("memory_fraction",))
    return int(memory * fraction)
