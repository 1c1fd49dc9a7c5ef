"""Collect the relevant trace events, some hundred at a time, in any order, and keep them as columns.

Two of three events are irrelevant, and most of the others are alike. So all events of a role are processed
together; if one is unusual, each is processed alone.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec
import numpy as np

from devices.describe.field_types import dtype_bits, sized_dtype
from scenarios.importers.execution_graph import is_sized
from scenarios.importers.kineto.gradients import (
    FORWARD_THREAD,
    SEQUENCE,
    UNNUMBERED,
    Numbered,
    Operators,
    is_gradient,
)
from scenarios.importers.kineto.kineto_rows import Calls, GpuTask, HostWait, Noted, Thread
from sim.base.arrays import LATEST_NS, UNSET, Codes, IntArray

# ----------------------------------------------------------------------------------------------------------
# Fields of trace events, one or many at a time; errors name the key and the value found.
#
# Checking whether a whole column is as usual takes a twentieth of the time; if it is not, each value is.

Fields = Mapping[str, Any]

ABSENT: Final[Any] = object()
"""A missing value."""
_EXACT_US: Final = 2.0**52
"""Below this number of microseconds both the whole part and the fraction are exact."""
_NEARLY_HALF: Final = 0.499


def arguments(event: Fields) -> Fields:
    """Return the ``args`` of an event."""
    return all_arguments([event["args"]])[0]


def text(event: Fields, key: str) -> str:
    """Return a name; names are interned, because there are few."""
    return sys.intern(texts([event[key]], key)[0])


def _require(value: Any, key: str) -> Any:
    """Return a value; KeyError if it is missing."""
    if value is ABSENT:
        raise KeyError(key)
    return value


def thread_of(event: Fields) -> tuple[int, int]:
    """Return process and thread."""
    return whole(event, "pid"), whole(event, "tid")


def span(event: Fields) -> tuple[int, int]:
    """Return begin and end in ns."""
    (start,), (end,) = spans([event["ts"]], [event["dur"]])
    return int(start), int(end)


def whole(record: Fields, key: str) -> int:
    """Return a whole number of 64 bits, also if given as text."""
    return _whole(record[key], key)


def _whole(value: Any, key: str) -> int:
    number: int = _require(value, key)
    if type(value) is not int:
        is_text = isinstance(value, str) and value.removeprefix("-").isdecimal()
        is_whole = is_text or (isinstance(value, float) and value.is_integer())
        number = int(value) if is_whole else 2**63
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{key}: {value!r:.40} is no whole number of 64 bits")
    return number


def size(record: Fields, key: str, width: int = 1) -> int:
    """Return a number of bytes, of elements with `width` bytes; 0: not noted."""
    nbytes = width * whole(record, key) if key in record else 0
    if not 0 <= nbytes < 2**63:
        raise ValueError(f"{key}: {record[key]!r:.40} elements of {width} bytes are no size of 64 bits")
    return nbytes


def whole_ns(value: Any, key: str) -> int:
    """Return a time in microseconds as whole ns, rounded half up, exactly."""
    if type(_require(value, key)) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{key}: {value!r:.40} is no time in microseconds")
    numerator, denominator = map(int, value.as_integer_ratio())
    return min((2000 * numerator + denominator) // (2 * denominator), LATEST_NS + 1)


# -- columns of values ----------------------------------------------------------------------------


def texts(values: Sequence[Any], key: str) -> Sequence[str]:
    """Return names, like `text`."""
    for value in values if not {*map(type, values)} <= {str} else ():
        if not isinstance(_require(value, key), str):
            raise ValueError(f"{key} is no text but {value!r:.40}")
    return values


def all_arguments(values: Sequence[Any]) -> Sequence[Fields]:
    """Return the ``args`` of events, like `arguments`."""
    for value in values if not {*map(type, values)} <= {dict} else ():
        if not isinstance(_require(value, "args"), dict):
            raise ValueError(f"args is no object but {value!r:.40}")
    return values


def wholes(values: Sequence[Any], key: str) -> IntArray:
    """Return whole numbers, like `whole`."""
    if {*map(type, values)} <= {int}:
        with suppress(OverflowError):
            return np.array(values, np.int64)
    return np.array([_whole(value, key) for value in values], np.int64)


def spans(begins: Sequence[Any], lengths: Sequence[Any]) -> tuple[IntArray, IntArray]:
    """Return begins and ends in ns."""
    start, length = _all_ns(begins, "ts"), _all_ns(lengths, "dur")
    if (start > LATEST_NS - length).any():
        raise ValueError(f"ends after {LATEST_NS // 1000} us")
    return start, start + length


def _all_ns(values: Sequence[Any], key: str) -> IntArray:
    """Return times like `whole_ns`."""
    us = np.array(values if {*map(type, values)} <= {int, float} else [-1], np.float64)
    if not ((us >= 0) & (us < _EXACT_US)).all():
        return np.array([whole_ns(value, key) for value in values], np.int64)
    whole_us = np.floor(us)
    part = 1000 * (us - whole_us)  # rounded, but by far less than the distance to the next half
    rounded = np.floor(part + 0.5)
    in_ns: IntArray = 1000 * whole_us.astype(np.int64) + rounded.astype(np.int64)
    for n in np.flatnonzero(np.abs(part - rounded) >= _NEARLY_HALF).tolist():
        in_ns[n] = whole_ns(values[n], key)
    return in_ns


# ----------------------------------------------------------------------------------------------------------
# Parse trace events without irrelevant members: most of what a profiler notes is skipped.
#
# msgspec builds only the members of `Event`, and takes a third of the time of `json`, with the same
# result. Where it disagrees on what JSON is (``NaN``, half a character), or finds
# something unexpected, `json` decides.

_ARGS: Final = (
    *("External id", "external id", "Sequence number", "Fwd thread id", "correlation", "device", "stream"),
    *("sycl queue", "bytes", "grid", "block", "registers per thread", "shared memory"),
    *("wait_on_stream", "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id"),
    *("Process Group Name", "Process Group Ranks", "Group size", "Collective name", "dtype"),
    *("In msg nelems", "Out msg nelems", "Src Rank", "Dst Rank"),
)
_INPUTS: Final = "Input Dims", "Concrete Inputs", "Input type", "Input Strides"
if TYPE_CHECKING:
    Args = Mapping[str, Any]
else:
    Args = TypedDict(
        "Args", {**dict.fromkeys(_ARGS, Any), **dict.fromkeys(_INPUTS, msgspec.Raw)}, total=False
    )
"""Members read from the ``args`` of an event; `parse_member` parses those that few events need."""


class Event(msgspec.Struct, gc=False):
    """The members read from an event; `ABSENT`, or no category, if missing."""

    cat: str = ""
    ph: Any = ABSENT
    name: Any = ABSENT
    pid: Any = ABSENT
    tid: Any = ABSENT
    ts: Any = ABSENT
    dur: Any = ABSENT
    args: Args = ABSENT


_JSON: Final = {dict, list, str, int, float, bool, type(None)}
"""The type of a value parsed by `json`."""
_decode: Final = msgspec.json.Decoder(list[Event]).decode


def parse_events(text: bytes) -> list[Any]:
    """Parse a list of events, into `Event` or dictionaries."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return json.loads(text)  # type: ignore[no-any-return]


def as_events(values: Sequence[Any]) -> Sequence[Event]:
    """Return parsed values as events; ValueError if one is not an object, or its category is not text."""
    return values if _JSON.isdisjoint(map(type, values)) else [_event(value) for value in values]


def _event(value: Any) -> Event:
    """Return an event as `json` parsed it."""
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__} is no event")
    if "cat" in value:
        text(value, "cat")
    return Event(**{member: value[member] for member in Event.__struct_fields__ if member in value})


def parse_member(value: Any) -> Any:
    """Return the parsed value of a member that few events need."""
    return value if value is None or isinstance(value, list) else json.loads(bytes(value))


# ----------------------------------------------------------------------------------------------------------
# Bytes that a collective takes and gives, from the profiler's notes.
#
# Newer recordings note them with the kernel (``In msg nelems``, ``Out msg nelems``, ``dtype``). Older ones
# note the input shapes, with the range in which the process group launched the kernel:
#
#     thread    [c10d::allreduce_ ... [nccl:all_reduce, Input Dims [[394241]], Input type ["float"]     ] ]
#                                              [cudaLaunchKernel]
#
# Sources: PyTorch, torch/csrc/distributed/c10d/ParamCommsUtils.hpp and ProcessGroupNCCL.cpp (``initWork``);
# names of types: c10/core/ScalarType.h, and as C++ spells them.


def _element_bytes(dtype: object) -> int:
    """Return the bytes of an element; 0: unknown."""
    name = sized_dtype(str(dtype))
    return 0 if name is None else dtype_bits(name) // 8


def message(args: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bytes that a kernel takes and gives, if noted with it."""
    if "dtype" not in args:
        return 0, 0
    width = _element_bytes(args["dtype"])
    return size(args, "In msg nelems", width), size(args, "Out msg nelems", width)


def bytes_taken(args: Mapping[str, Any]) -> int:
    """Return the bytes of a collective's input, from the notes of its range; 0: unknown.

    Examples
    --------
    >>> bytes_taken({"Input Dims": [[3, 4], [2]], "Input type": ["c10::Half", "int"]})
    32
    """
    shapes, types = (parse_member(args.get(key)) for key in ("Input Dims", "Input type"))
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != len(types):
        return 0
    sizes = [_element_bytes(type_) * _elements(shape) for shape, type_ in zip(shapes, types, strict=True)]
    return sum(sizes) if all(sizes) else 0


def _elements(shape: Any) -> int:
    plain = isinstance(shape, list) and all(type(length) is int and length > 0 for length in shape)
    return min(math.prod(shape), 2**53) if plain else 0


def bytes_exchanged(name: str, into: int, ranks: int) -> tuple[int, int]:
    """Return the bytes that a collective takes and gives, from its name and its input; 0: unknown.

    Examples
    --------
    >>> bytes_exchanged("nccl:all_reduce", 8, 0), bytes_exchanged("nccl:_all_gather_base", 8, 4)
    ((8, 8), (8, 32))
    """
    if "gather" in name:
        # The size of a gathering collective is that of its output.
        return (into, min(into * ranks, 2**53)) if ranks else (0, 0)
    return into, into if re.search(r"all_?reduce|broadcast", name) else 0


# ----------------------------------------------------------------------------------------------------------

_EVENT, _RECORD = "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id"

_QUEUE: Final = "sycl queue"
"""The equivalent of streams on Intel's GPUs."""
_COLLECTIVE: Final = ("c10d::", "nccl:", "record_param_comms")
"""Prefixes of operators in which a process group launches its kernels."""
_FACTS: Final = {
    "grid": "grid", "block": "block", "registers": "registers per thread", "shared_memory": "shared memory",
}  # fmt: skip
"""Our names of the recorded properties of a kernel."""
_UNKNOWN: Final = [0, 0, 0]
"""A grid or block that ROCm did not tell the profiler."""
_MODULE: Final = "nn.Module: "
"""Prefix of a module's call in the profiler's stack of Python functions."""
_STEP: Final = "ProfilerStep#"
_PEERS: Final = {"send": "Dst Rank", "recv": "Src Rank"}
"""Keys of the peer rank (PyTorch, torch/csrc/profiler/util.cpp, ``saveNcclMeta``)."""


class EventColumns:
    """Collects events and keeps what is relevant.

    Attributes
    ----------
    tasks : list of GpuTask
    threads : Codes of Thread
        Threads of calls and operators, with their numbers.
    noted : list of Noted
    host_waits : dict
        By correlation of the call.
    operators, collectives : Operators
        All operators; ranges of process groups that are no operators, with their input bytes as numbers.
    modules : Operators
        Calls of modules, and ranges that the program named.
    sized : Operators
        Those whose inputs determine sizes (`execution_graph.is_sized`), with their positions in `inputs`.
    inputs : list of tuples
        For each: its name, and as JSON its ``Input Dims``, ``Concrete Inputs``, ``Input type`` and ``Input
        Strides``, if noted.
    external : dict
        Task → number of its operator, if it has one of its own.
    """

    def __init__(self) -> None:
        self.tasks: list[GpuTask] = []
        self.threads: Codes[Thread] = Codes()
        self.noted: list[Noted] = []
        self.host_waits: dict[int, HostWait] = {}
        self.operators, self.collectives, self.sized = Operators(), Operators(), Operators()
        self.modules = Operators()
        self.inputs: list[tuple[str, bytes, bytes, bytes, bytes]] = []
        self.external: dict[int, int] = {}
        self._calls, self._numbered = Operators(), [np.zeros((4, 0), np.int64)]

    def take(self, values: Sequence[Any]) -> None:
        """Keep what is relevant in some parsed events; the more at once, the faster.

        Raises
        ------
        KeyError, TypeError, ValueError
            An event lacks a required member.
        """
        of_category = defaultdict[str, list[Event]](list)
        for event in as_events(values):
            of_category[event.cat].append(event)
        for category, events in of_category.items():
            handle = _HANDLERS.get(category.lower(), EventColumns._look_at_ranges)
            slices = [event for event in events if event.ph == "X"]
            if len(slices) < len(events) and handle in (
                EventColumns._look_at_tasks,
                EventColumns._look_at_calls,
            ):
                phase = next(event.ph for event in events if event.ph != "X")
                written = None if phase is ABSENT else phase
                raise ValueError(f"a {category.lower()} with ph {written!r:.40}; the profiler writes 'X'")
            handle(self, slices)

    def _look_at_syncs(self, events: Sequence[Event]) -> None:
        for name, args in zip(_names(events), _notes_of(events), strict=True):
            if name == "Stream Wait Event" or (name == "Event Sync" and "wait_on_stream" in args):
                self.noted.append(noted_wait({**args, "stream": -1} if name == "Event Sync" else args))
            elif name in ("Event Sync", "Stream Sync", "Context Sync"):
                call = whole(args, "correlation")
                stream = -1 if name == "Context Sync" else whole(args, "stream")
                self.host_waits[call] = HostWait(whole(args, "device"), stream, call)

    def _look_at_ranges(self, events: Sequence[Event]) -> None:
        """Process ranges of process groups, modules, and ranges that the program named."""
        named = [event for event in events if _is_named(event) and _ends(event)]
        if named:
            names = [str(event.name).removeprefix(_MODULE) for event in named]
            self._add(self.modules, named, names, [UNNUMBERED] * len(named))
        ranges = [event for event in events if is_collective(str(event.name))]
        if ranges:
            names = [str(event.name) for event in ranges]
            self._add(self.collectives, ranges, names, map(bytes_taken, _notes_of(ranges, {})))

    def _add(
        self, target: Operators, events: Sequence[Event], names: Iterable[str], numbers: Iterable[int]
    ) -> None:
        threads = self.threads.of(operator_thread(event.pid, event.tid) for event in events)
        target.add(threads, *_spans(events), names, np.array([*numbers], np.int64))

    def _look_at_operators(self, events: Sequence[Event]) -> None:
        try:
            start_ns, end_ns = _spans(events)
        except (KeyError, ValueError):  # the profiler invents an end for an operator that never ended
            return self._look_at_operators([event for event in events if _ends(event)])
        thread = self.threads.of(operator_thread(event.pid, event.tid) for event in events)
        names, args = _names(events), _notes_of(events, {})
        numbers = wholes([notes.get("External id", UNNUMBERED) for notes in args], "External id")
        self.operators.add(thread, start_ns, end_ns, names, numbers)
        sized = [n for n, name in enumerate(names) if "Input Dims" in args[n] and is_sized(name)]
        if sized:
            positions = np.arange(len(self.inputs), len(self.inputs) + len(sized))
            sized_names = [names[n] for n in sized]
            noted = ([_copy_member(args[n].get(key)) for n in sized] for key in _INPUTS)
            self.inputs += zip(sized_names, *noted, strict=True)
            self.sized.add(thread[sized], start_ns[sized], end_ns[sized], sized_names, positions)
        numbered = [n for n, notes in enumerate(args) if notes.get(SEQUENCE) is not None]
        gradient = np.array([is_gradient(names[n], args[n].get(FORWARD_THREAD)) for n in numbered], np.int64)
        counted = wholes([args[n][SEQUENCE] for n in numbered], SEQUENCE)
        self._numbered.append(np.stack((thread[numbered], start_ns[numbered], counted, gradient)))

    def _look_at_calls(self, events: Sequence[Event]) -> None:
        pid = wholes([event.pid for event in events], "pid").tolist()
        tid = wholes([event.tid for event in events], "tid").tolist()
        correlation = _launch_numbers(_notes_of(events))
        self.add_calls(_names(events), zip(pid, tid, strict=True), correlation, *_spans(events))

    def add_calls(
        self,
        names: Iterable[str],
        threads: Iterable[Thread],
        correlation: IntArray,
        start_ns: IntArray,
        end_ns: IntArray,
    ) -> None:
        """Keep calls, in any order."""
        self._calls.add(self.threads.of(threads), start_ns, end_ns, names, correlation)

    def _look_at_tasks(self, events: Sequence[Event]) -> None:
        args, (start_ns, end_ns) = _notes_of(events), _spans(events)
        pairs = [*zip(args, events, strict=True)]
        device = wholes([notes.get("device", event.pid) for notes, event in pairs], "device").tolist()
        correlation = _launch_numbers(args).tolist()
        stream_keys = [_QUEUE if _QUEUE in notes else "stream" for notes in args]
        stream = [notes.get(key, event.tid) for key, (notes, event) in zip(stream_keys, pairs, strict=True)]
        stream = wholes(stream, "stream").tolist()
        columns = map(sys.intern, _names(events)), device, stream, correlation, start_ns.tolist()
        rows = zip(*columns, (end_ns - start_ns).tolist(), strict=True)
        self.tasks += (GpuTask(*row, *_task_fields(notes)) for row, notes in zip(rows, args, strict=True))
        for key in ("External id", "external id"):
            hits = [n for n, notes in enumerate(args) if key in notes]
            for n, external in zip(hits, wholes([args[n][key] for n in hits], key).tolist(), strict=True):
                if external != correlation[n]:
                    self.external[correlation[n]] = external

    def calls(self) -> Calls:
        """Return the calls, in order of time, then of threads and numbers, outer calls first."""
        thread, start_ns, end_ns, name, correlation = self._calls.columns()
        rank = np.argsort(
            np.array(sorted(range(len(self.threads)), key=[*self.threads].__getitem__), np.int64)
        )
        order = np.lexsort((-end_ns, correlation, rank[thread], start_ns))
        columns = name, thread, correlation, start_ns, end_ns
        return Calls([*self._calls.words], *(column[order] for column in columns))

    def numbered_operators(self) -> Numbered:
        """Return the operators with sequence numbers."""
        return Numbered(*np.concatenate(self._numbered, axis=1))


_HANDLERS: Final = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"), EventColumns._look_at_tasks),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime", "hip_runtime"), EventColumns._look_at_calls),
    **dict.fromkeys(("xpu_runtime", "xpu_driver"), EventColumns._look_at_calls),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver"), EventColumns._look_at_calls),
    **dict.fromkeys(("cpu_op", "operator"), EventColumns._look_at_operators),
    "cuda_sync": EventColumns._look_at_syncs,
}
"""What looks at the events of a category."""

# -- one event ------------------------------------------------------------------------------------


def is_collective(name: str) -> bool:
    """Whether a process group launches its kernels in operators, or ranges, of this name."""
    return name.startswith(_COLLECTIVE)


def _is_named(event: Event) -> bool:
    """Whether an event is the call of a module, or a range that the program named."""
    name = str(event.name)
    if event.cat == "user_annotation":
        return not name.startswith(_STEP) and not is_collective(name)
    return name.startswith(_MODULE)


def _names(events: Sequence[Event]) -> Sequence[str]:
    return texts([event.name for event in events], "name")


def _spans(events: Sequence[Event]) -> tuple[IntArray, IntArray]:
    return spans([event.ts for event in events], [event.dur for event in events])


def _notes_of(events: Sequence[Event], otherwise: Any = ABSENT) -> Sequence[Fields]:
    """Return the notes of each event, or `otherwise` if it has none."""
    return all_arguments([otherwise if event.args is ABSENT else event.args for event in events])


def _launch_numbers(args: Sequence[Fields]) -> IntArray:
    """Return the number of each call and its tasks; old Kineto for ROCm notes nothing but ``External id``."""
    return wholes([note.get("correlation", note.get("External id", ABSENT)) for note in args], "correlation")


def _copy_member(value: Any) -> bytes:
    """Return a member as JSON, independent of the events' text; empty if it is missing."""
    if value is None:
        return b""
    return bytes(value) if isinstance(value, msgspec.Raw) else json.dumps(value).encode()


def _ends(event: Event) -> bool:
    """Whether an operator has a begin and an end."""
    try:
        _spans([event])
    except (KeyError, ValueError):
        return False
    return True


def operator_thread(process: Any, thread: Any) -> Thread:
    """Return process and thread of an operator; if missing, a thread that calls nothing."""
    if type(process) is int and type(thread) is int:
        return process, thread
    numeric = str(process).isdecimal() and str(thread).isdecimal()
    return thread_of({"pid": process, "tid": thread}) if numeric else (-1, -1)


def noted_wait(args: Mapping[str, Any]) -> Noted:
    """Return the notes of a wait; KeyError or ValueError if it lacks a required one."""
    device, stream, call = (whole(args, key) for key in ("device", "stream", "correlation"))
    event = whole(args, _EVENT) if _EVENT in args else None
    recorded = whole(args, _RECORD) if _RECORD in args or event is None else -1
    return Noted(call, device, stream, whole(args, "wait_on_stream"), recorded, event, call)


def _task_fields(args: Fields) -> tuple[Any, ...]:
    """Return the fields of a `GpuTask` from `nbytes` on."""
    facts = {key: args[name] for key, name in _FACTS.items() if args.get(name, _UNKNOWN) != _UNKNOWN}
    group = None
    if "Process Group Name" in args:
        group = str(args["Process Group Name"]), str(args.get("Process Group Ranks", ""))
    ranks = whole(args, "Group size") if "Group size" in args else 0
    called = str(args.get("Collective name", ""))
    peer = whole(args, _PEERS[called]) if _PEERS.get(called) in args else UNSET
    return size(args, "bytes"), facts, group, called, message(args), ranks, peer
