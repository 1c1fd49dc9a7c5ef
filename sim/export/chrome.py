"""Timelines for Perfetto and chrome://tracing, in the form that tools for PyTorch profiles read.

::

    hosts     gpu0/host   ▇launch▇▇launch▇          one process for the host threads
                             │ac2g   ╲ac2g
    gpu0      stream 0       ▇▇▇▇conv▇▇▇            one process a device, one thread a stream (a worker
              stream 1                │▇▇▇matmul▇   of a CPU), counters: memory, tasks running
                                  data└►
    links     wire        ▇a▇                       one thread a link; a second one where transfers
              wire (2)      ▇b▇                     overlap on a link that they share

Slices have the categories that PyTorch's profiler writes (``cuda_runtime`` for a launch, ``kernel`` and
``gpu_memcpy`` for what runs, ``cpu_op`` for a worker's ops); a launch is tied to its kernel by
``correlation`` and a flow of category ``ac2g``. Flows of category ``data`` lead from producers to
consumers on other lanes.

The argument ``stream`` is counted over the machine, because tools that expect one GPU in a file would take
streams of the same number for one.

Format: "Trace Event Format" (Google, 2016); times in µs with three decimals, so whole ns. What viewers ask
for: threads numbered from 1 (Perfetto takes 0 for the idle thread), slices of a thread that nest, the end
of a flow with ``"bp": "e"``, the blank in ``"distributedInfo": {"rank": 0}`` (HTA looks for that text).

Every event is a line. Lines are put together from strings, which is many times faster than encoding
dictionaries; names are encoded once for every op.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from sim.export.timeline import Lane, Timeline, in_pieces, launch_call
from sim.files.atomic_files import atomic_text
from sim.graph.failures import STATUSES
from sim.job.costs import issue_costs_ns
from sim.record.record import WAITS, Record

__all__ = ["lines_of", "write_chrome"]

_HEAD: Final = (
    '{"schemaVersion":1,"distributedInfo": {"rank": 0},"deviceProperties":[],"displayTimeUnit":"ns",'
    '"traceEvents":[\n'
)
_AT_ONCE: Final = 10_000
"""Lines held in memory."""

_FLOWS_APART: Final = 1 << 40
"""Flows of one run are numbered below this; no run has as many tasks."""


def write_chrome(
    trace: Record | Mapping[str, Record], path: str | os.PathLike[str], *, arrows: int = 20_000
) -> None:
    """Write one or several traces as Chrome JSON, gzipped when the name ends in ``.gz``.

    Parameters
    ----------
    trace : Trace, or mapping of str to Trace
        Of several, each gets processes of its own, whose names begin with its label.
    path : path
        ``.json`` or ``.json.gz``.
    arrows : int
        At most so many arrows from producers to consumers for each trace; a viewer is slow with more.

    Raises
    ------
    InputError
        A directory that does not exist.
    """
    traces = {"": trace} if isinstance(trace, Record) else trace
    with atomic_text(path) as file:
        file.write(_HEAD)
        lines = (
            line
            for run, (label, each) in enumerate(traces.items())
            for line in lines_of(each, most=arrows, run=run, label=label)
        )
        file.write(next(lines, ""))
        while piece := list(itertools.islice(lines, _AT_ONCE)):
            file.write(",\n" + ",\n".join(piece))
        file.write("\n]}\n")


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
    timeline = Timeline(trace, run)
    yield from _names(timeline, label)
    yield from _task_lines(timeline, run)
    yield from _transfer_lines(timeline)
    yield from _arrow_lines(timeline, run, most)
    yield from _counter_lines(timeline)


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


# -- names --------------------------------------------------------------------------------------


def _names(timeline: Timeline, label: str) -> Iterator[str]:
    grouped = timeline.groups()
    for index, (pid, name, _) in enumerate(grouped, timeline.base):
        yield from _named("process", Lane(pid, 0), f"{label}: {name}" if label else name, index)
    for group in grouped:
        for lane, name in group.lanes:
            yield from _named("thread", lane, name, lane.tid - 1)


def _named(what: str, lane: Lane, name: str, index: int) -> Iterator[str]:
    yield f'{{"ph":"M","name":"{what}_name",{lane},"args":{{"name":{json.dumps(name)}}}}}'
    yield f'{{"ph":"M","name":"{what}_sort_index",{lane},"args":{{"sort_index":{index}}}}}'


# -- slices -------------------------------------------------------------------------------------


def _task_lines(timeline: Timeline, run: int) -> Iterator[str]:
    """Yield the slice of every task and, for a launched one, of its launch, tied together by a flow."""
    job = timeline.trace.job
    graph, devices = job.graph, job.machine.devices
    facts, facts_of = timeline.facts_of_ops()
    said = [json.dumps(each, separators=(",", ":"))[1:-1] for each in facts]
    waits = [f',"waited for":"{word}"' if word else "" for word in WAITS]
    statuses = ["", *(f',"status":"{word}"' for word in STATUSES[1:])]
    cost, is_copy = issue_costs_ns(job), graph.is_kind("copy")
    place, who = [str(lane) for lane in timeline.lanes], [str(lane) for lane in timeline.issuer]
    launch = [launch_call(d, copy=False) for d in devices]
    copy = [launch_call(d, copy=True) for d in devices]
    worker = [d.workers > 0 for d in devices]
    several = job.iterations > 1
    for rows in in_pieces(timeline.shown()):
        ops = timeline.trace.tasks["op"][rows]
        by_op = (column[ops].tolist() for column in (facts_of, cost, is_copy))
        for task, fact, costs, copies in zip(timeline.tasks(rows), *by_op, strict=True):
            row, op, n, issuer, ready, issue, start, end, status, wait, d, lane = task
            number, name = row + 1, json.dumps(graph.op_names[op])
            iteration = f',"iteration":{n}' if several else ""
            args = f'{said[fact]},"ready (us)":{_us(ready)}{iteration}{waits[wait]}{statuses[status]}'
            where = place[lane]
            span = f'{where},"ts":{_us(start)},"dur":{_us(end - start)}'
            if worker[d]:
                args = f'"External id":{number},{args}'
                yield f'{{"ph":"X","cat":"cpu_op","name":{name},{span},"args":{{{args}}}}}'
                continue
            category, call = ("gpu_memcpy", copy[d]) if copies else ("kernel", launch[d])
            tied = f'"External id":{number},"correlation":{number}'
            yield (
                f'{{"ph":"X","cat":"{category}","name":{name},{span},'
                f'"args":{{{tied},"device":{d},"stream":{lane},{args}}}}}'
            )
            begin = issue - costs
            yield (
                f'{{"ph":"X","cat":"cuda_runtime","name":"{call}",{who[issuer]},"ts":{_us(begin)},'
                f'"dur":{_us(issue - begin)},"args":{{{tied},"op":{name}}}}}'
            )
            flow = f'"cat":"ac2g","name":"ac2g","id":{run * _FLOWS_APART + number}'
            yield f'{{"ph":"s",{flow},{who[issuer]},"ts":{_us(begin)}}}'
            yield f'{{"ph":"f","bp":"e",{flow},{where},"ts":{_us(start)}}}'


def _transfer_lines(timeline: Timeline) -> Iterator[str]:
    """Yield a slice for every link that a transfer crosses."""
    moved, graph = timeline.trace.transfers, timeline.trace.job.graph
    for which in in_pieces(np.arange(len(timeline.crossing))):
        rows = timeline.crossing[which]
        columns = (moved[name][rows].tolist() for name in ("tensor", "nbytes", "start_ns", "end_ns"))
        for lane, tensor, nbytes, start, end in zip(timeline.crossed[which].tolist(), *columns, strict=True):
            name = json.dumps(f"transfer {graph.tensor_name(tensor)}")
            span = f'{timeline.lanes[lane]},"ts":{_us(start)},"dur":{_us(end - start)}'
            yield f'{{"ph":"X","cat":"gpu_memcpy","name":{name},{span},"args":{{"bytes":{nbytes}}}}}'


# -- flows and counters -------------------------------------------------------------------------


def _arrow_lines(timeline: Timeline, run: int, most: int) -> Iterator[str]:
    """Yield flows from producers to consumers on other lanes, through transfers; the earliest `most`."""
    start, end = timeline.trace.of_rows("start_ns"), timeline.trace.of_rows("end_ns")
    # Ids of their own, so that they do not join the flows of launches.
    first = run * _FLOWS_APART + len(timeline.trace) + 1
    for number, (p, c) in enumerate(timeline.arrows(most), first):
        flow = f'"cat":"data","name":"data","id":{number}'
        source, target = (timeline.lanes[timeline.lane[row]] for row in (p, c))
        # A flow begins in a slice, not behind it.
        inside = max(int(start[p]), int(end[p]) - 1)
        yield f'{{"ph":"s",{flow},{source},"ts":{_us(inside)}}}'
        yield f'{{"ph":"f","bp":"e",{flow},{target},"ts":{_us(int(start[c]))}}}'


def _counter_lines(timeline: Timeline) -> Iterator[str]:
    for lane, title, key, times, values in timeline.counters():
        head = f'{{"ph":"C","name":{json.dumps(title)},{lane},"ts":'
        tail = f',"args":{{{json.dumps(key)}:'
        for at, value in zip(times.tolist(), values.tolist(), strict=True):
            yield f"{head}{_us(at)}{tail}{value}}}}}"
