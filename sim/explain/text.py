"""What `sim explain` says: where the time went, in words, with names.

A gap is an idle stretch of a device; its sentence names the task that could have run first and what held
that task back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from sim.analysis.bounds import Bounds, bounds
from sim.analysis.core_use import cores_of, used_core_ns
from sim.analysis.failed_ops import attempt_lines, failure_text, late_lines
from sim.analysis.unused_devices import unused_devices
from sim.explain.communicator_waits import communicator_waits
from sim.explain.derived_columns import Facts
from sim.explain.held_up_most import held_up_most
from sim.explain.idle import REASONS, idle_pieces, idle_reasons
from sim.explain.path import Step, executed_path
from sim.explain.time_use import WORD_OF_REASON, time_use
from sim.graph.failures import ABORTED
from sim.record.record import Record
from sim.words.arrays import UNSET
from sim.words.units import format_duration

__all__ = ["Gap", "blame", "explain_text", "largest_gaps", "name_of_row"]


class Gap(NamedTuple):
    """An idle stretch of a device, its reason, and a sentence that names who is to blame."""

    device: str
    start_ns: int
    length_ns: int
    reason: str
    blame: str


def largest_gaps(trace: Record, limit: int = 5, facts: Facts | None = None) -> list[Gap]:
    """Return the longest idle stretches of the machine, longest first.

    Parameters
    ----------
    trace : Trace
    limit : int
        How many; stretches after a device's last task are left out.
    facts : Facts, optional
        Of this trace, when the caller has them already.

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
    f = facts or Facts(trace)
    pieces = idle_pieces(trace, f)
    real = np.flatnonzero(pieces.row != UNSET)
    longest = real[np.lexsort((pieces.start_ns[real], pieces.device[real], -pieces.length_ns[real]))][:limit]
    gaps = zip(*(column[longest].tolist() for column in pieces), strict=True)
    return [
        Gap(f.devices[device].name, start, length, REASONS[reason], blame(f, REASONS[reason], row, start))
        for device, start, length, reason, row in gaps
    ]


def blame(facts: Facts, reason: str, row: int, at_ns: int) -> str:
    """Return who keeps a task from starting, in one sentence.

    Parameters
    ----------
    facts : Facts
    reason : str
        One of `sim.explain.idle.REASONS`.
    row : int
        The task.
    at_ns : int
        When.
    """
    return _SENTENCES[reason](facts, row, at_ns)


def _task(f: Facts, row: int) -> str:
    name = f.job.graph.op_names[int(f.trace.tasks["op"][row])]
    return f"{name!r}{_iteration(f, int(f.trace.tasks['iteration'][row]))}"


def name_of_row(f: Facts, row: int) -> str:
    """Return what sentences call a task, or a transfer."""
    return _task(f, row) if row < f.n else _transfer(f, row)


def _iteration(f: Facts, iteration: int) -> str:
    return f"[{iteration}]" if f.job.iterations > 1 else ""


def _lane(f: Facts, row: int) -> str:
    return f.trace.lane_name(row)


def _transfer(f: Facts, row: int) -> str:
    moved, k = f.trace.transfers, row - f.n
    source, destination = (f.devices[int(moved[end][k])].name for end in ("source", "destination"))
    name = f"{f.job.graph.tensor_name(int(moved['tensor'][k]))!r}{_iteration(f, int(moved['iteration'][k]))}"
    return f"the transfer of {name} from {source} to {destination}"


def _dependency(f: Facts, row: int, at_ns: int) -> str:
    if f.trace.status[row] == ABORTED:
        return f"{_task(f, row)} waits for what is never sent, and is aborted"
    cause = int(f.last_producer[row])
    if cause >= f.n:
        cause = int(f.last_producer[cause])
    verb = "runs" if f.start[cause] <= at_ns else "has not started yet"
    return f"{_task(f, row)} needs {_task(f, cause)}, which {verb} on {_lane(f, cause)}"


def _in_transit(f: Facts, row: int, at_ns: int) -> str:
    transfer = int(f.last_producer[row])
    queued = f.trace.transfers["start_ns"][transfer - f.n] > at_ns
    return f"{_task(f, row)} needs {_transfer(f, transfer)}" + (
        f", which {_queued(f, transfer)}" if queued else ""
    )


def _queued(f: Facts, transfer: int) -> str:
    if f.copied_by[transfer - f.n] >= 0:
        return "waits for a link, or for its host"
    met = bool((f.trace.met[:, 0] == f.trace.transfers["id"][transfer - f.n]).any())
    return "waits for its request, or for a link" if met else "waits for a link"


def _issue(f: Facts, row: int, at_ns: int) -> str:
    who = f.issuers[int(f.issuer[row])].name
    busy = "issues it" if f.taken[row] <= at_ns else "is busy with other tasks"
    return f"{_task(f, row)} is ready, and {who} {busy}"


def _policy(f: Facts, row: int, at_ns: int) -> str:
    later = np.flatnonzero((f.group == f.group[row]) & (f.taken > at_ns))
    ahead = int(later[np.lexsort((later, f.taken[later]))[0]]) if len(later) else row
    does = f"runs {_task(f, ahead)} first" if ahead != row else "holds it back"
    return f"{_task(f, row)} is ready and an issuer is free, but {f.policy} {does}"


def _memory(f: Facts, row: int, at_ns: int) -> str:
    if f.taken[row] <= at_ns < f.taken[row] + f.calls[row]:
        who = f.issuers[int(f.issuer[row])].name
        return f"{who} calls the driver for memory before it issues {_task(f, row)}"
    return f"{_task(f, row)} waits for memory"


def _stream(f: Facts, row: int, at_ns: int) -> str:
    ahead = int(f.before_on_lane[row])
    return f"{_task(f, row)} is issued and queued behind {_task(f, ahead)} on {_lane(f, row)}"


def _in_line(f: Facts, row: int, at_ns: int) -> str:
    ahead = int(f.before_in_line[row])
    return f"{_task(f, row)} is queued behind {_task(f, ahead)} on communicator {f.communicator(row)!r}"


def _late_rank(f: Facts, row: int, at_ns: int) -> str:
    late = int(f.met_last[row])
    where = f"{f.devices[int(f.device[late])].name}, whose {_task(f, late)} is the last to start"
    told = f"{_task(f, row)} waits on communicator {f.communicator(row)!r} for {where}"
    behind = np.flatnonzero((f.before_on_lane == row) & (f.data[: f.n] <= at_ns) & (f.issue <= at_ns))
    return told + (f"; {_task(f, int(behind[0]))} stands behind it on {_lane(f, row)}" if len(behind) else "")


_SENTENCES: Final[dict[str, Callable[[Facts, int, int], str]]] = {
    "dependency": _dependency,
    "transfer": _in_transit,
    "issue": _issue,
    "policy": _policy,
    "stream": _stream,
    "launch": lambda f, row, at: f"{_task(f, row)} is being launched on {_lane(f, row)}",
    "event": lambda f, row, at: f"{_task(f, row)} waits on {_lane(f, row)} for an event to arrive",
    "resources": lambda f, row, at: f"{_task(f, row)} waits for resources of the device",
    "memory": _memory,
    "communicator": _in_line,
    "late rank": _late_rank,
    "recovery": lambda f, row, at: (
        f"a part of the machine failed, and {_task(f, row)} is the first after the restart"
    ),
    "finished": lambda f, row, at: "no work is left",
    "unused": lambda f, row, at: "it never had work",
}


def explain_text(
    trace: Record, *, gaps: int = 5, longest: int = 5, title: str | None = None, policy: str | None = None
) -> str:
    """Return the explanation of a run, as text for a terminal.

    Parameters
    ----------
    trace : Trace
    gaps : int
        How many of the longest idle stretches are listed.
    longest : int
        How many of the longest steps of the executed critical path are listed.
    title : str, optional
        What is explained; default: the names of graph and policy.
    policy : str, optional
        What sentences call the policy; default: the name of its class.
    """
    f = Facts(trace, policy)
    limits = bounds(trace)
    makespan = trace.makespan_ns
    failed = failure_text(trace)
    path = executed_path(trace, f)
    most = held_up_most(f, path, blame)
    lines = [
        f"{title or f'{trace.job.graph.name} under {trace.policy}'}: {format_duration(makespan)}",
        *(attempt_lines(trace) or [f"{failed}; no bound." if failed else _bound_line(limits, makespan)]),
        *late_lines(trace),
        *([f"Held up most: {most}."] if most else []),
        "",
        *_path_lines(f, path, longest),
        "",
        *_device_lines(f),
        *_communicator_lines(f),
    ]
    found = largest_gaps(trace, gaps, f)
    if found:
        lines += ["", "Longest gaps"]
        for gap in found:
            begin, length = format_duration(gap.start_ns), format_duration(gap.length_ns)
            lines.append(f"  {gap.device:<12} at {begin:>10}  {length:>10}  {gap.reason:<10}  {gap.blame}")
    return "\n".join(lines) + "\n"


def _bound_line(limits: Bounds, makespan_ns: int) -> str:
    bound = format_duration(limits.lower_bound_ns)
    if limits.loops_counted_once:
        return f"No schedule is shorter than {bound} ({limits.binding}); chains through loops count once."
    over = f"; this run takes {makespan_ns / limits.lower_bound_ns:.3g}x" if limits.lower_bound_ns else ""
    return (
        f"With the ops on these devices and streams, no schedule is shorter than {bound} "
        f"({limits.binding}{over})."
    )


def _path_lines(f: Facts, path: list[Step], longest: int) -> list[str]:
    total: dict[str, int] = {}
    for step in path:
        what = f"wait: {step.reason}" if step.kind == "wait" else step.kind
        total[what] = total.get(what, 0) + step.end_ns - step.start_ns
    lines = [f"Executed critical path, {len(path)} steps"]
    for what, ns in sorted(total.items(), key=lambda item: (-item[1], item[0])):
        lines.append(f"  {what:<20} {format_duration(ns):>10}  {_percent(ns, f.trace.makespan_ns)}")
    lines.append("  longest steps:")
    for step in sorted(path, key=lambda s: (s.start_ns - s.end_ns, s.start_ns))[:longest]:
        begin, length = format_duration(step.start_ns), format_duration(step.end_ns - step.start_ns)
        lines.append(f"    at {begin:>10}  {length:>10}  {_step(f, step)}")
    return lines


def _step(f: Facts, step: Step) -> str:
    if step.kind == "transfer":
        return _transfer(f, step.row)
    if step.row >= f.n:
        return f"{_transfer(f, step.row)}, {_queued(f, step.row)}"
    name = _task(f, step.row)
    if step.kind == "task":
        return f"{name} on {_lane(f, step.row)}"
    if step.kind == "issue":
        return f"{f.issuers[int(f.issuer[step.row])].name} issues {name}"
    return f"{name} waits ({step.reason})"


def _device_lines(f: Facts) -> list[str]:
    reasons = idle_reasons(f.trace, f)
    use = time_use(f.trace, reasons)
    makespan = f.trace.makespan_ns
    used = used_core_ns(f.trace)
    lines = ["Devices"]
    tasks = np.bincount(f.device, minlength=len(f.devices))
    for d, device in enumerate(f.devices):
        if not tasks[d]:
            continue
        share = {word: _percent(ns, makespan) for word, ns in use[device.name].items()}
        if cores_of(device) > 1:
            cores = _percent(int(used[d]), cores_of(device) * makespan).strip()
            share["compute"] += f" (its {cores_of(device)} cores: {cores})"
        why = sorted((-ns, word) for word, ns in reasons[device.name].items() if word not in WORD_OF_REASON)
        if why:
            share["wait"] += (
                f" ({', '.join(f'{word} {_percent(-ns, makespan).strip()}' for ns, word in why)})"
            )
        lines.append(f"  {device.name:<12} " + "   ".join(f"{word} {told}" for word, told in share.items()))
    unused = unused_devices(f.trace)
    return [*lines, f"  unused: {', '.join(unused)}"] if unused else lines


def _communicator_lines(f: Facts) -> list[str]:
    found = communicator_waits(f)
    lines = ["", "Communicators"] if found else []
    for one in found:
        late, in_line = (format_duration(ns) for ns in (one.late_ns, one.in_line_ns))
        if one.latest != UNSET:
            last = int(f.met_last[one.latest])
            late += f", most {_task(f, one.latest)}, {format_duration(one.latest_ns)} for {_task(f, last)}"
        if one.longest != UNSET:
            ahead = int(f.before_in_line[one.longest])
            in_line += (
                f", most {_task(f, one.longest)}, {format_duration(one.longest_ns)} behind {_task(f, ahead)}"
            )
        met = f"{one.ranks} ranks, {one.meetings} collectives"
        lines.append(f"  {one.name:<12} {met}   late ranks {late}   in line {in_line}")
    return lines


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0:5.1f} %"
