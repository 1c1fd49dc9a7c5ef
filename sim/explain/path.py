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
from sim.record.record import RECORDED_REASONS, WAITS, Record, Wait

_Cause = tuple[int, bool]
"""A row, and whether its execution has to be explained (otherwise its issue)."""
_COLUMNS: Final = (
    *("row_start", "row_end", "data", "last_producer", "device", "wait", "by_worker", "keeps_issuer"),
    *("ready", "taken", "calls", "cost", "issue", "issuer_done", "before_at_issuer"),
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


def executed_path(run: Record | DerivedColumns, last: int | None = None) -> list[PathStep]:
    """Return the path in order of time; empty for a run of no length.

    Parameters
    ----------
    run : Trace or DerivedColumns
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
    return _Walk(DerivedColumns.of(run)).back(last)


class _Walk:
    """Walks back in time along the path."""

    def __init__(self, f: DerivedColumns) -> None:
        self.f = f
        # As lists, because a walk reads single entries.
        self.col = SimpleNamespace(**{name: getattr(f, name).tolist() for name in _COLUMNS})
        self.steps: list[PathStep] = []
        self.seen: set[_Cause] = set()

    def back(self, last: int | None) -> list[PathStep]:
        """Walk from the end of a row, by default the makespan, to time 0."""
        col, f = self.col, self.f
        if not f.row_end.any():
            return []
        cause: _Cause | None = (int(f.row_end.argmax()) if last is None else last, True)
        while cause is not None:
            if cause in self.seen:
                raise InvariantError(f"row {cause[0]} is its own cause at {col.row_end[cause[0]]} ns")
            self.seen.add(cause)
            row, executes = cause
            if row >= f.n:
                cause = self.transfer(row)
            elif executes:
                self.add("task", row, col.begins[row], col.row_end[row])
                reason, begins = "unexplained" if f.trace.is_delay[row] else "late rank", col.begins[row]
                row = col.met_last[row]  # a collective begins when the last of its ranks starts
                self.add("wait", row, col.row_start[row], begins, reason)  # a delay, or an absent rank
                cause = self.worker(row) if col.by_worker[row] else self.back_from_launch(row)
            else:
                cause = self.back_from_issue(row)
        return self.steps[::-1]

    def add(self, kind: str, row: int, start_ns: int, end_ns: int, reason: str = "") -> None:
        if end_ns > start_ns:
            self.steps.append(PathStep(kind, reason, row, start_ns, end_ns))

    def producer(self, row: int) -> _Cause | None:
        """Go to the last producer; without any, the path is at its beginning."""
        last = self.col.last_producer[row]
        return None if last == UNSET else (last, True)

    # -- places -------------------------------------------------------------------------------

    def worker(self, row: int) -> _Cause | None:
        """Go back from a task that a worker executed, or a dead one that was passed over."""
        col = self.col
        called = col.issue[row] + col.calls[row]
        paid = called + col.cost[row]
        if col.row_start[row] > paid:
            waited = self.f.trace.alone[row] and col.data[row] == col.row_start[row]
            if waited and col.last_producer[row] != UNSET:  # a Recv that was taken before anything was sent
                return self.producer(row)
            if (freed := self.back_from_wait(row, paid)) is not None:
                return freed
        self.add("issue", row, called, paid)
        self.add("wait", row, col.issue[row], called, "memory")
        return self.taking(row)

    def back_from_launch(self, row: int) -> _Cause | None:
        """Go back from a task that was launched on a stream."""
        col, f = self.col, self.f
        start, data, lane = col.row_start[row], col.data[row], col.lane_end[row]
        device = f.devices[col.device[row]]
        bound = max(data, col.launch_end[row])
        if start > bound:
            if device.event_ns and data + device.event_ns == start:
                self.add("wait", row, data, start, "event")
                return self.producer(row)
            if (freed := self.back_from_wait(row, bound)) is not None:
                return freed
        if data == bound and col.last_producer[row] != UNSET:
            return self.producer(row)
        launch = col.issue[row] + device.launch_latency_ns
        if col.before_on_lane[row] != UNSET and launch < bound:
            self.add("wait", row, lane, bound, "launch")
            return col.before_on_lane[row], True
        self.add("wait", row, col.issue[row], launch, "launch")
        return row, False

    def back_from_issue(self, row: int) -> _Cause | None:
        """Go back from the moment when a task was put on its stream."""
        col = self.col
        if self.f.trace.alone[row]:  # its issuer went on without it
            self.add("issue", row, col.issue[row], col.issuer_done[row])
            return self.taking(row)
        called = col.issue[row] - col.cost[row]
        begin = called - col.calls[row]
        if col.taken[row] < begin:  # it was blocked until another task made room
            starved = col.wait[row] == Wait.MEMORY
            other = self.f.task_that_ended(col.device[row], begin if starved else col.issue[row])
            if other != UNSET:
                if starved:
                    self.paying(row, begin, called)
                return other, True
        self.paying(row, begin, called)
        self.add("wait", row, col.taken[row], begin, "memory" if col.wait[row] == Wait.MEMORY else "issue")
        return self.taking(row)

    def paying(self, row: int, paid_from: int, called: int) -> None:
        """Record the time that the issuer of a launched task spent on it: memory calls, then the issue."""
        self.add("issue", row, called, self.col.issue[row])
        self.add("wait", row, paid_from, called, "memory")

    def taking(self, row: int) -> _Cause | None:
        """Go back from the moment when an issuer took a task."""
        col, f = self.col, self.f
        before = col.before_at_issuer[row]
        free_since = 0 if before == UNSET else col.issuer_done[before]
        ready, taken = col.ready[row], col.taken[row]
        bound = max(ready, free_since)
        copied = self.copy_that_ended(row) if taken > bound else None
        if copied is not None:
            return copied, True
        if taken > bound:
            first, n_steps = self.taken_with(row), len(self.steps)
            if first is not None and (origin := self.taking(first)) not in self.seen:
                return origin
            del self.steps[n_steps:]
            event = self.cause_of_asking(row)
            if event is not None:
                return event
            self.add("wait", row, bound, taken, "policy")
        if bound == f.restarted[row]:
            self.add("wait", row, 0, bound, "recovery")
            return None
        if bound > ready:
            return before, col.keeps_issuer[before] and not f.trace.alone[before]
        if col.data[row] == ready:
            return self.producer(row)
        if col.released[row] == ready:
            self.add("wait", row, 0, ready, "release")
            return None
        # It was ready when its last producer was issued, or had ended if one of the two is a worker's.
        for producer in f.producers.row(row).tolist():
            for cause in (producer, col.last_producer[producer] if producer >= f.n else producer):
                if cause != UNSET and col.row_end[cause] == ready:
                    return cause, True
                if 0 <= cause < f.n and not col.by_worker[cause] and col.issue[cause] == ready:
                    return cause, False
        if f.trace.in_turn:  # a run begins when the one before it is over
            run = f.trace.of_rows("iteration")
            for other in f.ended_at(ready):
                if run[other] < run[row]:
                    return other, True
        self.add("wait", row, 0, ready, "dependency")
        return None

    def transfer(self, row: int) -> _Cause | None:
        """Go back from a transfer: to its tensor, or to the transfer that held one of its links."""
        col = self.col
        start, produced = col.row_start[row], col.data[row]
        self.add("transfer", row, start, col.row_end[row])
        if start > produced:
            other = self.f.transfer_that_ended(row, start)
            if other != UNSET:
                return other, True
            self.add("wait", row, produced, start, "transfer")
        return self.producer(row)

    # -- what a policy waited for -------------------------------------------------------------

    def taken_with(self, row: int) -> int | None:
        """Return a task taken just before one that the policy held back, and not held back itself."""
        col, group = self.col, self.f.group
        for other in self.f.tasks_at("taken", col.taken[row], row):
            before = col.before_at_issuer[other]
            free_since = 0 if before == UNSET else col.issuer_done[before]
            if group[other] == group[row] and max(col.ready[other], free_since) == col.taken[row]:
                return other
        return None

    def cause_of_asking(self, row: int) -> _Cause | None:
        """Return what ended, or was issued, when a policy took a task that it had held back."""
        col, f = self.col, self.f
        ended = [other for other in f.ended_at(col.taken[row]) if (other, True) not in self.seen]
        fed = {col.last_producer[other] for other in f.tasks_at("taken", col.taken[row], f.n)}
        for candidates in (
            [other for other in ended if other in fed],
            [other for other in ended if other < f.n and f.group[other] == f.group[row]],
            ended,
        ):
            if candidates:
                return candidates[-1], True
        issued = f.tasks_at("issue", col.taken[row], row)
        causes = ((other, False) for other in issued if not col.by_worker[other])
        return next((cause for cause in causes if cause not in self.seen), None)

    # -- tasks that made room -----------------------------------------------------------------

    def back_from_wait(self, row: int, since: int) -> _Cause | None:
        """Return what ended at a task's start and so let it begin; if nothing did, note its wait."""
        col, before, start = self.col, self.col.before_in_line[row], self.col.row_start[row]
        in_line = before != UNSET and col.wait[row] == Wait.COMMUNICATOR
        if in_line and col.row_end[before] == start > col.begins[before]:
            return before, True
        other = self.f.unblocked_by(row)
        if other != UNSET:
            return other, True
        self.add("wait", row, since, start, self.shortage(row))
        return None

    def shortage(self, row: int) -> str:
        """Return the reason of a wait after issue, data, lane and launch."""
        if self.f.trace.status[row] == ABORTED:
            return "dependency"
        if (wait := self.col.wait[row]) in RECORDED_REASONS:
            return WAITS[wait]
        return "resources" if self.col.by_worker[row] else "event"

    def copy_that_ended(self, row: int) -> int | None:
        """Return a transfer that the host of a task made itself until it took the task."""
        col, f = self.col, self.f
        if (f.copied_by < 0).all():
            return None
        group = f.issuers[f.issuer[row]].group
        ended = np.flatnonzero((f.copied_by == group) & (f.trace.transfers["end_ns"] == col.taken[row]))
        return f.n + int(ended[0]) if len(ended) else None
