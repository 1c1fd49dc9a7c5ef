"""Output of `sim diff`: the headline, what moved first and why, then all differences, largest first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from scenarios.cli.output import print_table, strong
from scenarios.report.diff import Answer
from sim.base.errors import shorten
from sim.base.units import format_count, format_duration
from sim.diff.differences import Differences
from sim.diff.propagated_delays import told_apart
from sim.explain.idle import REASONS
from sim.explain.makespan_breakdown import change_text
from sim.export.tables import percent, text_table

_CONDITION: Final = {"name": "by name", "order": "by what they do, in order on each lane"}


def print_difference(answer: Answer) -> None:
    """Print the differences."""
    d = answer.differences
    print(strong("A  ") + d.a.title)
    print(strong("B  ") + d.b.title)
    print(_makespans(d))
    print(_counts(answer))
    if d.same:
        return
    told = answer.to_json()
    if told["first_moved"] is not None:
        _print_first(told["first_moved"])
    for rows, left, left_out in _tables(answer, told):
        if rows:
            print()
            print_table(rows, left=left)
        if left_out:
            print(f"... and {left_out:,} more; --top shows more")
    _print_path(answer)


_Table = tuple[list[dict[str, str]], int, int]
"""Rows, the number of text columns, and the number of rows left out."""


def _tables(answer: Answer, told: dict[str, Any]) -> Iterator[_Table]:
    """Yield a table for each difference: starts, ops on one side only, durations, idle time, makespan."""
    yield [_move_row("moved most", move["first"], move) for move in told["moved_most"]], 3, 0
    d, own = answer.differences, answer.own_ns
    if own is not None and (own[d.moved] != d.moved_ns[d.moved]).any():  # others moved because of these
        yield [_move_row("moved by itself", k, k) for k in told["moved_by_themselves"]["most"]], 3, 0
    for side in "AB":
        only = (each | {"op": shorten(each["op"])} for each in told[f"only_{side.lower()}"]["most"])
        columns = [f"in {side} only: op", "kind", "lane of the first: first_lane", "ops", "time: ns"]
        yield text_table(only, [*columns, "start of the first: first_start_ns"]), 3, 0
    yield [_duration_columns(each) for each in told["durations"]], 2, 0
    idle = [
        {"idle": device, "because of": reason, **both}
        for device, reasons in told["idle"].items()
        for reason, both in reasons.items()
    ]
    idle.sort(key=lambda row: -abs(row["b_ns"] - row["a_ns"]))
    yield _both(idle[: answer.top], "idle", "because of"), 2, len(idle[answer.top :])
    if told["makespan"] is not None:
        of = ", ".join(dict.fromkeys(told["makespan"]["parts_of"].values()))
        parts = [{"part": part, **both} for part, both in told["makespan"]["parts"].items()]
        if bubble := told["makespan"].get("bubble"):  # the table above has its reasons
            parts = [row for row in parts if row["part"] not in REASONS]
            parts += [{"part": f"bubble, {phase}", **both} for phase, both in bubble.items()]
        changed = [row for row in parts if row["a_ns"] != row["b_ns"]]
        yield _both(changed, f"makespan of {of}: part"), 1, 0


def _both(rows: Sequence[dict[str, Any]], *names: str) -> list[dict[str, str]]:
    """Return rows with names, the times in A and in B, and their difference."""
    whole = [row | {"difference": _signed_time(row["b_ns"] - row["a_ns"])} for row in rows]
    return text_table(whole, [*names, "in A: a_ns", "in B: b_ns", "difference"])


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
    n_a, n_b = len(d.only_a), len(d.only_b)
    if d.same:
        return f"nothing differs in {format_count(len(d.pairs.a), 'op')}{_beyond(d)}"
    if not len(d.pairs.a):
        return f"no op of the {n_a:,} in A and the {n_b:,} in B has the same name: is it the same work?"
    parts = [f"{int(d.moved.sum()):,} start at another time"]
    if own is not None and d.moved.any():
        parts[0] += f", {int((own != 0).sum()):,} of them by themselves"
    parts.append(f"{int(d.resized.sum()):,} last longer or shorter")
    parts.append(f"{int(d.relaned.sum()):,} run on another lane")
    only = "".join(f"; {n:,} in {side} only" for n, side in ((n_a, "A"), (n_b, "B")) if n)
    matched = f"{len(d.pairs.a):,} ops are in both ({_CONDITION[d.pairs.by]}){only}"
    return f"{matched}\nof those in both {'; '.join(parts)}{_beyond(d)}"


def _beyond(d: Differences) -> str:
    return f" (beyond {format_duration(d.over_ns)})" if d.over_ns else ""


def _print_first(first: dict[str, Any]) -> None:
    a, b = first["a"], first["b"]
    lanes = a["lane"] if a["lane"] == b["lane"] else f"{a['lane']} in A and {b['lane']} in B"
    name = a["name"] if a["name"] == b["name"] else f"{a['name']} ({b['name']} in B)"
    later_ns = b["start_ns"] - a["start_ns"]
    by = f"{format_duration(abs(later_ns))} {'later' if later_ns > 0 else 'earlier'}"
    at = told_apart(a["start_ns"], b["start_ns"])
    times = f"starts at {at[0]} in A, {at[1]} in B: {by}"
    print(f"\n{strong('First to move:')} {_short(name)} on {lanes} {times}")
    for sentence in first["why"]:
        print(f"  {_short(sentence)}")
    waits = [_waits(first["waited_ns"][side]) for side in "ab"]
    print(f"  until it started, it waited in A for {waits[0]}; in B for {waits[1]}")


def _short(sentence: str) -> str:
    """Return a sentence with the names of kernels shortened to fit on a line."""
    return re.sub(r"'([^'\s]+)'", lambda found: f"'{shorten(found[1])}'", sentence)


def _waits(waited: dict[str, int]) -> str:
    return ", ".join(f"{reason} {format_duration(ns)}" for reason, ns in waited.items()) or "nothing"


def _move_row(title: str, pair: dict[str, Any], move: dict[str, Any]) -> dict[str, str]:
    a, b, ops = pair["a"], pair["b"], move.get("ops", 1)
    start = told_apart(a["start_ns"], b["start_ns"])
    return {
        title: shorten(a["name"]) + (f" and {ops - 1:,} more" if ops > 1 else ""),
        "kind": pair["kind"],
        "lane": " → ".join(dict.fromkeys((a["lane"], b["lane"]))),
        "start in A": start[0],
        "start in B": start[1],
        "moved" if title == "moved most" else "by": _signed_time(move["by_ns"]),
    }


def _duration_columns(of: dict[str, Any]) -> dict[str, str]:
    most = of["changed_most"]
    lasted = told_apart(most["a_lasted_ns"], most["b_lasted_ns"])
    return {
        "durations by kind": of["kind"],
        "changed most": f"{shorten(most['a']['name'])} {lasted[0]} → {lasted[1]}",
        "changed": f"{of['ops']:,}",
        "all in A": format_duration(of["a_ns"]),
        "all in B": format_duration(of["b_ns"]),
        "difference": _signed_time(of["b_ns"] - of["a_ns"]),
    }


def _print_path(answer: Answer) -> None:
    path, d = answer.path, answer.differences
    if path is None:
        print("\ncritical path: unknown, as a table says nothing of dependencies")
        return
    told = [f"{path.both:,} ops are on the critical path of both"]
    for side, schedule, only in (("A", d.a, path.only_a), ("B", d.b, path.only_b)):
        if only:
            names = ", ".join(shorten(schedule.name_of(row)) for row in only[:3])
            told.append(f"{len(only):,} in {side} only: {names}{', ...' if len(only) > 3 else ''}")
    print("\n" + "; ".join(told))


def _signed_time(ns: int) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{format_duration(abs(ns))}"
