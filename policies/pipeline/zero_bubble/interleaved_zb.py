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

from policies.pipeline.families.interleaved import round_size, rounds_of
from policies.pipeline.orders.action import Action
from policies.pipeline.orders.pipeline_schedule import Schedule, one_pipeline

__all__ = ["interleaved_zb"]


def interleaved_zb(ranks: int, micro_batches: int, chunks: int) -> Schedule:
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
    size = round_size("interleaved-zb", ranks, micro_batches)
    programs = []
    for rank in range(ranks):
        forwards = list(rounds_of("F", rank, ranks, chunks, micro_batches, size))
        input_grads = list(rounds_of("I", rank, ranks, chunks, micro_batches, size))
        weight_grads = [action._replace(phase="W") for action in input_grads]
        warm_up = min((chunks - 1) * size + (ranks - 1 - rank), len(forwards))
        program: list[Action] = forwards[:warm_up]
        for i, input_grad in enumerate(input_grads):
            program += forwards[warm_up + i : warm_up + i + 1]
            program.append(input_grad)
            if i >= rank:
                program.append(weight_grads[i - rank])
        program += weight_grads[max(0, len(input_grads) - rank) :]
        programs.append(program)
    return one_pipeline("interleaved-zb", programs, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
