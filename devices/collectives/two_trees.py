"""Two binary trees at once, in pieces: the double binary tree of NCCL, and Sanders' broadcast.

::

    tree 1   0 ─ 8 ┬ 4 ┬ 2 ┬ 1           tree 2 is its mirror image (an even number of ranks) or is shifted
                   │   │   └ 3           by one rank (an odd one): who passes on in one tree is a leaf in
                   │   └ 6 ...           the other, so that nobody sends to more than two, nor receives from
                   └ 12 ┬ 10 ...         more than two

Each tree carries half of the bytes. Its edges have two colours, so that of what a rank sends, and of what it
receives, one is red and one is blue; they take turns, a piece at a time. So each rank sends one piece and
receives one in every round, and with many pieces a broadcast takes S/B, an all-reduce (up both trees, then
down) 2 S/B, with some 2 log2(n) rounds of latency to fill a tree. The rounds of a broadcast of p pieces for
each tree are ``2 (p - 1) + depth``, the depth counted in rounds.

Sources: NVIDIA/nccl 2.30, ``src/graph/trees.cc`` (``ncclGetBtree``, ``ncclGetDtree``); Sanders, Speck and
Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35(12), 2009
(colours, rounds; the root of a broadcast feeds the roots of two trees of all others).
"""

from __future__ import annotations

from functools import cache

__all__ = ["Edge", "double_tree", "rounds_of", "tree"]

Edge = tuple[int, int]
"""Parent and child."""


def tree(n: int) -> list[int]:
    """Return the parent of each rank in NCCL's binary tree, which alternates leaves and nodes; -1: the root.

    Examples
    --------
    >>> tree(8)
    [-1, 2, 4, 2, 0, 6, 4, 6]
    """
    parents = [-1]
    for rank in range(1, n):
        lowest = rank & -rank
        up = (rank ^ lowest) | (lowest << 1)
        parents.append(up if up < n else rank ^ lowest)
    return parents


def double_tree(n: int) -> tuple[list[int], list[int]]:
    """Return the parents of each rank in NCCL's two trees."""
    one = tree(n)
    if n % 2 == 0:
        return one, [-1 if one[n - 1 - r] < 0 else n - 1 - one[n - 1 - r] for r in range(n)]
    return one, [-1 if one[r - 1] < 0 else (one[r - 1] + 1) % n for r in range(n)]


@cache
def rounds_of(n: int, fed: bool) -> tuple[tuple[Edge, int], ...]:
    """Return the edges of both trees, and the round in which the first piece crosses each.

    The next piece follows two rounds later, and so on. Edges of one tree come after those of the other.

    Parameters
    ----------
    n : int
        How many ranks.
    fed : bool
        Whether rank 0 stands apart and feeds both roots of trees of all others.
    """
    both = double_tree(n - 1 if fed else n)
    if fed:
        both = tuple([-1, *(parent + 1 for parent in parents)] for parents in both)  # type: ignore[assignment]
    edges = [(t, parent, child) for t, parents in enumerate(both) for child, parent in enumerate(parents)]
    edges = [edge for edge in edges if edge[1] >= 0]
    colour = _colours(edges)
    first: dict[tuple[int, int], int] = {}  # tree and rank -> when it gets its first piece

    def arrives(t: int, rank: int) -> int:
        if (t, rank) not in first:
            parent = both[t][rank]
            if parent < 0:
                return -1
            there = arrives(t, parent) + 1
            first[t, rank] = there + (there + colour[t, parent, rank]) % 2
        return first[t, rank]

    return tuple(((parent, child), arrives(t, child)) for t, parent, child in edges)


def _colours(edges: list[tuple[int, int, int]]) -> dict[tuple[int, int, int], int]:
    """Return 0 or 1 of each edge, different ones for all that a rank sends and for all that it receives.

    Nobody has more than two of a sort, so that edges that must differ form paths and even circles.
    """
    at: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for edge in edges:
        at.setdefault(("from", edge[1]), []).append(edge)
        at.setdefault(("to", edge[2]), []).append(edge)
    colour: dict[tuple[int, int, int], int] = {}
    for start in edges:
        todo = [(start, 0)] if start not in colour else []
        while todo:
            edge, mine = todo.pop()
            if edge in colour:
                continue
            colour[edge] = mine
            others = [*at["from", edge[1]], *at["to", edge[2]]]
            todo += [(other, 1 - mine) for other in others if other not in colour]
    return colour
