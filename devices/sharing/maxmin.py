"""Max-min fair rates, exactly: what each flow gets when links are shared fairly.

*Progressive filling*: raise the rates of all flows together; where a link is full, its flows stop there and
the others go on (Bertsekas and Gallager, *Data Networks*, 2nd edition 1992, section 6.5.2). The result is
the only allocation in which nobody can get more without somebody who has less, or as little, getting less::

    link a, 10 B/ns:  flow 0, flow 1        b is full first: 4 / 2 = 2 for flows 1 and 2
    link b,  4 B/ns:  flow 1, flow 2        then a: 10 - 2 = 8 for flow 0

Rates are exact, whole numbers or fractions, so that nothing depends on the order of operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

__all__ = ["Link", "Route", "fill"]


class Link:
    """A capacity, and the routes with flows that use it.

    Attributes
    ----------
    capacity : int
    routes : dict of int to Route
        By any number that tells them apart.
    flows : int
        How many flows these routes have.
    """

    __slots__ = ("capacity", "flows", "left", "open_flows", "routes", "seen")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.routes: dict[int, Route] = {}
        self.flows = 0
        self.left = self.open_flows = 0  # not given away yet; flows whose rate is not set yet
        self.seen = 0


class Route:
    """The links that some flows use.

    Attributes
    ----------
    links : tuple of Link
    flows : int
        How many flows use it; all of them have the same rate.
    share : tuple of int
        The rate of each that `fill` has found: a reduced fraction.
    """

    __slots__ = ("flows", "links", "seen", "share")

    def __init__(self, links: tuple[Link, ...], flows: int = 0) -> None:
        self.links, self.flows = links, flows
        self.share = (0, 1)
        self.seen = 0


def fill(links: Sequence[Link], stamp: int) -> None:
    """Set the share of every route that uses one of `links`.

    Parameters
    ----------
    links : sequence of Link
        With at least one flow each; those of all their routes must be among them.
    stamp : int
        A number that no call with these routes was given before.
    """
    # What is left of each link is a whole number of 1 / scale, so that all is integer arithmetic.
    scale = 1
    for link in links:
        link.left, link.open_flows = link.capacity, link.flows
    while (first := _least(links)) is not None:
        n = first.open_flows
        factor = n // gcd(first.left, n)
        if factor > 1:
            scale *= factor
            for link in links:
                link.left *= factor
        share = first.left // n
        common = gcd(share, scale)
        reduced = (share // common, scale // common)
        for route in first.routes.values():
            if route.seen != stamp:
                route.seen = stamp
                route.share = reduced
                taken = share * route.flows
                for link in route.links:
                    link.left -= taken
                    link.open_flows -= route.flows


def _least(links: Sequence[Link]) -> Link | None:
    """Return the link that leaves least to each flow whose rate is not set yet, exactly."""
    best: Link | None = None
    for link in links:
        if link.open_flows and (best is None or link.left * best.open_flows < best.left * link.open_flows):
            best = link
    return best
