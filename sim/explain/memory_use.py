"""How many bytes each device holds over time, and what they are.

::

    gpu0   a's output     ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇         from a's start to the end of its last
                          a     b       transfer    reader there, or of the last transfer that sends it
    gpu1   the copy of it             ▇▇▇▇▇▇▇▇▇▇▇   from when the transfer is requested, though it may
                                                c   have to wait for a link, to the end of the last
                                                    reader there
    both   parameters,    ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇   the whole time, where they are read or sent from;
           inputs                                   each counts once: its buffer serves every iteration

This is the memory that the schedule needs, without an allocator's rounding and fragmentation (see
`devices.memory`). An output that nothing reads is freed when its op ends. At one instant frees come before
allocations, as in the engine; a tensor that lives for no time takes no memory. A view (`sim.graph.views`)
uses the storage of its original and prolongs its life. On a machine without links the reader uses the
producer's copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr, IntArray
from sim.base.intervals import in_use, most_in_use
from sim.graph.frames import has_control_flow
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.graph.views import ANY, forwarded_inputs, forwarding, storage_of
from sim.job.places import crossing_reads
from sim.job.transfers import host_groups
from sim.record.dependencies import TaskEdges, dependencies, kept_tokens, loop_ends_ns, unread
from sim.record.record import Record


class Lifetimes(NamedTuple):
    """Lifetimes of tensors, one row per copy. `iteration` is -1 for tensors that always stay."""

    device: IntArray
    tensor: IntArray
    iteration: IntArray
    nbytes: IntArray
    start_ns: IntArray
    end_ns: IntArray

    def of(self, rows: IntArray | BoolArray) -> Lifetimes:
        """Return the given rows."""
        return Lifetimes(*(column[rows] for column in self))

    def levels(self) -> tuple[IntArray, IntArray]:
        """Return instants, and the bytes alive from each on; frees of an instant come first."""
        return in_use(self.start_ns, self.end_ns, self.nbytes)


class Holder(NamedTuple):
    """A tensor in memory: its name, its iteration (-1: stays for the whole run), size and times."""

    name: str
    iteration: int
    nbytes: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """The memory of one device over a run.

    Attributes
    ----------
    device : str
    peak_bytes, peak_ns : int
        The most bytes in use, and the first instant at which they were.
    resident_bytes : int
        Parameters and inputs, which stay.
    times_ns, in_use_bytes : arrays of int64
        A step function: from ``times_ns[k]`` on, ``in_use_bytes[k]`` are in use.
    holders : tuple of Holder
        The largest tensors in memory at the peak, largest first.
    """

    device: str
    peak_bytes: int
    peak_ns: int
    resident_bytes: int
    times_ns: IntArray
    in_use_bytes: IntArray
    holders: tuple[Holder, ...]


def sent_ns(trace: Record, edges: TaskEdges) -> IntArray:
    """Return when each transfer was requested: once it was ready and its tensor was there.

    A transfer made by a host thread is requested by that thread, when it begins.
    """
    moved = trace.transfers
    by_host = host_groups(trace.job, moved["tensor"], moved["source"], moved["destination"]) != UNSET
    sent = np.where(by_host, moved["start_ns"], moved["ready_ns"])
    sends = edges.consumer >= len(trace)
    np.maximum.at(sent, edges.consumer[sends] - len(trace), trace.of_rows("end_ns")[edges.producer[sends]])
    return sent


def lifetimes(trace: Record) -> Lifetimes:
    """Return when and where each copy of each tensor of more than 0 bytes was in memory."""
    graph, moved, n_devices = trace.job.graph, trace.transfers, len(trace.job.machine.devices)
    if not graph.tensor_nbytes.any():
        return Lifetimes(*np.zeros((6, 0), np.int64))
    producer, consumer, carried = edges = dependencies(trace)
    end = trace.of_rows("end_ns")

    # 1. One life per output of every task, on its device, and one per transfer, at its destination ...
    op = trace.tasks["op"]
    outputs = graph.outputs.take(op)
    maker = outputs.rows()
    tensor = np.concatenate((outputs.indices, moved["tensor"]))
    born = np.concatenate((trace.tasks["start_ns"][maker], sent_ns(trace, edges)))
    dies = np.concatenate((trace.tasks["end_ns"][maker], moved["end_ns"]))

    # 2. ... prolonged by every reader, including transfers.
    live = trace.tasks["dead"][maker] == 0
    nbytes = graph.tensor_nbytes[tensor]
    nbytes[: len(maker)] *= live
    if has_control_flow(graph):
        retained = kept_tokens(trace, producer, consumer, carried)
        producer, consumer, carried = producer[retained], consumer[retained], carried[retained]
        for row, over_ns in loop_ends_ns(trace).items():
            dies[outputs.indptr[row]] = max(dies[outputs.indptr[row]], over_ns)
        delivered = np.zeros(len(moved["id"]), bool)
        delivered[consumer[consumer >= len(trace)] - len(trace)] = True
        nbytes[len(maker) :] *= delivered | (graph.tensor_producer[moved["tensor"]] == UNSET)

    def life_of(producer: IntArray, carried: IntArray) -> tuple[IntArray, BoolArray]:
        """Return the life of the tensor that each edge carries, and whether it carries one."""
        by_task = (producer < len(trace)) & (carried != UNSET)
        task = producer[by_task]
        life = np.empty(len(producer), np.int64)
        life[by_task] = outputs.indptr[task] + carried[by_task] - graph.first_output[op[task]]
        life[~by_task] = len(maker) + producer[~by_task] - len(trace)
        return life, by_task | (producer >= len(trace))

    read, data = life_of(producer, carried)
    np.maximum.at(dies, read[data], end[consumer[data]])
    keyed = np.isin(op, list(rendezvous_keys(graph).sends))  # unrequested offers stay until the end
    keyed[producer[(producer < len(trace)) & (carried != UNSET)]] = False
    dies[outputs.indptr[:-1][keyed]] = trace.makespan_ns
    waiting = unread(trace)
    dies[life_of(waiting.producer, waiting.tensor)[0]] = trace.makespan_ns  # for a reader that never ran

    # ... and by whatever passes it on (a view, a switch), which has no bytes of its own.
    passes_on = forwarded_inputs(graph)
    if passes_on:
        forwarded = np.full(len(graph), UNSET)
        forwarded[list(passes_on)] = [tensor for tensor, _ in passes_on.values()]
        alias = forwarding(graph) | (storage_of(graph) != UNSET)
        is_task = data & (consumer < len(trace))
        expected = forwarded[op[consumer[is_task]]]
        fits = (expected == ANY) | (expected == carried[is_task])
        base = np.full(len(trace), UNSET)
        base[consumer[is_task][fits]] = read[is_task][fits]
        for life in np.flatnonzero(alias[outputs.indices] & live)[::-1].tolist():  # the last of a chain first
            nbytes[life] = 0
            if (original := base[maker[life]]) != UNSET:
                dies[original] = max(dies[original], dies[life])

    # 3. Tensors that are there from the beginning stay on every device that reads them or sends them away.
    crosses, readers, _ = crossing_reads(trace.job)
    outside = (graph.tensor_producer[graph.inputs.indices] == UNSET) & ~crosses
    sent = graph.tensor_producer[moved["tensor"]] == UNSET
    read_here = (graph.inputs.indices * n_devices + readers)[outside]
    sent_away = moved["tensor"][sent] * n_devices + moved["source"][sent]
    retained, device = np.divmod(np.unique(np.concatenate((read_here, sent_away))), n_devices)

    tensor = np.concatenate((tensor, retained))
    iteration = np.concatenate((trace.tasks["iteration"][maker], moved["iteration"]))
    if trace.attempts:  # a restart loses all tensors of the attempt before
        ends = [(attempt.run, attempt.begin_ns + attempt.trace.makespan_ns) for attempt in trace.attempts]
        runs, end = np.array(ends).T
        dies = np.minimum(dies, end[np.searchsorted(runs, iteration, side="right") - 1])
    lives = Lifetimes(
        np.concatenate((trace.device[maker], moved["destination"], device)),
        tensor,
        np.concatenate((iteration, np.full(len(retained), UNSET))),
        np.concatenate((nbytes, graph.tensor_nbytes[retained])),
        np.concatenate((born, np.zeros(len(retained), np.int64))),
        np.concatenate((dies, np.full(len(retained), trace.makespan_ns))),
    )
    return lives.of((lives.nbytes > 0) & (lives.end_ns > lives.start_ns))


def peak_bytes(trace: Record) -> dict[str, int]:
    """Return the most bytes in use on each device, by name."""
    lives, devices = lifetimes(trace), trace.job.machine.devices
    peaks = most_in_use(lives.start_ns, lives.end_ns, lives.nbytes, lives.device, len(devices))
    return dict(zip((device.name for device in devices), peaks.tolist(), strict=True))


def memory_use(trace: Record, *, holders: int = 10) -> dict[str, MemoryUse]:
    """Return the memory of each device over the run, by name, in machine order.

    Parameters
    ----------
    trace : Trace
    holders : int
        How many of the largest tensors at the peak are listed.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("chain")
    >>> _ = b.parameter("w", 5)
    >>> _ = b.op("a", duration_ns=10, outputs=100)
    >>> _ = b.op("b", duration_ns=10, outputs=70, inputs=["a", "w"])
    >>> _ = b.op("c", duration_ns=10, outputs=10, inputs=["b"])
    >>> use = memory_use(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))["gpu0"]
    >>> use.peak_bytes, use.peak_ns, [holder.name for holder in use.holders]
    (175, 10, ['a', 'b', 'w'])
    >>> list(zip(use.times_ns.tolist(), use.in_use_bytes.tolist()))
    [(0, 105), (10, 175), (20, 85), (30, 0)]
    """
    lives = lifetimes(trace)
    rows = Csr.group(lives.device, np.arange(len(lives.device)), len(trace.job.machine.devices))
    return {
        device.name: _of_device(trace, device.name, lives.of(rows.row(d)), holders)
        for d, device in enumerate(trace.job.machine.devices)
    }


def _of_device(trace: Record, name: str, lives: Lifetimes, holders: int) -> MemoryUse:
    """Return the memory of one device, by a sweep over its births and deaths."""
    times, nbytes = lives.levels()
    peak = int(nbytes.argmax()) if len(nbytes) else -1
    peak_ns = int(times[peak]) if len(nbytes) else 0
    alive = np.flatnonzero((lives.start_ns <= peak_ns) & (lives.end_ns > peak_ns))
    largest = lives.of(alive[np.lexsort((lives.start_ns[alive], -lives.nbytes[alive]))][:holders])
    names = [trace.job.graph.tensor_name(tensor) for tensor in largest.tensor.tolist()]
    return MemoryUse(
        name,
        int(nbytes[peak]) if len(nbytes) else 0,
        peak_ns,
        int(lives.nbytes[lives.iteration == UNSET].sum()),
        times,
        nbytes,
        tuple(starmap(Holder, zip(names, *(column.tolist() for column in largest[2:]), strict=True))),
    )


# ----------------------------------------------------------------------------------------------------------
# Statistics of an allocator's log: peaks, fragmentation, and which tensors held the memory.
#
#     reserved   ▁▁▁▁████████████████████   held from the device: grows in segments, seldom shrinks
#     in use     ▁▁▃▃▅▅▇▇▅▅▃▃▁▁             blocks handed out, as rounded
#     requested  ▁▁▃▃▅▅▆▆▄▄▃▃▁▁             as requested
#                      ▲ the peak           fragmentation there: reserved − in use
#
# `lifetimes` gives the memory that the tensors of a schedule need; this gives the memory that an allocator
# made of it.


class Allocated(NamedTuple):
    """The allocator's view of one device over a run, in bytes.

    Attributes
    ----------
    peak_in_use_bytes, peak_requested_bytes, peak_reserved_bytes : int
        The most handed out (rounded), requested, and held from the device.
    peak_ns : int
        The first instant of the peak in use.
    fragmentation_bytes : int
        Bytes held but not handed out at that instant.
    worst_fragmentation_bytes : int
        The most ever held but not handed out.
    allocations : int
    holders : list of dict
        The five largest tensors at the peak, largest first: ``tensor``, ``iteration`` (-1: there from the
        beginning) and ``nbytes``.
    """

    peak_in_use_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    peak_ns: int
    fragmentation_bytes: int
    worst_fragmentation_bytes: int
    allocations: int
    holders: list[dict[str, Any]]


def allocator_statistics(trace: Record) -> dict[str, Allocated]:
    """Return the statistics of each device's allocator, by name, in machine order.

    Parameters
    ----------
    trace : Trace
        The trace of a run with memory.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from devices.memory.run_memory import tensor_memory
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("chain")
    >>> _ = b.op("a", duration_ns=10, outputs=100)
    >>> _ = b.op("b", duration_ns=10, outputs=70, inputs=["a"])
    >>> trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue(), memory=tensor_memory())
    >>> use = allocator_statistics(trace)["gpu0"]
    >>> use.peak_in_use_bytes, use.peak_ns, [holder["tensor"] for holder in use.holders]
    (170, 10, ['a', 'b'])
    """
    devices = enumerate(trace.job.machine.devices)
    return {device.name: _log_of_device(trace, trace.log_of(d)) for d, device in devices}


def _log_of_device(trace: Record, log: dict[str, IntArray]) -> Allocated:
    in_use, reserved = log["in_use"], log["reserved"]
    if not len(in_use):
        return Allocated(0, 0, 0, 0, 0, 0, 0, [])
    peak = int(in_use.argmax())
    live: dict[tuple[int, int], int] = {}
    for tensor, iteration, change in zip(
        *(log[name][: peak + 1].tolist() for name in ("tensor", "iteration", "change")), strict=True
    ):
        remaining = live.pop((tensor, iteration), 0) + change
        if remaining:
            live[tensor, iteration] = remaining
    largest = sorted(live.items(), key=lambda item: -item[1])[:5]
    return Allocated(
        int(in_use[peak]),
        int(log["requested"].max()),
        int(reserved.max()),
        int(log["time_ns"][peak]),
        int(reserved[peak] - in_use[peak]),
        int((reserved - in_use).max()),
        int(np.count_nonzero(log["change"] > 0)),
        [
            {"tensor": trace.job.graph.tensor_name(tensor), "iteration": iteration, "nbytes": nbytes}
            for (tensor, iteration), nbytes in largest
        ],
    )
