"""The order in which the slots of a pipeline are written: a walk over all programs, inputs first.

::

    rank 0   0F0 0F1 | ...          a rank goes on until it lacks something,
    rank 1           1F0 1F1 | ...  and sleeps until that has been made

What may be waited for has a number: ``(plane · stages + stage) · micro-batches + micro-batch``; the plane
is 0 for F, 1 for the gradient (of B or I), 2 for R; nobody waits for a W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from policies.pipeline.action import Slot
from policies.pipeline.pipeline_schedule import Actions
from scenarios.builders.pipeline_stage import Read
from sim.base.arrays import UNSET, Csr, IntArray
from sim.native.compiled import load

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
    steps_in_order = load("program_walk", "native").steps_in_order
    order, done = steps_in_order(np.array(first), n_keys, *needs, *makes)
    return order, done.tolist()


# ----------------------------------------------------------------------------------------------------------
# When the host launches copies that run on the compute streams (``copy_streams: false``): by clock cycles.
#
#  cycle    1          2                    3
#  fence               copy for 1F0         copy for 1F1, copy for 2F0      (reading stages in rising order)
#  slots    0F0        0F1  1F0             0F2  1F1  2F0
#
# In each cycle the host first launches the copies that the cycle's slots read (the fence), then the slots. A
# copy between two compute streams takes its place on both, so that stage 1 runs ``1F0, receive for 1F1, send
# for 2F0, 1F1``. A slot's cycle is the one after those of the slot before it on its rank and of all that make
# what it reads. All copies thus stand in one order, the same on every stream, and no schedule deadlocks.
#
# A recomputation right before its backward shares the backward's cycle: its launch follows that of the copy
# of the gradient, and on a compute stream it queues behind that copy.
#
# Source: kakaobrain/torchgpipe, ``fence`` and ``compute`` in ``torchgpipe/pipeline.py`` for the forward;
# ``Recompute`` in ``torchgpipe/checkpoint.py``, which autograd reaches through the copy of the gradient.
# There each device's backward has a host thread, and the order of their copies is a race: that a thread
# launches R, B and the copy of what B makes in one go is our choice, and so are the copies of schedules other
# than GPipe's.


def cycles(
    programs: Sequence[Sequence[Slot]], needs: Csr, makes: Csr, n_keys: int
) -> Iterator[list[tuple[int, Slot]]]:
    """Yield the slots of each clock cycle with their ranks, ranks in rising order.

    Parameters
    ----------
    programs : sequence of sequence of Slot
        Those of a schedule that can run to its end.
    needs, makes : Csr
        Slot (counted over all ranks) → numbers below `n_keys` of what it reads and makes.
    """
    slots = [(rank, slot) for rank, program in enumerate(programs) for slot in program]
    begins = np.array([begin for program in programs for begin in _begins(program)], dtype=bool)
    group = np.cumsum(begins) - 1
    starts = np.flatnonzero(begins)
    n = len(starts)
    made_by = np.full(n_keys, UNSET)
    made_by[makes.indices] = group[makes.rows()]
    reader, source = group[needs.rows()], made_by[needs.indices]
    other = reader != source
    sources = Csr.group(reader[other], source[other], n)
    bounds = [0, *accumulate(sum(_begins(program)) for program in programs)]
    order, _ = walk(sources, Csr.of_rows([[g] for g in range(n)]), bounds, n)
    cycle, busy, reads = [0] * n, [0] * len(programs), sources.lists()
    for g in order.tolist():
        rank = slots[starts[g]][0]
        cycle[g] = busy[rank] = 1 + max([busy[rank], *(cycle[source] for source in reads[g])])
    at = np.argsort(np.array(cycle)[group], kind="stable").tolist()
    of = [cycle[group[i]] for i in at]
    ends = [i for i in range(1, len(at) + 1) if i == len(at) or of[i] != of[i - 1]]
    for begin, end in zip([0, *ends], ends, strict=False):
        yield [slots[i] for i in at[begin:end]]


def _begins(program: Sequence[Slot]) -> list[bool]:
    """Tell for each slot whether it shares no cycle with the recomputation before it."""
    found: list[bool] = []
    backwards = set[tuple[int, int]]()  # of the slot at the end of the cycle
    for slot in reversed(program):
        joins = all(part.phase == "R" and (part.stage, part.micro_batch) in backwards for part in slot.parts)
        if found:
            found[-1] = not joins
        found.append(True)
        if not joins:
            backwards = {(part.stage, part.micro_batch) for part in slot.parts if part.phase in "BI"}
    return found[::-1]
