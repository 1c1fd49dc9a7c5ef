"""The outcome of a run: its trace, or the reason why it cannot go on."""

from __future__ import annotations

from typing import Final

import numpy as np

from sim.base.errors import StuckError, list_names
from sim.engine.state import RunState
from sim.graph.failures import FAILED
from sim.graph.walks import a_cycle
from sim.machine.links import Message
from sim.trace import Trace


def trace_of(run: RunState) -> Trace:
    """Return the trace of a run in which nothing can happen any more, or whose step was aborted.

    Raises
    ------
    StuckError
        Tasks remain, and neither a failed op nor an abort explains it.
    """
    detection = run.breakdowns.detection if run.breakdowns is not None else None
    incomplete = len(run.tasks) + len(run.transfers) < run.readiness.total
    if incomplete and detection is not None:
        _cut_short(run)
    elif incomplete and (
        run.failing is None
        or run.failing.is_unexplained(run.open or {}, run.issuers.stopped, run.issuers.copies)
    ):
        raise _deadlock(run)
    met = run.rendezvous.met if run.rendezvous is not None else []
    return Trace.from_columns(
        run.job,
        run.flow,
        run.policy,
        run.tasks.columns(),
        run.transfers.columns(),
        frames=tuple(run.frames),
        memory=run.memory.columns() if run.memory is not None else None,
        met=np.array(met, np.int64).reshape(-1, 2),
        on_failure=run.policy.on_failure if run.failing is not None else None,
        taken=np.array(run.taken, np.int64).reshape(-1, 2),
        in_turn=run.runs is not None,
        not_before_ns=run.not_before_ns,
        messages=np.array(run.messages, np.int64).reshape(-1, len(Message._fields)),
        conditions=run.conditions,
        detection=detection if incomplete else None,
        broken=tuple(run.breakdowns.failures_by(run.now_ns + 1)) if run.breakdowns is not None else (),
    )


def _cut_short(run: RunState) -> None:
    """End the tasks that were running when the step was aborted."""
    assert run.breakdowns is not None
    assert run.open is not None
    for task in run.open.values():
        if task.group >= 0 and task.start_ns >= 0:
            task.status, task.end_ns = run.breakdowns.status(task)
            if task.start_ns <= task.end_ns - (task.status == FAILED):  # a processor may plan a start
                run.tasks.add(task)


# ----------------------------------------------------------------------------------------------------------
# The reason why a run cannot go on: the remaining tasks, what each waits for, and the cycle among them.

_SHOWN: Final = 8

_NO_ROOM: Final = (
    "memory is full of what cannot go on without more of it: give the device more, begin less at once (in a "
    "pipeline fewer micro-batches, as policy.in_flight of forward-only says), or, under a memory plan, issue "
    "in program order (policy: in-order)"
)


def _deadlock(run: RunState) -> StuckError:
    if run.breakdowns is not None and (reason := run.breakdowns.describe_unnoticed()):
        return StuckError(reason)
    name, done = run.readiness.name, [ended.columns()["id"].tolist() for ended in (run.tasks, run.transfers)]
    waiting = dict(run.readiness.find_unfinished({*done[0], *done[1]}))
    lacks = {task.id: run.memory.lacks(task) for task in run.starved} if run.memory else {}
    if run.rendezvous is not None:
        lacks.update(run.rendezvous.lacks())
    if run.communicators is not None:
        lacks.update(run.communicators.lacks())
    lines = [f"{name(id)} waits for {need}" for id, need in lacks.items()][:_SHOWN]  # the cause first
    others = {id: producers for id, producers in waiting.items() if id not in lacks}
    for id, producers in list(others.items())[: _SHOWN - len(lines)]:
        if producers:
            reason = f"waits for {list_names([name(p) for p in producers], 3)}"
        else:
            reason = "has all its inputs; the policy never issues it, or its stream is blocked"
        lines.append(f"{name(id)} {reason}")
    if len(waiting) > _SHOWN:
        lines.append(f"... and {len(waiting) - _SHOWN} more")
    if cycle := a_cycle(waiting):
        lines.append("cycle: " + " -> ".join(name(id) for id in reversed(cycle)))
    if misordered := run.job.find_misordered():
        lines.append(misordered)
    if len(run.starved) > 1:
        lines.append(_NO_ROOM)
    remain = "1 task remains" if len(waiting) == 1 else f"{len(waiting)} tasks remain"
    return StuckError("\n  ".join([f"nothing can happen any more and {remain}:", *lines]))
