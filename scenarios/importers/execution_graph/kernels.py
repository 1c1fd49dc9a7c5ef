"""What an execution graph tells of the kernels of a trace: what they read, write, compute and move.

An operator that has a formula shares its flop and bytes among the kernels that were launched inside it, by
their durations; of one without a formula the next around it counts that has one (``aten::conv2d`` around
``aten::cudnn_convolution``), and if none has, the bytes of its tensors and no flop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scenarios.importers.execution_graph.costs import Known, bytes_of, known_cost
from scenarios.importers.execution_graph.operators import Operator, tensors
from scenarios.importers.execution_graph.tensor_flow import Flow, Touch, tensor_flow

__all__ = ["Kernel", "Told", "told"]

_DEEPEST: Final = 64
"""Operators around one are looked at no further out than that."""


class Kernel(NamedTuple):
    """A task of a GPU.

    Attributes
    ----------
    operator : Operator or None
        What launched it.
    step : int
        In which of the steps of the trace, where the graph has one.
    lane : hashable
        Device and stream.
    duration_ns : int
    communicates : bool
    """

    operator: Operator | None
    step: int
    lane: Any
    duration_ns: int
    communicates: bool


class Told(NamedTuple):
    """What is known of a task.

    Attributes
    ----------
    flow : Flow
    facts : dict
        Flop, bytes and data type.
    attributes : dict
        Shapes, and what the formula looked at.
    """

    flow: Flow
    facts: dict[str, Any]
    attributes: dict[str, Any]


def told(kernels: Sequence[Kernel], around: Mapping[int, Operator]) -> list[Told]:
    """Return what is known of each task.

    Parameters
    ----------
    kernels : sequence of Kernel
        In the order in which they were launched.
    around : mapping
        All operators, by id.
    """
    touched = [_with_tensors(kernel.operator, around) for kernel in kernels]
    flows = tensor_flow(
        [
            Touch(None)
            if operator is None
            else Touch((operator.id, kernel.step, kernel.lane), operator.reads, _writes(operator, kernel))
            for operator, kernel in zip(touched, kernels, strict=True)
        ]
    )
    facts, attributes = _shared(kernels, touched, around)
    return [Told(*each) for each in zip(flows, facts, attributes, strict=True)]


def _outward(operator: Operator | None, around: Mapping[int, Operator]) -> Iterator[Operator]:
    """Yield an operator and those around it."""
    for _ in range(_DEEPEST):
        if operator is None:
            break
        yield operator
        operator = around.get(operator.parent) if operator.parent != operator.id else None


def _with_tensors(operator: Operator | None, around: Mapping[int, Operator]) -> Operator | None:
    return next((one for one in _outward(operator, around) if one.reads or one.writes), None)


def _writes(operator: Operator, kernel: Kernel) -> list[Any]:
    """Return what an operator writes: a collective that returns no tensor works in place."""
    return operator.reads if kernel.communicates and not operator.writes else operator.writes


def _shared(
    kernels: Sequence[Kernel], touched: Sequence[Operator | None], around: Mapping[int, Operator]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    facts: list[dict[str, Any]] = [{} for _ in kernels]
    attributes: list[dict[str, Any]] = [{} for _ in kernels]
    inside: dict[tuple[int, int], list[int]] = defaultdict(list)
    costs: dict[int, Known | None] = {}

    def cost_of(operator: Operator) -> Known | None:
        if operator.id not in costs:
            costs[operator.id] = known_cost(operator)
        return costs[operator.id]

    for i, (kernel, nearest) in enumerate(zip(kernels, touched, strict=True)):
        if kernel.communicates and nearest is not None:
            read = sum(one.nbytes for one in nearest.reads)
            facts[i] = {
                "bytes_read": read,
                "bytes_written": sum(one.nbytes for one in nearest.writes) or read,
            }
        elif nearest is not None:
            costed = (one for one in _outward(kernel.operator, around) if cost_of(one) is not None)
            inside[next(costed, nearest).id, kernel.step].append(i)
    for (number, _), members in inside.items():
        operator = around[number]
        known = cost_of(operator)
        cost = bytes_of(operator) if known is None else known.cost
        shares = zip(
            *(_split(total, [kernels[i].duration_ns for i in members]) for total in cost), strict=True
        )
        for i, (flops, read, written) in zip(members, shares, strict=True):
            facts[i] = {"flops": flops, "bytes_read": read, "bytes_written": written}
            facts[i] |= {"dtype": known.dtype} if known is not None and known.dtype is not None else {}
            attributes[i] = {
                "operator": operator.name,
                "input_shapes": [list(one.shape) for one in tensors(operator.inputs)],
                "output_shapes": [list(one.shape) for one in tensors(operator.outputs)],
                **({} if known is None else known.attributes),
            }
    return facts, attributes


def _split(total: int, weights: Sequence[int]) -> list[int]:
    """Return parts of a whole, as large as the weights say, that add up to it.

    Examples
    --------
    >>> _split(10, [1, 1, 1]), _split(5, [0, 0])
    ([3, 3, 4], [2, 3])
    """
    if not any(weights):
        weights = [1] * len(weights)
    ends, so_far = [], 0
    for weight in weights:
        so_far += weight
        ends.append(total * so_far // sum(weights))
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
