"""Pipelines: ``workload: {pipeline: {stages: 4, micro_batches: 8, forward: 1ms, backward: 2ms}}``.

::

    fields ──► stages (given, or cut from layers, a profile, a model)
                  │
    policy ───────┼──► schedule (a program for each rank) ──► graph ─┐
                  │                                                  ├──► run ──► report, and does it fit?
    machine ──────┴──► device of each rank, times of a model ────────┘
    (or plain devices)

The policy of a pipeline is its schedule: any name that ``sim schedule`` knows, with its options. The number
of ranks is stages / chunks. With ``ranks:`` instead of ``stages:`` the same work of each rank is cut into as
many chunks as a schedule has, so that schedules with and without chunks can be compared.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from devices.collectives.groups import Fabric
from policies.option_checks import whole
from policies.pipeline.pipeline_schedule import Schedule, without_backward_dependency
from policies.pipeline.registry import MOST_SLOTS, default_chunks, generate, options
from scenarios.builders.pipeline_graph import crossings, pipeline_graph, plain_machine
from scenarios.builders.pipeline_stage import Around, check_schedule, search_options
from scenarios.file.document import Document, Loc
from scenarios.workloads.pipeline_fields import PipelineFields
from scenarios.workloads.pipeline_report import PipelineOnDevices
from scenarios.workloads.pipeline_stages import StageMaker, Stages
from scenarios.workloads.workload import Work, Workload
from sim.base.errors import InputError
from sim.base.units import format_count, round_half_up
from sim.graph.graph import Graph
from sim.job.transfers import Travel
from sim.machine.machine import Machine

if TYPE_CHECKING:
    from scenarios.fields.policy_fields import PolicyFields
    from sim.trace import Trace


def micro_batch_sizes(batch: int, micro_batches: int) -> tuple[int, ...]:
    """Return the sizes of the micro-batches that ``tensor.chunk(micro_batches)`` makes.

    All have ceil(batch / micro_batches) samples except the last, which has the rest, so that there may be
    fewer micro-batches than requested.

    Examples
    --------
    >>> micro_batch_sizes(5, 4)
    (2, 2, 1)
    """
    size = -(-batch // micro_batches)
    return tuple(min(size, batch - start) for start in range(0, batch, size))


class Pipeline(Workload):
    """A pipeline of stages over micro-batches; its policy is a schedule."""

    deciders = "sim.pipelines"

    pipeline: PipelineFields

    def check_schedule(self, policy: PolicyFields) -> None:
        """Raise if an option is unknown to the schedule, or is a size that the workload gives."""
        options = policy.options
        for size in ("ranks", "micro_batches"):
            if size in options:
                says = f"the workload says it (workload.pipeline.{size})"
                raise InputError(f"{policy.name} takes no {size}: {says}")
        if options.get("chunks") is not None:
            whole(str(policy.name), "chunks", options["chunks"])
        check_schedule(str(policy.name), options, "chunks")

    def default_machine(self) -> Mapping[str, Any]:
        """Return a plain device for each rank."""
        fields = self.pipeline
        stages = len(fields.stages) if isinstance(fields.stages, list) else fields.stages
        ranks = fields.ranks or (stages or 1) // (fields.chunks or 1)
        return {"devices": {"rank": {"kind": "gpu", "count": max(1, ranks)}}}

    def asks_cost_models(self) -> bool:
        """Whether devices time the stages: those of a graph, or of a model without a rate."""
        model = self.pipeline.model
        return self.pipeline.graph is not None or (model is not None and model.by_device)

    def ops_to_time(self, document: Document) -> Graph | None:
        """Return what devices time: the graph that stages are cut from, or the kernels of a model."""
        return StageMaker(self.pipeline, document).timed_graph() if self.asks_cost_models() else None

    def work(
        self, document: Document, machine: Machine | None, policy: PolicyFields, loc: Loc, *, seed: int = 0
    ) -> Work:
        """Return graph and machine under a schedule.

        Raises
        ------
        InputError
            Sizes do not fit each other, an option is unknown, or a device does not exist.
        StuckError
            A custom order deadlocks.
        """
        with self.placing_errors(document, policy, loc):
            return _work(StageMaker(self.pipeline, document, machine), policy)


def _work(make: StageMaker, policy: PolicyFields) -> Work:
    fields, machine = make.fields, make.machine
    name, options = str(policy.name), dict(policy.options)
    chunks = options.pop("chunks", fields.chunks)
    if chunks is not None and (fields.ranks or 1) * chunks > MOST_SLOTS:
        raise InputError(f"chunks: {chunks:,} a rank are more than the {MOST_SLOTS:,} slots there may be")
    stages = make.make(chunks or default_chunks(name))
    sizes = _split(fields)
    schedule = _schedule(make, stages, name, len(sizes), chunks, options)
    if schedule.stages != len(stages.each):
        more = f"; say chunks: {schedule.chunks}" if fields.ranks == schedule.ranks else ""
        has = f"{name} has {schedule.stages} on {format_count(schedule.ranks, 'rank')}{more}"
        raise InputError(f"stages given: {len(stages.each)}; {has}")
    if not fields.backward_dependency:
        schedule = without_backward_dependency(schedule)
    if machine is not None:
        stages = make.place(stages, schedule)
    if schedule.forward_only:
        unused = [key for key in ("optimizer", "dp") if getattr(fields, key) is not None]
        if unused := unused or [key for key in policy.options if key == "checkpoint"]:
            raise InputError(f"{name} has no backward; leave out {unused[0]}")
        stages = replace(stages, each=[stage.for_inference() for stage in stages.each], end=None)
    around = _make_around(fields, stages, schedule.chunks if fields.ranks is not None else 1)
    if machine is None:
        transfer = fields.transfer or 0
        machine = plain_machine(
            schedule.ranks,
            transfer if around.copy_streams else 0,
            pairs=crossings(schedule, around),
            streams=1 + around.own_stream,
            dispatch_ns=fields.issue_cost or 0,
        )
        devices = [device.name for device in machine.devices]
        copy_ns = lambda source, destination, nbytes: transfer  # noqa: E731
    else:
        devices = make.names_of_ranks(schedule.ranks, around)
        copy_ns = partial(_route_ns, machine, devices)
    share = [(size, sizes[0]) for size in sizes]
    graph = pipeline_graph(schedule, stages.each, devices, around=around, copy_ns=copy_ns, shares=share)
    if not around.copy_streams:
        machine = replace(machine, links=(), network=None)
    first = machine.devices[machine.device_index(devices[schedule.rank_of(0, 0)])]

    others = partial(make.smaller, len(stages.each))
    on_devices = PipelineOnDevices(schedule, stages.each, devices, around, others)

    def report(trace: Trace) -> dict[str, Any]:
        result = on_devices.report(trace)
        if fields.batch is not None:
            result["pipeline"]["batch"] = fields.batch
        return {**result, "note": make.note_on_times(stages.each, first)}

    return Work(graph, machine, report, on_devices.check_memory)


def _split(fields: PipelineFields) -> tuple[int, ...]:
    """Return the samples of each micro-batch, or ones if the batch size is not given."""
    if fields.batch is None:
        return (1,) * fields.micro_batches
    sizes = micro_batch_sizes(fields.batch, fields.micro_batches)
    if len(sizes) != fields.micro_batches:
        warnings.warn(
            f"a batch of {fields.batch} in {fields.micro_batches} micro-batches is split into {len(sizes)}, "
            f"of {'+'.join(map(str, sizes))} samples: all but the last have ceil(batch / micro-batches)",
            stacklevel=2,
        )
    return sizes


def _schedule(
    make: StageMaker, stages: Stages, name: str, micro_batches: int, chunks: int | None, extra: dict[str, Any]
) -> Schedule:
    """Generate the schedule, given what it may know of the workload."""
    fields = make.fields
    if name == "custom":
        return generate(name, micro_batches=micro_batches, chunks=chunks, **extra)
    if stages.replicas is not None and "replicas" in options(name):
        extra.setdefault("replicas", list(stages.replicas))
    a_rank = chunks or default_chunks(name)
    if name == "zb-auto":
        extra = search_options(extra, stages.each, fields.transfer or 0, a_rank)
    checkpoint = extra.pop("checkpoint", fields.checkpoint)
    if checkpoint == "except_last" and micro_batches < fields.micro_batches:
        # The last requested chunk is not checkpointed, but a short batch lacks it (torchgpipe, gpipe.py).
        checkpoint = "always"
    count = len(stages.each)
    replicas = extra.get("replicas")
    if replicas and isinstance(replicas, list) and all(type(number) is int for number in replicas):
        ranks = sum(replicas)
    else:
        ranks = count // a_rank
    if not replicas and count % a_rank:
        raise InputError(f"{format_count(count, 'stage')} cannot be shared by ranks of {a_rank} chunks")
    sizes = {"ranks": ranks, "micro_batches": micro_batches, "chunks": chunks}
    return generate(name, **sizes, checkpoint=checkpoint, **extra)


def _make_around(fields: PipelineFields, timed: Stages, shared_by: int) -> Around:
    """Return what surrounds the schedule; a rank's times are divided among its chunks."""
    optimizer, data, stages = fields.optimizer, fields.dp, timed.each
    steps: tuple[int, ...] = ()
    synchronisation: int | None = None
    if optimizer is not None:
        steps = (round_half_up(Fraction(optimizer.duration, shared_by)),) * len(stages)
        synchronisation = optimizer.synchronisation
    elif timed.end is not None and any(timed.end[0]):
        steps, synchronisation = timed.end
    reduce: tuple[int, ...] = ()
    if data is not None and data.all_reduce is not None:
        reduce = (round_half_up(Fraction(data.all_reduce, shared_by)),) * len(stages)
    elif data is not None:
        assert data.replicas is not None
        links, n = Fabric(data.bandwidth or math.inf), data.replicas
        reduced = [stage.gradient_nbytes or stage.parameter_nbytes for stage in stages]
        reduce = tuple(round_half_up(links.time_ns("all_reduce", nbytes, n)) for nbytes in reduced)
    gather: tuple[int, ...] = ()
    if data is not None and data.sharding != "none":  # a half each for scattering and for gathering
        reduce, gather = tuple(ns // 2 for ns in reduce), tuple(ns - ns // 2 for ns in reduce)
    for skip in fields.skips:
        if skip.to >= len(stages):
            raise InputError(f"skips: there is no stage {skip.to}, stages are 0..{len(stages) - 1}")
    return Around(
        skips=tuple(fields.skips),
        portals=fields.portals,
        copy_streams=fields.overlap,
        optimizer_ns=steps,
        synchronisation_ns=synchronisation,
        all_reduce_ns=reduce,
        all_gather_ns=gather,
        overlap=data.overlap if data else True,
        buckets=data.buckets if data else 1,
    )


def _route_ns(machine: Machine, devices: list[str], source: int, destination: int, nbytes: int) -> int:
    """Return the time of a copy between two ranks that has its route to itself."""
    first, second = (machine.device_index(devices[rank]) for rank in (source, destination))
    return Travel.between(machine, first, second).ns(nbytes)
