"""The order in which the slots of a pipeline are written: a walk over all programs, inputs first.

::

    rank 0   0F0 0F1 | ...          a rank goes on until it lacks something,
    rank 1           1F0 1F1 | ...  and sleeps until that has been made

What may be waited for has a number: ``(plane · stages + stage) · micro-batches + micro-batch``; the plane
is 0 for F, 1 for the gradient (of B or I), 2 for R; nobody waits for a W.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from policies.pipeline.orders.action_columns import Actions
from scenarios.build.pipeline.pipeline_flow import Read
from sim.graph.csr import Csr
from sim.native.compiled import load
from sim.words.arrays import IntArray

__all__ = ["NOTHING", "PLANE", "key_of", "needs_of", "walk"]

NOTHING = -(1 << 62)  # no number of an action, a tensor or a parameter

PLANE = {"F": 0, "B": 1, "I": 1, "R": 2, "W": NOTHING}
"""Kinds of what may be waited for."""


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
    return Csr.of_counts(counts, table[table != NOTHING])


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
