"""Graphs kept in files of their own: ``workload: {graph: inception_v1.json.gz, batch: 32}``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from scenarios.document import Document
from scenarios.quantities import Count, File, Name
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
    dtype: Annotated[Name | None, Field(description="compute in this data type, not the file's")] = None

    def build(self, document: Document, machine: Machine) -> Graph:
        """Read the file."""
        options = {} if self.dtype is None else {"dtype": self.dtype}
        return _load(document, "onnx", self.onnx, self.batch, format="onnx", **options)


def _load(document: Document, key: str, file: str, batch: int | None, **options: Any) -> Graph:
    from scenarios.importers import load_graph

    try:
        return load_graph(document.file(file), batch=batch, **options)
    except InputError as error:
        raise document.error(("workload", key), str(error)) from error
