"""The micro-batches of a step that accumulates gradients, each as a step of its own.

::

    micro0/B   micro1/B   micro1/w/accumulate   w/update          what gradient-accumulation makes
    micro0/B │ micro1/B │                       w/update          who exchanges gradients of each
    micro0/B │ micro1/B   micro1/w/accumulate │ w/update          who adds them up first
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from policies.compile.parallel.training_step import TrainingStep
from sim.words.errors import GraphError

__all__ = ["are_in_turn", "micro_batches", "refuse_pipelines"]


def are_in_turn(step: TrainingStep) -> bool:
    """Whether micro-batches come one after another, of no pipeline."""
    order = [record.micro_batch or 0 for record in step.work]
    return order == sorted(order) and all(one.attributes.get("dimension") != "pp" for one in step.work)


def refuse_pipelines(step: TrainingStep, what: str) -> None:
    """Refuse a step whose micro-batches are not one after another, as DeepSpeed's engine does.

    Source: DeepSpeed, ``deepspeed/runtime/pipe/engine.py``: ``PipelineEngine`` asserts that
    ``zero_optimization_stage()`` is below ``ZeroStageEnum.gradients``, so that stages 2 and 3 have none.

    Raises
    ------
    GraphError
        It is one.
    """
    if not are_in_turn(step):
        message = f"those of {step.records.name!r} are not (DeepSpeed takes no pipeline either)"
        raise GraphError(f"{what} takes micro-batches one after another; {message}")


def micro_batches(step: TrainingStep, *, added_up: bool = False) -> list[TrainingStep]:
    """Return the micro-batches of a step.

    Parameters
    ----------
    step : TrainingStep
    added_up : bool
        Whether gradients are added to those of earlier micro-batches; by default each has its own.
    """
    n = 1 + max((record.micro_batch or 0 for record in step.work), default=0)
    gradients, sums = [{each.name: each.gradient for each in step.parameters} for _ in range(n)], set[str]()
    for each in step.parameters:
        tensor = each.gradient
        while (producer := step.records.producer(tensor)) is not None:
            k, own = producer.micro_batch or 0, step.own_gradient(replace(each, gradient=tensor))
            gradients[k][each.name] = tensor if added_up else own
            if own == tensor:
                break
            sums.add(producer.name)
            tensor = producer.inputs[0][0]
    if n == 1 or not sums:
        return [step]
    found = []
    for k in range(n):
        part = copy(step)
        part.__dict__.pop("ready_at", None)
        part.work = [
            record
            for record in step.work
            if (record.micro_batch or 0) == k and (added_up or record.name not in sums)
        ]
        part.parameters = [replace(each, gradient=gradients[k][each.name]) for each in step.parameters]
        found.append(part)
    return found
