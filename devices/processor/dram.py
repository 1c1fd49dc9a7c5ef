"""Memory bandwidth among those who want different amounts of it: max-min fair, exactly.

::

    capacity 10, demands 2, 5, 8:   2 gets 2;  of the other 8, 5 and 8 get 4 each

Nobody gets more than he wants, and what small demands leave over is shared by the large ones: progressive
filling on one resource (see `devices.network.maxmin`).
"""

from __future__ import annotations

from collections.abc import Sequence

from devices.network.maxmin import Rate, quotient

__all__ = ["fair_shares"]


def fair_shares(demands: Sequence[int], capacity: int) -> list[Rate]:
    """Return what each of `demands` gets of `capacity`.

    Examples
    --------
    >>> fair_shares([8, 2, 5], 10)
    [4, 2, 4]
    """
    shares: list[Rate] = [0] * len(demands)
    left: Rate = capacity
    for rank, who in enumerate(sorted(range(len(demands)), key=demands.__getitem__)):
        equal = quotient(left, len(demands) - rank)
        shares[who] = demands[who] if demands[who] <= equal else equal
        left -= shares[who]
    return shares
