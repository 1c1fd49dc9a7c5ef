"""What ``workload: {train: ...}`` may hold, and a calibration file, as pydantic models.

::

    train:
      model: llama3-70b             a name, or sizes: {layers: 80, hidden: 8192, ...}; {name: ..., layers: 12}
      calibration: h100-sxm              a name, a file, or numbers
      parallel: {tp: 8, pp: 4, vpp: 2, dp: 16, sharding: zero-1}
      sequence: 8192
      micro_batch: 1
      global_batch: 1024
      recompute: selective
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from devices.describe.field_types import Bandwidth, Bytes, Duration, FlopRate
from devices.describe.quantities import Count, Name, Shorthand, Size, Strict, Whole, fault
from scenarios.build.train.layout import ORDER

__all__ = ["CalibrationFields", "ModelFields", "ParallelFields", "ReachFields", "TrainFields"]


def _ratio(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Share = Annotated[float, BeforeValidator(_ratio), Field(gt=0, le=2)]
"""A part of a peak; measured ones of short runs may exceed it."""

Factor = Annotated[float, BeforeValidator(_ratio), Field(ge=0.01, le=100)]

Kinds = dict[str, Share]
Times = dict[str, Duration]


class ModelFields(Strict):
    """A language model: a name, and sizes that replace those of the name."""

    name: Annotated[Name | None, Field(description="a known model, whose sizes the others replace")] = None
    layers: Annotated[Size | None, Field(description="layers of the model")] = None
    hidden: Annotated[Count | None, Field(description="width of the model")] = None
    heads: Annotated[Count | None, Field(description="heads of attention")] = None
    vocabulary: Annotated[Count | None, Field(description="words of embedding and head")] = None
    kv_heads: Annotated[Count | None, Field(description="heads of keys and values; default: as heads")] = None
    head: Annotated[Count | None, Field(description="width of a head; default: hidden / heads")] = None
    middle: Annotated[
        Count | None, Field(description="width between the products of a layer; default: 4 hidden")
    ] = None
    gated: Annotated[bool | None, Field(description="a gate beside the middle (SwiGLU)")] = None
    tied: Annotated[bool | None, Field(description="the head's weights are the embedding's")] = None
    positions: Annotated[Whole | None, Field(description="learned positions; default: none")] = None
    rotary: Annotated[bool | None, Field(description="rotary positions")] = None
    biases: Annotated[bool | None, Field(description="products and norms have biases")] = None
    experts: Annotated[Size | None, Field(description="experts of a layer")] = None
    experts_per_token: Annotated[Size | None, Field(description="experts that each token goes to")] = None
    expert_middle: Annotated[Count | None, Field(description="width between the products of an expert")] = (
        None
    )
    shared_middle: Annotated[Whole | None, Field(description="width of the shared experts together")] = None
    dense_layers: Annotated[Whole | None, Field(description="first layers, which have no experts")] = None
    q_rank: Annotated[Whole | None, Field(description="latent attention: width of compressed queries")] = None
    kv_rank: Annotated[
        Whole | None, Field(description="latent attention: width of compressed keys and values")
    ] = None
    rotary_head: Annotated[Whole | None, Field(description="latent attention: rotary part of a head")] = None
    value_head: Annotated[Count | None, Field(description="width of a head of values")] = None


class ParallelFields(Strict):
    """Sizes of the groups of ranks."""

    tp: Annotated[Size, Field(description="tensor parallelism")] = 1
    cp: Annotated[Size, Field(description="context parallelism")] = 1
    ep: Annotated[Size, Field(description="expert parallelism, within tp, cp and dp")] = 1
    pp: Annotated[Size, Field(description="pipeline parallelism")] = 1
    vpp: Annotated[Size, Field(description="stages a pipeline rank (virtual pipeline)")] = 1
    dp: Annotated[Size, Field(description="data parallelism")] = 1
    sequence_parallel: Annotated[
        bool, Field(description="split along the sequence what tensor parallelism leaves whole")
    ] = True
    sharding: Annotated[
        Literal["none", "zero-1", "zero-2", "fsdp", "zero-3"],
        Field(
            description="shared by data-parallel ranks: optimizer state, gradients too, parameters too as "
            "PyTorch's FSDP or as DeepSpeed's ZeRO-3 gathers them"
        ),
    ] = "zero-1"
    shard: Annotated[Whole, Field(description="ranks that share one copy (HSDP); default: all")] = 0
    order: Annotated[
        list[Literal["tp", "cp", "pp", "dp"]],
        Field(default=list(ORDER), description="from the group whose ranks are nearest to the farthest"),
    ]
    context: Annotated[
        Literal["all-to-all", "ring", "all-gather"], Field(description="how context parallelism communicates")
    ] = "all-to-all"


class ReachFields(Strict):
    """Collectives inside a node, or between nodes."""

    bandwidth: Annotated[Bandwidth, Field(description="of a rank, each way")]
    efficiency: Annotated[Kinds, Field(default_factory=dict, description="part of it, by kind or `default`")]
    latency: Annotated[
        Times | Literal["nccl"] | None,
        Field(
            description="of a message, by kind or `default`; `nccl`, of `between`: those of NCCL's "
            "protocols; default: of `between` nccl, of `node` none, with a warning"
        ),
    ] = None
    fixed: Annotated[
        Times, Field(default_factory=dict, description="of a call, by kind, or kind/ranks as in all_to_all/4")
    ]


class Measured(Strict):
    """One measured shape."""

    product: Annotated[list[Count] | None, Field(description="m, k, n, and groups of a grouped product")] = (
        None
    )
    part: Annotated[
        Literal["F", "I", "W"], Field(description="forward, input gradient or weight gradient of a product")
    ] = "F"
    attention: Annotated[
        list[Count] | None, Field(description="batch, sequence, heads, kv heads, width of queries, of values")
    ] = None
    backward: Annotated[bool, Field(description="whether attention ran backward")] = False
    efficiency: Annotated[Share, Field(description="part of the peak that it reached")]

    @model_validator(mode="after")
    def _one(self) -> Measured:
        if (self.product is None) == (self.attention is None):
            raise fault("should have a product or an attention")
        if self.product is not None and len(self.product) not in (3, 4):
            raise fault(f"product should have m, k, n, and perhaps groups, not {len(self.product)} numbers")
        if self.attention is not None and len(self.attention) != 6:
            raise fault(f"attention should have six numbers, not {len(self.attention)}")
        return self


class CalibrationFields(Strict):
    """What one kind of GPU reaches."""

    description: Annotated[str | None, Field(description="what was calibrated, in a line")] = None
    device: Annotated[
        Name | None, Field(description="a device preset, for peak, bandwidth and memory that are not given")
    ] = None
    peak: Annotated[FlopRate | None, Field(description="of the products, in the training's precision")] = None
    bandwidth: Annotated[Bandwidth | None, Field(description="of the memory")] = None
    memory: Annotated[Bytes | None, Field(description="of a GPU")] = None
    product: Annotated[Share, Field(description="part of the peak that large products reach")] = 1.0
    attention_forward: Annotated[
        Share, Field(description="part of the peak that attention reaches, forward")
    ] = 1.0
    attention_backward: Annotated[Share, Field(description="... backward")] = 1.0
    passes: Annotated[
        Kinds,
        Field(default_factory=dict, description="part of the bandwidth: elementwise, permute, cross-entropy"),
    ]
    gap: Annotated[Duration, Field(description="between two kernels")] = 0
    sustained: Annotated[Share, Field(description="rate in a long run / rate of the measurements")] = 1.0
    contention: Annotated[Factor, Field(description="time of a collective in a step / alone")] = 1.0
    hiding: Annotated[
        float,
        BeforeValidator(_ratio),
        Field(ge=0, le=1, description="part of a collective that passes beside a kernel"),
    ] = 1.0
    nccl: Annotated[
        Literal["a100", "h100", "h200", "b200"] | None,
        Field(description="collectives as NCCL chooses and times them there, instead of node and between"),
    ] = None
    node: Annotated[ReachFields | None, Field(description="inside a node")] = None
    between: Annotated[
        ReachFields | None, Field(description="between nodes: a rank's part of its node's network")
    ] = None
    measured: Annotated[
        list[Measured], Field(default_factory=list, description="efficiency of single shapes")
    ]
    sources: Annotated[dict[str, str], Field(default_factory=dict, description="where numbers come from")]

    @model_validator(mode="after")
    def _one_way(self) -> CalibrationFields:
        for name, given in (("node", self.node), ("between", self.between)):
            if self.nccl is None and given is None:
                raise fault(f"{name} is missing: give it, or nccl")
            if self.nccl is not None and given is not None:
                raise fault(f"nccl says what collectives take: leave {name} out")
        if self.node is not None and self.node.latency == "nccl":
            raise fault("latency: nccl is of between, where messages cross nodes; give node a time")
        if self.between is not None and self.between.fixed and not isinstance(self.between.latency, dict):
            raise fault(
                "between: NCCL's latencies, the default, are all that a call takes besides its bytes; "
                "give fixed together with latency: {default: 5us}, or of 0us"
            )
        return self


class TrainFields(Strict):
    """A training step of a language model on many ranks."""

    model: Annotated[ModelFields, Shorthand("name"), Field(description="a name, or sizes")]
    calibration: Annotated[
        Name | CalibrationFields, Field(description="what the GPU reaches: a name, a file, or numbers")
    ]
    parallel: Annotated[ParallelFields, Field(default_factory=ParallelFields)]
    gpus: Annotated[
        Count | None, Field(description="which the layout has to fill; dp, if left out, takes what is left")
    ] = None
    node: Annotated[Size, Field(description="GPUs a node")] = 8
    sequence: Annotated[Count, Field(description="tokens of a sample")]
    micro_batch: Annotated[Size, Field(description="samples of a micro-batch")] = 1
    global_batch: Annotated[Count, Field(description="samples of a step, on all replicas")]
    recompute: Annotated[
        Literal["none", "selective", "full"],
        Field(description="selective: attention's inside; full: each layer"),
    ] = "none"
    precision: Annotated[Literal["bf16", "fp16", "fp8"], Field(description="of the products")] = "bf16"
    gradients: Annotated[Literal["fp32", "bf16"], Field(description="in which gradients are summed")] = "fp32"
    optimizer_bytes: Annotated[Count, Field(description="optimizer state of a parameter")] = 12
    overlap: Annotated[bool, Field(description="reduce gradients beside the backward")] = False
    flash: Annotated[bool, Field(description="attention keeps no scores")] = True
    dropout: Annotated[bool, Field(description="dropout, with its masks")] = False
    imbalance: Annotated[Factor, Field(description="tokens of the fullest expert rank / of the mean")] = 1.0
    routing: Annotated[
        Literal["balanced", "one-hot"] | dict[str, Any] | None,
        Field(description="which tokens go to which expert: {zipf: 1}, {trace: FILE}, ..."),
    ] = None
    capacity_factor: Annotated[
        Factor | None, Field(description="most that an expert takes of a rank's tokens / its equal part")
    ] = None
    pad_to_capacity: Annotated[bool, Field(description="ranks fill up what they send to the capacity")] = (
        False
    )
    stage_layers: Annotated[list[Size] | None, Field(description="layers of each stage; default: even")] = (
        None
    )
    memory: Annotated[Bytes | None, Field(description="of a GPU, instead of the calibration's")] = None
