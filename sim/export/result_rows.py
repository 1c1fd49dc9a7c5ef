"""What a summary says, for people: its first lines, and a row for each device; in terminals and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sim.analysis.failed_ops import attempt_lines, failure_text, late_lines
from sim.explain.time_use import WORD_OF_REASON
from sim.record.record import Record
from sim.words.units import format_bytes, format_duration

__all__ = ["device_rows", "largest", "percent", "size", "summary_lines"]


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * share:.1f}%"


def size(nbytes: int) -> str:
    """Return an amount of memory."""
    return format_bytes(nbytes, iec=True)


def largest(parts: Mapping[str, int], show: Callable[[int], str] = format_duration, most: int = 2) -> str:
    """Return the largest parts of something, the largest first."""
    ranked = sorted((item for item in parts.items() if item[1]), key=lambda item: -item[1])
    return ", ".join(f"{part} {show(amount)}" for part, amount in ranked[:most])


def summary_lines(trace: Record, summary: Mapping[str, Any]) -> list[str]:
    """Return how long a run took, what of it failed, and how near it comes to the lower bound."""
    ran = "1 task ran" if summary["tasks"] == 1 else f"{summary['tasks']:,} tasks ran"
    makespan = f"makespan {format_duration(summary['makespan_ns'])}"
    lines: list[str]
    if aborted := attempt_lines(trace):
        told = summary["failures"]
        done, lost = ("1 step" if n == 1 else f"{n:,} steps" for n in (told["steps"], told["steps_lost"]))
        lines = [*aborted, f"{makespan}; {done} done, {lost} lost; {ran}"]
    elif failed := failure_text(trace):
        lines = [failed, f"{makespan}, until all that ran had ended; {ran}"]
    else:
        critical = format_duration(summary["critical_path_ns"])
        lines = [f"{makespan}, {_above_bound(summary)}", f"critical path {critical}; {ran}"]
    if (residue := summary.get("unexplained")) is not None:
        lines.append(
            f"unexplained {format_duration(residue['ns'])}, {percent(residue['share'])} of the makespan"
        )
    return lines + late_lines(trace)


def _above_bound(summary: Mapping[str, Any]) -> str:
    bound = summary["lower_bound_ns"]
    if summary["loops_counted_once"]:
        return f"lower bound {format_duration(bound)} (chains through loops counted once)"
    if summary["gap"] is None:
        return f"no lower bound: {summary['no_gap']}"
    share = summary["gap"]
    return f"{percent(share) + ' above' if share else 'at'} the lower bound of {format_duration(bound)}"


def device_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return how each device that ran something, or held something, spent the makespan."""
    cores = any(use["cores"] and use["time_ns"]["compute"] for use in summary["devices"].values())
    return [
        {
            "device": name,
            **{word: format_duration(ns) for word, ns in use["time_ns"].items()},
            **(
                {"cores used": f"{percent(use['utilisation'])} of {use['cores']}" if use["cores"] else ""}
                if cores
                else {}
            ),
            "span": format_duration(use["span_ns"]),
            "bubble": percent(use["bubble"]),
            "peak memory": size(use["peak_memory_bytes"]),
            "waits for": largest(
                {reason: ns for reason, ns in use["idle_reasons"].items() if reason not in WORD_OF_REASON},
                most=3,
            ),
        }
        for name, use in summary["devices"].items()
        if "unused" not in use["idle_reasons"] or use["peak_memory_bytes"]
    ]
