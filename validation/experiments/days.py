"""j. Another day: a repeated measurement beside the recorded one, both against the same prediction.

A measurement that is repeated is kept as ``measurements-DATE/`` before it is replaced. The calibration is not
repeated, so that the report shows how a calibration ages::

    case        predicted    recorded (day, error)    today (day, error)    today / recorded
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.base.errors import InputError
from validation.cases import step_files
from validation.experiments import memory_experiment
from validation.experiments.measure import ENOUGH


def keep_day(out: Path, experiment: str) -> Path | None:
    """Copy the measurements of an experiment to a folder of their day; return it, or None without any.

    A further run on the same day replaces them; the copy for that day remains the first.
    """
    measured = step_files.read(out, "measurements", experiment)
    if measured is None:
        return None
    kept = out / f"measurements-{measured['provenance']['date']}" / f"{experiment}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(step_files.step_path(out, "measurements", experiment), kept)
    return kept


def compare_days(out: Path, experiment: str) -> list[dict[str, Any]]:
    """Return one row for each case and earlier day: predicted, then and now, with the errors of both.

    Cases without enough quiet runs on either day are omitted, and so are days with other plans: those are
    other cases.

    Raises
    ------
    InputError
        A file does not contain measurements.
    """
    predictions, now = (
        step_files.read(out, "predictions", experiment),
        step_files.read(out, "measurements", experiment),
    )
    if experiment == memory_experiment.NAME or predictions is None or now is None:
        return []  # bytes do not depend on the day
    predicted = {case["name"]: case["makespan_ns"] for case in predictions["cases"] if "makespan_ns" in case}
    today = _medians(now)
    rows = []
    for path in sorted(out.glob(f"measurements-*/{experiment}.json")):
        then = step_files.read_path(path, "measurements")
        if then is None or "provenance" not in then:
            raise InputError(f"{path}: no measurements")
        if then["plans"] != now["plans"]:
            continue
        for name, then_ns in _medians(then).items():
            if name in today and name in predicted:
                ns = predicted[name]
                rows.append(
                    {
                        "case": name, "predicted_ns": ns,
                        "then": then["provenance"]["date"], "then_ns": then_ns,
                        "then_error": ns / then_ns - 1,
                        "now": now["provenance"]["date"], "now_ns": today[name],
                        "now_error": ns / today[name] - 1, "moved": today[name] / then_ns - 1,
                    }
                )  # fmt: skip
    return rows


def _medians(measured: Mapping[str, Any]) -> dict[str, float]:
    """Return the median makespan of the quiet runs of each case, if there are enough."""
    found = {}
    for entry in measured["cases"]:
        quiet = [run["makespan_ns"] for run in entry["runs"] if run["clean"]]
        if len(quiet) >= ENOUGH:
            found[entry["name"]] = statistics.median(quiet)
    return found


def to_markdown(days: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the comparison of days as a section of the report; empty if there is only one day."""
    rows = [(experiment, row) for experiment, found in days.items() for row in found]
    if not rows:
        return ""
    lines = [
        "",
        "## j-another-day",
        "",
        "The same plans measured again, against the same prediction and calibration.",
        "",
        "| experiment | case | predicted, ms | then, ms | error | now, ms | error | moved |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {experiment} | {row['case']} | {row['predicted_ns'] / 1e6:.3f} | "
        f"{row['then_ns'] / 1e6:.3f} ({row['then']}) | {row['then_error']:+.2%} | "
        f"{row['now_ns'] / 1e6:.3f} ({row['now']}) | {row['now_error']:+.2%} | {row['moved']:+.2%} |"
        for experiment, row in rows
    ]
    return "\n".join(lines) + "\n"
