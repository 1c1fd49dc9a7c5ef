"""What if the kernels of a stream were spread over several?

The order of a stream is more than what its kernels need, and a recording seldom tells what they need. So::

    kernels read what others wrote, by       order is kept where they do, among the kernels of one operator,
    the graph (an execution graph)           and where an edge says so that is not the stream's
    nothing of that is known                 the same; kernels of different operators are then taken to be
                                             independent, with a warning: what comes out is the most that
                                             streams can give

What calls say is kept in any case: who waits for an event of the stream, or for the stream, waits for all
kernels that were on it by then, and who comes after a wait of the stream comes after what it waited for. A
copy that the host waits for is waited for alone::

    recorded    stream 7   a ─ b ─ c ─ record e             2 streams    7   a ─── c ─┐
                stream 20                       wait e ─ d               8   b ───────┴► d

A kernel goes where the one is that it needs, else on the stream that is free first. A stream with collectives
stays as it is, as the kernels of a communicator run one after another.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from policies.rewrite.records import Edge, OpEntry
from scenarios.recorded import select as roles
from scenarios.recorded.program import RecordedProgram
from sim.graph.graph import Graph


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
