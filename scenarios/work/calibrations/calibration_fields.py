"""What a calibration file may hold, as pydantic models.

::

    device: h100-sxm                   peak, bandwidth and memory that are not given
    product: 0.784                     parts of the peak, and of the bandwidth, that kernels reach
    passes: {elementwise: 0.466}
    node: {bandwidth: 450GB/s, efficiency: {default: 0.73}}         collectives inside a node
    between: {bandwidth: 50GB/s, latency: nccl}                     and between nodes
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from devices.describe.field_types import Bandwidth, Bytes, Duration, FlopRate
from devices.describe.quantities import Count, Name, Strict, fault
from scenarios.build.train.calibration import STEPS
from sim.words.errors import hint

__all__ = ["CalibrationFields", "Factor", "ReachFields"]


def _ratio(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Share = Annotated[float, BeforeValidator(_ratio), Field(gt=0, le=2)]
"""A part of a peak; measured ones of short runs may exceed it."""

Factor = Annotated[float, BeforeValidator(_ratio), Field(ge=0.01, le=100)]

Kinds = dict[str, Share]
Times = dict[str, Duration]


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

    @model_validator(mode="after")
    def _kinds(self) -> ReachFields:
        known = ("default", *STEPS)
        for name in ("efficiency", "latency", "fixed"):
            given = getattr(self, name)
            for key in given if isinstance(given, dict) else ():
                kind = key.partition("/")[0] if name == "fixed" else key
                if kind not in known:
                    raise fault(f"{name}: unknown kind of collective {kind!r}{hint(kind, known)}")
        return self


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
