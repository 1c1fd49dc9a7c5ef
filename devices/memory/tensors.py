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

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from devices.memory.base import Allocator, Block
from devices.memory.buffers import Buffers, make_buffers
from devices.memory.counted import CountedAllocator
from devices.memory.events import MemoryEvent
from devices.memory.make import make_allocator
from devices.memory.oom import largest_holders, out_of_memory
from devices.memory.spec import MemorySpec
from sim.engine import State
from sim.errors import InputError, OutOfMemoryError
from sim.graph import UNSET, IntArray
from sim.job import Job
from sim.model import WAIT, Task
from sim.transfers import Flow, make_flow
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
        self.uses = self.buffers.uses(job.iterations)
        self.specs = [specs.get(device.name, MemorySpec()) for device in machine.devices]
        self.allocators: list[Allocator] = [
            CountedAllocator(device.memory_bytes, name=device.name)
            if spec.allocator == "planned"
            else make_allocator(spec.allocator, device.memory_bytes, name=device.name, **spec.options)
            for device, spec in zip(machine.devices, self.specs, strict=True)
        ]
        self.apart = [0] * len(machine.devices)  # bytes that lie beside a static plan
        self.blocks: dict[tuple[int, int], Block] = {}
        self.granted: set[int] = set()
        self.synchronising: dict[int, int] = {}  # task → cost: granted, and waiting for an idle device
        self.outstanding = [0] * len(machine.devices)  # tasks issued that have not ended
        self.tokens: dict[int, list[tuple[Allocator, int]]] = defaultdict(list)
        self.last_on_stream: dict[int, Task] = {}
        self.n_ops = engine.flow.n_ops
        # Ops whose reads count when they are issued: the order of streams protects what they read.
        self.launched = [self.at_issue and not executed for executed in engine.executed]
        self.launched += [False] * (engine.flow.n_nodes - self.n_ops)
        self.tensor_of = [*range(job.graph.n_tensors), *engine.flow.tensor.tolist()]  # what a buffer holds
        self.log: list[tuple[int, ...]] = []
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
            self._note(device, nbytes, tensor, UNSET)
        for device, spec in enumerate(self.specs):
            if spec.allocator != "planned":
                continue
            beside = self.allocators[device]
            events = _events(self.buffers, self.job, self.flow, device)
            self.apart[device] = beside.in_use
            self.allocators[device] = make_allocator(
                "planned", beside.memory, name=beside.name, events=events, **spec.options
            )

    def _refuse_impossible(self) -> None:
        for buffers in self.buffers.writes:
            for buffer in buffers:
                allocator = self.allocators[self.buffers.device[buffer]]
                nbytes = self.buffers.nbytes[buffer]
                if not allocator.fits_empty(nbytes, 0, self._owner(buffer)):
                    raise out_of_memory(allocator, nbytes, owner=self._owner(buffer), where="before time 0")

    def _owner(self, buffer: int) -> str:
        return self.buffers.name(buffer, self.job, self.flow)

    # -- sim.engine.Memory -------------------------------------------------------------------

    def acquire(self, task: Task) -> int:
        """Take the outputs of `task`; see `sim.engine.Memory`."""
        device = self._device(task)
        if task.id in self.granted:
            if task.id not in self.synchronising:
                return 0
            if self.outstanding[device]:
                return WAIT
            self.outstanding[device] += 1
            return self.synchronising.pop(task.id)
        allocator, spec = self.allocators[device], self.specs[device]
        before = (allocator.device_mallocs, allocator.device_frees, allocator.synchronisations)
        stream = self._stream(task)
        taken: list[int] = []
        for buffer in self.buffers.writes[task.op]:
            nbytes = self.buffers.nbytes[buffer]
            block = allocator.try_alloc(nbytes, stream, self._owner(buffer))
            if block is None:
                for other in taken:
                    allocator.free(self.blocks.pop((task.iteration, other)))
                if self.waits:
                    return WAIT
                raise self._oom(allocator, nbytes, stream, buffer)
            self.blocks[task.iteration, buffer] = block
            taken.append(buffer)
        self.granted.add(task.id)
        for buffer in taken:
            nbytes = self.blocks[task.iteration, buffer].nbytes
            self._note(device, nbytes, self.tensor_of[buffer], task.iteration)
        launched = self.launched[task.op]
        if launched:
            self._read(task, stream)
            self.last_on_stream[stream] = task
        mallocs, frees, synchronised = (
            now - then
            for now, then in zip(
                (allocator.device_mallocs, allocator.device_frees, allocator.synchronisations),
                before,
                strict=True,
            )
        )
        cost = mallocs * spec.malloc_ns + frees * spec.free_ns + synchronised * spec.synchronise_ns
        if synchronised and self.outstanding[device]:
            self.synchronising[task.id] = cost
            return WAIT
        if launched:
            self.outstanding[device] += 1
        return cost

    def release(self, task: Task) -> bool:
        """`task` ended: free what nobody reads any more; return whether anything became free."""
        freed = bool(self.synchronising)
        launched = self.launched[task.op]
        if launched:
            self.outstanding[self._device(task)] -= 1
        for allocator, token in self.tokens.pop(task.id, ()):
            allocator.event_done(token)
            freed = True
        if launched:
            return freed
        return self._read(task, self._stream(task)) or freed

    def lacks(self, task: Task) -> str:
        """Say what `task` waits for; see `sim.engine.Memory`."""
        allocator = self.allocators[self._device(task)]
        need = sum(self.buffers.nbytes[buffer] for buffer in self.buffers.writes[task.op])
        asked, held = (format_bytes(n, iec=True) for n in (need, allocator.in_use))
        limit = format_bytes(allocator.limit, iec=True)
        holders = "; ".join(largest_holders(list(allocator.spans())))
        return f"memory: {asked} on {allocator.name}, of whose {limit} {held} are in use by {holders}"

    # -- lifetimes ---------------------------------------------------------------------------

    def _read(self, task: Task, stream: int) -> bool:
        """Count `task`'s reads, and its own outputs that nobody reads; free what is done with."""
        freed = False
        for buffer, distance in self.buffers.reads[task.op]:
            iteration = task.iteration - distance
            if iteration < 0:
                continue
            if self.launched[task.op]:
                device = self.buffers.device[buffer]
                self.allocators[device].record_use(self.blocks[iteration, buffer], stream)
            self.uses[iteration][buffer] -= 1
            if not self.uses[iteration][buffer]:
                self._free(iteration, buffer, task)
                freed = True
        for buffer in self.buffers.writes[task.op]:
            if not self.uses[task.iteration][buffer] and (task.iteration, buffer) in self.blocks:
                self._free(task.iteration, buffer, task)
                freed = True
        return freed

    def _free(self, iteration: int, buffer: int, task: Task) -> None:
        device = self.buffers.device[buffer]
        allocator = self.allocators[device]
        block = self.blocks.pop((iteration, buffer))
        for token, stream in allocator.free(block):
            last = self.last_on_stream.get(stream, task)
            last = task if stream == self._stream(task) else last
            if last.end_ns >= 0:
                allocator.event_done(token)
            else:
                self.tokens[last.id].append((allocator, token))
        self._note(device, -block.nbytes, self.tensor_of[buffer], iteration)

    def _device(self, task: Task) -> int:
        return self.engine.device_of[task.op] if task.op < self.n_ops else self._there(task)

    def _there(self, transfer: Task) -> int:
        return int(self.flow.destination[transfer.op - self.n_ops])

    def _stream(self, task: Task) -> int:
        if task.op >= self.n_ops or not self.engine.stream_of:
            return 0
        return self.engine.stream_of[task.op]

    def _oom(self, allocator: Allocator, nbytes: int, stream: int, buffer: int) -> OutOfMemoryError:
        where = f"at {format_duration(self.engine.now_ns)}"
        return out_of_memory(allocator, nbytes, stream=stream, owner=self._owner(buffer), where=where)

    # -- what is reported --------------------------------------------------------------------

    def _note(self, device: int, change: int, tensor: int, iteration: int) -> None:
        allocator, apart = self.allocators[device], self.apart[device]
        in_use, reserved = allocator.in_use + apart, allocator.reserved + apart
        requested = allocator.requested + apart
        now = self.engine.now_ns
        self.log.append((now, device, change, in_use, requested, reserved, tensor, iteration))

    def columns(self) -> dict[str, IntArray]:
        """Return the log: one row per allocation (change > 0) or free (change < 0), in order."""
        table = np.array(self.log, dtype=np.int64).reshape(-1, len(_COLUMNS)).T
        return dict(zip(_COLUMNS, table, strict=True))


def program_events(job: Job, device: int, flow: Flow | None = None) -> list[MemoryEvent]:
    """Return what a device's memory sees when its ops run strictly in program order.

    This is what a static planner plans: an op's outputs are taken before its inputs are released.

    Parameters
    ----------
    job : Job
    device : int
        Index of the device.
    flow : Flow, optional
        The job's flow, when it is there already.
    """
    flow = flow or make_flow(job)
    buffers = make_buffers(job, flow)
    return list(_events(buffers, job, flow, device))


def _events(buffers: Buffers, job: Job, flow: Flow, device: int) -> list[MemoryEvent]:
    left = buffers.uses(1)[0]
    events: list[MemoryEvent] = []
    order = [op for op in job.order.tolist() if job.device_of[op] == device]
    for op in order:
        for b in buffers.writes[op]:
            events.append(MemoryEvent("alloc", buffers.name(b, job, flow), buffers.nbytes[b]))
        for b, distance in buffers.reads[op]:
            if distance == 0 and buffers.device[b] == device:
                left[b] -= 1
                if not left[b]:
                    events.append(MemoryEvent("free", buffers.name(b, job, flow)))
        for b in buffers.writes[op]:
            if not left[b]:
                events.append(MemoryEvent("free", buffers.name(b, job, flow)))
    return events
