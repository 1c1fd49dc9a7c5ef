"""The tasks of a job, with unknown times: when each is taken, begins and ends, and what it costs where.

::

    taken ─issue─► launch ─► start ▇▇▇▇ end      each op, in each iteration, on each device

Where a device is given, an end is its start and a duration; where it is chosen, both are unknown.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from policies.cp_sat import Activities
from policies.placement.problem import Problem
from sim import Job
from sim.explain.bounds import least_durations_ns
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.costs import issue_costs_ns
from sim.job.transfers import Flow, holding_ops, travel_ns
from sim.kernel.layout import ProcessorInColumns, SharedCores


class Tasks:
    """Times of the tasks and transfers of a job.

    Parameters
    ----------
    times : Activities
        What they are said to.
    job : Job
    flow : Flow
        Ops and transfers; ops alone where devices are chosen.
    problem : Problem, optional
        Where ops may be; without it they stay on their devices.
    at_issue : bool
        Whether edges between launched ops count when the producer is issued.
    alone : collection of int
        Ops that run on no worker and no stream.

    Attributes
    ----------
    duration : list of list of dict
        Of each iteration and op, in ns by device.
    cost, group : list of dict
        Of each op by device: what issuing it costs, and which group of issuers does it.
    travels : list of int
        How long each transfer takes, in ns.
    on : list of dict
        Of each op by device: what says that it is there; None: it is in any case.
    taken, start, end : list of list
        Times, a row an iteration, a column a node.
    notes : dict
        What is left out, and of which devices and links.
    """

    def __init__(
        self,
        times: Activities,
        job: Job,
        flow: Flow,
        problem: Problem | None,
        *,
        at_issue: bool,
        alone: Collection[int],
    ) -> None:
        self.times, self.job, self.machine, self.flow = times, job, job.machine, flow
        self.n, self.n_ops = flow.n_nodes, flow.n_ops
        self.problem, self.at_issue, self.alone = problem, at_issue, alone
        self.devices = [[d] for d in job.device_of.tolist()] if problem is None else problem.devices_of
        self.notes: dict[str, dict[str, None]] = {}
        self._need: dict[int, dict[int, int]] = {}
        self._costs()
        self._tasks()

    def note(self, holds: bool, what: str, of: str = "") -> None:
        """Note that something is left out, if it `holds`."""
        if holds:
            self.notes.setdefault(what, {})[of] = None

    @cached_property
    def unsure(self) -> frozenset[int]:
        """The transfers of what is sent by key, and maybe not asked for: they need not be."""
        sends = rendezvous_keys(self.job.graph).unsure
        producer = self.job.graph.tensor_producer[self.flow.tensor].tolist()
        return frozenset(t for t, op in enumerate(producer) if op in sends)

    @cached_property
    def senders(self) -> dict[int, list[tuple[int, int]]]:
        """What each transfer waits for, with the distance in iterations; by node."""
        found: dict[int, list[tuple[int, int]]] = {}
        into = self.flow.consumer >= self.n_ops
        columns = (self.flow.producer, self.flow.consumer, self.flow.distance)
        for p, c, distance in zip(*(column[into].tolist() for column in columns), strict=True):
            found.setdefault(c, []).append((p, distance))
        return found

    def _costs(self) -> None:
        """Set how long each task takes, and what issuing it costs, on each device that it may run on."""
        job, n_devices = self.job, len(self.machine.devices)
        least = least_durations_ns(job)
        rows = [least if job.noisy_ns is None else job.noisy_ns[i] for i in range(job.iterations)]
        self.duration: list[list[dict[int, int]]] = []
        self.cost: list[dict[int, int]] = [{} for _ in range(self.n_ops)]
        self.group: list[dict[int, int]] = [{} for _ in range(self.n_ops)]
        here = job.device_of.tolist()
        for row in rows:
            own = row.tolist()
            self.duration.append(
                [
                    {d: own[k] if d == here[k] else int(job.known_costs_ns[d][k]) for d in self.devices[k]}
                    for k in range(self.n_ops)
                ]
            )
        for d in range(n_devices):
            there = job if self.problem is None else replace(job, device_of=np.full(self.n_ops, d))
            costs, groups = issue_costs_ns(there).tolist(), there.group_of.tolist()
            for k in range(self.n_ops):
                if d in self.devices[k]:
                    self.cost[k][d], self.group[k][d] = costs[k], groups[k]
        flow = self.flow
        self.travels = travel_ns(
            self.machine, flow.source, flow.destination, flow.tensor, flow.nbytes
        ).tolist()

    def _tasks(self) -> None:
        """Make the times of every task, and let it take what it has for itself."""
        times, devices = self.times, self.machine.devices
        self.on: list[dict[int, Any]] = [
            dict(zip(own, times.choice([f"{k} on {d}" for d in own]), strict=True))
            for k, own in enumerate(self.devices)
        ]
        if self.problem is not None:
            self._colocate(self.problem)
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
        self.note(bool(self.alone), f"{len(self.alone)} ops that run without a worker, asynchronously")
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
            for t, ns in enumerate(self.travels):
                end[self.n_ops + t] = start[self.n_ops + t] + ns
            for node in range(self.n):
                if node - self.n_ops not in self.unsure:
                    times.after(times.longest, end[node])
            self.taken.append(taken)
            self.start.append(start)
            self.end.append(end)

    def _op(
        self, i: int, k: int, d: int, chosen: Any, taken: list[Any], start: list[Any], end: list[Any]
    ) -> None:
        """Let op `k` run on device `d`, if that is `chosen`."""
        times, device = self.times, self.machine.devices[d]
        ns, cost, group = self.duration[i][k][d], self.cost[k][d], ("issuers", self.group[k][d])
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
            if k not in self.alone:
                times.occupy(group, taken[k], cost + ns, chosen)
            need = self.cores(d).get(k, 0)
            if need and k not in self.alone:
                times.occupy(("cores", d), start[k], ns, chosen, amount=need)
            return
        if taken[k] is not start[k]:
            times.after(start[k], taken[k] + (cost + device.launch_latency_ns), chosen)
            if cost:
                times.occupy(group, taken[k], cost, chosen)
        if k not in self.alone:
            times.occupy(("streams", d), start[k], ns, chosen, gap_ns=device.gap_ns)

    def cores(self, d: int) -> dict[int, int]:
        """Return how many cores each op of a device takes, where it waits for them."""
        if d not in self._need:
            device = self.machine.devices[d]
            processor: object = device.processor
            self._need[d] = {}
            if isinstance(processor, ProcessorInColumns):
                shared = processor.columns(device, self.job)
                if isinstance(shared, SharedCores):
                    self._need[d] = dict(zip(shared.op.tolist(), shared.need.tolist(), strict=True))
        return self._need[d]

    def _colocate(self, problem: Problem) -> None:
        for k, leader in enumerate(problem.group_of):
            if leader != k:
                self.times.together(self.on[k], self.on[leader])
