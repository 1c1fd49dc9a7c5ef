"""DeepSpeed's ZeRO, stage 3: parameters are shared out, and gathered as the coordinator's trace says.

::

    all_gather   g0 c0      g1 c1    g2 c2       the host at module i: gather what is missing, wait for
    compute            F0       F1       F2      all that was launched, gather ahead, F(i)

Prefetch comes *after* the wait, and a module waits for all that was launched before: module i+1 for what
was gathered ahead at module i, whoever needs it. c: the parts of ranks become parameters, on the same stream.
From the second step on
a trace of the first is known: parameters are gathered ahead in its order while they are fewer than
``prefetch_bucket_size`` elements, and than may be live besides. Those that a coming module uses again,
within ``max_reuse_distance`` elements, stay. Those of at most ``param_persistence_threshold`` elements never
leave, and are gathered in one piece after the updates.

Gradients fill buckets, and a bucket is reduced when the next one would not fit.

Left out: the host stops while more than two gathers or reductions go on (``max_ongoing_fetch_events``).

Sources: deepspeed/runtime/zero/partitioned_param_coordinator.py (``fetch_sub_module``,
``release_sub_module``), partition_parameters.py (``AllGatherCoalescedHandle``), stage3.py
(``reduce_independent_p_g_buckets_and_remove_grads``, ``_post_step``) and config.py (defaults, in elements).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from policies.compile.parallel.buckets import closed_before_overflow
from policies.compile.parallel.grid.combined import DataParallel
from policies.compile.parallel.micro_batches.accumulation import refuse_micro_batches
from policies.compile.parallel.modules import Module, Modules, pattern_of
from policies.compile.parallel.program import COMPUTE, Program, shard_nbytes
from policies.compile.parallel.ranks import Ranks
from policies.compile.parallel.training_step import Parameter, TrainingStep
from policies.compile.parallel.zero.stages_1_and_2 import GROUP
from policies.compile.records import Edge
from policies.option_checks import whole
from sim import Graph

__all__ = ["ZeroThree"]


class ZeroThree(DataParallel):
    """Run a training step on ranks that each keep a part of every parameter.

    Parameters
    ----------
    ranks : int or list of str
        How many GPUs (``gpu0``, ``gpu1``, ...), or which devices.
    wrap : str, optional
        What is a module (``set_z3_leaf_modules``), as a regular expression; see ``fsdp2``. By default
        every op that reads a parameter.
    reduce_bucket_size, prefetch_bucket_size, param_persistence_threshold : int
        Elements.
    max_live_parameters, max_reuse_distance : int
        Elements.
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

    def __init__(
        self,
        ranks: int | list[str],
        wrap: str | None = None,
        reduce_bucket_size: int = 500_000_000,
        prefetch_bucket_size: int = 50_000_000,
        param_persistence_threshold: int = 100_000,
        max_live_parameters: int = 1_000_000_000,
        max_reuse_distance: int = 1_000_000_000,
        overlap_comm: bool = True,
        first_step: bool = False,
    ) -> None:
        self.ranks, self.wrap = Ranks.of("zero-3", ranks), wrap
        pattern_of(wrap)
        self.reduce_bucket = whole("zero-3", "reduce_bucket_size", reduce_bucket_size)
        self.prefetch = whole("zero-3", "prefetch_bucket_size", prefetch_bucket_size, least=0)
        threshold = param_persistence_threshold
        self.persistence = whole("zero-3", "param_persistence_threshold", threshold, least=0)
        self.max_live = whole("zero-3", "max_live_parameters", max_live_parameters, least=0)
        self.reuse = whole("zero-3", "max_reuse_distance", max_reuse_distance, least=0)
        self.overlap, self.first_step = overlap_comm, first_step

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        host = _Coordinator(self, TrainingStep(graph), n)
        host.run()
        return host.program.graph()


class _Coordinator:
    """The host of a rank; names as in DeepSpeed's class where it has them."""

    def __init__(self, of: ZeroThree, step: TrainingStep, n: int) -> None:
        self.of, self.step, self.n = of, step, n
        self.program = Program(step, "ZeRO 3")
        self.updates = self.program.shard(step, self.n)
        refuse_micro_batches(step, "zero-3")
        self.modules = Modules(step, of.wrap).all
        self.persistent = [each for each in step.parameters if each.elements <= of.persistence]
        """They are there all the time."""
        kept = {each.name for each in self.persistent}
        for each in self.persistent:
            self.program.records.externals[each.name] = step.records.externals[each.name]
        self.kept = kept
        visits = [(module.forward[0], module) for module in self.modules if module.forward]
        back = [(module.backward[0], module) for module in self.modules if module.backward]
        self.visits = [module for _, module in sorted([*visits, *back], key=lambda visit: visit[0])]
        self.queue = deque(
            (each, visit) for visit, module in enumerate(self.visits) for each in module.parameters
        )
        self.step_id = 0
        self.available = set(kept)
        self.in_flight: dict[str, list[Parameter]] = {}
        """Parameter → all that are gathered with it."""
        self.handle: dict[str, str] = {}
        self.live = 0
        self.fetched_for: dict[str, int] = {}
        self.gathers = 0
        self.stream_end: str | Edge | None = None
        """What the stream of all_gather ends with."""

    def run(self) -> None:
        """Issue the whole step."""
        enter = {place: m for m in self.modules for row in (m.forward, m.backward) for place in row[:1]}
        leave = {place: m for m in self.modules for row in (m.forward, m.backward) for place in row[-1:]}
        order = self.step.in_ready_order()
        rows = closed_before_overflow([each.elements for each in order], self.of.reduce_bucket)
        buckets = [[order[k] for k in row] for row in rows]
        full = {self.step.ready_at[after[0].gradient]: k for k, after in enumerate(buckets[1:])}
        launched, sums = 0, dict[str, str]()
        for place, record in enumerate(self.step.work):
            wait = self.fetch(enter[place]) if place in enter else None
            self.program.compute(record, after=[wait])
            while place in full and launched <= full[place]:
                self.reduce(launched, buckets[launched], sums)
                launched += 1
            if place in leave:
                self.release(leave[place])
        for k in range(launched, len(buckets)):
            self.reduce(k, buckets[k], sums)
        self.program.instead = sums
        for update in self.updates:
            self.program.compute(update, after=[f"reduce_scatter{len(buckets) - 1}"])
        if self.persistent:
            shard = sum(shard_nbytes(each, self.n) for each in self.persistent)
            updates = [update.name for update in self.updates]
            gathered: dict[str, Any] = {"communicator": GROUP, "nbytes": self.n * shard}
            self.program.add("persistent/all_gather", "all_gather", [], [], after=updates, **gathered)

    def fetch(self, module: Module) -> str | Edge | None:
        """Gather what is missing and wait, gather ahead; return what the module waits for."""
        self.gather(module.parameters)
        for each in module.parameters:
            if each.name in self.in_flight:
                self.concatenate(each)
        waited = self.stream_end
        if not self.of.first_step:
            own = {each.name for each in module.parameters if self.seen(each) < self.step_id}
            while self.queue and own:
                each, visit = self.queue.popleft()
                self.fetched_for[each.name] = visit
                own.discard(each.name)
            self.gather_ahead()
        self.step_id += 1
        return waited

    def gather_ahead(self) -> None:
        """Gather what comes next in the trace, as much as may be."""
        most = min(self.of.max_live - self.live, self.of.prefetch)
        ahead: list[Parameter] = []
        while self.queue and sum(each.elements for each in ahead) < most:
            each, visit = self.queue.popleft()
            self.fetched_for[each.name] = max(self.seen(each), visit)
            if self.missing(each) and each not in ahead:
                ahead.append(each)
        self.gather(ahead)

    def seen(self, each: Parameter) -> int:
        """Return the last visit for which a parameter was fetched."""
        return self.fetched_for.get(each.name, -1)

    def missing(self, each: Parameter) -> bool:
        """Whether a parameter is neither there nor on its way."""
        return each.name not in self.available and each.name not in self.in_flight

    def gather(self, parameters: Sequence[Parameter]) -> None:
        """Launch one all_gather of what is missing."""
        missing = [each for each in parameters if self.missing(each)]
        if not missing:
            return
        shard = sum(shard_nbytes(each, self.n) for each in missing)
        first = (self.updates[-1].name, 1) if self.stream_end is None else None
        name = self.program.add(
            f"all_gather{self.gathers}",
            "all_gather",
            [each.name for each in missing],
            [self.n * shard],
            after=[first],
            stream="all_gather" if self.of.overlap else COMPUTE,
            communicator=GROUP,
        )
        self.gathers += 1
        self.stream_end = name
        self.live += sum(each.elements for each in missing)
        for each in missing:
            self.in_flight[each.name], self.handle[each.name] = missing, name

    def concatenate(self, one: Parameter) -> None:
        """Make parameters of what was gathered with one."""
        together, name = self.in_flight[one.name], self.handle[one.name]
        made = self.program.add(
            f"{name}/concat",
            "concat",
            [name],
            [each.nbytes for each in together],
            stream="all_gather" if self.of.overlap else COMPUTE,
        )
        self.stream_end = made
        for k, each in enumerate(together):
            self.program.instead[each.name] = f"{made}:{k}" if k else made
            self.available.add(each.name)
            del self.in_flight[each.name]

    def release(self, module: Module) -> None:
        """Let go of parameters that are not needed again soon."""
        held = set(self.kept)
        if not self.of.first_step:
            held |= {each.name for each in module.parameters if self.seen(each) > self.step_id}
            traversed = 0
            for coming in self.visits[self.step_id :]:
                if traversed >= self.of.reuse:
                    break
                held |= {each.name for each in coming.parameters}
                traversed += sum(each.elements for each in coming.parameters)
        for each in module.parameters:
            if each.name not in held and each.name in self.available:
                self.available.remove(each.name)
                self.live -= each.elements

    def reduce(self, k: int, bucket: Sequence[Parameter], sums: dict[str, str]) -> None:
        """Launch the reduction of a bucket."""
        name = self.program.add(
            f"reduce_scatter{k}",
            "reduce_scatter",
            [each.gradient for each in bucket],
            [shard_nbytes(each, self.n) for each in bucket],
            stream="reduce" if self.of.overlap else COMPUTE,
            communicator=GROUP,
            nbytes=self.n * sum(shard_nbytes(each, self.n) for each in bucket),
        )
        sums.update((each.gradient, f"{name}:{i}" if i else name) for i, each in enumerate(bucket))
