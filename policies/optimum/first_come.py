"""The order of transfers over a serial link, as constraints: the one that is sent first goes first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from policies.cp_sat.activities import Activities

__all__ = ["Move", "Moved", "Order", "first_come", "never_wait_on_purpose"]

Moved = tuple[int, int]
"""A transfer: its iteration, and its number in the flow."""


class Move(NamedTuple):
    """A transfer in a model.

    Attributes
    ----------
    begin
        When it begins.
    ns : int
        How long it takes.
    sent : mapping of (int, int) to time
        The ends of the ops (op, iteration) that make what is moved; empty if it is there from the start.
    """

    begin: Any
    ns: int
    sent: Mapping[tuple[int, int], Any]


class Order(NamedTuple):
    """Who goes first of two transfers; `chosen` says that `one` does, None: it does in any case.

    `one_behind` and `other_behind` imply that a transfer begins no later than the other one ends.
    """

    one: Moved
    other: Moved
    chosen: Any
    one_behind: Any
    other_behind: Any


def first_come(
    times: Activities, moves: Mapping[Moved, Move], pairs: Iterable[tuple[Moved, Moved]]
) -> list[Order]:
    """Let of each two transfers the one that is sent first go first; of one op the first read."""
    orders = []
    for one, other in pairs:
        if moves[one].sent and moves[one].sent.keys() == moves[other].sent.keys():
            orders.append(Order(one, other, None, None, _behind(times, moves, one, other, None)))
            continue
        first, second = times.choice([f"{one} first", f"{other} first"])
        other_behind = _behind(times, moves, one, other, first)
        orders.append(Order(one, other, first, _behind(times, moves, other, one, second), other_behind))
    return orders


def _behind(times: Activities, moves: Mapping[Moved, Move], first: Moved, then: Moved, chosen: Any) -> Any:
    """Let one transfer follow another, if that is `chosen`; return what implies that it follows at once."""
    end = moves[first].begin + moves[first].ns
    times.after(moves[then].begin, end, chosen)
    for (a, a_end), (b, b_end) in itertools.product(moves[first].sent.items(), moves[then].sent.items()):
        if a != b:
            times.after(b_end, a_end, chosen)
    at_once = times.literal(f"{then} behind {first}")
    times.after(end, moves[then].begin, at_once)
    if chosen is not None:
        times.implies(at_once, chosen)
    return at_once


def never_wait_on_purpose(times: Activities, moves: Mapping[Moved, Move], orders: Iterable[Order]) -> None:
    """Let each transfer begin when it is sent, or when another one over one of its links ends."""
    behind: dict[Moved, list[Any]] = {moved: [] for moved in moves}
    for order in orders:
        behind[order.other].append(order.other_behind)
        if order.one_behind is not None:
            behind[order.one].append(order.one_behind)
    for moved, others in behind.items():
        at_once = times.literal(f"{moved} at once")
        for sent in moves[moved].sent.values() or [0]:
            times.after(sent, moves[moved].begin, at_once)
        times.some([at_once, *others])
