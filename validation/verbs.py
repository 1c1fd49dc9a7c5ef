"""``sim calibrate`` and ``sim validate``: measure a machine, and measure the simulator against it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.base.errors import InputError

Backend = Annotated[str, typer.Option("--backend", metavar="NAME", help="timer, threads or cuda.")]


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("calibrate", short_help="Measure the cost of single steps on this machine.")(calibrate)
    app.command("validate", short_help="Predict plans, run them for real, and compare.")(validate)


def calibrate(
    backend: Backend,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where to write the calibration.")],
) -> None:
    """Measure a backend; if the machine was disturbed, write nothing and exit with status 1.

    A scenario uses the file's tables with `cost: {table: FILE}`. On a GPU, `cost: [{fitted: FILE}, roofline]`
    moves the model of all kernels towards it.
    """
    from scenarios.cli.running import progress
    from scenarios.report.outputs import check_path
    from validation.calibrate import calibrate as measure
    from validation.cases.calibrated import save_calibration

    check_path("out", out, (".json",))  # before minutes are spent
    with progress(f"calibrating {backend}"):
        found = measure(backend)
    save_calibration(found, out)
    typer.echo(f"{out}: {len(found.quantities)} quantities, {len(found.tables)} tables of {found.device}")


def validate(
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="NAME", help="timer, threads or cuda.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write plans, runs and the report."),
    ] = None,
    experiments: Annotated[
        str | None,
        typer.Option(
            "--experiments", metavar="A,B,...", help="Letters or names of experiments; default: all."
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", metavar="FILE", help="The calibration; default: DIR/calibration.json."),
    ] = None,
    runs: Annotated[int, typer.Option("--runs", min=3, help="Number of quiet runs per case.")] = 5,
    limit: Annotated[
        float | None, typer.Option("--limit", metavar="SECONDS", help="Start no new case after this time.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure again what has already been measured.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the steps without running them.")] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="DIR", help="Predict again, and report on the measurements in this folder."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Predict, measure and report, resuming where an earlier run stopped.

    Exit status: 0 if no goal was missed (some may be undecided), 1 if one was missed.
    """
    from scenarios.cli.output import print_json
    from validation import steps

    if out is None and report is None and not dry_run:
        raise InputError("where to write plans, runs and the report? --out DIR")
    result, text = steps.validate(
        backend, out, experiments, calibration, dry_run=dry_run, report=report,
        runs=runs, limit_s=limit, again=again, say=lambda text: typer.echo(text, err=True),
    )  # fmt: skip
    if json and result is not None:
        print_json(result)
    else:
        typer.echo(text)
    raise typer.Exit(1 if result is not None and result["failed"] else 0)
