"""``sim run SCENARIO``: when does it end, how busy was the machine, what was everything waiting for?"""

from __future__ import annotations

import typer

from scenarios.cli.options import (
    AllowCode,
    Gantt,
    Json,
    Ops,
    Policies,
    ScenarioPath,
    Sets,
    ShowGraph,
    TraceFile,
)

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("run", short_help="Run a scenario and say how it went.")(run)


def run(
    scenario: ScenarioPath,
    policy: Policies = None,
    sets: Sets = None,
    gantt: Gantt = None,
    trace: TraceFile = None,
    ops: Ops = None,
    json: Json = False,
    show_graph: ShowGraph = None,
    allow_code: AllowCode = False,
) -> None:
    """Run a scenario under its own policy, or under those that are named.

    With several policies, `--json` prints a list, and files hold all runs.
    """
    from scenarios.cli.output import print_json, print_result
    from scenarios.cli.running import cases_of, run_all
    from scenarios.load import load_scenario
    from scenarios.outputs import Outputs, write_graphs

    outputs = Outputs(gantt=gantt, trace=trace, ops=ops)
    loaded = load_scenario(scenario, sets=sets or (), allow_code=allow_code)
    results = run_all(cases_of(loaded, policy))
    if show_graph is not None:
        write_graphs(results, show_graph)
        typer.echo(f"wrote {show_graph[0]} and {show_graph[1]}", err=True)
    for path in outputs.write(results):
        typer.echo(f"wrote {path}", err=True)
    if json:
        objects = [result.to_json() for result in results]
        print_json(objects[0] if len(objects) == 1 else objects)
        return
    for i, result in enumerate(results):
        if i:
            typer.echo()
        print_result(result)
