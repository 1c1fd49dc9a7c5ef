"""A schedule that a search can change: an order of the ops, and a device and a stream for each.

::

    order     a b d c e        d moves ──► a d b c e      within what its edges allow
    device    0 0 1 0 1        c moves ──► another that can run it
    stream    0 0 0 1 0        e moves ──► another of its device

An issuer takes the first ready op in the order (list scheduling, `OutOfOrder` without a window).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.placement.problem import Problem
from scenarios.run.execute import Result
from scenarios.workloads.pipeline_report import is_compute
from sim.base.arrays import group_pairs
from sim.base.errors import InputError
from sim.job.job import Job
from sim.trace import Trace


@dataclass(frozen=True)
class SearchSchedule:
    """A schedule as a search changes it.

    Attributes
    ----------
    order : tuple of int
        The ops, first to last.
    device, lane : tuple of int
        For each op, the index of its device and the number of its stream within that device.
    """

    order: tuple[int, ...]
    device: tuple[int, ...]
    lane: tuple[int, ...]

    @classmethod
    def of(cls, trace: Trace) -> SearchSchedule:
        """Return the schedule of a run: its ops in the order in which they were issued."""
        tasks, job = trace.tasks, trace.job
        by_issue = np.lexsort((tasks["start_ns"], tasks["issue_ns"]))
        order = dict.fromkeys(tasks["op"][by_issue].tolist())
        order |= dict.fromkeys(range(len(job.graph)))  # ops that never ran
        first = np.array(job.machine.first_stream)
        lane = np.maximum(job.stream_of - first[job.device_of], 0)
        return cls(tuple(order), tuple(job.device_of.tolist()), tuple(lane.tolist()))

    def by_host(self, job: Job) -> SearchSchedule:
        """Return the schedule with the ops of each host together; how hosts interleave has no effect."""
        order = np.array(self.order)
        host = job.groups_that_serve(np.array(self.device), job.process_of)[order]
        return replace(self, order=tuple(order[np.argsort(host, kind="stable")].tolist()))

    def assign(self, job: Job) -> Sequence[int]:
        """Return the streams, as a decision (`sim.job.job.StreamAssignment`)."""
        return self.lane


@dataclass(frozen=True)
class ListedOrder:
    """A program order that is a list of numbers (`sim.job.job.Linearizer`)."""

    ops: Sequence[int]

    def order(self, job: Job) -> Sequence[int]:
        """Return the ops."""
        return self.ops


def refuse_decided(result: Result) -> None:
    """Raise if orders of a run mean nothing: a batcher made its steps, or places among slots count.

    Raises
    ------
    InputError
        It is so, or devices would run several slots of a pipeline at once.
    """
    if result.case.decisions.schedule is None:
        return
    job, text = result.trace.job, f"the best order of {result.scenario!r} cannot be searched for: "
    if "serving" in result.numbers:
        message = "its steps are what its batcher decided; `sim whatif` tries other batchers and numbers"
        raise InputError(f"{text}{message}")
    if others := [kind for kind in job.graph.kinds if kind != "collective" and not is_compute(kind)]:
        message = f"{others[0]} has its place among slots; leave out what surrounds the schedule"
        raise InputError(f"{text}{message}")
    devices = [job.machine.devices[device] for device in np.unique(job.device_of).tolist()]
    if several := [device.name for device in devices if not device.workers and device.lanes > 1]:
        raise InputError(f"{text}a rank runs one slot at a time, and {several[0]} has streams for more")


class Space:
    """The space of schedules of a job, as changes of a schedule.

    Parameters
    ----------
    job : Job
    problem : Problem, optional
        Possible devices of the ops; without it they stay on their devices.
    """

    def __init__(self, job: Job, problem: Problem | None = None) -> None:
        self.problem, dag = problem, job.graph.dag()
        self.before, self.after = dag.predecessors, dag.successors
        self.lanes = [1 if device.workers else device.lanes for device in job.machine.devices]
        group_of = range(len(job.graph)) if problem is None else problem.group_of
        self.members = group_pairs((group, op) for op, group in enumerate(group_of))  # these move together
        self.devices = [[int(device)] for device in job.device_of] if problem is None else problem.devices_of
        self.movable = [group for group in self.members if len(self.devices[group]) > 1]

    def neighbours(
        self, schedule: SearchSchedule, rng: random.Random
    ) -> Iterator[tuple[str, SearchSchedule]]:
        """Yield changed schedules, and what was changed; ends if almost nothing can be changed."""
        n = len(schedule.order)
        for _ in range(100 * n):
            op = rng.randrange(n)
            kind = rng.random()
            if kind < 0.25 and self.movable:
                group = rng.choice(self.movable)
                current = schedule.device[group]
                device = rng.choice([other for other in self.devices[group] if other != current])
                if rng.random() > self._gain(group, current, device):
                    continue
                lane = rng.randrange(self.lanes[device])
                moved = schedule
                for op in self.members[group]:
                    moved = replace(
                        moved, device=_with(moved.device, op, device), lane=_with(moved.lane, op, lane)
                    )
                yield "device", moved
            elif kind < 0.55 and self.lanes[schedule.device[op]] > 1:
                lane = rng.randrange(self.lanes[schedule.device[op]])
                if lane != schedule.lane[op]:
                    yield "stream", replace(schedule, lane=_with(schedule.lane, op, lane))
            elif (order := self._move(schedule.order, op, rng)) is not None:
                yield "order", replace(schedule, order=order)

    def _gain(self, group: int, device: int, target: int) -> float:
        """Return the speed-up of an op on the device `target`: a slow device deserves fewer trials."""
        assert self.problem is not None
        costs = self.problem.cost_ns[group]
        return costs[device] / costs[target] if costs[target] else 1.0

    def _move(self, order: Sequence[int], op: int, rng: random.Random) -> tuple[int, ...] | None:
        """Return the order with an op moved between its last producer and its first consumer, or None."""
        positions = {other: k for k, other in enumerate(order)}
        index = positions[op]
        first = max((positions[p] + 1 for p in self.before[op]), default=0)
        last = min((positions[successor] - 1 for successor in self.after[op]), default=len(order) - 1)
        if last <= first:
            return None
        target = rng.randrange(first, last + 1)
        if target == index:
            return None
        moved = [other for other in order if other != op]
        moved.insert(target, op)
        return tuple(moved)


def _with(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])
