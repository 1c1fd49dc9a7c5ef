"""Megatron-LM's DistributedDataParallel: buckets of parameters in reverse order, summed as they become ready.

::

    compute           F F F F │ B3  B2  B1  B0        │ U U U U
    reduce_scatter            │         [ b0 ] [ b1 ] │
    overlap_param_gather      [ g1 ] F0 F1 [ g0 ] F2 F3      a bucket is waited for where it is read first,
                                                             and then the one after it is gathered

A bucket closes when it has ``bucket_size`` elements or more: 40 million, or one million for each rank if that
is more. Without ``overlap_grad_reduce``, and on pipeline ranks after the first, there is one. Buckets are not
held back for one another. With the distributed optimiser a rank updates a part of each bucket, and updated
parameters are gathered bucket by bucket, after the step or during the next forward.

Sources: megatron/core/distributed/distributed_data_parallel.py, param_and_grad_buffer.py
(``_compute_default_per_buffer_param_layout``, ``register_grad_ready``, ``finish_param_sync``).
"""

from __future__ import annotations

from copy import copy

from policies.compile.parallel.buckets import closed_when_full
from policies.compile.parallel.ddp import reduce_in_buckets
from policies.compile.parallel.grid.combined import DataParallel
from policies.compile.parallel.program import COMPUTE, Program, shard_nbytes
from policies.compile.parallel.training_step import Parameter, TrainingStep
from policies.compile.records import Record
from sim import Graph
from sim.words.errors import InputError

__all__ = ["MegatronDDP"]


class MegatronDDP(DataParallel):
    """Run a training step on replicas as Megatron-LM does.

    Parameters
    ----------
    ranks : int or list of str, optional
        How many, or which devices; by default all accelerators of the machine.
    bucket_size : int, optional
        Elements; by default 40 million, or a million for each rank.
    overlap_grad_reduce : bool
        Whether buckets are reduced during the backward.
    use_distributed_optimizer : bool
        Whether each rank updates a part.
    overlap_param_gather : bool
        Whether updated parameters are gathered during the forward.
    pipeline_rank : int
        The place in a pipeline; only the first has buckets. After ``pipeline-parallel`` it is that of each
        rank.

    Examples
    --------
    >>> MegatronDDP(64).bucket_size, MegatronDDP(64, bucket_size=5).bucket_size
    (64000000, 5)
    """

    name = "megatron-ddp"

    def __init__(
        self,
        ranks: int | list[str] | None = None,
        bucket_size: int | None = None,
        overlap_grad_reduce: bool = True,
        use_distributed_optimizer: bool = False,
        overlap_param_gather: bool = False,
        pipeline_rank: int = 0,
    ) -> None:
        super().__init__(ranks)
        self._bucket_size = None if bucket_size is None else self.whole("bucket_size", bucket_size)
        self.overlap, self.distributed = overlap_grad_reduce, use_distributed_optimizer
        self.pipeline_rank = self.whole("pipeline_rank", pipeline_rank, least=0)
        if overlap_param_gather and not use_distributed_optimizer:
            message = (
                "overlap_param_gather has no effect without use_distributed_optimizer: nothing is gathered"
            )
            raise InputError(f"megatron-ddp: {message}", path=("overlap_param_gather",))
        self.gather_ahead = overlap_param_gather

    @property
    def bucket_size(self) -> int:
        """Elements at which a bucket closes."""
        return self._bucket_size or max(40_000_000, 1_000_000 * (self.ranks.n or 1))

    def on_stage(self, rank: int) -> MegatronDDP:
        """Return the rewrite as it is on a pipeline rank: only the first has buckets."""
        found = copy(self)
        found.pipeline_rank = rank or self.pipeline_rank
        return found

    def buckets(self, step: TrainingStep) -> list[list[Parameter]]:
        """Return the parameters of each bucket, from the last parameter to the first."""
        order = step.parameters[::-1]
        sizes, dtypes = [each.elements for each in order], [each.dtype for each in order]
        least = self.bucket_size if self.overlap and not self.pipeline_rank else max(1, sum(sizes) + 1)
        return [[order[k] for k in row] for row in closed_when_full(sizes, [least], dtypes)]

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        step = TrainingStep(graph)
        program = Program(step, "Megatron DDP")
        parts = n if self.distributed else 1
        buckets = self.buckets(step)
        updates = program.shard(step, parts, parameters=False)
        gather = _Gather(program, step, buckets, parts)
        last = reduce_in_buckets(
            program,
            step,
            buckets,
            overlap=self.overlap,
            strict=False,
            parts=parts,
            waits=gather.before if self.gather_ahead else lambda record: None,
        )
        for update in updates:
            program.compute(update, after=[last])
        if self.distributed and not self.gather_ahead:
            for k in reversed(range(len(buckets))):
                gather.launch(k, [(update.name, 0) for update in updates], COMPUTE)
        return program.graph()


class _Gather:
    """Gathers updated parameters, a bucket at a time, the one of the first parameters first."""

    def __init__(
        self, program: Program, step: TrainingStep, buckets: list[list[Parameter]], parts: int
    ) -> None:
        self.program, self.step, self.buckets, self.parts = program, step, buckets, parts
        self.bucket_of = {each.name: k for k, bucket in enumerate(buckets) for each in bucket}
        self.launched: dict[int, str] = {}
        self.waited: set[int] = set()

    def launch(self, k: int, after: list[tuple[str, int]], stream: str = "all_gather") -> None:
        """Gather a bucket unless that was done."""
        if k in self.launched:
            return
        nbytes = self.parts * sum(shard_nbytes(each, self.parts) for each in self.buckets[k])
        self.launched[k] = self.program.add(
            f"all_gather{k}",
            "all_gather",
            [],
            [],
            after=after,
            stream=stream,
            communicator="data parallel",
            nbytes=nbytes,
        )

    def before(self, record: Record) -> str | None:
        """Return what an op waits for: the gather of the bucket that it reads, after which comes the next."""
        if record.phase != "F":
            return None
        first = [self.bucket_of[tensor] for tensor, _ in record.inputs if tensor in self.bucket_of]
        first = [k for k in dict.fromkeys(first) if k not in self.waited]
        updated = [(self.step.updates[-1].name, 1)]
        for k in first:
            self.waited.add(k)
            for bucket in (k, k - 1)[: k + 1]:
                self.launch(bucket, updated)
        return next((name for k, name in reversed(self.launched.items()) if k in first), None)
