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
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from devices.memory.base import Allocator, Block, StreamEvent
from devices.memory.buffers import make_buffers
from devices.memory.counted import CountedAllocator
from devices.memory.make import make_allocator
from devices.memory.oom import largest_holders, out_of_memory
from devices.memory.program_order import events_in_order, program_events
from devices.memory.spec import MemorySpec
from sim.engine import State
from sim.engine.collector import collector_paused
from sim.errors import InputError
from sim.graph import UNSET, IntArray
from sim.job import Job
from sim.model import WAIT, Task
from sim.units import format_bytes, format_duration

__all__ = ["MemorySpec", "TensorMemory", "program_events", "tensor_memory"]

LIFETIMES: Final = ("execution", "issue")
_COLUMNS: Final = ("time_ns", "device", "change", "in_use", "requested", "reserved", "tensor", "iteration")


def tensor_memory(
    specs: Mapping[str, MemorySpec] | None = None,
    *,
    lifetime: str = "execution",
    when_full: str = "error",
) -> Callable[[Job, State], TensorMemory]:
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

    def make(job: Job, engine: State) -> TensorMemory:
        with collector_paused():
            return TensorMemory(job, engine, specs or {}, lifetime, when_full == "wait")

    return make


class TensorMemory:
    """The memory of all devices during one run; made by `tensor_memory`."""

    def __init__(
        self, job: Job, engine: State, specs: Mapping[str, MemorySpec], lifetime: str, waits: bool
    ) -> None:
        machine = job.machine
        for name in specs:
            machine.device_index(name)
        self.at_issue = lifetime == "issue"
        self.waits = waits
        self.job, self.engine, self.flow = job, engine, engine.flow
        self.buffers = make_buffers(job, engine.flow)
        self.nbytes, self.home = self.buffers.nbytes, self.buffers.device
        self.writes, self.reads = self.buffers.writes, self.buffers.reads
        self.uses = self.buffers.uses(job.iterations)
        self.specs = [specs.get(device.name, MemorySpec()) for device in machine.devices]
        self.allocators: list[Allocator] = [
            CountedAllocator(device.memory_bytes, name=device.name)
            if spec.allocator == "planned"
            else make_allocator(spec.allocator, device.memory_bytes, name=device.name, **spec.options)
            for device, spec in zip(machine.devices, self.specs, strict=True)
        ]
        self.apart = [0] * len(machine.devices)  # bytes that lie beside a static plan
        self.n_buffers = len(self.nbytes)
        self.blocks: dict[int, Block] = {}  # iteration * n_buffers + buffer → where it lies
        self.granted: set[int] = set()  # tasks that have their memory and may ask again
        self.synchronising: dict[int, int] = {}  # task → cost: granted, and waiting for an idle device
        self.outstanding = [0] * len(machine.devices)  # tasks issued that have not ended
        self.tokens: dict[int, list[tuple[Allocator, int]]] = {}
        self.last_on_stream: dict[int, Task] = {}
        self.log = array("q")  # rows of _COLUMNS, one after another
        # Of each node (ops, then transfers): its device, its stream, and whether its reads count when it is
        # issued, because the order of streams protects what it reads.
        transfers = engine.flow.n_nodes - engine.flow.n_ops
        self.device_of = [*engine.device_of, *engine.flow.destination.tolist()]
        self.stream_of = [*(engine.stream_of or [0] * engine.flow.n_ops), *([0] * transfers)]
        self.launched = [self.at_issue and not executed for executed in engine.executed] + [False] * transfers
        self.tensor_of = [*range(job.graph.n_tensors), *engine.flow.tensor.tolist()]  # what a buffer holds
        self.names = self.buffers.names(job, engine.flow)
        self._load()
        self._refuse_impossible()

    def _load(self) -> None:
        """Take the memory of what is there from the beginning; then plan for the rest, where that is asked.

        A static plan is for what is computed: parameters and inputs lie beside it, as in TVM.
        """
        for device, nbytes, tensor in self.buffers.resident:
            allocator, name = self.allocators[device], self.job.graph.external_names[tensor]
            if allocator.try_alloc(nbytes, 0, name) is None:
                raise out_of_memory(allocator, nbytes, owner=name, where="before time 0")
            self._note(allocator, device, nbytes, tensor, UNSET)
        self.loaded = len(self.log) // len(_COLUMNS)
        for device, spec in enumerate(self.specs):
            if spec.allocator != "planned":
                continue
            beside = self.allocators[device]
            events = events_in_order(self.buffers, self.job, self.flow, device)
            self.apart[device] = beside.in_use
            self.allocators[device] = make_allocator(
                "planned", beside.memory, name=beside.name, events=events, **spec.options
            )

    def _refuse_impossible(self) -> None:
        """Refuse what would not even fit into an empty device; of each device its largest buffer decides."""
        largest: dict[int, int] = {}
        if all(allocator.limit is None for allocator in self.allocators):
            return
        for buffers in self.writes:
            for buffer in buffers:
                best = largest.setdefault(self.home[buffer], buffer)
                if self.nbytes[buffer] > self.nbytes[best]:
                    largest[self.home[buffer]] = buffer
        for device, buffer in sorted(largest.items()):
            allocator, nbytes, name = self.allocators[device], self.nbytes[buffer], self.names[buffer]
            if not allocator.fits_empty(nbytes, 0, name):
                raise out_of_memory(allocator, nbytes, owner=name, where="before time 0")

    # -- sim.engine.Memory -------------------------------------------------------------------

    def acquire(self, task: Task) -> int:
        """Take the outputs of `task`; see `sim.engine.Memory`."""
        node = task.op
        device = self.device_of[node]
        if self.granted and task.id in self.granted:
            return self._again(task, device)
        allocator, stream = self.allocators[device], self.stream_of[node]
        mallocs, frees = allocator.device_mallocs, allocator.device_frees
        synchronised = allocator.synchronisations
        first = task.iteration * self.n_buffers
        for buffer in self.writes[node]:
            block = allocator.try_alloc(self.nbytes[buffer], stream, self.names[buffer])
            if block is None:
                return self._full(task, allocator, stream, buffer)
            self.blocks[first + buffer] = block
            self._note(allocator, device, block.nbytes, buffer, task.iteration)
        launched = self.launched[node]
        if launched:
            self.last_on_stream[stream] = task
            self._read(task, stream, True)
        if not self.at_issue:
            self.granted.add(task.id)
        cost = 0
        if mallocs != allocator.device_mallocs or frees != allocator.device_frees:
            spec = self.specs[device]
            cost = spec.malloc_ns * (allocator.device_mallocs - mallocs)
            cost += spec.free_ns * (allocator.device_frees - frees)
        if synchronised != allocator.synchronisations:
            cost += self.specs[device].synchronise_ns * (allocator.synchronisations - synchronised)
            if self.outstanding[device]:
                self.granted.add(task.id)
                self.synchronising[task.id] = cost
                return WAIT
        if launched:
            self.outstanding[device] += 1
        return cost

    def _again(self, task: Task, device: int) -> int:
        """Answer a task that has its memory already: it may still have to wait until the device is idle."""
        if task.id not in self.synchronising:
            return 0
        if self.outstanding[device]:
            return WAIT
        if self.launched[task.op]:
            self.outstanding[device] += 1
        return self.synchronising.pop(task.id)

    def _full(self, task: Task, allocator: Allocator, stream: int, buffer: int) -> int:
        """Give back what `task` has got so far, and let it wait; or raise."""
        if not self.waits:
            where = f"at {format_duration(self.engine.now_ns)}"
            raise out_of_memory(
                allocator, self.nbytes[buffer], stream=stream, owner=self.names[buffer], where=where
            )
        for other in self.writes[task.op]:
            block = self.blocks.pop(task.iteration * self.n_buffers + other, None)
            if block is not None:
                allocator.free(block)
                del self.log[-len(_COLUMNS) :]  # it was taken at this instant, and never used
        return WAIT

    def release(self, task: Task) -> bool:
        """`task` ended: free what nobody reads any more; return whether anything became free."""
        freed = bool(self.synchronising)
        if self.tokens and task.id in self.tokens:
            for allocator, token in self.tokens.pop(task.id):
                allocator.event_done(token)
            freed = True
        if self.launched[task.op]:
            self.outstanding[self.device_of[task.op]] -= 1
            return freed
        return self._read(task, self.stream_of[task.op], False) or freed

    def lacks(self, task: Task) -> str:
        """Say what `task` waits for; see `sim.engine.Memory`."""
        allocator = self.allocators[self.device_of[task.op]]
        need = sum(self.nbytes[buffer] for buffer in self.writes[task.op])
        asked, held = (format_bytes(n, iec=True) for n in (need, allocator.in_use))
        limit = format_bytes(allocator.limit, iec=True)
        holders = "; ".join(largest_holders(list(allocator.spans())))
        return f"memory: {asked} on {allocator.name}, of whose {limit} {held} are in use by {holders}"

    # -- lifetimes ---------------------------------------------------------------------------

    def _read(self, task: Task, stream: int, launched: bool) -> bool:
        """Count `task`'s reads, and its own outputs that nobody reads; free what is done with."""
        freed = False
        now = task.iteration
        for buffer, distance in self.reads[task.op]:
            iteration = now - distance
            if iteration < 0:
                continue
            if launched:
                block = self.blocks[iteration * self.n_buffers + buffer]
                if block.stream != stream:
                    self.allocators[self.home[buffer]].record_use(block, stream)
            uses = self.uses[iteration]
            left = uses[buffer] = uses[buffer] - 1
            if not left:
                self._free(iteration, buffer, task, stream)
                freed = True
        uses = self.uses[now]
        for buffer in self.writes[task.op]:
            if not uses[buffer] and now * self.n_buffers + buffer in self.blocks:
                self._free(now, buffer, task, stream)
                freed = True
        return freed

    def _free(self, iteration: int, buffer: int, task: Task, stream: int) -> None:
        device = self.home[buffer]
        allocator = self.allocators[device]
        block = self.blocks.pop(iteration * self.n_buffers + buffer)
        events = allocator.free(block)
        if events:
            self._await(events, allocator, task, stream)
        self._note(allocator, device, -block.nbytes, buffer, iteration)

    def _await(self, events: tuple[StreamEvent, ...], allocator: Allocator, task: Task, stream: int) -> None:
        """Tell the allocator when other streams have done what was put on them so far."""
        for token, used_on in events:
            last = task if used_on == stream else self.last_on_stream.get(used_on, task)
            if last.end_ns >= 0:
                allocator.event_done(token)
            else:
                self.tokens.setdefault(last.id, []).append((allocator, token))

    # -- what is reported --------------------------------------------------------------------

    def _note(self, allocator: Allocator, device: int, change: int, buffer: int, iteration: int) -> None:
        a = allocator
        now = self.engine.now_ns
        self.log.extend((now, device, change, a.in_use, a.requested, a.reserved, buffer, iteration))

    def columns(self) -> dict[str, IntArray]:
        """Return the log: one row per allocation (change > 0) or free (change < 0), in order."""
        table = np.array(self.log, dtype=np.int64).reshape(-1, len(_COLUMNS)).T
        columns = dict(zip(_COLUMNS, table, strict=True))
        columns["tensor"] = np.array(self.tensor_of, dtype=np.int64)[columns["tensor"]]
        beside = np.array(self.apart, dtype=np.int64)[columns["device"]]
        beside[: self.loaded] = 0  # there the parameters were still being laid down
        for name in ("in_use", "requested", "reserved"):
            columns[name] += beside
        return columns
