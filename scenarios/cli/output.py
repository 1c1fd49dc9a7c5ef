"""Output on stdout: JSON for programs, tables for people, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scenarios.cli.text_tables import print_table, strong
from sim.base.units import format_duration
from sim.export.tables import text_table

if TYPE_CHECKING:
    from scenarios.report.compare import Comparison
    from scenarios.run.execute import Result
    from scenarios.variants.repeat import Repeats


def print_json(value: Any) -> None:
    """Print a value as JSON; equal values give equal bytes."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_told(told: Result | Comparison) -> None:
    """Print the result of one run, or the comparison of several."""
    print(strong(told.title))
    for i, part in enumerate(told.sections):
        print("\n" * bool(i) + "\n".join(part.lines), end="\n" * bool(part.lines))
        for table in part.tables:
            print_table(table)
        for note in part.notes:
            print(note)


def print_repeats(repeats: Sequence[Repeats]) -> None:
    """Print the distribution of each case's makespan over the seeds."""
    rows = []
    for each in repeats:
        low, high = min(each.makespan_ns), max(each.makespan_ns)
        told = each.to_json()
        row = {**told, "policy": each.result.policy, "min_ns": low, "max_ns": high}
        rows.append(row | {"failed": None if each.failed is None else len(each.failed)})
    columns = ["policy", "runs", "min_ns", "p5_ns", "p50_ns", "p95_ns", "max_ns"]
    some_may = any(each.failed is not None for each in repeats)
    print_table(text_table(rows, [*columns, *(["failed"] * some_may)]))
    for row in rows:
        if row["mean_interval_ns"] is not None and row["min_ns"] < row["max_ns"]:
            intervals = (row["mean_interval_ns"], row["p50_interval_ns"])
            mean, median = (" .. ".join(map(format_duration, interval)) for interval in intervals)
            of = f"{row['policy']}: " * (len(rows) > 1)
            print(f"{of}mean {format_duration(row['mean_ns'])} (95 %: {mean}), median (95 %: {median})")
        elif row["runs"] > 1 and row["min_ns"] == row["max_ns"]:
            print(f"{row['policy']}: all seeds take the same; nothing that a seed draws counts here")
