"""Several models at once: ``workload: {sessions: {train: {workload: {...}}, serve: {...}}}``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from devices.describe.field_types import fault
from devices.describe.quantities import Count, Name, Strict, Whole, one_of
from policies.rewrite.records import OpEntry, Records, read, write
from scenarios.file.document import Document
from scenarios.file.yaml_read import Node
from scenarios.workloads.workload import Workload, kind_names, kind_of, kinds_in, op_message, op_place
from sim.base.arrays import MOST_BUILT, at_most
from sim.base.errors import GraphError
from sim.graph.failures import Failures, in_step
from sim.graph.frames import frame_structure, has_control_flow
from sim.graph.graph import Graph, Role
from sim.machine.machine import Machine

_REFUSED: Final = {
    "pipeline": "its schedule is the policy, and a session shares the scenario's",
    "serving": "its batcher is the policy, and a session shares the scenario's",
    "sessions": "list all of them under one sessions",
}

_KINDS: Final = {
    name: kind for name in kind_names() if name not in _REFUSED and (kind := kind_of(name)) is not None
}


def _check_known(value: Any) -> Any:
    """Raise if a mapping names a kind that cannot be a session."""
    named = kinds_in(value) if isinstance(value, dict) else []
    for name in named:
        if name in _REFUSED:
            raise fault(f"{name} cannot be the workload of a session: {_REFUSED[name]}")
    return value


if TYPE_CHECKING:
    Model = Workload
else:
    Model = Annotated[one_of(_KINDS), BeforeValidator(_check_known)]


class SessionSpec(Strict):
    """One model, and how it runs.

    Attributes
    ----------
    workload
        any but a pipeline, whose schedule is the policy, and serving, whose batcher is
    iterations
        how many times it runs in one of the scenario's
    inter_op_thread_pool
        which pool of the policy's session_inter_op_thread_pool
    intra_op_parallelism_threads
        what the policy's key of that name says, for the session: that of the first counts
    """

    workload: Model
    iterations: Count = 1
    inter_op_thread_pool: Whole = 0
    intra_op_parallelism_threads: Whole | None = None


class Sessions(Workload):
    """Several models that run at once, each with its batches.

    Attributes
    ----------
    sessions
        models by name
    processes
        each session is a process, with host threads and streams of its own (default); or all are of one
        process, as TensorFlow's always are
    """

    sessions: dict[Name, SessionSpec] = Field(min_length=1)
    processes: Literal["each", "one"] = "each"

    @property
    def runs_code(self) -> bool:  # type: ignore[override]
        """Whether any session runs other people's code."""
        return any(spec.workload.runs_code for spec in self.sessions.values())

    def own_kinds(self) -> Collection[str]:
        """Return the op kinds that any session declares as its own."""
        return [kind for spec in self.sessions.values() for kind in spec.workload.own_kinds()]

    def intra_op_threads(self, default: int | None) -> int | None:
        """Return the first session's pool size: it creates the pool of the process."""
        first = next(iter(self.sessions.values())).intra_op_parallelism_threads
        return default if first is None else first

    def build(self, document: Document, machine: Machine) -> Graph:
        """Return the graphs of all sessions as one."""
        built = {}
        for name, spec in self.sessions.items():
            node = document.at(("workload", "sessions", name, "workload"))
            assert node is not None
            # Its errors refer to the session's workload.
            inner = replace(document, root=Node({"workload": node}, node.place), changed=frozenset())
            graph = spec.workload.build(inner, machine)
            try:
                Failures(graph, spec.iterations, seed=0)  # the steps that its ops name are batches
            except GraphError as error:
                raise inner.error(op_place(error, inner), op_message(error, inner)) from None
            built[name] = Session(graph, spec.iterations, spec.inter_op_thread_pool)
        return side_by_side(document.title, built, self.processes)


# ----------------------------------------------------------------------------------------------------------
# Several sessions at once: their graphs side by side in one, each session's batches one after another.
#
# ::
#
#     train   [ batch 0 ] ─► begin ─► [ batch 1 ] ─► begin ─► [ batch 2 ]
#     serve   [ batch 0 ] ─► begin ─► [ batch 1 ]
#
# Sessions share nothing but the machine. An op carries as attributes its session's name, its process
# (`sim.issuers`), and the pool that the session chose; policies with thread pools use them to divide
# their threads (`policies.issue.tensorflow_executor`). Parameters exist once per session,
# inputs once per batch.


@dataclass(frozen=True)
class Session:
    """A graph and how it runs.

    Attributes
    ----------
    graph : Graph
    iterations : int
        Number of runs, one after another.
    inter_op_thread_pool : int
        Index of the inter-op pool that it uses.
    """

    graph: Graph
    iterations: int = 1
    inter_op_thread_pool: int = 0

    @cached_property
    def ends(self) -> tuple[list[str], list[str]]:
        """The ops that no op of the same batch reads or follows, and a switch of each loop.

        Ops in loops may still run when the exits have come; they end with the loop. An exit that reads both
        sides of a switch is never live, and an exit that never was goes out, dead, when the loop ends.
        """
        graph, edges = self.graph, self.graph.edges
        counts = np.bincount(edges.producer[edges.distance == 0], minlength=len(graph))
        ends = np.flatnonzero(counts == 0).tolist()
        switches: dict[int, int] = {}
        if has_control_flow(graph):
            structure = frame_structure(graph)
            # An enter that nothing in its loop reads counts as its producer; what follows it is in the loop.
            enters = [op for op in ends if op in structure.child_of]
            entering = (int(graph.tensor_producer[t]) for op in enters for t in graph.inputs.row(op))
            ends = sorted({*ends, *(op for op in entering if op >= 0)} - structure.child_of.keys())
            in_loop = [structure.parent[frame] == 0 for frame in structure.frame_of]
            leaves = graph.is_kind("exit") & in_loop
            ends = [op for op in ends if structure.frame_of[op] == 0 or leaves[op]]
            for op in np.flatnonzero(in_loop).tolist():
                if graph.kind(op) == "switch" and len(graph.outputs.row(op)) > 1:
                    switches.setdefault(structure.frame_of[op], op)
        return [graph.op_names[op] for op in ends], [graph.op_names[op] for op in switches.values()]


def side_by_side(name: str, sessions: Mapping[str, Session], processes: str = "each") -> Graph:
    """Return one graph with the runs of all sessions.

    Parameters
    ----------
    name : str
        Name of the graph.
    sessions : mapping of str to Session
    processes : str
        ``"each"``: each session is a process of its own, if the policy distinguishes processes
        (`sim.issuers`); ``"one"``: all belong to one process.

    Raises
    ------
    InputError
        An op fails in a batch that does not exist.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("model")
    >>> _ = b.op("f"), b.op("g", inputs=["f"])
    >>> model = b.build()
    >>> side_by_side("two", {"a": Session(model), "b": Session(model, iterations=2)}).op_names
    ('a/f', 'a/g', 'b/0/f', 'b/0/g', 'b/1/begin', 'b/1/f', 'b/1/g')
    """
    at_most(MOST_BUILT, sum(session.iterations * len(session.graph) for session in sessions.values()), "ops")
    together = Records(name, {}, {})
    for title, session in sessions.items():
        last: list[str] = []
        for batch in range(session.iterations):
            last = _add(together, title, session, batch, last, processes)
    return write(together)


def _add(
    together: Records, title: str, session: Session, batch: int, last: list[str], processes: str
) -> list[str]:
    """Add a batch after the last ops of the previous batch; return its own last ops."""
    prefix = f"{title}/{batch}/" if session.iterations > 1 else f"{title}/"
    records = read(session.graph)
    renamed = {}
    for name, external in records.externals.items():
        renamed[name] = f"{title}/{name}" if external.role == Role.PARAMETER else prefix + name
        together.externals[renamed[name]] = external
    marks = {"session": title, "inter_op_thread_pool": session.inter_op_thread_pool}
    if session.iterations > 1:
        marks["session_step"] = batch
    if processes == "each":
        marks["process"] = title
    loops = has_control_flow(session.graph)  # then edges with a distance are back edges

    def earlier(name: str, distance: int) -> tuple[str, int]:
        """Return the output of the batch `distance` before this one, and how many runs back it is."""
        if loops or session.iterations == 1:
            return prefix + name, distance
        runs, number = divmod(batch - distance, session.iterations)
        return f"{title}/{number}/{name}", -runs

    begin: list[tuple[str, int]] = []
    if last:  # a control trigger runs even if earlier branches are dead
        start = f"{prefix}begin"
        after = [(name, 0) for name in last]
        # A device of its own would be one that the session does not use.
        first = next(record for record in records.ops.values() if _begins(records, record))
        trigger = {**marks, "begins_batch": True}
        together.ops[start] = OpEntry(
            start, "control_trigger", [], after, (0,), duration_ns=0, device=first.device, attributes=trigger
        )
        begin = [(start, 0)]
    for name, record in records.ops.items():
        attributes = {**record.attributes, **marks}
        if "fails" in attributes:  # a step of a session is a batch
            attributes["fails"] = in_step(attributes["fails"], batch, session.iterations)
        if "frame" in attributes:
            attributes["frame"] = prefix + str(attributes["frame"])
        for word in ("communicator", "key"):  # rendezvous are within a session
            if word in attributes:
                attributes[word] = f"{title}/{attributes[word]}"
        together.ops[prefix + name] = replace(
            record,
            name=prefix + name,
            inputs=[
                (renamed[tensor], lag) if tensor in renamed else earlier(tensor, lag)
                for tensor, lag in record.inputs
            ],
            after=[*(earlier(op, lag) for op, lag in record.after), *(begin * _begins(records, record))],
            attributes=attributes,
        )
    if batch == session.iterations - 1:
        return []
    last_ops, switches = session.ends
    endings = {f"{prefix}{switch}/over": switch for switch in switches}
    for name, switch in endings.items():
        sides, device = [(f"{prefix}{switch}{side}", 0) for side in ("", ":1")], records.ops[switch].device
        together.ops[name] = OpEntry(
            name, "exit", sides, [], (0,), duration_ns=0, device=device, attributes=marks
        )
    return [*(prefix + name for name in last_ops), *endings]


def _begins(records: Records, record: OpEntry) -> bool:
    """Whether an op waits for no other op of its batch."""
    reads = (lag for tensor, lag in record.inputs if records.producer(tensor) is not None)
    return all(reads) and all(lag for _, lag in record.after)
