"""Run a training step: build its graph and machine, and measure how long it takes.

::

    pp > 1, or no FSDP   one device per pipeline rank, its program from the schedule  (scenarios.builders)
    FSDP, ZeRO-3         one device with two streams                        (scenarios.builders.train)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from policies.issue.program_order import InOrder
from policies.parallel.fsdp2 import FullyShard, FullyShardHooks
from policies.parallel.training_step import ROOT
from policies.parallel.zero import Coordinator, Limits
from policies.pipeline.pipeline_schedule import Schedule
from scenarios.builders.pipeline_graph import (
    AsWritten,
    CommunicationStream,
    crossings,
    pipeline_graph,
    plain_machine,
    rank_name,
)
from scenarios.builders.pipeline_stage import BESIDE, HOST, RESIDENT, resident_tensors
from scenarios.builders.train.kernels import Spent
from scenarios.builders.train.memory import CheckpointUnit, StageMemory, StagePart, stage_memory
from scenarios.builders.train.training import Training
from sim import Graph, GraphBuilder, Machine, simulate
from sim.base.arrays import UNSET
from sim.base.intervals import Cover, union
from sim.base.units import round_half_up
from sim.explain.communication import INSIDE
from sim.graph.builder import Ref
from sim.trace import Trace

# ----------------------------------------------------------------------------------------------------------
# Common to steps that are written layer by layer: ops of one rank on two streams.
#
# Outputs are those of a pipeline's ops (`scenarios.builders.pipeline_stage`): a forward's third is what it
# keeps, a backward's first are gradients to scatter, and the last is an op's working memory.


class _Block(NamedTuple):
    """Computation between messages: its time by kind, and the sizes of its outputs."""

    name: str
    kind: str
    spent: Spent
    outputs: tuple[int, ...]


class StepWriter(ABC):
    """Writes the ops of a step.

    Attributes
    ----------
    training : Training
    builder : GraphBuilder
    k : int
        The micro-batch that is being written; -1 after the last one.
    after : list of int
        Ops that the optimizer waits for.
    unread : list of int
        Resident tensors of the rank that no op has read yet.
    """

    def __init__(self, training: Training) -> None:
        self.training, self.builder = training, GraphBuilder(training.layout.sharding)
        self.stage = training.each_stage[0]
        self.device, self.k = rank_name(0), 0
        self.after: list[int] = []
        self.unread: list[int] = []
        self.gather_ns, self.scatter_ns = cache(training.gather_ns), cache(training.scatter_ns)

    def declare_resident(self, buffers: int = 0) -> None:
        """Declare the resident tensors of the rank, including `buffers` bytes of buffers."""
        (plain,) = self.training.buffers(self.training.schedule)
        sizes = {**self.training.resident(self.stage), "buffers": plain + buffers}
        self.unread = resident_tensors(self.builder, [sizes.get(key, 0) for key in RESIDENT], 0, self.device)

    def memory(self, unit: CheckpointUnit) -> StageMemory:
        """Return the memory that a micro-batch needs for a unit."""
        return stage_memory((unit,), selective=self.training.selective)

    def waits(self, unit: CheckpointUnit) -> tuple[float, float]:
        """Return a unit's wait for the host, forward and backward: an even share of the stage's."""
        layers = sum(bool(part.kind) for part in self.stage.units)
        forward, backward = self.stage.forward.host, self.stage.backward.host
        return (forward / layers, backward / layers) if unit.kind else (0.0, 0.0)

    def op(
        self,
        name: str,
        kind: str,
        ns: float,
        after: Sequence[Ref],
        phase: str,
        exposed: float = 0.0,
        *,
        reads: Sequence[int] = (),
        outputs: Sequence[int] = (0,),
    ) -> int:
        """Write an op of the current micro-batch; `BESIDE` runs on the second stream, `HOST` on the third.

        `exposed` is the part of its time that is exposed communication.
        """
        tensors, self.unread = [*self.unread, *reads], []
        return self.builder.append(
            f"{name}.{self.k}",
            kind=kind,
            inputs=tensors,
            outputs=outputs,
            after=after,
            duration_ns=round_half_up(ns),
            device=self.device,
            micro_batch=self.k if self.k >= 0 else None,
            phase=phase,
            attributes={INSIDE: round_half_up(exposed)} if exposed else None,
        )

    def slot(
        self, block: _Block, messages: Sequence[float], after: Sequence[Ref], phase: str, reads: Sequence[int]
    ) -> int:
        """Write kernels beside which messages pass; the part of a message that is not hidden slows them."""
        slower = (1 - self.training.calibration.hiding) * min(block.spent.ns, sum(messages))
        ns, exposed = block.spent.ns + slower, block.spent.exposed + slower
        return self.op(block.name, block.kind, ns, after, phase, exposed, reads=reads, outputs=block.outputs)

    def gather(self, name: str, elements: int, after: Sequence[Ref], experts: int = 0) -> int:
        """Gather parameters: `elements` of them, and `experts` of experts."""
        wide = elements if name.startswith(ROOT) else 0
        outputs = (self.training.gathered_bytes(elements, wide) + self.training.gathered_bytes(experts),)
        ns = self.gather_ns(elements, experts, wide)
        return self.op(f"gather {name}", "all_gather", ns, after, BESIDE, outputs=outputs)

    def reduce(
        self, name: str, elements: int, after: Sequence[Ref], experts: int = 0, **memory: Sequence[int]
    ) -> float:
        """Scatter gradients and sum them over replicas; return how long that takes."""
        scatter, replicas = self.scatter_ns(elements, experts)
        last = self.op(f"scatter {name}", "reduce_scatter", scatter, after, BESIDE, 0.0, **memory)
        if replicas:  # on the stream of the scatter, so behind it; the host does not wait for that
            last = self.op(f"sum {name}", "all_reduce", replicas, after, BESIDE)
        self.after.append(last)
        return scatter + replicas

    @abstractmethod
    def micro_batch(self) -> None:
        """Write the forward and backward of a micro-batch."""

    def write(self) -> Graph:
        """Return the ops of a step on one rank, in the order in which its host issues them."""
        for k in range(self.training.micro_batches):
            self.k = k
            self.micro_batch()
        self.k = UNSET
        ns = self.training.optimizer_ns(self.stage)
        self.finish(self.op("optimizer", "optimizer", ns, self.after, "O"))
        return self.builder.build()

    def finish(self, optimizer: int) -> None:  # noqa: B027 - most steps end with their optimizer
        """Write the ops after the optimizer's step."""


# ----------------------------------------------------------------------------------------------------------
# A step under fully sharded data parallelism, as ops on two streams of one rank.
#
#     compute        E  F0 F1 F2 .. H  BH B2 B1 B0 E'  clip Adam
#     communication  AG0 AG1 AG2 .. AG2 AG1 RS2 AG0 RS1 RS0          one communicator, so one after the other
#
# Each layer is a module; embedding and head belong to the root. The hooks of the rewrite ``fsdp2`` decide
# what is gathered, after what, and when its gradients are reduced (`policies.parallel.fsdp2`). Copies in and
# out take no time of their own here: what waits for a copy out waits for the block before it. A message slows
# the block that follows the op it waits for, unless that block needs it. With HSDP the sums over the replicas
# follow each scatter.
#
# The saved data of the first layers can go to the host, layer by layer, each in a window of as many layers:
# two of four (Transformer Engine, pytorch/cpu_offload.py, ``AsyncDoubleBufferGroupOffloadHandler``):
#
#     compute        F0 F1 │ F2 F3 │ .. │ B3 B2 │ B1 B0      at │ it waits for the previous window's copy
#     copies           out 0   out 1      in 1    in 0


_MESSAGES: Final = ("gather", "scatter")


class _FsdpOrder(FullyShardHooks[int]):
    """What the host issues for a micro-batch: blocks (phase, module, number), and messages after a block."""

    def __init__(self, layers: Sequence[str]) -> None:
        super().__init__(FullyShard())
        self.names, self.blocks = [ROOT, *layers], 0
        self.issued: list[tuple[str, str, int]] = []
        self.pre_forward(ROOT)
        self.block("F", ROOT)
        for name in layers:
            self.pre_forward(name)
            self.block("F", name)
            self.leave_forward(name)
        self.turn(ROOT)
        self.block("head", ROOT)
        for name in reversed(layers):
            self.pre_backward(name)
            self.block("B", name)
            self.leave_backward(name)
        self.block("B", ROOT)
        self.leave_backward(ROOT)

    def block(self, phase: str, module: str) -> None:
        self.blocks += 1
        self.issued.append((phase, module, self.blocks))

    def all_gather(self, module: str, after: Sequence[int], *, backward: bool) -> int:
        """Gather a module."""
        self.issued.append(("gather", module, max(after, default=0)))
        return self.blocks

    def copy_out(self, module: str, gathered: int) -> int:
        """Take the gathered parameters."""
        return self.blocks

    def reduce(self, module: str) -> None:
        """Scatter the gradients of a module."""
        self.issued.append(("scatter", module, self.blocks))


class _FsdpWriter(StepWriter):
    def __init__(self, training: Training) -> None:
        super().__init__(training)
        first, *_, last = (training.timed_part(unit) for unit in self.stage.units)
        width, memories = training.parameter_bytes, (self.memory(first.units[0]), self.memory(last.units[0]))
        self.parameters: dict[str, tuple[int, int]] = {}
        """Parameters of each module: all but its experts', and its experts'."""
        self.shared = training.groups["eshard"].size > 1
        """Whether parameters of experts are gathered, too."""
        self.block: dict[tuple[str, str], _Block] = {}
        """Phase, module → its block."""
        for unit in self.stage.units:
            if unit.boundary:
                self.layer(unit.name.removeprefix("layer "), unit)
        self.order = _FsdpOrder([*self.parameters])
        root = self.stage.parameters - sum(sum(counts) for counts in self.parameters.values())
        self.parameters[ROOT] = root, 0
        head_outputs = width * last.parameters, max(memories[1].forward, memories[1].backward)
        word_outputs = width * (root - last.parameters), _backward(memories[0])
        head = last.forward.plus(last.backward)
        self.block["F", ROOT] = _Block("embedding", "embedding", first.forward, _forward(memories[0]))
        self.block["head", ROOT] = _Block("head", "head", head, head_outputs)
        self.block["B", ROOT] = _Block("embedding gradient", "embedding", first.backward, word_outputs)
        self.offloaded = [*self.parameters][: training.offload_layers]
        parts = np.array_split([*self.parameters][:-1], len(self.offloaded) or 1)
        self.windows = {str(part[-1]): i for i, part in enumerate(parts) if self.offloaded}
        """The last layer of each window → the number of the window and of the layer copied in it."""
        self.beside = self.passing()
        self.before: tuple[Ref, ...] = (("optimizer.-1", 1),)
        """The last block of the previous micro-batch; at first, the optimizer of the iteration before."""
        self.declare_resident()

    def layer(self, name: str, unit: CheckpointUnit) -> None:
        """Add the blocks of a layer."""
        part, memory = self.training.timed_part(unit), self.memory(unit)
        wait, wait_back = self.waits(unit)
        self.parameters[name] = part.parameters - part.expert_parameters, part.expert_parameters
        gathered = part.parameters if self.shared else part.parameters - part.expert_parameters
        backward = self.training.parameter_bytes * gathered, _backward(memory)
        self.block["F", name] = _Block(f"F{name}", "layer", part.forward.add_wait(wait), _forward(memory))
        self.block["B", name] = _Block(f"B{name}", "layer", part.backward.add_wait(wait_back), backward)

    def passing(self) -> list[list[float]]:
        """Return the times of the messages that pass beside each block, by block number."""
        issued = self.order.issued
        beside: list[list[float]] = [[] for _ in range(self.order.blocks + 2)]
        blocks = {number: (i, name) for i, (kind, name, number) in enumerate(issued) if kind not in _MESSAGES}
        for i, (kind, module, number) in enumerate(issued):
            follows, owner = blocks.get(number + 1, (0, ""))
            if kind in _MESSAGES and not (i < follows and owner == module):
                n = self.parameters[module]
                wide = n[0] if module == ROOT else 0
                ns = self.gather_ns(*n, wide) if kind == "gather" else sum(self.scatter_ns(*n))
                beside[number + 1].append(ns)
        return beside

    def micro_batch(self) -> None:
        """Write the forward and backward of a micro-batch."""
        done, gathered, saved = {0: self.before}, dict[str, int](), dict[str, int]()
        backwards: dict[str, list[int]] = {}
        copied, awaited = dict[int, int](), tuple[int, ...]()
        for action, module, number in self.order.issued:
            n, experts = self.parameters[module]
            if action == "gather":
                name = f"{module} again" if module in gathered else module
                op = self.gather(name, n, done[number], experts * self.shared)
                gathered[module] = self.builder.tensor(op)
            elif action == "scatter":  # after a copy to the type in which gradients are summed
                reads = [self.builder.tensor(op) for op in backwards[module]]
                wider = max(0, self.training.gradient_bytes - self.training.parameter_bytes)
                copy = (wider * (n + experts * self.shared),)
                self.reduce(module, n, backwards[module][-1:], experts, reads=reads, outputs=copy)
            else:
                window = self.windows.get(module)
                if action == "B" and window is not None:
                    awaited = (copied[window + 1],) if window + 1 in copied else ()
                    copied[window] = self.copy("in", window, saved, done[number - 1])
                reads = [gathered[module], *([saved[module]] if action == "B" else [])]
                phase = "F" if action == "F" else "B"
                op = self.slot(self.block[action, module], self.beside[number], awaited, phase, reads)
                done[number], awaited = (op,), ()
                if action == "F":
                    saved[module] = self.builder.tensor(op) + 2
                    following = 0 if module in self.offloaded[:1] else None if window is None else window + 1
                    if following is not None and following < len(self.offloaded):
                        copied[following] = self.copy("out", following, saved, (op,))
                    awaited = () if window is None else (copied[window],)
                else:
                    backwards.setdefault(module, []).append(op)
            if action == "head":  # no op waits twice for a copy to the host
                copied = {}
        self.before = done[self.order.blocks]

    def copy(self, way: str, window: int, saved: dict[str, int], after: Sequence[Ref]) -> int:
        """Copy a layer's saved data to the host, or back."""
        name = self.offloaded[window]
        nbytes = self.block["F", name].outputs[2]
        ns = self.training.calibration.copy_ns(nbytes)
        reads, outputs = ([saved[name]], (0,)) if way == "out" else ([], (nbytes,))
        op = self.op(f"copy {name} {way}", "copy", ns, after, HOST, reads=reads, outputs=outputs)
        if way == "in":
            saved[name] = self.builder.tensor(op)
        return op


def _forward(memory: StageMemory) -> tuple[int, int, int, int]:
    """Return the outputs of a forward: the third is what it keeps, the last its working memory."""
    return 0, 0, memory.saved, memory.forward - memory.saved


def _backward(memory: StageMemory) -> int:
    """Return the working memory of a backward, besides what its forward kept."""
    return memory.backward - memory.saved


# ----------------------------------------------------------------------------------------------------------
# A step under DeepSpeed's ZeRO-3, as ops on two streams of one rank.
#
#     communication   g0 c0    g1 c1   g2 c2           one communicator, so one after the other
#     compute              F0      F1      F2          the host waits before each, then gathers ahead
#
# Every product with weights is a module, as are embedding and head; ops between it and the next module run
# with it. A coordinator decides what is gathered when a module is entered, and what ahead
# (`policies.parallel.zero`): by default one product ahead, and none while more than
# 10⁹ elements are gathered. Recomputed layers enter their modules once more. c: the ranks' parts are
# copied together. The host waits for an idle device before it gathers, so that a gather overlaps only one
# module. Gradients fill buckets of 5·10⁸ elements; a bucket is scattered when the next gradient would
# not fit. Parameters of at most 10⁵ elements stay, and are gathered after the updates.
#
# Sources: DeepSpeed 0.3.16, deepspeed/runtime/zero/stage3.py (``fetch_sub_module``,
# ``prefetch_next_sub_modules``, ``reduce_independent_p_g_buckets_and_remove_grads``) and
# partition_parameters.py (``_allgather_param``: the host waits); the later partitioned_param_coordinator.py
# keeps these rules, but waits for what is gathered alone.

_REDUCE_BUCKET: Final = 500_000_000
"""Elements per bucket (``reduce_bucket_size``)."""


_Weights = dict[str, int]
"""Name of a weight -> its elements."""


def _timed_pieces(training: Training, unit: CheckpointUnit) -> list[tuple[str, _Weights, StagePart]]:
    """Return the pieces of a unit, each with its weights (none: it is not a module) and its time."""
    model, runs = training.model, list[tuple[str, _Weights, StagePart]]()
    words = {"words": -(-model.vocabulary // training.layout.tp) * model.hidden}
    for k, piece in enumerate(unit.pieces):
        # a recomputed layer enters its modules again, other recomputation runs within the backward
        once = replace(piece, again=()) if unit.checkpointed else piece
        timed = training.timed_part(CheckpointUnit(piece.name, (once,)))
        first = unit.pieces.index(piece)  # a head repeated for a further token has the same weights
        weights = {f"{unit.name}/{first}": timed.parameters} if timed.parameters else {}
        if piece.name == "embedding" or (piece.name == "head" and model.tied):
            weights = words
        if piece.name == "embedding" and model.positions:
            weights = {**words, "positions": model.positions * model.hidden}
        number = f" {k}" if k > first else ""
        runs.append((f"{unit.name} {piece.name}{number}", weights, timed))
    return runs


class _Visit(NamedTuple):
    """A run in one direction, from the entry of a module to that of the next."""

    name: str
    weights: _Weights
    spent: Spent
    phase: str
    unit: CheckpointUnit


def _visits(training: Training, waits: Callable[[CheckpointUnit], tuple[float, float]]) -> list[_Visit]:
    """Return a micro-batch's visits in order; the host waits of a unit (`waits`) precede its first run."""
    visits: list[_Visit] = []

    def visit(visited: _Visit) -> None:
        """Add a visit; a piece that is not a module runs with the one before."""
        if visits and not visited.weights and visited.phase == visits[-1].phase:
            visits[-1] = visits[-1]._replace(spent=visits[-1].spent.plus(visited.spent))
        else:
            visits.append(visited)

    units = [(unit, _timed_pieces(training, unit), waits(unit)) for unit in training.each_stage[0].units]
    for unit, runs, (wait, _) in units:
        for name, weights, timed in runs:
            visit(_Visit(name, weights, timed.forward.add_wait(wait), "F", unit))
            wait = 0.0
    for unit, runs, (_, wait) in reversed(units):
        if unit.checkpointed:
            for (name, weights, _), piece in zip(runs, unit.pieces, strict=True):
                visit(_Visit(f"{name} again", weights, training.time_by_kind(piece.again), "R", unit))
        for name, weights, timed in reversed(runs):
            visit(_Visit(f"{name} back", weights, timed.backward.add_wait(wait), "B", unit))
            wait = 0.0
    return visits


class _ZeroThreeWriter(StepWriter):
    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.visits = _visits(training, self.waits)
        modules, limits = [visit.weights for visit in self.visits if visit.weights], Limits()
        weights = {name: size for row in modules for name, size in row.items()}
        self.coordinator = Coordinator([[*row] for row in modules], weights, limits)
        self.rest = self.stage.parameters - sum(weights.values())
        self.persistent = self.rest + sum(size for size in weights.values() if size <= limits.persistence)
        self.last = {weight: number for number, visit in enumerate(self.visits) for weight in visit.weights}
        """Weight → the visit after which its gradient is complete."""
        self.handle: dict[str, int] = {}
        self.computed: tuple[Ref, ...] = (("gather what stays.-1", 1),)
        """The last visit; at first, what ended the iteration before."""
        self.reducing = 0.0
        self.held = {visit.unit: self.memory(visit.unit) for visit in self.visits}
        self.forward_of: dict[str, int] = {}
        """Unit → the op that keeps what its backward in this micro-batch needs."""
        buckets = 2 * training.gradient_bytes * max(_REDUCE_BUCKET, *weights.values())
        self.declare_resident(training.parameter_bytes * self.persistent + buckets)

    def finish(self, optimizer: int) -> None:
        self.op("gather what stays", "all_gather", self.gather_ns(self.persistent), (optimizer,), BESIDE)

    def micro_batch(self) -> None:
        self.coordinator.reset()
        pending, self.forward_of = self.rest, {}
        for number, visit in enumerate(self.visits):
            arrived, ahead_ns = self.enter(visit) if visit.weights else ((), 0.0)
            messages = (ahead_ns, self.reducing)
            self.reducing = 0.0
            self.computed = (self.visit(visit, messages, (*self.computed, *arrived)),)
            if not visit.weights:
                continue
            ready = [size for weight, size in visit.weights.items() if self.last[weight] == number]
            for size in ready if visit.phase == "B" else []:
                if pending + size > _REDUCE_BUCKET and pending:
                    self.scatter(pending)
                    pending = 0
                pending += size
            self.coordinator.release([*visit.weights])
        self.scatter(pending)

    def visit(self, visit: _Visit, messages: Sequence[float], after: Sequence[Ref]) -> int:
        """Write a visit; what its forward keeps for a unit stays until the unit's backward is over."""
        unit, memory = visit.unit.name, self.held[visit.unit]
        gathers = (self.handle[weight] for weight in visit.weights if weight in self.handle)
        reads = [self.builder.tensor(op) for op in dict.fromkeys(gathers)]
        outputs: tuple[int, ...] = (0, _backward(memory))
        if visit.phase != "F":
            reads.append(self.builder.tensor(self.forward_of[unit]) + 2)
        elif unit not in self.forward_of:
            outputs = _forward(memory)
        else:
            outputs = 0, 0, 0, _forward(memory)[-1]
        block = _Block(visit.name, "layer", visit.spent, outputs)
        op = self.slot(block, messages, after, visit.phase, reads)
        self.forward_of.setdefault(unit, op)
        return op

    def enter(self, visit: _Visit) -> tuple[tuple[int, ...], float]:
        """Gather and wait; return the ops that the module waits for, and the time of the gather ahead."""
        fetched = self.coordinator.fetch()
        self.launch(fetched.missing, visit, self.computed)
        arrived = []
        for group in fetched.arrived:
            elements = sum(map(self.coordinator.elements.__getitem__, group))
            ns = self.training.calibration.pass_ns(2 * self.training.parameter_bytes * elements)
            after = (self.handle[group[0]],)
            name = f"parts of {group[0]} for {visit.name}"
            arrived.append(self.op(name, "concat", ns, after, BESIDE, ns))  # counts as part of the gather
        return tuple(arrived), self.launch(fetched.ahead, visit, (*self.computed, *arrived))

    def launch(self, weights: Sequence[str], visit: _Visit, idle: Sequence[Ref]) -> float:
        """Launch one gather once the device is idle after these ops; return how long it takes."""
        if not weights:
            return 0.0
        elements = sum(map(self.coordinator.elements.__getitem__, weights))
        launched = self.gather(f"{weights[0]} at {visit.name}", elements, idle)
        self.handle |= dict.fromkeys(weights, launched)
        return self.gather_ns(elements)

    def scatter(self, elements: int) -> None:
        """Scatter a bucket."""
        self.reducing += self.reduce(str(len(self.after)), elements, self.computed)


# ----------------------------------------------------------------------------------------------------------

_LAYERED: Final[Mapping[str, type[StepWriter]]] = {"fsdp": _FsdpWriter, "zero-3": _ZeroThreeWriter}
"""Sharding → writer of steps that gather parameters layer by layer."""


def step_graph(training: Training, schedule: Schedule) -> tuple[Graph, Machine]:
    """Return the ops of a step, and the machine that they run on."""
    if training.parameters_apart:
        streams = 3 if training.offload_layers else 2
        return _LAYERED[training.layout.sharding](training).write(), plain_machine(1, streams=streams)
    around = replace(training.around, buffer_nbytes=training.buffers(schedule))
    pairs = crossings(schedule, around)
    machine = plain_machine(schedule.ranks, training.send_ns, pairs=pairs, streams=1 + around.own_stream)
    names = [device.name for device in machine.devices]
    graph = pipeline_graph(schedule, training.pipeline_stages, names, around=around)
    sm_share = training.calibration.communication_sms if around.own_stream else 0.0
    return (_add_contention(graph, machine, sm_share) if sm_share else graph), machine


def _add_contention(graph: Graph, machine: Machine, sm_share: float) -> Graph:
    """Return the ops of a step, lengthened by the SMs that messages beside them take.

    A run without this effect gives the time for which messages are beside each op.
    """
    trace = _run(graph, machine)
    op, start, end = (trace.tasks[name] for name in ("op", "start_ns", "end_ns"))
    sent = np.array([phase == BESIDE for phase in graph.phases] + [False])[graph.phase_code[op]]
    messages = union(start[sent], end[sent], trace.device[sent])
    beside = Cover(messages, trace.makespan_ns).between(start, end, trace.device)
    slower = np.zeros(len(graph), np.int64)
    slower[op] = np.where(sent, 0, np.rint(sm_share * beside).astype(np.int64))
    exposed = (graph.column(INSIDE) + slower).tolist()
    attributes = dict(graph.attributes)
    for number in np.flatnonzero(slower).tolist():
        attributes[number] = {**attributes.get(number, {}), INSIDE: exposed[number]}
    return replace(graph, duration_ns=graph.duration_ns + slower, attributes=attributes)


def _run(graph: Graph, machine: Machine) -> Trace:
    return simulate(graph, machine, InOrder(), streams=CommunicationStream(), linearize=AsWritten())


def step_trace(training: Training, schedule: Schedule | None = None) -> Trace:
    """Simulate a step.

    Parameters
    ----------
    training : Training
    schedule : Schedule, optional
        Default: the training's own.
    """
    return _run(*step_graph(training, schedule or training.schedule))


def step_ns(training: Training) -> int:
    """Return the simulated duration of a step (`step_trace`)."""
    return step_trace(training).makespan_ns
