"""Tensors of an XLA program while it is traced: their bytes, and constant numbers.

::

    scan    i = 0, x  ──►  i < 10 ?  i + 1, body(x)  ──►  i < 10 ?  ...       so the body runs ten times

Loop counters are constants, and so is anything computed from constants alone; no op computes it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from scenarios.importers.xla_costs import Array, Instruction, Shape
from sim.base.errors import InputError


@dataclass(frozen=True)
class Traced:
    """A tensor while the program is traced.

    Attributes
    ----------
    array : Array
    ref : str or None
        How an op refers to it; None: a constant, which is part of the kernel that reads it.
    nbytes : int
        Bytes in memory: for a broadcast, those of what it repeats.
    outer : bool
        Whether it exists before the program begins.
    number : int, float or None
        Value of a constant, if known.
    literal : bool
        Whether XLA uses the number when it converts the text to HLO.
    """

    array: Array
    ref: str | None = None
    nbytes: int = 0
    outer: bool = False
    number: int | float | None = None
    literal: bool = False

    def as_shape(self, array: Array) -> Traced:
        """Return the same bytes under another shape."""
        return replace(self, array=array, nbytes=min(self.nbytes, array.nbytes))


TracedShape = Traced | list[Any]


def flat(values: TracedShape | Sequence[TracedShape]) -> list[Traced]:
    return [values] if isinstance(values, Traced) else [one for each in values for one in flat(each)]


def shaped(shape: Shape, values: Iterator[Traced]) -> TracedShape:
    """Return values, one for each tensor of a shape, in tuples of the same structure."""
    return next(values) if isinstance(shape, Array) else [shaped(one, values) for one in shape]


_NUMBERS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "maximum": max,
    "minimum": min,
    "and": operator.and_,
    "or": operator.or_,
    "convert": lambda x: x,
    "copy": lambda x: x,
    "not": lambda x: int(not x),
    "select": lambda chosen, yes, no: yes if chosen else no,
}
_COMPARED: Final = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}
_LARGEST: Final = 2**63


def number_made(one: Instruction, given: Sequence[int | float | None]) -> int | float | None:
    """Return the result of an instruction on known numbers, as far as loop counting needs it."""
    known = [number for number in given if number is not None]
    if len(known) < len(given) or not known:
        return None
    if one.opcode == "compare" and len(known) == 2:
        return int(_COMPARED[one.attributes.get("direction", "EQ")](*known))
    found = _NUMBERS[one.opcode](*known) if one.opcode in _NUMBERS else None
    return found if found is not None and abs(found) < _LARGEST else None


def unchanged(one: Instruction, given: Sequence[Traced]) -> Traced | None:
    """Return the operand that an instruction passes on: it multiplies by 1, adds 0, or ands with true."""
    neutral = {"multiply": 1, "add": 0, "and": 1}.get(one.opcode)
    if neutral is None or len(given) != 2 or given[0].array != given[1].array:
        return None
    if one.opcode == "and" and given[0].array.dtype != "bool":  # 1 is not all bits
        return None
    return next((given[1 - k] for k in (1, 0) if given[k].literal and given[k].number == neutral), None)


def same_order(array: Array, axes: Sequence[int]) -> bool:
    """Whether a transposition keeps the order of bytes: it only moves axes of length 1."""
    if sorted(axes) != [*range(len(array.dims))]:
        raise InputError(f"a transposition of {len(array.dims)} axes by {list(axes)[:8]}")
    long = [axis for axis in axes if array.dims[axis] != 1]
    return long == sorted(long)
