"""The words of a pipeline program: actions, and slots that overlap two of them.

An action is one phase of one micro-batch on one stage, written as
``torch.distributed.pipelining`` writes it::

    0F3                      stage 0, forward of micro-batch 3
    1B2                      stage 1, the whole backward of micro-batch 2
    1I2, 1W2                 the same backward in two halves: input gradient, weight gradient
    1R2                      recompute of the forward (ours; torch recomputes inside B)
    (0F5;7B1)OVERLAP_F_B     one slot: a forward and a backward of different micro-batches at once

A rank's program is a sequence of slots. An `Action` is a slot by itself and an `Overlap` is a slot
of several; both answer ``slot.parts``, so that code which only counts actions has no special case.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from sim.base.errors import InputError

Phase: TypeAlias = Literal["F", "B", "I", "W", "R"]

PHASES: Final[dict[Phase, str]] = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "R": "recompute",
}
"""Each phase letter with its name."""

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
        What is computed, see `PHASES`.
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
    """A compound slot: its parts start together, when the inputs of all are there, and end together.

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
    """Read one action, the inverse of ``str(action)``.

    Raises
    ------
    InputError
        The text is no action.

    Examples
    --------
    >>> parse_action("12W7")
    Action(stage=12, phase='W', micro_batch=7)
    """
    found = _ACTION.fullmatch(text.strip())
    if found is None:
        letters = ", ".join(f"{letter} ({name})" for letter, name in PHASES.items())
        raise InputError(
            f"{text.strip()!r} is no action; an action is stage, phase, micro-batch, such as 0F3, "
            f"with the phases {letters}"
        )
    stage, phase, micro_batch = found.groups()
    return Action(int(stage), cast(Phase, phase), int(micro_batch))


def parse_slot(text: str) -> Slot:
    """Read one slot: an action, or several in ``(...;...)OVERLAP_F_B``.

    Raises
    ------
    InputError
        The text is neither, or an overlap has fewer than two parts.

    Examples
    --------
    >>> parse_slot("(0F5;7B1)OVERLAP_F_B").parts[1]
    Action(stage=7, phase='B', micro_batch=1)
    """
    found = _OVERLAP.fullmatch(text.strip())
    if found is None:
        return parse_action(text)
    parts = tuple(parse_action(part) for part in found.group(1).split(";"))
    if len(parts) < 2:
        raise InputError(f"{text.strip()!r} overlaps {len(parts)} action; an overlap has at least two")
    return Overlap(parts)


def is_communication(text: str) -> bool:
    """Tell whether `text` is an action of torch's lowered form that computes nothing.

    Torch writes sends, receives, FSDP's unshard and reshard, and gradient reduction into the same
    table (``2SEND_F1``, ``0UNSHARD``). A schedule of ours leaves them out: transfers follow from the
    stages.

    Examples
    --------
    >>> is_communication("2SEND_F1"), is_communication("2F1")
    (True, False)
    """
    return _COMMUNICATION.fullmatch(text.strip()) is not None
