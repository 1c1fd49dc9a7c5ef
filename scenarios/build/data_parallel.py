"""Data parallelism: replicas that sum their gradients, in buckets, during the backward or after it.

::

    gpu0  compute        F1 F2 F3 │ B3   B2   B1  │                    optimizer
          communication           │     [ b0 ]  [ b1 ]                 b0: gradients of layer 3 and 2
    gpu1  the same                │                                    b1: of layer 1

The gradient of a layer is there when its backward has run; backwards run from the last layer to the
first, and gradients fill buckets in that order: a bucket is closed when it holds `bucket_nbytes` or more.
A bucket is summed when *every* replica has filled it. So the slowest replica decides, and only
what is left after its last backward is exposed (Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", VLDB 2020, arXiv 2006.15704, sections 3.2 and 4.2).

The all-reduce of n replicas is a ring: every link carries 2 (n - 1) / n of the bytes, in 2 (n - 1) steps
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009).
It is one op a replica, on stream 1 (attribute ``stream``, which `policies.streams.recorded` follows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph
from sim.words.errors import InputError
from sim.words.units import NS_PER_S, round_half_up

__all__ = ["DataParallel", "Layer", "buckets", "data_parallel_graph", "ring_all_reduce_ns"]


@dataclass(frozen=True)
class Layer:
    """Times of a layer on one replica, and the size of its gradients."""

    forward_ns: int
    backward_ns: int
    gradient_nbytes: int = 0


@dataclass(frozen=True)
class DataParallel:
    """What is computed, and how gradients are summed.

    Attributes
    ----------
    layers : tuple of Layer
    replicas : int
        On ``gpu0``, ``gpu1``, ...
    bandwidth_bytes_per_s : int or None
        Of each link of the ring; None is unlimited.
    latency_ns : int
        Of each of its steps.
    bucket_nbytes : int
        At which a bucket is closed; 0: every layer is one.
    overlap : bool
        Sum a bucket as soon as it is full, not when the whole backward is over.
    optimizer_ns : int
        Of the step when all sums are there; 0: none.
    """

    layers: tuple[Layer, ...]
    replicas: int
    bandwidth_bytes_per_s: int | None = None
    latency_ns: int = 0
    bucket_nbytes: int = 0
    overlap: bool = True
    optimizer_ns: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not self.layers or self.replicas < 1:
            raise InputError(
                f"there must be a layer and a replica; found {len(self.layers)} and {self.replicas}"
            )


def ring_all_reduce_ns(nbytes: int, ranks: int, bandwidth_bytes_per_s: int | None, latency_ns: int) -> int:
    """Return how long a ring takes to sum `nbytes` on each of `ranks`.

    Examples
    --------
    >>> ring_all_reduce_ns(4_000_000, 4, 10**9, 1000), ring_all_reduce_ns(4_000_000, 1, 10**9, 1000)
    (6006000, 0)
    """
    steps = 2 * (ranks - 1)
    if bandwidth_bytes_per_s is None:
        return steps * latency_ns
    sending = Fraction(steps * nbytes * NS_PER_S, ranks * bandwidth_bytes_per_s)
    return round_half_up(sending + steps * latency_ns)


def buckets(gradient_nbytes: Sequence[int], bucket_nbytes: int) -> list[list[int]]:
    """Return the layers of each bucket, from the last layer to the first.

    Examples
    --------
    >>> buckets([10, 20, 30, 5], 25)
    [[3, 2], [1, 0]]
    >>> buckets([10, 20, 30], 0)
    [[2], [1], [0]]
    """
    out: list[list[int]] = []
    size = bucket_nbytes
    for layer in reversed(range(len(gradient_nbytes))):
        if not out or size >= bucket_nbytes:
            out.append([])
            size = 0
        out[-1].append(layer)
        size += gradient_nbytes[layer]
    return out


def data_parallel_graph(of: DataParallel, name: str = "data parallel") -> Graph:
    """Return one training step on all replicas; the next iteration begins with the weights of this one.

    Ops of replica r are ``gpu{r}/F{layer}``, ``B{layer}``, ``all_reduce{bucket}`` and ``optimizer``, layers
    and buckets counted from 0.

    Parameters
    ----------
    of : DataParallel
    name : str

    Examples
    --------
    >>> one = DataParallel((Layer(1, 2, 8), Layer(1, 2, 8)), replicas=2, bucket_nbytes=16)
    >>> [op for op in data_parallel_graph(one).op_names if op.startswith("gpu0")]
    ['gpu0/F0', 'gpu0/F1', 'gpu0/B1', 'gpu0/B0', 'gpu0/all_reduce0']
    """
    builder = GraphBuilder(name)
    gpus = [f"gpu{r}" for r in range(of.replicas)]
    parts = buckets([layer.gradient_nbytes for layer in of.layers], of.bucket_nbytes)
    last_op = "optimizer" if of.optimizer_ns else f"all_reduce{len(parts) - 1}"

    def compute(gpu: str, op: str, ns: int, after: list[str], phase: str | None, out: int = 0) -> None:
        again = [(f"{gpu}/{last_op}", 1)] if op == "F0" else []
        builder.op(
            f"{gpu}/{op}",
            kind={"F": "forward", "B": "backward"}.get(phase or "", "optimizer"),
            after=[*(f"{gpu}/{other}" for other in after), *again],
            outputs=out,
            duration_ns=ns,
            device=gpu,
            phase=phase,
            attributes={"stream": 0},
        )

    for gpu in gpus:
        for i, layer in enumerate(of.layers):
            compute(gpu, f"F{i}", layer.forward_ns, [f"F{i - 1}"] if i else [], "F")
        before = f"F{len(of.layers) - 1}"
        for i, layer in reversed(list(enumerate(of.layers))):
            compute(gpu, f"B{i}", layer.backward_ns, [before], "B", layer.gradient_nbytes)
            before = f"B{i}"
    for gpu in gpus:
        for b, layers in enumerate(parts):
            nbytes = sum(of.layers[i].gradient_nbytes for i in layers)
            filled = f"B{layers[-1]}" if of.overlap else "B0"
            builder.op(
                f"{gpu}/all_reduce{b}",
                kind="all_reduce",
                inputs=[f"{gpu}/B{i}" for i in layers],
                after=[f"{other}/{filled}" for other in gpus] + ([f"{gpu}/all_reduce{b - 1}"] if b else []),
                outputs=nbytes,
                bytes_read=nbytes,
                duration_ns=ring_all_reduce_ns(nbytes, of.replicas, of.bandwidth_bytes_per_s, of.latency_ns),
                device=gpu,
                attributes={"stream": 1, "ranks": of.replicas},
            )
    for gpu in gpus if of.optimizer_ns else ():
        compute(gpu, "optimizer", of.optimizer_ns, [f"all_reduce{b}" for b in range(len(parts))], None)
    return builder.build()
