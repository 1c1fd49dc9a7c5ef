"""What ``sim explain --json`` prints: parts of the makespan, the executed path, the longest idle gaps."""

from __future__ import annotations

from typing import Any, Final

from scenarios.report.why import makespan_parts, why_fast
from scenarios.run.execute import Result
from sim.explain.derived_columns import Facts
from sim.explain.held_up_most import held_up_most
from sim.explain.path import Step, executed_path
from sim.explain.text import blame, largest_gaps
from sim.trace import Trace

__all__ = ["EXPLANATION_SCHEMA", "explanation"]

EXPLANATION_SCHEMA: Final = "sim.explanation/1"
"""What ``"schema"`` says."""


def explanation(result: Result, *, gaps: int = 20) -> dict[str, Any]:
    """Return why a run took as long as it did, as plain values.

    Parameters
    ----------
    result : Result
    gaps : int
        How many of the longest idle gaps are told.
    """
    trace = result.trace
    facts = Facts(trace, result.policy)
    path = executed_path(trace, facts)
    return {
        "schema": EXPLANATION_SCHEMA,
        "scenario": result.scenario,
        "policy": result.policy,
        "makespan_ns": trace.makespan_ns,
        "why": why_fast(trace),
        "parts_ns": makespan_parts(trace),
        "held_up_most": held_up_most(facts, path, blame) or None,
        "path": [_step(trace, facts, step) for step in path],
        "unused_devices": result.summary["unused_devices"],
        "time_ns": {name: use["time_ns"] for name, use in result.summary["devices"].items()},
        "idle_reasons": {name: use["idle_reasons"] for name, use in result.summary["devices"].items()},
        **{key: value for key, value in result.summary.items() if key == "data_loading"},
        "gaps": [gap._asdict() for gap in largest_gaps(trace, gaps, facts)],
    }


def _step(trace: Trace, facts: Facts, step: Step) -> dict[str, Any]:
    """Return one step, with names in place of numbers: an op's, or that of the tensor that travels."""
    graph = trace.job.graph
    moves = step.row >= facts.n
    columns = trace.transfers if moves else trace.tasks
    row = step.row - facts.n if moves else step.row
    named = (
        {"tensor": graph.tensor_name(int(columns["tensor"][row]))}
        if moves
        else {
            "op": graph.op_names[int(columns["op"][row])],
            "device": trace.job.machine.devices[int(trace.device[row])].name,
        }
    )
    return {
        "kind": step.kind,
        "reason": step.reason or None,
        **named,
        "iteration": int(columns["iteration"][row]),
        "start_ns": step.start_ns,
        "end_ns": step.end_ns,
    }
