"""Output of `sim tune`, `optimum`, `whatif` and `sweep`: best results and tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import typer

from scenarios.cli.output import print_table, strong
from scenarios.fields.goals import Goal, alike
from scenarios.fields.results import DONE, column_of_result, shown_result
from scenarios.report.pictures import as_yaml_line, rank_rows
from scenarios.run.execute import Result
from scenarios.run.result_sections import little_room, no_gap_notes, unused_notes
from scenarios.variants.optimum import Optimum
from scenarios.variants.tune import Fresh, Tuning
from scenarios.variants.tune_report import improvements
from scenarios.variants.variant import Row, short_names
from sim.base.arrays import group_pairs
from sim.base.units import format_count, format_duration
from sim.explain.bounds import bounds
from sim.export.tables import percent, size, text_table

_MOST = 12
"""Number of improvements that are listed: the first ones and the last ones."""


def print_tuning(tuning: Tuning, against: str | None = None) -> None:
    """Print the best trial, the improvements that led to it, and the Pareto front."""
    trials, goal = tuning.trials, tuning.goal
    if tuning.best is None:
        reason = next((trial.row["error"] for trial in trials if trial.row["error"]), "limits are not kept")
        typer.echo(f"{format_count(len(trials), 'trial')}, and none is an answer: {reason}")
        return
    best = trials[tuning.best]
    limits = f", with {', '.join(map(str, goal.limits))}" if goal.limits else ""
    value = shown_result(goal.result, best.row[goal.column])
    seeds = f", on average over {tuning.seeds} seeds," if tuning.seeds > 1 else ""
    gain = _gain_text(tuning) if tuning.seeds == 1 else ""
    typer.echo(f"best {goal.result} {value}{seeds} of {format_count(len(trials), 'trial')}{limits}{gain}")
    failed = [t.row for t in trials if t.origin == "settings" and t.row["outcome"] != DONE]
    if failed:
        counts = Counter(row["outcome"] for row in failed).most_common()
        outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in counts)
        typer.echo(f"  without a result: {outcomes}; the first: {failed[0]['error']}")
    if tuning.fresh is not None:
        typer.echo(f"  {_fresh_text(tuning.fresh, goal.result)}")
    if best.variant.settings:
        typer.echo(f"  {', '.join(best.variant.texts)}")
    if best.origin not in ("settings", "start"):
        typer.echo("  with an order of its own: --out FILE.yaml keeps it")
    typer.echo(f"  {_gap_text(tuning)}")
    typer.echo()
    listed = better = improvements(tuning)
    if len(better) > _MOST:
        listed = [*better[:2], *better[2 - _MOST :]]
        typer.echo(f"the first 2 and the last {_MOST - 2} of {len(better):,} improvements; --json has all")
    _print_trials(tuning, listed, goal.result)
    if against is not None:
        typer.echo(f"\nPareto front of {goal.result} and {against}")
        _print_trials(tuning, tuning.front(against), goal.result, against)


def _gap_text(tuning: Tuning) -> str:
    """Return by how much the makespan of the best exceeds its lower bound, in words."""
    limits, makespan_ns = bounds(tuning.trace), tuning.trace.makespan_ns
    gap = limits.gap(makespan_ns)
    if gap is None:
        return f"no lower bound: {limits.no_gap}"
    prefix = "" if tuning.goal.result == "makespan" else "makespan "
    return f"{prefix}{percent(gap)} above the lower bound of these devices and streams ({limits.binding})"


def _gain_text(tuning: Tuning) -> str:
    """Return by how much the best improves on the best start, in words."""
    assert tuning.best is not None
    starts = [t for t in tuning.trials if t.origin == "start" and tuning.goal.allows(t.row)]
    if not starts:
        return ""
    first = min(starts, key=tuning.cost)
    before, after = tuning.cost(first), tuning.cost(tuning.trials[tuning.best])
    if before == after or not before:
        return f"; no better than {first.row['policy']}"
    gain = percent(abs(after / before - 1))
    return f"; {gain} better than {first.row['policy']}, the best to start from"


def _fresh_text(fresh: Fresh, result: str) -> str:
    """Return the result of the best on seeds that no trial has seen, in words."""
    best = shown_result(result, round(fresh.best) if fresh.best > 100 else fresh.best)
    low, high = (100 * part for part in fresh.interval)
    gain = f"{100 * fresh.gain:.1f} % (95 %: {low:.1f} to {high:.1f} %)"
    verdict = f"no better than {fresh.against}: {gain} is within noise"
    if fresh.interval[0] > 0:
        verdict = f"{gain} better than {fresh.against}"
    return f"on {fresh.runs} seeds that no trial has seen: {best} on average, {verdict}"


def _print_trials(tuning: Tuning, numbers: Iterable[int], *results: str) -> None:
    rows = []
    for k in numbers:
        trial = tuning.trials[k]
        changed = trial.origin if trial.origin not in ("settings", "start") else ""
        names = {"trial": f"{k + 1:,}", **dict(trial.variant.settings), "policy": trial.row["policy"]}
        values = {name: shown_result(name, trial.row[column_of_result(name)]) for name in results}
        rows.append({**names, "changed": changed, **values})
    print_table(rows, left=len(rows[0]) - len(results))


# ----------------------------------------------------------------------------------------------------------
# Output of `sim optimum`: the best schedule, how good it is for sure, and how far the policies are from it.


def print_optimum(search: Optimum, limit_ns: int) -> None:
    """Print the best schedule, the space that was searched, and one row per policy."""
    base = search.base
    space = "on the devices and" if search.placed else "on any devices,"
    print(strong(f"{base.scenario}: orders and streams, {space} with the issuing of {base.policy}"))
    print(search.sentence(limit_ns))
    if search.left_out:
        print("the bound leaves out " + "; ".join(search.left_out))
    if search.why_not:
        print(search.why_not)
    print()
    runs = [(result.policy, result) for result in search.results]
    if search.best is search.found:
        runs.insert(0, ("optimum" if search.proven else "best found", search.best))
    rows = (
        {"policy": name, "cost": search.cost_text(search.cost(result)), "above": _above_bound(search, result)}
        for name, result in sorted(runs, key=lambda run: search.cost(run[1]))
    )
    columns = ["policy", f"{search.goal.replace('_', ' ')}: cost", "above the bound: above"]
    print_table(text_table(rows, columns))


def _above_bound(optimum: Optimum, result: Result) -> str | float | None:
    """Return by how much a run exceeds the bound, or why the bound does not apply to it."""
    if (reason := optimum.unlike(result)) is not None:
        return f"({reason})"
    return optimum.cost(result) / optimum.lower_bound - 1 if optimum.lower_bound > 0 else None


# ----------------------------------------------------------------------------------------------------------
# Output of `sim whatif`: how much time each change of a graph saves.


def print_what_ifs(name: str, recorded_ns: int | None, rows: Sequence[Row]) -> None:
    """Print the time without changes, what each change saves, largest first, and notes."""
    base_ns = rows[0]["makespan_ns"]
    header = format_duration(base_ns)
    if recorded_ns:
        header += f" simulated, {format_duration(recorded_ns)} recorded ({base_ns / recorded_ns - 1:+.2%})"
    print(f"{strong(name)}: {header}")
    base, *others = rank_rows(rows)
    lines = [base | {"saved_ns": None, "what_if": ""}]
    for row in others:
        saves = [row["saved_ns"], *([] if row["other_saved_ns"] is None else [row["other_saved_ns"]])]
        share = " .. ".join(percent(ns / base_ns) for ns in sorted(saves) if base_ns)
        lines.append(row | {"what_if": as_yaml_line(row["what_if"]), "share": share})
    settings = ["what_if: what_if"] if any(line["what_if"] for line in lines) else []  # a machine has none
    columns = ["what if: label", *settings, "makespan_ns", "saved_ns", "share"]
    print_table(text_table(lines, columns), left=1 + len(settings))
    for tried in (True, False):
        selected = [row for row in rows if (row["makespan_ns"] is not None) == tried]
        notes = group_pairs((note, row["label"]) for row in selected for note in row["notes"])
        for note, labels in notes.items():
            print(f"{'' if tried else 'not tried: '}{', '.join(labels)}: {note}")


# ----------------------------------------------------------------------------------------------------------
# Output of a sweep: its rows, and the best of them if a goal is given.
#
#     tp  pp  ...  makespan  tokens/s  MFU  memory      the ten best
#     best: tp=2, pp=4: step_time 2.39 s                and the runner-up, with its distance
#     left out: 530 tp does not divide the heads        points that did not run, by reason


_MOST_GROUPS: Final = 10
"""Number of rows in a table of the best points."""


_TRAINING_COLUMNS: Final = {
    "makespan": "train.step_ns",
    "80 % interval": "80 % interval",
    "above bound": "gap",
    "tokens/s": "train.tokens_per_s",
    "MFU": "train.mfu",
    "memory": "train.peak_bytes",
    "bubble": "train.bubble",
    "exposed": "exposed",
}
_DEVICE_COLUMNS: Final = {
    "makespan": "makespan_ns",
    "80 % interval": "80 % interval",
    "above bound": "gap",
    "micro-batches/s": "micro_batches_per_s",
    "samples/s": "samples_per_s",
    "utilisation": "utilisation",
    "bubble": "pipeline.bubble",
    "peak memory": "peak memory",
}
"""Column title -> the key of its numbers, in a row or in `_over_devices`."""


def print_rows(rows: Sequence[Row], settings: Sequence[str], goal: Goal | None = None) -> dict[str, str]:
    """Print settings, policy, makespan, the distance from the bound, and results that some of the runs have.

    These are throughput, utilisation of the devices, the highest memory peak of a device, and the bubble of a
    pipeline; for a training run its goodput; for a training step tokens/s, MFU, memory of the fullest rank,
    and bubble. A star marks the best by the goal, which is by default the shortest makespan. Returns the
    title of each setting: its short name, unless that is another column's.
    """
    goal = goal or Goal("makespan")
    done = [row[goal.column] for row in rows if not row["error"]]
    best = (max if goal.most else min)(done) if len(set(done)) > 1 else None
    keys = dict.fromkeys(key for row in rows for key in row)
    numbers = _TRAINING_COLUMNS if "train.step_ns" in keys else _DEVICE_COLUMNS
    if "serving.gpus" in keys:
        from scenarios.serving.serving_report import OF_SERVING

        numbers = {"makespan": "makespan_ns"} | {title: f"serving.{key}" for title, key in OF_SERVING.items()}
    numbers = numbers | {key: key for key in keys if key.endswith(".goodput")}
    taken = {*keys, *numbers, "policy"}
    names = {key: key if name in taken else name for key, name in short_names(settings).items()}
    sought = next((title for title, key in numbers.items() if key == goal.column), goal.result)
    full = [row | _over_devices(row) for row in rows]
    present = {title: key for title, key in numbers.items() if any(row.get(key) is not None for row in full)}
    present = {name: key for key, name in names.items()} | present
    titles = dict.fromkeys((*names.values(), "policy", "makespan", *present, sought))
    texts = text_table(full, [f"{title}: {present.get(title, title)}" for title in titles])
    lines, unused, names_by_error = [], {}, defaultdict[str, list[str]](list)
    for row, line in zip(full, texts, strict=True):
        name = _row_name(row, names)
        if row["error"]:
            line["makespan"] = row["outcome"]
            names_by_error[row["error"]].append(name)
        else:
            mark = "*" if row[goal.column] == best else "" if best is None else " "
            line[sought] = shown_result(goal.result, row[goal.column]) + mark
            unused[name] = row["unused_devices"].split(", ") if row["unused_devices"] else []
        lines.append(line)
    print_table(lines, left=len(settings) + 1)
    if best is not None:
        smallest, greatest = ("shortest", "longest") if goal.result == "makespan" else ("least", "greatest")
        print(f"* {greatest if goal.most else smallest} {goal.result}")
    for note in (*unused_notes(unused), *no_gap_notes(row.get("no_gap") for row in rows)):
        print(note)
    if names_by_error:  # below the table: in a column, long messages would leave no room for the others
        print()
    for error, (first, *more) in names_by_error.items():
        also = f" and {format_count(len(more), 'more point')}" if more else ""
        print(f"{first}{also}: {error}")
    return names


_PEAK: Final = ".peak_memory_bytes"


def _over_devices(row: Row) -> dict[str, Any]:
    """Return numbers of a row over its devices: mean utilisation of those used, and the highest peak."""
    numbers: dict[str, Any] = {}
    if "train.step_ns" in row:
        numbers["exposed"] = row["train.exposed_ns"] / row["train.step_ns"]
    prefix = "train." if "train.step_ns" in row else ""
    single = not prefix or row["train.step_ns"] == row["makespan_ns"]  # the mean of several steps shows none
    if (low := row.get(f"{prefix}low_ns")) is not None and single:
        numbers["80 % interval"] = f"{format_duration(low)} to {format_duration(row[f'{prefix}high_ns'])}"
    unused = (row.get("unused_devices") or "").split(", ")
    names = [key.removesuffix(_PEAK) for key in row if key.endswith(_PEAK)]
    used = [name for name in names if name not in unused]
    if shares := [row[f"{name}.utilisation"] for name in used if row.get(f"{name}.utilisation")]:
        numbers["utilisation"] = sum(shares) / len(shares)  # without switches and idle devices
    peaks = {name: row[name + _PEAK] or 0 for name in used}
    if peak := max(peaks.values(), default=0):
        where = max(peaks, key=lambda name: peaks[name])
        numbers["peak memory"] = f"{size(peak)} {where}" if len(names) > 1 else size(peak)
    return numbers


def print_answer(
    rows: Sequence[Row], settings: Sequence[str], goal: Goal, left_out: Mapping[str, int]
) -> None:
    """Print the best rows, the best one and its runner-up with their limits, and the number of outcomes."""
    ranked = goal.rank_answers(rows)
    if ranked:
        groups = alike(rows, ranked, settings)
        groups_shown = [[rows[i] for i in group] for group in groups[:_MOST_GROUPS]]
        names = print_rows([group[0] for group in groups_shown], settings, goal)
        if len(ranked) > len(groups_shown):
            equal = len(ranked) - len(groups)
            print(
                f"({len(groups_shown)} best of {len(ranked):,}"
                + (f"; {equal:,} of these have the same numbers as another one)" if equal else ")")
            )
        print()
        _print_best(groups_shown, names, goal)
    else:
        print("no point is an answer")
        for limit in goal.limits:
            reached = [row[limit.column] for row in rows if not row["error"]]
            if reached and limit.key in ("at_most", "at_least"):
                nearest = (min if limit.key == "at_most" else max)(reached)
                print(f"  {limit}: the nearest is {shown_result(limit.result, nearest)}")
    ended = Counter(row["outcome"] for row in rows)
    outcomes = [f"{ended.pop(DONE, 0):,} done", *(f"{n:,} {outcome}" for outcome, n in sorted(ended.items()))]
    if goal.limits:
        outcomes[0] += f" ({len(ranked):,} within the limits)"
    print(f"{format_count(len(rows), 'point')} ran: {', '.join(outcomes)}")
    if not ranked:
        for error in sorted({row["error"] for row in rows if row["error"]})[:3]:
            print(f"  {error}")
    print_left_out(left_out)


def print_left_out(left_out: Mapping[str, int]) -> None:
    """Print the number of points that did not run, by reason."""
    if left_out:
        n = sum(left_out.values())
        points = "1 point was" if n == 1 else f"{n:,} points were"
        print(f"{points} left out, as sizes do not fit one another:")
        for reason, count in sorted(left_out.items(), key=lambda item: -item[1]):
            print(f"  {count:>6,}  {reason}")


def _print_best(groups: Sequence[Sequence[Row]], names: Mapping[str, str], goal: Goal) -> None:
    """Print the best row and its runner-up; each with the rows that have equal numbers."""
    (best, *equal), second = groups[0], groups[1][0] if len(groups) > 1 else None
    value = best[goal.column]
    print(f"best: {_row_name(best, names)}: {goal.result} {shown_result(goal.result, value)}")
    _print_limits(best, goal)
    if equal:
        print("  the same in every number: " + "; ".join(_row_name(row, names) for row in equal[:3]))
    if second is None:
        print("runner-up: none")
        return
    behind = second[goal.column]
    far = f", {100 * (behind / value - 1):+.2f}%" if value else ""
    print(f"runner-up: {_row_name(second, names)}: {goal.result} {shown_result(goal.result, behind)}{far}")
    _print_limits(second, goal)


def _print_limits(row: Row, goal: Goal) -> None:
    """Print what limits a row: free memory, lost time, and the limits of the goal."""
    parts = []
    if "train.step_ns" in row:
        step, peak, limit = row["train.step_ns"], row["train.peak_bytes"], row["train.capacity_bytes"]
        if (low := row.get("train.low_ns")) is not None:
            parts.append(f"80 % interval {format_duration(low)} to {format_duration(row['train.high_ns'])}")
        if limit is not None:
            free = f"{size(limit - peak)} free ({percent(1 - peak / limit)})"
            parts.append(f"memory {size(peak)} of {size(limit)}, {free}{little_room(peak, limit)}")
        lost = {"bubble": row["train.bubble"], "exposed communication": row["train.exposed_ns"] / step}
        parts += [f"{name} {percent(share)} of the step" for name, share in lost.items()]
        largest = max(lost, key=lambda name: lost[name])
        parts.append(f"most is lost to {largest}")
    for limit in goal.limits:
        parts.append(f"{limit.result} {shown_result(limit.result, row[limit.column])} ({limit})")
    if parts:
        print("  " + "; ".join(parts))


def _row_name(row: Row, names: Mapping[str, str]) -> str:
    parts = [f"{name}={row[key]}" for key, name in names.items()]
    return ", ".join(filter(None, [*parts, row["policy"]]))
