"""One sentence, with names, for each reason to wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET
from sim.base.errors import InputError, listed
from sim.base.units import format_duration
from sim.explain.derived import DerivedColumns
from sim.explain.idle import held_up
from sim.explain.path import PathStep, executed_path
from sim.explain.where import EVERYWHERE, Where
from sim.graph.failures import ABORTED

_NAMED: Final = 4
"""Maximum number of devices named in a sentence."""


def blame(facts: DerivedColumns, reason: str, row: int, at_ns: int) -> str:
    """Return a sentence on what keeps a task from starting.

    Parameters
    ----------
    facts : DerivedColumns
    reason : str
        One of `sim.explain.idle.REASONS`.
    row : int
        The task.
    at_ns : int
        The time in question.
    """
    return _SENTENCES[reason](facts, row, at_ns)


def task_text(f: DerivedColumns, row: int) -> str:
    """Return the name of a task: its op, and its iteration if there are several."""
    name = f.job.graph.op_names[int(f.trace.tasks["op"][row])]
    return f"{name!r}{_iteration(f, int(f.trace.tasks['iteration'][row]))}"


def row_text(f: DerivedColumns, row: int) -> str:
    """Return the name of a task or transfer."""
    return task_text(f, row) if row < f.n else _transfer(f, row)


def _iteration(f: DerivedColumns, iteration: int) -> str:
    return f"[{iteration}]" if f.job.iterations > 1 else ""


def _lane(f: DerivedColumns, row: int) -> str:
    return f.trace.lane_name(row)


def _transfer(f: DerivedColumns, row: int) -> str:
    moved, k = f.trace.transfers, row - f.n
    source, destination = (f.devices[int(moved[end][k])].name for end in ("source", "destination"))
    name = f"{f.job.graph.tensor_name(int(moved['tensor'][k]))!r}{_iteration(f, int(moved['iteration'][k]))}"
    return f"the transfer of {name} from {source} to {destination}"


def _dependency(f: DerivedColumns, row: int, at_ns: int) -> str:
    if f.trace.status[row] == ABORTED:
        return f"{task_text(f, row)} waits for what is never sent, and is aborted"
    cause = int(f.last_producer[row])
    if cause >= f.n:
        cause = int(f.last_producer[cause])
    verb = "runs" if f.start[cause] <= at_ns else "has not started yet"
    told = f"{task_text(f, row)} needs {task_text(f, cause)}, which {verb} on {_lane(f, cause)}"
    return told if f.start[cause] <= at_ns else told + _meanwhile(f, cause, at_ns)


def _meanwhile(f: DerivedColumns, row: int, at_ns: int) -> str:
    """Return why a task has not started: what its lane executes, or which of its own inputs is missing."""
    for _ in range(_NAMED):
        runs = np.flatnonzero((f.lane == f.lane[row]) & (f.begins <= at_ns) & (f.end > at_ns))
        if len(runs):
            ns = format_duration(int(f.end[runs[0]]) - at_ns)
            return f"; {_lane(f, row)} runs {task_text(f, int(runs[0]))} for {ns} more"
        last = int(f.last_producer[row])
        if last >= f.n and f.row_start[last] <= at_ns < f.row_end[last]:
            return f"; {_transfer(f, last)} is under way"
        last = int(f.last_producer[last]) if last >= f.n else last
        if last == UNSET or f.row_end[last] <= at_ns:
            break
        if f.begins[last] <= at_ns:
            return f"; {task_text(f, last)}, which it waits for, runs on {_lane(f, last)}"
        row = last
    return ""


def _in_transit(f: DerivedColumns, row: int, at_ns: int) -> str:
    transfer = int(f.last_producer[row])
    queued = f.trace.transfers["start_ns"][transfer - f.n] > at_ns
    return f"{task_text(f, row)} needs {_transfer(f, transfer)}" + (
        f", which {_queued(f, transfer)}" if queued else ""
    )


def _queued(f: DerivedColumns, transfer: int) -> str:
    if f.copied_by[transfer - f.n] >= 0:
        return "waits for a link, or for its host"
    met = bool((f.trace.met[:, 0] == f.trace.transfers["id"][transfer - f.n]).any())
    return "waits for its request, or for a link" if met else "waits for a link"


def _issue(f: DerivedColumns, row: int, at_ns: int) -> str:
    who = f.issuers[int(f.issuer[row])].name
    busy = "issues it" if f.taken[row] <= at_ns else _others(f, row, at_ns)
    return f"{task_text(f, row)} is ready, and {who} {busy}"


def _others(f: DerivedColumns, row: int, at_ns: int) -> str:
    """Return which tasks keep an issuer busy until it takes the given one, and for how long."""
    taken = int(f.taken[row])
    mine = np.flatnonzero((f.issuer == f.issuer[row]) & (f.let_go > at_ns) & (f.taken < taken))
    mine = mine[np.argsort(f.taken[mine], kind="stable")]
    if not len(mine):
        return "is busy with other tasks"
    ns = int((np.minimum(f.let_go[mine], taken) - np.maximum(f.taken[mine], at_ns)).sum())
    first = int(mine[0])
    verb = "executes" if f.by_worker[first] else "waits for" if f.keeps_issuer[first] else "issues"
    more = f" and {len(mine) - 1} more" if len(mine) > 1 else ""
    return f"{verb} {task_text(f, first)}{more} first ({format_duration(ns)})"


def _policy(f: DerivedColumns, row: int, at_ns: int) -> str:
    ahead = f.taken_next(row, at_ns)
    does = f"runs {task_text(f, ahead)} first" if ahead != row else "holds it back"
    return f"{task_text(f, row)} is ready and an issuer is free, but {f.policy} {does}"


def _resources(f: DerivedColumns, row: int, at_ns: int) -> str:
    other = f.gave_back(row)
    names = [name for name in f.needed(row) if other != UNSET and name in f.needed(other)]
    if not names:
        return f"{task_text(f, row)} waits for resources of the device"
    return f"{task_text(f, row)} waits for {listed(names)}, which {task_text(f, other)} has"


def _memory(f: DerivedColumns, row: int, at_ns: int) -> str:
    if f.taken[row] <= at_ns < f.taken[row] + f.calls[row]:
        who = f.issuers[int(f.issuer[row])].name
        return f"{who} calls the driver for memory before it issues {task_text(f, row)}"
    return f"{task_text(f, row)} waits for memory"


def _stream(f: DerivedColumns, row: int, at_ns: int) -> str:
    ahead = int(f.before_on_lane[row])
    told = f"{task_text(f, row)} is issued and queued behind {task_text(f, ahead)} on {_lane(f, row)}"
    first = ahead
    while (before := int(f.before_on_lane[first])) != UNSET and f.end[before] > at_ns:
        first = before
    if not max(f.lane_end[first], f.data[first], f.issue[first]) <= at_ns < f.launch_end[first]:
        return told
    return f"{told}, {'which' if first == ahead else f'where {task_text(f, first)}'} is being launched"


def _in_line(f: DerivedColumns, row: int, at_ns: int) -> str:
    ahead = int(f.before_in_line[row])
    return (
        f"{task_text(f, row)} is queued behind {task_text(f, ahead)} on communicator {f.communicator(row)!r}"
    )


def never_came_text(f: DerivedColumns, row: int) -> str:
    """Return the ranks for which a collective waited in vain; empty if all came."""
    absent = [f.devices[device].name for device in f.who_never_came(row)]
    return f"{listed(absent, _NAMED)}, which never came" if absent else ""


def _late_rank(f: DerivedColumns, row: int, at_ns: int) -> str:
    late = int(f.met_last[row])
    where = f"{f.devices[int(f.device[late])].name}, whose {task_text(f, late)} is the last to start"
    where = never_came_text(f, row) or where
    told = f"{task_text(f, row)} waits on communicator {f.communicator(row)!r} for {where}"
    behind = np.flatnonzero((f.before_on_lane == row) & (f.data[: f.n] <= at_ns) & (f.issue <= at_ns))
    return told + (
        f"; {task_text(f, int(behind[0]))} stands behind it on {_lane(f, row)}" if len(behind) else ""
    )


_SENTENCES: Final[dict[str, Callable[[DerivedColumns, int, int], str]]] = {
    "dependency": _dependency,
    "host": _dependency,
    "transfer": _in_transit,
    "issue": _issue,
    "policy": _policy,
    "stream": _stream,
    "launch": lambda f, row, at: f"{task_text(f, row)} is being launched on {_lane(f, row)}",
    "event": lambda f, row, at: f"{task_text(f, row)} waits on {_lane(f, row)} for an event to arrive",
    "release": lambda f, row, at: f"{task_text(f, row)} is not released yet",
    "resources": _resources,
    "memory": _memory,
    "communicator": _in_line,
    "late rank": _late_rank,
    "unexplained": lambda f, row, at: f"{_lane(f, row)} was idle, and nothing that was recorded says why",
    "recovery": lambda f, row, at: (
        f"a part of the machine failed, and {task_text(f, row)} is the first after the restart"
    ),
    "finished": lambda f, row, at: "no work is left",
    "unused": lambda f, row, at: "it never had work",
}


def step_text(f: DerivedColumns, step: PathStep) -> str:
    """Return a description of a step of the executed path."""
    if step.kind == "transfer":
        return _transfer(f, step.row)
    if step.row >= f.n:
        return f"{_transfer(f, step.row)}, {_queued(f, step.row)}"
    name = task_text(f, step.row)
    if step.kind == "task":
        return f"{name} on {_lane(f, step.row)}"
    if step.kind == "issue":
        return f"{f.issuers[int(f.issuer[step.row])].name} issues {name}"
    return f"{name} waits ({step.reason})"


# ----------------------------------------------------------------------------------------------------------
# The life of one task: what it waited for until it started, what led to it, and which tasks waited for it.
#
#     'reduce' on gpu0/1
#       at   50 us        20 us  issue       'reduce' is ready, and gpu0/host issues it
#       at   70 us        30 us  runs
#       what led to its start: ...
#       what it held up: ...


class LifePiece(NamedTuple):
    """A stretch of a task's life: the reason why it did not run, or ``runs``."""

    reason: str
    start_ns: int
    length_ns: int
    blame: str


class TaskLife(NamedTuple):
    """One task from the moment when its data was there to its end.

    Attributes
    ----------
    row : int
        The task.
    pieces : list of LifePiece
        Adjacent stretches.
    path : list of PathStep
        What led to its end, from time 0.
    held_up : list of int
        Tasks whose last input came from it, directly or by a transfer, in order of start.
    """

    row: int
    pieces: list[LifePiece]
    path: list[PathStep]
    held_up: list[int]


def lives(facts: DerivedColumns, op: str, where: Where = EVERYWHERE) -> list[TaskLife]:
    """Return the executions of an op, in the order of their starts.

    Parameters
    ----------
    facts : DerivedColumns
    op : str
    where : Where
        The part of the run in which executions count; they overlap its time from data to end.

    Raises
    ------
    UnknownNameError
        The graph has no such op.
    InputError
        The op exists but did not execute there.
    """
    f = facts
    here = where.tasks(f) & (f.trace.tasks["op"] == f.job.graph.index(op))
    here &= (f.data[: f.n] < where.end_ns(f)) & (f.end >= where.from_ns)
    rows = np.flatnonzero(here)
    if not len(rows):
        told = where.text(f)
        raise InputError(f"op {op!r} did not execute{f' {told}' if told else ''}")
    return [_life(f, row) for row in rows.tolist()]


def _life(f: DerivedColumns, row: int) -> TaskLife:
    one = np.array([row])
    pieces = [
        LifePiece(reason, int(start[0]), int(length[0]), blame(f, reason, row, int(start[0])))
        for reason, start, length in held_up(f, one, f.data[one], f.begins[one])
        if length[0] > 0
    ]
    begins, ends = int(f.begins[row]), int(f.end[row])
    pieces.append(LifePiece("runs", begins, ends - begins, ""))
    held = np.flatnonzero(f.last_producer[: f.n] == row).tolist()
    moved = np.flatnonzero(f.last_producer[f.n :] == row) + f.n
    held += np.flatnonzero(np.isin(f.last_producer[: f.n], moved)).tolist()
    return TaskLife(row, pieces, executed_path(f.trace, f, row), sorted(held))
