"""Gradient accumulation: several micro-batches per step, whose gradients are added up.

::

    F0 B0 │ F1 B1+ │ F2 B2+ │ U        +: a gradient is added to the earlier ones as soon as it is ready
                      └ replicas sum their gradients only here (``no_sync`` in all but the last)

Ranks made by another rewrite each accumulate separately. Exchanges of tensor-parallel ranks inside a layer
happen in each micro-batch; their sums at the end of the step happen once.

Sources: torch/nn/parallel/distributed.py (``no_sync``), torch/csrc/autograd/functions/accumulate_grad.h (the
first gradient is stored, others are added).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from policies.option_checks import whole
from policies.parallel.rank_grid import OnRanks, Ranked
from policies.parallel.training_step import Parameter, TrainingStep
from policies.rewrite.records import OpEntry, Records, write
from sim import Graph
from sim.base.errors import GraphError


class GradientAccumulation(OnRanks):
    """Run forward and backward of a training step several times before its updates.

    Parameters
    ----------
    micro_batches : int
        Number of forwards and backwards per update.

    Raises
    ------
    GraphError
        If the graph is not a training step, or already has replicas (when applied).

    Examples
    --------
    >>> from policies.rewrite.backward import TrainingRewrite
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("a layer")
    >>> _ = b.input("x", 400), b.parameter("w", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> step = GradientAccumulation(2).apply(TrainingRewrite().apply(b.build()))
    >>> step.op_names[3:]
    ('micro1/a', 'micro1/a/loss_grad', 'micro1/a/weight_grad', 'micro1/w/accumulate', 'w/update')
    """

    def __init__(self, micro_batches: int) -> None:
        self.n = whole("gradient-accumulation", "micro_batches", micro_batches)

    def rewrite_ranks(self, ranked: Ranked) -> Ranked:
        """Return the ranks, or the single device, with steps of several micro-batches."""
        ranked.refuse(["dp"], "gradient-accumulation comes before the rewrite for replicas")
        return ranked.each(self._program)

    def _program(self, graph: Graph) -> Graph:
        step = TrainingStep(graph)
        refuse_micro_batches(step, "gradient-accumulation")
        name = f"{step.records.name} ({self.n} micro-batches)"
        externals = step.records.externals
        records = Records(name, {}, {n: externals[n] for n in step.records.parameters()})
        parameters = {parameter.gradient: parameter for parameter in step.parameters}
        total: dict[str, str] = {}
        for k in range(self.n):
            names = {record.name: f"micro{k}/{record.name}" for record in step.work}
            names |= {n: f"micro{k}/{n}" for n in externals if n not in records.externals}
            records.externals |= {names[n]: e for n, e in externals.items() if n in names}
            for record in step.work:
                copied = records.make(rename_for(record, names, k))
                for output, tensor in enumerate(record.tensors):
                    if tensor in parameters:
                        total[tensor] = add_up(records, copied, output, total.get(tensor), parameters[tensor])
        for update in step.updates:
            inputs = [(total.get(tensor, tensor), d) for tensor, d in update.inputs]
            records.make(replace(update, inputs=inputs))
        return write(records)


def rename_for(record: OpEntry, new: Mapping[str, str], k: int) -> OpEntry:
    """Return an op renamed as the op of micro-batch `k`."""

    def new_name(name: str) -> str:
        base, colon, number = name.rpartition(":")
        return f"{new[base]}:{number}" if colon and base in new and name not in new else new.get(name, name)

    attributes = dict(record.attributes)
    if "group" in attributes and record.kind in ("send", "recv"):
        attributes["group"] = f"micro{k}/{attributes['group']}"
    return replace(
        record,
        name=new[record.name],
        inputs=[(new_name(tensor), d) for tensor, d in record.inputs],
        after=[(new_name(name), d) for name, d in record.after],
        micro_batch=k,
        attributes=attributes,
    )


def make_sum(op: OpEntry, name: str, reads: Sequence[str], nbytes: int, flops: int, **facts: Any) -> OpEntry:
    """Return an op that adds two tensors related to `op`; it has no cost if `op` has a duration."""
    timed = op.duration_ns is not None or op.duration_by_kind
    facts["duration_ns"] = 0 if timed else None
    return op.like(name, "add", reads, [nbytes], flops=flops, bytes_read=2 * nbytes, **facts)


def add_up(records: Records, op: OpEntry, output: int, before: str | None, parameter: Parameter) -> str:
    """Add a gradient, an output of a micro-batch's op, to the earlier ones; return the sum."""
    gradient = op.tensor(output)
    if before is None:
        return gradient
    name = f"micro{op.micro_batch}/{parameter.name}/accumulate"
    stream = {key: value for key, value in op.attributes.items() if key == "stream"}
    facts: dict[str, Any] = {"phase": "W", "attributes": stream}
    records.make(make_sum(op, name, [before, gradient], op.outputs[output], parameter.elements, **facts))
    return name


def refuse_micro_batches(step: TrainingStep, rewrite: str) -> None:
    """Raise if a step already has several micro-batches, which `rewrite` would make.

    Raises
    ------
    GraphError
        If it does.
    """
    if any(record.micro_batch for record in step.work):
        message = f"{rewrite} does not take a step of several micro-batches"
        raise GraphError(f"{message}; gradient-accumulation and pipeline-parallel make them, one of the two")


# ----------------------------------------------------------------------------------------------------------
# The micro-batches of a step with gradient accumulation, each as a separate step.
#
#     micro0/B   micro1/B   micro1/w/accumulate   w/update          made by gradient-accumulation
#     micro0/B │ micro1/B │                       w/update          if the gradients of each are exchanged
#     micro0/B │ micro1/B   micro1/w/accumulate │ w/update          if they are added up first


def are_in_turn(step: TrainingStep) -> bool:
    """Return whether micro-batches run one after another, without a pipeline."""
    order = [record.micro_batch or 0 for record in step.work]
    return order == sorted(order) and all(one.attributes.get("dimension") != "pp" for one in step.work)


def refuse_pipelines(step: TrainingStep, rewrite: str) -> None:
    """Raise if micro-batches do not run one after another, as DeepSpeed's engine does.

    Source: DeepSpeed, ``deepspeed/runtime/pipe/engine.py``: ``PipelineEngine`` asserts that
    ``zero_optimization_stage()`` is below ``ZeroStageEnum.gradients``, so stages 2 and 3 allow no pipeline.

    Raises
    ------
    GraphError
        If they do not.
    """
    if not are_in_turn(step):
        message = f"those of {step.records.name!r} are not (DeepSpeed takes no pipeline either)"
        raise GraphError(f"{rewrite} takes micro-batches one after another; {message}")


def micro_batches(step: TrainingStep, *, added_up: bool = False) -> list[TrainingStep]:
    """Return the micro-batches of a step.

    Parameters
    ----------
    step : TrainingStep
    added_up : bool
        Whether gradients are added to those of earlier micro-batches; by default each stays separate.
    """
    n = 1 + max((record.micro_batch or 0 for record in step.work), default=0)
    gradients, sums = [{p.name: p.gradient for p in step.parameters} for _ in range(n)], set[str]()
    for param in step.parameters:
        tensor = param.gradient
        while (producer := step.records.producer(tensor)) is not None:
            k, gradient = producer.micro_batch or 0, step.own_gradient(replace(param, gradient=tensor))
            gradients[k][param.name] = tensor if added_up else gradient
            if gradient == tensor:
                break
            sums.add(producer.name)
            tensor = producer.inputs[0][0]
    if n == 1 or not sums:
        return [step]
    batches = []
    for k in range(n):
        part = copy(step)
        part.__dict__.pop("ready_at", None)
        part.work = [record for record in step.work if (record.micro_batch or 0) == k]
        if not added_up:
            part.work = [record for record in part.work if record.name not in sums]
        part.parameters = [replace(param, gradient=gradients[k][param.name]) for param in step.parameters]
        batches.append(part)
    return batches
