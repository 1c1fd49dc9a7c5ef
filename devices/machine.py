"""Machines from descriptions: mappings in, `sim.Machine` out.

A description is what a scenario file or a preset holds. Presets are descriptions too: a scenario's keys are
laid over those of the preset, and only the result is read, so that every number of every preset can be
changed, or set to zero, by itself::

    {preset: h200-sxm, streams: 2, launch_latency: 0}
          |                     merge (devices.fields)
          v                              |
    {kind: gpu, sms: 132, launch_latency: 2us, ...}  ──read_fields──► values ──gpu.build──► Device
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from devices.common import common_arguments
from devices.cost_spec import make_cost
from devices.fields import DEVICE_FIELDS, HOST_FIELDS, MACHINE_FIELDS, merge, read_fields
from devices.links import make_links, matching
from devices.presets import device_preset, machine_preset
from sim.errors import InputError
from sim.model import Device, Host, Machine

__all__ = ["make_device", "make_machine"]

_BUILDERS: Final = {kind: f"devices.{kind}" for kind in ("cpu", "gpu", "npu")}
"""The module whose ``build`` makes a device of the kind; imported when a machine has one."""


def make_device(name: str, spec: Mapping[str, Any], *, directory: Path | None = None) -> Device:
    """Build a device from its description.

    Parameters
    ----------
    name : str
        What it is called: ``"gpu0"``.
    spec : mapping
        Keys of `devices.fields.DEVICE_FIELDS`; what is left out is the ideal.
    directory : Path, optional
        Where relative paths in it begin, usually the folder of the scenario file.

    Raises
    ------
    InputError
        An unknown key or preset (with the nearest known), a quantity without unit, numbers that
        contradict one another.

    Examples
    --------
    >>> make_device("cpu0", {"kind": "cpu", "cores": 4}).workers
    4
    >>> make_device("gpu0", {"preset": "h200-sxm", "streams": 2, "gap": 0}).gap_ns
    0
    >>> make_device("gpu0", {"kind": "gpu", "stream": 2})
    Traceback (most recent call last):
        ...
    sim.errors.UnknownNameError: unknown key of gpu0 'stream'; did you mean 'streams'? ...
    """
    values = read_fields(_with_preset(name, spec), DEVICE_FIELDS, name)
    if "kind" not in values:
        raise InputError(f"{name}: a device needs a kind (cpu, gpu, npu) or a preset")
    if values.get("count", 1) != 1:
        raise InputError(f"{name}.count: this is one device; only a machine has several of a sort")
    kind = values["kind"]
    family = kind if kind in _BUILDERS else "other"
    meant = difflib.get_close_matches(kind.lower(), _BUILDERS, n=1, cutoff=0.85)
    if (
        family == "other" and meant
    ):  # any other word is a device with streams: a slip of the pen would be silent
        raise InputError(
            f"{name}.kind: there is no kind {kind!r}; did you mean {meant[0]!r}? (A kind of one's own, a "
            "device with streams and no more, needs a name that looks like none of cpu, gpu, npu.)"
        )
    for key in values:
        kinds = DEVICE_FIELDS[key].kinds
        if kinds and family not in kinds:
            raise InputError(
                f"{name}.{key}: only {' and '.join(kinds)} devices have it, and {name} is a {kind}"
            )
    if family in _BUILDERS:
        device: Device = import_module(_BUILDERS[family]).build(name, values, directory)
        return device
    cost = make_cost(values, name, directory=directory)
    return Device(**common_arguments(name, values), streams=values.get("streams", 1), cost=cost)


def _with_preset(name: str, spec: object) -> dict[str, Any]:
    """Lay a description over its preset, if it names one."""
    if not isinstance(spec, Mapping):
        raise InputError(f"{name}: {spec!r} is not a description of a device; accepted: a mapping of keys")
    over = dict(spec)
    if "preset" not in over:
        return over
    base = device_preset(read_fields({"preset": over["preset"]}, DEVICE_FIELDS, name)["preset"])
    if "kind" in over and over["kind"] != base.get("kind"):
        raise InputError(
            f"{name}: the preset {over['preset']!r} is a {base.get('kind')}, not a {over['kind']}"
        )
    ideal = read_fields({"ideal": over.get("ideal", False)}, DEVICE_FIELDS, name)["ideal"]
    return merge(base, over, DEVICE_FIELDS, ideal=ideal)


MOST_LANES_IN_ALL: Final = 1_000_000
"""Most cores and streams of all devices together."""


def make_machine(spec: Mapping[str, Any], *, directory: Path | None = None) -> Machine:
    """Build a machine from its description.

    Parameters
    ----------
    spec : mapping
        Keys of `devices.fields.MACHINE_FIELDS`. A device with a ``count`` stands for several, called
        ``name0``, ``name1``, ...; a further entry for one of them (``gpu3``) changes that one alone. With a
        machine ``preset``, devices and links of the same name are laid over those of the preset, others are
        added.
    directory : Path, optional
        Where relative paths in it begin.

    Raises
    ------
    InputError
        As for `make_device`; a link or host that names no device; two things of one name.

    Examples
    --------
    >>> machine = make_machine(
    ...     {
    ...         "devices": {"gpu": {"kind": "gpu", "count": 2}},
    ...         "links": [{"from": "gpu0", "to": "gpu1", "latency": "1us", "bandwidth": "10GB/s"}],
    ...     }
    ... )
    >>> [device.name for device in machine.devices], [link.name for link in machine.links]
    (['gpu0', 'gpu1'], ['gpu0->gpu1', 'gpu1->gpu0'])
    """
    over = read_fields(spec, MACHINE_FIELDS, "machine")
    base: dict[str, Any] = {}
    if "preset" in over:
        base = read_fields(machine_preset(over["preset"]), MACHINE_FIELDS, f"machine preset {over['preset']}")
    ideal = over.get("ideal", False)
    described = _lay_over(base.get("devices", {}), over.get("devices", {}))
    if not described:
        raise InputError("machine.devices: a machine needs at least one device")
    if ideal:
        described = {name: {"ideal": True, **device} for name, device in described.items()}
    devices = tuple(make_device(name, device, directory=directory) for name, device in described.items())
    lanes = sum(device.lanes for device in devices)
    if lanes > MOST_LANES_IN_ALL:
        message = (
            f"{lanes:,} cores and streams are more than the {MOST_LANES_IN_ALL:,} that a machine may have"
        )
        raise InputError(f"machine.devices: {message}")
    names = [device.name for device in devices]
    links = make_links(base.get("links", ()), over.get("links", ()), names, ideal=ideal)
    hosts = tuple(
        _make_host(name, host, names)
        for name, host in {**base.get("hosts", {}), **over.get("hosts", {})}.items()
    )
    if not links:
        return Machine(devices, links, hosts)
    from devices.network import make_network

    return Machine(devices, links, hosts, make_network)


def _lay_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return one description a device, counts written out, with `over` laid over `base`."""
    merged: dict[str, Any] = {}
    for name, spec in base.items():
        merged |= _write_out(name, _laid(name, spec, over[name]) if name in over else spec)
    for name, spec in over.items():
        if name in merged and name not in base:
            merged[name] = _laid(name, merged[name], spec)  # a single one of a count
        elif name not in base:
            new = _write_out(name, spec)
            for one in new:
                if one in merged:
                    raise InputError(f"machine.devices: {one!r} is described twice")
            merged |= new
    return merged


def _laid(name: str, base: Mapping[str, Any], over: object) -> dict[str, Any]:
    if not isinstance(over, Mapping):
        raise InputError(f"{name}: {over!r} is not a description of a device; accepted: a mapping of keys")
    return merge(base, over, DEVICE_FIELDS)


def _write_out(name: str, spec: object) -> dict[str, Any]:
    """Return ``{name0: ..., name1: ...}`` for a device with a count."""
    if not isinstance(spec, Mapping) or "count" not in spec:
        return {name: spec}
    count = read_fields({"count": spec["count"]}, DEVICE_FIELDS, name)["count"]
    one = {key: value for key, value in spec.items() if key != "count"}
    return {f"{name}{i}": one for i in range(count)}


def _make_host(name: str, spec: object, devices: list[str]) -> Host:
    values = read_fields(spec, HOST_FIELDS, f"hosts.{name}")
    if not values.get("serves"):
        raise InputError(f"hosts.{name}.serves: name the devices on which it launches ops")
    patterns = values["serves"]
    served = [d for p in patterns for d in matching(p, devices, f"hosts.{name}.serves")]
    return Host(name, tuple(dict.fromkeys(served)), values.get("threads", 1))
