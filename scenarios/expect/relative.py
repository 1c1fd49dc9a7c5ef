"""Values of a condition that are known only when runs are over: ``1.05 x gpipe``, and a tolerance of ``1%``.

::

    makespan: {at_most: 1.05 x gpipe}            of what another run of the scenario has
    makespan: {equals: 45us, tolerance: 1%}      of what it should equal
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

from scenarios.fields.results import Value
from sim.words.units import round_half_up

__all__ = ["Given", "Relative", "read_relative", "resolved"]

_TIMES: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*x\s+(\S.*?)\s*")


class Relative(NamedTuple):
    """So many times what another run has.

    Attributes
    ----------
    times : Fraction
    run : str
        Its label; empty: of what this one should equal.
    """

    times: Fraction
    run: str = ""

    def __str__(self) -> str:
        """Return it as it is written in a scenario, without zeros at the end."""
        return f"{float(self.times):.10g} x {self.run}"


Given = Value | Relative
"""What a condition says of one of its keys."""


def read_relative(text: Any) -> Relative | None:
    """Read ``1.05 x gpipe``; None: it is something else.

    Examples
    --------
    >>> print(read_relative("1.05 x gpipe"), read_relative("45us"))
    1.05 x gpipe None
    """
    found = _TIMES.fullmatch(text) if isinstance(text, str) else None
    return found and Relative(Fraction(found[1]), found[2])


def resolved(condition: Mapping[str, Given], references: Mapping[str, int | float]) -> dict[str, Value]:
    """Return a condition in base units.

    What is whole stays whole, and no bound becomes wider: at most 10.5 ns are at most 10, at least 10.5 are
    at least 11.

    Parameters
    ----------
    condition : mapping
    references : mapping of str to int or float
        What the run of each label has.

    Examples
    --------
    >>> resolved({"at_most": Relative(Fraction("1.05"), "gpipe")}, {"gpipe": 10})
    {'at_most': 10}
    >>> resolved({"equals": 90, "tolerance": Relative(Fraction(1, 10))}, {})
    {'equals': 90, 'tolerance': 9}
    """
    found: dict[str, Value] = {}
    for key, value in condition.items():
        if isinstance(value, Relative):
            whole: Any = references[value.run] if value.run else found["equals"]
            exact = value.times * Fraction(whole)
            found[key] = _ROUNDED[key](exact) if isinstance(whole, int) else float(exact)
        else:
            found[key] = value
    return found


_ROUNDED: Final[Mapping[str, Callable[[Fraction], int]]] = {
    "equals": round_half_up,
    "tolerance": math.floor,
    "at_most": math.floor,
    "at_least": math.ceil,
}
