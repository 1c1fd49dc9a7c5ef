"""The executed critical path: the chain of causes that leads from time 0 to the makespan.

From the last end, step back, again and again, to whatever kept it from starting earlier::

    task d         ◄─ its last input          transfer of c   ◄─ its tensor        task c
    task c         ◄─ the lane before it      task b          ◄─ its launch        issue of b
    issue of b     ◄─ the host was busy       issue of a      ◄─ time 0

The steps adjoin and cover ``[0, makespan]`` without gap or overlap. Shortening a step on this path may
shorten the run. So may shortening one off the path, if it shares a link, or if other times make the policy
choose another order.

If several causes end at the same instant, data comes first, then the lane, then the issuer.

A policy that held a task back, as program order does behind an instruction that is not ready, was asked again
when something happened. The path goes on there: to what the task taken just before waited for, else to the
task that ended, or was issued, at that instant.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET
from sim.base.errors import InvariantError
from sim.explain.derived import DerivedColumns
from sim.graph.failures import ABORTED
from sim.record.record import SAID, WAITS, Record, Wait

_Place = tuple[int, bool]
"""A row, and whether its execution has to be explained (otherwise its issue)."""
_READ: Final = (
    *("row_start", "row_end", "data", "last_producer", "device", "wait", "by_worker", "keeps_issuer"),
    *("ready", "taken", "calls", "cost", "issue", "let_go", "before_at_issuer"),
    *("released", "before_on_lane", "lane_end", "launch_end", "begins", "met_last", "before_in_line"),
)


class PathStep(NamedTuple):
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


def executed_path(what: Record | DerivedColumns, last: int | None = None) -> list[PathStep]:
    """Return the path in order of time; empty for a run of no length.

    Parameters
    ----------
    what : Trace or DerivedColumns
    last : int, optional
        The row that the path leads to; by default the one that ended last.

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
    return _Walk(DerivedColumns.of(what)).back(last)


class _Walk:
    """Walks back in time along the path."""

    def __init__(self, f: DerivedColumns) -> None:
        self.f = f
        # As lists, because a walk reads single entries.
        self.at = SimpleNamespace(**{name: getattr(f, name).tolist() for name in _READ})
        self.steps: list[PathStep] = []
        self.seen: set[_Place] = set()

    def back(self, last: int | None) -> list[PathStep]:
        """Walk from the end of a row, by default the makespan, to time 0."""
        at, f = self.at, self.f
        if not f.row_end.any():
            return []
        place: _Place | None = (int(f.row_end.argmax()) if last is None else last, True)
        while place is not None:
            if place in self.seen:
                raise InvariantError(f"row {place[0]} is its own cause at {at.row_end[place[0]]} ns")
            self.seen.add(place)
            row, executes = place
            if row >= f.n:
                place = self.transfer(row)
            elif executes:
                self.add("task", row, at.begins[row], at.row_end[row])
                reason, begins = "unexplained" if f.trace.is_delay[row] else "late rank", at.begins[row]
                row = at.met_last[row]  # a collective begins when the last of its ranks starts
                self.add("wait", row, at.row_start[row], begins, reason)  # a delay, or a rank that never came
                place = self.worker(row) if at.by_worker[row] else self.back_from_launch(row)
            else:
                place = self.back_from_issue(row)
        return self.steps[::-1]

    def add(self, kind: str, row: int, start_ns: int, end_ns: int, reason: str = "") -> None:
        if end_ns > start_ns:
            self.steps.append(PathStep(kind, reason, row, start_ns, end_ns))

    def producer(self, row: int) -> _Place | None:
        """Go to the last producer; without any, the path is at its beginning."""
        last = self.at.last_producer[row]
        return None if last == UNSET else (last, True)

    # -- places -------------------------------------------------------------------------------

    def worker(self, row: int) -> _Place | None:
        """Go back from a task that a worker executed, or a dead one that was passed over."""
        at = self.at
        called = at.issue[row] + at.calls[row]
        paid = called + at.cost[row]
        if at.row_start[row] > paid:
            asked = self.f.trace.alone[row] and at.data[row] == at.row_start[row]
            if asked and at.last_producer[row] != UNSET:  # a Recv that was taken before anything was sent
                return self.producer(row)
            if (freed := self.back_from_wait(row, paid)) is not None:
                return freed
        self.add("issue", row, called, paid)
        self.add("wait", row, at.issue[row], called, "memory")
        return self.taking(row)

    def back_from_launch(self, row: int) -> _Place | None:
        """Go back from a task that was launched on a stream."""
        at, f = self.at, self.f
        start, data, lane = at.row_start[row], at.data[row], at.lane_end[row]
        device = f.devices[at.device[row]]
        bound = max(data, at.launch_end[row])
        if start > bound:
            if device.event_ns and data + device.event_ns == start:
                self.add("wait", row, data, start, "event")
                return self.producer(row)
            if (freed := self.back_from_wait(row, bound)) is not None:
                return freed
        if data == bound and at.last_producer[row] != UNSET:
            return self.producer(row)
        launch = at.issue[row] + device.launch_latency_ns
        if at.before_on_lane[row] != UNSET and launch < bound:
            self.add("wait", row, lane, bound, "launch")
            return at.before_on_lane[row], True
        self.add("wait", row, at.issue[row], launch, "launch")
        return row, False

    def back_from_issue(self, row: int) -> _Place | None:
        """Go back from the moment when a task was put on its stream."""
        at = self.at
        if self.f.trace.alone[row]:  # its issuer went on without it
            self.add("issue", row, at.issue[row], at.let_go[row])
            return self.taking(row)
        called = at.issue[row] - at.cost[row]
        paid_from = called - at.calls[row]
        if at.taken[row] < paid_from:  # it was blocked until another task made room
            starved = at.wait[row] == Wait.MEMORY
            other = self.f.task_that_ended(at.device[row], paid_from if starved else at.issue[row])
            if other != UNSET:
                if starved:
                    self.paying(row, paid_from, called)
                return other, True
        self.paying(row, paid_from, called)
        self.add("wait", row, at.taken[row], paid_from, "memory" if at.wait[row] == Wait.MEMORY else "issue")
        return self.taking(row)

    def paying(self, row: int, paid_from: int, called: int) -> None:
        """Record the time that the issuer of a launched task spent on it: memory calls, then the issue."""
        self.add("issue", row, called, self.at.issue[row])
        self.add("wait", row, paid_from, called, "memory")

    def taking(self, row: int) -> _Place | None:
        """Go back from the moment when an issuer took a task."""
        at, f = self.at, self.f
        before = at.before_at_issuer[row]
        free_since = 0 if before == UNSET else at.let_go[before]
        ready, taken = at.ready[row], at.taken[row]
        bound = max(ready, free_since)
        copied = self.copy_that_ended(row) if taken > bound else None
        if copied is not None:
            return copied, True
        if taken > bound:
            first, known = self.let_go_with(row), len(self.steps)
            if first is not None and (led_to := self.taking(first)) not in self.seen:
                return led_to
            del self.steps[known:]
            happened = self.asked_again(row)
            if happened is not None:
                return happened
            self.add("wait", row, bound, taken, "policy")
        if bound == f.restarted[row]:
            self.add("wait", row, 0, bound, "recovery")
            return None
        if bound > ready:
            return before, at.keeps_issuer[before] and not f.trace.alone[before]
        if at.data[row] == ready:
            return self.producer(row)
        if at.released[row] == ready:
            self.add("wait", row, 0, ready, "release")
            return None
        # It was ready when its last producer was issued, or had ended if one of the two is a worker's.
        for producer in f.producers.row(row).tolist():
            for cause in (producer, at.last_producer[producer] if producer >= f.n else producer):
                if cause != UNSET and at.row_end[cause] == ready:
                    return cause, True
                if 0 <= cause < f.n and not at.by_worker[cause] and at.issue[cause] == ready:
                    return cause, False
        self.add("wait", row, 0, ready, "dependency")
        return None

    def transfer(self, row: int) -> _Place | None:
        """Go back from a transfer: to its tensor, or to the transfer that held one of its links."""
        at = self.at
        start, made = at.row_start[row], at.data[row]
        self.add("transfer", row, start, at.row_end[row])
        if start > made:
            other = self.f.transfer_that_ended(row, start)
            if other != UNSET:
                return other, True
            self.add("wait", row, made, start, "transfer")
        return self.producer(row)

    # -- what a policy waited for -------------------------------------------------------------

    def let_go_with(self, row: int) -> int | None:
        """Return a task taken just before one that the policy held back, and not held back itself."""
        at, group = self.at, self.f.group
        for other in self.f.tasks_at("taken", at.taken[row], row):
            before = at.before_at_issuer[other]
            free_since = 0 if before == UNSET else at.let_go[before]
            if group[other] == group[row] and max(at.ready[other], free_since) == at.taken[row]:
                return other
        return None

    def asked_again(self, row: int) -> _Place | None:
        """Return what ended, or was issued, when a policy took a task that it had held back."""
        at, f = self.at, self.f
        ended = [other for other in f.ended_at(at.taken[row]) if (other, True) not in self.seen]
        fed = {at.last_producer[other] for other in f.tasks_at("taken", at.taken[row], f.n)}
        for found in (
            [other for other in ended if other in fed],
            [other for other in ended if other < f.n and f.group[other] == f.group[row]],
            ended,
        ):
            if found:
                return found[-1], True
        issued = f.tasks_at("issue", at.taken[row], row)
        places = ((other, False) for other in issued if not at.by_worker[other])
        return next((place for place in places if place not in self.seen), None)

    # -- tasks that made room -----------------------------------------------------------------

    def back_from_wait(self, row: int, since: int) -> _Place | None:
        """Return what ended at a task's start and so let it begin; if nothing did, note its wait."""
        at, before, start = self.at, self.at.before_in_line[row], self.at.row_start[row]
        in_line = before != UNSET and at.wait[row] == Wait.COMMUNICATOR
        if in_line and at.row_end[before] == start > at.begins[before]:
            return before, True
        other = self.f.made_room(row)
        if other != UNSET:
            return other, True
        self.add("wait", row, since, start, self.shortage(row))
        return None

    def shortage(self, row: int) -> str:
        """Return the reason of a wait after issue, data, lane and launch."""
        if self.f.trace.status[row] == ABORTED:
            return "dependency"
        if (wait := self.at.wait[row]) in SAID:
            return WAITS[wait]
        return "resources" if self.at.by_worker[row] else "event"

    def copy_that_ended(self, row: int) -> int | None:
        """Return a transfer that the host of a task made itself until it took the task."""
        at, f = self.at, self.f
        if (f.copied_by < 0).all():
            return None
        group = f.issuers[f.issuer[row]].group
        ended = np.flatnonzero((f.copied_by == group) & (f.trace.transfers["end_ns"] == at.taken[row]))
        return f.n + int(ended[0]) if len(ended) else None
