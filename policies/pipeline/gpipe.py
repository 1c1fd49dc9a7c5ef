"""GPipe: all forwards, then all backwards (``gpipe``).

Rule: each rank runs F of every micro-batch in order, then B of every micro-batch, the last one
first (``order="lifo"``, as torchgpipe's autograd graph makes it) or the first one first
(``order="fifo"``, as ``torch.distributed.pipelining.ScheduleGPipe``). All m activations are alive
when the first backward starts.

``gpipe`` with 3 ranks, 4 micro-batches, F=1, B=2, ``order="lifo"``:

    rank 0  F0 F1 F2 F3 .  .  .  .  .  .  B3 -- B2 -- B1 -- B0 --
    rank 1  .  F0 F1 F2 F3 .  .  .  B3 -- B2 -- B1 -- B0 -- .  .
    rank 2  .  .  F0 F1 F2 F3 B3 -- B2 -- B1 -- B0 -- .  .  .  .

With `policies.pipeline.recompute`, a micro-batch that kept only its stage input is recomputed just
before its backward: ``B3 R2 B2 R1 B1 R0 B0``, the order of torchgpipe's ``checkpoint="except_last"``.

Sources: Huang et al., "GPipe", arXiv 1811.06965; kakaobrain/torchgpipe, ``torchgpipe/pipeline.py``.
"""

from __future__ import annotations

from typing import Literal

from policies.option_checks import one_of
from policies.pipeline.action import Action, Phase
from policies.pipeline.pipeline_schedule import Schedule, one_pipeline


def gpipe(ranks: int, micro_batches: int, *, order: Literal["lifo", "fifo"] = "lifo") -> Schedule:
    """Generate the GPipe schedule.

    Parameters
    ----------
    ranks, micro_batches : int
        Sizes.
    order : {"lifo", "fifo"}
        The order of the backwards.

    Raises
    ------
    InputError
        Another word.

    Examples
    --------
    >>> [" ".join(map(str, program)) for program in gpipe(1, 3, order="fifo").programs]
    ['0F0 0F1 0F2 0B0 0B1 0B2']
    """
    forwards = range(micro_batches)
    first = one_of("gpipe", "order", order, ("lifo", "fifo"))
    backwards = reversed(forwards) if first == "lifo" else forwards
    walk: list[tuple[Phase, int]] = [("F", k) for k in forwards]
    walk += [("B", k) for k in backwards]
    programs = ((Action(rank, phase, k) for phase, k in walk) for rank in range(ranks))
    return one_pipeline("gpipe", programs, ranks=ranks, micro_batches=micro_batches)
