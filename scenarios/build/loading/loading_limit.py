"""What limits a training loop with an input pipeline: who needs the most time for a step.

::

    storage         bytes of a step of all replicas / bandwidth of the busiest link    2.0 ms
    workers         (reading alone and loading) / workers                              6.3 ms  ◄── the limit
    pin thread      pinning                                                            0.5 ms
    copy            copying                                                            1.0 ms
    training loop   the step, and the all-reduce after it                              4.0 ms

Each goes on with the next batch while the others work, so in the steady state no step takes less than the
slowest needs. What one does after another counts together: loading and training without workers, copying and
training in a script that waits for its steps; the longest of it gives the name. The busiest replica counts.
A step may take longer: workers that read together load together, and nobody reads meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.analysis.transfers_on_links import transfers_on_links
from sim.words.units import NS_PER_S, format_duration

if TYPE_CHECKING:
    from sim.trace import Trace

__all__ = ["Shares", "limit_line", "loading_report"]

Shares = Mapping[str, tuple[Sequence[str], int]]
"""Who works beside the others → the kinds of op that are its, and how many it does at once."""

_NAMES = {
    "read": "storage",
    "load": "main process",  # which loads by itself where there are no workers
    "pin_memory": "pin thread",
    "copy": "copy",
    "train": "training step",
    "all_reduce": "all-reduce",
}
"""Kind of op → what it is called when it is the limit."""


def loading_report(trace: Trace, shares: Shares, steps: int, replicas: int) -> dict[str, Any]:
    """Return what the summary of a run has besides: the key ``data_loading``.

    Parameters
    ----------
    trace : Trace
    shares : Shares
    steps : int
        Of each replica, in each epoch.
    replicas : int
    """
    n = steps * trace.job.iterations
    needs = _needs(trace, replicas)
    reading, storage = _reading(trace, replicas)
    needs["read"] = reading
    step_ns: dict[str, float] = {}
    largest: dict[str, str] = {}
    for who, (kinds, at_once) in shares.items():
        kinds = [kind for kind in kinds if kind in needs]
        if not kinds:
            continue
        total = np.sum([needs[kind] for kind in kinds], axis=0) / at_once / n
        busiest = int(np.argmax(total))
        parts = {kind: needs[kind][busiest] for kind in kinds}
        step_ns[who] = float(total[busiest])
        largest[who] = max(parts, key=lambda kind: parts[kind])
    if storage:
        step_ns["storage"], largest["storage"] = storage / n, "read"
    limit = max(step_ns, key=lambda who: step_ns[who])
    name = "workers" if limit == "workers" else _NAMES[largest[limit]]
    return {
        "data_loading": {
            "steps": n,
            "replicas": replicas,
            "steady_step_ns": _steady_ns(trace),
            "limit": name,
            "limit_step_ns": round(step_ns[limit]),
            "most_waiting": _most_waiting(trace),
            "needs_ns": {who: round(ns) for who, ns in step_ns.items() if ns},
        }
    }


def limit_line(told: Mapping[str, Any]) -> str:
    """Return what a report says, in two lines.

    Examples
    --------
    >>> told = {"steady_step_ns": 7000, "limit": "workers", "limit_step_ns": 6900, "most_waiting": 2}
    >>> print(limit_line({**told, "needs_ns": {"training loop": 4000, "workers": 6900}}))
    A step every 7 us in the steady state, limited by the workers: workers 6.9 us, training loop 4 us.
    Batches made and not wanted yet: at most 2.
    """
    needs = sorted(told["needs_ns"].items(), key=lambda need: -need[1])
    terms = ", ".join(f"{who} {format_duration(ns)}" for who, ns in needs)
    every = format_duration(told["steady_step_ns"])
    return (
        f"A step every {every} in the steady state, limited by the {told['limit']}: {terms}.\n"
        f"Batches made and not wanted yet: at most {told['most_waiting']}."
    )


def _needs(trace: Trace, replicas: int) -> dict[str, Any]:
    """Return, for each kind of op, the time that those of each replica take by themselves, all together."""
    job, op = trace.job, trace.tasks["op"]
    lasts = job.task_ns(op, trace.tasks["iteration"])
    replica = _replica_of_device(trace)[trace.device]
    needs = {}
    for kind in ("load", "pin_memory", "copy", "train", "all_reduce"):
        rows = np.flatnonzero(job.graph.is_kind(kind)[op])
        if len(rows):
            needs[kind] = np.bincount(replica[rows], weights=lasts[rows], minlength=replicas)
    return needs


def _replica_of_device(trace: Trace) -> Any:
    """Return the number at the end of each device's name; 0 of one that has none."""
    names = [device.name for device in trace.job.machine.devices]
    digits = [name[len(name.rstrip("0123456789")) :] for name in names]
    return np.array([int(number or 0) for number in digits])


def _reading(trace: Trace, replicas: int) -> tuple[Any, float]:
    """Return the time that each replica would read if it read alone, and that of the busiest link, in ns."""
    job, moved = trace.job, trace.transfers
    alone = np.zeros(replicas)
    row, link = transfers_on_links(trace)
    if not len(row):
        return alone, 0.0
    nbytes = moved["nbytes"]
    rates = np.array([each.bandwidth_bytes_per_s or np.inf for each in job.machine.links])
    latency = np.array([each.latency_ns for each in job.machine.links])
    slowest, waits = np.full(len(nbytes), np.inf), np.zeros(len(nbytes))
    np.minimum.at(slowest, row, rates[link])
    np.add.at(waits, row, latency[link])
    np.add.at(alone, _replica_of_device(trace)[moved["destination"]], nbytes / slowest * NS_PER_S + waits)
    busiest = np.bincount(link, weights=nbytes[row], minlength=len(rates)) / rates
    return alone, float(busiest.max() * NS_PER_S)


def _most_waiting(trace: Trace) -> int:
    """Return the most batches of a replica that were there and not given to the script."""
    graph, op = trace.job.graph, trace.tasks["op"]
    made = next(kind for kind in ("push", "pin_memory", "load") if graph.is_kind(kind).any())
    comes, goes = (
        np.flatnonzero(graph.is_kind(*kinds)[op]) for kinds in ((made,), ("next", "next_that_came"))
    )
    rows = np.concatenate([comes, goes])
    change = np.repeat([1, -1], [len(comes), len(goes)])
    at = trace.tasks["end_ns"][rows]
    replica = _replica_of_device(trace)[trace.device[rows]]
    order = np.lexsort((change, at, replica))  # what is given out at once does not wait
    return int(np.cumsum(change[order]).max())


def _steady_ns(trace: Trace) -> int:
    """Return the time from step to step in the middle half of the run, on the device that is last."""
    train = trace.job.graph.is_kind("train")[trace.tasks["op"]]
    device, end = trace.device[train], trace.tasks["end_ns"][train]
    last = np.sort(end[device == device[np.argmax(end)]])
    quarter = len(last) // 4
    if not quarter:
        return round(int(last[-1]) / len(last))
    return round(int(last[-1 - quarter] - last[quarter - 1]) / (len(last) - 2 * quarter))
