"""DeepSpeed's ZeRO, stages 1 and 2: every rank updates a part of the parameters.

::

    stage 2           F F F │ B2  B1  r0  B0 │ r1 │ U U U  g     r: sum of a bucket, g: all_gather
    ... overlap_comm  F F F │ B2  B1  B0          │ U U U  g     on a stream of its own; compute waits
        reduce                     [ r0 ] [ r1 ]                 for the sum before the one launched

A bucket is summed when the next gradient would not fit, so after the op that makes that one. In stage 1
without ``overlap_comm`` nothing is summed before the backward is over, and then in the order of registration.
What is called reduce_scatter there is an all_reduce of the bucket, of which each rank copies its part
(``use_multi_rank_bucket_allreduce``, the default). Updated parameters are gathered at the end of the step and
overlap with nothing.

Sources: deepspeed/runtime/zero/stage_1_and_2.py (``reduce_independent_p_g_buckets_and_remove_grads``,
``average_tensor``, ``reduce_gradients``), deepspeed/runtime/utils.py (``all_gather_dp_groups``) and
deepspeed/runtime/zero/config.py (defaults, in elements).
"""

from __future__ import annotations

from typing import Any, Final

from policies.compile.parallel.buckets import closed_before_overflow
from policies.compile.parallel.grid.combined import DataParallel
from policies.compile.parallel.micro_batches.accumulation import refuse_micro_batches
from policies.compile.parallel.program import COMPUTE, Program
from policies.compile.parallel.ranks import Ranks
from policies.compile.parallel.training_step import Parameter, TrainingStep
from policies.option_checks import whole
from sim import Graph

__all__ = ["GROUP", "ZeroOne", "ZeroTwo"]

GROUP: Final = "data parallel"
"""The communicator of all ranks."""


class ZeroOne(DataParallel):
    """Run a training step on ranks that each keep a part of the optimiser's states.

    Parameters
    ----------
    ranks : int or list of str
        How many GPUs (``gpu0``, ``gpu1``, ...), or which devices.
    reduce_bucket_size, allgather_bucket_size : int
        Elements.
    overlap_comm : bool
        Whether sums run on a stream of their own.

    Examples
    --------
    >>> from policies.compile.training.training_step import Training
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("a layer")
    >>> _ = b.input("x", 400), b.parameter("w", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> ZeroOne(2).apply(Training().apply(b.build())).op_names[2:5]
    ['gpu0/a/weight_grad', 'gpu0/reduce0', 'gpu0/w/update']
    """

    stage = 1

    def __init__(
        self,
        ranks: int | list[str],
        reduce_bucket_size: int = 500_000_000,
        allgather_bucket_size: int = 500_000_000,
        overlap_comm: bool = False,
    ) -> None:
        name = f"zero-{self.stage}"
        self.ranks, self.overlap_comm = Ranks.of(name, ranks), overlap_comm
        self.reduce_bucket_size = whole(name, "reduce_bucket_size", reduce_bucket_size)
        self.allgather_bucket_size = whole(name, "allgather_bucket_size", allgather_bucket_size)

    def buckets(self, step: TrainingStep) -> list[list[Parameter]]:
        """Return the parameters of each bucket, in the order in which they are summed."""
        hooks = self.stage == 2 or self.overlap_comm
        order = step.in_ready_order() if hooks else step.parameters
        sizes = [each.elements for each in order]
        return [[order[k] for k in row] for row in closed_before_overflow(sizes, self.reduce_bucket_size)]

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        step = TrainingStep(graph)
        if self.stage == 2 or self.overlap_comm:
            refuse_micro_batches(step, "zero-2" if self.stage == 2 else "zero-1 with overlap_comm")
        program = Program(step, f"ZeRO {self.stage}")
        updates = program.shard(step, n, parameters=False)
        buckets = self.buckets(step)
        full = {}  # place of an op → the bucket that is full once it has run
        if self.stage == 2 or self.overlap_comm:
            full = {step.ready_at[after[0].gradient]: k for k, after in enumerate(buckets[1:])}
        sums: dict[str, str] = {}
        last: str | None = None
        wait: str | None = None

        def reduce(k: int) -> str:
            gradients = [each.gradient for each in buckets[k]]
            name = program.add(
                f"reduce{k}",
                "all_reduce",
                gradients,
                [each.nbytes for each in buckets[k]],
                after=[before],
                stream="reduce" if self.overlap_comm else COMPUTE,
                communicator=GROUP,
            )
            sums.update((gradient, f"{name}:{i}" if i else name) for i, gradient in enumerate(gradients))
            return name

        launched = 0
        before: str | None = None
        for place, record in enumerate(step.work):
            program.compute(record, after=[wait])
            before, wait = record.name, None
            while place in full and launched <= full[place]:
                wait, last = last, reduce(launched)
                launched += 1
        for k in range(launched, len(buckets)):
            last = reduce(k)
        program.instead = sums
        for update in updates:
            program.compute(update, after=[last])
        self._gather(program, step, n)
        return program.graph()

    def _gather(self, program: Program, step: TrainingStep, n: int) -> None:
        """Gather the updated parameters, in as many pieces as they hold whole buckets."""
        part = -(-sum(each.elements for each in step.parameters) // n)
        nbytes = max(each.nbytes // max(1, each.elements) for each in step.parameters)
        pieces = max(1, part * n // self.allgather_bucket_size)
        after = [update.name for update in step.updates]
        for k in range(pieces):
            size = part // pieces if k < pieces - 1 else part - (pieces - 1) * (part // pieces)
            gathered: dict[str, Any] = {"communicator": GROUP, "nbytes": n * size * nbytes}
            after = [program.add(f"all_gather{k}", "all_gather", [], [], after=after, **gathered)]


class ZeroTwo(ZeroOne):
    """Run a training step on ranks that each keep a part of states and gradients; options as `ZeroOne`."""

    stage = 2
