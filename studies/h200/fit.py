"""Fit the cost models to the measured tables, and report how far each predictor is off on unseen shapes.

::

    python -m studies.h200.fit --data DIR --out devices/cost/h200_fit.json

DIR holds the tables that :mod:`studies.h200.measured` reads. For each kind of op, every split and every
fold, the interpolated table, the model, a fitted roofline and the plain roofline are trained on the other
folds and predict this one. Then the models are fitted on all shapes, and everything is written to one JSON
file; the table of errors goes to stdout, progress to stderr. The same data and seed give the same file. (On
another machine numpy's logarithms may differ in the last bit, which moves parameters in their last digits.)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from devices.cost.fitted import SCHEMA
from devices.cost.parameters import to_mapping
from sim.base.errors import SimError
from studies.h200.crossval import IntArray, cross_validate, errors, folds_by
from studies.h200.measured import (
    ATTENTION_FILE,
    COLLECTIVE_FILE,
    GEMM_FILE,
    H200,
    attention_table,
    collective_table,
    gemm_table,
)
from studies.h200.predictors import (
    KNOWN_REGIONS,
    Problem,
    RooflineParameters,
    attention_problem,
    collective_problem,
    fit,
    gemm_problem,
    roofline_model,
    trainers,
)

__all__ = ["error_table", "evaluate", "found_errors", "main"]

_WORST = 5


def evaluate(problem: Problem, *, folds: int, seed: int) -> dict[str, Any]:
    """Return what the file records for a problem: errors by split, predictor and fold, and worst shapes.

    Parameters
    ----------
    problem : Problem
        Table, model and work.
    folds : int
        Number of folds in each split.
    seed : int
        Of the splits and of the samples that fits look at.
    """
    shapes, measured_ns = problem.table.shapes, problem.table.latency_ns
    splits = {
        "shape": shapes,
        "layer": shapes[:, list(problem.layer)],
        "size": shapes[:, [problem.size]],
    }
    record: dict[str, Any] = {}
    for split, groups in splits.items():
        fold = folds_by(groups, folds, seed)
        record[split] = {}
        for name, train in trainers(problem, seed).items():
            print(f"{problem.name}: {name}, split by {split}", file=sys.stderr, flush=True)
            predicted_ns, doubtful = np.zeros_like(measured_ns), np.zeros(len(measured_ns), np.bool_)
            of_fold = []
            for rows, found_ns, warned in cross_validate(train, shapes, measured_ns, fold):
                predicted_ns[rows], doubtful[rows] = found_ns, warned
                of_fold.append(errors(found_ns, measured_ns[rows]).to_mapping())
            needless = errors(predicted_ns[doubtful], measured_ns[doubtful]) if doubtful.any() else None
            record[split][name] = {
                "all": errors(predicted_ns, measured_ns).to_mapping(),
                "announced": int(doubtful.sum()),
                "announced_within_2x": 0 if needless is None else needless.count - needless.beyond_2x,
                "unannounced_beyond_2x": errors(
                    np.where(doubtful, measured_ns, predicted_ns), measured_ns
                ).beyond_2x,
                "folds": of_fold,
                "worst": _worst(problem, predicted_ns),
            }
    return record


def _worst(problem: Problem, predicted_ns: IntArray) -> list[dict[str, Any]]:
    """Return the shapes with the largest factor between prediction and measurement."""
    names, measured_ns = [axis.name for axis in problem.table.axes], problem.table.latency_ns
    factor = np.abs(np.log(np.maximum(predicted_ns, 1) / measured_ns))
    return [
        {
            "shape": dict(zip(names, problem.table.shapes[row].tolist(), strict=True)),
            "measured_ns": int(measured_ns[row]),
            "predicted_ns": int(predicted_ns[row]),
        }
        for row in np.argsort(-factor, kind="stable")[:_WORST].tolist()
    ]


def error_table(record: Mapping[str, Any]) -> str:
    """Return the errors of every kind of op, split and predictor as a Markdown table."""
    lines = [
        "| op | split by | predictor | mean | median | max | bias | off by > 2x | no warning "
        "| false warning | means of the folds |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for op, split, name, found in found_errors(record):
        whole = found["all"]
        means = [fold["mean"] for fold in found["folds"]]
        lines.append(
            f"| {op} | {split} | {name} | {whole['mean']:.1%} | {whole['median']:.1%} "
            f"| {whole['max']:.0%} | {whole['bias']:+.1%} | {whole['beyond_2x']} of {whole['count']} "
            f"| {found['unannounced_beyond_2x']} "
            f"| {found['announced_within_2x'] / whole['count']:.1%} "
            f"| {min(means):.1%} to {max(means):.1%} |"
        )
    return "\n".join(lines)


def found_errors(record: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Yield (kind of op, split, predictor, what was found) of a record."""
    for op, splits in record["errors"].items():
        for split, predictors in splits.items():
            for name, found in predictors.items():
                yield op, split, name, found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies.h200.fit", description=__doc__.split("\n")[0])
    files = ", ".join((GEMM_FILE, ATTENTION_FILE, COLLECTIVE_FILE))
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {files}")
    parser.add_argument("--out", type=Path, required=True, help="file of fitted values to write")
    parser.add_argument(
        "--folds",
        type=int,
        default=10,
        help="folds of each split (default: 10); the fewer, the likelier that one holds out all of a variant",
    )
    parser.add_argument("--seed", type=int, default=0, help="of splits and samples (default: 0)")
    given = parser.parse_args(arguments)
    try:
        record = _record(given.data, folds=given.folds, seed=given.seed)
    except SimError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    given.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(error_table(record))
    return 0


def _record(data: Path, *, folds: int, seed: int) -> dict[str, Any]:
    problems = [
        gemm_problem(gemm_table(data / GEMM_FILE)),
        attention_problem(attention_table(data / ATTENTION_FILE)),
        collective_problem(collective_table(data / COLLECTIVE_FILE)),
    ]
    parameters, roofline, found = {}, {}, {}
    for problem in problems:
        shapes, latency_ns = problem.table.shapes, problem.table.latency_ns
        found[problem.name] = evaluate(problem, folds=folds, seed=seed)
        parameters[problem.name] = to_mapping(
            fit(problem.parameters, problem.model_ns, shapes, latency_ns, seed)
        )
        if (
            problem.bandwidth_bytes_per_s == H200["peaks"]["bandwidth_bytes_per_s"]
        ):  # the device's roof, not that of its links
            losses = fit(RooflineParameters, roofline_model(problem), shapes, latency_ns, seed)
            roofline[problem.table.kind] = dataclasses.asdict(losses.to_kind_efficiency())
    return {
        "schema": SCHEMA,
        "device": problems[0].table.device,
        "peaks": H200["peaks"],
        "data": {
            problem.name: {**problem.table.provenance, "shapes": len(problem.table)} for problem in problems
        },
        "measured": H200["measured"],
        "protocol": {
            "program": "python -m studies.h200.fit",
            "folds": folds,
            "seed": seed,
            **H200["protocol"],
        },
        "parameters": parameters,
        "roofline": roofline,
        "unreliable": [dataclasses.asdict(region) for region in KNOWN_REGIONS],
        "errors": found,
    }


if __name__ == "__main__":
    raise SystemExit(main())
