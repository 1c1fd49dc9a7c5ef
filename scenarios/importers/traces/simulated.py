"""Traces that a simulation wrote (``sim run --trace FILE``): a run as a graph that runs as that one did.

::

    hosts      gpu0/host   ▇launch a▇▇launch b▇                 device hosts, thread gpu0/host
    gpu0       stream 0               ▇▇▇▇▇a▇▇▇▇▇               device gpu0, stream 1
               stream 1                  ·delay·▇▇▇▇b▇▇▇▇       device gpu0, stream 2
    links      wire                             ▇transfer▇      device links, stream wire

Every slice is an op with its duration, on a lane of its device. It comes after the slice before it on its
lane, after its launch, and after what it says that it waited for (``after``); a launch comes after what its
op waited for, as far as the run's synchronisation had its host wait for that. What is left of the time
before it, such as a launch latency or a policy's decision, is an op ``delay`` on its lane. So a machine that
costs nothing itself starts and ends everything at the same nanosecond.

Collectives meet again: those of a communicator, the n-th of each rank, last from the start of the last one
to their end. Where ranks did not end together (rings whose messages go over links one by one, steps that were
aborted) they keep their recorded times, with a warning.

What is no part of a schedule does not come back: what ops compute, tensors, memory, loops and branches (each
run of an op is an op), the units of an NPU, failures.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scenarios.importers.files import StrPath, in_file, read_head, read_json
from sim.export.chrome import SIMULATOR
from sim.graph.builder import GraphBuilder
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph
from sim.job.collectives.members import COLLECTIVE_KINDS
from sim.words.errors import InputError
from sim.words.units import round_half_up

__all__ = ["is_simulated", "load"]

_LAUNCH: Final = "cuda_runtime"
_WORKER: Final = "cpu_op"


@dataclass
class _Slice:
    """An op to be.

    Attributes
    ----------
    name, kind, device : str
    lane : tuple
        Process and thread.
    attributes : dict
        ``stream`` or ``thread``, and what else comes back.
    start_ns, end_ns : int
    number : int
        What others call it in their `fed_by`; of a launch, the number of its op.
    fed_by : list of int
    before : list of _Slice
        What has to have ended.
    launches : bool
        Whether it is a call of a host that launches `number`.
    more : dict
        Further arguments of `GraphBuilder.op`.
    duration_ns : int
        Of a collective without its waiting.
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
    before: list[_Slice] = field(default_factory=list)
    duration_ns: int = 0

    def __post_init__(self) -> None:
        self.duration_ns = self.end_ns - self.start_ns


def is_simulated(path: StrPath) -> bool:
    """Whether a file says that a simulation wrote it."""
    return f'"by": "{SIMULATOR}"'.encode() in read_head(path, 4096)


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
    slices: list[_Slice] = []
    run: dict[str, Any] = {}
    for path in paths:
        with in_file(path):
            data = read_json(path)
            run = _run(data, run, paths[0])
            slices += _slices(data["traceEvents"])
    missing = data["distributedInfo"]["world_size"] - len(paths)
    if missing:
        _warn(f"{paths[0]}: {missing} other ranks are missing; a delay stands for what waited for them")
    for device in data["deviceProperties"]:
        if device["kind"] == "npu":
            _warn(
                f"{paths[0]}: {device['name']} is an NPU; what ran on it comes back on streams, with its "
                "times, and without the units of its cores"
            )
    if not host:
        slices = [each for each in slices if "stream" in each.attributes]
    slices.sort(key=lambda each: (each.start_ns, each.end_ns))
    with in_file(paths[0]):
        _order(slices, run["synchronisation"] == "issue", whole=host and not missing)
        for lost in _meet(slices):
            _warn(
                f"{paths[0]}: collectives of communicator {lost!r} did not end together on all ranks; they "
                "keep their recorded times, and do not wait for each other"
            )
        builder = GraphBuilder(name)
        for record in _ops(slices, delays=host):
            builder.op(**record)
        return builder.build()


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


# -- the file -----------------------------------------------------------------------------------


def _run(data: Any, known: dict[str, Any], first: StrPath) -> dict[str, Any]:
    """Return what a file says of its run, which is that of the files before it, if there are any."""
    said: dict[str, Any] = data["simulated"]
    if said["runs"] != 1:
        raise InputError(f"holds {said['runs']} runs; write a trace of each")
    if known and said != known:
        raise InputError(f"is of another run than {first}")
    return said


def _slices(events: Sequence[Any]) -> Iterator[_Slice]:
    """Yield what ran, of a file's events: by name of its process, on its thread."""
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for index, event in enumerate(events):
        try:
            if event["ph"] == "M" and event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            elif event["ph"] == "M" and event["name"] == "thread_name":
                threads[event["pid"], event["tid"]] = event["args"]["name"]
            elif event["ph"] == "X":
                lane = event["pid"], event["tid"]
                yield _slice(event, lane, processes[event["pid"]], threads[lane])
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"traceEvents[{index}]: {reason}") from None


def _slice(event: Any, lane: tuple[int, int], device: str, thread: str) -> _Slice:
    args, title, category = event["args"], event["name"], event["cat"]
    start, duration = _ns(event["ts"]), _ns(event["dur"])
    attributes: dict[str, Any] = {"stream": args.get("stream", thread)}
    if category in (_LAUNCH, _WORKER):
        attributes = {"thread": thread}
    name, kind = args.get("op", title), args.get("kind", "transfer")
    more = {key: args[key] for key in ("stage", "micro_batch") if key in args}
    if kind in CONTROL_FLOW_KINDS:
        kind = "op"  # what it decided has been decided
    if category == _LAUNCH:
        name, kind = f"launch.{name}", "launch"
        attributes["call"] = title
    elif name != title:
        attributes["kernel"] = title
    if "Process Group Name" in args:
        attributes["communicator"] = args["Process Group Name"]
        attributes |= {key: args[key] for key in ("peer", "group") if key in args}
    if "bytes" in args:
        more |= {"bytes_read": args["bytes"], "bytes_written": args["bytes"]}
    if "iteration" in args and "group" in attributes:  # a group call of each iteration
        attributes["group"] = f"{attributes['group']}.{args['iteration']}"
    number, fed_by = args["External id"], args.get("after", [])
    launches = category == _LAUNCH
    return _Slice(
        name, kind, device, lane, attributes, start, start + duration, number, fed_by, launches, more
    )


def _ns(microseconds: Any) -> int:
    """Return whole ns: three decimals are exact in a float up to 2 ** 53 ns, a hundred days."""
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | float) or microseconds < 0:
        raise ValueError(f"{microseconds!r} is no time in microseconds")
    return round_half_up(1000 * microseconds)


# -- what came before what -----------------------------------------------------------------------


def _order(slices: Sequence[_Slice], at_issue: bool, *, whole: bool) -> None:
    """Tell every slice what it comes after, and refuse what began before that had ended.

    With `at_issue` a host does not wait for what is launched. Of a part of a trace, the rest is not missed.
    """
    of_number: dict[int, list[_Slice]] = defaultdict(list)
    launch: dict[int, _Slice] = {}
    fed: dict[int, _Slice] = {}
    for each in slices:
        if each.launches:
            launch[each.number] = each
        else:
            of_number[each.number].append(each)
            fed[each.number] = each
    last: dict[tuple[int, int], _Slice] = {}
    for each in slices:
        if each.launches and not each.duration_ns:
            continue  # it costs nothing: the op itself waits
        fed_by = fed[each.number].fed_by if each.number in fed else []
        if whole and any(k not in of_number for k in fed_by):
            raise InputError(f"{each.name} waited for what is not in the trace")
        sources = [source for k in fed_by if k in of_number for source in of_number[k]]
        if each.launches and at_issue:  # a host cannot read what is not computed
            sources = [source for source in sources if "thread" in source.attributes]
        called = launch.get(each.number)
        if called is not None and called.duration_ns and not each.launches:
            sources.append(called)
        if each.lane in last:
            sources.append(last[each.lane])
        last[each.lane] = each
        for source in sources:
            if source.end_ns > each.start_ns:
                raise InputError(f"{each.name} begins before {source.name} ends, for which it waited")
        each.before = sources


def _meet(slices: Sequence[_Slice]) -> list[str]:
    """Give collectives that met their transfer as duration, and their places in line; return who did not."""
    members: dict[str, list[_Slice]] = defaultdict(list)
    for each in slices:
        if "communicator" in each.attributes:
            members[each.attributes["communicator"]].append(each)
    lost = [name for name, found in members.items() if not _met(found)]
    for name, found in members.items():
        if name in lost:
            for each in found:
                del each.attributes["communicator"]
                each.attributes.pop("peer", None), each.attributes.pop("group", None)
        else:
            _line_up(found)
    return lost


def _met(members: Sequence[_Slice]) -> bool:
    """Whether all collectives of a communicator ended together; then set how long they transferred."""
    counted: Counter[tuple[Any, str]] = Counter()
    meetings: dict[tuple[Any, int], list[_Slice]] = defaultdict(list)
    ranks: dict[Any, set[str]] = defaultdict(set)
    for each in members:
        peer = each.attributes.get("peer")
        pair = (each.device, peer) if each.kind == "send" else (peer, each.device)
        party = pair if peer is not None else ()
        meetings[party, counted[party, each.device]].append(each)
        counted[party, each.device] += 1
        ranks[party].add(each.device)
    for (party, _), met in meetings.items():
        together = len({each.end_ns for each in met}) == 1 and len({each.kind for each in met}) == 1 + bool(
            party
        )
        latest = max(each.start_ns for each in met)
        if not together or len(met) != len(ranks[party]) or met[0].kind not in COLLECTIVE_KINDS:
            return False
        for each in met:
            each.duration_ns = each.end_ns - latest
    return all(each.duration_ns >= 0 for each in members)


def _line_up(members: Sequence[_Slice]) -> None:
    """Let every collective come after the one before it in its line; those of a group call after the same."""
    lines: dict[str, list[list[_Slice]]] = defaultdict(list)
    for each in members:
        calls, group = lines[each.device], each.attributes.get("group")
        if calls and group is not None and calls[-1][0].attributes.get("group") == group:
            calls[-1].append(each)
        else:
            calls.append([each])
        each.attributes["recorded_ns"] = each.end_ns - each.start_ns
        if len(calls) > 1:
            each.before += calls[-2]


# -- ops ----------------------------------------------------------------------------------------


def _ops(slices: Sequence[_Slice], *, delays: bool) -> Iterator[dict[str, Any]]:
    """Yield the ops, each behind the delay that nothing else explains."""
    taken: set[str] = set()
    counted: Counter[str] = Counter()

    def unused(name: str) -> str:
        free = name
        while free in taken:
            counted[name] += 1
            free = f"{name}#{counted[name]}"
        taken.add(free)
        return free

    name_of: dict[int, str] = {}
    for each in slices:
        if each.launches and not each.duration_ns:
            continue
        after = list(dict.fromkeys(name_of[id(source)] for source in each.before))
        ready = max((source.end_ns for source in each.before), default=0)
        where = {key: each.attributes[key] for key in ("stream", "thread") if key in each.attributes}
        name = name_of[id(each)] = unused(each.name)
        if delays and each.start_ns > ready:
            delay = unused(f"delay.{name}")
            yield {
                "name": delay,
                "kind": "delay",
                "duration_ns": each.start_ns - ready,
                "after": after,
                "device": each.device,
                "attributes": where | {"recorded_start_ns": ready},
            }
            after = [delay]
        yield {
            "name": name,
            "kind": each.kind,
            "duration_ns": each.duration_ns,
            "after": after,
            "device": each.device,
            "attributes": each.attributes | {"recorded_start_ns": each.start_ns},
            **each.more,
        }
