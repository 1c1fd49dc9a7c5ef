"""Read a PyTorch profiler trace event by event, and keep only what is relevant here.

Kineto writes Chrome trace events: slices (``"ph": "X"``) with ``ts`` and ``dur`` in microseconds and a
category. Four kinds of slice matter here::

    host thread    ──[cudaLaunchKernel corr 7]─[cudaStreamWaitEvent]──[cudaDeviceSynchronize      ]──
    stream 7                     └──────►[ kernel, corr 7 ][ kernel ]
    stream 20                                     [ nccl kernel             ]

``correlation`` links a task to its launch, and the time of the launch to the operator around it
(``aten::addmm``; `operators`). The categories were renamed once ("Kernel" became "kernel"); both are
read. Names of keys are Kineto's (https://github.com/pytorch/kineto, libkineto/src/output_json.cpp and
CuptiActivity.cpp).

Two of three events are irrelevant. So events are read some hundred at a time, and only the tasks, the calls
and the times of operators are kept (`taken`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from scenarios.importers.execution_graph import sizes_of
from scenarios.importers.files import items, lists
from scenarios.importers.kineto import event_columns as columns
from scenarios.importers.kineto.event_columns import EventColumns
from scenarios.importers.kineto.gradients import NODE, callers, turns
from scenarios.importers.kineto.kineto_rows import (
    Calls,
    EventWait,
    GpuTask,
    HostWait,
    RecordedTrace,
    resolve_waits,
)
from scenarios.importers.kineto.nsight_systems import is_report, read_report
from scenarios.importers.kineto.xplane import is_xplane, read_xplane
from sim.base.arrays import UNSET, IntArray, group_pairs
from sim.base.errors import InputError, in_file
from sim.base.files import StrPath
from sim.base.units import format_count

RECORD: Final = re.compile(r"(cuda|hip|cu)EventRecord")
"""The call that records an event."""
_RELEVANT: Final = re.compile(
    r"(cuda|hip|cu)\w*(Synchronize|Free|EventRecord|StreamWaitEvent)|ur(QueueFinish|EventWait)$"
)
"""Calls that may wait, or that others wait for; two of three other calls do neither."""

_QUERIES: Final = re.compile(r"(cuda|hip|cu)\w*Query")
"""Queries whether something is over, which never wait; the profiler notes those of events as waits."""

_EVENT_ERRORS: Final = (KeyError, TypeError, ValueError)


def read_events(path: StrPath, number: int = 0) -> list[RecordedTrace]:
    """Return the tasks, calls and waits of each process of a recording, in order of time.

    Parameters
    ----------
    path : path
    number : int
        Number of the job's processes before it: the first rank in a Nsight Systems recording that names none.

    Raises
    ------
    InputError
        There is no such file, it is not JSON, it has no ``traceEvents``, or an event lacks a field (with its
        index); for an SQLite database as `nsight_systems.read_report`.
    """
    if is_report(path) or is_xplane(path):
        reports = read_report(path) if is_report(path) else read_xplane(path)
        ranks = [number + n if report.rank is None else report.rank for n, report in enumerate(reports)]
        with in_file(path):
            pairs = zip(reports, ranks, strict=True)
            return [_trace(report.events, rank, None, report.gpus, report.kind) for report, rank in pairs]
    others: dict[str, Any] = {}
    collected, before = EventColumns(), 0
    for events in lists(path, "a trace", "traceEvents", others, columns.parse_events):
        try:
            collected.take(events)
        except _EVENT_ERRORS:
            raise _first_error(path, events, before) from None
        before += len(events)
    rank, world_size = _rank_and_size(path, others)
    with in_file(path):
        return [_trace(collected, rank, world_size, _names(others.get("deviceProperties")))]


def _names(properties: Any) -> dict[int, str]:
    """Return the driver's name of each GPU, by number; malformed entries are ignored."""
    entries = [p for p in properties if isinstance(p, dict)] if isinstance(properties, list) else []
    return {
        e["id"]: e["name"] for e in entries if isinstance(e.get("id"), int) and isinstance(e.get("name"), str)
    }


def _first_error(path: StrPath, events: Sequence[Any], before: int) -> InputError:
    """Return the error for the first invalid one of some events; `before` is the number of others."""
    for n, event in enumerate(events, before):
        try:
            EventColumns().take([event])
        except _EVENT_ERRORS as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            return InputError(f"{path}: traceEvents[{n}]{_event_name(event)}: {reason}")
    raise AssertionError("no event is wrong by itself")


def _event_name(event: Any) -> str:
    """Return the name of a parsed event for a message, or "" if it has none."""
    name = event.get("name") if isinstance(event, dict) else getattr(event, "name", None)
    return f" ({name:.60})" if isinstance(name, str) else ""


def _trace(
    events: EventColumns, rank: int | None, world_size: int | None, gpus: dict[int, str], kind: str = "gpu"
) -> RecordedTrace:
    """Return everything that was collected, in order."""
    threads = [*events.threads]
    tasks = sorted(events.tasks, key=lambda task: (task.start_ns, task.device, task.stream, task.correlation))
    calls, host_waits = events.calls(), events.host_waits
    waits: list[EventWait] = []
    launches = _launches(tasks, calls)
    inner = np.isin(calls.correlation, calls.correlation[launches])
    inner[launches] = False
    calls, launches = calls.only(~inner), np.searchsorted(np.flatnonzero(~inner), launches)
    _add_messages(tasks, events.collectives.around(calls, launches, minimum=1))
    operators = _operators_of(tasks, events, calls, launches)
    _add_sizes(tasks, operators, events.inputs, events.sized.around(calls, launches) if events.inputs else {})
    group_spans = group_pairs(
        (threads[thread], span)
        for ranges in (events.collectives, events.operators)
        for thread, spans in ranges.spans(columns.is_collective).items()
        for span in spans
    )
    queries = {*calls.correlation[calls.match_names(_QUERIES)].tolist()}
    host_waits = {call: wait for call, wait in host_waits.items() if call not in queries}
    records = np.sort(calls.correlation[calls.match_names(RECORD)]).tolist()
    for wait in resolve_waits(events.noted, records):
        recorded = wait.recorded if wait.recorded >= 0 else wait.asked
        if wait.call in queries:
            continue
        if wait.stream < 0:
            host_waits[wait.call] = HostWait(wait.device, wait.on_stream, recorded)
        else:
            key, source, certain = (len(waits), wait.on_stream), wait.on_stream, wait.recorded >= 0
            waits.append(EventWait(key, wait.call, wait.device, wait.stream, source, recorded, certain))
    relevant = np.isin(calls.correlation, [*calls.correlation[launches].tolist(), *host_waits])
    relevant |= calls.match_names(_RELEVANT)
    relevant[:1] = True  # the first call marks the beginning of the trace
    waits_for, uncalled = callers(
        threads, events.numbered_operators(), events.operators.spans(NODE.match), calls
    )
    attributed = waits_for or uncalled or any(name is not None for name in operators)
    in_turn = {} if attributed or len(events.numbered_operators().number) else turns(threads, calls)
    waits_for |= {thread: owner for thread, (owner, _) in in_turn.items()}
    return RecordedTrace(
        tasks,
        calls.rows(threads, relevant),
        waits,
        operators,
        host_waits,
        _enclosing_names(events, calls, np.flatnonzero(relevant)),
        {threads[thread]: threads[owner] for thread, owner in waits_for.items()},
        [threads[thread] for thread in uncalled],
        {thread: _merge_overlapping(spans) for thread, spans in group_spans.items()},
        *(rank, world_size, gpus, sum(times for _, times in in_turn.values()), kind),
    )


def _add_messages(tasks: list[GpuTask], taken_by: Mapping[int, tuple[str, int]]) -> None:
    """Add the bytes of collectives that are not noted with their kernels."""
    for i, task in enumerate(tasks):
        if task.communicates and task.message == (0, 0) and task.correlation in taken_by:
            nbytes = columns.bytes_exchanged(*taken_by[task.correlation], task.group_size)
            tasks[i] = task._replace(message=nbytes)


def _add_sizes(
    tasks: list[GpuTask],
    operators: Sequence[str | None],
    inputs: Sequence[tuple[str, bytes, bytes, bytes, bytes]],
    operator_of: Mapping[int, tuple[str, int]],
) -> None:
    """Add the sizes of the operator (from `inputs`) around a launch to the longest of its kernels."""
    longest: dict[int, int] = {}
    for i, task in enumerate(tasks):
        name, n = operator_of.get(task.correlation, ("", UNSET))
        if name and operators[i] == name:
            longest[n] = max(longest.get(n, i), i, key=lambda index: tasks[index].duration_ns)
    sizes = cache(sizes_of)
    for n, i in longest.items():
        tasks[i] = tasks[i]._replace(facts={**tasks[i].facts, **sizes(*inputs[n])})


def _operators_of(
    tasks: Sequence[GpuTask], events: EventColumns, calls: Calls, launches: IntArray
) -> list[str | None]:
    """Return the operator of each task: around its launch, or by number if that is not in the trace."""
    names = {n: name for n, (name, _) in events.operators.around(calls, launches).items()}
    launched = {*calls.correlation[launches].tolist()}
    unlaunched = {n: external for n, external in events.external.items() if n not in launched}
    if unlaunched:
        numbered = events.operators.names_by_number()
        names |= {n: numbered[external] for n, external in unlaunched.items() if external in numbered}
    return [names.get(task.correlation) for task in tasks]


def _enclosing_names(events: EventColumns, calls: Calls, rows: IntArray) -> dict[int, dict[str, str]]:
    """Return the operator and the module of calls, by correlation."""
    names_of: dict[int, dict[str, str]] = defaultdict(dict)
    for key, spans in (("operator", events.operators), ("module", events.modules.nest_names())):
        for correlation, (name, _) in spans.around(calls, rows).items():
            names_of[correlation][key] = name
    return names_of


def _launches(tasks: Sequence[GpuTask], calls: Calls) -> IntArray:
    """Return the calls that launched tasks, first ones first; a call inside another one is no second."""
    launched = {task.correlation: task for task in tasks}
    rows = np.flatnonzero(np.isin(calls.correlation, [*launched]))
    _, first, inverse = np.unique(calls.correlation[rows], return_index=True, return_inverse=True)
    first = rows[first]
    other = calls.thread[rows] != calls.thread[first[inverse]]
    for n in np.flatnonzero(other | (calls.start_ns[rows] > calls.end_ns[first[inverse]])).tolist():
        name, second_name = (calls.names[calls.name[row]] for row in (first[inverse[n]], rows[n]))
        correlation = int(calls.correlation[rows[n]])
        problem = f"{name} and {second_name} both have correlation {correlation}"
        raise InputError(
            f"{problem}, so that nobody knows which launched {launched[correlation].name:.60}; of several "
            "processes each needs a trace of its own"
        )
    return np.sort(first)


def _merge_overlapping(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order of time, those that overlap as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _rank_and_size(path: StrPath, others: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return rank and world size of what was recorded, where the trace has them."""
    info = others.get("distributedInfo", {})
    if not isinstance(info, dict):
        raise InputError(f"{path}: distributedInfo is no object but {info!r:.40}")
    if not {"rank", "world_size"} <= info.keys():
        return None, None  # a tool may add the rank alone, as Holistic Trace Analysis does
    rank, size = info["rank"], info["world_size"]
    if type(rank) is not int or type(size) is not int or not 0 <= rank < size:
        raise InputError(f"{path}: distributedInfo: rank {rank!r:.40} of {size!r:.40} is no rank of a job")
    return rank, size


# ----------------------------------------------------------------------------------------------------------
# What a Chrome trace is that no GPU's work is in, in words: many programs write that format.

_NO_GPU: Final = {
    "it has calls of the GPU's runtime but not what they launched: the profiler could not watch the GPU "
    "(CUPTI, or its permission)": ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "xpu_runtime"),
    "it is PyTorch's profile of the CPU alone: profile with ProfilerActivity.CUDA, too": (
        "cpu_op",
        "operator",
        "python_function",
    ),
    "if TensorFlow or JAX wrote it, read the .xplane.pb that their profiler writes beside it": ("", "Op"),
}
"""What categories say about a trace without tasks of a GPU; the first that holds counts."""

_MAX_SHOWN: Final = 5


def what_it_is(path: StrPath) -> str:
    """Return what to add to the message that no task of a GPU is in a trace of Chrome's format."""
    events = items(path, "a trace", "traceEvents", {})
    counted = Counter(str(event.get("cat", "")) for event in events)
    if not counted:
        return ", which has no events"
    hint = next(
        (f"; {words}" for words, found in _NO_GPU.items() if not counted.keys().isdisjoint(found)), ""
    )
    counts = [f"{n:,} {name[:40] or 'without a category'}" for name, n in counted.most_common(_MAX_SHOWN)]
    more = ", ..." if len(counted) > _MAX_SHOWN else ""
    return f"{hint} ({format_count(counted.total(), 'event')}: {', '.join(counts)}{more})"
