"""What a description says of each device: laid over those of presets, counts written out, read.

Presets are descriptions, too: a scenario's keys are laid over those of the preset, and only the result is
read, so that every number of every preset can be changed, or set to zero, by itself::

    {preset: h200-sxm, streams: 2, launch_latency: 0}
          |                     merge (devices.describe.field_reading)
          v                              |
    {kind: gpu, sms: 132, launch_latency: 2us, ...}  ──read_fields──► values
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devices.collectives.formulas import node_of
from devices.describe.field_reading import merge, read_fields
from devices.describe.fields import DEVICE_FIELDS, MACHINE_FIELDS
from devices.presets import device_preset, machine_preset
from sim.base.errors import InputError, UnknownNameError, hint, located
from sim.base.plugins import NOWHERE, Origin


def described_devices(spec: Mapping[str, Any], origin: Origin = NOWHERE) -> dict[str, dict[str, Any]]:
    """Return what a machine's description says of each device: presets included, counts written out, read.

    Parameters
    ----------
    spec, origin
        As for `make_machine`.

    Raises
    ------
    InputError
        As `make_machine` does, of a device's keys and values.

    Examples
    --------
    >>> described_devices({"devices": {"gpu": {"kind": "gpu", "count": 2, "gap": "1us"}}})
    {'gpu0': {'kind': 'gpu', 'gap': 1000}, 'gpu1': {'kind': 'gpu', 'gap': 1000}}
    """
    return devices_of(*machine_fields(spec, origin), origin)


def machine_fields(spec: Mapping[str, Any], origin: Origin) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of a description, and those of its preset."""
    over = read_fields(spec, MACHINE_FIELDS, "machine")
    if "preset" not in over:
        return over, {}
    with located("machine", "preset"):
        return over, read_fields(machine_preset(over["preset"], origin), MACHINE_FIELDS)


def devices_of(over: Mapping[str, Any], base: Mapping[str, Any], origin: Origin) -> dict[str, dict[str, Any]]:
    """Return what `described_devices` does, of what `machine_fields` returns."""
    nodes, given = over.get("nodes"), over.get("devices", {})
    with located("machine", "devices"):
        alone = {name: spec for name, spec in given.items() if nodes is not None and node_of(name)}
        each = {name: spec for name, spec in given.items() if name not in alone}
        described = _lay_over(base.get("devices", {}), each)
        if not described:
            raise InputError("a machine needs at least one device")
        if nodes is not None:
            all_nodes = {f"node{k}/{name}": spec for k in range(nodes) for name, spec in described.items()}
            described = {**all_nodes, **_changed(all_nodes, alone)}
    if over.get("ideal", False):
        ideal = {id(device): {"ideal": True, **device} for device in described.values()}
        described = {name: ideal[id(device)] for name, device in described.items()}
    read: dict[int, dict[str, Any]] = {}  # devices of a count have one description
    for name, device in described.items():
        if id(device) not in read:
            with located("machine", "devices", entry_of(name, over)):
                read[id(device)] = device_values(device, origin)
    return {name: read[id(device)] for name, device in described.items()}


def entry_of(name: str, over: Mapping[str, Any]) -> str:
    """Return what a device is called where it is described: one of a count is described under their name."""
    given = over.get("devices", {})
    if name not in given and over.get("nodes") is not None:
        name = name.partition("/")[2]
    counted = (each for each in given if name.startswith(each) and name[len(each) :].isdecimal())
    return name if name in given else next(counted, name)


def device_values(spec: object, origin: Origin) -> dict[str, Any]:
    """Return what a description and its preset say of a device, read."""
    return read_fields(_with_preset(spec, origin), DEVICE_FIELDS)


def _with_preset(spec: object, origin: Origin) -> dict[str, Any]:
    """Lay a description over its preset, if it names one."""
    over = dict(_mapping(spec))
    if "preset" not in over:
        return over
    preset = read_fields({"preset": over["preset"]}, DEVICE_FIELDS)["preset"]
    with located("preset"):
        base = device_preset(preset, origin)
    if "kind" in over and over["kind"] != base.get("kind"):
        raise InputError(f"the preset {over['preset']!r} is a {base.get('kind')}, not a {over['kind']}")
    ideal = read_fields({"ideal": over.get("ideal", False)}, DEVICE_FIELDS)["ideal"]
    return merge(base, over, DEVICE_FIELDS, ideal=ideal)


def _changed(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `over` laid over those of `base`, which has them."""
    for name in over:
        if name not in base:
            raise UnknownNameError("device", name, base)
    return {name: merge(base[name], _mapping(spec), DEVICE_FIELDS) for name, spec in over.items()}


def _lay_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return one description a device, counts written out, with `over` laid over `base`."""
    merged: dict[str, Any] = {}
    for name, spec in base.items():
        merged |= _write_out(name, merge(spec, _mapping(over[name]), DEVICE_FIELDS) if name in over else spec)
    for name, spec in over.items():
        if name in merged and name not in base:
            merged[name] = merge(merged[name], _mapping(spec), DEVICE_FIELDS)  # a single one of a count
        elif name not in base:
            if base and isinstance(spec, Mapping) and spec.keys().isdisjoint(("kind", "preset")):
                message = "the preset has no such device, and one of your own needs a kind or a preset"
                raise InputError(f"{message}{hint(name, (*base, *merged))}", path=(name,))
            new = _write_out(name, spec)
            for one in new:
                if one in merged:
                    raise InputError(f"{one!r} is described twice")
            merged |= new
    return merged


def _mapping(spec: object) -> Mapping[str, Any]:
    if not isinstance(spec, Mapping):
        raise InputError(f"{spec!r} is not a description of a device; accepted: a mapping of keys")
    return spec


def _write_out(name: str, spec: object) -> dict[str, Any]:
    """Return ``{name0: ..., name1: ...}`` for a device with a count."""
    if not isinstance(spec, Mapping) or "count" not in spec:
        return {name: spec}
    count = read_fields({"count": spec["count"]}, DEVICE_FIELDS, name)["count"]
    one = {key: value for key, value in spec.items() if key != "count"}
    return {f"{name}{i}": one for i in range(count)}
