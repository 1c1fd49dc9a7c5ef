"""Colocation groups: ops that must share a device, found by union-find.

``attributes["colocate"]`` of an op is a label or a list of labels. Ops with a common label are
together, and so is the op whose name is the label (as TensorFlow's ``_class: loc:@name``). Groups that
share an op are one group (TensorFlow, core/common_runtime/colocation_graph.cc).
"""

from __future__ import annotations

from sim import Graph
from sim.words.errors import InputError

__all__ = ["colocation_groups"]


def colocation_groups(graph: Graph) -> list[int]:
    """Return for each op the least index among the ops it must share a device with (often its own).

    Raises
    ------
    InputError
        An attribute that is neither a label nor a list of labels.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("variable and its update")
    >>> _ = b.op("other"), b.op("w"), b.op("update", attributes={"colocate": "w"})
    >>> colocation_groups(b.build())
    [0, 1, 1]
    """
    leader = list(range(len(graph)))

    def find(op: int) -> int:
        while leader[op] != op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    index = {name: op for op, name in enumerate(graph.op_names)} if graph.attributes else {}
    first_with: dict[str, int] = {}
    for op, attributes in sorted(graph.attributes.items()):
        for label in _labels(graph, op, attributes.get("colocate", ())):
            if label not in first_with:
                first_with[label] = index.get(label, op)
            a, b = find(op), find(first_with[label])
            leader[max(a, b)] = min(a, b)
    return [find(op) for op in range(len(graph))]


def _labels(graph: Graph, op: int, given: object) -> list[str]:
    labels = [given] if isinstance(given, str) else given
    if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
        raise InputError(
            f"op {graph.op_names[op]!r}: colocate must be a label or a list of labels, found {given!r}"
        ).about(graph.op_names[op], "colocate")
    return list(labels)
