"""Several models at once: ``workload: {sessions: {train: {workload: {...}, batches: 4}, serve: {...}}}``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from devices.describe.field_types import fault
from devices.describe.quantities import Count, Name, Strict, Whole, one_of
from scenarios.builders.side_by_side import Session, side_by_side
from scenarios.file.document import Document
from scenarios.file.yaml_read import Node
from scenarios.workloads.workload import Workload, kind_names, kind_of, kinds_in, op_message, op_place
from sim.base.errors import GraphError
from sim.graph.failures import Failures
from sim.graph.graph import Graph
from sim.machine.machine import Machine

_NOT_HERE: Final = {
    "pipeline": "its schedule is the policy, and a session shares the scenario's",
    "sessions": "list all of them under one sessions",
}

_KINDS: Final = {
    name: kind for name in kind_names() if name not in _NOT_HERE and (kind := kind_of(name)) is not None
}


def _known(value: Any) -> Any:
    """Refuse a mapping that names no kind, or several, or one that no session can be."""
    named = kinds_in(value) if isinstance(value, dict) else []
    for name in named:
        if name in _NOT_HERE:
            raise fault(f"{name} cannot be the workload of a session: {_NOT_HERE[name]}")
    if len(named) != 1:
        raise fault(f"should be a mapping with one of the keys {', '.join(_KINDS)}")
    return value


if TYPE_CHECKING:
    Model = Workload
else:
    Model = Annotated[one_of(_KINDS, lambda value: kinds_in(value)[0]), BeforeValidator(_known)]


class SessionSpec(Strict):
    """One model, and how it runs."""

    workload: Annotated[Model, Field(description="any but a pipeline, whose schedule is the policy")]
    batches: Annotated[Count, Field(description="number of runs, one after another")] = 1
    inter_op_thread_pool: Annotated[
        Whole, Field(description="which pool of the policy's session_inter_op_thread_pool")
    ] = 0
    intra_op_parallelism_threads: Annotated[
        Whole | None,
        Field(
            description="what the policy's key of that name says, for the session: that of the first counts"
        ),
    ] = None


class Sessions(Workload):
    """Several models that run at once, each with its batches."""

    sessions: Annotated[dict[Name, SessionSpec], Field(description="models by name", min_length=1)]
    processes: Annotated[
        Literal["each", "one"],
        Field(
            description="each session is a process, with host threads and streams of its own (default); "
            "or all are of one process, as TensorFlow's always are"
        ),
    ] = "each"

    @property
    def runs_code(self) -> bool:  # type: ignore[override]
        """Whether one of them runs other people's code."""
        return any(spec.workload.runs_code for spec in self.sessions.values())

    def own_kinds(self) -> Collection[str]:
        """Return the kinds of op that one of them names as its own."""
        return [kind for spec in self.sessions.values() for kind in spec.workload.own_kinds()]

    def intra_op_threads(self, default: int | None) -> int | None:
        """Return what the first session asks for: it makes the pool of the process."""
        first = next(iter(self.sessions.values())).intra_op_parallelism_threads
        return default if first is None else first

    def asks_cost_models(self) -> bool:
        """Whether one of them asks cost models."""
        return any(spec.workload.asks_cost_models() for spec in self.sessions.values())

    def build(self, document: Document, machine: Machine) -> Graph:
        """Return the graphs of all sessions as one."""
        built = {}
        for name, spec in self.sessions.items():
            node = document.at(("workload", "sessions", name, "workload"))
            assert node is not None
            # Its errors stand where the session's workload stands.
            own = replace(document, root=Node({"workload": node}, node.place), changed=False)
            graph = spec.workload.build(own, machine)
            try:
                Failures(graph, spec.batches, seed=0)  # the steps that its ops name are batches
            except GraphError as error:
                raise own.error(op_place(error, own), op_message(error, own)) from None
            built[name] = Session(graph, spec.batches, spec.inter_op_thread_pool)
        return side_by_side(document.title, built, self.processes)
