"""How well a machine was used: the summary that `sim run` prints.

::

                0        first start                last end      makespan
    stream 0    ·············▇▇▇▇▇▇·····▇▇▇▇▇▇▇▇▇·········
    stream 1    ················▇▇▇▇▇▇······▇▇············
    device      ·············▇▇▇▇▇▇▇▇▇··▇▇▇▇▇▇▇▇▇·········
                             ├─ busy ─┤bubble──────┤ span
                ├──────────── idle: all of it that is not busy ─────────────┤

`sim.explain.time_use` divides the makespan further, into compute, communicate, wait and idle. Here, a
device is busy when any of its lanes is: busy time is a union, not a sum, and idle time is the rest of the
makespan. (An asynchronous op, which goes on without its worker, keeps no lane busy; neither does a collective
before its ranks have met.) Utilisation is busy time / makespan for a device with streams. For a device with
cores (or workers) it is used core-time / (cores x makespan): one busy core of eight is 12.5 %, not 100 %. The
bubble is idle time inside the span / span (as for pipeline schedules, e.g. GPipe, arXiv:1811.06965, section
2.3).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from sim.base.arrays import least_by, most_by, sums_by
from sim.base.intervals import Cover, overlap_of_at_least, union
from sim.base.units import NS_PER_S
from sim.explain.bounds import bounds
from sim.explain.communication import traffic_on_links
from sim.explain.derived import DerivedColumns
from sim.explain.failed_ops import failure_report
from sim.explain.idle import idle_reasons
from sim.explain.memory_use import peak_bytes, sent_ns
from sim.explain.time_use import cores_of, time_use, uncertainty, unused_devices, used_core_ns
from sim.explain.training import expert_load, staleness_report
from sim.objectives import objectives
from sim.record.dependencies import dependencies
from sim.record.record import Record

SCHEMA: Final = "sim.result/1"


class DeviceUse(NamedTuple):
    """How one device was used; times in ns.

    Attributes
    ----------
    busy_ns : int
        Time during which at least one lane executed.
    span_ns : int
        From the first start to the last end.
    idle_ns : int
        Makespan less busy time.
    utilisation : float
        Busy time / makespan; with cores, core-time used / (cores x makespan).
    cores : int
        Cores, or workers where cores are not counted; 0: a device with streams.
    core_ns : int
        Core-time used; 0 without cores.
    bubble : float
        Idle time inside the span / span.
    """

    busy_ns: int
    span_ns: int
    idle_ns: int
    utilisation: float
    cores: int
    core_ns: int
    bubble: float


class LinkUse(NamedTuple):
    """How one link was used.

    Attributes
    ----------
    nbytes : int
        Bytes that crossed it.
    busy_ns : int
        Time during which at least one transfer was under way over it, latency included.
    utilisation : float
        Busy time / makespan.
    transfers : int
        Number of transfers that crossed it.
    contended_ns : int
        Time during which at least two transfers were under way over it, or one was and others waited; 0 if
        they do not compete for it.
    bandwidth_utilisation : float or None
        Its bytes / (bandwidth x makespan); None: its bandwidth is unlimited.
    """

    nbytes: int
    busy_ns: int
    utilisation: float
    transfers: int
    contended_ns: int
    bandwidth_utilisation: float | None


def device_use(trace: Record) -> dict[str, DeviceUse]:
    """Return how each device was used, by name, in machine order.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("two")
    >>> for name in "ab":
    ...     _ = b.op(name, duration_ns=10, device="gpu0")
    >>> trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue())
    >>> [(name, use.busy_ns, use.idle_ns) for name, use in device_use(trace).items()]
    [('gpu0', 20, 0), ('gpu1', 0, 20)]
    """
    start, end, device = trace.tasks["start_ns"], trace.tasks["end_ns"], trace.device
    n = len(trace.job.machine.devices)
    busy = union(trace.begins_ns, trace.occupied_until_ns, device).lengths(n).tolist()
    first, last = least_by(device, start, n, trace.makespan_ns), most_by(device, end, n)
    span = np.maximum(last - first, 0).tolist()
    used = used_core_ns(trace).tolist()
    return {
        d.name: DeviceUse(
            busy[k],
            span[k],
            trace.makespan_ns - busy[k],
            _share(used[k] if cores_of(d) else busy[k], (cores_of(d) or 1) * trace.makespan_ns),
            cores_of(d),
            used[k],
            _share(span[k] - busy[k], span[k]),
        )
        for k, d in enumerate(trace.job.machine.devices)
    }


def link_use(trace: Record) -> dict[str, LinkUse]:
    """Return how each link was used, by name, in machine order; messages of collectives count, too.

    Transfers compete for a link with those on all links of its medium.
    """
    if not (n := len(trace.job.machine.links)):
        return {}
    traffic = traffic_on_links(trace)
    link = traffic.link
    sent = np.append(sent_ns(trace, dependencies(trace)), trace.messages[:, 3])[traffic.row]
    busy = union(traffic.start_ns, traffic.end_ns, link).lengths(n).tolist()
    nbytes = sums_by(link, traffic.nbytes, n)
    count = np.bincount(link, minlength=n).tolist()
    since = np.minimum(sent, traffic.start_ns)  # a fault may have ended one before its data was there
    start, end, group = union(since, traffic.end_ns, link)
    medium = np.array(trace.job.machine.channels)
    crowded = overlap_of_at_least(since, traffic.end_ns, medium[link], np.full(n, 2))
    cover = Cover(crowded, int(traffic.end_ns.max(initial=0)))
    contended = sums_by(group, cover.between(start, end, medium[group]), n)
    return {
        spec.name: LinkUse(
            int(nbytes[k]),
            busy[k],
            _share(busy[k], trace.makespan_ns),
            count[k],
            int(contended[k]) if spec.is_contended else 0,
            None
            if spec.bandwidth_bytes_per_s is None
            else _share(int(nbytes[k]) * NS_PER_S, spec.bandwidth_bytes_per_s * trace.makespan_ns),
        )
        for k, spec in enumerate(trace.job.machine.links)
    }


def _peaks(trace: Record) -> dict[str, tuple[int | None, ...]]:
    """Return the peaks of bytes in use, and reserved, on each device."""
    if trace.memory is None:
        return {name: (nbytes, None) for name, nbytes in peak_bytes(trace).items()}
    logs = {device.name: trace.log_of(d) for d, device in enumerate(trace.job.machine.devices)}
    columns = ("in_use", "reserved")
    return {name: tuple(int(log[column].max(initial=0)) for column in columns) for name, log in logs.items()}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def summary(trace: Record, *, causes: bool = True) -> dict[str, Any]:
    """Return the object that ``sim run --json`` prints.

    Without `causes`, the reasons of idle time, the use of time and the makespan's uncertainty, which take
    longest to compute, are left out.

    The caller fills in what a trace does not know: ``scenario`` (None), ``policy`` (the name of the policy's
    class), ``pipeline`` (None), ``expect`` (an empty list).

    Peak memory is what the allocator handed out and reserved, if one was simulated; else what the tensors
    need (`sim.explain.memory_use`), and ``peak_reserved_bytes`` is None.

    ``makespan_interval`` is the uncertainty of the makespan, if the cost models give that of durations
    (`sim.explain.time_use`); else it is None.

    If ops, or parts of the machine, may fail, there is a key ``failures``
    (`sim.explain.failed_ops.failure_report`); if one did, the bounds are 0. ``gap`` is the relative distance
    of the makespan above the lower bound; if that is None, ``no_gap`` gives the reason.
    If ranks share experts, there is a key ``experts`` (`sim.explain.training`), and if workers push updates
    of their own, ``staleness`` (`sim.explain.training.staleness_report`).

    If ops have a release, a due date or a weight, or devices a power, the keys of `sim.objectives` are added.

    Returns
    -------
    dict
        Plain Python numbers, strings and containers, ready for `json.dumps`.
    """
    limits = bounds(trace)
    failures = {} if trace.on_failure is None and not trace.attempts else {"failures": failure_report(trace)}
    parallel = {"experts": expert_load(trace), "staleness": staleness_report(trace)}
    folding = trace.job.machine.folding
    peak, derived = _peaks(trace), DerivedColumns(trace)
    reasons, time_ns = (idle_reasons(derived), time_use(derived)) if causes else ({}, {})
    return {
        "schema": SCHEMA,
        "scenario": None,
        "policy": trace.policy,
        "makespan_ns": trace.makespan_ns,
        **({"makespan_interval": uncertainty(trace)} if causes else {}),
        "lower_bound_ns": limits.lower_bound_ns,
        "bound_by": None if limits.failed else limits.binding,
        "gap": limits.gap(trace.makespan_ns),
        "no_gap": limits.no_gap,
        "critical_path_ns": limits.critical_path_ns,
        "loops_counted_once": limits.loops_counted_once,
        "tasks": int(trace.job.machine.stands_for[trace.device[trace.executed]].sum()),
        **({} if folding is None else {"folded": folding.report()}),
        **failures,
        **{key: value for key, value in parallel.items() if value},
        **objectives(trace),
        "devices": {
            name: {
                **use._asdict(),
                "peak_memory_bytes": peak[name][0],
                "peak_reserved_bytes": peak[name][1],
                **({"idle_reasons": reasons[name], "time_ns": time_ns[name]} if causes else {}),
            }
            for name, use in device_use(trace).items()
        },
        "links": {
            name: dict(zip(("bytes", *LinkUse._fields[1:]), use, strict=True))
            for name, use in link_use(trace).items()
        },
        "unused_devices": unused_devices(trace)
        if folding is None
        else [device.name for device in folding.unused if device.kind != "switch"],
        "pipeline": None,
        "expect": [],
    }
