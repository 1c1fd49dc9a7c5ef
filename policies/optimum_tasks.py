"""The tasks of a job, with unknown times: when each is taken, begins and ends, and what it costs where.

::

    taken ─issue─► launch ─► start ▇▇▇▇ end      each op, in each iteration, on each device

Where a device is given, an end is its start and a duration; where it is chosen, both are unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from policies.placement.problem import Problem
from policies.schedule_problem import LONGEST, NEVER, Literal, ScheduleProblem, Time
from sim import Job
from sim.base.arrays import UNSET, group_pairs
from sim.explain.bounds import least_durations_ns
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.costs import issue_costs_ns
from sim.job.transfers import Flow, holding_ops, host_groups, travel_ns
from sim.kernel.columns import ProcessorInColumns, SharedCores


class Tasks:
    """Times of the tasks and transfers of a job.

    Parameters
    ----------
    times : ScheduleProblem
        Receives the times and constraints.
    job : Job
    flow : Flow
        Ops and transfers; ops alone if devices are chosen.
    problem : Problem, optional
        Devices on which ops may be; without it they stay where they are.
    at_issue : bool
        Whether edges between launched ops count when the producer is issued.
    asynchronous : collection of int
        Ops that run on no worker and no stream.

    Attributes
    ----------
    duration : list of list of dict
        For each iteration and op: device → duration in ns.
    cost, group, gap : list of dict
        For each op: device → cost of issuing it there, group of issuers that does it, and gap behind it.
    travels : list of int
        Duration of each transfer in ns.
    on : list of dict
        For each op: device → literal that says that it is there; None: it is in any case.
    taken, start, end : list of list
        Times, a row an iteration, a column a node.
    notes : dict of str to list of str
        What is left out → devices and links that it is about.
    departures, moves : dict
        If devices are chosen: (iteration, tensor, destination) → time at which it leaves over serial links;
        (iteration, tensor, source, destination) → literal that says that it takes this way.
    """

    def __init__(
        self,
        times: ScheduleProblem,
        job: Job,
        flow: Flow,
        problem: Problem | None,
        *,
        at_issue: bool,
        asynchronous: Collection[int],
    ) -> None:
        self.times, self.job, self.machine, self.flow = times, job, job.machine, flow
        self.n, self.n_ops = flow.n_nodes, flow.n_ops
        self.problem, self.at_issue, self.asynchronous = problem, at_issue, asynchronous
        self.devices = [[d] for d in job.device_of.tolist()] if problem is None else problem.devices_of
        self.notes: dict[str, list[str]] = {}
        self.departures: dict[tuple[int, int, int], Time] = {}
        self.moves: dict[tuple[int, int, int, int], Literal] = {}
        self._need: dict[int, dict[int, int]] = {}
        self._routes: dict[tuple[int, int], list[int]] = {}
        self._costs()
        self._tasks()

    def note(self, holds: bool, reason: str, name: str = "") -> None:
        """Note that something is left out, if it `holds`."""
        if holds:
            names = self.notes.setdefault(reason, [])
            if name and name not in names:
                names.append(name)

    def departs(
        self, i: int, tensor: int, a: int, b: int, produced: Time, travel_ns: int, *conditions: Any
    ) -> Time | None:
        """Return when a tensor leaves `a` for `b`, if `conditions` hold; None: no serial link is on the way.

        It has each of them for itself meanwhile. Who goes first is open.
        """
        links = self._serial(a, b)
        if not links:
            return None
        key, times = (i, tensor, b), self.times
        if key not in self.departures:
            self.departures[key] = times.time(f"{tensor} to {b} {i}")
        leaves = self.departures[key]
        if (i, tensor, a, b) not in self.moves:
            moved = self.moves[i, tensor, a, b] = times.literal(f"{tensor} from {a} to {b} {i}")
            times.after(leaves, produced, moved)
            for link in links:
                times.occupy(("link", link), leaves, travel_ns, moved)
                times.capacity[("link", link)] = 1
        times.require(self.moves[i, tensor, a, b], *conditions)
        return leaves

    def _serial(self, a: int, b: int) -> list[int]:
        """Return the serial links from one device to another."""
        if (a, b) not in self._routes:
            way = self.machine.route(a, b) if a != b and self.machine.links else ()
            channels = dict.fromkeys(self.machine.channels[link] for link in way)
            self._routes[a, b] = [link for link in channels if self.machine.links[link].sharing == "serial"]
        return self._routes[a, b]

    @cached_property
    def unsure(self) -> frozenset[int]:
        """The transfers of what is sent by key, and maybe not asked for: they need not be."""
        sends = rendezvous_keys(self.job.graph).unsure
        producer = self.job.graph.tensor_producer[self.flow.tensor].tolist()
        return frozenset(t for t, op in enumerate(producer) if op in sends)

    @cached_property
    def senders(self) -> dict[int, list[tuple[int, int]]]:
        """What each transfer waits for, with the distance in iterations; by node."""
        into = self.flow.consumer >= self.n_ops
        columns = (self.flow.producer, self.flow.consumer, self.flow.distance)
        rows = zip(*(column[into].tolist() for column in columns), strict=True)
        return group_pairs((c, (p, distance)) for p, c, distance in rows)

    def _costs(self) -> None:
        """Set how long each task takes, and what issuing it costs, on each device that it may run on."""
        job = self.job
        base, placed_on = least_durations_ns(job), job.device_of.tolist()
        known_ns = job.known_costs_ns
        self.duration: list[list[dict[int, int]]] = []
        for i in range(job.iterations):
            ns_of, row = (base if job.noisy_ns is None else job.noisy_ns[i]).tolist(), list[dict[int, int]]()
            for k, devices in enumerate(self.devices):
                row.append({d: ns_of[k] if d == placed_on[k] else int(known_ns[d][k]) for d in devices})
            self.duration.append(row)
        self.cost: list[dict[int, int]] = [{} for _ in range(self.n_ops)]
        self.group: list[dict[int, int]] = [{} for _ in range(self.n_ops)]
        self.gap: list[dict[int, int]] = [{} for _ in range(self.n_ops)]
        for d in range(len(self.machine.devices)):
            moved = job
            if self.problem is not None:
                moved = replace(job, device_of=np.full(self.n_ops, d), duration_ns=known_ns[d])
            costs, groups = issue_costs_ns(moved).tolist(), moved.group_of.tolist()
            gaps = moved.gap_ns.tolist()
            for k in range(self.n_ops):
                if d in self.devices[k]:
                    self.cost[k][d], self.group[k][d], self.gap[k][d] = costs[k], groups[k], gaps[k]
        flow = self.flow
        ns = travel_ns(self.machine, flow.source, flow.destination, flow.tensor, flow.nbytes)
        self.travels = ns.tolist()

    def _tasks(self) -> None:
        """Make the times of every task, and let it take what it has for itself."""
        times, devices = self.times, self.machine.devices
        self.on = times.places(self.devices, () if self.problem is None else self.problem.group_of)
        self.taken: list[list[Any]] = []
        self.start: list[list[Any]] = []
        self.end: list[list[Any]] = []
        launches = any(
            device.launch_latency_ns or any(cost.get(d) for cost in self.cost)
            for d, device in enumerate(devices)
            if not device.workers
        )
        holding = holding_ops(self.job)
        self.note(bool(holding), "kernels that keep their host thread until they end")
        self.note(bool(self.asynchronous), "ops that run without a worker, asynchronously")
        self.note(bool(self.job.meets.any()), "ranks that wait for one another in collectives")
        for i in range(self.job.iterations):
            start = [times.time(f"start {node} {i}") for node in range(self.n)]
            taken, end = list(start), list(start)
            for k in range(self.n_ops):
                several = len(self.on[k]) > 1
                if several:
                    end[k] = times.time(f"end {k} {i}")
                if several or (launches and not devices[self.devices[k][0]].workers):
                    taken[k] = times.time(f"taken {k} {i}")
                for d, chosen in self.on[k].items():
                    self._op(i, k, d, chosen, taken, start, end)
                if released := self.job.graph.attribute("release").get(k, 0):
                    times.after(taken[k], released)
            for t, ns in enumerate(self.travels):
                end[self.n_ops + t] = start[self.n_ops + t] + ns
            for node in range(self.n):
                if node - self.n_ops not in self.unsure:
                    times.after(LONGEST, end[node])
            self.taken.append(taken)
            self.start.append(start)
            self.end.append(end)

    def _op(
        self, i: int, k: int, d: int, chosen: Any, taken: list[Any], start: list[Any], end: list[Any]
    ) -> None:
        """Let op `k` run on device `d`, if that is `chosen`."""
        times, device = self.times, self.machine.devices[d]
        ns, cost, group = self.duration[i][k][d], self.cost[k][d], ("issuers", self.group[k][d])
        for name, n in self.job.graph.attribute("resources").get(k, {}).items():
            times.occupy(("resource", name), start[k], ns, chosen, amount=n)
            self.note(ns == 0, "who is first where an op takes a resource for no time", name)
        if chosen is None:
            end[k] = start[k] + ns
        else:
            times.last(start[k], ns, end[k], chosen)
        if device.workers:
            if chosen is None:
                taken[k] = start[k] - cost
                if cost:
                    times.after(taken[k], 0)
            else:
                times.last(taken[k], cost, start[k], chosen)
            if k not in self.asynchronous:
                times.occupy(group, taken[k], cost + ns, chosen)
            if not self._fits(k, d):
                times.add_delay(start[k], 0, NEVER, chosen)
            need = self.cores(d).get(k, 0)
            if need and k not in self.asynchronous:
                times.occupy(("cores", d), start[k], ns, chosen, amount=need)
            return
        if taken[k] is not start[k]:
            times.after(start[k], taken[k] + (cost + device.launch_latency_ns), chosen)
            if cost:
                times.occupy(group, taken[k], cost, chosen)
        if k not in self.asynchronous:
            times.occupy(("streams", d), start[k], ns, chosen, gap_ns=self.gap[k][d])

    def _fits(self, k: int, d: int) -> bool:
        """Whether a device has the cores that an op takes."""
        return bool(self.job.graph.attribute("cores").get(k, 0) <= self.machine.devices[d].cores)

    def cores(self, d: int) -> dict[int, int]:
        """Return how many cores each op of a device takes, where it waits for them."""
        if d not in self._need:
            device = self.machine.devices[d]
            processor: object = device.processor
            self._need[d] = {}
            if isinstance(processor, ProcessorInColumns):
                moved = self.job
                if self.problem is not None:
                    fits = np.array([d in homes and self._fits(k, d) for k, homes in enumerate(self.devices)])
                    moved = replace(moved, device_of=np.where(fits, d, UNSET))
                shared = processor.columns(device, moved)
                if isinstance(shared, SharedCores):
                    self._need[d] = dict(zip(shared.op.tolist(), shared.need.tolist(), strict=True))
        return self._need[d]


# ----------------------------------------------------------------------------------------------------------
# The order of transfers over a serial link, as constraints: the one that is sent first goes first.

Moved = tuple[int, int]
"""A transfer: its iteration, and its number in the flow."""


class LinkOrder(NamedTuple):
    """Who goes first of two transfers, if that is open; `chosen` says that `one` does."""

    one: Moved
    other: Moved
    chosen: Literal


def _first_come(tasks: Tasks, pairs: Sequence[tuple[Moved, Moved]], *, on_purpose: bool) -> list[LinkOrder]:
    """Let of each two transfers the one that is sent first go first; of one op the first read.

    Unless it may wait `on_purpose`, each begins when it is sent, or when another one over one of its links
    ends.
    """
    times, moves, orders = tasks.times, dict.fromkeys(itertools.chain(*pairs)), list[LinkOrder]()
    begin, end = ({(i, t): rows[i][tasks.n_ops + t] for i, t in moves} for rows in (tasks.start, tasks.end))
    # The ends of the ops (op, iteration) that make what is moved; none if it is there from the start.
    sent = {
        (i, t): {(p, i - d): tasks.end[i - d][p] for p, d in tasks.senders.get(tasks.n_ops + t, []) if i >= d}
        for i, t in moves
    }
    behind: dict[Moved, list[Literal]] = {moved: [] for moved in moves}  # it begins as soon as another ends

    def follow(first: Moved, then: Moved, chosen: Any) -> None:
        """Let one transfer follow another, if that is `chosen`, and note what says that it does at once."""
        times.after(begin[then], end[first], chosen)
        for (a, a_end), (b, b_end) in itertools.product(sent[first].items(), sent[then].items()):
            if a != b:
                times.after(b_end, a_end, chosen)
        at_once = times.literal(f"{then} behind {first}")
        times.after(end[first], begin[then], at_once)
        if chosen is not None:
            times.require(chosen, at_once)
        behind[then].append(at_once)

    for one, other in pairs:
        if sent[one] and sent[one].keys() == sent[other].keys():
            follow(one, other, None)
            continue
        first, second = times.choice([f"{one} first", f"{other} first"])
        follow(one, other, first)
        follow(other, one, second)
        orders.append(LinkOrder(one, other, first))
    if not on_purpose:
        for moved, others in behind.items():
            at_once = times.literal(f"{moved} at once")
            for produced in sent[moved].values() or [0]:
                times.after(produced, begin[moved], at_once)
            times.any_of.append([(literal, True) for literal in (at_once, *others)])
    return orders


# ----------------------------------------------------------------------------------------------------------
# What tasks cannot have at once: issuers, workers, cores, streams and links, and the order they keep.

_MOST_PAIRS: Final = 20_000
"""Transfers over one link, or tasks of one stream, taken two by two: of more their order is left out."""


def share(tasks: Tasks, memory: bool) -> list[LinkOrder]:
    """Let nothing be used twice at once; return who goes first over serial links, as far as that is known.

    `memory` says that tasks may have to wait for memory, which is left out.
    """
    job, machine = tasks.job, tasks.machine
    issuers = [issuer.group for issuer in machine.issuers()]
    for group in range(job.n_groups):
        tasks.times.capacity[("issuers", group)] = issuers.count(group)
    for name, capacity in machine.resources.items():
        tasks.times.capacity[("resource", name)] = capacity
    used = {d for literals in tasks.on for d in literals}
    for d in sorted(used):
        device = machine.devices[d]
        need = tasks.cores(d)
        if need:
            tasks.times.capacity[("cores", d)] = device.cores
        if not device.workers:
            tasks.times.capacity[("streams", d)] = device.streams
            _in_order(tasks, d)
        tasks.note(not device.keeps_durations, "ops that slow one another down", device.name)
        full = device.queue_depth is not None and device.queue_depth < tasks.n_ops * job.iterations
        tasks.note(full, "launch queues that may be full", device.name)
    tasks.note(job.record_ns is not None, "what recording an event costs the host")
    tasks.note(memory, "memory that runs short")
    on_request = bool(rendezvous_keys(job.graph).sends)
    tasks.note(on_request, "Recvs that wait for what is sent to them")
    if tasks.problem is None:
        return _links(tasks, not on_request and not memory)
    shared = any(link.sharing in ("shared", "fifo") for link in machine.links)
    tasks.note(shared, "transfers that share the bandwidth of links")
    serial = any(link.sharing == "serial" for link in machine.links)
    tasks.note(serial and any(tasks.problem.arrivals), "inputs of the graph that meet on a link")
    tasks.note(len(tasks.moves) > 1, "the order of transfers over a link")
    return []


def _in_order(tasks: Tasks, d: int) -> None:
    """Let the tasks of a single stream start in the order in which they are issued."""
    device = tasks.machine.devices[d]
    ops = [k for k in range(tasks.n_ops) if d in tasks.on[k] and tasks.taken[0][k] is not tasks.start[0][k]]
    if device.streams > 1 or len(ops) < 2:
        return
    line = [(i, k) for i in range(tasks.job.iterations) for k in ops]
    many = len(line) * (len(line) - 1) // 2 > _MOST_PAIRS
    tasks.note(many, "that a stream keeps the order of launches", device.name)
    if many:
        return
    follows = _follows(tasks.job)
    for (i, k), (j, m) in itertools.combinations(line, 2):
        if i == j and (follows[k] >> m & 1 or follows[m] >> k & 1):
            continue  # edges order them
        first, second = tasks.times.choice([f"{k} {i} before {m} {j}", f"{m} {j} before {k} {i}"])
        for (a, p), (b, q), before in (((i, k), (j, m), first), ((j, m), (i, k), second)):
            conditions = (before, tasks.on[p][d], tasks.on[q][d])
            ns = tasks.duration[a][p][d] + tasks.gap[p][d]
            issued = tasks.taken[a][p] + tasks.cost[p][d]
            tasks.times.after(tasks.taken[b][q] + tasks.cost[q][d], issued, *conditions)
            tasks.times.after(tasks.start[b][q], tasks.start[a][p] + ns, *conditions)


def _links(tasks: Tasks, timed: bool) -> list[LinkOrder]:
    """Let serial links carry one transfer at a time; where sending is `timed`, in the order of sending."""
    flow, links = tasks.flow, tasks.machine.links
    if not len(flow.tensor):
        return []
    routes, way = tasks.machine.distinct_routes(flow.source, flow.destination, flow.tensor)
    by_link: dict[int, list[Moved]] = {}
    for t, route in enumerate(way.tolist()):
        for link in dict.fromkeys(tasks.machine.channels[link] for link in routes[route][2]):
            together = links[link].sharing in ("shared", "fifo")
            tasks.note(together, "transfers that share the bandwidth of links", links[link].name)
            if links[link].sharing != "serial" or t in tasks.unsure:
                continue
            for i in range(tasks.job.iterations):
                tasks.times.occupy(("link", link), tasks.start[i][tasks.n_ops + t], tasks.travels[t])
                by_link.setdefault(link, []).append((i, t))
    hosted = bool((host_groups(tasks.job, flow.tensor, flow.source, flow.destination) >= 0).any())
    engines = any(device.details.copy_engines is not None for device in tasks.machine.devices)
    tasks.note(hosted, "hosts that copy pageable memory")
    tasks.note(engines, "copy engines")
    for link in by_link:
        tasks.times.capacity[("link", link)] = 1
    many = sum(len(moved) * (len(moved) - 1) // 2 for moved in by_link.values())
    timed = timed and not hosted and many <= _MOST_PAIRS
    tasks.note(many > 0 and not timed, "the order of transfers over a link")
    if not timed:
        return []
    pairs = sorted({pair for moved in by_link.values() for pair in itertools.combinations(moved, 2)})
    return _first_come(tasks, pairs, on_purpose=engines or bool(tasks.job.carried.any()))


def _follows(job: Job) -> list[int]:
    """Return the ops that follow each op within an iteration, as bits of a number."""
    followers = [0] * len(job.graph)
    for op in reversed(job.graph.topological_order.tolist()):
        for consumer in job.graph.dag().successors[op]:
            followers[op] |= followers[consumer] | 1 << consumer
    return followers
