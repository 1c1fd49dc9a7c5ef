r"""The duration of a schedule: the longest path through its programs, in exact integers.

This is the reference for the simulator, so the two share nothing: there is no engine and there are no
devices, only the two orders that constrain an action. Its start is the latest of

* the end of the previous slot on its rank (a rank runs its program in order), and
* the end of each of its inputs, plus the transfer time if the input is from another rank.

    rank 0   [F0][F1]          [B0]...
                 \ c           / c
    rank 1       [F0][B0 = I W]/          a fused B gives its gradient at its end, a split one after I

Times are whole numbers in any unit (the project's is nanoseconds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np

from policies.pipeline.pipeline_schedule import Action, Actions, Overlap, Schedule, Slot
from policies.pipeline.validate import in_turn
from sim.base.arrays import IntArray
from sim.base.errors import InputError

T = TypeVar("T")

Transfer = int | Callable[[int, int], int]
"""Transfer time between two different ranks: one number, or a function of (source, destination)."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The time of each phase on one stage.

    Attributes
    ----------
    forward : int
        Time of F.
    backward : int, optional
        Time of a whole B; by default ``input_grad + weight_grad``.
    input_grad, weight_grad : int, optional
        Times of I and W; needed by schedules that split the backward.
    recompute : int, optional
        Time of R; by default ``forward``.
    overlapped : int, optional
        Time of a compound slot with this stage's forward; by default the sum of its parts.

    Examples
    --------
    >>> StageTimes(forward=1, input_grad=1, weight_grad=1).of("B")
    2
    """

    forward: int
    backward: int | None = None
    input_grad: int | None = None
    weight_grad: int | None = None
    recompute: int | None = None
    overlapped: int | None = None

    @property
    def _whole_backward(self) -> int | None:
        if self.backward is not None or self.input_grad is None or self.weight_grad is None:
            return self.backward
        return self.input_grad + self.weight_grad

    @property
    def total(self) -> int:
        """Time of forward plus backward, if there is one."""
        return self.forward + (self._whole_backward or 0)

    def of(self, phase: str) -> int:
        """Return the time of one phase.

        Raises
        ------
        InputError
            If this phase has no time, such as I if only ``backward`` is given.
        """
        time = {
            "F": self.forward,
            "R": self.forward if self.recompute is None else self.recompute,
            "B": self._whole_backward,
            "I": self.input_grad,
            "W": self.weight_grad,
        }[phase]
        if time is not None:
            return time
        needed = "backward, or input_grad and weight_grad" if phase == "B" else "input_grad and weight_grad"
        message = f"the schedule has {phase} actions and the stage has no time for them"
        raise InputError(f"{message}: give {needed}")


UNIT_TIMES = StageTimes(forward=1, input_grad=1, weight_grad=1)
"""The times of the textbook pictures: F=I=W=R=1, and so B=2; a compound slot takes 3, the sum of them."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The times of every slot, and measures derived from them.

    Attributes
    ----------
    starts, ends : tuple of tuple of int
        Times per rank and slot of its program.
    busy : tuple of int
        Sum of the slots' times, per rank.
    """

    starts: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]
    busy: tuple[int, ...]

    @property
    def makespan(self) -> int:
        """Time from 0 to the last end of all ranks."""
        return max((ends[-1] for ends in self.ends if ends), default=0)

    @property
    def spans(self) -> tuple[int, ...]:
        """Time from the first start to the last end, per rank."""
        return tuple(e[-1] - s[0] if e else 0 for s, e in zip(self.starts, self.ends, strict=True))

    @property
    def idle(self) -> tuple[int, ...]:
        """Idle time inside the span, per rank."""
        return tuple(span - busy for span, busy in zip(self.spans, self.busy, strict=True))

    @property
    def bubble(self) -> Fraction:
        """Idle share of the makespan over all ranks, with fill and drain: 1 - work/(ranks·makespan)."""
        total = len(self.busy) * self.makespan
        return 1 - Fraction(sum(self.busy), total) if total else Fraction(0)

    @property
    def span_bubble(self) -> Fraction:
        """Idle share of the longest span of a rank (the meaning of "zero bubble")."""
        span, busy = max(zip(self.spans, self.busy, strict=True))
        return 1 - Fraction(busy, span) if span else Fraction(0)


def evaluate(
    schedule: Schedule,
    times: StageTimes | Sequence[StageTimes],
    *,
    transfer: Transfer = 0,
    turns: Iterable[Turn] | None = None,
) -> Evaluation:
    """Return the times of every slot of `schedule`.

    Parameters
    ----------
    schedule : Schedule
        Programs and placement.
    times : StageTimes or sequence of StageTimes
        Times common to all stages, or one per stage.
    transfer : int or callable
        Time between two different ranks; a function is called with (source rank, destination rank).
    turns : iterable of Turn, optional
        `with_senders` of the schedule, for repeated evaluation.

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError
        If a phase has no time, or the number of times is not the number of stages.
    StuckError
        If the programs deadlock; the message names what each rank waits for.

    Examples
    --------
    The makespan of 1F1B is (m + p - 1)(F + B):

    >>> from policies.pipeline.registry import generate
    >>> run = evaluate(generate("1f1b", ranks=4, micro_batches=8), StageTimes(forward=1, backward=2))
    >>> run.makespan, run.bubble
    (33, Fraction(3, 11))
    """
    per_stage = one_a_stage(times, schedule.stages, "stage times")
    took: dict[Slot | tuple[int, str], int] = {}  # an action's time does not depend on its micro-batch
    starts: list[list[int]] = [[] for _ in schedule.programs]
    ends: list[list[int]] = [[] for _ in schedule.programs]
    free, end_of = [0] * schedule.ranks, list[int]()
    for rank, slot, sort, needs in with_senders(schedule) if turns is None else turns:
        start = free[rank]
        for need, source in needs:
            arrival = end_of[need]
            if source != rank:
                arrival += transfer(source, rank) if callable(transfer) else transfer
            if arrival > start:
                start = arrival
        duration = took.get(sort)
        if duration is None:
            duration = took[sort] = _duration(slot, per_stage)
        free[rank] = end = start + duration
        end_of.append(end)
        starts[rank].append(start)
        ends[rank].append(end)
    busy = (sum(e) - sum(s) for s, e in zip(starts, ends, strict=True))
    return Evaluation(tuple(map(tuple, starts)), tuple(map(tuple, ends)), tuple(busy))


Turn = tuple[int, Slot, Slot | tuple[int, str], list[tuple[int, int]]]
"""Rank, slot, key of its duration, and its inputs: (turn, sending rank) of each."""


def with_senders(schedule: Schedule) -> Iterator[Turn]:
    """Yield each slot after all its inputs; keep them in a list to evaluate a schedule at many times.

    Raises
    ------
    StuckError
        If the programs deadlock.
    """
    turn_of: dict[Action, tuple[int, int]] = {}  # turn and rank of each action
    limited = schedule.in_flight < schedule.micro_batches
    for number, (rank, slot, needs) in enumerate(in_turn(schedule)):
        sent = [turn_of[need] for need in needs]
        if limited:  # no data moves to the micro-batch that this one lets in
            k = slot.parts[0].micro_batch
            pairs = zip(needs, sent, strict=True)
            sent = [sender if need.micro_batch == k else (sender[0], rank) for need, sender in pairs]
        yield rank, slot, slot[:2] if isinstance(slot, Action) else slot, sent
        turn = (number, rank)
        for action in slot.parts:
            turn_of[action] = turn


def _duration(slot: Slot, times: Sequence[StageTimes]) -> int:
    """Return a slot's duration; for an overlap, the one given for its forward's stage, if any."""
    if isinstance(slot, Overlap):
        together = (times[a.stage].overlapped for a in slot.parts if a.phase == "F")
        duration = next((ns for ns in together if ns is not None), None)
        if duration is not None:
            return duration
    return sum(times[action.stage].of(action.phase) for action in slot.parts)


def one_a_stage(values: T | Sequence[T], stages: int, noun: str) -> Sequence[T]:
    """Return one value per stage: the given ones, or one for all.

    Raises
    ------
    InputError
        If there are several, but not one for each stage.
    """
    per_stage = values if isinstance(values, Sequence) else (values,) * stages
    if len(per_stage) != stages:
        raise InputError(f"{len(per_stage)} {noun} for {stages} stages; give one, or one a stage")
    return per_stage


# ----------------------------------------------------------------------------------------------------------
# Activations alive on each rank, which depend only on the order, not on times.
#
# A rank runs its program in order, so its contents at a slot's start follow from the earlier slots:
#
#     F   stores the activations of a micro-batch        (with recompute: only the stage input)
#     R   stores them again
#     B   frees them
#     I   frees what only the input gradient reads; W frees the rest
#
# The peak includes a slot's own activations, and a slot frees at its end. This is the column "activations
# alive on rank r" of the published comparisons; the simulation accounts for everything else on a device
# (weights, gradients, optimizer state, buffers).


@dataclass(frozen=True, slots=True)
class StageActivations:
    """Activation memory of one micro-batch on one stage, in bytes or any other unit.

    Attributes
    ----------
    full : int
        Amount held from F (or R) to B, or to I and W.
    kept_for_weight_grad : int, optional
        Part that I leaves for W; by default all of it. In the zero-bubble paper, ``32·s·b·h`` of the
        ``34·s·b·h + 5·s²·b·a`` bytes of a transformer layer are left (section 2).
    stage_input : int
        Amount that a recomputed micro-batch keeps from F to R.
    """

    full: int = 1
    kept_for_weight_grad: int | None = None
    stage_input: int = 0

    @property
    def kept(self) -> int:
        """Amount left after I."""
        return self.full if self.kept_for_weight_grad is None else self.kept_for_weight_grad


def transformer_activations(*, hidden: int, heads: int, sequence: int) -> StageActivations:
    """Return the activation memory of a transformer layer per sample and token, in bytes at 16 bit.

    ``34·h + 5·a·s`` bytes from F to I and ``32·h`` from I to W, for hidden size h, a heads and
    sequence length s. If the limit counts micro-batches, only the ratio of the two matters.

    Source: Korthikanti et al., arXiv 2205.05198, section 4.1; Qi et al., arXiv 2401.10241, table 1.

    Examples
    --------
    >>> transformer_activations(hidden=2304, heads=24, sequence=1024)
    StageActivations(full=201216, kept_for_weight_grad=73728, stage_input=0)
    """
    return StageActivations(full=34 * hidden + 5 * heads * sequence, kept_for_weight_grad=32 * hidden)


def peak_activations(
    schedule: Schedule, held: StageActivations | Sequence[StageActivations] = StageActivations()
) -> tuple[int, ...]:
    """Return the largest amount of activations alive on each rank.

    Parameters
    ----------
    schedule : Schedule
        Schedule to measure.
    held : StageActivations or sequence of StageActivations
        Amounts common to all stages, or one per stage. By default each counts one, so the result
        is the number of micro-batches (times chunks) in flight.

    Raises
    ------
    InputError
        If the number of entries is not the number of stages.

    Examples
    --------
    >>> from policies.pipeline.registry import generate
    >>> peak_activations(generate("1f1b", ranks=4, micro_batches=8))
    (4, 3, 2, 1)
    """
    per_stage = one_a_stage(held, schedule.stages, "activation sizes")
    actions = Actions(schedule)
    phase, cell = actions.phase, actions.stage * schedule.micro_batches + actions.micro_batch
    sizes = np.array([(size.full, size.kept, size.stage_input) for size in per_stage])
    full, kept, stage_input = sizes[actions.stage].T
    first = np.where(np.isin(cell, cell[phase == "R"]), stage_input, full)
    stored = _total(np.select([phase == "F", phase == "R"], [first, full - stage_input]))
    ends = [phase == "B", phase == "I", phase == "W", schedule.forward_only]
    freed = _total(np.select(ends, [full, full - kept, kept, full]))
    bounds = np.searchsorted(actions.slot, np.arange(actions.first[-1] + 1))
    alive = stored[bounds[1:]] - freed[bounds[:-1]]
    before = (stored - freed)[bounds[actions.first]]  # kept by earlier ranks
    return tuple(
        int(np.max(alive[begin:end] - base, initial=0))
        for (begin, end), base in zip(pairwise(actions.first), before[:-1], strict=True)
    )


def _total(amounts: IntArray) -> IntArray:
    """Return the exclusive prefix sums, followed by the total."""
    return np.append(0, np.cumsum(amounts))


# ----------------------------------------------------------------------------------------------------------
# Closed forms: textbook formulas for the duration of schedules, with the sizes for which each is exact.
#
# p ranks, m micro-batches, v chunks; F, B = I + W per stage (a chunk is a stage); equal stages, free
# transfers. "Work" is the computing time of one rank: m·v·(F + B).
#
#     name                what       = work +                    exact when
#     forward-only        makespan   (p-1)F                      always
#     gpipe               makespan   (p-1)(F+B)                  always
#     1f1b                makespan   (p-1)(F+B)                  m ≥ p
#     interleaved-1f1b    makespan   (p-1)(F+B)                  p divides m
#     looped-bfs          makespan   (p-1)(F+B)                  m ≥ p
#     zb-h1               makespan   (p-1)·max(F+I-W, I, F)      m ≥ p
#     zb-h2               span       (p-1)·max(F+I-2W, I-F, 0)   m ≥ 2p-1
#     zb-v                span       0                           F = I = W, m ≥ 2p-1
#     dualpipe            makespan   (p/2-1)(F&B + B - 3W)       F = I ≥ W, F&B = F+B
#     dualpipe-v          makespan   (p-1)(F&B + B - 3W)         F = I ≥ W, F&B = F+B
#     chimera             makespan   (p-2)·max(F, B)             m = p; or F = B and p divides m
#
# The bubble is the excess over the whole: for GPipe (p-1)/(m+p-1). Some papers give it relative to the
# work, for interleaved (p-1)/(v·m): ``excess / work``.
#
# Outside these sizes the formulas are at best bounds, so there is no closed form; `evaluate` still computes
# the exact value.
#
# Sources: Huang et al., arXiv 1811.06965; Narayanan et al., arXiv 2104.04473, section 2.2; Qi et al.,
# arXiv 2401.10241, section 2 (for F+I ≥ 2W and I ≥ F; our maxima and domains were found by
# exhaustive evaluation and are property-tested); deepseek-ai/DualPipe, README.


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A formula with its value.

    Attributes
    ----------
    quantity : {"makespan", "span"}
        Measured time: from first start to last end of all ranks, or the longest of one rank.
    formula : str
        Excess over the work, as in the table above.
    work : int
        Computing time of one rank.
    excess : int
        Value of the formula.
    """

    quantity: Literal["makespan", "span"]
    formula: str
    work: int
    excess: int

    @property
    def value(self) -> int:
        """The makespan or span."""
        return self.work + self.excess

    @property
    def bubble(self) -> Fraction:
        """Excess divided by the total."""
        return Fraction(self.excess, self.value) if self.value else Fraction(0)


def closed_form(
    name: str, *, ranks: int, micro_batches: int, chunks: int = 1, times: StageTimes
) -> ClosedForm | None:
    """Return the textbook formula of a schedule; None if no exact formula is known.

    Parameters
    ----------
    name : str
        Name of the schedule.
    ranks, micro_batches, chunks : int
        Sizes.
    times : StageTimes
        Times of each stage, equal for all; transfers are free.

    Examples
    --------
    >>> form = closed_form("1f1b", ranks=4, micro_batches=8, times=StageTimes(forward=1, backward=2))
    >>> form.value, form.bubble, form.formula
    (33, Fraction(3, 11), '(p-1)(F+B)')
    >>> closed_form("zb-auto", ranks=4, micro_batches=8, times=StageTimes(forward=1, backward=2)) is None
    True
    """
    p, m, f, b = ranks, micro_batches, times.forward, times.total - times.forward
    i, w = times.input_grad or 0, times.weight_grad or 0
    split = times.input_grad is not None and times.weight_grad is not None
    bubble, h1, h2 = (p - 1) * (f + b), max(f + i - w, i, f), max(f + i - 2 * w, i - f, 0)
    overlap, hides = f + 2 * i - w, split and f == i >= w and times.overlapped in (None, f + i + w)
    forms: dict[str, tuple[Literal["makespan", "span"], str, int, bool]] = {  # the last: whether it is exact
        "forward-only": ("makespan", "(p-1)F", (p - 1) * f, True),
        "gpipe": ("makespan", "(p-1)(F+B)", bubble, True),
        "1f1b": ("makespan", "(p-1)(F+B)", bubble, m >= p),
        "interleaved-1f1b": ("makespan", "(p-1)(F+B)", bubble, m % p == 0),
        "looped-bfs": ("makespan", "(p-1)(F+B)", bubble, m >= p),
        "zb-h1": ("makespan", "(p-1)·max(F+I-W, I, F)", (p - 1) * h1, split and m >= p),
        "zb-h2": ("span", "(p-1)·max(F+I-2W, I-F, 0)", (p - 1) * h2, split and m >= 2 * p - 1),
        "zb-v": ("span", "0", 0, split and f == i == w and m >= 2 * p - 1),
        "dualpipe": ("makespan", "(p/2-1)(F&B + B - 3W)", (p // 2 - 1) * overlap, hides),
        "dualpipe-v": ("makespan", "(p-1)(F&B + B - 3W)", (p - 1) * overlap, hides),
        "chimera": ("makespan", "(p-2)·max(F, B)", (p - 2) * max(f, b), m == p or (f == b and m % p == 0)),
    }
    if name not in forms or not forms[name][-1]:
        return None
    quantity, formula, excess, _ = forms[name]
    work = f if name == "forward-only" else f + times.of("B")
    return ClosedForm(quantity, formula, m * chunks * work, excess)
