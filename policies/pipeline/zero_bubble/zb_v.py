"""Zero bubble in a V (``zb-v``): no bubble in any rank's span, within the memory of 1F1B.

Two stages a rank, folded: rank r has stages r and 2p-1-r, so that the last stage is where the first
one is, and the backward of a micro-batch starts on rank 0, where memory is freed first. Each rank
has at most 2p activations of these half-size stages alive.

Rule, with F0, I0, W0 for the rank's first stage and F1, I1, W1 for its second, n = max(m, 2p-1):

    warm-up     2(p-r)-1 times F0;  r times F1 F0;  p-r times F1 I1 W1
    steady      F0 I0 W0 F1 I1 W1, until F0 and F1 have run n times (without F0 once it has)
    cool-down   r times I0 I1;  p-r times I0 W0;  the W1 that are left;  the W0 that are left

and the micro-batches from m on left out. It has no bubble when F = I = W; for other times
``zb-auto`` with ``chunks=2`` finds an order that has few.

``zb-v`` with 2 ranks, 4 micro-batches, F=I=W=1:

    rank 0  F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3 .
    rank 1  .  F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3

The order is that of ``torch.distributed.pipelining.ScheduleZBVZeroBubble``.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 6.
"""

from __future__ import annotations

from policies.pipeline.action import Slot
from policies.pipeline.pipeline_schedule import Schedule, SlotProgram, StageLane, v_pipeline
from sim.base.errors import MisfitError


def require_two_chunks(name: str, chunks: int) -> None:
    """Refuse a V of other than two stages a rank.

    Raises
    ------
    MisfitError
        `chunks` is not 2.
    """
    if chunks != 2:
        raise MisfitError(
            f"{name} needs exactly 2 stages a rank, one on each arm of the V, not {chunks}: set chunks to 2",
            reason=f"{name} has two stages a rank",
        )


def zb_v(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate the ZB-V schedule.

    Raises
    ------
    MisfitError
        There are not exactly two chunks.

    Examples
    --------
    >>> " ".join(map(str, zb_v(1, 2, 2).programs[0]))
    '0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1'
    """
    require_two_chunks("zb-v", chunks)
    programs = (_program(ranks, rank, micro_batches) for rank in range(ranks))
    return v_pipeline("zb-v", programs, ranks=ranks, micro_batches=micro_batches)


def _program(ranks: int, rank: int, micro_batches: int) -> list[Slot]:
    full = max(micro_batches, 2 * ranks - 1)
    down, up = StageLane(rank), StageLane(2 * ranks - 1 - rank)
    program = SlotProgram()
    program.repeat(2 * (ranks - rank) - 1, (down, "F"))
    program.repeat(rank, (up, "F"), (down, "F"))
    program.repeat(ranks - rank, (up, "F"), (up, "I"), (up, "W"))
    while program.counts[up, "F"] < full:
        if program.counts[down, "F"] < full:
            program.add(down, "F")
        program.repeat(1, (down, "I"), (down, "W"), (up, "F"), (up, "I"), (up, "W"))
    program.repeat(rank, (down, "I"), (up, "I"))
    program.repeat(ranks - rank, (down, "I"), (down, "W"))
    program.repeat(full - program.counts[up, "W"], (up, "W"))
    program.repeat(full - program.counts[down, "W"], (down, "W"))
    return [slot for slot in program.slots if all(a.micro_batch < micro_batches for a in slot.parts)]
