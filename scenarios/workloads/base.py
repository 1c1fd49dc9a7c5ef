"""What a kind of workload is: some keys of ``workload:``, and the graph that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.document import Document
from scenarios.quantities import Strict
from sim.graph import Graph
from sim.model import Machine

__all__ = ["Workload"]


class Workload(Strict):
    """One kind of workload; its fields are the keys that it accepts.

    Override `build`, and `default_machine` where a machine may be left out. The kind becomes known by
    one line in `scenarios.workloads.WORKLOADS`.
    """

    def build(self, document: Document, machine: Machine) -> Graph:
        """Return the graph.

        Parameters
        ----------
        document : Document
            The scenario: finds files beside it, and places for errors (this workload's path begins with
            ``"workload"``).
        machine : Machine
            What it will run on.

        Raises
        ------
        InputError
            The graph cannot be built, or names what the machine has not.
        """
        raise TypeError(f"{type(self).__name__} must define build()")

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return the machine that is meant when a scenario has none; None: it must have one."""
        return None
