"""One training step on all ranks, from sizes: stages with their times and memory, and the optimizer step.

::

    model ─┐                                   ┌─► times of each stage ─► pipeline of the schedule ─┐
    layout ┼─► pieces on one rank (layers.py) ─┤                                                    ├─► step
    batch ─┘                                   └─► memory of each rank                              │
    calibration ─► gradients: scale, reduce ─► norm ─► clip, Adam ─► copy ─► gather parameters ─────┘

Equal ranks are folded: one rank of each pipeline stage is simulated, for the tp·cp·dp ranks that do the same
at the same time. Collectives inside a stage add to its time, except for the part that a kernel hides.

Bytes per parameter that Megatron-LM's distributed optimizer reads and writes around a step (P: all of a rank,
S: its shard of the optimizer):  zero gradients 4P · check them 4P · scale them 8P · their norm 4S · clip 8S ·
Adam 28S · copy 6S. Source: Megatron-LM, core/optimizer/{optimizer,clip_grads}.py,
core/distributed/param_and_grad_buffer.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, reduce
from typing import Any, Final

from devices.collectives.groups import RankGroup
from policies.pipeline.evaluate import StageTimes
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.registry import generate
from scenarios.builders.pipeline_stage import Around, PipelineStage, search_options
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.calibration import TrainingCalibration
from scenarios.builders.train.kernels import (
    GRAPHED,
    MODULES,
    OFFLOADED,
    WIDE,
    Attention,
    Collective,
    Kernel,
    LayerPiece,
    Product,
    Scan,
    Spent,
)
from scenarios.builders.train.layers import RankWork
from scenarios.builders.train.layout import ParallelLayout, RankOptions, ReplicaBatch, refuse_misfit
from scenarios.builders.train.memory import (
    WORKSPACES,
    CheckpointUnit,
    StageMemory,
    StagePart,
    stage_memory,
    transformer_engine_buffers,
)
from scenarios.builders.train.recompute import Recompute, keeps_nothing, with_recomputation
from sim.base.units import format_count, round_half_up

GROUPS: Final = ("tp", "cp", "pp", "dp", "dp_cp", "ep", "edp", "shard", "replicas", "eshard", "ereplicas")

FULL_ITERATION: Final = "full-iteration"

_BIAS_LAUNCHES: Final = 8 / 13
"""Launches of an expert's biases (`RankWork._expert_biases`) / those of its products and casts."""


@lru_cache(maxsize=64)
def _plain_schedule(name: str, ranks: int, micro_batches: int, chunks: int | None) -> Schedule:
    """Return a schedule without options, cached because the layouts of a sweep share few of them."""
    return generate(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks)


def default_schedule(chunks: int) -> str:
    """Return the default schedule for that many stages per rank."""
    return "interleaved-1f1b" if chunks > 1 else "1f1b"


@dataclass(frozen=True)
class Training(RankOptions):
    """A training step; `RankOptions` says how ranks run its layers.

    Attributes
    ----------
    model : Architecture
    layout : ParallelLayout
    calibration : TrainingCalibration
    sequence, micro_batch, batch : int
        Tokens per sample; samples per micro-batch of a replica; samples per step.
    recompute : {"none", "selective", "selective-op", "full"}, or tuple of str
        selective: the inside of attention; selective-op: all but attention and every second product; full:
        each layer; or modules by name (`recompute.RECOMPUTED`).
    gradient_bytes, parameter_bytes, optimizer_state : int
        Bytes per parameter.
    overlap : bool
        Whether gradients are reduced, and parameters gathered, beside the computation.
    partition : tuple of int
        Layers of each stage; empty: as even as possible, the last and then the first having one less.
    cuda_graph : tuple of str, or "full-iteration"
        Scopes launched by graphs, from `GRAPHED`.
    wide_layers : tuple of int
        Numbers of first and of last layers whose products stay in 16 bits.
    dtypes : mapping
        Module (of `kernels.MODULES`, or ``predicted``) → type of its products, if it is not the step's.
    offload_layers : int
        Number of first layers whose activations are copied to the host, beside the step, and back.
    offload : tuple of str
        Modules (`kernels.OFFLOADED`) whose inputs are offloaded in all layers, each beside the next.
    transformer_engine : bool
        Whether an extra gradient of each shape of weight is kept, as in Transformer Engine.
    memory : int or None
        Bytes of a GPU.
    policy : str or None
        The schedule of its pipeline; None: the default one.
    options : mapping
        Options of the schedule.
    """

    model: Architecture
    layout: ParallelLayout
    calibration: TrainingCalibration
    sequence: int
    micro_batch: int
    batch: int
    recompute: Recompute | tuple[str, ...] = "none"
    gradient_bytes: int = 4
    parameter_bytes: int = 2
    optimizer_state: int = 12
    overlap: bool = False
    partition: tuple[int, ...] = ()
    cuda_graph: str | tuple[str, ...] = FULL_ITERATION
    wide_layers: tuple[int, int] = (0, 0)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    offload_layers: int = 0
    offload: tuple[str, ...] = ()
    transformer_engine: bool = True
    memory: int | None = None
    policy: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise if batches or stages do not divide evenly."""
        replicas = self.layout.dp
        uneven = self.batch % (replicas * self.micro_batch)
        batches = f"{format_count(replicas, 'replica')} in micro-batches of {self.micro_batch}"
        reason = f"a global batch of {self.batch} cannot be shared by {batches}"
        refuse_misfit(uneven, "dp·micro_batch does not divide the global batch", reason)
        stages, layers = len(self.partition), sum(self.partition)
        other = self.partition and (layers, stages) != (self.model.layers, self.stages)
        reason = f"partition has {format_count(stages, 'stage')} of {format_count(layers, 'layer')}, "
        reason += f"and there are {self.stages} of {self.model.layers}"
        refuse_misfit(other, "partition has other stages or layers", reason)
        packed = f"{len(self.packed)} sequences have {sum(self.packed)} tokens"
        reason = f"packed: {packed}, and a sample has {self.sequence}"
        unfilled = self.packed and sum(self.packed) != self.sequence
        refuse_misfit(unfilled, "packed sequences do not fill a sample", reason)
        reason = f"sharding: {self.layout.sharding} is for training all of them"
        reason = f"lora: frozen weights are not known to be gathered; {reason}"
        refuse_misfit(self.lora and self.parameters_apart, "adapters with parameters apart", reason)
        if self.offload_layers:
            self._check_offload()
        idle = [module for module in self.offload if keeps_nothing(OFFLOADED[module], self.recompute)]
        reason = f"offload: {', '.join(idle)} has no effect: recompute keeps nothing that could be offloaded"
        refuse_misfit(idle, "offloaded modules that are recomputed", reason)
        reason = f"{format_count(self.model.layers, 'layer')} cannot be shared by {self.stages} stages"
        many = self.stages > self.model.layers + 2  # the first and the last may have no layers
        refuse_misfit(many, "more stages than layers", reason)

    def _check_offload(self) -> None:
        """Raise if Megatron-LM would refuse to offload, or if the step's layers are not separate ops."""
        reason = ""
        if not (self.layout.sharding == "fsdp" and self.parameters_apart):
            reason = "needs sharding: fsdp and no pipeline, where each layer is gathered and run by itself"
        elif self.recompute != "none":
            reason = "needs recompute: none (Megatron-LM takes one of the two)"
        elif self.offload_layers >= self.model.layers:
            reason = f"should be fewer than the model's {format_count(self.model.layers, 'layer')}"
        refuse_misfit(reason, "offloaded layers with what excludes them", f"offload: {reason}")

    # -- sizes ------------------------------------------------------------------------------------------

    @property
    def stages(self) -> int:
        """Number of stages, including all chunks."""
        return self.layout.pp * self.layout.chunks

    @property
    def parameters_apart(self) -> bool:
        """Whether a rank holds only a shard of the parameters; in a pipeline they stay gathered."""
        return self.layout.sharding in ("fsdp", "zero-3") and self.stages == 1

    @property
    def reduces_each(self) -> bool:
        """Whether gradients are reduced after each micro-batch, as a rank keeps only its part of them."""
        return self.layout.sharding == "zero-2" and self.micro_batches > 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica."""
        return self.batch // (self.layout.dp * self.micro_batch)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.sequence

    @property
    def flops(self) -> int:
        """The model's own flop in a step, including all scores: what MFU counts.

        Frozen weights have no gradient; their adapters have.
        """
        counts = self.sequences(self.batch, self.sequence).items()
        flops = sum(self.model.flops(count, tokens) for tokens, count in counts)
        if not self.lora:
            return flops
        return flops - self.model.product_flops(self.tokens) + 6 * self.tokens * self.adapter_parameters

    @property
    def adapter_parameters(self) -> int:
        """Adapter parameters of all ranks of a copy together."""
        return self.layout.tp * sum(stage.adapters for stage in self.each_stage)

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Layers of each stage."""
        if self.partition:
            return self.partition
        largest, last = -(-self.model.layers // self.stages), self.stages - 1
        smaller = [last, *range(last)][: largest * self.stages - self.model.layers]
        return tuple(largest - 1 if s in smaller else largest for s in range(self.stages))

    @cached_property
    def work(self) -> RankWork:
        """The pieces of the model on one rank."""
        options = {option.name: getattr(self, option.name) for option in fields(RankOptions)}
        batch = ReplicaBatch(self.micro_batch, self.sequence, kept=self.calibration.kept_width(), **options)
        return RankWork(self.model, self.layout, batch)

    @property
    def selective(self) -> bool:
        """Whether modules are recomputed, and not whole layers."""
        return self.recompute not in ("none", "selective-op", "full")

    # -- times ------------------------------------------------------------------------------------------

    @cached_property
    def groups(self) -> dict[str, RankGroup]:
        """Size and nodes of each group."""
        return {name: self.layout.group(name) for name in GROUPS}

    def time_by_kind(self, kernels: Sequence[Kernel]) -> Spent:
        """Return the time of kernels by kind."""
        spent = dict.fromkeys(Spent._fields, 0.0)
        timed = [kernel for kernel in kernels if not isinstance(kernel, Collective)]
        if cast := self.calibration.casts(timed):
            spent["quantizing"] = self.calibration.pass_ns(cast)
        for kernel, ns in zip(timed, self.calibration.kernels_ns(timed), strict=True):
            if isinstance(kernel, Product):
                spent["attention" if kernel.part == "S" else "products"] += ns
            else:
                spent["attention" if isinstance(kernel, Attention | Scan) else "passes"] += ns
        for message in kernels:
            if isinstance(message, Collective):
                total_ns, exposed = self.calibration.exposed_ns(message, self.groups[message.group])
                spent["exposed"] += exposed
                spent["hidden"] += total_ns - exposed
        return Spent(**spent)

    def _units(self, stage: int) -> list[CheckpointUnit]:
        """Return the units of a stage; layers of the same kind share their pieces."""
        first = sum(self.layers_per_stage[:stage])
        words = self.model.vocabulary > 0
        units = [CheckpointUnit("embedding", tuple(self.work.embedding()))] if words and stage == 0 else []
        for i in range(first, first + self.layers_per_stage[stage]):
            kind, (start, end) = self.model.kind(i), self.wide_layers
            pieces = self._layer(kind, wide=not start <= i < self.model.layers - end)
            units.append(self._layer_unit(i, pieces))
        if words and stage == self.stages - 1:
            for i in range(self.model.layers, self.model.layers + self.model.predicted):
                kind = self.model.kind(i)
                dtype = self.dtypes.get("predicted", "")
                joined = self._with_recomputation(self.work.predicting())
                pieces = (*(piece.computed_in(dtype) for piece in joined), *self._pieces_in(dtype, kind))
                units.append(self._layer_unit(i, pieces))
            units.append(CheckpointUnit("head", (*self.work.head(),) * (1 + self.model.predicted)))
        return units

    def _layer_unit(self, i: int, pieces: tuple[LayerPiece, ...]) -> CheckpointUnit:
        checkpointed = self.recompute in ("selective-op", "full")
        kept = self.work.carried + sum(piece.kept for piece in pieces)
        return CheckpointUnit(f"layer {i}", pieces, kept, checkpointed, self.model.kind(i))

    def _with_recomputation(self, pieces: list[LayerPiece]) -> Sequence[LayerPiece]:
        return with_recomputation(pieces, self.recompute, self.model, self.layout.tp)

    def _layer(self, kind: str, *, wide: bool) -> tuple[LayerPiece, ...]:
        """Return the pieces of a layer, each in the product type of its module."""
        if wide or not self.dtypes:
            return self._pieces_in(WIDE if wide else "", kind)
        dtypes = {piece: dtype for name, dtype in self.dtypes.items() for piece in MODULES.get(name, ())}
        plain = enumerate(self._pieces_in("", kind))
        return tuple(self._pieces_in(dtypes.get(piece.name, ""), kind)[n] for n, piece in plain)

    def _pieces_in(self, dtype: str, kind: str) -> tuple[LayerPiece, ...]:
        """Return the pieces of a layer with all products in the given type."""
        if (kind, dtype) not in self._layers_made:
            batch = replace(self.work.batch, kept=self.calibration.kept_width(dtype))
            work = RankWork(self.model, self.layout, batch) if dtype else self.work
            pieces = self._with_recomputation(work.layer(kind))
            away = {OFFLOADED[module] for module in self.offload}
            pieces = [replace(piece, offloaded=True) if piece.name in away else piece for piece in pieces]
            self._layers_made[kind, dtype] = tuple(piece.computed_in(dtype) for piece in pieces)
        return self._layers_made[kind, dtype]

    @cached_property
    def _layers_made(self) -> dict[tuple[str, str], tuple[LayerPiece, ...]]:
        return {}

    @cached_property
    def each_stage(self) -> tuple[StagePart, ...]:
        """All stages."""
        return tuple(self._stage(s) for s in range(self.stages))

    def _stage(self, s: int) -> StagePart:
        units = self._units(s)
        timed = [self.timed_part(unit) for unit in units]
        table = -(-self.model.vocabulary // self.layout.tp) * self.model.hidden
        first = s == 0 and not (self.model.tied and self.stages == 1)  # otherwise the head has them
        last = s == self.stages - 1
        parameters = sum(part.parameters for part in timed)
        parameters += table if first else 0
        parameters += self.model.positions * self.model.hidden if s == 0 else 0
        if last and self.model.vocabulary:
            parameters += self.model.hidden * (1 + self.model.biases)
        stage = StagePart(
            tuple(units),
            parameters,
            sum(part.expert_parameters for part in timed),
            reduce(Spent.plus, (part.forward for part in timed), Spent()),
            reduce(Spent.plus, (part.input_grad for part in timed), Spent()),
            reduce(Spent.plus, (part.weight_grad for part in timed), Spent()),
            sum(part.adapters for part in timed),
            table * sum((first, last)),
        )
        stage = self._add_launches(stage)
        if not self.reduces_each:
            return stage
        ns, _ = self.reduce_ns(stage)
        hidden = self.calibration.hiding * min(ns, stage.backward.ns) if self.overlap else 0.0
        reduced = stage.weight_grad.plus(Spent(exposed=ns - hidden, hidden=hidden))
        return stage._replace(weight_grad=reduced)

    def _add_launches(self, stage: StagePart) -> StagePart:
        """Return a stage with its GPU's waits for the host; a third of the launches are the forward's.

        The host runs ahead within a micro-batch, but not past the wait for the experts' token counts: the
        launches after that wait are fully exposed.
        """
        graphs, host = self.cuda_graph, self.calibration.host
        kinds = [unit.kind for unit in stage.units]
        if graphs == FULL_ITERATION or not any(kinds):
            return stage
        factor = host.factor if self.expert_overlap else 1.0
        scopes = [GRAPHED[letter] for kind in kinds for letter in kind]
        launched = sum(sum(scope not in graphs for scope in part) / len(part) for part in scopes)
        eager = launched * host.issue_cost * factor
        experts = self.model.experts // self.layout.ep
        per_expert = host.experts * (1 + _BIAS_LAUNCHES * self.model.biases)
        exposed = sum("E" in kind for kind in kinds) * experts * per_expert * factor
        forward, backward = (
            share * exposed + max(0.0, share * eager - part.ns)
            for share, part in ((1 / 3, stage.forward), (2 / 3, stage.backward))
        )
        return stage._replace(
            forward=stage.forward.add_wait(forward), input_grad=stage.input_grad.add_wait(backward)
        )

    def timed_part(self, unit: CheckpointUnit) -> StagePart:
        """Return the parameters of a unit, and its time by kind."""
        part = self._timed_parts.get(unit.pieces)
        if part is None:
            forward = [kernel for piece in unit.pieces for kernel in piece.forward]
            backward = [kernel for piece in unit.pieces for kernel in piece.backward]
            of_weights = [k for k in backward if isinstance(k, Product) and k.part == "W"]
            others = [k for k in backward if not (isinstance(k, Product) and k.part == "W")]
            # neither a head repeated for a further token nor a block of a product has weights of its own
            products = dict.fromkeys(
                (p, k) for p in unit.pieces for k in p.forward if isinstance(k, Product) and k.part == "F"
            )
            # of each its weights and, in a layer, a bias per column
            biased = bool(unit.boundary and self.model.biases)
            counts = [(p, k.groups * (k.k + (biased and not p.adapts)) * k.n) for p, k in products]
            parameters = sum(n for _, n in counts)
            parameters += self.model.norm_parameters(unit.kind) if unit.boundary else 0
            away = sum(p.saved - (p.dropped if self.selective else 0) for p in unit.pieces if p.offloaded)
            copy = self.calibration.copy_ns(away) if away else 0.0  # to the host, one way
            weights = self.time_by_kind(of_weights)
            run_again = self.time_by_kind([kernel for piece in unit.pieces for kernel in piece.again])
            part = StagePart(
                (unit,),
                parameters,
                sum(n for p, n in counts if p.name.startswith("experts")),
                self.time_by_kind(forward).add_copies(copy),
                self.time_by_kind(others).plus(run_again).add_copies(copy - weights.ns),
                weights,
                sum(n for p, n in counts if p.adapts),
            )
            self._timed_parts[unit.pieces] = part
        return part

    @cached_property
    def _timed_parts(self) -> dict[tuple[LayerPiece, ...], StagePart]:
        return {}

    # -- the end of the step ------------------------------------------------------------------------------

    @property
    def shared_by(self) -> tuple[int, int]:
        """Numbers of ranks over which the optimizer is sharded: for all but experts, and for experts."""
        if self.layout.sharding == "none":
            return 1, 1
        return self.layout.sharded_by, self.groups["edp"].size

    def count_trained(self, stage: StagePart) -> tuple[int, int]:
        """Return how many parameters of a stage a rank trains: all but experts', and experts'."""
        if self.lora:
            return stage.adapters, 0
        return stage.parameters - stage.expert_parameters, stage.expert_parameters

    def share(self, stage: StagePart) -> int:
        """Return how many of a stage's parameters the optimizer of a rank updates."""
        ranks, expert_ranks = self.shared_by
        dense, experts = self.count_trained(stage)
        return -(-dense // ranks) + -(-experts // expert_ranks)

    def reduce_ns(self, stage: StagePart) -> tuple[float, float]:
        """Return the time to reduce the gradients of a stage, and to gather its parameters."""
        cost, groups = self.calibration.collective_ns, self.groups
        dense, experts = self.count_trained(stage)
        if self.layout.sharding == "none":
            parts = ((dense, groups["dp_cp"]), (experts, groups["edp"]))
            return sum(cost("all_reduce", n * self.gradient_bytes, group) for n, group in parts), 0.0
        scatter = cost("reduce_scatter", experts * self.gradient_bytes, groups["edp"])
        gather = cost("all_gather", self.gathered_bytes(experts), groups["edp"])
        gather_dense = self.gather_ns(dense, wide=dense if self.lora else stage.words)
        return sum(self.scatter_ns(dense)) + scatter, gather_dense + gather

    def gathered_bytes(self, parameters: int, wide: int = 0) -> int:
        """Return the bytes of gathered parameters, `wide` of them words; DeepSpeed gathers all in 16 bits."""
        wide = parameters if self.layout.sharding == "zero-3" else wide
        return self.calibration.gathered_bytes(parameters, wide, self.parameter_bytes)

    def gather_ns(self, parameters: int, experts: int = 0, wide: int = 0) -> float:
        """Return the time to gather sharded parameters, and experts' over the ranks that share them."""
        parts = ((self.gathered_bytes(parameters, wide), "shard"), (self.gathered_bytes(experts), "eshard"))
        return sum(self.calibration.collective_ns("all_gather", n, self.groups[name]) for n, name in parts)

    def scatter_ns(self, parameters: int, experts: int = 0) -> tuple[float, float]:
        """Return the time to scatter gradients, and to sum them over replicas of the shards."""
        cost, scattered, summed = self.calibration.collective_ns, 0.0, 0.0
        for n, *names in ((parameters, "shard", "replicas"), (experts, "eshard", "ereplicas")):
            shard, replicas = (self.groups[name] for name in names)
            scattered += cost("reduce_scatter", n * self.gradient_bytes, shard)
            summed += cost("all_reduce", n * self.gradient_bytes // shard.size, replicas)
        return scattered, summed

    def optimizer_ns(self, stage: StagePart) -> float:
        """Return the time of the optimizer step on a rank, including the passes over gradients before it."""
        p, s, g = self.gradients_held(stage), self.share(stage), self.gradient_bytes
        replicas = self.groups["dp_cp"].size > 1
        cast = self.calibration.weight_casts(stage.parameters - stage.words)
        cast *= self.micro_batches if self.parameters_apart else 1
        passes = (g * p, g * p, 2 * g * p * replicas, g * s, 2 * g * s, (g + 24) * s, 6 * s, cast)
        return sum(self.calibration.pass_ns(nbytes) for nbytes in passes if nbytes)

    # -- the pipeline -------------------------------------------------------------------------------------

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of its pipeline."""
        name = self.policy or default_schedule(self.layout.chunks)
        schedule = self.schedule_of(name, **self.options)
        ranks = self.layout.pp
        reason = f"{name} has {schedule.stages} stages on {ranks} ranks, and pp·chunks = {self.stages}"
        reason += f"; set parallel.chunks: {schedule.stages // ranks}"
        refuse_misfit(schedule.stages != self.stages, f"{name} has other stages than pp·chunks", reason)
        return schedule

    def schedule_of(self, name: str, **options: Any) -> Schedule:
        """Return a schedule by name, with its options."""
        chunks = self.layout.chunks if self.layout.chunks > 1 else None
        if name == "zb-auto":
            options = search_options(options, self.pipeline_stages, self.send_ns, self.layout.chunks)
        if not options:
            return _plain_schedule(name, self.layout.pp, self.micro_batches, chunks)
        return generate(
            name, ranks=self.layout.pp, micro_batches=self.micro_batches, chunks=chunks, **options
        )

    @property
    def send_ns(self) -> int:
        """Time to send what a stage sends on."""
        return round_half_up(self.calibration.collective_ns("send", self.work.carried, self.groups["pp"]))

    @cached_property
    def pipeline_stages(self) -> list[PipelineStage]:
        """The stages in the form that a pipeline uses."""
        pairs = zip(self.each_stage, self.memory_of_stages, strict=True)
        return [self._pipeline_stage(s, *pair) for s, pair in enumerate(pairs)]

    def _pipeline_stage(self, s: int, stage: StagePart, memory: StageMemory) -> PipelineStage:
        parts = ("forward", "input_grad", "weight_grad")
        times, exposed = (
            StageTimes(**{part: round_half_up(getattr(getattr(stage, part), kind)) for part in parts})
            for kind in ("ns", "exposed")
        )
        resident, sent = self.resident(stage), self.work.carried
        gradients = sent * sum((s > 0, s < self.stages - 1))  # received and sent on by a backward
        return PipelineStage(
            times,
            exposed=exposed if stage.forward.exposed or stage.backward.exposed else None,
            boundary_nbytes=sent,
            activation_nbytes=memory.saved,
            weight_grad_nbytes=memory.for_weights,
            forward_working_nbytes=max(0, memory.forward - memory.saved - sent),
            working_nbytes=max(0, memory.backward - memory.saved - gradients),
            parameter_nbytes=resident["parameters"],
            gradient_nbytes=resident["gradients"],
            optimizer_nbytes=resident["optimizer state"],
        )

    @cached_property
    def around(self) -> Around:
        """What precedes and follows the pipeline."""
        layout, first = self.layout, self.each_stage[0]
        reduced = [self.reduce_ns(stage) for stage in self.each_stage]
        scatters = [0 if self.reduces_each else round_half_up(scatter) for scatter, _ in reduced]
        gathers = [] if layout.sharding == "none" else [round_half_up(gather) for _, gather in reduced]
        single = not any(sum(times) for times in reduced)
        everybody = RankGroup(layout.ranks, -(-layout.ranks // layout.node))
        buckets = layout.buckets(sum(self.count_trained(first)), len(first.units)) if self.overlap else 1
        return Around(
            optimizer_ns=tuple(round_half_up(self.optimizer_ns(stage)) for stage in self.each_stage),
            synchronisation_ns=round_half_up(self.calibration.collective_ns("all_reduce", 4, everybody)),
            all_reduce_ns=() if single else tuple(scatters),
            all_gather_ns=() if single else tuple(gathers),
            overlap=self.overlap,
            buckets=buckets,
        )

    # -- memory -------------------------------------------------------------------------------------------

    @cached_property
    def memory_of_stages(self) -> list[StageMemory]:
        """Memory of a micro-batch on each stage."""
        return [stage_memory(stage.units, selective=self.selective) for stage in self.each_stage]

    def gradients_held(self, stage: StagePart) -> int:
        """Return for how many parameters a rank keeps gradients until its optimizer step."""
        split = self.layout.sharding == "zero-2" or self.parameters_apart
        return self.share(stage) + self._unshared_experts(stage) if split else sum(self.count_trained(stage))

    def _unshared_experts(self, stage: StagePart) -> int:
        """Return the expert parameters that no other rank of a copy has: they stay whole."""
        unshared = self.layout.sharding == "fsdp" and self.groups["eshard"].size == 1
        return stage.expert_parameters if unshared and self.parameters_apart else 0

    def resident(self, stage: StagePart) -> dict[str, int]:
        """Return the resident bytes of a stage on a rank."""
        p, share = stage.parameters, self.share(stage)
        parameters = share if self.parameters_apart else p
        if self.parameters_apart and self.layout.sharding == "fsdp":
            # parameters gathered in 16 bits are cast from the fp32 copy, which counts as optimizer state here
            parameters = self._unshared_experts(stage)
        return {
            "parameters": self.parameter_bytes * parameters,
            "gradients": self.gradient_bytes * self.gradients_held(stage),
            "optimizer state": self.optimizer_state * share,
        }

    def buffers(self, schedule: Schedule) -> tuple[int, ...]:
        """Return the buffers of each pipeline rank."""
        if not self.transformer_engine:
            return (WORKSPACES,) * schedule.ranks
        wide = self.work.wide if self.layout.splits_sequence else 0
        return tuple(
            transformer_engine_buffers([self.each_stage[s] for s in schedule.stages_of(r)], wide)
            for r in range(schedule.ranks)
        )
