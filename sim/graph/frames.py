"""Find the loop of each op, once, before time 0, and check the control flow."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from sim.base.arrays import group_pairs
from sim.base.errors import GraphError
from sim.graph.graph import Graph
from sim.graph.rendezvous_keys import rendezvous_keys

CONTROL_FLOW_KINDS: Final = frozenset({"switch", "merge", "enter", "exit", "next_iteration", "loop_cond"})
"""Kinds of op that move tokens between frames and iterations, or skip some ops."""

DEFAULT_PARALLEL_ITERATIONS: Final = 10
"""The default of TensorFlow's ``while_loop``."""


def has_control_flow(graph: Graph) -> bool:
    """Whether `graph` has any op that moves tokens between frames, or skips some ops."""
    return not CONTROL_FLOW_KINDS.isdisjoint(graph.kinds)


@dataclass(frozen=True)
class FrameStructure:
    """The static frames of a graph; frame 0 is the whole graph.

    Attributes
    ----------
    frame_of : list of int
        The frame in which each op runs (an enter in the parent, an exit in the loop).
    parent, name, parallel_iterations : lists, one entry per frame
        Enclosing frame, name and limit of each frame; -1, "" and 1 for the whole graph.
    child_of : dict
        Enter op → the frame that it opens.
    predicate : dict
        Switch → the op that produces its predicate.
    """

    frame_of: list[int]
    parent: list[int]
    name: list[str]
    parallel_iterations: list[int]
    child_of: dict[int, int]
    predicate: dict[int, int]


def frame_structure(graph: Graph) -> FrameStructure:
    """Find the frames of `graph`.

    Raises
    ------
    GraphError
        An op that reads from two frames, a merge with fewer than two inputs, an exit or
        next_iteration outside a loop, a loop without condition or without exit, a distance on an
        edge that does not leave a next_iteration.
    """
    n = len(graph)
    kind = [graph.kinds[int(k)] for k in graph.kind_code]
    succ = graph.successors.lists()
    _check_distances(graph, kind)
    frame_of = [-1] * n
    parent, names, parallel = [-1], [""], [1]
    child_of: dict[int, int] = {}
    by_name: dict[tuple[int, str], int] = {}
    came_from = [-1] * n
    pending = [len(graph.predecessors.row(op)) for op in range(n)]
    queue = deque(op for op in range(n) if pending[op] == 0)
    for op in queue:
        frame_of[op] = 0
    while queue:
        op = queue.popleft()
        frame = frame_of[op]
        if kind[op] == "enter":
            attributes = graph.attributes.get(op, {})
            name: str = attributes.get("frame", "")
            if not name:
                raise graph.fault(op, "names no frame: give it attributes: {frame: NAME}")
            if (frame, name) not in by_name:
                by_name[frame, name] = len(parent)
                parent.append(frame)
                names.append(name)
                parallel.append(attributes.get("parallel_iterations", DEFAULT_PARALLEL_ITERATIONS))
            frame = child_of[op] = by_name[frame, name]
        elif kind[op] in ("exit", "next_iteration"):
            if frame == 0:
                raise graph.fault(op, "is in no loop: no enter leads to it")
            if kind[op] == "exit":
                frame = parent[frame]
        for s in succ[op]:
            if frame_of[s] == -1:
                frame_of[s], came_from[s] = frame, op
                queue.append(s)
            elif frame_of[s] != frame:
                raise graph.fault(
                    s,
                    f"reads from two frames: {_frame_name(names, frame_of[s])} through "
                    f"{graph.op_names[came_from[s]]!r} and {_frame_name(names, frame)} through "
                    f"{graph.op_names[op]!r}; bring values into a loop with enter and out with exit",
                )
    predicate = {op: predicate_of(graph, op) for op in range(n) if kind[op] == "switch"}
    structure = FrameStructure(frame_of, parent, names, parallel, child_of, predicate)
    _check_kinds(graph, kind, structure)
    return structure


def _frame_name(names: list[str], frame: int) -> str:
    return f"loop {names[frame]!r}" if frame else "outside all loops"


def _check_distances(graph: Graph, kind: list[str]) -> None:
    edges = graph.edges
    for producer, consumer, distance in zip(
        edges.producer.tolist(), edges.consumer.tolist(), edges.distance.tolist(), strict=True
    ):
        back = kind[producer] == "next_iteration"
        if distance and (not back or distance != 1):
            raise GraphError(
                f"the edge {graph.op_names[producer]!r} -> {graph.op_names[consumer]!r} "
                f"has distance {distance}; "
                "in a graph with control flow only the edges out of a next_iteration have one, of 1"
            ).about(graph.op_names[producer])
        if back and not (kind[consumer] == "merge" and distance == 1):
            fed = f"{graph.op_names[consumer]!r} with distance {distance}"
            raise graph.fault(producer, f"must feed a merge with distance 1, and feeds {fed}")


def _check_kinds(graph: Graph, kind: list[str], structure: FrameStructure) -> None:
    present = set(zip(kind, structure.frame_of, strict=True))
    for op, k in enumerate(kind):
        if k == "merge" and len(graph.inputs.row(op)) < 2:
            raise graph.fault(op, "has fewer than two data inputs")
        if structure.frame_of[op] == -1:
            raise graph.fault(op, "can never run: nothing without inputs leads to it")
    for enter, frame in structure.child_of.items():
        loop, name = structure.name[frame], graph.op_names[enter]
        if ("loop_cond", frame) not in present and ("next_iteration", frame) in present:
            raise GraphError(f"loop {loop!r} has no loop_cond: it would never end").about(name)
        if ("exit", frame) not in present:
            raise GraphError(f"loop {loop!r} is entered and has no exit").about(name)
    _check_merges(graph, kind)


def _check_merges(graph: Graph, kind: list[str]) -> None:
    """Raise on a merge that no switch, enter or next_iteration leads to: both inputs would be live there."""
    reached = [False] * len(graph)
    queue = deque(op for op, k in enumerate(kind) if k in ("switch", "enter", "next_iteration"))
    succ = graph.successors.lists()
    keys = rendezvous_keys(graph)
    recvs = group_pairs((key, recv) for recv, key in keys.recvs.items())
    for send, key in keys.sends.items():
        succ[send] = [*succ[send], *recvs[key]]
    while queue:
        for s in succ[queue.popleft()]:
            if not reached[s]:
                reached[s] = True
                queue.append(s)
    for op, k in enumerate(kind):
        if k == "merge" and not reached[op]:
            raise graph.fault(op, "has no switch before it: both its inputs would be live")


def predicate_of(graph: Graph, switch: int) -> int:
    """Return the op that decides a switch, found by following its last input past ops that pass it on.

    Those are enters, identities, sends, recvs, and switches, followed through their first input: a condition
    inside a branch may be decided by an argument of the branch.

    Raises
    ------
    GraphError
        The switch does not have two inputs, or its predicate is a graph input.
    """
    inputs = graph.inputs.row(switch)
    if len(inputs) != 2:
        raise graph.fault(switch, f"needs two inputs, data and predicate; it has {len(inputs)}")
    tensor = inputs[1]
    while (producer := int(graph.tensor_producer[tensor])) >= 0:
        kind, read = graph.kind(producer), graph.inputs.row(producer)
        if kind == "recv" and not len(read):
            keys = rendezvous_keys(graph)
            senders = [op for op, key in keys.sends.items() if key == keys.recvs.get(producer)]
            read = graph.inputs.row(senders[0]) if senders else read
        passes_on = kind in ("enter", "identity", "switch", "send", "recv") and len(read)
        if not passes_on or "outcome" in graph.attributes.get(producer, {}):
            return producer
        tensor = read[0]
    raise graph.fault(switch, "has a graph input for its predicate; let an op with an outcome produce it")
