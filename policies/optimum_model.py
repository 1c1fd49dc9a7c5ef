"""A job as a constraint problem: when each task begins, under any policy.

::

    host        [issue a][issue b]                  one thread, or one worker of a CPU, for each
    stream               ├launch─►[a]gap[b]         after the launch, the inputs, and the task before
    link                            [a → gpu1]      as it comes: the first that is there goes first

What policies decide is unknown: the order in which hosts issue, and streams. Everything else is as in a run.
What constraints cannot express is relaxed: the model lets a task begin earlier, or end sooner, than it can.
So every run of the job satisfies the model, whatever its policy, and the least makespan of the model is a
lower bound of all runs. `JobModel.left_out` lists what is relaxed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from policies.cp_sat import MOST_COVERED, MOST_PASSED, Solved, least, moments_of, unit_of
from policies.issue.program_order import ProgramOrder
from policies.optimum_lists import Lists
from policies.optimum_tasks import Moved, Tasks, share
from policies.optimum_windows import windows
from policies.placement.problem import Problem
from policies.schedule_problem import LONGEST, NEVER, Covered, CoveringSpan, ScheduleProblem, Time
from sim import Job, Policy, Trace
from sim.base.arrays import UNSET, IntArray, group_pairs
from sim.base.errors import InputError, UnknownNameError, list_names
from sim.graph.frames import has_control_flow
from sim.graph.graph import longest_path_ns
from sim.job.costs import issue_costs_ns
from sim.job.transfers import Flow
from sim.objectives import (
    due_ops,
    energy_pj,
    jobs_of,
    n_jobs,
    released_ns,
    total_flow_time_ns,
    weighted_tardiness_ns,
)
from sim.policy import Order
from sim.readiness.eligibility import non_strict_ops
from sim.record.record import Record

# ----------------------------------------------------------------------------------------------------------
# What tasks wait for: their inputs, wherever they are made, or where that does, the issue of these.


def wait_for_inputs(tasks: Tasks) -> None:
    """Let no task begin before its inputs are there."""
    flow, iterations = tasks.flow, tasks.job.iterations
    columns = (flow.producer, flow.consumer, flow.distance, flow.carries)
    for p, c, distance, tensor in zip(*(column.tolist() for column in columns), strict=True):
        for i in range(distance, iterations):
            if c >= tasks.n_ops:
                tasks.times.after(tasks.start[i][c], tasks.end[i - distance][p])
            else:
                _edge(tasks, i - distance, p, i, c, tensor)
    if tasks.problem is not None:
        for c, arrivals in enumerate(tasks.problem.arrivals):
            for (home, nbytes), (d, chosen), i in itertools.product(
                arrivals, tasks.on[c].items(), range(iterations)
            ):
                tasks.times.add_delay(tasks.taken[i][c], 0, tasks.problem.travel_ns(home, d, nbytes), chosen)


def _edge(tasks: Tasks, before: int, p: int, i: int, c: int, tensor: int) -> None:
    """Let op `c` wait for `p`, wherever both are."""
    producers = {None: None} if p >= tasks.n_ops else tasks.on[p]
    nbytes = -1 if tensor == UNSET or tasks.problem is None else int(tasks.job.graph.tensor_nbytes[tensor])
    for (a, on_a), (b, on_b) in itertools.product(producers.items(), tasks.on[c].items()):
        travel = 0 if tasks.problem is None or a is None else tasks.problem.travel_ns(a, b, nbytes)
        begin = tasks.end[before][p]
        if 0 < travel < NEVER and a is not None:
            sent = tasks.departs(before, tensor, a, b, begin, travel, on_a, on_b)
            begin = begin if sent is None else sent
        device = tasks.machine.devices[b]
        launched = not device.workers and (a is None or not tasks.machine.devices[a].workers)
        if not (tasks.at_issue and launched) or tasks.taken[i][c] is tasks.start[i][c]:
            hop = 0 if not (tasks.at_issue and launched) else _hop(tasks, a, b)
            tasks.times.add_delay(tasks.taken[i][c], begin, travel + hop, on_a, on_b)
            continue
        tasks.times.add_delay(tasks.start[i][c], begin, travel + _hop(tasks, a, b), on_a, on_b)
        _issued_before(tasks, tasks.taken[i][c], before, p, on_a, on_b)


def _issued_before(tasks: Tasks, time: Any, before: int, node: int, *conditions: Any) -> None:
    """Let `time` not be before a node is issued: a launched task, or the producers of a transfer."""
    if node >= tasks.n_ops:
        for producer, distance in tasks.senders.get(node, []):
            if before - distance >= 0:
                _issued_before(tasks, time, before - distance, producer, *conditions)
        return
    for d, chosen in tasks.on[node].items():
        if tasks.machine.devices[d].workers:
            tasks.times.after(time, tasks.end[before][node], chosen, *conditions)
        else:
            tasks.times.after(time, tasks.taken[before][node] + tasks.cost[node][d], chosen, *conditions)


def _hop(tasks: Tasks, a: int | None, b: int) -> int:
    """Return how long an event takes at least from a stream (None: a transfer) to one of device `b`."""
    device = tasks.machine.devices[b]
    hops = a == b and device.streams > 1 and device.event_ns > 0
    tasks.note(hops, "events between streams", device.name)
    return 0 if a == b else device.event_ns


# ----------------------------------------------------------------------------------------------------------
# Jobs of which not even a lower bound can be said by constraints.

_MOST_TASKS: Final = 20_000
"""A larger problem takes minutes to write down, and is not solved."""


def refuse_unmodelled(job: Job, placed: bool = True) -> None:
    """Refuse a job of which not even a lower bound can be said by `policies.optimum_model`.

    Raises
    ------
    InputError
        Saying what stands in the way.
    """
    graph = job.graph
    tasks, early = len(graph) * job.iterations, bool(non_strict_ops(graph).any())
    folded = job.machine.folding is not None
    reasons = {
        "it has control flow, and what runs is decided during the run": has_control_flow(graph),
        "some of its ops may fail": job.failures is not None,
        "parts of its machine may fail or become slow": job.faults is not None,
        "its ranks are folded, and all of a kind have one schedule: set fold: false": folded,
        "some of its ops start with the first of their inputs (strict: false)": early,
        "its ranks meet in collectives, and so stay on their devices": not placed and bool(job.meets.any()),
        f"it has {tasks:,} tasks, and more than {_MOST_TASKS:,} are hopeless": tasks > _MOST_TASKS,
    }
    for reason, holds in reasons.items():
        if holds:
            raise InputError(f"the optimum of {graph.name!r} cannot be searched for: {reason}")


# ----------------------------------------------------------------------------------------------------------
# Objectives of a schedule, in the words of a constraint problem.
#
#     makespan             the end of all
#     weighted tardiness   weight x late, for each op with a due date          late >= end - due, late >= 0
#     mean flow time       done, for each job                                  done >= each end of it
#     energy               idle power x the end of all + (busy - idle) x what ops cover, for each device
#
# A solver minimises a weighted sum of times; the caller adds the constant part of the objective.


class Later(NamedTuple):
    """A time that is not before any of some others."""

    time: Time
    others: list[Any]

    def value(self, value_of: Callable[[Any], int]) -> int:
        """Return the least that it can be."""
        return max(0, *map(value_of, self.others))


def _makespan(tasks: Tasks) -> tuple[int, list[Later]]:
    tasks.times.charge(LONGEST, 1)
    return 0, []


def _tardiness(tasks: Tasks) -> tuple[int, list[Later]]:
    later = []
    for op, (due_ns, weight) in due_ops(tasks.job.graph).items():
        for i in range(tasks.job.iterations):
            later.append(_not_before(tasks, f"late {op} {i}", [tasks.end[i][op] - due_ns], weight))
    return 0, later


def _flow_time(tasks: Tasks) -> tuple[int, list[Later]]:
    graph, later = tasks.job.graph, []
    job, released = jobs_of(graph).tolist(), released_ns(graph)
    last = [not consumers for consumers in graph.dag().successors]
    for i in range(tasks.job.iterations):
        for j in range(len(released)):
            ends = [tasks.end[i][op] for op in range(len(graph)) if job[op] == j and last[op]]
            later.append(_not_before(tasks, f"job {j} {i}", ends, 1))
    return -int(released.sum()) * tasks.job.iterations, later


def _energy(tasks: Tasks) -> tuple[int, list[Later]]:
    """Charge for the time of each device in which something runs."""
    always = idle = 0
    for d, device in enumerate(tasks.machine.devices):
        if (power := device.details.power) is None:
            continue
        idle += power.idle
        more = power.busy - power.idle
        spans = [
            CoveringSpan(tasks.start[i][op], tasks.end[i][op], tasks.duration[i][op][d], literals[d])
            for op, literals in enumerate(tasks.on)
            if d in literals
            for i in range(tasks.job.iterations)
        ]
        if device.lanes > 1 and more > 0:
            busy = tasks.times.time(f"busy {device.name}")
            tasks.times.covered.append(Covered(busy, device.lanes, spans))
            tasks.times.charge(busy, more)
            tasks.note(len(spans) > MOST_COVERED, "how much of their time ops overlap", device.name)
            continue
        for span in spans:
            if span.given is None:
                always += more * span.ns
            else:
                tasks.times.charge(span.given, more * span.ns)
    tasks.times.charge(LONGEST, idle)
    return always, []


def _not_before(tasks: Tasks, name: str, others: list[Any], weight: int) -> Later:
    time = tasks.times.time(name)
    for other in others:
        tasks.times.after(time, other)
    tasks.times.charge(time, weight)
    return Later(time, others)


class Objective(NamedTuple):
    """An objective of a schedule.

    Attributes
    ----------
    cost : callable
        ``cost(trace)`` returns the whole number to minimise (ns, pJ, or a sum over jobs in ns); None: the job
        does not have this objective.
    write : callable
        ``write(tasks)`` adds it to the problem; returns its constant part, and the times that it added.
    parts : callable
        ``parts(job)`` returns the number by which a cost is divided to be shown: the jobs of a mean.
    """

    cost: Callable[[Record], int | None]
    write: Callable[[Tasks], tuple[int, list[Later]]]
    parts: Callable[[Any], int] = lambda job: 1

    def of(self, trace: Trace) -> int:
        """Return the cost of a run that is known to have one."""
        cost = self.cost(trace)
        assert cost is not None
        return cost


OBJECTIVES: Final[Mapping[str, Objective]] = {
    "makespan": Objective(lambda trace: trace.makespan_ns, _makespan),
    "weighted_tardiness": Objective(weighted_tardiness_ns, _tardiness),
    "mean_flow_time": Objective(total_flow_time_ns, _flow_time, n_jobs),
    "energy": Objective(energy_pj, _energy),
}
"""By the names that `expect:` has."""


def objective_named(name: str) -> Objective:
    """Return an objective, or raise `UnknownNameError`."""
    if name not in OBJECTIVES:
        raise UnknownNameError("objective", name, OBJECTIVES)
    return OBJECTIVES[name]


# ----------------------------------------------------------------------------------------------------------

_MOST_NAMED: Final = 4
"""Most devices and links that a note about what is left out names."""


class Timetable(NamedTuple):
    """When each task begins; a row an iteration, a column a node: ops, then transfers.

    Attributes
    ----------
    taken_ns : list of list of int
        When a host or worker takes an op; of a transfer, when it begins.
    start_ns : list of list of int
    device : list of int
        Device of each op.
    cost : int
        Value of the objective.
    """

    taken_ns: list[list[int]]
    start_ns: list[list[int]]
    device: list[int]
    cost: int


class JobModel:
    """The constraints of a job.

    Parameters
    ----------
    job : Job
    policy : Policy
        Its `synchronisation` says what eligible means, and it may run some ops asynchronously.
    run : Trace
        A run of the job: nothing worse is searched for.
    placed : bool
        Whether ops stay on the devices of the job. Otherwise each may go wherever it can run.
    memory : bool
        Whether tasks may have to wait for memory.
    least_ns : int
        A lower bound of the makespan that is known otherwise; as an attribute, in whole units of all times.
    objective : Objective, optional
        By default the makespan.
    """

    def __init__(
        self,
        job: Job,
        policy: Policy,
        run: Trace,
        *,
        placed: bool = True,
        memory: bool = False,
        least_ns: int = 0,
        objective: Objective = OBJECTIVES["makespan"],
    ) -> None:
        refuse_unmodelled(job, placed)
        self.job = job
        self.times = ScheduleProblem("the optimum of a scenario", run.makespan_ns)
        flow = run.flow if placed else _without_transfers(job)
        problem = None if placed else Problem(job.graph, job.machine, job.known_costs_ns)
        at_issue, asynchronous = policy.synchronisation == "issue", policy.asynchronous_ops(job)
        self.tasks = Tasks(self.times, job, flow, problem, at_issue=at_issue, asynchronous=asynchronous)
        wait_for_inputs(self.tasks)
        self.orders = share(self.tasks, memory)
        for resource, usages in self.times.taken.items():
            many = len(moments_of(usages)) * len(usages) > MOST_PASSED and self.times.capacity[resource] > 1
            self.tasks.note(many, "what ops that take no time wait for")
        self.lists = Lists(self.times)
        if self.lists.suits:
            least_ns = max(least_ns, self.lists.least_ns())
        if not placed:
            least_ns = max(least_ns, self._least_anywhere_ns())
        unit = unit_of(self.times)
        # If something is left out, the makespan of a run need not be a multiple of the unit.
        self.least_ns = least_ns // unit * unit if self.left_out else -(-least_ns // unit) * unit
        self.times.after(LONGEST, self.least_ns)
        self.objective, self.is_makespan = objective, objective is OBJECTIVES["makespan"]
        self.always, self.later = objective.write(self.tasks)
        self.begin_with(run)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the model relaxes; if anything, its optimum is only a lower bound."""
        notes = self.tasks.notes.items()
        return tuple(f"{note} ({list_names(names, _MOST_NAMED)})" if names else note for note, names in notes)

    def _least_anywhere_ns(self) -> int:
        """Return a lower bound wherever ops are: the longest chain, and all work on all lanes."""
        tasks = self.tasks
        fastest = [[min(ns.values()) for ns in row] for row in tasks.duration]
        chain_ns = int(longest_path_ns(self.job.graph, fastest[0]).max())
        work = sum(ns for row in fastest for op, ns in enumerate(row) if op not in tasks.asynchronous)
        return max(chain_ns, -(-work // sum(device.lanes for device in tasks.machine.devices)))

    def solve(self, limit_ns: int, workers: int = 1, seed: int = 0) -> tuple[Solved, Timetable | None]:
        """Return what was found, with a lower bound of the objective; see `policies.cp_sat.least`."""
        solved = least(self.times, limit_ns, workers, seed)
        solved = solved._replace(bound_ns=solved.bound_ns + self.always)
        return solved, None if solved.values is None else self._timetable(solved.values)

    def by_lists(self, deadline: float, seed: int = 0) -> Iterator[Timetable]:
        """Yield better timetables with other orders of the tasks, if only these are open (`lists.suits`)."""
        for starts in self.lists.better(self.least_ns, deadline, seed):
            yield self._timetable(partial(_start_of, starts.tolist()))

    def improve(self, deadline: float, seed: int = 0) -> Iterator[Timetable]:
        """Yield timetables that improve a window of the run that the search began with last."""
        tasks, activities = self.tasks, list[list[Time]]()
        for rows in zip(tasks.start, tasks.taken, tasks.end, strict=True):
            for times in zip(*rows, strict=True):  # of one task
                activities.append([*dict.fromkeys(Time(time.index) for time in times)])
        activities += [[time] for time in tasks.departures.values()]
        yield from map(self._timetable, windows(self.times, activities, deadline, seed))

    def _timetable(self, value: Callable[[Any], int]) -> Timetable:
        """Return the times of a solution."""

        def read(rows: list[list[Any]]) -> list[list[int]]:
            return [[int(value(time)) for time in row] for row in rows]

        device = [
            next(d for d, chosen in literals.items() if chosen is None or value(chosen))
            for literals in self.tasks.on
        ]
        charged = self.times.charged.items()
        cost = self.always + sum(n * int(value(item)) for item, n in charged)
        return Timetable(read(self.tasks.taken), read(self.tasks.start), device, cost)

    def begin_with(self, run: Trace) -> None:
        """Let the search begin with a run."""
        tasks, ran, costs = self.tasks, run.tasks, issue_costs_ns(run.job)
        self.times.within(run.makespan_ns)
        if not self.is_makespan:  # a better schedule may be longer
            self.times.horizon_ns = max(run.makespan_ns, self._longest_ns())
            self.times.most = self.objective.of(run) - self.always
        launched = run.job.launched
        columns = (ran[name].tolist() for name in ("op", "iteration", "issue_ns", "start_ns"))
        for op, i, issue, start in zip(*columns, strict=True):
            self.times.suppose(tasks.start[i][op], start)
            taken, end = tasks.taken[i][op], tasks.end[i][op]
            d = int(run.job.device_of[op])
            for device, chosen in tasks.on[op].items():
                self.times.suppose(chosen, device == d)
            if taken is not tasks.start[i][op]:
                self.times.suppose(taken, issue - int(costs[op]) if launched[op] else issue)
            if len(tasks.on[op]) > 1:
                self.times.suppose(end, start + tasks.duration[i][op][d])
        for departure in tasks.departures.values():
            self.times.suppose(departure, 0)
        for move in tasks.moves.values():
            self.times.suppose(move, False)
        hints = self.times.time_hints
        for later in self.later:
            value = later.value(lambda time: hints.get(time.index, 0) + time.offset)
            self.times.suppose(later.time, value)
        self._begin_with_transfers(run)

    def _begin_with_transfers(self, run: Trace) -> None:
        """Let the search begin with the transfers of a run."""
        tasks, flow, sent = self.tasks, run.flow, dict[Moved, int]()
        where = list(zip(flow.tensor.tolist(), flow.source.tolist(), flow.destination.tolist(), strict=True))
        for id_, start in zip(*(run.transfers[key].tolist() for key in ("id", "start_ns")), strict=True):
            i, node = divmod(id_, flow.n_nodes)
            tensor, a, b = where[node - flow.n_ops]
            if tasks.problem is None:
                self.times.suppose(tasks.start[i][node], start)
                sent[i, node - flow.n_ops] = start
            elif (i, tensor, a, b) in tasks.moves:
                self.times.suppose(tasks.departures[i, tensor, b], start)
                self.times.suppose(tasks.moves[i, tensor, a, b], True)
        for order in self.orders:
            self.times.suppose(order.chosen, sent[order.one] <= sent[order.other])

    def _longest_ns(self) -> int:
        """Return how long all takes one after another: no schedule need be longer for any objective."""
        tasks, devices, graph = self.tasks, self.tasks.machine.devices, self.job.graph
        late = [device.launch_latency_ns + device.gap_ns + device.event_ns for device in devices]
        ns = 0
        for row in tasks.duration:
            for durations, costs in zip(row, tasks.cost, strict=True):
                ns += max(duration + costs[d] + late[d] for d, duration in durations.items())
        moved = sum(tasks.travels)
        if tasks.problem is not None:
            largest = int(graph.tensor_nbytes.max(initial=0))
            pairs = itertools.permutations(range(len(devices)), 2)
            ways = [way for a, b in pairs if (way := tasks.problem.travel_ns(a, b, largest)) < NEVER]
            moved = len(graph.tensor_nbytes) * len(devices) * max(ways, default=0)
        return int(ns + self.job.iterations * moved + max(graph.attribute("release").values(), default=0))


def _start_of(starts: Sequence[int], time: Time) -> int:
    return starts[time.index] + time.offset


def _without_transfers(job: Job) -> Flow:
    """Return the ops and edges alone: it is not known what has to be moved."""
    none = np.zeros(0, np.int64)
    return Flow(len(job.graph), len(job.graph), *job.graph.edges, none, none, none, none)


# ----------------------------------------------------------------------------------------------------------
# From the times of a solution to decisions: who takes which task when, and on which stream.
#
# Each host thread or worker takes its tasks in the order of the solution, as soon as it can. Nothing then
# begins later than in the solution, as long as tasks only keep one another waiting: a task that is early ends
# early. Where an early op takes what the solution keeps for others, such as cores, each waits for its time.


class Follow(ProgramOrder):
    """A policy, a stream assignment and a program order from a timetable.

    Parameters
    ----------
    timetable : Timetable
    synchronisation : str
        That of the policy for which the timetable was made.
    by_start : bool
        Whether tasks are taken in the order in which they start. Otherwise a host may take one long before
        its stream is free, and a task that is to start there earlier stands behind it.
    waits : bool
        Whether each task is taken when the solution says, and no earlier.
    """

    def __init__(
        self, timetable: Timetable, synchronisation: str, *, by_start: bool = False, waits: bool = False
    ) -> None:
        self.timetable, self.synchronisation = timetable, synchronisation
        self.by_start, self.waits = by_start, waits

    def not_before_ns(self, job: Job) -> IntArray | None:
        """Return when each task is taken, if the policy waits for it."""
        if not self.waits:
            return None
        return np.array([row[: len(job.graph)] for row in self.timetable.taken_ns], np.int64).ravel()

    def as_data(self, job: Job) -> Order:
        """Return the tasks of every issuer: each goes to one that is free then."""
        n, costs = len(job.graph), issue_costs_ns(job).tolist()
        issuers = job.machine.issuers()
        of_group = group_pairs((issuer.group, issuer.index) for issuer in issuers)
        programs: list[list[int]] = [[] for _ in issuers]
        free = [0] * len(issuers)
        launched, group_of = job.launched.tolist(), job.group_of.tolist()
        for taken_ns, i, op in self._tasks(job):
            members = of_group[group_of[op]]
            who = next((k for k in members if free[k] <= taken_ns), min(members, key=lambda k: (free[k], k)))
            programs[who].append(i * n + op)
            ns = 0 if launched[op] else self._ns(job, i, op)
            free[who] = max(free[who], taken_ns + costs[op] + ns)
        return Order("place", [np.array(keys, np.int64) for keys in programs], 1, "issuer")

    def order(self, job: Job) -> Sequence[int]:
        """Return the ops as they are first taken (see `sim.job.job.Linearizer`)."""
        return list(dict.fromkeys(op for _, _, op in self._tasks(job)))

    def assign(self, job: Job) -> Sequence[int]:
        """Return a stream for each op: one that is free, rather that of a producer, or that was free last."""
        first: dict[int, tuple[int, int]] = {}
        free_at = [[0] * device.lanes for device in job.machine.devices]
        last = [[-1] * device.lanes for device in job.machine.devices]
        before = [set(row) for row in job.graph.predecessors.lists()]
        for _, i, op in self._tasks(job):
            d = int(job.device_of[op])
            start = self.timetable.start_ns[i][op]
            if op not in first:
                free = [k for k, ns in enumerate(free_at[d]) if ns <= start] or range(len(free_at[d]))
                lane = max(
                    free, key=lambda k: (last[d][k] in before[op], free_at[d][k] <= start, free_at[d][k], -k)
                )
                first[op] = d, lane
            lane = first[op][1]
            free_at[d][lane] = max(free_at[d][lane], start + self._ns(job, i, op) + int(job.gap_ns[op]))
            last[d][lane] = op
        return [first[op][1] for op in range(len(job.graph))]

    @staticmethod
    def _ns(job: Job, i: int, op: int) -> int:
        return int((job.duration_ns if job.noisy_ns is None else job.noisy_ns[i])[op])

    def _tasks(self, job: Job) -> list[tuple[int, int, int]]:
        """Return when each task is taken, its iteration and op, in this order; producers before consumers."""
        rank = np.argsort(job.graph.topological_order).tolist()
        taken_ns, start = self.timetable.taken_ns, self.timetable.start_ns
        first, then = (start, taken_ns) if self.by_start else (taken_ns, start)
        tasks = sorted(  # what takes no time goes before what starts with it, and would hold it up
            (first[i][op], then[i][op], self._ns(job, i, op) > 0, i, rank[op], op)
            for i in range(job.iterations)
            for op in range(len(job.graph))
        )
        return [(taken_ns[i][op], i, op) for *_, i, _, op in tasks]
