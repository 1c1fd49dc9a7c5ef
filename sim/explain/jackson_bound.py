"""Work between heads and tails: a machine cannot begin before its tasks can, nor end last of all.

::

    head 2   ▇▇▇ body   tail 4          for any set of tasks of a machine:
    head 0      ▇▇▇▇▇   tail 1          least head + sum of bodies / capacity + least tail

The greatest over all sets of tasks is the makespan of Jackson's preemptive schedule: whenever a task arrives
or ends, the machine goes on with the task that has the longest tail (Jackson 1955, "Scheduling a
production line to minimize maximum tardiness"; for the proof see Carlier 1982, "The one-machine
sequencing problem", EJOR 11(1)). A machine of capacity m is no faster than one that is m times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from sim.base.arrays import IntArray
from sim.base.compiled import load
from sim.job.job import Job
from sim.job.transfers import Flow, travel_ns
from sim.readiness.eligibility import edges_at_issue


def around_ns(head: IntArray, body: IntArray, tail: IntArray, capacity: int = 1) -> int:
    """Return a bound like `between_ns`, over fewer sets of tasks, by array operations.

    The sets are all tasks from some head on, and all from some tail on.

    Examples
    --------
    >>> around_ns(np.array([2, 0]), np.array([3, 5]), np.array([4, 1]))
    9
    """
    if not len(head):
        return 0
    longest = 0
    for one, other in ((head, tail), (tail, head)):
        order = np.argsort(one, kind="stable")[::-1]
        work = np.cumsum(body[order])
        least = one[order] + np.minimum.accumulate(other[order])
        longest = max(longest, int((least - -work // capacity).max()))
    return longest


def between_ns(head: Sequence[int], body: Sequence[int], tail: Sequence[int], capacity: int = 1) -> int:
    """Return the least time for the tasks of a machine, from 0 to the end of the longest tail.

    Parameters
    ----------
    head, body, tail : sequence of int
        For each task: its earliest begin, its demand in ns of one unit of the capacity, and the least time
        that has to follow it.
    capacity : int
        The number of units that work at once.

    Examples
    --------
    >>> between_ns([2, 0], [3, 5], [4, 1])
    9
    >>> between_ns([0, 0, 0], [10, 10, 10], [0, 0, 0], capacity=2)
    15
    """
    tasks = sorted((h * capacity, b, t * capacity) for h, b, t in zip(head, body, tail, strict=True))
    waiting: list[tuple[int, int]] = []  # minus the tail, and the remaining demand
    now = longest = at = 0
    while at < len(tasks) or waiting:
        if not waiting:
            now = max(now, tasks[at][0])
        while at < len(tasks) and tasks[at][0] <= now:
            heappush(waiting, (-tasks[at][2], tasks[at][1]))
            at += 1
        tail_ns, left = heappop(waiting)
        until = tasks[at][0] if at < len(tasks) else now + left
        done = min(left, until - now)
        now += done
        if done < left:
            heappush(waiting, (tail_ns, left - done))
        else:
            longest = max(longest, now - tail_ns)
    return -(-longest // capacity)


# ----------------------------------------------------------------------------------------------------------
# The earliest time of each task, and the least time that has to follow it, whatever else is going on.
#
#     head  ──────────►│ taken ─issue─► launch ─► start ▇▇▇▇ end │◄────────── tail
#
# Only costs that no policy can avoid count: durations, transfers, and costs paid between an op's inputs and
# its start. A worker always pays these; a host pays them for each op of a chain only if none is issued before
# its inputs are computed (`synchronisation`). Heads are of the first iteration and tails of the last, so they
# hold for every iteration.


class HeadsAndTails(NamedTuple):
    """Times before and after each node of a flow (ops, then transfers), in ns.

    Attributes
    ----------
    taken, start : array of int64
        Earliest time at which an issuer takes it, and its earliest start.
    ns : array of int64
        Its duration.
    issued, tail : array of int64
        Least time from the end of its issue, and from its own end, to the end of everything.
    """

    taken: IntArray
    start: IntArray
    ns: IntArray
    issued: IntArray
    tail: IntArray

    @property
    def longest_ns(self) -> int:
        """The longest path through any of them."""
        return int((self.start + self.ns + self.tail).max(initial=0))


def ways(
    job: Job, flow: Flow | None, ns: IntArray, cost: IntArray, synchronisation: str | None
) -> HeadsAndTails:
    """Return the heads and tails of a job.

    Parameters
    ----------
    job : Job
    flow : Flow or None
        None: of a job with control flow, or with ops that are not strict; only an op's own launch counts.
    ns, cost : array of int64
        For each op: its least duration, and the cost of issuing it.
    synchronisation : str or None
        None: unknown, so the costs of a host count only once.
    """
    devices = job.machine.devices
    latency = np.array([0 if d.workers else d.launch_latency_ns for d in devices])[job.device_of]
    if flow is None:
        none = np.zeros(len(ns), np.int64)
        return HeadsAndTails(none, cost + latency, ns, latency + ns, none)
    n, none = flow.n_ops, np.zeros(len(flow.tensor), np.int64)
    travel = travel_ns(job.machine, flow.source, flow.destination, flow.tensor, flow.nbytes)
    own, paid = np.concatenate((ns, travel)), np.concatenate((cost, none))
    latency = np.concatenate((latency, none))
    now = flow.distance == 0
    at_issue = edges_at_issue(synchronisation or "issue", job, flow)
    early = (np.zeros(len(now), bool) if at_issue is None else at_issue)[now]
    producer, consumer = flow.producer[now], flow.consumer[now]
    place = np.zeros(flow.n_nodes, np.int64)  # a transfer comes right after the op whose output it carries
    place[job.graph.topological_order] = 2 * np.arange(n) + 1
    into = consumer >= n
    np.maximum.at(place, consumer[into], place[producer[into]] + 1)
    if given := job.graph.attribute("release"):  # as if each were the end of a node of its own
        more = np.arange(flow.n_nodes, flow.n_nodes + len(given))
        producer, consumer = np.append(producer, more), np.append(consumer, [*given])
        early = np.append(early, np.zeros(len(given), bool))
        own = np.append(own, [*given.values()])
        paid, latency = (np.append(column, np.zeros_like(more)) for column in (paid, latency))
    order = np.argsort(place[consumer], kind="stable")
    edges = (column[order] for column in (producer, consumer, early.astype(np.int64)))
    found = load("edge_passes", "base").heads_and_tails(own, paid, latency, *edges)
    own, paid, latency, *found = (column[: flow.n_nodes] for column in (own, paid, latency, *found))
    taken, begin, issued, tail = found
    start = np.maximum(begin, taken + paid + latency)
    return HeadsAndTails(taken, start, own, np.maximum(issued, latency + own + tail), tail)
