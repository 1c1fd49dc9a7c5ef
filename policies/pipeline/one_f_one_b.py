"""One forward, one backward (``1f1b``), also known as PipeDream-flush.

Rule: rank r starts with p - 1 - r forwards, then alternates one forward with one backward, then
runs the backwards that are left. It holds at most p - r activations, where GPipe holds m.

``1f1b`` with 3 ranks, 4 micro-batches, F=1, B=2:

    rank 0  F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
    rank 1  .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
    rank 2  .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .

The order is that of ``torch.distributed.pipelining.Schedule1F1B``, which refuses fewer
micro-batches than stages, and so do we. (Torch 2.13's *table* of this schedule numbers the last
rank's forwards 1..m; what it runs, and this, is 0..m-1.)

Sources: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503;
Fan et al., "DAPPLE", arXiv 2007.01045.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat

from policies.pipeline.action import Action, Phase
from policies.pipeline.pipeline_schedule import Schedule, one_pipeline
from sim.base.errors import MisfitError


def alternate(
    forwards: Sequence[Action], backwards: Sequence[Action], warm_up: int, behind: int = 0
) -> list[Action]:
    """Return a rank's program: `warm_up` forwards, one forward and one backward in turn, the backwards left.

    Of a split backward W runs `behind` micro-batches behind I, and what is left of it comes at the end.

    Examples
    --------
    >>> " ".join(map(str, alternate(actions(0, "F", range(3)), actions(0, "B", range(3)), warm_up=1)))
    '0F0 0F1 0B0 0F2 0B1 0B2'
    """
    weight_grads = [action._replace(phase="W") for action in backwards if action.phase == "I"]
    program = list(forwards[:warm_up])
    for i, backward in enumerate(backwards):
        program += [*forwards[warm_up + i : warm_up + i + 1], backward]
        if i >= behind:
            program += weight_grads[i - behind : i - behind + 1]
    return program + weight_grads[max(0, len(backwards) - behind) :]


def actions(stage: int, phase: Phase, micro_batches: Iterable[int]) -> list[Action]:
    """Return one phase of one stage, micro-batch after micro-batch."""
    make = partial(tuple.__new__, Action)  # makes what Action makes of them, in a third of the time
    return list(map(make, zip(repeat(stage), repeat(phase), micro_batches)))


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """Generate the 1F1B schedule.

    Raises
    ------
    MisfitError
        There are fewer micro-batches than ranks.

    Examples
    --------
    >>> [" ".join(map(str, program)) for program in one_f_one_b(2, 3).programs]
    ['0F0 0F1 0B0 0F2 0B1 0B2', '1F0 1B0 1F1 1B1 1F2 1B2']
    """
    if micro_batches < ranks:
        raise MisfitError(
            f"1f1b needs at least as many micro-batches as stages (as torch's Schedule1F1B does): "
            f"{micro_batches} micro-batches, {ranks} stages; use {ranks} or more, or gpipe",
            reason="1f1b has fewer micro-batches than stages",
        )
    ks = range(micro_batches)
    programs = (alternate(actions(r, "F", ks), actions(r, "B", ks), ranks - 1 - r) for r in range(ranks))
    return one_pipeline("1f1b", programs, ranks=ranks, micro_batches=micro_batches)
