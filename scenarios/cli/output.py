"""How answers look: JSON for programs, tables for people; nothing else goes to stdout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from scenarios.cli.hints import little_room, no_gap_notes, stream_notes, unused_notes
from scenarios.cli.text_tables import print_table, strong
from scenarios.training_run.plan import TrainingPlan
from sim.base.units import format_duration
from sim.export.tables import device_rows, largest, percent, size, summary_lines

if TYPE_CHECKING:
    from scenarios.expectations import Outcome
    from scenarios.report.compare import Comparison
    from scenarios.run.execute import Result
    from scenarios.variants.repeat import Repeats
    from sim.job.job import Tried


# ----------------------------------------------------------------------------------------------------------
# A training run as `sim run` prints it.

_HOUR_NS: Final = 3_600_000_000_000


def print_training(plan: TrainingPlan, told: Mapping[str, Any]) -> None:
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


# ----------------------------------------------------------------------------------------------------------

_MOST_LINKS: Final = 20
"""How many links are shown."""
_MOST_LAYERS: Final = 20
"""How many layers of experts are shown."""
_MOST_STALENESS: Final = 12
"""How many rows the table of staleness has."""

_MOST_FOLDED: Final = 10
"""Of how many devices is told what they stand for."""


def print_json(value: Any) -> None:
    """Print one JSON value; the same value gives the same bytes."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_result(result: Result) -> None:
    """Print what came out of one run."""
    summary = result.summary
    print(strong(f"{result.scenario}: {result.policy}"))
    print("\n".join(summary_lines(result.trace, summary)))
    if result.tried:
        print(_tuned(result.tried))
    if "folded" in summary:
        print(_folded(summary["folded"]))
    print()
    unused = summary["unused_devices"]
    print_table(device_rows(summary))
    for note in (*unused_notes({result.policy: unused}), *stream_notes([result]), *_model_notes([result])):
        print(note)
    _print_part(
        {
            "memory of": name,
            "peak in use": size(use["peak_in_use_bytes"]),
            "at": format_duration(use["peak_ns"]),
            "reserved": size(use["peak_reserved_bytes"]),
            "fragmentation": size(use["fragmentation_bytes"]),
            "largest holders at the peak": ", ".join(
                f"{holder['tensor']} {size(holder['nbytes'])}" for holder in use["holders"][:3]
            ),
        }
        for name, use in summary.get("memory", {}).items()
        if use["allocations"]
    )
    _print_links({name: use for name, use in summary["links"].items() if use["bytes"]})
    if summary["pipeline"]:
        _print_pipeline(summary["pipeline"])
    _print_experts(summary.get("experts", {}))
    _print_staleness(summary.get("staleness", {}))
    if told := summary.get("data_loading"):
        from scenarios.builders.input_pipeline import limit_line

        print(f"\n{limit_line(told)}")
    if "train" in summary:
        _print_train(summary["train"])
    if result.training is not None:
        print()
        print_training(result.training.plan, summary["training_run"])
    _print_outcomes(result.outcomes)


def _model_notes(results: Sequence[Result]) -> list[str]:
    """Return what times rest on where nobody chose it: the model of collectives, what kernels take."""
    told = (result.summary.get(key) for result in results for key in ("collectives", "note"))
    return list(dict.fromkeys(line for line in told if line))


def _print_experts(experts: Mapping[str, Any]) -> None:
    """Print how tokens fell on ranks that share experts; of many layers the least balanced."""
    layers: Mapping[str, Mapping[str, Any]] = experts.get("layers", {})
    shown = sorted(layers, key=lambda name: -layers[name]["imbalance"])[:_MOST_LAYERS]
    _print_part(
        {
            "experts": name,
            "imbalance": f"{layer['imbalance']:.2f}",
            "fullest": layer["fullest"],
            "its tokens": f"{layer['tokens'][layer['fullest']]:,}",
            "dropped": f"{layer['dropped']:,}",
        }
        for name, layer in layers.items()
        if name in shown
    )
    if len(layers) > len(shown):
        print(f"\n{len(layers) - len(shown)} more layers are better balanced; --json has them all")


def _print_staleness(told: Mapping[str, Any]) -> None:
    """Print how many updates came with which staleness; the rarest and largest in one row."""
    if not told:
        return
    counts = told["counts"]
    few = counts if len(counts) <= _MOST_STALENESS else counts[: _MOST_STALENESS - 1]
    rows = [(str(stale), n) for stale, n in enumerate(few)]
    if len(few) < len(counts):
        rows.append((f"{len(few)} to {len(counts) - 1}", sum(counts[len(few) :])))
    _print_part(
        {"staleness": stale, "updates": f"{n:,}", "share": percent(n / told["updates"])} for stale, n in rows
    )
    print(f"mean {told['mean']:.2f}, at most {told['max']}")


def _print_links(links: Mapping[str, Mapping[str, Any]]) -> None:
    """Print how links were used; of many those that were contended and busy longest."""
    shown = sorted(links, key=lambda name: (-links[name]["contended_ns"], -links[name]["busy_ns"]))[
        :_MOST_LINKS
    ]
    _print_part(
        {
            "link": name,
            "bytes": size(use["bytes"]),
            "busy": format_duration(use["busy_ns"]),
            "utilisation": percent(use["utilisation"]),
            "contended": format_duration(use["contended_ns"]),
            "bandwidth used": "" if (part := use["bandwidth_utilisation"]) is None else percent(part),
        }
        for name, use in links.items()
        if name in shown
    )
    if len(links) > len(shown):
        print(f"\n{len(links) - len(shown)} more links were used; --json has them all")


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


def _print_part(rows: Iterable[Mapping[str, str]]) -> None:
    """Print a table that has something to say."""
    if found := list(rows):
        print()
        print_table(found)


def _print_pipeline(told: Mapping[str, Any]) -> None:
    """Print sizes, bubble and formula of a pipeline in one line, and a row for each rank."""
    formula = (
        ""
        if told["bubble_formula"] is None
        else f"; formula {100 * told['bubble_formula']:.2f}% ({told['formula']})"
    )
    print(
        f"\n{told['ranks']} ranks, {told['stages']} stages, {told['micro_batches']} micro-batches: "
        f"bubble {100 * told['bubble']:.2f}% of the makespan, {100 * told['span_bubble']:.2f}% of the "
        f"longest span{formula}"
    )
    print_table(
        [
            {
                "rank": f"{rank} ({device})",
                "span": format_duration(told["span_ns"][rank]),
                "computes nothing": format_duration(told["idle_ns"][rank]),
                "activations": str(told["peak_activations"][rank]),
                "waits for": largest(told["waits_for"][rank]),
                "memory at the peak": largest(told["memory_bytes"][rank], size),
            }
            for rank, device in enumerate(told["devices"])
        ]
    )


def _print_train(told: Mapping[str, Any]) -> None:
    """Print time and rate of a training step, and for each rank where its time and its memory go."""
    limit, peak, same = told["capacity_bytes"], told["peak_bytes"], told["folded"]["each_stands_for"]
    fits = ""
    if limit is not None:
        free = f"{size(limit - peak)} ({percent(1 - peak / limit)}) free"
        fits = f"; fits {size(limit)}, {free}{little_room(peak, limit)}"
    folded = (
        f"; each rank below stands for {same:,} GPUs that do the same at the same time" if same > 1 else ""
    )
    print(
        f"\nstep {format_duration(told['step_ns'])} on {told['gpus']:,} GPUs: "
        f"{told['tokens_per_s']:,.0f} tokens/s, {told['tokens_per_s_per_gpu']:,.0f} a GPU, "
        f"MFU {percent(told['mfu'])}{fits}\n{told['parameters'] / 1e9:.4g} billion parameters; "
        f"{told['schedule']}, {told['micro_batches']:,} micro-batches{folded}"
    )
    for note in told["notes"]:
        print(note)
    if told.get("imbalance", 1.0) != 1.0 or told.get("dropped"):
        print(
            f"the fullest rank's experts have {told['imbalance']:.2f} times the mean; "
            f"{percent(told['dropped'])} of the choices are dropped"
        )
    print_table(
        [
            {
                "rank": str(rank),
                **{part.replace("_", " "): format_duration(ns) for part, ns in of["time_ns"].items()},
            }
            for rank, of in enumerate(told["ranks"])
        ]
    )
    print_table(
        [
            {
                "rank": str(rank),
                "peak memory": size(of["peak_bytes"]),
                **{part: size(nbytes) for part, nbytes in of["memory_bytes"].items()},
            }
            for rank, of in enumerate(told["ranks"])
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


def _tuned(tried: Sequence[Tried]) -> str:
    """Say in one line what a placement that searches began with, and what it found."""
    first = next(one for one in tried if one.makespan_ns is not None)
    assert first.makespan_ns is not None
    assert tried[-1].best_ns is not None
    found = (
        f"from {format_duration(first.makespan_ns)} ({first.what}) to {format_duration(tried[-1].best_ns)}"
    )
    return f"placement: {len(tried):,} tried, {found}"


def _folded(told: Mapping[str, Any]) -> str:
    """Say which devices are shown for how many, and what sets them apart."""
    into = told["into"]
    lines = [
        f"{told['devices']:,} devices folded into {len(into):,}; figures of each hold for all it stands for"
    ]
    for name, each in list(into.items())[:_MOST_FOLDED]:
        why = f": {each['differs']}" if each["differs"] else ""
        lines.append(f"  {name} stands for {each['stands_for']:,}{why}")
    if len(into) > _MOST_FOLDED:
        lines.append(f"  ... and {len(into) - _MOST_FOLDED:,} more; --json has them all")
    return "\n".join(lines)


def _print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Say what is not as expected, or that all is; nothing when nothing was expected."""
    failed = [outcome.message for outcome in outcomes if not outcome.passed]
    if outcomes:
        print()
    if outcomes and not failed:
        print("all as expected")
    for message in failed:
        print(f"not as expected: {message}")
