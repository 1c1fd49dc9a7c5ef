"""The micro-batches of a step that accumulates gradients: each with its own, as stage 2 sums them one by one.

::

    micro0/B   micro1/B   micro1/w/accumulate   w/update          what gradient-accumulation makes
    micro0/B │ micro1/B │                       w/update          what is read of it: work, and gradients of w
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.compile.parallel.training_step import TrainingStep, ready_places
from policies.compile.records import Record
from sim.words.errors import GraphError

__all__ = ["MicroBatch", "micro_batches"]


@dataclass(frozen=True)
class MicroBatch:
    """Forward and backward of a micro-batch.

    Attributes
    ----------
    work : list of Record
    gradients : dict of str to str
        Gradient of a parameter, as its update reads it → that of this micro-batch.
    ready_at : dict of str to int
        Gradient of a parameter → the place in `work` of the op after which that of this one is ready.
    """

    work: list[Record]
    gradients: dict[str, str]
    ready_at: dict[str, int]

    @staticmethod
    def whole(step: TrainingStep) -> MicroBatch:
        """Return the whole step as one."""
        return MicroBatch(
            step.work, {each.gradient: each.gradient for each in step.parameters}, step.ready_at
        )


def micro_batches(step: TrainingStep) -> list[MicroBatch]:
    """Return the micro-batches of a step.

    Raises
    ------
    GraphError
        They are not one after another, as in a pipeline, where DeepSpeed's engine refuses stage 2, too.
    """
    order = [record.micro_batch or 0 for record in step.work]
    if order != sorted(order):
        name = step.records.name
        raise GraphError(f"zero-2 takes micro-batches one after another; those of {name!r} are not")
    n = 1 + max(order, default=0)
    if n == 1:
        return [MicroBatch.whole(step)]
    parts: list[dict[str, str]] = [{} for _ in range(n)]
    sums: set[str] = set()
    for each in step.parameters:
        tensor = each.gradient
        for k in reversed(range(n)):
            producer = step.records.producer(tensor)
            own = tensor
            if producer is not None and producer.name == f"micro{k}/{each.name}/accumulate":
                sums.add(producer.name)
                (tensor, _), (own, _) = producer.inputs
            parts[k][each.gradient] = own
    if not sums:
        return [MicroBatch.whole(step)]
    found = []
    for k, gradients in enumerate(parts):
        work = [r for r in step.work if (r.micro_batch or 0) == k and r.name not in sums]
        ready = ready_places(step.records, work, gradients.values())
        found.append(MicroBatch(work, gradients, {g: ready[own] for g, own in gradients.items()}))
    return found
