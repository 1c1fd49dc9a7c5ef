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
from typing import ClassVar

from policies.pipeline.orders.action import Action, Slot
from policies.pipeline.orders.pipeline_schedule import Schedule
from policies.pipeline.orders.validate import explain_deadlock
from sim.words.errors import InputError, StuckError

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
    return _Walk(schedule, times, transfer).run()


class _Walk:
    """One pass over all programs; a rank goes on until an input is missing, and sleeps on that input.

    An end is filed under (kind, stage, micro-batch) in one flat list, where the kind is 0 for F,
    1 for the gradient (the end of B or of I) and 2 for R: nobody waits for a W.
    """

    KIND: ClassVar[dict[str, int]] = {"F": 0, "B": 1, "I": 1, "R": 2}

    def __init__(
        self, schedule: Schedule, times: StageTimes | Sequence[StageTimes], transfer: Transfer
    ) -> None:
        self.schedule = schedule
        self.times = _one_a_stage(times, schedule.stages)
        self.transfer = transfer if callable(transfer) else lambda _source, _destination: transfer
        self.plane = schedule.stages * schedule.micro_batches
        self.end_of = [-1] * (3 * self.plane)
        self.sleepers: dict[int, list[int]] = {}
        self.durations: dict[tuple[int, str], int] = {}
        self.recomputed = {
            (a.stage, a.micro_batch)
            for r in range(schedule.ranks)
            for a in schedule.actions(r)
            if a.phase == "R"
        }

    def run(self) -> Evaluation:
        programs = self.schedule.programs
        starts: list[list[int]] = [[] for _ in programs]
        ends: list[list[int]] = [[] for _ in programs]
        awake = list(reversed(range(len(programs))))
        while awake:
            rank = awake.pop()
            self._advance(rank, starts[rank], ends[rank], awake)
        done = [len(rank_ends) for rank_ends in ends]
        if any(count < len(program) for count, program in zip(done, programs, strict=True)):
            raise StuckError(explain_deadlock(self.schedule, done))
        busy = (sum(e) - sum(s) for s, e in zip(starts, ends, strict=True))
        return Evaluation(tuple(map(tuple, starts)), tuple(map(tuple, ends)), tuple(busy))

    def _advance(self, rank: int, starts: list[int], ends: list[int], awake: list[int]) -> None:
        """Run the program of `rank` as far as its inputs are known; wake whom this lets go on."""
        program, now = self.schedule.programs[rank], ends[-1] if ends else 0
        for position in range(len(ends), len(program)):
            slot = program[position]
            start = now
            for action in slot.parts:
                for key, source in self._inputs(action, rank):
                    there = self.end_of[key]
                    if there < 0:
                        self.sleepers.setdefault(key, []).append(rank)
                        return
                    start = max(start, there if source == rank else there + self.transfer(source, rank))
            now = start + self._duration(slot)
            starts.append(start)
            ends.append(now)
            for action in slot.parts:
                if action.phase != "W":
                    key = self._key(self.KIND[action.phase], action.stage, action.micro_batch)
                    self.end_of[key] = now
                    awake.extend(self.sleepers.pop(key, ()))

    def _key(self, kind: int, stage: int, micro_batch: int) -> int:
        return kind * self.plane + stage * self.schedule.micro_batches + micro_batch

    def _inputs(self, action: Action, rank: int) -> list[tuple[int, int]]:
        """Return (key, rank that makes it) of each input."""
        stage, phase, k = action
        if phase == "F":
            return [(self._key(0, stage - 1, k), self.schedule.rank_of(stage - 1, k))] if stage else []
        if phase == "R":
            return [(self._key(0, stage, k), rank)]
        if phase == "W":
            return [(self._key(1, stage, k), rank)]
        inputs = [(self._key(2 if (stage, k) in self.recomputed else 0, stage, k), rank)]
        if stage + 1 < self.schedule.stages:
            inputs.append((self._key(1, stage + 1, k), self.schedule.rank_of(stage + 1, k)))
        return inputs

    def _duration(self, slot: Slot) -> int:
        if isinstance(slot, Action):
            found = self.durations.get(slot[:2])
            if found is None:
                found = self.durations[slot[:2]] = self.times[slot.stage].of(slot.phase)
            return found
        for action in slot.parts:
            together = self.times[action.stage].overlapped
            if action.phase == "F" and together is not None:
                return together
        return sum(self._duration(action) for action in slot.parts)


def _one_a_stage(times: StageTimes | Sequence[StageTimes], stages: int) -> Sequence[StageTimes]:
    if isinstance(times, StageTimes):
        return (times,) * stages
    if len(times) != stages:
        raise InputError(f"{len(times)} stage times for {stages} stages; give one, or one a stage")
    return times
