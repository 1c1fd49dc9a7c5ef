"""``sim compare SCENARIO``: the same work under several policies, one table, one figure."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.cli.options import AllowCode, Gantt, Json, Ops, Policies, ScenarioPath, Sets, TraceFile

__all__ = ["add_to"]

Pareto = Annotated[
    str | None,
    typer.Option(
        "--pareto", metavar="FILE", help="Draw time against memory of pipelines (.png, .svg, .pdf)."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("compare", short_help="Run the same work under several policies and say why they differ.")(
        compare
    )


def compare(
    scenario: ScenarioPath,
    policy: Policies = None,
    sets: Sets = None,
    gantt: Gantt = None,
    trace: TraceFile = None,
    ops: Ops = None,
    pareto: Pareto = None,
    json: Json = False,
    allow_code: AllowCode = False,
) -> None:
    """Run the same work under several policies; without `--policy`, those of the scenario's `compare`.

    The table has the fastest first. Below it stands one line for each: what its makespan consists of,
    or where the difference to the fastest comes from. Exit status 1 when something that the file expects did
    not come out.
    """
    from scenarios.cli.output import print_comparison, print_json
    from scenarios.cli.running import cases_of, run_all
    from scenarios.compare import Comparison
    from scenarios.load import load_scenario
    from scenarios.outputs import Outputs, check_path
    from scenarios.pipeline_compare import draw_pareto

    if pareto is not None:
        check_path("pareto", pareto, (".png", ".svg", ".pdf"))
    outputs = Outputs(gantt=gantt, trace=trace, ops=ops)
    loaded = load_scenario(scenario, sets=sets or (), allow_code=allow_code)
    comparison = Comparison(run_all(cases_of(loaded, policy) if policy else loaded.cases()))
    for path in outputs.write(comparison.results):
        typer.echo(f"wrote {path}", err=True)
    if pareto is not None:
        draw_pareto(comparison.results, pareto)
        typer.echo(f"wrote {pareto}", err=True)
    if json:
        print_json(comparison.to_json())
    else:
        print_comparison(comparison)
    if not all(result.passed for result in comparison.results):
        raise typer.Exit(1)
