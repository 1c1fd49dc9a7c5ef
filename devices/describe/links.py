"""Links from descriptions: one entry of a file may stand for many links.

::

    {from: gpu*, to: switch, bandwidth: 450GB/s}      gpu0->switch, switch->gpu0, gpu1->switch, ...

Two patterns (`devices.describe.links`) connect every pair, and ``duplex`` (the default) adds the
other direction as a link of its own, as both directions of real links work at the same time. On a machine of
several nodes an entry without a slash in its ends describes each node: ``gpu*`` means ``{node}/gpu*``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase, translate
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from devices.describe.field_types import HALF, read_list
from devices.describe.fields import LINK_FIELDS, ROUTE_FIELDS, merge, read_fields
from sim.base.errors import InputError, UnknownNameError, error_path
from sim.machine.links import Link, Routing

# ----------------------------------------------------------------------------------------------------------
# What a message costs besides latency and bandwidth, by the software that carries it.
#
#     local   nothing: memory, NVLink, PCIe
#     rdma    the network card reads the memory by itself; a message waits until it is notified
#     tcp     a thread of the host copies the bytes through the kernel, as fast as one core can
#
# Sources. tcp: 24 us one way for 64 bytes between two Linux servers (Belay et al., "IX: A Protected Dataplane
# Operating System for High Throughput and Low Latency", OSDI 2014, section 5.2); 42 Gb/s for one flow, with
# one core busy at the receiver (Cai et al., "Understanding Host Network Stack Overheads", SIGCOMM 2021,
# section 3.1). rdma: 1 us, half of a round trip of about 2 us (Kalia et al., "Using RDMA Efficiently for
# Key-Value Services", SIGCOMM 2014, figure 2); ``ib_send_lat`` counts 0.8 us one way for 32 bytes and 1.6 us
# for 1 KiB over a reliable connection (git.dennispotter.eu/Dennis/masters-thesis, table ``mtu_performance``).
# The latency of cables and switches is the link's own. What a GPU waits for besides, until its proxy thread
# on the host has posted a message and a flag has come back, is no part of it: NCCL counts 2.7 to 14 us for a
# step between nodes (`devices.collectives.nccl_tuner.LATENCY_US`), for which collectives have a
# ``latency`` of their own.

TRANSPORTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "local": {},
    "rdma": {"fixed": 1_000},
    "tcp": {"fixed": 24_000, "bandwidth": 42 * 10**9 // 8, "host_copies": True},
}
"""Name of a transport -> what it costs, read."""


# ----------------------------------------------------------------------------------------------------------
# Names by pattern: one word of a file stands for many devices.
#
#  gpu*             those of a shell (`fnmatch`): gpu0, gpu1, ...
#  {node}/gpu*      a word in braces stands for any text without a slash, and for the same at both ends of a
#                   link: {node}/gpu* to {node}/nvswitch connects gpus with the switch of their own node

_WORD: Final = re.compile(r"\{([A-Za-z_][A-Za-z_0-9]*)\}")

_Words = tuple[tuple[str, str], ...]
"""Words in braces and what they stand for, sorted."""


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that fit a pattern, in the order given.

    Raises
    ------
    UnknownNameError
        None does.

    Examples
    --------
    >>> matching("gpu*", ["cpu0", "gpu0", "gpu1"])
    ['gpu0', 'gpu1']
    """
    fitting = [name for name, _ in match_names(pattern, names)]
    if not fitting:
        raise UnknownNameError("device", pattern, names)
    return fitting


def match_names(pattern: str, names: Sequence[str]) -> list[tuple[str, _Words]]:
    """Return the names that fit a pattern, and what its words in braces stand for in each.

    Examples
    --------
    >>> match_names("{node}/gpu*", ["node0/cpu0", "node0/gpu0", "node1/gpu0"])
    [('node0/gpu0', (('node', 'node0'),)), ('node1/gpu0', (('node', 'node1'),))]
    """
    parts = _WORD.split(pattern)
    expression, known = "", set()
    for i, part in enumerate(parts):
        if i % 2 == 0:
            expression += translate(part).removesuffix(r"\Z").removesuffix(r"\z")
        else:
            expression += f"(?P={part})" if part in known else f"(?P<{part}>[^/]+?)"
            known.add(part)
    fits = re.compile(expression).fullmatch
    return [(name, tuple(sorted(m.groupdict().items()))) for name in names if (m := fits(name))]


def pairs(one: str, other: str, names: Sequence[str]) -> list[tuple[str, str, Mapping[str, str]]]:
    """Return every name that fits `one` with every name that fits `other` and means the same by its words.

    Raises
    ------
    UnknownNameError
        No name fits one of the patterns; the path is ``from`` or ``to``.

    Examples
    --------
    >>> [pair[:2] for pair in pairs("a{n}", "b{n}", ["a0", "a1", "b0", "b1"])]
    [('a0', 'b0'), ('a1', 'b1')]
    """
    with error_path("from"):
        matching(one, names)
    with error_path("to"):
        matching(other, names)
    shared = set(_WORD.findall(one)) & set(_WORD.findall(other))
    matches: dict[_Words, list[tuple[str, _Words]]] = {}
    for name, words in match_names(other, names):
        matches.setdefault(tuple(word for word in words if word[0] in shared), []).append((name, words))
    return [
        (a, b, dict(words + more))
        for a, words in match_names(one, names)
        for b, more in matches.get(tuple(word for word in words if word[0] in shared), ())
        if a != b
    ]


def fill_words(text: str, words: Mapping[str, str]) -> str:
    """Return a text with what its words in braces stand for.

    Examples
    --------
    >>> fill_words("{node}/pcie", {"node": "node3"})
    'node3/pcie'
    """
    return _WORD.sub(lambda m: words.get(m[1], m[0]), text)


# ----------------------------------------------------------------------------------------------------------


def make_links(
    base: object,
    changes: object,
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
    changes : sequence of mapping
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
    with error_path("links"):
        specs = [merge(spec, {}, LINK_FIELDS, ideal=ideal) for spec in _list(base)]
        n_base = len(specs)
        named = {spec["name"]: i for i, spec in enumerate(specs) if "name" in spec}
        change_of: dict[int, int] = {}  # index in specs → in `changes`
        single: dict[int, Mapping[str, Any]] = {}  # index in `changes` → change of single links
        for i, spec in enumerate(_list(changes)):
            if not isinstance(spec.get("name"), str) or not spec.keys().isdisjoint(("from", "to")):
                change_of[len(specs)] = i
                specs.append(dict(spec))
            elif (index := named.get(spec["name"])) is not None:
                change_of[index] = i
                specs[index] = merge(specs[index], spec, LINK_FIELDS)
            else:
                single[i] = spec
        wired = {wire.name: wire for wire in wires}
        links: dict[str, Link] = {}
        for i, spec in enumerate(specs):
            with error_path(*([change_of[i]] if i in change_of else [])):
                for link in _expand(spec, devices, nodes, needed=i >= n_base):
                    if link.name in links or link.name in wired:
                        way_out = "give one of them another name"
                        if link.name in wired:
                            way_out = "to change that of the topology, give its name and no ends"
                        raise InputError(f"two links are called {link.name!r}; {way_out}")
                    links[link.name] = link
        links |= wired
        for i, spec in single.items():
            with error_path(i):
                links |= _change_links(spec, links, named)
        return tuple(links.values())


def _change_links(
    spec: Mapping[str, Any], links: Mapping[str, Link], entries: Iterable[str]
) -> dict[str, Link]:
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
        if bus:
            medium = fill_words(bus, words)
        elif duplex == HALF:
            medium = f"{a}->{b}"
        else:
            medium = ""
        media.setdefault((a, b), medium)
        if duplex:
            media.setdefault((b, a), medium)
    name = values.get("name")
    before = "" if name is None else f"{name} "  # of several links that have the name of their entry
    transport = values.get("transport", {})
    carried = {**TRANSPORTS[transport.get("name", "local")], **transport}
    bandwidth = values.get("bandwidth")
    if bandwidth is not None:
        bandwidth = max(1, int(bandwidth * values.get("efficiency", Fraction(1))))
    links = [
        Link(
            name if name is not None and len(media) == 1 else f"{before}{a}->{b}",
            a,
            b,
            values.get("latency", 0),
            bandwidth,
            rendezvous=values.get("rendezvous", False),
            medium=medium,
            connection_bytes_per_s=carried.get("bandwidth"),
            overhead_ns=carried.get("fixed", 0),
            host_copies=carried.get("host_copies", False),
        )
        for (a, b), medium in media.items()
    ]
    return with_sharing(links, values["sharing"]) if "sharing" in values else links


def with_sharing(links: Iterable[Link], sharing: Mapping[str, Any]) -> list[Link]:
    """Return links that all share alike: by a word, and of ``fifo`` the chunk."""
    word, chunk = sharing["name"], sharing.get("chunk")
    if word == "instant":
        word = "independent"
        links = (replace(link, bandwidth_bytes_per_s=None, connection_bytes_per_s=None) for link in links)
    return [replace(link, sharing=word, chunk_bytes=chunk) for link in links]


def _list(specs: object) -> list[Mapping[str, Any]]:
    entries = read_list(specs, "list of links")
    for i, spec in enumerate(entries):
        if not isinstance(spec, Mapping):
            message = f"{spec!r} is not a description of a link; accepted: a mapping of keys"
            raise InputError(message, path=(i,))
    return list(entries)


def _expand(spec: Mapping[str, Any], devices: Sequence[str], nodes: bool, *, needed: bool) -> list[Link]:
    values = read_fields(spec, LINK_FIELDS)
    for end in ("from", "to"):
        if end not in values:
            raise InputError("a link needs two ends, from and to", path=(end,))
    ends = values["from"], values["to"]
    if nodes and "/" not in "".join(ends):
        ends = f"{{node}}/{ends[0]}", f"{{node}}/{ends[1]}"
        if "bus" in spec:
            spec = {**spec, "bus": f"{{node}}/{spec['bus']}"}
    # A preset's link may mean devices that a smaller count has left out; a scenario's means some.
    if not needed and not all(match_names(end, devices) for end in ends):
        return []
    connected = pairs(*ends, devices)
    if not connected:
        raise InputError(f"{ends[0]!r} to {ends[1]!r} connects no two devices, and nothing has to be carried")
    return links_between(spec, connected)


# ----------------------------------------------------------------------------------------------------------
# How routes are chosen, and routes that are given, from descriptions.


def make_routing(
    kind: Mapping[str, Any], routes: object, devices: Sequence[str], links: Sequence[Link]
) -> Routing:
    """Return how a machine chooses routes.

    Parameters
    ----------
    kind : mapping
        The ``name`` and ``seed`` of ``routing``.
    routes : sequence of mapping
        Those that are given, with the keys ``from``, ``to`` and ``via``.
    devices : sequence of str
    links : sequence of Link

    Raises
    ------
    InputError
        A device that there is not, two devices that no link connects, a route that is given twice.

    Examples
    --------
    >>> links = [Link("ab", "a", "b"), Link("bc", "b", "c"), Link("ac", "a", "c")]
    >>> make_routing({}, [{"from": "a", "to": "c", "via": ["b"]}], ["a", "b", "c"], links).given
    {('a', 'c'): ('b',)}
    """
    via_of: dict[tuple[str, str], tuple[str, ...]] = {}
    connected = {(link.source, link.destination) for link in links}
    known = set(devices)
    with error_path("routes"):
        for i, route in enumerate(read_list(routes, "list of routes")):
            values = read_fields(route, ROUTE_FIELDS, i)
            with error_path(i):
                for key in ROUTE_FIELDS:
                    if key not in values:
                        raise InputError(f"a route needs {', '.join(ROUTE_FIELDS)}", path=(key,))
                for a, b, words in pairs(values["from"], values["to"], devices):
                    via = tuple(fill_words(name, words) for name in values["via"])
                    with error_path("via"):
                        _check((a, *via, b), known, connected)
                    if (a, b) in via_of:
                        raise InputError(f"the route from {a} to {b} is given twice")
                    via_of[a, b] = via
    return Routing(kind.get("name", "shortest"), kind.get("seed", 0), via_of)


def _check(passed: Sequence[str], known: set[str], connected: set[tuple[str, str]]) -> None:
    for name in passed:
        if name not in known:
            raise UnknownNameError("device", name, known)
        if passed.count(name) > 1:
            raise InputError(f"the route passes {name!r} twice")
    for a, b in pairwise(passed):
        if (a, b) not in connected:
            raise InputError(f"no link leads from {a} to {b}")
