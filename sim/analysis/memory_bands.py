"""What memory holds over time, split by the kind of op that made it: the bands of a memory plot.

::

    bytes ▲        ▁▂▂▁        other
          │   ▁▃▅▅▅▇▇▇▅▃▁      relu
          │ ▂▅▇▇▇▇▇▇▇▇▇▇▇▇▅▂   conv
          │ ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇   resident: parameters and inputs, which stay
          └────────────────► time
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from sim.analysis.memory_use import lifetimes
from sim.record.record import Record
from sim.words.arrays import UNSET, IntArray

__all__ = ["Bands", "memory_bands"]

RESIDENT: Final = "resident"
OTHER: Final = "other"


class Bands(NamedTuple):
    """Step functions on common times: from ``times_ns[k]`` on, ``nbytes[label][k]`` bytes are held.

    With an allocator's log an instant may be there several times, once for each step within it, and the last
    one is the end of the run.
    """

    times_ns: IntArray
    nbytes: dict[str, IntArray]


def memory_bands(trace: Record, device: str, *, kinds: int = 5) -> Bands:
    """Return what a device holds, resident tensors first, then the kinds of op that hold most.

    Parameters
    ----------
    trace : Trace
        With an allocator's log, bytes are as allocated; else as the tensors need.
    device : str
    kinds : int
        How many kinds are told apart; the rest is "other".

    Raises
    ------
    UnknownNameError
        There is no such device.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("chain")
    >>> _ = b.op("a", kind="conv", duration_ns=10, outputs=100)
    >>> _ = b.op("b", kind="relu", duration_ns=10, outputs=70, inputs=["a"])
    >>> bands = memory_bands(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()), "gpu0")
    >>> bands.times_ns.tolist(), {label: nbytes.tolist() for label, nbytes in bands.nbytes.items()}
    ([0, 10, 20], {'conv': [100, 100, 0], 'relu': [0, 70, 0]})
    """
    index, graph = trace.job.machine.device_index(device), trace.job.graph
    if log := trace.log_of(index):
        times, tensor, change = log["time_ns"], log["tensor"], log["change"]
        rows = np.arange(len(times))
        times = np.append(times, trace.makespan_ns)  # where the host is ahead, it is done long before
    else:
        lives = lifetimes(trace)
        here = lives.device == index
        tensor = np.tile(lives.tensor[here], 2)
        change = np.concatenate((lives.nbytes[here], -lives.nbytes[here]))
        times, rows = np.unique(
            np.concatenate((lives.start_ns[here], lives.end_ns[here])), return_inverse=True
        )
    producer = graph.tensor_producer[tensor]
    kind = np.where(producer == UNSET, UNSET, graph.kind_code[producer])
    steps: dict[int, IntArray] = {}
    for code in np.unique(kind).tolist():
        held = np.zeros(len(times), np.int64)
        np.add.at(held, rows[kind == code], change[kind == code])
        steps[code] = np.cumsum(held)
    bands = {RESIDENT: steps.pop(UNSET)} if UNSET in steps else {}
    ranked = sorted(steps, key=lambda code: (-int(steps[code].max()), code))
    for code in ranked[:kinds]:
        bands[graph.kinds[code]] = steps[code]
    if ranked[kinds:]:
        bands[OTHER] = np.sum([steps[code] for code in ranked[kinds:]], axis=0)
    return Bands(times, bands)
