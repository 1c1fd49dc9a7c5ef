"""Graphs kept in files of their own: ``workload: {graph: inception_v1.json.gz, batch: 32}``.

The file may have any known format; options of its importer are further keys. Some formats have short names::

    {graph: trace.json.gz, format: kineto, host: none}          {kineto: trace.json.gz, host: none}

A profiler trace holds the ops that ran, with their measured durations; how they overlap is simulated.
To run as it was recorded, a trace needs the recorded streams and a host that issues without waiting::

    workload: {kineto: trace.json.gz}
    policy: {name: ready-queue, synchronisation: issue, streams: recorded}
    machine:
      devices:
        gpu0: {kind: gpu, streams: 4}
        cpu0: {kind: cpu, cores: 2}         # the threads that launched: none, with host: none
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, JsonValue, PrivateAttr, Tag

from devices.describe.quantities import Count, File, Name, Shorthand
from scenarios.file.document import Document
from scenarios.importers.files import TRACES, files_in
from scenarios.recorded.changes import AnyWhatIf, ManyRanks, apply_changes
from scenarios.workloads.workload import Workload
from sim.base import plugins
from sim.base.errors import InputError, ScenarioError, UnknownOptionError
from sim.graph.graph import Graph
from sim.machine.machine import Machine

Batch = Annotated[Count | None, Field(description="batch size; default: that of the file")]
Attributes = Annotated[
    dict[Name, dict[str, JsonValue]],
    Field(
        default_factory=dict,
        description="attributes added to ops, such as {loop: {trips: 8}, loop/body/if: {outcome: true}}",
    ),
]
Files = Annotated[
    Annotated[File, Tag("<file>")] | Annotated[list[File], Tag("<files>")],
    Discriminator(lambda value: "<files>" if isinstance(value, list) else "<file>"),
]
Unknown = Annotated[
    Literal["error", "bytes"],
    Field(description="operators without a cost formula: refuse them, or count only their bytes"),
]


class _Count(Shorthand):
    """A plain number of ranks means that many data-parallel ranks."""

    def whole(self, value: Any) -> Any:
        """Return the mapping that a value stands for."""
        return value if value is None or isinstance(value, dict) else {self.key: {"dp": value}}


class ImportedFile(Workload):
    """A graph file; fields other than ``ranks`` and ``what_if`` are options of its importer.

    Attributes
    ----------
    ranks
        of the recording of one rank: all ranks of the job, each running this program
    """

    further_files: ClassVar[frozenset[str]] = frozenset()
    """Options whose values name files."""

    ranks: Annotated[ManyRanks | None, _Count("parallel", {"type": "integer", "minimum": 1})] = None
    what_if: AnyWhatIf
    _graph: Graph | None = PrivateAttr(None)

    def build(self, document: Document, machine: Machine) -> Graph:
        """Read the file."""
        return self.recording(document)

    def recording(self, document: Document) -> Graph:
        """Return the graph, which is read once and needs no machine."""
        if self._graph is None:
            self._graph = self._read(document)
        return self._graph

    def with_graph(self, graph: Graph) -> Self:
        """Return the same workload with another graph in place of the one in the file."""
        other = self.model_copy()
        other._graph = graph
        return other

    def default_machine(self) -> Mapping[str, Any]:
        """Return the machine on which the graph was recorded, if any."""
        return {"preset": "recorded"}

    def _read(self, document: Document) -> Graph:
        from scenarios.importers import load_graph

        key, *others = (name for name in type(self).model_fields if name not in ("ranks", "what_if"))
        options = {name: getattr(self, name) for name in others if name in self.model_fields_set}
        for name in self.further_files & options.keys():
            options[name] = _files(document, options[name], key)
        options = {"format": None if key == "graph" else key, **options, **(self.__pydantic_extra__ or {})}
        try:
            graph = load_graph(_files(document, getattr(self, key), options["format"]), **options)
        except UnknownOptionError as error:
            known = dict.fromkeys((*error.known, *type(self).model_fields))
            raise document.wrong(
                UnknownOptionError(error.what, error.option, known), ("workload",)
            ) from error
        except InputError as error:  # about an option, else about the file
            raise document.wrong(error, ("workload",) if error.path else ("workload", key)) from error
        with document.placing("workload"):
            if self.ranks is not None:
                from scenarios.recorded.many_ranks import on_layout

                graph = on_layout(graph, self.ranks)
            return apply_changes(graph, self.what_if, path=("what_if",))


def _files(document: Document, names: str | list[str], format: object) -> Path | list[Path]:
    """Return the path of the file, or files, that a scenario names, each resolved in its folder."""
    if isinstance(names, list):
        return [document.file(name) for name in names]
    path = document.file(names)
    if format not in TRACES or not path.is_dir():
        return path
    return [document.file(f"{names}/{name}") for name in files_in(path, str(format))]


class GraphFile(ImportedFile):
    """A graph file of any format that `sim import` reads; further keys are options of its importer.

    Attributes
    ----------
    graph
        a file, relative to this one
    format
        name of an importer, when the content does not tell (`sim import`)
    """

    model_config = ConfigDict(extra="allow")

    graph: File
    format: Name | None = None
    batch: Batch = None
    attributes: Attributes


class OnnxFile(ImportedFile):
    """An ONNX model (needs the extra ``onnx``).

    Attributes
    ----------
    onnx
        a file, relative to this one
    dims
        sizes of open dimensions other than the batch, by name or as input[1], the second axis of input
    dtype
        compute in this data type, not the file's: fp16, bf16, tf32, int8
    """

    onnx: File
    batch: Batch = None
    dims: dict[str, Count] | None = None
    dtype: Name | None = None
    unknown: Unknown = "error"
    attributes: Attributes


class KinetoTrace(ImportedFile):
    """Traces of the PyTorch profiler or Nsight Systems: a process and its GPUs, or all ranks of a job.

    Attributes
    ----------
    kineto
        a trace (.json, .json.gz; .sqlite of Nsight Systems; .xplane.pb of XLA), relative to this file; of all
        ranks of a job a list of them, or their folder
    host
        calls: the host's launches and waits are ops too; none: only the GPU's tasks
    execution_graph
        what PyTorch's ExecutionTraceObserver recorded of the program (.json, .json.gz), one for each trace:
        tensors, shapes, flop and bytes
    """

    further_files = frozenset({"execution_graph"})

    kineto: Files
    host: Literal["calls", "none"] = "calls"
    execution_graph: Files | None = None


class ChakraTrace(ImportedFile):
    """Chakra execution traces: ops with their dependencies, of one rank or of all ranks of a job.

    Attributes
    ----------
    chakra
        a trace (.et, .et.gz), relative to this file; of all ranks of a job a list of them (trace.0.et,
        trace.1.et, ...), or their folder
    unknown
        what to do about dependencies on nodes that are not in the file
    """

    chakra: Files
    unknown: Literal["warn", "error"] = "warn"


class TorchModule(Workload):
    """The forward pass of a PyTorch module (needs the extra ``torch``, and --allow-code).

    PyTorch modules: ``workload: {torch: my_model:build, arguments: {batch: 8}}`` (needs ``--allow-code``).

    The function returns the module and its example inputs::

        def build(batch=1):
            return torch.nn.Linear(64, 10), (torch.empty(batch, 64),)

    Attributes
    ----------
    torch
        module:function; returns (nn.Module, example inputs), or keyword inputs as a third
    arguments
        arguments of the function
    dtype
        compute in this data type, not the module's: fp16, bf16, tf32, int8
    """

    runs_code: ClassVar[bool] = True

    torch: Name = Field(pattern=r"^[^:]+:[^:]+$")
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    dtype: Name | None = None
    unknown: Unknown = "error"

    def build(self, document: Document, machine: Machine) -> Graph:
        """Call the function and export the module that it returns."""
        from scenarios.importers.torch_export import import_torch

        def wrong(message: str) -> ScenarioError:
            return document.error(("workload", "torch"), message)

        with document.placing("workload", "torch"):
            function = plugins.lookup(
                "sim.importers", self.torch, allow_code=True, directory=document.directory
            )
        value: Any
        try:
            value = function(**self.arguments)
        except Exception as error:  # the user's code: whatever it raises is about the scenario
            raise wrong(f"{self.torch} failed: {type(error).__name__}: {error}") from error
        if not isinstance(value, tuple) or len(value) not in (2, 3) or not isinstance(value[1], tuple | list):
            raise wrong(f"{self.torch} should return (nn.Module, (example inputs, ...)), not {value!r:.60}")
        with document.placing("workload", "torch"):
            return import_torch(*value, dtype=self.dtype, unknown=self.unknown)
