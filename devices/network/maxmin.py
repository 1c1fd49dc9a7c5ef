"""Max-min fair rates, exactly: what each flow gets when links are shared fairly.

*Progressive filling*: raise the rates of all flows together; where a link is full, its flows stop there and
the others go on (Bertsekas and Gallager, *Data Networks*, 2nd edition 1992, section 6.5.2). The result is
the only allocation in which nobody can get more without somebody who has less, or as little, getting less::

    link a, 10 B/ns:  flow 0, flow 1        b is full first: 4 / 2 = 2 for flows 1 and 2
    link b,  4 B/ns:  flow 1, flow 2        then a: 10 - 2 = 8 for flow 0

Rates are exact, whole numbers or fractions, so that nothing depends on the order of operations.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd

__all__ = ["Rate", "max_min"]

Rate = int | Fraction
"""An exact number; an int wherever it is whole, because that is several times faster."""


def max_min(
    routes: Sequence[Sequence[int]], capacity: Mapping[int, int], flows: Sequence[int] | None = None
) -> list[Rate]:
    """Return the max-min fair rate of a flow on each route.

    Parameters
    ----------
    routes : sequence of sequence of int
        For each route, the links that it uses: at least one, each once.
    capacity : mapping of int to int
        Positive capacity of each link; its unit is that of the rates.
    flows : sequence of int, optional
        How many flows use each route (at least one; by default one). All of a route have the same rate.

    Returns
    -------
    list of int or Fraction

    Examples
    --------
    >>> max_min([[0], [0, 1], [1]], {0: 10, 1: 4})
    [8, 2, 2]
    """
    count = [1] * len(routes) if flows is None else flows
    users: dict[int, list[int]] = {}
    open_flows: dict[int, int] = {}  # of each link, those whose rate is not set yet
    for i, route in enumerate(routes):
        for link in route:
            users.setdefault(link, []).append(i)
            open_flows[link] = open_flows.get(link, 0) + count[i]
    # What is left of each link is a whole number of 1 / scale, so that all is integer arithmetic.
    left = {link: capacity[link] for link in users}
    scale = 1
    rates: list[Rate] = [-1] * len(routes)
    heap = [(left[link] / n, link) for link, n in open_flows.items()]
    heapq.heapify(heap)
    while heap:
        link = _least(heap, left, open_flows, scale)
        if link < 0:
            break
        n = open_flows[link]
        factor = n // gcd(left[link], n)
        if factor > 1:
            scale *= factor
            for other in left:
                left[other] *= factor
        share = left[link] // n
        rate = quotient(share, scale)
        for i in users[link]:
            if rates[i] == -1:
                rates[i] = rate
                for other in routes[i]:
                    left[other] -= share * count[i]
                    open_flows[other] -= count[i]
    return rates


def _least(
    heap: list[tuple[float, int]], left: Mapping[int, int], open_flows: Mapping[int, int], scale: int
) -> int:
    """Take the link with the least share out of the heap; -1 when no link has an open flow.

    A link's share only grows while others fill up, so an old entry is a lower bound and is renewed when it
    comes to the top. Floating point only orders the heap: among entries that it cannot tell apart for sure,
    exact products decide.
    """
    near: list[tuple[float, int]] = []
    while heap and (not near or heap[0][0] <= near[0][0] * (1 + 1e-9)):
        share, link = heapq.heappop(heap)
        if open_flows[link]:
            now = left[link] / (open_flows[link] * scale)  # of any size: only the quotient is a float
            if now > share * (1 + 1e-12):
                heapq.heappush(heap, (now, link))
            else:
                near.append((now, link))
    if not near:
        return -1
    best = near[0][1]
    for _, link in near[1:]:
        if left[link] * open_flows[best] < left[best] * open_flows[link]:
            best = link
    for entry in near:
        if entry[1] != best:
            heapq.heappush(heap, entry)
    return best


def quotient(a: Rate, b: int) -> Rate:
    """Return ``a / b`` exactly (b is positive).

    Examples
    --------
    >>> quotient(6, 3), quotient(7, 2)
    (2, Fraction(7, 2))
    """
    if isinstance(a, int) and not a % b:
        return a // b
    exact = Fraction(a, b)
    return exact.numerator if exact.denominator == 1 else exact
