"""Devices, the links between them, and which hosts issue to which devices."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sim.base.arrays import IntArray, distinct_rows
from sim.base.errors import InputError, UnknownNameError, clip_repr
from sim.base.options import need_names, need_types, need_whole, require_call
from sim.base.units import format_bytes, format_count, format_duration
from sim.machine.communicators import CollectiveModel
from sim.machine.device import Device
from sim.machine.links import SHORTEST, Link, Network, Router, Routing
from sim.machine.task import Issuer
from sim.notebook import alike, card, filled_columns

# ----------------------------------------------------------------------------------------------------------
# Folding: of several devices that do the same at the same time, only one is simulated.
#
#     gpu0 ... gpu16383, gpu17 slower     ──►    gpu0  stands for 16,383
#                                                gpu17 stands for itself     they meet on ``data parallel``
#
# The machine of such a run has one device of each sort. The costs of its collectives are those on the whole
# machine with all ranks (`policies.parallel.folding`).


@dataclass(frozen=True)
class Folding:
    """The devices that each simulated one stands for.

    Attributes
    ----------
    members : mapping of str to tuple of str
        Simulated device → all devices that do the same, itself first.
    differs : mapping of str to str
        Simulated device → what distinguishes it from the first one.
    unused : tuple of Device
        The other devices of the whole machine: they run nothing.
    ranks : mapping of str to int
        Communicator → its number of ranks.
    order : tuple of str
        All folded devices, in machine order.

    Examples
    --------
    >>> Folding({"gpu0": ("gpu0", "gpu1")}, {}).seen_as("gpu1/backward")
    'gpu0/backward'
    """

    members: Mapping[str, tuple[str, ...]]
    differs: Mapping[str, str]
    unused: tuple[Device, ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """The number of folded devices."""
        return sum(map(len, self.members.values()))

    @cached_property
    def _simulated(self) -> dict[str, str]:
        return {name: one for one, names in self.members.items() for name in names}

    def stands_for(self, name: str) -> str:
        """Return the name of a simulated device as shown in plots and traces."""
        n = len(self.members[name])
        return name if n == 1 else f"{name}, as {n - 1:,} more"

    def describe(self) -> str:
        """Return a short description of the folding.

        Examples
        --------
        >>> Folding({"gpu0": ("gpu0", "gpu1")}, {}).describe()
        '2 devices folded into 1'
        """
        return f"{self.devices:,} devices folded into {len(self.members):,}"

    def seen_as(self, name: str) -> str:
        """Return the name that a device, or an op ``DEVICE/...``, has in the simulation."""
        device, suffix = name, ""
        while device not in self._simulated and "/" in device:
            device, _, last = device.rpartition("/")
            suffix = f"/{last}{suffix}"
        return self._simulated[device] + suffix if device in self._simulated else name

    def report(self) -> dict[str, Any]:
        """Return the folding as results report it."""
        return {
            "devices": self.devices,
            "into": {
                name: {"stands_for": len(members), "differs": self.differs.get(name)}
                for name, members in self.members.items()
            },
        }


# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """Host threads that launch ops on devices; by default each device without workers has its own.

    If one of the devices is a CPU with workers, those workers are the threads: a pool that runs
    the ops of its CPU and launches the ops of the other devices, as in a TensorFlow process. Such a process
    may have several CPUs (TensorFlow's ``device_count``): they have the same number of workers, and thread n
    of the pool is worker n of each of them, for one task at a time.

    Attributes
    ----------
    name : str
    serves : tuple of str
        Names of the devices; those with workers have equally many.
    threads : int
        Number of threads; ignored if workers are the threads.
    process : str
        The process whose ops it launches; empty: those of all processes.
    """

    name: str
    serves: tuple[str, ...]
    threads: int = 1
    process: str = ""

    def __post_init__(self) -> None:
        """Raise on a number of threads that is none, and on one name in place of several."""
        owner = f"host {self.name!r}"
        need_whole(self, owner, "threads", least=1)
        need_types(self, owner, name=str, process=str)
        if not isinstance(self.serves, tuple | list):
            raise InputError(f"{owner}: serves should be a tuple of names, not {self.serves!r}")
        need_names(self.serves, f"{owner}: serves")


@dataclass(frozen=True)
class Machine:
    """Devices, the links between them, and which hosts issue to which devices.

    Attributes
    ----------
    devices : tuple of Device
        The devices in machine order, which breaks ties.
    links : tuple of Link
        One-way links. Without any, transfers between devices take no time.
    hosts : tuple of Host
        Host threads that serve several devices; a device without a host gets one of its own.
    network : callable or None
        ``network(machine, context)``, with a `sim.job.context.Context`, returns the `Network` of a run;
        needed if there are links (`devices.network.make_network`).
    collectives : CollectiveModel or None
        Gives the time of collectives without a duration; None: the devices' cost models do, as for other
        ops.
    routing : Routing
        The choice of links for transfers.
    folding : Folding or None
        The devices that each of these stands for; None: each for itself.
    resources : mapping of str to int
        Resources that ops take besides their device (attribute ``resources``), and the number of each.

    Examples
    --------
    >>> machine = Machine((Device("gpu0", streams=2), Device("cpu0", "cpu", workers=4)))
    >>> [issuer.name for issuer in machine.issuers()]
    ['gpu0/host', 'cpu0/w0', 'cpu0/w1', 'cpu0/w2', 'cpu0/w3']
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    hosts: tuple[Host, ...] = ()
    network: Callable[[Machine, Any], Network] | None = None
    collectives: CollectiveModel | None = None
    routing: Routing = SHORTEST
    folding: Folding | None = None
    resources: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the number of devices of each kind, and of links."""
        return f"<Machine: {self._sizes}>"

    @property
    def _sizes(self) -> str:
        kinds = Counter(device.kind for device in self.devices)
        links = [format_count(len(self.links), "link")] if self.links else []
        return ", ".join([*(f"{count:,} {kind}" for kind, count in kinds.items()), *links])

    def _repr_html_(self) -> str:
        """Return the notebook display: devices and links, with identical ones in one row."""
        devices = alike(self.devices, _device_row, lambda device: device.name)
        kind = {device.name: device.kind for device in self.devices}
        links = alike(self.links, lambda link: _link_row(link, kind), lambda link: link.name)
        return card(f"Machine: {self._sizes}", [], filled_columns(devices), filled_columns(links))

    def __post_init__(self) -> None:
        """Raise on what is no device, link or host, and on duplicate and unknown names."""
        for attribute, kind in (("devices", Device), ("links", Link), ("hosts", Host)):
            value = getattr(self, attribute)
            if not isinstance(value, Sequence) or not all(isinstance(entry, kind) for entry in value):
                raise InputError(f"{attribute} should be a tuple of {kind.__name__}, not {clip_repr(value)}")
        need_types(self, "machine", routing=Routing, folding=(Folding, type(None)), resources=Mapping)
        need_names(self.resources, "machine: resources")
        for name, number in self.resources.items():
            if not isinstance(number, int | np.integer) or number < 0:
                raise InputError(f"resources: {name} should be a whole number from 0 on, not {number!r}")
        if self.collectives is not None:
            require_call("the model of collectives", self.collectives, "call", "machine", method="time_ns")
        if self.network is not None:
            require_call("the network", self.network, "machine", "context")
        if not self.devices:
            raise InputError("a machine needs at least one device")
        names = [d.name for d in self.devices] + [link.name for link in self.links]
        for name, count in Counter(names).items():
            if count > 1:
                raise InputError(f"two devices or links of the machine are called {name!r}")
        for link in self.links:
            for end in (link.source, link.destination):
                self.device_index(end)
        self._check_media()
        served = [(name, host.process) for host in self.hosts for name in host.serves]
        for (name, process), count in Counter(served).items():
            self.device_index(name)
            if count > 1:
                raise InputError(f"two hosts serve {name!r}" + (f" for {process!r}" if process else ""))
        for host in self.hosts:
            pools = [name for name in host.serves if self.devices[self.device_index(name)].workers]
            sizes = [self.devices[self.device_index(name)].workers for name in pools]
            if len(set(sizes)) > 1:
                counts = ", ".join(f"{name} has {size}" for name, size in zip(pools, sizes, strict=True))
                raise InputError(
                    f"the threads of host {host.name!r} are the workers of each of its CPUs, which have to "
                    f"be equally many: {counts}; give all the same workers"
                )

    def _check_media(self) -> None:
        """Raise if links of one medium differ."""
        media: dict[str, Link] = {}
        for link in self.links:
            if link.medium:
                first = media.setdefault(link.medium, link)
                for attribute in ("bandwidth_bytes_per_s", "latency_ns", "sharing", "chunk_bytes"):
                    one, other = getattr(first, attribute), getattr(link, attribute)
                    if one != other:
                        raise InputError(
                            f"links {first.name!r} and {link.name!r} are one medium, {link.medium!r}, and "
                            f"differ in {attribute.partition('_')[0]}: {one} and {other}"
                        )

    @cached_property
    def stands_for(self) -> IntArray:
        """The number of devices that each one stands for."""
        members = {} if self.folding is None else self.folding.members
        return np.array([len(members.get(device.name, [device])) for device in self.devices])

    @cached_property
    def accelerators(self) -> tuple[str, ...]:
        """Names of the devices other than CPUs and switches, in machine order."""
        return tuple(device.name for device in self.devices if device.kind not in ("cpu", "switch"))

    @cached_property
    def positions(self) -> dict[str, int]:
        """Device name → position."""
        return {device.name: i for i, device in enumerate(self.devices)}

    def device_index(self, name: str) -> int:
        """Return the position of the device called `name`.

        Raises
        ------
        UnknownNameError
            There is none.
        """
        try:
            return self.positions[name]
        except KeyError:
            raise UnknownNameError("device", name, self.positions) from None

    @cached_property
    def first_stream(self) -> tuple[int, ...]:
        """Number of the first lane of each device, with lanes counted over the machine."""
        return tuple(np.cumsum([0] + [d.lanes for d in self.devices]).tolist())

    def stream_name(self, stream: int) -> str:
        """Return ``gpu0/1`` for the second stream of gpu0, ``cpu0/w1`` for a worker."""
        device = bisect_right(self.first_stream, stream) - 1
        lane = stream - self.first_stream[device]
        worker = "w" if self.devices[device].workers else ""
        return f"{self.devices[device].name}/{worker}{lane}"

    def issuers(self) -> list[Issuer]:
        """Return the issuers in machine order: a host takes the place of its first device."""
        return [*self._issuers]

    @cached_property
    def _issuers(self) -> tuple[Issuer, ...]:
        issuers: list[Issuer] = []
        for group, host in enumerate(self.hosts_in_order):
            served = tuple(self.device_index(name) for name in host.serves)
            pools = [i for i in served if self.devices[i].workers]
            if not pools:
                for t in range(host.threads):
                    name = host.name if host.threads == 1 else f"{host.name}{t}"
                    issuers.append(Issuer(len(issuers), name, group, False, served, -1))
            else:
                for w in range(self.devices[pools[0]].workers):
                    lane, *others = (self.first_stream[i] + w for i in pools)
                    name = f"{self.devices[pools[0]].name if len(pools) == 1 else host.name}/w{w}"
                    more = dict(zip(pools[1:], others, strict=True))
                    issuers.append(Issuer(len(issuers), name, group, True, served, lane, more))
        return tuple(issuers)

    @cached_property
    def hosts_in_order(self) -> tuple[Host, ...]:
        """The hosts, including default ones: one for each group of issuers, in group order."""
        hosts_of: dict[str, list[Host]] = {}
        for host in self.hosts:
            for name in host.serves:
                hosts_of.setdefault(name, []).append(host)
        every = (
            host
            for device in self.devices
            for host in hosts_of.get(device.name) or [Host(f"{device.name}/host", (device.name,))]
        )
        return tuple({host.name: host for host in every}.values())

    def groups_for(self, process: str = "") -> IntArray:
        """Return the group of issuers that serves each device for a process; -1: none."""
        group = np.full(len(self.devices), -1)
        for k, host in enumerate(self.hosts_in_order):
            if host.process in ("", process):
                group[[self.device_index(name) for name in host.serves]] = k
        return group

    @cached_property
    def group_of(self) -> IntArray:
        """Group of issuers that serves each device, for a run of one process."""
        return self.groups_for()

    @cached_property
    def channels(self) -> tuple[int, ...]:
        """For each link, the first link of the same medium: itself if it has none."""
        first: dict[str, int] = {}
        media = enumerate(link.medium for link in self.links)
        return tuple(first.setdefault(medium, k) if medium else k for k, medium in media)

    @cached_property
    def router(self) -> Router:
        """The router that finds the routes."""
        return Router([device.name for device in self.devices], self.links, self.routing)

    def route(self, source: int, destination: int, flow: int = 0) -> tuple[int, ...]:
        """Return the links (indices) from one device to another: fewest hops, then least latency.

        An empty route means an ideal, instant transfer: the machine has no links at all.

        Parameters
        ----------
        source, destination : int
            Positions of devices.
        flow : int
            For a transfer, the number of its tensor; used if routes are chosen by flow
            (`sim.machine.links`).

        Raises
        ------
        InfeasibleError
            There are links, but none leads there.
        """
        return () if not self.links or source == destination else self.router.route(source, destination, flow)

    def latency_ns(self, route: Iterable[int]) -> int:
        """Return the time of a message's first byte over a route, including the overhead of the message."""
        links = [self.links[k] for k in route]
        return sum(link.latency_ns for link in links) + max((link.overhead_ns for link in links), default=0)

    def distinct_routes(
        self, source: IntArray, destination: IntArray, tensor: IntArray
    ) -> tuple[list[tuple[int, int, tuple[int, ...]]], IntArray]:
        """Return the distinct (source, destination, route) of transfers, and the index of each transfer's.

        Raises
        ------
        InfeasibleError
            There are links, but none leads there.
        """
        columns = [source, destination]
        if self.links and self.router.by_flow:
            columns.append(tensor)
        different, row = distinct_rows(*columns)
        index: dict[tuple[int, int, tuple[int, ...]], int] = {}
        codes = [index.setdefault((a, b, self.route(a, b, *flow)), len(index)) for a, b, *flow in different]
        return list(index), np.array(codes, np.int64)[row]


def _device_row(device: Device) -> dict[str, str]:
    """Return the notebook row of a device, without zero costs and absent limits."""
    lanes = f"{device.lanes} {'worker' if device.workers else 'stream'}{'' if device.lanes == 1 else 's'}"
    times = {
        "issue": device.issue_ns,
        "launch": device.launch_latency_ns,
        "gap": device.gap_ns,
        "event": device.event_ns,
    }
    return {
        "kind": device.kind,
        "lanes": "" if device.kind == "switch" else lanes,
        "cores": str(device.cores) if device.cores else "",
        "memory": "" if device.memory_bytes is None else format_bytes(device.memory_bytes, iec=True),
        **{word: format_duration(ns) if ns else "" for word, ns in times.items()},
    }


def _link_row(link: Link, kind: Mapping[str, str]) -> dict[str, str]:
    """Return the notebook row of a link, with the kinds of its devices."""
    rate = link.bandwidth_bytes_per_s
    return {
        "between": f"{kind[link.source]} to {kind[link.destination]}",
        "bandwidth": "unlimited" if rate is None else f"{format_bytes(rate)}/s",
        "latency": format_duration(link.latency_ns) if link.latency_ns else "",
        "sharing": link.sharing,
    }
