"""Failed ops of a run, where and in which step; the tasks that they aborted, and those that never ran.

A run in which an op failed has no lower bound (`sim.explain.bounds`), and its makespan is the time until all
tasks that still ran had ended: it cannot be compared with that of a complete run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sim.base.arrays import IntArray
from sim.base.units import format_count, format_duration
from sim.graph.failures import ABORTED, FAILED
from sim.record.record import Record


class FailedTask(NamedTuple):
    """A task that failed.

    Attributes
    ----------
    op, device : str
    step : int
        The iteration of the graph; for a session, the batch.
    frame : str
        The loops and iterations in which it ran; empty outside all loops.
    time_ns : int
        The time of the failure.
    """

    op: str
    device: str
    step: int
    frame: str
    time_ns: int


def failed_tasks(trace: Record) -> list[FailedTask]:
    """Return the tasks that failed, in order of failure.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("chain")
    >>> _ = b.op("a", duration_ns=10, attributes={"fails": True})
    >>> _ = b.op("b", duration_ns=10, inputs=["a"])
    >>> trace = simulate(b.build(), Machine((Device("cpu0", "cpu", workers=1),)), ReadyQueue())
    >>> failed_tasks(trace)
    [FailedTask(op='a', device='cpu0', step=0, frame='', time_ns=10)]
    >>> never_ran(trace).tolist(), trace.makespan_ns
    ([[0, 1]], 10)
    """
    tasks = trace.tasks
    rows = np.flatnonzero(trace.status == FAILED)
    rows = rows[np.argsort(tasks["end_ns"][rows], kind="stable")]
    graph, devices = trace.job.graph, trace.job.machine.devices

    def one(row: int) -> FailedTask:
        op, step = int(tasks["op"][row]), int(tasks["iteration"][row])
        frame = trace.frames[int(tasks["frame"][row])] if "frame" in tasks else ""
        step = graph.attributes.get(op, {}).get("session_step", step)
        device = devices[int(trace.device[row])].name
        return FailedTask(graph.op_names[op], device, step, frame, int(tasks["end_ns"][row]))

    return [one(row) for row in rows.tolist()]


def never_ran(trace: Record) -> IntArray:
    """Return the (step, op) pairs without a row, sorted, as the rows of an array."""
    n = len(trace.job.graph)
    ran = np.zeros(trace.job.iterations * n, bool)
    ran[trace.tasks["iteration"] * n + trace.tasks["op"]] = True
    return np.stack(np.divmod(np.flatnonzero(~ran), n), axis=1)


def failure_report(trace: Record) -> dict[str, Any]:
    """Return ``failures`` as printed by ``--json``: three counts, and the `tasks` that failed.

    If parts of the machine may fail, it also has the `attempts`, and the number of steps done.
    """
    tasks = failed_tasks(trace)
    report = {
        "failed": len(tasks),
        "aborted": int((trace.status == ABORTED).sum()),
        "never_ran": len(never_ran(trace)) if trace.failed else 0,
        "tasks": [task._asdict() for task in tasks],
    }
    if trace.attempts:
        attempts = [_attempt(trace, k) for k in range(len(trace.attempts))]
        report |= {
            "steps": trace.steps_done,
            "steps_lost": sum(attempt["steps_lost"] for attempt in attempts),
            "attempts": attempts,
            "too_late_ns": too_late(trace),
        }
    return report


def _attempt(trace: Record, k: int) -> dict[str, Any]:
    """Return an attempt as printed by ``--json``; times are those of the run."""
    attempt = trace.attempts[k]
    run, event, begin_ns = attempt.trace, attempt.trace.detection, attempt.begin_ns
    return {
        "begin_ns": begin_ns,
        "end_ns": begin_ns + run.makespan_ns,
        "first_step": attempt.step,
        "steps_done": attempt.done,
        "steps_lost": attempt.lost,
        "broken": [
            {"time_ns": begin_ns + part.time_ns, "part": part.kind, "name": part.name, "cause": part.cause}
            for part in run.broken
        ],
        "detection": None if event is None else event._asdict() | {"time_ns": begin_ns + event.time_ns},
    }


def too_late(trace: Record) -> dict[str, list[int]]:
    """Return the causes, with their times, that would come after the end and so have no effect."""
    late_by_cause: dict[str, list[int]] = {}
    aborted = [run for run in trace.attempts if run.trace.detection is not None]
    ended = {(part.cause, run.begin_ns + part.time_ns) for run in aborted for part in run.trace.broken}
    for cause in () if trace.job.faults is None else trace.job.faults.causes:
        late = {at_ns for at_ns, _ in cause.at if at_ns >= trace.makespan_ns}
        times = sorted(at_ns for at_ns in late if (cause.name, at_ns) not in ended)
        if times:
            late_by_cause[cause.name] = times
    return late_by_cause


def attempt_lines(trace: Record) -> list[str]:
    """Return a line for each aborted step: what failed, how it was noticed, what it cost."""
    lines = []
    for k, run in enumerate(trace.attempts):
        result = run.trace
        if result.detection is None:
            continue
        check, detector, time_ns, event = result.detection
        broken = ", ".join(
            f"{part.kind} {part.name} failed at {format_duration(run.begin_ns + part.time_ns)} ({part.cause})"
            for part in result.broken
        )
        after = trace.attempts[k + 1].begin_ns if k + 1 < len(trace.attempts) else None
        lines.append(
            f"{broken or 'nothing failed'}; {detector} noticed at {format_duration(run.begin_ns + time_ns)} "
            f"({check}: {event}); step {run.step + run.done} aborted, {format_count(run.lost, 'step')} lost; "
            + ("the run ends" if after is None else f"restarted at {format_duration(after)}")
        )
    return lines


def late_lines(trace: Record) -> list[str]:
    """Return a line for each cause that comes too late to have an effect."""
    end = format_duration(trace.makespan_ns)
    return [
        f"{name} at {', '.join(map(format_duration, times))} has no effect: the run ends at {end}"
        for name, times in too_late(trace).items()
    ]


def failure_text(trace: Record) -> str:
    """Return the failure that ended the run, in one line; empty if there is none."""
    if trace.attempts:
        return attempt_lines(trace)[-1] if trace.attempts[-1].trace.detection is not None else ""
    report = failure_report(trace)
    if not report["failed"]:
        return ""
    op, device, step, frame, time_ns = failed_tasks(trace)[0]
    others = report["failed"] - 1
    more = f", and {others:,} more {'op' if others == 1 else 'ops'}" if others else ""
    within = f" ({frame})" if frame else ""
    aborted = f"{report['aborted']:,} aborted, " if report["aborted"] else ""
    return (
        f"op {op!r} failed on {device} in step {step}{within} at {format_duration(time_ns)}{more}; "
        f"{aborted}{report['never_ran']:,} never ran"
    )
