"""Topologies: what connects the devices of a machine, or the nodes of a cluster, from a few numbers.

::

    mesh            every two devices, directly                       NVLink or HCCS within a board
    ring, torus     neighbours, directly                              a HCCS ring; clusters of TPUs
    switch          all at one switch                                 NVSwitch; a small cluster
    pcie            devices at the socket of their CPU, behind        a host with one socket or more
                    switches or not; sockets among each other
    fat-tree        k pods of k/2 edge and k/2 aggregation            Al-Fares, Loukissas and Vahdat, "A
                    switches, (k/2)^2 core switches                   Scalable, Commodity Data Center Network
                                                                      Architecture", SIGCOMM 2008, section 3
    rail-optimised  GPU g of every node at leaf g, all leaves at      NVIDIA DGX SuperPOD Reference
                    all spines                                        Architecture (H100), "Compute Fabric"

A topology adds switches (devices that run nothing) and links. Its ends are the devices that it connects, in
machine order: by default all that are no CPU (of `pcie`: all), on a cluster those of all nodes.
Links share max-min fairly unless they say something else.

``oversubscription`` is the bandwidth into a switch from below to that out of it above: of a fat tree that
many times k/2 devices stand at an edge switch with k/2 ways up; of rails the links up are so much less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, product
from math import prod
from typing import Annotated, Any, Final

from annotated_types import Ge, Gt

from devices.describe.fields import LINK_FIELDS, merge, read_fields
from devices.describe.links import links_between, matching
from sim.base.arrays import group_pairs
from sim.base.errors import InputError, UnknownNameError, error_path
from sim.base.options import arguments, parameters
from sim.machine.links import Link

Count = Annotated[int, Ge(1)]
LinkKeys = Mapping[str, Any]

_DEFAULT: Final = {"sharing": "shared"}


@dataclass
class Wires:
    """What a topology adds to a machine.

    Attributes
    ----------
    ends : sequence of str
        The devices that it connects.
    kinds : mapping of str to str
        Their kinds.
    switches : list of str
        The devices that it adds.
    links : list of Link
    """

    ends: Sequence[str]
    kinds: Mapping[str, str]
    switches: list[str] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def switch(self, name: str) -> str:
        """Add a switch, and return its name."""
        self.switches.append(name)
        return name

    def connect(self, pairs: Iterable[tuple[str, str]], link: LinkKeys) -> None:
        """Add links like `link`."""
        self.links += links_between(link, [(a, b, {}) for a, b in pairs])

    def by_node(self) -> list[list[str]]:
        """Return the ends of each node; what stands in no node is one of its own."""
        nodes = group_pairs((name.rpartition("/")[0] or name, name) for name in self.ends)
        return list(nodes.values())


def make_topology(
    spec: Mapping[str, Any], kinds: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], list[Link]]:
    """Return the switches (descriptions by name) and links of a topology.

    Parameters
    ----------
    spec : mapping
        ``kind``, ``ends`` (a pattern, or a list of them) and the options of the kind.
    kinds : mapping of str to str
        Kind of each device of the machine, by name, in machine order.

    Raises
    ------
    InputError
        An unknown kind or option, numbers that do not fit one another or the devices.

    Examples
    --------
    >>> kinds = {"cpu0": "cpu", "gpu0": "gpu", "gpu1": "gpu"}
    >>> switches, links = make_topology({"kind": "switch"}, kinds)
    >>> list(switches), [link.name for link in links]
    (['switch'], ['gpu0->switch', 'switch->gpu0', 'gpu1->switch', 'switch->gpu1'])
    """
    options = dict(spec)
    if "kind" not in options:
        raise InputError(f"a topology needs a kind; known: {', '.join(TOPOLOGIES)}")
    kind = options.pop("kind")
    if kind not in TOPOLOGIES:
        with error_path("kind"):
            raise UnknownNameError("topology", str(kind), TOPOLOGIES)
    build = TOPOLOGIES[kind]
    accepted = {name: p for name, p in parameters(build).items() if name != "wires"}
    ends = _ends(options.pop("ends", None), kinds, with_cpus=kind == "pcie")
    for name in ("link", "uplink", "socket_link"):
        if name in options and name in accepted:
            with error_path(name):
                options[name] = _link(options[name])
    wires = Wires(ends, kinds)
    build(wires, **arguments(f"the topology {kind!r}", accepted, options))
    for name in wires.switches:
        if name in kinds:
            raise InputError(f"its switch {name!r} has the name of a device; call that something else")
    return {name: {"preset": "nvswitch"} for name in wires.switches}, wires.links


def _ends(spec: object, kinds: Mapping[str, str], *, with_cpus: bool) -> list[str]:
    if spec is None:
        names = [name for name, kind in kinds.items() if with_cpus or kind not in ("cpu", "switch")]
        names = names or [name for name, kind in kinds.items() if kind != "switch"]
    else:
        patterns = [spec] if isinstance(spec, str) else spec
        if not isinstance(patterns, list | tuple) or not all(isinstance(part, str) for part in patterns):
            raise InputError(f"{spec!r} is no pattern of devices and no list of them", path=("ends",))
        with error_path("ends"):
            chosen = {name for pattern in patterns for name in matching(pattern, list(kinds))}
        names = [name for name in kinds if name in chosen]
    if len(names) < 2:
        ends = ", ".join(names) or "none"
        raise InputError(f"a topology connects two devices at least; its ends are {ends}")
    return names


def _link(spec: object) -> dict[str, Any]:
    """Return keys of a link, checked."""
    values = read_fields(spec, LINK_FIELDS)
    for key in ("from", "to", "name"):
        if key in values:
            raise InputError("the topology knows what it connects", path=(key,))
    assert isinstance(spec, Mapping)
    return merge(_DEFAULT, spec, LINK_FIELDS)


# -- kinds -----------------------------------------------------------------------------------------


def _mesh(wires: Wires, link: LinkKeys = _DEFAULT) -> None:
    wires.connect(combinations(wires.ends, 2), link)


def _switch(wires: Wires, link: LinkKeys = _DEFAULT, name: str = "switch") -> None:
    switch = wires.switch(name)
    wires.connect(((end, switch) for end in wires.ends), link)


def _ring(wires: Wires, link: LinkKeys = _DEFAULT) -> None:
    _torus(wires, (len(wires.ends),), link)


def _torus(wires: Wires, shape: tuple[Count, ...], link: LinkKeys = _DEFAULT, *, wrap: bool = True) -> None:
    """Connect neighbours in each dimension, by `wrap` the last with the first; the last counts fastest."""
    ends = wires.ends
    if (places := prod(shape)) != len(ends):
        text = " x ".join(map(str, shape))
        raise InputError(f"{text} are {places} places, and it connects {len(ends)} devices", path=("shape",))
    pairs = []
    for k, position in enumerate(product(*map(range, shape))):
        stride = 1
        for dimension in reversed(range(len(shape))):
            n = shape[dimension]
            if position[dimension] < n - 1:
                pairs.append((ends[k], ends[k + stride]))
            elif wrap and n > 2:  # two are neighbours once
                pairs.append((ends[k], ends[k + (1 - n) * stride]))
            stride *= n
    wires.connect(pairs, link)


def _pcie(
    wires: Wires, link: LinkKeys = _DEFAULT, socket_link: LinkKeys = _DEFAULT, per_switch: Count | None = None
) -> None:
    """Connect devices with the CPU of their socket, `per_switch` of them over one link to it."""
    for ends in wires.by_node() if "/" in wires.ends[0] else [wires.ends]:
        cpus = [name for name in ends if wires.kinds[name] == "cpu"]
        others = [name for name in ends if wires.kinds[name] != "cpu"]
        if not cpus:
            raise InputError("a PCIe host needs a CPU among its ends")
        node = ends[0].rpartition("/")[0]
        per_cpu = -(-len(others) // len(cpus))
        for s, cpu in enumerate(cpus):
            group = others[s * per_cpu : (s + 1) * per_cpu]
            if per_switch is None:
                wires.connect(((cpu, end) for end in group), link)
                continue
            for k in range(0, len(group), per_switch):
                switch = wires.switch(f"{node}{'/' if node else ''}pcie{s}.{k // per_switch}")
                wires.connect([(cpu, switch), *((switch, end) for end in group[k : k + per_switch])], link)
        wires.connect(combinations(cpus, 2), socket_link)


def _fat_tree(
    wires: Wires,
    k: Count | None = None,
    link: LinkKeys = _DEFAULT,
    uplink: LinkKeys | None = None,
    oversubscription: Annotated[float, Gt(0)] = 1,
) -> None:
    n = len(wires.ends)
    above = Fraction(str(oversubscription))
    if k is None:
        k = 2
        while above * k**3 / 4 < n:
            k += 2
    if k % 2:
        raise InputError(f"the switches of a fat tree have an even number of ports, not {k}", path=("k",))
    half = k // 2
    below = above * half
    if below.denominator != 1:
        raise InputError(
            f"{oversubscription:g} times {half} devices at a switch are no whole number",
            path=("oversubscription",),
        )
    per_edge = int(below)
    if per_edge * half * k < n:
        raise InputError(
            f"a fat tree of switches with {k} ports has room for {per_edge * half * k} devices, not {n}",
            path=("k",),
        )
    up = link if uplink is None else uplink
    pods = range(-(-n // (per_edge * half)))
    for pod in pods:
        for e in range(half):
            edge = wires.switch(f"edge{pod}.{e}")
            first = (pod * half + e) * per_edge
            wires.connect(((end, edge) for end in wires.ends[first : first + per_edge]), link)
        for a in range(half):
            wires.switch(f"agg{pod}.{a}")
        wires.connect(((f"edge{pod}.{e}", f"agg{pod}.{a}") for e in range(half) for a in range(half)), up)
    for core in range(half * half if len(pods) > 1 else 0):
        wires.switch(f"core{core}")
        wires.connect(((f"agg{pod}.{core // half}", f"core{core}") for pod in pods), up)


def _rails(
    wires: Wires,
    link: LinkKeys = _DEFAULT,
    uplink: LinkKeys | None = None,
    spines: Annotated[int, Ge(0)] | None = None,
    nodes_per_leaf: Count | None = None,
    oversubscription: Annotated[float, Gt(0)] = 1,
) -> None:
    nodes = wires.by_node()
    n_rails = len(nodes[0])
    uneven = next((node for node in nodes if len(node) != n_rails), None)
    if uneven is not None:
        raise InputError(
            f"rails need as many devices in each node: {n_rails} beside {nodes[0][0]}, "
            f"{len(uneven)} beside {uneven[0]}"
        )
    per_leaf = nodes_per_leaf or len(nodes)
    above = Fraction(str(oversubscription))
    n_spines = -int(-per_leaf // above) if spines is None else spines
    bandwidth = read_fields(link, LINK_FIELDS).get("bandwidth")
    if uplink is not None and oversubscription != 1:
        raise InputError("uplink says what they carry; leave one of them out", path=("oversubscription",))
    up = link if uplink is None else uplink
    if uplink is None and bandwidth is not None and n_spines:
        up = {**link, "bandwidth": f"{int(bandwidth * per_leaf / above / n_spines)}B/s"}
    groups = range(-(-len(nodes) // per_leaf))
    if len(groups) * n_rails == 1:
        n_spines = 0  # a single leaf needs no spine
    for s in range(n_spines):
        wires.switch(f"spine{s}")
    for group, rail in product(groups, range(n_rails)):
        leaf = wires.switch(f"leaf{rail}" if len(groups) == 1 else f"leaf{group}.{rail}")
        wires.connect(((node[rail], leaf) for node in nodes[group * per_leaf : (group + 1) * per_leaf]), link)
        wires.connect(((leaf, f"spine{s}") for s in range(n_spines)), up)


TOPOLOGIES: Final[Mapping[str, Callable[..., None]]] = {
    "fat-tree": _fat_tree,
    "mesh": _mesh,
    "pcie": _pcie,
    "rail-optimised": _rails,
    "ring": _ring,
    "switch": _switch,
    "torus": _torus,
}
"""Kind -> what adds its switches and links."""
