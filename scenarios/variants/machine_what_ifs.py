"""What-ifs of a scenario's machine: each removes one bottleneck, to see what that bottleneck costs.

::

    gpu0 twice as fast        one more stream on gpu0        issuing and launching take no time
    links take no time        memory without limit           'conv3' twice as fast
    communication twice as fast, communication takes no time

A recording has no such machine; the what-ifs of `scenarios.variants.what_ifs` apply to recordings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from scenarios.variants.variant import Variant
from sim.base.arrays import BoolArray, IntArray, group_pairs
from sim.base.errors import InputError
from sim.explain.communication import COMMUNICATION, inside_ns, moving_ops
from sim.explain.path import executed_path
from sim.job.job import Job
from sim.machine.device import Device
from sim.machine.links import Link
from sim.machine.machine import Machine
from sim.record.record import Wait
from sim.trace import Trace

_NO_OPS: Final = np.zeros(0, np.int64)
_FREE: Final[Mapping[str, Any]] = {"issue_ns": 0, "issue_ns_by_kind": {}, "launch_latency_ns": 0, "gap_ns": 0}
"""Fields of a device on which issuing and launching cost nothing."""

MOST_OPS: Final = 3
"""Number of ops that are tried one by one: those that take longest on the executed critical path."""

MOST_DEVICES: Final = 8
"""If more groups of devices differ, devices are tried by kind only."""


def machine_trials(trace: Trace) -> list[Variant]:
    """Return what-ifs of the machine of a run, of its communication, and of the ops on its critical path.

    One that cannot matter has its reason: unlimited memory if nothing waits for memory, one more stream if no
    op would use it. An op that takes half its time keeps what was decided for it: its device, its place in
    the order, its stream.

    Parameters
    ----------
    trace : Trace
        Trace of the run without changes.

    Examples
    --------
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", kind="matmul", duration_ns=10)
    >>> trace = simulate(b.build(), Machine((Device("gpu0", issue_ns=2),)), ReadyQueue())
    >>> [trial.label for trial in machine_trials(trace)]
    ['all kernels twice as fast', 'gpu0 twice as fast', 'one more stream on gpu0',
     'issuing and launching take no time', "'a' twice as fast"]
    """
    job = trace.job
    names, machine = job.graph.op_names, job.machine
    computes = ~moving_ops(job)
    trials = [
        Variant(label="all kernels twice as fast", job=_halve_computation(computes)),
        *_device_trials(trace, computes),
    ]
    if any(map(_has_overheads, machine.devices)):
        trials.append(_trial("issuing and launching take no time", partial(replace, **_FREE)))
    trials += _communication_trials(trace)
    if any(device.memory_bytes is not None for device in machine.devices):
        waits = (trace.tasks["wait"] == Wait.MEMORY).any() or trace.tasks.get("calls_ns", _NO_OPS).any()
        why_not = "" if waits else "nothing waits for memory"
        trials.append(_trial("memory without limit", partial(replace, memory_bytes=None), why_not))
    for op, alike in _longest_on_path(trace):
        more = f" and {len(alike) - 1} like it" if len(alike) > 1 and not job.meets[op] else ""
        ops = np.isin(np.arange(len(names)), alike)
        label = f"{names[op]!r}{more} twice as fast"
        trials.append(Variant(label=label, job=_retime(partial(_halve, ops=ops))))
    return trials


def _communication_trials(trace: Trace) -> Iterator[Variant]:
    """Yield what-ifs with faster collectives and links."""
    job, machine = trace.job, trace.job.machine
    moves = job.graph.is_kind(*COMMUNICATION - {"copy", "transfer"}) | job.meets
    if job.collectives is not None:
        moves[job.collectives.op[job.carried]] = False  # carried by links, which decide their time
    inner_ns = inside_ns(job.graph)
    if (job.duration_ns[moves] > 0).any() or inner_ns.any():
        yield Variant(
            label="communication twice as fast",
            job=_retime(lambda ns: _halve(ns, moves) - inner_ns // 2),
        )
        yield Variant(
            label="communication takes no time", job=_retime(lambda ns: np.where(moves, 0, ns - inner_ns))
        )
    if len(trace.transfers["id"]) or job.carried.any():
        if any(link.bandwidth_bytes_per_s for link in machine.links):
            yield Variant(label="links with twice the bandwidth", machine=partial(_with_links, _widen))
        if not job.meets.any():
            free = partial(replace, bandwidth_bytes_per_s=None, latency_ns=0)
            yield Variant(label="links take no time", machine=partial(_with_links, free))


def _with_links(change: Callable[[Link], Link], machine: Machine) -> Machine:
    return replace(machine, links=tuple(map(change, machine.links)))


def _widen(link: Link) -> Link:
    bandwidth = link.bandwidth_bytes_per_s
    return replace(link, bandwidth_bytes_per_s=2 * bandwidth) if bandwidth else link


def _has_overheads(device: Device) -> bool:
    """Whether issuing or launching on a device takes time."""
    times = (getattr(device, name) for name in _FREE if name != "issue_ns_by_kind")
    return any((*times, *device.issue_ns_by_kind.values()))


def _device_trials(trace: Trace, computes: BoolArray) -> Iterator[Variant]:
    """Yield what-ifs with devices twice as fast, and with one more stream.

    Equal devices that compute equally long are tried together; if there are many groups, all of a kind are.
    """
    job = trace.job
    used = np.flatnonzero(np.bincount(trace.device, minlength=len(job.machine.devices))).tolist()
    tasks = trace.executed & computes[trace.tasks["op"]]
    compute_ns = np.zeros(len(job.machine.devices), np.int64)
    np.add.at(compute_ns, trace.device[tasks], (trace.tasks["end_ns"] - trace.tasks["start_ns"])[tasks])
    groups = _group_numbers(used, lambda k: (replace(job.machine.devices[k], name=""), compute_ns[k]))
    if len(groups) > MOST_DEVICES:
        groups = _group_numbers(used, lambda k: job.machine.devices[k].kind)
        names = [f"every {job.machine.devices[group[0]].kind}" for group in groups]
    else:
        first = [job.machine.devices[group[0]].name for group in groups]
        names = [
            name if len(group) == 1 else f"{name} and {len(group) - 1} like it"
            for name, group in zip(first, groups, strict=True)
        ]
    for name, devices in zip(names, groups, strict=True):
        on_devices = np.isin(job.device_of, devices)
        yield Variant(label=f"{name} twice as fast", job=_halve_computation(on_devices & computes))
        if not job.machine.devices[devices[0]].workers:
            more = _with_stream({job.machine.devices[k].name for k in devices})
            why_not = "" if _is_used(job, more) else "policy.streams would put no op on it"
            yield _trial(f"one more stream on {name}", more, why_not)


def _with_stream(names: set[str]) -> Callable[[Device], Device]:
    def apply(device: Device) -> Device:
        if device.name not in names:
            return device
        with_count = device.for_streams or device.with_streams
        streams = device.streams + 1
        return replace(device, streams=streams) if with_count is None else with_count(device, streams)

    return apply


def _is_used(job: Job, more: Callable[[Device], Device]) -> bool:
    """Whether an op would use one more stream: not without an assignment, nor if ops name their streams."""
    devices = job.machine.devices
    wider = tuple(map(more, devices))
    if job.streams is None:
        return False
    lane = replace(job, machine=replace(job.machine, devices=wider)).lane
    return bool((lane >= np.array([device.lanes for device in devices])[job.device_of]).any())


def _trial(label: str, change: Callable[[Device], Device], why_not: str = "") -> Variant:
    """Return a what-if that changes each device, or that has a reason not to be tried."""

    def apply(machine: Machine) -> Machine:
        return replace(machine, devices=tuple(map(change, machine.devices)))

    return Variant(label=label, machine=apply, why_not=why_not)


def _halve_computation(ops: BoolArray) -> Callable[[Job], Job]:
    """Return a change that halves the computation of some ops, but not their own communication."""

    def apply(job: Job) -> Job:
        inner_ns = inside_ns(job.graph)
        return _retime(lambda ns: inner_ns + _halve(ns - inner_ns, ops))(job)

    return apply


def _halve(ns: IntArray, ops: BoolArray) -> IntArray:
    """Return durations with those of `ops` halved and rounded up."""
    return np.where(ops, -(-ns // 2), ns)


def _retime(change: Callable[[IntArray], IntArray]) -> Callable[[Job], Job]:
    """Return a change that applies to all durations of a job: actual, noisy, and known ones."""

    def apply(job: Job) -> Job:
        if job.drawn is not None:
            raise InputError("under control flow with noise durations are drawn while it runs")

        def of(ns: IntArray) -> IntArray:
            return np.where(ns > 0, np.maximum(change(ns), 0), ns)

        noisy = None if job.noisy_ns is None else np.stack([of(ns) for ns in job.noisy_ns])
        return replace(job, duration_ns=of(job.duration_ns), known_ns=of(job.known_ns), noisy_ns=noisy)

    return apply


def _longest_on_path(trace: Trace) -> list[tuple[int, IntArray]]:
    """Return the ops that take longest on the executed critical path, longest first, with all ranks' own."""
    total: Counter[int] = Counter()
    for step in executed_path(trace):
        if step.kind == "task":
            op = int(trace.tasks["op"][step.row])
            total[op] += step.end_ns - step.start_ns
    longest: list[tuple[int, IntArray]] = []
    for op in sorted(total, key=lambda op: (-total[op], op)):
        if len(longest) == MOST_OPS:
            break
        if not any(op in alike for _, alike in longest):
            longest.append((op, _on_all_ranks(trace, op)))
    return longest


def _on_all_ranks(trace: Trace, op: int) -> IntArray:
    """Return an op with those of its collective, or those that are called as it is on other devices.

    A collective takes as long as the slowest member. Replicas are called after their devices, as
    ``gpu0/head`` and ``gpu1/head``: what makes one of them faster makes all.
    """
    job = trace.job
    if trace.meetings is not None and job.meets[op]:
        ops, meeting = trace.tasks["op"][trace.meetings.row], trace.meetings.meeting
        return np.unique(ops[np.isin(meeting, meeting[ops == op])])
    devices, names = job.machine.devices, job.graph.op_names
    prefix, alike = f"{devices[int(job.device_of[op])].name}/", {names[op]}
    if names[op].startswith(prefix):
        alike |= {f"{device.name}/{names[op].removeprefix(prefix)}" for device in devices}
    return np.array([i for i, name in enumerate(names) if name in alike])


def _group_numbers(numbers: Sequence[int], key: Callable[[int], object]) -> list[list[int]]:
    """Return groups of numbers with equal keys, in order of their first number; keys need no hash."""
    keys = [key(number) for number in numbers]
    return [*group_pairs(zip(map(keys.index, keys), numbers, strict=True)).values()]
