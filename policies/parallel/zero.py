"""DeepSpeed's ZeRO: ranks keep a part of optimizer states (stage 1), gradients (2) and parameters (3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from policies.option_checks import pattern_of
from policies.parallel.accumulation import micro_batches, refuse_pipelines
from policies.parallel.ddp import never_overflowing
from policies.parallel.rank_grid import DataParallel
from policies.parallel.training_step import (
    COMPUTE,
    HostProgram,
    Module,
    Modules,
    Parameter,
    TrainingStep,
    shard_nbytes,
)
from policies.rewrite.records import Edge
from sim import Graph
from sim.base.arrays import group_pairs
from sim.graph.graph import output_name

# ----------------------------------------------------------------------------------------------------------
# Stages 1 and 2: every rank updates a part of the parameters.
#
#     stage 2       F F F │ B2  B1  r0  B0 │ r1 │ U U U  g     r: sum of a bucket, g: all_gather
#     ... overlap   F F F │ B2  B1  B0          │ U U U  g     on a stream of its own; compute waits
#         reduce                  [ r0 ] [ r1 ]                for the sum before the one launched
#
# A bucket is summed when the next gradient would not fit, so after the op that computes that one. In stage 1
# without ``overlap`` nothing is summed before the backward is over, and then in order of registration. With
# several micro-batches (``gradient-accumulation``) stage 1 adds up whole gradients and sums them over the
# ranks in the last one. Stage 2 keeps only a part: it sums the gradients of every micro-batch over the ranks,
# and adds up its parts.
#
# DeepSpeed's "reduce_scatter" is an all_reduce of the bucket, of which each rank copies its part
# (``use_multi_rank_bucket_allreduce``, the default). Updated parameters are gathered at the end of the step,
# without overlap.
#
# Sources: deepspeed/runtime/zero/stage_1_and_2.py (``reduce_independent_p_g_buckets_and_remove_grads``,
# ``average_tensor``, ``reduce_gradients``, ``process_gradients``,
# ``independent_gradient_partition_epilogue``), deepspeed/runtime/utils.py (``all_gather_dp_groups``) and
# deepspeed/runtime/zero/config.py (defaults, in elements).

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
        return _Summing(self, TrainingStep(graph), n).run()


class _Summing:
    """The host of a rank in stages 1 and 2."""

    def __init__(self, policy: ZeroOne, step: TrainingStep, n: int) -> None:
        self.policy, self.step, self.n = policy, step, n
        self.program = HostProgram(step, f"ZeRO {policy.stage}")
        self.program.shard(n, parameters=False)
        if policy.stage == 2:
            refuse_pipelines(step, "zero-2")
        self.batches = micro_batches(step) if policy.stage == 2 else [step]
        self.buckets = [[param.name for param in bucket] for bucket in policy.buckets(self.batches[0])]
        self.gradients: dict[str, str] = {}
        """Parameter → its gradient so far: of this micro-batch, or the sum of all so far."""
        self.last: str | None = None
        self.wait: str | None = None

    def run(self) -> Graph:
        """Issue the whole step."""
        for k, batch in enumerate(self.batches):
            self.micro_batch(k, batch)
        gradients = {parameter.gradient: self.gradients[parameter.name] for parameter in self.step.parameters}
        self.program.update(self.last, gradients)
        self.gather()
        return self.program.graph()

    def micro_batch(self, k: int, batch: TrainingStep) -> None:
        """Issue a forward and a backward with their sums."""
        earlier, self.gradients = self.gradients, {param.name: param.gradient for param in batch.parameters}
        full: dict[int, list[int]] = {}  # place of an op → buckets that are full once it has run
        if self.policy.stage == 2 or self.policy.overlap:
            begins = [batch.ready_at[self.gradients[bucket[0]]] for bucket in self.buckets]
            full = group_pairs((index, bucket) for bucket, index in enumerate(begins[1:]))
        for index, record in enumerate(batch.work):
            self.program.compute(record, after=[self.wait])
            self.wait = None
            for bucket in full.get(index, ()):
                self.wait, self.last = self.last, self.reduce(bucket, k, record.name)
        for bucket in range(sum(map(len, full.values())), len(self.buckets)):
            self.last = self.reduce(bucket, k, batch.work[-1].name)
        if len(self.batches) > 1:
            self.keep_part(earlier, k)

    def reduce(self, bucket: int, k: int, after: str) -> str:
        """Sum a bucket over the ranks after an op."""
        names = self.buckets[bucket]
        gradients = [self.gradients[parameter] for parameter in names]
        sizes = [self.program.records.nbytes(gradient) for gradient in gradients]
        where = {"stream": "reduce" if self.policy.overlap else COMPUTE, "communicator": GROUP}
        name = f"micro{k}/reduce{bucket}" if len(self.batches) > 1 else f"reduce{bucket}"
        name = self.program.add(name, "all_reduce", gradients, sizes, after=[after], **where)
        self.gradients |= {parameter: output_name(name, i) for i, parameter in enumerate(names)}
        return name

    def keep_part(self, earlier: Mapping[str, str], k: int) -> None:
        """Keep a rank's part of the sums and free the rest; later parts are added to the first."""
        parameters = self.step.parameters
        summed = [earlier, self.gradients] if k else [self.gradients]
        reads = [gradients[parameter.name] for gradients in summed for parameter in parameters]
        parts = [shard_nbytes(parameter, self.n) for parameter in parameters]
        self.last = self.program.add(f"micro{k}/keep_part", "add_n" if k else "copy", reads, parts)
        record = self.program.records.ops[self.last]
        record.bytes_read = sum(parts) * (2 if k else 1)
        record.flops = sum(-(-parameter.elements // self.n) for parameter in parameters) if k else 0
        record.dtype = parameters[0].dtype
        self.gradients = {parameter.name: output_name(self.last, i) for i, parameter in enumerate(parameters)}

    def gather(self) -> None:
        """Gather the updated parameters, in as many pieces as they contain whole buckets."""
        step, n, limit = self.step, self.n, self.policy.bucket_size
        part = -(-sum(parameter.elements for parameter in step.parameters) // n)
        nbytes = max(parameter.nbytes // max(1, parameter.elements) for parameter in step.parameters)
        pieces = max(1, part * n // limit)
        after = [update.name for update in step.updates]
        for k in range(pieces):
            size = part // pieces if k < pieces - 1 else part - (pieces - 1) * (part // pieces)
            gathered: dict[str, Any] = {"communicator": GROUP, "nbytes": n * size * nbytes}
            after = [self.program.add(f"all_gather{k}", "all_gather", [], [], after=after, **gathered)]


class ZeroTwo(ZeroOne):
    """Run a training step on ranks that each keep a part of states and gradients; options as `zero-1`."""

    name, stage = "zero-2", 2


# ----------------------------------------------------------------------------------------------------------
# Stage 3: parameters are sharded, and gathered according to the coordinator's trace.
#
#     all_gather   g0 c0      g1 c1    g2 c2       the host at module i: gather what is missing, wait for
#     compute            F0       F1       F2      everything launched, gather ahead, F(i)
#
# Prefetch comes *after* the wait, and a module waits for everything launched before it: module i+1 waits for
# all that was gathered ahead at module i. c: the parts of ranks become parameters, on the same stream.
# `Coordinator` decides what is gathered and when. Parameters of at most ``param_persistence_threshold``
# elements never leave, and are gathered in one piece after the updates.
#
# Gradients fill buckets, and a bucket is reduced when the next gradient would not fit. With several
# micro-batches (``gradient-accumulation``) the gradients of each are reduced and added to earlier parts; the
# host waits for that at the end of each. Visits restart with each forward, and are known from the second on.
#
# Not modelled: the host stops while more than two gathers or reductions run (``max_ongoing_fetch_events``).
#
# Sources: deepspeed/runtime/zero/partitioned_param_coordinator.py (``fetch_sub_module``,
# ``release_sub_module``, ``reset_step``), partition_parameters.py (``AllGatherCoalescedHandle``), stage3.py
# (``reduce_independent_p_g_buckets_and_remove_grads``, ``partition_grads``,
# ``independent_gradient_partition_epilogue``, ``_post_step``) and config.py (defaults, in elements).

# ----------------------------------------------------------------------------------------------------------
# DeepSpeed ZeRO-3's decisions of what to gather and when: a state machine without a clock or ops.
#
#     visits     a  b  c  c' b' a'          modules with parameters, in the order in which they are entered
#     fetch      gather the module's missing parameters; gathered ones that it needs become available;
#                gather the next ones ahead, within `prefetch` elements and the limit of live ones
#     release    free parameters, except those that a visit within `reuse` elements needs again
#
# From the second step on the visits of the first are known; before that nothing is gathered ahead or kept.
# Parameters of at most `persistence` elements never leave.
#
# Sources: DeepSpeed, deepspeed/runtime/zero/partitioned_param_coordinator.py (``fetch_sub_module``,
# ``release_sub_module``, ``reset_step``) and config.py (defaults, in elements).


@dataclass(frozen=True)
class Limits:
    """Settings of ZeRO-3, in elements; the defaults are DeepSpeed's.

    Attributes
    ----------
    prefetch, persistence, max_live, reuse : int
        ``prefetch_bucket_size``, ``param_persistence_threshold``, ``max_live_parameters``,
        ``max_reuse_distance``.
    first_step : bool
        Whether the visits are still unknown.
    """

    prefetch: int = 50_000_000
    persistence: int = 100_000
    max_live: int = 1_000_000_000
    reuse: int = 1_000_000_000
    first_step: bool = False


class Fetch(NamedTuple):
    """The actions at the entry of a module.

    Attributes
    ----------
    missing : list of str
        Parameters to gather now, in one piece.
    arrived : list of list of str
        Pieces, this one or earlier ones, that become available.
    ahead : list of str
        Parameters to gather after that, in one piece.
    """

    missing: list[str]
    arrived: list[list[str]]
    ahead: list[str]


class Coordinator:
    """Decides what the host of a rank gathers and frees.

    Parameters
    ----------
    visits : sequence of sequence of str
        Parameters of each module, in the order in which a forward and its backward enter them.
    elements : mapping of str to int
        Their numbers of elements.
    limits : Limits

    Attributes
    ----------
    live : int
        Elements present or being gathered, excluding persistent ones.

    Examples
    --------
    >>> limits = Limits(prefetch=10, persistence=0, reuse=0)
    >>> of = Coordinator([["a"], ["b"], ["b"], ["a"]], {"a": 30, "b": 30}, limits)
    >>> [of.fetch().missing, of.fetch().missing], of.live
    ([['a'], []], 60)
    """

    def __init__(self, visits: Sequence[Sequence[str]], elements: Mapping[str, int], limits: Limits) -> None:
        self.visits, self.elements, self.limits = visits, elements, limits
        self.reset()
        self.kept = {name for name, size in elements.items() if size <= limits.persistence}
        self.available = set(self.kept)
        self.in_flight: dict[str, list[str]] = {}
        """Parameter → all parameters gathered with it."""
        self.live = 0

    def reset(self) -> None:
        """Restart the visits, as each forward does, keeping the parameters that are present."""
        self.queue = deque((name, visit) for visit, module in enumerate(self.visits) for name in module)
        self.entered = 0
        self.fetched_for: dict[str, int] = {}

    def fetch(self) -> Fetch:
        """Enter the next module."""
        module = self.visits[self.entered]
        missing = self._gather(module)
        arrived = []
        for name in module:
            if name in self.in_flight:
                together = self.in_flight[name]
                arrived.append(together)
                self.available.update(together)
                for one in together:
                    del self.in_flight[one]
        ahead: list[str] = []
        if not self.limits.first_step:
            pending = {name for name in module if self._last_visit(name) < self.entered}
            while self.queue and pending:
                name, visit = self.queue.popleft()
                self.fetched_for[name] = visit
                pending.discard(name)
            ahead = self._gather_ahead()
        self.entered += 1
        return Fetch(missing, arrived, ahead)

    def release(self, module: Sequence[str]) -> None:
        """Leave a module."""
        kept = set(self.kept)
        if not self.limits.first_step:
            kept |= {name for name in module if self._last_visit(name) > self.entered}
            traversed = 0
            for coming in self.visits[self.entered :]:
                if traversed >= self.limits.reuse:
                    break
                kept.update(coming)
                traversed += self._size(coming)
        for name in module:
            if name not in kept and name in self.available:
                self.available.remove(name)
                self.live -= self.elements[name]

    def _gather_ahead(self) -> list[str]:
        limit = min(self.limits.max_live - self.live, self.limits.prefetch)
        ahead: list[str] = []
        while self.queue and self._size(ahead) < limit:
            name, visit = self.queue.popleft()
            self.fetched_for[name] = max(self._last_visit(name), visit)
            if self._is_missing(name) and name not in ahead:
                ahead.append(name)
        return self._gather(ahead)

    def _gather(self, parameters: Sequence[str]) -> list[str]:
        missing = [name for name in parameters if self._is_missing(name)]
        self.live += self._size(missing)
        self.in_flight |= dict.fromkeys(missing, missing)
        return missing

    def _last_visit(self, name: str) -> int:
        """Return the last visit for which a parameter was fetched."""
        return self.fetched_for.get(name, -1)

    def _is_missing(self, name: str) -> bool:
        return name not in self.available and name not in self.in_flight

    def _size(self, parameters: Sequence[str]) -> int:
        return sum(map(self.elements.__getitem__, parameters))


class ZeroThree(DataParallel):
    """Run a training step on ranks that each keep a part of every parameter.

    Parameters
    ----------
    ranks : int or list of str, optional
        Number of ranks, or their devices; by default all accelerators of the machine.
    wrap : str, optional
        Regular expression for modules (``set_z3_leaf_modules``); see ``fsdp2``. By default every op that
        reads a parameter is a module.
    bucket_size, prefetch : int
        Elements to sum at once, and most elements to gather ahead (``prefetch_bucket_size``).
    param_persistence_threshold : int
        Most elements of a parameter that stays whole on every rank.
    max_live_parameters, max_reuse_distance : int
        Most elements that may be whole at once, and distance within which a reused parameter is kept.
    overlap : bool
        Whether gathers and reductions run on separate streams.
    first_step : bool
        Whether this is the first step, in which visits are unknown and nothing is gathered ahead.

    Examples
    --------
    >>> from policies.rewrite.backward import TrainingRewrite
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("a layer")
    >>> _ = b.input("x", 400), b.parameter("w", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> step = ZeroThree(2, param_persistence_threshold=0).apply(TrainingRewrite().apply(b.build()))
    >>> step.op_names[:3]
    ('gpu0/all_gather0', 'gpu0/all_gather0/concat', 'gpu0/a')
    """

    name = "zero-3"

    def __init__(
        self,
        ranks: int | list[str] | None = None,
        wrap: str | None = None,
        bucket_size: int = 500_000_000,
        prefetch: int = 50_000_000,
        param_persistence_threshold: int = 100_000,
        max_live_parameters: int = 1_000_000_000,
        max_reuse_distance: int = 1_000_000_000,
        overlap: bool = True,
        first_step: bool = False,
    ) -> None:
        super().__init__(ranks)
        self.wrap = None if wrap is None else pattern_of(wrap).pattern
        self.reduce_bucket = self.whole("bucket_size", bucket_size)
        self.limits = Limits(
            self.whole("prefetch", prefetch, least=0),
            self.whole("param_persistence_threshold", param_persistence_threshold, least=0),
            self.whole("max_live_parameters", max_live_parameters, least=0),
            self.whole("max_reuse_distance", max_reuse_distance, least=0),
            first_step,
        )
        self.overlap = overlap

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        return _Gathering(self, TrainingStep(graph), n).run()


class _Gathering:
    """The host of a rank in stage 3, which writes the coordinator's decisions as ops."""

    def __init__(self, policy: ZeroThree, step: TrainingStep, n: int) -> None:
        self.policy, self.step, self.n = policy, step, n
        self.program = HostProgram(step, "ZeRO 3")
        self.program.shard(n)
        refuse_pipelines(step, "zero-3")
        self.batches = micro_batches(step)
        self.persistent = [param for param in step.parameters if param.elements <= policy.limits.persistence]
        """Parameters that are always present."""
        for param in self.persistent:
            self.program.records.externals[param.name] = step.records.externals[param.name]
        self.parameters = {param.name: param for param in step.parameters}
        entered = _modules_entered(Modules(self.batches[0], policy.wrap))
        visits = [entered[index].names for index in sorted(entered)]
        sizes = {param.name: param.elements for param in step.parameters}
        self.coordinator = Coordinator(visits, sizes, policy.limits)
        self.handle: dict[str, str] = {}
        """Parameter → the op that gathers it."""
        self.gathers = 0
        self.stream_end: str | Edge | None = None
        """The last op on the all_gather stream."""
        self.reduced: str | None = None
        self.first_after: str | None = None
        """Dependency of a micro-batch's first gather: the host's wait at the end of the previous one."""

    def run(self) -> Graph:
        """Issue the whole step."""
        for k, batch in enumerate(self.batches):
            self.micro_batch(k, batch)
        self.program.update(self.reduced)
        if self.persistent:
            shard = sum(shard_nbytes(parameter, self.n) for parameter in self.persistent)
            updates = [update.name for update in self.program.updates]
            gathered: dict[str, Any] = {"communicator": GROUP, "nbytes": self.n * shard}
            self.program.add("persistent/all_gather", "all_gather", [], [], after=updates, **gathered)
        return self.program.graph()

    def micro_batch(self, k: int, batch: TrainingStep) -> None:
        """Issue a forward and a backward; gradients are reduced in each."""
        modules = Modules(batch, self.policy.wrap)
        enter, leave = _modules_entered(modules), _modules_entered(modules, -1)
        self.prefix = f"micro{k}/" if len(self.batches) > 1 else ""
        self.first_after = previous = self.reduced
        if k:
            self.coordinator.limits = replace(self.policy.limits, first_step=False)
            self.coordinator.reset()
        buckets = never_overflowing(batch.in_ready_order(), self.policy.reduce_bucket)
        full = group_pairs((batch.ready_at[after[0].gradient], k) for k, after in enumerate(buckets[1:]))
        for index, record in enumerate(batch.work):
            wait = self.fetch() if index in enter else None
            self.program.compute(record, after=[wait, None if index else previous])
            for bucket in full.get(index, ()):
                self.reduce(bucket, buckets[bucket])
            if index in leave:
                self.coordinator.release(leave[index].names)
        self.reduce(len(buckets) - 1, buckets[-1])

    def fetch(self) -> str | Edge | None:
        """Enter a module; return the op that it waits for."""
        fetched = self.coordinator.fetch()
        self.gather(fetched.missing)
        for together in fetched.arrived:
            self.concatenate(together)
        waited = self.stream_end
        self.gather(fetched.ahead)
        return waited

    def gather(self, names: Sequence[str]) -> None:
        """Launch one all_gather."""
        if not names:
            return
        shard = sum(shard_nbytes(self.parameters[param], self.n) for param in names)
        first = (self.program.updates[-1].name, 1) if self.stream_end is None else self.first_after
        self.first_after = None
        name = f"all_gather{self.gathers}"
        where = {"stream": "all_gather" if self.policy.overlap else COMPUTE, "communicator": GROUP}
        name = self.program.add(name, "all_gather", names, [self.n * shard], after=[first], **where)
        self.gathers += 1
        self.stream_end = name
        self.handle |= dict.fromkeys(names, name)

    def concatenate(self, together: Sequence[str]) -> None:
        """Turn data gathered in one piece into parameters."""
        name, sizes = self.handle[together[0]], [self.parameters[param].nbytes for param in together]
        stream = "all_gather" if self.policy.overlap else COMPUTE
        concat = self.stream_end = self.program.add(f"{name}/concat", "concat", [name], sizes, stream=stream)
        for k, param in enumerate(together):
            self.program.instead[param] = output_name(concat, k)

    def reduce(self, k: int, bucket: Sequence[Parameter]) -> None:
        """Launch the reduction of a bucket; parts are added to those of earlier micro-batches."""
        stream = "reduce" if self.policy.overlap else COMPUTE
        parts = [shard_nbytes(parameter, self.n) for parameter in bucket]
        where: dict[str, Any] = {"stream": stream, "communicator": GROUP, "nbytes": self.n * sum(parts)}
        name, gradients = f"{self.prefix}reduce_scatter{k}", [parameter.gradient for parameter in bucket]
        name = self.program.add(name, "reduce_scatter", gradients, parts, **where)
        self.reduced = self.program.add_parts(self.prefix, bucket, name, self.n, stream)


def _modules_entered(modules: Modules, end: int = 0) -> dict[int, Module]:
    """Return the places where modules are entered in forward and backward or, with `end` -1, left."""
    return {row[end]: m for m in modules.all for row in (m.forward, m.backward) if row}
