"""A kernel on a GPU: the SMs that it can use, and the course of its thread blocks.

An SM runs as many blocks of a kernel at a time as fit on it (its *occupancy*), so blocks are counted in
loads, each filling an SM: ``loads = ceil(blocks / blocks_per_sm)``. A load occupies one SM for one *block
time*; all loads of a kernel take equally long. A kernel alone on S SMs needs ``waves = ceil(loads / S)``
rounds, so the block time follows from the kernel's duration alone: ``duration / waves``::

    duration 20, 6 loads on 4 SMs, 2 waves, block time 10

    SM 0  [ load 0 ][ load 4 ]
    SM 1  [ load 1 ][ load 5 ]
    SM 2  [ load 2 ]               <- the tail: free for other kernels from 10 on
    SM 3  [ load 3 ]

This is the model behind *wave quantisation* (NVIDIA, *Matrix Multiplication Background User's Guide*,
section 3). Real blocks of one kernel differ in length, and blocks of two kernels may live on one SM; neither
is modelled.

A kernel with unknown blocks fills the device, and its tail is unknown too. Here it has none: its loads are as
short as possible, 1 ns each. So with k SMs fewer it takes S / (S - k) times as long, like a kernel of many
small waves; a single wave would take twice as long with one SM less. (Even products, which have few waves,
lose at most half of what whole waves would: ``rounding`` of `devices.cost.kernel_model`.)

The clock of a kernel
---------------------
Everything inside a kernel happens in its own time `v`, in which a load takes a whole number of units
(`Demand.lasting`) and which advances by ``waves`` units per ns, or by less if memory bandwidth is short. So
block boundaries are exact although they rarely fall on whole ns. Loads dispatched together are a *cohort*.
While a kernel has loads left and is being served, each cohort that ends is followed by an equal one at once;
the number of cohorts so far is computed on demand, not simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from math import ceil, gcd, prod
from typing import Any, Final, NamedTuple

import numpy as np

from sim.base.errors import InvariantError
from sim.base.options import whole_numbers
from sim.job.collectives import call_of
from sim.job.costs import ask_once
from sim.job.job import Job
from sim.machine.communicators import HoldsSms
from sim.machine.device import Device
from sim.machine.task import Task

GROUPS = 8
"""Most cohorts of a kernel that are kept separate; see `RunningKernel.take`."""

NEVER = 1 << 62
"""Later than any instant, in ns."""


class Demand(NamedTuple):
    """The demand of one op on a GPU.

    Attributes
    ----------
    loads : int
        Number of loads, each filling an SM with blocks; if unknown, as many as run at a time.
    waves : int
        Rounds that they need on the whole device; 0: unknown, so that a load takes 1 ns.
    load_bytes_per_s : int
        DRAM bandwidth that one load draws while it runs at full speed.
    """

    loads: int
    waves: int
    load_bytes_per_s: int

    def lasting(self, duration_ns: int) -> tuple[int, int, int]:
        """Return loads and waves of a kernel of this duration alone, and a load's length in 1 / waves ns.

        Examples
        --------
        >>> Demand(6, 2, 0).lasting(20), Demand(4, 0, 0).lasting(20)
        ((6, 2, 20), (80, 1, 1))
        """
        return (self.loads, self.waves, duration_ns) if self.waves else (self.loads * duration_ns, 1, 1)


def demand(
    attributes: Mapping[str, Any],
    duration_ns: int,
    *,
    sms: int,
    blocks_per_sm: int = 1,
    dram_bytes: int = 0,
    bandwidth_bytes_per_s: int | None = None,
) -> Demand:
    """Return the demand of an op on a GPU with `sms` SMs.

    Parameters
    ----------
    attributes : mapping
        Attributes of the op: ``grid`` (blocks, a number or up to three) with ``blocks_per_sm``, or
        ``sms``, or ``sm_fraction``; without any of them the op fills the device with unknown blocks.
        ``dram_bytes`` overrides the parameter.
    duration_ns : int
        Duration of the op alone on the device.
    sms, blocks_per_sm : int
        SMs of the device, and occupancy if the op does not give its own.
    dram_bytes : int
        Bytes read from and written to DRAM.
    bandwidth_bytes_per_s : int, optional
        DRAM bandwidth. Alone, an op cannot have drawn more: any excess must have come from a cache.

    Examples
    --------
    >>> demand({"grid": [16, 12], "blocks_per_sm": 2}, 1000, sms=64)
    Demand(loads=96, waves=2, load_bytes_per_s=0)
    """
    if "grid" in attributes:
        grid = attributes["grid"]
        blocks = grid if isinstance(grid, int) else prod(grid)
        loads = -(-blocks // attributes.get("blocks_per_sm", blocks_per_sm))
    elif "sms" in attributes:
        loads = min(sms, attributes["sms"])
    elif "sm_fraction" in attributes:
        loads = ceil(Fraction(repr(attributes["sm_fraction"])) * sms)
    else:
        loads = sms
    waves = 0 if _SM_KEYS.isdisjoint(attributes) else -(-loads // sms)
    if bandwidth_bytes_per_s is None or not duration_ns:
        return Demand(loads, waves, 0)
    nbytes = attributes.get("dram_bytes", dram_bytes)
    # Bytes of a load / block time, in whole bytes/s; loads that run together fit into the bandwidth.
    drawn = (2 * nbytes * max(waves, 1) * 10**9 + loads * duration_ns) // (2 * loads * duration_ns)
    return Demand(loads, waves, min(drawn, bandwidth_bytes_per_s // min(sms, loads)))


_SM_KEYS: Final = frozenset({"grid", "sms", "sm_fraction"})
"""Attributes that specify how much of the device an op fills."""


def sms_in_use(device: Device) -> int:
    """Return the number of SMs that kernels share; a processor of SMs exists only if it is given."""
    assert device.details.sms is not None
    return device.details.sms


def held_sms(device: Device, job: Job) -> dict[int, int]:
    """Return the SMs of each collective of a communicator that holds some.

    Its thread blocks, one per NCCL channel, move data during its whole duration, however little of the SMs'
    speed they need. Their number is the attribute ``sms`` or else comes from the machine's model of
    collectives; without either it is 0.
    """
    attributes, sms = job.graph.attributes, sms_in_use(device)
    collectives, model = job.collectives, job.machine.collectives
    if collectives is None:
        return {}
    ops = job.ops_on.row(job.machine.device_index(device.name))
    ops = ops[job.meets[ops]]
    sms_of = {}
    holding = model if isinstance(model, HoldsSms) else None
    for op, entry in zip(ops.tolist(), np.searchsorted(collectives.op, ops).tolist(), strict=True):
        if "sms" in attributes[op]:
            sms_of[op] = min(sms, attributes[op]["sms"])
        elif holding is not None:
            holds = [holding.sms(call_of(job.graph, collectives, entry), job.machine)]
            whole_numbers(holds, f"{type(holding).__name__}.sms", of=[job.graph.op_names[op]])
            sms_of[op] = min(sms, *holds)
    return {op: count for op, count in sms_of.items() if count}


def demands(device: Device, job: Job, bandwidth_bytes_per_s: int | None) -> dict[int, Demand]:
    """Return the demand of each op placed on `device`, except those of communicators."""
    key = ("demands", device.name, bandwidth_bytes_per_s)
    return job.once(key, lambda: _demands(device, job, bandwidth_bytes_per_s))


def _demands(device: Device, job: Job, bandwidth_bytes_per_s: int | None) -> dict[int, Demand]:
    graph, attributes = job.graph, job.graph.attributes
    grids = _fitted_grids(device, job)
    ops = job.ops_on.row(job.machine.device_index(device.name))
    ops = ops[~job.meets[ops]]
    sms, nothing = sms_in_use(device), dict[str, Any]()
    by_op: dict[int, Demand] = {}
    if bandwidth_bytes_per_s is None:  # then all ops without attributes have the same demand
        by_op = dict.fromkeys(ops.tolist(), demand(nothing, 0, sms=sms))
        others = [op for op in ops.tolist() if not _SM_KEYS.isdisjoint(attributes.get(op, ())) or op in grids]
        ops = np.array(others, dtype=np.int64)
    demand_of = partial(
        demand,
        sms=sms,
        blocks_per_sm=device.details.blocks_per_sm,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
    )
    columns = (ops, job.duration_ns[ops], graph.bytes_read[ops] + graph.bytes_written[ops])
    for op, duration_ns, nbytes in zip(*(column.tolist() for column in columns), strict=True):
        by_op[op] = demand_of(grids.get(op) or attributes.get(op, nothing), duration_ns, dram_bytes=nbytes)
    return by_op


def _fitted_grids(device: Device, job: Job) -> Mapping[int, Mapping[str, Any]]:
    """Return attributes for ops without any, with the grids known to the device's cost model.

    A model of matrix products chooses a tile, and so the number of thread blocks, one per SM.
    """
    attributes = job.graph.attributes
    if (cost := device.cost) is None or not cost.knows_blocks:
        return {}
    blocks = ask_once(job.graph, device, "blocks", lambda: cost.blocks(job.graph, device))
    return {
        op: {**attributes[op], "grid": int(blocks[op]), "blocks_per_sm": 1}
        for op in np.flatnonzero(blocks >= 0).tolist()
        if _SM_KEYS.isdisjoint(attributes[op])
    }


class RunningKernel:
    """One execution of an op: loads not dispatched yet, and cohorts of running ones.

    State is updated only on demand: a kernel's progress since the last update follows from its speed.

    Attributes
    ----------
    task : Task
    rank : tuple of int
        Order of service, lowest first.
    partition : int
    left, running : int
        Number of loads not dispatched yet, and running now.
    load_bytes_per_s, waves : int
        See `Demand`.
    arrived_ns : int
        Time of arrival.
    served : bool
        Whether ending loads are replaced by its next ones at once.
    resident : bool
        Whether any of its loads has been dispatched.
    free_ns, end_ns : int
        When it next leaves an SM, and when it ends, if nothing changes; valid unless `stale`.
    stale : bool
        Whether something has changed since the prediction.
    """

    __slots__ = (
        "_cohorts", "_length", "_pace", "_scale", "_since_ns", "_step", "_v", "arrived_ns", "end_ns",
        "free_ns", "left", "load_bytes_per_s", "partition", "rank", "resident", "running", "served", "stale",
        "task", "waves",
    )  # fmt: skip

    def __init__(
        self, task: Task, need: Demand, duration_ns: int, rank: tuple[int, int], partition: int, now_ns: int
    ) -> None:
        self.task, self.rank, self.partition = task, rank, partition
        self.left, self.waves, length = need.lasting(duration_ns)
        self.load_bytes_per_s = need.load_bytes_per_s
        self.running = 0
        self.served = self.resident = False
        self.stale = True
        self.arrived_ns = self.free_ns = self.end_ns = self._since_ns = now_ns
        # The kernel's time, the length of a load and the ends of cohorts are in 1 / scale of a unit, and
        # `_step` of these pass per ns: all whole numbers, whatever fraction of its speed the kernel has.
        self._v, self._scale, self._length, self._step = 0, 1, length, self.waves
        self._pace = (1, 1)
        self._cohorts: list[tuple[int, int]] = []  # (end, loads), earliest end first

    def begin(self, now_ns: int) -> None:
        """Become resident: the kernel's time begins."""
        self.resident = True
        self._since_ns = now_ns

    def take(self, loads: int) -> None:
        """Dispatch `loads` loads now; time must be up to date.

        Kernels that overlap in their tails would eventually split the SMs into groups of one, with an event
        each. A kernel keeps at most `GROUPS` cohorts: a further one is merged with the last, at the mean of
        their ends weighted by loads (rounded up to a unit), so that no SM time is gained or lost.
        """
        self.left -= loads
        self.running += loads
        self.stale = True
        end = self._v + self._length
        if len(self._cohorts) == GROUPS:
            last, before = self._cohorts.pop()
            end = -(-(last * before + end * loads) // ((before + loads) * self._scale)) * self._scale
            loads += before
        self._cohorts.append((end, loads))

    def advance(self, now_ns: int) -> int:
        """Update the kernel; return the number of SMs that it has left since the last update."""
        self._v = time = self._v + self._step * (now_ns - self._since_ns)
        self._since_ns = now_ns
        cohorts, length = self._cohorts, self._length
        if not cohorts or cohorts[0][0] > time:
            return 0
        self.stale = True
        if self.served and self.left >= self.running and cohorts[-1][0] <= time:
            # Whole rounds, in which every cohort was replaced by an equal one.
            rounds = min((time - cohorts[-1][0]) // length + 1, self.left // self.running)
            self.left -= rounds * self.running
            self._cohorts = cohorts = [(end + rounds * length, loads) for end, loads in cohorts]
        freed = 0
        while cohorts and cohorts[0][0] <= time:
            end, loads = cohorts.pop(0)
            again = min(loads, self.left) if self.served else 0
            if again:
                self.left -= again
                cohorts.append((end + length, again))
            freed += loads - again
        self.running -= freed
        return freed

    def set_pace(self, share: int, whole: int) -> None:
        """Go on at ``share / whole`` of full speed; time must be up to date."""
        if self._pace == (share, whole):
            return
        self._pace = (share, whole)
        self.stale = True
        speed = self.waves * share
        common = gcd(speed, whole)
        speed, whole = speed // common, whole // common
        factor = whole // gcd(self._scale, whole)
        if factor > 1:
            self._scale *= factor
            self._v *= factor
            self._length *= factor
            self._cohorts = [(end * factor, loads) for end, loads in self._cohorts]
        self._step = speed * (self._scale // whole)

    def predict(self) -> None:
        """Predict when it leaves an SM and when it ends; time must be up to date."""
        self.stale = False
        if not self._cohorts:  # it has no SMs and can only be given some
            self.free_ns = self.end_ns = NEVER
            return
        if self.left and self.served:
            free = self._last_dispatch()
            end = free + self._length
        else:
            free, end = self._cohorts[0][0], self._cohorts[-1][0]
        time, step, since_ns = self._v, self._step, self._since_ns
        # A cohort that ends at this instant may be past its end by a fraction of a ns.
        self.free_ns = since_ns - (time - free) // step if free > time else since_ns
        if self.left and not self.served:
            self.end_ns = NEVER
        else:
            self.end_ns = since_ns - (time - end) // step if end > time else since_ns

    def _last_dispatch(self) -> int:
        """Return when the last load is dispatched if the kernel keeps its present SMs."""
        rounds = (self.left - 1) // self.running
        remaining = self.left - rounds * self.running
        for end, loads in self._cohorts:
            remaining -= loads
            if remaining <= 0:
                return end + rounds * self._length
        raise InvariantError("a kernel has loads left that no group of blocks runs")
