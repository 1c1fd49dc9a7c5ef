"""What comes out of a run: its trace, or why it cannot go on."""

from __future__ import annotations

import numpy as np

from sim.engine.deadlock import deadlock_error
from sim.engine.state import RunState
from sim.trace import Trace
from sim.words.errors import StuckError

__all__ = ["trace_of"]


def trace_of(run: RunState) -> Trace:
    """Return the trace of a run in which nothing can happen any more.

    Raises
    ------
    StuckError
        Tasks remain, and no op that failed explains it.
    """
    if len(run.tasks) + len(run.transfers) < run.readiness.total and (
        run.failing is None or run.failing.unexplained(run.issuers.stopped, run.issuers.copies)
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
    )


def _deadlock(run: RunState) -> StuckError:
    over = [ended.columns()["id"].tolist() for ended in (run.tasks, run.transfers)]
    waiting = dict(run.readiness.unfinished({*over[0], *over[1]}))
    lacks = {task.id: run.memory.lacks(task) for task in run.starved} if run.memory else {}
    if run.rendezvous is not None:
        lacks.update(run.rendezvous.lacks())
    if run.communicators is not None:
        lacks.update(run.communicators.lacks())
    return deadlock_error(run.readiness.name, waiting, run.policy, lacks)
