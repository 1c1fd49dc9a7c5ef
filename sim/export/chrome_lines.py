"""The events of a timeline as lines of JSON, one each: a million tasks make millions of lines.

Lines are put together from strings, which is many times faster than encoding dictionaries; names are
encoded once for every op. `sim.export.chrome` says what the lines mean and wraps them in a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from sim.export.timeline import Group, Lane, Lanes, arrows, counters, groups, launch_call, rows_of, tasks_of
from sim.job.costs import issue_costs_ns
from sim.record.record import WAITS, Record

__all__ = ["lines_of"]

_FLOWS_APART: Final = 1 << 40
"""Flows of one run are numbered below this; no run has as many tasks."""


def lines_of(trace: Record, *, most: int = 20_000, run: int = 0, label: str = "") -> Iterator[str]:
    """Yield the events of one run as JSON.

    Parameters
    ----------
    trace : Trace
    most : int
        At most so many arrows from producers to consumers.
    run : int
        Number of the run in its file: processes and flows of two runs never meet.
    label : str
        What the names of its processes begin with.
    """
    lanes = Lanes(trace, run)
    yield from _names(groups(trace, lanes), lanes.base, label)
    yield from _task_lines(trace, lanes, run)
    yield from _transfer_lines(trace, lanes)
    yield from _arrow_lines(trace, lanes, run, most)
    yield from _counter_lines(trace, lanes)


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _quoted(names: Sequence[str]) -> list[str]:
    return [json.dumps(name) for name in names]


# -- names --------------------------------------------------------------------------------------


def _names(grouped: Sequence[Group], base: int, label: str) -> Iterator[str]:
    for index, (pid, name, _) in enumerate(grouped):
        shown = f"{label}: {name}" if label else name
        yield from _named("process", Lane(pid, 0), shown, base + index)
    for group in grouped:
        for lane, name in group.lanes:
            yield from _named("thread", lane, name, lane.tid - 1)


def _named(what: str, lane: Lane, name: str, index: int) -> Iterator[str]:
    yield f'{{"ph":"M","name":"{what}_name",{lane},"args":{{"name":{json.dumps(name)}}}}}'
    yield f'{{"ph":"M","name":"{what}_sort_index",{lane},"args":{{"sort_index":{index}}}}}'


# -- slices -------------------------------------------------------------------------------------


def _task_lines(trace: Record, lanes: Lanes, run: int) -> Iterator[str]:
    """Yield the slice of every task and, for a launched one, of its launch, tied together by a flow."""
    graph, machine = trace.job.graph, trace.job.machine
    names = _quoted(graph.op_names)
    facts = _facts_of_ops(trace)
    waits = [f',"waited for":"{word}"' if word else "" for word in WAITS]
    cost = issue_costs_ns(trace.job).tolist()
    place, who = [str(lane) for lane in lanes.stream], [str(lane) for lane in lanes.issuer]
    copies = [kind == "copy" for kind in graph.kinds]
    is_copy = [copies[k] for k in graph.kind_code.tolist()]
    launch = [launch_call(d, copy=False) for d in machine.devices]
    copy = [launch_call(d, copy=True) for d in machine.devices]
    worker = [d.workers > 0 for d in machine.devices]
    several = trace.job.iterations > 1
    for row, (op, n, stream, issuer, ready, issue, start, end, dead, wait, d) in enumerate(tasks_of(trace)):
        if dead:
            continue
        number = row + 1
        iteration = f',"iteration":{n}' if several else ""
        args = f'{facts[op]},"ready (us)":{_us(ready)}{iteration}{waits[wait]}'
        span = f'{place[stream]},"ts":{_us(start)},"dur":{_us(end - start)}'
        if worker[d]:
            yield (
                f'{{"ph":"X","cat":"cpu_op","name":{names[op]},{span},'
                f'"args":{{"External id":{number},{args}}}}}'
            )
            continue
        category, call = ("gpu_memcpy", copy[d]) if is_copy[op] else ("kernel", launch[d])
        tied = f'"External id":{number},"correlation":{number}'
        yield (
            f'{{"ph":"X","cat":"{category}","name":{names[op]},{span},'
            f'"args":{{{tied},"device":{d},"stream":{stream},{args}}}}}'
        )
        begin = issue - cost[op]
        yield (
            f'{{"ph":"X","cat":"cuda_runtime","name":"{call}",{who[issuer]},"ts":{_us(begin)},'
            f'"dur":{_us(issue - begin)},"args":{{{tied},"op":{names[op]}}}}}'
        )
        flow = f'"cat":"ac2g","name":"ac2g","id":{run * _FLOWS_APART + number}'
        yield f'{{"ph":"s",{flow},{who[issuer]},"ts":{_us(begin)}}}'
        yield f'{{"ph":"f","bp":"e",{flow},{place[stream]},"ts":{_us(start)}}}'


def _facts_of_ops(trace: Record) -> list[str]:
    """Return what a click on a slice shows, by op: kind, and its place in a pipeline if it has one."""
    graph = trace.job.graph
    kinds = [f'"kind":{word}' for word in _quoted(graph.kinds)]
    facts = [kinds[k] for k in graph.kind_code.tolist()]
    for name, column in (("stage", graph.stage), ("micro_batch", graph.micro_batch)):
        for op in np.flatnonzero(column >= 0).tolist():
            facts[op] += f',"{name}":{column[op]}'
    return facts


def _transfer_lines(trace: Record, lanes: Lanes) -> Iterator[str]:
    """Yield a slice for every link that a transfer crosses."""
    moved = trace.transfers
    tensors, which = np.unique(moved["tensor"], return_inverse=True)
    names = _quoted([f"transfer {trace.job.graph.tensor_name(t)}" for t in tensors.tolist()])
    name, nbytes = which.tolist(), moved["nbytes"].tolist()
    start, end = moved["start_ns"].tolist(), moved["end_ns"].tolist()
    for row, lane in zip(lanes.row, lanes.link, strict=True):
        span = f'{lane},"ts":{_us(start[row])},"dur":{_us(end[row] - start[row])}'
        args = f'"bytes":{nbytes[row]}'
        yield f'{{"ph":"X","cat":"gpu_memcpy","name":{names[name[row]]},{span},"args":{{{args}}}}}'


# -- flows and counters -------------------------------------------------------------------------


def _arrow_lines(trace: Record, lanes: Lanes, run: int, most: int) -> Iterator[str]:
    """Yield flows from producers to consumers on other lanes, through transfers; the earliest `most`."""
    rows = rows_of(trace, lanes)
    # Ids of their own, so that they do not join the flows of launches.
    first = run * _FLOWS_APART + len(trace) + 1
    for number, (p, c) in enumerate(arrows(trace, rows, most), first):
        flow = f'"cat":"data","name":"data","id":{number}'
        # A flow begins in a slice, not behind it.
        inside = max(int(rows.start_ns[p]), int(rows.end_ns[p]) - 1)
        yield f'{{"ph":"s",{flow},{rows.lane[p]},"ts":{_us(inside)}}}'
        yield f'{{"ph":"f","bp":"e",{flow},{rows.lane[c]},"ts":{_us(int(rows.start_ns[c]))}}}'


def _counter_lines(trace: Record, lanes: Lanes) -> Iterator[str]:
    for d, title, key, times, values in counters(trace):
        head = f'{{"ph":"C","name":"{title}",{lanes.device(d)},"ts":'
        tail = f',"args":{{{json.dumps(key)}:'
        for at, value in zip(times.tolist(), values.tolist(), strict=True):
            yield f"{head}{_us(at)}{tail}{value}}}}}"
