"""How answers look: JSON for programs, tables for people; nothing else goes to stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scenarios.cli.text_tables import print_table, strong
from sim.base.units import format_duration

if TYPE_CHECKING:
    from scenarios.report.compare import Comparison
    from scenarios.run.execute import Result
    from scenarios.variants.repeat import Repeats


def print_json(value: Any) -> None:
    """Print one JSON value; the same value gives the same bytes."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_told(told: Result | Comparison) -> None:
    """Print what came out of one run, or of several that are compared."""
    print(strong(told.title))
    for i, part in enumerate(told.sections):
        print("\n" * bool(i) + "\n".join(part.lines), end="\n" * bool(part.lines))
        for table in part.tables:
            print_table(table)
        for note in part.notes:
            print(note)


def print_repeats(repeats: Sequence[Repeats]) -> None:
    """Print how the makespan of each case is distributed over the seeds."""
    print_table(
        [
            {
                "policy": each.result.policy,
                "runs": str(len(each.seeds)),
                "min": format_duration(min(each.makespan_ns)),
                **{f"p{p}": format_duration(each.percentile_ns(p)) for p in (5, 50, 95)},
                "max": format_duration(max(each.makespan_ns)),
                **({} if each.failed is None else {"failed": str(len(each.failed))}),
            }
            for each in repeats
        ]
    )
