"""What a planner knows of a layer, and the two plans of torchgpipe that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.pipeline.planners.balance import block_partition

__all__ = ["LayerCost", "by_size", "by_time"]


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer of a chain, for one micro-batch.

    Attributes
    ----------
    time_ns : int
        Forward and backward.
    boundary_nbytes : int
        What crosses a cut right behind it: its output, and what else later layers read from before.
    parameter_nbytes : int
    kept_nbytes : int
        What it keeps for its backward.
    """

    time_ns: int
    boundary_nbytes: int = 0
    parameter_nbytes: int = 0
    kept_nbytes: int = 0


def by_time(layers: Sequence[LayerCost], stages: int) -> tuple[int, ...]:
    """Return the block partition by forward and backward times.

    Source: kakaobrain/torchgpipe, ``torchgpipe.balance.balance_by_time``.

    Examples
    --------
    >>> by_time([LayerCost(time_ns=t) for t in (4, 1, 3, 2, 2, 4)], 2)
    (3, 3)
    """
    return block_partition([layer.time_ns for layer in layers], stages)


def by_size(layers: Sequence[LayerCost], stages: int, *, param_scale: int = 2) -> tuple[int, ...]:
    """Return the block partition by parameters × `param_scale` + activations of a micro-batch.

    Parameters
    ----------
    layers, stages
    param_scale : int
        How often the parameters are there: 2 for SGD (weights, gradients), 3 with momentum, 4 for Adam.

    Source: kakaobrain/torchgpipe, ``torchgpipe.balance.balance_by_size``.

    Examples
    --------
    >>> by_size([LayerCost(0, parameter_nbytes=n) for n in (6, 1, 1)], 2)
    (1, 2)
    """
    return block_partition(
        [param_scale * layer.parameter_nbytes + layer.kept_nbytes for layer in layers], stages
    )
