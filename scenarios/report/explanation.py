"""Output of ``sim explain --json``: parts of the makespan, the executed path, the longest idle gaps."""

from __future__ import annotations

from typing import Any, Final

from scenarios.run.execute import Result
from sim.explain.communication import exposed_communication
from sim.explain.derived import DerivedColumns
from sim.explain.idle import idle_reasons
from sim.explain.makespan_breakdown import breakdown, breakdown_text
from sim.explain.narration import grouped_gaps, host_time, largest_gaps, steps_in
from sim.explain.path import PathStep, executed_path
from sim.explain.sentences import TaskLife, lives
from sim.explain.time_use import time_use
from sim.trace import Trace

EXPLANATION_SCHEMA: Final = "sim.explanation/1"
"""Value of ``"schema"`` in that output."""


def explanation(
    result: Result, facts: DerivedColumns, *, gaps: int = 20, op: str | None = None
) -> dict[str, Any]:
    """Return the explanation of a run's duration, as plain values.

    Parameters
    ----------
    result : Result
    facts : DerivedColumns
        Derived columns of the part of the run to explain.
    gaps : int
        Number of idle gaps to list, longest first.
    op : str, optional
        Op whose executions are listed as well.
    """
    trace, columns, path = result.trace, facts.within(), executed_path(facts)
    return {
        "schema": EXPLANATION_SCHEMA,
        "scenario": result.scenario,
        "policy": result.policy,
        "makespan_ns": trace.makespan_ns,
        "from_ns": facts.from_ns,
        "to_ns": facts.to_ns,
        "why": breakdown_text(columns),
        **breakdown(columns).to_json(),
        "path": [_step(trace, facts, step) for step in steps_in(facts, path)],
        "unused_devices": result.summary["unused_devices"],
        "time_ns": time_use(facts),
        "idle_reasons": idle_reasons(facts),
        "exposed_ns": exposed_communication(facts),
        "host_time": {
            key: {name: {"ns": ns, "calls": calls} for name, (ns, calls) in spent.items()}
            for key, spent in host_time(facts).items()
        },
        **{key: value for key, value in result.summary.items() if key == "data_loading"},
        "idle_groups": [
            group._asdict() | {"longest": group.longest._asdict()} for group in grouped_gaps(facts)
        ],
        "gaps": [gap._asdict() for gap in largest_gaps(facts, gaps)],
        **({} if op is None else {"executions": [_life(trace, facts, life) for life in lives(facts, op)]}),
    }


def _life(trace: Trace, facts: DerivedColumns, life: TaskLife) -> dict[str, Any]:
    """Return the life of a task, with names instead of numbers."""
    return {
        "lane": trace.lane_name(life.row),
        "iteration": int(trace.tasks["iteration"][life.row]),
        "pieces": [piece._asdict() for piece in life.pieces],
        "path": [_step(trace, facts, step) for step in life.path],
        "held_up": [*map(trace.name_of, life.held_up)],
    }


def _step(trace: Trace, facts: DerivedColumns, step: PathStep) -> dict[str, Any]:
    """Return a step of a path with names instead of numbers: that of an op, or of a transferred tensor."""
    named: dict[str, Any] = {"tensor": trace.name_of(step.row)}
    columns, row = trace.transfers, step.row - facts.n
    if step.row < facts.n:
        columns, row = trace.tasks, step.row
        named = {"op": trace.name_of(row), "device": facts.devices[facts.device[row]].name}
    return {
        "kind": step.kind,
        "reason": step.reason or None,
        **named,
        "iteration": int(columns["iteration"][row]),
        "start_ns": step.start_ns,
        "end_ns": step.end_ns,
    }
