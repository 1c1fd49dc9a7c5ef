"""The text of `sim explain`: where the time went, in words, with names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, IntArray, group_pairs
from sim.base.errors import list_names, shorten
from sim.base.units import format_count, format_duration
from sim.explain.bounds import Bounds, bounds
from sim.explain.communication import (
    COMMUNICATION,
    communicator_waits,
    exposed_communication,
    moving_ops,
)
from sim.explain.derived import DerivedColumns
from sim.explain.failed_ops import attempt_lines, failure_text, late_lines
from sim.explain.idle import REASONS, IdlePieces, idle_pieces, idle_reasons
from sim.explain.makespan_breakdown import breakdown_line
from sim.explain.path import PathStep, executed_path
from sim.explain.sentences import absent_ranks_text, blame, lives, step_text, task_text
from sim.explain.time_use import WORD_OF_REASON, cores_of, time_use, unused_devices, used_core_ns
from sim.record.record import Record

_NUMBER: Final = re.compile(r"_\d+$")
"""The number that distinguishes modules of one class."""

# ----------------------------------------------------------------------------------------------------------
# Idle stretches in words: the longest ones, and all of them by device and reason.
#
# A gap is an idle stretch of a device; its sentence names the task that could have run first and what held
# that task back.


class Gap(NamedTuple):
    """An idle stretch of a device, its reason, and a sentence that names its cause."""

    device: str
    start_ns: int
    length_ns: int
    reason: str
    blame: str


class GapGroup(NamedTuple):
    """The idle stretches, for one reason, of a device or of several devices with equal ones.

    Attributes
    ----------
    devices : tuple of str
    reason : str
    total_ns, times, median_ns : int
        Values for each device.
    longest : Gap
        The longest, on the first of these devices.
    """

    devices: tuple[str, ...]
    reason: str
    total_ns: int
    times: int
    median_ns: int
    longest: Gap


def largest_gaps(run: Record | DerivedColumns, limit: int = 5) -> list[Gap]:
    """Return the longest idle stretches of the machine, longest first.

    Parameters
    ----------
    run : Trace or DerivedColumns
    limit : int
        The number of gaps; stretches after a device's last task are left out.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("ping")
    >>> _ = b.op("a", duration_ns=10, device="gpu0")
    >>> _ = b.op("b", duration_ns=7, device="gpu1", inputs=["a"])
    >>> trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue())
    >>> [(gap.device, gap.length_ns, gap.blame) for gap in largest_gaps(trace)]
    [('gpu1', 10, "'b' needs 'a', which runs on gpu0/0")]
    """
    f = DerivedColumns.of(run)
    pieces = idle_pieces(f)
    real = np.flatnonzero(pieces.row != UNSET)
    longest = real[np.lexsort((pieces.start_ns[real], pieces.device[real], -pieces.length_ns[real]))][:limit]
    return [_gap(f, pieces, k) for k in longest.tolist()]


def grouped_gaps(f: DerivedColumns) -> list[GapGroup]:
    """Return all idle stretches by reason and device, the largest total first.

    Devices that were idle for the same lengths of time, for the same reason, form one group, as the ranks of
    a job often do. Time after the last task of a device is left out.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("three launches")
    >>> for name in "abc":
    ...     _ = b.op(name, duration_ns=10)
    >>> trace = simulate(b.build(), Machine((Device("gpu0", issue_ns=15),)), ReadyQueue())
    >>> for group in grouped_gaps(DerivedColumns(trace)):
    ...     print(group.devices, group.reason, group.total_ns, group.times, group.median_ns)
    ('gpu0',) issue 25 3 5
    """
    pieces = idle_pieces(f)
    devices: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for rows in _runs(pieces):
        key = (int(pieces.reason[rows[0]]), tuple(np.sort(pieces.length_ns[rows]).tolist()))
        devices.setdefault(key, []).append(int(rows[pieces.length_ns[rows].argmax()]))
    groups = [
        GapGroup(
            devices=tuple(f.devices[int(pieces.device[k])].name for k in longest),
            reason=REASONS[reason],
            total_ns=sum(lengths),
            times=len(lengths),
            median_ns=lengths[len(lengths) // 2],
            longest=_gap(f, pieces, longest[0]),
        )
        for (reason, lengths), longest in devices.items()
    ]
    return sorted(groups, key=lambda group: -group.total_ns * len(group.devices))


def _runs(pieces: IdlePieces) -> Iterator[IntArray]:
    """Yield the stretches of each device and reason."""
    real = np.flatnonzero(pieces.row != UNSET)
    order = real[np.lexsort((real, pieces.reason[real], pieces.device[real]))]
    key = pieces.device[order] * len(REASONS) + pieces.reason[order]
    if len(order):
        yield from np.split(order, np.flatnonzero(np.diff(key)) + 1)


def _gap(f: DerivedColumns, pieces: IdlePieces, k: int) -> Gap:
    device, start, length, code, row = (int(column[k]) for column in pieces)
    reason = REASONS[code]
    return Gap(f.devices[device].name, start, length, reason, blame(f, reason, row, start).sentence)


# ----------------------------------------------------------------------------------------------------------


def explain_text(
    run: Record | DerivedColumns, *, gaps: int = 5, longest: int = 5, title: str | None = None
) -> str:
    """Return the explanation of a run, or of a part of it, as text for a terminal.

    Parameters
    ----------
    run : Trace or DerivedColumns
    gaps : int
        How many groups of idle stretches and, for a part of a run, how many stretches are listed.
    longest : int
        How many of the longest steps of the executed critical path are listed.
    title : str, optional
        The title of the run; default: the names of graph and policy.
    """
    f = DerivedColumns.of(run)
    trace, path = f.trace, executed_path(f)
    makespan = format_duration(trace.makespan_ns)
    lines = [f"{title or f'{trace.job.graph.name} under {trace.policy}'}: {makespan}"]
    lines += [f"Only what happens {f.part}."] if f.part else _whole_lines(f)
    lines += ["", *_path_lines(f, steps_in(f, path), longest)]
    lines += ["", *_device_lines(f), *_host_lines(f, longest), *_exposed_lines(f)]
    lines += [] if f.part else _communicator_lines(f)
    if groups := grouped_gaps(f)[:gaps]:
        lines += ["", "Idle time", *(_group_line(group) for group in groups)]
    if f.part and (listed := largest_gaps(f, gaps)):
        lines += ["", "Longest gaps"]
        lines += [
            f"  {gap.device:<12} {_span(gap.start_ns, gap.length_ns)}  {gap.reason:<10}  {gap.blame}"
            for gap in listed
        ]
    return "\n".join(lines) + "\n"


def op_text(f: DerivedColumns, op: str, limit: int = 5) -> str:
    """Return the life of each execution of an op, as text for a terminal.

    Parameters
    ----------
    f : DerivedColumns
    op : str
    limit : int
        How many executions, steps that led to each, and tasks that waited for it are listed.
    """
    lines: list[str] = []
    executions = lives(f, op)
    for life in executions[:limit]:
        lines += ["", f"{task_text(f, life.row)} on {f.trace.lane_name(life.row)}"]
        lines += [f"  {_span(*when)}  {reason:<10}  {text}".rstrip() for reason, *when, text in life.pieces]
        before = [step for step in life.path if step.end_ns <= f.begins[life.row]][-limit:]
        if before:
            lines.append("  what led to it, last step last:")
        lines += [
            f"    {_span(step.start_ns, step.end_ns - step.start_ns)}  {step_text(f, step)}"
            for step in before
        ]
        tasks = [f"{task_text(f, row)} on {f.trace.lane_name(row)}" for row in life.held_up]
        waited = f"waited for it last: {list_names(tasks, limit)}" if tasks else "nothing waited for it last"
        lines.append(f"  {waited}")
    if len(executions) > limit:
        lines += ["", f"{len(executions) - limit} more executions"]
    return "\n".join(lines[1:]) + "\n"


def steps_in(f: DerivedColumns, path: list[PathStep]) -> list[PathStep]:
    """Return the steps of a path that lie in a part of a run, cut at the ends of its time."""
    moves, device = f.trace.transfers, f.at_device
    ends = np.stack((moves["source"], moves["destination"]))
    touches = np.append(f.counts, (ends == device).any(axis=0) if device is not None else ends[0] >= 0)
    cut = [
        step._replace(start_ns=max(step.start_ns, f.from_ns), end_ns=min(step.end_ns, f.to_ns))
        for step in path
        if touches[step.row]
    ]
    return [step for step in cut if step.end_ns > step.start_ns]


def _whole_lines(f: DerivedColumns) -> list[str]:
    """Return the lines for a whole run only: its parts, its bound, its failures."""
    failed = failure_text(f.trace)
    bound = f"{failed}; no bound." if failed else _bound_line(bounds(f.trace), f.trace.makespan_ns)
    return [f"{breakdown_line(f)}.", *(attempt_lines(f.trace) or [bound]), *late_lines(f.trace)]


def _span(start_ns: int, length_ns: int) -> str:
    return f"at {format_duration(start_ns):>10}  {format_duration(length_ns):>10}"


def _pad_names(names: Sequence[str]) -> str:
    """Return ``gpu0 and 7 more``, padded to the width of the column."""
    return f"{list_names(names):<16}"


def _group_line(group: GapGroup) -> str:
    """Return ``gpu0 and 7 more  35 us  10 x 3.5 us  issue  at 2 us: ...``; ``~3.5 us`` is a mean."""
    mean_ns, mean = group.total_ns / group.times, format_duration(group.longest.length_ns)
    if format_duration(mean_ns) != mean:
        mean = f"~{format_duration(mean_ns, digits=2)}"
    longest = "" if group.times == 1 else "longest "
    detail = f"{longest}at {format_duration(group.longest.start_ns)}: {group.longest.blame}"
    total = f"{format_duration(group.total_ns):>10}  {f'{group.times} x {mean}':<18}"
    return f"  {_pad_names(group.devices)} {total} {group.reason:<12} {detail}"


def _exposed_lines(f: DerivedColumns) -> list[str]:
    """Return the lines on exposed communication by cause; devices with equal numbers share a line."""
    exposed = exposed_communication(f).items()
    groups = group_pairs((tuple(parts.items()), device) for device, parts in exposed)
    graph = f.job.graph
    copies = " and copies" if (moving_ops(f.job) & graph.is_kind("copy", "fill")).any() else ""
    lines = ["", f"Exposed communication{copies}"] if groups else []
    for by_part, names in groups.items():
        total = format_duration(sum(ns for _, ns in by_part))
        parts = ", ".join(f"{part} {format_duration(ns)}" for part, ns in by_part)
        lines.append(f"  {_pad_names(names)} {total:>10}  {parts}")
    alone = graph.is_kind(*COMMUNICATION - {"copy", "transfer"}) & ~f.job.meets
    if groups and alone[[*graph.attribute("kernel")]].any():
        lines.append(
            "  collectives recorded on one rank alone: what they waited for other ranks is in bandwidth"
        )
    return lines


def _bound_line(limits: Bounds, makespan_ns: int) -> str:
    bound = format_duration(limits.lower_bound_ns)
    if limits.loops_counted_once:
        return f"No schedule is shorter than {bound} ({limits.binding}); chains through loops count once."
    ratio = f"; this run takes {makespan_ns / limits.lower_bound_ns:.3g}x" if limits.lower_bound_ns else ""
    return (
        f"With the ops on these devices and streams, no schedule is shorter than {bound} "
        f"({limits.binding}{ratio})."
    )


def _path_lines(f: DerivedColumns, path: list[PathStep], longest: int) -> list[str]:
    listed = sorted(path, key=lambda step: (step.start_ns - step.end_ns, step.start_ns))[:longest]
    where = " here" if f.part else ""
    selection = f", the {len(listed)} longest" if len(listed) < len(path) else ""
    lines = [f"Executed critical path, {format_count(len(path), 'step')}{where}{selection}"]
    if selection:
        lines += _kinds_line(f, path)
    for step in sorted(listed, key=lambda step: step.start_ns):
        lines.append(f"  {_span(step.start_ns, step.end_ns - step.start_ns)}  {step_text(f, step)}")
    return lines


_KINDS_SHOWN: Final = 6


def _kinds_line(f: DerivedColumns, path: list[PathStep]) -> list[str]:
    """Return the time of each kind of op on the path, most first; nothing if there is only one kind."""
    graph, op = f.trace.job.graph, f.trace.tasks["op"]
    by_kind: Counter[str] = Counter()
    for step in path:
        if step.kind == "task":
            by_kind[graph.kind(int(op[step.row]))] += step.end_ns - step.start_ns
    if len(by_kind) < 2:
        return []
    texts = [f"{kind} {format_duration(ns)}" for kind, ns in by_kind.most_common(_KINDS_SHOWN) if ns]
    return [f"  by kind: {', '.join(texts)}{', ...' if len(by_kind) > len(texts) else ''}"]


def _device_lines(f: DerivedColumns) -> list[str]:
    use, reasons, total = time_use(f), idle_reasons(f), f.to_ns - f.from_ns
    used = None if f.part else used_core_ns(f.trace)
    rows: list[tuple[str, str]] = []
    tasks = np.bincount(f.device, minlength=len(f.devices))
    for d, device in enumerate(f.devices):
        if not tasks[d] or device.name not in use:
            continue
        share = {word: _percent(ns, total) for word, ns in use[device.name].items()}
        if cores_of(device) > 1 and used is not None:
            cores = _percent(int(used[d]), cores_of(device) * total).strip()
            share["compute"] += f" (its {cores_of(device)} cores: {cores})"
        waits = sorted((-ns, word) for word, ns in reasons[device.name].items() if word not in WORD_OF_REASON)
        if waits:
            share["wait"] += f" ({', '.join(f'{word} {_percent(-ns, total).strip()}' for ns, word in waits)})"
        rows.append(("   ".join(f"{word} {value}" for word, value in share.items()), device.name))
    lines = ["Devices", *(f"  {_pad_names(names)} {shares}" for shares, names in group_pairs(rows).items())]
    unused = unused_devices(f.trace) if f.at_device is None else []
    return [*lines, f"  unused: {list_names(unused, 8)}"] if unused else lines


def names_around(path: str) -> set[str]:
    """Return the classes of modules on a path, and other names without a number.

    Examples
    --------
    >>> sorted(names_around("ViT_0/Layer_3/Linear_5"))
    ['Layer', 'Linear', 'ViT']
    """
    return {_NUMBER.sub("", name) for name in path.split("/")}


def host_time(f: DerivedColumns) -> dict[str, dict[str, tuple[int, int]]]:
    """Return how the hosts of a recording spent the time to explain: ns and ops by name, most first.

    A host op lasts from the end of the previous one until its call returns. ``operator`` groups by launching
    operator, and ``module`` by classes of modules and the program's own ranges, including all nested work.
    """
    graph, ops = f.job.graph, f.trace.tasks["op"]
    mask = f.counts & f.trace.executed & f.by_worker & (f.begins <= f.to_ns) & (f.end >= f.from_ns)
    begin, end = (np.clip(time, f.from_ns, f.to_ns) for time in (f.begins, f.end))
    spent: dict[str, dict[str, tuple[int, int]]] = {}
    for key in ("operator", "module"):
        names_of = {op: names_around(str(path)) for op, path in graph.attribute(key).items()}
        total, times = Counter[str](), Counter[str]()
        for row in np.flatnonzero(mask & np.isin(ops, [*names_of])).tolist():
            for name in names_of[int(ops[row])]:
                total[name] += int(end[row] - begin[row])
                times[name] += 1
        ranked = sorted(total, key=lambda name: (-total[name], name))
        spent |= {key: {name: (total[name], times[name]) for name in ranked}} if ranked else {}
    return spent


def _host_lines(f: DerivedColumns, limit: int) -> list[str]:
    hosts = len(np.unique(f.device[f.counts & f.trace.executed & f.by_worker]))
    lines, total = [], hosts * (f.to_ns - f.from_ns)
    of_all = f", of the {hosts} hosts together" if hosts > 1 else ""
    for key, spent in host_time(f).items():
        lines += ["", f"Host time by {key}{', with all that it calls' if key == 'module' else ''}{of_all}"]
        for name, (ns, ops) in islice(spent.items(), limit):
            lines.append(f"  {shorten(name):<40} {format_duration(ns):>10}  {_percent(ns, total)}  {ops} x")
    return lines


def _communicator_lines(f: DerivedColumns) -> list[str]:
    entries = communicator_waits(f)
    lines = ["", "Communicators"] if entries else []
    for name, ranks, meetings, late, in_line in entries:
        rank_text, line_text = (format_duration(waited.total_ns) for waited in (late, in_line))
        if late.longest_ns:
            last = absent_ranks_text(f, late.row) or task_text(f, int(f.met_last[late.row]))
            rank_text += f", most {task_text(f, late.row)}, {format_duration(late.longest_ns)} for {last}"
        if in_line.longest_ns:
            longest = f"most {task_text(f, in_line.row)}, {format_duration(in_line.longest_ns)}"
            line_text += f", {longest} behind {task_text(f, int(f.before_in_line[in_line.row]))}"
        size = f"{format_count(ranks, 'rank')}, {format_count(meetings, 'collective')}"
        lines.append(f"  {name:<12} {size}   late ranks {rank_text}   in line {line_text}")
    return lines


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0:5.1f} %"
