"""Checkpointing as a change of any schedule: an R just before the backward that needs it.

A checkpointed forward keeps only its stage input; its activations are computed again when the
backward comes. Which micro-batches are checkpointed is torchgpipe's choice of three:

    gpipe, never:         F0 F1 F2 B2 B1 B0
    gpipe, except_last:   F0 F1 F2 B2 R1 B1 R0 B0        the last one's backward follows at once
    gpipe, always:        F0 F1 F2 R2 B2 R1 B1 R0 B0

R needs only what the rank has, so it overlaps the gradient's way from the next rank; at most one
recomputed micro-batch is alive at a time.

Source: kakaobrain/torchgpipe, ``torchgpipe/checkpoint.py``; Chen et al., arXiv 1604.06174.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

from policies.pipeline.action import Action, Slot
from policies.pipeline.pipeline_schedule import Schedule
from sim.base.errors import InputError, UnknownNameError

Checkpoint = Literal["never", "except_last", "always"]
"""Which micro-batches are recomputed."""


def with_recompute(schedule: Schedule, checkpoint: Checkpoint) -> Schedule:
    """Return `schedule` with an R before each B or I of a checkpointed micro-batch.

    A backward inside a compound slot is recomputed before the slot.

    Parameters
    ----------
    schedule : Schedule
        An order without R.
    checkpoint : {"never", "except_last", "always"}
        ``except_last`` leaves out the last micro-batch.

    Raises
    ------
    InputError
        `checkpoint` is none of the three.

    Examples
    --------
    >>> from policies.pipeline import generate
    >>> plain = generate("gpipe", ranks=1, micro_batches=3)
    >>> print(*with_recompute(plain, "except_last").programs[0])
    0F0 0F1 0F2 0B2 0R1 0B1 0R0 0B0
    """
    known = get_args(Checkpoint)
    if checkpoint not in known:
        raise UnknownNameError("value of checkpoint", str(checkpoint), known)
    if checkpoint == "never":
        return schedule
    last = schedule.micro_batches - (checkpoint == "except_last")
    programs = tuple(
        tuple(out for slot in program for out in _recomputed(slot, last)) for program in schedule.programs
    )
    return replace(schedule, programs=programs)


def _recomputed(slot: Slot, last: int) -> Iterator[Slot]:
    for stage, phase, k in slot.parts:
        if phase in "BI" and k < last:
            yield Action(stage, "R", k)
    yield slot


def without_backward_dependency(schedule: Schedule) -> Schedule:
    """Return `schedule` as an autograd runs it that knows of no order between micro-batches.

    On the last stage no gradient has to arrive, so nothing holds back a recomputation: all of them run
    before the first backward, and all that they compute is alive at once. torchgpipe's fork and join
    (its "backward dependency") is there to prevent this.

    Source: Kim et al., "torchgpipe", arXiv 2004.09910, section 3.2.2.

    Raises
    ------
    InputError
        The last stage has forwards behind a recomputation, which could not move before it.

    Examples
    --------
    >>> from policies.pipeline import generate
    >>> gpipe = generate("gpipe", ranks=1, micro_batches=3, checkpoint="always")
    >>> print(*without_backward_dependency(gpipe).programs[0])
    0F0 0F1 0F2 0R2 0R1 0R0 0B2 0B1 0B0
    """
    last = schedule.stages - 1
    programs = []
    for program in schedule.programs:
        phases = [a.phase for slot in program for a in slot.parts if a.stage == last]
        if phases[phases.index("R") if "R" in phases else len(phases) :].count("F"):
            raise InputError(
                "backward_dependency: false moves all recomputations of the last stage before its first "
                f"backward, and under {schedule.name} that stage runs backwards before its last forward; it "
                "needs a schedule that runs all forwards first, such as gpipe or looped-bfs"
            )
        again = [slot for slot in program if isinstance(slot, Action) and slot[:2] == (last, "R")]
        backwards = (any(a.stage == last and a.phase in "RBI" for a in slot.parts) for slot in program)
        if again:
            first, moved = list(backwards).index(True), set(again)
            program = (*program[:first], *again, *(slot for slot in program[first:] if slot not in moved))
        programs.append(program)
    return replace(schedule, programs=tuple(programs))
