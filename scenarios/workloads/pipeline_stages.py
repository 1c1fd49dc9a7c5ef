"""Make the stages of a pipeline from its fields: given, shared by chunks, or cut from layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any, Final

from policies.pipeline.evaluate import StageTimes
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.planners import Level, Rule, plan_pipedream
from scenarios.builders.pipeline_layers import balance_of, cut, graph_layers, layer_costs, profile_layers
from scenarios.builders.pipeline_stage import Around, PipelineStage
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.calibration import TrainingCalibration, at_rate, kernels_graph, on_device
from scenarios.builders.train.kernels import Attention, Product
from scenarios.builders.train.layout import ParallelLayout
from scenarios.builders.train.training import Training
from scenarios.file.document import Document
from scenarios.workloads.calibrations import calibration_for, calibration_of, why_another_gpu
from scenarios.workloads.pipeline_fields import PipelineFields, PipelineModelFields, StageFields
from sim.base.errors import InputError
from sim.base.units import round_half_up
from sim.graph.graph import Graph
from sim.machine.device import Device
from sim.machine.machine import Machine

# ----------------------------------------------------------------------------------------------------------
# Which device each rank of a pipeline runs on; its stages are timed there.
#
#     machine   cpu0  cpu1  gpu0  gpu1  nvswitch      CPUs only if there is nothing else;
#     rank        -     -     0     1      -          a switch runs no op


def candidates(fields: PipelineFields, machine: Machine) -> list[Device]:
    """Return the devices for ranks, in order: as given, else all that run ops except CPUs.

    Raises
    ------
    InputError
        A device does not exist, or cannot run ops (a switch).
    """
    if fields.devices is not None:
        given = [machine.devices[machine.device_index(name)] for name in fields.devices]
        for device in given:
            if not _runs_ops(device):
                raise InputError(f"devices: {device.name} can run no op (kinds: []), so no rank can be there")
        return given
    able = [device for device in machine.devices if _runs_ops(device)]
    return [device for device in able if not device.workers] or able


def _runs_ops(device: Device) -> bool:
    return device.kinds is None or bool(device.kinds)


def check_ranks(ranks: int, devices: Sequence[Device]) -> None:
    """Raise if there are more ranks than devices.

    Raises
    ------
    InputError
        ``9 ranks, 8 GPUs``.
    """
    if ranks > len(devices):
        kinds = {device.kind for device in devices}
        what = f"{kinds.pop().upper()}s" if len(kinds) == 1 else "devices that can run ops"
        names = ", ".join(device.name for device in devices) or "none"
        raise InputError(
            f"{ranks} ranks, {len(devices)} {what} ({names}); "
            "make fewer stages, put several on a rank (chunks; `ranks: N` instead of stages follows each "
            "schedule), or add devices"
        )


def loop_devices(stages: int, chunks: int, devices: Sequence[Device]) -> list[Device]:
    """Return the device of each stage before a schedule has placed it: ranks in a loop.

    Raises
    ------
    InputError
        There are more ranks than devices.
    """
    ranks = max(1, stages // chunks)
    check_ranks(ranks, devices)
    return [devices[stage % ranks] for stage in range(stages)]


def rank_devices(
    fields: PipelineFields, schedule: Schedule, devices: Sequence[Device], around: Around
) -> list[str]:
    """Return the name of the device of each rank.

    Raises
    ------
    InputError
        There are too few devices, or one runs several ops at once or lacks a stream for the reductions.
    """
    for key in ("transfer", "issue_cost"):
        if getattr(fields, key) is not None:
            there = "latency of its links" if key == "transfer" else "issue_cost of its devices"
            raise InputError(f"{key} is for pipelines without a machine; with one, say it there ({there})")
    check_ranks(schedule.ranks, devices)
    for device in devices[: schedule.ranks]:
        if device.workers > 1:
            has = f"{device.name} has {device.workers} workers"
            raise InputError(f"a rank runs one op at a time, and {has}: workers: 1")
        if around.own_stream and device.lanes < 2:
            has = f"gradients are summed beside the computation, and {device.name} has one stream"
            raise InputError(f"{has}; give it streams: 2, or say overlap: false")
    return [device.name for device in devices[: schedule.ranks]]


# ----------------------------------------------------------------------------------------------------------
# A transformer as pipeline stages: the step of `workload: {train: ...}`, on the machine's own devices.
#
#     model ─► layers as a rank runs them ─► stages: times, memory        scenarios.builders.train
#     times    rate:         the model's own flop at that rate, and nothing else
#              calibration:  as in `train`
#              neither       the cost model of the device that a stage is on, as for `build`
#
# Layers, memory and the end of the step (`scenarios.builders.train.training`) are the same under all three.

EndOfStep = tuple[tuple[int, ...], int]
"""Optimizer time of each stage in ns, and the time of the synchronisation of all ranks before it."""


def model_stages(
    fields: PipelineFields, document: Document, homes: Sequence[Device | None]
) -> tuple[list[PipelineStage], EndOfStep]:
    """Return equal stages of a transformer, each timed by the device it is on, and the end of the step.

    Parameters
    ----------
    fields : PipelineFields
    document : Document
        Finds a calibration's file.
    homes : sequence of Device or None
        The device of each stage; None: there is no machine.

    Raises
    ------
    InputError
        Layers or heads cannot be divided evenly, no key gives a time, or the calibration is of another GPU.
    """
    model = fields.model
    assert model is not None
    if model.layers % len(homes):
        raise InputError(f"{model.layers} layers cannot be shared evenly by {len(homes)} stages")
    if model.heads % model.tp:
        raise InputError(f"{model.heads} heads cannot be shared by {model.tp} devices")
    on = {_timer(device): device for device in reversed(homes)}  # the first of those that are alike
    steps = {key: _training(fields, len(homes), _times(model, document, of)) for key, of in on.items()}
    mine = [steps[_timer(device)] for device in homes]
    return (
        [step.pipeline_stages[s] for s, step in enumerate(mine)],
        (
            tuple(step.around.optimizer_ns[s] for s, step in enumerate(mine)),
            max(step.around.synchronisation_ns or 0 for step in mine),
        ),
    )


def _timer(device: Device | None) -> object:
    """Return a key shared by devices with equal times, so that one can be asked for all of them."""
    if device is None or device.cost is None or device.cost.by_name:
        return None if device is None else device.name
    return id(device.cost), device.gap_ns


def _times(model: PipelineModelFields, document: Document, device: Device | None) -> TrainingCalibration:
    if model.rate is not None:
        return at_rate(model.rate, model.bandwidth)
    if model.calibration is not None:
        found = calibration_of(model.calibration, document, model.dtype, model.gradients)
        if device is not None and (why := why_another_gpu(found, device, model.dtype)):
            raise InputError(f"model.calibration: {why}; take the calibration of that GPU, or none")
        return found
    return on_device(device or Device("rank"), model.dtype, model.bandwidth)


def note_on_times(
    fields: PipelineFields, stages: Sequence[PipelineStage], device: Device | None
) -> str | None:
    """Return a note on what the times of a model's stages leave out, compared with `train`; None: nothing.

    Parameters
    ----------
    fields : PipelineFields
    stages : sequence of PipelineStage
        Result of `model_stages`.
    device : Device or None
        Device of the first stage.
    """
    model = fields.model
    if model is None or model.calibration is not None:
        return None
    if model.rate is not None:
        note = "the optimizer takes no time beside a rate; optimizer: 10ms gives it one"
        return None if fields.optimizer else note
    found = None if device is None else calibration_for(device, model.dtype)
    if found is None:
        return None
    assert device is not None
    first = _training(fields, len(stages), found).pipeline_stages[0].times
    mine = stages[0].times
    times = (first.of("F") + first.of("B")) / (mine.of("F") + mine.of("B"))
    return (
        f"kernels take the cost model of {device.name}, each as if alone, as for `build`; a stage takes "
        f"{times:.2f} times as long with model.calibration: {found.name}, which is fitted to published "
        "training steps, as for `train`"
    )


def smaller_stages(
    fields: PipelineFields, document: Document, stages: int
) -> list[tuple[str, list[PipelineStage]]]:
    """Return a model's stages under settings that keep less, the cheapest first; ignore their times.

    If attention keeps its scores, first comes a fused kernel, then what selective recomputation drops
    (Korthikanti et al., arXiv 2205.05198, section 4); last, every layer is recomputed.
    """
    model = fields.model
    if model is None:
        return []
    changes: list[tuple[str, dict[str, Any]]] = []
    if model.attention == "eager":
        changes.append(("model.attention: flash", {"attention": "flash"}))
        changes += [("model.recompute: selective", {"recompute": "selective"})] * (model.recompute == "none")
    if model.recompute != "full":
        changes.append(("model.recompute: full", {"recompute": "full"}))
    made = [(what, fields.model_copy(update={"model": model.model_copy(update=to)})) for what, to in changes]
    return [(what, _training(of, stages, at_rate(1)).pipeline_stages) for what, of in made]


def forward_kernels(fields: PipelineFields) -> list[Product | Attention]:
    """Return the products and attention of a model's forward, layer after layer."""
    (whole,) = _training(fields, 1, at_rate(1)).each_stage
    kernels = [kernel for unit in whole.units for piece in unit.pieces for kernel in piece.forward]
    return [kernel for kernel in kernels if isinstance(kernel, Product | Attention)]


def _training(fields: PipelineFields, stages: int, times: TrainingCalibration) -> Training:
    model, data = fields.model, fields.dp
    assert model is not None
    replicas = (data.replicas or 1) if data is not None else 1
    return Training(
        Architecture(
            **model.model_dump(include={"layers", "hidden", "heads", "vocabulary"}),
            positions=model.sequence if model.vocabulary else 0,
        ),
        ParallelLayout(
            tp=model.tp,
            pp=stages,
            dp=replicas,
            sequence_parallel=False,
            sharding="none" if data is None else data.sharding,
        ),
        times,
        **model.model_dump(include={"sequence", "micro_batch", "recompute", "attention", "dropout"}),
        batch=model.micro_batch * replicas,
        gradient_bytes=4 if model.gradients == "fp32" else 2,
    )


# ----------------------------------------------------------------------------------------------------------
# What the devices of a pipeline have to time before there are stages: a graph, or kernels of a model.
#
# Warnings about costs count these because the tasks of a pipeline already have durations.


def graph_of(fields: PipelineFields, document: Document) -> Graph:
    """Return the forward graph that stages are cut from, at the batch size of a micro-batch."""
    from scenarios.importers import load_graph

    assert fields.graph is not None
    batch = None if fields.batch is None else -(-fields.batch // fields.micro_batches)
    return load_graph(document.file(fields.graph), batch=batch)


def timed_graph(fields: PipelineFields, document: Document) -> Graph | None:
    """Return the graph, or the kernels of a model's forward; None if there is neither."""
    if fields.graph is not None:
        return graph_of(fields, document)
    return None if fields.model is None else _kernels(tuple(forward_kernels(fields)), fields.model.dtype)


_kernels: Final = lru_cache(maxsize=1)(kernels_graph)
"""The graph of some kernels, shared by all schedules and sweep points that have the same kernels."""


# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stages:
    """The stages, with workers per stage (if a planner chose them) and layers per stage.

    For a model, the end of its step is known, too.
    """

    each: list[PipelineStage]
    replicas: tuple[int, ...] | None = None
    balance: tuple[int, ...] = ()
    end: EndOfStep | None = None


def make_stages(fields: PipelineFields, document: Document, devices: Sequence[Device], chunks: int) -> Stages:
    """Return the stages of a pipeline; a model or graph is timed with ranks in a loop over the devices.

    Parameters
    ----------
    fields : PipelineFields
    document : Document
        Finds a profile.
    devices : sequence of Device
        Devices of the ranks, possibly more; they time a model or a graph. Empty without a machine.
    chunks : int
        Stages per rank, for ``ranks:``.

    Raises
    ------
    InputError
        A stage has no time, or a cut is impossible.
    """
    if fields.model is not None:
        count = _count(fields, chunks)
        homes = loop_devices(count, chunks, devices) if devices else [None] * count
        made, end = model_stages(fields, document, homes)
        return Stages(made, end=end)
    if fields.layers is not None or fields.graph is not None:
        return _cut(fields, document, devices, chunks)
    if fields.ranks is not None:
        each = _shared(_stage(fields, fields), chunks)
        return Stages([each] * (fields.ranks * chunks))
    given = fields.stages if isinstance(fields.stages, list) else [fields] * (fields.stages or 0)
    return Stages(_with_inputs([_stage(stage, fields, i) for i, stage in enumerate(given)]))


def _count(fields: PipelineFields, chunks: int) -> int:
    """Return the number of stages into which a model or its layers are cut."""
    given = fields.ranks * chunks if fields.ranks is not None else fields.stages
    if isinstance(fields.partition, str):
        assert isinstance(given, int)
        return given
    if given is not None and given != len(fields.partition):
        on = "" if fields.ranks is None else f" ({fields.ranks} ranks of {chunks} chunks)"
        raise InputError(f"partition has {len(fields.partition)} stages, and there are {given}{on}")
    return len(fields.partition)


def _stage(own: StageFields, common: StageFields, number: int | None = None) -> PipelineStage:
    """Return one stage; its own fields override those of the pipeline."""
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
    if values["backward"] is not None and split:
        total = values["input_grad"] + values["weight_grad"]
        if total != values["backward"]:
            halves = f"input_grad and weight_grad add up to {total} ns"
            raise InputError(f"{where}backward is {values['backward']} ns, and {halves}; give one of them")
    times = StageTimes(**{each.name: values[each.name] for each in fields_of(StageTimes)})
    activation = values["activation"] or 0
    held = {**common.kept, **own.kept}
    kept, for_weights = held.get("backward", activation), held.get("weight_grad")
    if for_weights is not None and for_weights > kept:
        raise InputError(f"{where}what W reads is a part of what is kept and cannot exceed it")
    return PipelineStage(
        times,
        boundary_nbytes=activation,
        activation_nbytes=kept,
        weight_grad_nbytes=for_weights,
        parameter_nbytes=values["parameters"] or 0,
        gradient_nbytes=values["gradients"] or 0,
        optimizer_nbytes=values["optimizer_state"] or 0,
        checkpoint_nbytes=held.get("recompute"),
        collectives_ns=values["collectives"] or 0,
    )


def _with_inputs(stages: Sequence[PipelineStage]) -> list[PipelineStage]:
    """Let a recomputed micro-batch keep its input from the stage before, unless `kept` is given."""
    return [
        replace(stage, checkpoint_nbytes=stages[i - 1].boundary_nbytes)
        if i and stage.checkpoint_nbytes is None
        else stage
        for i, stage in enumerate(stages)
    ]


def _shared(stage: PipelineStage, chunks: int) -> PipelineStage:
    """Return a chunk of a rank's work; the cut does not change what is sent on."""

    def part(whole: int | None) -> int | None:
        return None if whole is None else round_half_up(Fraction(whole, chunks))

    times = {each.name: part(getattr(stage.times, each.name)) for each in fields_of(StageTimes)}
    whole = ("times", "exposed", "boundary_nbytes", "checkpoint_nbytes")
    sizes = {each.name for each in fields_of(PipelineStage)}.difference(whole)
    shared = {name: part(getattr(stage, name)) for name in sizes}
    return replace(stage, times=StageTimes(**times), **shared)  # type: ignore[arg-type]


def place_stages(
    fields: PipelineFields, document: Document, stages: Stages, schedule: Schedule, devices: Sequence[Device]
) -> Stages:
    """Return the stages, timed on the devices of the ranks to which the schedule assigns them.

    Parameters
    ----------
    fields : PipelineFields
    document : Document
    stages : Stages
        Result of `make_stages`; the cut into layers does not change.
    schedule : Schedule
    devices : sequence of Device
        Device of each rank.

    Raises
    ------
    InputError
        A stage has several ranks (replicas, or both directions) whose devices need different times,
        but it can have only one duration.
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
    """Return stages cut from the ops of a graph, each timed by the device that it is on."""
    graph = graph_of(fields, document)
    per_device = {device.name: cut(_graph_layers(fields, graph, device), balance) for device in homes}
    return [per_device[device.name][s] for s, device in enumerate(homes)]


def _graph_layers(fields: PipelineFields, graph: Graph, device: Device) -> list[PipelineStage]:
    ratio = fields.backward if isinstance(fields.backward, Fraction) else Fraction(2)
    return graph_layers(graph, device, backward_ratio=ratio)


def _cut(fields: PipelineFields, document: Document, devices: Sequence[Device], chunks: int) -> Stages:
    """Cut layers into stages; those of a graph are balanced with times of the first rank's device."""
    if isinstance(fields.layers, str):
        from scenarios.importers.pipedream_profile import read_profile

        layers = profile_layers(read_profile(document.file(fields.layers)))
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
    """Return the levels of the machine for PipeDream's planners, innermost first."""
    # Here `stages` or `ranks` is the number of workers; the plan decides how many stages they form.
    workers = _count(fields, 1)
    if isinstance(fields.bandwidth, int):
        return [Level(workers, fields.bandwidth)]
    if fields.bandwidth is None:
        raise InputError(
            f"the planner {fields.partition} needs the bandwidth between workers: bandwidth: 1GB/s, or "
            "[{workers: 4, bandwidth: 10GB/s}, {workers: 2, bandwidth: 1GB/s}]"
        )
    in_all = prod(level.workers for level in fields.bandwidth)
    if in_all != workers:
        shown = " x ".join(str(level.workers) for level in fields.bandwidth)
        raise InputError(f"bandwidth has {shown} = {in_all} workers, and there are {workers}")
    return [Level(level.workers, level.bandwidth) for level in fields.bandwidth]
