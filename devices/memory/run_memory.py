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

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeGuard

import numpy as np

from devices.memory.allocator import Allocator
from devices.memory.counted import CountedAllocator
from devices.memory.device_memories import DeviceMemories, Recordings
from devices.memory.device_memory import Block
from devices.memory.registry import Maker, MemorySpec
from devices.memory.tensor_lifetimes import NOWHERE, TensorMemory
from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InputError
from sim.base.startup import collector_paused
from sim.graph.frames import has_control_flow
from sim.graph.views import ANY, forwarded_inputs
from sim.job.context import Context
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.kernel.columns import Afterwards, Journal
from sim.machine.task import Task
from sim.readiness.eligibility import non_strict_ops
from sim.readiness.tokens import TokenWatcher


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
    rounded, short = _bytes_taken(memories, key)
    if short is None:
        log = memories.log
        for column, values in ((log.when, when), (log.key, key), (log.taken, rounded[key >= 0])):
            column.frombytes(values.tobytes())
        columns = log.columns()
        counted = np.array([_is_counter(allocator) for allocator in memories.allocators])
        columns["reserved"] = np.where(counted[columns["device"]], columns["in_use"], columns["reserved"])
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

    def every(nodes: IntArray, offsets: IntArray) -> tuple[IntArray, IntArray]:
        """Return, for each iteration, the tasks of some nodes and the keys of some buffers."""
        return (iteration * n_nodes + nodes).ravel(), (iteration * n + offsets).ravel()

    took, ended = np.zeros(n_nodes * iterations, np.int64), np.zeros(n_nodes * iterations, np.int64)
    takes = journal.task >= 0
    took[journal.task[takes]] = np.flatnonzero(takes)
    ended[~journal.task[~takes]] = np.flatnonzero(~takes)
    at_issue = np.tile(memories.reads_at_issue, iterations)
    # The maker of each buffer; buffers that no op reads are freed once their maker has read its inputs.
    maker = buffers.writes.rows()
    made_by = np.zeros(n, np.int64)
    made_by[buffers.writes.indices] = maker
    writing, written = every(maker, buffers.writes.indices)
    unread = buffers.uses(iterations).ravel()[written] == 0
    # Who reads what; a key below 0 is of an iteration before the first.
    reading, read = every(buffers.reads.rows(), buffers.reads.indices)
    reading, read = reading[read >= 0], read[read >= 0]
    present = took[read // n * n_nodes + made_by[read % n]] <= took[reading]
    at_read = np.where(at_issue[reading] & present, took[reading], ended[reading])
    finished = writing[unread]
    row = np.concatenate((at_read, np.where(at_issue[finished], took[finished], ended[finished])))
    freed = np.concatenate((read, written[unread]))
    order = np.argsort(row, kind="stable")
    last = np.zeros(n * iterations, np.int64)
    last[freed[order]] = order  # of several at one key the last counts
    is_last = last[freed] == np.arange(len(freed))
    row = np.concatenate((took[writing], row[is_last]))
    key = np.concatenate((written, ~freed[is_last]))
    order = np.argsort(row, kind="stable")  # at one place what is made comes first
    return key[order], journal.time_ns[row[order]]


def _bytes_taken(memories: DeviceMemories, key: IntArray) -> tuple[IntArray, str | None]:
    """Return the rounded bytes of each allocation, and the device whose memory runs short; None: none does.

    Counters are not asked: who looks at their log sees whether they were ever above their limit.
    """
    n, nbytes, stream = memories.n_buffers, memories.buffers.nbytes, memories.stream.tolist()
    buffer = np.where(key < 0, ~key, key) % n
    device = memories.buffers.device[buffer]
    rounded = np.zeros(len(key), np.int64)
    blocks: dict[int, Block] = {}
    uncounted = np.ones(len(key), bool)
    for d, allocator in enumerate(memories.allocators):
        if _is_counter(allocator):
            on_device = device == d
            uncounted &= ~on_device
            rounded[on_device] = -(-nbytes[buffer[on_device]] // allocator.alignment) * allocator.alignment
    if not uncounted.any():
        return rounded, None
    made_by = np.zeros(n, np.int64)
    made_by[memories.buffers.writes.indices] = memories.buffers.writes.rows()
    size, owner, names = nbytes.tolist(), made_by.tolist(), memories.names
    for row in np.flatnonzero(uncounted).tolist():
        this, d, b = int(key[row]), int(device[row]), int(buffer[row])
        allocator = memories.allocators[d]
        if this < 0:
            allocator.let_go(blocks.pop(~this))
        else:
            block = allocator.take(size[b], stream[owner[b]], names[b])
            if block is None:
                return rounded, allocator.name
            blocks[this] = block
            rounded[row] = block.nbytes
        if allocator.reserved != memories.reserved[d]:
            memories.reserve(d, row)
    return rounded, None


def _is_counter(allocator: Allocator) -> TypeGuard[CountedAllocator]:
    """Whether an allocator does nothing but count."""
    return type(allocator) is CountedAllocator


# ----------------------------------------------------------------------------------------------------------

LIFETIMES: Final = ("execution", "issue")


def tensor_memory(
    specs: Mapping[str, MemorySpec | str | Maker] | None = None,
    *,
    lifetime: str = "execution",
    when_full: str = "error",
) -> TensorMemories:
    """Return what `sim.simulate` takes as `memory`.

    Parameters
    ----------
    specs : mapping of str to MemorySpec, str or callable, optional
        Device name → how its memory is managed (or only the allocator); others have one exact pool.
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

    by_device = {
        name: spec if isinstance(spec, MemorySpec) else MemorySpec(spec)
        for name, spec in (specs or {}).items()
    }
    return TensorMemories(by_device, lifetime, when_full == "wait")


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
            memories = DeviceMemories(job, context.flow, self.specs, self.lifetime, self.recordings)
            memory_type = TokenMemory if has_control_flow(job.graph) else TensorMemory
            return memory_type(memories, context, self.waits)

    def afterwards(self, job: Job, flow: Flow) -> Afterwards | str:
        """Return how the log of a run on the kernel follows, or why it does not (`sim.kernel.columns`)."""
        if self.recordings is not None:
            return "what is asked of the allocators is written down"
        memories = DeviceMemories(job, flow, self.specs, self.lifetime)
        return uncertain(memories) or partial(columns_of, memories)


# ----------------------------------------------------------------------------------------------------------
# Which tensor lies where under control flow, where ops run as often as tokens come.
#
# Each live output of each task has a key of its own, given out when the task comes to be, and counts who
# refers to it. The bytes are taken and given back as on a static graph (`devices.memory.tensor_lifetimes`);
# tokens say which tasks refer to them::
#
#     x ──token──► kept for a reader          until the reader has read: at its end, or at its launch
#                  parked, an invariant       until it is given to an iteration; until the loop is over
#       ──────────  the task itself           until it has ended and given its tokens
#     last reference gone ──► free
#
# So a switch, merge, enter, exit, next_iteration, loop_cond or view takes nothing: its tokens refer to what
# it was given. A dead output takes nothing, and a dead reader has read when its turn has come. At most
# `parallel_iterations` iterations of a loop hold anything at once.
#
# That is how TensorFlow's executor counts: an entry for each input of each node in each iteration, cleared
# once the node is done, loop invariants kept by their frame, parked tokens by their iteration
# (``tensorflow/core/common_runtime/executor.cc``: ``ExecutorState::Process``, ``propagator_state.cc``:
# ``AddLoopInv``, ``next_iter_roots``).

_Place = tuple[object, int]
"""An iteration of a frame, and an op."""


@dataclass(slots=True)
class _References:
    """What a task refers to, by key.

    Attributes
    ----------
    reads : list of int
        What came for it, and it has not read.
    gives : dict of int to int
        Output slot → what its tokens refer to.
    first : int
        What makes keys of the buffers that it writes, when added to them.
    """

    reads: list[int]
    gives: dict[int, int] = field(default_factory=dict)
    first: int = 0


class TokenMemory(TensorMemory):
    """The memory of all devices during a run with control flow; hears of tokens (`TokenWatcher`)."""

    __slots__ = (
        "_buffer_of", "_came", "_first", "_forwards", "_given", "_iteration_of", "_late", "_loose", "_offers",
        "_read_by", "_refs", "_slot",
    )  # fmt: skip

    def __init__(self, memories: DeviceMemories, context: Context, waits: bool) -> None:
        super().__init__(memories, context, waits)
        graph, flow, buffers = memories.job.graph, memories.flow, memories.buffers
        # By key, which tasks are given as they come to be.
        self.home, self.blocks, self.uses, self.ended = [], [], [], bytearray()
        self._buffer_of, self._iteration_of = array("q"), array("q")
        self.log.named = self._buffer_of, self._iteration_of
        self.calm, self.follows_ends = False, True
        # Of each node, the first tensor that it gives; of each buffer, its slot, and whether any op reads it.
        self._first: list[int] = [*graph.first_output.tolist(), *flow.tensor.tolist()]
        copies = flow.n_nodes - flow.n_ops
        slot = np.arange(graph.n_tensors) - graph.first_output[graph.tensor_producer]
        self._slot: list[int] = [*slot.tolist(), *([0] * copies)]
        data = flow.carries != UNSET
        from_op = flow.producer < flow.n_ops
        buffer = np.where(from_op, flow.carries, graph.n_tensors - flow.n_ops + flow.producer)
        self._read_by: list[int] = np.bincount(
            np.append(buffer[data], [*self.offered.values()]).astype(np.int64), minlength=self.n_buffers
        ).tolist()
        self.unread = buffers.writers(np.array(self._read_by) == 0)
        self._forwards = forwarded_inputs(graph)
        self._loose = set(np.flatnonzero(non_strict_ops(graph)).tolist())
        self._came: dict[_Place, list[tuple[int, int]]] = {}  # tensors and keys, of an op that is no task yet
        self._refs: dict[int, _References] = {}  # by task
        # Of tasks that did not wait for all their inputs, until they end
        self._late: dict[_Place, _References] = {}
        self._given: set[int] = set()  # tasks that gave their tokens, and have not ended
        self._offers: dict[int, int] = {}  # Send (task) → the key of what it offers

    @property
    def watcher(self) -> TokenWatcher | None:
        """The object that hears where tokens go."""
        return self

    # -- sim.readiness.tokens.TokenWatcher --------------------------------------------------

    def on_token(self, task: Task, slot: int, consumer: int, place: object, late: bool) -> None:
        """Note that a token of `task` is kept for a reader."""
        key = self._refs[task.id].gives.get(slot)
        if key is None:  # it has no bytes, or they are there from the beginning
            return
        if not late:
            self._came.setdefault((place, consumer), []).append((self._first[task.op] + slot, key))
        elif (reader := self._late.get((place, consumer))) is not None:
            reader.reads.append(key)
        else:
            return
        self.uses[key] += 1

    def on_creation(self, task: Task) -> None:
        """Give `task` what came for it, and keys to what it will give."""
        op, place = task.op, (task.frame, task.op)
        came = self._came.pop(place, [])
        refs = self._refs[task.id] = _References([key for _, key in came])
        self.ended.append(0)
        if op in self._loose:
            self._late[place] = refs
        if op in self._forwards and not task.dead:
            tensor, slots = self._forwards[op]
            passed_on = next((key for read, key in came if tensor in (read, ANY)), None)
            if passed_on is not None:
                refs.gives |= dict.fromkeys(slots, passed_on)
                self.uses[passed_on] += len(slots)
        self._make_keys(task, refs)
        if op in self.offered and 0 in refs.gives:
            self._offers[task.id] = refs.gives[0]
            self.uses[refs.gives[0]] += 1

    def _make_keys(self, task: Task, refs: _References) -> None:
        op = task.op
        writes = self.writes[op]
        if not writes:
            return
        refs.first = len(self.home) - writes[0]
        for buffer in range(writes[0], writes[-1] + 1):
            is_read = self._read_by[buffer] > 0 and self.nbytes[buffer] > 0
            if is_read:
                refs.gives[self._slot[buffer]] = len(self.home)
            self.home.append(self.device_of[op])
            self.blocks.append(NOWHERE)
            self.uses.append(int(is_read))
            self._buffer_of.append(buffer)
            self._iteration_of.append(task.iteration)

    def on_tokens_given(self, task: Task) -> None:
        """Let `task` refer to its outputs no longer, unless it has yet to end."""
        if task.end_ns < 0 and not self.launched[task.op]:
            self._given.add(task.id)
        elif self._let_go(task):
            self._freed = True

    # -- what happens ------------------------------------------------------------------------

    def on_meeting(self, send: Task, recv: Task) -> None:
        """Let `recv` read what `send` offers until it ends; see `sim.engine.Memory`."""
        if send.id in self._offers:
            self.late.setdefault(recv.id, []).append(self._offers.pop(send.id))

    def release(self, task: Task) -> bool:
        """`task` ended; see `TensorMemory.release`."""
        freed = False
        if task.dead and self.launched[task.op]:  # it was not launched
            freed = self._read(task, -1, self.context.now_ns)
        freed |= super().release(task)
        if task.id in self._given:
            self._given.remove(task.id)
            freed |= self._let_go(task)
        return freed

    def _let_go(self, task: Task) -> bool:
        """Drop the references of `task` to what it gives; return whether anything became free."""
        return self._drop(self._refs.pop(task.id).gives.values(), task)

    def _first_key(self, task: Task) -> int:
        return self._refs[task.id].first

    def _to_read(self, task: Task) -> tuple[Sequence[int], int]:
        refs = self._refs[task.id]
        reads, refs.reads = refs.reads, []
        self._late.pop((task.frame, task.op), None)
        return reads, 0
