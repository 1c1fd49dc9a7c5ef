"""How many activations are alive on each rank: a matter of order alone, not of time.

A rank runs its program in order, so what it holds when a slot starts follows from the slots before:

    F   stores the activations of a micro-batch        (with recompute: only the stage input)
    R   stores them again
    B   frees them
    I   frees what only the input gradient reads, W the rest

The peak counts a slot's own activations and frees at its end. This is the column "activations alive
on rank r" of the published comparisons; what else a device holds (weights, gradients, optimizer
state, buffers) is the business of the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from policies.pipeline.orders.action_columns import Actions
from policies.pipeline.orders.pipeline_schedule import Schedule
from sim.words.arrays import IntArray
from sim.words.errors import InputError

__all__ = ["StageActivations", "peak_activations", "transformer_activations"]


@dataclass(frozen=True, slots=True)
class StageActivations:
    """What one micro-batch holds on one stage, in bytes or any other unit.

    Attributes
    ----------
    full : int
        From its F (or R) to its B, or to its I and W.
    for_weight_grad : int, optional
        The part that I leaves for W; by default all of it. The zero-bubble paper has, of
        ``34·s·b·h + 5·s²·b·a`` bytes of a transformer layer, ``32·s·b·h`` left (section 2).
    stage_input : int
        What a recomputed micro-batch keeps from its F to its R.
    """

    full: int = 1
    for_weight_grad: int | None = None
    stage_input: int = 0

    @property
    def kept(self) -> int:
        """What is left after I."""
        return self.full if self.for_weight_grad is None else self.for_weight_grad


def transformer_activations(*, hidden: int, heads: int, sequence: int) -> StageActivations:
    """Return what a transformer layer holds per sample and token, in bytes at 16 bit.

    ``34·h + 5·a·s`` bytes from F to I and ``32·h`` from I to W, for hidden size h, a heads and
    sequence length s: only the proportion matters for an order under a limit that counts
    micro-batches.

    Source: Korthikanti et al., arXiv 2205.05198, section 4.1; Qi et al., arXiv 2401.10241, table 1.

    Examples
    --------
    >>> transformer_activations(hidden=2304, heads=24, sequence=1024)
    StageActivations(full=201216, for_weight_grad=73728, stage_input=0)
    """
    return StageActivations(full=34 * hidden + 5 * heads * sequence, for_weight_grad=32 * hidden)


def peak_activations(
    schedule: Schedule, held: StageActivations | Sequence[StageActivations] = StageActivations()
) -> tuple[int, ...]:
    """Return the largest amount of activations alive on each rank.

    Parameters
    ----------
    schedule : Schedule
        The order.
    held : StageActivations or sequence of StageActivations
        The same for all stages, or one a stage. By default each counts one: the result is the
        number of micro-batches (times chunks) in flight.

    Raises
    ------
    InputError
        There are not as many entries as stages.

    Examples
    --------
    >>> from policies.pipeline import generate
    >>> peak_activations(generate("1f1b", ranks=4, micro_batches=8))
    (4, 3, 2, 1)
    """
    each = (held,) * schedule.stages if isinstance(held, StageActivations) else tuple(held)
    if len(each) != schedule.stages:
        raise InputError(
            f"{len(each)} activation sizes for {schedule.stages} stages; give one, or one a stage"
        )
    actions = Actions(schedule)
    phase, at = actions.phase, actions.stage * schedule.micro_batches + actions.micro_batch
    sizes = np.array([(size.full, size.kept, size.stage_input) for size in each])
    full, kept, stage_input = sizes[actions.stage].T
    first = np.where(np.isin(at, at[phase == "R"]), stage_input, full)
    stored = _total(np.select([phase == "F", phase == "R"], [first, full - stage_input]))
    freed = _total(np.select([phase == "B", phase == "I", phase == "W"], [full, full - kept, kept]))
    bounds = np.searchsorted(actions.slot, np.arange(actions.first[-1] + 1))
    alive = stored[bounds[1:]] - freed[bounds[:-1]]
    before = (stored - freed)[bounds[actions.first]]  # what other ranks keep
    return tuple(
        int(np.max(alive[begin:end] - base, initial=0))
        for (begin, end), base in zip(pairwise(actions.first), before[:-1], strict=True)
    )


def _total(amounts: IntArray) -> IntArray:
    """Return the sum of all before each, and of all."""
    return np.append(0, np.cumsum(amounts))
