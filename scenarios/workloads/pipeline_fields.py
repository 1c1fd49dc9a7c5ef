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
from policies.pipeline.registry import MOST_SLOTS
from scenarios.builders.pipeline_stage import SkipFields
from scenarios.recorded.durations import AnyFactor
from scenarios.workloads.calibrations import CalibrationFields


class StageFields(Strict):
    """Times and sizes of one micro-batch on one stage, and the stage's resident memory.

    Attributes
    ----------
    forward
        time of F
    backward
        time of B; default: I + W
    input_grad
        time of I, the first half of B
    weight_grad
        time of W, the second half of B
    recompute
        time of R; default: that of F
    overlapped
        time of F and B in one slot (DualPipe), less of smaller micro-batches as their sum is; default: their
        sum
    collectives
        messages inside a stage after F and after B or I (tensor or expert parallelism)
    activation
        size sent to the next stage; default 0
    kept
        activations kept from F (or R) to B (default: as `activation`), the part that W reads (default: all of
        it), and what a recomputed micro-batch keeps from F to R (default: `activation`)
    parameters
        weights; default 0
    gradients
        gradients of the weights; default 0
    optimizer_state
        what the optimizer keeps; default 0
    """

    forward: Duration | None = None
    backward: Duration | None = None
    input_grad: Duration | None = None
    weight_grad: Duration | None = None
    recompute: Duration | None = None
    overlapped: Duration | None = None
    collectives: Duration | None = None
    activation: Bytes | None = None
    kept: Annotated[
        dict[Literal["backward", "weight_grad", "recompute"], Bytes], Shorthand("backward", "size")
    ] = Field(default_factory=dict)
    parameters: Bytes | None = None
    gradients: Bytes | None = None
    optimizer_state: Bytes | None = None


class LevelFields(Strict):
    """A level of the machine as PipeDream's planners see it.

    Attributes
    ----------
    workers
        devices, or whole levels below, in one of this level
    bandwidth
        bandwidth between them
    """

    workers: Size
    bandwidth: Bandwidth


class Optimizer(Strict):
    """The optimizer step at the end.

    Attributes
    ----------
    duration
        time of a stage (with `ranks`: of a rank)
    synchronisation
        time of a synchronisation of all ranks before the step; default: none
    """

    duration: Duration
    synchronisation: Duration | None = None


class PipelineReplicas(Strict):
    """Replicas of the pipeline, whose gradients are summed.

    Attributes
    ----------
    all_reduce
        time of the all-reduce of a stage (with `ranks`: of a rank)
    replicas
        instead of all_reduce: the number of replicas, with their bandwidth
    bandwidth
        bandwidth of each replica's link
    overlap
        on a stream of its own: gradients are summed as soon as possible, parameters gathered (zero-1) as the
        next step begins
    buckets
        number of buckets that the gradients are summed in
    sharding
        zero-1: the replicas share the optimizer state, and gather what each updates
    """

    all_reduce: Duration | None = None
    replicas: Count | None = None
    bandwidth: Bandwidth | None = None
    overlap: bool = True
    buckets: Size = 1
    sharding: Literal["none", "zero-1"] = "none"

    @model_validator(mode="after")
    def _one_way(self) -> PipelineReplicas:
        if self.all_reduce is None and (self.replicas is None or self.bandwidth is None):
            raise fault("needs all_reduce, or replicas and bandwidth")
        if self.all_reduce is not None and (self.replicas is not None or self.bandwidth is not None):
            raise fault("has all_reduce and what it would follow from; give one of them")
        return self


class PipelineModelFields(Strict):
    """A transformer, from which times and sizes of the stages are computed.

    Attributes
    ----------
    layers
        layers of the model
    hidden
        width of the model
    heads
        heads of attention
    sequence
        tokens of a sample
    vocabulary
        words of embedding and head; default: neither is there
    micro_batch
        samples in a micro-batch
    dtype
        data type in which it computes
    attention
        flash: it keeps no scores
    dropout
        dropout, with its masks
    gradients
        in which gradients are summed
    recompute
        which activations are recomputed
    tp
        devices that share a layer
    bandwidth
        bandwidth between devices that share a layer; default: messages take no time
    rate
        flop rate achieved on a device; default: the machine's cost model
    calibration
        instead of rate: what the GPU reaches in training, as in `train`: a name, a file, or numbers; default:
        the machine's cost model, as for `build`
    """

    layers: Size
    hidden: Count
    heads: Count
    sequence: Count
    vocabulary: Whole = 0
    micro_batch: Count = 1
    dtype: Name = "bf16"
    attention: Literal["flash", "eager"] = "flash"
    dropout: bool = False
    gradients: Literal["fp32", "bf16"] = "fp32"
    recompute: Literal["none", "selective", "full"] = "none"
    tp: Count = 1
    bandwidth: Bandwidth | None = None
    rate: FlopRate | None = None
    calibration: Name | CalibrationFields | None = None

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


Checkpoint = Literal["always", "except_last", "never"]


class PipelineFields(StageFields):
    """A pipeline: its stages, its micro-batches and its surroundings.

    Attributes
    ----------
    stages
        number of stages, all chunks counted; or a list with times and sizes of each
    ranks
        instead of stages: number of ranks; each has as many stages as the schedule has chunks, which share
        the rank's times and sizes; a model or layers are cut into all of them
    layers
        layers, or a PipeDream profile of them, cut into stages by `partition`
    graph
        layers from a graph of a forward pass, of any known format
    backward
        time of B; default: I + W, and of an op of a graph x2, twice its forward
    model
        a transformer cut into equal stages
    partition
        how layers are cut: a planner, or how many layers each stage gets
    bandwidth
        bandwidth between all workers, for the planners of PipeDream, or the levels of the machine, from the
        innermost (devices in a server, then servers)
    micro_batches
        into how many parts a batch is cut
    batch
        samples; split as tensor.chunk does, into fewer micro-batches if uneven
    chunks
        stages per rank; default: the schedule's own
    transfer
        time between two ranks, if there is no machine with links
    issue_cost
        host time to launch an op, if there is no machine
    checkpoint
        which micro-batches are recomputed
    backward_dependency
        false: the last stage recomputes all before any backward, as plain autograd does
    skips
        skip connections
    portals
        skips go straight to the stage that reads them
    overlap
        copies overlap with computation; false: they block both ends
    optimizer
        the step at the end: its time, or a mapping
    dp
        replicas whose gradients are summed
    devices
        device of each rank; default: those of the machine, in order
    """

    stages: Size | list[StageFields] | None = None
    ranks: Size | None = None
    layers: list[StageFields] | File | None = None
    graph: File | None = None
    backward: Duration | AnyFactor | None = None  # type: ignore[assignment]
    model: PipelineModelFields | None = None
    partition: (
        Literal["min-max", "block", "time", "size", "pipedream", "pipedream-optimizer"] | list[Count]
    ) = "min-max"
    bandwidth: Bandwidth | Annotated[list[LevelFields], Field(min_length=1)] | None = None
    micro_batches: Size
    batch: Count | None = None
    chunks: Size | None = None
    transfer: Duration | None = None
    issue_cost: Duration | None = None
    checkpoint: Checkpoint = "never"
    backward_dependency: bool = True
    skips: list[SkipFields] = Field(default_factory=list)
    portals: bool = True
    overlap: bool = True
    optimizer: Annotated[Optimizer, Shorthand("duration", "duration")] | None = None
    dp: PipelineReplicas | None = None
    devices: list[Name] | None = None

    @model_validator(mode="after")
    def _not_endless(self) -> PipelineFields:
        stages = len(self.stages) if isinstance(self.stages, list) else self.stages or self.ranks or 1
        slots = stages * (self.chunks or 1 if self.ranks else 1) * self.micro_batches
        if slots > MOST_SLOTS:
            sizes = f"{stages:,} stages and {self.micro_batches:,} micro-batches, {slots:,} forwards"
            raise fault(f"has {sizes}; there may be {MOST_SLOTS:,}")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> PipelineFields:
        sources = ("stages", "ranks", "layers", "graph", "model")
        present = [key for key in sources if getattr(self, key) is not None]
        cut = [key for key in present if key in ("layers", "graph", "model")]
        counts = [key for key in present if key not in cut]
        several = max(len(cut), len(counts)) > 1 or (cut and isinstance(self.stages, list))
        if not present or several or (not counts and isinstance(self.partition, str)):
            raise fault(
                f"has {' and '.join(present) or 'no stages'}; give stages, how many or a list, or ranks: N "
                "(times the chunks of the schedule), into which one of layers, a graph and a model may be cut"
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
