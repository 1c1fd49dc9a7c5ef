"""PyTorch's DistributedDataParallel: replicas that sum their gradients in buckets, during the backward.

::

    compute       F F F F │ B3  B2  B1  B0          │ U U U U
    all_reduce            │         [ b0 ] [ b1 ]   │            b0: of 3 and 2, b1: of 1 and 0

A bucket is summed once its gradients are there *and* the bucket before it has been launched: all sums go in
the order of the buckets, over the one stream of the communicator. The updates wait for all of them.

In the first step the buckets are one for each data type, as nobody knows yet in which order gradients become
ready. After it they are filled anew, in the order that was seen: the first closes at 1 MiB, the others at 25
MiB. With ``bucket_cap`` given, that is the limit of all. With ``find_unused_parameters`` buckets are filled
once, in the order of registration, and launched from the last to the first.

Sources: torch/csrc/distributed/c10d/reducer.cpp (``mark_bucket_ready``, ``rebuild_buckets``,
``finalize_backward``) and torch/nn/parallel/distributed.py (``_ddp_init_helper``); Li et al., "PyTorch
Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, arXiv 2006.15704.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from policies.compile.parallel.buckets import closed_when_full
from policies.compile.parallel.grid.combined import DataParallel
from policies.compile.parallel.program import Program, shard_nbytes
from policies.compile.parallel.training_step import Parameter, TrainingStep
from policies.compile.records import Record
from sim import Graph

__all__ = ["DistributedDataParallel", "reduce_in_buckets"]

_FIRST_BYTES: Final = 2**20
_CAP_BYTES: Final = 25 * 2**20
_ALL: Final[Mapping[str, str]] = {"communicator": "data parallel"}


class DistributedDataParallel(DataParallel):
    """Run a training step on replicas that sum their gradients.

    Parameters
    ----------
    ranks : int or list of str, optional
        How many, or which devices; by default all accelerators of the machine.
    bucket_cap_bytes : int, optional
        Size at which every bucket closes; by default the first at 1 MiB and the others at 25 MiB.
    first_step : bool
        Whether this is the first step, which has one bucket for each data type.
    find_unused_parameters : bool
        Buckets in the order of registration, never filled anew.
    overlap : bool
        Whether a bucket is summed as soon as it may be; else all are, one by one, after the backward.

    Examples
    --------
    >>> from policies.compile.training.training_step import Training
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two layers")
    >>> _ = b.input("x", 400), b.parameter("w", 800), b.parameter("v", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> _ = b.op("b", kind="matmul", inputs=["a", "v"], outputs=400, flops=1000)
    >>> step = DistributedDataParallel(2, bucket_cap_bytes=800).apply(Training().apply(b.build()))
    >>> [name for name in step.op_names if name.startswith("gpu0/")][4:]
    ['gpu0/b/weight_grad', 'gpu0/all_reduce0', 'gpu0/a/weight_grad', 'gpu0/all_reduce1', 'gpu0/w/update', \
'gpu0/v/update']
    """

    name = "ddp"

    def __init__(
        self,
        ranks: int | list[str] | None = None,
        bucket_cap_bytes: int | None = None,
        first_step: bool = False,
        find_unused_parameters: bool = False,
        overlap: bool = True,
    ) -> None:
        super().__init__(ranks)
        self.cap = None if bucket_cap_bytes is None else self.whole("bucket_cap_bytes", bucket_cap_bytes)
        self.first_step, self.find_unused, self.overlap = first_step, find_unused_parameters, overlap

    def buckets(self, step: TrainingStep) -> list[list[Parameter]]:
        """Return the parameters of each bucket, in the order of launch."""
        if self.find_unused:
            return self.filled(step.parameters, [_FIRST_BYTES, self.cap or _CAP_BYTES])[::-1]
        if self.first_step:
            most = max(1, sum(each.nbytes for each in step.parameters))
            return self.filled(step.parameters, [most])[::-1]
        return self.filled(step.in_ready_order(), [self.cap] if self.cap else [_FIRST_BYTES, _CAP_BYTES])

    @staticmethod
    def filled(parameters: Sequence[Parameter], limits: Sequence[int]) -> list[list[Parameter]]:
        """Return parameters in buckets, by data type."""
        sizes, dtypes = [each.nbytes for each in parameters], [each.dtype for each in parameters]
        return [[parameters[k] for k in row] for row in closed_when_full(sizes, limits, dtypes)]

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        step = TrainingStep(graph)
        program = Program(step, "ddp")
        last = reduce_in_buckets(program, step, self.buckets(step), overlap=self.overlap)
        for update in step.updates:
            program.compute(update, after=[last])
        return program.graph()


def reduce_in_buckets(
    program: Program,
    step: TrainingStep,
    buckets: Sequence[Sequence[Parameter]],
    *,
    overlap: bool = True,
    strict: bool = True,
    parts: int = 1,
    waits: Callable[[Record], str | None] = lambda record: None,
    meets: Callable[[Sequence[Parameter]], Mapping[str, str]] = lambda bucket: _ALL,
) -> str:
    """Issue forward and backward, and a sum of each bucket; return the last. Updates read what was summed.

    Parameters
    ----------
    program, step, buckets
    overlap : bool
        Whether a bucket is launched when it is ready, not after the backward.
    strict : bool
        Whether it is held back until those before it have been.
    parts : int
        Of how many parts a rank keeps one (reduce_scatter); 1: all_reduce.
    waits : callable
        What an op waits for besides.
    meets : callable
        Attributes that say over whom a bucket is summed.
    """
    kind = "all_reduce" if parts == 1 else "reduce_scatter"
    last = ""
    ready_at = [max(step.ready_at[each.gradient] for each in bucket) for bucket in buckets]
    summed: dict[str, str] = {}
    left = list(range(len(buckets)))
    for k, record in enumerate(step.work):
        program.compute(record, after=[waits(record)])
        over = k == len(step.work) - 1
        ready = [bucket for bucket in left if over or (overlap and ready_at[bucket] <= k)]
        if strict:
            ready = [bucket for bucket, place in zip(ready, left, strict=False) if bucket == place]
        for bucket in ready:
            gradients = [each.gradient for each in buckets[bucket]]
            sizes = [each.nbytes if parts == 1 else shard_nbytes(each, parts) for each in buckets[bucket]]
            last = program.add(
                f"{kind}{bucket}",
                kind,
                gradients,
                sizes,
                after=[] if overlap else [record.name],
                stream=kind,
                **meets(buckets[bucket]),
                **({"nbytes": parts * sum(sizes)} if parts > 1 else {}),
            )
            names = [last, *(f"{last}:{i}" for i in range(1, len(gradients)))]
            summed |= dict(zip(gradients, names, strict=True))
        left = [bucket for bucket in left if bucket not in ready]
    program.instead |= summed
    return last
