"""Cutting a sequence of costs into consecutive blocks: evenly, or with the least largest block.

Source of the block partition: Bárány and Grinberg, "Block partitions of sequences", Israel Journal of
Mathematics 206 (2015): blocks can always be found whose sums differ by at most the largest element.
torchgpipe's ``balance_by_time`` and ``balance_by_size`` use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from sim.words.errors import InputError

__all__ = ["block_partition", "check_balance", "min_max"]

Balance = tuple[int, ...]
"""How many elements each block has."""


def check_balance(balance: Sequence[int], layers: int) -> Balance:
    """Return a balance that the user gave.

    Raises
    ------
    InputError
        A block is empty, or they do not add up to the number of layers.

    Examples
    --------
    >>> check_balance([2, 3], 5)
    (2, 3)
    """
    if any(count < 1 for count in balance) or sum(balance) != layers:
        shown = "+".join(map(str, balance))
        raise InputError(
            f"the balance {shown} = {sum(balance)} does not fit {layers} layers; every stage needs one"
        )
    return tuple(balance)


def _totals(costs: Sequence[int], blocks: int) -> list[int]:
    """Return the sums of the first 0, 1, 2, ... costs, if they can be cut into so many blocks."""
    if not 1 <= blocks <= len(costs):
        raise InputError(f"{len(costs)} layers cannot be cut into {blocks} stages; every stage needs one")
    return [0, *accumulate(costs)]


def min_max(costs: Sequence[int], blocks: int) -> Balance:
    """Return the balance whose largest block is smallest; of several, the one that cuts earliest.

    Dynamic programming over prefixes, ``O(blocks · n²)``.

    Parameters
    ----------
    costs : sequence of int
        None negative.
    blocks : int

    Raises
    ------
    InputError
        There are fewer costs than blocks.

    Examples
    --------
    >>> min_max([4, 1, 3, 2, 2, 4], 3)
    (2, 2, 2)
    """
    n, total = len(costs), _totals(costs, blocks)
    best = [*total[1:]]  # the least largest block of the first j + 1 elements in b blocks
    cuts: list[list[int]] = []
    for b in range(1, blocks):
        row, cut = [0] * n, [0] * n
        for j in range(b, n):
            found = min((max(best[i - 1], total[j + 1] - total[i]), i) for i in range(b, j + 1))
            row[j], cut[j] = found
        cuts.append(cut)
        best = row
    bounds = [n]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1] - 1])
    return _balance([0, *reversed(bounds)])


def block_partition(costs: Sequence[int], blocks: int) -> Balance:
    """Return a balance whose blocks differ by at most the largest cost.

    The rule of the proof: let p be a largest block and q the smallest block nearest to it, and move the
    element at q's border towards p into q; keep p until it has itself given one away. No block is left
    empty, which for a few large elements among small ones may cost the bound.

    Parameters
    ----------
    costs : sequence of int
        None negative.
    blocks : int

    Raises
    ------
    InputError
        There are fewer costs than blocks.

    Examples
    --------
    >>> block_partition([4, 1, 3, 2, 2, 4], 3)
    (2, 2, 2)
    """
    n, total = len(costs), _totals(costs, blocks)
    bounds = [n * b // blocks for b in range(blocks + 1)]
    largest = max(costs)

    def block(b: int) -> int:
        return total[bounds[b + 1]] - total[bounds[b]]

    p = max(range(blocks), key=block)
    while True:
        q = min(range(blocks), key=lambda b: (block(b), abs(b - p)))
        if block(p) - block(q) <= largest:
            other = max(range(blocks), key=block)
            if block(other) == block(p):
                break
            p = other
            continue
        towards = 1 if p > q else -1
        bounds[q + 1 if towards > 0 else q] += towards
        if q + towards == p:
            p = max(range(blocks), key=block)
    for b in range(1, blocks):
        bounds[b] = max(bounds[b], bounds[b - 1] + 1)
    for b in reversed(range(1, blocks)):
        bounds[b] = min(bounds[b], bounds[b + 1] - 1)
    return _balance(bounds)


def _balance(bounds: Sequence[int]) -> Balance:
    return tuple(b - a for a, b in pairwise(bounds))
