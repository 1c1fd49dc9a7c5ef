"""Gradient accumulation: forward and backward of several micro-batches, then one update.

::

    F B │ U              mb0/F mb0/B │ mb1/F mb1/B │ U        inputs mb0/x and mb1/x, parameters as they were
"""

from __future__ import annotations

from dataclasses import replace

from policies.compile.parallel.training_step import TrainingStep
from policies.compile.records import External, Record
from sim.graph.graph import Role

__all__ = ["marked", "micro_batch", "with_inputs"]


def marked(name: str, k: int, of: int) -> str:
    """Return the name of an op or tensor in a micro-batch; where there is one, nothing changes.

    Examples
    --------
    >>> marked("a", 1, of=2), marked("a", 0, of=1)
    ('mb1/a', 'a')
    """
    return name if of == 1 else f"mb{k}/{name}"


def micro_batch(step: TrainingStep, k: int, of: int) -> list[Record]:
    """Return forward and backward of micro-batch `k`, in the order of the host."""
    if of == 1:
        return step.work
    own = {record.name for record in step.work}

    def here(tensor: str) -> str:
        producer = step.records.producer(tensor)
        if producer is None:
            given = step.records.externals[tensor]
            return tensor if given.role == Role.PARAMETER else marked(tensor, k, of)
        return marked(tensor, k, of) if producer.name in own else tensor

    return [
        replace(
            record,
            name=marked(record.name, k, of),
            inputs=[(here(tensor), distance) for tensor, distance in record.inputs],
            after=[(marked(name, k, of) if name in own else name, d) for name, d in record.after],
            micro_batch=k,
        )
        for record in step.work
    ]


def with_inputs(externals: dict[str, External], of: int) -> dict[str, External]:
    """Return parameters as they are, and the inputs of each micro-batch."""
    return {
        name if given.role == Role.PARAMETER else marked(name, k, of): given
        for name, given in externals.items()
        for k in range(of)
    }
