"""The network of a run: every transfer's way from the first link to the last byte.

::

    ready ──► turnstile: serial links of the route and copy engines, each for one transfer at a time
          ──► latency: the sum over the route
          ──► bytes:   alone      at the least bandwidth of the route, when all its links are serial
                       shared     max-min fairly with the others (`flows`), when one of them is shared
                       in chunks  from queue to queue (`chunks`), when its links are fifo
                       (an independent link gives each transfer its bandwidth, whoever else is there)
          ──► arrived: everything held is given back

A serial link is held whole, from the first moment of the latency to the last byte, and so is every other
serial link of the route: one message at a time from end to end. A shared link is only used while bytes
flow; the latency comes first (as in SimGrid's flow models, Velho et al., *On the validity of flow-level TCP
network models*, ACM TOMACS 23(4), 2013). A lone transfer takes as long on either:
``latency + nbytes / bandwidth``, up to the first whole ns at which its bytes are there.

What a host copies from or to pageable memory (`sim.job.pageable`) passes through the driver's buffers: never
faster than ``staging_bandwidth``, which all such copies from one device to another share.

Copy engines (``copy_engines``; of an NPU its DMA engines): with 2 a device takes part in one transfer in each
direction at a time, with 1 in one altogether, first come, first served (the property `asyncEngineCount` of
CUDA devices).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from devices.network.chunks import ChunkQueues
from devices.network.columns import network_columns
from devices.network.flows import FairFlows
from devices.network.routes import Way, find_ways, way_of_message
from devices.network.turnstile import Turnstile
from sim.job.context import Context
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.kernel.layout.routes import Routes
from sim.machine.link import Message
from sim.machine.machine import Machine
from sim.machine.task import Task

__all__ = ["Carrier", "make_network"]


class _Message:
    """What travels and is no transfer of a tensor."""

    __slots__ = ("arrived", "ends", "nbytes", "ready_ns", "start_ns", "way")

    def __init__(
        self, way: Way, ends: tuple[int, int], nbytes: int, arrived: Callable[[], None], ready_ns: int
    ) -> None:
        self.way, self.ends, self.nbytes, self.arrived = way, ends, nbytes, arrived
        self.ready_ns = self.start_ns = ready_ns


class Carrier:
    """A `sim.machine.link.Network` of links of any sort; `make_network` makes one.

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
        ways = find_ways(context.job, flow)
        self._ways: list[Way] = [ways.each[k] for k in ways.of.tolist()]
        self._ways_of_messages: dict[tuple[int, int], Way] = {}
        self._turnstile: Turnstile[Task | _Message] = Turnstile()
        self._flows = FairFlows(context, ways.bandwidth_bytes_per_s, self._arrived)

    @cached_property
    def _queues(self) -> ChunkQueues:
        """What carries chunks, once a link is a queue of them."""
        links, devices = self._context.job.machine.links, self._context.job.machine.devices
        rates = {link.bandwidth_bytes_per_s for link in links}
        rates |= {link.connection_bytes_per_s for link in links}
        rates |= {device.staging_bytes_per_s for device in devices}
        return ChunkQueues(self._context, {rate for rate in rates if rate is not None}, self._arrived)

    def start(self, task: Task) -> None:
        """Take a transfer that is ready."""
        held = self._way(task).held
        if not held or self._turnstile.enter(task, held):
            self._begin(task)

    def send(self, source: int, destination: int, nbytes: int, arrived: Callable[[], None]) -> None:
        """Carry a message that is no transfer of a tensor: no copy engine makes it."""
        pair = source, destination
        if pair not in self._ways_of_messages:
            machine = self._context.job.machine
            connection = len(machine.links) + len(self._ways) + len(self._ways_of_messages)
            way, most = way_of_message(machine, source, destination, connection)
            if most is not None:
                self._flows.add_link(connection, most)
            self._ways_of_messages[pair] = way
        message = _Message(self._ways_of_messages[pair], pair, nbytes, arrived, self._context.now_ns)
        if not message.way.held or self._turnstile.enter(message, message.way.held):
            self._begin(message)

    def _way(self, item: Task | _Message) -> Way:
        return item.way if isinstance(item, _Message) else self._ways[item.op - self._n_ops]

    def _size(self, item: Task | _Message) -> int:
        return item.nbytes if isinstance(item, _Message) else self._nbytes[item.op - self._n_ops]

    def _begin(self, item: Task | _Message) -> None:
        now = self._context.now_ns
        if isinstance(item, _Message):
            item.start_ns = now
        else:
            self._context.started(item)
        way, nbytes = self._way(item), self._size(item)
        if way.hops:
            on_links = sum(hop.latency_ns for hop in way.hops)
            self._queues.add(item, nbytes, way.hops, way.chunk, way.latency_ns - on_links)
            return
        first_byte_ns = now + way.latency_ns
        if way.shared and nbytes:
            if way.latency_ns:
                self._context.call_at(first_byte_ns, self._flow, item)
            else:
                self._flow(item)
            return
        self._context.call_at(now + way.alone_ns(nbytes), self._arrived, item)

    def _flow(self, item: Task | _Message) -> None:
        self._flows.add(item, self._size(item), self._way(item).shared)

    def _arrived(self, item: Task | _Message) -> None:
        if isinstance(item, _Message):
            now = self._context.now_ns
            self._context.carried(Message(*item.ends, item.nbytes, item.ready_ns, item.start_ns, now))
            item.arrived()
        else:
            self._context.finish(item)
        held = self._way(item).held
        if held:
            for following in self._turnstile.leave(held):
                self._begin(following)


@dataclass(frozen=True)
class MakeNetwork:
    """Makes the network of a run, in which every link shares as it says itself.

    The kernel runs the same network over columns (`sim.kernel.layout.routes.InColumns`).

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

    def __call__(self, machine: Machine, context: Context) -> Carrier:
        """Return the network of a run.

        Parameters
        ----------
        machine : Machine
        context : Context
            The run; its ``flow`` says what moves from where to where.

        Raises
        ------
        InputError
            A link with a word of `sharing` or a number of copy engines that means nothing.
        """
        return Carrier(machine, context)

    def columns(self, job: Job, flow: Flow) -> Routes | str:
        """Return the same in columns; see `devices.network.columns.network_columns`."""
        return network_columns(job, flow)


make_network: Final = MakeNetwork()
