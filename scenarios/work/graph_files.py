"""Graphs kept in files of their own: ``workload: {graph: inception_v1.json.gz, batch: 32}``.

A file of any known format; what its importer takes besides stands beside it. Some formats have short names::

    {graph: trace.json.gz, format: kineto, host: none}          {kineto: trace.json.gz, host: none}

What a profiler recorded has the ops that ran, with their measured durations; how they overlap is simulated.
On the streams that were used, and issued as a host does that does not wait, a trace runs as it was recorded::

    workload: {kineto: trace.json.gz}
    policy: {name: ready-queue, synchronisation: issue, streams: recorded}
    machine:
      devices:
        gpu0: {kind: gpu, streams: 4}
        cpu0: {kind: cpu, cores: 2}         # the threads that launched: none, with host: none
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue

from devices.describe.quantities import Count, File, Name
from scenarios.file.document import Document
from scenarios.work.workload import Workload
from sim.graph.graph import Graph
from sim.machine.machine import Machine
from sim.words.errors import InputError

__all__ = ["ChakraTrace", "GraphFile", "KinetoTrace", "OnnxFile", "Unknown"]

Batch = Annotated[Count | None, Field(description="batch size; default: that of the file")]
Attributes = Annotated[
    dict[Name, dict[str, JsonValue]],
    Field(
        default_factory=dict,
        description="attributes added to ops, such as {loop: {trips: 8}, loop/body/if: {outcome: true}}",
    ),
]
Unknown = Annotated[
    Literal["error", "bytes"],
    Field(description="operators without a cost formula: refuse them, or count only their bytes"),
]


class GraphFile(Workload):
    """A graph in a file, of any format that `sim import` reads; further keys are options of its importer."""

    model_config = ConfigDict(extra="allow")

    graph: Annotated[File, Field(description="a file, relative to this one")]
    format: Annotated[
        Name | None, Field(description="name of an importer, when the content does not tell (`sim import`)")
    ] = None
    batch: Batch = None
    attributes: Attributes

    def build(self, document: Document, machine: Machine) -> Graph:
        """Read the file."""
        from scenarios.importers import takes

        options = dict(self.__pydantic_extra__ or {})
        with placed(document, "graph"):
            if self.attributes and takes(document.file(self.graph), self.format, "attributes"):
                options["attributes"] = self.attributes
        graph = load_file(document, "graph", self.graph, batch=self.batch, format=self.format, **options)
        if "attributes" in options:
            return graph
        attributes = dict(graph.attributes)
        for name, more in self.attributes.items():
            with document.placing("workload", "attributes", name):
                op = graph.index(name)
            attributes[op] = {**attributes.get(op, {}), **more}
        return replace(graph, attributes=attributes)


class ImportedFile(Workload):
    """A file of one format, named by the first field; the others are options of its importer."""

    def build(self, document: Document, machine: Machine) -> Graph:
        """Read the file."""
        key, *others = type(self).model_fields
        options = {name: getattr(self, name) for name in others if name in self.model_fields_set}
        return load_file(document, key, getattr(self, key), format=key, **options)


class OnnxFile(ImportedFile):
    """An ONNX model (needs the extra ``onnx``)."""

    onnx: Annotated[File, Field(description="a file, relative to this one")]
    batch: Batch = None
    dtype: Annotated[Name | None, Field(description="compute in this data type, not the file's")] = None
    unknown: Unknown = "error"
    attributes: Attributes


class KinetoTrace(ImportedFile):
    """A trace of the PyTorch profiler: one process, its host threads and its GPUs."""

    kineto: Annotated[File, Field(description="a trace (.json, .json.gz), relative to this file")]
    host: Annotated[
        Literal["calls", "none"],
        Field(description="calls: the host's launches and waits are ops too; none: only the GPU's tasks"),
    ] = "calls"


class ChakraTrace(ImportedFile):
    """A Chakra execution trace: the ops of one rank with their dependencies."""

    chakra: Annotated[File, Field(description="a trace (.et, .et.gz), relative to this file")]
    dangling: Annotated[
        Literal["warn", "error"],
        Field(description="what to do about dependencies on nodes that are not in the file"),
    ] = "warn"


def load_file(document: Document, key: str, file: str, **options: Any) -> Graph:
    """Return the graph in a file that the key `key` of the workload names; an error has its place there."""
    from scenarios.importers import load_graph

    with placed(document, key):
        return load_graph(document.file(file), **options)


@contextmanager
def placed(document: Document, key: str) -> Iterator[None]:
    """Give an error about the workload's file, or about an option of its importer, its place."""
    try:
        yield
    except InputError as error:
        raise document.wrong(error, ("workload",) if error.path else ("workload", key)) from error
