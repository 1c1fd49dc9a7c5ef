"""From the fields of a pipeline to its stages: given, shared by chunks, or cut from layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from policies.pipeline import Schedule, StageTimes
from policies.pipeline.planners.pipedream_planner import Level, Rule, plan_pipedream
from scenarios.build.pipeline.pipeline_layers import (
    balance_of,
    cut,
    graph_layers,
    layer_costs,
    profile_layers,
)
from scenarios.build.pipeline.pipeline_stage import PipelineStage
from scenarios.file.document import Document
from scenarios.work.pipeline.pipeline_devices import check_ranks, loop_devices
from scenarios.work.pipeline.pipeline_fields import PipelineFields, StageFields
from scenarios.work.pipeline.pipeline_model import EndOfStep, model_stages
from scenarios.work.pipeline.pipeline_timed import graph_of
from sim.graph.graph import Graph
from sim.machine.device import Device
from sim.words.errors import InputError
from sim.words.units import round_half_up

__all__ = ["Stages", "make_stages", "place_stages"]


@dataclass(frozen=True)
class Stages:
    """The stages, on how many workers each is where a planner said so, and how many layers each has.

    Of a model the end of its step is known, too.
    """

    each: list[PipelineStage]
    replicas: tuple[int, ...] | None = None
    balance: tuple[int, ...] = ()
    end: EndOfStep | None = None


def make_stages(fields: PipelineFields, document: Document, devices: Sequence[Device], chunks: int) -> Stages:
    """Return the stages of a pipeline; a model or a graph is timed with ranks in a loop over the devices.

    Parameters
    ----------
    fields : PipelineFields
    document : Document
        Finds a profile.
    devices : sequence of Device
        Of each rank, and perhaps more; they time a model or a graph. Empty without a machine.
    chunks : int
        Stages a rank, for ``ranks:``.

    Raises
    ------
    InputError
        A stage without a time, or a cut that is impossible.
    """
    if fields.model is not None:
        count = _count(fields, chunks)
        homes = loop_devices(count, chunks, devices) if devices else [None] * count
        made, end = model_stages(fields, document, homes)
        return Stages(made, end=end)
    if fields.layers is not None or fields.profile is not None or fields.graph is not None:
        return _cut(fields, document, devices, chunks)
    if fields.ranks is not None:
        each = _shared(_stage(fields, fields), chunks)
        return Stages([each] * (fields.ranks * chunks))
    given = fields.stages if isinstance(fields.stages, list) else [fields] * (fields.stages or 0)
    return Stages(_with_inputs([_stage(stage, fields, i) for i, stage in enumerate(given)]))


def _count(fields: PipelineFields, chunks: int) -> int:
    """Return the number of stages that a model or layers are cut into."""
    given = fields.ranks * chunks if fields.ranks is not None else fields.stages
    if isinstance(fields.partition, str):
        assert isinstance(given, int)
        return given
    if given is not None and given != len(fields.partition):
        on = "" if fields.ranks is None else f" ({fields.ranks} ranks of {chunks} chunks)"
        raise InputError(f"partition has {len(fields.partition)} stages, and there are {given}{on}")
    return len(fields.partition)


def _stage(own: StageFields, common: StageFields, number: int | None = None) -> PipelineStage:
    """Return one stage: what it says itself, else what the pipeline says of all."""
    values = {
        key: getattr(own, key) if getattr(own, key) is not None else getattr(common, key)
        for key in StageFields.model_fields
    }
    if own.backward is not None and own.input_grad is None:  # its own B, not I and W of the others
        values["input_grad"] = values["weight_grad"] = None
    elif own.input_grad is not None and own.backward is None:
        values["backward"] = None
    where = "" if number is None else f"stage {number}: "
    if values["forward"] is None:
        raise InputError(f"{where}has no time of its forward")
    split = values["input_grad"] is not None and values["weight_grad"] is not None
    if values["backward"] is None and not split:
        raise InputError(f"{where}has no time of its backward; give backward, or input_grad and weight_grad")
    if values["backward"] is not None and split:
        total = values["input_grad"] + values["weight_grad"]
        if total != values["backward"]:
            raise InputError(
                f"{where}backward is {values['backward']} ns, and input_grad and weight_grad add up to "
                f"{total} ns; give one of them"
            )
    times = StageTimes(
        **{
            key: values[key]
            for key in ("forward", "backward", "input_grad", "weight_grad", "recompute", "overlapped")
        }
    )
    activation = values["activation"] or 0
    kept = activation if values["kept"] is None else values["kept"]
    for_weights = values["kept_for_weight_grad"]
    if for_weights is not None and for_weights > kept:
        raise InputError(f"{where}kept_for_weight_grad is a part of kept and cannot exceed it")
    return PipelineStage(
        times,
        boundary_nbytes=activation,
        activation_nbytes=kept,
        weight_grad_nbytes=for_weights,
        parameter_nbytes=values["parameters"] or 0,
        gradient_nbytes=values["gradients"] or 0,
        optimizer_nbytes=values["optimizer_state"] or 0,
        checkpoint_nbytes=values["stage_input"],
        collective_ns=values["collective"] or 0,
    )


def _with_inputs(stages: Sequence[PipelineStage]) -> list[PipelineStage]:
    """Let a recomputed micro-batch keep what the stage before sends, where nothing else is said."""
    return [
        replace(stage, checkpoint_nbytes=stages[i - 1].boundary_nbytes)
        if i and stage.checkpoint_nbytes is None
        else stage
        for i, stage in enumerate(stages)
    ]


def _shared(stage: PipelineStage, chunks: int) -> PipelineStage:
    """Return a chunk of a rank's work; what is sent on does not depend on how it is cut."""

    def part(whole: int | None) -> int | None:
        return None if whole is None else round_half_up(Fraction(whole, chunks))

    times = StageTimes(
        **{key: part(getattr(stage.times, key)) for key in StageTimes.__dataclass_fields__}  # type: ignore[arg-type]
    )
    sizes = {
        key: part(getattr(stage, key))
        for key in (
            "activation_nbytes",
            "weight_grad_nbytes",
            "parameter_nbytes",
            "gradient_nbytes",
            "optimizer_nbytes",
            "collective_ns",
        )
    }
    return replace(stage, times=times, **sizes)  # type: ignore[arg-type]


def place_stages(
    fields: PipelineFields, document: Document, stages: Stages, schedule: Schedule, devices: Sequence[Device]
) -> Stages:
    """Return the stages, timed on the devices of the ranks where a schedule puts them.

    Parameters
    ----------
    fields : PipelineFields
    document : Document
    stages : Stages
        As `make_stages` returned them: how layers were cut stays as it is.
    schedule : Schedule
    devices : sequence of Device
        Of each rank.

    Raises
    ------
    InputError
        A stage has several ranks (replicas, both ways) whose devices take different times for it: it has
        one duration.
    """
    timed = fields.graph is not None or (fields.model is not None and fields.model.by_device)
    if not timed:
        return stages
    check_ranks(schedule.ranks, devices)
    found: list[list[PipelineStage]] = []
    end = stages.end
    for placement in dict.fromkeys(schedule.placements):
        homes = [devices[rank] for rank in placement]
        if fields.model is not None:
            each, end = model_stages(fields, document, homes)
            found.append(each)
        else:
            found.append(_of_graph(fields, document, homes, stages.balance))
    for s, (stage, *others) in enumerate(zip(*found, strict=True)):
        if any(other != stage for other in others):
            where = dict.fromkeys(devices[placement[s]].name for placement in schedule.placements)
            raise InputError(
                f"stage {s} lives on {' and '.join(where)}, which take different times for it; put the ranks "
                "on equal devices (devices: [...]), or choose a schedule with one placement"
            )
    return replace(stages, each=found[0], end=end)


def _of_graph(
    fields: PipelineFields, document: Document, homes: Sequence[Device], balance: Sequence[int]
) -> list[PipelineStage]:
    """Return stages cut from the ops of a graph, each timed by the device it is on."""
    graph = graph_of(fields, document)
    per_device = {device.name: cut(_graph_layers(fields, graph, device), balance) for device in homes}
    return [per_device[device.name][s] for s, device in enumerate(homes)]


def _graph_layers(fields: PipelineFields, graph: Graph, device: Device) -> list[PipelineStage]:
    return graph_layers(graph, device, backward_ratio=Fraction(str(fields.backward_ratio)))


def _cut(fields: PipelineFields, document: Document, devices: Sequence[Device], chunks: int) -> Stages:
    """Cut layers into stages; those of a graph are balanced as the first rank's device times them."""
    if fields.profile is not None:
        from scenarios.importers.task_graphs.pipedream_profile import read_profile

        layers = profile_layers(read_profile(document.file(fields.profile)))
    elif fields.graph is not None:
        device = devices[0] if devices else Device("plain")
        layers = _graph_layers(fields, graph_of(fields, document), device)
    else:
        layers = [_stage(layer, fields, i) for i, layer in enumerate(fields.layers or [])]
    if str(fields.partition).startswith("pipedream"):
        rule: Rule = "paper" if fields.partition == "pipedream" else "optimizer"
        plan = plan_pipedream(layer_costs(layers), _levels(fields), rule)
        return Stages(cut(layers, plan.balance), plan.replicas, tuple(plan.balance))
    count = _count(fields, chunks)
    balance = balance_of(layers, count, fields.partition)
    if fields.graph is not None and devices:
        return Stages(
            _of_graph(fields, document, loop_devices(count, chunks, devices), balance), balance=balance
        )
    return Stages(cut(layers, balance), balance=balance)


def _levels(fields: PipelineFields) -> list[Level]:
    """Return the levels of the machine that PipeDream's planners plan for, from the innermost."""
    workers = _count(
        fields, 1
    )  # `stages` or `ranks` is here their number; how many stages they make is the plan
    if fields.levels is None and fields.bandwidth is not None:
        return [Level(workers, fields.bandwidth)]
    if fields.levels is None or fields.bandwidth is not None:
        raise InputError(
            f"the planner {fields.partition} needs the bandwidth between workers: bandwidth: 1GB/s, or "
            "levels: [{workers: 4, bandwidth: 10GB/s}, {workers: 2, bandwidth: 1GB/s}]; give one of them"
        )
    in_all = prod(level.workers for level in fields.levels)
    if in_all != workers:
        raise InputError(
            f"levels has {' x '.join(str(level.workers) for level in fields.levels)} = {in_all} workers, and "
            f"there are {workers}"
        )
    return [Level(level.workers, level.bandwidth) for level in fields.levels]
