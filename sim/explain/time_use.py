"""Where the time of every device went, in four words that add up to the makespan.

::

    compute      an op executes that is no communication (`sim.explain.communication`)
    communicate  nothing computes, and a collective or copy executes, or the next op's input travels
    wait         neither, and the device has ops left to run: `sim.explain.idle` says what each waits for;
                 collectives that have started and wait for a late rank among them
    idle         no op is left for it, or it never had one

    lanes        ▇▇▇▇▇matmul▇▇▇▇▇            ▇▇▇matmul▇▇▇
                        ▇▇all_reduce▇▇▇▇
                 ├── compute ────┤├ comm. ┤├ wait ┤├ compute ┤├── idle ──┤ makespan

Communication that hides behind computing takes no time of its own, so that overlapping shows: what
Holistic Trace Analysis calls the temporal breakdown (https://hta.readthedocs.io, "Temporal Breakdown") has
the same order of precedence. A device with cores or several streams computes when any of them does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from sim.base.intervals import in_use, union
from sim.explain.bounds import cores_of_ops
from sim.explain.communication import communicates, computes_until_ns
from sim.explain.derived import DerivedColumns
from sim.explain.idle import idle_reasons
from sim.explain.where import EVERYWHERE, Where

if TYPE_CHECKING:
    from sim.base.arrays import IntArray
    from sim.machine.device import Device
    from sim.record.record import Record


WORD_OF_REASON: Final = {"transfer": "communicate", "finished": "idle", "unused": "idle"}
"""What time without a running op is called, by its reason (`sim.explain.idle.REASONS`); else ``wait``."""


def time_use(
    trace: Record, reasons: Mapping[str, Mapping[str, int]] | None = None, where: Where = EVERYWHERE
) -> dict[str, dict[str, int]]:
    """Return, for each device, the ns of ``compute``, ``communicate``, ``wait`` and ``idle``.

    Parameters
    ----------
    trace : Trace
    reasons : mapping, optional
        What `sim.explain.idle.idle_reasons` returned of this trace and place, when the caller has it already.
    where : Where
        What counts; the words then add up to its time.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("ping")
    >>> _ = b.op("a", duration_ns=10, device="gpu0")
    >>> _ = b.op("b", duration_ns=7, device="gpu1", inputs=["a"], kind="all_reduce")
    >>> use = time_use(simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue()))
    >>> use["gpu0"]
    {'compute': 10, 'communicate': 0, 'wait': 0, 'idle': 7}
    >>> use["gpu1"]
    {'compute': 0, 'communicate': 7, 'wait': 10, 'idle': 0}
    """
    facts = DerivedColumns(trace)
    reasons = reasons or idle_reasons(trace, facts, where)
    begin, end = where.from_ns, where.end_ns(facts)
    counts = where.tasks(facts)
    computes = np.flatnonzero(counts & ~communicates(trace) & ~trace.is_delay)
    until = computes_until_ns(trace)
    # where all that executes computes, what is busy computes
    only_compute = len(computes) == int(counts.sum()) and until is trace.tasks["end_ns"]
    start, stop = (np.clip(at[computes], begin, end) for at in (trace.tasks["start_ns"], until))
    n = len(trace.job.machine.devices)
    compute = [] if only_compute else union(start, stop, trace.device[computes]).lengths(n).tolist()
    use = {}
    for name, why in reasons.items():
        busy = end - begin - sum(why.values())
        here = busy if only_compute else compute[trace.job.machine.device_index(name)]
        use[name] = {"compute": here, "communicate": busy - here, "wait": 0, "idle": 0}
        for reason, ns in why.items():
            use[name][WORD_OF_REASON.get(reason, "wait")] += ns
    return use


# ----------------------------------------------------------------------------------------------------------
# How many of a device's cores its tasks use: the share of a CPU, where "busy" only says that somebody works.
#
#     8 cores, a chain of ops of one core    ▇▇▇▇▇▇▇▇▇▇    busy 100 % of the time, core-time 1/8


def cores_of(device: Device) -> int:
    """Return how many cores a device has, or workers where cores are not counted; 0 for one with streams."""
    return device.cores or device.workers


def used_core_ns(trace: Record) -> IntArray:
    """Return the core-time that the tasks of each device used, in ns; 0 for devices without cores.

    At any time at most all cores are used: oversubscribed ones are shared, not multiplied. Ops that share a
    pool of threads use no more than these.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", duration_ns=10), b.op("b", duration_ns=30)
    >>> used_core_ns(simulate(b.build(), Machine((Device("cpu0", "cpu", workers=4),)), ReadyQueue())).tolist()
    [40]
    """
    devices = trace.job.machine.devices
    used = np.zeros(len(devices), np.int64)
    cores = cores_of_ops(trace.job)
    for d, device in enumerate(devices):
        if not cores_of(device):
            continue
        rows = np.flatnonzero((trace.device == d) & ~trace.alone)
        taken = cores[trace.tasks["op"][rows]] if device.cores else np.ones(len(rows), np.int64)
        times, at_once = in_use(trace.tasks["start_ns"][rows], trace.tasks["end_ns"][rows], taken)
        most = min(cores_of(device), device.details.intra_op_pool or cores_of(device))
        used[d] = int((np.diff(times) * np.minimum(at_once[:-1], most)).sum())
    return used


# ----------------------------------------------------------------------------------------------------------
# Devices that were given and not used: what a reader of any result has to know first.


def unused_devices(trace: Record) -> list[str]:
    """Return the names of devices that ran no op and that no transfer came from, went to or passed.

    A switch between links is none that one could use.

    Parameters
    ----------
    trace : Trace

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=10)
    >>> unused_devices(simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue()))
    ['gpu1']
    """
    machine, moved = trace.job.machine, trace.transfers
    ran = np.flatnonzero(np.bincount(trace.device[trace.executed]))
    used = {machine.devices[d].name for d in ran.tolist()}
    pairs = np.flatnonzero(np.bincount(moved["source"] * len(machine.devices) + moved["destination"]))
    for source, destination in (divmod(pair, len(machine.devices)) for pair in pairs.tolist()):
        for k in machine.route(source, destination):
            used.update((machine.links[k].source, machine.links[k].destination))
    return [device.name for device in machine.devices if device.name not in used and device.kind != "switch"]
