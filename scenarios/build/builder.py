"""What makes a graph from a few sizes: a class whose fields are the keys of ``workload: {build: ...}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devices.describe.quantities import Strict
from sim.graph.graph import Graph

__all__ = ["Builder"]


class Builder(Strict):
    """What a builder accepts; override `graph`, and `default_machine` where one machine suggests itself."""

    def graph(self) -> Graph:
        """Return the graph."""
        raise TypeError(f"{type(self).__name__} must define graph()")

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return what it runs on in a scenario without a machine; None: there must be one."""
        return None
