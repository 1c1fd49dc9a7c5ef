"""What if kernels were launched as CUDA graphs, or on more streams?

With graphs there is one launch between two synchronisations, instead of many.

::

    recorded    host  [work,a][work,b][work,c][sync  ]       graph   host  [work,abc][sync]
                gpu          a       b       c                       gpu            abc

The launches of a thread between two calls that wait for the device form one graph: a call that waits cannot
be captured, nor can a copy that the host waits for, which keeps its own launch. So does a copy from
the host: it brings data that the host has prepared (a batch, from the data loader), before the replay that
reads it. Within a graph, tasks keep the order of their streams and events, as in a capture. A replay does
not repeat the host's work between the launches: arguments are set up, and ops dispatched, once; its
work before the first launch, and after the last, stays. If the host did something else in between, the
result is an upper bound on the gain from graphs.

Sources: CUDA C++ Programming Guide, "CUDA Graphs", "Stream capture" and "Prohibited and unhandled
operations"; PyTorch, "Accelerating PyTorch with CUDA Graphs" (blog, 2021), whose replays follow copies into
static inputs. Cost of a launch: 2.5 us, and 1 ns per node, from "Constant time launch for straight-line CUDA
graphs and other performance enhancements" (NVIDIA technical blog, 2024, CUDA 12.6). The gap between kernels
of a graph is the recording's, unless another one is given.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from policies.rewrite.records import Edge, OpEntry
from scenarios.recorded import select as roles
from scenarios.recorded.program import RecordedProgram
from scenarios.recorded.select import Names
from sim.base.arrays import BoolArray, group_pairs
from sim.base.errors import InputError
from sim.base.units import format_duration
from sim.graph.graph import Graph
from sim.graph.walks import a_cycle

LAUNCH_NS: Final = 2500
"""Host time to launch a graph,"""

NODE_NS: Final = 1
"""and additional host time for each task in it."""

_FROM_HOST: Final = re.compile(r"Memcpy HtoD|CopyHostToDevice")


def with_cuda_graphs(graph: Graph, *, launch_ns: int = LAUNCH_NS, node_ns: int = NODE_NS) -> Graph:
    """Return a graph in which all launches between two synchronisations are one.

    Parameters
    ----------
    graph : Graph
    launch_ns, node_ns : int
        Host time per launch, and in addition per task in it.

    Raises
    ------
    InputError
        The recording has no launch calls.
    """
    program = RecordedProgram(graph)
    if not program.tasks_of:
        raise InputError("this recording has no launch calls of the host, so nothing can be captured")
    captured = [part for thread in program.threads.values() for part in _captured_parts(program, thread)]
    if dispatch_ns := sum(_dispatch_ns(program, part) for part in captured):
        work = f"{format_duration(dispatch_ns)} that the host worked between launches is taken for dispatch"
        reason = "which a replay does not repeat: this is the most that CUDA graphs can give"
        warnings.warn(f"{work}, {reason}", stacklevel=3)
    for part in captured:
        _merge_launches(program, part, launch_ns, node_ns)
    program.contract({name: [(first, 0)] for first, *others in captured for name in others})
    return program.graph() if captured else graph


def _captured_parts(program: RecordedProgram, thread: list[str]) -> Iterator[list[str]]:
    """Yield, for each graph, what a thread does from its first launch to its last one."""
    ops, thread_ops = program.records.ops, set(thread)
    part: list[str] = []
    length = 0  # up to and including the last launch
    for name in thread:
        is_launch = name in program.tasks_of
        kernels = (str(ops[task].attributes.get("kernel")) for task in program.tasks_of.get(name, ()))
        brings_input = any(map(_FROM_HOST.search, kernels))
        excluded = is_launch and (brings_input or program.wait_of(name) is not None)
        queued = is_launch and "recorded_wait_ns" in ops[name].attributes  # waited for the full launch queue
        waits = not queued and any(before not in thread_ops for before, _ in ops[name].after)
        if excluded or waits or ops[name].kind == "synchronize":
            if length:
                yield part[:length]
            part, length = [], 0
        elif is_launch or part:
            part.append(name)
            length = len(part) if is_launch else length
    if length:
        yield part[:length]


def _dispatch_ns(program: RecordedProgram, part: list[str]) -> int:
    """Return the host's time between the first and the last launch of a graph, other than for launching."""
    calls_ns = sum(program.call_ns(name) for name in part if name in program.tasks_of)
    before_ns = (program.records.ops[part[0]].duration_ns or 0) - program.call_ns(part[0])
    return sum(program.records.ops[name].duration_ns or 0 for name in part) - calls_ns - before_ns


def _merge_launches(program: RecordedProgram, part: list[str], launch_ns: int, node_ns: int) -> None:
    """Turn the first launch of a graph into the launch of all its tasks; the caller removes the others."""
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
# What if the kernels of a stream were spread over several streams?
#
# The order of a stream is stricter than its kernels need, and a recording seldom tells what they need. So::
#
#     kernels' reads are known                 order is kept between producer and reader, among the kernels of
#     (an execution graph)                     one operator, and along edges that do not come from the stream
#     nothing is known                         the same; kernels of different operators are assumed to be
#                                              independent, with a warning: the result is an upper bound on
#                                              the gain from streams
#
# Synchronisation calls are kept in any case: a wait for an event of the stream, or for the stream,
# waits for all its kernels so far. An op behind a wait of the stream follows what the stream waited for. A
# copy that the host waits for is the only one waited for::
#
#     recorded    stream 7   a ─ b ─ c ─ record e             2 streams    7   a ─── c ─┐
#                 stream 20                       wait e ─ d               8   b ───────┴► d
#
# A kernel goes to the stream of a kernel that it needs, else to the first free stream. A stream with
# collectives stays as it is, because the kernels of a communicator run one after another.


def on_more_streams(graph: Graph, count: int) -> Graph:
    """Return a graph with each stream split into `count`, as far as kernels are independent.

    Parameters
    ----------
    graph : Graph
    count : int
        Streams per recorded stream.

    Warns
    -----
    UserWarning
        The recording does not tell what kernels read.
    """
    if count == 1:
        return graph
    program = RecordedProgram(graph)
    communicates = {graph.op_names[op] for op in np.flatnonzero(roles.collectives(graph)).tolist()}
    ops = program.records.ops
    free: dict[str | None, int] = {}
    for device, stream in program.lanes:
        number = stream if isinstance(stream, int) else 0
        free[device] = max(free.get(device, 0), number + 1)
    guessed = changed = False
    for (device, stream), lane in list(program.lanes.items()):
        if communicates.isdisjoint(lane):
            units = _split_units([ops[name] for name in lane])
            needs, reads_known = _find_needs(program, units)
            spread = _choose_streams(units, needs, count)
            if any(spread):
                names = [stream, *range(free[device], free[device] + count - 1)]
                free[device] += count - 1
                _move_units(program, units, needs, spread, names)
                guessed, changed = guessed or not reads_known, True
    if guessed:
        problem = "streams: this recording does not tell which kernels read what others wrote"
        assumption = "kernels of different operators are taken to be independent"
        warnings.warn(f"{problem}; {assumption}: this is the most that more streams can give", stacklevel=2)
    return program.graph() if changed else graph


_Unit = list[OpEntry]
"""A task, preceded by its idle time if it has some."""


def _split_units(lane: Sequence[OpEntry]) -> list[_Unit]:
    units: list[_Unit] = []
    idle: _Unit = []
    for record in lane:
        idle.append(record)
        if record.kind != "delay":
            units.append(idle)
            idle = []
    return units


def _find_needs(program: RecordedProgram, units: Sequence[_Unit]) -> tuple[list[list[int]], bool]:
    """Return the units that each unit of a stream needs, and whether that is known from what it reads."""
    number = {record.name: n for n, unit in enumerate(units) for record in unit}
    reads = [
        {number[o] for tensor, _ in unit[-1].inputs if (o := program.owner(tensor)) in number}
        for unit in units
    ]
    known = any(reads)
    needs: list[list[int]] = []
    for n, unit in enumerate(units):
        ordered = {number[name] for record in unit for name, _ in record.after if name in number}
        operator = _operator_of(unit)
        same = n > 0 and (operator == _operator_of(units[n - 1]) if operator is not None else not known)
        needs.append(sorted({*reads[n], *(k for k in ordered if k < n - 1), *([n - 1] if same else [])}))
    return needs, known


def _operator_of(unit: _Unit) -> object:
    """Return the operator that launched a unit, if known."""
    attributes = unit[-1].attributes
    return attributes.get("operator", attributes.get("parent"))


def _choose_streams(units: Sequence[_Unit], needs: Sequence[Sequence[int]], count: int) -> list[int]:
    """Return the stream of each unit: that of one it needs, if that is last there, else the first free."""
    last, free, end, streams = [-1] * count, [0] * count, [0] * len(units), []
    for n, unit in enumerate(units):
        ready = max((end[before] for before in needs[n]), default=0)
        stream = min(range(count), key=lambda k: (last[k] not in needs[n], max(free[k], ready), k))
        last[stream] = n
        end[n] = free[stream] = max(free[stream], ready) + sum(record.duration_ns or 0 for record in unit)
        streams.append(stream)
    return streams


def _move_units(
    program: RecordedProgram,
    units: Sequence[_Unit],
    needs: Sequence[Sequence[int]],
    spread: Sequence[int],
    names: Sequence[Any],
) -> None:
    """Put units on their streams, and replace waits accordingly."""
    ops = program.records.ops
    number = {record.name: n for n, unit in enumerate(units) for record in unit}
    latest: list[dict[int, int]] = []  # for each unit: the last unit of each stream so far
    last_unit: dict[int, int] = {}
    arrived: dict[int, dict[Edge, None]] = {k: {} for k in range(len(names))}
    for n, unit in enumerate(units):
        stream, (head, *_), task = spread[n], unit, unit[-1]
        launch = program.launch_of.get(task.name)
        outside = [e for r in unit for e in r.after if e[0] not in number and e[0] != launch]
        for waiting in arrived.values():
            waiting |= dict.fromkeys(outside)
        before = [last_unit[stream]] if stream in last_unit else []
        needed = dict.fromkeys((units[b][-1].name, 0) for b in (*before, *needs[n]))
        calls = [(launch, 0)] if launch is not None else []
        head.after = list(dict.fromkeys([*calls, *needed, *arrived[stream]]))
        if head is not task:
            task.after = [*calls, (head.name, 0)]
        arrived[stream] = {}
        for record in unit:
            record.attributes = {**record.attributes, "stream": names[stream]}
        last_unit[stream] = n
        latest.append(dict(last_unit))
    own_copy = {wait: launch for launch in program.tasks_of if (wait := program.wait_of(launch)) is not None}
    for record in ops.values():
        if record.name in number or not any(edge[0] in number for edge in record.after):
            continue
        after: dict[Edge, None] = {}
        for name, distance in record.after:
            copied = name in program.tasks_of.get(own_copy.get(record.name, ""), ())
            last_units = [] if copied or name not in number else latest[number[name]].values()
            after |= dict.fromkeys((units[n][-1].name, distance) for n in last_units)
            if not last_units:
                after[name, distance] = None
        record.after = list(after)


# ----------------------------------------------------------------------------------------------------------
# What if several kernels were fused: ``fuse: [[gelu, dropout], elementwise]``.
#
# A sequence of words (`scenarios.recorded.select`) is searched for on each stream, from the left; a single
# word matches any number of consecutive kernels::
#
#     [a, b]      a b c a b    ──►    (ab) c (ab)
#     [a]         a a b a      ──►    (aa) b a
#
# The fused kernel takes as long as its parts together, without the gaps between them, or a given time.
# Copies between host and device, and collectives, cannot be fused. The fused kernel waits for all that its
# parts waited for, and is launched with the last of them, when all its inputs are there. The launch calls of
# the others are removed, and the host's work between them stays.


def fuse_kernels(
    graph: Graph, words: Sequence[str], *, duration_ns: int | None = None, host_work: bool = True
) -> Graph:
    """Return a graph in which matching consecutive kernels of a stream are fused.

    Parameters
    ----------
    graph : Graph
    words : sequence of str
        Words to search for.
    duration_ns : int, optional
        Duration of the fused kernel; default: the sum of its parts.
    host_work : bool
        Whether the host's work before the removed calls stays.

    Raises
    ------
    InputError
        A word matches no op, no matching kernels are consecutive, or none of them can be fused.
    """
    kernels = roles.tasks(graph) & ~roles.collectives(graph) & ~roles.transfers(graph)
    names, index = Names(graph), {name: i for i, name in enumerate(graph.op_names)}
    fits = [match & kernels for match in names.find_each(words)]
    program = RecordedProgram(graph)
    groups: list[Sequence[int]] = []
    separated: _Split | None = None
    successors = graph.successors.lists()
    for lane in program.lanes.values():
        tasks = [index[name] for name in lane if name in program.tasks]
        for match in _find_kernels([[bool(fit[op]) for fit in fits] for op in tasks]):
            members = [tasks[i] for i in match]
            between = _find_op_between(graph, successors, members)
            if between is None:
                groups.append(members)
            else:
                separated = separated or (members, between)
    groups, crossed = _drop_cycles(graph, groups)
    if not groups:
        blocked = separated or crossed
        if blocked is None:
            searched = f"no two of {words[0]!r}" if len(words) == 1 else f"no {', '.join(map(repr, words))}"
            raise InputError(f"{searched} stand one behind another on a stream")
        first, last, other = (graph.op_names[op] for op in (blocked[0][0], blocked[0][-1], blocked[1]))
        raise InputError(f"{first!r} and {last!r} cannot be one kernel: {other!r} comes between them")
    bypass: dict[str, list[Edge]] = {}
    for group in groups:
        bypass |= _fuse(program, [graph.op_names[op] for op in group], duration_ns)
    calls = program.without_launches(bypass, host_work=host_work)
    program.contract(bypass | calls, bypass)
    return program.graph()


def _fuse(program: RecordedProgram, members: Sequence[str], duration_ns: int | None) -> dict[str, list[Edge]]:
    """Turn the last kernel into the fused one; return the others, with what replaces them."""
    ops = program.records.ops
    parts: list[OpEntry] = [ops[name] for name in members]
    first, last = parts[0], parts[-1]
    idle = [name for part in parts[1:] if (name := program.delay_of(part)) is not None]
    before = program.delay_of(first)
    if before is not None:  # it lasts until the launch, which is now that of the last kernel
        call = program.launch_of.get(before)
        ops[before].after = [
            (program.launch_of[last.name], 0) if edge[0] == call and last.name in program.launch_of else edge
            for edge in ops[before].after
        ]
    calls = {program.launch_of.get(name) for name in members[:-1]} - {program.launch_of.get(last.name)}
    last.after = list(dict.fromkeys(edge for part in parts for edge in part.after if edge[0] not in calls))
    outside = [edge for part in parts for edge in part.inputs if program.owner(edge[0]) not in members]
    last.inputs = list(dict.fromkeys(outside))
    last.duration_ns = sum(part.duration_ns or 0 for part in parts) if duration_ns is None else duration_ns
    for fact in ("flops", "bytes_read", "bytes_written"):
        setattr(last, fact, sum(getattr(part, fact) for part in parts))
    last.kind = max(parts, key=lambda part: part.duration_ns or 0).kind if duration_ns is None else last.kind
    facts = {key: value for key, value in last.attributes.items() if key in ("stream", "operator")}
    last.attributes = {**facts, "fused": list(members)}
    return {name: [(last.name, 0)] for name in (*members[:-1], *idle)}


def _find_kernels(fits: Sequence[Sequence[bool]]) -> Iterator[list[int]]:
    """Yield the numbers of consecutive kernels that match the words."""
    start, n = 0, len(fits[0]) if fits else 0
    while start < len(fits):
        end = start
        if n == 1:
            while end < len(fits) and fits[end][0]:
                end += 1
        elif start + n <= len(fits) and all(fits[start + k][k] for k in range(n)):
            end = start + n
        if end - start > 1:
            yield list(range(start, end))
        start = max(end, start + 1)


_Split = tuple[Sequence[int], int]
"""Kernels that cannot be fused, and an op that comes between them."""


def _find_op_between(graph: Graph, successors: Sequence[Sequence[int]], members: Sequence[int]) -> int | None:
    """Return an op that must come after one of some kernels and before a later one, or None."""
    last, member_set = members[-1], set(members)
    first: dict[int, int] = {}  # for each reached op: the first op on the path after the kernels
    stack = [*members[:-1]]
    while stack:
        source = stack.pop()
        for op in successors[source]:
            if op in member_set or op in first or op > last:
                continue
            follows = successors[op]
            if graph.kind(op) == "delay" and member_set.issuperset(follows):
                continue
            first[op] = first.get(source, op)
            if not member_set.isdisjoint(follows):
                return first[op]
            stack.append(op)
    return None


def _drop_cycles(graph: Graph, groups: Sequence[Sequence[int]]) -> tuple[list[Sequence[int]], _Split | None]:
    """Return the groups of kernels that can all be fused together, and one that cannot.

    ::

        a1 ──► b2      a1 a2 fused and b1 b2 fused would wait for each other
        b1 ──► a2
    """
    remaining, blocked = list(groups), None
    edges, successors = graph.edges.within_iteration(), graph.successors.lists()
    idle = np.flatnonzero(graph.is_kind("delay")).tolist()
    while remaining:
        as_one = np.arange(len(graph))
        for members in remaining:
            as_one[members] = members[-1]
        for op in idle:  # idle time goes with the op that it delays
            if len(followers := {*as_one[successors[op]].tolist()}) == 1:
                (as_one[op],) = followers
        producer, consumer = as_one[edges.producer], as_one[edges.consumer]
        differ = producer != consumer
        pairs = zip(producer[differ].tolist(), consumer[differ].tolist(), strict=True)
        before = group_pairs((target, source) for source, target in pairs)
        if not (cycle := a_cycle(before)):
            break
        group = next(members for members in reversed(remaining) if members[-1] in cycle)
        blocked = group, next(op for op in cycle if op != group[-1])
        remaining.remove(group)
    return remaining, blocked


# ----------------------------------------------------------------------------------------------------------
# What if some ops were removed: ``remove: [DtoH, aten::dropout]``.


def remove_ops(graph: Graph, words: Sequence[str], *, host_work: bool = True) -> Graph:
    """Return a graph without the matching ops (`scenarios.recorded.select`); the order of all others stays.

    A kernel is removed with its launch call, and with unexplained idle time before it; a copy that the
    host waited for is removed with the wait.

    Parameters
    ----------
    graph : Graph
    words : sequence of str
    host_work : bool
        Whether the host's work before a call stays: a recording does not tell how much of it the call needed.

    Raises
    ------
    InputError
        A word matches no op, nothing would be left, or a rank would be missing from a remaining collective.
    """
    removed = np.any([*Names(graph).find_each(words)], axis=0)
    if removed.all():
        raise InputError("nothing is left to run")
    _refuse_partial_collectives(graph, removed)
    program = RecordedProgram(graph)
    program.drop((graph.op_names[op] for op in np.flatnonzero(removed).tolist()), host_work=host_work)
    return program.graph()


def _refuse_partial_collectives(graph: Graph, removed: BoolArray) -> None:
    """Raise if a collective would be removed from only some ranks: the others would wait, or mismatch."""
    left: dict[str, Counter[str]] = defaultdict(Counter)
    for op in graph.in_communicators:
        left[str(graph.attributes[op]["communicator"])][graph.pins[graph.pin_code[op]]] += not removed[op]
    for name, counts in left.items():
        high, low = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
        if counts[high] != counts[low]:
            raise InputError(
                f"of communicator {name!r} {low} would have {counts[low]} collectives left and {high} "
                f"{counts[high]}; remove them on all ranks"
            )
