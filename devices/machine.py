"""Machines from descriptions: mappings in, `sim.Machine` out.

A description is what a scenario file or a preset holds::

    {preset: h200-sxm, streams: 2}  ──devices.preset_overlay──►  values  ──devices.kinds.build──►  Device
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from devices.cost.cost_description import make_cost
from devices.describe.field_reading import common_arguments, merge, read_fields
from devices.describe.fields import DEVICE_FIELDS, HOST_FIELDS, LINK_FIELDS, check_kinds
from devices.describe.links import as_network, make_links, matching
from devices.kinds import build_cpu, build_gpu, build_npu
from devices.preset_overlay import device_values, devices_of, entry_of, machine_fields
from sim.base.errors import InputError, located
from sim.base.plugins import NOWHERE, Origin
from sim.machine.communicators import CollectiveModel
from sim.machine.device import Device
from sim.machine.links import SHORTEST, Link
from sim.machine.machine import Host, Machine

DEVICE_KINDS: Final = ("cpu", "gpu", "npu")
SWITCH: Final = "switch"
"""The kind of a device that only passes on what links carry."""

_BUILDERS: Final = dict(zip(DEVICE_KINDS, (build_cpu, build_gpu, build_npu), strict=True))


def make_device(
    name: str,
    spec: Mapping[str, Any],
    *,
    origin: Origin = NOWHERE,
    kinds: Collection[str] | None = (),
) -> Device:
    """Build a device from its description.

    Parameters
    ----------
    name : str
        What it is called: ``"gpu0"``.
    spec : mapping
        Keys of `devices.describe.fields.DEVICE_FIELDS`; what is left out is the ideal.
    origin : Origin
        Which files and plugins it may name, and from where.
    kinds : collection of str, optional
        Kinds of op of your own, which mappings by kind may name beside the known ones
        (`devices.describe.fields`). None: any word, which somebody else checks.

    Raises
    ------
    InputError
        An unknown key, kind of op or preset (with the nearest known), a quantity without unit, numbers that
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
    with located(name):
        return _build(name, device_values(spec, origin), origin, kinds)


def _build(name: str, values: Mapping[str, Any], origin: Origin, own_kinds: Collection[str] | None) -> Device:
    if "kind" not in values:
        raise InputError("a device needs a kind (cpu, gpu, npu) or a preset")
    if values.get("count", 1) != 1:
        raise InputError("this is one device; only a machine has several of a sort", path=("count",))
    kind = values["kind"]
    family = kind if kind in _BUILDERS else "other"
    meant = difflib.get_close_matches(kind.lower(), (*_BUILDERS, SWITCH), n=1, cutoff=0.85)
    if family == "other" and meant and kind != SWITCH:
        # Any other word is a device with streams: a slip of the pen would be silent.
        raise InputError(
            f"there is no kind {kind!r}; did you mean {meant[0]!r}? (A kind of one's own, a "
            "device with streams and no more, needs a name that looks like none of cpu, gpu, npu, switch.)",
            path=("kind",),
        )
    for key in values:
        kinds = DEVICE_FIELDS[key].kinds
        if kinds and family not in kinds:
            owners = "devices with streams" if "other" in kinds else f"{' and '.join(kinds)} devices"
            raise InputError(f"only {owners} have it, and {name} is a {kind}", path=(key,))
    if own_kinds is not None:
        check_kinds(values, own_kinds)
    if family in _BUILDERS:
        return _BUILDERS[family](name, values, origin)
    return Device(
        **common_arguments(name, values),
        streams=values.get("streams", 1),
        cost=make_cost(values, origin=origin),
        for_streams=None if "streams" in values else _for_streams,
    )


def _for_streams(device: Device, streams: int) -> Device:
    """Return a device whose streams share nothing, with so many of them."""
    return replace(device, streams=streams)


MOST_LANES_IN_ALL: Final = 1_000_000
"""Most cores and streams of all devices together."""


def make_machine(
    spec: Mapping[str, Any],
    *,
    origin: Origin = NOWHERE,
    kinds: Collection[str] | None = (),
) -> Machine:
    """Build a machine from its description.

    Parameters
    ----------
    spec : mapping
        Keys of `devices.describe.fields.MACHINE_FIELDS`. A device with a ``count`` stands for several, called
        ``name0``, ``name1``, ...; a further entry for one of them (``gpu3``) changes that one alone. With a
        machine ``preset``, devices and links of the same name are laid over those of the preset, others are
        added.
    origin, kinds
        As for `make_device`.

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
    over, base = machine_fields(spec, origin)
    ideal, nodes = over.get("ideal", False), over.get("nodes")
    described = devices_of(over, base, origin)
    switches, wires = _topology(
        over, base, {name: values.get("kind", "") for name, values in described.items()}
    )
    devices = []
    made: dict[int, Device] = {}  # devices of a count have one description
    for name, values in described.items():
        if id(values) in made:
            devices.append(replace(made[id(values)], name=name))
            continue
        with located("machine", "devices", entry_of(name, over)):
            devices.append(made.setdefault(id(values), _build(name, values, origin, kinds)))
    devices += [_build(name, device_values(spec, origin), origin, kinds) for name, spec in switches.items()]
    lanes = sum(device.lanes for device in devices)
    if lanes > MOST_LANES_IN_ALL:
        most = f"the {MOST_LANES_IN_ALL:,} that a machine may have"
        raise InputError(f"{lanes:,} cores and streams are more than {most}", path=("machine", "devices"))
    names = [device.name for device in devices]
    with located("machine"):
        links = make_links(
            *(base.get("links", ()), over.get("links", ()), names),
            ideal=ideal,
            nodes=nodes is not None,
            wires=wires,
        )
        if "network" in over:
            links = as_network(links, over["network"])
    hosts = []
    for name, host in {**base.get("hosts", {}), **over.get("hosts", {})}.items():
        with located("machine", "hosts", name):
            hosts += _make_hosts(name, host, names, nodes)
    if not links and "collectives" not in {**base, **over}:
        return Machine(tuple(devices), links, tuple(hosts))
    from devices.network import make_network

    model = _collectives(over, base, devices, origin)
    routing = SHORTEST
    if "routing" in over or "routes" in over:
        from devices.describe.links import make_routing

        with located("machine"):
            routing = make_routing(over.get("routing"), over.get("routes", ()), names, links)
    return Machine(tuple(devices), links, tuple(hosts), make_network if links else None, model, routing)


def _collectives(
    over: Mapping[str, Any], base: Mapping[str, Any], devices: Sequence[Device], origin: Origin
) -> CollectiveModel:
    """Return how long collectives take: as the description says, or else its preset."""
    from devices.collectives.registry import make_collectives

    with located("machine", "collectives"):
        model = make_collectives(over.get("collectives", base.get("collectives", {})), origin)
    if "collectives" in over or "preset" not in over:
        return model
    from devices.collectives.registry import of_preset

    return of_preset(model, devices, next((key for key in _NETWORK if over.get(key)), None))


_NETWORK: Final = ("links", "topology", "network", "ideal")
"""Keys by which a network is no longer that of its preset."""


def _topology(
    over: Mapping[str, Any], base: Mapping[str, Any], kinds: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], list[Link]]:
    """Return switches and links of the topology: of a preset with links only if there are several nodes."""
    given = dict(over.get("topology", {}))
    needed = over.get("nodes", 1) > 1 or not base.get("links")
    preset = dict(base.get("topology", {})) if needed else {}
    if "topology" not in over and not preset:
        return {}, []
    if "link" in preset:
        preset["link"] = merge(preset["link"], {}, LINK_FIELDS, ideal=over.get("ideal", False))
        if isinstance(given.get("link"), Mapping):
            given["link"] = merge(preset["link"], given["link"], LINK_FIELDS)
    if given.get("kind", preset.get("kind")) != preset.get("kind"):
        preset = {key: preset[key] for key in ("link", "ends") if key in preset}
    given = {**preset, **given}
    from devices.describe.topologies import make_topology

    with located("machine", "topology"):
        return make_topology(given, kinds)


def _make_hosts(name: str, spec: object, devices: list[str], nodes: int | None) -> list[Host]:
    """Return a host, or with nodes that of each."""
    values = read_fields(spec, HOST_FIELDS)
    if not values.get("serves"):
        raise InputError("name the devices on which it launches ops", path=("serves",))
    hosts = []
    for node in [""] if nodes is None else [f"node{k}/" for k in range(nodes)]:
        here = [device for device in devices if device.startswith(node)]
        with located("serves"):
            served = [d for pattern in values["serves"] for d in matching(f"{node}{pattern}", here)]
        hosts.append(Host(f"{node}{name}", tuple(dict.fromkeys(served)), values.get("threads", 1)))
    return hosts
