"""``sim check PATH...``: checks every ``expect:``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import typer

from sim.base.plugins import NOTHING, Allowed
from sim.base.units import format_count

if TYPE_CHECKING:
    from scenarios.regression import Checked


CheckFormat = Literal["text", "json", "github"]
"""Output formats."""


def check(
    paths: list[str],
    update: bool = False,
    format: CheckFormat = "text",
    json: bool = False,
    allowed: Allowed = NOTHING,
) -> None:
    """Check every `expect:` of these scenarios and the invariants of each run.

    Exit status: 0 if everything holds, 1 if something does not (with --update: if it still does not), 2 if a
    scenario is wrong, or none has an `expect:`.

    Parameters
    ----------
    paths : PATH...
        Scenario files, or folders of scenarios.
    update : --update
        Replace failed conditions in the scenario by the actual results.
    format : --format
        Text, JSON, or text whose failures are annotations on GitHub.
    """
    from scenarios.cli.output import print_json
    from scenarios.cli.running import progress
    from scenarios.regression import check_file, scenario_files

    format = "json" if json else format
    done: list[Checked] = []
    for path in scenario_files(paths):
        with progress(f"checking {path}"):
            results = list(check_file(path, allowed, new_values=update))
        done += results
        if format != "json":
            for one in results:
                _print(one, format)
    if format == "json":
        failed = sum(one.exit_status != 0 for one in done)
        print_json({"schema": "sim.check/1", "failed": failed, "checks": [one.to_json() for one in done]})
    else:
        typer.echo(_total(done))
    worst = max(one.exit_status for one in done)
    raise typer.Exit(worst if worst or any(one.outcomes for one in done) else 2)


def _print(one: Checked, format: CheckFormat) -> None:
    """Print the outcome of one run, and below it what did not hold."""
    from scenarios.regression import annotation
    from scenarios.run.run_notes import unused_notes

    name = f"{one.path}: {one.label}" if one.label else one.path
    if one.exit_status:
        typer.echo(f"FAILED {name}")
    elif one.updated:
        typer.echo(f"updated {name}")
    elif one.outcomes:
        unused = "".join(f"; {note}" for note in unused_notes({name: one.unused}))
        typer.echo(f"passed {name} ({len(one.outcomes)} expected{unused})")
    else:
        typer.echo(f"       {name}: no `expect:`")
    if format == "github":
        level = "error" if one.exit_status else "notice"
        for place, told in one.complaints:
            typer.echo(
                annotation(level, place, f"sim check: {one.label}" if one.label else "sim check", told)
            )
    else:
        for line in one.messages:
            typer.echo(f"       {line}")


def _total(done: list[Checked]) -> str:
    """Return the last line: how many runs failed or were updated, and how many files expect nothing."""
    failed = sum(one.exit_status != 0 for one in done)
    updated = sum(bool(one.updated) for one in done)
    silent = sum(not one.exit_status and not one.outcomes for one in done)
    if silent == len(done):
        return "no scenario has an `expect:`, so nothing was run"
    files = "1 scenario has" if silent == 1 else f"{silent} scenarios have"
    without = f"; {files} no `expect:`" if silent else ""
    if failed:
        return f"{failed} of {format_count(len(done) - silent, 'run')} failed{without}"
    anew = f", {updated} of them with new values" if updated else ""
    return f"{format_count(len(done) - silent, 'run')}, all as expected{anew}{without}"
