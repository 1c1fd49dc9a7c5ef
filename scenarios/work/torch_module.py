"""PyTorch modules: ``workload: {torch: my_model:build, arguments: {batch: 8}}`` (needs ``--allow-code``).

The function returns the module and its example inputs::

    def build(batch=1):
        return torch.nn.Linear(64, 10), (torch.empty(batch, 64),)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, JsonValue

from devices.describe.quantities import Name
from scenarios.file.document import Document
from scenarios.work.graph_files import Unknown
from scenarios.work.workload import Workload
from sim.graph.graph import Graph
from sim.machine.machine import Machine
from sim.words import plugins
from sim.words.errors import ScenarioError

__all__ = ["TorchModule"]


class TorchModule(Workload):
    """The forward of a PyTorch module (needs the extra ``torch``, and --allow-code)."""

    runs_code: ClassVar[bool] = True

    torch: Annotated[
        Name,
        Field(
            pattern=r"^[^:]+:[^:]+$",
            description="module:function; returns (nn.Module, example inputs), or keyword inputs as a third",
        ),
    ]
    arguments: Annotated[
        dict[str, JsonValue], Field(default_factory=dict, description="arguments of the function")
    ]
    dtype: Annotated[Name | None, Field(description="compute in this data type, not the module's")] = None
    unknown: Unknown = "error"

    def build(self, document: Document, machine: Machine) -> Graph:
        """Call the function, and export what it returns."""
        from scenarios.importers.torch.torch_export import import_torch

        def wrong(message: str) -> ScenarioError:
            return document.error(("workload", "torch"), message)

        with document.placing("workload", "torch"):
            function = plugins.lookup(
                "sim.importers", self.torch, allow_code=True, directory=document.directory
            )
        made: Any
        try:
            made = function(**self.arguments)
        except Exception as error:  # the user's code: whatever it raises is about the scenario
            raise wrong(f"{self.torch} failed: {type(error).__name__}: {error}") from error
        if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[1], tuple | list):
            raise wrong(f"{self.torch} should return (nn.Module, (example inputs, ...)), not {made!r:.60}")
        with document.placing("workload", "torch"):
            return import_torch(*made, dtype=self.dtype, unknown=self.unknown)
