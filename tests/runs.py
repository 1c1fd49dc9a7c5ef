"""Runs for tests: whatever is simulated is held to every invariant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenario_texts import write

from devices.machine import make_device
from policies.issue.ready_queue import ReadyQueue
from scenarios.run.execute import Result, run_scenario
from scenarios.run.load import load_scenario
from sim import Device, Graph, GraphBuilder, Machine, Policy, Trace, simulate


def checked(graph: Graph, machine: Machine, policy: Policy, **more: Any) -> Trace:
    """Simulate, with the arguments of `sim.simulate`."""
    trace = simulate(graph, machine, policy, **more)
    trace.check()
    return trace


def run_text(text: str, folder: Path, *sets: str, policy: str | None = None) -> Result:
    """Run a scenario that is text, with settings; a file in `folder` holds it."""
    return run_scenario(load_scenario(write(folder, text), sets=sets), policy, check=True)


def run_on_cpu(
    ops: list[tuple[int, int]], *, attributes: dict[int, dict[str, Any]] | None = None, **spec: Any
) -> Trace:
    """Run ops given as (ready, duration) on a CPU; the later ones wait for another device."""
    b = GraphBuilder("ops")
    for i, (ready_ns, duration_ns) in enumerate(ops):
        after = [b.op(f"until{i}", duration_ns=ready_ns, device="clock")] if ready_ns else []
        own = (attributes or {}).get(i)
        b.op(f"op{i}", duration_ns=duration_ns, device="cpu0", after=after, attributes=own)
    cpu = make_device("cpu0", {"kind": "cpu", **spec})
    return checked(b.build(), Machine((cpu, Device("clock", "clock", workers=len(ops)))), ReadyQueue())
