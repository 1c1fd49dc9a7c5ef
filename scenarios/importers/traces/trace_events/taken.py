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
    ABSENT,
    all_arguments,
    size,
    spans,
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
from scenarios.importers.traces.trace_events.wanted import Event, as_events
from sim.words.arrays import UNSET, Codes, IntArray

__all__ = ["Taken", "is_collective"]

Fields = Mapping[str, Any]

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
_PEERS: Final = {"send": "Dst Rank", "recv": "Src Rank"}
"""Who is on the other side (PyTorch, torch/csrc/profiler/util.cpp, ``saveNcclMeta``)."""
_TOGETHER: Final = 1024
"""Events that are looked at together; more would fall out of the processor's cache."""


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
        self._names: Codes[str] = Codes()
        self._calls, self._numbered = [np.zeros((5, 0), np.int64)], [np.zeros((4, 0), np.int64)]
        self._waiting, self._count = defaultdict[str, list[Event]](list), 0

    def take(self, values: Sequence[Any]) -> None:
        """Keep what matters of some events, as they were parsed.

        Raises
        ------
        KeyError, TypeError, ValueError
            One of these, or of earlier ones, has not what it must have.
        """
        events = as_events(values)
        for event in events:
            self._waiting[event.cat].append(event)
        self._count += len(events)
        if self._count >= _TOGETHER:
            self.look()

    def look(self) -> None:
        """Look at all that was kept so far; raises what `take` does."""
        looks = {
            _GPU: self._look_at_tasks,
            _HOST: self._look_at_calls,
            _OPERATOR: self._look_at_operators,
            _SYNC: self._look_at_syncs,
            _OTHER: self._look_at_ranges,
        }
        for category, events in self._waiting.items():
            role = _CATEGORIES.get(category.lower(), _OTHER)
            slices = [event for event in events if event.ph == "X"]
            if len(slices) < len(events) and role in (_GPU, _HOST):
                phase = next(event.ph for event in events if event.ph != "X")
                found = None if phase is ABSENT else phase
                raise ValueError(f"a {category.lower()} with ph {found!r:.40}; the profiler writes 'X'")
            looks[role](slices)
        self._waiting.clear()
        self._count = 0

    def _look_at_syncs(self, events: Sequence[Event]) -> None:
        for name, args in zip(_names(events), _noted(events), strict=True):
            if name == "Stream Wait Event" or (name == "Event Sync" and "wait_on_stream" in args):
                self.noted.append(noted_wait({**args, "stream": -1} if name == "Event Sync" else args))
            elif name in ("Event Sync", "Stream Sync", "Context Sync"):
                call = whole(args, "correlation")
                stream = -1 if name == "Context Sync" else whole(args, "stream")
                self.host_waits[call] = HostWait(whole(args, "device"), stream, call)

    def _look_at_ranges(self, events: Sequence[Event]) -> None:
        """Look at ranges of process groups, among others."""
        ranges = [event for event in events if is_collective(str(event.name))]
        for event, args in zip(ranges, _noted(ranges, {}), strict=True):
            thread = self.threads[_thread_of(event.pid, event.tid)]
            (start,), (end,) = spans([event.ts], [event.dur])
            self.inside[thread].append((int(start), int(end)))
            if nbytes := taken(args):
                begin_ns, end_ns, given = np.array([start, end, nbytes], np.int64).reshape(3, 1)
                self.collectives.add(np.array([thread]), begin_ns, end_ns, [event.name], given)

    def _look_at_operators(self, events: Sequence[Event]) -> None:
        try:
            start_ns, end_ns = _spans(events)
        except (KeyError, ValueError):  # of one that never ended the profiler makes up an end
            return self._look_at_operators([event for event in events if _ends(event)])
        pid, tid = [event.pid for event in events], [event.tid for event in events]
        usual = {*map(type, pid), *map(type, tid)} <= {int}
        thread = self.threads.of(zip(pid, tid, strict=True) if usual else map(_thread_of, pid, tid))
        names, args = _names(events), _noted(events, {})
        numbers = wholes([own.get("External id", UNNUMBERED) for own in args], "External id")
        self.operators.add(thread, start_ns, end_ns, names, numbers)
        has = [n for n, own in enumerate(args) if own.get(SEQUENCE) is not None]
        gradient = np.array([is_gradient(names[n], args[n].get(FORWARD_THREAD)) for n in has], np.int64)
        counted = wholes([args[n][SEQUENCE] for n in has], SEQUENCE)
        self._numbered.append(np.stack((thread[has], start_ns[has], counted, gradient)))

    def _look_at_calls(self, events: Sequence[Event]) -> None:
        pid = wholes([event.pid for event in events], "pid").tolist()
        tid = wholes([event.tid for event in events], "tid").tolist()
        numbers = self._names.of(_names(events)), self.threads.of(zip(pid, tid, strict=True))
        correlation = wholes([own["correlation"] for own in _noted(events)], "correlation")
        self._calls.append(np.stack((*numbers, correlation, *_spans(events))))

    def _look_at_tasks(self, events: Sequence[Event]) -> None:
        args, (start_ns, end_ns) = _noted(events), _spans(events)
        device, correlation = (
            wholes([own[key] for own in args], key).tolist() for key in ("device", "correlation")
        )
        on = [_QUEUE if _QUEUE in own else "stream" for own in args]
        stream = wholes([own[key] for own, key in zip(args, on, strict=True)], "stream").tolist()
        place = map(sys.intern, _names(events)), device, stream, correlation, start_ns.tolist()
        rows = zip(
            *place,
            (end_ns - start_ns).tolist(),
            *(map(found, args) for found in (_nbytes, _facts, _group, _collective, message)),
            wholes([own.get("Group size", 0) for own in args], "Group size").tolist(),
            map(_peer, args),
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


def _names(events: Sequence[Event]) -> Sequence[str]:
    return texts([event.name for event in events], "name")


def _spans(events: Sequence[Event]) -> tuple[IntArray, IntArray]:
    return spans([event.ts for event in events], [event.dur for event in events])


def _noted(events: Sequence[Event], otherwise: Any = ABSENT) -> Sequence[Fields]:
    """Return what is noted about each; `otherwise` of those that have nothing."""
    return all_arguments([otherwise if event.args is ABSENT else event.args for event in events])


def _ends(event: Event) -> bool:
    """Whether an operator has a begin and an end."""
    try:
        _spans([event])
    except (KeyError, ValueError):
        return False
    return True


def _thread_of(process: Any, thread: Any) -> Thread:
    """Return process and thread of an operator; of one that has none, a thread that calls nothing."""
    if type(process) is int and type(thread) is int:
        return process, thread
    known = str(process).isdecimal() and str(thread).isdecimal()
    return thread_of({"pid": process, "tid": thread}) if known else (-1, -1)


def _nbytes(args: Fields) -> int:
    return size(args, "bytes")


def _facts(args: Fields) -> dict[str, Any]:
    return {key: args[name] for key, name in _FACTS.items() if name in args}


def _group(args: Fields) -> tuple[str, str] | None:
    """Return name and ranks of the process group of a collective."""
    if "Process Group Name" not in args:
        return None
    return str(args["Process Group Name"]), str(args.get("Process Group Ranks", ""))


def _collective(args: Fields) -> str:
    """Return what PyTorch calls a collective; nothing, where it does not say it."""
    return str(args.get("Collective name", ""))


def _peer(args: Fields) -> int:
    """Return the other rank of a send or recv, by its number in the job."""
    key = _PEERS.get(_collective(args))
    return whole(args, key) if key is not None and key in args else UNSET
