"""``sim calibrate`` and ``sim validate``: measure a machine, and measure the simulator against it."""

from __future__ import annotations

from pathlib import Path

import typer

from sim.base.errors import InputError


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("calibrate", short_help="Measure the cost of single steps on this machine.")(calibrate)
    app.command("validate", short_help="Predict plans, run them for real, and compare.")(validate)


def calibrate(backend: str, out: str) -> None:
    """Measure a backend; if the machine was disturbed, write nothing and exit with status 1.

    A scenario uses the file's tables with `cost: {table: FILE}`. On a GPU, `cost: [{fitted: FILE}, roofline]`
    moves the model of all kernels towards it.

    Parameters
    ----------
    backend : --backend NAME
        timer, threads or cuda.
    out : --out FILE
        Where to write the calibration (.json).
    """
    from scenarios.cli.running import progress
    from validation.calibrate import calibrate as measure
    from validation.cases.calibrated import save_calibration

    with progress(f"calibrating {backend}"):
        found = measure(backend)
    save_calibration(found, out)
    typer.echo(f"{out}: {len(found.quantities)} quantities, {len(found.tables)} tables of {found.device}")


def validate(
    backend: str | None = None,
    out: Path | None = None,
    experiments: str | None = None,
    calibration: Path | None = None,
    runs: int = 5,
    limit: float | None = None,
    again: bool = False,
    dry_run: bool = False,
    report: Path | None = None,
    json: bool = False,
) -> None:
    """Predict, measure and report, resuming where an earlier run stopped.

    Exit status: 0 if no goal was missed (some may be undecided), 1 if one was missed.

    Parameters
    ----------
    backend : --backend NAME
        timer, threads or cuda.
    out : --out DIR
        Where to write plans, runs and the report.
    experiments : --experiments A,B,...
        Letters or names of experiments; default: all.
    calibration : --calibration FILE
        The calibration; default: DIR/calibration.json.
    runs : --runs N >= 3
        Number of quiet runs per case.
    limit : --limit SECONDS
        Start no new case after this time.
    again : --again
        Measure again what has already been measured.
    dry_run : --dry-run
        List the steps without running them.
    report : --report DIR
        Predict again, and report on the measurements in this folder.
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
