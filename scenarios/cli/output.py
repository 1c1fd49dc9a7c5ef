"""How answers look: JSON for programs, tables for people; nothing else goes to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scenarios.cli.pipelines import RANK_COLUMNS, pipeline_line, rank_rows
from scenarios.cli.streams import stream_notes
from scenarios.compare import Comparison
from scenarios.expect import Outcome
from scenarios.pipeline_compare import COLUMNS, is_pipelines, pipeline_rows
from scenarios.repeat import Repeats
from scenarios.run import Result
from sim.units import format_bytes, format_duration

__all__ = [
    "percent",
    "print_comparison",
    "print_json",
    "print_list",
    "print_repeats",
    "print_result",
    "print_table",
]

_WIDTH: Final = 160
"""Columns of a table that goes to a file or a pipe."""


_METHOD: Final = (
    "The breakdown follows the dependency chain back from the last op. `sim explain` also follows streams "
    "and hosts, so its parts differ."
)


def console() -> Console:
    """Return a console for stdout: as wide as the terminal, or wide enough."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _WIDTH)


def print_json(value: Any) -> None:
    """Print one JSON value; the same value gives the same bytes."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_list(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print names with a line about each."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2), pad_edge=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, line in rows or [("(none)", "")]:
        table.add_row(Text(name), Text(line))
    out = console()
    out.print(Text(title))
    out.print(table)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Print a table; the first `left` columns are text, the others numbers."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if i < left else "right", no_wrap=i > 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * share:.1f}%"


def print_result(result: Result) -> None:
    """Print what came out of one run."""
    summary = result.summary
    out = console()
    out.print(Text(f"{result.scenario}: {result.policy}", style="bold"))
    out.print(Text(f"makespan {format_duration(summary['makespan_ns'])}, {_above_bound(summary)}"))
    critical = format_duration(summary["critical_path_ns"])
    ran = "1 task ran" if summary["tasks"] == 1 else f"{summary['tasks']:,} tasks ran"
    out.print(Text(f"critical path {critical}; {ran}"))
    out.print()
    unused = [
        name
        for name, use in summary["devices"].items()
        if "unused" in use["idle_reasons"] and not use["peak_memory_bytes"]
    ]
    print_table(
        ("device", "busy", "span", "idle", "utilisation", "bubble", "peak memory", "why idle"),
        [
            (
                name,
                format_duration(use["busy_ns"]),
                format_duration(use["span_ns"]),
                format_duration(use["idle_ns"]),
                percent(use["utilisation"]),
                percent(use["bubble"]),
                format_bytes(use["peak_memory_bytes"], iec=True),
                reasons(use["idle_reasons"]),
            )
            for name, use in summary["devices"].items()
            if name not in unused
        ],
    )
    if unused:
        out.print(Text(f"unused: {', '.join(unused)}"), soft_wrap=True)
    for note in stream_notes([result]):
        out.print(Text(note), soft_wrap=True)
    _print_memory(summary, out)
    used = {name: use for name, use in summary["links"].items() if use["bytes"]}
    if used:
        out.print()
        print_table(
            ("link", "bytes", "busy", "utilisation"),
            [
                (
                    name,
                    format_bytes(use["bytes"], iec=True),
                    format_duration(use["busy_ns"]),
                    percent(use["utilisation"]),
                )
                for name, use in used.items()
            ],
        )
    if summary["pipeline"]:
        out.print()
        out.print(Text(pipeline_line(summary["pipeline"])))
        print_table(RANK_COLUMNS, rank_rows(summary["pipeline"]))
    _print_outcomes(result.outcomes, out)


def print_repeats(repeats: Sequence[Repeats]) -> None:
    """Print how the makespan of each case is distributed over the seeds."""
    print_table(
        ("policy", "runs", "min", "p5", "p50", "p95", "max"),
        [
            (
                each.result.policy,
                str(len(each.seeds)),
                *map(
                    format_duration,
                    (
                        min(each.makespan_ns),
                        *map(each.percentile_ns, (5, 50, 95)),
                        max(each.makespan_ns),
                    ),
                ),
            )
            for each in repeats
        ],
    )


def _print_memory(summary: Mapping[str, Any], out: Console) -> None:
    """Print what the allocators did, when there were any, and who held most at the peak."""
    used = {name: use for name, use in summary.get("memory", {}).items() if use["allocations"]}
    if not used:
        return
    out.print()
    print_table(
        ("memory of", "peak in use", "at", "reserved", "fragmentation", "largest holders at the peak"),
        [
            (
                name,
                format_bytes(use["peak_in_use_bytes"], iec=True),
                format_duration(use["peak_ns"]),
                format_bytes(use["peak_reserved_bytes"], iec=True),
                format_bytes(use["fragmentation_bytes"], iec=True),
                ", ".join(
                    f"{holder['tensor']} {format_bytes(holder['nbytes'], iec=True)}"
                    for holder in use["holders"][:3]
                ),
            )
            for name, use in used.items()
        ],
    )


def print_comparison(comparison: Comparison) -> None:
    """Print one table for all runs, the fastest first, and one line each on why they differ."""
    ranked, fastest = comparison.ranked, comparison.fastest.trace.makespan_ns
    bound = comparison.lower_bound_ns
    out = console()
    out.print(Text(comparison.fastest.scenario, style="bold"))
    rows = []
    for result in ranked:
        summary = result.summary
        makespan = summary["makespan_ns"]
        busiest = max(summary["devices"], key=lambda name: summary["devices"][name]["utilisation"])
        use = summary["devices"][busiest]
        rows.append(
            (
                result.policy,
                format_duration(makespan),
                f"{makespan / fastest:.3f}x" if fastest else "",
                percent(makespan / bound - 1) if bound else "",
                f"{busiest} {percent(use['utilisation'])}",
                format_bytes(use["peak_memory_bytes"], iec=True),
            )
        )
    print_table(
        ("policy", "makespan", "vs fastest", "above bound", "busiest device", "its peak memory"), rows
    )
    if is_pipelines(ranked):
        out.print()
        print_table(COLUMNS, pipeline_rows(ranked))
    out.print()
    width = max(len(result.policy) for result in ranked)
    for result in ranked:
        out.print(Text(f"{result.policy:{width}}  {comparison.why(result)}"), soft_wrap=True)
    out.print(
        Text(_METHOD + (f" Lower bound of all runs: {format_duration(bound)}." if bound else "")),
        soft_wrap=True,
    )
    for note in stream_notes(ranked):
        out.print(Text(note), soft_wrap=True)
    expected = [outcome for result in ranked for outcome in result.outcomes]
    _print_outcomes(expected, out)


def _above_bound(summary: Mapping[str, Any]) -> str:
    bound = summary["lower_bound_ns"]
    if summary["loops_counted_once"]:
        return f"lower bound {format_duration(bound)} (chains through loops counted once)"
    if not bound:
        return "lower bound 0 ns"
    share = summary["makespan_ns"] / bound - 1
    return f"{percent(share) + ' above' if share else 'at'} the lower bound of {format_duration(bound)}"


def reasons(idle: Mapping[str, int], *, shown: int = 3) -> str:
    """Return the largest reasons for idle time, the largest first."""
    largest = sorted((item for item in idle.items() if item[1]), key=lambda item: -item[1])
    return ", ".join(f"{reason} {format_duration(ns)}" for reason, ns in largest[:shown])


def _print_outcomes(outcomes: Sequence[Outcome], out: Console) -> None:
    """Say what is not as expected, or that all is; nothing when nothing was expected."""
    failed = [outcome.message for outcome in outcomes if not outcome.passed]
    if outcomes:
        out.print()
    if outcomes and not failed:
        out.print(Text("all as expected"))
    for message in failed:
        out.print(Text(f"not as expected: {message}"), soft_wrap=True)
