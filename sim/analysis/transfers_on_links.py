"""Which transfers use which link, and what else crosses it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.graph.csr import Csr
from sim.record.record import Record
from sim.words.arrays import IntArray

__all__ = ["Traffic", "traffic_on_links", "transfers_on_links"]


class Traffic(NamedTuple):
    """What crossed links, transfers and messages of collectives: an entry for each link on their ways.

    Attributes
    ----------
    link, nbytes : arrays of int64
        By link.
    ready_ns, start_ns, first_ns, end_ns : arrays of int64
        When it could have gone, when it went, from when on bytes arrived, and when all had.
    """

    link: IntArray
    nbytes: IntArray
    ready_ns: IntArray
    start_ns: IntArray
    first_ns: IntArray
    end_ns: IntArray


def traffic_on_links(trace: Record) -> Traffic:
    """Return all that crossed links, by link; in each transfers first, in the order of rows."""
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
    return Traffic(link, nbytes[row], ready[row], start[row], first[row], end[row])


def transfers_on_links(trace: Record) -> tuple[IntArray, IntArray]:
    """Return (row of the transfer, link) for every link that a transfer crosses, by link, then row."""
    machine = trace.job.machine
    moved = trace.transfers
    routes, which = machine.distinct_routes(moved["source"], moved["destination"], moved["tensor"])
    used = Csr.of_rows([route for _, _, route in routes]).take(which)
    row, link = used.rows(), used.indices
    order = np.argsort(link, kind="stable")
    return row[order], link[order]
