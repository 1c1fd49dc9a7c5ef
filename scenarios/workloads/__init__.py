"""Kinds of workload, each a class whose fields are the keys of ``workload:``; one line a kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scenarios.workloads.base import Work, Workload
from scenarios.workloads.build import Build
from scenarios.workloads.file import GraphFile, OnnxFile
from scenarios.workloads.inline import InlineOps
from scenarios.workloads.pipeline import Pipeline
from scenarios.workloads.recorded import ChakraTrace, KinetoTrace
from scenarios.workloads.sessions import Sessions
from scenarios.workloads.torch import TorchModule

__all__ = ["WORKLOADS", "Work", "Workload"]

WORKLOADS: Final[Mapping[str, type[Workload]]] = {
    "ops": InlineOps,
    "graph": GraphFile,
    "onnx": OnnxFile,
    "torch": TorchModule,
    "kineto": KinetoTrace,
    "chakra": ChakraTrace,
    "build": Build,
    "pipeline": Pipeline,
    "sessions": Sessions,
}
"""The key that tells a kind, and the kind."""
