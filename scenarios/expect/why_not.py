"""Why an op had not started by a time, for what is expected of its start or of an order of ops."""

from __future__ import annotations

from scenarios.fields.results import row_names
from sim.diff.held import held_at
from sim.diff.schedule import schedule_of
from sim.trace import Trace
from sim.words.units import format_duration

__all__ = ["why_not_at"]


def why_not_at(trace: Trace, policy: str, op: str, at_ns: int) -> str:
    """Return a line that says what held an op up at a time; nothing if it had started, or nothing is known.

    Parameters
    ----------
    trace : Trace
    policy : str
        What the run is called.
    op : str
        As expectations name it.
    at_ns : int
    """
    held = held_at(schedule_of(trace, "", policy=policy), row_names(trace).index(op), at_ns)
    return f"\n  at {format_duration(at_ns)} {held.told}" if held else ""
