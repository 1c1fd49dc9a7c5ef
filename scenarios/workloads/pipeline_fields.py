"""What ``workload: {pipeline: ...}`` may hold, as pydantic models;
`scenarios.workloads.pipeline_workload` uses it.

::

    pipeline:
      stages: 4                    how many, or a list with one mapping a stage; or ranks: 4
      micro_batches: 8
      forward: 1ms                 keys here hold for every stage that does not override them
      backward: 2ms                or input_grad and weight_grad
      activation: 4MB              sent to the next stage; transfer: 0.1ms where no machine has links
      kept: 40MB                   what a micro-batch stores for its backward
      parameters: 1GB
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from devices.describe.field_types import Bandwidth, Bytes, Duration, FlopRate, fault
from devices.describe.quantities import Count, File, Name, Shorthand, Size, Strict, Whole
from scenarios.recorded.durations import AnyFactor
from scenarios.workloads.calibrations import CalibrationFields
from sim.base.arrays import MOST_BUILT


class StageFields(Strict):
    """Times and sizes of one micro-batch on one stage, and the stage's resident memory."""

    forward: Duration | None = Field(None, description="time of F")
    backward: Duration | None = Field(None, description="time of B; default: I + W")
    input_grad: Duration | None = Field(None, description="time of I, the first half of B")
    weight_grad: Duration | None = Field(None, description="time of W, the second half of B")
    recompute: Duration | None = Field(None, description="time of R; default: that of F")
    overlapped: Duration | None = Field(
        None,
        description="time of F and B in one slot (DualPipe), less of smaller micro-batches as their sum is; "
        "default: their sum",
    )
    collectives: Duration | None = Field(
        None, description="messages inside a stage after F and after B or I (tensor or expert parallelism)"
    )
    activation: Bytes | None = Field(None, description="size sent to the next stage; default 0")
    kept: Annotated[
        dict[Literal["backward", "weight_grad", "recompute"], Bytes], Shorthand("backward", "size")
    ] = Field(
        default_factory=dict,
        description="activations kept from F (or R) to B (default: as `activation`), the part that W reads "
        "(default: all of it), and what a recomputed micro-batch keeps from F to R (default: `activation`)",
    )
    parameters: Bytes | None = Field(None, description="weights; default 0")
    gradients: Bytes | None = Field(None, description="gradients of the weights; default 0")
    optimizer_state: Bytes | None = Field(None, description="what the optimizer keeps; default 0")


class SkipFields(Strict):
    """A skip connection to a later stage."""

    source: Whole = Field(alias="from", description="stage that makes the tensor")
    to: Whole = Field(description="stage that reads it")
    size: Bytes


class LevelFields(Strict):
    """A level of the machine as PipeDream's planners see it."""

    workers: Size = Field(description="devices, or whole levels below, in one of this level")
    bandwidth: Bandwidth = Field(description="bandwidth between them")


class Optimizer(Strict):
    """The optimizer step at the end."""

    duration: Duration = Field(description="time of a stage (with `ranks`: of a rank)")
    synchronisation: Duration | None = Field(
        None, description="time of a synchronisation of all ranks before the step; default: none"
    )


class PipelineReplicas(Strict):
    """Replicas of the pipeline, whose gradients are summed."""

    all_reduce: Duration | None = Field(
        None, description="time of the all-reduce of a stage (with `ranks`: of a rank)"
    )
    replicas: Count | None = Field(
        None, description="instead of all_reduce: the number of replicas, with their bandwidth"
    )
    bandwidth: Bandwidth | None = Field(None, description="bandwidth of each replica's link")
    overlap: bool = Field(
        True,
        description="on a stream of its own: gradients are summed as soon as possible, parameters gathered "
        "(zero-1) as the next step begins",
    )
    buckets: Size = Field(1, description="number of buckets that the gradients are summed in")
    sharding: Literal["none", "zero-1"] = Field(
        "none", description="zero-1: the replicas share the optimizer state, and gather what each updates"
    )

    @model_validator(mode="after")
    def _one_way(self) -> PipelineReplicas:
        if self.all_reduce is None and (self.replicas is None or self.bandwidth is None):
            raise fault("needs all_reduce, or replicas and bandwidth")
        if self.all_reduce is not None and (self.replicas is not None or self.bandwidth is not None):
            raise fault("has all_reduce and what it would follow from; give one of them")
        return self


class PipelineModelFields(Strict):
    """A transformer, from which times and sizes of the stages are computed."""

    layers: Size = Field(description="layers of the model")
    hidden: Count = Field(description="width of the model")
    heads: Count = Field(description="heads of attention")
    sequence: Count = Field(description="tokens of a sample")
    vocabulary: Whole = Field(0, description="words of embedding and head; default: neither is there")
    micro_batch: Count = Field(1, description="samples in a micro-batch")
    dtype: Name = Field("bf16", description="data type in which it computes")
    attention: Literal["flash", "eager"] = Field("flash", description="flash: it keeps no scores")
    dropout: bool = Field(False, description="dropout, with its masks")
    gradients: Literal["fp32", "bf16"] = Field("fp32", description="in which gradients are summed")
    recompute: Literal["none", "selective", "full"] = Field(
        "none", description="which activations are recomputed"
    )
    tp: Count = Field(1, description="devices that share a layer")
    bandwidth: Bandwidth | None = Field(
        None, description="bandwidth between devices that share a layer; default: messages take no time"
    )
    rate: FlopRate | None = Field(
        None, description="flop rate achieved on a device; default: the machine's cost model"
    )
    calibration: Name | CalibrationFields | None = Field(
        None,
        description="instead of rate: what the GPU reaches in training, as in `train`: a name, a file, "
        "or numbers; default: the machine's cost model, as for `build`",
    )

    @property
    def by_device(self) -> bool:
        """Whether the devices' cost models give the times of kernels."""
        return self.rate is None and self.calibration is None

    @model_validator(mode="after")
    def _one_source(self) -> PipelineModelFields:
        if self.rate is not None and self.calibration is not None:
            raise fault("has rate and calibration, which both say what kernels take; give one of them")
        if self.calibration is not None and self.bandwidth is not None:
            raise fault("has bandwidth, and the calibration says what messages take; leave one out")
        return self


MOST_SLOTS = MOST_BUILT
"""Maximum number of forwards in a run: stages times micro-batches."""

Checkpoint = Literal["always", "except_last", "never"]


class PipelineFields(StageFields):
    """A pipeline: its stages, its micro-batches and its surroundings."""

    stages: Size | list[StageFields] | None = Field(
        None, description="number of stages, all chunks counted; or a list with times and sizes of each"
    )
    ranks: Size | None = Field(
        None,
        description="instead of stages: number of ranks; each has as many stages as the schedule has "
        "chunks, which share the rank's times and sizes; a model or layers are cut into all of them",
    )
    layers: list[StageFields] | File | None = Field(
        None, description="layers, or a PipeDream profile of them, cut into stages by `partition`"
    )
    graph: File | None = Field(None, description="layers from a graph of a forward pass, of any known format")
    backward: Duration | AnyFactor | None = Field(  # type: ignore[assignment]
        None, description="time of B; default: I + W, and of an op of a graph x2, twice its forward"
    )
    model: PipelineModelFields | None = Field(None, description="a transformer cut into equal stages")
    partition: (
        Literal["min-max", "block", "time", "size", "pipedream", "pipedream-optimizer"] | list[Count]
    ) = Field("min-max", description="how layers are cut: a planner, or how many layers each stage gets")
    bandwidth: Bandwidth | Annotated[list[LevelFields], Field(min_length=1)] | None = Field(
        None,
        description="bandwidth between all workers, for the planners of PipeDream, or the levels of the "
        "machine, from the innermost (devices in a server, then servers)",
    )
    micro_batches: Size = Field(description="into how many parts a batch is cut")
    batch: Count | None = Field(
        None, description="samples; split as tensor.chunk does, into fewer micro-batches if uneven"
    )
    chunks: Size | None = Field(None, description="stages per rank; default: the schedule's own")
    transfer: Duration | None = Field(
        None, description="time between two ranks, if there is no machine with links"
    )
    issue_cost: Duration | None = Field(None, description="host time to launch an op, if there is no machine")
    checkpoint: Checkpoint = Field("never", description="which micro-batches are recomputed")
    backward_dependency: bool = Field(
        True, description="false: the last stage recomputes all before any backward, as plain autograd does"
    )
    skips: list[SkipFields] = Field(default_factory=list, description="skip connections")
    portals: bool = Field(True, description="skips go straight to the stage that reads them")
    overlap: bool = Field(True, description="copies overlap with computation; false: they block both ends")
    optimizer: Annotated[Optimizer, Shorthand("duration", "duration")] | None = Field(
        None, description="the step at the end: its time, or a mapping"
    )
    dp: PipelineReplicas | None = Field(None, description="replicas whose gradients are summed")
    devices: list[Name] | None = Field(
        None, description="device of each rank; default: those of the machine, in order"
    )

    @model_validator(mode="after")
    def _not_endless(self) -> PipelineFields:
        stages = len(self.stages) if isinstance(self.stages, list) else self.stages or self.ranks or 1
        slots = stages * (self.chunks or 1 if self.ranks else 1) * self.micro_batches
        if slots > MOST_SLOTS:
            raise fault(
                f"has {stages:,} stages and {self.micro_batches:,} micro-batches, {slots:,} forwards; there "
                f"may be {MOST_SLOTS:,}"
            )
        return self

    @model_validator(mode="after")
    def _one_source(self) -> PipelineFields:
        sources = ("stages", "ranks", "layers", "graph", "model")
        given = [key for key in sources if getattr(self, key) is not None]
        counted = ("stages" in given and isinstance(self.stages, int)) or "ranks" in given
        if not given:
            raise fault(f"has no stages; give one of {', '.join(sources)}")
        cut = [key for key in given if key in ("layers", "graph", "model")]
        if len(cut) > 1 or (given != cut and cut and not (counted and len(given) == 2)):
            raise fault(
                f"has {' and '.join(given)}; one of layers, a graph and a model is cut, into "
                "`ranks: N` times the chunks of the schedule, or into `stages: N`"
            )
        if not cut and len(given) > 1:
            raise fault("has stages and ranks; stages counts chunks, ranks does not: give one of them")
        if cut and not counted and isinstance(self.partition, str):
            raise fault(
                f"has {cut[0]} and no number of stages to cut them into; give ranks: N (each gets as many "
                "stages as the schedule has chunks), or stages: N"
            )
        if isinstance(self.backward, Fraction) and self.graph is None:
            raise fault("is a factor of what ops of a graph take; give graph, or a time", ("backward",))
        if self.graph is not None or isinstance(self.layers, str):
            for key in StageFields.model_fields:
                if getattr(self, key) not in (None, {}) and not isinstance(getattr(self, key), Fraction):
                    raise fault("has no effect: the graph, or the profile, says it; leave it out", (key,))
        if not cut and self.forward is None and not isinstance(self.stages, list):
            raise fault("has no times; give forward, and backward or input_grad and weight_grad")
        return self
