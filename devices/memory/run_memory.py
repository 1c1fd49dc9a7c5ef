"""Tensors that live and die during a run: the engine's `Memory`, on any allocator.

Two lifetimes, because runtimes differ in when they ask:

``execution``
    Memory is taken when a task starts and given back when the last reader has ended: what a device
    needs at the least.
``issue``
    Memory is taken in the host's order, when a task is issued, and given back when the last reader
    has been *issued*: what PyTorch and TensorFlow do on a GPU. The stream's order makes that safe
    on one stream; a reader on another stream holds the block until an event of it (`record_use`).
    CPU workers execute what they take: what they read is given back when they have read it.

Out of memory is an outcome: an error at that instant, or, with ``when_full="wait"``, the task waits
until something is freed. A buffer that could not be had on an empty device is refused before time 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeGuard

import numpy as np

from devices.memory.allocator import Allocator
from devices.memory.allocators.counted import CountedAllocator
from devices.memory.device_memories import DeviceMemories, Recordings
from devices.memory.device_memory import Block
from devices.memory.registry import MemorySpec
from devices.memory.tensor_lifetimes import TensorMemory
from devices.memory.token_lifetimes import TokenMemory
from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.base.startup import collector_paused
from sim.graph.frames import has_control_flow
from sim.job.context import Context
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.kernel.memory import Afterwards, Journal

# ----------------------------------------------------------------------------------------------------------
# What happened to memory in a run that never waited for it, worked out when it is over.
#
#     journal      a takes    b takes (reads a)    c takes (reads a, b)        (`sim.kernel.memory`)
#     calls        +a         +b                   +c  -a  -b                  a has two readers, b one
#
# Under the lifetime ``issue`` a launched op reads when it takes, unless what it reads has not arrived by
# then; all others read when they end. So the place of every read in the journal is known, and the last read
# frees. The log of a counter follows by adding up; other allocators are asked for each buffer, in order.


def uncertain(memories: DeviceMemories) -> str | None:
    """Return why the memory may hold tasks up however much there is of it, in words; None: it does not."""
    launches = set(memories.job.device_of[memories.job.launched].tolist())
    for device, (spec, allocator) in enumerate(zip(memories.specs, memories.allocators, strict=True)):
        if spec.costs:
            return f"calls of the allocator of {allocator.name} cost time"
        if allocator.by_stream:
            return f"the {allocator.kind} allocator of {allocator.name} knows streams"
        if allocator.may_synchronise and memories.at_issue and device in launches:
            return f"the {allocator.kind} allocator of {allocator.name} may wait until it is idle"
    return None


def columns_of(memories: DeviceMemories, journal: Journal) -> dict[str, IntArray] | str:
    """Return the log of a run, or in words who would have had to wait.

    Parameters
    ----------
    memories : DeviceMemories
        As before time 0; changed by this.
    journal : Journal
    """
    key, when = _calls(memories, journal)
    taken, short = _taken(memories, key)
    if short is None:
        log = memories.log
        for column, found in ((log.when, when), (log.key, key), (log.taken, taken[key >= 0])):
            column.frombytes(found.tobytes())
        columns = log.columns()
        counted = np.array([_is_counter(allocator) for allocator in memories.allocators])
        exact = counted[columns["device"]]
        columns["reserved"] = np.where(exact, columns["in_use"], columns["reserved"])
        for device in np.flatnonzero(counted).tolist():
            limit = memories.allocators[device].limit
            in_use = columns["in_use"][columns["device"] == device]
            if limit is not None and in_use.max(initial=0) > limit:
                short = memories.allocators[device].name
    return columns if short is None else f"the memory of {short} runs short"


def _calls(memories: DeviceMemories, journal: Journal) -> tuple[IntArray, IntArray]:
    """Return the keys of what is allocated (``key``) and freed (``~key``), in order, and when, in ns."""
    buffers, n, n_nodes = memories.buffers, memories.n_buffers, memories.flow.n_nodes
    iterations = memories.job.iterations
    iteration = np.arange(iterations)[:, None]

    def every(each: IntArray, of: IntArray) -> tuple[IntArray, IntArray]:
        """Return, for each iteration, the tasks of some nodes and the keys of some buffers."""
        return (iteration * n_nodes + each).ravel(), (iteration * n + of).ravel()

    took, ended = np.zeros(n_nodes * iterations, np.int64), np.zeros(n_nodes * iterations, np.int64)
    takes = journal.task >= 0
    took[journal.task[takes]] = np.flatnonzero(takes)
    ended[~journal.task[~takes]] = np.flatnonzero(~takes)
    at_issue = np.tile(memories.reads_at_issue, iterations)
    # Who makes what, and what of it nobody reads: that goes when its maker has read.
    maker = buffers.writes.rows()
    made_by = np.zeros(n, np.int64)
    made_by[buffers.writes.indices] = maker
    making, made = every(maker, buffers.writes.indices)
    unread = buffers.uses(iterations).ravel()[made] == 0
    # Who reads what; a key below 0 is of an iteration before the first.
    reading, read = every(buffers.reads.rows(), buffers.reads.indices)
    reading, read = reading[read >= 0], read[read >= 0]
    there = took[read // n * n_nodes + made_by[read % n]] <= took[reading]
    at_read = np.where(at_issue[reading] & there, took[reading], ended[reading])
    over = making[unread]
    at = np.concatenate((at_read, np.where(at_issue[over], took[over], ended[over])))
    freed = np.concatenate((read, made[unread]))
    order = np.argsort(at, kind="stable")
    last = np.zeros(n * iterations, np.int64)
    last[freed[order]] = order  # of several at one key the last counts
    is_last = last[freed] == np.arange(len(freed))
    at = np.concatenate((took[making], at[is_last]))
    key = np.concatenate((made, ~freed[is_last]))
    order = np.argsort(at, kind="stable")  # at one place what is made comes first
    return key[order], journal.time_ns[at[order]]


def _taken(memories: DeviceMemories, key: IntArray) -> tuple[IntArray, str | None]:
    """Return the bytes of each allocation as rounded, and whose memory does not suffice, None: nobody's.

    Counters are not asked: who looks at their log sees whether they were ever above their limit.
    """
    n, nbytes, stream = memories.n_buffers, memories.buffers.nbytes, memories.stream.tolist()
    buffer = np.where(key < 0, ~key, key) % n
    device = memories.buffers.device[buffer]
    taken = np.zeros(len(key), np.int64)
    blocks: dict[int, Block] = {}
    asked = np.ones(len(key), bool)
    for d, allocator in enumerate(memories.allocators):
        if _is_counter(allocator):
            here = device == d
            asked &= ~here
            taken[here] = -(-nbytes[buffer[here]] // allocator.alignment) * allocator.alignment
    if not asked.any():
        return taken, None
    made_by = np.zeros(n, np.int64)
    made_by[memories.buffers.writes.indices] = memories.buffers.writes.rows()
    size, owner, names = nbytes.tolist(), made_by.tolist(), memories.names
    for row in np.flatnonzero(asked).tolist():
        this, d, b = int(key[row]), int(device[row]), int(buffer[row])
        allocator = memories.allocators[d]
        if this < 0:
            allocator.let_go(blocks.pop(~this))
        else:
            block = allocator.take(size[b], stream[owner[b]], names[b])
            if block is None:
                return taken, allocator.name
            blocks[this] = block
            taken[row] = block.nbytes
        if allocator.reserved != memories.reserved[d]:
            memories.reserve(d, row)
    return taken, None


def _is_counter(allocator: Allocator) -> TypeGuard[CountedAllocator]:
    """Whether an allocator does nothing but count."""
    return type(allocator) is CountedAllocator


# ----------------------------------------------------------------------------------------------------------

LIFETIMES: Final = ("execution", "issue")


def tensor_memory(
    specs: Mapping[str, MemorySpec] | None = None,
    *,
    lifetime: str = "execution",
    when_full: str = "error",
) -> TensorMemories:
    """Return what `sim.simulate` takes as `memory`.

    Parameters
    ----------
    specs : mapping of str to MemorySpec, optional
        Device name → how its memory is managed; others have one exact pool.
    lifetime : str
        ``"execution"`` or ``"issue"``, see the module.
    when_full : str
        ``"error"``: raise `OutOfMemoryError`; ``"wait"``: the task waits for memory.

    Raises
    ------
    InputError
        Another word, or a device the machine does not have (when the run begins).
    """
    if lifetime not in LIFETIMES:
        raise InputError(f"lifetime must be one of {', '.join(LIFETIMES)}; found {lifetime!r}")
    if when_full not in ("error", "wait"):
        raise InputError(f"when_full must be error or wait; found {when_full!r}")

    return TensorMemories(specs or {}, lifetime, when_full == "wait")


@dataclass(frozen=True)
class TensorMemories:
    """Makes the memory of a run; see `tensor_memory`.

    With `recordings`, what is asked of the allocators is written down there.
    """

    specs: Mapping[str, MemorySpec]
    lifetime: str
    waits: bool
    recordings: Recordings | None = None

    @property
    def at_issue(self) -> bool:
        """Whether memory is taken when a task is issued."""
        return self.lifetime == "issue"

    def __call__(self, job: Job, context: Context) -> TensorMemory:
        """Return the memory of a run on the engine on SimPy."""
        with collector_paused():
            made = TokenMemory if has_control_flow(job.graph) else TensorMemory
            return made(job, context, self.specs, self.lifetime, self.waits, self.recordings)

    def afterwards(self, job: Job, flow: Flow) -> Afterwards | str:
        """Return how the log of a run on the kernel follows, or why it does not (`sim.kernel.memory`)."""
        if self.recordings is not None:
            return "what is asked of the allocators is written down"
        memories = DeviceMemories(job, flow, self.specs, self.lifetime)
        return uncertain(memories) or partial(columns_of, memories)
