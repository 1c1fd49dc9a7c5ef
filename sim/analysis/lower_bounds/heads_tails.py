"""How early each task can be, and how long all still takes after it, whatever else is going on.

::

    head  ──────────►│ taken ─issue─► launch ─► start ▇▇▇▇ end │◄────────── tail

Only what no policy can avoid counts: durations, transfers, and what is paid between an op's inputs and its
start, which a worker always pays, and a host for each op of a chain only where none is issued before its
inputs are computed (`synchronisation`). Heads are of the first iteration and tails of the last, and so hold
for every one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.job.job import Job
from sim.job.transfers import Flow
from sim.job.travel import travel_ns
from sim.native.compiled import load
from sim.readiness.synchronisations import edges_at_issue
from sim.words.arrays import IntArray

__all__ = ["Ways", "launch_latencies_ns", "ways"]


def launch_latencies_ns(job: Job) -> IntArray:
    """Return how long after each op's issue its device hears of it; a worker does at once."""
    return np.array([0 if d.workers else d.launch_latency_ns for d in job.machine.devices])[job.device_of]


class Ways(NamedTuple):
    """What comes before and after each node of a flow (ops, then transfers), in ns.

    Attributes
    ----------
    taken, start : array of int64
        No issuer takes it earlier, and it starts no earlier.
    ns : array of int64
        How long it takes.
    issued, tail : array of int64
        So long after its issuer has paid for it, and after its end, all is over at the earliest.
    """

    taken: IntArray
    start: IntArray
    ns: IntArray
    issued: IntArray
    tail: IntArray

    @property
    def longest_ns(self) -> int:
        """The longest way through any of them."""
        return int((self.start + self.ns + self.tail).max(initial=0))


def ways(job: Job, flow: Flow, ns: IntArray, cost: IntArray, synchronisation: str | None) -> Ways:
    """Return the heads and tails of a job without control flow, all of whose ops are strict.

    Parameters
    ----------
    job, flow
    ns, cost : array of int64
        Of each op: how long it takes at least, and what issuing it costs.
    synchronisation : str or None
        None: it is not known, and what a host pays counts once.
    """
    n, own = flow.n_ops, np.zeros(flow.n_nodes, np.int64)
    own[:n] = ns
    own[n:] = travel_ns(job.machine, flow.source, flow.destination, flow.tensor, flow.nbytes)
    paid = np.zeros(flow.n_nodes, np.int64)
    paid[:n] = cost
    latency = np.zeros(flow.n_nodes, np.int64)
    latency[:n] = launch_latencies_ns(job)
    now = flow.distance == 0
    at_issue = edges_at_issue(synchronisation or "issue", job, flow)
    early = (np.zeros(len(now), bool) if at_issue is None else at_issue)[now]
    producer, consumer = flow.producer[now], flow.consumer[now]
    place = np.zeros(flow.n_nodes, np.int64)  # a transfer right after what it carries
    place[job.graph.topological_order] = 2 * np.arange(n) + 1
    into = consumer >= n
    np.maximum.at(place, consumer[into], place[producer[into]] + 1)
    order = np.argsort(place[consumer], kind="stable")
    edges = (column[order] for column in (producer, consumer, early.astype(np.int64)))
    taken, begin, issued, tail = load("ways", "native").heads_and_tails(own, paid, latency, *edges)
    start = np.maximum(begin, taken + paid + latency)
    return Ways(taken, start, own, np.maximum(issued, latency + own + tail), tail)
