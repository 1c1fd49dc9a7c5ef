"""The executed critical path: the chain of causes that leads from time 0 to the makespan.

From the last end, step back to whatever let it start no earlier, again and again::

    task d         ◄─ its last input          transfer of c   ◄─ its tensor        task c
    task c         ◄─ the lane before it      task b          ◄─ its launch        issue of b
    issue of b     ◄─ the host was busy       issue of a      ◄─ time 0

The steps touch one another and cover ``[0, makespan]`` without gap or overlap. Shorten something on
this path, and the run may become shorter; anything else is not worth looking at.

Where several causes end at the same instant, data comes first, then the lane, then the issuer.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from sim.explain.derived_columns import Facts
from sim.record.record import Record, Wait
from sim.words.arrays import UNSET
from sim.words.errors import InvariantError

__all__ = ["Step", "executed_path"]


class Step(NamedTuple):
    """One link of the path.

    Attributes
    ----------
    kind : str
        ``"task"``, ``"transfer"``, ``"issue"`` or ``"wait"``.
    reason : str
        For a wait, one of `sim.explain.idle.REASONS`; else empty.
    row : int
        The task (or ``len(trace) + `` the transfer) that executes, travels, is issued or waits.
    start_ns, end_ns : int
    """

    kind: str
    reason: str
    row: int
    start_ns: int
    end_ns: int


def executed_path(trace: Record, facts: Facts | None = None) -> list[Step]:
    """Return the path in order of time; a run of no length has an empty one.

    Parameters
    ----------
    trace : Trace
    facts : Facts, optional
        Of this trace, when the caller has them already.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("chain")
    >>> for name, inputs in {"a": [], "b": ["a"]}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=10)
    >>> device = Device("gpu0", issue_ns=2, launch_latency_ns=3)
    >>> for step in executed_path(simulate(b.build(), Machine((device,)), ReadyQueue())):
    ...     print(step.start_ns, step.end_ns, step.kind, step.reason, step.row)
    0 2 issue  0
    2 5 wait launch 0
    5 15 task  0
    15 17 issue  1
    17 20 wait launch 1
    20 30 task  1
    """
    return _Walk(facts or Facts(trace)).back()


class _Walk:
    """Walks back in time. A place is (row, whether its execution, not its issue, has to be explained)."""

    def __init__(self, facts: Facts) -> None:
        f = self.f = facts
        moved = f.trace.transfers
        self.steps: list[Step] = []
        # Lists, because a walk reads single entries.
        self.start = np.concatenate((f.start, moved["start_ns"])).tolist()
        self.end, self.data = f.row_end.tolist(), f.data.tolist()
        self.last_producer = f.last_producer.tolist()
        self.ready, self.issue = f.ready.tolist(), f.issue.tolist()
        self.cost, self.calls, self.taken = f.cost.tolist(), f.calls.tolist(), f.taken.tolist()
        self.by_worker, self.wait = f.by_worker.tolist(), f.wait.tolist()
        self.keeps_issuer = f.keeps_issuer.tolist()
        self.lane_end, self.launch_end = f.lane_end.tolist(), f.launch_end.tolist()
        self.before_on_lane = f.before_on_lane.tolist()
        self.before_at_issuer, self.let_go = f.before_at_issuer.tolist(), f.let_go.tolist()
        self.latency = [d.launch_latency_ns for d in f.devices]
        self.device = f.device.tolist()

    def back(self) -> list[Step]:
        """Walk from the makespan to time 0."""
        if not self.end or max(self.end) == 0:
            return []
        place: tuple[int, bool] | None = (self.end.index(max(self.end)), True)
        seen = set()
        while place is not None:
            if place in seen:
                raise InvariantError(f"row {place[0]} is its own cause at {self.end[place[0]]} ns")
            seen.add(place)
            row, executes = place
            if row >= self.f.n:
                place = self.transfer(row)
            elif executes:
                place = self.worker(row) if self.by_worker[row] else self.launched(row)
            else:
                place = self.issued(row)
        self.steps.reverse()
        return [step for step in self.steps if step.end_ns > step.start_ns]

    def add(self, kind: str, row: int, start_ns: int, end_ns: int, reason: str = "") -> None:
        self.steps.append(Step(kind, reason, row, start_ns, end_ns))

    def producer(self, row: int) -> tuple[int, bool] | None:
        """Go to the last producer; without any, the path is at its beginning."""
        return None if self.last_producer[row] == UNSET else (self.last_producer[row], True)

    # -- places -------------------------------------------------------------------------------

    def worker(self, row: int) -> tuple[int, bool] | None:
        """Go back from a task that a worker executed, or a dead one that was passed by."""
        self.add("task", row, self.start[row], self.end[row])
        called = self.issue[row] + self.calls[row]
        paid = called + self.cost[row]
        if self.start[row] > paid:
            other = self.task_that_ended(self.device[row], self.start[row])
            if other is not None:
                return other, True
            self.add("wait", row, paid, self.start[row], self.shortage(row))
        self.add("issue", row, called, paid)
        self.add("wait", row, self.issue[row], called, "memory")
        return self.taking(row)

    def launched(self, row: int) -> tuple[int, bool] | None:
        """Go back from a task that was launched on a stream."""
        start, data, lane = self.start[row], self.data[row], self.lane_end[row]
        self.add("task", row, start, self.end[row])
        bound = max(data, self.launch_end[row])
        if start > bound:
            hop = self.f.devices[self.device[row]].event_ns
            if hop and data + hop == start:
                self.add("wait", row, data, start, "event")
                return self.producer(row)
            other = self.task_that_ended(self.device[row], start)
            if other is not None:
                return other, True
            self.add("wait", row, bound, start, self.shortage(row))
        if data == bound and self.last_producer[row] != UNSET:
            return self.producer(row)
        launch = self.issue[row] + self.latency[self.device[row]]
        if self.before_on_lane[row] != UNSET and launch < bound:
            self.add("wait", row, lane, bound, "launch")
            return self.before_on_lane[row], True
        self.add("wait", row, self.issue[row], launch, "launch")
        return row, False

    def issued(self, row: int) -> tuple[int, bool] | None:
        """Go back from the moment at which a task was put on its stream."""
        called = self.issue[row] - self.cost[row]
        paid_from = called - self.calls[row]
        if self.taken[row] < paid_from:  # it was blocked until somebody made room
            starved = self.wait[row] == Wait.MEMORY
            other = self.task_that_ended(self.device[row], paid_from if starved else self.issue[row])
            if other is not None:
                if starved:
                    self.paying(row, paid_from, called)
                return other, True
        self.paying(row, paid_from, called)
        blocked = "memory" if self.wait[row] == Wait.MEMORY else "issue"
        self.add("wait", row, self.taken[row], paid_from, blocked)
        return self.taking(row)

    def paying(self, row: int, paid_from: int, called: int) -> None:
        """Put down what the issuer of a launched task spent on it: on calls for memory, then on the issue."""
        self.add("issue", row, called, self.issue[row])
        self.add("wait", row, paid_from, called, "memory")

    def taking(self, row: int) -> tuple[int, bool] | None:
        """Go back from the moment at which an issuer took a task."""
        before = self.before_at_issuer[row]
        free_since = 0 if before == UNSET else self.let_go[before]
        ready = self.ready[row]
        bound = max(ready, free_since)
        copied = self.copy_that_ended(row) if self.taken[row] > bound else None
        if copied is not None:
            return copied, True
        self.add("wait", row, bound, self.taken[row], "policy")
        if bound == 0:
            return None
        if bound > ready:
            return before, self.keeps_issuer[before]
        if self.data[row] == ready:
            return self.producer(row)
        # It was ready when its last producer was issued; or had ended, where one of the two is a worker's.
        for producer in self.f.producers.row(row).tolist():
            for cause in (producer, self.last_producer[producer] if producer >= self.f.n else producer):
                if cause != UNSET and self.end[cause] == ready:
                    return cause, True
                if 0 <= cause < self.f.n and not self.by_worker[cause] and self.issue[cause] == ready:
                    return cause, False
        self.add("wait", row, 0, ready, "dependency")
        return None

    def transfer(self, row: int) -> tuple[int, bool] | None:
        """Go back from a transfer: to its tensor, or to the transfer that held one of its links."""
        start, made = self.start[row], self.data[row]
        self.add("transfer", row, start, self.end[row])
        if start > made:
            other = self.transfer_that_ended(row, start)
            if other is not None:
                return other, True
            self.add("wait", row, made, start, "transfer")
        return self.producer(row)

    # -- who made room ------------------------------------------------------------------------

    def shortage(self, row: int) -> str:
        """Return what a task waited for that was issued, and had its data, its lane and its launch."""
        if self.wait[row] == Wait.MEMORY:
            return "memory"
        return "resources" if self.by_worker[row] or self.wait[row] == Wait.RESOURCES else "event"

    def task_that_ended(self, device: int, time_ns: int) -> int | None:
        """Return a task of a device that took some time and ended at an instant."""
        times, rows = self.f.ends_by_device[device]
        k = bisect_right(times, time_ns) - 1
        return rows[k] if k >= 0 and times[k] == time_ns else None

    def copy_that_ended(self, row: int) -> int | None:
        """Return a transfer that the host of a task made itself until it took the task."""
        f = self.f
        if (f.copied_by < 0).all():
            return None
        group = f.issuers[int(f.issuer[row])].group
        ended = np.flatnonzero((f.copied_by == group) & (f.trace.transfers["end_ns"] == self.taken[row]))
        return f.n + int(ended[0]) if len(ended) else None

    def transfer_that_ended(self, row: int, time_ns: int) -> int | None:
        """Return a transfer that took some time, ended at an instant, and met this one on its way."""
        f = self.f
        times, rows = f.ends_of_transfers
        way = f.way(row - f.n)
        k = bisect_right(times, time_ns) - 1
        while k >= 0 and times[k] == time_ns:
            if way & f.way(rows[k]):
                return f.n + rows[k]
            k -= 1
        return None
