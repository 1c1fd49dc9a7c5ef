"""DeepSpeed's ZeRO, stage 3: parameters are shared out, and gathered as the coordinator's trace says.

::

    all_gather   g0 c0      g1 c1    g2 c2       the host at module i: gather what is missing, wait for
    compute            F0       F1       F2      all that was launched, gather ahead, F(i)

Prefetch comes *after* the wait, and a module waits for all that was launched before: module i+1 for what
was gathered ahead at module i, whoever needs it. c: the parts of ranks become parameters, on the same stream.
What is gathered, and when, `policies.compile.parallel.zero.coordinator` decides. Parameters of at most
``param_persistence_threshold`` elements never leave, and are gathered in one piece after the updates.

Gradients fill buckets, and a bucket is reduced when the next one would not fit. Of several micro-batches
(``gradient-accumulation``) the gradients of each are reduced, and parts are added to those before; the host
waits for that at the end of each. Its visits begin anew with each forward, and are known from the second on.

Left out: the host stops while more than two gathers or reductions go on (``max_ongoing_fetch_events``).

Sources: deepspeed/runtime/zero/partitioned_param_coordinator.py (``fetch_sub_module``,
``release_sub_module``, ``reset_step``), partition_parameters.py (``AllGatherCoalescedHandle``), stage3.py
(``reduce_independent_p_g_buckets_and_remove_grads``, ``partition_grads``,
``independent_gradient_partition_epilogue``, ``_post_step``) and config.py (defaults, in elements).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from policies.compile.parallel.buckets import closed_before_overflow
from policies.compile.parallel.grid.combined import DataParallel
from policies.compile.parallel.micro_batches.of_step import micro_batches, refuse_pipelines
from policies.compile.parallel.modules import Module, Modules, pattern_of
from policies.compile.parallel.program import COMPUTE, Program, shard_nbytes
from policies.compile.parallel.training_step import Parameter, TrainingStep
from policies.compile.parallel.zero.coordinator import Coordinator, Limits
from policies.compile.parallel.zero.stages_1_and_2 import GROUP
from policies.compile.records import Edge
from sim import Graph
from sim.graph.graph import output_name

__all__ = ["ZeroThree"]


class ZeroThree(DataParallel):
    """Run a training step on ranks that each keep a part of every parameter.

    Parameters
    ----------
    ranks : int or list of str, optional
        How many, or which devices; by default all accelerators of the machine.
    wrap : str, optional
        What is a module (``set_z3_leaf_modules``), as a regular expression; see ``fsdp2``. By default
        every op that reads a parameter.
    reduce_bucket_size, prefetch_bucket_size : int
        Elements that are summed at once, and that are gathered ahead at most.
    param_persistence_threshold : int
        Parameters of at most so many elements stay whole on every rank.
    max_live_parameters, max_reuse_distance : int
        Elements that may be there whole at once, and within which a parameter that is used again is kept.
    overlap_comm : bool
        Whether gathers and reductions run on streams of their own.
    first_step : bool
        Whether nothing is known yet, and so nothing is gathered ahead.

    Examples
    --------
    >>> from policies.compile.training.training_step import Training
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("a layer")
    >>> _ = b.input("x", 400), b.parameter("w", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> step = ZeroThree(2, param_persistence_threshold=0).apply(Training().apply(b.build()))
    >>> step.op_names[:3]
    ['gpu0/all_gather0', 'gpu0/all_gather0/concat', 'gpu0/a']
    """

    name = "zero-3"

    def __init__(
        self,
        ranks: int | list[str] | None = None,
        wrap: str | None = None,
        reduce_bucket_size: int = 500_000_000,
        prefetch_bucket_size: int = 50_000_000,
        param_persistence_threshold: int = 100_000,
        max_live_parameters: int = 1_000_000_000,
        max_reuse_distance: int = 1_000_000_000,
        overlap_comm: bool = True,
        first_step: bool = False,
    ) -> None:
        super().__init__(ranks)
        self.wrap = wrap
        pattern_of(wrap)
        self.reduce_bucket = self.whole("reduce_bucket_size", reduce_bucket_size)
        self.limits = Limits(
            self.whole("prefetch_bucket_size", prefetch_bucket_size, least=0),
            self.whole("param_persistence_threshold", param_persistence_threshold, least=0),
            self.whole("max_live_parameters", max_live_parameters, least=0),
            self.whole("max_reuse_distance", max_reuse_distance, least=0),
            first_step,
        )
        self.overlap = overlap_comm

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        host = _Host(self, TrainingStep(graph), n)
        host.run()
        return host.program.graph()


class _Host:
    """The host of a rank: it writes down what a coordinator decides."""

    def __init__(self, of: ZeroThree, step: TrainingStep, n: int) -> None:
        self.of, self.step, self.n = of, step, n
        self.program = Program(step, "ZeRO 3")
        self.updates = self.program.shard(step, self.n)
        refuse_pipelines(step, "zero-3")
        self.batches = micro_batches(step)
        self.persistent = [each for each in step.parameters if each.elements <= of.limits.persistence]
        """They are there all the time."""
        for each in self.persistent:
            self.program.records.externals[each.name] = step.records.externals[each.name]
        self.coordinator = Coordinator(_visits(_entered(Modules(self.batches[0], of.wrap))), of.limits)
        self.handle: dict[str, str] = {}
        """Parameter → the op that gathers it."""
        self.gathers = 0
        self.stream_end: str | Edge | None = None
        """What the stream of all_gather ends with."""
        self.sums: dict[str, str] = {}
        """Parameter → what there is of the rank's part of its gradient."""
        self.reduced: str | None = None
        self.over: str | None = None
        """What the first gather of a micro-batch waits for: the host did at the end of the one before."""

    def run(self) -> None:
        """Issue the whole step."""
        for k, batch in enumerate(self.batches):
            self.micro_batch(k, batch)
        self.program.instead = {each.gradient: self.sums[each.name] for each in self.step.parameters}
        for update in self.updates:
            self.program.compute(update, after=[self.reduced])
        if self.persistent:
            shard = sum(shard_nbytes(each, self.n) for each in self.persistent)
            updates = [update.name for update in self.updates]
            gathered: dict[str, Any] = {"communicator": GROUP, "nbytes": self.n * shard}
            self.program.add("persistent/all_gather", "all_gather", [], [], after=updates, **gathered)

    def micro_batch(self, k: int, batch: TrainingStep) -> None:
        """Issue a forward and a backward; gradients are reduced in each."""
        modules = Modules(batch, self.of.wrap)
        enter, leave = _entered(modules), _entered(modules, -1)
        self.prefix = f"micro{k}/" if len(self.batches) > 1 else ""
        self.over = over = self.reduced
        if k:
            self.coordinator.limits = replace(self.of.limits, first_step=False)
            self.coordinator.reset()
        order = batch.in_ready_order()
        rows = closed_before_overflow([each.elements for each in order], self.of.reduce_bucket)
        buckets = [[order[k] for k in row] for row in rows]
        full = {batch.ready_at[after[0].gradient]: k for k, after in enumerate(buckets[1:])}
        launched = 0
        for place, record in enumerate(batch.work):
            wait = self.fetch() if place in enter else None
            self.program.compute(record, after=[wait, None if place else over])
            while place in full and launched <= full[place]:
                self.reduce(launched, buckets[launched])
                launched += 1
            if place in leave:
                self.coordinator.release(leave[place].parameters)
        for k in range(launched, len(buckets)):
            self.reduce(k, buckets[k])

    def fetch(self) -> str | Edge | None:
        """Enter a module; return what it waits for."""
        found = self.coordinator.fetch()
        self.gather(found.missing)
        for together in found.arrived:
            self.concatenate(together)
        waited = self.stream_end
        self.gather(found.ahead)
        return waited

    def gather(self, parameters: Sequence[Parameter]) -> None:
        """Launch one all_gather."""
        if not parameters:
            return
        shard = sum(shard_nbytes(each, self.n) for each in parameters)
        first = (self.updates[-1].name, 1) if self.stream_end is None else self.over
        self.over = None
        name = self.program.add(
            f"all_gather{self.gathers}",
            "all_gather",
            [each.name for each in parameters],
            [self.n * shard],
            after=[first],
            stream="all_gather" if self.of.overlap else COMPUTE,
            communicator=GROUP,
        )
        self.gathers += 1
        self.stream_end = name
        self.handle.update((each.name, name) for each in parameters)

    def concatenate(self, together: Sequence[Parameter]) -> None:
        """Make parameters of what was gathered in one piece."""
        name = self.handle[together[0].name]
        made = self.program.add(
            f"{name}/concat",
            "concat",
            [name],
            [each.nbytes for each in together],
            stream="all_gather" if self.of.overlap else COMPUTE,
        )
        self.stream_end = made
        for k, each in enumerate(together):
            self.program.instead[each.name] = output_name(made, k)

    def reduce(self, k: int, bucket: Sequence[Parameter]) -> None:
        """Launch the reduction of a bucket; parts are added to those of earlier micro-batches."""
        stream = "reduce" if self.of.overlap else COMPUTE
        parts = [shard_nbytes(each, self.n) for each in bucket]
        name = self.reduced = self.program.add(
            f"{self.prefix}reduce_scatter{k}",
            "reduce_scatter",
            [each.gradient for each in bucket],
            parts,
            stream=stream,
            communicator=GROUP,
            nbytes=self.n * sum(parts),
        )
        for i, each in enumerate(bucket):
            made = output_name(name, i)
            if each.name in self.sums:
                both = [self.sums[each.name], made]
                made = self.reduced = self.program.add_parts(self.prefix, each, both, self.n, stream)
            self.sums[each.name] = made


def _entered(modules: Modules, end: int = 0) -> dict[int, Module]:
    """Return where modules are entered, forward and backward, or with end -1 left."""
    return {row[end]: m for m in modules.all for row in (m.forward, m.backward) if row}


def _visits(entered: Mapping[int, Module]) -> list[list[Parameter]]:
    return [entered[place].parameters for place in sorted(entered)]
