"""What each action waits for, and where that is made.

::

    F(s, k)           F(s-1, k)
    R(s, k)           F(s, k)
    B, I of (s, k)    F(s, k), R(s, k) where there is one, and B or I of (s+1, k)
    W(s, k)           I(s, k)

These are the edges of the graph that a pipeline's actions form; with the order of each rank's
program they decide everything about its times.
"""

from __future__ import annotations

from typing import TypeAlias

from policies.pipeline.orders.action import Action, Slot
from policies.pipeline.orders.pipeline_schedule import Schedule

__all__ = ["Dependencies", "Place"]

Place: TypeAlias = tuple[int, int]
"""(rank, position in its program)."""


class Dependencies:
    """The inputs of every action of a schedule.

    Parameters
    ----------
    schedule : Schedule
        The order; it need not be a valid one.

    Attributes
    ----------
    place : dict of Action to Place
        Where each action stands (the first place, should it stand at several).

    Examples
    --------
    >>> from policies.pipeline import generate
    >>> depends = Dependencies(generate("zb-h1", ranks=2, micro_batches=2))
    >>> [str(need) for need in depends.of(Action(0, "I", 1))]
    ['0F1', '1I1']
    >>> depends.place[Action(1, "I", 1)]
    (1, 3)
    """

    def __init__(self, schedule: Schedule) -> None:
        self.stages = schedule.stages
        self.place: dict[Action, Place] = {}
        for rank, program in enumerate(schedule.programs):
            for position, slot in enumerate(program):
                for action in slot.parts:
                    self.place.setdefault(action, (rank, position))

    def of(self, slot: Slot) -> list[Action]:
        """Return what all parts of `slot` need; also what no rank runs, if it is needed."""
        if isinstance(slot, Action):
            return self._needs(slot)
        return [need for action in slot.parts for need in self._needs(action)]

    def _needs(self, action: Action) -> list[Action]:
        stage, phase, k = action
        if phase == "F":
            return [Action(stage - 1, "F", k)] if stage else []
        if phase == "W":
            return [Action(stage, "I", k)]
        found = [Action(stage, "F", k)]
        if phase != "R":
            recompute = Action(stage, "R", k)
            if recompute in self.place:
                found.append(recompute)
            if stage + 1 < self.stages:
                split = Action(stage + 1, "I", k)
                found.append(split if split in self.place else Action(stage + 1, "B", k))
        return found
