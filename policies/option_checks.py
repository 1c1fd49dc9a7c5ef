"""Checks of policy options, made where the user sets them: each refusal names what is accepted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import get_args

from sim.base.errors import InputError, nearest
from sim.base.options import spelling
from sim.policy import Synchronisation

SYNCHRONISATIONS: tuple[str, ...] = get_args(Synchronisation)
"""What *eligible* may mean; see `sim.Policy`."""


def one_of(policy: str, option: str, value: object, accepted: Sequence[str]) -> str:
    """Return `value` if it is one of the accepted words.

    Parameters
    ----------
    policy, option : str
        Names for the message.
    value : object
    accepted : sequence of str

    Raises
    ------
    InputError
        If it is not; the message lists the accepted words and the nearest one.

    Examples
    --------
    >>> one_of("ready-queue", "order", "lifo", ("fifo", "lifo"))
    'lifo'
    >>> one_of("ready-queue", "order", "fiffo", ("fifo", "lifo"))
    Traceback (most recent call last):
        ...
    sim.base.errors.InputError: order: ready-queue: order must be one of fifo, lifo; found 'fiffo', did you
    mean 'fifo'?
    """
    if isinstance(value, str) and value in accepted:
        return value
    close = nearest(str(value), accepted)
    hint = f", did you mean {close!r}?" if close else ""
    message = f"{policy}: {option} must be one of {', '.join(accepted)}; found {value!r}{hint}"
    raise InputError(message, path=(option,))


def name_list(policy: str, option: str, value: Sequence[str]) -> list[str]:
    """Return names as a list.

    Raises
    ------
    InputError
        If it is a single text, which Python takes for a sequence of letters, or no sequence.

    Examples
    --------
    >>> name_list("prune", "fetches", "loss")
    Traceback (most recent call last):
        ...
    sim.base.errors.InputError: fetches: prune: fetches must be a list of names; found 'loss'
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{policy}: {option} must be a list of names; found {value!r}", path=(option,))
    return list(value)


def pattern_of(wrap: str, option: str = "wrap") -> re.Pattern[str]:
    """Return the compiled regular expression.

    Raises
    ------
    InputError
        If it is not valid.
    """
    try:
        return re.compile(wrap)
    except (re.error, TypeError) as error:
        message = f"must be a regular expression for names of ops; found {wrap}: {error}"
        raise InputError(message, path=(option,)) from None


def whole(policy: str, option: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """Return `value` if it is a whole number of at least `least`, and at most `most`.

    Parameters
    ----------
    policy, option : str
        Names for the message.
    value : object
    least, most : int
        Inclusive bounds; without `most` there is no upper bound.

    Raises
    ------
    InputError
        If it is not.

    Examples
    --------
    >>> whole("out-of-order", "window", 4)
    4
    >>> whole("out-of-order", "window", 0)
    Traceback (most recent call last):
        ...
    sim.base.errors.InputError: window: out-of-order: window must be a whole number of at least 1; found 0
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        if most is None or value <= most:
            return value
        message = f"{policy}: {option} may be at most {most:,}; found {value:,}"
    else:
        message = f"{policy}: {option} must be a whole number of at least {least}; found {value!r}"
    raise InputError(message, path=(spelling(option),))
