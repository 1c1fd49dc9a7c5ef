"""Communicators in a run: collectives queue, ranks meet, and all end at one instant.

::

    gpu0   a0 [ waits . . . . ######## ]    b0 is issued: it starts when a0, before it in line, has ended
    gpu1            a1        [ ######## ]
                              │        └ end of all: the meeting plus the longest duration of a member
                              └ the meeting: the last rank starts

A rank that may start does start: it then holds its stream and its other resources while it waits for the
others, as NCCL's kernels do (`sim.job.collectives` defines *line*, *party*, *meeting* and *group*).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from sim.base.arrays import UNSET
from sim.base.errors import GraphError, StuckError, list_names
from sim.engine.breakdowns import Breakdowns
from sim.job.collectives import Collectives, call_of, describe_collective
from sim.job.context import Context
from sim.job.job import Job
from sim.machine.communicators import CarriedCollectives, CollectiveCarrier
from sim.machine.links import Network
from sim.machine.task import Task


class Communicators:
    """The communicators of a run.

    Parameters
    ----------
    context : Context
        The run.
    collectives : Collectives
        The collectives of its job.
    network : Network, optional
        The network that carries messages, if it is needed.
    breakdowns : Breakdowns, optional
        The devices that have failed.
    """

    def __init__(
        self,
        context: Context,
        collectives: Collectives,
        network: Network | None = None,
        breakdowns: Breakdowns | None = None,
    ) -> None:
        self._breakdowns, job = breakdowns, context.job
        self._job, self._c, self._context = job, collectives, context
        self._carrier: CollectiveCarrier | None = None
        model = job.machine.collectives
        if isinstance(model, CarriedCollectives) and job.carried.any():
            self._carrier = model.carrier(job.machine, context, network)
        self._entry = {op: k for k, op in enumerate(collectives.op.tolist())}
        _refuse_shared_streams(job, collectives)
        self._issued = [0] * len(collectives.party_of_seat)  # number issued from each seat
        self._in_line: list[deque[Task]] = [deque() for _ in range(1 + int(collectives.line.max()))]
        self._refused: set[int] = set()  # ids of tasks that are not first in line
        # Of each meeting: the op that was issued before all others, and those that have started.
        self._meetings: dict[tuple[int, int], tuple[Task, list[Task]]] = {}
        self._meeting_of: dict[int, tuple[int, int]] = {}

    def on_issue(self, task: Task) -> None:
        """Append an issued task to its line.

        Raises
        ------
        StuckError
            The task does not match the one it meets.
        """
        entry = self._entry[task.op]
        if self._breakdowns is not None:
            self._breakdowns.watch_collective(task)
        self._in_line[self._c.line[entry]].append(task)
        seat = self._c.seat[entry]
        key = self._c.party[entry], self._issued[seat]
        self._issued[seat] += 1
        self._meeting_of[task.id] = key
        first, _ = self._meetings.setdefault(key, (task, []))
        if self._c.signature[self._entry[first.op]] != self._c.signature[entry]:
            raise self._mismatch(first, task, key[1])

    def may_start(self, task: Task) -> bool:
        """Whether a task, or its group call, is first in line; if not, `leave` later returns it."""
        if self._is_first(task):
            return True
        self._refused.add(task.id)
        return False

    def _is_first(self, task: Task) -> bool:
        entry = self._entry[task.op]
        call, seat = self._call(task), self._c.seat[entry]
        for ahead in self._in_line[self._c.line[entry]]:
            if ahead is task:
                break
            if self._call(ahead) != call or self._c.seat[self._entry[ahead.op]] == seat:
                return False
        return True

    def _call(self, task: Task) -> tuple[int, int]:
        """Return the key shared by all tasks of one group call."""
        group = self._c.group[self._entry[task.op]]
        return (UNSET, task.id) if group == UNSET else (group, task.iteration)

    def on_start(self, task: Task) -> None:
        """Let a started task wait for the others; the last one begins the transfer."""
        _, present = self._meetings[self._meeting_of[task.id]]
        present.append(task)
        if len(present) == len(self._c.members[self._c.party[self._entry[task.op]]]):
            entries = [self._entry[one.op] for one in present]
            if self._carrier is not None and self._job.carried[entries].all():
                call = call_of(self._job.graph, self._c, entries[0])
                self._carrier.begin(call, lambda: self._finish_all(present))
                return
            ops, iterations = np.array([(one.op, one.iteration) for one in present]).T
            now_ns, ns = self._context.now_ns, self._job.task_ns(ops, iterations)
            end_ns = now_ns + int(ns.max())
            if (conditions := self._context.conditions) is not None:
                ranks = zip(self._ranks(present), ns.tolist(), strict=True)
                end_ns = max(conditions.end_ns(device, now_ns, rank_ns) for device, rank_ns in ranks)
            self._context.call_at(end_ns, self._finish_all, present)

    def _finish_all(self, tasks: list[Task]) -> None:
        if self._breakdowns is not None and self._breakdowns.is_any_lost(self._ranks(tasks)):
            return  # a rank is gone, and the others wait for it
        for task in tasks:
            self._context.finish(task)

    def _ranks(self, tasks: list[Task]) -> list[int]:
        return [int(self._job.device_of[task.op]) for task in tasks]

    def leave(self, task: Task) -> list[Task]:
        """Remove an ended task from its line; return the tasks that it was holding up."""
        self._meetings.pop(self._meeting_of.pop(task.id), None)
        line = self._in_line[self._c.line[self._entry[task.op]]]
        line.remove(task)  # it is among the first
        freed: list[Task] = []
        for one in line:
            if self._call(one) != self._call(line[0]):
                break
            if one.id in self._refused and self._is_first(one):
                self._refused.remove(one.id)
                freed.append(one)
        return freed

    # -- what went wrong -----------------------------------------------------------------------

    def lacks(self) -> dict[int, str]:
        """Return, for each task id that waits for other ranks or in line, what it waits for."""
        waits, devices = {}, self._job.machine.devices
        for (party, _), (_, present) in self._meetings.items():
            ranks = set(self._ranks(present))
            absent = [devices[d].name for d in self._c.members[party] if d not in ranks]
            for task in present if absent else ():
                waits[task.id] = f"{list_names(absent, 3)} on communicator {self._name(task)!r}"
        for line in self._in_line:
            for ahead, task in zip(line, list(line)[1:], strict=False):
                if self._is_first(task):
                    continue
                where = f"before it on communicator {self._name(task)!r}"
                waits[task.id] = f"{self._describe(ahead)}, which is {where}"
        return waits

    def _name(self, task: Task) -> str:
        return self._c.names[int(self._c.communicator[self._entry[task.op]])]

    def _describe(self, task: Task) -> str:
        suffix = f"[{task.iteration}]" if self._job.iterations > 1 else ""
        return f"{self._job.graph.op_names[task.op]}{suffix}"

    def _mismatch(self, first: Task, task: Task, number: int) -> StuckError:
        devices, graph = self._job.machine.devices, self._job.graph

        def one(member: Task) -> str:
            call = describe_collective(graph, member.op, int(self._c.nbytes[self._entry[member.op]]))
            return f"{devices[int(self._job.device_of[member.op])].name} issues {call}"

        return StuckError(
            f"ranks of communicator {self._name(task)!r} issue collectives in different orders: as number "
            f"{number} of those that meet, {one(first)}, and {one(task)}"
        )


def _refuse_shared_streams(job: Job, c: Collectives) -> None:
    """Raise if two ops of a group call are on one stream: they could not run side by side."""
    streams, workers = job.stream_of, [device.workers for device in job.machine.devices]
    first_ops: dict[tuple[int, int, int], int] = {}
    for entry, group in enumerate(c.group.tolist()):
        op = int(c.op[entry])
        if group == UNSET or workers[int(c.device[entry])]:
            continue
        first = first_ops.setdefault((int(c.line[entry]), group, int(streams[op])), op)
        if first != op:
            names = job.graph.op_names
            message = f"{names[first]!r} and {names[op]!r} are one group call, and on one stream"
            advice = "put each on a stream of its own (policy.streams: recorded, and the attribute stream)"
            raise GraphError(f"{message}; {advice}").about(names[op], "group")
