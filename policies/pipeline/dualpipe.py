"""DeepSeek's DualPipe (``dualpipe``) and its cut-in-half V (``dualpipe-v``).

A forward and a backward of *different* micro-batches share one compound slot, so that the
computation of one hides the communication of the other. Each rank has two lanes, 0 and 1:

* ``dualpipe``: the model twice, once down the ranks and once up; half of the micro-batches goes each
  way. Rank r of the first half and rank p-1-r run the same program with the directions exchanged.
* ``dualpipe-v``: one model folded into a V; rank r has stages r and 2p-1-r. It is the first half of
  the ranks of ``dualpipe``, whose middle hands over to itself.

Rule, for h ranks in a half, this one being number r of them, and n micro-batches a lane (F0 is the
next forward of lane 0, F0&B1 a compound slot):

    1  (h-1-r)·2 times  F0
    2  r+1              F0 F1
    3  h-1-r            I1 W F1
    4  n-2h+r+1         F0&B1 F1&B0        (rank h-1 does its first F0 B1 one after the other)
    5  h-1-r            B1 F1&B0
    6  r+1              B1 B0              (its second half split: I, and W kept for later)
    7  h-1-r            W I0
    8  the W that are left

``dualpipe-v`` with 2 ranks, 4 micro-batches, F=1, I=W=1:

    rank 0  F0 F1 F2 f0 i0 w0 f1 F3&b1 --    -- .  f2&B0 -- -- b2    -- .  f3&B1 -- -- b3 -- I2 W2 I3 W3
    rank 1  .  F0 f0 F1 f1 F2 b0 --    f2&B0 -- -- F3&b1 -- -- f3&B1 -- -- b2    -- B2 -- .  i3 I3 w3 W3

``dualpipe-v`` equals ``torch.distributed.pipelining.ScheduleDualPipeV``, sizes refused included.

Sources: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437; deepseek-ai/DualPipe,
``dualpipe/dualpipe.py`` and ``dualpipe/dualpipev.py`` (the eight steps, README: bubble and memory).
"""

from __future__ import annotations

from policies.pipeline.action import Phase, Slot
from policies.pipeline.pipeline_schedule import Schedule, SlotProgram, StageLane, bidirectional, v_pipeline
from sim.base.errors import MisfitError


def dualpipe(ranks: int, micro_batches: int) -> Schedule:
    """Generate DualPipe: two replicas in opposite directions; micro-batches 0..m/2-1 go down, the rest up.

    Raises
    ------
    MisfitError
        `ranks` or `micro_batches` is odd, or there are fewer than two micro-batches a rank.

    Examples
    --------
    >>> print(*dualpipe(2, 4).programs[0])
    0F0 1F2 0F1 1B2 (1F3;0B0)OVERLAP_F_B 1B3 0I1 0W1
    """
    if ranks % 2 or micro_batches % 2 or micro_batches < 2 * ranks:
        raise MisfitError(
            f"dualpipe needs an even number of ranks, and an even number of micro-batches of at least twice "
            f"the ranks: {ranks} ranks, {micro_batches} micro-batches",
            reason="dualpipe has an odd number of ranks or micro-batches, or too few of these",
        )
    half = micro_batches // 2
    programs = []
    for rank in range(ranks):
        lanes = StageLane(rank), StageLane(ranks - 1 - rank, first=half)
        if rank >= ranks // 2:
            lanes = lanes[1], lanes[0]
        programs.append(_steps(*lanes, ranks // 2, min(rank, ranks - 1 - rank), half))
    replica_of = (0,) * half + (1,) * half
    return bidirectional(
        "dualpipe", programs, ranks=ranks, micro_batches=micro_batches, replica_of=replica_of
    )


def dualpipe_v(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate DualPipeV: one model in a V, two stages a rank.

    Raises
    ------
    MisfitError
        There are not exactly two chunks, or fewer micro-batches than stages.

    Examples
    --------
    >>> print(*dualpipe_v(1, 2, 2).programs[0])
    0F0 1F0 0F1 1B0 (1F1;0B0)OVERLAP_F_B 1B1 0I1 0W1
    """
    if chunks != 2:
        raise MisfitError(
            f"dualpipe-v needs exactly 2 stages a rank (as torch does), not {chunks}: set chunks to 2",
            reason="dualpipe-v has two stages a rank",
        )
    if micro_batches < 2 * ranks:
        raise MisfitError(
            f"dualpipe-v needs at least as many micro-batches as stages (as torch does): "
            f"{micro_batches} micro-batches, {2 * ranks} stages",
            reason="dualpipe-v has fewer micro-batches than stages",
        )
    programs = (
        _steps(StageLane(r), StageLane(2 * ranks - 1 - r), ranks, r, micro_batches) for r in range(ranks)
    )
    return v_pipeline("dualpipe-v", programs, ranks=ranks, micro_batches=micro_batches)


def _steps(lane0: StageLane, lane1: StageLane, ranks: int, rank: int, count: int) -> list[Slot]:
    """Write the eight steps of the module's docstring."""
    program = SlotProgram()
    after = ranks - 1 - rank
    program.repeat(2 * after, (lane0, "F"))
    program.repeat(rank + 1, (lane0, "F"), (lane1, "F"))
    for _ in range(after):
        program.add(lane1, "I")
        program.add_weight_grad()
        program.add(lane1, "F")
    for i in range(count - 2 * ranks + rank + 1):
        if i == 0 and after == 0:
            program.add(lane0, "F")
            program.add(lane1, "B")
        else:
            program.overlap(lane0, lane1)
        program.overlap(lane1, lane0)
    for _ in range(after):
        program.add(lane1, "B")
        program.overlap(lane1, lane0)
    # Of the 2(rank+1) backwards here, those after the middle one are split.
    for i in range(2 * (rank + 1)):
        phase: Phase = "B" if i <= rank else "I"
        program.add(lane0 if i % 2 else lane1, phase)
    for _ in range(after):
        program.add_weight_grad()
        program.add(lane0, "I")
    while program.pending:
        program.add_weight_grad()
    return program.slots
