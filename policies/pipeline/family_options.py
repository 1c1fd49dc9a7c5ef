"""Checks of what a user may set: choices, sizes, counts; each refusal names what is accepted."""

from __future__ import annotations

from collections.abc import Sequence

from sim.words.errors import InputError

__all__ = ["per_stage", "require_positive"]


def require_positive(**sizes: object) -> None:
    """Refuse sizes that are no whole numbers of at least one, naming the first such.

    Raises
    ------
    InputError
        A size is not an integer, or is below one.

    Examples
    --------
    >>> require_positive(ranks=2, micro_batches=8)
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f"{name} must be a whole number of at least 1, not {size!r}")


def per_stage(name: str, value: int | Sequence[int], stages: int, *, least: int = 0) -> tuple[int, ...]:
    """Return one whole number a stage: the given ones, or one number for all.

    Raises
    ------
    InputError
        There are not as many numbers as stages, or one is no whole number of at least `least`.

    Examples
    --------
    >>> per_stage("forward", 3, 2)
    (3, 3)
    >>> per_stage("forward", [3, 4], 2)
    (3, 4)
    """
    numbers = tuple(value) if isinstance(value, Sequence) else (value,) * stages
    if len(numbers) != stages:
        raise InputError(
            f"{name} has {len(numbers)} numbers for {stages} stages; give one number or {stages}"
        )
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise InputError(f"{name} must be whole numbers of at least {least}, not {number!r}")
    return numbers
