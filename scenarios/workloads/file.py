"""Graphs kept in files of their own: ``workload: {graph: inception_v1.json.gz, batch: 32}``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from scenarios.document import Document
from scenarios.quantities import Count, File
from scenarios.workloads.base import Workload
from sim.errors import InputError
from sim.graph import Graph
from sim.model import Machine

__all__ = ["GraphFile", "OnnxFile"]

Batch = Annotated[Count | None, Field(description="batch size; default: that of the file")]


class GraphFile(Workload):
    """A graph in a file, of any format that `sim import` reads."""

    graph: Annotated[File, Field(description="a file, relative to this one")]
    batch: Batch = None

    def build(self, document: Document, machine: Machine) -> Graph:
        """Read the file."""
        return _load(document, "graph", self.graph, self.batch)


class OnnxFile(Workload):
    """An ONNX model (needs the extra ``onnx``)."""

    onnx: Annotated[File, Field(description="a file, relative to this one")]
    batch: Batch = None

    def build(self, document: Document, machine: Machine) -> Graph:
        """Read the file."""
        return _load(document, "onnx", self.onnx, self.batch)


def _load(document: Document, key: str, file: str, batch: int | None) -> Graph:
    from scenarios.importers import load_graph

    try:
        return load_graph(document.file(file), batch=batch)
    except InputError as error:
        raise document.error(("workload", key), str(error)) from error
