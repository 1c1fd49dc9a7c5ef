"""What an allocator's log of a run says: peaks, fragmentation, and who held the memory.

::

    reserved   ▁▁▁▁████████████████████   held from the device: grows in segments, seldom shrinks
    in use     ▁▁▃▃▅▅▇▇▅▅▃▃▁▁             blocks handed out, as rounded
    requested  ▁▁▃▃▅▅▆▆▄▄▃▃▁▁             what was asked for
                     ▲ the peak           fragmentation there: reserved − in use

`sim.analysis.memory_use` tells what the tensors of a schedule need; this tells what an allocator made of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sim.record.record import Record
from sim.words.arrays import IntArray
from sim.words.errors import InputError

__all__ = ["Allocated", "allocated", "memory_report"]


@dataclass(frozen=True)
class Allocated:
    """The allocator's view of one device over a run, in bytes.

    Attributes
    ----------
    peak_in_use_bytes, peak_requested_bytes, peak_reserved_bytes : int
        The most handed out as rounded, asked for, and held from the device.
    peak_ns : int
        The first instant at which so much was handed out.
    fragmentation_bytes : int
        Held and not handed out at that instant.
    worst_fragmentation_bytes : int
        The most that was ever held and not handed out.
    allocations : int
    holders : tuple of (str, int, int)
        The largest tensors at the peak, largest first: name, iteration (-1: there from the
        beginning) and bytes.
    """

    peak_in_use_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    peak_ns: int
    fragmentation_bytes: int
    worst_fragmentation_bytes: int
    allocations: int
    holders: tuple[tuple[str, int, int], ...]


def allocated(trace: Record, *, holders: int = 5) -> dict[str, Allocated]:
    """Return what the allocator of each device did, by name, in machine order.

    Parameters
    ----------
    trace : Trace
        Of a run with memory.
    holders : int
        How many of the largest tensors at the peak are listed.

    Raises
    ------
    InputError
        The run had no memory.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from devices.memory.run.tensors import tensor_memory
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("chain")
    >>> _ = b.op("a", duration_ns=10, outputs=100)
    >>> _ = b.op("b", duration_ns=10, outputs=70, inputs=["a"])
    >>> trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue(), memory=tensor_memory())
    >>> use = allocated(trace)["gpu0"]
    >>> use.peak_in_use_bytes, use.peak_ns, use.holders
    (170, 10, (('a', 0, 100), ('b', 0, 70)))
    """
    if trace.memory is None:
        raise InputError("this run had no allocator: give the scenario `memory:` or a device an `allocator:`")
    devices = enumerate(trace.job.machine.devices)
    return {device.name: _of_device(trace, trace.log_of(d), holders) for d, device in devices}


def _of_device(trace: Record, log: dict[str, IntArray], count: int) -> Allocated:
    in_use, reserved = log["in_use"], log["reserved"]
    if not len(in_use):
        return Allocated(0, 0, 0, 0, 0, 0, 0, ())
    peak = int(in_use.argmax())
    live: dict[tuple[int, int], int] = {}
    for tensor, iteration, change in zip(
        *(log[name][: peak + 1].tolist() for name in ("tensor", "iteration", "change")), strict=True
    ):
        left = live.pop((tensor, iteration), 0) + change
        if left:
            live[tensor, iteration] = left
    largest = sorted(live.items(), key=lambda item: -item[1])[:count]
    return Allocated(
        int(in_use[peak]),
        int(log["requested"].max()),
        int(reserved.max()),
        int(log["time_ns"][peak]),
        int(reserved[peak] - in_use[peak]),
        int((reserved - in_use).max()),
        int(np.count_nonzero(log["change"] > 0)),
        tuple(
            (trace.job.graph.tensor_name(tensor), iteration, nbytes)
            for (tensor, iteration), nbytes in largest
        ),
    )


def memory_report(trace: Record) -> dict[str, dict[str, Any]]:
    """Return `allocated` as plain values, for JSON."""
    return {
        name: {
            **asdict(use),
            "holders": [{"tensor": t, "iteration": i, "nbytes": nbytes} for t, i, nbytes in use.holders],
        }
        for name, use in allocated(trace).items()
    }
