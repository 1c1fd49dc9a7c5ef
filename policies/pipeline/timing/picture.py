"""A schedule as a picture in text: one row a rank, one column a tick.

    rank 0  F0 F1 .  .  B0 -- .  B1 --     a slot's name stands at its first tick, -- at the others,
    rank 1  .  F0 B0 -- F1 B1 -- .  .      and . where the rank has nothing to do

A tick is the greatest common divisor of all times. A name is phase and micro-batch. On ranks with two
stages the second one's names are small (``f0``): the second chunk, or the way up where two pipelines
cross. With more stages a rank, names are in full, as in torch's form (``4F0``). A compound slot is
``F5&b1``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from policies.pipeline.orders.action import Action
from policies.pipeline.orders.pipeline_schedule import Schedule
from policies.pipeline.timing.evaluate import Evaluation, StageTimes, evaluate
from sim.words.errors import InputError

__all__ = ["picture", "unit_times"]

_MOST_TICKS = 4000
"""Wider pictures are refused: they show nothing, and say so."""


def unit_times() -> StageTimes:
    """Return the times of the textbook pictures: F=I=W=R=1, and so B=2.

    A compound slot takes 3, the sum of its parts.

    >>> unit_times().of("B")
    2
    """
    return StageTimes(forward=1, input_grad=1, weight_grad=1)


def picture(schedule: Schedule, evaluation: Evaluation | None = None) -> str:
    """Draw the grid rank × time.

    Parameters
    ----------
    schedule : Schedule
        What to draw.
    evaluation : Evaluation, optional
        When its slots run; by default `evaluate` with `unit_times`.

    Raises
    ------
    InputError
        The picture would be wider than anyone can read.

    Examples
    --------
    >>> from policies.pipeline import generate
    >>> print(picture(generate("1f1b", ranks=2, micro_batches=2)))
    rank 0  F0 F1 .  .  B0 -- .  B1 --
    rank 1  .  F0 B0 -- F1 B1 -- .  .
    """
    run = evaluation if evaluation is not None else evaluate(schedule, unit_times())
    tick = math.gcd(*(time for rank in (*run.starts, *run.ends) for time in rank)) or 1
    ticks = run.makespan // tick
    if ticks > _MOST_TICKS:
        raise InputError(
            f"a picture of {ticks} ticks cannot be read; draw fewer micro-batches, "
            f"or times with a larger common divisor"
        )
    name = _namer(schedule)
    rows = [["."] * ticks for _ in range(schedule.ranks)]
    for rank, (program, starts, ends) in enumerate(zip(schedule.programs, run.starts, run.ends, strict=True)):
        for slot, start, end in zip(program, starts, ends, strict=True):
            first, last = start // tick, end // tick
            if first < last:
                rows[rank][first:last] = ["&".join(map(name, slot.parts)), *["--"] * (last - first - 1)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    label = len(str(schedule.ranks - 1))
    lines = []
    for rank, row in enumerate(rows):
        cells = " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"rank {rank:>{label}}  {cells}".rstrip())
    return "\n".join(lines)


def _namer(schedule: Schedule) -> Callable[[Action], str]:
    """Choose how to write an action: as short as can be told apart on its rank."""
    lanes: list[set[tuple[int, int]]] = [set() for _ in range(schedule.ranks)]
    for number, placement in enumerate(schedule.placements):
        for stage, rank in enumerate(placement):
            lanes[rank].add((number, stage))
    if all(len({stage for _, stage in own}) <= 1 for own in lanes):
        return lambda a: f"{a.phase}{a.micro_batch}"
    if max(map(len, lanes)) > 2:
        return str
    second = {max(own) for own in lanes if len(own) == 2}

    def two_lanes(a: Action) -> str:
        lane = (schedule.replica_of[a.micro_batch], a.stage)
        return f"{a.phase.lower() if lane in second else a.phase}{a.micro_batch}"

    return two_lanes
