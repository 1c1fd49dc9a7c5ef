"""What ``workload: {pipeline: ...}`` may hold, as pydantic models;
`scenarios.workloads.pipeline_workload` uses it.

::

    pipeline:
      stages: 4                    how many, or a list with one mapping a stage; or ranks: 4
      micro_batches: 8
      forward: 1ms                 what is said here holds for every stage that does not say otherwise
      backward: 2ms                or input_grad and weight_grad
      activation: 4MB              sent to the next stage; transfer: 0.1ms where no machine has links
      kept: 40MB                   what a micro-batch keeps for its backward
      parameters: 1GB
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from devices.describe.field_types import Bandwidth, Bytes, Duration, FlopRate, fault
from devices.describe.quantities import Count, File, Name, Shorthand, Size, Strict, Whole
from scenarios.workloads.calibrations import CalibrationFields
from sim.base.arrays import MOST_BUILT


class StageFields(Strict):
    """Times and sizes of one micro-batch on one stage, and what is resident there."""

    forward: Annotated[Duration | None, Field(description="time of F")] = None
    backward: Annotated[Duration | None, Field(description="time of B; default: I + W")] = None
    input_grad: Annotated[Duration | None, Field(description="time of I, the first half of B")] = None
    weight_grad: Annotated[Duration | None, Field(description="time of W, the second half of B")] = None
    recompute: Annotated[Duration | None, Field(description="time of R; default: that of F")] = None
    overlapped: Annotated[
        Duration | None, Field(description="time of F and B in one slot (DualPipe); default: their sum")
    ] = None
    collective: Annotated[
        Duration | None,
        Field(description="messages inside a stage after F and after B or I (tensor or expert parallelism)"),
    ] = None
    activation: Annotated[Bytes | None, Field(description="size sent to the next stage; default 0")] = None
    kept: Annotated[
        Bytes | None, Field(description="activations kept from F (or R) to B; default: as `activation`")
    ] = None
    kept_for_weight_grad: Annotated[
        Bytes | None, Field(description="the part of `kept` that W reads; default: all of it")
    ] = None
    stage_input: Annotated[
        Bytes | None,
        Field(description="what a recomputed micro-batch keeps from F to R; default: as `activation`"),
    ] = None
    parameters: Annotated[Bytes | None, Field(description="weights; default 0")] = None
    gradients: Annotated[Bytes | None, Field(description="gradients of the weights; default 0")] = None
    optimizer_state: Annotated[Bytes | None, Field(description="what the optimizer keeps; default 0")] = None


class SkipFields(Strict):
    """A skip connection to a later stage."""

    source: Annotated[Whole, Field(alias="from", description="stage that makes the tensor")]
    to: Annotated[Whole, Field(description="stage that reads it")]
    size: Bytes


class LevelFields(Strict):
    """A level of the machine as PipeDream's planners see it."""

    workers: Annotated[Size, Field(description="devices, or whole levels below, in one of this level")]
    bandwidth: Annotated[Bandwidth, Field(description="bandwidth between them")]


class Optimizer(Strict):
    """The optimizer step at the end."""

    duration: Annotated[Duration, Field(description="time of a stage (with `ranks`: of a rank)")]
    synchronisation: Annotated[
        Duration | None,
        Field(description="time of a synchronisation of all ranks before the step; default: none"),
    ] = None


class PipelineReplicas(Strict):
    """Replicas of the pipeline, whose gradients are summed."""

    all_reduce: Annotated[
        Duration | None, Field(description="time of the all-reduce of a stage (with `ranks`: of a rank)")
    ] = None
    replicas: Annotated[
        Count | None, Field(description="instead of all_reduce: the number of replicas, with their bandwidth")
    ] = None
    bandwidth: Annotated[Bandwidth | None, Field(description="bandwidth of each replica's link")] = None
    overlap: Annotated[bool, Field(description="sum as soon as possible, on a stream of its own")] = True
    buckets: Annotated[Size, Field(description="number of buckets that the gradients are summed in")] = 1
    sharding: Annotated[
        Literal["none", "zero-1"], Field(description="zero-1: the replicas share the optimizer state")
    ] = "none"

    @model_validator(mode="after")
    def _one_way(self) -> PipelineReplicas:
        if self.all_reduce is None and (self.replicas is None or self.bandwidth is None):
            raise fault("needs all_reduce, or replicas and bandwidth")
        if self.all_reduce is not None and (self.replicas is not None or self.bandwidth is not None):
            raise fault("has all_reduce and what it would follow from; give one of them")
        return self


class PipelineModelFields(Strict):
    """A transformer, from which times and sizes of the stages are computed."""

    layers: Annotated[Size, Field(description="layers of the model")]
    hidden: Annotated[Count, Field(description="width of the model")]
    heads: Annotated[Count, Field(description="heads of attention")]
    sequence: Annotated[Count, Field(description="tokens of a sample")]
    vocabulary: Annotated[
        Whole, Field(description="words of embedding and head; default: neither is there")
    ] = 0
    micro_batch: Annotated[Count, Field(description="samples in a micro-batch")] = 1
    dtype: Annotated[Name, Field(description="data type in which it computes")] = "bf16"
    flash: Annotated[bool, Field(description="attention keeps no scores")] = True
    dropout: Annotated[bool, Field(description="dropout, with its masks")] = False
    gradients: Annotated[Literal["fp32", "bf16"], Field(description="in which gradients are summed")] = "fp32"
    recompute: Annotated[
        Literal["none", "selective", "full"], Field(description="which activations are recomputed")
    ] = "none"
    tp: Annotated[Count, Field(description="devices that share a layer")] = 1
    bandwidth: Annotated[
        Bandwidth | None,
        Field(description="bandwidth between devices that share a layer; default: messages take no time"),
    ] = None
    rate: Annotated[
        FlopRate | None,
        Field(description="flop rate achieved on a device; default: the machine's cost model"),
    ] = None
    calibration: Annotated[
        Name | CalibrationFields | None,
        Field(
            description="instead of rate: what the GPU reaches in training, as in `train`: a name, a file, "
            "or numbers; default: the machine's cost model, as for `build`"
        ),
    ] = None

    @property
    def by_device(self) -> bool:
        """Whether the devices' cost models say what kernels take."""
        return self.rate is None and self.calibration is None

    @model_validator(mode="after")
    def _one_source(self) -> PipelineModelFields:
        if self.rate is not None and self.calibration is not None:
            raise fault("has rate and calibration, which both say what kernels take; give one of them")
        if self.calibration is not None and self.bandwidth is not None:
            raise fault("has bandwidth, and the calibration says what messages take; leave one out")
        return self


def _stages(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value is None or isinstance(value, list) or is_count:
        return value
    raise fault(f"should be a number of stages, or a list of them, not {value!r}")


MOST_SLOTS = MOST_BUILT
"""Most forwards of a run, stages times micro-batches."""

Checkpoint = Literal["always", "except_last", "never"]


class PipelineFields(StageFields):
    """A pipeline: its stages, its micro-batches, and what is around them."""

    stages: Annotated[
        Size | list[StageFields] | None,
        BeforeValidator(_stages),
        Field(description="number of stages, all chunks counted; or a list with times and sizes of each"),
    ] = None
    ranks: Annotated[
        Size | None,
        Field(
            description="instead of stages: number of ranks; each has as many stages as the schedule has "
            "chunks, which share the rank's times and sizes; a model or layers are cut into all of them"
        ),
    ] = None
    layers: Annotated[
        list[StageFields] | None, Field(description="layers, cut into stages by `partition`")
    ] = None
    profile: Annotated[File | None, Field(description="layers from a PipeDream profile")] = None
    graph: Annotated[
        File | None, Field(description="layers from a graph of a forward pass, of any known format")
    ] = None
    backward_ratio: Annotated[
        float, Field(gt=0, le=100, description="time of an op's backward divided by its forward")
    ] = 2.0
    model: Annotated[PipelineModelFields | None, Field(description="a transformer cut into equal stages")] = (
        None
    )
    partition: Annotated[
        Literal["min-max", "block", "time", "size", "pipedream", "pipedream-optimizer"] | list[Count],
        Field(description="how layers are cut: a planner, or how many layers each stage gets"),
    ] = "min-max"
    bandwidth: Annotated[
        Bandwidth | None, Field(description="bandwidth between all workers, for the planners of PipeDream")
    ] = None
    levels: Annotated[
        list[LevelFields] | None,
        Field(
            min_length=1,
            description="instead of bandwidth, for the same planners: the levels of the machine, from the "
            "innermost (devices in a server, then servers)",
        ),
    ] = None
    micro_batches: Annotated[Size, Field(description="into how many parts a batch is cut")]
    batch: Annotated[
        Count | None,
        Field(description="samples; split as tensor.chunk does, into fewer micro-batches if uneven"),
    ] = None
    chunks: Annotated[Size | None, Field(description="stages per rank; default: the schedule's own")] = None
    transfer: Annotated[
        Duration | None, Field(description="time between two ranks, if there is no machine with links")
    ] = None
    issue_cost: Annotated[
        Duration | None, Field(description="host time to launch an op, if there is no machine")
    ] = None
    checkpoint: Annotated[Checkpoint, Field(description="which micro-batches are recomputed")] = "never"
    backward_dependency: Annotated[
        bool,
        Field(description="false: the last stage recomputes all before any backward, as plain autograd does"),
    ] = True
    skips: Annotated[list[SkipFields], Field(default_factory=list, description="skip connections")]
    portals: Annotated[bool, Field(description="skips go straight to the stage that reads them")] = True
    overlap: Annotated[
        bool, Field(description="copies overlap with computation; false: they block both ends")
    ] = True
    optimizer: Annotated[
        Annotated[Optimizer, Shorthand("duration", "duration")] | None,
        Field(description="the step at the end: its time, or a mapping"),
    ] = None
    dp: Annotated[PipelineReplicas | None, Field(description="replicas whose gradients are summed")] = None
    devices: Annotated[
        list[Name] | None, Field(description="device of each rank; default: those of the machine, in order")
    ] = None

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
        sources = ("stages", "ranks", "layers", "profile", "graph", "model")
        given = [key for key in sources if getattr(self, key) is not None]
        counted = ("stages" in given and isinstance(self.stages, int)) or "ranks" in given
        if not given:
            raise fault(f"has no stages; give one of {', '.join(sources)}")
        cut = [key for key in given if key in ("layers", "profile", "graph", "model")]
        if len(cut) > 1 or (given != cut and cut and not (counted and len(given) == 2)):
            raise fault(
                f"has {' and '.join(given)}; one of layers, a profile, a graph and a model is cut, into "
                "`ranks: N` times the chunks of the schedule, or into `stages: N`"
            )
        if not cut and len(given) > 1:
            raise fault("has stages and ranks; stages counts chunks, ranks does not: give one of them")
        if cut and not counted and isinstance(self.partition, str):
            raise fault(
                f"has {cut[0]} and no number of stages to cut them into; give ranks: N (each gets as many "
                "stages as the schedule has chunks), or stages: N"
            )
        if not cut and self.forward is None and not isinstance(self.stages, list):
            raise fault("has no times; give forward, and backward or input_grad and weight_grad")
        return self
