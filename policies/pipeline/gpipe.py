"""GPipe: all forwards, then all backwards (``gpipe``); inference is the first half (``forward-only``).

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

from collections.abc import Iterator
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


def forward_only(ranks: int, micro_batches: int) -> Schedule:
    """Generate inference over a pipeline: F of every micro-batch in order, and nothing is kept.

    Parameters
    ----------
    ranks, micro_batches : int
        Sizes.

    Examples
    --------
    >>> [" ".join(map(str, program)) for program in forward_only(2, 3).programs]
    ['0F0 0F1 0F2', '1F0 1F1 1F2']
    """
    programs = ((Action(rank, "F", k) for k in range(micro_batches)) for rank in range(ranks))
    meta = {"forward_only": True}
    return one_pipeline("forward-only", programs, ranks=ranks, micro_batches=micro_batches, meta=meta)


def clock_cycles(micro_batches: int, stages: int) -> Iterator[list[tuple[int, int]]]:
    """Yield, cycle by cycle, the pairs (i, j): micro-batch i runs on stage j in GPipe's forward.

    ::

        m = 4 micro-batches            cycle 0   (0,0)
        n = 3 stages                   cycle 1   (1,0) (0,1)
                                       cycle 2   (2,0) (1,1) (0,2)
        (i, j) runs in                 cycle 3   (3,0) (2,1) (1,2)
        cycle i + j                    cycle 4         (3,1) (2,2)
                                       cycle 5               (3,2)

    Issuing by cycles keeps one host thread from running ahead on one device while others wait for
    their launches (torchgpipe, arXiv 2004.09910, section 3.2.1; ``clock_cycles`` in its ``pipeline.py``).

    Parameters
    ----------
    micro_batches, stages : int
        Sizes; there are ``micro_batches + stages - 1`` cycles.

    Examples
    --------
    >>> list(clock_cycles(2, 2))
    [[(0, 0)], [(1, 0), (0, 1)], [(1, 1)]]
    """
    for cycle in range(micro_batches + stages - 1):
        first = max(0, cycle - micro_batches + 1)
        yield [(cycle - stage, stage) for stage in range(first, min(cycle, stages - 1) + 1)]


def clock_table(micro_batches: int, stages: int) -> str:
    """Write the cycles as the table of `clock_cycles`: one row a cycle, one column a stage.

    Examples
    --------
    >>> print(clock_table(2, 2))
    cycle 0   (0,0)
    cycle 1   (1,0) (0,1)
    cycle 2         (1,1)
    """
    width = len(f"({micro_batches - 1},{stages - 1})") + 1
    number = len(str(micro_batches + stages - 2))
    lines = []
    for cycle, pairs in enumerate(clock_cycles(micro_batches, stages)):
        cells = {stage: f"({i},{stage})" for i, stage in pairs}
        row = "".join(cells.get(stage, "").ljust(width) for stage in range(stages))
        lines.append(f"cycle {cycle:<{number}}   {row}".rstrip())
    return "\n".join(lines)
