"""Notes beside results: unused devices, missing lower bounds, unused streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from scenarios.recorded.durations import is_of_model
from sim.base import plugins
from sim.base.arrays import UNSET, group_pairs
from sim.base.errors import list_names
from sim.base.units import format_bytes
from sim.job.job import Job
from sim.trace import Trace

_MOST: Final = 20
"""Number of devices that are named."""


def unused_notes(unused: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each set of devices that some runs left unused.

    Parameters
    ----------
    unused : mapping of str to sequence of str
        Run -> its unused devices; if runs differ, each line names its runs.

    Examples
    --------
    >>> unused_notes({"heft": ["gpu1"], "single": ["gpu1"]})
    ['unused: gpu1']
    >>> unused_notes({"heft": [], "tp=1, pp=1": ["gpu1", "gpu2"], "single": ["gpu1", "gpu2"]})
    ['unused under tp=1, pp=1; single: gpu1, gpu2']
    """
    runs_of = group_pairs((tuple(devices), run) for run, devices in unused.items())
    return [
        ("unused" if len(runs_of) == 1 else f"unused under {'; '.join(runs)}")
        + f": {list_names(devices, _MOST)}"
        for devices, runs in runs_of.items()
        if devices
    ]


def no_gap_notes(reasons: Iterable[str | None]) -> list[str]:
    """Return a line for each reason why runs are not compared with a lower bound.

    Examples
    --------
    >>> no_gap_notes([None, "an op failed", "an op failed"])
    ['no lower bound: an op failed']
    """
    return [f"no lower bound: {reason}" for reason in dict.fromkeys(filter(None, reasons))]


# ----------------------------------------------------------------------------------------------------------
# Streams that no assignment uses.
#
#     gpu0 (streams: 4)   stream 0  a b c d e f      policy.streams says nothing: all ops are on the first,
#                         stream 1                   so `streams: 4` changes nothing, and a sweep over it
#                         stream 2                   has equal rows
#                         stream 3
#
#  a: {attributes: {stream: compute}}             ops that name their streams, as those of a recording or of
#  b: {attributes: {stream: all_reduce}}          parallel training do: only `recorded` follows them


def stream_notes(runs: Mapping[str, Trace]) -> list[str]:
    """Return a line for each device whose ops all ran on one of its streams for lack of an assignment.

    Parameters
    ----------
    runs : mapping of str to Trace
        Runs of one scenario; if there are several, each line names the runs it is about.

    Examples
    --------
    >>> from scenarios.run.load import load_scenario
    >>> from scenarios.run.execute import run_scenario
    >>> changes = ["policy=in-order", "machine.ideal=true"]
    >>> scenario = load_scenario("scenarios/examples/quickstart.yaml", sets=changes)
    >>> stream_notes({"in-order": run_scenario(scenario).trace})
    ['gpu0 used 1 of 4 streams; to use more, set policy.streams (per-branch, per-kind, ...)']
    """
    found = _recorded_in_vain(runs)
    held: dict[tuple[str, int], list[str]] = {}
    for policy, trace in runs.items():
        for device in _on_one_stream(trace) if policy not in found else ():
            held.setdefault(device, []).append(policy)
    jobs = [trace.job for trace in runs.values()]
    notes = [*found.values(), *_free_transfers(jobs), *_as_on_another_gpu(jobs), *_shared_twice(jobs)]
    taken = {name for job in jobs for needs in job.graph.attribute("resources").values() for name in needs}
    unused = [name for name in jobs[0].machine.resources if name not in taken]
    notes += [f"no op takes {name}, of the machine's resources" for name in unused]
    if not held:
        return notes
    known = ", ".join(name for name in plugins.names("sim.streams") if name not in ("replay", "single"))
    advice = f"to use more, set policy.streams ({known})"
    return notes + [
        f"{name} used 1 of {streams} streams"
        + (f" under {', '.join(labels)}" if len(labels) < len(runs) else "")
        + f"; {advice}"
        for (name, streams), labels in held.items()
    ]


def _recorded_in_vain(runs: Mapping[str, Trace]) -> dict[str, str]:
    """Return a line for each run whose ops name several streams, but which has no stream assignment."""
    found = {}
    for policy, trace in runs.items():
        job = trace.job
        if job.streams is not None:
            continue
        named: dict[int, dict[object, None]] = {}
        for op, stream in job.graph.attribute("stream").items():
            device = int(job.device_of[op])
            if not job.machine.devices[device].workers:
                named.setdefault(device, {})[stream] = None
        several = [device for device, streams in named.items() if len(streams) > 1]
        if several:
            first = several[0]
            shown = ", ".join(map(str, list(named[first])[:4])) + (", ..." if len(named[first]) > 4 else "")
            under = f" under {policy}" if len(runs) > 1 else ""
            devices = _and_others(job.machine.devices[first].name, len(several))
            found[policy] = (
                f"ops of {devices} name {len(named[first])} streams ({shown}), "
                f"which nothing follows{under}; to let them overlap as they say, set policy.streams: recorded"
            )
    return found


def _free_transfers(jobs: Iterable[Job]) -> list[str]:
    """Return a line if transfers to or from a preset device take no time because there are no links."""
    for job in jobs:
        if job.machine.links or job.machine.network is not None:
            continue
        edges, nbytes, on = job.graph.edges, job.graph.tensor_nbytes, job.device_of
        known = np.flatnonzero(edges.tensor != UNSET)
        source, target = on[edges.producer[known]], on[edges.consumer[known]]
        real = np.array([bool(device.details.preset) for device in job.machine.devices])
        moves = known[(source != target) & (real[source] | real[target]) & (nbytes[edges.tensor[known]] > 0)]
        if len(moves):
            names = [
                job.machine.devices[on[each[moves[0]]]].name for each in (edges.producer, edges.consumer)
            ]
            bytes_ = format_bytes(int(nbytes[np.unique(edges.tensor[moves])].sum()))
            return [
                f"{bytes_} move between devices in no time, as from {names[0]} to {names[1]}: "
                "the machine has no links"
            ]
    return []


def _as_on_another_gpu(jobs: Iterable[Job]) -> list[str]:
    """Return a line if kernels recorded on one GPU keep their durations on a preset of another."""
    for job in jobs:
        facts, used = job.graph.device_facts, set(job.device_of.tolist())
        every = [known["description"] for known in facts.values() if "description" in known]
        for d, device in enumerate(job.machine.devices):
            on = facts.get(device.name, {}).get("description", every[0] if every else "")
            preset = device.details.preset
            if d in used and on and preset and not is_of_model(on, preset):
                return [
                    f"{device.name} is a {preset}, and kernels take as long as they were recorded on {on}; "
                    f"workload.what_if: {{device: {{from: ..., to: {preset}}}}} moves them"
                ]
    return []


def _shared_twice(jobs: Iterable[Job]) -> list[str]:
    """Return a line if kernels that shared SMs when they were recorded share them again."""
    names = [
        device.name
        for job in jobs
        if job.graph.attribute("recorded_start_ns")
        for d, device in enumerate(job.machine.devices)
        if device.kind == "gpu" and device.processor is not None and d in job.device_of
    ]
    if not names:
        return []
    devices = _and_others(names[0], len(set(names)))
    return [
        f"kernels share the SMs of {devices}, and did so when their durations were recorded: that counts "
        "twice; give the device sharing: none"
    ]


def _and_others(first: str, n: int) -> str:
    """Return the name of the first of `n` devices, and how many others there are."""
    return first + (f" and {n - 1} other device{'s' * (n > 2)}" if n > 1 else "")


def _on_one_stream(trace: Trace) -> list[tuple[str, int]]:
    """Return name and number of streams of each device that, unassigned, ran all its ops on one stream."""
    if trace.job.streams is not None:
        return []
    machine = trace.job.machine
    used = np.bincount(trace.tasks["stream"][~trace.alone], minlength=machine.first_stream[-1])
    found = []
    for device, (first, end) in zip(machine.devices, pairwise(machine.first_stream), strict=True):
        here = used[first:end]
        if not device.workers and device.streams > 1 and np.count_nonzero(here) == 1 and here.sum() > 1:
            found.append((device.name, device.streams))
    return found
