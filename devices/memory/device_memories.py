"""The memories of a job's devices before time 0: their allocators, and what lies there from the beginning."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np

from devices.memory.allocation_log import MemoryLog, Recorder
from devices.memory.allocator import Allocator
from devices.memory.allocators.counted import CountedAllocator
from devices.memory.buffers import events_in_order, make_buffers
from devices.memory.memory_event import MemoryEvent
from devices.memory.registry import MemorySpec, make_allocator
from sim.base.errors import InputError
from sim.base.units import format_bytes
from sim.graph.frames import has_control_flow
from sim.job.job import Job
from sim.job.transfers import Flow

Recordings = dict[str, list[MemoryEvent]]
"""What was asked of the allocator of each device, by its name."""

PLAN_NEEDS_ORDER: Final = (
    "a planned allocator has to know before time 0 which ops run and in which order, and with control flow "
    "the outcomes of conditions and the trips of loops decide that; choose an allocator that serves each "
    "tensor as it comes: pool, bfc, caching, counted"
)

MOST_BYTES: Final = 1 << 60
"""More, rounded up and doubled as allocators do, would not be certain to fit 64 bits."""


class DeviceMemories:
    """What a run needs to know of the memories of its devices, whatever computes it.

    Parameters
    ----------
    job : Job
    flow : Flow
    specs : mapping of str to MemorySpec
    lifetime : str
        See `devices.memory.run_memory`.
    recordings : dict of str to list of MemoryEvent, optional
        Where to write down what is asked of the allocator of each device, by its name.

    Attributes
    ----------
    allocators : list of Allocator
        One a device, with what is there from the beginning.
    buffers : Buffers
    stream : (n_nodes,) array of int64
        Stream for which an op, or a transfer, takes memory.
    reads_at_issue : (n_nodes,) array of bool
        Whether the reads of a node count when it is issued, because the order of streams protects them.
    reserved : list of int
        Bytes that each allocator has reserved.
    log : MemoryLog

    Raises
    ------
    InputError
        A device that there is not; tensors that are too large to be counted; a plan for a graph with control
        flow.
    OutOfMemoryError
        What could not be had on an empty device, or is there from the beginning and does not fit.
    """

    def __init__(
        self,
        job: Job,
        flow: Flow,
        specs: Mapping[str, MemorySpec],
        lifetime: str,
        recordings: Recordings | None = None,
    ) -> None:
        machine = job.machine
        for name in specs:
            machine.device_index(name)
        self.job, self.flow, self.at_issue = job, flow, lifetime == "issue"
        self.specs = [specs.get(device.name, MemorySpec()) for device in machine.devices]
        self.allocators: list[Allocator] = [
            CountedAllocator(device.memory_bytes, name=device.name)
            if spec.allocator == "planned"
            else make_allocator(spec.allocator, device.memory_bytes, name=device.name, **spec.options)
            for device, spec in zip(machine.devices, self.specs, strict=True)
        ]
        self._recordings = recordings
        self.allocators = [self._prepared(d, allocator) for d, allocator in enumerate(self.allocators)]
        self.apart = [0] * len(machine.devices)  # bytes that lie beside a static plan
        self.buffers = buffers = make_buffers(job, flow)
        self.n_buffers = len(buffers.nbytes)
        if (total := sum(buffers.nbytes.tolist())) > MOST_BYTES:
            raise InputError(
                f"the tensors of one iteration have {format_bytes(total)} together; allocators can follow at "
                f"most {format_bytes(MOST_BYTES, iec=True)}"
            )
        first = np.array(machine.first_stream, np.int64)
        streams = job.stream_of if job.launched.any() else first[job.device_of]
        self.stream = np.concatenate((streams, first[flow.destination]))
        self.reads_at_issue = np.concatenate((self.at_issue & job.launched, np.zeros(len(flow.tensor), bool)))
        self.reserved = [allocator.reserved for allocator in self.allocators]
        tensors = np.concatenate((np.arange(job.graph.n_tensors), flow.tensor))
        self.log = MemoryLog(buffers.nbytes, buffers.device, tensors, self.reserved)
        dynamic = has_control_flow(job.graph)
        if dynamic and any(spec.allocator == "planned" for spec in self.specs):
            raise InputError(PLAN_NEEDS_ORDER)
        self._load()
        if not dynamic:  # else an op that cannot have its memory may never run
            self._refuse_impossible()

    @cached_property
    def names(self) -> list[str]:
        """What each buffer is called."""
        return self.buffers.names(self.job, self.flow)

    def reserve(self, device: int, row: int) -> None:
        """Put down that from a row of the log on the allocator of `device` holds more or less than before."""
        self.reserved[device] = held = self.allocators[device].reserved
        self.log.mark(row, device, held + self.apart[device])

    def _prepared(self, device: int, allocator: Allocator) -> Allocator:
        """Return the allocator of a device; it writes down what is asked of it, if somebody wants to know."""
        if self._recordings is not None:
            allocator = Recorder(allocator, self._recordings.setdefault(allocator.name, []))
        allocator.first_stream = self.job.machine.first_stream[device]
        return allocator

    def _load(self) -> None:
        """Take the memory of what is there from the beginning; then plan for the rest, where that is asked.

        It was made on the first stream of its device. A static plan is for what is computed: parameters and
        inputs lie beside it, as in TVM.
        """
        for device, nbytes, tensor in self.buffers.resident:
            allocator, name = self.allocators[device], self.job.graph.external_names[tensor]
            stream = allocator.first_stream
            block = allocator.take(nbytes, stream, name)
            if block is None:
                raise allocator.out_of_memory(nbytes, stream=stream, owner=name, where="before time 0")
            self.log.load(device, block.nbytes, tensor)
            self.reserve(device, -1)
        for device, spec in enumerate(self.specs):
            if spec.allocator != "planned":
                continue
            beside = self.allocators[device]
            relay = spec.options.get("planner") == "relay"
            events = events_in_order(self.buffers, self.job, self.flow, device, unread_first=relay)
            self.apart[device] = beside.in_use
            planned = make_allocator(
                "planned", beside.memory, name=beside.name, events=events, **spec.options
            )
            self.allocators[device] = self._prepared(device, planned)
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
                    size = int(self.buffers.nbytes[buffer])
                    name, stream = self.names[buffer], allocator.first_stream
                    if not allocator.fits_empty(size, stream, name):
                        raise allocator.out_of_memory(size, stream=stream, owner=name, where="before time 0")
