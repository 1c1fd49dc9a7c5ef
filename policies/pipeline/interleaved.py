"""Megatron's virtual stages (``interleaved-1f1b``): 1F1B over several chunks a rank.

Rule: stage s is on rank s mod p. Micro-batches go in rounds of g (p of them, when p divides m): a
rank runs a round on its first chunk, then the same round on its second, and so on; backwards take
the chunks from the last to the first. Rank r starts with (v-1)·g + 2(p-1-r) forwards, then
alternates one F with one B, then runs the backwards that are left. The bubble is v times smaller
than 1F1B's; transfers are v times more.

``interleaved-1f1b`` with 2 ranks, 2 chunks, 2 micro-batches, F=1, B=2:

    rank 0  F0 F1 f0 f1 .  .  b0 -- .  b1 -- B0 -- B1 --
    rank 1  .  F0 F1 f0 b0 -- f1 b1 -- B0 -- B1 -- .  .

The order, and the sizes refused, are those of ``torch.distributed.pipelining``'s
``ScheduleInterleaved1F1B``: with max(1, m // p) rounds, m must be a multiple of the rounds.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters",
arXiv 2104.04473, section 2.2.
"""

from __future__ import annotations

from itertools import count

from policies.pipeline.action import Action, Phase
from policies.pipeline.one_f_one_b import actions, alternate
from policies.pipeline.pipeline_schedule import Schedule, one_pipeline
from sim.base.errors import MisfitError


def round_size(name: str, ranks: int, micro_batches: int) -> int:
    """Return how many micro-batches a chunk runs in a row.

    Raises
    ------
    MisfitError
        The micro-batches cannot be split into equal rounds.

    Examples
    --------
    >>> round_size("interleaved-1f1b", ranks=4, micro_batches=8)
    4
    >>> round_size("interleaved-1f1b", ranks=4, micro_batches=10)
    5
    """
    rounds = _rounds(ranks, micro_batches)
    if micro_batches % rounds:
        below = next(m for m in count(micro_batches, -1) if m % _rounds(ranks, m) == 0)
        above = next(m for m in count(micro_batches) if m % _rounds(ranks, m) == 0)
        raise MisfitError(
            f"{name} needs micro-batches in equal rounds (as torch does): {ranks} ranks make {rounds} rounds "
            f"of {micro_batches} micro-batches, which does not come out even; use {below} or {above}",
            reason=f"{name} makes no equal rounds of the micro-batches",
        )
    return micro_batches // rounds


def _rounds(ranks: int, micro_batches: int) -> int:
    return max(1, micro_batches // ranks)


def rounds_of(
    phase: Phase, rank: int, ranks: int, chunks: int, micro_batches: int, size: int
) -> list[Action]:
    """Return the actions of one phase on `rank`: round by round, each round chunk by chunk.

    Examples
    --------
    >>> " ".join(map(str, rounds_of("F", 0, ranks=2, chunks=2, micro_batches=4, size=2)))
    '0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3'
    """
    order = range(chunks) if phase == "F" else range(chunks - 1, -1, -1)
    found = []
    for first in range(0, micro_batches, size):
        for chunk in order:
            found += actions(chunk * ranks + rank, phase, range(first, first + size))
    return found


def interleaved_1f1b(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate the interleaved 1F1B schedule.

    Raises
    ------
    MisfitError
        The micro-batches cannot be split into equal rounds.

    Examples
    --------
    >>> " ".join(map(str, interleaved_1f1b(2, 2, 2).programs[1]))
    '1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1'
    """
    return interleaved("interleaved-1f1b", "B", 2, ranks, micro_batches, chunks)


def interleaved(
    name: str, backward: Phase, ahead: int, ranks: int, micro_batches: int, chunks: int
) -> Schedule:
    """Alternate forwards and backwards over the chunks of each rank.

    Parameters
    ----------
    name : str
        Of the schedule.
    backward : str
        ``"B"``, or ``"I"`` with W behind it.
    ahead : int
        Forwards that a rank starts with more than the next rank.
    ranks, micro_batches, chunks : int
        Sizes of the schedule.
    """
    size = round_size(name, ranks, micro_batches)
    programs = []
    for rank in range(ranks):
        forwards = rounds_of("F", rank, ranks, chunks, micro_batches, size)
        backwards = rounds_of(backward, rank, ranks, chunks, micro_batches, size)
        warm_up = (chunks - 1) * size + ahead * (ranks - 1 - rank)
        programs.append(alternate(forwards, backwards, warm_up, behind=rank))
    return one_pipeline(name, programs, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
