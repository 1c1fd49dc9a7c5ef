"""Memory bandwidth among those who want different amounts of it: max-min fair, exactly.

::

    capacity 10, demands 2, 5, 8:   2 gets 2;  of the other 8, 5 and 8 get 4 each

Nobody gets more than he wants, and what small demands leave over is shared by the large ones: progressive
filling on one resource (see `devices.sharing.maxmin`).
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fair_level"]


def fair_level(demands: Sequence[int], capacity: int) -> tuple[int, int]:
    """Return what each gets at most, as a ratio of whole numbers.

    Returns
    -------
    level, among : int
        Everybody gets the lesser of his demand and ``level / among``.

    Examples
    --------
    >>> fair_level([8, 2, 5], 10)
    (8, 2)
    """
    among = len(demands)
    for demand in sorted(demands):
        if demand * among > capacity:
            return capacity, among
        capacity -= demand
        among -= 1
    return max(demands, default=0), 1
