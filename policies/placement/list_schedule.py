"""Schedules made by list placement, and the partial schedule that grows op by op.

::

    Problem ──► Builder: one op after another   ──► Schedule
                                                    ├─ place   the device of every op
                                                    ├─ order   the ops by start: a program
                                                    └─ assign  the lane of every op
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from policies.placement.problem import Problem
from policies.schedule_problem import NEVER
from sim import Graph, Job, Machine
from sim.base.arrays import IntArray
from sim.base.errors import InfeasibleError, InputError
from sim.graph.walks import least_first
from sim.job.job import Placement

# ----------------------------------------------------------------------------------------------------------
# When a device is free: the gaps between the ops placed on it.
#
#     lane 0   ▇▇▇▇····▇▇▇·······…      gaps: [4, 8) [11, ∞)
#     lane 1   ▇▇▇▇▇▇▇···········…            [7, ∞)
#
# Only gaps are kept, so that the cost of a search grows with the gaps and not with the tasks.


class FreeTime:
    """The free time of one device with one or more lanes.

    Parameters
    ----------
    lanes : int
        Workers or streams, each of which runs one op at a time.
    insertion : bool
        Whether an op may go into a gap between two others; otherwise only after the last op of a lane.
    """

    def __init__(self, lanes: int = 1, insertion: bool = True) -> None:
        self.insertion = insertion
        self._gaps: list[list[tuple[int, int]]] = [[(0, NEVER)] for _ in range(lanes)]

    def earliest(self, ready_ns: int, duration_ns: int) -> tuple[int, int]:
        """Return the earliest start from `ready_ns` on, and the first lane that offers it.

        Examples
        --------
        >>> t = FreeTime()
        >>> t.take(5, 10, 0)
        >>> t.earliest(0, 5), t.earliest(0, 6), t.earliest(2, 3)
        ((0, 0), (15, 0), (2, 0))
        """
        return min((self._earliest_on(lane, ready_ns, duration_ns), lane) for lane in range(len(self._gaps)))

    def _earliest_on(self, lane: int, ready_ns: int, duration_ns: int) -> int:
        gaps = self._gaps[lane]
        # The first gap that ends late enough: ends are in the order of starts.
        first = len(gaps) - 1
        if self.insertion:
            first = bisect_left(gaps, ready_ns + duration_ns, key=lambda gap: gap[1])
        for begin, end in gaps[first:]:
            start = max(begin, ready_ns)
            if start + duration_ns <= end:
                return start
        return NEVER

    def take(self, start_ns: int, duration_ns: int, lane: int) -> None:
        """Occupy a lane from `start_ns` on; `earliest` has found it free."""
        gaps = self._gaps[lane]
        k = bisect_left(gaps, start_ns + duration_ns, key=lambda gap: gap[1])
        begin, end = gaps[k]
        parts = [(begin, start_ns), (start_ns + duration_ns, end)]
        gaps[k : k + 1] = [part for part in parts if part[0] < part[1]]


# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListSchedule(Placement):
    """A device, a lane and a time for every op. It is a placement, a linearizer and a stream assignment.

    The times are those of the placement's own model, in which transfers never contend. To simulate the
    schedule: ``simulate(graph, machine, InOrder(), placement=s, linearize=s, streams=s)``.

    Attributes
    ----------
    device, lane : list of int
        Device and lane of each op; lanes are counted within the device.
    start_ns, end_ns : list of int
    """

    device: list[int]
    lane: list[int]
    start_ns: list[int]
    end_ns: list[int]

    @property
    def makespan_ns(self) -> int:
        """End of the last op."""
        return max(self.end_ns)

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`)."""
        return self.device

    def order(self, job: Job) -> Sequence[int]:
        """Return the ops by start, then end, then topological position."""
        position = np.argsort(job.graph.topological_order).tolist()
        return sorted(range(len(position)), key=lambda op: (self.start_ns[op], self.end_ns[op], position[op]))

    def assign(self, job: Job) -> Sequence[int]:
        """Return the lane of every op as its stream."""
        return self.lane


class Slot(NamedTuple):
    """A device, lane and time at which an op could run; they compare by end, then device."""

    end_ns: int
    device: int
    start_ns: int
    lane: int


class PartialSchedule:
    """A partial schedule.

    Parameters
    ----------
    problem : Problem
    insertion : bool
        Whether ops may go into gaps; otherwise only after the ops already there.
    """

    def __init__(self, problem: Problem, insertion: bool = True) -> None:
        self.problem = problem
        n = problem.n
        self._timelines = [FreeTime(device.lanes, insertion) for device in problem.machine.devices]
        self._device_of_group: dict[int, int] = {}
        self._device, self._lane, self._start, self._end = ([-1] * n for _ in range(4))

    def slots(self, op: int) -> list[Slot]:
        """Return the earliest slot on each device where `op` may run; its producers must be placed.

        Raises
        ------
        InfeasibleError
            If its inputs can reach none of them.
        """
        problem = self.problem
        fixed = problem.placed[op] if problem.placed else self._device_of_group.get(problem.group_of[op])
        slots = []
        for d in problem.devices_of[op] if fixed is None else [fixed]:
            ready = self._inputs_there_ns(op, d)
            if ready < NEVER:
                cost = problem.cost_ns[op][d]
                start, lane = self._timelines[d].earliest(ready, cost)
                slots.append(Slot(start + cost, d, start, lane))
        if not slots:
            name = problem.graph.op_names[op]
            message = f"no links lead from the inputs of op {name!r} to a device that can run it"
            raise InfeasibleError(message).about(name)
        return slots

    def _inputs_there_ns(self, op: int, device: int) -> int:
        problem = self.problem
        ready = 0
        for home, nbytes in problem.arrivals[op]:
            ready = max(ready, problem.travel_ns(home, device, nbytes))
        for producer, nbytes in problem.producers[op]:
            arrival = self._end[producer] + problem.travel_ns(self._device[producer], device, nbytes)
            ready = max(ready, arrival)
        return ready

    def put(self, op: int, slot: Slot) -> None:
        """Place `op` in `slot`; this fixes the device of every op colocated with it."""
        self._device_of_group[self.problem.group_of[op]] = slot.device
        self._device[op], self._lane[op] = slot.device, slot.lane
        self._start[op], self._end[op] = slot.start_ns, slot.end_ns
        self._timelines[slot.device].take(slot.start_ns, slot.end_ns - slot.start_ns, slot.lane)

    def put_all(self, ops: Iterable[int]) -> ListSchedule:
        """Place `ops` in this order (producers first), each where it ends first; return the schedule."""
        for op in ops:
            self.put(op, min(self.slots(op)))
        return self.schedule()

    def schedule(self) -> ListSchedule:
        """Return the schedule; every op must be placed."""
        return ListSchedule(self._device, self._lane, self._start, self._end)


class ListPlacement(Placement):
    """Base of placements that build a schedule: subclasses define only `schedule`.

    Each is also a linearizer (the ops by start) and a stream assignment (the lanes), so that in a
    scenario an in-order policy can follow the schedule and not only its placement. In these roles
    the schedule is made for the placement that the job already has.
    """

    def schedule(self, problem: Problem) -> ListSchedule:
        """Return the schedule of `problem`."""
        raise InputError(f"{type(self).__name__} must define schedule()")

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`)."""
        return self.schedule(Problem(graph, machine, cost_ns)).device

    def order(self, job: Job) -> Sequence[int]:
        """Return the ops by their start in the schedule (see `sim.job.job.Linearizer`)."""
        return self.schedule(Problem.of_job(job)).order(job)

    def assign(self, job: Job) -> Sequence[int]:
        """Return the lane of every op in the schedule (see `sim.job.job.StreamAssignment`)."""
        return self.schedule(Problem.of_job(job)).lane


# ----------------------------------------------------------------------------------------------------------
# Upward and downward ranks: the mean length of the longest path to the end and from the start.
#
#     up(i)   = w(i) + max over consumers j of  c(i, j) + up(j)
#     down(i) =        max over producers h of  down(h) + w(h) + c(h, i)
#
# w is the mean cost over the devices and c the mean travel time over pairs of devices (Topcuoglu, Hariri and
# Wu 2002, equations 2, 3, 5 and 6). Ranks are exact fractions, so that ties are exact and break by the
# topological order: n3 and n4 of the paper's example both have 80, but in floating point n4 has more. HEFT's
# 80 depends on that tie only if equal finish times go to the last device: n4, placed first, ends at 26 on P2
# and P3; P3 leads to 86, while P2, the first and our choice, leads to 80 either way.


def upward_ranks(problem: Problem) -> list[Fraction]:
    """Return the upward rank of each op, in ns."""
    rank = [Fraction(0)] * problem.n
    for op in reversed(problem.graph.topological_order.tolist()):
        way = [problem.mean_travel_ns(nbytes) + rank[c] for c, nbytes in problem.consumers[op]]
        rank[op] = problem.mean_cost_ns(op) + max(way, default=Fraction(0))
    return rank


def downward_ranks(problem: Problem) -> list[Fraction]:
    """Return the downward rank of each op, in ns."""
    rank = [Fraction(0)] * problem.n
    for op in problem.graph.topological_order.tolist():
        way = [
            rank[p] + problem.mean_cost_ns(p) + problem.mean_travel_ns(nbytes)
            for p, nbytes in problem.producers[op]
        ]
        rank[op] = max(way, default=Fraction(0))
    return rank


class Heft(ListPlacement):
    """Ops by upward rank, each on the device where it finishes first, gaps included (HEFT).

    HEFT: heterogeneous earliest finish time.

    Topcuoglu, Hariri and Wu 2002, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 13(3), figure 3: ops by descending upward rank, each on the device
    where it ends first, using gaps between others if it fits. On the paper's ten tasks: 80.
    """

    def schedule(self, problem: Problem) -> ListSchedule:
        """Return the HEFT schedule."""
        rank = upward_ranks(problem)
        order = sorted(range(problem.n), key=lambda op: (-rank[op], problem.topological_rank[op]))
        return PartialSchedule(problem).put_all(order)


class Cpop(ListPlacement):
    """The critical path on the device that runs it fastest, every other op where it finishes first (CPOP).

    CPOP: the critical path on one processor.

    Topcuoglu, Hariri and Wu 2002 (TPDS 13(3)), figure 4: an op's priority is its upward plus its downward
    rank. The ops of a critical path all go to the device that runs them fastest, the others where they end
    first; of the ready ops the one with the highest priority is next. On the paper's ten tasks: 86.
    """

    def schedule(self, problem: Problem) -> ListSchedule:
        """Return the CPOP schedule."""
        up = upward_ranks(problem)
        priority = [a + b for a, b in zip(up, downward_ranks(problem), strict=True)]
        path = _critical_path(problem, up)
        device = _fastest(problem, path)
        on_path = set(path)
        builder = PartialSchedule(problem)
        for op in least_first(problem.graph.dag(), [-p for p in priority]):
            slots = builder.slots(op)
            preferred = [slot for slot in slots if slot.device == device] if op in on_path else []
            builder.put(op, min(preferred or slots))
        return builder.schedule()


def _critical_path(problem: Problem, up: list[Fraction]) -> list[int]:
    """Return the ops of the longest source-to-sink path of mean costs and travel times."""
    sources = [op for op in range(problem.n) if not problem.producers[op]]
    current = max(sources, key=lambda op: (up[op], -op))
    path = [current]
    while problem.consumers[current]:
        ways = [(problem.mean_travel_ns(nbytes) + up[c], -c) for c, nbytes in problem.consumers[current]]
        current = -max(ways)[1]
        path.append(current)
    return path


def _fastest(problem: Problem, path: list[int]) -> int:
    """Return the device that can run most of `path`, and among those the fastest."""

    def cost(d: int) -> tuple[int, int]:
        able = [op for op in path if d in problem.devices_of[op]]
        return len(path) - len(able), sum(problem.cost_ns[op][d] for op in able)

    return min(range(problem.n_devices), key=cost)


class Peft(ListPlacement):
    """Each op where it and what follows would finish first, by an optimistic cost table (PEFT).

    PEFT: predict earliest finish time, with a table of the cost of everything downstream.

    Arabnejad and Barbosa 2014, "List scheduling algorithm for heterogeneous systems by an optimistic cost
    table", IEEE TPDS 25(3). The table is the shortest possible time to the end after op i on device d:

        oct(i, d) = max over consumers j of  min over devices e of  oct(j, e) + w(j, e) + (c(i, j) if e ≠ d)

    Of the ready ops, the one with the highest row mean is next, on the device where its finish time plus
    the table's entry is least: a device that is good now but bad for later ops loses.
    """

    def schedule(self, problem: Problem) -> ListSchedule:
        """Return the PEFT schedule."""
        table = optimistic_costs(problem)
        rank = [Fraction(sum(row.values())) / len(row) for row in table]
        builder = PartialSchedule(problem)
        for op in least_first(problem.graph.dag(), [-r for r in rank]):
            row = table[op]
            builder.put(op, min(builder.slots(op), key=lambda slot: (slot.end_ns + row[slot.device], slot)))
        return builder.schedule()


def optimistic_costs(problem: Problem) -> list[dict[int, Fraction]]:
    """Return, per op and device that may run it, the least ns from its end to the end of the graph."""
    table: list[dict[int, Fraction]] = [{} for _ in range(problem.n)]
    for op in reversed(problem.graph.topological_order.tolist()):
        # Per consumer: the time of it and everything after it, on each device and on the best device.
        ways = []
        for c, nbytes in problem.consumers[op]:
            stay = {e: table[c][e] + problem.cost_ns[c][e] for e in table[c]}
            ways.append((stay, min(stay.values()) + problem.mean_travel_ns(nbytes)))
        for d in problem.devices_of[op]:
            costs = [min(stay.get(d, move), move) for stay, move in ways]
            table[op][d] = max(costs, default=Fraction(0))
    return table


class Greedy(ListPlacement):
    """Each op, in topological order, on the device where it would finish first.

    Greedy placement with a cost model, as TensorFlow's white paper describes it.

    Walk the graph from its sources; for each op and each device that can run it, estimate when it would
    finish there: when the device is free and the inputs have been copied to it, plus the op's cost.
    Take the device where that is least (Abadi et al. 2015, "TensorFlow: large-scale machine learning on
    heterogeneous distributed systems", section 3.2.1). It looks neither ahead nor back.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two ops, two devices")
    >>> for name in "ab":
    ...     _ = b.op(name, duration_by_kind={"cpu": 30, "gpu": 10})
    >>> machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0", "gpu")))
    >>> make_job(b.build(), machine, placement=Greedy()).device_of.tolist()
    [1, 1]
    """

    def schedule(self, problem: Problem) -> ListSchedule:
        """Return the greedy schedule."""
        return PartialSchedule(problem, insertion=False).put_all(problem.graph.topological_order.tolist())
