"""The memories of a job's devices before time 0: their allocators and initial contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from devices.memory.allocation_log import MemoryLog, Recording
from devices.memory.allocator import Allocator
from devices.memory.counted import CountedAllocator
from devices.memory.registry import MemorySpec, make_allocator
from devices.memory.trace_readers import MemoryEvent
from sim.base.arrays import UNSET, BoolArray, Csr, IntArray, by_first_use, group_pairs
from sim.base.errors import InputError
from sim.base.units import format_bytes
from sim.graph.frames import has_control_flow
from sim.graph.graph import Graph, Role
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.graph.views import forwarding, storage_of
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.readiness.eligibility import non_strict_ops
from sim.readiness.rendezvous import transfers_of

# ----------------------------------------------------------------------------------------------------------
# Which buffers a job needs, who writes them, and how often each is read.
#
# A *buffer* is a tensor on a device: the producer's own, or the copy that a transfer makes. The table
# is made once, before time 0; `devices.memory.run_memory` lets it live.
#
# ::
#
#     gpu0: a ──► [a on gpu0] ──► b                 buffers:  0..n_tensors-1   tensors where they are made
#                      │                                      n_tensors + t    the copy transfer t makes
#     gpu1:            └─transfer─► [a on gpu1] ──► c
#
# A view (`sim.graph.views`) has no buffer: who reads it reads the buffer that it is a view of. What a
# non-strict op reads (`sim.readiness.eligibility`) counts as read by its maker, too, so that it stays until
# it is made and read. What a switch or another op of control flow passes on (`sim.graph.views`) has no
# buffer, either; tokens say which ops read it (`devices.memory.run_memory`).
#
# A buffer of one iteration has the key ``iteration * n_buffers + buffer``, and a read at distance d the
# offset ``buffer - d * n_buffers`` to the reader's iteration, whatever that is (as edges have in
# `sim.readiness.counters`). A key below 0 is of an iteration before the first: nothing is read.


class Buffers(NamedTuple):
    """Buffers of one iteration, and the nodes (ops, then transfers) that write and read them.

    Attributes
    ----------
    nbytes, device : (n_buffers,) int64 arrays
        Size, and index of the device where it lies (-1: an external tensor that lies everywhere).
    writes, reads : Csr, one row per node
        Buffers it makes; offsets of those it reads (see the module), a tensor read twice once.
    resident : list of (device, nbytes, tensor)
        Parameters and graph inputs, once for each device that reads them.
    offered : dict of int to int
        Send → the buffer that it offers to a Recv by key, where no transfer reads it.
    """

    nbytes: IntArray
    device: IntArray
    writes: Csr
    reads: Csr
    resident: list[tuple[int, int, int]]
    offered: dict[int, int]

    def uses(self, iterations: int) -> IntArray:
        """Return how many tasks read each buffer, Recvs by key among them, as (iterations, n_buffers)."""
        n = len(self.nbytes)
        distance = -(self.reads.indices // n)
        read = self.reads.indices + distance * n
        remaining = range(iterations, 0, -1)  # iterations from this one to the last
        offers = np.bincount(list(self.offered.values()), minlength=n)
        return np.array([offers + np.bincount(read[distance < after], minlength=n) for after in remaining])

    def writers(self, some: BoolArray) -> dict[int, list[int]]:
        """Return node → which of the buffers chosen by `some` it makes, for nodes that make any."""
        chosen = some[self.writes.indices]
        writers = self.writes.rows()[chosen].tolist()
        return group_pairs(zip(writers, self.writes.indices[chosen].tolist(), strict=True))

    def names(self, job: Job, flow: Flow) -> list[str]:
        """Return what every buffer is called: its tensor, and for a copy where it lies."""
        graph, devices = job.graph, job.machine.devices
        names = graph.tensor_names()
        copies = zip(flow.tensor.tolist(), flow.destination.tolist(), strict=True)
        return [*names, *(f"{names[tensor]} on {devices[device].name}" for tensor, device in copies)]


def make_buffers(job: Job, flow: Flow) -> Buffers:
    """Return the buffers of `job`; tensors of 0 bytes need none: no op writes or reads them."""
    graph = job.graph
    n, n_tensors, n_transfers = len(graph), graph.n_tensors, len(flow.tensor)
    producer = graph.tensor_producer
    nbytes: IntArray = np.concatenate((graph.tensor_nbytes, flow.nbytes))
    home: IntArray = np.where(producer >= 0, job.device_of[producer], -1)
    external = np.concatenate((producer < 0, np.zeros(n_transfers, bool)))
    transfer = np.arange(n_transfers)

    made_by = np.concatenate((graph.outputs.rows(), n + transfer))
    outputs = np.concatenate((graph.outputs.indices, n_tensors + transfer))
    reader = graph.inputs.rows()
    storage = _own_storage(job, flow, len(nbytes))
    read = _copies(flow, len(job.machine.devices), graph.inputs.indices, job.device_of[reader], n_tensors)
    read, sent = storage[read], storage[flow.tensor]
    written = (nbytes[outputs] > 0) & (storage[outputs] == outputs)
    written[: len(graph.outputs.indices)] &= ~forwarding(graph)[graph.outputs.indices]

    loaded = external[read]
    resident = dict.fromkeys(zip(read[loaded].tolist(), job.device_of[reader[loaded]].tolist(), strict=True))
    fed = external[flow.tensor] & (graph.tensor_role[flow.tensor] == Role.INPUT)
    resident |= dict.fromkeys(zip(flow.tensor[fed].tolist(), flow.source[fed].tolist(), strict=True))

    reader, read = np.concatenate((reader, n + transfer)), np.concatenate((read, sent))
    distance = np.concatenate((graph.input_distance, np.zeros(n_transfers, np.int64)))
    offset = read - distance * len(nbytes)
    counts = np.flatnonzero(~external[read] & (nbytes[read] > 0))
    different = reader[counts] * len(nbytes) * (1 + int(distance.max(initial=0))) + offset[counts]
    counts = counts[np.sort(by_first_use(different)[2])]
    reads = (reader[counts], offset[counts])
    loose = np.append(non_strict_ops(graph), np.zeros(n_transfers, bool))
    if loose.any():  # who does not wait for it may have ended before it is there: its maker holds it, too
        loose_reads = np.unique(read[counts[loose[reader[counts]]]])
        maker = np.zeros(len(nbytes), np.int64)
        maker[outputs] = made_by
        reads = (np.append(reads[0], maker[loose_reads]), np.append(reads[1], loose_reads))
    return Buffers(
        nbytes,
        np.concatenate((home, flow.destination)),
        Csr.group(made_by[written], outputs[written], n + n_transfers),
        Csr.group(*reads, n + n_transfers),
        [(device, int(nbytes[tensor]), tensor) for tensor, device in resident if nbytes[tensor]],
        _offered_buffers(job, flow, storage, external | (nbytes == 0)),
    )


def _offered_buffers(job: Job, flow: Flow, storage: IntArray, without: BoolArray) -> dict[int, int]:
    """Return Send → the buffer that it offers, but for those `without` one, or with a transfer."""
    sends = rendezvous_keys(job.graph).sends
    met = sorted(sends.keys() - transfers_of(flow, sends).keys())
    offered = zip(met, storage[job.graph.first_output[met]].tolist(), strict=True)
    return {send: buffer for send, buffer in offered if not without[buffer]}


def _copies(flow: Flow, n_devices: int, tensor: IntArray, device: IntArray, n_tensors: int) -> IntArray:
    """Return the buffer of each tensor on a device: the copy a transfer makes there, or its own."""
    if not len(flow.tensor):
        return tensor
    key, keys = tensor * n_devices + device, flow.tensor * n_devices + flow.destination
    order = np.argsort(keys)
    index = order[np.minimum(np.searchsorted(keys, key, sorter=order), len(keys) - 1)]
    return np.where(keys[index] == key, n_tensors + index, tensor)


def _own_storage(job: Job, flow: Flow, n_buffers: int) -> IntArray:
    """Return, per buffer, the buffer whose bytes it really is (a view: another)."""
    graph, storage = job.graph, np.arange(n_buffers)
    shared = storage_of(graph)
    if (shared < 0).all():
        return storage
    first = graph.first_output  # output 0 of each op
    ops = graph.topological_order
    ops = ops[shared[first[ops]] >= 0]
    base = _copies(flow, len(job.machine.devices), shared[first[ops]], job.device_of[ops], graph.n_tensors)
    for view, tensor in zip(first[ops].tolist(), base.tolist(), strict=True):  # in order: views of views
        storage[view] = storage[tensor]
    return storage


# ----------------------------------------------------------------------------------------------------------
# The input of a static planner: what a device's memory sees when its ops run in program order.
#
# Copies that arrive from other devices, and those that leave, have no place in the program. What is certain
# is which ops of this device are over before a copy can begin, and which cannot begin before it is over;
# between the two it may happen at any time, and the plan holds whenever it does:
#
#     gpu0    a      b      c      d          x is made on gpu1 from a, and d reads it here
#             │             ┌──────┴
#             └► gpu1: x ───┘                 planned: its copy lives from the end of a to the end of d


def events_in_order(
    buffers: Buffers, job: Job, flow: Flow, device: int, *, unread_first: bool = False
) -> list[MemoryEvent]:
    """Return what a device's memory sees when its ops run strictly in program order.

    This is what a static planner plans: an op's outputs are taken before its inputs are released. What an op
    of kind ``retval`` reads is what the program returns. What is read d iterations later has d + 1 places for
    good, which iterations take in turn.

    Parameters
    ----------
    buffers : Buffers
    job : Job
    flow : Flow
    device : int
        Index of the device.
    unread_first : bool
        Whether outputs that no op reads are released before the inputs, or after them.
    """
    uses = buffers.uses(1)[0].tolist()
    n = len(uses)
    later: dict[int, int] = {}
    for offset in buffers.reads.indices[buffers.reads.indices < 0].tolist():
        b = offset % n
        later[b] = max(later.get(b, 0), -(offset // n))
        uses[b] = -1  # never dropped
    name = buffers.names(job, flow)
    program = job.order[job.device_of[job.order] == device].tolist()
    arriving, leaving = _planned_copies(job, flow, program)
    events: list[MemoryEvent] = []
    dtypes = _dtypes(job.graph, flow)
    retvals = [op for op in program if job.graph.kind(op) == "retval"]
    returned = {b for op in retvals for b in buffers.reads.row(op).tolist()}

    def make(node: int) -> list[int]:
        outputs = [b for b in buffers.writes.row(node).tolist() if buffers.device[b] == device]
        take(b for b in outputs if b not in later)
        return outputs

    def take(new: Iterable[int]) -> None:
        for b in new:
            events.append(MemoryEvent("alloc", name[b], int(buffers.nbytes[b]), 0, dtypes[b], b in returned))

    def read(node: int) -> list[int]:
        """Return the buffers that no op reads after it."""
        read = [b for b in buffers.reads.row(node).tolist() if b >= 0]  # below 0: of an earlier iteration
        local = [b for b in read if buffers.device[b] == device]
        for b in local:
            uses[b] -= 1
        return [b for b in local if not uses[b]]

    def drop(unread: Sequence[int]) -> None:
        events.extend(MemoryEvent("free", name[b]) for b in unread)

    for b, distance in later.items():
        if buffers.device[b] == device:
            take([b] * (distance + 1))
    for copy in arriving.get(-1, ()):
        make(copy)
    for position, op in enumerate(program):
        for copy in leaving.get(position, ()):
            drop(read(copy))
        unread = [b for b in make(op) if not uses[b]]
        last_read = read(op)
        drop(unread + last_read if unread_first else last_read + unread)
        for copy in arriving.get(position, ()):
            make(copy)
    return events


def _dtypes(graph: Graph, flow: Flow) -> list[str]:
    """Return the data type of each buffer: that of the op that makes its tensor, empty if not known."""
    producer = graph.tensor_producer[np.concatenate((np.arange(graph.n_tensors), flow.tensor))]
    codes = np.where(producer >= 0, graph.dtype_code[producer], UNSET).tolist()
    return ["" if code == UNSET else graph.dtypes[code] for code in codes]


def _planned_copies(
    job: Job, flow: Flow, program: Sequence[int]
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return, by place in `program`, the transfers that may begin after it, and those over before it.

    Transfers of the whole machine are among them; those of other devices touch nothing here.
    """
    same_iteration = flow.distance == 0
    producers = Csr.group(flow.consumer[same_iteration], flow.producer[same_iteration], flow.n_nodes).lists()
    consumers = Csr.group(flow.producer[same_iteration], flow.consumer[same_iteration], flow.n_nodes).lists()
    order = job.order.tolist()
    n_ops = flow.n_ops
    position = {op: k for k, op in enumerate(program)}

    def furthest(
        ops: Sequence[int], neighbours: list[list[int]], pick: Callable[..., int], none: int
    ) -> list[int]:
        """Return the place that `pick` takes of each node and all that `neighbours` lead to."""
        bounds = [none] * flow.n_nodes
        for op in ops:
            for copy in neighbours[op]:
                if copy >= n_ops:
                    bounds[copy] = pick([bounds[end] for end in neighbours[copy]], default=none)
            bounds[op] = pick(position.get(op, none), none, *[bounds[node] for node in neighbours[op]])
        return bounds

    after = furthest(order, producers, max, -1)
    before = furthest(order[::-1], consumers, min, len(program))
    transfers = range(n_ops, flow.n_nodes)
    return group_pairs((after[t], t) for t in transfers), group_pairs((before[t], t) for t in transfers)


Recordings = dict[str, list[MemoryEvent]]
"""What was asked of the allocator of each device, by its name."""

PLAN_NEEDS_ORDER: Final = (
    "a planned allocator has to know before time 0 which ops run and in which order, and with control flow "
    "the outcomes of conditions and the trips of loops decide that; choose an allocator that serves each "
    "tensor as it comes: pool, bfc, caching, counted"
)

PLAN_NEEDS_PROGRAM: Final = (
    "a planned allocator gives each tensor its place in program order, and {} takes ops in another; choose "
    "in-order, or an allocator that serves each tensor as it comes: pool, bfc, caching, counted"
)

PLAN_NEEDS_STARTS: Final = (
    "a host that launches ahead takes places of a planned allocator before copies between devices have come "
    "or left; with lifetime: execution all take their places when they start"
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
        self.allocators = [self._prepare(d, allocator) for d, allocator in enumerate(self.allocators)]
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
        self.reserved[device] = reserved = self.allocators[device].reserved
        self.log.mark(row, device, reserved + self.apart[device])

    def _prepare(self, device: int, allocator: Allocator) -> Allocator:
        """Return the allocator of a device; it records the requests, if they are wanted."""
        if self._recordings is not None:
            allocator.recording = Recording(self._recordings.setdefault(allocator.name, []))
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
            plan = make_allocator("planned", beside.memory, name=beside.name, events=events, **spec.options)
            self.allocators[device] = self._prepare(device, plan)
            self.reserved[device] = -1  # what the plan reserves counts from its first row on

    def _refuse_impossible(self) -> None:
        """Refuse what would not even fit into an empty device.

        Of each device its largest buffer decides, unless it matters who asks.
        """
        written = self.buffers.writes.indices
        nbytes, homes = self.buffers.nbytes[written], self.buffers.device[written]
        for device, allocator in enumerate(self.allocators):
            local = np.flatnonzero(homes == device)
            if len(local) and (allocator.limit is not None or allocator.by_owner):
                suspects = local if allocator.by_owner else local[[nbytes[local].argmax()]]
                for buffer in written[suspects].tolist():
                    size = int(self.buffers.nbytes[buffer])
                    name, stream = self.names[buffer], allocator.first_stream
                    if not allocator.fits_empty(size, stream, name):
                        raise allocator.out_of_memory(size, stream=stream, owner=name, where="before time 0")
