"""What came before what, and what of the time before a slice is left to explain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scenarios.importers.traces.simulated.slices import Slice
from sim.words.errors import InputError

__all__ = ["Facts", "delays_of", "facts_in", "put_in_order"]


def put_in_order(slices: Sequence[Slice], at_issue: bool, *, whole: bool) -> None:
    """Tell every slice what it comes after, and refuse what began before that had ended.

    With `at_issue` a host does not wait for what is launched. Of a part of a trace, the rest is not missed.
    """
    of_number: dict[int, list[Slice]] = defaultdict(list)
    launch: dict[int, Slice] = {}
    for each in slices:
        if each.launches:
            launch[each.number] = each
        else:
            of_number[each.number].append(each)
    last: dict[tuple[int, int], Slice] = {}
    for each in slices:
        if not each.is_op:
            continue
        fed_by = of_number[each.number][0].fed_by if each.number in of_number else []
        if whole and any(k not in of_number for k in fed_by):
            raise InputError(f"{each.name} waited for what is not in the trace")
        sources = [source for k in fed_by if k in of_number for source in of_number[k]]
        if each.launches and at_issue:  # a host cannot read what is not computed
            sources = [source for source in sources if not source.on_stream]
        called = launch.get(each.number)
        if called is not None and called.is_op and not each.launches:
            sources.append(called)
        if each.lane in last:
            sources.append(last[each.lane])
        last[each.lane] = each
        for source in sources:
            if source.end_ns > each.start_ns:
                raise InputError(f"{each.name} begins before {source.name} ends, for which it waited")
        each.before = sources


class Facts(NamedTuple):
    """What a device itself puts before its tasks, in ns, in the words of a device's description."""

    launch_latency: int = 0
    gap: int = 0
    event_hop: int = 0


def facts_in(data: Any) -> dict[str, Facts]:
    """Return what a file says of its devices."""
    return {each["name"]: Facts(*(each[key] for key in Facts._fields)) for each in data["deviceProperties"]}


def delays_of(slices: Sequence[Slice], facts: Mapping[str, Facts]) -> dict[int, tuple[int, int]] | None:
    """Return since when each slice could have run, and how long a delay holds it back, where one does.

    None: with these facts some would have started too late, with a delay or without. When things start
    is said in `sim.engine` (``Stream``) and `sim.readiness.counters` (events travel between streams).
    """
    found: dict[int, tuple[int, int]] = {}
    issued: dict[int, int] = {}
    nothing = Facts()
    for each in slices:
        if not each.is_op:
            continue
        own = facts.get(each.device, nothing)
        gap = own.gap if each.on_stream else 0
        told = [issued.get(id(source), source.end_ns) for source in each.before]
        ready = [0, *(source.end_ns for source in each.before)]
        if each.on_stream:
            issued[id(each)] = max([0, *told])
            streams = [source for source in each.before if source.on_stream]
            ready = [
                source.end_ns + (gap if source.lane == each.lane else own.event_hop) for source in streams
            ]
            ready.append(issued[id(each)] + own.launch_latency)
        late = each.start_ns - max(ready)
        if late < 0 or 0 < late < gap:
            return None
        if late:
            found[id(each)] = max(ready), late - gap
    return found
