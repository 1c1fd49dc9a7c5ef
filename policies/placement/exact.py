"""Optimal placements by constraint programming, to measure how far a heuristic is from the optimum.

The model is that of the list placements (costs per device, travel times, no contention), solved by CP-SAT
of OR-tools (extra ``opt``): one interval per op and device, of which one is chosen, no overlap on a device's
lanes, a delay for every edge between devices. A search that runs out of time returns the best so far and
warns how far it may be from the optimum; that result depends on the machine's speed. For the ten tasks of
Topcuoglu et al. 2002 it proves 73, where HEFT finds 80.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from policies.cp_sat import least
from policies.option_checks import whole
from policies.placement.list_schedule import Heft, ListPlacement, ListSchedule
from policies.placement.problem import Problem
from policies.schedule_problem import LONGEST, NEVER, Literal, ScheduleProblem, Time
from sim import Graph, Machine
from sim.base.arrays import IntArray
from sim.base.errors import InfeasibleError, InputError, extra
from sim.base.units import format_duration
from sim.job.job import Placement
from sim.job.places import input_devices


class UnprovenWarning(UserWarning):
    """A search ran out of time, so its result may not be optimal."""


class Optimal(ListPlacement):
    """The best placement and order that CP-SAT finds, starting from HEFT's (needs the extra ``opt``).

    Parameters
    ----------
    time_limit_ns : int
        Search time limit, in wall-clock time.
    workers : int
        Number of the solver's interleaved search strategies. One is enough for tens of ops; harder problems
        need 8 or more to be proven, which takes as many times longer without cores for them.
    seed : int
        Seed of the solver: the same seed gives the same search.

    Raises
    ------
    InputError
        If the time limit or the number of workers is not positive.
    """

    def __init__(self, time_limit_ns: int = 30_000_000_000, workers: int = 1, seed: int = 0) -> None:
        self.time_limit_ns = whole("optimal", "time_limit_ns", time_limit_ns)
        self.workers = whole("optimal", "workers", workers, most=10_000)
        self.seed = whole("optimal", "seed", seed, least=0, most=2**31 - 1)

    def schedule(self, problem: Problem) -> ListSchedule:
        """Return the best schedule found.

        Warns
        -----
        UnprovenWarning
            If the search ran out of time.

        Raises
        ------
        MissingExtraError
            If OR-tools is not installed.
        """
        best = Heft().schedule(problem)
        times, start, literals = _state_problem(problem, best)
        solved = least(times, self.time_limit_ns, self.workers, self.seed)
        if solved.values is not None:  # otherwise out of time before finding anything better
            best = _schedule(problem, start, literals, solved.values)
        fastest = (
            min(costs[d] for d in devices)
            for costs, devices in zip(problem.cost_ns, problem.devices_of, strict=True)
        )
        lanes = sum(device.lanes for device in problem.machine.devices)
        bound_ns = max(solved.bound_ns, -(-sum(fastest) // lanes))  # all lanes are always busy
        if best.makespan_ns > bound_ns:
            limit, makespan, bound = map(format_duration, (self.time_limit_ns, best.makespan_ns, bound_ns))
            message = (
                f"optimal: not proven within {limit}. The best schedule found takes {makespan}, and none "
                f"takes less than {bound} (gap {1 - bound_ns / best.makespan_ns:.1%}). Raise time_limit, or "
                "use heft"
            )
            warnings.warn(message, UnprovenWarning, stacklevel=2)
        return best


_On = list[dict[int, Any]]
"""For each op and device: what says that it is there."""


def _state_problem(problem: Problem, schedule: ListSchedule) -> tuple[ScheduleProblem, list[Time], _On]:
    """Return the constraints, with horizon and hints from a known feasible schedule."""
    times = ScheduleProblem("searching for the optimal placement", schedule.makespan_ns)
    start = [times.time(f"start {op}") for op in range(problem.n)]
    end = [times.time(f"end {op}") for op in range(problem.n)]
    literals = times.places(problem.devices_of, problem.group_of)
    for op, choices in enumerate(literals):
        times.after(LONGEST, end[op])
        for d, chosen in choices.items():
            times.last(start[op], problem.cost_ns[op][d], end[op], chosen)
            times.occupy(d, start[op], problem.cost_ns[op][d], chosen)
    for d, device in enumerate(problem.machine.devices):
        times.capacity[d] = device.lanes
    for op, choices in enumerate(literals):
        for b, on_b in choices.items():
            for home, nbytes in problem.arrivals[op]:
                times.add_delay(start[op], 0, problem.travel_ns(home, b, nbytes), on_b)
        for producer, nbytes in problem.producers[op]:
            times.after(start[op], end[producer])
            for (a, on_a), (b, on_b) in product(literals[producer].items(), choices.items()):
                if delay := problem.travel_ns(a, b, nbytes):
                    times.add_delay(start[op], end[producer], delay, on_a, on_b)
    for op, (begin, placed) in enumerate(zip(schedule.start_ns, schedule.device, strict=True)):
        times.suppose(start[op], begin)
        for d, chosen in literals[op].items():
            times.suppose(chosen, d == placed)
    return times, start, literals


def _schedule(
    problem: Problem, starts: list[Time], literals: _On, value: Callable[[Time | Literal], int]
) -> ListSchedule:
    """Return a solution, with each op on the first lane that is free at its start."""
    start = [value(time) for time in starts]
    device = [next(d for d, chosen in row.items() if chosen is None or value(chosen)) for row in literals]
    end = [begin + problem.cost_ns[op][device[op]] for op, begin in enumerate(start)]
    free = [[0] * d.lanes for d in problem.machine.devices]
    lane = [0] * problem.n
    for op in sorted(range(problem.n), key=lambda op: (start[op], end[op], problem.topological_rank[op])):
        lanes = free[device[op]]
        lane[op] = next(k for k, free_ns in enumerate(lanes) if free_ns <= start[op])
        lanes[lane[op]] = end[op]
    return ListSchedule(device, lane, start, end)


class MinCut(Placement):
    """The placement on two devices with the least sum of costs and travel times.

    For two devices, the least total of computing and copying is a minimum cut.

    ::

               cost on B        cost on A
        A ════════════════► op ════════════════► B       cut the first: op is on B, at that cost;
                             │ travel A → B              cut the second: it is on A
                             ▼
                            op2                          cut this one: op is on A, op2 on B

    Stone 1977, "Multiprocessor scheduling with the aid of network flow algorithms", IEEE TSE 3(1): a cut
    between the two devices is a placement, and its value is the placement's total time. It is optimal
    if one op runs at a time, and takes no account of ops running in parallel.

    A tensor that several ops read crosses once. It gets a node of its own behind its producer, with
    uncuttable edges to the readers, and a second such node for the other direction. Of several minimum cuts
    it is the one with the fewest ops on the first device. The extra ``opt`` finds it.

    Parameters
    ----------
    devices : sequence of two str, optional
        Names of the devices; by default the machine must have exactly two.

    Raises
    ------
    InputError
        If there are not exactly two names.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Link
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("c is worth the way, a and b are not")
    >>> for name, inputs, cpu, gpu in (("a", [], 1, 3), ("b", ["a"], 1, 3), ("c", ["b"], 99, 1)):
    ...     _ = b.op(name, inputs=inputs, outputs=5, duration_by_kind={"cpu": cpu, "gpu": gpu})
    >>> for name, inputs in (("in", []), ("first", ["in", "b"])):
    ...     _ = b.op(name, inputs=inputs, duration_ns=1, device="cpu")
    >>> links = (Link("up", "cpu0", "gpu0", 0, 10**9), Link("down", "gpu0", "cpu0", 0, 10**9))
    >>> machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0")), links)
    >>> make_job(b.build(), machine, placement=MinCut()).device_of.tolist()
    [0, 0, 1, 0, 0]
    """

    def __init__(self, devices: Sequence[str] | None = None) -> None:
        if devices is not None and (isinstance(devices, str) or len(set(devices)) != 2):
            message = f"min-cut: devices must be the names of two devices, found {devices!r}"
            raise InputError(message, path=("devices",))
        self.devices = None if devices is None else tuple(devices)

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        InputError
            If the machine does not have two devices and none were named.
        InfeasibleError
            If neither device can run an op, or no link leads to where it must run.
        """
        names = self.devices or tuple(device.name for device in machine.devices if device.kind != "switch")
        if len(names) != 2:
            raise InputError(
                f"min-cut places on two devices and the machine has {len(names)}; name two with devices: "
                f"(known: {', '.join(names)})"
            )
        a, b = (machine.device_index(name) for name in names)
        problem = Problem(graph, machine, cost_ns)
        with extra("opt", "placement by a minimum cut"):
            from ortools.graph.python.max_flow import SimpleMaxFlow
        edges = list(_edges(problem, a, b))
        uncuttable = 1 + sum(cost for _, _, cost in edges if cost < NEVER)
        network: Any = SimpleMaxFlow()
        for tail, head, cost in edges:
            network.add_arc_with_capacity(tail, head, min(cost, uncuttable))
        network.solve(_A, _B)
        if network.optimal_flow() >= uncuttable:
            raise InfeasibleError(
                f"not every op can run on {names[0]} or {names[1]} (or no link leads there); "
                "place with heft or device-kind to use other devices"
            )
        with_a = set(network.get_source_side_min_cut())
        return [a if 2 + group in with_a else b for group in problem.group_of]


_A, _B = 0, 1


def _edges(problem: Problem, a: int, b: int) -> Iterator[tuple[int, int, int]]:
    """Yield (tail, head, cost); every cut between nodes 0 (device `a`) and 1 (`b`) is a placement."""
    graph = problem.graph
    for op in range(problem.n):
        devices, node = problem.devices_of[op], 2 + problem.group_of[op]
        yield _A, node, problem.cost_ns[op][b] if b in devices else NEVER
        yield node, _B, problem.cost_ns[op][a] if a in devices else NEVER
    consumers, producer = graph.consumers.lists(), graph.tensor_producer.tolist()
    home = input_devices(graph, problem.machine).tolist()
    for tensor, nbytes in enumerate(graph.tensor_nbytes.tolist()):
        if producer[tensor] >= 0:
            on_a = on_b = 2 + problem.group_of[producer[tensor]]
            from_a, from_b = a, b
        elif home[tensor] >= 0:
            on_a, on_b = _A, _B
            from_a = from_b = home[tensor]
        else:
            continue
        to_b = 2 + problem.n + 2 * tensor
        to_a = to_b + 1
        yield on_a, to_b, problem.travel_ns(from_a, b, nbytes)
        yield to_a, on_b, problem.travel_ns(from_b, a, nbytes)
        for reader in {2 + problem.group_of[op]: None for op in consumers[tensor]}:
            yield to_b, reader, NEVER
            yield reader, to_a, NEVER
