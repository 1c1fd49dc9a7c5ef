"""Data parallelism: replicas that sum their gradients, in buckets, during the backward or after it.

::

    gpu0  compute        F1 F2 F3 │ B3   B2   B1  │                    optimizer
          communication           │     [ b0 ]  [ b1 ]                 b0: gradients of layer 3 and 2
    gpu1  the same                │                                    b1: of layer 1

The gradient of a layer is there when its backward has run; backwards run from the last layer to the
first, and gradients fill buckets in that order: a bucket is closed when it holds `bucket_nbytes` or more.
A bucket is summed when *every* replica has filled it: the all-reduces are collectives of one communicator
(`sim.job.collectives`). So the slowest replica decides, and only what is left after its last backward
is exposed (Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", VLDB 2020, arXiv 2006.15704, sections 3.2 and 4.2).

The all-reduce of n replicas is a ring: every link carries 2 (n - 1) / n of the bytes, in 2 (n - 1) steps
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009). Where
neither bandwidth nor latency of its links is given, the machine says how long it takes. It is one op a
replica, on stream 1 (attribute ``stream``, which `policies.streams` follows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated, Any, Literal

from pydantic import Field

from devices.collectives.groups import Fabric
from devices.describe.field_types import Bandwidth, Bytes, Duration
from devices.describe.quantities import Size
from policies.parallel.ddp import closed_when_full
from scenarios.builders.builder import Builder, Keys
from sim.base.arrays import MOST_BUILT, at_most
from sim.base.units import round_half_up
from sim.graph.builder import GraphBuilder, Ref
from sim.graph.graph import Graph


class LayerFields(Keys):
    """A layer on one replica."""

    forward: Duration
    backward: Duration
    gradients: Bytes = Field(0, description="size of its weights' gradients")


class DataParallelFields(Builder):
    """Training steps on replicas that sum their gradients in buckets."""

    model: Literal["data-parallel"] = Field(description="which builder")
    replicas: Size = Field(description="GPUs that each have the whole model")
    layers: list[LayerFields] = Field(min_length=1, description="from the first to the last")
    blocks: Size = Field(1, description="how many times these layers follow one another")
    bandwidth: Bandwidth | None = Field(
        None, description="bandwidth of a link of the ring; default: what the machine's collectives take"
    )
    latency: Duration | None = Field(None, description="latency of a step of the ring")
    bucket_size: Annotated[
        Bytes, Field(default="25MB", description="size at which a bucket is closed; 0: one per layer")
    ]
    overlap: bool = Field(True, description="sum a bucket as soon as it is full")
    optimizer: Duration = 0

    def graph(self) -> Graph:
        """Return one training step on all replicas.

        Ops of replica r are ``gpu{r}/F{layer}``, ``B{layer}``, ``all_reduce{bucket}`` and ``optimizer``,
        layers and buckets counted from 0; the next iteration begins with the weights of this one.

        Examples
        --------
        >>> layer = {"forward": "1ns", "backward": "2ns", "gradients": "8B"}
        >>> sizes = {"layers": [layer, layer], "replicas": 2, "bucket_size": "16B"}
        >>> of = DataParallelFields(model="data-parallel", **sizes)
        >>> [op for op in of.graph().op_names if op.startswith("gpu0")]
        ['gpu0/F0', 'gpu0/F1', 'gpu0/B1', 'gpu0/B0', 'gpu0/all_reduce0']
        """
        at_most(MOST_BUILT, 2 * self.replicas * self.blocks * len(self.layers), "ops")
        builder = GraphBuilder("data parallel")
        stack = self.layers * self.blocks
        gpus = [f"gpu{r}" for r in range(self.replicas)]
        parts = buckets([layer.gradients for layer in stack], self.bucket_size)
        last_op = "optimizer" if self.optimizer else f"all_reduce{len(parts) - 1}"

        def op(gpu: str, name: str, ns: int | None, after: Sequence[Ref], **more: Any) -> None:
            kind = {"F": "forward", "B": "backward"}.get(more.get("phase", ""), name.rstrip("0123456789"))
            more = {"attributes": {"stream": 0}, **more}
            builder.op(f"{gpu}/{name}", kind=kind, after=after, duration_ns=ns, device=gpu, **more)

        for gpu in gpus:
            before: Ref = (f"{gpu}/{last_op}", 1)
            for i, layer in enumerate(stack):
                op(gpu, f"F{i}", layer.forward, [before], phase="F", outputs=0)
                before = f"{gpu}/F{i}"
            for i, layer in reversed(list(enumerate(stack))):
                op(gpu, f"B{i}", layer.backward, [before], phase="B", outputs=layer.gradients)
                before = f"{gpu}/B{i}"
        for gpu in gpus:
            for b, layers in enumerate(parts):
                nbytes = sum(stack[i].gradients for i in layers)
                filled = f"B{layers[-1]}" if self.overlap else "B0"
                after = [f"{gpu}/{filled}"] + [f"{gpu}/all_reduce{b - 1}"] * (b > 0)
                op(
                    gpu,
                    f"all_reduce{b}",
                    self._all_reduce_ns(nbytes),
                    after,
                    inputs=[f"{gpu}/B{i}" for i in layers],
                    outputs=nbytes,
                    bytes_read=nbytes,
                    attributes={"stream": 1, "communicator": "replicas", "nbytes": nbytes},
                )
        for gpu in gpus if self.optimizer else ():
            op(gpu, "optimizer", self.optimizer, [f"{gpu}/all_reduce{b}" for b in range(len(parts))])
        return builder.build()

    def _all_reduce_ns(self, nbytes: int) -> int | None:
        """Return how long an all-reduce takes; None: the machine says it."""
        if nbytes and self.bandwidth is None and self.latency is None:
            return None
        links = Fabric(self.bandwidth or inf, latency_ns={"default": self.latency or 0})
        return round_half_up(links.time_ns("all_reduce", nbytes, self.replicas))

    def default_machine(self) -> Mapping[str, Any]:
        """Return a GPU for each replica, with a stream for communication."""
        return {"devices": {f"gpu{r}": {"kind": "gpu", "streams": 2} for r in range(self.replicas)}}


def buckets(gradient_nbytes: Sequence[int], bucket_nbytes: int) -> list[list[int]]:
    """Return the layers of each bucket, from the last layer to the first.

    Examples
    --------
    >>> buckets([10, 20, 30, 5], 25)
    [[3, 2], [1, 0]]
    >>> buckets([10, 20, 30], 0)
    [[2], [1], [0]]
    """
    last = len(gradient_nbytes) - 1
    found = closed_when_full(gradient_nbytes[::-1], [bucket_nbytes])
    return [[last - k for k in row] for row in found]
