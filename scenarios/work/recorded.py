"""What a profiler recorded: ``workload: {kineto: trace.json.gz}``, ``workload: {chakra: rank0.et}``.

The graph has the ops that ran, with their measured durations; how they overlap is simulated. On the
streams that were used, and issued as a host does that does not wait, a trace runs as it was recorded::

    workload: {kineto: trace.json.gz}
    policy: {name: ready-queue, synchronisation: issue, streams: recorded}
    machine:
      devices:
        gpu0: {kind: gpu, streams: 4}
        cpu0: {kind: cpu, cores: 2}         # the threads that launched: none, with host: none
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from devices.describe.quantities import File
from scenarios.file.document import Document
from scenarios.work.graph_files import load_file
from scenarios.work.workload import Workload
from sim.graph.graph import Graph
from sim.machine.machine import Machine

__all__ = ["ChakraTrace", "KinetoTrace"]


class KinetoTrace(Workload):
    """A trace of the PyTorch profiler: one process, its host threads and its GPUs."""

    kineto: Annotated[File, Field(description="a trace (.json, .json.gz), relative to this file")]
    host: Annotated[
        Literal["calls", "none"],
        Field(description="calls: the host's launches and waits are ops too; none: only the GPU's tasks"),
    ] = "calls"

    def build(self, document: Document, machine: Machine) -> Graph:
        """Read the file."""
        return load_file(document, "kineto", self.kineto, format="kineto", host=self.host)


class ChakraTrace(Workload):
    """A Chakra execution trace: the ops of one rank with their dependencies."""

    chakra: Annotated[File, Field(description="a trace (.et, .et.gz), relative to this file")]
    dangling: Annotated[
        Literal["warn", "error"],
        Field(description="what to do about dependencies on nodes that are not in the file"),
    ] = "warn"

    def build(self, document: Document, machine: Machine) -> Graph:
        """Read the file."""
        return load_file(document, "chakra", self.chakra, format="chakra", dangling=self.dangling)
