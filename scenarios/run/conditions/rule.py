"""What a rule is: some keys of a scenario, and the condition under which they have an effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from scenarios.file.document import Loc

if TYPE_CHECKING:
    from scenarios.run.scenario import Case

__all__ = ["Rule"]


class Rule(NamedTuple):
    """Some keys, and the condition under which they have an effect.

    Attributes
    ----------
    keys : tuple of str
        Dotted paths; ``*`` is any key of a mapping or item of a list.
    holds : callable
        ``holds(case, loc)``: whether the key at `loc` has an effect in a run.
    why : str
        The end of the message: why it has none, and what to do.
    """

    keys: tuple[str, ...]
    holds: Callable[[Case, Loc], bool]
    why: str
