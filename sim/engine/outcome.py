"""What comes out of a run: its trace, or why it cannot go on."""

from __future__ import annotations

import numpy as np

from sim.engine.deadlock import deadlock_error
from sim.engine.state import RunState
from sim.machine.link import Message
from sim.trace import Trace
from sim.words.errors import StuckError

__all__ = ["trace_of"]


def trace_of(run: RunState) -> Trace:
    """Return the trace of a run in which nothing can happen any more, or of which a step was aborted.

    Raises
    ------
    StuckError
        Tasks remain, and neither an op that failed nor an abort explains it.
    """
    detection = run.breakdowns.detection if run.breakdowns is not None else None
    incomplete = len(run.tasks) + len(run.transfers) < run.readiness.total
    if incomplete and detection is not None:
        _cut_short(run)
    elif incomplete and (
        run.failing is None
        or run.failing.unexplained(run.open or {}, run.issuers.stopped, run.issuers.copies)
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
        messages=np.array(run.messages, np.int64).reshape(-1, len(Message._fields)),
        conditions=run.conditions,
        detection=detection if incomplete else None,
        broken=tuple(run.breakdowns.failed(run.now_ns + 1)) if run.breakdowns is not None else (),
    )


def _cut_short(run: RunState) -> None:
    """End what was running when the step was aborted."""
    assert run.breakdowns is not None
    assert run.open is not None
    for task in run.open.values():
        if task.group >= 0 and 0 <= task.start_ns <= run.now_ns:
            task.status, task.end_ns = run.breakdowns.status(task)
            run.tasks.add(task)


def _deadlock(run: RunState) -> StuckError:
    over = [ended.columns()["id"].tolist() for ended in (run.tasks, run.transfers)]
    waiting = dict(run.readiness.unfinished({*over[0], *over[1]}))
    lacks = {task.id: run.memory.lacks(task) for task in run.starved} if run.memory else {}
    if run.rendezvous is not None:
        lacks.update(run.rendezvous.lacks())
    if run.communicators is not None:
        lacks.update(run.communicators.lacks())
    if run.breakdowns is not None and (why := run.breakdowns.unnoticed()):
        return StuckError(why)
    return deadlock_error(run.readiness.name, waiting, run.policy, lacks)
