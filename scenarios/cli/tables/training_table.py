"""A training run as `sim run` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scenarios.cli.text_tables import print_table
from scenarios.training_run.plan import Plan
from sim.export.result_rows import percent
from sim.words.units import format_duration

__all__ = ["print_training"]

_HOUR_NS: Final = 3_600_000_000_000


def print_training(plan: Plan, told: Mapping[str, Any]) -> None:
    """Print a line about machines and intervals, and a row for each recovery policy."""
    machines = f"{plan.workers:,} worker{'s' * (plan.workers > 1)}"
    machines += f", {plan.spares:,} spare" if plan.spares else ""
    print(f"training run: {machines}{_intervals(told['interval'])}")
    print_table(
        [
            {
                "recovery": name,
                "goodput": percent(life["goodput"]),
                "steps": f"{life['steps']:,}",
                "end": _long(life["end_ns"]),
                **{
                    state: percent(ns / life["end_ns"] if life["end_ns"] else 0.0)
                    for state, ns in life["time_ns"].items()
                },
                "lost": percent(life["lost_ns"] / life["end_ns"] if life["end_ns"] else 0.0),
                "interruptions": f"{life['interruptions']:,}",
                "fewest workers": f"{life['fewest_workers']:,}",
                "by cause": _causes(life["interruptions_by_cause"]),
            }
            for name, life in told["recovery"].items()
        ]
    )


def _intervals(found: Mapping[str, int] | None) -> str:
    if found is None:
        return ""
    mtbf, young, daly, best = (_long(found[f"{key}_ns"]) for key in ("mtbf", "young", "daly", "best"))
    return f"; a failure every {mtbf}: best saved every {best} (Daly {daly}, Young {young})"


def _long(ns: int) -> str:
    """Return a duration, from two hours on in hours."""
    return format_duration(ns) if ns < 2 * _HOUR_NS else f"{ns / _HOUR_NS:.4g} h"


def _causes(counts: Mapping[str, int]) -> str:
    """Return the three causes that interrupted most."""
    ranked = sorted((item for item in counts.items() if item[1]), key=lambda item: -item[1])
    return ", ".join(f"{cause} {count:,}" for cause, count in ranked[:3])
