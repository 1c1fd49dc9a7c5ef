"""DeepSpeed's ZeRO, stages 1 and 2: every rank updates a part of the parameters.

::

    stage 2           F F F │ B2  B1  r0  B0 │ r1 │ U U U  g     r: sum of a bucket, g: all_gather
    ... overlap  F F F │ B2  B1  B0          │ U U U  g     on a stream of its own; compute waits
        reduce                     [ r0 ] [ r1 ]                 for the sum before the one launched

A bucket is summed when the next gradient would not fit, so after the op that computes that one. In stage 1
without ``overlap`` nothing is summed before the backward is over, and then in order of registration.
With several micro-batches (``gradient-accumulation``) stage 1 adds up whole gradients and sums them over the
ranks in the last one. Stage 2 keeps only a part: it sums the gradients of every micro-batch over the ranks,
and adds up its parts.

DeepSpeed's "reduce_scatter" is an all_reduce of the bucket, of which each rank copies its part
(``use_multi_rank_bucket_allreduce``, the default). Updated parameters are gathered at the end of the step,
without overlap.

Sources: deepspeed/runtime/zero/stage_1_and_2.py (``reduce_independent_p_g_buckets_and_remove_grads``,
``average_tensor``, ``reduce_gradients``, ``process_gradients``,
``independent_gradient_partition_epilogue``), deepspeed/runtime/utils.py (``all_gather_dp_groups``) and
deepspeed/runtime/zero/config.py (defaults, in elements).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from policies.parallel.accumulation import micro_batches, refuse_pipelines
from policies.parallel.ddp import never_overflowing
from policies.parallel.rank_grid import DataParallel
from policies.parallel.training_step import COMPUTE, HostProgram, Parameter, TrainingStep, shard_nbytes
from sim import Graph
from sim.base.arrays import group_pairs
from sim.graph.graph import output_name

GROUP: Final = "data parallel"
"""The communicator of all ranks."""


class ZeroOne(DataParallel):
    """Run a training step on ranks that each keep a part of the optimizer state.

    Parameters
    ----------
    ranks : int or list of str, optional
        Number of ranks, or their devices; by default all accelerators of the machine.
    bucket_size : int
        Elements to sum or gather at once (DeepSpeed's ``reduce_bucket_size`` and
        ``allgather_bucket_size``).
    overlap : bool
        Whether sums run on a separate stream.

    Examples
    --------
    >>> from policies.rewrite.backward import TrainingRewrite
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("a layer")
    >>> _ = b.input("x", 400), b.parameter("w", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> ZeroOne(2).apply(TrainingRewrite().apply(b.build())).op_names[2:5]
    ('gpu0/a/weight_grad', 'gpu0/reduce0', 'gpu0/w/update')
    """

    name, stage = "zero-1", 1

    def __init__(
        self, ranks: int | list[str] | None = None, bucket_size: int = 500_000_000, overlap: bool = False
    ) -> None:
        super().__init__(ranks)
        self.overlap = overlap
        self.bucket_size = self.whole("bucket_size", bucket_size)

    def buckets(self, step: TrainingStep) -> list[list[Parameter]]:
        """Return the parameters of each bucket, in the order in which they are summed."""
        early = self.stage == 2 or self.overlap
        return never_overflowing(step.in_ready_order() if early else step.parameters, self.bucket_size)

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        return _Host(self, TrainingStep(graph), n).run()


class _Host:
    """The host of a rank."""

    def __init__(self, of: ZeroOne, step: TrainingStep, n: int) -> None:
        self.of, self.step, self.n = of, step, n
        self.program = HostProgram(step, f"ZeRO {of.stage}")
        self.program.shard(n, parameters=False)
        if of.stage == 2:
            refuse_pipelines(step, "zero-2")
        self.batches = micro_batches(step) if of.stage == 2 else [step]
        self.buckets = [[each.name for each in bucket] for bucket in of.buckets(self.batches[0])]
        self.gradients: dict[str, str] = {}
        """Parameter → its gradient so far: of this micro-batch, or the sum of all so far."""
        self.before: str | None = None
        self.last: str | None = None
        self.wait: str | None = None

    def run(self) -> Graph:
        """Issue the whole step."""
        for k, batch in enumerate(self.batches):
            self.micro_batch(k, batch)
        made = {each.gradient: self.gradients[each.name] for each in self.step.parameters}
        self.program.update(self.last, made)
        self.gather()
        return self.program.graph()

    def micro_batch(self, k: int, batch: TrainingStep) -> None:
        """Issue a forward and a backward with their sums."""
        kept, self.gradients = self.gradients, {each.name: each.gradient for each in batch.parameters}
        full: dict[int, list[int]] = {}  # place of an op → buckets that are full once it has run
        if self.of.stage == 2 or self.of.overlap:
            begins = [batch.ready_at[self.gradients[bucket[0]]] for bucket in self.buckets]
            full = group_pairs((place, bucket) for bucket, place in enumerate(begins[1:]))
        for place, record in enumerate(batch.work):
            self.program.compute(record, after=[self.wait])
            self.before, self.wait = record.name, None
            for bucket in full.get(place, ()):
                self.wait, self.last = self.last, self.reduce(bucket, k)
        for bucket in range(sum(map(len, full.values())), len(self.buckets)):
            self.last = self.reduce(bucket, k)
        if len(self.batches) > 1:
            self.keep_part(kept, k)

    def reduce(self, bucket: int, k: int) -> str:
        """Sum a bucket over the ranks."""
        names = self.buckets[bucket]
        gradients = [self.gradients[each] for each in names]
        sizes = [self.program.records.nbytes(gradient) for gradient in gradients]
        where = {"stream": "reduce" if self.of.overlap else COMPUTE, "communicator": GROUP}
        name = f"micro{k}/reduce{bucket}" if len(self.batches) > 1 else f"reduce{bucket}"
        name = self.program.add(name, "all_reduce", gradients, sizes, after=[self.before], **where)
        self.gradients |= {each: output_name(name, i) for i, each in enumerate(names)}
        return name

    def keep_part(self, kept: Mapping[str, str], k: int) -> None:
        """Keep a rank's part of the sums and free the rest; later parts are added to the first."""
        parameters = self.step.parameters
        reads = [
            gradients[each.name] for gradients in [kept] * (k > 0) + [self.gradients] for each in parameters
        ]
        parts = [shard_nbytes(each, self.n) for each in parameters]
        self.last = self.program.add(f"micro{k}/keep_part", "add_n" if k else "copy", reads, parts)
        record = self.program.records.ops[self.last]
        record.bytes_read = sum(parts) * (2 if k else 1)
        record.flops = sum(-(-each.elements // self.n) for each in parameters) if k else 0
        record.dtype = parameters[0].dtype
        self.gradients = {each.name: output_name(self.last, i) for i, each in enumerate(parameters)}

    def gather(self) -> None:
        """Gather the updated parameters, in as many pieces as they contain whole buckets."""
        step, n, most = self.step, self.n, self.of.bucket_size
        part = -(-sum(each.elements for each in step.parameters) // n)
        nbytes = max(each.nbytes // max(1, each.elements) for each in step.parameters)
        pieces = max(1, part * n // most)
        after = [update.name for update in step.updates]
        for k in range(pieces):
            size = part // pieces if k < pieces - 1 else part - (pieces - 1) * (part // pieces)
            gathered: dict[str, Any] = {"communicator": GROUP, "nbytes": n * size * nbytes}
            after = [self.program.add(f"all_gather{k}", "all_gather", [], [], after=after, **gathered)]


class ZeroTwo(ZeroOne):
    """Run a training step on ranks that each keep a part of states and gradients; options as `zero-1`."""

    name, stage = "zero-2", 2
