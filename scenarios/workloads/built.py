"""Graphs made from a few sizes: ``workload: {build: {model: gpt, layers: 12, ...}}``.

Each builder is a class whose fields are its keys and which makes the graph. ``model`` selects the builder::

    gpt, transformer   a decoder, forward or a training step     scenarios.builders.gpt
    branchy            forks and joins                           scenarios.builders.random_dag
    random-dag         layers wired at random, by a seed         scenarios.builders.random_dag
    data-loading       load, preprocess, copy, train             scenarios.builders.data_loaders
    data-loader        PyTorch's DataLoader                      scenarios.builders.data_loaders
    tf-data            tf.data's map and prefetch                scenarios.builders.data_loaders
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BeforeValidator, Field

from devices.describe.field_types import fault
from devices.describe.quantities import one_of
from scenarios.builders.builder import Builder
from scenarios.builders.data_loaders import DataLoaderFields, DataLoadingFields, TfDataFields
from scenarios.builders.gpt import Gpt
from scenarios.builders.random_dag import Branchy, RandomDag
from scenarios.file.document import Document
from scenarios.workloads.workload import Workload
from sim.base.errors import InputError, hint
from sim.graph.graph import Graph
from sim.machine.machine import Machine

if TYPE_CHECKING:
    from sim.trace import Trace


BUILDERS: Final[Mapping[str, type[Builder]]] = {
    "gpt": Gpt,
    "transformer": Gpt,
    "branchy": Branchy,
    "random-dag": RandomDag,
    "data-loading": DataLoadingFields,
    "data-loader": DataLoaderFields,
    "tf-data": TfDataFields,
}
"""Builder of each value of ``model``."""


def _check_known(value: Any) -> Any:
    """Raise if a mapping names no builder."""
    models = ", ".join(BUILDERS)
    if not isinstance(value, dict) or "model" not in value:
        raise fault(f"should be a mapping with the key model, one of {models}")
    name = value["model"]
    if not isinstance(name, str) or name not in BUILDERS:
        raise fault(f"there is no model {name!r}{hint(str(name), BUILDERS)}", ("model",))
    return value


def _on_accelerators(graph: Graph, machine: Machine) -> Graph:
    """Return the graph with its pins gpu0, gpu1, ... moved to the machine's accelerators of other names.

    Raises
    ------
    InputError
        The machine has too few accelerators.
    """
    numbers = {pin: int(pin[3:]) for pin in graph.pins if re.fullmatch(r"gpu\d+", pin)}
    if not numbers or not numbers.keys().isdisjoint(machine.positions):
        return graph
    n, targets = 1 + max(numbers.values()), machine.accelerators
    if len(targets) < n:
        message = f"needs an accelerator for each replica, {n:,}; the machine has {len(targets):,}"
        raise InputError(message, path=("replicas",))
    return replace(graph, pins=tuple(targets[numbers[pin]] if pin in numbers else pin for pin in graph.pins))


if TYPE_CHECKING:
    AnyBuilder = Builder
else:
    AnyBuilder = Annotated[one_of(BUILDERS, lambda value: value["model"]), BeforeValidator(_check_known)]


class Build(Workload):
    """A graph made from a few sizes.

    Attributes
    ----------
    build_
        which builder, and its sizes
    """

    build_: AnyBuilder = Field(alias="build")

    @property
    def batch(self) -> int | None:
        """Samples of a decoder's batch."""
        return self.build_.batch if isinstance(self.build_, Gpt) else None

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens of a decoder's sample."""
        return self.build_.sequence if isinstance(self.build_, Gpt) else None

    def build(self, document: Document, machine: Machine) -> Graph:
        """Make the graph."""
        with document.placing("workload", "build"):
            return _on_accelerators(self.build_.graph(), machine)

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return the default machine of the builder."""
        return self.build_.default_machine()

    def default_policy(self) -> Mapping[str, Any] | None:
        """Return the default policy of the builder."""
        return self.build_.default_policy()

    def report(self, trace: Trace) -> dict[str, Any]:
        """Return the report of the builder; of training, a note if `train` predicts longer kernels."""
        builder = self.build_
        if not isinstance(builder, Gpt) or builder.optimizer is None:
            return builder.report(trace)
        from scenarios.workloads.calibrations import calibration_for, note_on_calibration

        used = trace.job.machine.devices[int(trace.device[0])]
        fitted = calibration_for(used, builder.dtype)
        return {"note": note_on_calibration(used, fitted)} if fitted else {}
