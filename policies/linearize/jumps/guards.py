"""Under which predicates an op runs, read off the switches and merges before it.

::

    x ─► switch ─true──► f ─► merge ─► y        guard of f: ((p, 1),)    of g: ((p, 0),)
    p ─────┘ └──false──► g ─────┘               of the switch, the merge and y: ()

A guard is local to an op's frame: what it takes to enter a loop is the guard of the loop (`Guards.frames`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sim import Graph
from sim.graph.frames import FrameStructure

__all__ = ["Guard", "Guards", "Literal", "find_guards", "slot_of"]

Literal = tuple[int, int]
"""(predicate op, side): 1 where it is true."""

Guard = tuple[Literal, ...]
"""All of them hold; outer conditions come first."""


@dataclass
class Guards:
    """Guards of all ops, and of entering each frame."""

    ops: list[Guard]
    frames: dict[int, Guard] = field(default_factory=dict)


def slot_of(graph: Graph, tensor: int) -> int:
    """Return which output of its producer a tensor is."""
    producer = int(graph.tensor_producer[tensor])
    return tensor - int(graph.first_output[producer])


def find_guards(graph: Graph, structure: FrameStructure) -> Guards:
    """Return the guards of a graph with control flow.

    Parameters
    ----------
    graph : Graph
    structure : FrameStructure
        Of `graph`.
    """
    kind = [graph.kinds[int(code)] for code in graph.kind_code]
    order = graph.topological_order.tolist()
    at = {op: k for k, op in enumerate(order)}
    guards = Guards([()] * len(graph))

    def chain(literals: Iterable[Literal]) -> Guard:
        return tuple(sorted(dict.fromkeys(literals), key=lambda p: (at[p[0]], p[1])))

    def behind(producer: int, slot: int) -> Guard:
        """Return the guard of what `producer` gives, in the frame that it gives it to."""
        if kind[producer] == "enter":
            return ()
        if kind[producer] == "exit":
            return guards.frames.get(structure.frame_of[producer], ())
        own = guards.ops[producer]
        if kind[producer] == "switch" and slot >= 0:
            return (*own, (structure.predicate[producer], min(slot, 1)))
        return own

    for op in order:
        first, last = graph.inputs.indptr[op], graph.inputs.indptr[op + 1]
        read = zip(graph.inputs.row(op).tolist(), graph.input_distance[first:last].tolist(), strict=True)
        tensors = [t for t, distance in read if not distance and graph.tensor_producer[t] >= 0]
        producers = [int(graph.tensor_producer[t]) for t in tensors]
        data = [behind(p, slot_of(graph, t)) for p, t in zip(producers, tensors, strict=True)]
        literals = [p for follows in graph.after.row(op).tolist() for p in behind(follows, -1)]
        if kind[op] != "merge":
            literals += [p for d in data for p in d]
        elif data and not any(kind[p] == "enter" for p in producers):
            literals += [p for p in data[0] if all(p in d for d in data)]
        guards.ops[op] = chain(literals)
        if kind[op] == "enter":
            child = structure.child_of[op]
            guards.frames[child] = chain([*guards.frames.get(child, ()), *guards.ops[op]])
    return guards
