"""``sim compare SCENARIO``: the same work under several policies, in one table and one figure."""

from __future__ import annotations

from typing import Any, Final

import typer

from scenarios.cli.options import Outputs
from sim.base.plugins import NOTHING, Allowed

_FILES: Final = Outputs(("gantt", "trace", "ops", "tuning", "pareto"))


def compare(
    scenario: str,
    policy: list[str] | None = None,
    sets: list[str] | None = None,
    files: Any = _FILES,
    open_page: bool = False,
    arrows: bool = False,
    critical_path: bool = False,
    json: bool = False,
    allowed: Allowed = NOTHING,
) -> None:
    """Run the same work under several policies: those of `--policy`, or of the scenario's `compare:`.

    The table lists the fastest first. Below it, one line breaks down the makespan of the fastest, and one
    line for each other run explains why it is slower. A run that cannot be built, runs out of memory, gets
    stuck or has an op that fails gets a row that says so. Exit status 1 if there is such a run, or if a
    condition of `expect:` is not met.
    """
    from scenarios.cli.output import print_json, print_told
    from scenarios.cli.running import Charts, cases_of, compare_all, finish
    from scenarios.report.outputs import check_cases, check_outputs

    charts = Charts(arrows, critical_path, open_page)
    charts.check(files)
    check_outputs(files)
    cases = cases_of(scenario, policy, sets, allowed, compare=True)
    check_cases(cases, files)
    comparison = compare_all(cases)
    if json:
        print_json(comparison.to_json())
    else:
        print_told(comparison)
    if comparison.failures and any(files.values()):
        failed = ", ".join(failure.label for failure in comparison.failures)
        typer.echo(f"not in the files that are written, as there is no result: {failed}", err=True)
    finish(comparison.results, files, charts)
    if comparison.failures:
        raise typer.Exit(1)
