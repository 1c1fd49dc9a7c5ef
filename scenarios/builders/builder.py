"""What makes a graph from a few sizes: a class whose fields are the keys of ``workload: {build: ...}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from devices.describe.quantities import Strict
from scenarios.file.faults import input_error
from sim.base.errors import InputError
from sim.graph.graph import Graph

if TYPE_CHECKING:
    from sim.trace import Trace


class Keys(Strict):
    """Keys of a builder.

    Raises
    ------
    InputError
        From Python: a wrong value, a key that is missing, or one that there is not.
    """

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise input_error(error, type(self), given) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # a file's values go past it


class Builder(Keys):
    """What a builder accepts; override `graph`, and `default_machine` where one machine suggests itself."""

    def graph(self) -> Graph:
        """Return the graph."""
        raise InputError(f"{type(self).__name__} must define graph()")

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return what it runs on in a scenario without a machine; None: there must be one."""
        return None

    def default_policy(self) -> Mapping[str, Any] | None:
        """Return what decides where a scenario does not say; None: what does so everywhere."""
        return None

    def report(self, trace: Trace) -> dict[str, Any]:
        """Return what the summary of a run has besides, by key."""
        return {}
