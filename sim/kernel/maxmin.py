# cython: language_level=3, annotation_typing=False, infer_types=True, initializedcheck=False
# cython: boundscheck=False, wraparound=False, cdivision=True
"""Max-min fair rates, updated incrementally: only what a change can reach is solved again.

An allocation is max-min fair if and only if every route has a *bottleneck* among its links: a full link on
which no other route has a higher rate (Bertsekas and Gallager, *Data Networks*, 2nd edition 1992, section
6.5.2). A bottleneck can be checked locally, so rates elsewhere are presumed to hold until something changes::

    changed routes ──► open: they have no rate, their links have slack
    a level rises from 0; at each level, the first link that needs attention:
        it is full for its open routes    routes with higher rates there are opened as well; if there are
                                          none, its open routes get this level, and it is their bottleneck
        its own presumed routes get       it is not full any more: they are opened, they may get more
        this level, and it has slack

The level only rises, each route is opened at most once and gets its rate once, and a link that neither fills
nor comes free propagates nothing. The result is that of progressive filling from scratch, and exact: rates
and slack are fractions of two int64, compared by products of 128 bits. If one does not fit, its denominator
is 0 and it is a pair of Python integers in a list beside the columns: only operations on it are slow.

This is plain Python on int64 columns; `maxmin.pxd` gives Cython the types.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import TypeAlias

import numpy as np

from sim.base.arrays import IntArray

LIMIT = 1 << 62
"""Upper limit, exclusive, of numerators and denominators."""

SHORT = 1 << 20
"""Denominators of slack below this are not reduced."""

IDLE, PRESUMED, OPEN = 0, 1, 2


COMPILED = not __file__.endswith(".py")


Column: TypeAlias = MutableSequence[int]


def column(values: Sequence[int] | IntArray) -> Column:
    """Return a column: 64 bits per entry if compiled, else a list, which Python reads faster."""
    entries = np.array(values, np.int64)
    return entries if COMPILED else entries.tolist()  # type: ignore[return-value]


def zeros(n: int) -> Column:
    """Return a column of n zeros; memory that is never written costs nothing if compiled."""
    return np.zeros(n, np.int64) if COMPILED else [0] * n  # type: ignore[return-value]


def gcd(a: int, b: int) -> int:
    """Return the greatest common divisor of two non-negative numbers."""
    while b:
        a, b = b, a % b
    return a


Pair: TypeAlias = tuple[int, int]
"""A fraction of two numbers of any length."""

NONE: Pair = (0, 0)


def whole(n: int, d: int, long: Pair) -> Pair:
    """Return a fraction of a column as Python integers."""
    return (n, d) if d else long


def part(n: int, d: int) -> tuple[int, int, Pair]:
    """Return a reduced fraction in the form of columns; if it is too long, only its sign."""
    common = math.gcd(n, d)
    n, d = n // common, d // common
    if -LIMIT < n < LIMIT and d < LIMIT:
        return n, d, NONE
    return (1 if n > 0 else -1), 0, (n, d)


def is_above(one: Pair, other: Pair) -> bool:
    """Whether a fraction is greater than another."""
    return one[0] * other[1] > other[0] * one[1]


class MaxMin:
    """Links, routes over them with a number of flows each, and the max-min fair rate per flow of each route.

    Parameters
    ----------
    capacity : sequence of int
        Capacity of each link, at least 1, in the unit of the rates.
    first : sequence of int
        Route r uses the links ``links[first[r]:first[r + 1]]``, at least one, each once.
    links : sequence of int

    Attributes
    ----------
    flows : column of int64
        Number of flows of each route.
    rate_n, rate_d : columns of int64
        The rate of each, a reduced fraction; meaningless for a route without flows. If `rate_d` is 0,
        it is the pair in the list `rate_long`.
    changed : column of int64
        The routes with flows whose rates the last `solve` may have changed (the first `n_changed` entries):
        those whose number of flows changed, and those that it reached.
    bottleneck : column of int64
        The bottleneck of each route with flows.

    Examples
    --------
    Flows of route 1 use both links, the others one:

    >>> rates = MaxMin([10, 4], [0, 1, 3, 4], [0, 0, 1, 1])
    >>> for route in range(3):
    ...     rates.count(route, 1)
    >>> rates.solve()
    >>> [rates.rate_n[r] / rates.rate_d[r] for r in range(3)]
    [8.0, 2.0, 2.0]
    >>> rates.count(2, -1)
    >>> rates.solve()
    >>> [rates.rate_n[r] / rates.rate_d[r] for r in range(2)]
    [6.0, 4.0]
    """

    def __init__(self, capacity: Sequence[int], first: Sequence[int], links: Sequence[int]) -> None:
        n_links, n_routes, n_hops = len(capacity), len(first) - 1, len(links)
        # Links. Slack is the capacity that no route with a rate uses; open flows have no rate yet.
        self.slack_n, self.slack_d = column(capacity), column([1] * n_links)
        self.open_flows, self.held, self.head = zeros(n_links), zeros(n_links), column([-1] * n_links)
        self.level_n, self.level_d = zeros(n_links), column([1] * n_links)
        self.slack_long, self.level_long, self.key_long = [NONE] * n_links, [NONE] * n_links, [NONE] * n_links
        # Routes, and hops: the entries of `links`, each in the list of the active routes of its link.
        self.first, self.links = column(first), column(links)
        self.route_of = column([r for r in range(n_routes) for _ in range(first[r], first[r + 1])])
        self.after, self.before = zeros(n_hops), zeros(n_hops)
        self.flows, self.counted, self.state = zeros(n_routes), zeros(n_routes), zeros(n_routes)
        self.rate_n, self.rate_d = zeros(n_routes), column([1] * n_routes)
        self.rate_long = [NONE] * n_routes
        self.bottleneck = column([-1] * n_routes)
        self.is_marked, self.marked, self.changed = zeros(n_routes), zeros(n_routes), zeros(n_routes)
        self.n_marked = self.n_changed = 0
        # A heap of links by the level at which they need attention.
        self.heap, self.place, self.size = zeros(n_links), column([-1] * n_links), 0
        self.touched, self.is_touched, self.n_touched = zeros(n_links), zeros(n_links), 0
        self.key_n, self.key_d, self.fills = zeros(n_links), zeros(n_links), zeros(n_links)

    def count(self, route: int, more: int) -> None:
        """Record that a route has `more` additional flows (or fewer) from the next `solve` on."""
        self.flows[route] += more
        if not self.is_marked[route]:
            self.is_marked[route] = 1
            self.marked[self.n_marked] = route
            self.n_marked += 1

    def solve(self) -> None:
        """Update the rates of the routes that the changes reach."""
        self.n_changed = 0
        for i in range(self.n_marked):
            route = self.marked[i]
            if self.flows[route] != self.counted[route]:
                self._open(route)
        while self._update_heap():
            link = self.heap[0]
            if self.fills[link]:
                if not self._open_higher(link):
                    self._fill(link)
            else:
                self._open_held(link)
        for i in range(self.n_marked):
            route = self.marked[i]
            if self.is_marked[route]:  # as many flows came as went
                self._note(route)
        self.n_marked = 0

    def _update_heap(self) -> int:
        """Update the heap for the links that were touched; return its size."""
        for i in range(self.n_touched):
            link = self.touched[i]
            self.is_touched[link] = 0
            self._ask(link)
        self.n_touched = 0
        return self.size

    def _touch(self, link: int) -> None:
        """Record that a link may need attention at another level, or not any more."""
        if not self.is_touched[link]:
            self.is_touched[link] = 1
            self.touched[self.n_touched] = link
            self.n_touched += 1

    def _note(self, route: int) -> None:
        """Record that a route may have another rate."""
        self.is_marked[route] = 0
        if self.flows[route]:
            self.changed[self.n_changed] = route
            self.n_changed += 1

    def _open(self, route: int) -> None:
        """Remove a route's rate, if any; if it has flows, mark its links as in need of a new one."""
        begin, end = self.first[route], self.first[route + 1]
        flows, counted = self.flows[route], self.counted[route]
        if self.state[route] == IDLE and flows:
            for hop in range(begin, end):
                link = self.links[hop]
                head = self.head[link]
                self.after[hop], self.before[hop] = head, -1
                if head >= 0:
                    self.before[head] = hop
                self.head[link] = hop
        elif self.state[route] == PRESUMED and not flows:
            for hop in range(begin, end):
                link = self.links[hop]
                after, before = self.after[hop], self.before[hop]
                if after >= 0:
                    self.before[after] = before
                if before >= 0:
                    self.after[before] = after
                else:
                    self.head[link] = after
        if self.state[route] == PRESUMED:
            self.held[self.bottleneck[route]] -= 1
        self.state[route] = OPEN if flows else IDLE
        for hop in range(begin, end):
            link = self.links[hop]
            if counted:
                self._add_slack(link, counted, route)
            self.open_flows[link] += flows
            self._touch(link)
        self.counted[route] = 0
        self._note(route)

    def _add_slack(self, link: int, flows: int, route: int) -> None:
        """Add `flows`, which may be negative, times the rate of a route to the slack of a link.

        A short denominator is left unreduced: reducing it costs more than it saves.
        """
        n, d = self.rate_n[route], self.rate_d[route]
        had = self.slack_d[link]
        if not d or not had:
            self._add_slack_long(link, flows, route)
            return
        top = flows
        top *= n
        if top >= LIMIT or top <= -LIMIT:
            self._add_slack_long(link, flows, route)
            return
        common = 1
        if had % d == 0:
            common = d
        elif had >= SHORT or d >= SHORT:
            common = gcd(had, d)
        bottom = had
        if common > 1:
            had //= common
            d //= common
        top *= had
        more = self.slack_n[link]
        more *= d
        top += more
        bottom *= d
        if SHORT <= bottom < LIMIT:
            remainder = top % bottom
            common = gcd(bottom, remainder)
            top //= common
            bottom //= common
        if top >= LIMIT or top <= -LIMIT or bottom >= LIMIT:
            self._add_slack_long(link, flows, route)
            return
        self.slack_n[link] = top
        self.slack_d[link] = bottom

    def _add_slack_long(self, link: int, flows: int, route: int) -> None:
        """Do the same with Python integers."""
        top, bottom = whole(self.slack_n[link], self.slack_d[link], self.slack_long[link])
        n, d = whole(self.rate_n[route], self.rate_d[route], self.rate_long[route])
        split = part(top * d + n * flows * bottom, bottom * d)
        self.slack_n[link], self.slack_d[link], self.slack_long[link] = split

    def _ask(self, link: int) -> None:
        """Put a link into the heap at the level at which it needs attention, if there is one."""
        held, flows = self.held[link], self.open_flows[link]
        asks = fills = flows > 0
        if fills:
            n, d = self.slack_n[link], self.slack_d[link]
            wide = d
            wide *= flows
            if wide >= LIMIT:
                common = gcd(flows, n)
                n //= common
                wide //= common
            self.key_n[link], self.key_d[link] = n, wide if wide < LIMIT else 0
            if not self.key_d[link]:
                self._key_long(link, flows)
            if held and not self._is_above_level(link):
                held = 0
        if held and (fills or self.slack_n[link]):
            asks, fills = True, False
            self.key_n[link], self.key_d[link] = self.level_n[link], self.level_d[link]
            if not self.key_d[link]:
                self.key_long[link] = self.level_long[link]
        place = self.place[link]
        if asks:
            self.fills[link] = fills
            if place < 0:
                place = self.size
                self.size += 1
            self._sift(link, place)
        elif place >= 0:
            self.place[link] = -1
            self.size -= 1
            last = self.heap[self.size]
            if last != link:
                self._sift(last, place)

    def _key_long(self, link: int, flows: int) -> None:
        """Divide the slack of a link by its number of open flows, with Python integers."""
        top, bottom = whole(self.slack_n[link], self.slack_d[link], self.slack_long[link])
        self.key_n[link], self.key_d[link], self.key_long[link] = part(top, bottom * flows)

    def _is_above_level(self, link: int) -> bool:
        """Whether a link needs attention at a higher level than that of the routes that it holds."""
        if self.key_d[link] and self.level_d[link]:
            return not not_above(self.key_n[link], self.key_d[link], self.level_n[link], self.level_d[link])
        key = whole(self.key_n[link], self.key_d[link], self.key_long[link])
        return is_above(key, whole(self.level_n[link], self.level_d[link], self.level_long[link]))

    def _has_more(self, route: int, link: int) -> bool:
        """Whether the rate of a route is higher than the level at which a link needs attention."""
        if self.rate_d[route] and self.key_d[link]:
            return not not_above(self.rate_n[route], self.rate_d[route], self.key_n[link], self.key_d[link])
        rate = whole(self.rate_n[route], self.rate_d[route], self.rate_long[route])
        return is_above(rate, whole(self.key_n[link], self.key_d[link], self.key_long[link]))

    def _asks_above(self, link: int, other: int) -> bool:
        """Whether a link needs attention at a higher level than another."""
        if self.key_d[link] and self.key_d[other]:
            return not not_above(self.key_n[link], self.key_d[link], self.key_n[other], self.key_d[other])
        key = whole(self.key_n[link], self.key_d[link], self.key_long[link])
        return is_above(key, whole(self.key_n[other], self.key_d[other], self.key_long[other]))

    def _open_higher(self, link: int) -> int:
        """Open the routes whose rate exceeds the level at which a link is full; return their number."""
        opened = 0
        hop = self.head[link]
        while hop >= 0:
            route = self.route_of[hop]
            hop = self.after[hop]
            if self.state[route] == PRESUMED and self._has_more(route, link):
                self._open(route)
                opened += 1
        return opened

    def _open_held(self, link: int) -> None:
        """Open the routes whose bottleneck was a link that has slack now."""
        hop = self.head[link]
        while hop >= 0:
            route = self.route_of[hop]
            hop = self.after[hop]
            if self.state[route] == PRESUMED and self.bottleneck[route] == link:
                self._open(route)

    def _fill(self, link: int) -> None:
        """Give the open routes of a full link its level as their rate."""
        n, d = self.key_n[link], self.key_d[link]
        if d:
            common = gcd(d, n)
            n //= common
            d //= common
        else:
            self.level_long[link] = self.key_long[link]
        self.level_n[link], self.level_d[link] = n, d
        hop = self.head[link]
        while hop >= 0:
            route = self.route_of[hop]
            hop = self.after[hop]
            if self.state[route] != OPEN:
                continue
            flows = self.flows[route]
            self.state[route] = PRESUMED
            self.rate_n[route], self.rate_d[route], self.counted[route] = n, d, flows
            if not d:
                self.rate_long[route] = self.level_long[link]
            self.bottleneck[route] = link
            self.held[link] += 1
            for other in range(self.first[route], self.first[route + 1]):
                used = self.links[other]
                self.open_flows[used] -= flows
                if used != link:
                    self._add_slack(used, -flows, route)
                self._touch(used)
        self.slack_n[link], self.slack_d[link] = 0, 1

    def _sift(self, link: int, place: int) -> None:
        """Move a link to its place in the heap, starting from a vacant place."""
        while place > 0:
            up = (place - 1) >> 1
            other = self.heap[up]
            if not self._asks_above(other, link):
                break
            self.heap[place] = other
            self.place[other] = place
            place = up
        while True:
            kid = 2 * place + 1
            if kid >= self.size:
                break
            other = self.heap[kid]
            if kid + 1 < self.size:
                second = self.heap[kid + 1]
                if self._asks_above(other, second):
                    kid += 1
                    other = second
            if not self._asks_above(link, other):
                break
            self.heap[place] = other
            self.place[other] = place
            place = kid
        self.heap[place] = link
        self.place[link] = place


def not_above(n: int, d: int, other_n: int, other_d: int) -> bool:
    """Return whether n / d is at most the other fraction."""
    left = n
    left *= other_d
    right = other_n
    right *= d
    return left <= right
