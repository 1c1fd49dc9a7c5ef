"""Maximum flow and minimum cut, by Dinic's algorithm (Dinic 1970, Soviet Math. Doklady 11)."""

from __future__ import annotations

from collections import deque

__all__ = ["FlowNetwork"]


class FlowNetwork:
    """A directed network with whole capacities.

    Parameters
    ----------
    n : int
        Number of nodes to begin with; `node` adds further ones.

    Examples
    --------
    >>> net = FlowNetwork(3)
    >>> net.edge(0, 1, 5)
    >>> net.edge(1, 2, 3)
    >>> net.min_cut(0, 2)
    (3, [True, True, False])
    """

    def __init__(self, n: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(n)]  # node → edges; edge e goes back as e ^ 1
        self._to: list[int] = []
        self._left: list[int] = []

    def node(self) -> int:
        """Add a node and return its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, a: int, b: int, capacity: int, back: int = 0) -> None:
        """Add an edge from `a` to `b`, and one of capacity `back` from `b` to `a`."""
        for source, target, c in ((a, b, capacity), (b, a, back)):
            self._edges[source].append(len(self._to))
            self._to.append(target)
            self._left.append(c)

    def min_cut(self, source: int, sink: int) -> tuple[int, list[bool]]:
        """Return the value of the least cut, and for each node whether it is on the source's side.

        Of several least cuts it is the one with the fewest nodes on the source's side.
        """
        total = 0
        while (level := self._levels(source))[sink] >= 0:
            position = [0] * len(self._edges)
            while pushed := self._push(source, sink, level, position):
                total += pushed
        return total, [depth >= 0 for depth in level]

    def _levels(self, source: int) -> list[int]:
        """Breadth-first distance of each node from the source over edges with capacity left, or -1."""
        level = [-1] * len(self._edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            at = queue.popleft()
            for e in self._edges[at]:
                if self._left[e] and level[self._to[e]] < 0:
                    level[self._to[e]] = level[at] + 1
                    queue.append(self._to[e])
        return level

    def _push(self, source: int, sink: int, level: list[int], position: list[int]) -> int:
        """Send flow along one path of ascending levels; return how much, 0 when there is no path left."""
        path: list[int] = []
        at = source
        while at != sink:
            if position[at] == len(self._edges[at]):  # a dead end: go back and never come here again
                if not path:
                    return 0
                at = self._to[path.pop() ^ 1]
                position[at] += 1
                continue
            e = self._edges[at][position[at]]
            if self._left[e] and level[self._to[e]] == level[at] + 1:
                path.append(e)
                at = self._to[e]
            else:
                position[at] += 1
        least = min(self._left[e] for e in path)
        for e in path:
            self._left[e] -= least
            self._left[e ^ 1] += least
        return least
