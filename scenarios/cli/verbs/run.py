"""``sim run SCENARIO``: when does it end, how busy was the machine, what was everything waiting for?"""

from __future__ import annotations

from typing import Any, Final

import typer

from scenarios.cli.options import Outputs
from sim.base.plugins import NOTHING, Allowed

_FILES: Final = Outputs(
    ("gantt", "trace", "ops", "memory", "links", "roofline", "plan", "tuning", "timeline", "memory-trace")
)


def run(
    scenario: str,
    policy: list[str] | None = None,
    sets: list[str] | None = None,
    files: Any = _FILES,
    open_page: bool = False,
    arrows: bool = False,
    critical_path: bool = False,
    repeat: int | None = None,
    json: bool = False,
    show_graph: tuple[str, str] | None = None,
    allowed: Allowed = NOTHING,
) -> None:
    """Run a scenario under its own policy, or under those given by `--policy`.

    Exit status 1 if a condition of the file's `expect:` is not met; with `--set` none is checked. An op that
    fails because the scenario says so is a result, not an error: the first line reports it, and the exit
    status is 0. With several policies, `--json` prints a list, and each file holds all runs. With `--repeat`,
    files and tables show the run with the scenario's own seed.

    Parameters
    ----------
    repeat : --repeat N >= 1
        Run with N seeds and print the distribution of the makespan.
    show_graph : --show-graph BEFORE AFTER
        Write the graph before and after the `compile` steps (.json, .json.gz).
    """
    from scenarios.cli.output import print_json, print_repeats, print_told
    from scenarios.cli.running import Charts, cases_of, finish, run_all, run_repeatedly, say_written
    from sim.base.errors import InputError

    charts = Charts(arrows, critical_path, open_page)
    charts.check(files)
    wanted = show_graph or any(files.values())
    if wanted:  # names are checked before anything runs
        from scenarios.report.outputs import check_cases, check_outputs

        check_outputs({**files, "show-graph": show_graph})
    cases = cases_of(scenario, policy, sets, allowed)
    if wanted:
        check_cases(cases, files)
    if show_graph and len(cases) > 1:  # each may compile it differently
        raise InputError("--show-graph: shows the graph of one run; name one --policy")
    if repeat is not None and files["memory-trace"]:
        raise InputError("--memory-trace: holds the allocations of one run; leave out --repeat")
    repeats = [] if repeat is None else run_repeatedly(cases, repeat)
    results = [each.result for each in repeats] or run_all(cases, record_memory=bool(files["memory-trace"]))
    if json:
        objects = [result.to_json() for result in results]
        for one, each in zip(objects, repeats, strict=False):
            one["repeats"] = each.to_json()
        print_json(objects[0] if len(objects) == 1 else objects)
    else:
        for i, result in enumerate(results):
            if i:
                typer.echo()
            print_told(result)
        if repeats:
            typer.echo()
            print_repeats(repeats)
    if show_graph is not None:
        from scenarios.report.outputs import write_graphs

        write_graphs(results[0], show_graph)
        say_written(f"{show_graph[0]} and {show_graph[1]}")
    finish(results, files, charts)
