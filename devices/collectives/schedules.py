"""Algorithms of collectives, as the messages of each of their steps.

::

    ring, 4 ranks, all_reduce      step 1: 0→1 1→2 2→3 3→0, a quarter each; 6 such steps
    tree (binomial), broadcast     0→1 │ 0→2 1→3 │ 0→4 1→5 2→6 3→7, all of it each
    halving-doubling, all_reduce   0↔2 1↔3, half │ 0↔1 2↔3, a quarter │ 0↔1 2↔3, a quarter │ 0↔2 1↔3, half
    direct, all_gather             everybody to everybody, a quarter each, in one step
    hierarchical, groups of 2      rings in the groups, rings across them, rings in the groups
    double-tree, 4 pieces          two binary trees at once, piece after piece (`two_trees`)

A message goes when both its ends are through with all that they send and receive in earlier steps. Ranks are
counted along the communicator; `share` is the part of the call's bytes that each message of a step carries.

Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", Int.
J. High Performance Computing Applications 19(1), 2005 (binomial tree, recursive halving and doubling, ring,
what to do where the number of ranks is no power of two); Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", JPDC 69(2), 2009 (ring); Cho et al., "BlueConnect", MLSys 2019
(hierarchical).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import IntArray

# ----------------------------------------------------------------------------------------------------------
# Two binary trees at once, in pieces: the double binary tree of NCCL, and Sanders' broadcast.
#
#     tree 1   0 ─ 8 ┬ 4 ┬ 2 ┬ 1           tree 2 is its mirror image (an even number of ranks) or is shifted
#                    │   │   └ 3           by one rank (an odd one): who passes on in one tree is a leaf in
#                    │   └ 6 ...           the other, so that nobody sends to more than two, nor receives from
#                    └ 12 ┬ 10 ...         more than two
#
# Each tree carries half of the bytes. Its edges have two colours, so that of what a rank sends, and of what
# it receives, one is red and one is blue; they take turns, a piece at a time. So each rank sends one piece
# and receives one in every round, and with many pieces a broadcast takes S/B, an all-reduce (up both trees,
# then down) 2 S/B, with some 2 log2(n) rounds of latency to fill a tree. The rounds of a broadcast of p
# pieces for each tree are ``2 (p - 1) + depth``, the depth counted in rounds.
#
# Sources: NVIDIA/nccl 2.30, ``src/graph/trees.cc`` (``ncclGetBtree``, ``ncclGetDtree``); Sanders, Speck and
# Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35(12),
# 2009 (colours, rounds; the root of a broadcast feeds the roots of two trees of all others).

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


# ----------------------------------------------------------------------------------------------------------

ALGORITHMS: Final = ("ring", "tree", "halving-doubling", "direct", "hierarchical", "double-tree")


RING_ROUNDS: Final[Mapping[str, int]] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""How often a ring of n passes on n - 1 messages of 1/n."""


class CollectiveStep(NamedTuple):
    """Messages that are sent at once.

    Attributes
    ----------
    source, destination : arrays of int64
        Positions of ranks.
    share : Fraction, or tuple of Fraction
        Part of the call's bytes in each message, or in each one by itself.
    times : int
        How often the step is repeated.
    """

    source: IntArray
    destination: IntArray
    share: Fraction | tuple[Fraction, ...]
    times: int = 1

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """The part of the call's bytes in each message."""
        return self.share if isinstance(self.share, tuple) else (self.share,) * len(self.source)

    @property
    def reversed(self) -> CollectiveStep:
        """The same messages the other way round."""
        return self._replace(source=self.destination, destination=self.source)


Steps = list[CollectiveStep]


def steps_of(
    algorithm: str, kind: str, ranks: int, root: int = 0, group: int = 0, pieces: int = 1
) -> Steps | None:
    """Return the steps of a collective, None where the algorithm has no form for it.

    Parameters
    ----------
    algorithm : str
        One of `ALGORITHMS`.
    kind : str
        Kind of op; a ``barrier`` is an ``all_reduce`` of nothing.
    ranks, root : int
        How many there are, and the position of the root.
    group : int
        Of ``hierarchical``: how many neighbouring ranks form a group.
    pieces : int
        Of ``double-tree``: into how many pieces each tree cuts its half.

    Examples
    --------
    >>> for step in steps_of("tree", "broadcast", 4):
    ...     print(step.source.tolist(), step.destination.tolist(), step.share)
    [0] [1] 1
    [0, 1] [2, 3] 1
    >>> [(str(step.share), step.times) for step in steps_of("ring", "all_reduce", 4)]
    [('1/4', 6)]
    """
    if ranks == 1:
        return []
    kind = "all_reduce" if kind == "barrier" else "all_to_all" if kind == "alltoall" else kind
    if kind in ("send", "recv"):
        return [CollectiveStep(np.array([0]), np.array([1]), Fraction(1))]
    if algorithm == "hierarchical":
        return _hierarchical(kind, ranks, group)
    if algorithm == "double-tree":
        return _double_tree(kind, ranks, root, pieces)
    return _FORMS[algorithm](kind, ranks, root)


def uneven(sends: Sequence[Sequence[int]], nbytes: int) -> Steps:
    """Return the step of an all_to_all whose messages differ; those of nothing are not sent.

    Parameters
    ----------
    sends : sequence of sequence of int
        Bytes from each rank to each.
    nbytes : int
        Of the call.

    Examples
    --------
    >>> [step] = uneven([[0, 30], [0, 5]], 60)
    >>> step.source.tolist(), step.destination.tolist(), str(step.share[0])
    ([0], [1], '1/2')
    """
    ends = [(a, b) for a, row in enumerate(sends) for b, size in enumerate(row) if size and a != b]
    if not ends:
        return []
    source, destination = np.array(ends).T
    return [CollectiveStep(source, destination, tuple(Fraction(sends[a][b], nbytes) for a, b in ends))]


def _ring(kind: str, n: int, root: int) -> Steps | None:
    if kind in RING_ROUNDS:
        return [_round(np.arange(n), n, 1, Fraction(1, n), RING_ROUNDS[kind] * (n - 1))]
    if kind not in ("broadcast", "reduce"):
        return None
    steps = []  # a chain from the root, in n pieces one behind the other
    for t in range(2 * (n - 1)):
        hop = np.arange(max(0, t - n + 1), min(t, n - 2) + 1)
        steps.append(CollectiveStep((root + hop) % n, (root + hop + 1) % n, Fraction(1, n)))
    return steps if kind == "broadcast" else [step.reversed for step in reversed(steps)]


def _round(first: IntArray, n: int, stride: int, share: Fraction, times: int) -> CollectiveStep:
    """Return a round of rings of n ranks, `stride` apart; `first` has all ranks."""
    place = first // stride % n
    return CollectiveStep(first, first + np.where(place == n - 1, 1 - n, 1) * stride, share, times)


def _tree(kind: str, n: int, root: int) -> Steps | None:
    if kind not in ("all_reduce", "broadcast", "reduce"):
        return None
    down = []
    for k in range((n - 1).bit_length()):
        here = np.arange(min(1 << k, n - (1 << k)))
        down.append(CollectiveStep((root + here) % n, (root + here + (1 << k)) % n, Fraction(1)))
    up = [step.reversed for step in reversed(down)]
    return {"broadcast": down, "reduce": up, "all_reduce": up + down}[kind]


def _halving_doubling(kind: str, n: int, root: int) -> Steps | None:
    power = 1 << (n.bit_length() - 1)
    extra = n - power
    if kind not in _OF_PAIRS or (extra and kind != "all_reduce"):
        return None
    # The ranks that take part: of the first 2 * extra only every second one, which has what the other had.
    part = np.concatenate((np.arange(1, 2 * extra, 2), np.arange(2 * extra, n)))
    halves = [power >> (k + 1) for k in range(power.bit_length() - 1)]
    place = np.arange(power)
    halving = [CollectiveStep(part, part[place ^ half], Fraction(half, power)) for half in halves]
    doubling = halving[::-1]
    if kind in ("broadcast", "reduce"):
        scatter = []
        for half in halves:
            here = np.arange(0, power, 2 * half)
            scatter.append(CollectiveStep((root + here) % n, (root + here + half) % n, Fraction(half, power)))
        turned = [step._replace(source=(step.source + root) % n, destination=(step.destination + root) % n)
                  for step in doubling]  # fmt: skip
        steps = scatter + turned
        return steps if kind == "broadcast" else [step.reversed for step in reversed(steps)]
    if kind != "all_reduce":
        return halving if kind == "reduce_scatter" else doubling
    fold = (
        [CollectiveStep(np.arange(0, 2 * extra, 2), np.arange(1, 2 * extra, 2), Fraction(1))] if extra else []
    )
    return fold + halving + doubling + [step.reversed for step in fold]


_OF_PAIRS: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def _direct(kind: str, n: int, root: int) -> Steps | None:
    if kind in ("broadcast", "reduce"):
        step = CollectiveStep(np.full(n - 1, root), np.delete(np.arange(n), root), Fraction(1))
        return [step if kind == "broadcast" else step.reversed]
    if kind not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return None
    ahead, source = np.divmod(np.arange(n * (n - 1)), n)  # first each to its next, so that ports are busy
    return [
        CollectiveStep(source, (source + ahead + 1) % n, Fraction(1, n), 2 if kind == "all_reduce" else 1)
    ]


def _hierarchical(kind: str, n: int, group: int) -> Steps | None:
    if kind not in ("all_reduce", "all_gather", "reduce_scatter") or not 1 < group < n or n % group:
        return None
    ranks, groups = np.arange(n), n // group
    inside = _round(ranks, group, 1, Fraction(1, group), group - 1)
    across = _round(ranks, groups, group, Fraction(1, n), groups - 1)
    if kind == "all_reduce":
        return [inside, across._replace(times=2 * (groups - 1)), inside]
    return [across, inside] if kind == "all_gather" else [inside, across]


def _double_tree(kind: str, n: int, root: int, pieces: int) -> Steps | None:
    """Return the rounds of two trees. Those with the same messages are one object."""
    if kind not in ("all_reduce", "broadcast", "reduce"):
        return None
    edges = rounds_of(n, fed=kind != "all_reduce")
    last = 2 * (pieces - 1)
    found: dict[tuple[int, ...], tuple[CollectiveStep, CollectiveStep]] = {}
    down, up = [], []
    for t in range(last + max(first for _, first in edges) + 1):
        here = tuple(
            k for k, (_, first) in enumerate(edges) if first <= t <= first + last and (t - first) % 2 == 0
        )
        if here not in found:
            parent, child = (np.array([edges[k][0][end] for k in here]) for end in (0, 1))
            if kind != "all_reduce":
                parent, child = (parent + root) % n, (child + root) % n
            step = CollectiveStep(parent, child, Fraction(1, 2 * pieces))
            found[here] = step, step.reversed
        down.append(found[here][0])
        up.append(found[here][1])
    return {"broadcast": down, "reduce": up[::-1], "all_reduce": up[::-1] + down}[kind]


_FORMS: Final[Mapping[str, Callable[[str, int, int], Steps | None]]] = {
    "ring": _ring,
    "tree": _tree,
    "halving-doubling": _halving_doubling,
    "direct": _direct,
}
