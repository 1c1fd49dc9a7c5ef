"""Machines from descriptions: mappings in, `sim.Machine` out.

A description is the content of a scenario file or a preset::

    {preset: h200-sxm, streams: 2}  ──devices.machine──►  values  ──devices.kinds.build──►  Device
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from devices.collectives.formulas import node_of
from devices.cost.cost_description import make_cost
from devices.describe.fields import (
    DEVICE_FIELDS,
    HOST_FIELDS,
    LINK_FIELDS,
    MACHINE_FIELDS,
    check_kinds,
    merge,
    read_fields,
)
from devices.describe.links import make_links, make_routing, matching, with_sharing
from devices.kinds import build_cpu, build_gpu, build_npu, common_arguments
from devices.presets import device_preset, machine_preset
from sim.base.errors import InputError, UnknownNameError, error_path, hint
from sim.base.plugins import NOWHERE, Origin
from sim.machine.communicators import CollectiveModel
from sim.machine.device import Device
from sim.machine.links import SHORTEST, Link
from sim.machine.machine import Host, Machine

# ----------------------------------------------------------------------------------------------------------
# Descriptions of devices: merged with presets, counts expanded, values parsed.
#
# Presets are descriptions, too: a scenario's keys override those of the preset, and only the result is
# parsed, so that every number of every preset can be changed, or set to zero, separately::
#
#     {preset: h200-sxm, streams: 2, launch_latency: 0}
#           |                     merge (devices.describe.fields)
#           v                              |
#     {kind: gpu, sms: 132, launch_latency: 2us, ...}  ──read_fields──► values


def described_devices(spec: Mapping[str, Any], origin: Origin = NOWHERE) -> dict[str, dict[str, Any]]:
    """Return the parsed description of each device of a machine, with presets applied and counts expanded.

    Parameters
    ----------
    spec, origin
        As for `make_machine`.

    Raises
    ------
    InputError
        As for `make_machine`, for a device's keys and values.

    Examples
    --------
    >>> described_devices({"devices": {"gpu": {"kind": "gpu", "count": 2, "gap": "1us"}}})
    {'gpu0': {'kind': 'gpu', 'gap': 1000}, 'gpu1': {'kind': 'gpu', 'gap': 1000}}
    """
    return devices_of(*machine_fields(spec, origin), origin)


def machine_fields(spec: Mapping[str, Any], origin: Origin) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a description, and those of its preset."""
    user = read_fields(spec, MACHINE_FIELDS, "machine")
    if "preset" not in user:
        return user, {}
    with error_path("machine", "preset"):
        return user, read_fields(machine_preset(user["preset"], origin), MACHINE_FIELDS)


def devices_of(user: Mapping[str, Any], base: Mapping[str, Any], origin: Origin) -> dict[str, dict[str, Any]]:
    """Return the result of `described_devices` from that of `machine_fields`."""
    nodes, devices = user.get("nodes"), user.get("devices", {})
    with error_path("machine", "devices"):
        single = {name: spec for name, spec in devices.items() if nodes is not None and node_of(name)}
        shared = {name: spec for name, spec in devices.items() if name not in single}
        described = _merge_devices(base.get("devices", {}), shared)
        if not described:
            raise InputError("a machine needs at least one device")
        if nodes is not None:
            described = {f"node{k}/{name}": spec for k in range(nodes) for name, spec in described.items()}
            for name, spec in single.items():
                if name not in described:
                    raise UnknownNameError("device", name, described)
                described[name] = merge(_as_mapping(described[name]), _as_mapping(spec), DEVICE_FIELDS)
    ideal = {"ideal": True} if user.get("ideal", False) else {}
    read: dict[int, dict[str, Any]] = {}  # devices of a count have one description
    for name, device in described.items():
        if id(device) not in read:
            with error_path("machine", "devices", entry_of(name, user)):
                read[id(device)] = device_values({**ideal, **_as_mapping(device)}, origin)
    return {name: read[id(device)] for name, device in described.items()}


def entry_of(name: str, user: Mapping[str, Any]) -> str:
    """Return the name under which a device is described; devices of a count share one."""
    devices = user.get("devices", {})
    if name not in devices and user.get("nodes") is not None:
        name = name.partition("/")[2]
    counted = (entry for entry in devices if name.startswith(entry) and name[len(entry) :].isdecimal())
    return name if name in devices else next(counted, name)


def device_values(spec: object, origin: Origin) -> dict[str, Any]:
    """Return the parsed values of a device's description, merged over its preset if it names one."""
    values = dict(_as_mapping(spec))
    head = read_fields({key: values[key] for key in ("preset", "ideal") if key in values}, DEVICE_FIELDS)
    if "preset" in head:
        with error_path("preset"):
            base = device_preset(head["preset"], origin)
        if "kind" in values and values["kind"] != base.get("kind"):
            raise InputError(f"the preset {head['preset']!r} is a {base.get('kind')}, not a {values['kind']}")
        values = merge(base, values, DEVICE_FIELDS, ideal=head.get("ideal", False))
    return read_fields(values, DEVICE_FIELDS)


def _merge_devices(base: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
    """Return one description per device, counts expanded, with `user` merged over `base`."""
    merged: dict[str, Any] = {}
    for name, spec in base.items():
        merged |= _write_out(name, merge(_as_mapping(spec), _as_mapping(user.get(name, {})), DEVICE_FIELDS))
    for name, spec in user.items():
        if name in merged and name not in base:
            merged[name] = merge(merged[name], _as_mapping(spec), DEVICE_FIELDS)  # one device of a count
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


def _as_mapping(spec: object) -> Mapping[str, Any]:
    if isinstance(spec, str):
        return {"preset": spec}
    if not isinstance(spec, Mapping):
        raise InputError(f"{spec!r} is not a description of a device; accepted: a preset, or its keys")
    return spec


def _write_out(name: str, spec: object) -> dict[str, Any]:
    """Return ``{name0: ..., name1: ...}`` for a device with a count."""
    if not isinstance(spec, Mapping) or "count" not in spec:
        return {name: spec}
    count = read_fields({"count": spec["count"]}, DEVICE_FIELDS, name)["count"]
    one = {key: value for key, value in spec.items() if key != "count"}
    return {f"{name}{i}": one for i in range(count)}


SWITCH: Final = "switch"
"""The kind of a device that only forwards traffic between links."""

BUILDERS: Final = {"cpu": build_cpu, "gpu": build_gpu, "npu": build_npu}


def make_device(
    name: str, spec: Mapping[str, Any], *, origin: Origin = NOWHERE, kinds: Collection[str] | None = ()
) -> Device:
    """Build a device from its description.

    Parameters
    ----------
    name : str
        Name, such as ``"gpu0"``.
    spec : mapping
        Keys of `devices.describe.fields.DEVICE_FIELDS`; missing keys mean the ideal.
    origin : Origin
        Base of relative paths, and the files and plugins that it may name.
    kinds : collection of str, optional
        Further kinds of op that mappings by kind may name beside the known ones
        (`devices.describe.fields`). None: any word, checked elsewhere.

    Raises
    ------
    InputError
        If a key, kind of op or preset is unknown (the nearest is named), a quantity has no unit, or numbers
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
    sim.base.errors.UnknownNameError: gpu0: unknown key 'stream'; did you mean 'streams'? ...
    """
    with error_path(name):
        return _build(name, device_values(spec, origin), origin, kinds)


def _build(name: str, values: Mapping[str, Any], origin: Origin, own_kinds: Collection[str] | None) -> Device:
    if "kind" not in values:
        raise InputError("a device needs a kind (cpu, gpu, npu) or a preset")
    if values.get("count", 1) != 1:
        raise InputError("this is one device; only a machine has several of a sort", path=("count",))
    kind = values["kind"]
    family = kind if kind in BUILDERS else "other"
    # Of three letters, one may be wrong; cu, tpu, ipu, ... are kinds of one's own.
    likeness = 0.65 if len(kind) == 3 and not kind.lower().endswith("pu") else 0.85
    nearest = difflib.get_close_matches(kind.lower(), (*BUILDERS, SWITCH), n=1, cutoff=likeness)
    if family == "other" and nearest and kind != SWITCH:
        # Any other word would be a device with streams, so a typing error would go unnoticed.
        raise InputError(
            f"there is no kind {kind!r}; did you mean {nearest[0]!r}? (A kind of one's own, a "
            "device with streams and no more, needs a name that looks like none of cpu, gpu, npu, switch.)",
            path=("kind",),
        )
    for key in values:
        kinds = DEVICE_FIELDS[key].kinds
        if kinds and family not in kinds:
            owners = "devices with streams" if "other" in kinds else f"{' and '.join(kinds)} devices"
            raise InputError(f"only {owners} have it, and {name} is a {kind}", path=(key,))
    if family == "other" and not isinstance(values.get("streams", 1), int):
        raise InputError(f"those of a {kind} are alike; say how many", path=("streams",))
    if own_kinds is not None:
        check_kinds(values, own_kinds)
    if family in BUILDERS:
        return BUILDERS[family](name, values, origin)
    return Device(
        **common_arguments(name, values),
        streams=values.get("streams", 1),
        cost=make_cost(values, origin=origin),
        for_streams=None if "streams" in values else _for_streams,
    )


def _for_streams(device: Device, streams: int) -> Device:
    """Return a device whose streams share nothing, with `streams` of them."""
    return replace(device, streams=streams)


MOST_LANES_IN_ALL: Final = 1_000_000
"""Most cores and streams of all devices together."""


def make_machine(
    spec: Mapping[str, Any], *, origin: Origin = NOWHERE, kinds: Collection[str] | None = ()
) -> Machine:
    """Build a machine from its description.

    Parameters
    ----------
    spec : mapping
        Keys of `devices.describe.fields.MACHINE_FIELDS`. A device may be the name of a preset. One with a
        ``count`` stands for several, named ``name0``, ``name1``, ...; a further entry for one of them
        (``gpu3``) changes only that one. With a machine ``preset``, devices and links of the same name are
        merged over those of the preset, and others are added.
    origin, kinds
        As for `make_device`.

    Raises
    ------
    InputError
        As for `make_device`, and if a link or host names an unknown device or a name is used twice.

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
    user, base = machine_fields(spec, origin)
    ideal, nodes = user.get("ideal", False), user.get("nodes")
    described = devices_of(user, base, origin)
    kind_of = {name: values.get("kind", "") for name, values in described.items()}
    switches, wires = _topology(user, base, kind_of)
    devices = []
    built: dict[int, Device] = {}  # devices of a count have one description
    for name, values in described.items():
        if id(values) in built:
            devices.append(replace(built[id(values)], name=name))
            continue
        with error_path("machine", "devices", entry_of(name, user)):
            devices.append(built.setdefault(id(values), _build(name, values, origin, kinds)))
    devices += [_build(name, device_values(spec, origin), origin, kinds) for name, spec in switches.items()]
    lanes = sum(device.lanes for device in devices)
    if lanes > MOST_LANES_IN_ALL:
        limit = f"the {MOST_LANES_IN_ALL:,} that a machine may have"
        raise InputError(f"{lanes:,} cores and streams are more than {limit}", path=("machine", "devices"))
    names = [device.name for device in devices]
    with error_path("machine"):
        descriptions = base.get("links", ()), user.get("links", ())
        links = make_links(*descriptions, names, ideal=ideal, nodes=nodes is not None, wires=wires)
        if "sharing" in user:
            links = tuple(with_sharing(links, user["sharing"]))
    hosts = []
    for name, host in {**base.get("hosts", {}), **user.get("hosts", {})}.items():
        with error_path("machine", "hosts", name):
            hosts += _make_hosts(name, host, names, nodes)
    resources = {**base.get("resources", {}), **user.get("resources", {})}
    if not links and "collectives" not in {**base, **user}:
        return Machine(tuple(devices), links, tuple(hosts), resources=resources)
    from devices.network import make_network

    model = _collectives(user, base, devices, origin)
    routing = SHORTEST
    if "routing" in user or "routes" in user:
        with error_path("machine"):
            routing = make_routing(user.get("routing", {}), user.get("routes", ()), names, links)
    network = make_network if links else None
    return Machine(tuple(devices), links, tuple(hosts), network, model, routing, resources=resources)


def _collectives(
    user: Mapping[str, Any], base: Mapping[str, Any], devices: Sequence[Device], origin: Origin
) -> CollectiveModel:
    """Return the model of collectives from the description, or else its preset."""
    from devices.collectives.nccl_model import make_collectives, of_preset

    with error_path("machine", "collectives"):
        model = make_collectives(user.get("collectives", base.get("collectives", {})), origin)
    if "collectives" in user or "preset" not in user:
        return model
    return of_preset(model, devices, next((key for key in _NETWORK_KEYS if user.get(key)), None))


_NETWORK_KEYS: Final = ("links", "topology", "sharing", "ideal")
"""Keys that make a network differ from that of its preset."""


def _topology(
    user: Mapping[str, Any], base: Mapping[str, Any], kinds: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], list[Link]]:
    """Return switches and links of the topology; for a preset with links only if there are several nodes."""
    topology = dict(user.get("topology", {}))
    needed = user.get("nodes", 1) > 1 or not base.get("links")
    preset = dict(base.get("topology", {})) if needed else {}
    if "topology" not in user and not preset:
        return {}, []
    if "link" in preset:
        preset["link"] = merge(preset["link"], {}, LINK_FIELDS, ideal=user.get("ideal", False))
        if isinstance(topology.get("link"), Mapping):
            topology["link"] = merge(preset["link"], topology["link"], LINK_FIELDS)
    if topology.get("kind", preset.get("kind")) != preset.get("kind"):
        preset = {key: preset[key] for key in ("link", "ends") if key in preset}
    topology = {**preset, **topology}
    from devices.describe.topologies import make_topology

    with error_path("machine", "topology"):
        return make_topology(topology, kinds)


def _make_hosts(name: str, spec: object, devices: list[str], nodes: int | None) -> list[Host]:
    """Return a host or, with nodes, one per node."""
    values = read_fields(spec, HOST_FIELDS)
    if not values.get("devices"):
        raise InputError("name the devices on which it launches ops", path=("devices",))
    hosts = []
    for node in [""] if nodes is None else [f"node{k}/" for k in range(nodes)]:
        local = [device for device in devices if device.startswith(node)]
        with error_path("devices"):
            served = [d for pattern in values["devices"] for d in matching(f"{node}{pattern}", local)]
        hosts.append(Host(f"{node}{name}", tuple(dict.fromkeys(served)), values.get("threads", 1)))
    return hosts
