"""Make the stages of a pipeline from its fields: given, shared by chunks, or cut from layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from fractions import Fraction
from functools import cached_property, lru_cache
from math import prod
from typing import Final

from policies.pipeline.evaluate import StageTimes
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.planners import Level, Rule, plan_pipedream
from scenarios.builders.pipeline_layers import (
    balance_of,
    cut_stages,
    graph_layers,
    layer_costs,
    profile_layers,
)
from scenarios.builders.pipeline_stage import Around, PipelineStage
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.calibration import TrainingCalibration, at_rate, kernels_graph, on_device
from scenarios.builders.train.kernels import Attention, Product
from scenarios.builders.train.layout import ParallelLayout
from scenarios.builders.train.training import Training
from scenarios.file.document import Document
from scenarios.workloads.calibrations import (
    calibration_for,
    calibration_of,
    note_on_calibration,
    why_another_gpu,
)
from scenarios.workloads.pipeline_fields import PipelineFields, StageFields
from sim.base.errors import InputError
from sim.base.units import format_count, round_half_up
from sim.graph.graph import Graph
from sim.machine.device import Device
from sim.machine.machine import Machine

EndOfStep = tuple[tuple[int, ...], int]
"""Optimizer time of each stage in ns, and the time of the synchronisation of all ranks before it."""


@dataclass(frozen=True)
class Stages:
    """The stages, with workers per stage (if a planner chose them) and layers per stage.

    For a model, the end of its step is known, too.
    """

    each: list[PipelineStage]
    replicas: tuple[int, ...] | None = None
    balance: tuple[int, ...] = ()
    end: EndOfStep | None = None


@dataclass(frozen=True)
class StageMaker:
    """Makes the stages of a pipeline; those of a model or a graph are timed on the devices of its ranks.

    Attributes
    ----------
    fields : PipelineFields
    document : Document
        Finds a graph, a profile, or a calibration's file.
    machine : Machine or None
    """

    fields: PipelineFields
    document: Document
    machine: Machine | None = None

    # -- devices ----------------------------------------------------------------------------------------
    #
    #     machine   cpu0  cpu1  gpu0  gpu1  nvswitch      CPUs only if there is nothing else;
    #     rank        -     -     0     1      -          a switch runs no op

    @cached_property
    def devices(self) -> list[Device]:
        """The devices for ranks, in order: as given, else all that run ops except CPUs.

        Raises
        ------
        InputError
            A device does not exist, or cannot run ops (a switch).
        """
        machine = self.machine
        if machine is None:
            return []
        if self.fields.devices is not None:
            chosen = [machine.devices[machine.device_index(name)] for name in self.fields.devices]
            for device in chosen:
                if not _runs_ops(device):
                    no = f"{device.name} can run no op (kinds: []), so no rank can be there"
                    raise InputError(f"devices: {no}")
            return chosen
        able = [device for device in machine.devices if _runs_ops(device)]
        return [device for device in able if not device.workers] or able

    def of_ranks(self, ranks: int) -> list[Device]:
        """Return the device of each rank.

        Raises
        ------
        InputError
            There are too few: ``9 ranks, 8 GPUs``.
        """
        devices = self.devices
        if ranks > len(devices):
            kinds = {device.kind for device in devices}
            kinds_text = f"{kinds.pop().upper()}s" if len(kinds) == 1 else "devices that can run ops"
            names = ", ".join(device.name for device in devices) or "none"
            raise InputError(
                f"{format_count(ranks, 'rank')}, {len(devices)} {kinds_text} ({names}); "
                "make fewer stages, put several on a rank (chunks; `ranks: N` instead of stages follows each "
                "schedule), or add devices"
            )
        return devices[:ranks]

    def names_of_ranks(self, ranks: int, around: Around) -> list[str]:
        """Return the name of the device of each rank.

        Raises
        ------
        InputError
            There are too few devices, or one runs several ops at once or lacks a stream for the reductions.
        """
        for key in ("transfer", "issue_cost"):
            if getattr(self.fields, key) is not None:
                equivalent = "latency of its links" if key == "transfer" else "issue_cost of its devices"
                raise InputError(
                    f"{key} is for pipelines without a machine; with one, say it there ({equivalent})"
                )
        for device in self.of_ranks(ranks):
            if device.workers > 1:
                has = f"{device.name} has {device.workers} workers"
                raise InputError(f"a rank runs one op at a time, and {has}: workers: 1")
            if around.own_stream and device.lanes < 2:
                has = f"gradients are summed beside the computation, and {device.name} has one stream"
                raise InputError(f"{has}; give it streams: 2, or say overlap: false")
        return [device.name for device in self.of_ranks(ranks)]

    def _loop(self, stages: int, chunks: int) -> list[Device]:
        """Return the device of each stage before a schedule has placed it: ranks in a loop, or plain ones."""
        if self.machine is None:
            return [Device("rank")] * stages
        ranks = max(1, stages // chunks)
        return [self.of_ranks(ranks)[stage % ranks] for stage in range(stages)]

    # -- stages -----------------------------------------------------------------------------------------

    def make(self, chunks: int) -> Stages:
        """Return the stages; a model or graph is timed with ranks in a loop over the devices.

        Parameters
        ----------
        chunks : int
            Stages per rank, for ``ranks:``.

        Raises
        ------
        InputError
            A stage has no time, or a cut is impossible.
        """
        fields = self.fields
        if fields.model is not None:
            model_stages, end = self.of_model(self._loop(self._count(chunks), chunks))
            return Stages(model_stages, end=end)
        if fields.layers is not None or fields.graph is not None:
            return self._cut(chunks)
        if fields.ranks is not None:
            chunk = _share(_stage(fields, fields), chunks)
            return Stages([chunk] * (fields.ranks * chunks))
        stage_fields = fields.stages if isinstance(fields.stages, list) else [fields] * (fields.stages or 0)
        return Stages(_with_inputs([_stage(stage, fields, i) for i, stage in enumerate(stage_fields)]))

    def place(self, stages: Stages, schedule: Schedule) -> Stages:
        """Return the stages, timed on the devices of the ranks to which the schedule assigns them.

        Raises
        ------
        InputError
            A stage has several ranks (replicas, or both directions) whose devices need different times,
            but it can have only one duration.
        """
        fields = self.fields
        if fields.graph is None and (fields.model is None or not fields.model.by_device):
            return stages
        devices, end = self.of_ranks(schedule.ranks), stages.end
        by_placement: list[list[PipelineStage]] = []
        for placement in dict.fromkeys(schedule.placements):
            homes = [devices[rank] for rank in placement]
            if fields.model is None:
                by_placement.append(self._of_graph(homes, stages.balance))
            else:
                timed, end = self.of_model(homes)
                by_placement.append(timed)
        for s, (stage, *others) in enumerate(zip(*by_placement, strict=True)):
            if any(other != stage for other in others):
                where = dict.fromkeys(devices[placement[s]].name for placement in schedule.placements)
                raise InputError(
                    f"stage {s} lives on {' and '.join(where)}, which take different times for it; put the "
                    "ranks on equal devices (devices: [...]), or choose a schedule with one placement"
                )
        return replace(stages, each=by_placement[0], end=end)

    def _count(self, chunks: int) -> int:
        """Return the number of stages into which a model or its layers are cut."""
        fields = self.fields
        count = fields.ranks * chunks if fields.ranks is not None else fields.stages
        if isinstance(fields.partition, str):
            assert isinstance(count, int)
            return count
        if count is not None and count != len(fields.partition):
            suffix = "" if fields.ranks is None else f" (ranks: {fields.ranks}, chunks: {chunks})"
            has = format_count(len(fields.partition), "stage")
            raise InputError(f"partition has {has}, and there are {count}{suffix}")
        return len(fields.partition)

    # -- a transformer: the step of `workload: {train: ...}`, on the machine's own devices ------------------
    #
    #     model ─► layers as a rank runs them ─► stages: times, memory        scenarios.builders.train
    #     times    rate:         the model's own flop at that rate, and nothing else
    #              calibration:  as in `train`
    #              neither       the cost model of the device that a stage is on, as for `build`
    #
    # Layers, memory and the end of the step (`scenarios.builders.train.training`) are the same under all of
    # them.

    def of_model(self, homes: Sequence[Device]) -> tuple[list[PipelineStage], EndOfStep]:
        """Return equal stages of a transformer, each timed by its device, and the end of the step.

        Raises
        ------
        InputError
            Layers or heads cannot be divided evenly, no key gives a time, or the calibration is of another
            GPU.
        """
        model = self.fields.model
        assert model is not None
        if model.layers % len(homes):
            raise InputError(f"{format_count(model.layers, 'layer')} cannot form {len(homes)} equal stages")
        timed = {_timer(device): device for device in reversed(homes)}  # the first of those that are alike
        steps = {key: _training(self.fields, len(homes), self._times(home)) for key, home in timed.items()}
        rank_steps = [steps[_timer(device)] for device in homes]
        stages = [step.pipeline_stages[s] for s, step in enumerate(rank_steps)]
        optimizer_ns = tuple(step.around.optimizer_ns[s] for s, step in enumerate(rank_steps))
        return stages, (optimizer_ns, max(step.around.synchronisation_ns or 0 for step in rank_steps))

    def _times(self, device: Device) -> TrainingCalibration:
        model = self.fields.model
        assert model is not None
        if model.rate is not None:
            return at_rate(model.rate, model.bandwidth)
        if model.calibration is not None:
            calibration = calibration_of(model.calibration, self.document, model.dtype, model.gradients)
            if reason := why_another_gpu(calibration, device, model.dtype):
                raise InputError(f"model.calibration: {reason}; take the calibration of that GPU, or none")
            return calibration
        return on_device(device, model.dtype, model.bandwidth)

    def note_on_times(self, stages: Sequence[PipelineStage], device: Device) -> str | None:
        """Return how far times by a cost model are from those of a calibration fitted to published steps."""
        model = self.fields.model
        if model is None or not model.by_device or (fit := calibration_for(device, model.dtype)) is None:
            return None
        fitted = _training(self.fields, len(stages), fit).pipeline_stages
        longer, modelled = (steps[0].times.of("F") + steps[0].times.of("B") for steps in (fitted, stages))
        note = note_on_calibration(device, fit)
        return f"{note}; a stage takes {longer / modelled:.2f} times as long with it"

    def smaller(self, stages: int) -> list[tuple[str, list[PipelineStage]]]:
        """Return a model's stages under settings that keep less, the cheapest first; ignore their times.

        If attention keeps its scores, first comes a fused kernel, then what selective recomputation drops
        (Korthikanti et al., arXiv 2205.05198, section 4); last, every layer is recomputed.
        """
        model = self.fields.model
        if model is None:
            return []
        settings = [("attention", "flash")] if model.attention == "eager" else []
        if settings and model.recompute == "none":
            settings.append(("recompute", "selective"))
        if model.recompute != "full":
            settings.append(("recompute", "full"))
        smaller = []
        for key, value in settings:
            fields = self.fields.model_copy(update={"model": model.model_copy(update={key: value})})
            smaller.append((f"model.{key}: {value}", _training(fields, stages, at_rate(1)).pipeline_stages))
        return smaller

    # -- layers, or the ops of a graph ------------------------------------------------------------------

    def _cut(self, chunks: int) -> Stages:
        """Cut layers into stages; those of a graph are balanced with times of the first rank's device."""
        fields = self.fields
        if isinstance(fields.layers, str):
            from scenarios.importers.pipedream_profile import read_profile

            layers = profile_layers(read_profile(self.document.file(fields.layers)))
        elif fields.graph is not None:
            layers = self._graph_layers(self.graph(), self._loop(1, 1)[0])
        else:
            layers = [_stage(layer, fields, i) for i, layer in enumerate(fields.layers or [])]
        if str(fields.partition).startswith("pipedream"):
            rule: Rule = "paper" if fields.partition == "pipedream" else "optimizer"
            plan = plan_pipedream(layer_costs(layers), self._levels(), rule)
            return Stages(cut_stages(layers, plan.balance), plan.replicas, tuple(plan.balance))
        count = self._count(chunks)
        balance = balance_of(layers, count, fields.partition)
        if fields.graph is None:
            return Stages(cut_stages(layers, balance), balance=balance)
        return Stages(self._of_graph(self._loop(count, chunks), balance), balance=balance)

    def graph(self) -> Graph:
        """Return the forward graph that stages are cut from, at the batch size of a micro-batch."""
        from scenarios.importers import load_graph

        fields = self.fields
        assert fields.graph is not None
        batch = None if fields.batch is None else -(-fields.batch // fields.micro_batches)
        return load_graph(self.document.file(fields.graph), batch=batch)

    def _of_graph(self, homes: Sequence[Device], balance: Sequence[int]) -> list[PipelineStage]:
        """Return stages cut from the ops of a graph, each timed by the device that it is on."""
        graph = self.graph()
        per_device = {device.name: cut_stages(self._graph_layers(graph, device), balance) for device in homes}
        return [per_device[device.name][s] for s, device in enumerate(homes)]

    def _graph_layers(self, graph: Graph, device: Device) -> list[PipelineStage]:
        ratio = self.fields.backward if isinstance(self.fields.backward, Fraction) else Fraction(2)
        return graph_layers(graph, device, backward_ratio=ratio)

    def _levels(self) -> list[Level]:
        """Return the levels of the machine for PipeDream's planners, innermost first."""
        # Here `stages` or `ranks` is the number of workers; the plan decides how many stages they form.
        workers, bandwidth = self._count(1), self.fields.bandwidth
        if isinstance(bandwidth, int):
            return [Level(workers, bandwidth)]
        if bandwidth is None:
            raise InputError(
                f"the planner {self.fields.partition} needs the bandwidth between workers: bandwidth: 1GB/s, "
                "or [{workers: 4, bandwidth: 10GB/s}, {workers: 2, bandwidth: 1GB/s}]"
            )
        in_all = prod(level.workers for level in bandwidth)
        if in_all != workers:
            product = " x ".join(str(level.workers) for level in bandwidth)
            raise InputError(f"bandwidth has {product} = {in_all} workers, and there are {workers}")
        return [Level(level.workers, level.bandwidth) for level in bandwidth]

    # -- what the devices time before there are stages ----------------------------------------------------

    def timed_graph(self) -> Graph | None:
        """Return the graph, or the kernels of a model's forward; None if there is neither.

        Warnings about costs count these because the tasks of a pipeline already have durations.
        """
        if self.fields.graph is not None:
            return self.graph()
        if self.fields.model is None:
            return None
        (part,) = _training(self.fields, 1, at_rate(1)).each_stage
        kernels = (kernel for unit in part.units for piece in unit.pieces for kernel in piece.forward)
        timed = tuple(kernel for kernel in kernels if isinstance(kernel, Product | Attention))
        return _kernels(timed, self.fields.model.dtype)


_kernels: Final = lru_cache(maxsize=1)(kernels_graph)
"""The graph of some kernels, shared by all schedules and sweep points that have the same kernels."""


def _runs_ops(device: Device) -> bool:
    return device.kinds is None or bool(device.kinds)


def _timer(device: Device) -> object:
    """Return a key shared by devices with equal times, so that one of them can stand for all."""
    if device.cost is None or device.cost.by_name:
        return device.name
    return id(device.cost), device.gap_ns


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


def _stage(fields: StageFields, common: StageFields, number: int | None = None) -> PipelineStage:
    """Return one stage; its own fields override those of the pipeline."""
    values = {
        key: getattr(fields, key) if getattr(fields, key) is not None else getattr(common, key)
        for key in StageFields.model_fields
    }
    if fields.backward is not None and fields.input_grad is None:  # its own B, not I and W of the others
        values["input_grad"] = values["weight_grad"] = None
    elif fields.input_grad is not None and fields.backward is None:
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
    times = StageTimes(**{field.name: values[field.name] for field in fields_of(StageTimes)})
    activation = values["activation"] or 0
    sizes = {**common.kept, **fields.kept}
    kept_nbytes, for_weights = sizes.get("backward", activation), sizes.get("weight_grad")
    if for_weights is not None and for_weights > kept_nbytes:
        raise InputError(f"{where}what W reads is a part of what is kept and cannot exceed it")
    return PipelineStage(
        times,
        boundary_nbytes=activation,
        activation_nbytes=kept_nbytes,
        weight_grad_nbytes=for_weights,
        parameter_nbytes=values["parameters"] or 0,
        gradient_nbytes=values["gradients"] or 0,
        optimizer_nbytes=values["optimizer_state"] or 0,
        checkpoint_nbytes=sizes.get("recompute"),
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


def _share(stage: PipelineStage, chunks: int) -> PipelineStage:
    """Return a chunk of a rank's work; the cut does not change what is sent on."""

    def part(amount: int | None) -> int | None:
        return None if amount is None else round_half_up(Fraction(amount, chunks))

    times = {field.name: part(getattr(stage.times, field.name)) for field in fields_of(StageTimes)}
    unshared = ("times", "exposed", "boundary_nbytes", "checkpoint_nbytes")
    sizes = {field.name for field in fields_of(PipelineStage)}.difference(unshared)
    shared = {name: part(getattr(stage, name)) for name in sizes}
    return replace(stage, times=StageTimes(**times), **shared)  # type: ignore[arg-type]
