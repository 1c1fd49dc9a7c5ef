"""What a planner is given, and what it answers.

A tensor is a rectangle: as wide as it lives, as high as it is large. A plan shifts the rectangles up and
down, never sideways, so that no two overlap, and wants the pile low::

    offset
      ▲  ┌─────────┐
      │  │    c    │ ┌──────┐
      │  ├──────┬──┘ │      │      lower bound: the most bytes alive at one step,
      │  │  a   │┌───┤  d   │      whatever the plan
      │  │      ││ b │      │
      └──┴──────┴┴───┴──────┴──► step
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from devices.memory.device_memory import round_up
from sim.base.errors import InputError


class Lifetime(NamedTuple):
    """A tensor of `nbytes`, alive from step `first` through step `last`, both included.

    Some planners look at its `dtype` (empty: not known), and at whether the program returns it.
    """

    nbytes: int
    first: int
    last: int
    dtype: str = ""
    returned: bool = False


@dataclass(frozen=True)
class ArenaPlan:
    """Where each tensor lies in one arena.

    Attributes
    ----------
    lifetimes : tuple of Lifetime
        What was planned.
    offsets : tuple of int
        First byte of each, in the same order; multiples of `alignment`.
    nbytes : int
        Size of the arena.
    bound : int
        No plan takes fewer bytes, as far as the planner knows; at least the most alive at one step.
    planner : str
        Who made it.
    alignment : int
        In bytes.
    """

    lifetimes: tuple[Lifetime, ...]
    offsets: tuple[int, ...]
    nbytes: int
    bound: int
    planner: str
    alignment: int = 1

    @property
    def optimal(self) -> bool:
        """Whether it is known that no plan takes fewer bytes."""
        return self.nbytes == self.bound


def peak_live(lifetimes: Iterable[Lifetime], alignment: int = 1) -> int:
    """Return the most bytes alive at one step: a lower bound of every plan.

    Examples
    --------
    >>> peak_live([Lifetime(4, 0, 1), Lifetime(2, 1, 2), Lifetime(5, 2, 2)])
    7
    """
    return max(_live_at_steps(lifetimes, alignment).values(), default=0)


def fullest_step(lifetimes: Iterable[Lifetime], alignment: int = 1) -> int:
    """Return the first step at which most bytes are alive; 0 without lifetimes.

    Examples
    --------
    >>> fullest_step([Lifetime(4, 0, 1), Lifetime(2, 1, 2), Lifetime(5, 2, 2)])
    2
    """
    live = _live_at_steps(lifetimes, alignment)
    return max(live, key=lambda step: live[step], default=0)


def _live_at_steps(lifetimes: Iterable[Lifetime], alignment: int) -> dict[int, int]:
    """Return the bytes alive from each step on at which that changes, in order."""
    change: dict[int, int] = {}
    for nbytes, first, last, *_ in lifetimes:
        size = round_up(nbytes, alignment)
        change[first] = change.get(first, 0) + size
        change[last + 1] = change.get(last + 1, 0) - size
    steps = sorted(change)
    return dict(zip(steps, itertools.accumulate(change[step] for step in steps), strict=True))


def checked(lifetimes: Sequence[Lifetime], alignment: int) -> tuple[Lifetime, ...]:
    """Return the lifetimes as a tuple; refuse what makes no sense.

    Raises
    ------
    InputError
        A negative size, a tensor that dies before it is born, an alignment below one byte.
    """
    if alignment < 1:
        raise InputError(f"an alignment of {alignment} bytes makes no sense; give 1 or more")
    for i, (nbytes, first, last, *_) in enumerate(lifetimes):
        if nbytes < 0:
            raise InputError(f"tensor {i} of a memory plan has {nbytes} bytes; a size is never negative")
        if last < first:
            raise InputError(
                f"tensor {i} of a memory plan lives from step {first} to {last}, before it is made"
            )
    return tuple(lifetimes)
