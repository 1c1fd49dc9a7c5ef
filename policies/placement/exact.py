"""Optimal placements by constraint programming, to measure how far a heuristic is from the optimum.

The model is that of the list placements (costs per device, travel times, no contention), solved by CP-SAT
of OR-tools (extra ``opt``): one interval per op and device, of which one is chosen, no overlap on a device's
lanes, a delay for every edge between devices. A search that runs out of time returns the best so far and
warns how far it may be from the optimum; that result depends on the machine's speed. For the ten tasks of
Topcuoglu et al. 2002 it proves 73, where HEFT finds 80.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from policies.cp_sat import least
from policies.option_checks import whole
from policies.placement.list_schedule import Heft, ListPlacement, ListSchedule
from policies.placement.problem import Problem
from policies.schedule_problem import LONGEST, NEVER, ScheduleProblem
from sim import Graph, Machine
from sim.base.arrays import IntArray
from sim.base.errors import InfeasibleError, InputError
from sim.base.units import format_duration
from sim.job.job import Placement
from sim.job.places import input_devices


@dataclass(frozen=True)
class OptimalSchedule:
    """The best schedule found, with a lower bound.

    Attributes
    ----------
    schedule : ListSchedule
    lower_bound_ns : int
        Lower bound of the makespan over all placements and orders.
    proven : bool
        Whether the schedule's makespan is the lower bound.
    """

    schedule: ListSchedule
    lower_bound_ns: int

    @property
    def proven(self) -> bool:
        """Whether the schedule is proven optimal."""
        return self.schedule.makespan_ns == self.lower_bound_ns

    @property
    def gap(self) -> float:
        """Largest fraction of the makespan that a better schedule could save."""
        return 1 - self.lower_bound_ns / max(1, self.schedule.makespan_ns) if not self.proven else 0.0


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

    Attributes
    ----------
    optimum : Optimum or None
        Result of the last search, with its bound.

    Raises
    ------
    InputError
        If the time limit or the number of workers is not positive.
    """

    def __init__(self, time_limit_ns: int = 30_000_000_000, workers: int = 1, seed: int = 0) -> None:
        self.time_limit_ns = whole("optimal", "time_limit_ns", time_limit_ns)
        self.workers = whole("optimal", "workers", workers, most=10_000)
        self.seed = whole("optimal", "seed", seed, least=0, most=2**31 - 1)
        self.optimum: OptimalSchedule | None = None

    def schedule(self, problem: Problem) -> ListSchedule:
        """Return the best schedule found.

        Warns
        -----
        UnprovenWarning
            If the search ran out of time.
        """
        found = self.optimum = self.solve(problem)
        if not found.proven:
            limit, makespan, bound = map(
                format_duration, (self.time_limit_ns, found.schedule.makespan_ns, found.lower_bound_ns)
            )
            message = (
                f"optimal: not proven within {limit}. The best schedule found takes {makespan}, and none "
                f"takes less than {bound} (gap {found.gap:.1%}). Raise time_limit, or use heft"
            )
            warnings.warn(message, UnprovenWarning, stacklevel=2)
        return found.schedule

    def solve(self, problem: Problem) -> OptimalSchedule:
        """Return the best schedule found, with a lower bound.

        Raises
        ------
        MissingExtraError
            If OR-tools is not installed.
        """
        start = Heft().schedule(problem)
        model = _Model(problem, start)
        found = least(model.times, self.time_limit_ns, self.workers, self.seed)
        bound = max(_least_ns(problem), found.bound_ns)
        if found.values is None:  # out of time before finding anything better
            return OptimalSchedule(start, bound)
        return OptimalSchedule(model.schedule(found.values), bound)


def _least_ns(problem: Problem) -> int:
    """Return a lower bound: each op where it is fastest, and every lane always busy."""
    work = sum(
        min(costs[d] for d in devices)
        for costs, devices in zip(problem.cost_ns, problem.devices_of, strict=True)
    )
    return -(-work // sum(device.lanes for device in problem.machine.devices))


class _Model:
    """The constraints, with horizon and hints from a known feasible schedule."""

    def __init__(self, problem: Problem, known: ListSchedule) -> None:
        self.problem = problem
        self.times = times = ScheduleProblem("searching for the optimal placement", known.makespan_ns)
        self.start = [times.time(f"start {op}") for op in range(problem.n)]
        self.end = [times.time(f"end {op}") for op in range(problem.n)]
        self.on: list[dict[int, Any]] = [
            dict(zip(own, times.choice([f"{op} on {d}" for d in own]), strict=True))
            for op, own in enumerate(problem.devices_of)
        ]
        self._devices()
        self._edges()
        for op, (begin, device) in enumerate(zip(known.start_ns, known.device, strict=True)):
            times.suppose(self.start[op], begin)
            for d, chosen in self.on[op].items():
                times.suppose(chosen, d == device)

    def _devices(self) -> None:
        """Put each op on one device, one op at a time on a lane; a device's load is at most the makespan."""
        times, problem = self.times, self.problem
        for op, on in enumerate(self.on):
            times.after(LONGEST, self.end[op])
            for d, chosen in on.items():
                times.last(self.start[op], problem.cost_ns[op][d], self.end[op], chosen)
                times.occupy(d, self.start[op], problem.cost_ns[op][d], chosen)
            leader = problem.group_of[op]
            if leader != op:
                times.together(on, self.on[leader])
        for d, device in enumerate(problem.machine.devices):
            times.capacity[d] = device.lanes

    def _edges(self) -> None:
        """Let no op start before its inputs arrive."""
        problem = self.problem
        for op in range(problem.n):
            for b, there in self.on[op].items():
                for home, nbytes in problem.arrivals[op]:
                    self.times.delayed(self.start[op], 0, problem.travel_ns(home, b, nbytes), there)
            for producer, nbytes in problem.producers[op]:
                self.times.after(self.start[op], self.end[producer])
                for a, here in self.on[producer].items():
                    for b, there in self.on[op].items():
                        if delay := problem.travel_ns(a, b, nbytes):
                            self.times.delayed(self.start[op], self.end[producer], delay, here, there)

    def schedule(self, value: Callable[[Any], int]) -> ListSchedule:
        """Return the solution, with each op on the first lane that is free at its start."""
        problem = self.problem
        start = [value(var) for var in self.start]
        device = [next(d for d, chosen in row.items() if chosen is None or value(chosen)) for row in self.on]
        end = [begin + problem.cost_ns[op][device[op]] for op, begin in enumerate(start)]
        free = [[0] * d.lanes for d in problem.machine.devices]
        lane = [0] * problem.n
        for op in sorted(range(problem.n), key=lambda op: (start[op], end[op], problem.topological_rank[op])):
            lanes = free[device[op]]
            lane[op] = next(k for k, until in enumerate(lanes) if until <= start[op])
            lanes[lane[op]] = end[op]
        return ListSchedule(device, lane, start, end)


class ChainDp(Placement):
    """The placement of a chain of ops with the least sum of costs and travel times.

    Exact for chains: dynamic programming over (op, device).

    ::

        op        a        b        c            best(c, gpu) = cost(c, gpu) +
        gpu0      o───────►o───────►o              min over e of best(b, e) + travel(b → c, e → gpu)
        cpu0      o───────►o───────►o
                  (every edge between the columns is a travel time)

    A chain runs one op at a time, so its makespan is the sum of costs and travel times, and the least sum is
    a shortest path through the (op, device) pairs (Bellman 1957; Bokhari 1979, "Dual processor scheduling
    with dynamic reassignment", IEEE TSE 5(4), uses it for program modules).

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Link
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("not worth the way back")
    >>> for name, inputs, cpu, gpu in (("a", [], 9, 1), ("b", ["a"], 3, 5), ("c", ["b"], 9, 1)):
    ...     _ = b.op(name, inputs=inputs, outputs=2, duration_by_kind={"cpu": cpu, "gpu": gpu})
    >>> links = (Link("up", "cpu0", "gpu0", 0, 10**9), Link("down", "gpu0", "cpu0", 0, 10**9))
    >>> machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0")), links)
    >>> make_job(b.build(), machine, placement=ChainDp()).device_of.tolist()
    [1, 1, 1]
    """

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        InputError
            If the graph is not a chain, or requires colocation.
        InfeasibleError
            If no device can run some op, or no link leads there.
        """
        problem = Problem(graph, machine, cost_ns)
        _require_chain(problem)
        order = graph.topological_order.tolist()
        devices = range(problem.n_devices)
        best = [NEVER] * problem.n_devices  # end of the previous op, per device
        came_from: list[list[int]] = []
        for k, op in enumerate(order):
            sizes = [nbytes for _, nbytes in problem.producers[op]]
            row, source = [NEVER] * problem.n_devices, [-1] * problem.n_devices
            for d in problem.devices_of[op]:
                there = [problem.travel_ns(home, d, size) for home, size in problem.arrivals[op]]
                arrival = 0
                if k:
                    travel = [max(problem.travel_ns(e, d, size) for size in sizes) for e in devices]
                    arrival, source[d] = min((best[e] + travel[e], e) for e in devices)
                row[d] = min(NEVER, max([arrival, *there]) + problem.cost_ns[op][d])
            best = row
            came_from.append(source)
            if min(best) >= NEVER:
                name = graph.op_names[op]
                raise InfeasibleError(f"no links lead to a device that can run op {name!r}").about(name)
        at = min(devices, key=lambda d: (best[d], d))
        placed = [0] * problem.n
        for op, source in zip(reversed(order), reversed(came_from), strict=True):
            placed[op], at = at, source[at]
        return placed


def _require_chain(problem: Problem) -> None:
    names = problem.graph.op_names
    way_out = "; use heft or auto-tune for graphs with branches"
    order = problem.graph.topological_order.tolist()
    for before, op in zip([None, *order], order, strict=False):
        found = {p for p, _ in problem.producers[op]}
        if found != ({before} if before is not None else set()):
            after = "nothing" if before is None else repr(names[before])
            message = f"chain-dp: op {names[op]!r} should follow {after} and nothing else{way_out}"
            raise InputError(message).about(names[op])
    if any(group != op for op, group in enumerate(problem.group_of)):
        raise InputError(f"chain-dp places each op for itself and cannot keep ops together{way_out}")


# ----------------------------------------------------------------------------------------------------------
# Maximum flow and minimum cut, by Dinic's algorithm (Dinic 1970, Soviet Math. Doklady 11).


class FlowNetwork:
    """A directed network with integer capacities.

    Parameters
    ----------
    n : int
        Initial number of nodes; `node` adds more.

    Examples
    --------
    >>> net = FlowNetwork(3)
    >>> net.edge(0, 1, 5)
    >>> net.edge(1, 2, 3)
    >>> net.min_cut(0, 2)
    (3, [True, True, False])
    """

    def __init__(self, n: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(n)]  # node → edges; edge e goes back as e ^ 1
        self._to: list[int] = []
        self._left: list[int] = []

    def node(self) -> int:
        """Add a node and return its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, a: int, b: int, capacity: int, back: int = 0) -> None:
        """Add an edge from `a` to `b`, and one of capacity `back` from `b` to `a`."""
        for source, target, c in ((a, b, capacity), (b, a, back)):
            self._edges[source].append(len(self._to))
            self._to.append(target)
            self._left.append(c)

    def min_cut(self, source: int, sink: int) -> tuple[int, list[bool]]:
        """Return the value of a minimum cut and, for each node, whether it is on the source's side.

        Of several minimum cuts it is the one with the fewest nodes on the source's side.
        """
        total = 0
        while (level := self._levels(source))[sink] >= 0:
            position = [0] * len(self._edges)
            while pushed := self._push(source, sink, level, position):
                total += pushed
        return total, [depth >= 0 for depth in level]

    def _levels(self, source: int) -> list[int]:
        """Return each node's breadth-first distance from the source over edges with capacity left, or -1."""
        level = [-1] * len(self._edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            at = queue.popleft()
            for e in self._edges[at]:
                if self._left[e] and level[self._to[e]] < 0:
                    level[self._to[e]] = level[at] + 1
                    queue.append(self._to[e])
        return level

    def _push(self, source: int, sink: int, level: list[int], position: list[int]) -> int:
        """Send flow along one path of ascending levels and return its amount; 0: no path is left."""
        path: list[int] = []
        at = source
        while at != sink:
            if position[at] == len(self._edges[at]):  # a dead end: go back and never come here again
                if not path:
                    return 0
                at = self._to[path.pop() ^ 1]
                position[at] += 1
                continue
            e = self._edges[at][position[at]]
            if self._left[e] and level[self._to[e]] == level[at] + 1:
                path.append(e)
                at = self._to[e]
            else:
                position[at] += 1
        least = min(self._left[e] for e in path)
        for e in path:
            self._left[e] -= least
            self._left[e ^ 1] += least
        return least


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
    uncuttable edges to the readers, and a second such node for the other direction.

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
        names = self.devices or tuple(device.name for device in machine.devices)
        if len(names) != 2:
            raise InputError(
                f"min-cut places on two devices and the machine has {len(names)}; name two with devices: "
                f"(known: {', '.join(names)})"
            )
        a, b = (machine.device_index(name) for name in names)
        problem = Problem(graph, machine, cost_ns)
        value, with_a = _network(problem, a, b).min_cut(_A, _B)
        if value >= NEVER:
            raise InfeasibleError(
                f"not every op can run on {names[0]} or {names[1]} (or no link leads there); "
                "place with heft or device-kind to use other devices"
            )
        return [a if with_a[2 + group] else b for group in problem.group_of]


_A, _B = 0, 1


def _network(problem: Problem, a: int, b: int) -> FlowNetwork:
    """Return a network in which every cut between nodes 0 (device `a`) and 1 (`b`) is a placement."""
    graph = problem.graph
    net = FlowNetwork(2 + problem.n)
    for op in range(problem.n):
        here, node = problem.devices_of[op], 2 + problem.group_of[op]
        net.edge(_A, node, problem.cost_ns[op][b] if b in here else NEVER)
        net.edge(node, _B, problem.cost_ns[op][a] if a in here else NEVER)
    consumers, producer = graph.consumers.lists(), graph.tensor_producer.tolist()
    home = input_devices(graph, problem.machine).tolist()
    for tensor, nbytes in enumerate(graph.tensor_nbytes.tolist()):
        readers = sorted({2 + problem.group_of[op] for op in consumers[tensor]})
        if producer[tensor] >= 0:
            made = 2 + problem.group_of[producer[tensor]]
            there, back = problem.travel_ns(a, b, nbytes), problem.travel_ns(b, a, nbytes)
            _cross(net, made, made, [node for node in readers if node != made], there, back)
        elif home[tensor] >= 0:
            from_home = [problem.travel_ns(home[tensor], device, nbytes) for device in (b, a)]
            _cross(net, _A, _B, readers, *from_home)
    return net


def _cross(net: FlowNetwork, from_a: int, from_b: int, readers: list[int], to_b: int, to_a: int) -> None:
    """Charge `to_b` once if `from_a` is on A and any reader on B, and `to_a` the other way round."""
    if not readers:
        return
    if len(readers) == 1 and from_a == from_b:
        net.edge(from_a, readers[0], to_b, to_a)
        return
    if to_b:
        node = net.node()
        net.edge(from_a, node, to_b)
        for reader in readers:
            net.edge(node, reader, NEVER)
    if to_a:
        node = net.node()
        net.edge(node, from_b, to_a)
        for reader in readers:
            net.edge(reader, node, NEVER)
