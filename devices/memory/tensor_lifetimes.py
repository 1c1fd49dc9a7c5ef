"""The lifetime of every tensor in memory, from allocation to last read, on any allocator.

::

    acquire(task): its outputs are allocated;         release(task): it has ended, so what is read at the
                   what is read at issue, is read                    end is read, and its event is reached

    a read ──► one reader fewer ──► was it the last? ──► free ──► did other streams use it? wait for them

When a task acquires and when it reads is said in `devices.memory.run_memory`; why it may wait, too.

What a task writes and reads has a key: on a static graph, where each buffer lives once in an iteration, it is
``iteration * n_buffers + buffer``; under control flow, where ops run as often as tokens come, see
`devices.memory.run_memory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from devices.memory.allocator import Allocator, largest_holders
from devices.memory.device_memories import DeviceMemories
from devices.memory.device_memory import FREE, Block
from sim.base.arrays import IntArray
from sim.base.units import format_bytes, format_duration
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.context import Context
from sim.machine.device import WAIT
from sim.machine.task import Task
from sim.readiness.tokens import TokenWatcher

NOWHERE: Final = Block(0, 0, 0, 0, None, FREE, None)
"""Where a buffer lies that has no memory (yet, or any more): freeing it is an error."""


class TensorMemory:
    """The memory of all devices during a run (`sim.engine.Memory`); `devices.memory.run_memory` makes it."""

    # Without slots, calls of methods are slower by a third where there are thirty attributes or more.
    __slots__ = (
        "_freed", "allocators", "at_issue", "awaited", "blocks", "by_stream", "calm", "charged",
        "context", "device_of", "ended", "follows_ends", "granted", "home", "keyed", "last_on_stream",
        "late", "launched", "log", "looks", "memories", "n_buffers", "names", "nbytes", "offered",
        "outstanding", "paid_calls", "planned", "reads", "reserved", "specs", "stream_of", "synchronising",
        "unread", "uses", "waits", "writes",
    )  # fmt: skip

    def __init__(self, memories: DeviceMemories, context: Context, waits: bool) -> None:
        job, flow = memories.job, memories.flow
        self.memories, self.waits, self.context = memories, waits, context
        self.at_issue, self.specs, self.log = memories.at_issue, memories.specs, memories.log
        self.allocators, self.reserved = memories.allocators, memories.reserved
        buffers = memories.buffers
        self.n_buffers, self.names = memories.n_buffers, memories.names
        self.nbytes: list[int] = buffers.nbytes.tolist()
        # By key: where a buffer lies, and how often it is still to be read.
        self.home: list[int] = buffers.device.tolist() * job.iterations
        self.blocks = [NOWHERE] * len(self.home)
        uses = buffers.uses(job.iterations)
        self.uses: list[int] = uses.ravel().tolist()
        self.writes, self.reads = buffers.writes.lists(), buffers.reads.lists()
        self.offered = buffers.offered
        self.planned = [spec.allocator == "planned" for spec in self.specs]
        self.keyed = bool(rendezvous_keys(job.graph).sends)
        # Node → the buffers that it writes and no op reads (in some iterations).
        self.unread = buffers.writers((uses == 0).any(axis=0))
        self.granted: set[int] = set()  # tasks that have their memory and may ask again
        self.synchronising: dict[int, int] = {}  # task → cost: granted, and waiting for an idle device
        self.outstanding: list[set[int]] = [set() for _ in self.allocators]  # issued, and not ended
        self.ended = bytearray(flow.n_nodes * job.iterations)  # tasks, where a free may wait for one
        self.awaited: dict[int, list[tuple[Allocator, Block]]] = {}  # task → blocks that its end sets free
        self._freed = False  # whether a task that took something has let something else go
        # Task → what it reads that had not arrived when it was issued, or that it met by key.
        self.late: dict[int, list[int]] = {}
        # Of each node (ops, then transfers): its device, its stream, and whether its reads count when it is
        # issued.
        self.device_of = [*job.device_of.tolist(), *flow.destination.tolist()]
        self.stream_of: list[int] = memories.stream.tolist()
        self.launched: list[bool] = memories.reads_at_issue.tolist()
        self.last_on_stream: list[Task | None] = [None] * (max(self.stream_of, default=0) + 1)
        # Whether a reader that is issued has to look where what it reads lies: on another stream, or still
        # on its way.
        self.by_stream = any(allocator.by_stream for allocator in self.allocators)
        self.looks = flow.n_nodes > flow.n_ops or self.by_stream
        # Of each node: whether its allocator's calls to the device may cost something, or wait. A copy has no
        # host that could pay, or wait: who is issued next does, as if it had asked for it.
        costly = [
            spec.costs or allocator.may_synchronise
            for spec, allocator in zip(self.specs, self.allocators, strict=True)
        ]
        self.charged = [costly[device] for device in self.device_of[: flow.n_ops]]
        self.charged += [False] * (flow.n_nodes - flow.n_ops)
        # Whether the end of what was launched is of no consequence.
        self.calm = not self.looks and not any(costly) and not self.offered
        self.follows_ends = not (self.calm and all(self.launched))
        self.paid_calls = [_calls(allocator) for allocator in self.allocators]

    @property
    def watcher(self) -> TokenWatcher | None:
        """The object that hears where tokens go: None, as there are none."""
        return None

    # -- what happens ------------------------------------------------------------------------

    def acquire(self, task: Task) -> int:
        """Take the outputs of `task`; see `sim.engine.Memory`."""
        if self.granted and task.id in self.granted:
            return self._retry(task)
        node, now_ns, log = task.op, self.context.now_ns, self.log
        device, stream, charged = self.device_of[node], self.stream_of[node], self.charged[node]
        allocator = self.allocators[device]
        first = self._first_key(task)
        for buffer in self.writes[node]:
            block = allocator.take(self.nbytes[buffer], stream, self.names[buffer])
            if block is None:
                return self._wait_or_refuse(task, allocator, stream, buffer, now_ns)
            key = first + buffer
            self.blocks[key] = block
            log.when.append(now_ns)
            log.key.append(key)
            log.taken.append(block.nbytes)
            if allocator.reserved != self.reserved[device]:
                self.memories.reserve(device, len(log.key) - 1)
        totals = _calls(allocator) if charged else None
        if self.launched[node]:
            self._freed |= self._read(task, stream, now_ns)
        if not self.at_issue:
            self.granted.add(task.id)
        if totals:
            return self._charge(task, device, totals)
        if charged and self.launched[node]:
            self.outstanding[device].add(task.id)
        return 0

    def _charge(self, task: Task, device: int, totals: tuple[int, int, int]) -> int:
        """Return what the calls to the device cost who makes them; `WAIT` if one waits until it is idle.

        Those up to `totals` made room for the outputs, or freed what was read since the task before. What
        `task` was the last to read is freed after its launch, or when it ends: who takes next pays for that.
        """
        spec = self.specs[device]
        calls = zip(totals, self.paid_calls[device], strict=True)
        mallocs, frees, synchronised = (done - paid for done, paid in calls)
        self.paid_calls[device] = totals
        cost = spec.malloc_ns * mallocs + spec.free_ns * frees + spec.synchronisation_ns * synchronised
        if synchronised and self.outstanding[device]:
            self.granted.add(task.id)
            self.synchronising[task.id] = cost
            return WAIT
        if self.launched[task.op]:
            self.outstanding[device].add(task.id)
        return cost

    def _retry(self, task: Task) -> int:
        """Answer a task that has its memory already: it may still have to wait until the device is idle."""
        if task.id not in self.synchronising:
            return 0
        device = self.device_of[task.op]
        if self.outstanding[device]:
            return WAIT
        if self.launched[task.op]:
            self.outstanding[device].add(task.id)
        return self.synchronising.pop(task.id)

    def _wait_or_refuse(self, task: Task, allocator: Allocator, stream: int, buffer: int, now_ns: int) -> int:
        """Give back what `task` has got so far, and let it wait (always if by a plan); or raise."""
        waits = self.waits or self.planned[self.device_of[task.op]]
        nbytes, name = self.nbytes[buffer], self.names[buffer]
        if not waits or not allocator.fits_empty(nbytes, stream, name):
            where = f"at {format_duration(now_ns)}"
            raise allocator.out_of_memory(nbytes, stream=stream, owner=name, where=where)
        for other in self.writes[task.op]:
            if other == buffer:
                break
            key = self._first_key(task) + other
            allocator.let_go(self.blocks[key])
            allocator.serving(self.names[other]).forget_last(self.names[other])
            self.blocks[key] = NOWHERE
            self.log.undo()  # it was taken at this instant, and never used
        return WAIT

    def has_freed(self) -> bool:
        """Whether anything was freed other than by `release`; see `sim.engine.Memory`."""
        freed, self._freed = self._freed, False
        return freed

    def release(self, task: Task) -> bool:
        """`task` ended: free what no op reads any more; return whether anything became free."""
        if self.calm and self.launched[task.op]:
            return False
        now_ns = self.context.now_ns
        freed = bool(self.synchronising)
        if self.by_stream:
            self.ended[task.id] = True
        if self.awaited and task.id in self.awaited:
            for allocator, block in self.awaited.pop(task.id):
                allocator.reach(block)
            freed = True
        if not self.launched[task.op]:
            freed |= self._read(task, -1, now_ns)
        elif self.charged[task.op]:
            self.outstanding[self.device_of[task.op]].discard(task.id)
        if self.late and task.id in self.late:
            freed |= self._drop(self.late.pop(task.id), task)
        return freed

    def _drop(self, keys: Iterable[int], task: Task) -> bool:
        """Count a read less of some buffers, as `task` has ended; return whether any became free."""
        freed = False
        for key in keys:
            self.uses[key] -= 1
            if not self.uses[key] and self.blocks[key] is not NOWHERE:
                self._free(key, task, -1, self.context.now_ns)
                freed = True
        return freed

    def on_meeting(self, send: Task, recv: Task) -> None:
        """Let `recv` read what `send` offers until it ends; see `sim.engine.Memory`."""
        if send.op in self.offered:
            self.late.setdefault(recv.id, []).append(send.iteration * self.n_buffers + self.offered[send.op])

    def lacks(self, task: Task) -> str:
        """Say what `task` waits for; see `sim.engine.Memory`."""
        if task.id in self.synchronising:
            return f"memory: {self.allocators[self.device_of[task.op]].name}, until it is idle"
        writes = self.writes[task.op]
        allocator = self.allocators[self.device_of[task.op]].serving(self.names[writes[0]])
        need = sum(self.nbytes[buffer] for buffer in writes)
        if self.planned[self.device_of[task.op]]:
            return f"memory: its place in the plan of {allocator.name}, made for its program order"
        size, used = (format_bytes(n, iec=True) for n in (need, allocator.in_use))
        limit = format_bytes(allocator.limit, iec=True)
        holders = "; ".join(largest_holders(allocator.holders()))
        parted = ""
        if allocator.limit is not None and need <= allocator.limit - allocator.in_use:
            parted = f"; the largest free block is {format_bytes(allocator.largest_free(), iec=True)}"
        return f"memory: {size} on {allocator.name}, of whose {limit} {used} are in use by {holders}{parted}"

    def columns(self) -> dict[str, IntArray]:
        """Return the log: one row per allocation (change > 0) or free (change < 0), in order.

        What was offered to Recvs and not requested is dropped with the run.
        """
        if self.keyed:
            for key, block in enumerate(self.blocks):
                if block is not NOWHERE:
                    self._free(key, Task(0, 0, 0, 0), -1, self.context.now_ns)
        return self.log.columns()

    # -- lifetimes ---------------------------------------------------------------------------

    def _read(self, task: Task, stream: int, now_ns: int) -> bool:
        """Count `task`'s reads, and free what it was the last to read; return whether there was any.

        It reads on `stream` from now on (-1: it has read). What has not arrived yet, it reads when it ends.
        """
        looks = self.looks and stream >= 0
        if looks:
            self.last_on_stream[stream] = task
        uses, blocks = self.uses, self.blocks
        freed = False
        reads, first = self._to_read(task)
        for offset in reads:
            key = first + offset
            if key < 0:  # of an iteration before the first
                continue
            if looks:
                block = blocks[key]
                if block is NOWHERE:
                    self.late.setdefault(task.id, []).append(key)
                    continue
                if block.stream != stream:
                    self.allocators[self.home[key]].note_use(block, stream)
            remaining = uses[key] - 1
            uses[key] = remaining
            if not remaining:
                self._free(key, task, stream, now_ns)
                freed = True
        if task.op in self.unread:
            first = self._first_key(task)
            for buffer in self.unread[task.op]:
                key = first + buffer
                if not uses[key] and blocks[key] is not NOWHERE:
                    self._free(key, task, stream, now_ns)
                    freed = True
        return freed

    def _first_key(self, task: Task) -> int:
        """Return what makes keys of the buffers that `task` writes, when added to them."""
        return task.iteration * self.n_buffers

    def _to_read(self, task: Task) -> tuple[Sequence[int], int]:
        """Return what `task` has still to read: what makes keys of the first when added to them, second."""
        return self.reads[task.op], task.iteration * self.n_buffers

    def _free(self, key: int, task: Task, stream: int, now_ns: int) -> None:
        device, block = self.home[key], self.blocks[key]
        self.blocks[key] = NOWHERE
        allocator = self.allocators[device]
        # When these have done what was put on them so far, it is free
        for used_on in allocator.let_go(block):
            last = task if used_on == stream else self.last_on_stream[used_on] or task
            if self.ended[last.id]:
                allocator.reach(block)
            else:
                self.awaited.setdefault(last.id, []).append((allocator, block))
        log = self.log
        log.when.append(now_ns)
        log.key.append(~key)
        if allocator.reserved != self.reserved[device]:
            self.memories.reserve(device, len(log.key) - 1)


def _calls(allocator: Allocator) -> tuple[int, int, int]:
    """Return what was asked of the device so far: mallocs, frees, synchronisations."""
    return allocator.device_mallocs, allocator.device_frees, allocator.synchronisations
