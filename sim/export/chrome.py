"""Timelines for Perfetto and chrome://tracing, in the form that tools for PyTorch profiles read.

One process per device with one thread per stream, one process for the hosts with one thread per issuer,
one for the links. Slices have the categories that PyTorch's profiler writes (``cuda_runtime`` for a launch,
``kernel`` and ``gpu_memcpy`` for what runs, ``cpu_op`` for a worker's ops); a launch is tied to its kernel by
``correlation`` and an ``ac2g`` flow. Arrows from producers to consumers on other lanes are flows of
category ``data``. Memory in use is a counter of its device.

Format: "Trace Event Format" (Google, 2016); times in µs with three decimals, so whole ns. Threads are
numbered from 1: Perfetto takes 0 for the idle thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.bounds import issue_costs_ns
from sim.export.atomic import write_text
from sim.memory_use import memory_use
from sim.trace import WAITS, Trace

__all__ = ["chrome_events", "write_chrome"]

Event = dict[str, Any]

_HOSTS, _LINKS = 1, 2
_FIRST_DEVICE = 10


def write_chrome(trace: Trace, path: str | os.PathLike[str], *, arrows: int = 20_000) -> None:
    """Write a trace as Chrome JSON, gzipped when the name ends in ``.gz``.

    Parameters
    ----------
    trace : Trace
    path : path
        ``.json`` or ``.json.gz``.
    arrows : int
        At most so many arrows from producers to consumers; a viewer is slow with more.
    """
    events = ",\n".join(
        json.dumps(event, separators=(",", ":")) for event in chrome_events(trace, arrows=arrows)
    )
    head = '{"schemaVersion":1,"distributedInfo": {"rank": 0},"displayTimeUnit":"ns","traceEvents":[\n'
    write_text(path, head + events + "\n]}\n")


def chrome_events(trace: Trace, *, arrows: int = 20_000) -> Iterator[Event]:
    """Yield the events of a trace: names, slices, flows, counters.

    Parameters
    ----------
    trace : Trace
    arrows : int
        As for `write_chrome`.
    """
    yield from _names(trace)
    yield from _tasks(trace)
    yield from _transfers(trace)
    if arrows:
        yield from _arrows(trace, arrows)
    for device, use in enumerate(memory_use(trace).values()):
        if not use.peak_bytes:
            continue
        pid = _FIRST_DEVICE + device
        for at, held in zip(use.times_ns.tolist(), use.in_use_bytes.tolist(), strict=True):
            yield {
                "ph": "C",
                "name": "memory",
                "pid": pid,
                "tid": 0,
                "ts": _us(at),
                "args": {"in use (bytes)": held},
            }


def _us(ns: int) -> float:
    """Return µs; the shortest decimal that reads back as this has at most three places."""
    return ns / 1000


def _name(kind: str, pid: int, name: str, tid: int = 0) -> Event:
    return {"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _order(kind: str, pid: int, index: int, tid: int = 0) -> Event:
    return {"ph": "M", "name": f"{kind}_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": index}}


def _names(trace: Trace) -> Iterator[Event]:
    machine = trace.job.machine
    launching = [issuer for issuer in machine.issuers() if not issuer.executes]
    processes = [(_FIRST_DEVICE + k, device.name) for k, device in enumerate(machine.devices)]
    if launching:
        processes.insert(0, (_HOSTS, "hosts"))
    if len(trace.transfers["tensor"]):
        processes.append((_LINKS, "links"))
    for index, (pid, name) in enumerate(processes):
        yield _name("process", pid, name)
        yield _order("process", pid, index)
    for issuer in launching:
        yield _name("thread", _HOSTS, issuer.name, issuer.index + 1)
        yield _order("thread", _HOSTS, issuer.index, issuer.index + 1)
    for k, device in enumerate(machine.devices):
        for lane in range(device.lanes):
            what = "worker" if device.workers else "stream"
            yield _name("thread", _FIRST_DEVICE + k, f"{what} {lane}", lane + 1)
            yield _order("thread", _FIRST_DEVICE + k, lane, lane + 1)
    for tid, (a, b) in enumerate(_pairs(trace), start=1):
        yield _name("thread", _LINKS, f"{machine.devices[a].name} → {machine.devices[b].name}", tid)


def _pairs(trace: Trace) -> list[tuple[int, int]]:
    moved = trace.transfers
    return sorted(set(zip(moved["source"].tolist(), moved["destination"].tolist(), strict=True)))


def _tasks(trace: Trace) -> Iterator[Event]:
    """Yield the slice of every task and, for a launched one, of its launch, tied together by a flow."""
    graph, machine = trace.job.graph, trace.job.machine
    cost = issue_costs_ns(trace.job)
    columns = (
        "op",
        "iteration",
        "stream",
        "issuer",
        "ready_ns",
        "issue_ns",
        "start_ns",
        "end_ns",
        "wait",
        "dead",
    )
    rows = zip(*(trace.tasks[name].tolist() for name in columns), trace.device.tolist(), strict=True)
    for row, (op, iteration, stream, issuer, ready, issue, start, end, wait, dead, device) in enumerate(rows):
        if dead or stream < 0:
            continue
        kind = graph.kind(op)
        worker = machine.devices[device].workers > 0
        args: dict[str, Any] = {"kind": kind, "ready (us)": _us(ready), "External id": row + 1}
        if trace.job.iterations > 1:
            args["iteration"] = iteration
        if WAITS[wait]:
            args["waited for"] = WAITS[wait]
        for name, column in (("stage", graph.stage), ("micro_batch", graph.micro_batch)):
            if column[op] >= 0:
                args[name] = int(column[op])
        pid, tid = _FIRST_DEVICE + device, stream - machine.first_stream[device] + 1
        category = "cpu_op" if worker else "gpu_memcpy" if kind == "copy" else "kernel"
        if not worker:
            args |= {"device": device, "stream": tid - 1, "correlation": row + 1}
        yield {"ph": "X", "cat": category, "name": graph.op_names[op], "pid": pid, "tid": tid,
               "ts": _us(start), "dur": _us(end - start), "args": args}  # fmt: skip
        if not worker:
            begin = issue - int(cost[op])
            yield {"ph": "X", "cat": "cuda_runtime", "name": f"launch {graph.op_names[op]}", "pid": _HOSTS,
                   "tid": issuer + 1, "ts": _us(begin), "dur": _us(issue - begin),
                   "args": {"correlation": row + 1, "External id": row + 1}}  # fmt: skip
            flow = {"cat": "ac2g", "name": "ac2g", "id": row + 1}
            yield {"ph": "s", **flow, "pid": _HOSTS, "tid": issuer + 1, "ts": _us(begin)}
            yield {"ph": "f", **flow, "bp": "e", "pid": pid, "tid": tid, "ts": _us(start)}


def _transfers(trace: Trace) -> Iterator[Event]:
    graph, moved = trace.job.graph, trace.transfers
    tid_of = {pair: tid for tid, pair in enumerate(_pairs(trace), start=1)}
    columns = ("tensor", "source", "destination", "nbytes", "start_ns", "end_ns")
    for tensor, a, b, nbytes, start, end in zip(*(moved[name].tolist() for name in columns), strict=True):
        name = f"transfer {graph.tensor_name(tensor)}"
        yield {"ph": "X", "cat": "gpu_memcpy", "name": name, "pid": _LINKS, "tid": tid_of[a, b],
               "ts": _us(start), "dur": _us(end - start), "args": {"bytes": nbytes}}  # fmt: skip


def _arrows(trace: Trace, most: int) -> Iterator[Event]:
    """Yield flows from producers to consumers that are on different lanes, the first `most` of them."""
    graph = trace.job.graph
    n = len(graph)
    rows = np.full(n * trace.job.iterations, -1)
    alive = (trace.tasks["dead"] == 0) & (trace.tasks["stream"] >= 0)
    rows[(trace.tasks["iteration"] * n + trace.tasks["op"])[alive]] = np.flatnonzero(alive)
    first = trace.job.machine.first_stream
    start, end = trace.tasks["start_ns"], trace.tasks["end_ns"]
    stream, device = trace.tasks["stream"], trace.device
    drawn = 0
    edges = graph.edges
    for iteration in range(trace.job.iterations):
        for a, b, d in zip(
            edges.producer.tolist(), edges.consumer.tolist(), edges.distance.tolist(), strict=True
        ):
            if iteration + d >= trace.job.iterations:
                continue
            p, c = int(rows[iteration * n + a]), int(rows[(iteration + d) * n + b])
            if p < 0 or c < 0 or stream[p] == stream[c]:
                continue
            if drawn == most:
                return
            drawn += 1
            # Ids of their own, so that they do not join the flows of launches.
            flow = {"cat": "data", "name": "data", "id": len(trace) + drawn}
            for phase, row, at in (("s", p, max(int(start[p]), int(end[p]) - 1)), ("f", c, int(start[c]))):
                lane = int(stream[row]) - first[int(device[row])] + 1
                event = {
                    "ph": phase,
                    **flow,
                    "pid": _FIRST_DEVICE + int(device[row]),
                    "tid": lane,
                    "ts": _us(at),
                }
                yield event | {"bp": "e"} if phase == "f" else event
