"""Traces that a simulation wrote (``sim run --trace FILE``): a run as a graph that runs as that one did.

::

    hosts      gpu0/host   ▇launch a▇▇launch b▇                 device hosts, thread gpu0/host
    gpu0       stream 0               ▇▇▇▇▇a▇▇▇▇▇               device gpu0, stream 1
               stream 1                  ·delay·▇▇▇▇b▇▇▇▇       device gpu0, stream 2
    links      wire                             ▇transfer▇      device links, stream wire

Every slice is an op with its duration, on a lane of its device. It comes after the slice before it on its
lane, after its launch, and after what it says that it waited for (``after``); a launch comes after what its
op waited for, as far as the run's synchronisation had its host wait for that. Launch latency, gap and event
hop of the devices come back as theirs (`Graph.device_facts`). What is left of the time before a slice, such
as a policy's decision, is an op ``delay`` on its lane. So everything starts and ends at the same nanosecond,
on a machine that costs nothing but those. Where no delay can fill what is left, because it is less than the
gap behind the delay, a device has no such facts, and all is in delays.

Collectives meet again: those of a communicator, the n-th of each rank, last from the start of the last one
to their end. Where ranks did not end together (rings whose messages go over links one by one, steps that were
aborted) they keep their recorded times, with a warning.

What is no part of a schedule does not come back: what ops compute, tensors, memory, loops and branches (each
run of an op is an op), the units of an NPU, failures.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scenarios.importers.files import StrPath, in_file, read_head
from scenarios.importers.streamed_json import items
from scenarios.importers.traces.simulated.meetings import meet
from scenarios.importers.traces.simulated.order import delays_of, facts_in, put_in_order
from scenarios.importers.traces.simulated.slices import Slice, slices_in
from sim.export.chrome import SIMULATOR
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph
from sim.words.errors import InputError

__all__ = ["is_simulated", "load"]


def is_simulated(path: StrPath) -> bool:
    """Whether a file says that a simulation wrote it."""
    return re.search(rf'"by"\s*:\s*"{SIMULATOR}"'.encode(), read_head(path, 1 << 16)) is not None


def load(paths: Sequence[StrPath], name: str, *, host: bool = True) -> Graph:
    """Return the graph of a run.

    Parameters
    ----------
    paths : sequence of paths
        Of one file, or of those of all ranks.
    name : str
        Of the graph.
    host : bool
        Whether launches, and what workers ran, are ops, too.

    Raises
    ------
    InputError
        Of several runs, or of different ones; an event without what it must have; or one that begins before
        what it waited for had ended.

    Warns
    -----
    UserWarning
        What does not come back: units of an NPU, ranks that did not end together.
    """
    slices: list[Slice] = []
    run: dict[str, Any] = {}
    for path in paths:
        others: dict[str, Any] = {}
        slices += slices_in(path, items(path, "a trace", "traceEvents", others))
        with in_file(path):
            run = _run(others, run, paths[0])
    missing = others["distributedInfo"]["world_size"] - len(paths)
    if missing:
        _warn(f"{paths[0]}: {missing} other ranks are missing; a delay stands for what waited for them")
    for device in others["deviceProperties"]:
        if device["kind"] == "npu":
            _warn(
                f"{paths[0]}: {device['name']} is an NPU; what ran on it comes back on streams, with its "
                "times, and without the units of its cores"
            )
    if not host:
        slices = [each for each in slices if each.on_stream]
    slices.sort(key=lambda each: (each.start_ns, each.end_ns))
    with in_file(paths[0]):
        put_in_order(slices, run["synchronisation"] == "issue", whole=host and not missing)
        for lost in meet(slices):
            _warn(
                f"{paths[0]}: collectives of communicator {lost!r} did not end together on all ranks; they "
                "keep their recorded times, and do not wait for each other"
            )
        facts = facts_in(others) if host else {}
        delays = delays_of(slices, facts) if host else {}
        if delays is None:
            facts, delays = {}, delays_of(slices, {})
        builder = GraphBuilder(name)
        for record in _ops(slices, delays or {}):
            builder.op(**record)
    described = {
        device: {key: f"{ns}ns" for key, ns in own._asdict().items()}
        for device, own in facts.items()
        if any(own)
    }
    return replace(builder.build(), device_facts=described)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def _run(data: Any, known: dict[str, Any], first: StrPath) -> dict[str, Any]:
    """Return what a file says of its run, which is that of the files before it, if there are any."""
    said: dict[str, Any] = data["simulated"]
    if said.get("runs", 1) != 1:
        raise InputError(f"holds {said['runs']} runs; write a trace of each")
    for key, of in {"synchronisation": said, "deviceProperties": data, "distributedInfo": data}.items():
        if key not in of:
            raise InputError(f"was written by a simulation, and has no {key} any more")
    if known and said != known:
        raise InputError(f"is of another run than {first}")
    return said


def _ops(slices: Sequence[Slice], delays: Mapping[int, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Yield the ops, each behind its delay."""
    taken: set[str] = set()
    counted: Counter[str] = Counter()

    def unused(name: str) -> str:
        free = name
        while free in taken:
            counted[name] += 1
            free = f"{name}#{counted[name]}"
        taken.add(free)
        return free

    for each in slices:
        if not each.is_op:
            continue
        after = list(dict.fromkeys(source.name for source in each.before))
        where = {key: each.attributes[key] for key in ("stream", "thread") if key in each.attributes}
        each.name = unused(each.name)
        each.attributes["recorded_start_ns"] = each.start_ns
        if id(each) in delays:
            since, ns = delays[id(each)]
            delay = unused(f"delay.{each.name}")
            yield {
                "name": delay,
                "kind": "delay",
                "duration_ns": ns,
                "after": after,
                "device": each.device,
                "attributes": where | {"recorded_start_ns": since},
            }
            after = [delay]
        yield {
            "name": each.name,
            "kind": each.kind,
            "duration_ns": each.duration_ns,
            "after": after,
            "device": each.device,
            "attributes": each.attributes,
            **each.more,
        }
