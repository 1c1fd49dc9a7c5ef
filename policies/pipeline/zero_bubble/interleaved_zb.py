"""Zero bubble over interleaved chunks (``interleaved-zb``): the backward split, W kept for later.

Rule: chunks and rounds as in ``interleaved-1f1b``, with half the extra warm-up, (v-1)·g + (p-1-r)
forwards, because the gradient travels on after I, without waiting for W. On rank r, W runs r
micro-batches behind I: after the i-th I comes the (i-r)-th W, and what is left comes at the end.

``interleaved-zb`` with 2 ranks, 2 chunks, 2 micro-batches, F=I=W=1:

    rank 0  F0 F1 f0 f1 .  i0 w0 i1 w1 I0 W0 I1 W1
    rank 1  .  F0 F1 f0 i0 f1 i1 w0 I0 w1 I1 W0 W1

The order, and the sizes refused, are those of ``torch.distributed.pipelining``'s
``ScheduleInterleavedZeroBubble``.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241 (ZB-1p's rule over chunks).
"""

from __future__ import annotations

from policies.pipeline.interleaved import interleaved
from policies.pipeline.pipeline_schedule import Schedule


def interleaved_zb(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate the interleaved zero-bubble schedule.

    Raises
    ------
    InputError
        The micro-batches cannot be split into equal rounds.

    Examples
    --------
    >>> " ".join(map(str, interleaved_zb(2, 2, 2).programs[1]))
    '1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1'
    """
    return interleaved("interleaved-zb", "I", 1, ranks, micro_batches, chunks)
