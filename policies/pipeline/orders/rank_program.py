"""A rank's program while it is being written: each lane counts its own micro-batches.

Handwritten schedules are told as "two forwards of chunk 0, then forward, backward of chunk 1, ...":
which stage and which phase, never which micro-batch, because each (stage, phase) takes its
micro-batches in order. So a rule names lanes and phases, and the counting is done here.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from policies.pipeline.orders.action import Action, Overlap, Phase, Slot

__all__ = ["Lane", "Program"]


@dataclass(frozen=True, slots=True)
class Lane:
    """One stage on a rank, and the micro-batches that come to it.

    Attributes
    ----------
    stage : int
        The stage.
    first : int
        Its first micro-batch; the others follow one by one.
    """

    stage: int
    first: int = 0


@dataclass(slots=True)
class Program:
    """Slots so far, how often each (lane, phase) occurred, and which W are still to do.

    B counts as I: a lane whose backward is whole at first and split later goes on counting.
    """

    slots: list[Slot] = field(default_factory=list)
    pending: deque[Action] = field(default_factory=deque)
    counts: Counter[tuple[Lane, str]] = field(default_factory=Counter)

    def add(self, lane: Lane, phase: Phase) -> None:
        """Append the next micro-batch of `lane` in `phase`; an I leaves its W pending."""
        self.slots.append(self._next(lane, phase))

    def repeat(self, times: int, *steps: tuple[Lane, Phase]) -> None:
        """Append these steps so many times."""
        for _ in range(times):
            for lane, phase in steps:
                self.add(lane, phase)

    def overlap(self, forward: Lane, backward: Lane) -> None:
        """Append one compound slot: the next F of one lane and the next B of another."""
        self.slots.append(Overlap((self._next(forward, "F"), self._next(backward, "B"))))

    def add_weight_grad(self) -> None:
        """Append the oldest pending W, if there is one."""
        if self.pending:
            self.slots.append(self.pending.popleft())

    def _next(self, lane: Lane, phase: Phase) -> Action:
        counter = (lane, "I" if phase == "B" else phase)
        action = Action(lane.stage, phase, lane.first + self.counts[counter])
        self.counts[counter] += 1
        if phase == "I":
            self.pending.append(action._replace(phase="W"))
        return action
