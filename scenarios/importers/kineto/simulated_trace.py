"""Traces written by a simulation (``sim run --trace FILE``), as graphs that run as the simulated run did.

::

    hosts      gpu0/host   ▇launch a▇▇launch b▇                 device hosts, thread gpu0/host
    gpu0       stream 0               ▇▇▇▇▇a▇▇▇▇▇               device gpu0, stream 1
               stream 1                  ·delay·▇▇▇▇b▇▇▇▇       device gpu0, stream 2
    links      wire                             ▇transfer▇      device links, stream wire

Every slice is an op with its duration, on a lane of its device. It follows the slice before it on its
lane, its launch, and what it is recorded to have waited for (``after``); a launch follows what its
op waited for, as far as the run's synchronisation had its host wait for that. Launch latency, gap and event
hop of the devices are restored as theirs (`Graph.device_facts`). The remaining time before a slice, such
as a policy's decision, is an op ``delay`` on its lane. So everything starts and ends at the same nanosecond,
on a machine with no other costs. If no delay can fill the rest, because it is shorter than the
gap behind the delay, a device has no such facts, and all the time is in delays.

Collectives meet again: those of a communicator, the n-th of each rank, last from the start of the last one
to their end. If ranks did not end together (rings whose messages go over links one by one, aborted
steps) they keep their recorded times, with a warning.

Properties that are not part of a schedule are lost: what ops compute, tensors, memory, loops and branches
(each run of an op is an op), the units of an NPU, failures.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from scenarios.importers.files import items, read_head
from scenarios.importers.kineto.event_columns import arguments, span, text, thread_of, whole
from sim.base.arrays import group_pairs
from sim.base.errors import InputError, in_file
from sim.base.files import StrPath
from sim.export.chrome import SIMULATOR
from sim.graph.builder import GraphBuilder
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph
from sim.graph.views import FREE
from sim.job.collectives import COLLECTIVE_KINDS

# ----------------------------------------------------------------------------------------------------------
# What ran, from the events of a file: slices with their lanes, and what they waited for.

_LAUNCH: Final = "cuda_runtime"
_WORKER: Final = "cpu_op"


@dataclass(slots=True)
class Slice:
    """A slice that becomes an op.

    Attributes
    ----------
    name, kind, device : str
    lane : tuple
        Process and thread.
    attributes : dict
        ``stream`` or ``thread``, and other restored attributes.
    start_ns, end_ns : int
    number : int
        Number by which others refer to it in their `fed_by`; for a launch, the number of its op.
    fed_by : list of int
    before : list of Slice
        Slices that have to end first.
    launches : bool
        Whether it is a host call that launches `number`.
    more : dict
        Further arguments of `GraphBuilder.op`.
    duration_ns : int
        For a collective, without its waiting.
    """

    name: str
    kind: str
    device: str
    lane: tuple[int, int]
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int
    number: int
    fed_by: list[int]
    launches: bool
    more: dict[str, Any]
    duration_ns: int
    before: list[Slice] = field(default_factory=list)

    @property
    def is_op(self) -> bool:
        """Whether it becomes an op: a launch without cost does not, and the op it launches waits itself."""
        return self.duration_ns > 0 or not self.launches

    @property
    def on_stream(self) -> bool:
        """Whether it ran on a stream, not on a thread."""
        return "stream" in self.attributes

    @property
    def leaves_gap(self) -> bool:
        """Whether its device's gap follows it on its stream, as in `sim.graph.views.launches_nothing`."""
        return self.kind not in FREE or self.duration_ns > 0 or "communicator" in self.attributes


def slices_in(path: StrPath, events: Iterable[Any]) -> Iterator[Slice]:
    """Yield what ran, from a file's events, on the device and thread named by its process and thread.

    Raises
    ------
    InputError
        An event lacks a required field (with its index).
    """
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for index, event in enumerate(events):
        try:
            if not isinstance(event, dict):
                raise ValueError(f"is no event but a {type(event).__name__}")
            if event["ph"] == "M" and event["name"] == "process_name":
                processes[event["pid"]] = text(arguments(event), "name")
            elif event["ph"] == "M" and event["name"] == "thread_name":
                threads[thread_of(event)] = text(arguments(event), "name")
            elif event["ph"] == "X":
                lane = thread_of(event)
                yield _slice(event, lane, processes[lane[0]], threads[lane])
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{path}: traceEvents[{index}]: {reason}") from None


def _slice(event: Any, lane: tuple[int, int], device: str, thread: str) -> Slice:
    args, title, category = arguments(event), text(event, "name"), event["cat"]
    start, end = span(event)
    launches = category == _LAUNCH
    name = text(args, "op") if "op" in args else title
    kind = text(args, "kind") if "kind" in args else "transfer"
    if kind in CONTROL_FLOW_KINDS:
        kind = "identity"  # its decision has been made
    attributes: dict[str, Any] = {"stream": args.get("stream", args.get("on stream", thread))}
    if launches or category == _WORKER:
        attributes = {"thread": thread}
    if launches:
        name, kind = f"launch.{name}", "launch"
        attributes["call"] = title
    elif name != title:
        attributes["kernel"] = title
    if "Process Group Name" in args:
        attributes["communicator"] = args["Process Group Name"]
        attributes |= {key: args[key] for key in ("peer", "group", "pair") if key in args}
    if "iteration" in args and "group" in attributes:  # group calls are per iteration
        attributes["group"] = f"{attributes['group']}.{args['iteration']}"
    attributes |= {key: args[key] for key in ("tensor", "source", "destination") if key in args}
    more = {key: args[key] for key in ("stage", "micro_batch") if key in args}
    if "bytes" in args:
        more |= {"bytes_read": args["bytes"], "bytes_written": args["bytes"]}
    if not isinstance(fed_by := args.get("after", []), list):
        raise ValueError(f"after is no list but {fed_by!r:.40}")
    return Slice(
        *(name, kind, device, lane, attributes, start, end),
        *(whole(args, "External id"), fed_by, launches, more, end - start),
    )


# ----------------------------------------------------------------------------------------------------------
# Collectives that met: the time of their transfers, and their order on each rank.
#
#     gpu0   [ waits . . . [ sum ]            from the start of the last one to the end of all: the duration;
#     gpu1                 [ sum ]            the waiting arises again when it runs


def meet(slices: Sequence[Slice]) -> list[str]:
    """Give collectives that met their transfer as duration, and their place in the order.

    Returns
    -------
    list of str
        Communicators whose collectives did not end together on all ranks; these belong to none any more.
    """
    communicating = (event for event in slices if "communicator" in event.attributes)
    members = group_pairs((event.attributes["communicator"], event) for event in communicating)
    lost = []
    for name, group in members.items():
        if (durations := _transfers(group)) is None:
            lost.append(name)
            for event in group:
                for key in ("communicator", "peer", "group", "pair"):
                    event.attributes.pop(key, None)
            continue
        for event, duration_ns in zip(group, durations, strict=True):
            event.duration_ns = duration_ns
        _line_up(group)
    return lost


def _transfers(members: Sequence[Slice]) -> list[int] | None:
    """Return the transfer time of each collective of a communicator; None if some did not end together.

    The n-th of a seat in its party met the n-th of every other (`sim.job.collectives`).
    """
    counted: Counter[tuple[Any, str, str]] = Counter()
    seats: dict[Any, set[tuple[str, str]]] = defaultdict(set)
    meetings: dict[tuple[Any, int], list[int]] = defaultdict(list)
    for k, event in enumerate(members):
        party: Any = ()
        if (peer := event.attributes.get("peer")) is not None:
            sent = event.kind == "send"
            pair = (event.device, peer) if sent else (peer, event.device)
            party = (*pair, event.attributes.get("pair"))
        seat = event.device, event.kind if party else ""
        meetings[party, counted[party, *seat]].append(k)
        counted[party, *seat] += 1
        seats[party].add(seat)
    transfers = [0] * len(members)
    for (party, _), indices in meetings.items():
        ends = {members[k].end_ns for k in indices}
        kinds = {members[k].kind for k in indices}
        since = max(members[k].start_ns for k in indices)
        alike = len(kinds) == (2 if party else 1) and kinds <= COLLECTIVE_KINDS
        if not alike or len(ends) > 1 or len(indices) != len(seats[party]) or since > min(ends):
            return None
        for k in indices:
            transfers[k] = members[k].end_ns - since
    return transfers


def _line_up(members: Sequence[Slice]) -> None:
    """Let every collective follow the previous one of its line; those of a group call follow the same one."""
    lines: dict[str, list[list[Slice]]] = defaultdict(list)
    for event in members:
        calls, group = lines[event.device], event.attributes.get("group")
        if calls and group is not None and calls[-1][0].attributes.get("group") == group:
            calls[-1].append(event)
        else:
            calls.append([event])
        event.attributes["recorded_ns"] = event.end_ns - event.start_ns
        if len(calls) > 1:
            event.before += calls[-2]


# ----------------------------------------------------------------------------------------------------------
# The order of slices, and the remaining time before each that has to be explained.


def put_in_order(slices: Sequence[Slice], at_issue: bool, *, complete: bool) -> None:
    """Set what every slice follows, and raise if one began before that had ended.

    With `at_issue` a host does not wait for what is launched. Unless `complete`, missing slices are ignored.
    """
    of_number = group_pairs((event.number, event) for event in slices if not event.launches)
    launch = {event.number: event for event in slices if event.launches}
    last: dict[tuple[int, int], Slice] = {}
    for event in slices:
        if not event.is_op:
            continue
        fed_by = of_number[event.number][0].fed_by if event.number in of_number else []
        if complete and any(k not in of_number for k in fed_by):
            raise InputError(f"{event.name} waited for what is not in the trace")
        sources = [source for k in fed_by if k in of_number for source in of_number[k]]
        if event.launches and at_issue:  # a host cannot read what is not computed yet
            sources = [source for source in sources if not source.on_stream]
        called = launch.get(event.number)
        if called is not None and called.is_op and not event.launches:
            sources.append(called)
        if event.lane in last:
            sources.append(last[event.lane])
        last[event.lane] = event
        for source in sources:
            if source.end_ns > event.start_ns:
                raise InputError(f"{event.name} begins before {source.name} ends, for which it waited")
        event.before = sources


class DeviceDelays(NamedTuple):
    """Overheads of a device before its tasks, in ns; the names are those of a device's keys."""

    launch_latency: int = 0
    gap: int = 0
    event_hop: int = 0


def delays_of(
    slices: Sequence[Slice], facts: Mapping[str, DeviceDelays]
) -> dict[int, tuple[int, int]] | None:
    """Return the earliest start of each slice that a delay holds back, and the length of the delay.

    None: with these facts some slices would start too late, with or without a delay. The rules for starts
    are in `sim.engine` (``Stream``) and `sim.readiness.counters` (events travel between streams).
    """
    delays: dict[int, tuple[int, int]] = {}
    issued: dict[int, int] = {}
    nothing = DeviceDelays()
    for event in slices:
        if not event.is_op:
            continue
        overheads = facts.get(event.device, nothing)
        gap = overheads.gap if event.on_stream else 0
        issue_ends = [issued.get(id(source), source.end_ns) for source in event.before]
        ready = [0, *(source.end_ns for source in event.before)]
        if event.on_stream:
            issued[id(event)] = max([0, *issue_ends])
            streams = [source for source in event.before if source.on_stream]
            ready = []
            for source in streams:
                gap_ns = gap if source.leaves_gap else 0
                ready.append(source.end_ns + (gap_ns if source.lane == event.lane else overheads.event_hop))
            ready.append(issued[id(event)] + overheads.launch_latency)
        late = event.start_ns - max(ready)
        if late < 0 or 0 < late < gap:
            return None
        if late:
            delays[id(event)] = max(ready), late - gap
    return delays


# ----------------------------------------------------------------------------------------------------------


def is_simulated(path: StrPath) -> bool:
    """Whether a file says that a simulation wrote it."""
    return re.search(rf'"by"\s*:\s*"{SIMULATOR}"'.encode(), read_head(path, 1 << 16)) is not None


def load(paths: Sequence[StrPath], name: str, *, host: bool = True) -> Graph:
    """Return the graph of a run.

    Parameters
    ----------
    paths : sequence of paths
        One file, or those of all ranks.
    name : str
        Name of the graph.
    host : bool
        Whether launches, and ops on workers, are ops, too.

    Raises
    ------
    InputError
        The files are of several or different runs, an event lacks a required field, or one begins before
        what it waited for had ended.

    Warns
    -----
    UserWarning
        What is lost: units of an NPU, ranks that did not end together.
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
        slices = [event for event in slices if event.on_stream]
    slices.sort(key=lambda event: (event.start_ns, event.end_ns))
    with in_file(paths[0]):
        put_in_order(slices, run["synchronisation"] == "issue", complete=host and not missing)
        for lost in meet(slices):
            _warn(
                f"{paths[0]}: collectives of communicator {lost!r} did not end together on all ranks; they "
                "keep their recorded times, and do not wait for each other"
            )
        properties = others["deviceProperties"] if host else []
        facts = {d["name"]: DeviceDelays(*(d[key] for key in DeviceDelays._fields)) for d in properties}
        delays = delays_of(slices, facts) if host else {}
        if delays is None:
            facts, delays = {}, delays_of(slices, {})
        builder = GraphBuilder(name)
        _add_ops(builder, slices, delays or {})
    described = {
        device: {key: f"{ns}ns" for key, ns in overheads._asdict().items()}
        for device, overheads in facts.items()
        if any(overheads)
    }
    return replace(builder.build(), device_facts=described)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def _run(data: Any, earlier: dict[str, Any], first: StrPath) -> dict[str, Any]:
    """Return a file's description of its run, which must equal that of the files before it, if any."""
    run: dict[str, Any] = data["simulated"]
    if run.get("runs", 1) != 1:
        raise InputError(f"holds {run['runs']} runs; write a trace of each")
    for key, holder in {"synchronisation": run, "deviceProperties": data, "distributedInfo": data}.items():
        if key not in holder:
            raise InputError(f"was written by a simulation, and has no {key} any more")
    if earlier and run != earlier:
        raise InputError(f"is of another run than {first}")
    return run


def _add_ops(builder: GraphBuilder, slices: Sequence[Slice], delays: Mapping[int, tuple[int, int]]) -> None:
    """Add the ops, each behind its delay."""
    names: set[str] = set()
    counted: Counter[str] = Counter()

    def unused_name(name: str) -> str:
        free = name
        while free in names:
            counted[name] += 1
            free = f"{name}#{counted[name]}"
        names.add(free)
        return free

    ops = [event for event in slices if event.is_op]
    for event in ops:  # first, as an op may precede, at one instant, what it waits for
        event.name = unused_name(event.name)
    for event in ops:
        after = list(dict.fromkeys(source.name for source in event.before))
        facts: dict[str, Any] = {"device": event.device, "attributes": event.attributes, **event.more}
        event.attributes["recorded_start_ns"] = event.start_ns
        if id(event) in delays:
            since, ns = delays[id(event)]
            delay = unused_name(f"delay.{event.name}")
            lane = {key: event.attributes[key] for key in ("stream", "thread") if key in event.attributes}
            idle: dict[str, Any] = {"device": event.device, "attributes": lane | {"recorded_start_ns": since}}
            after = [builder.op(delay, kind="delay", duration_ns=ns, after=after, **idle)]
        builder.op(event.name, kind=event.kind, duration_ns=event.duration_ns, after=after, **facts)
