"""Schedules: what list placement produces, and the partial schedule that it grows op by op.

::

    Problem ──► Builder: one op after the other ──► Schedule
                                                    ├─ place   the device of every op
                                                    ├─ order   the ops by start: a program
                                                    └─ assign  the lane of every op
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policies.placement.lists.timeline import Timeline
from policies.placement.problem import NEVER, Problem
from sim import Graph, Job, Machine
from sim.job.job import Placement
from sim.words.arrays import IntArray
from sim.words.errors import InfeasibleError, InputError

__all__ = ["Builder", "ListPlacement", "Schedule", "Slot"]


@dataclass(frozen=True)
class Schedule(Placement):
    """A device, a lane and a time for every op. It is a placement, a linearizer and a stream assignment.

    The times are those of the placement's own model, in which transfers never meet; the simulator
    says what comes of it: ``simulate(graph, machine, InOrder(), placement=s, linearize=s, streams=s)``.

    Attributes
    ----------
    device, lane : list of int
        Where each op runs; lanes are counted within the device.
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
        """Return the ops by start, then end, then topological position: a program for each device."""
        place = np.argsort(job.graph.topological_order).tolist()
        return sorted(range(len(place)), key=lambda op: (self.start_ns[op], self.end_ns[op], place[op]))

    def assign(self, job: Job) -> Sequence[int]:
        """Return the lane of every op as its stream."""
        return self.lane


class Slot(NamedTuple):
    """Where and when an op could run; the least is the one that ends first, then the first device."""

    end_ns: int
    device: int
    start_ns: int
    lane: int


class Builder:
    """A partial schedule.

    Parameters
    ----------
    problem : Problem
    insertion : bool
        Whether ops may go into gaps, or only after what is there.
    """

    def __init__(self, problem: Problem, insertion: bool = True) -> None:
        self.problem = problem
        n = problem.n
        self._timelines = [Timeline(device.lanes, insertion) for device in problem.machine.devices]
        self._device_of_group: dict[int, int] = {}
        self._device, self._lane, self._start, self._end = ([-1] * n for _ in range(4))

    def slots(self, op: int) -> list[Slot]:
        """Return the earliest slot on each device where `op` may run; its producers are placed.

        Raises
        ------
        InfeasibleError
            Its inputs can reach none of them.
        """
        problem = self.problem
        fixed = problem.placed[op] if problem.placed else self._device_of_group.get(problem.group_of[op])
        found = []
        for d in problem.devices_of[op] if fixed is None else [fixed]:
            ready = self._inputs_there_ns(op, d)
            if ready < NEVER:
                cost = problem.cost_ns[op][d]
                start, lane = self._timelines[d].earliest(ready, cost)
                found.append(Slot(start + cost, d, start, lane))
        if not found:
            name = problem.graph.op_names[op]
            message = f"no links lead from the inputs of op {name!r} to a device that can run it"
            raise InfeasibleError(message).about(name)
        return found

    def _inputs_there_ns(self, op: int, device: int) -> int:
        problem = self.problem
        ready = 0
        for home, nbytes in problem.arrivals[op]:
            ready = max(ready, problem.travel_ns(home, device, nbytes))
        for producer, nbytes in problem.producers[op]:
            there = self._end[producer] + problem.travel_ns(self._device[producer], device, nbytes)
            ready = max(ready, there)
        return ready

    def put(self, op: int, slot: Slot) -> None:
        """Place `op` there; everything colocated with it follows."""
        self._device_of_group[self.problem.group_of[op]] = slot.device
        self._device[op], self._lane[op] = slot.device, slot.lane
        self._start[op], self._end[op] = slot.start_ns, slot.end_ns
        self._timelines[slot.device].take(slot.start_ns, slot.end_ns - slot.start_ns, slot.lane)

    def put_all(self, ops: Iterable[int]) -> Schedule:
        """Place `ops`, in this order (producers first), each where it ends first; return the schedule."""
        for op in ops:
            self.put(op, min(self.slots(op)))
        return self.schedule()

    def schedule(self) -> Schedule:
        """Return the schedule, every op being placed."""
        return Schedule(self._device, self._lane, self._start, self._end)


class ListPlacement(Placement):
    """Base of placements that build a schedule; they define `schedule`, the rest follows.

    Each is also a linearizer (the ops by start) and a stream assignment (the lanes), so that a
    scenario can let an in-order policy follow the schedule and not only its placement. Then the
    schedule is made for the placement that the job has, whoever made that.
    """

    def schedule(self, problem: Problem) -> Schedule:
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
