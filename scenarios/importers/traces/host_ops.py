"""The host's ops: from what calls do to their threads, one after another.

A thread only ever moves on. So what a call does is a step that holds its thread until a time, if that is
later than what was before, and where a thread is after each step is their running maximum::

    until    4    launch: its task began at 5, with a latency of 1
             9    host: until the next call begins (no op, if the thread is there already)
            13    pass: until all that the call waits for has ended (no op; the next one has the edges)
            14    synchronize: until the call returns

Attributes say which part of an op is its own launch call (``call_ns``), and the rest of the one before
(``rest_of_call_ns``); what else it lasts is work of the host between calls.

What a call that only waits takes itself is known from those that were recorded to wait. One that takes three
times as long, and 100 us, waited for something that is not in the trace: that time is an op ``delay``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from scenarios.importers.traces.trace_events.kineto_rows import NEVER, Trace
from sim.words.arrays import UNSET, BoolArray, IntArray, by_first_use

__all__ = [
    "COPY",
    "HOST",
    "LAUNCH",
    "PASS",
    "SYNC",
    "HostOps",
    "Steps",
    "host_ops",
    "last_of_thread",
    "no_host",
]

_BEFORE, HOST, PASS, _DELAY, LAUNCH, SYNC, COPY = range(7)
"""Until the trace begins; until a call; past what it waits for; what nothing explains; until a call launched,
waited, or copied."""
_NAMES: Final = ("before.", "host.", "", "delay.call", "launch.", "synchronize.", "synchronize.")
_KINDS: Final = ("before", "host", "", "delay", "launch", "synchronize", "synchronize")
_LONG_NS: Final = 100_000
"""No call that waits for nothing takes longer; a host may lose its core for some time, though."""


class Steps(NamedTuple):
    """What calls do to their threads, in order: columns.

    Attributes
    ----------
    call : array
    kind : array
    until_ns : array
        How long the step holds the thread, at least.
    awaited : mapping
        Call → the tasks that it waits for.
    """

    call: IntArray
    kind: IntArray
    until_ns: IntArray
    awaited: Mapping[int, Sequence[int]]

    def with_more(self, at: IntArray, kind: int, until_ns: IntArray | int) -> Steps:
        """Return them with further ones, each before one of these and of its call."""
        return self._replace(
            call=np.insert(self.call, at, self.call[at]),
            kind=np.insert(self.kind, at, kind),
            until_ns=np.insert(self.until_ns, at, until_ns),
        )


class HostOps(NamedTuple):
    """The host's ops in order of their calls: columns.

    Attributes
    ----------
    names, kinds : list of str
    start_ns, duration_ns : array
    before : array
        The op before each on its thread; `UNSET`: it is the first.
    awaited : (array, array)
        Ops, and tasks that they wait for.
    attributes : list of dict
    launcher : array
        Task → the op that launches it; `UNSET`: none.
    issued_ns : array
        Task → the end of that op; `NEVER`: none.
    """

    names: list[str]
    kinds: list[str]
    start_ns: IntArray
    duration_ns: IntArray
    before: IntArray
    awaited: tuple[IntArray, IntArray]
    attributes: list[dict[str, Any]]
    launcher: IntArray
    issued_ns: IntArray


def host_ops(trace: Trace, steps: Steps, begin_ns: int, prefix: str = "") -> HostOps:
    """Return the ops that the steps of a host are.

    Parameters
    ----------
    trace : Trace
    steps : Steps
        In order of their calls.
    begin_ns : int
        Time 0 of every thread. An op ``before.thread0`` lasts until the trace begins, if that is later.
    prefix : str
        Of the names of ops.
    """
    _, _, first = by_first_use(_threads(trace, steps))
    if trace.begin_ns > begin_ns:
        steps = steps.with_more(first, _BEFORE, trace.begin_ns)
    at = _Times(trace, steps, begin_ns)
    if len(held := at.unexplained()):
        steps = steps.with_more(held, _DELAY, at.end_ns[held] - at.usual_wait_ns)
        at = _Times(trace, steps, begin_ns)
    is_op = (steps.kind != PASS) & ((steps.kind != HOST) | (at.end_ns > at.start_ns) | at.behind(_BEFORE))
    number = np.append(np.where(is_op, np.cumsum(is_op) - 1, UNSET), UNSET)
    waits = np.flatnonzero(at.behind(PASS))
    tasks = [steps.awaited[call] for call in steps.call[waits].tolist()]
    launch = steps.kind == LAUNCH
    launcher, issued_ns = np.full(len(trace.calls) + 1, UNSET), np.full(len(trace.calls) + 1, NEVER)
    launcher[steps.call[launch]], issued_ns[steps.call[launch]] = number[:-1][launch], at.end_ns[launch]
    names, attributes = _told(trace, steps, at, begin_ns, np.flatnonzero(is_op), prefix)
    return HostOps(
        names,
        [_KINDS[kind] for kind in steps.kind[is_op].tolist()],
        at.start_ns[is_op],
        (at.end_ns - at.start_ns)[is_op],
        number[last_of_thread(at.thread, is_op)[is_op]],
        (number[waits].repeat([*map(len, tasks)]), np.array([*chain.from_iterable(tasks)], np.int64)),
        attributes,
        launcher[trace.launch],
        issued_ns[trace.launch],
    )


def no_host(n_tasks: int) -> HostOps:
    """Return no ops, of a process with so many tasks."""
    none = np.zeros(0, np.int64)
    unset = np.full(n_tasks, UNSET)
    return HostOps([], [], none, none, none, (none, none), [], unset, np.full(n_tasks, NEVER))


class _Times:
    """When steps begin and end.

    Attributes
    ----------
    thread : array
        Of each step: the thread that it holds.
    start_ns, end_ns : array
    rest_ns : array
        What was left then of the call of the thread that launched last; negative: nothing.
    waited_ns : array
        How long the step waited, if it is behind what waits.
    usual_wait_ns : int
        What a call takes that waited, besides.
    """

    def __init__(self, trace: Trace, steps: Steps, begin_ns: int) -> None:
        n, calls = len(steps.call), trace.calls
        self._kind = steps.kind
        self.thread = _threads(trace, steps)
        self.start_ns, self.end_ns = np.empty(n, np.int64), np.empty(n, np.int64)
        for thread in np.unique(self.thread):
            own = np.flatnonzero(self.thread == thread)
            self.end_ns[own] = np.maximum.accumulate(np.maximum(steps.until_ns[own], begin_ns))
            self.start_ns[own] = np.append(begin_ns, self.end_ns[own[:-1]])
        self._previous = last_of_thread(self.thread, np.ones(n, bool))
        left_ns = np.append(calls.end_ns[steps.call], 0)
        left_ns[self._previous[steps.kind == PASS]] = 0  # what it launched, it waits for: another op
        own_ns = np.where(steps.kind == LAUNCH, calls.start_ns[steps.call], steps.until_ns)
        left_ns = np.minimum(left_ns[last_of_thread(self.thread, steps.kind == LAUNCH)], own_ns)
        self.rest_ns = np.minimum(left_ns, steps.until_ns) - self.start_ns
        self.waited_ns = np.where(
            self.behind(PASS), np.append(self.end_ns - self.start_ns, 0)[self._previous], 0
        )
        took_ns = (self.end_ns - self.start_ns)[(steps.kind == SYNC) & (self.waited_ns > 0)]
        self.usual_wait_ns = int(np.sort(took_ns)[len(took_ns) // 2]) if len(took_ns) else 0

    def behind(self, kind: int) -> BoolArray:
        """Whether a step of a kind is right before each one on its thread."""
        behind: BoolArray = np.append(self._kind, UNSET)[self._previous] == kind
        return behind

    def unexplained(self) -> IntArray:
        """Return the calls that waited for something that is not in the trace."""
        most_ns = max(3 * self.usual_wait_ns, _LONG_NS)
        late = self.end_ns - self.start_ns > most_ns
        return np.flatnonzero((self._kind == SYNC) & late & (self.rest_ns <= 0))


def _told(
    trace: Trace, steps: Steps, at: _Times, begin_ns: int, ops: IntArray, prefix: str
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return names and attributes of the steps that are ops."""
    call, calls = steps.call, trace.calls
    own_ns = np.maximum(0, steps.until_ns - np.maximum(at.start_ns, calls.start_ns[call]))
    thread, *_ = by_first_use(at.thread)
    columns = (
        call,
        steps.kind,
        thread,
        at.start_ns - begin_ns,
        own_ns,
        at.rest_ns,
        at.waited_ns,
        calls.name[call],
    )
    names, attributes = [], []
    for n, kind, label, start_ns, call_ns, rest_ns, waited_ns, name in zip(
        *(column[ops].tolist() for column in columns), strict=True
    ):
        own: dict[str, Any] = {"thread": f"thread{label}", "recorded_start_ns": start_ns}
        if kind == LAUNCH:
            own["call_ns"] = call_ns
        if rest_ns > 0:
            own["rest_of_call_ns"] = rest_ns
        if kind not in (_BEFORE, HOST):
            own["call"] = calls.names[name]
        if waited_ns or kind in (_DELAY, SYNC, COPY):
            own["recorded_wait_ns"] = waited_ns
        names.append(f"{prefix}{_NAMES[kind]}{n if kind != _BEFORE else own['thread']}")
        attributes.append(own)
    return names, attributes


def _threads(trace: Trace, steps: Steps) -> IntArray:
    return trace.control[trace.calls.thread[steps.call]]


def last_of_thread(thread: IntArray, which: BoolArray) -> IntArray:
    """Return, for each entry of a column of threads, the last one before it of its thread among some.

    Examples
    --------
    >>> last_of_thread(np.array([0, 1, 0, 1, 0]), np.array([True, True, False, False, True])).tolist()
    [-1, -1, 0, 1, 0]
    """
    order = np.argsort(thread, kind="stable")
    last = np.maximum.accumulate(np.where(which[order], np.arange(len(order)), UNSET))
    last = np.append(UNSET, last)[:-1]
    own = (last != UNSET) & (thread[order[last]] == thread[order])
    found = np.full(len(order), UNSET)
    found[order[own]] = order[last[own]]
    return found
