"""Links from descriptions: one entry of a file may stand for many links.

::

    {from: gpu*, to: switch, bandwidth: 450GB/s}      gpu0->switch, switch->gpu0, gpu1->switch, ...

Two patterns (`devices.describe.network.patterns`) connect every pair, and ``duplex`` (the default) adds the
other direction as a link of its own, as both directions of real links work at the same time. On a machine of
several nodes an entry without a slash in its ends describes each node: ``gpu*`` means ``{node}/gpu*``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from devices.describe.field_reading import merge, read_fields
from devices.describe.field_types import HALF
from devices.describe.fields import LINK_FIELDS
from devices.describe.network.patterns import filled, found, pairs
from devices.describe.network.transports import TRANSPORTS
from sim.machine.link import Link
from sim.words.errors import InputError, UnknownNameError, located

__all__ = ["as_network", "links_between", "make_links"]


def make_links(
    base: object,
    over: object,
    devices: Sequence[str],
    *,
    ideal: bool = False,
    nodes: bool = False,
    wires: Sequence[Link] = (),
) -> tuple[Link, ...]:
    """Build links from two lists of descriptions.

    Parameters
    ----------
    base : sequence of mapping
        Links of a preset.
    over : sequence of mapping
        Further ones. One without ends changes what its ``name`` says: an entry of `base`, or else single
        links by their names, as results show them, or a pattern of these.
    devices : sequence of str
        The devices that patterns can mean.
    ideal : bool
        Drop latencies and losses of `base`.
    nodes : bool
        Whether the devices are those of several nodes, so that entries describe each of them.
    wires : sequence of Link
        Those of the topology.

    Raises
    ------
    InputError
        An end that is no device, a name that no link has, a link from a device to itself, two links of one
        name, a wrong quantity.

    Examples
    --------
    >>> [link.name for link in make_links([], [{"from": "gpu*", "to": "cpu0"}], ["cpu0", "gpu0", "gpu1"])]
    ['gpu0->cpu0', 'cpu0->gpu0', 'gpu1->cpu0', 'cpu0->gpu1']
    >>> slow = {"name": "gpu1->cpu0", "bandwidth": "1GB/s"}
    >>> base = [{"from": "gpu*", "to": "cpu0", "bandwidth": "9GB/s"}]
    >>> [link.bandwidth_bytes_per_s for link in make_links(base, [slow], ["cpu0", "gpu0", "gpu1"])]
    [9000000000, 9000000000, 1000000000, 9000000000]
    """
    with located("links"):
        specs = [merge(spec, {}, LINK_FIELDS, ideal=ideal) for spec in _list(base)]
        n_base = len(specs)
        named = {spec["name"]: i for i, spec in enumerate(specs) if "name" in spec}
        said: dict[int, int] = {}  # index in specs → in `over`
        single: dict[int, Mapping[str, Any]] = {}  # index in `over` → change of single links
        for i, spec in enumerate(_list(over)):
            changes = isinstance(spec.get("name"), str) and spec.keys().isdisjoint(("from", "to"))
            place = named.get(spec["name"]) if changes else None
            if changes and place is None:
                single[i] = spec
                continue
            said[len(specs) if place is None else place] = i
            if place is None:
                specs.append(dict(spec))
            else:
                specs[place] = merge(specs[place], spec, LINK_FIELDS)
        wired = {wire.name: wire for wire in wires}
        links: dict[str, Link] = {}
        for i, spec in enumerate(specs):
            with located(*([said[i]] if i in said else [])):
                for link in _expand(spec, devices, nodes, needed=i >= n_base):
                    if link.name in links or link.name in wired:
                        way_out = "give one of them another name"
                        if link.name in wired:
                            way_out = "to change that of the topology, give its name and no ends"
                        raise InputError(f"two links are called {link.name!r}; {way_out}")
                    links[link.name] = link
        links |= wired
        for i, spec in single.items():
            with located(i):
                links |= _changed(spec, links, named)
        return tuple(links.values())


def _changed(spec: Mapping[str, Any], links: Mapping[str, Link], entries: Iterable[str]) -> dict[str, Link]:
    """Return the links whose names fit that of an entry without ends, changed as it says."""
    values = read_fields(spec, LINK_FIELDS)
    name = values["name"]
    fitting = [link for link in links.values() if link.name == name or fnmatchcase(link.name, name)]
    if not fitting:
        raise UnknownNameError("link", name, [*links, *entries]).under("name")
    for key in values:
        if key not in ("name", "bandwidth", "latency"):
            raise InputError(
                "of single links bandwidth and latency can be changed; say it where all are described",
                path=(key,),
            )
    if len(values) == 1:
        raise InputError(f"says nothing of {name!r}; give bandwidth or latency")
    return {
        link.name: replace(
            link,
            latency_ns=values.get("latency", link.latency_ns),
            bandwidth_bytes_per_s=values.get("bandwidth", link.bandwidth_bytes_per_s),
        )
        for link in fitting
    }


def links_between(spec: Mapping[str, Any], ends: Iterable[tuple[str, str, Mapping[str, str]]]) -> list[Link]:
    """Return the links that one entry stands for.

    Parameters
    ----------
    spec : mapping
        What they are like: keys of a link, its ends of no meaning.
    ends : iterable of (str, str, mapping)
        Where each begins and ends, and the words in braces that its bus may have.

    Examples
    --------
    >>> both = links_between({"duplex": "half", "bandwidth": "1GB/s"}, [("a", "b", {})])
    >>> [(link.name, link.medium) for link in both]
    [('a->b', 'a->b'), ('b->a', 'a->b')]
    """
    values = read_fields(spec, LINK_FIELDS)
    duplex, bus = values.get("duplex", True), values.get("bus", "")
    if bus and duplex == HALF:
        raise InputError(f"it has no effect: all links of the bus {bus!r} are one", path=("duplex",))
    media: dict[tuple[str, str], str] = {}
    for a, b, words in ends:
        medium = filled(bus, words) if bus else f"{a}->{b}" if duplex == HALF else ""
        media.setdefault((a, b), medium)
        if duplex:
            media.setdefault((b, a), medium)
    sharing = values.get("sharing", "serial")
    if "chunk" in values and sharing != "fifo":
        raise InputError(
            f"it takes effect only with sharing: fifo, and this link is {sharing}", path=("chunk",)
        )
    name, only = values.get("name"), len(media) == 1
    carried = {**TRANSPORTS[values.get("transport", "local")], **values}
    bandwidth = values.get("bandwidth")
    if bandwidth is not None:
        bandwidth = max(1, int(bandwidth * values.get("efficiency", Fraction(1))))
    return [
        Link(
            f"{a}->{b}" if name is None else name if only else f"{name} {a}->{b}",
            a,
            b,
            values.get("latency", 0),
            bandwidth,
            sharing,
            values.get("on_request", False),
            medium,
            carried.get("connection_bandwidth"),
            carried.get("message_overhead", 0),
            carried.get("host_copies", False),
            values.get("chunk"),
        )
        for (a, b), medium in media.items()
    ]


def as_network(links: Iterable[Link], network: tuple[str, int | None]) -> tuple[Link, ...]:
    """Return links that all share alike: ``max-min``, ``fifo`` with its chunk, ``serial`` or ``instant``."""
    word, chunk = network
    of_word: dict[str, dict[str, Any]] = {
        "max-min": {"sharing": "shared", "chunk_bytes": None},
        "fifo": {"sharing": "fifo", "chunk_bytes": chunk},
        "serial": {"sharing": "serial", "chunk_bytes": None},
        "instant": {
            "sharing": "independent",
            "bandwidth_bytes_per_s": None,
            "connection_bytes_per_s": None,
            "chunk_bytes": None,
        },
    }
    return tuple(replace(link, **of_word[word]) for link in links)


def _list(specs: object) -> list[Mapping[str, Any]]:
    if isinstance(specs, (str, Mapping)) or not isinstance(specs, Sequence):
        raise InputError(f"{specs!r} is not a list of links")
    for i, spec in enumerate(specs):
        if not isinstance(spec, Mapping):
            message = f"{spec!r} is not a description of a link; accepted: a mapping of keys"
            raise InputError(message, path=(i,))
    return list(specs)


def _expand(spec: Mapping[str, Any], devices: Sequence[str], nodes: bool, *, needed: bool) -> list[Link]:
    values = read_fields(spec, LINK_FIELDS)
    for end in ("from", "to"):
        if end not in values:
            raise InputError("a link needs two ends, from and to", path=(end,))
    ends = values["from"], values["to"]
    if nodes and "/" not in "".join(ends):
        ends = f"{{node}}/{ends[0]}", f"{{node}}/{ends[1]}"
        spec = {**spec, **({"bus": f"{{node}}/{spec['bus']}"} if "bus" in spec else {})}
    # A preset's link may mean devices that a smaller count has left out; a scenario's means some.
    if not needed and not all(found(end, devices) for end in ends):
        return []
    connected = pairs(*ends, devices)
    if not connected:
        raise InputError(f"{ends[0]!r} to {ends[1]!r} connects no two devices, and nothing has to be carried")
    return links_between(spec, connected)
