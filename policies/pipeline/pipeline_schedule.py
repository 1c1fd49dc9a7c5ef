"""A pipeline schedule as data: one program per rank, and the placement of the stages.

A schedule holds no times. A rank runs its program strictly in order, each slot as soon as its
inputs arrive; the inputs are the same for every schedule:

    F(s, k)            needs F(s-1, k); the first stage needs F(p-1, k - in_flight), if inference has a limit
    R(s, k)            needs F(s, k)
    B or I of (s, k)   needs B or I of (s+1, k), and F(s, k), and R(s, k) if there is one
    W(s, k)            needs I(s, k)

A *placement* maps stage → rank. Most schedules have one. In bidirectional schedules and with PipeDream's
replicated stages, a stage is on several ranks and the micro-batch decides: micro-batch k uses
placement number ``replica_of[k]``.

    loop (p=2, v=2)        V (p=2, v=2)          both ways (p=2, two placements)
    rank 0: stages 0, 2    rank 0: stages 0, 3   rank 0: stage 0 of one, stage 1 of the other
    rank 1: stages 1, 3    rank 1: stages 1, 2   rank 1: stage 1 of one, stage 0 of the other
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from sim.base.errors import InputError, UnknownNameError

# ----------------------------------------------------------------------------------------------------------
# Elements of a pipeline program: actions, and slots that overlap two of them.
#
# An action is one phase of one micro-batch on one stage, written as
# ``torch.distributed.pipelining`` writes it::
#
#     0F3                      stage 0, forward of micro-batch 3
#     1B2                      stage 1, the whole backward of micro-batch 2
#     1I2, 1W2                 the same backward in two halves: input gradient, weight gradient
#     1R2                      recompute of the forward (ours; torch recomputes inside B)
#     (0F5;7B1)OVERLAP_F_B     one slot: a forward and a backward of different micro-batches at once
#
# A rank's program is a sequence of slots. An `Action` is a slot by itself and an `Overlap` is a slot of
# several; both have ``slot.parts``, so that code that only counts actions needs no special case.

Phase: TypeAlias = Literal["F", "B", "I", "W", "R"]

PHASES: Final[dict[Phase, str]] = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "R": "recompute",
}
"""Phase letter → name."""

_ACTION = re.compile(r"(\d+)([FBIWR])(\d+)")
_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_COMMUNICATION = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")


class Action(NamedTuple):
    """One phase of one micro-batch on one stage.

    Attributes
    ----------
    stage : int
        Index of the stage in the whole pipeline, from 0.
    phase : {"F", "B", "I", "W", "R"}
        Phase computed; see `PHASES`.
    micro_batch : int
        Index of the micro-batch, from 0.

    Examples
    --------
    >>> str(Action(0, "F", 3))
    '0F3'
    >>> Action(0, "F", 3).parts
    (Action(stage=0, phase='F', micro_batch=3),)
    """

    stage: int
    phase: Phase
    micro_batch: int

    @property
    def parts(self) -> tuple[Action, ...]:
        """The actions of this slot: only itself."""
        return (self,)

    def __str__(self) -> str:
        return f"{self.stage}{self.phase}{self.micro_batch}"


class Overlap(NamedTuple):
    """A compound slot: its parts start together, once all have their inputs, and end together.

    Attributes
    ----------
    parts : tuple of Action
        The actions that share the slot, a forward and a backward in DualPipe.

    Examples
    --------
    >>> str(Overlap((Action(0, "F", 5), Action(7, "B", 1))))
    '(0F5;7B1)OVERLAP_F_B'
    """

    parts: tuple[Action, ...]

    def __str__(self) -> str:
        return f"({';'.join(map(str, self.parts))})OVERLAP_F_B"


Slot: TypeAlias = Action | Overlap


def parse_action(text: str) -> Action:
    """Return the action written as `text`; the inverse of ``str(action)``.

    Raises
    ------
    InputError
        If the text is not an action.

    Examples
    --------
    >>> parse_action("12W7")
    Action(stage=12, phase='W', micro_batch=7)
    """
    match = _ACTION.fullmatch(text.strip())
    if match is None:
        letters = ", ".join(f"{letter} ({name})" for letter, name in PHASES.items())
        message = "is no action; an action is stage, phase, micro-batch, such as 0F3, with the phases"
        raise InputError(f"{text.strip()!r} {message} {letters}")
    stage, phase, micro_batch = match.groups()
    return Action(int(stage), cast(Phase, phase), int(micro_batch))


def parse_slot(text: str) -> Slot:
    """Return the slot written as `text`: an action, or several in ``(...;...)OVERLAP_F_B``.

    Raises
    ------
    InputError
        If the text is neither, or an overlap has fewer than two parts.

    Examples
    --------
    >>> parse_slot("(0F5;7B1)OVERLAP_F_B").parts[1]
    Action(stage=7, phase='B', micro_batch=1)
    """
    match = _OVERLAP.fullmatch(text.strip())
    if match is None:
        return parse_action(text)
    parts = tuple(parse_action(part) for part in match.group(1).split(";"))
    if len(parts) < 2:
        raise InputError(f"{text.strip()!r} overlaps {len(parts)} action; an overlap has at least two")
    return Overlap(parts)


def is_communication(text: str) -> bool:
    """Return whether `text` is an action of torch's lowered form that computes nothing.

    Torch writes sends, receives, FSDP's unshard and reshard, and gradient reduction into the same
    table (``2SEND_F1``, ``0UNSHARD``). Our schedules leave them out: transfers follow from the placement.

    Examples
    --------
    >>> is_communication("2SEND_F1"), is_communication("2F1")
    (True, False)
    """
    return _COMMUNICATION.fullmatch(text.strip()) is not None


Placement: TypeAlias = tuple[int, ...]
"""The rank of each stage."""

Programs: TypeAlias = tuple[tuple[Slot, ...], ...]
"""One program per rank."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Programs of all ranks, and the placement of the stages.

    Attributes
    ----------
    name : str
        Family of the schedule, such as ``"1f1b"``.
    programs : tuple of tuple of Slot
        One program per rank: its slots in running order.
    placements : tuple of Placement
        Stage → rank, one per replica of the pipeline.
    replica_of : tuple of int
        Micro-batch → index into `placements`.
    meta : mapping
        Further facts from the family, such as the weight versions PipeDream keeps.

    Examples
    --------
    >>> from policies.pipeline.registry import generate
    >>> schedule = generate("1f1b", ranks=2, micro_batches=2)
    >>> [" ".join(map(str, program)) for program in schedule.programs]
    ['0F0 0F1 0B0 0B1', '1F0 1B0 1F1 1B1']
    """

    name: str
    programs: Programs
    placements: tuple[Placement, ...]
    replica_of: tuple[int, ...]
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.programs)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.stage_to_rank)

    @property
    def chunks(self) -> int:
        """Number of stages that a rank holds of one placement."""
        return max(Counter(self.stage_to_rank).values())

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches."""
        return len(self.replica_of)

    @property
    def forward_only(self) -> bool:
        """Whether this is inference: there is no backward, and nothing is kept for one."""
        return bool(self.meta.get("forward_only"))

    @property
    def in_flight(self) -> int:
        """Most inference micro-batches allowed between first and last stage."""
        return min(self.meta.get("in_flight") or self.micro_batches, self.micro_batches)

    @property
    def stage_to_rank(self) -> Placement:
        """The rank of each stage in the first placement."""
        return self.placements[0]

    def rank_of(self, stage: int, micro_batch: int) -> int:
        """Return the rank that runs `micro_batch` on `stage`."""
        return self.placements[self.replica_of[micro_batch]][stage]

    def actions(self, rank: int) -> Iterator[Action]:
        """Yield the actions of one rank in order, the parts of an overlap one after another."""
        for slot in self.programs[rank]:
            yield from slot.parts

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages whose weights `rank` holds, in ascending order."""
        return tuple(s for s in range(self.stages) if any(ranks[s] == rank for ranks in self.placements))


def loop(ranks: int, chunks: int = 1) -> Placement:
    """Place stage s on rank s mod ranks.

    >>> loop(2, 2)
    (0, 1, 0, 1)
    """
    return tuple(range(ranks)) * chunks


def vee(ranks: int) -> Placement:
    """Place two stages per rank in a V: rank r has stages r and 2·ranks - 1 - r.

    >>> vee(2)
    (0, 1, 1, 0)
    """
    return (*range(ranks), *reversed(range(ranks)))


def one_pipeline(
    name: str, programs: Iterable[Iterable[Slot]], micro_batches: int, placement: Placement, **meta: Any
) -> Schedule:
    """Return a schedule with each stage on one rank.

    >>> one_pipeline("empty", [[], []], 3, loop(2)).replica_of
    (0, 0, 0)
    """
    return Schedule(name, tuple(map(tuple, programs)), (placement,), (0,) * micro_batches, meta)


def bidirectional(name: str, programs: Iterable[Iterable[Slot]], replica_of: Iterable[int]) -> Schedule:
    """Return a schedule of two pipelines with one stage per rank: from rank 0 down, from the last rank up.

    >>> bidirectional("empty", [[], []], [1]).placements
    ((0, 1), (1, 0))
    """
    rows = tuple(map(tuple, programs))
    down = loop(len(rows))
    return Schedule(name, rows, (down, down[::-1]), tuple(replica_of))


# ----------------------------------------------------------------------------------------------------------
# The actions of a schedule as columns, for operations on all of them at once.


class Actions:
    """The actions of all programs as columns, rank by rank, the parts of an overlap one after another.

    Attributes
    ----------
    stage, micro_batch : array of int
    phase : array of str
        One letter each.
    rank, slot : array of int
        Rank of each action, and number of its slot, counted over all ranks.
    first : list of int
        Number of each rank's first slot, followed by the number of slots.
    """

    def __init__(self, schedule: Schedule) -> None:
        slots = list(chain.from_iterable(schedule.programs))
        plain = set(map(type, slots)) <= {Action}  # without overlaps every slot is an action
        parts = 1 if plain else [len(slot.parts) for slot in slots]
        actions = slots if plain else [action for slot in slots for action in slot.parts]
        self.first = [0, *accumulate(map(len, schedule.programs))]
        self.slot = np.repeat(np.arange(len(slots)), parts)
        self.rank = np.searchsorted(self.first, self.slot, side="right") - 1
        self.stage = np.fromiter(map(itemgetter(0), actions), np.int64)
        self.phase = np.array(list(map(itemgetter(1), actions)), dtype="<U1")
        self.micro_batch = np.fromiter(map(itemgetter(2), actions), np.int64)


# ----------------------------------------------------------------------------------------------------------
# A rank's program under construction: each lane counts its own micro-batches.
#
# Handwritten schedules are described as "two forwards of chunk 0, then forward, backward of chunk 1, ...":
# by stage and phase but never by micro-batch, because each (stage, phase) takes its micro-batches in
# order. So a rule names lanes and phases, and the counting is done here.


@dataclass(frozen=True, slots=True)
class StageLane:
    """One stage on a rank, and its micro-batches.

    Attributes
    ----------
    stage : int
        Index of the stage.
    first : int
        Its first micro-batch; the others follow consecutively.
    """

    stage: int
    first: int = 0


@dataclass(slots=True)
class SlotProgram:
    """The slots so far, the count of each (lane, phase), and the pending W.

    B counts as I, so that a lane whose backward is whole at first and split later keeps counting.
    """

    slots: list[Slot] = field(default_factory=list)
    pending: deque[Action] = field(default_factory=deque)
    counts: Counter[tuple[StageLane, str]] = field(default_factory=Counter)

    def add(self, lane: StageLane, phase: Phase) -> None:
        """Append the next micro-batch of `lane` in `phase`; an I leaves its W pending."""
        self.slots.append(self._next(lane, phase))

    def repeat(self, times: int, *steps: tuple[StageLane, Phase]) -> None:
        """Append the steps `times` times."""
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


# ----------------------------------------------------------------------------------------------------------
# Checkpointing as a transformation of any schedule: an R just before the backward that needs it.
#
# A checkpointed forward keeps only its stage input; its activations are recomputed before the
# backward. As in torchgpipe there are three choices of micro-batches to checkpoint:
#
#     gpipe, never:         F0 F1 F2 B2 B1 B0
#     gpipe, except_last:   F0 F1 F2 B2 R1 B1 R0 B0        the backward of the last follows at once
#     gpipe, always:        F0 F1 F2 R2 B2 R1 B1 R0 B0
#
# R needs only data of its own rank, so it overlaps the gradient's transfer from the next rank; at most
# one recomputed micro-batch is alive at a time.
#
# Source: kakaobrain/torchgpipe, ``torchgpipe/checkpoint.py``; Chen et al., arXiv 1604.06174.

Checkpoint = Literal["never", "except_last", "always"]
"""The micro-batches to recompute."""


def with_recompute(schedule: Schedule, checkpoint: Checkpoint) -> Schedule:
    """Return `schedule` with an R before each B or I of a checkpointed micro-batch.

    A backward inside a compound slot is recomputed before the slot.

    Parameters
    ----------
    schedule : Schedule
        Schedule without R.
    checkpoint : {"never", "except_last", "always"}
        ``except_last`` does not recompute the last micro-batch.

    Raises
    ------
    InputError
        If `checkpoint` is none of the three.

    Examples
    --------
    >>> from policies.pipeline.registry import generate
    >>> plain = generate("gpipe", ranks=1, micro_batches=3)
    >>> print(*with_recompute(plain, "except_last").programs[0])
    0F0 0F1 0F2 0B2 0R1 0B1 0R0 0B0
    """
    accepted = get_args(Checkpoint)
    if checkpoint not in accepted:
        raise UnknownNameError("value of checkpoint", str(checkpoint), accepted)
    if checkpoint == "never":
        return schedule
    last = schedule.micro_batches - (1 if checkpoint == "except_last" else 0)
    programs: list[list[Slot]] = [[] for _ in schedule.programs]
    for recomputed, program in zip(programs, schedule.programs, strict=True):
        for slot in program:
            recomputed += (Action(s, "R", k) for s, phase, k in slot.parts if phase in "BI" and k < last)
            recomputed.append(slot)
    return replace(schedule, programs=tuple(map(tuple, programs)))


def without_backward_dependency(schedule: Schedule) -> Schedule:
    """Return `schedule` as run by an autograd without dependencies between micro-batches.

    The last stage waits for no gradient, so nothing delays its recomputations: all of them run before the
    first backward, and all their results are alive at once. torchgpipe's fork and join (its "backward
    dependency") prevents this.

    Source: Kim et al., "torchgpipe", arXiv 2004.09910, section 3.2.2.

    Raises
    ------
    InputError
        If the last stage has forwards after a recomputation, which could not move ahead of them.

    Examples
    --------
    >>> from policies.pipeline.registry import generate
    >>> gpipe = generate("gpipe", ranks=1, micro_batches=3, checkpoint="always")
    >>> print(*without_backward_dependency(gpipe).programs[0])
    0F0 0F1 0F2 0R2 0R1 0R0 0B2 0B1 0B0
    """
    last = schedule.stages - 1
    programs = []
    for program in schedule.programs:
        phases = [a.phase for slot in program for a in slot.parts if a.stage == last]
        if "R" in phases and "F" in phases[phases.index("R") :]:
            raise InputError(
                "backward_dependency: false moves all recomputations of the last stage before its first "
                f"backward, and under {schedule.name} that stage runs backwards before its last forward; it "
                "needs a schedule that runs all forwards first, such as gpipe or looped-bfs"
            )
        again = [slot for slot in program if isinstance(slot, Action) and slot[:2] == (last, "R")]
        if again:
            moved = set(again)
            backwards = [any(a.stage == last and a.phase in "RBI" for a in slot.parts) for slot in program]
            first = backwards.index(True)
            program = (*program[:first], *again, *(slot for slot in program[first:] if slot not in moved))
        programs.append(program)
    return replace(schedule, programs=tuple(programs))
