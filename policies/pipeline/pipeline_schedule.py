"""A pipeline schedule as data: one program a rank, and where each stage lives.

A schedule holds no times. A rank runs its program strictly in order, each slot as soon as its
inputs are there; what the inputs are is the same for every schedule:

    F(s, k)            needs F(s-1, k)
    R(s, k)            needs F(s, k)
    B or I of (s, k)   needs B or I of (s+1, k), and F(s, k), and R(s, k) where there is one
    W(s, k)            needs I(s, k)

Where the stages live is a *placement*: stage → rank. Most schedules have one. In the bidirectional
ones, and in PipeDream's replicated stages, a stage lives on several ranks and the micro-batch
decides: placement number ``replica_of[k]`` is the one that micro-batch k uses.

    loop (p=2, v=2)        V (p=2, v=2)          both ways (p=2, two placements)
    rank 0: stages 0, 2    rank 0: stages 0, 3   rank 0: stage 0 of one, stage 1 of the other
    rank 1: stages 1, 3    rank 1: stages 1, 2   rank 1: stage 1 of one, stage 0 of the other
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from policies.pipeline.action import Action, Overlap, Phase, Slot

Placement: TypeAlias = tuple[int, ...]
"""The rank of each stage."""

Programs: TypeAlias = tuple[tuple[Slot, ...], ...]
"""One program a rank."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Programs of all ranks, and the placement of the stages.

    Attributes
    ----------
    name : str
        The family that made it, such as ``"1f1b"``.
    ranks, stages, chunks, micro_batches : int
        Sizes; ``chunks`` is the number of stages that one rank holds of one placement.
    programs : tuple of tuple of Slot
        One program a rank: its slots in the order in which it runs them.
    placements : tuple of Placement
        Stage → rank, one for each replica of the pipeline.
    replica_of : tuple of int
        Micro-batch → index into `placements`.
    meta : mapping
        What the family wants to tell, such as the weight versions PipeDream keeps.

    Examples
    --------
    >>> from policies.pipeline import generate
    >>> schedule = generate("1f1b", ranks=2, micro_batches=2)
    >>> [" ".join(map(str, program)) for program in schedule.programs]
    ['0F0 0F1 0B0 0B1', '1F0 1B0 1F1 1B1']
    """

    name: str
    ranks: int
    stages: int
    chunks: int
    micro_batches: int
    programs: Programs
    placements: tuple[Placement, ...]
    replica_of: tuple[int, ...]
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def forward_only(self) -> bool:
        """Whether it is inference: there is no backward, and nothing is kept for one."""
        return bool(self.meta.get("forward_only"))

    @property
    def stage_to_rank(self) -> Placement:
        """The rank of each stage in the first placement."""
        return self.placements[0]

    def rank_of(self, stage: int, micro_batch: int) -> int:
        """Return the rank that runs `micro_batch` on `stage`."""
        return self.placements[self.replica_of[micro_batch]][stage]

    def actions(self, rank: int) -> Iterator[Action]:
        """Yield the actions of one rank in order, the parts of an overlap one after the other."""
        for slot in self.programs[rank]:
            yield from slot.parts

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages whose weights `rank` holds, in rising order."""
        return tuple(s for s in range(self.stages) if any(place[s] == rank for place in self.placements))


def loop(ranks: int, chunks: int = 1) -> Placement:
    """Place stage s on rank s mod ranks.

    >>> loop(2, 2)
    (0, 1, 0, 1)
    """
    return tuple(range(ranks)) * chunks


def vee(ranks: int) -> Placement:
    """Place two stages a rank in the form of a V: rank r has stages r and 2·ranks - 1 - r.

    >>> vee(2)
    (0, 1, 1, 0)
    """
    return (*range(ranks), *reversed(range(ranks)))


def one_pipeline(
    name: str,
    programs: Iterable[Iterable[Slot]],
    *,
    ranks: int,
    micro_batches: int,
    chunks: int = 1,
    placement: Placement | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Schedule:
    """Make a schedule whose stages each live on one rank, by default in a `loop`."""
    return Schedule(
        name=name,
        ranks=ranks,
        stages=ranks * chunks,
        chunks=chunks,
        micro_batches=micro_batches,
        programs=tuple(map(tuple, programs)),
        placements=(placement or loop(ranks, chunks),),
        replica_of=(0,) * micro_batches,
        meta=dict(meta or {}),
    )


def v_pipeline(
    name: str,
    programs: Iterable[Iterable[Slot]],
    *,
    ranks: int,
    micro_batches: int,
    meta: Mapping[str, Any] | None = None,
) -> Schedule:
    """Make a schedule of one pipeline that goes down the ranks and up again, with two stages a rank."""
    sizes = {"ranks": ranks, "micro_batches": micro_batches, "chunks": 2}
    return one_pipeline(name, programs, **sizes, placement=vee(ranks), meta=meta)


def bidirectional(
    name: str,
    programs: Iterable[Iterable[Slot]],
    *,
    ranks: int,
    micro_batches: int,
    replica_of: Iterable[int],
) -> Schedule:
    """Make a schedule of two pipelines of one stage a rank: from rank 0 down, and from the last rank up.

    >>> bidirectional("empty", [[], []], ranks=2, micro_batches=1, replica_of=[1]).placements
    ((0, 1), (1, 0))
    """
    down = one_pipeline(name, programs, ranks=ranks, micro_batches=micro_batches)
    return replace(down, placements=(loop(ranks), loop(ranks)[::-1]), replica_of=tuple(replica_of))


# ----------------------------------------------------------------------------------------------------------
# The actions of a schedule as columns, for what is asked of all of them at once.


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


# ----------------------------------------------------------------------------------------------------------
# A rank's program while it is being written: each lane counts its own micro-batches.
#
# Handwritten schedules are told as "two forwards of chunk 0, then forward, backward of chunk 1, ...":
# which stage and which phase, never which micro-batch, because each (stage, phase) takes its
# micro-batches in order. So a rule names lanes and phases, and the counting is done here.


@dataclass(frozen=True, slots=True)
class StageLane:
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
class SlotProgram:
    """Slots so far, how often each (lane, phase) occurred, and which W are still to do.

    B counts as I: a lane whose backward is whole at first and split later goes on counting.
    """

    slots: list[Slot] = field(default_factory=list)
    pending: deque[Action] = field(default_factory=deque)
    counts: Counter[tuple[StageLane, str]] = field(default_factory=Counter)

    def add(self, lane: StageLane, phase: Phase) -> None:
        """Append the next micro-batch of `lane` in `phase`; an I leaves its W pending."""
        self.slots.append(self._next(lane, phase))

    def repeat(self, times: int, *steps: tuple[StageLane, Phase]) -> None:
        """Append these steps so many times."""
        for _ in range(times):
            for lane, phase in steps:
                self.add(lane, phase)

    def overlap(self, forward: StageLane, backward: StageLane) -> None:
        """Append one compound slot: the next F of one lane and the next B of another."""
        self.slots.append(Overlap((self._next(forward, "F"), self._next(backward, "B"))))

    def add_weight_grad(self) -> None:
        """Append the oldest pending W, if there is one."""
        if self.pending:
            self.slots.append(self.pending.popleft())

    def _next(self, lane: StageLane, phase: Phase) -> Action:
        counter = (lane, "I" if phase == "B" else phase)
        action = Action(lane.stage, phase, lane.first + self.counts[counter])
        self.counts[counter] += 1
        if phase == "I":
            self.pending.append(action._replace(phase="W"))
        return action
