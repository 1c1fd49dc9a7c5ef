"""Several sessions at once: their graphs side by side in one, each session's batches one after another.

::

    train   [ batch 0 ] ─► begin ─► [ batch 1 ] ─► begin ─► [ batch 2 ]
    serve   [ batch 0 ] ─► begin ─► [ batch 1 ]

Sessions share nothing but the machine. An op carries its session's name, its process
(`sim.issuers`), and the pool that the session chose, as attributes, from which policies with thread
pools divide their threads (`policies.issue.tensorflow_executor`). Parameters are there once a session,
inputs once a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from policies.option_checks import one_of
from policies.rewrite.records import OpEntry, Records, read, write
from sim.base.arrays import MOST_BUILT, at_most
from sim.base.errors import GraphError, InputError
from sim.graph.failures import in_step
from sim.graph.frames import frame_structure, has_control_flow
from sim.graph.graph import Graph, Role


@dataclass(frozen=True)
class Session:
    """A graph, and how it runs.

    Attributes
    ----------
    graph : Graph
    batches : int
        How often, one run after another.
    inter_op_thread_pool : int
        Which of several pools it chooses.
    """

    graph: Graph
    batches: int = 1
    inter_op_thread_pool: int = 0


def side_by_side(name: str, sessions: Mapping[str, Session], processes: str = "each") -> Graph:
    """Return one graph with the runs of all sessions.

    Parameters
    ----------
    name : str
        Of the graph.
    sessions : mapping of str to Session
    processes : str
        ``"each"``: each session is a process of its own, where the policy knows of processes
        (`sim.issuers`); ``"one"``: all are of one.

    Raises
    ------
    GraphError
        An op that fails in a batch that there is not.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("model")
    >>> _ = b.op("f"), b.op("g", inputs=["f"])
    >>> model = b.build()
    >>> side_by_side("two", {"a": Session(model), "b": Session(model, batches=2)}).op_names
    ['a/f', 'a/g', 'b/0/f', 'b/0/g', 'b/1/begin', 'b/1/f', 'b/1/g']
    """
    at_most(MOST_BUILT, sum(each.batches * len(each.graph) for each in sessions.values()), "ops")
    together = Records(name, {}, {})
    one_of("sessions", "processes", processes, ("each", "one"))
    for title, session in sessions.items():
        last: list[str] = []
        for batch in range(session.batches):
            last = _add(together, title, session, batch, last, processes)
    return write(together)


def _add(
    together: Records, title: str, session: Session, batch: int, last: list[str], processes: str
) -> list[str]:
    """Add a batch behind the ops at which the one before it ended; return those at which it ends."""
    prefix = f"{title}/{batch}/" if session.batches > 1 else f"{title}/"
    records = read(session.graph)
    renamed = {}
    for name, external in records.externals.items():
        renamed[name] = f"{title}/{name}" if external.role == Role.PARAMETER else prefix + name
        together.externals[renamed[name]] = external
    marks = {"session": title, "inter_op_thread_pool": session.inter_op_thread_pool}
    if processes == "each":
        marks["process"] = title
    loops = has_control_flow(session.graph)  # where the edges with a distance are those back

    def earlier(made: str, distance: int) -> tuple[str, int]:
        """Return what `distance` batches before this one made, and how many runs of all batches before."""
        if loops or session.batches == 1:
            return prefix + made, distance
        runs, of = divmod(batch - distance, session.batches)
        return f"{title}/{of}/{made}", -runs

    begin: list[tuple[str, int]] = []
    if last:  # a control trigger runs whatever became of the branches before it
        start = f"{prefix}begin"
        after = [(name, 0) for name in last]
        # On a device of its own it would pay there for a launch, and use a device that the session does not.
        first = next(record for record in records.ops.values() if _begins(records, record))
        together.ops[start] = OpEntry(
            start, "control_trigger", [], after, (0,), duration_ns=0, device=first.device, attributes=marks
        )
        begin = [(start, 0)]
    for name, record in records.ops.items():
        attributes = {**record.attributes, **marks}
        if "fails" in attributes:  # a step of a session is a batch
            try:
                attributes["fails"] = in_step(attributes["fails"], batch, session.batches)
                attributes["session_step"] = batch
            except InputError as error:
                raise GraphError(f"op {prefix + name!r}: fails: {error}").about(
                    prefix + name, "fails"
                ) from None
        if "frame" in attributes:
            attributes["frame"] = prefix + str(attributes["frame"])
        for word in ("communicator", "key"):  # by which ops of a session meet, and no others
            if word in attributes:
                attributes[word] = f"{title}/{attributes[word]}"
        together.ops[prefix + name] = replace(
            record,
            name=prefix + name,
            inputs=[
                (renamed[tensor], d) if tensor in renamed else earlier(tensor, d)
                for tensor, d in record.inputs
            ],
            after=[earlier(op, d) for op, d in record.after] + (begin if _begins(records, record) else []),
            attributes=attributes,
        )
    return [prefix + name for name in _ends(session.graph)]


def _begins(records: Records, record: OpEntry) -> bool:
    """Whether an op waits for no other of its batch."""
    reads = (d for tensor, d in record.inputs if records.producer(tensor) is not None)
    return all(reads) and all(d for _, d in record.after)


def _ends(graph: Graph) -> list[str]:
    """Return the ops outside all loops that nobody of the same batch reads or follows."""
    edges = graph.edges
    counts = np.bincount(edges.producer[edges.distance == 0], minlength=len(graph))
    ends = np.flatnonzero(counts == 0).tolist()
    if has_control_flow(graph):
        structure = frame_structure(graph)
        leaves = {
            op for op in ends if graph.kind(op) == "exit" and structure.parent[structure.frame_of[op]] == 0
        }
        ends = [op for op in ends if structure.frame_of[op] == 0 or op in leaves]
    return [graph.op_names[op] for op in ends]
