"""What ``workload: {train: ...}`` may hold, as pydantic models.

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

from pydantic import Field

from devices.describe.field_types import Bytes
from devices.describe.quantities import Count, Name, Shorthand, Size, Strict, Whole
from scenarios.build.train.layout import ORDER
from scenarios.work.calibrations.calibration_fields import CalibrationFields, Factor

__all__ = ["ModelFields", "ParallelFields", "TrainFields"]


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
