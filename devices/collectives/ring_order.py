"""The order in which a ring goes through its ranks, so that its hops are short and share no link.

::

    0 ─ 1 ─ 2       torus or grid: from neighbour to neighbour, the other columns row by row,
    │       │       there and back, and home along the first one
    3   4 ─ 5
    │   │           nodes on rails: every second node in reverse, so that a ring leaves a node where
    6   7 ─ 8       the next one is entered, from GPU 7 to GPU 7, from GPU 0 to GPU 0
    │       │
    9 ─ 10─ 11      anything else: in the order of ranks

A grid has such a cycle where one of its dimensions is even, or else one wraps around. In a grid of odd
dimensions without wraps the places have two colours, as on a chessboard, and one of them is on more places:
there one hop takes two links. On rails all hops between nodes would go from the last GPU to the first
otherwise, and share the links between their rails. NCCL has each ring keep to a network card, too
(NCCL_CROSS_NIC in its documentation).

Cycles of two-dimensional grids: Itai, Papadimitriou and Szwarcfiter, "Hamilton paths in grid graphs", SIAM
Journal on Computing 11(4), 1982. More dimensions are two: one of them, and a path through the others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from devices.collectives.nodes import by_node
from sim.machine.communicators import Call
from sim.machine.machine import Machine
from sim.words.arrays import IntArray

__all__ = ["ring_order"]

_IN_ANY_ORDER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
"""What a ring does whatever the order of its ranks is: all of them do the same."""


class _Side(NamedTuple):
    """A dimension of a grid: how many ranks, how far apart in their order; is last linked to first."""

    size: int
    stride: int
    wraps: bool


def ring_order(call: Call, machine: Machine) -> IntArray:
    """Return the positions of ranks, one behind another, with the root in its own place.

    Parameters
    ----------
    call : Call
    machine : Machine

    Examples
    --------
    >>> from devices.machine import make_machine
    >>> described = {"devices": {"tpu": {"kind": "npu", "count": 6}}}
    >>> grid = make_machine({**described, "topology": {"kind": "torus", "shape": [2, 3], "wrap": False}})
    >>> ring_order(Call("all_reduce", 6, tuple(range(6))), grid).tolist()
    [0, 1, 2, 5, 4, 3]
    """
    order = _by_rails(call, machine) if call.kind in _IN_ANY_ORDER else list(range(len(call.ranks)))
    sides = _sides(call.ranks, machine)
    if len(sides) > 1:
        order = min(order, _around(sides), key=lambda each: _hops(each, call.ranks, machine))
    root = call.ranks.index(call.root) if call.root in call.ranks else 0
    return np.roll(order, root - order.index(root))


def _by_rails(call: Call, machine: Machine) -> list[int]:
    nodes = by_node(call, machine)
    turned = 1 < len(nodes) < len(call.ranks)
    return [position for k, here in enumerate(nodes) for position in here[:: -1 if turned and k % 2 else 1]]


def _sides(ranks: tuple[int, ...], machine: Machine) -> list[_Side]:
    """Return the dimensions of the grid that links make of ranks, the last one counting fastest; or none."""

    def linked(a: int, b: int) -> bool:
        return len(machine.route(ranks[a], ranks[b])) == 1

    sides: list[_Side] = []
    stride = 1
    while stride < len(ranks):
        size = 1
        while size * stride < len(ranks) and linked((size - 1) * stride, size * stride):
            size += 1
        if size == 1:
            return []
        sides.insert(0, _Side(size, stride, linked((size - 1) * stride, 0)))
        stride *= size
    return sides if stride == len(ranks) else []


def _around(sides: list[_Side]) -> list[int]:
    """Return the positions in a grid of two dimensions or more, all but one hop at most to a neighbour."""
    even = [side for side in sides if side.size % 2 == 0]
    wrapping = [side for side in sides if side.wraps]
    one = (*even, *wrapping, sides[-1])[0]
    rows, columns = [one], [side for side in sides if side is not one]
    if not even:  # so many rows end on the far side, from which a wrap leads home
        rows, columns = columns, rows
    down, (_, *across) = _snake(rows), _snake(columns)
    zigzag = down[-2:] if not even and not wrapping else []  # there a wrap is missing
    order = [0]
    for k, row in enumerate(down[: len(down) - len(zigzag)]):
        order += [row + column for column in across[:: -1 if k % 2 else 1]]
    for k, column in enumerate(reversed(across)):
        order += [row + column for row in zigzag[:: -1 if k % 2 else 1]]
    return order + down[:0:-1]


def _snake(sides: list[_Side]) -> list[int]:
    """Return the positions along a path from neighbour to neighbour."""
    path = [0]
    for size, stride, _ in reversed(sides):
        path = [k * stride + place for k in range(size) for place in path[:: -1 if k % 2 else 1]]
    return path


def _hops(order: list[int], ranks: tuple[int, ...], machine: Machine) -> int:
    """Return over how many links a ring goes."""
    return sum(
        len(machine.route(ranks[a], ranks[b])) for a, b in zip(order, [*order[1:], order[0]], strict=True)
    )
