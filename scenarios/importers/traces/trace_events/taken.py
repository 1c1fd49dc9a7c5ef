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
    all_arguments,
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
from scenarios.importers.traces.trace_events.gradients import SEQUENCE, Numbered, is_gradient
from scenarios.importers.traces.trace_events.kineto_rows import Calls, GpuTask, HostWait, Thread
from scenarios.importers.traces.trace_events.messages import message, taken
from scenarios.importers.traces.trace_events.noted_waits import Noted, noted_wait
from scenarios.importers.traces.trace_events.operators import UNNUMBERED, Operators, Spans
from sim.words.arrays import Codes, IntArray

__all__ = ["Taken", "is_collective"]

Event = Mapping[str, Any]

_GPU, _HOST, _OPERATOR, _SYNC, _OTHER = range(5)
_CATEGORIES: Final = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"), _GPU),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime", "hip_runtime"), _HOST),
    **dict.fromkeys(("cpu_op", "operator"), _OPERATOR),
    "cuda_sync": _SYNC,
}
"""What events are, by their category."""
_COLLECTIVE: Final = ("c10d::", "nccl:", "record_param_comms")
"""How operators begin in which a process group launches its kernels."""
_FACTS: Final = {
    "grid": "grid", "block": "block", "registers": "registers per thread", "shared_memory": "shared memory",
}  # fmt: skip
"""Our names of what is recorded about a kernel."""


class _Roles(dict[str, int]):
    """Roles of categories that were met."""

    def __missing__(self, category: str) -> int:
        """Return the role of another category."""
        role = self[category] = _CATEGORIES.get(category.lower(), _OTHER)
        return role


class Taken:
    """Takes events, and keeps what matters.

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

    def take(self, events: Sequence[Any]) -> None:
        """Keep what matters of some events.

        Raises
        ------
        KeyError, TypeError, ValueError
            One has not what it must have.
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
        self._take_others(of_role[_OTHER])
        operators, calls, tasks = (of_role[role] for role in (_OPERATOR, _HOST, _GPU))
        try:
            start_ns, end_ns = spans([*operators, *calls, *tasks])
        except (KeyError, ValueError):  # of an operator that never ended the profiler makes up an end
            operators = [event for event in operators if _has_span(event)]
            start_ns, end_ns = spans([*operators, *calls, *tasks])
        at, then = len(operators), len(operators) + len(calls)
        self._take_operators(operators, start_ns[:at], end_ns[:at])
        self._take_calls(calls, start_ns[at:then], end_ns[at:then])
        self._take_tasks(tasks, start_ns[then:], end_ns[then:])

    def _take_sync(self, event: Event) -> None:
        args, name = arguments(event), event["name"]
        if name == "Stream Wait Event" or (name == "Event Sync" and "wait_on_stream" in args):
            self.noted.append(noted_wait({**args, "stream": -1} if name == "Event Sync" else args))
        elif name in ("Event Sync", "Stream Sync"):
            call = whole(args, "correlation")
            self.host_waits[call] = HostWait(whole(args, "device"), whole(args, "stream"), call)

    def _take_others(self, events: Sequence[Event]) -> None:
        """Take the ranges of process groups."""
        groups = [event for event in events if is_collective(str(event.get("name")))]
        for event, thread in zip(groups, self._threads_of(groups).tolist(), strict=True):
            self.inside[thread].append(span(event))
            if nbytes := taken(event):
                begin_ns, end_ns, given = np.array([*span(event), nbytes], np.int64).reshape(3, 1)
                self.collectives.add(np.array([thread]), begin_ns, end_ns, [text(event, "name")], given)

    def _take_operators(self, events: Sequence[Event], start_ns: IntArray, end_ns: IntArray) -> None:
        args = all_arguments(events, {})
        names, threads = texts(events, "name"), self._threads_of(events)
        self.operators.add(threads, start_ns, end_ns, names, wholes(args, "External id", UNNUMBERED))
        counted = [n for n, own in enumerate(args) if SEQUENCE in own]
        sequence = wholes([args[n] for n in counted], SEQUENCE)
        gradient = np.array([is_gradient(names[n], args[n]) for n in counted], np.int64)
        self._numbered.append(np.stack((threads[counted], start_ns[counted], sequence, gradient)))

    def _threads_of(self, events: Sequence[Event]) -> IntArray:
        """Return the threads of operators; of one that has none, a thread that calls nothing."""
        processes, threads = [event.get("pid") for event in events], [event.get("tid") for event in events]
        if {*map(type, processes), *map(type, threads)} <= {int}:
            return self.threads.of(zip(processes, threads, strict=True))  # type: ignore[arg-type]
        return self.threads.of(map(_thread_of, events))

    def _take_calls(self, events: Sequence[Event], start_ns: IntArray, end_ns: IntArray) -> None:
        numbers = wholes(all_arguments(events), "correlation")
        threads = zip(wholes(events, "pid").tolist(), wholes(events, "tid").tolist(), strict=True)
        columns = self._names.of(texts(events, "name")), self.threads.of(threads), numbers, start_ns, end_ns
        self._calls.append(np.stack(columns))

    def _take_tasks(self, events: Sequence[Event], start_ns: IntArray, end_ns: IntArray) -> None:
        noted = all_arguments(events)
        numbers = (wholes(noted, key).tolist() for key in ("device", "stream", "correlation"))
        nbytes, ranks = [size(args, "bytes") for args in noted], wholes(noted, "Group size", 0).tolist()
        rows = zip(
            *(
                map(sys.intern, texts(events, "name")),
                *numbers,
                start_ns.tolist(),
                (end_ns - start_ns).tolist(),
            ),
            *(
                nbytes,
                map(_facts, noted),
                map(_group, noted),
                map(_is_pair, noted),
                map(message, noted),
                ranks,
            ),
            strict=True,
        )
        self.tasks += map(GpuTask._make, rows)
        for key in ("External id", "external id"):
            has = [args for args in noted if key in args]
            numbered = zip(wholes(has, "correlation").tolist(), wholes(has, key).tolist(), strict=True)
            self.external |= {n: external for n, external in numbered if external != n}

    def calls(self) -> Calls:
        """Return the calls, in order of time, then of threads and numbers."""
        name, thread, *columns = np.concatenate(self._calls, axis=1)
        rank = np.argsort(
            np.array(sorted(range(len(self.threads)), key=[*self.threads].__getitem__), np.int64)
        )
        order = np.lexsort((columns[0], rank[thread], columns[1]))
        return Calls([*self._names], name[order], thread[order], *(column[order] for column in columns))

    def numbered(self) -> Numbered:
        """Return the operators with sequence numbers."""
        return Numbered(*np.concatenate(self._numbered, axis=1))


# -- one event ------------------------------------------------------------------------------------


def is_collective(name: str) -> bool:
    """Whether an operator, or range, of this name is one in which a process group launches its kernels."""
    return name.startswith(_COLLECTIVE)


def _has_span(event: Event) -> bool:
    try:
        span(event)
    except (KeyError, ValueError):
        return False
    return True


def _thread_of(event: Event) -> Thread:
    """Return process and thread of an operator; of one that has none, a thread that calls nothing."""
    process, thread = event.get("pid"), event.get("tid")
    if type(process) is int and type(thread) is int:
        return process, thread
    known = str(process).isdecimal() and str(thread).isdecimal()
    return thread_of(event) if known else (-1, -1)


def _facts(args: Event) -> dict[str, Any]:
    return {key: args[name] for key, name in _FACTS.items() if name in args}


def _group(args: Event) -> tuple[str, str] | None:
    """Return name and ranks of the process group of a collective."""
    if "Process Group Name" not in args:
        return None
    return str(args["Process Group Name"]), str(args.get("Process Group Ranks", ""))


def _is_pair(args: Event) -> bool:
    return args.get("Collective name") in ("send", "recv")
