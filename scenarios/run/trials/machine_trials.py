"""What-ifs of a scenario's machine: each bottleneck taken away, one after another, to see what it costs.

::

    gpu0 twice as fast        one more stream on gpu0        issuing and launching take no time
    links take no time        memory without limit           'conv3' twice as fast

A recording has no such machine: there the what-ifs of `scenarios.run.trials.standard` say what would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from scenarios.run.trials.standard import Trial
from sim.explain.path import executed_path
from sim.graph.graph import Graph
from sim.job.job import Job
from sim.machine.device import Device
from sim.machine.machine import Machine
from sim.trace import Trace
from sim.words.arrays import UNSET, BoolArray
from sim.words.errors import InputError

__all__ = ["machine_trials"]

MOST_OPS: Final = 3
"""Ops that are tried one by one: those that take longest on the executed critical path."""

MOST_DEVICES: Final = 8
"""More are tried together only, by kind."""


def machine_trials(trace: Trace) -> list[Trial]:
    """Return what is tried of the machine of a run, and of the ops on its critical path.

    Parameters
    ----------
    trace : Trace
        The run as it is.

    Examples
    --------
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", kind="matmul", duration_ns=10)
    >>> trace = simulate(b.build(), Machine((Device("gpu0", issue_ns=2),)), ReadyQueue())
    >>> [trial.label for trial in machine_trials(trace)]
    ['gpu0 twice as fast', 'one more stream on gpu0', 'issuing and launching take no time',
     "'a' twice as fast"]
    """
    names, machine = trace.job.graph.op_names, trace.job.machine
    trials = [*_by_device(trace)]
    if any(map(_costs, machine.devices)):
        trials.append(_trial("issuing and launching take no time", _free))
    if len(trace.transfers["id"]) and machine.collectives is None:
        trials.append(Trial("links take no time", change=lambda graph, machine: (graph, _unlinked(machine))))
    if any(device.memory_bytes is not None for device in machine.devices):
        trials.append(_trial("memory without limit", lambda device: replace(device, memory_bytes=None)))
    for op in _longest_on_path(trace):
        trials.append(Trial(f"{names[op]!r} twice as fast", change=_faster(np.arange(len(names)) == op)))
    return trials


def _unlinked(machine: Machine) -> Machine:
    return replace(machine, links=())


def _free(device: Device) -> Device:
    return replace(device, issue_ns=0, issue_ns_by_kind={}, launch_latency_ns=0, gap_ns=0)


def _costs(device: Device) -> bool:
    """Whether issuing or launching on a device takes time."""
    return any((device.issue_ns, *device.issue_ns_by_kind.values(), device.launch_latency_ns, device.gap_ns))


def _by_device(trace: Trace) -> Iterator[Trial]:
    """Yield the devices twice as fast, and with a stream more; many of them by kind."""
    job = trace.job
    used = np.bincount(trace.device, minlength=len(job.machine.devices)) > 0
    several = used.sum() > MOST_DEVICES
    groups: dict[str, list[int]] = {}
    for d, device in enumerate(job.machine.devices):
        if used[d]:
            groups.setdefault(f"every {device.kind}" if several else device.name, []).append(d)
    for name, devices in groups.items():
        here = np.isin(job.device_of, devices)
        yield Trial(f"{name} twice as fast", change=_faster(here & ~job.meets))
        if not job.machine.devices[devices[0]].workers:
            more = _with_stream({job.machine.devices[d].name for d in devices})
            label = f"one more stream on {name}"
            if _is_used(job, more):
                yield _trial(label, more)
            else:
                yield Trial(label, why_not="policy.streams would put no op on it")


def _with_stream(names: set[str]) -> Callable[[Device], Device]:
    def changed(device: Device) -> Device:
        if device.name not in names:
            return device
        made = device.for_streams or device.with_streams
        return (
            replace(device, streams=device.streams + 1) if made is None else made(device, device.streams + 1)
        )

    return changed


def _is_used(job: Job, more: Callable[[Device], Device]) -> bool:
    """Whether an op would go to one more stream: not without an assignment, nor where ops name theirs."""
    devices = job.machine.devices
    wider = tuple(map(more, devices))
    if job.streams is None:
        return False
    lane = replace(job, machine=replace(job.machine, devices=wider)).lane
    return bool((lane >= np.array([device.lanes for device in devices])[job.device_of]).any())


def _trial(label: str, change: Callable[[Device], Device]) -> Trial:
    """Return a what-if that changes each device."""

    def changed(graph: Graph, machine: Machine) -> tuple[Graph, Machine]:
        return graph, replace(machine, devices=tuple(map(change, machine.devices)))

    return Trial(label, change=changed)


def _faster(ops: BoolArray) -> Callable[[Graph, Machine], tuple[Graph, Machine]]:
    """Return a change that halves what some ops take, rounded up."""

    def changed(graph: Graph, machine: Machine) -> tuple[Graph, Machine]:
        if len(graph) != len(ops):
            raise InputError("policy.compile makes other ops of the graph")
        if (graph.duration_ns[ops] == UNSET).any():
            raise InputError("not all of these ops have a duration")
        ns = np.where(ops, -(-graph.duration_ns // 2), graph.duration_ns)
        return replace(graph, duration_ns=ns), machine

    return changed


def _longest_on_path(trace: Trace) -> list[int]:
    """Return the ops that take longest on the executed critical path, longest first."""
    total: dict[int, int] = {}
    for step in executed_path(trace):
        if step.kind == "task":
            op = int(trace.tasks["op"][step.row])
            total[op] = total.get(op, 0) + step.end_ns - step.start_ns
    return sorted(total, key=lambda op: (-total[op], op))[:MOST_OPS]
