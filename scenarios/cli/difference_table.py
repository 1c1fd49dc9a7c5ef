"""Output of `sim diff`: the headline, what moved first and why, then all differences, largest first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from scenarios.cli.output import print_table, strong
from scenarios.report.diff import Answer
from sim.base.errors import shorten
from sim.base.units import format_duration
from sim.diff.differences import Differences
from sim.diff.propagated_delays import distinct_durations
from sim.explain.idle import REASONS
from sim.explain.makespan_breakdown import change_text
from sim.export.tables import percent, text_table

_MATCHED_BY: Final = {"name": "by name", "order": "by what they do, in order on each lane"}


def print_difference(answer: Answer) -> None:
    """Print the differences."""
    diff = answer.differences
    print(strong("A  ") + diff.a.title)
    print(strong("B  ") + diff.b.title)
    print(_makespans(diff))
    print(_counts(answer))
    if diff.same:
        return
    report = answer.to_json()
    if report["first_moved"] is not None:
        _print_first(report["first_moved"])
    for rows, left, left_out in _tables(answer, report):
        if rows:
            print()
            print_table(rows, left=left)
        if left_out:
            print(f"... and {left_out:,} more; --top shows more")
    _print_path(answer)


_Table = tuple[list[dict[str, str]], int, int]
"""Rows, the number of text columns, and the number of rows left out."""


def _tables(answer: Answer, report: dict[str, Any]) -> Iterator[_Table]:
    """Yield a table for each difference: starts, ops on one side only, durations, idle time, makespan."""
    yield [_move_row("moved most", move["first"], move) for move in report["moved_most"]], 3, 0
    diff, own_ns = answer.differences, answer.own_ns
    # Unless all moved by themselves, this table has those that did.
    if own_ns is not None and (own_ns[diff.moved] != diff.moved_ns[diff.moved]).any():
        yield [_move_row("moved by itself", k, k) for k in report["moved_by_themselves"]["most"]], 3, 0
    for side in "AB":
        only = (entry | {"op": shorten(entry["op"])} for entry in report[f"only_{side.lower()}"]["most"])
        columns = [f"in {side} only: op", "kind", "lane of the first: first_lane", "ops", "time: ns"]
        yield text_table(only, [*columns, "start of the first: first_start_ns"]), 3, 0
    yield [_duration_columns(entry) for entry in report["durations"]], 2, 0
    idle = [
        {"idle": device, "because of": reason, **times}
        for device, reasons in report["idle"].items()
        for reason, times in reasons.items()
    ]
    idle.sort(key=lambda row: -abs(row["b_ns"] - row["a_ns"]))
    yield _both(idle[: answer.top], "idle", "because of"), 2, len(idle[answer.top :])
    if report["makespan"] is not None:
        devices = ", ".join(dict.fromkeys(report["makespan"]["parts_of"].values()))
        parts = [{"part": part, **times} for part, times in report["makespan"]["parts"].items()]
        if bubble := report["makespan"].get("bubble"):  # the table above has its reasons
            parts = [row for row in parts if row["part"] not in REASONS]
            parts += [{"part": f"bubble, {phase}", **times} for phase, times in bubble.items()]
        changed = [row for row in parts if row["a_ns"] != row["b_ns"]]
        yield _both(changed, f"makespan of {devices}: part"), 1, 0


def _both(rows: Sequence[dict[str, Any]], *names: str) -> list[dict[str, str]]:
    """Return rows with names, the times in A and in B, and their difference."""
    signed = [row | {"difference": _signed_time(row["b_ns"] - row["a_ns"])} for row in rows]
    return text_table(signed, [*names, "in A: a_ns", "in B: b_ns", "difference"])


def _makespans(diff: Differences) -> str:
    a, b = diff.a.makespan_ns, diff.b.makespan_ns
    ns = distinct_durations(a, b)
    text = f"makespan {ns[0]} in A, {ns[1]} in B: "
    if a == b:
        return f"{text}the same"
    share = f" ({percent(abs(b - a) / a)})" if a else ""
    text += f"{format_duration(abs(b - a))}{share} {'longer' if b > a else 'shorter'}"
    slow, fast = (diff.b.derived, diff.a.derived) if b > a else (diff.a.derived, diff.b.derived)
    if slow is None or fast is None:
        return text
    return f"{text}\n{'B' if b > a else 'A'} is {change_text(slow, fast)}"


def _counts(answer: Answer) -> str:
    diff, own_ns = answer.differences, answer.own_ns
    n_a, n_b = len(diff.only_a), len(diff.only_b)
    if diff.same:
        return f"nothing differs in {diff.a.count_text(diff.pairs.a)}{_beyond(diff)}"
    if not len(diff.pairs.a):
        ops = f"the {diff.a.count_text(diff.only_a)} in A and the {diff.b.count_text(diff.only_b)} in B"
        return f"none of {ops} has the same name: is it the same work?"
    parts = [f"{int(diff.moved.sum()):,} start at another time"]
    if own_ns is not None and diff.moved.any():
        parts[0] += f", {int((own_ns != 0).sum()):,} of them by themselves"
    parts.append(f"{int(diff.resized.sum()):,} last longer or shorter")
    parts.append(f"{int(diff.relaned.sum()):,} run on another lane")
    only = "".join(f"; {n:,} in {side} only" for n, side in ((n_a, "A"), (n_b, "B")) if n)
    are = "is" if len(diff.pairs.a) == 1 else "are"
    matched = f"{diff.a.count_text(diff.pairs.a)} {are} in both ({_MATCHED_BY[diff.pairs.by]}){only}"
    return f"{matched}\nof those in both {'; '.join(parts)}{_beyond(diff)}"


def _beyond(diff: Differences) -> str:
    return f" (beyond {format_duration(diff.over_ns)})" if diff.over_ns else ""


def _print_first(first: dict[str, Any]) -> None:
    a, b = first["a"], first["b"]
    lanes = a["lane"] if a["lane"] == b["lane"] else f"{a['lane']} in A and {b['lane']} in B"
    name = a["name"] if a["name"] == b["name"] else f"{a['name']} ({b['name']} in B)"
    later_ns = b["start_ns"] - a["start_ns"]
    shift = f"{format_duration(abs(later_ns))} {'later' if later_ns > 0 else 'earlier'}"
    starts = distinct_durations(a["start_ns"], b["start_ns"])
    times = f"starts at {starts[0]} in A, {starts[1]} in B: {shift}"
    print(f"\n{strong('First to move:')} {_short(name)} on {lanes} {times}")
    for sentence in first["why"]:
        print(f"  {_short(sentence)}")
    waits = [_waits(first["waited_ns"][side]) for side in "ab"]
    print(f"  until it started, it waited in A for {waits[0]}; in B for {waits[1]}")


def _short(sentence: str) -> str:
    """Return a sentence with the names of kernels shortened to fit on a line."""
    return re.sub(r"'([^'\s]+)'", lambda match: f"'{shorten(match[1])}'", sentence)


def _waits(waited: dict[str, int]) -> str:
    return ", ".join(f"{reason} {format_duration(ns)}" for reason, ns in waited.items()) or "nothing"


def _move_row(title: str, pair: dict[str, Any], move: dict[str, Any]) -> dict[str, str]:
    a, b, ops = pair["a"], pair["b"], move.get("ops", 1)
    start = distinct_durations(a["start_ns"], b["start_ns"])
    return {
        title: shorten(a["name"]) + (f" and {ops - 1:,} more" if ops > 1 else ""),
        "kind": pair["kind"],
        "lane": " → ".join(dict.fromkeys((a["lane"], b["lane"]))),
        "start in A": start[0],
        "start in B": start[1],
        "moved" if title == "moved most" else "by": _signed_time(move["by_ns"]),
    }


def _duration_columns(change: dict[str, Any]) -> dict[str, str]:
    largest = change["changed_most"]
    lasted = distinct_durations(largest["a_lasted_ns"], largest["b_lasted_ns"])
    return {
        "durations by kind": change["kind"],
        "changed most": f"{shorten(largest['a']['name'])} {lasted[0]} → {lasted[1]}",
        "changed": f"{change['ops']:,}",
        "all in A": format_duration(change["a_ns"]),
        "all in B": format_duration(change["b_ns"]),
        "difference": _signed_time(change["b_ns"] - change["a_ns"]),
    }


def _print_path(answer: Answer) -> None:
    path, diff = answer.path, answer.differences
    if path is None:
        print("\ncritical path: unknown, as a table says nothing of dependencies")
        return
    parts = [f"{path.both:,} ops are on the critical path of both"]
    for side, schedule, only in (("A", diff.a, path.only_a), ("B", diff.b, path.only_b)):
        if only:
            names = ", ".join(shorten(schedule.name_of(row)) for row in only[:3])
            parts.append(f"{len(only):,} in {side} only: {names}{', ...' if len(only) > 3 else ''}")
    print("\n" + "; ".join(parts))


def _signed_time(ns: int) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{format_duration(abs(ns))}"
