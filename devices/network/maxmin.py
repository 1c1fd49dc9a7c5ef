"""Max-min fair rates, exactly: what each flow gets when links are shared fairly.

*Progressive filling*: raise the rates of all flows together; where a link is full, its flows stop there and
the others go on (Bertsekas and Gallager, *Data Networks*, 2nd edition 1992, section 6.5.2). The result is
the only allocation in which nobody can get more without somebody who has less, or as little, getting less::

    link a, 10 B/ns:  flow 0, flow 1        b is full first: 4 / 2 = 2 for flows 1 and 2
    link b,  4 B/ns:  flow 1, flow 2        then a: 10 - 2 = 8 for flow 0

Rates are whole numbers or fractions; no floating point, so nothing depends on the order of operations.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from fractions import Fraction

__all__ = ["Rate", "max_min"]

Rate = int | Fraction
"""An exact number; an int wherever it is whole, because that is several times faster."""


def max_min(routes: Sequence[Sequence[int]], capacity: Mapping[int, int]) -> list[Rate]:
    """Return the max-min fair rate of each flow.

    Parameters
    ----------
    routes : sequence of sequence of int
        For each flow, the links that it uses: at least one, each once.
    capacity : mapping of int to int
        Positive capacity of each link; its unit is that of the rates.

    Returns
    -------
    list of int or Fraction

    Examples
    --------
    >>> max_min([[0], [0, 1], [1]], {0: 10, 1: 4})
    [8, 2, 2]
    """
    users: dict[int, list[int]] = {}
    for flow, route in enumerate(routes):
        for link in route:
            users.setdefault(link, []).append(flow)
    left: dict[int, Rate] = {link: capacity[link] for link in users}
    open_flows = {link: len(flows) for link, flows in users.items()}
    rates: list[Rate | None] = [None] * len(routes)
    # The share of a link only grows while others fill up, so an old entry of the heap is a lower bound:
    # one that is still true when it comes to the top is the least.
    heap = [(quotient(left[link], count), link) for link, count in open_flows.items()]
    heapq.heapify(heap)
    while heap:
        share, link = heapq.heappop(heap)
        if not open_flows[link]:
            continue
        now = quotient(left[link], open_flows[link])
        if now != share:
            heapq.heappush(heap, (now, link))
            continue
        for flow in users[link]:
            if rates[flow] is None:
                rates[flow] = share
                for other in routes[flow]:
                    left[other] -= share
                    open_flows[other] -= 1
    return [rate for rate in rates if rate is not None]


def quotient(a: Rate, b: int) -> Rate:
    """Return ``a / b`` exactly.

    Examples
    --------
    >>> quotient(6, 3), quotient(7, 2)
    (2, Fraction(7, 2))
    """
    exact = Fraction(a, b)
    return exact.numerator if exact.denominator == 1 else exact
