"""A job as a constraint problem: when each task begins, whoever decides the order.

::

    host        [issue a][issue b]                  one thread, or one worker of a CPU, for each
    stream               ├launch─►[a]gap[b]         after the launch, the inputs, and the task before
    link                            [a → gpu1]      as it comes: the first that is there goes first

What policies decide is unknown: the order in which hosts issue, and streams. Everything else is as it runs.
Where that cannot be said in such words, the model says less: it lets a task begin earlier, or end sooner,
than it may. So every run of the job keeps to the model, whichever its policy is, and no run ends before the
least time that the model allows. What is left out is told (`JobModel.left_out`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from policies.cp_sat.activities import Activities, Solved
from policies.cp_sat.windows import windows
from policies.cp_sat.words import Time
from policies.optimum.first_come import Move, Moved, Order, first_come, never_wait_on_purpose
from policies.optimum.unmodelled import refuse_unmodelled
from policies.placement.problem import NEVER, Problem
from sim import Job, Policy, Trace
from sim.analysis.bounds import least_durations_ns
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.costs import issue_costs_ns
from sim.job.pageable import holding_ops, host_groups
from sim.job.transfers import Flow
from sim.job.travel import travel_ns
from sim.kernel.layout.shared import ProcessorInColumns, SharedCores
from sim.words.arrays import UNSET

__all__ = ["JobModel", "Timetable"]

_MOST_PAIRS: Final = 20_000
"""Transfers over one link, or tasks of one stream, taken two by two: of more their order is left out."""

_MOST_NAMED: Final = 4
"""Devices and links that are named of those that something is left out of."""


class Timetable(NamedTuple):
    """When each task begins; a row an iteration, a column a node: ops, then transfers.

    Attributes
    ----------
    taken_ns : list of list of int
        When a host or worker takes an op; of a transfer, when it begins.
    start_ns : list of list of int
    device : list of int
        Of each op.
    """

    taken_ns: list[list[int]]
    start_ns: list[list[int]]
    device: list[int]


class JobModel:
    """The constraints of a job.

    Parameters
    ----------
    job : Job
    policy : Policy
        Whose `synchronisation` says what eligible means, and which runs some ops asynchronously.
    known : Trace
        A run of the job: nothing worse is searched for.
    placed : bool
        Whether ops stay on the devices of the job. Otherwise each may go wherever it can run.
    memory : bool
        Whether tasks may have to wait for memory.
    least_ns : int
        A lower bound that is known otherwise.
    """

    def __init__(
        self,
        job: Job,
        policy: Policy,
        known: Trace,
        *,
        placed: bool = True,
        memory: bool = False,
        least_ns: int = 0,
    ) -> None:
        refuse_unmodelled(job, placed)
        self.job, self.machine, self.flow = job, job.machine, known.flow if placed else _unplaced(job)
        self.n, self.n_ops = self.flow.n_nodes, self.flow.n_ops
        self.problem = None if placed else Problem(job.graph, job.machine, job.known_costs_ns)
        self.devices = [[d] for d in job.device_of.tolist()] if placed else self.problem.devices_of  # type: ignore[union-attr]
        self.at_issue = policy.synchronisation == "issue"
        self.alone = policy.asynchronous_ops(job)
        self.notes: dict[str, dict[str, None]] = {}
        self.memory = memory
        self._need: dict[int, dict[int, int]] = {}
        self._senders: dict[int, list[tuple[int, int]]] = {}
        self.orders: list[Order] = []
        self.times = Activities("the optimum of a scenario", known.makespan_ns)
        self._costs(known)
        self._tasks()
        self._edges()
        self._limits()
        self.times.after(self.times.longest, least_ns)
        self._hint(known)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the model does not know of the job: its optimum is a lower bound then."""
        return tuple(f"{what}{_named(list(names))}" for what, names in self.notes.items())

    def solve(self, limit_ns: int, seed: int = 0) -> tuple[Solved, Timetable | None]:
        """Return what was found; see `Activities.solve`."""
        found = self.times.solve(limit_ns, seed=seed)
        return found, None if found.values is None else self._timetable(found.values)

    def improve(self, until: float, seed: int = 0) -> Generator[Timetable, Trace | None, None]:
        """Yield what is better in a part, and go on from what is sent back: the best run so far, or none."""
        activities = [
            list(dict.fromkeys(Time(time.index) for time in (start[k], taken[k], end[k])))
            for start, taken, end in zip(self.start, self.taken, self.end, strict=True)
            for k in range(self.n)
        ]
        for values in windows(self.times.problem, activities, until, seed):
            known = yield self._timetable(values)
            if known is not None:
                self._hint(known)

    def _timetable(self, value: Callable[[Any], int]) -> Timetable:
        """Return the times of a solution."""

        def read(rows: list[list[Any]]) -> list[list[int]]:
            return [[int(value(time)) for time in row] for row in rows]

        device = [next(d for d, chosen in on.items() if chosen is None or value(chosen)) for on in self.on]
        return Timetable(read(self.taken), read(self.start), device)

    # -- numbers ------------------------------------------------------------------------------

    def _costs(self, known: Trace) -> None:
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

    # -- tasks --------------------------------------------------------------------------------

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
        self._note(bool(holding), "kernels that keep their host thread until they end")
        self._note(bool(self.alone), f"{len(self.alone)} ops that run without a worker, asynchronously")
        self._note(bool(self.job.meets.any()), "ranks that wait for one another in collectives")
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
            need = self._cores(d).get(k, 0)
            if need and k not in self.alone:
                times.occupy(("cores", d), start[k], ns, chosen, amount=need)
            return
        if taken[k] is not start[k]:
            times.after(start[k], taken[k] + (cost + device.launch_latency_ns), chosen)
            if cost:
                times.occupy(group, taken[k], cost, chosen)
        if k not in self.alone:
            times.occupy(("streams", d), start[k], ns, chosen, gap_ns=device.gap_ns)

    def _cores(self, d: int) -> dict[int, int]:
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

    # -- edges --------------------------------------------------------------------------------

    def _edges(self) -> None:
        """Let no task begin before its inputs are there."""
        flow, iterations = self.flow, self.job.iterations
        rows = zip(
            flow.producer.tolist(),
            flow.consumer.tolist(),
            flow.distance.tolist(),
            flow.carries.tolist(),
            strict=True,
        )
        for p, c, distance, tensor in rows:
            for i in range(distance, iterations):
                if c >= self.n_ops:
                    self.times.after(self.start[i][c], self.end[i - distance][p])
                else:
                    self._edge(i - distance, p, i, c, tensor)
        if self.problem is not None:
            for c, arrivals in enumerate(self.problem.arrivals):
                for (home, nbytes), (d, chosen), i in itertools.product(
                    arrivals, self.on[c].items(), range(iterations)
                ):
                    self._after(self.taken[i][c], 0, self.problem.travel_ns(home, d, nbytes), chosen)

    def _edge(self, before: int, p: int, i: int, c: int, tensor: int) -> None:
        """Let op `c` wait for `p`, wherever both are."""
        producers = {None: None} if p >= self.n_ops else self.on[p]
        nbytes = -1 if tensor == UNSET or self.problem is None else int(self.job.graph.tensor_nbytes[tensor])
        for (a, here), (b, there) in itertools.product(producers.items(), self.on[c].items()):
            travel = 0 if self.problem is None or a is None else self.problem.travel_ns(a, b, nbytes)
            begin = self.end[before][p]
            device = self.machine.devices[b]
            launched = not device.workers and (a is None or not self.machine.devices[a].workers)
            if not (self.at_issue and launched) or self.taken[i][c] is self.start[i][c]:
                hop = 0 if not (self.at_issue and launched) else self._hop(a, b)
                self._after(self.taken[i][c], begin, travel + hop, here, there)
                continue
            self._after(self.start[i][c], begin, travel + self._hop(a, b), here, there)
            self._issued_before(self.taken[i][c], before, p, here, there)

    def _issued_before(self, time: Any, before: int, node: int, *given: Any) -> None:
        """Let `time` not be before a launched task, or what a transfer carries, is issued."""
        if node >= self.n_ops:
            for producer, distance in self._sources(node):
                if before - distance >= 0:
                    self._issued_before(time, before - distance, producer, *given)
            return
        for d, chosen in self.on[node].items():
            if self.machine.devices[d].workers:
                self._after(time, self.end[before][node], 0, chosen, *given)
            else:
                self._after(time, self.taken[before][node], self.cost[node][d], chosen, *given)

    def _sources(self, node: int) -> list[tuple[int, int]]:
        """Return what a transfer waits for, with the distance in iterations."""
        if not self._senders:
            into = self.flow.consumer >= self.n_ops
            for p, c, distance in zip(
                self.flow.producer[into].tolist(),
                self.flow.consumer[into].tolist(),
                self.flow.distance[into].tolist(),
                strict=True,
            ):
                self._senders.setdefault(c, []).append((p, distance))
        return self._senders.get(node, [])

    def _hop(self, a: int | None, b: int) -> int:
        """Return how long an event takes at least from a stream (None: a transfer) to one of device `b`."""
        device = self.machine.devices[b]
        self._note(
            a == b and device.streams > 1 and device.event_ns > 0,
            "events between streams",
            device.name,
        )
        return 0 if a == b else device.event_ns

    def _after(self, later: Any, earlier: Any, delay_ns: int, *given: Any) -> None:
        if delay_ns >= NEVER:
            self.times.never(*given)
        else:
            self.times.after(later, earlier + delay_ns, *given)

    # -- what is exclusive --------------------------------------------------------------------

    def _limits(self) -> None:
        """Let nothing be used twice at once."""
        job, machine = self.job, self.machine
        issuers = [issuer.group for issuer in machine.issuers()]
        for group in range(job.n_groups):
            self.times.limit(("issuers", group), issuers.count(group))
        used = {d for on in self.on for d in on}
        for d in sorted(used):
            device = machine.devices[d]
            need = self._cores(d)
            if need:
                self.times.limit(("cores", d), device.cores)
            if not device.workers:
                self.times.limit(("streams", d), device.streams)
                self._in_order(d)
            self._note(
                device.processor is not None and not need, "ops that slow one another down", device.name
            )
            self._note(
                device.queue_depth is not None and device.queue_depth < self.n_ops * job.iterations,
                "launch queues that may be full",
                device.name,
            )
        self._note(job.record_ns is not None, "what recording an event costs the host")
        self._note(self.memory, "memory that runs short")
        on_request = bool(rendezvous_keys(job.graph).sends)
        self._note(on_request, "Recvs that wait for what is sent to them")
        if self.problem is None:
            self._links(on_request)
        else:
            meet = any(link.sharing != "independent" for link in machine.links)
            self._note(meet, "transfers that meet on a link")

    def _in_order(self, d: int) -> None:
        """Let the tasks of a single stream start in the order in which they are issued."""
        device = self.machine.devices[d]
        ops = [k for k in range(self.n_ops) if d in self.on[k] and self.taken[0][k] is not self.start[0][k]]
        if device.streams > 1 or len(ops) < 2:
            return
        tasks = [(i, k) for i in range(self.job.iterations) for k in ops]
        many = len(tasks) * (len(tasks) - 1) // 2 > _MOST_PAIRS
        self._note(many, "that a stream keeps the order of launches", device.name)
        follows = _follows(self.job) if not many else []
        for (i, k), (j, m) in itertools.combinations(tasks, 2) if not many else ():
            if i == j and (follows[k] >> m & 1 or follows[m] >> k & 1):
                continue  # which edges say
            first, second = self.times.choice([f"{k} {i} before {m} {j}", f"{m} {j} before {k} {i}"])
            for (a, p), (b, q), before in (((i, k), (j, m), first), ((j, m), (i, k), second)):
                given = (before, self.on[p][d], self.on[q][d])
                ns = self.duration[a][p][d] + device.gap_ns
                issued = self.taken[a][p] + self.cost[p][d]
                self.times.after(self.taken[b][q] + self.cost[q][d], issued, *given)
                self.times.after(self.start[b][q], self.start[a][p] + ns, *given)

    def _links(self, on_request: bool) -> None:
        """Let serial links carry one transfer at a time, in the order in which they were sent."""
        flow, links = self.flow, self.machine.links
        if not len(flow.tensor):
            return
        routes, way = self.machine.distinct_routes(flow.source, flow.destination, flow.tensor)
        over: dict[int, list[Moved]] = {}
        for t, which in enumerate(way.tolist()):
            for link in dict.fromkeys(self.machine.channels[link] for link in routes[which][2]):
                self._note(
                    links[link].sharing in ("shared", "fifo"),
                    "transfers that share the bandwidth of links",
                    links[link].name,
                )
                if links[link].sharing != "serial":
                    continue
                for i in range(self.job.iterations):
                    self.times.occupy(("link", link), self.start[i][self.n_ops + t], self.travels[t])
                    over.setdefault(link, []).append((i, t))
        hosted = bool((host_groups(self.job, flow.tensor, flow.source, flow.destination) >= 0).any())
        engines = any(device.details.copy_engines is not None for device in self.machine.devices)
        self._note(hosted, "hosts that copy pageable memory")
        self._note(engines, "copy engines")
        pairs = {pair for moved in over.values() for pair in itertools.combinations(moved, 2)}
        for link in over:
            self.times.limit(("link", link), 1)
        known = not hosted and not on_request and not self.memory and len(pairs) <= _MOST_PAIRS
        self._note(bool(pairs) and not known, "the order of transfers over a link")
        if not known:
            return
        moves = {moved: self._move(*moved) for moved in dict.fromkeys(itertools.chain(*sorted(pairs)))}
        self.orders = first_come(self.times, moves, sorted(pairs))
        if not engines and not self.job.carried.any():
            never_wait_on_purpose(self.times, moves, self.orders)

    def _move(self, i: int, t: int) -> Move:
        """Return a transfer, with the op that makes what it carries: none where that is there."""
        node = self.n_ops + t
        sent = [(p, i - d) for p, d in self._sources(node) if i >= d]
        return Move(self.start[i][node], self.travels[t], {(p, j): self.end[j][p] for p, j in sent})

    # -- the run that is known ------------------------------------------------------------------

    def _hint(self, known: Trace) -> None:
        """Let the search begin with a run."""
        tasks, moved = known.tasks, known.transfers
        sent: dict[Moved, int] = {}
        costs = issue_costs_ns(known.job)
        self.times.within(known.makespan_ns)
        launched = known.job.launched
        for op, i, issue, start in zip(
            tasks["op"].tolist(),
            tasks["iteration"].tolist(),
            tasks["issue_ns"].tolist(),
            tasks["start_ns"].tolist(),
            strict=True,
        ):
            self.times.suppose(self.start[i][op], start)
            taken, end = self.taken[i][op], self.end[i][op]
            d = int(known.job.device_of[op])
            for device, chosen in self.on[op].items():
                self.times.suppose(chosen, device == d)
            if taken is not self.start[i][op]:
                self.times.suppose(taken, issue - int(costs[op]) if launched[op] else issue)
            if len(self.on[op]) > 1:
                self.times.suppose(end, start + self.duration[i][op][d])
        if self.problem is None:
            for id_, start in zip(moved["id"].tolist(), moved["start_ns"].tolist(), strict=True):
                i, node = divmod(id_, self.n)
                self.times.suppose(self.start[i][node], start)
                sent[i, node - self.n_ops] = start
            for order in self.orders:
                if order.chosen is not None:
                    self.times.suppose(order.chosen, sent[order.one] <= sent[order.other])

    def _note(self, holds: bool, what: str, of: str = "") -> None:
        if holds:
            self.notes.setdefault(what, {})[of] = None


def _follows(job: Job) -> list[int]:
    """Return of each op which ones follow it within an iteration, as bits."""
    edges = job.graph.edges.within_iteration()
    after: list[list[int]] = [[] for _ in range(len(job.graph))]
    for p, c in zip(edges.producer.tolist(), edges.consumer.tolist(), strict=True):
        after[p].append(c)
    found = [0] * len(after)
    for op in reversed(job.graph.topological_order.tolist()):
        for consumer in after[op]:
            found[op] |= found[consumer] | 1 << consumer
    return found


def _named(names: Sequence[str]) -> str:
    """Return some names in brackets, and how many there are."""
    more = len(names) - _MOST_NAMED
    told = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f" ({told})" if told else ""


def _unplaced(job: Job) -> Flow:
    """Return the ops and edges alone: it is not known what has to be moved."""
    none = np.zeros(0, np.int64)
    return Flow(len(job.graph), len(job.graph), *job.graph.edges, none, none, none, none)
