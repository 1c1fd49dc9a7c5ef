"""A transformer as pipeline stages: the step of `workload: {train: ...}`, on the machine's own devices.

::

    model ─► layers as a rank runs them ─► stages: times, memory        scenarios.builders.train
    times    rate:         the model's own flop at that rate, and nothing else
             calibration:  as in `train`
             neither       the cost model of the device that a stage is on, as for `build`

Layers, memory and the end of the step (`scenarios.builders.train.training`) are the same under all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scenarios.builders.pipeline_stage import PipelineStage
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.calibration import TrainingCalibration, at_rate, on_device
from scenarios.builders.train.kernels import Attention, Product
from scenarios.builders.train.layout import ParallelLayout
from scenarios.builders.train.training import Training
from scenarios.file.document import Document
from scenarios.workloads.calibrations import calibration_for, calibration_of, why_another_gpu
from scenarios.workloads.pipeline_fields import PipelineFields, PipelineModelFields
from sim.base.errors import InputError
from sim.machine.device import Device

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
