"""What matters of trace events: taken some hundred at a time, in any order, and kept in columns.

Two of three events play no part, and most of the others are alike. So all of a role are taken together, and
where one is not as usual, each is looked at (`event_fields`).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from scenarios.importers.traces.trace_events.event_fields import (
    arguments,
    size,
    span,
    spans,
    text,
    texts,
    thread_of,
    whole,
    wholes,
)
from scenarios.importers.traces.trace_events.gradients import FORWARD_THREAD, SEQUENCE, Numbered, is_gradient
from scenarios.importers.traces.trace_events.kineto_rows import Calls, GpuTask, HostWait, Thread
from scenarios.importers.traces.trace_events.messages import message, taken
from scenarios.importers.traces.trace_events.noted_waits import Noted, noted_wait
from scenarios.importers.traces.trace_events.operators import UNNUMBERED, Operators, Spans
from sim.words.arrays import Codes

__all__ = ["Taken", "is_collective"]

Event = Mapping[str, Any]

_GPU, _HOST, _OPERATOR, _SYNC, _OTHER = range(5)
_CATEGORIES: Final = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"), _GPU),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime", "hip_runtime"), _HOST),
    **dict.fromkeys(("xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver"), _HOST),
    **dict.fromkeys(("cpu_op", "operator"), _OPERATOR),
    "cuda_sync": _SYNC,
}
"""What events are, by their category."""
_QUEUE: Final = "sycl queue"
"""What Intel's GPUs have for streams."""
_COLLECTIVE: Final = ("c10d::", "nccl:", "record_param_comms")
"""How operators begin in which a process group launches its kernels."""
_FACTS: Final = {
    "grid": "grid", "block": "block", "registers": "registers per thread", "shared_memory": "shared memory",
}  # fmt: skip
"""Our names of what is recorded about a kernel."""
_TOGETHER: Final = 2**13
"""Events that are looked at together."""


class _Roles(dict[str, int]):
    """Roles of categories that were met."""

    def __missing__(self, category: str) -> int:
        """Return the role of another category."""
        role = self[category] = _CATEGORIES.get(category.lower(), _OTHER)
        return role


class _Kept(list[list[Any]]):
    """Values of events: a list for each of some fields."""

    def __init__(self, fields: int) -> None:
        super().__init__([] for _ in range(fields))

    def add(self, *fields: list[Any]) -> None:
        """Keep the values of further events."""
        for kept, values in zip(self, fields, strict=True):
            kept += values


class Taken:
    """Takes events, and keeps what matters; all is there after `look`.

    Attributes
    ----------
    tasks : list of GpuTask
    threads : Codes of Thread
        Those of calls and operators, with their numbers.
    noted : list of Noted
    host_waits : dict
        By correlation of the call.
    operators, collectives : Operators
        All, and the ranges of process groups with the bytes that they take as their numbers.
    inside : Spans
        Ranges of process groups that are no operators.
    external : dict
        Task → number of its operator, if it has one of its own.
    """

    def __init__(self) -> None:
        self.tasks: list[GpuTask] = []
        self.threads: Codes[Thread] = Codes()
        self.noted: list[Noted] = []
        self.host_waits: dict[int, HostWait] = {}
        self.operators, self.collectives = Operators(), Operators()
        self.inside: Spans = defaultdict(list)
        self.external: dict[int, int] = {}
        self._roles = _Roles()
        self._names: Codes[str] = Codes()
        self._calls, self._numbered = [np.zeros((5, 0), np.int64)], [np.zeros((4, 0), np.int64)]
        self._forget()

    def _forget(self) -> None:
        self._waiting, self._of_tasks, self._of_calls, self._of_operators = (
            0,
            list[Event](),
            _Kept(6),
            _Kept(8),
        )

    def take(self, events: Sequence[Any]) -> None:
        """Keep what matters of some events.

        Raises
        ------
        KeyError, TypeError, ValueError
            One of these, or of earlier ones, has not what it must have.
        """
        if wrong := {*map(type, events)} - {dict}:
            raise ValueError(f"a {wrong.pop().__name__} is no event")
        categories = [event.get("cat", "") for event in events]
        if not {*map(type, categories)} <= {str}:
            categories = [text(event, "cat") if "cat" in event else "" for event in events]
        of_role: list[list[Event]] = [[] for _ in range(5)]
        for event, role in zip(events, map(self._roles.__getitem__, categories), strict=True):
            if event.get("ph") == "X":
                of_role[role].append(event)
            elif role in (_GPU, _HOST):
                what = f"a {event['cat'].lower()} with ph {event.get('ph')!r:.40}"
                raise ValueError(f"{what}; the profiler writes 'X'")
        for event in of_role[_SYNC]:
            self._take_sync(event)
        for event in of_role[_OTHER]:
            if is_collective(str(event.get("name"))):
                self._take_range(event)
        self._keep_operators(of_role[_OPERATOR])
        self._keep_calls(of_role[_HOST])
        self._of_tasks += of_role[_GPU]
        self._waiting += len(events)
        if self._waiting >= _TOGETHER:
            self.look()

    def look(self) -> None:
        """Look at all that was kept so far; raises what `take` does."""
        self._look_at_operators(*self._of_operators)
        self._look_at_calls(*self._of_calls)
        self._look_at_tasks(self._of_tasks)
        self._forget()

    def _take_sync(self, event: Event) -> None:
        args, name = arguments(event), event["name"]
        if name == "Stream Wait Event" or (name == "Event Sync" and "wait_on_stream" in args):
            self.noted.append(noted_wait({**args, "stream": -1} if name == "Event Sync" else args))
        elif name in ("Event Sync", "Stream Sync", "Context Sync"):
            call = whole(args, "correlation")
            stream = -1 if name == "Context Sync" else whole(args, "stream")
            self.host_waits[call] = HostWait(whole(args, "device"), stream, call)

    def _take_range(self, event: Event) -> None:
        """Take a range of a process group."""
        thread = self.threads[_thread_of(event.get("pid"), event.get("tid"))]
        self.inside[thread].append(span(event))
        if nbytes := taken(event):
            begin_ns, end_ns, given = np.array([*span(event), nbytes], np.int64).reshape(3, 1)
            self.collectives.add(np.array([thread]), begin_ns, end_ns, [text(event, "name")], given)

    def _keep_operators(self, events: Sequence[Event]) -> None:
        args = [event.get("args", {}) for event in events]
        if not {*map(type, args)} <= {dict}:
            args = [arguments(event) if "args" in event else {} for event in events]
        self._of_operators.add(
            *([event.get(key) for event in events] for key in ("ts", "dur", "pid", "tid")),
            [event["name"] for event in events],
            [own.get("External id", UNNUMBERED) for own in args],
            *([own.get(key) for own in args] for key in (SEQUENCE, FORWARD_THREAD)),
        )

    def _look_at_operators(self, ts: Any, dur: Any, pid: Any, tid: Any, *others: Any) -> None:
        try:
            start_ns, end_ns = spans(ts, dur)
        except ValueError:  # of one that never ended the profiler makes up an end
            rows = zip(ts, dur, pid, tid, *others, strict=True)
            whole_ones = _Kept(4 + len(others))
            whole_ones.add(*([*column] for column in zip(*filter(_ends, rows), strict=True)))
            return self._look_at_operators(*whole_ones)
        names, numbers, sequence, forward = others
        usual = {*map(type, pid), *map(type, tid)} <= {int}
        thread = self.threads.of(zip(pid, tid, strict=True) if usual else map(_thread_of, pid, tid))
        self.operators.add(thread, start_ns, end_ns, texts(names, "name"), wholes(numbers, "External id"))
        has = [n for n, own in enumerate(sequence) if own is not None]
        gradient = np.array([is_gradient(names[n], forward[n]) for n in has], np.int64)
        counted = wholes([sequence[n] for n in has], SEQUENCE)
        self._numbered.append(np.stack((thread[has], start_ns[has], counted, gradient)))

    def _keep_calls(self, events: Sequence[Event]) -> None:
        fields = ([event[key] for event in events] for key in ("ts", "dur", "pid", "tid", "name"))
        self._of_calls.add(*fields, [own["correlation"] for own in _all_arguments(events)])

    def _look_at_calls(self, ts: Any, dur: Any, pid: Any, tid: Any, name: Any, correlation: Any) -> None:
        threads = zip(wholes(pid, "pid").tolist(), wholes(tid, "tid").tolist(), strict=True)
        numbers = self._names.of(texts(name, "name")), self.threads.of(threads)
        self._calls.append(np.stack((*numbers, wholes(correlation, "correlation"), *spans(ts, dur))))

    def _look_at_tasks(self, events: Sequence[Event]) -> None:
        args = _all_arguments(events)
        ts, dur, name = ([event[key] for event in events] for key in ("ts", "dur", "name"))
        device, correlation = (
            wholes([own[key] for own in args], key).tolist() for key in ("device", "correlation")
        )
        on = [_QUEUE if _QUEUE in own else "stream" for own in args]
        stream = wholes([own[key] for own, key in zip(args, on, strict=True)], "stream").tolist()
        start_ns, end_ns = spans(ts, dur)
        place = map(sys.intern, texts(name, "name")), device, stream, correlation, start_ns.tolist()
        rows = zip(
            *place,
            (end_ns - start_ns).tolist(),
            *(map(found, args) for found in (_nbytes, _facts, _group, _collective, message)),
            wholes([own.get("Group size", 0) for own in args], "Group size").tolist(),
            strict=True,
        )
        self.tasks += map(GpuTask._make, rows)
        for key in ("External id", "external id"):
            has = [n for n, own in enumerate(args) if key in own]
            for n, external in zip(has, wholes([args[n][key] for n in has], key).tolist(), strict=True):
                if external != correlation[n]:
                    self.external[correlation[n]] = external

    def calls(self) -> Calls:
        """Return the calls, in order of time, then of threads and numbers, the outer first."""
        name, thread, *columns = np.concatenate(self._calls, axis=1)
        rank = np.argsort(
            np.array(sorted(range(len(self.threads)), key=[*self.threads].__getitem__), np.int64)
        )
        order = np.lexsort((-columns[2], columns[0], rank[thread], columns[1]))
        return Calls([*self._names], name[order], thread[order], *(column[order] for column in columns))

    def numbered(self) -> Numbered:
        """Return the operators with sequence numbers."""
        return Numbered(*np.concatenate(self._numbered, axis=1))


# -- one event ------------------------------------------------------------------------------------


def is_collective(name: str) -> bool:
    """Whether an operator, or range, of this name is one in which a process group launches its kernels."""
    return name.startswith(_COLLECTIVE)


def _all_arguments(events: Sequence[Event]) -> Sequence[Event]:
    found = [event["args"] for event in events]
    return found if {*map(type, found)} <= {dict} else [arguments(event) for event in events]


def _ends(row: Sequence[Any]) -> bool:
    """Whether an operator has a begin and an end."""
    try:
        span({"ts": row[0], "dur": row[1]})
    except ValueError:
        return False
    return True


def _thread_of(process: Any, thread: Any) -> Thread:
    """Return process and thread of an operator; of one that has none, a thread that calls nothing."""
    if type(process) is int and type(thread) is int:
        return process, thread
    known = str(process).isdecimal() and str(thread).isdecimal()
    return thread_of({"pid": process, "tid": thread}) if known else (-1, -1)


def _nbytes(args: Event) -> int:
    return size(args, "bytes")


def _facts(args: Event) -> dict[str, Any]:
    return {key: args[name] for key, name in _FACTS.items() if name in args}


def _group(args: Event) -> tuple[str, str] | None:
    """Return name and ranks of the process group of a collective."""
    if "Process Group Name" not in args:
        return None
    return str(args["Process Group Name"]), str(args.get("Process Group Ranks", ""))


def _collective(args: Event) -> str:
    """Return what PyTorch calls a collective; nothing, where it does not say it."""
    return str(args.get("Collective name", ""))
