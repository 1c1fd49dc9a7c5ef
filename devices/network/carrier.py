"""The network of a run: every transfer's way from the first link to the last byte.

::

    ready ──► turnstile: serial links of the route and copy engines, each for one transfer at a time
          ──► latency: the sum over the route
          ──► bytes:   alone      at the least bandwidth of the route, when all its links are serial
                       shared     max-min fairly with the others (`flows`), when one of them is shared
                       (an independent link gives each transfer its bandwidth, whoever else is there)
          ──► arrived: everything held is given back

A serial link is held whole, from the first moment of the latency to the last byte, and so is every other
serial link of the route: one message at a time from end to end. A shared link is only used while bytes
flow; the latency comes first (as in SimGrid's flow models, Velho et al., *On the validity of flow-level TCP
network models*, ACM TOMACS 23(4), 2013). A lone transfer takes as long on either:
``latency + nbytes / bandwidth``, up to the first whole ns at which its bytes are there.

What a host copies from or to pageable memory (`sim.hosting`) passes through the driver's buffers: never
faster than ``staging_bandwidth``, which all such copies from one device to another share.

Copy engines (``copy_engines``; of an NPU its DMA engines): with 2 a device takes part in one transfer in each
direction at a time, with 1 in one altogether, first come, first served (the property `asyncEngineCount` of
CUDA devices).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from devices.network.flows import FairFlows
from devices.network.turnstile import Turnstile
from sim.errors import InputError
from sim.hosting import staging_bytes_per_s
from sim.model import Context, Machine, Task
from sim.units import NS_PER_S

__all__ = ["Carrier", "make_network"]


class _Route(NamedTuple):
    """What a transfer from one device to another meets."""

    held: tuple[Hashable, ...]
    """Serial links and copy engines, for one transfer at a time."""
    latency_ns: int
    bandwidth_bytes_per_s: int | None
    """The least of the route."""
    shared: tuple[int, ...]
    """Links with a bandwidth (and the host's copying), when a link is shared; else empty."""


class Carrier:
    """A `sim.model.Network` of serial and shared links; `make_network` makes one.

    Parameters
    ----------
    machine : Machine
    context : Context
        The run.
    """

    def __init__(self, machine: Machine, context: Context) -> None:
        self._context = context
        flow = context.flow
        self._n_ops = flow.n_ops
        self._nbytes: list[int] = flow.nbytes.tolist()
        pairs = list(zip(flow.source.tolist(), flow.destination.tolist(), strict=True))
        capacities = _capacities(machine)
        routes: dict[tuple[int, int], _Route] = {}
        for pair in dict.fromkeys(pairs):
            staging = staging_bytes_per_s(context.job, *pair)
            if staging is not None:
                capacities[len(machine.links) + len(routes)] = staging
            routes[pair] = _route(machine, *pair, staging, len(machine.links) + len(routes))
        self._routes = [routes[pair] for pair in pairs]
        self._turnstile: Turnstile[Task] = Turnstile()
        self._flows = FairFlows(context, capacities, self._arrived)

    def start(self, task: Task) -> None:
        """Take a transfer that is ready."""
        held = self._route(task).held
        if not held or self._turnstile.enter(task, held):
            self._begin(task)

    def _route(self, task: Task) -> _Route:
        return self._routes[task.op - self._n_ops]

    def _begin(self, task: Task) -> None:
        now = self._context.now_ns
        self._context.started(task)
        route, nbytes = self._route(task), self._nbytes[task.op - self._n_ops]
        first_byte_ns = now + route.latency_ns
        if route.shared and nbytes:
            if route.latency_ns:
                self._context.call_at(first_byte_ns, self._flow, task)
            else:
                self._flow(task)
            return
        bandwidth = route.bandwidth_bytes_per_s
        last_byte_ns = (
            first_byte_ns if bandwidth is None else first_byte_ns - (-nbytes * NS_PER_S // bandwidth)
        )
        self._context.call_at(last_byte_ns, self._arrived, task)

    def _flow(self, task: Task) -> None:
        self._flows.add(task, self._nbytes[task.op - self._n_ops], self._route(task).shared)

    def _arrived(self, task: Task) -> None:
        self._context.finish(task)
        held = self._route(task).held
        if held:
            for following in self._turnstile.leave(held):
                self._begin(following)


def make_network(machine: Machine, context: Context) -> Carrier:
    """Return the network of a run, in which every link is serial or shared as it says itself.

    Parameters
    ----------
    machine : Machine
    context : Context
        The run; its ``flow`` says what moves from where to where.

    Raises
    ------
    InputError
        A link with a word of `sharing` or a number of copy engines that means nothing.

    Examples
    --------
    Two transfers of 10 bytes over one link of 1 byte/ns, which share it, arrive after 20 ns:

    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim import Device, GraphBuilder, Link, Machine, simulate
    >>> b = GraphBuilder("two transfers")
    >>> for name in "ab":
    ...     _ = b.op(name, outputs=10, device="gpu0")
    ...     _ = b.op(name + "'", inputs=[name], device="gpu1")
    >>> link = Link("link", "gpu0", "gpu1", 0, 10**9, "shared")
    >>> machine = Machine((Device("gpu0"), Device("gpu1")), (link,), network=make_network)
    >>> simulate(b.build(), machine, ReadyQueue()).makespan_ns
    20
    """
    return Carrier(machine, context)


def _route(machine: Machine, source: int, destination: int, staging: int | None, stage: int) -> _Route:
    """Return what a route holds and shares; `stage` is the number of the host's copying among the links."""
    links = machine.route(source, destination)
    held: list[Hashable] = [link for link in links if machine.links[link].sharing == "serial"]
    finite = tuple(link for link in links if machine.links[link].bandwidth_bytes_per_s is not None)
    bandwidths = [staging, *(machine.links[link].bandwidth_bytes_per_s for link in finite)]
    shared = any(machine.links[link].sharing == "shared" for link in finite)
    independent = next((link for link in finite if machine.links[link].sharing == "independent"), None)
    if shared and independent is not None:
        ends = f"from {machine.devices[source].name} to {machine.devices[destination].name}"
        raise InputError(
            f"the route {ends} leads over {machine.links[independent].name!r}, which is independent, and a "
            "shared link; make both the same"
        )
    engines = [_engine(machine, source, "out"), _engine(machine, destination, "in")]
    return _Route(
        (*held, *(engine for engine in engines if engine is not None)),
        sum(machine.links[link].latency_ns for link in links),
        min((bandwidth for bandwidth in bandwidths if bandwidth is not None), default=None),
        (*finite, *(() if staging is None else (stage,))) if shared else (),
    )


def _engine(machine: Machine, device: int, direction: str) -> Hashable | None:
    """Return what a transfer holds at one of its ends; None: nothing."""
    engines = machine.devices[device].details.get("copy_engines")
    if engines is None:
        return None
    if engines not in (1, 2):
        raise InputError(
            f"{machine.devices[device].name}.copy_engines: found {engines!r}; accepted: 1 (one transfer at a "
            "time) or 2 (one in each direction)"
        )
    return (device, direction if engines == 2 else "both")


def _capacities(machine: Machine) -> dict[int, int]:
    for link in machine.links:
        if link.sharing not in ("serial", "shared", "independent"):
            raise InputError(
                f"link {link.name!r}: sharing must be serial, shared or independent, found {link.sharing!r}"
            )
    return {
        k: link.bandwidth_bytes_per_s
        for k, link in enumerate(machine.links)
        if link.bandwidth_bytes_per_s is not None
    }
