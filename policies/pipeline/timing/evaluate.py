r"""How long a schedule takes: the longest path through its programs, in exact whole numbers.

This is the reference that the simulator is compared with, so it shares nothing with it: no engine,
no devices, only the two orders that bind an action. Its start is the latest of

* the end of the slot before it on its rank (a rank runs its program in order), and
* the end of each of its inputs, plus the transfer time when the input was made on another rank.

    rank 0   [F0][F1]          [B0]...
                 \ c           / c
    rank 1       [F0][B0 = I W]/          a fused B gives its gradient at its end, a split one after I

Times are whole numbers in any unit the caller likes (the project's is nanoseconds).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from policies.pipeline.orders.action import Action, Overlap, Slot
from policies.pipeline.orders.pipeline_schedule import Schedule
from policies.pipeline.orders.validate import in_turn
from sim.words.errors import InputError

__all__ = ["Evaluation", "StageTimes", "evaluate"]

Transfer = int | Callable[[int, int], int]
"""Transfer time between two different ranks: one number, or a function of (source, destination)."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What each phase takes on one stage.

    Attributes
    ----------
    forward : int
        F.
    backward : int, optional
        B in one piece; by default ``input_grad + weight_grad``.
    input_grad, weight_grad : int, optional
        I and W; needed by schedules that split the backward.
    recompute : int, optional
        R; by default ``forward``.
    overlapped : int, optional
        A compound slot whose forward is this stage's; by default the sum of its parts.

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

    def of(self, phase: str) -> int:
        """Return the time of one phase.

        Raises
        ------
        InputError
            This phase has no time, such as I where only ``backward`` is given.
        """
        match phase:
            case "F":
                return self.forward
            case "R":
                return self.forward if self.recompute is None else self.recompute
            case "B" if self.backward is not None:
                return self.backward
            case "B" if self.input_grad is not None and self.weight_grad is not None:
                return self.input_grad + self.weight_grad
            case "I" if self.input_grad is not None:
                return self.input_grad
            case "W" if self.weight_grad is not None:
                return self.weight_grad
        wanted = "backward, or input_grad and weight_grad" if phase == "B" else "input_grad and weight_grad"
        raise InputError(
            f"the schedule has {phase} actions and the stage has no time for them: give {wanted}"
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """When every slot runs, and what follows from it.

    Attributes
    ----------
    starts, ends : tuple of tuple of int
        Per rank, per slot of its program.
    busy : tuple of int
        Per rank, the sum of its slots' times.
    """

    starts: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]
    busy: tuple[int, ...]

    @property
    def makespan(self) -> int:
        """From time 0 to the last end anywhere."""
        return max((ends[-1] for ends in self.ends if ends), default=0)

    @property
    def spans(self) -> tuple[int, ...]:
        """Per rank, from its first start to its last end."""
        return tuple(e[-1] - s[0] if e else 0 for s, e in zip(self.starts, self.ends, strict=True))

    @property
    def idle(self) -> tuple[int, ...]:
        """Per rank, the time inside its span at which it computes nothing."""
        return tuple(span - busy for span, busy in zip(self.spans, self.busy, strict=True))

    @property
    def bubble(self) -> Fraction:
        """Idle share of all ranks over the makespan, fill and drain included: 1 - work/(ranks·makespan)."""
        total = len(self.busy) * self.makespan
        return 1 - Fraction(sum(self.busy), total) if total else Fraction(0)

    @property
    def span_bubble(self) -> Fraction:
        """Idle share inside the longest span of a rank (what "zero bubble" is about)."""
        span, busy = max(zip(self.spans, self.busy, strict=True))
        return 1 - Fraction(busy, span) if span else Fraction(0)


def evaluate(
    schedule: Schedule, times: StageTimes | Sequence[StageTimes], *, transfer: Transfer = 0
) -> Evaluation:
    """Compute when every slot of `schedule` runs.

    Parameters
    ----------
    schedule : Schedule
        Programs and placement.
    times : StageTimes or sequence of StageTimes
        The same for all stages, or one a stage.
    transfer : int or callable
        Time between two different ranks; a function gets (source rank, destination rank).

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError
        A phase has no time, or there are not as many times as stages.
    StuckError
        The programs deadlock; the message names who waits for what.

    Examples
    --------
    The makespan of 1F1B is (m + p - 1)(F + B):

    >>> from policies.pipeline import generate
    >>> run = evaluate(generate("1f1b", ranks=4, micro_batches=8), StageTimes(forward=1, backward=2))
    >>> run.makespan, run.bubble
    (33, Fraction(3, 11))
    """
    each = _one_a_stage(times, schedule.stages)
    travel = transfer if callable(transfer) else lambda _source, _destination: transfer
    starts: list[list[int]] = [[] for _ in schedule.programs]
    ends: list[list[int]] = [[] for _ in schedule.programs]
    end_of: dict[Action, int] = {}
    took: dict[tuple[int, str], int] = {}  # what an action takes does not depend on its micro-batch
    for rank, slot, needs in in_turn(schedule):
        start = ends[rank][-1] if ends[rank] else 0
        for need in needs:
            there = end_of[need]
            source = schedule.rank_of(need.stage, need.micro_batch)
            if source != rank:
                there += travel(source, rank)
            if there > start:
                start = there
        if isinstance(slot, Overlap):
            duration = _duration(slot, each)
        elif (known := took.get(slot[:2])) is not None:
            duration = known
        else:
            duration = took[slot[:2]] = _duration(slot, each)
        end = start + duration
        starts[rank].append(start)
        ends[rank].append(end)
        for action in slot.parts:
            end_of[action] = end
    busy = (sum(e) - sum(s) for s, e in zip(starts, ends, strict=True))
    return Evaluation(tuple(map(tuple, starts)), tuple(map(tuple, ends)), tuple(busy))


def _duration(slot: Slot, times: Sequence[StageTimes]) -> int:
    """Return how long a slot takes; of an overlap, the time of its forward's stage, if it gives one."""
    if isinstance(slot, Overlap):
        together = (times[a.stage].overlapped for a in slot.parts if a.phase == "F")
        known = next((ns for ns in together if ns is not None), None)
        if known is not None:
            return known
    return sum(times[action.stage].of(action.phase) for action in slot.parts)


def _one_a_stage(times: StageTimes | Sequence[StageTimes], stages: int) -> Sequence[StageTimes]:
    if isinstance(times, StageTimes):
        return (times,) * stages
    if len(times) != stages:
        raise InputError(f"{len(times)} stage times for {stages} stages; give one, or one a stage")
    return times
