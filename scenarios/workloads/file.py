"""Graphs kept in files of their own: ``workload: {graph: inception_v1.json.gz, batch: 32}``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from scenarios.document import Document
from scenarios.quantities import Count, File, Name
from scenarios.workloads.base import Workload
from sim.errors import InputError, UnknownNameError
from sim.graph import Graph
from sim.model import Machine

__all__ = ["GraphFile", "OnnxFile", "load_file"]

Batch = Annotated[Count | None, Field(description="batch size; default: that of the file")]


class GraphFile(Workload):
    """A graph in a file, of any format that `sim import` reads."""

    graph: Annotated[File, Field(description="a file, relative to this one")]
    batch: Batch = None
    attributes: Annotated[
        dict[Name, dict[str, JsonValue]],
        Field(
            default_factory=dict,
            description="attributes added to ops of the file, such as outcomes: {op: {outcome: true}}",
        ),
    ]

    def build(self, document: Document, machine: Machine) -> Graph:
        """Read the file."""
        graph = load_file(document, "graph", self.graph, batch=self.batch)
        attributes = dict(graph.attributes)
        for name, more in self.attributes.items():
            try:
                op = graph.index(name)
            except UnknownNameError as error:
                raise document.error(("workload", "attributes", name), str(error), key=True) from None
            attributes[op] = {**attributes.get(op, {}), **more}
        return replace(graph, attributes=attributes)


class OnnxFile(Workload):
    """An ONNX model (needs the extra ``onnx``)."""

    onnx: Annotated[File, Field(description="a file, relative to this one")]
    batch: Batch = None
    dtype: Annotated[Name | None, Field(description="compute in this data type, not the file's")] = None
    unknown: Annotated[
        Literal["error", "bytes"],
        Field(description="operators without a cost formula: refuse them, or count only their bytes"),
    ] = "error"
    attributes: Annotated[
        dict[Name, dict[str, JsonValue]],
        Field(
            default_factory=dict,
            description="attributes added to ops, such as {loop: {trips: 8}, loop/body/if: {outcome: true}}",
        ),
    ]

    def build(self, document: Document, machine: Machine) -> Graph:
        """Read the file."""
        options: dict[str, Any] = {"unknown": self.unknown}
        if self.dtype is not None:
            options["dtype"] = self.dtype
        if self.attributes:
            options["attributes"] = self.attributes
        return load_file(document, "onnx", self.onnx, batch=self.batch, format="onnx", **options)


def load_file(document: Document, key: str, file: str, *, batch: int | None = None, **options: Any) -> Graph:
    """Return the graph in a file that the key `key` of the workload names; an error has its place there."""
    from scenarios.importers import load_graph

    try:
        return load_graph(document.file(file), batch=batch, **options)
    except InputError as error:
        raise document.error(("workload", key), str(error)) from error
