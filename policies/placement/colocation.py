"""Colocation groups: ops that must share a device, found by union-find.

``attributes["colocate"]`` of an op is a label or a list of labels. Ops with a common label are
together, and so is the op whose name is the label (as TensorFlow's ``_class: loc:@name``). Groups that
share an op are one group (TensorFlow, core/common_runtime/colocation_graph.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from sim import Graph

__all__ = ["colocation_groups", "merged_in_groups"]

_T = TypeVar("_T")


def colocation_groups(graph: Graph) -> list[int]:
    """Return for each op the least index among the ops it must share a device with (often its own).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("variable and its update")
    >>> _ = b.op("other"), b.op("w"), b.op("update", attributes={"colocate": "w"})
    >>> colocation_groups(b.build())
    [0, 1, 1]
    """
    groups = _Groups(len(graph))
    for op, other in _together(graph):
        groups.join(op, other)
    return [groups.find(op) for op in range(len(graph))]


def merged_in_groups(graph: Graph, given: list[_T], merge: Callable[[_T, _T], _T]) -> list[_T]:
    """Return for each op what its group makes of what is given for its ops, two at a time.

    Groups come together in the order of ``ColocateAllNodes`` in the same file: an op joins the groups of its
    labels, then that of its own name. It matters where `merge` is not associative.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("three")
    >>> _ = [b.op(name, attributes={"colocate": "g"}) for name in "abc"]
    >>> merged_in_groups(b.build(), ["1", "2", "3"], lambda x, y: f"({x}{y})")
    ['((12)3)', '((12)3)', '((12)3)']
    """
    groups = _Groups(len(graph))
    values = list(given)
    for op, other in _together(graph):
        a, b = groups.find(op), groups.find(other)
        if a != b:
            values[min(a, b)] = merge(values[b], values[a])
            groups.join(a, b)
    return [values[groups.find(op)] for op in range(len(graph))]


class _Groups:
    """Union-find; the leader of a group is its least op."""

    def __init__(self, n: int) -> None:
        self.leader = list(range(n))

    def find(self, op: int) -> int:
        leader = self.leader
        while leader[op] != op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    def join(self, op: int, other: int) -> None:
        a, b = self.find(op), self.find(other)
        self.leader[max(a, b)] = min(a, b)


def _together(graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield pairs of ops that share a device: each op, and the first with one of its labels."""
    labels = graph.attribute("colocate")
    first_with: dict[str, int] = {}
    if not any(labels.values()):
        return
    for op, name in enumerate(graph.op_names):
        for label in (*labels.get(op, ()), name):
            first = first_with.setdefault(label, op)
            if first != op:
                yield op, first
