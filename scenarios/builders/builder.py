"""Base class of builders, which make a graph from a few sizes: the keys of ``workload: {build: ...}``."""

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


class Builder(Strict):
    """A graph builder and its keys; override `graph`, and `default_machine` if a machine suggests itself.

    Raises
    ------
    InputError
        From Python: a value is wrong, or a key is missing or unknown.
    """

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise input_error(error, type(self), values) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # values from a file bypass it

    def graph(self) -> Graph:
        """Return the graph."""
        raise InputError(f"{type(self).__name__} must define graph()")

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return the machine to use if a scenario has none; None if it must have one."""
        return None

    def default_policy(self) -> Mapping[str, Any] | None:
        """Return the policy to use if a scenario has none; None for the general default."""
        return None

    def report(self, trace: Trace) -> dict[str, Any]:
        """Return the additional keys of the run's summary."""
        return {}
