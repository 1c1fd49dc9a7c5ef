"""The order in which the slots of a pipeline are written: a walk over all programs, inputs first.

::

    rank 0   0F0 0F1 | ...          a rank goes on until it lacks something,
    rank 1           1F0 1F1 | ...  and sleeps until that has been made

What may be waited for has a number: ``(plane · stages + stage) · micro-batches + micro-batch``; the plane
is 0 for F, 1 for the gradient (of B or I), 2 for R; nobody waits for a W.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt

from policies.pipeline import Schedule
from policies.pipeline.orders.action import Action
from scenarios.build.pipeline.pipeline_flow import Read
from sim.graph.csr import Csr
from sim.native.compiled import load
from sim.words.arrays import IntArray

__all__ = ["NOTHING", "PLANE", "Actions", "key_of", "needs_of", "walk"]

NOTHING = -(1 << 62)  # no number of an action, a tensor or a parameter

PLANE = {"F": 0, "B": 1, "I": 1, "R": 2, "W": NOTHING}
"""Kinds of what may be waited for."""


class Actions:
    """The actions of all programs as columns, rank after rank, the parts of an overlap one after the other.

    Attributes
    ----------
    stage, micro_batch : array of int
    phase : array of str
        One letter.
    rank, slot : array of int
        Where each is: its rank, and the number of its slot, counted over all ranks.
    first : list of int
        Number of each rank's first slot, and of all slots.
    """

    def __init__(self, schedule: Schedule) -> None:
        slots = list(chain.from_iterable(schedule.programs))
        parts = [1 if isinstance(slot, Action) else len(slot.parts) for slot in slots]
        plain = len(slots) == sum(parts)  # without overlaps a slot is an action
        actions = slots if plain else [action for slot in slots for action in slot.parts]
        columns = list(zip(*actions, strict=True)) or [(), (), ()]
        self.first = [0, *accumulate(map(len, schedule.programs))]
        self.slot = np.repeat(np.arange(len(slots)), parts)
        self.rank = np.searchsorted(self.first, self.slot, side="right") - 1
        self.stage = np.array(columns[0], dtype=np.int64)
        self.phase = np.array(columns[1], dtype="<U1")
        self.micro_batch = np.array(columns[2], dtype=np.int64)


def key_of(
    phase: IntArray, stage: IntArray, micro_batch: IntArray, stages: int, micro_batches: int
) -> IntArray:
    """Return the number of what actions make, or `NOTHING`."""
    plane = np.full(len(stage), NOTHING, dtype=np.int64)
    for letter, number in PLANE.items():
        plane[phase == letter] = number
    made: IntArray = np.where(plane < 0, NOTHING, (plane * stages + stage) * micro_batches + micro_batch)
    return made


def needs_of(
    actions: Actions,
    recomputed: npt.NDArray[np.bool_],
    reads: Sequence[tuple[list[Read], list[Read]]],
    micro_batches: int,
) -> Csr:
    """Return slot → numbers of what it needs, in the order in which it asks."""
    phase, at = actions.phase, actions.stage * micro_batches + actions.micro_batch
    plane, forward, gradient = len(recomputed), phase == "F", (phase == "B") | (phase == "I")
    again = ~forward & (phase != "R") & recomputed[at]
    asked = [
        np.where(~forward, at, NOTHING),
        np.where(again, 2 * plane + at, NOTHING),
        np.where(phase == "W", plane + at, NOTHING),
    ]
    for of, mine in enumerate((forward, gradient)):
        for j in range(max(len(read[of]) for read in reads)):
            base = np.array([read[of][j].base if j < len(read[of]) else NOTHING for read in reads])
            here = base[actions.stage]
            asked.append(np.where(mine & (here != NOTHING), here + actions.micro_batch, NOTHING))
    table = np.stack(asked, axis=1)
    rows, _ = np.nonzero(table != NOTHING)
    slots = int(actions.slot[-1]) + 1 if len(actions.slot) else 0
    counts = np.bincount(actions.slot[rows], minlength=slots)
    return Csr(np.concatenate(([0], np.cumsum(counts))), table[table != NOTHING])


def walk(needs: Csr, makes: Csr, first: Sequence[int], n_keys: int) -> tuple[IntArray, list[int]]:
    """Walk over programs, each of which stops where it lacks something and goes on when that is made.

    Parameters
    ----------
    needs, makes : Csr
        Step → numbers below `n_keys`; the steps of one rank after those of another.
    first : sequence of int
        Number of each rank's first step, and of all steps.

    Returns
    -------
    array of steps, list of int
        The order; and the step at which each rank stops: the end, unless they wait for each other.

    Examples
    --------
    >>> needs, makes = Csr.of_rows([[], [], [0], [1]]), Csr.of_rows([[0], [1], [], []])
    >>> order, done = walk(needs, makes, [0, 2, 4], 2)
    >>> order.tolist(), done
    ([0, 1, 2, 3], [2, 4])
    """
    steps_in_order = load("programs", "native").steps_in_order
    order, done = steps_in_order(np.array(first), n_keys, *needs, *makes)
    return order, done.tolist()
