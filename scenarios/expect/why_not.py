"""Why a result is not as expected: what held an op up, what was in memory."""

from __future__ import annotations

from scenarios.fields.results import row_names
from sim.analysis.memory_use import memory_use
from sim.diff.held import held_at
from sim.diff.schedule import schedule_of
from sim.trace import Trace
from sim.words.units import format_bytes, format_duration

__all__ = ["held_at_the_peak", "why_not_at"]


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


def held_at_the_peak(trace: Trace, device: str, nbytes: int) -> str:
    """Return a line that says when most memory of a device was in use, and by which tensors.

    Nothing if tensors do not add up to so many bytes: then an allocator rounds, or waits, as it does.
    """
    use = memory_use(trace, holders=3)[device]
    if use.peak_bytes != nbytes or not use.holders:
        return ""
    told = ", ".join(f"{each.name!r} ({format_bytes(each.nbytes)})" for each in use.holders)
    rest = nbytes - sum(each.nbytes for each in use.holders)
    more = f" and others ({format_bytes(rest)})" if rest else ""
    return f"\n  at {format_duration(use.peak_ns)}, at the peak, {device} holds {told}{more}"
