"""What `sim diff` prints: the headline, what moved first and why, then what differs, the largest first."""

from __future__ import annotations

import re
from typing import Final

from scenarios.cli.text_tables import print_table, strong
from scenarios.report.diff import Answer, parts_of_both
from sim.base.errors import shortened
from sim.base.units import format_duration
from sim.diff.differences import Differences
from sim.diff.propagated_delays import Why, told_apart
from sim.explain.makespan_breakdown import change_text
from sim.export.tables import percent

_CONDITION: Final = {"name": "by name", "order": "by what they do, in order on each lane"}


def print_difference(answer: Answer) -> None:
    """Print what differs."""
    d = answer.differences
    print(strong("A  ") + d.a.title)
    print(strong("B  ") + d.b.title)
    print(_makespans(d))
    print(_counts(answer))
    if d.same:
        return
    if answer.why is not None:
        print()
        _print_first(d, answer.why)
    _print_moves(answer)
    _print_own(answer)
    _print_only(answer, "A")
    _print_only(answer, "B")
    _print_kinds(answer)
    _print_idle(answer)
    _print_makespan(answer)
    _print_path(answer)


def _makespans(d: Differences) -> str:
    a, b = d.a.makespan_ns, d.b.makespan_ns
    ns = told_apart(a, b)
    told = f"makespan {ns[0]} in A, {ns[1]} in B: "
    if a == b:
        return f"{told}the same"
    share = f" ({percent(abs(b - a) / a)})" if a else ""
    told += f"{format_duration(abs(b - a))}{share} {'longer' if b > a else 'shorter'}"
    slow, fast = (d.b.facts, d.a.facts) if b > a else (d.a.facts, d.b.facts)
    if slow is None or fast is None:
        return told
    return f"{told}\n{'B' if b > a else 'A'} is {change_text(slow, fast)}"


def _counts(answer: Answer) -> str:
    d, own = answer.differences, answer.own_ns
    if d.same:
        return f"nothing differs in {len(d.pairs.a):,} ops{_beyond(d)}"
    if not len(d.pairs.a):
        n_a, n_b = len(d.only_a), len(d.only_b)
        return f"no op of the {n_a:,} in A and the {n_b:,} in B has the same name: is it the same work?"
    parts = [f"{int(d.moved.sum()):,} start at another time"]
    if own is not None and d.moved.any():
        parts[0] += f", {int((own != 0).sum()):,} of them by themselves"
    parts.append(f"{int(d.resized.sum()):,} last longer or shorter")
    parts.append(f"{int(d.relaned.sum()):,} run on another lane")
    n_a, n_b = len(d.only_a), len(d.only_b)
    only = "".join(f"; {n:,} in {side} only" for n, side in ((n_a, "A"), (n_b, "B")) if n)
    matched = f"{len(d.pairs.a):,} ops are in both ({_CONDITION[d.pairs.by]}){only}"
    return f"{matched}\nof those in both {'; '.join(parts)}{_beyond(d)}"


def _beyond(d: Differences) -> str:
    return f" (beyond {format_duration(d.over_ns)})" if d.over_ns else ""


def _print_first(d: Differences, why: Why) -> None:
    a, b = int(d.a.start_ns[why.a]), int(d.b.start_ns[why.b])
    lanes = d.a.lane_of(why.a), d.b.lane_of(why.b)
    where = lanes[0] if lanes[0] == lanes[1] else f"{lanes[0]} in A and {lanes[1]} in B"
    by = f"{format_duration(abs(b - a))} {'later' if b > a else 'earlier'}"
    at = told_apart(a, b)
    times = f"starts at {at[0]} in A, {at[1]} in B: {by}"
    print(f"{strong('First to move:')} {_short(_named(d, why.a, why.b))} on {where} {times}")
    for sentence in why.chain:
        print(f"  {_short(sentence)}")
    waits = [_waits(each) for each in (why.waited_a, why.waited_b)]
    print(f"  until it started, it waited in A for {waits[0]}; in B for {waits[1]}")


def _named(d: Differences, a: int, b: int) -> str:
    """Return what an op is called, in both where that differs."""
    name, other = d.a.name_of(a), d.b.name_of(b)
    return name if name == other else f"{name} ({other} in B)"


def _short(sentence: str) -> str:
    """Return a sentence in which names of kernels are no longer than a line bears."""
    return re.sub(r"'([^'\s]+)'", lambda found: f"'{shortened(found[1])}'", sentence)


def _arrow(a: str, b: str) -> str:
    return a if a == b else f"{a} → {b}"


def _waits(waited: dict[str, int]) -> str:
    return ", ".join(f"{reason} {format_duration(ns)}" for reason, ns in waited.items()) or "nothing"


def _print_moves(answer: Answer) -> None:
    d = answer.differences
    rows = [
        _moved("moved most", d, move.first, move.by_ns, f" and {move.ops - 1:,} more" * (move.ops > 1))
        for move in d.moves(answer.top)
    ]
    _print(rows, left=3)


def _print_own(answer: Answer) -> None:
    """Print which ops moved by themselves, if others were carried along."""
    d, own = answer.differences, answer.own_ns
    if own is None or (own[d.moved] == d.moved_ns[d.moved]).all():
        return
    largest = d.largest(own, answer.top)
    _print([_moved("moved by itself", d, k, int(own[k])) for k in largest], left=3)


def _moved(title: str, d: Differences, k: int, by_ns: int, more: str = "") -> dict[str, str]:
    a, b = int(d.pairs.a[k]), int(d.pairs.b[k])
    start = told_apart(int(d.a.start_ns[a]), int(d.b.start_ns[b]))
    return {
        title: shortened(d.a.name_of(a)) + more,
        "kind": d.a.kind_of(a),
        "lane": _arrow(d.a.lane_of(a), d.b.lane_of(b)),
        "start in A": start[0],
        "start in B": start[1],
        "moved" if title == "moved most" else "by": _signed(by_ns),
    }


def _print_only(answer: Answer, side: str) -> None:
    d = answer.differences
    schedule, only = (d.a, d.only_a) if side == "A" else (d.b, d.only_b)
    rows = [
        {
            f"in {side} only": shortened(name),
            "kind": schedule.kind_of(row),
            "lane of the first": schedule.lane_of(row),
            "ops": f"{ops:,}",
            "time": format_duration(ns),
            "start of the first": format_duration(int(schedule.start_ns[row])),
        }
        for name, ops, ns, row in answer.only(schedule, only)
    ]
    _print(rows, left=3)


def _print_kinds(answer: Answer) -> None:
    d = answer.differences
    rows = []
    for one in d.kinds(answer.top):
        a, b = (int(each) for each in (d.pairs.a[one.most], d.pairs.b[one.most]))
        lasted = told_apart(int(d.a.lasted_ns[a]), int(d.b.lasted_ns[b]))
        most = f"{shortened(d.a.name_of(a))} {lasted[0]} → {lasted[1]}"
        rows.append(
            {
                "durations by kind": one.kind,
                "changed most": most,
                "changed": f"{one.ops:,}",
                "all in A": format_duration(one.a_ns),
                "all in B": format_duration(one.b_ns),
                "difference": _signed(one.b_ns - one.a_ns),
            }
        )
    _print(rows, left=2)


def _print_idle(answer: Answer) -> None:
    found = [
        (device, reason, a, b)
        for device, reasons in answer.idle.items()
        for reason, (a, b) in reasons.items()
    ]
    found.sort(key=lambda one: -abs(one[3] - one[2]))
    rows = [
        {
            "idle": device,
            "because of": reason,
            "in A": format_duration(a),
            "in B": format_duration(b),
            "difference": _signed(b - a),
        }
        for device, reason, a, b in found[: answer.top]
    ]
    _print(rows, left=2, left_out=len(found) - len(rows))


def _print_makespan(answer: Answer) -> None:
    if answer.makespan_change is None:
        return
    devices = dict.fromkeys((answer.makespan_change.a.device, answer.makespan_change.b.device))
    rows = [
        {
            f"makespan of {', '.join(devices)}": part,
            "in A": format_duration(a),
            "in B": format_duration(b),
            "difference": _signed(b - a),
        }
        for part, (a, b) in parts_of_both(answer.makespan_change).items()
        if a != b
    ]
    _print(rows, left=1)


def _print_path(answer: Answer) -> None:
    path, d = answer.path, answer.differences
    if path is None:
        print("\ncritical path: unknown, as a table says nothing of dependencies")
        return
    told = [f"{path.both:,} ops are on the critical path of both"]
    for side, schedule, only in (("A", d.a, path.only_a), ("B", d.b, path.only_b)):
        if only:
            names = ", ".join(shortened(schedule.name_of(row)) for row in only[:3])
            told.append(f"{len(only):,} in {side} only: {names}{', ...' * (len(only) > 3)}")
    print("\n" + "; ".join(told))


def _print(rows: list[dict[str, str]], *, left: int, left_out: int = 0) -> None:
    if rows:
        print()
        print_table(rows, left=left)
        if left_out:
            print(f"... and {left_out:,} more; --top shows more")


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{format_duration(abs(ns))}"
