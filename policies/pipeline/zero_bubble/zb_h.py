"""Handwritten zero bubble (``zb-h1``, ``zb-h2``): the backward split, W where a bubble was.

The gradient travels on after I, so the next rank need not wait for W; W has no successor and can
fill a hole. Rule, with d = 1 for H1 and d = 2 for H2: rank r starts with d·(p-1-r) forwards, then
alternates F and I; W runs d·r micro-batches behind I: after the i-th I comes the (i-d·r)-th W, and
what is left comes at the end. So every rank has the same number of activations alive: p in H1, as
1F1B has on its first rank, and 2p - 1 in H2.

``zb-h1`` with 3 ranks, 5 micro-batches, F=I=W=1:

    rank 0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
    rank 1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
    rank 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4

``zb-h2`` with 3 ranks, 5 micro-batches, F=I=W=1:

    rank 0  F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4 .  .
    rank 1  .  F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4 .
    rank 2  .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

H2 has no bubble inside any rank's span when F = I = W; the makespan still has (p-1)·F more, because
the last rank starts that much later.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.
"""

from __future__ import annotations

from policies.pipeline.one_f_one_b import actions, alternate
from policies.pipeline.pipeline_schedule import Schedule, one_pipeline


def zb_h1(ranks: int, micro_batches: int) -> Schedule:
    """Generate ZB-H1: within the memory of 1F1B.

    Examples
    --------
    >>> " ".join(map(str, zb_h1(2, 2).programs[1]))
    '1F0 1I0 1F1 1I1 1W0 1W1'
    """
    return _handwritten("zb-h1", ranks, micro_batches, depth=1)


def zb_h2(ranks: int, micro_batches: int) -> Schedule:
    """Generate ZB-H2: up to 2p - 1 activations alive, no bubble when F = I = W.

    Examples
    --------
    >>> " ".join(map(str, zb_h2(2, 3).programs[0]))
    '0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2'
    """
    return _handwritten("zb-h2", ranks, micro_batches, depth=2)


def _handwritten(name: str, ranks: int, micro_batches: int, depth: int) -> Schedule:
    ks = range(micro_batches)
    programs = (
        alternate(actions(r, "F", ks), actions(r, "I", ks), depth * (ranks - 1 - r), behind=depth * r)
        for r in range(ranks)
    )
    return one_pipeline(name, programs, ranks=ranks, micro_batches=micro_batches)
