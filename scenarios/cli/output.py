"""How answers look: JSON for programs, tables for people; nothing else goes to stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scenarios.cli.hints import no_gap_notes, stream_notes, unused_notes
from scenarios.cli.text_tables import print_table, strong
from scenarios.run.result_sections import folded, tuned
from sim.base.units import format_duration
from sim.export.tables import device_rows, summary_lines

if TYPE_CHECKING:
    from scenarios.expectations import Outcome
    from scenarios.report.compare import Comparison
    from scenarios.run.execute import Result
    from scenarios.variants.repeat import Repeats


def print_json(value: Any) -> None:
    """Print one JSON value; the same value gives the same bytes."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_result(result: Result) -> None:
    """Print what came out of one run."""
    summary = result.summary
    print(strong(f"{result.scenario}: {result.policy}"))
    print("\n".join(summary_lines(result.trace, summary)))
    if result.tried:
        print(tuned(result.tried))
    if "folded" in summary:
        print(folded(summary["folded"]))
    print()
    print_table(device_rows(summary))
    unused = unused_notes({result.policy: summary["unused_devices"]})
    for note in (*unused, *stream_notes([result]), *_model_notes([result])):
        print(note)
    for part in result.sections:
        print("\n" + "\n".join(part.lines) if part.lines else "")
        for table in part.tables:
            print_table(table)
        for note in part.notes:
            print(note)
    _print_outcomes(result.outcomes)


def _model_notes(results: Sequence[Result]) -> list[str]:
    """Return what times rest on where nobody chose it: the model of collectives, what kernels take."""
    told = (result.summary.get(key) for result in results for key in ("collectives", "note"))
    return list(dict.fromkeys(line for line in told if line))


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


def print_comparison(comparison: Comparison) -> None:
    """Print one table for all runs, the fastest first, and one line each on why they differ."""
    from scenarios.report.pipeline_compare import is_pipelines, pipeline_rows

    ranked = comparison.ranked
    bound, loops = comparison.lower_bound_ns, comparison.loops_counted_once
    unequal = comparison.unequal
    print(
        strong(comparison.fastest.scenario)
        + (f": the runs use different numbers of devices ({unequal})" if unequal else "")
    )
    print_table(comparison.rows)
    if is_pipelines(ranked):
        print()
        print_table(pipeline_rows(ranked))
    print()
    width = max(len(policy) for policy, _ in comparison.reasons)
    for policy, why in comparison.reasons:
        print(f"{policy:{width}}  {why}")
    once = " (chains through loops counted once)" * loops
    if bound:
        print(f"Lower bound of all runs: {format_duration(bound)}{once}.")
    unused = unused_notes({result.policy: result.summary["unused_devices"] for result in ranked})
    no_gap = no_gap_notes(result.summary["no_gap"] for result in ranked if not loops)
    if comparison.too_close:
        best = comparison.fastest.policy
        print(f"Nearer to {best} than the costs of ops are sure: {', '.join(comparison.too_close)}")
    for note in (*no_gap, *unused, *stream_notes(ranked), *_model_notes(ranked)):
        print(note)
    _print_outcomes([outcome for result in ranked for outcome in result.outcomes])


def _print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Say what is not as expected, or that all is; nothing when nothing was expected."""
    failed = [outcome.message for outcome in outcomes if not outcome.passed]
    if outcomes:
        print()
    if outcomes and not failed:
        print("all as expected")
    for message in failed:
        print(f"not as expected: {message}")
