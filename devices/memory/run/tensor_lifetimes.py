"""Which tensor lies where, from its allocation to its last read, on any allocator.

::

    take(task): its outputs are allocated;            give(task): it has ended, so what is read at the end
                what is read at issue, is read                    is read, and its event is reached

    a read ──► one reader fewer ──► was it the last? ──► free ──► did other streams use it? wait for them

When a task takes and when it reads is said in `devices.memory.run.tensors`; why it may wait, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

import numpy as np

from devices.memory.allocator import Allocator
from devices.memory.allocators.counted import CountedAllocator
from devices.memory.blocks import FREE, Block
from devices.memory.by_name import make_allocator
from devices.memory.memory_description import MemorySpec
from devices.memory.oom import largest_holders
from devices.memory.run.allocation_log import MemoryLog
from devices.memory.run.buffers import make_buffers
from devices.memory.run.deferred import Deferred
from devices.memory.run.planned_order import events_in_order
from sim.job.context import Context
from sim.job.job import Job
from sim.machine.processor import WAIT
from sim.machine.task import Task
from sim.words.arrays import IntArray
from sim.words.errors import InputError
from sim.words.units import format_bytes, format_duration

__all__ = ["Lifetimes"]

_ID: Any = attrgetter("id")

MOST_BYTES: Final = 1 << 60
"""More, rounded up and doubled as allocators do, would not be certain to fit 64 bits."""

_NOWHERE: Final = Block(0, 0, 0, 0, None, FREE, None)
"""Where a buffer lies that has no memory (yet, or any more): freeing it is an error."""


class Lifetimes:
    """What lies where on all devices during one run.

    `take` and `give` are told in the order in which it happens, and when; they do not look at the clock.
    """

    def __init__(
        self, job: Job, context: Context, specs: Mapping[str, MemorySpec], lifetime: str, waits: bool
    ) -> None:
        machine = job.machine
        for name in specs:
            machine.device_index(name)
        self.at_issue = lifetime == "issue"
        self.waits = waits
        self.job, self.flow = job, context.flow
        self.specs = [specs.get(device.name, MemorySpec()) for device in machine.devices]
        self.allocators: list[Allocator] = [
            CountedAllocator(device.memory_bytes, name=device.name)
            if spec.allocator == "planned"
            else make_allocator(spec.allocator, device.memory_bytes, name=device.name, **spec.options)
            for device, spec in zip(machine.devices, self.specs, strict=True)
        ]
        self.apart = [0] * len(machine.devices)  # bytes that lie beside a static plan
        self.buffers = buffers = make_buffers(job, context.flow)
        self.n_buffers = len(buffers.nbytes)
        self.nbytes: list[int] = buffers.nbytes.tolist()
        if (total := sum(self.nbytes)) > MOST_BYTES:
            raise InputError(
                f"the tensors of one iteration have {format_bytes(total)} together; allocators can follow at "
                f"most {format_bytes(MOST_BYTES, iec=True)}"
            )
        self.names = buffers.names(job, context.flow)
        # By key, iteration * n_buffers + buffer: where a buffer lies, and how often it is still to be read.
        self.home: list[int] = buffers.device.tolist() * job.iterations
        self.blocks = [_NOWHERE] * len(self.home)
        uses = buffers.uses(job.iterations)
        self.uses = _packed(uses.ravel())
        # What node k writes and reads is at the places from [k] to [k + 1]: a list each would cost more.
        self.first_write, self.written = (_packed(column) for column in buffers.writes)
        self.first_read, self.read = (_packed(column) for column in buffers.reads)
        # Node → what it writes, and nobody reads (in some iterations).
        self.unread = buffers.writers((uses == 0).any(axis=0))
        self.granted: set[int] = set()  # tasks that have their memory and may ask again
        self.synchronising: dict[int, int] = {}  # task → cost: granted, and waiting for an idle device
        self.outstanding = [0] * len(machine.devices)  # tasks issued that have not ended
        self.ended = bytearray(context.flow.n_nodes * job.iterations)  # tasks, where a free may wait for one
        self.awaited: dict[int, list[tuple[Allocator, Block]]] = {}  # task → blocks that its end sets free
        self.freed = False  # whether a task that took something has let something else go
        self.late: dict[int, list[int]] = {}  # task → what it reads that had not arrived when it was issued
        # Of each node (ops, then transfers): its device, its stream, and whether its reads count when it is
        # issued, because the order of streams protects what it reads.
        transfers = context.flow.n_nodes - context.flow.n_ops
        self.device_of = [*job.device_of.tolist(), *context.flow.destination.tolist()]
        streams = job.stream_of.tolist() if job.launched.any() else [0] * context.flow.n_ops
        self.stream_of = [*streams, *([0] * transfers)]
        self.launched = (self.at_issue & job.launched).tolist() + [False] * transfers
        self.last_on_stream: list[Task | None] = [None] * (max(self.stream_of, default=0) + 1)
        # Whether a reader that is issued has to look where what it reads lies: on another stream, or still
        # on its way.
        self.by_stream = any(allocator.by_stream for allocator in self.allocators)
        self.looks = bool(transfers) or self.by_stream
        pairs = set(zip(self.device_of, self.stream_of, strict=True))
        # Of each device, how many streams allocate on it; and whether its allocator's calls to the device may
        # cost something or wait.
        self.streams = np.bincount([device for device, _ in pairs], minlength=len(self.specs)).tolist()
        self.charged = [
            bool(spec.malloc_ns or spec.free_ns or spec.synchronise_ns) or allocator.may_synchronise
            for spec, allocator in zip(self.specs, self.allocators, strict=True)
        ]
        # Whether the end of what was launched is of no consequence.
        self.calm = not self.looks and not any(self.charged)
        self.deferred = None
        if self.calm:
            counted = np.frombuffer(self.uses, np.int64)
            self.deferred = Deferred(buffers, np.array(self.launched), counted)
            stream = np.zeros(self.n_buffers, np.int64)
            stream[buffers.writes.indices] = np.repeat(self.stream_of, buffers.writes.counts())
            self.stream_of_buffer: list[int] = stream.tolist()
        self.reserved = [allocator.reserved for allocator in self.allocators]
        tensors = np.concatenate((np.arange(job.graph.n_tensors), context.flow.tensor))
        self.log = MemoryLog(buffers.nbytes, buffers.device, tensors, self.reserved)
        self._load()
        self._refuse_impossible()
        self.paid_calls = [_calls(allocator) for allocator in self.allocators]

    def _load(self) -> None:
        """Take the memory of what is there from the beginning; then plan for the rest, where that is asked.

        A static plan is for what is computed: parameters and inputs lie beside it, as in TVM.
        """
        for device, nbytes, tensor in self.buffers.resident:
            allocator, name = self.allocators[device], self.job.graph.external_names[tensor]
            block = allocator.try_alloc(nbytes, 0, name)
            if block is None:
                raise allocator.out_of_memory(nbytes, owner=name, where="before time 0")
            self.log.load(device, block.nbytes, tensor)
            self._reserve(device, -1)
        for device, spec in enumerate(self.specs):
            if spec.allocator != "planned":
                continue
            beside = self.allocators[device]
            events = events_in_order(self.buffers, self.job, self.flow, device)
            self.apart[device] = beside.in_use
            self.allocators[device] = make_allocator(
                "planned", beside.memory, name=beside.name, events=events, **spec.options
            )
            self.reserved[device] = -1  # what the plan reserves counts from its first row on

    def _refuse_impossible(self) -> None:
        """Refuse what would not even fit into an empty device.

        Of each device its largest buffer decides, unless it matters who asks.
        """
        written = self.buffers.writes.indices
        nbytes, homes = self.buffers.nbytes[written], self.buffers.device[written]
        for device, allocator in enumerate(self.allocators):
            here = np.flatnonzero(homes == device)
            if len(here) and (allocator.limit is not None or allocator.by_owner):
                suspects = here if allocator.by_owner else here[[nbytes[here].argmax()]]
                for buffer in written[suspects].tolist():
                    size, name = self.nbytes[buffer], self.names[buffer]
                    if not allocator.fits_empty(size, 0, name):
                        raise allocator.out_of_memory(size, owner=name, where="before time 0")

    # -- what happens ------------------------------------------------------------------------

    def take(self, task: Task, now_ns: int, certain: bool = False) -> int:
        """Take the outputs of `task`; see `sim.engine.Memory.acquire`.

        With `certain` it is known that there is room, and that it costs nothing.
        """
        if self.granted and task.id in self.granted:
            return self._again(task)
        node = task.op
        device = self.device_of[node]
        allocator, stream = self.allocators[device], self.stream_of[node]
        # A copy has no host that could pay, or wait: who is issued next does, as if it had asked for it.
        charged = self.charged[device] and node < self.flow.n_ops
        first = task.iteration * self.n_buffers
        log = self.log
        place, end = self.first_write[node], self.first_write[node + 1]
        while place < end:
            buffer = self.written[place]
            place += 1
            block = allocator.try_alloc(self.nbytes[buffer], stream, self.names[buffer])
            if block is None:
                return self._full(task, allocator, stream, buffer, now_ns)
            key = first + buffer
            self.blocks[key] = block
            log.when.append(now_ns)
            log.key.append(key)
            log.taken.append(block.nbytes)
            if allocator.reserved != self.reserved[device]:
                self._reserve(device, len(log.key) - 1)
        taken = _calls(allocator) if charged and not certain else None
        if self.launched[node]:
            self.freed |= self._read(task, stream, now_ns)
        if not self.at_issue:
            self.granted.add(task.id)
        if taken:
            return self._charge(task, device, taken)
        if charged and self.launched[node]:
            self.outstanding[device] += 1
        return 0

    def _charge(self, task: Task, device: int, taken: tuple[int, int, int]) -> int:
        """Return what the calls to the device cost who makes them; `WAIT` if one waits until it is idle.

        Those up to `taken` made room for the outputs, or freed what was read since the task before. What
        `task` was the last to read is freed after its launch, or when it ends: who takes next pays for that.
        """
        spec = self.specs[device]
        mallocs, frees, synchronised = (
            done - paid for done, paid in zip(taken, self.paid_calls[device], strict=True)
        )
        self.paid_calls[device] = taken
        cost = spec.malloc_ns * mallocs + spec.free_ns * frees + spec.synchronise_ns * synchronised
        if synchronised and self.outstanding[device]:
            self.granted.add(task.id)
            self.synchronising[task.id] = cost
            return WAIT
        if self.launched[task.op]:
            self.outstanding[device] += 1
        return cost

    def _again(self, task: Task) -> int:
        """Answer a task that has its memory already: it may still have to wait until the device is idle."""
        if task.id not in self.synchronising:
            return 0
        device = self.device_of[task.op]
        if self.outstanding[device]:
            return WAIT
        if self.launched[task.op]:
            self.outstanding[device] += 1
        return self.synchronising.pop(task.id)

    def _full(self, task: Task, allocator: Allocator, stream: int, buffer: int, now_ns: int) -> int:
        """Give back what `task` has got so far, and let it wait; or raise."""
        if not self.waits:
            where = f"at {format_duration(now_ns)}"
            raise allocator.out_of_memory(
                self.nbytes[buffer], stream=stream, owner=self.names[buffer], where=where
            )
        for other in self._writes(task.op):
            if other == buffer:
                break
            key = task.iteration * self.n_buffers + other
            allocator.free(self.blocks[key])
            self.blocks[key] = _NOWHERE
            self.log.undo()  # it was taken at this instant, and never used
        return WAIT

    def _writes(self, node: int) -> list[int]:
        return self.written[self.first_write[node] : self.first_write[node + 1]].tolist()

    def give(self, task: Task, now_ns: int) -> bool:
        """`task` ended: free what nobody reads any more; return whether anything became free."""
        if self.calm and self.launched[task.op]:
            return False
        freed = bool(self.synchronising)
        if self.by_stream:
            self.ended[task.id] = True
        if self.awaited and task.id in self.awaited:
            for allocator, block in self.awaited.pop(task.id):
                allocator.event_done(block)
            freed = True
        if not self.launched[task.op]:
            return self._read(task, -1, now_ns) or freed
        device = self.device_of[task.op]
        if self.charged[device]:
            self.outstanding[device] -= 1
        if self.late and task.id in self.late:
            for key in self.late.pop(task.id):
                self.uses[key] -= 1
                if not self.uses[key]:
                    self._free(key, task, -1, now_ns)
                    freed = True
        return freed

    def lacks(self, task: Task) -> str:
        """Say what `task` waits for; see `sim.engine.Memory`."""
        if task.id in self.synchronising:
            return f"memory: {self.allocators[self.device_of[task.op]].name}, until it is idle"
        writes = self._writes(task.op)
        allocator = self.allocators[self.device_of[task.op]].serving(self.names[writes[0]])
        need = sum(self.nbytes[buffer] for buffer in writes)
        asked, held = (format_bytes(n, iec=True) for n in (need, allocator.in_use))
        limit = format_bytes(allocator.limit, iec=True)
        holders = "; ".join(largest_holders(list(allocator.spans())))
        return f"memory: {asked} on {allocator.name}, of whose {limit} {held} are in use by {holders}"

    def catch_up(self, tasks: list[Task], when: list[int]) -> None:
        """Do what these tasks did: took, at a time t, what was certain to be had, or ended, at ~t."""
        if self.deferred is None:
            for task, t in zip(tasks, when, strict=True):
                if t >= 0:
                    self.take(task, t, True)
                else:
                    self.give(task, ~t)
            self.paid_calls = [_calls(allocator) for allocator in self.allocators]  # they cost nothing
            return
        ids = np.fromiter(map(_ID, tasks), np.int64, len(tasks))
        keys, times = self.deferred.calls(ids, np.array(when, np.int64))
        allocators, reserved, blocks, home = self.allocators, self.reserved, self.blocks, self.home
        nbytes, names, stream_of, n = self.nbytes, self.names, self.stream_of_buffer, self.n_buffers
        log = self.log
        for row, key in enumerate(keys.tolist(), len(log.key)):
            if key >= 0:
                device, buffer = home[key], key % n
                allocator = allocators[device]
                block = allocator.try_alloc(nbytes[buffer], stream_of[buffer], names[buffer])
                blocks[key] = block
                log.taken.append(block.nbytes)
            else:
                device = home[~key]
                allocator = allocators[device]
                allocator.free(blocks[~key])
                blocks[~key] = _NOWHERE
            if allocator.reserved != reserved[device]:
                self._reserve(device, row)
        log.when.frombytes(times.tobytes())
        log.key.frombytes(keys.tobytes())

    # -- what is certain ---------------------------------------------------------------------

    def room(self) -> list[int] | None:
        """Return what each device is certain to have left (`Allocator.room`); None: of some nothing is."""
        rooms: list[int] = []
        for allocator, spec, streams in zip(self.allocators, self.specs, self.streams, strict=True):
            room = allocator.room(streams)
            if room is None or spec.malloc_ns or spec.free_ns or spec.synchronise_ns:
                return None
            rooms.append(room)
        return rooms

    def at_most(self) -> list[int]:
        """Return what each node's outputs take of its device's room."""
        written = self.buffers.writes.indices
        need, homes = self.buffers.nbytes[written], self.buffers.device[written]
        for device, allocator in enumerate(self.allocators):
            here = homes == device
            need[here] = allocator.at_most(need[here])
        total = np.concatenate((np.zeros(1, np.int64), np.cumsum(need)))
        counts: list[int] = np.diff(total[self.buffers.writes.indptr]).tolist()
        return counts

    # -- lifetimes ---------------------------------------------------------------------------

    def _read(self, task: Task, stream: int, now_ns: int) -> bool:
        """Count `task`'s reads, and free what it was the last to read; return whether there was any.

        It reads on `stream` from now on (-1: it has read). What has not arrived yet, it reads when it ends.
        """
        looks = self.looks and stream >= 0
        if looks:
            self.last_on_stream[stream] = task
        uses, blocks = self.uses, self.blocks
        node = task.op
        first = task.iteration * self.n_buffers
        freed = False
        place, end = self.first_read[node], self.first_read[node + 1]
        while place < end:
            key = first + self.read[place]
            place += 1
            if key < 0:  # of an iteration before the first
                continue
            if looks:
                block = blocks[key]
                if block is _NOWHERE:
                    self.late.setdefault(task.id, []).append(key)
                    continue
                if block.stream != stream:
                    self.allocators[self.home[key]].record_use(block, stream)
            left = uses[key] - 1
            uses[key] = left
            if not left:
                self._free(key, task, stream, now_ns)
                freed = True
        if node in self.unread:
            for buffer in self.unread[node]:
                key = first + buffer
                if not uses[key] and blocks[key] is not _NOWHERE:
                    self._free(key, task, stream, now_ns)
                    freed = True
        return freed

    def _free(self, key: int, task: Task, stream: int, now_ns: int) -> None:
        device, block = self.home[key], self.blocks[key]
        self.blocks[key] = _NOWHERE
        allocator = self.allocators[device]
        for used_on in allocator.free(block):  # when these have done what was put on them so far, it is free
            last = task if used_on == stream else self.last_on_stream[used_on] or task
            if self.ended[last.id]:
                allocator.event_done(block)
            elif last.id in self.awaited:
                self.awaited[last.id].append((allocator, block))
            else:
                self.awaited[last.id] = [(allocator, block)]
        log = self.log
        log.when.append(now_ns)
        log.key.append(~key)
        if allocator.reserved != self.reserved[device]:
            self._reserve(device, len(log.key) - 1)

    def _reserve(self, device: int, row: int) -> None:
        """Put down that from a row of the log on the allocator of `device` holds more or less than before."""
        self.reserved[device] = held = self.allocators[device].reserved
        self.log.mark(row, device, held + self.apart[device])


def _calls(allocator: Allocator) -> tuple[int, int, int]:
    """Return what was asked of the device so far: mallocs, frees, synchronisations."""
    return allocator.device_mallocs, allocator.device_frees, allocator.synchronisations


def _packed(column: IntArray) -> array[int]:
    """Return the same numbers, faster to read one by one."""
    return array("q", column.tobytes())
