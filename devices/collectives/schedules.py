"""Algorithms of collectives, as the messages of each of their steps.

::

    ring, 4 ranks, all_reduce      step 1: 0→1 1→2 2→3 3→0, a quarter each; 6 such steps
    tree (binomial), broadcast     0→1 │ 0→2 1→3 │ 0→4 1→5 2→6 3→7, all of it each
    halving-doubling, all_reduce   0↔2 1↔3, half │ 0↔1 2↔3, a quarter │ 0↔1 2↔3, a quarter │ 0↔2 1↔3, half
    direct, all_gather             everybody to everybody, a quarter each, in one step
    hierarchical, groups of 2      rings in the groups, rings across them, rings in the groups

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
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import IntArray

ALGORITHMS: Final = ("ring", "tree", "halving-doubling", "direct", "hierarchical")

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


def steps_of(algorithm: str, kind: str, ranks: int, root: int = 0, group: int = 0) -> Steps | None:
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
    return _ALGORITHMS[algorithm](kind, ranks, root)


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
    position = first // stride % n
    return CollectiveStep(first, first + np.where(position == n - 1, 1 - n, 1) * stride, share, times)


def _tree(kind: str, n: int, root: int) -> Steps | None:
    if kind not in ("all_reduce", "broadcast", "reduce"):
        return None
    down = []
    for k in range((n - 1).bit_length()):
        senders = np.arange(min(1 << k, n - (1 << k)))
        down.append(CollectiveStep((root + senders) % n, (root + senders + (1 << k)) % n, Fraction(1)))
    up = [step.reversed for step in reversed(down)]
    return {"broadcast": down, "reduce": up, "all_reduce": up + down}[kind]


def _halving_doubling(kind: str, n: int, root: int) -> Steps | None:
    power = 1 << (n.bit_length() - 1)
    extra = n - power
    if kind not in _PAIRED_KINDS or (extra and kind != "all_reduce"):
        return None
    # The ranks that take part: of the first 2 * extra only every second one, which has what the other had.
    part = np.concatenate((np.arange(1, 2 * extra, 2), np.arange(2 * extra, n)))
    halves = [power >> (k + 1) for k in range(power.bit_length() - 1)]
    index = np.arange(power)
    halving = [CollectiveStep(part, part[index ^ half], Fraction(half, power)) for half in halves]
    doubling = halving[::-1]
    if kind in ("broadcast", "reduce"):
        scatter = []
        for half in halves:
            low = np.arange(0, power, 2 * half)
            scatter.append(CollectiveStep((root + low) % n, (root + low + half) % n, Fraction(half, power)))
        turned = [step._replace(source=(step.source + root) % n, destination=(step.destination + root) % n)
                  for step in doubling]  # fmt: skip
        steps = scatter + turned
        return steps if kind == "broadcast" else [step.reversed for step in reversed(steps)]
    if kind != "all_reduce":
        return halving if kind == "reduce_scatter" else doubling
    spare = np.arange(0, 2 * extra, 2)
    fold = [CollectiveStep(spare, spare + 1, Fraction(1))] if extra else []
    return fold + halving + doubling + [step.reversed for step in fold]


_PAIRED_KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def _direct(kind: str, n: int, root: int) -> Steps | None:
    if kind in ("broadcast", "reduce"):
        step = CollectiveStep(np.full(n - 1, root), np.delete(np.arange(n), root), Fraction(1))
        return [step if kind == "broadcast" else step.reversed]
    if kind not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return None
    ahead, source = np.divmod(np.arange(n * (n - 1)), n)  # first each to its next, so that ports are busy
    times = 2 if kind == "all_reduce" else 1
    return [CollectiveStep(source, (source + ahead + 1) % n, Fraction(1, n), times)]


def _hierarchical(kind: str, n: int, group: int) -> Steps | None:
    if kind not in ("all_reduce", "all_gather", "reduce_scatter") or not 1 < group < n or n % group:
        return None
    ranks, groups = np.arange(n), n // group
    inside = _round(ranks, group, 1, Fraction(1, group), group - 1)
    across = _round(ranks, groups, group, Fraction(1, n), groups - 1)
    if kind == "all_reduce":
        return [inside, across._replace(times=2 * (groups - 1)), inside]
    return [across, inside] if kind == "all_gather" else [inside, across]


_ALGORITHMS: Final[Mapping[str, Callable[[str, int, int], Steps | None]]] = {
    "ring": _ring,
    "tree": _tree,
    "halving-doubling": _halving_doubling,
    "direct": _direct,
}
