"""Which transfers use which link, what else crosses it, and how much of it that takes over time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.base.arrays import Csr, FloatArray, IntArray
from sim.base.units import NS_PER_S
from sim.record.record import Record


class Traffic(NamedTuple):
    """What crossed links, transfers and messages of collectives: an entry for each link on their ways.

    Attributes
    ----------
    row, link, nbytes : arrays of int64
        By link, then row; the messages have the rows behind those of the transfers.
    ready_ns, start_ns, first_ns, end_ns : arrays of int64
        When it could have gone, when it went, from when on bytes arrived, and when all had.
    """

    row: IntArray
    link: IntArray
    nbytes: IntArray
    ready_ns: IntArray
    start_ns: IntArray
    first_ns: IntArray
    end_ns: IntArray


def traffic_on_links(trace: Record) -> Traffic:
    """Return all that crossed links."""
    machine, moved = trace.job.machine, trace.transfers
    names = ("source", "destination", "nbytes", "ready_ns", "start_ns", "end_ns")
    pairs = zip((moved[name] for name in names), trace.messages.T, strict=True)
    source, destination, nbytes, ready, start, end = (np.concatenate(pair) for pair in pairs)
    tensor = np.concatenate((moved["tensor"], np.zeros(len(trace.messages), np.int64)))
    routes, which = machine.distinct_routes(source, destination, tensor)
    latency = np.array([machine.latency_ns(route) for _, _, route in routes], np.int64)[which]
    used = Csr.of_rows([route for _, _, route in routes]).take(which)
    order = np.argsort(used.indices, kind="stable")
    row, link = used.rows()[order], used.indices[order]
    first = np.minimum(start + latency, end)
    return Traffic(row, link, nbytes[row], ready[row], start[row], first[row], end[row])


def transfers_on_links(trace: Record) -> tuple[IntArray, IntArray]:
    """Return (row of the transfer, link) for every link that a transfer crosses, by link, then row."""
    machine = trace.job.machine
    moved = trace.transfers
    routes, which = machine.distinct_routes(moved["source"], moved["destination"], moved["tensor"])
    used = Csr.of_rows([route for _, _, route in routes]).take(which)
    row, link = used.rows(), used.indices
    order = np.argsort(link, kind="stable")
    return row[order], link[order]


class LinkLoad(NamedTuple):
    """How much of a link's bandwidth is used over time.

    Attributes
    ----------
    link : str
    bytes_per_s : int
        Its bandwidth.
    nbytes : int
        What crossed it.
    times_ns : array of int64
        From 0 to the makespan.
    share : array of float
        From ``times_ns[k]`` to the next, of the bandwidth; the last is 0. It has four decimals.
    mean : float
        Over the makespan.
    """

    link: str
    bytes_per_s: int
    nbytes: int
    times_ns: IntArray
    share: FloatArray
    mean: float

    def means(self, edges_ns: IntArray) -> FloatArray:
        """Return the mean share between each edge and the next."""
        integral = np.concatenate(([0.0], np.cumsum(self.share[:-1] * np.diff(self.times_ns))))
        found: FloatArray = np.diff(np.interp(edges_ns, self.times_ns, integral)) / np.diff(edges_ns)
        return found


def link_loads(trace: Record) -> list[LinkLoad]:
    """Return the load of each link that carried bytes and has a bandwidth, in machine order.

    The bytes of each transfer or message are spread evenly over the time from the first byte's arrival to
    the last one's, on all links of its route: traces do not tell how they were shared in between.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Link, Machine, simulate
    >>> from devices.network import make_network
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("moved")
    >>> _ = b.op("a", duration_ns=100, device="x", outputs=1000)
    >>> _ = b.op("b", duration_ns=100, device="y", inputs=["a"])
    >>> link = Link("xy", "x", "y", 0, 10**9)
    >>> machine = Machine((Device("x"), Device("y")), (link,), network=make_network)
    >>> (load,) = link_loads(simulate(b.build(), machine, ReadyQueue()))
    >>> load.link, load.times_ns.tolist(), load.share.tolist(), load.nbytes
    ('xy', [0, 100, 1100, 1200], [0.0, 1.0, 0.0, 0.0], 1000)
    """
    traffic, until = traffic_on_links(trace), max(trace.makespan_ns, 1)
    travels = traffic.end_ns > traffic.first_ns
    found = []
    for k, link in enumerate(trace.job.machine.links):
        here, bandwidth = travels & (traffic.link == k), link.bandwidth_bytes_per_s
        if bandwidth is None or not here.any():
            continue
        first, end = traffic.first_ns[here], traffic.end_ns[here]
        rate = traffic.nbytes[here] * (NS_PER_S / bandwidth) / (end - first)
        times, which = np.unique(np.concatenate((first, end, [0, until])), return_inverse=True)
        change = np.zeros(len(times))
        np.add.at(change, which[: 2 * len(rate)], np.concatenate((rate, -rate)))
        share = np.round(np.cumsum(change), 4).astype(np.float64) + 0.0  # no -0
        nbytes = int(traffic.nbytes[here].sum())
        mean = nbytes * NS_PER_S / bandwidth / until
        found.append(LinkLoad(link.name, bandwidth, nbytes, times, share, mean))
    return found
