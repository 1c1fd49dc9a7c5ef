"""Runs for tests: whatever is simulated is held to every invariant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenario_texts import write

from scenarios.run.execute import Result, run_scenario
from scenarios.run.load import load_scenario
from sim import Graph, Machine, Policy, Trace, simulate


def checked(graph: Graph, machine: Machine, policy: Policy, **more: Any) -> Trace:
    """Simulate, with the arguments of `sim.simulate`."""
    trace = simulate(graph, machine, policy, **more)
    trace.check()
    return trace


def run_text(text: str, folder: Path, *sets: str, policy: str | None = None) -> Result:
    """Run a scenario that is text, with settings; a file in `folder` holds it."""
    return run_scenario(load_scenario(write(folder, text), sets=sets), policy, check=True)
