"""One sentence, with names, for each reason to wait."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET
from sim.base.errors import InputError, list_names
from sim.base.units import format_duration
from sim.explain.derived import DerivedColumns
from sim.explain.idle import held_up
from sim.explain.path import PathStep, executed_path
from sim.graph.failures import ABORTED

_NAMED: Final = 4
"""Maximum number of devices named in a sentence."""


class Blame(NamedTuple):
    """What keeps a row from starting.

    Attributes
    ----------
    reason : str
        One of `sim.explain.idle.REASONS`.
    sentence : str
        A sentence on it.
    row : int
        The row in the way; the row itself if it is being issued or launched; -1: none.
    """

    reason: str
    sentence: str
    row: int


def blame(f: DerivedColumns, reason: str, row: int, at_ns: int) -> Blame:
    """Return what keeps a task from starting.

    Parameters
    ----------
    f : DerivedColumns
    reason : str
        One of `sim.explain.idle.REASONS`.
    row : int
        The task.
    at_ns : int
        The time in question.
    """
    return Blame(reason, *_SENTENCES[reason](f, row, at_ns))


def task_text(f: DerivedColumns, row: int) -> str:
    """Return the name of a task: its op, and its iteration if there are several."""
    return f"{f.trace.name_of(row)!r}{_iteration(f, int(f.trace.tasks['iteration'][row]))}"


def row_text(f: DerivedColumns, row: int) -> str:
    """Return the name of a task or transfer."""
    return task_text(f, row) if row < f.n else _transfer(f, row)


def _iteration(f: DerivedColumns, iteration: int) -> str:
    return f"[{iteration}]" if f.job.iterations > 1 else ""


def _lane(f: DerivedColumns, row: int) -> str:
    return f.trace.lane_name(row)


def _transfer(f: DerivedColumns, row: int) -> str:
    transfers, k = f.trace.transfers, row - f.n
    source, destination = (f.devices[int(transfers[end][k])].name for end in ("source", "destination"))
    name = f"{f.trace.name_of(row)!r}{_iteration(f, int(transfers['iteration'][k]))}"
    return f"the transfer of {name} from {source} to {destination}"


_Sentence = tuple[str, int]
"""A sentence, and the row in the way (`Blame`)."""


def _dependency(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    cause = int(f.last_producer[row])
    if cause >= f.n:
        cause = int(f.last_producer[cause])
    if f.trace.status[row] == ABORTED:
        return f"{task_text(f, row)} waits for what is never sent, and is aborted", cause
    verb = "runs" if f.start[cause] <= at_ns else "has not started yet"
    text = f"{task_text(f, row)} needs {task_text(f, cause)}, which {verb} on {_lane(f, cause)}"
    return text if f.start[cause] <= at_ns else text + _why_not_started(f, cause, at_ns), cause


def _why_not_started(f: DerivedColumns, row: int, at_ns: int) -> str:
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


def _in_transit(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    transfer = int(f.last_producer[row])
    queued = f", which {_queue_sentence(f, transfer)}" if f.row_start[transfer] > at_ns else ""
    return f"{task_text(f, row)} needs {_transfer(f, transfer)}{queued}", transfer


def _queue_sentence(f: DerivedColumns, transfer: int) -> str:
    if f.copied_by[transfer - f.n] >= 0:
        return "waits for a link, or for its host"
    is_keyed = bool((f.trace.met[:, 0] == f.trace.transfers["id"][transfer - f.n]).any())
    return "waits for its request, or for a link" if is_keyed else "waits for a link"


def _issue(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    """Name the tasks that keep an issuer busy until it takes the given one, and for how long."""
    taken = int(f.taken[row])
    text = f"{task_text(f, row)} is ready, and {f.issuers[int(f.issuer[row])].name}"
    if taken <= at_ns:
        return f"{text} issues it", row
    earlier = np.flatnonzero((f.issuer == f.issuer[row]) & (f.issuer_done > at_ns) & (f.taken < taken))
    earlier = earlier[np.argsort(f.taken[earlier], kind="stable")]
    if not len(earlier):
        return f"{text} is busy with other tasks", UNSET
    ns = int((np.minimum(f.issuer_done[earlier], taken) - np.maximum(f.taken[earlier], at_ns)).sum())
    first = int(earlier[0])
    verb = "executes" if f.by_worker[first] else "waits for" if f.keeps_issuer[first] else "issues"
    more = f" and {len(earlier) - 1} more" if len(earlier) > 1 else ""
    return f"{text} {verb} {task_text(f, first)}{more} first ({format_duration(ns)})", first


def _policy(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    text = f"{task_text(f, row)} is ready and an issuer is free, but {f.policy}"
    ahead = f.taken_next(row, at_ns)
    if ahead == row:
        return f"{text} holds it back", UNSET
    return f"{text} runs {task_text(f, ahead)} first", ahead


def _resources(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    other = f.last_holder(row)
    if other == UNSET:
        return f"{task_text(f, row)} waits for resources of the device", f.unblocked_by(row)
    names = [name for name in f.needs_of(row) if name in f.needs_of(other)]
    return f"{task_text(f, row)} waits for {list_names(names)}, which {task_text(f, other)} has", other


def _memory(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    if f.taken[row] <= at_ns < f.taken[row] + f.calls[row]:
        issuer = f.issuers[int(f.issuer[row])].name
        return f"{issuer} calls the driver for memory before it issues {task_text(f, row)}", row
    return f"{task_text(f, row)} waits for memory", f.unblocked_by(row)


def _stream(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    ahead = int(f.before_on_lane[row])
    text = f"{task_text(f, row)} is issued and queued behind {task_text(f, ahead)} on {_lane(f, row)}"
    first = ahead
    while (before := int(f.before_on_lane[first])) != UNSET and f.end[before] > at_ns:
        first = before
    if not max(f.lane_end[first], f.data[first], f.issue[first]) <= at_ns < f.launch_end[first]:
        return text, ahead
    launched = "which" if first == ahead else f"where {task_text(f, first)}"
    return f"{text}, {launched} is being launched", ahead


def _in_line(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    ahead = int(f.before_in_line[row])
    where = f"on communicator {f.communicator(row)!r}"
    return f"{task_text(f, row)} is queued behind {task_text(f, ahead)} {where}", ahead


def absent_ranks_text(f: DerivedColumns, row: int) -> str:
    """Return the ranks that never came to a collective; empty if all came."""
    absent = [f.devices[device].name for device in f.absent_ranks(row)]
    return f"{list_names(absent, _NAMED)}, which never came" if absent else ""


def _late_rank(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    late = int(f.met_last[row])
    where = f"{f.devices[int(f.device[late])].name}, whose {task_text(f, late)} is the last to start"
    where = absent_ranks_text(f, row) or where
    text = f"{task_text(f, row)} waits on communicator {f.communicator(row)!r} for {where}"
    behind = np.flatnonzero((f.before_on_lane == row) & (f.data[: f.n] <= at_ns) & (f.issue <= at_ns))
    if len(behind):
        text += f"; {task_text(f, int(behind[0]))} stands behind it on {_lane(f, row)}"
    return text, UNSET


def _event(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    text = f"{task_text(f, row)} waits on {_lane(f, row)} for an event to arrive"
    return text, int(f.last_producer[row])


def _no_reason_recorded(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    text = f"{task_text(f, row)} does not start on {_lane(f, row)}, and nothing that was recorded says why"
    return text, UNSET


def _recovery(f: DerivedColumns, row: int, at_ns: int) -> _Sentence:
    return f"a part of the machine failed, and {task_text(f, row)} is the first after the restart", UNSET


_SENTENCES: Final[dict[str, Callable[[DerivedColumns, int, int], _Sentence]]] = {
    "dependency": _dependency,
    "host": _dependency,
    "transfer": _in_transit,
    "issue": _issue,
    "policy": _policy,
    "stream": _stream,
    "launch": lambda f, row, at: (f"{task_text(f, row)} is being launched on {_lane(f, row)}", row),
    "event": _event,
    "release": lambda f, row, at: (f"{task_text(f, row)} is not released yet", UNSET),
    "resources": _resources,
    "memory": _memory,
    "communicator": _in_line,
    "late rank": _late_rank,
    "unexplained": _no_reason_recorded,
    "recovery": _recovery,
}


def step_text(f: DerivedColumns, step: PathStep) -> str:
    """Return a description of a step of the executed path."""
    if step.kind == "transfer":
        return _transfer(f, step.row)
    if step.row >= f.n:
        return f"{_transfer(f, step.row)}, {_queue_sentence(f, step.row)}"
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


def lives(f: DerivedColumns, op: str) -> list[TaskLife]:
    """Return the executions of an op, in the order of their starts.

    Parameters
    ----------
    f : DerivedColumns
        Executions that overlap its time from data to end count.
    op : str
        If there are several iterations, ``a[2]`` is one of them.

    Raises
    ------
    UnknownNameError
        The graph has no such op.
    InputError
        The op exists but did not execute there.
    """
    several, tasks = f.job.iterations > 1 and op not in f.job.graph.op_names, f.trace.tasks
    one = re.fullmatch(r"(.+)\[(\d{1,18})\]", op) if several else None
    mask = f.counts & (tasks["op"] == f.job.graph.index(one[1] if one else op))
    mask &= tasks["iteration"] == int(one[2]) if one else True
    mask &= (f.data[: f.n] < f.to_ns) & (f.end >= f.from_ns)
    rows = np.flatnonzero(mask)
    if not len(rows):
        raise InputError(f"op {op!r} did not execute {f.part}".rstrip())
    return [_life(f, row) for row in rows.tolist()]


def _life(f: DerivedColumns, row: int) -> TaskLife:
    one = np.array([row])
    pieces = [
        LifePiece(reason, int(start[0]), int(length[0]), blame(f, reason, row, int(start[0])).sentence)
        for reason, start, length in held_up(f, one, f.data[one], f.begins[one])
        if length[0] > 0
    ]
    begins, ends = int(f.begins[row]), int(f.end[row])
    pieces.append(LifePiece("runs", begins, ends - begins, ""))
    waiters = np.flatnonzero(f.last_producer[: f.n] == row).tolist()
    carriers = np.flatnonzero(f.last_producer[f.n :] == row) + f.n
    waiters += np.flatnonzero(np.isin(f.last_producer[: f.n], carriers)).tolist()
    return TaskLife(row, pieces, executed_path(f, row), sorted(waiters))
