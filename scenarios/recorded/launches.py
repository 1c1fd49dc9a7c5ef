"""What if kernels were launched as CUDA graphs, or on more streams?

As graphs there is one launch between two synchronisations, instead of many.

::

    recorded    host  [work,a][work,b][work,c][sync  ]       graph   host  [work,abc][sync]
                gpu          a       b       c                       gpu            abc

What a thread launches between two calls that wait for the device is one graph: a call that waits cannot be
captured, nor can a copy that the host waits for, whose launch stays by itself. So does that of a copy from
the host: it brings what the host has made by then (a batch, from the data loader), before the replay that
reads it. Within a graph, tasks have the order of their streams and events, as a capture has. A replay does
not execute what the host did between the launches: arguments are set up, and ops dispatched, once; what it
did before the first launch, and after the last, stays. If it did something else in between, this is the
most that graphs can give.

Sources: CUDA C++ Programming Guide, "CUDA Graphs", "Stream capture" and "Prohibited and unhandled
operations"; PyTorch, "Accelerating PyTorch with CUDA Graphs" (blog, 2021), whose replays follow copies into
static inputs. A launch: 2.5 us, and 1 ns a node, by "Constant time launch for straight-line CUDA graphs and
other performance enhancements" (NVIDIA technical blog, 2024, CUDA 12.6). The gap between the kernels of a
graph is the recording's, if no other is given.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

from policies.rewrite.records import Edge, OpEntry
from scenarios.recorded import select as roles
from scenarios.recorded.program import RecordedProgram
from sim.base.errors import InputError
from sim.base.units import format_duration
from sim.graph.graph import Graph

LAUNCH_NS: Final = 2500
"""What launching a graph costs the host,"""

NODE_NS: Final = 1
"""and how much more each task in it."""

_FROM_HOST: Final = re.compile(r"Memcpy HtoD|CopyHostToDevice")


def with_cuda_graphs(graph: Graph, *, launch_ns: int = LAUNCH_NS, node_ns: int = NODE_NS) -> Graph:
    """Return a graph in which launches between synchronisations are one.

    Parameters
    ----------
    graph : Graph
    launch_ns, node_ns : int
        What the host takes for a launch, and besides for each task in it.

    Raises
    ------
    InputError
        The recording has no launch calls.
    """
    program = RecordedProgram(graph)
    if not program.tasks_of:
        raise InputError("this recording has no launch calls of the host, so nothing can be captured")
    captured = [part for thread in program.threads.values() for part in _captured(program, thread)]
    if gone_ns := sum(_dispatch_ns(program, part) for part in captured):
        warnings.warn(
            f"{format_duration(gone_ns)} that the host worked between launches is taken for dispatch, "
            "which a replay does not repeat: this is the most that CUDA graphs can give",
            stacklevel=3,
        )
    for part in captured:
        _as_one_launch(program, part, launch_ns, node_ns)
    program.contract({name: [(first, 0)] for first, *others in captured for name in others})
    return program.graph() if captured else graph


def _captured(program: RecordedProgram, thread: list[str]) -> Iterator[list[str]]:
    """Yield what a thread does from the first launch of each graph to its last one."""
    ops, mine = program.records.ops, set(thread)
    part: list[str] = []
    length = 0  # up to the last launch
    for name in thread:
        is_launch = name in program.tasks_of
        alone = is_launch and (program.wait_of(name) is not None or _brings_input(program, name))
        queued = is_launch and "recorded_wait_ns" in ops[name].attributes  # in a full launch queue
        waits = not queued and any(before not in mine for before, _ in ops[name].after)
        if alone or waits or ops[name].kind == "synchronize":
            if length:
                yield part[:length]
            part, length = [], 0
        elif is_launch or part:
            part.append(name)
            length = len(part) if is_launch else length
    if length:
        yield part[:length]


def _dispatch_ns(program: RecordedProgram, part: list[str]) -> int:
    """Return what the host does between the first launch of a graph and its last one, but for launching."""
    calls_ns = sum(program.call_ns(name) for name in part if name in program.tasks_of)
    before_ns = (program.records.ops[part[0]].duration_ns or 0) - program.call_ns(part[0])
    return sum(program.records.ops[name].duration_ns or 0 for name in part) - calls_ns - before_ns


def _brings_input(program: RecordedProgram, launch: str) -> bool:
    """Whether a launch copies from the host."""
    tasks = (program.records.ops[name] for name in program.tasks_of[launch])
    return any(_FROM_HOST.search(str(task.attributes.get("kernel"))) is not None for task in tasks)


def _as_one_launch(program: RecordedProgram, part: list[str], launch_ns: int, node_ns: int) -> None:
    """Make the first launch of a graph the one of all its tasks; the others have to go."""
    first = part[0]
    record = program.records.ops[first]
    nodes = sum(len(program.tasks_of.get(name, ())) for name in part)
    call_ns = launch_ns + node_ns * nodes
    record.duration_ns = (record.duration_ns or 0) - program.call_ns(first) + call_ns
    record.attributes = {**record.attributes, "call": "cudaGraphLaunch", "call_ns": call_ns}
    if "recorded_wait_ns" in record.attributes:  # a graph takes one place in the launch queue
        del record.attributes["recorded_wait_ns"]
        record.after = [edge for edge in record.after if edge[0] not in program.tasks]
    program.end_call(part[-1])


# ----------------------------------------------------------------------------------------------------------
# What if the kernels of a stream were spread over several?
#
# The order of a stream is more than what its kernels need, and a recording seldom tells what they need. So::
#
#     kernels read what others wrote, by       order is kept where they do, among the kernels of one operator,
#     the graph (an execution graph)           and where an edge says so that is not the stream's
#     nothing of that is known                 the same; kernels of different operators are then taken to be
#                                              independent, with a warning: what comes out is the most that
#                                              streams can give
#
# What calls say is kept in any case: who waits for an event of the stream, or for the stream, waits for all
# kernels that were on it by then, and who comes after a wait of the stream comes after what it waited for. A
# copy that the host waits for is waited for alone::
#
#     recorded    stream 7   a ─ b ─ c ─ record e             2 streams    7   a ─── c ─┐
#                 stream 20                       wait e ─ d               8   b ───────┴► d
#
# A kernel goes where the one is that it needs, else on the stream that is free first. A stream with
# collectives stays as it is, as the kernels of a communicator run one after another.


def on_more_streams(graph: Graph, count: int) -> Graph:
    """Return a graph whose streams are `count` each, where kernels are independent.

    Parameters
    ----------
    graph : Graph
    count : int
        Streams for each one that was recorded.

    Warns
    -----
    UserWarning
        What kernels read is not known.
    """
    if count == 1:
        return graph
    program = RecordedProgram(graph)
    communicates = {graph.op_names[op] for op, found in enumerate(roles.collectives(graph).tolist()) if found}
    ops = program.records.ops
    free: dict[str | None, int] = {}
    for device, stream in program.lanes:
        number = stream if isinstance(stream, int) else 0
        free[device] = max(free.get(device, 0), number + 1)
    guessed = changed = False
    for (device, stream), lane in list(program.lanes.items()):
        if communicates.isdisjoint(lane):
            units = _units([ops[name] for name in lane])
            needs, known = _needs(program, units)
            spread = _spread(units, needs, count)
            if any(spread):
                names = [stream, *range(free[device], free[device] + count - 1)]
                free[device] += count - 1
                _move(program, units, needs, spread, names)
                guessed, changed = guessed or not known, True
    if guessed:
        warnings.warn(
            "streams: this recording does not tell which kernels read what others wrote; kernels of different"
            " operators are taken to be independent, so this is the most that more streams can give",
            stacklevel=2,
        )
    return program.graph() if changed else graph


_Unit = list[OpEntry]
"""A task, after the idle time before it."""


def _units(lane: Sequence[OpEntry]) -> list[_Unit]:
    units: list[_Unit] = []
    idle: _Unit = []
    for record in lane:
        idle.append(record)
        if record.kind != "delay":
            units.append(idle)
            idle = []
    return units


def _needs(program: RecordedProgram, units: Sequence[_Unit]) -> tuple[list[list[int]], bool]:
    """Return which units of a stream each needs, and whether that is known by what it reads."""
    number = {record.name: n for n, unit in enumerate(units) for record in unit}
    reads = [
        {number[o] for tensor, _ in unit[-1].inputs if (o := program.owner(tensor)) in number}
        for unit in units
    ]
    known = any(reads)
    needs: list[list[int]] = []
    for n, unit in enumerate(units):
        told = {number[name] for record in unit for name, _ in record.after if name in number}
        operator, before = (_operator(units[k]) if k >= 0 else None for k in (n, n - 1))
        same = n > 0 and (operator == before if operator is not None else not known)
        needs.append(sorted({*reads[n], *(k for k in told if k < n - 1), *([n - 1] if same else [])}))
    return needs, known


def _operator(unit: _Unit) -> object:
    """Return what launched a unit, if that is known."""
    own = unit[-1].attributes
    return own.get("operator", own.get("parent"))


def _spread(units: Sequence[_Unit], needs: Sequence[Sequence[int]], count: int) -> list[int]:
    """Return the stream of each unit: that of one it needs, if it is the last there, else the first free."""
    last, until, end, found = [-1] * count, [0] * count, [0] * len(units), []
    for n, unit in enumerate(units):
        ready = max((end[before] for before in needs[n]), default=0)
        stream = min(range(count), key=lambda k: (last[k] not in needs[n], max(until[k], ready), k))
        last[stream] = n
        end[n] = until[stream] = max(until[stream], ready) + sum(record.duration_ns or 0 for record in unit)
        found.append(stream)
    return found


def _move(
    program: RecordedProgram,
    units: Sequence[_Unit],
    needs: Sequence[Sequence[int]],
    spread: Sequence[int],
    names: Sequence[Any],
) -> None:
    """Put units on their streams, and let everybody wait for what they waited for."""
    ops = program.records.ops
    number = {record.name: n for n, unit in enumerate(units) for record in unit}
    latest: list[dict[int, int]] = []  # of each unit: the last one of each stream by then
    now: dict[int, int] = {}
    arrived: dict[int, dict[Edge, None]] = {k: {} for k in range(len(names))}
    for n, unit in enumerate(units):
        stream, (head, *_), task = spread[n], unit, unit[-1]
        launch = program.launch_of.get(task.name)
        outside = [e for r in unit for e in r.after if e[0] not in number and e[0] != launch]
        for waiting in arrived.values():
            waiting |= dict.fromkeys(outside)
        before = [now[stream]] if stream in now else []
        needed = dict.fromkeys((units[b][-1].name, 0) for b in (*before, *needs[n]))
        calls = [(launch, 0)] if launch is not None else []
        head.after = list(dict.fromkeys([*calls, *needed, *arrived[stream]]))
        if head is not task:
            task.after = [*calls, (head.name, 0)]
        arrived[stream] = {}
        for record in unit:
            record.attributes = {**record.attributes, "stream": names[stream]}
        now[stream] = n
        latest.append(dict(now))
    own_copy = {wait: launch for launch in program.tasks_of if (wait := program.wait_of(launch)) is not None}
    for record in ops.values():
        if record.name in number or not any(edge[0] in number for edge in record.after):
            continue
        after: dict[Edge, None] = {}
        for name, distance in record.after:
            copied = name in program.tasks_of.get(own_copy.get(record.name, ""), ())
            behind = [] if copied or name not in number else latest[number[name]].values()
            after |= dict.fromkeys((units[n][-1].name, distance) for n in behind)
            after |= {} if behind else {(name, distance): None}
        record.after = list(after)
