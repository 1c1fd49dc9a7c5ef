"""The events of a timeline as lines of JSON, one each: a million tasks make millions of lines.

Lines are put together from strings, which is many times faster than encoding dictionaries; names are
encoded once for every op. `sim.export.chrome` says what the lines mean and wraps them in a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from sim.bounds import issue_costs_ns
from sim.dependencies import dependencies
from sim.explain import final_waits
from sim.graph import IntArray
from sim.intervals import levels
from sim.memory_use import memory_use
from sim.metrics import transfers_on_links
from sim.trace import WAITS, Trace

__all__ = ["lines_of"]

_HOSTS, _LINKS, _FIRST_DEVICE = 1, 2, 10
_APART: Final = 10_000
"""Processes of one run are numbered below this; no machine has as many devices."""

_LAUNCHES: Final = {"gpu": "cudaLaunchKernel"}
"""What a launch is called, by kind of device; tools count CUDA's by this name."""


def lines_of(trace: Trace, *, arrows: int = 20_000, run: int = 0, label: str = "") -> Iterator[str]:
    """Yield the events of one run as JSON.

    Parameters
    ----------
    trace : Trace
    arrows : int
        At most so many arrows from producers to consumers.
    run : int
        Number of the run in its file: processes and flows of two runs never meet.
    label : str
        What the names of its processes begin with.
    """
    lanes = _Lanes(trace, run)
    yield from _names(trace, lanes, label)
    yield from _task_lines(trace, lanes)
    yield from _transfer_lines(trace, lanes)
    yield from _arrow_lines(trace, lanes, arrows)
    yield from _counter_lines(trace, lanes)


class _Lane(NamedTuple):
    pid: int
    tid: int

    def __str__(self) -> str:
        return f'"pid":{self.pid},"tid":{self.tid}'


class _Lanes:
    """Process and thread of every stream, issuer and link."""

    def __init__(self, trace: Trace, run: int) -> None:
        machine = trace.job.machine
        self.base = run * _APART
        self.flow_base = run << 40
        self.stream = [
            _Lane(self.base + _FIRST_DEVICE + d, lane + 1)
            for d, device in enumerate(machine.devices)
            for lane in range(device.lanes)
        ]
        self.issuers = machine.issuers()
        self.issuer = [
            self.stream[issuer.stream] if issuer.executes else _Lane(self.base + _HOSTS, issuer.index + 1)
            for issuer in self.issuers
        ]
        # Where transfers overlap on a shared link, each goes to the first thread that is free.
        self.row, link = (column.tolist() for column in transfers_on_links(trace))
        self.link: list[_Lane] = []
        self.link_names: list[str] = []
        start, end = trace.transfers["start_ns"].tolist(), trace.transfers["end_ns"].tolist()
        for k, each in enumerate(machine.links):
            rows = [row for row, used in zip(self.row, link, strict=True) if used == k]
            depth = levels([(start[row], end[row]) for row in rows])
            first = len(self.link_names) + 1
            self.link += [_Lane(self.base + _LINKS, first + d) for d in depth]
            for d in range(max(depth, default=-1) + 1):
                self.link_names.append(each.name if d == 0 else f"{each.name} ({d + 1})")


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _quoted(names: Sequence[str]) -> list[str]:
    return [json.dumps(name) for name in names]


# -- names --------------------------------------------------------------------------------------


def _names(trace: Trace, lanes: _Lanes, label: str) -> Iterator[str]:
    machine = trace.job.machine
    used = set(trace.tasks["issuer"].tolist())
    hosts = [issuer for issuer in lanes.issuers if not issuer.executes and issuer.index in used]
    processes = [(_FIRST_DEVICE + d, device.name) for d, device in enumerate(machine.devices)]
    if hosts:
        processes.insert(0, (_HOSTS, "hosts"))
    if lanes.link_names:
        processes.append((_LINKS, "links"))
    for index, (pid, name) in enumerate(processes):
        shown = f"{label}: {name}" if label else name
        yield from _named("process", _Lane(lanes.base + pid, 0), shown, lanes.base + index)
    for issuer in hosts:
        yield from _named("thread", lanes.issuer[issuer.index], issuer.name, issuer.index)
    for d, device in enumerate(machine.devices):
        what = "worker" if device.workers else "stream"
        for lane in range(device.lanes):
            place = lanes.stream[machine.first_stream[d] + lane]
            yield from _named("thread", place, f"{what} {lane}", lane)
    for k, name in enumerate(lanes.link_names):
        yield from _named("thread", _Lane(lanes.base + _LINKS, k + 1), name, k)


def _named(what: str, lane: _Lane, name: str, index: int) -> Iterator[str]:
    yield f'{{"ph":"M","name":"{what}_name",{lane},"args":{{"name":{json.dumps(name)}}}}}'
    yield f'{{"ph":"M","name":"{what}_sort_index",{lane},"args":{{"sort_index":{index}}}}}'


# -- slices -------------------------------------------------------------------------------------


def _task_lines(trace: Trace, lanes: _Lanes) -> Iterator[str]:
    """Yield the slice of every task and, for a launched one, of its launch, tied together by a flow."""
    graph, machine, tasks = trace.job.graph, trace.job.machine, trace.tasks
    names = _quoted(graph.op_names)
    facts = _facts_of_ops(trace)
    waits = [f',"waited for":"{word}"' if word else "" for word in WAITS]
    cost = issue_costs_ns(trace.job).tolist()
    place, who = [str(lane) for lane in lanes.stream], [str(lane) for lane in lanes.issuer]
    copies = [kind == "copy" for kind in graph.kinds]
    is_copy = [copies[k] for k in graph.kind_code.tolist()]
    launch = [_LAUNCHES.get(d.kind, "launch") for d in machine.devices]
    copy = ["cudaMemcpyAsync" if d.kind == "gpu" else "launch" for d in machine.devices]
    worker = [d.workers > 0 for d in machine.devices]
    several = trace.job.iterations > 1
    columns = ("op", "iteration", "stream", "issuer", "ready_ns", "issue_ns", "start_ns", "end_ns", "dead")
    rows = zip(
        *(tasks[name].tolist() for name in columns),
        final_waits(trace).tolist(),
        trace.device.tolist(),
        strict=True,
    )
    for row, (op, n, stream, issuer, ready, issue, start, end, dead, wait, d) in enumerate(rows):
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
        flow = f'"cat":"ac2g","name":"ac2g","id":{lanes.flow_base + number}'
        yield f'{{"ph":"s",{flow},{who[issuer]},"ts":{_us(begin)}}}'
        yield f'{{"ph":"f","bp":"e",{flow},{place[stream]},"ts":{_us(start)}}}'


def _facts_of_ops(trace: Trace) -> list[str]:
    """Return what a click on a slice shows, by op: kind, and its place in a pipeline if it has one."""
    graph = trace.job.graph
    kinds = [f'"kind":{word}' for word in _quoted(graph.kinds)]
    facts = [kinds[k] for k in graph.kind_code.tolist()]
    for name, column in (("stage", graph.stage), ("micro_batch", graph.micro_batch)):
        for op in np.flatnonzero(column >= 0).tolist():
            facts[op] += f',"{name}":{column[op]}'
    return facts


def _transfer_lines(trace: Trace, lanes: _Lanes) -> Iterator[str]:
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


def _arrow_lines(trace: Trace, lanes: _Lanes, most: int) -> Iterator[str]:
    """Yield flows from producers to consumers on other lanes, through transfers; the earliest `most`."""
    if not most:
        return
    producer, consumer, _ = dependencies(trace)
    n = len(trace)
    lane: list[_Lane | None] = [lanes.stream[s] if s >= 0 else None for s in trace.tasks["stream"].tolist()]
    for row in np.flatnonzero(trace.tasks["dead"]).tolist():
        lane[row] = None
    lane += [None] * len(trace.transfers["tensor"])
    for row, place in zip(lanes.row, lanes.link, strict=True):
        lane[n + row] = lane[n + row] or place  # of several links, the first
    start = np.concatenate((trace.tasks["start_ns"], trace.transfers["start_ns"]))
    end = np.concatenate((trace.tasks["end_ns"], trace.transfers["end_ns"]))
    drawn = 0
    for edge in np.argsort(start[consumer], kind="stable").tolist():
        p, c = int(producer[edge]), int(consumer[edge])
        source, target = lane[p], lane[c]
        if source is None or target is None or source == target:
            continue
        if drawn == most:
            return
        drawn += 1
        # Ids of their own, so that they do not join the flows of launches.
        flow = f'"cat":"data","name":"data","id":{lanes.flow_base + n + drawn}'
        inside = max(int(start[p]), int(end[p]) - 1)  # a flow begins in a slice, not behind it
        yield f'{{"ph":"s",{flow},{source},"ts":{_us(inside)}}}'
        yield f'{{"ph":"f","bp":"e",{flow},{target},"ts":{_us(int(start[c]))}}}'


def _counter_lines(trace: Trace, lanes: _Lanes) -> Iterator[str]:
    """Yield, for every device, the bytes in use (if any) and the number of tasks running."""
    for d, (name, use) in enumerate(memory_use(trace, holders=0).items()):
        lane = _Lane(lanes.base + _FIRST_DEVICE + d, 0)
        if use.peak_bytes:
            yield from _counter(lane, "memory", "in use (bytes)", use.times_ns, use.in_use_bytes)
        here = np.flatnonzero(trace.device == d)
        times, running = _running(trace.tasks["start_ns"][here], trace.tasks["end_ns"][here])
        if len(times):
            yield from _counter(lane, "running", f"tasks on {name}", times, running)


def _running(start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Return the instants at which the number of running tasks changes, and the number from then on."""
    times, which = np.unique(np.concatenate((start, end)), return_inverse=True)
    change = np.zeros(len(times), np.int64)
    np.add.at(change, which, np.repeat(np.array([1, -1]), len(start)))
    moves = change != 0
    return times[moves], np.cumsum(change)[moves]


def _counter(lane: _Lane, name: str, key: str, times: IntArray, values: IntArray) -> Iterator[str]:
    head = f'{{"ph":"C","name":"{name}",{lane},"ts":'
    tail = f',"args":{{{json.dumps(key)}:'
    for at, value in zip(times.tolist(), values.tolist(), strict=True):
        yield f"{head}{_us(at)}{tail}{value}}}}}"
