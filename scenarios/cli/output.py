"""How answers look: JSON for programs, tables for people; nothing else goes to stdout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from scenarios.cli.pipeline_rows import RANK_COLUMNS, pipeline_line, rank_rows
from scenarios.cli.stream_hints import stream_notes
from scenarios.cli.text_tables import print_table, strong
from sim.words.units import format_bytes, format_duration

if TYPE_CHECKING:
    from scenarios.fields.expect import Outcome
    from scenarios.report.compare import Comparison
    from scenarios.run.execute import Result
    from scenarios.run.repeat import Repeats

__all__ = ["percent", "print_comparison", "print_json", "print_repeats", "print_result"]

_METHOD: Final = (
    "The breakdown follows the dependency chain back from the last op. `sim explain` also follows streams "
    "and hosts, so its parts differ."
)


def print_json(value: Any) -> None:
    """Print one JSON value; the same value gives the same bytes."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * share:.1f}%"


def print_result(result: Result) -> None:
    """Print what came out of one run."""
    summary = result.summary
    print(strong(f"{result.scenario}: {result.policy}"))
    print(f"makespan {format_duration(summary['makespan_ns'])}, {_above_bound(summary)}")
    critical = format_duration(summary["critical_path_ns"])
    ran = "1 task ran" if summary["tasks"] == 1 else f"{summary['tasks']:,} tasks ran"
    print(f"critical path {critical}; {ran}")
    print()
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
        print(f"unused: {', '.join(unused)}")
    for note in stream_notes([result]):
        print(note)
    _print_memory(summary)
    used = {name: use for name, use in summary["links"].items() if use["bytes"]}
    if used:
        print()
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
        print()
        print(pipeline_line(summary["pipeline"]))
        print_table(RANK_COLUMNS, rank_rows(summary["pipeline"]))
    _print_outcomes(result.outcomes)


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


def _print_memory(summary: Mapping[str, Any]) -> None:
    """Print what the allocators did, when there were any, and who held most at the peak."""
    used = {name: use for name, use in summary.get("memory", {}).items() if use["allocations"]}
    if not used:
        return
    print()
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
    from scenarios.report.pipeline_compare import COLUMNS, is_pipelines, pipeline_rows

    ranked, fastest = comparison.ranked, comparison.fastest.trace.makespan_ns
    bound = comparison.lower_bound_ns
    print(strong(comparison.fastest.scenario))
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
        print()
        print_table(COLUMNS, pipeline_rows(ranked))
    print()
    width = max(len(result.policy) for result in ranked)
    for result in ranked:
        print(f"{result.policy:{width}}  {comparison.why(result)}")
    print(_METHOD + (f" Lower bound of all runs: {format_duration(bound)}." if bound else ""))
    for note in stream_notes(ranked):
        print(note)
    expected = [outcome for result in ranked for outcome in result.outcomes]
    _print_outcomes(expected)


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


def _print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Say what is not as expected, or that all is; nothing when nothing was expected."""
    failed = [outcome.message for outcome in outcomes if not outcome.passed]
    if outcomes:
        print()
    if outcomes and not failed:
        print("all as expected")
    for message in failed:
        print(f"not as expected: {message}")
