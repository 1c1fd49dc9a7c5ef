"""What a user's own class hands over, checked once, where it comes in.

A compiled loop believes the numbers that it is given, so a wrong one may not get that far::

    placement, stream assignment, linearizer, cost model, policy as data ──whole_numbers──► a column of int64
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sim.base.arrays import IntArray
from sim.base.errors import InputError


def whole_numbers(
    answer: Any,
    whose: str,
    n: int | None = None,
    *,
    least: int = 0,
    below: int | IntArray | None = None,
    of: Sequence[str] = (),
    accepted: Callable[[int], str] | None = None,
) -> IntArray:
    """Return an answer as a column, if it is whole numbers within a range.

    Parameters
    ----------
    answer : Any
        What came back.
    whose : str
        Who answered what: ``"Mine.place"``.
    n : int, optional
        How many numbers there should be.
    least : int
    below : int or array of int, optional
        What each number has to be less than.
    of : sequence of str
        The op that each number is for.
    accepted : callable, optional
        Tells what is accepted at a position, in other words than the range.

    Raises
    ------
    InputError
        Anything else, with the op and what came back.

    Examples
    --------
    >>> whole_numbers([0, 1], "Mine.place", 2, below=2).tolist()
    [0, 1]
    >>> whole_numbers([0, True], "Mine.place", 2, below=2, of=["a", "b"])
    Traceback (most recent call last):
    sim.base.errors.InputError: Mine.place returned True for op 'b', should be a whole number from 0 to 1
    """
    many = "whole numbers" if n is None else f"{n} whole number{'s' * (n != 1)}"
    if (
        isinstance(answer, str | bytes)
        or not hasattr(answer, "__len__")
        or not hasattr(answer, "__getitem__")
    ):
        raise InputError(f"{whose} returned {_shown(answer)}, should be a sequence of {many}")
    if isinstance(answer, np.ndarray) and answer.ndim != 1:
        raise InputError(f"{whose} returned an array of shape {answer.shape}, should be {many}")
    if n is not None and len(answer) != n:
        each = f", one for each of {n} ops" if len(of) == n else ""
        raise InputError(f"{whose} returned {len(answer)} numbers, should be {many}{each}")
    if isinstance(answer, np.ndarray) and answer.dtype.kind in "iu":
        column = answer
    else:
        values = list(answer)
        for i, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise _wrong(whose, value, i, least, below, of, accepted)
        column = np.array(values, dtype=object)
    wrong = np.asarray((column < least) | (column > np.iinfo(np.int64).max), dtype=bool)
    if below is not None:
        wrong |= np.asarray(column >= below, dtype=bool)
    if wrong.any():
        i = int(wrong.argmax())
        raise _wrong(whose, column[i], i, least, below, of, accepted)
    return column.astype(np.int64, copy=False)


def _wrong(
    whose: str,
    value: Any,
    i: int,
    least: int,
    below: int | IntArray | None,
    of: Sequence[str],
    accepted: Callable[[int], str] | None,
) -> InputError:
    op = of[i] if i < len(of) else None
    most = None if below is None else (below if isinstance(below, int) else int(below[i])) - 1
    limits = f"from {least} on" if most is None else f"from {least} to {most}"
    should = f"a whole number {limits}" if accepted is None else accepted(i)
    where = f"at position {i}" if op is None else f"for op {op!r}"
    error = InputError(f"{whose} returned {_shown(value)} {where}, should be {should}")
    return error if op is None else error.about(op)


def _shown(value: Any) -> str:
    shown = repr(value.item() if isinstance(value, np.generic) else value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
