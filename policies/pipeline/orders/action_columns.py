"""The actions of a schedule as columns, for what is asked of all of them at once."""

from __future__ import annotations

from itertools import accumulate, chain
from operator import itemgetter

import numpy as np

from policies.pipeline.orders.action import Action
from policies.pipeline.orders.pipeline_schedule import Schedule

__all__ = ["Actions"]


class Actions:
    """The actions of all programs as columns, rank after rank, the parts of an overlap one after the other.

    Attributes
    ----------
    stage, micro_batch : array of int
    phase : array of str
        One letter.
    rank, slot : array of int
        Where each is: its rank, and the number of its slot, counted over all ranks.
    first : list of int
        Number of each rank's first slot, and of all slots.
    """

    def __init__(self, schedule: Schedule) -> None:
        slots = list(chain.from_iterable(schedule.programs))
        plain = set(map(type, slots)) <= {Action}  # without overlaps a slot is an action
        parts = 1 if plain else [len(slot.parts) for slot in slots]
        actions = slots if plain else [action for slot in slots for action in slot.parts]
        self.first = [0, *accumulate(map(len, schedule.programs))]
        self.slot = np.repeat(np.arange(len(slots)), parts)
        self.rank = np.searchsorted(self.first, self.slot, side="right") - 1
        self.stage = np.fromiter(map(itemgetter(0), actions), np.int64)
        self.phase = np.array(list(map(itemgetter(1), actions)), dtype="<U1")
        self.micro_batch = np.fromiter(map(itemgetter(2), actions), np.int64)
