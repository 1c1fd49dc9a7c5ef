"""The grid of ranks: which number each has, and with whom it communicates, in every dimension of parallelism.

::

    order tp-cp-dp-pp, two of each: the first changes fastest from rank to rank

    rank  0  1  2  3  4  5  6  7  8 ...        tp: {0 1} {2 3} ...      cp: {0 2} {1 3} ...
    tp    0  1  0  1  0  1  0  1  0            dp: {0 4} {1 5} ...      pp: {0 8} {1 9} ...
    cp    0  0  1  1  0  0  1  1  0            cp-dp: {0 2 4 6} {1 3 5 7} ...
    dp    0  0  0  0  1  1  1  1  0
    pp    0  0  0  0  0  0  0  0  1

Megatron-LM's order is tp-cp-ep-dp-pp, and tp-cp-ep-pp-dp where it is told so; Llama 3's is tp-cp-pp-dp.

Sources: megatron/core/parallel_state.py (``RankGenerator``, ``generate_masked_orthogonal_rank_groups``, the
default of ``order``); "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sim.words.errors import InputError, hint

__all__ = ["DATA", "MEGATRON", "Grid", "read_order"]

MEGATRON: Final = ("tp", "cp", "ep", "dp", "pp")
"""Tensor, context, expert, data and pipeline parallelism, the fastest changing first."""

DATA: Final = "cp-dp"
"""The ranks that sum gradients: those of one part of a sequence see other tokens, as other replicas do."""


@dataclass(frozen=True)
class Grid:
    """Sizes of the dimensions.

    Attributes
    ----------
    sizes : mapping of str to int
        Of each dimension, the fastest changing first.

    Examples
    --------
    >>> grid = Grid({"tp": 2, "dp": 3})
    >>> grid.ranks, grid.at(3), grid.rank({"tp": 1, "dp": 1})
    (6, {'tp': 1, 'dp': 1}, 3)
    >>> grid.members("dp", 3), grid.number("dp", 3), grid.groups("tp-dp")
    ([1, 3, 5], 1, 1)
    """

    sizes: Mapping[str, int]

    @property
    def ranks(self) -> int:
        """All ranks."""
        return math.prod(self.sizes.values())

    def at(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a rank."""
        found = {}
        for name, size in self.sizes.items():
            rank, found[name] = divmod(rank, size)
        return found

    def rank(self, at: Mapping[str, int]) -> int:
        """Return the number of the rank at these coordinates."""
        number = 0
        for name, size in reversed(list(self.sizes.items())):
            number = number * size + at[name]
        return number

    def members(self, dimensions: str | Iterable[str], rank: int = 0) -> list[int]:
        """Return the ranks of a group, that of `rank`: they differ in these dimensions only.

        Parameters
        ----------
        dimensions : str or iterable of str
            Names, or one word such as ``"tp-dp"``; those that the grid does not have are left out.
        rank : int
        """
        varying = _names(dimensions)
        positions, stride = [0], 1
        for name, size in self.sizes.items():
            if name in varying:
                rank -= rank // stride % size * stride
                positions = [at + i * stride for i in range(size) for at in positions]
            stride *= size
        return [rank + at for at in positions]

    def number(self, dimensions: str | Iterable[str], rank: int) -> int:
        """Return which of the groups over these dimensions a rank is in, by their first ranks."""
        varying, number, stride = _names(dimensions), 0, 1
        for name, size in self.sizes.items():
            rank, own = divmod(rank, size)
            if name not in varying:
                number, stride = number + own * stride, stride * size
        return number

    def groups(self, dimensions: str | Iterable[str]) -> int:
        """Return how many groups there are over these dimensions."""
        varying = _names(dimensions)
        return math.prod(size for name, size in self.sizes.items() if name not in varying)

    def ordered(self, order: Sequence[str]) -> Grid:
        """Return the grid of the same sizes in another order; what `order` lacks comes last."""
        names = [*(name for name in order if name in self.sizes), *(n for n in self.sizes if n not in order)]
        return Grid({name: self.sizes[name] for name in names})


def _names(dimensions: str | Iterable[str]) -> set[str]:
    return set(dimensions.split("-")) if isinstance(dimensions, str) else set(dimensions)


def read_order(order: object, known: Sequence[str], what: str = "order") -> tuple[str, ...]:
    """Return the dimensions that a word such as ``tp-cp-dp-pp`` names, each of `known` once.

    Raises
    ------
    InputError
        One is missing, unknown or there twice.

    Examples
    --------
    >>> read_order("tp-pp-dp", ["tp", "dp", "pp"])
    ('tp', 'pp', 'dp')
    """
    names = tuple(order.split("-")) if isinstance(order, str) else ()
    if sorted(names) != sorted(known):
        wrong = next((name for name in names if name not in known), None)
        near = "" if wrong is None else hint(wrong, known)
        message = f"{what} has to name each of {', '.join(known)} once, as in {'-'.join(known)}"
        raise InputError(f"{message}; found {order!r}{near}", path=("order",))
    return names
