"""The report: every experiment's errors beside its noise floor and its goals, as JSON.

`validation.report.markdown` formats it for readers and `validation.report.figures` draws it. An experiment is
*met*, *missed*, or *inconclusive* if there were too few quiet runs; wrong results always fail it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any, Final

import numpy as np

from devices.cost.calibration import Calibration
from sim.base.arrays import group_pairs
from sim.base.errors import InputError, RunError
from validation.calibrate import not_calibrated
from validation.cases import step_files
from validation.cases.tables import GOALS
from validation.experiments import memory_experiment
from validation.experiments.measure import ENOUGH
from validation.experiments.predict import calibration_digest, predict_or_say_why
from validation.experiments.prediction_errors import Point, points_of, spread
from validation.real.statistics import kendall_tau

SCHEMA: Final = "sim.validation/1"


def _groups(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Compare the cases of each group: ratios, order, and the cost of trusting the prediction."""
    found = []
    for group in dict.fromkeys(point.group for point in points if point.group):
        by_label = group_pairs((point.label, point) for point in points if point.group == group)
        if len(by_label) < 2:
            continue
        measured = [statistics.median(p.measured_ns for p in mine) for mine in by_label.values()]
        predicted = [mine[0].predicted_ns for mine in by_label.values()]
        by_prediction, by_measurement = (
            np.argsort(times, kind="stable").tolist() for times in (predicted, measured)
        )
        row: dict[str, Any] = {
            "group": group,
            "labels": list(by_label),
            "predicted_ns": predicted,
            "measured_ns": measured,
            "tau": kendall_tau(by_prediction, by_measurement),
            "regret": measured[by_prediction[0]] / min(measured) - 1,
        }
        if len(by_label) == 2:
            real = measured[0] / measured[1]
            row["ratio"] = (predicted[0] / predicted[1] - real) / real
        found.append(row)
    return found


def _metrics(points: Sequence[Point], groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name in ("prediction", "replay", "decided", "floor"):
        for what, value in spread([getattr(point, name) for point in points]).items():
            metrics[f"{name}.{what}"] = value
    for name in points[0].naive:
        metrics[f"naive {name}.mean"] = spread([point.naive[name] for point in points])["mean"]
    if taus := [point.tau for point in points if not isnan(point.tau)]:
        metrics["tau.min"], metrics["tau.mean"] = min(taus), statistics.fmean(taus)
    metrics["inversions"] = sum(point.inversions for point in points)
    if ratios := [abs(group["ratio"]) for group in groups if "ratio" in group]:
        metrics["ratio.max"] = max(ratios)
    if groups:
        metrics["regret.max"] = max(group["regret"] for group in groups)
        metrics["policies.tau"] = statistics.fmean(group["tau"] for group in groups)
    return metrics


def experiment_report(
    experiment: str, out: Path, backend: str, calibration: Calibration, *, recompute: bool = False
) -> dict[str, Any]:
    """Return the results of one experiment.

    Parameters
    ----------
    experiment : str
    out : Path
        Contains the files of the steps.
    backend : str
    calibration : Calibration
    recompute : bool
        Whether to predict again instead of reading the predictions: to see the effect of a change.

    Raises
    ------
    InputError
        Predictions, plans and measurements do not belong together.
    """
    found = step_files.recorded(out, experiment, recompute=recompute)
    if isinstance(found, list):
        return {"experiment": experiment, "status": "inconclusive", "why": f"no {', '.join(found)}"}
    result: dict[str, Any] = {
        "experiment": experiment,
        # A new prediction, from the current calibration, was not made before measuring.
        "predicted_before_measuring": found.predicted_before
        and (not recompute or found.predicted_from == calibration_digest(calibration)),
        "cases": len(found.plans["cases"]),
    }
    if experiment == memory_experiment.NAME:
        return result | memory_experiment.judged(found)
    points: list[Point] = []
    left_out: list[dict[str, str]] = []
    wrong: list[str] = []
    rejected = 0
    for k, (entry, measured) in enumerate(
        zip(found.plans["cases"], found.measurements["cases"], strict=True)
    ):
        case, plan = step_files.read_case(entry)
        if found.predictions is None:
            predicted = predict_or_say_why(case, calibration)
        else:
            predicted = found.predictions["cases"][k]
        runs = measured["runs"]
        if any(len(run["stream"]) != len(case.ops) for run in runs):
            raise InputError(f"case {case.name!r} has {len(case.ops)} ops, and a measured run has not")
        streams = sum(device.lanes for device in case.machine(None).devices)
        if (last := max((max(run["stream"]) for run in runs), default=0)) >= streams:
            raise InputError(f"case {case.name!r} has {streams} streams, and a measured run used {last}")
        wrong += [f"{case.name}: {', '.join(run['wrong'][:3])}" for run in runs if run["wrong"]]
        if "not_predicted" in predicted:
            left_out.append({"case": case.name, "why": predicted["not_predicted"]})
            continue
        clean = sum(run["clean"] for run in runs)
        rejected += len(runs) - clean
        if clean < ENOUGH:
            whys = [run["why"] for run in runs if run["why"]]
            why = measured.get("skipped") or f"{clean} quiet runs of {len(runs)}; {whys[-1] if whys else ''}"
            left_out.append({"case": case.name, "why": why})
            continue
        points += points_of(case, plan, predicted, runs, calibration)
    result |= {"inconclusive": left_out, "runs_rejected": rejected, "wrong": wrong}
    if not points:
        why = left_out[0]["why"] if left_out else "no run"
        return {**result, "status": "missed" if wrong else "inconclusive", "why": why}
    groups = _groups(points)
    metrics = _metrics(points, groups)
    goals = GOALS.get(backend, {}).get(experiment, {})
    missed = {name: bound for name, bound in goals.items() if name in metrics and metrics[name] > bound}
    unknown = [name for name in goals if name not in metrics]  # for example if a group lacks a case
    return {
        **result,
        "status": "missed" if missed or wrong else "inconclusive" if unknown else "met",
        "why": "; ".join(
            [f"{name} is {metrics[name]:.4g}, the goal {bound:g}" for name, bound in missed.items()]
            + [f"{name} could not be told" for name in unknown]
            + (["wrong results"] if wrong else [])
        ),
        "goals": dict(goals),
        "metrics": metrics,
        "groups": groups,
        "points": [
            [p.case, p.predicted_ns, p.measured_ns, p.prediction, p.replay, p.floor, p.tau] for p in points
        ],
    }


def report(
    out: Path, backend: str, calibration: Calibration, experiments: Sequence[str], *, recompute: bool = False
) -> dict[str, Any]:
    """Return the report of all experiments; one that cannot be reported does not prevent the others."""
    results = []
    for experiment in experiments:
        try:
            results.append(experiment_report(experiment, out, backend, calibration, recompute=recompute))
        except (InputError, RunError) as error:  # a run whose order of issue is impossible
            results.append({"experiment": experiment, "status": "missed", "why": str(error)})
    return {
        "schema": SCHEMA,
        "backend": backend,
        "device": calibration.device,
        "calibrated": dict(calibration.provenance),
        "not_calibrated": not_calibrated(calibration),
        "failed": any(result["status"] == "missed" for result in results),
        "experiments": results,
    }
