"""How a description is read, and laid over another one, by a table of the keys that it may have.

::

    {"kind": "gpu", "launch_latency": "4us"} --read_fields--> {"kind": "gpu", "launch_latency": 4000}
                                              + DEVICE_FIELDS

Quantities have a unit and are read by `sim.base.units`; counts are whole numbers. What is not given is not
in the result, and means the ideal: no limit, no loss, no overhead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

from devices.describe.field_types import DEFAULT, TYPES, inside, read_mapping
from sim.base.errors import InputError, UnknownNameError, error_path
from sim.base.units import format_bytes
from sim.machine.device import Details


class Field(NamedTuple):
    """One key that a description may have.

    Attributes
    ----------
    name : str
    type : str
        Key of `TYPES`, which says how a value is read and what one looks like.
    doc : str
        What it means, and what leaving it out means, in one line.
    kinds : tuple of str
        Kinds of device that have it; empty: all.
    overhead : bool
        An overhead or loss that real devices have and ideal ones do not: ``ideal: true`` drops it.
    example : str
        What a value looks like, where that is not what its type looks like.
    """

    name: str
    type: str
    doc: str
    kinds: tuple[str, ...] = ()
    overhead: bool = False
    example: str = ""

    @property
    def shown(self) -> str:
        """What a value looks like, for help and messages."""
        return self.example or TYPES[self.type].shown


def read_fields(spec: object, fields: Mapping[str, Field], *what: str | int) -> dict[str, Any]:
    """Read a description into base units: integers in ns, bytes, flop, and per second.

    Parameters
    ----------
    spec : mapping
        The description.
    fields : mapping of str to Field
        Which keys there are.
    *what : str and int
        What is described, the beginning of an error's path.

    Returns
    -------
    dict
        The keys that were given, in the order of `fields`, with their values read. One that may differ
        by kind of op or dtype is always a dict, with the key `DEFAULT` for a plain value.

    Raises
    ------
    UnknownNameError
        A key that does not exist.
    InputError
        A value that cannot be read.

    Examples
    --------
    >>> from devices.describe.fields import DEVICE_FIELDS
    >>> read_fields({"gap": "1.5us", "issue_cost": "4us", "streams": 2}, DEVICE_FIELDS, "gpu0")
    {'streams': 2, 'issue_cost': {'default': 4000}, 'gap': 1500}
    >>> read_fields({"gap": 1500}, DEVICE_FIELDS, "gpu0")
    Traceback (most recent call last):
        ...
    sim.base.errors.UnitError: gpu0.gap: 1500 has no unit; accepted: ns, us, ms, s, min, h, as in '10us'
    """
    with error_path(*what):
        given = read_mapping(spec)
        for name in given:
            if name not in fields:
                raise UnknownNameError("key", name, fields)
        return {
            name: inside(name, TYPES[field.type].read, given[name])
            for name, field in fields.items()
            if name in given
        }


def merge(
    base: Mapping[str, Any], over: Mapping[str, Any], fields: Mapping[str, Field], *, ideal: bool = False
) -> dict[str, Any]:
    """Return `base` with the keys of `over` in place of its own.

    A quantity that may differ by kind of op or dtype is merged key by key, so that
    ``issue_cost: {matmul: 6us}`` leaves the cost of other kinds as it was. `ideal` first drops what
    `base` says of overheads and losses; what `over` says still counts.

    Examples
    --------
    >>> from devices.describe.fields import DEVICE_FIELDS
    >>> merge({"issue_cost": "4us", "gap": "1us"}, {"issue_cost": {"matmul": "6us"}}, DEVICE_FIELDS)
    {'issue_cost': {'default': '4us', 'matmul': '6us'}, 'gap': '1us'}
    """
    lost = {name for name in base if ideal and name in fields and fields[name].overhead}
    merged = {name: value for name, value in base.items() if name not in lost}
    for name, value in over.items():
        by_key = name in fields and TYPES[fields[name].type].by_key
        merged[name] = _over(merged.get(name), value) if by_key else value
    return merged


def _over(old: Any, value: Any) -> Any:
    if old is None or not isinstance(value, Mapping):
        return value
    base = old if isinstance(old, Mapping) else {DEFAULT: old}
    return {**base, **{key: _over(base.get(key), each) for key, each in value.items()}}


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, as ``matrix.peak`` of one inside another; None where it is not given."""
    name, _, inner = key.partition(".")
    found = values.get(name)
    return value_at(found, inner) if inner and found is not None else found


# ----------------------------------------------------------------------------------------------------------
# What all kinds of device have in common: overheads, memory, and which ops they support.

_DETAILS: Final = {field.name: field.name.removesuffix("_ns") for field in fields(Details)} | {
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
        The device's keys as `devices.describe.field_reading.read_fields` returns them.

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
        shown = ", ".join(f"{part} {format_bytes(nbytes)}" for part, nbytes in parts.items())
        raise InputError(
            f"together they are more than the {format_bytes(memory)} of {name}: {shown}",
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
            **{name: values[key] for name, key in _DETAILS.items() if values.get(key) is not None}
        ),
    }
