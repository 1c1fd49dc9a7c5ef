"""A run of several steps on a machine whose parts fail: a series of attempts, each begun by a restart.

::

    steps     0    1    2    3  x                                    checkpoints after every two steps
    attempt 0 [----|----|----|--]                                    x: gpu1 fails, and it is soon noticed
    attempt 1                        restart, restore [----|----|    begins with step 2 again

When a step is aborted, all processes end. They restart when every failed part is repaired: they take
`restart`, then load the last checkpoint, if there is one, which takes `restore`. If another part fails
meanwhile, the restart begins again. Each attempt is a separate run of the engine on the remaining steps. The
trace of the whole run has one iteration per step that an attempt began, so a lost step appears twice.
Checkpoints cost nothing here: the cost of saving, and how often it is worth it, are for a run of many steps
(docs/failures.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from sim.base.arrays import LATEST_NS, MOST_TASKS, IntArray
from sim.base.errors import InputError, RunError
from sim.base.units import format_duration
from sim.engine.engine import Engine
from sim.engine.hooks import Memory, Observer
from sim.faults import MOST_FAILURES, Conditions, Faults, failures_of
from sim.graph.frames import has_control_flow
from sim.job.context import Context
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.machine.links import Message
from sim.policy import Policy
from sim.record.record import Attempt
from sim.trace import Trace

_MAX_WITHOUT_PROGRESS: Final = 100
"""The maximum number of attempts in a row without progress."""


def refuse_with_faults(job: Job, *, with_memory: bool) -> None:
    """Raise if the behaviour of a run is unknown when a part of the machine fails.

    Raises
    ------
    InputError
        The message names what has to be left out.
    """
    if job.failures is not None:
        raise InputError("ops that fail and parts of the machine that do are one too many: leave out one")
    if job.machine.folding is not None:
        raise InputError("identical ranks are folded into one, and a part that fails is like no other")
    if has_control_flow(job.graph):
        raise InputError("a graph with control flow cannot run on a machine whose parts fail or become slow")
    if with_memory:
        raise InputError("an allocator cannot follow a step that may be aborted: leave memory out")
    if job.process_of is not None:
        raise InputError("several processes on the same devices: nobody knows which of them a failure ends")


def run_attempts(
    job: Job,
    policy: Policy,
    faults: Faults,
    flow: Flow,
    memory: Callable[[Job, Context], Memory] | None = None,
    observers: Iterable[Observer] = (),
) -> Trace:
    """Run all steps of a job, with as many attempts as needed.

    Parameters
    ----------
    job : Job
    policy : Policy
    faults : Faults
    flow : Flow
        The result of `make_flow`.
    memory, observers
        As for `sim.simulate`.

    Raises
    ------
    InputError
        See `refuse_with_faults`.
    RunError
        There are so many failures that the run makes no progress.
    StuckError
        A part has failed and nothing notices.
    """
    refuse_with_faults(job, with_memory=memory is not None)
    attempts: list[Attempt] = []
    begin_ns: int | None = 0
    run = step = reached = fruitless = 0
    while begin_ns is not None and step < job.iterations:
        part = _steps(job, step, job.iterations)
        conditions = Conditions(faults, job.machine, job.seed, begin_ns)
        engine = Engine(part, policy, flow=flow, memory=memory, observers=observers, conditions=conditions)
        trace = engine.run()
        rows = (trace.tasks, trace.transfers)  # a step may have begun to send inputs, and nothing else
        n_run = max(int(columns["iteration"].max(initial=0)) for columns in rows) + 1
        trace = replace(trace, job=_steps(part, 0, n_run))
        complete = np.bincount(trace.tasks["iteration"][trace.status == 0], minlength=n_run) == len(job.graph)
        done = n_run if trace.detection is None or complete.all() else int(complete.argmin())
        saved = step + done
        if trace.detection is not None:
            saved = 0 if faults.every_steps is None else saved - saved % faults.every_steps
        attempts.append(Attempt(begin_ns, run, step, done, step + done - saved, trace))
        run += n_run
        if step + done > reached:
            reached, fruitless = step + done, 0
        fruitless += 1
        if fruitless > _MAX_WITHOUT_PROGRESS or run * len(job.graph) > MOST_TASKS or begin_ns > LATEST_NS:
            last, ended = trace.detection, ""
            if last is not None:
                ended = f" ({last.how} at {last.by}, {format_duration(last.time_ns)}: {last.what})"
            raise RunError(
                f"too much fails: after {len(attempts):,} attempts, steps done are {reached:,} of "
                f"{job.iterations:,}; the last {fruitless - 1:,} attempts came no further{ended}"
            )
        if trace.detection is None:
            break
        step = saved
        begin_ns = _restart_ns(job, faults, begin_ns + trace.detection.time_ns, step)
    return _join_attempts(job, attempts)


def _steps(job: Job, first: int, end: int) -> Job:
    noisy_ns = None if job.noisy_ns is None else job.noisy_ns[first:end]
    return replace(job, iterations=end - first, noisy_ns=noisy_ns)


def _restart_ns(job: Job, faults: Faults, end_ns: int, step: int) -> int | None:
    """Return when the next attempt begins, at `step`, after one that ended at `end_ns`; None: never."""
    if faults.restart_ns is None:
        return None
    takes_ns = faults.restart_ns + (faults.restore_ns if step else 0)  # before step 0 nothing was saved
    begin_ns = end_ns
    for n, failed in enumerate(failures_of(faults, job.machine, job.seed)):
        if failed.time_ns > begin_ns + takes_ns:
            break
        if n >= MOST_FAILURES:
            takes = format_duration(takes_ns)
            raise RunError(f"too much fails: {n:,} failures leave no time to restart, which takes {takes}")
        if failed.back_ns is None:
            return None
        begin_ns = max(begin_ns, failed.back_ns)
        if begin_ns > LATEST_NS:
            break
    return begin_ns + takes_ns


def _join_attempts(job: Job, attempts: list[Attempt]) -> Trace:
    """Return one trace of all attempts."""
    traces = [run.trace for run in attempts]
    first = traces[0]
    noisy_ns = None
    if job.noisy_ns is not None:
        noisy_ns = np.concatenate([trace.job.noisy_ns for trace in traces])
    all_steps = replace(job, iterations=sum(trace.job.iterations for trace in traces), noisy_ns=noisy_ns)

    def join(name: str, columns: list[IntArray]) -> IntArray:
        shifted = [column + _shift(name, attempt) for column, attempt in zip(columns, attempts, strict=True)]
        return np.concatenate(shifted)

    messages = [run.trace.messages + [_shift(name, run) for name in Message._fields] for run in attempts]
    return Trace(
        all_steps,
        first.flow,
        first.policy,
        {name: join(name, [trace.tasks[name] for trace in traces]) for name in first.tasks},
        {name: join(name, [trace.transfers[name] for trace in traces]) for name in first.transfers},
        met=join("id", [trace.met for trace in traces]),
        synchronisation=first.synchronisation,
        messages=np.concatenate(messages),
        in_turn=first.in_turn,
        attempts=tuple(attempts),
    )


def _shift(name: str, attempt: Attempt) -> int:
    """Return by how much the numbers of a column grow, counted from the start of the run."""
    if name == "id":
        return attempt.run * attempt.trace.flow.n_nodes
    if name == "iteration":
        return attempt.run
    return attempt.begin_ns if name.endswith("_ns") else 0
