"""``sim run``, ``compare``, ``explain`` and ``check``: run a scenario, and say what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import typer

from scenarios.cli import running
from scenarios.cli.output import print_json, print_repeats, print_report
from sim.base.errors import InputError
from sim.base.plugins import NOTHING, Allowed
from sim.base.units import format_count, parse_duration

if TYPE_CHECKING:
    from scenarios.regression import Checked, Rewritten


_FILES: Final = "gantt trace ops memory links roofline plan tuning timeline memory-trace"
_RUN_FILES: Final = tuple(_FILES.split())


def run(
    scenario: str,
    policy: list[str] | None = None,
    sets: list[str] | None = None,
    files: Any = _RUN_FILES,
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
    charts = {"arrows": arrows, "critical_path": critical_path}
    running.check_charts(files, open_page, **charts)
    writes = show_graph or any(files.values())
    if writes:  # names are checked before anything runs
        from scenarios.report.outputs import check_cases, check_outputs

        check_outputs({**files, "show-graph": show_graph})
    cases = running.cases_of(scenario, policy, sets, allowed)
    if writes:
        check_cases(cases, files)
    if show_graph and len(cases) > 1:  # each may compile it differently
        raise InputError("--show-graph: shows the graph of one run; name one --policy")
    if repeat is not None and files["memory-trace"]:
        raise InputError("--memory-trace: holds the allocations of one run; leave out --repeat")
    repeats = [] if repeat is None else running.run_repeatedly(cases, repeat)
    record = bool(files["memory-trace"])
    results = [repeated.result for repeated in repeats] or running.run_all(cases, record_memory=record)
    if json:
        objects = [result.to_json() for result in results]
        for one, repeated in zip(objects, repeats, strict=False):
            one["repeats"] = repeated.to_json()
        print_json(objects[0] if len(objects) == 1 else objects)
    else:
        for i, result in enumerate(results):
            if i:
                typer.echo()
            print_report(result)
        if repeats:
            typer.echo()
            print_repeats(repeats)
    if show_graph is not None:
        from scenarios.importers import write_graph

        write_graph(results[0].case.work.graph, show_graph[0])
        write_graph(results[0].trace.job.graph, show_graph[1])
        running.say_written(f"{show_graph[0]} and {show_graph[1]}")
    running.finish(results, files, open_page, **charts)


def compare(
    scenario: str,
    policy: list[str] | None = None,
    sets: list[str] | None = None,
    files: Any = ("gantt", "trace", "ops", "tuning", "pareto"),
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
    from scenarios.report.outputs import check_cases, check_outputs

    charts = {"arrows": arrows, "critical_path": critical_path}
    running.check_charts(files, open_page, **charts)
    check_outputs(files)
    cases = running.cases_of(scenario, policy, sets, allowed, compare=True)
    check_cases(cases, files)
    comparison = running.compare_all(cases)
    if json:
        print_json(comparison.to_json())
    else:
        print_report(comparison)
    if comparison.failures and any(files.values()):
        failed = ", ".join(failure.label for failure in comparison.failures)
        typer.echo(f"not in the files that are written, as there is no result: {failed}", err=True)
    running.finish(comparison.results, files, open_page, **charts)
    if comparison.failures:
        raise typer.Exit(1)


def explain(
    scenario: str,
    policy: list[str] | None = None,
    sets: list[str] | None = None,
    device: str | None = None,
    stream: int | None = None,
    begin: str = "0",
    end: str | None = None,
    op: str | None = None,
    most: int = 10,
    json: bool = False,
    allowed: Allowed = NOTHING,
) -> None:
    """Show what the makespan consists of, the critical path that led to it, and why devices were idle.

    --device, --stream, --from and --to select a place and a time; --op selects one op.

    Parameters
    ----------
    device : --device NAME
        Only this device.
    stream : --stream N
        Only this stream (or worker) of the device.
    begin : --from TIME
        Only what happens from this time on, as in 3ms.
    end : --to TIME
        Only what happens before this time.
    op : --op NAME
        Show what this op waited for, what led to it, and what waited for it; of iterations, a[2] is one.
    most : --most >= 0
        Show this many of the longest steps and idle gaps.
    """
    from scenarios.builders.input_pipeline import limit_line
    from scenarios.report.explanation import explanation
    from sim.explain.derived import DerivedColumns
    from sim.explain.narration import explain_text, op_text

    from_ns = parse_duration(begin, what="--from")
    to_ns = None if end is None else parse_duration(end, what="--to")
    results = running.run_all(running.cases_of(scenario, policy, sets, allowed))
    parts = []
    for result in results:
        facts = DerivedColumns(result.trace, result.policy)
        parts.append(facts.within(device, stream, from_ns, to_ns))
    if json:
        pairs = zip(results, parts, strict=True)
        objects = [explanation(result, facts, gaps=most, op=op) for result, facts in pairs]
        print_json(objects[0] if len(objects) == 1 else objects)
        return
    for i, (result, facts) in enumerate(zip(results, parts, strict=True)):
        if i:
            typer.echo()
        title = f"{result.scenario}: {result.policy}"
        if op is not None:
            text = op_text(facts, op, most)
            typer.echo(f"{title}\n\n{text}", nl=False)
            continue
        typer.echo(explain_text(facts, gaps=most, longest=most, title=title), nl=False)
        if loading := result.summary.get("data_loading"):
            typer.echo(f"\n{limit_line(loading)}")


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
    from scenarios.regression import check_file, scenario_files

    format = "json" if json else format
    done: list[Checked] = []
    rewritten: Rewritten | None = {} if update else None
    for path in scenario_files(paths):
        with running.progress(f"checking {path}"):
            results = list(check_file(path, allowed, rewritten=rewritten))
        done += results
        if format != "json":
            for one in results:
                _print_checked(one, format)
    if format == "json":
        failed = sum(one.exit_status != 0 for one in done)
        print_json({"schema": "sim.check/1", "failed": failed, "checks": [one.to_json() for one in done]})
    else:
        typer.echo(_total(done))
    worst = max(one.exit_status for one in done)
    raise typer.Exit(worst if worst or any(one.outcomes for one in done) else 2)


def _print_checked(one: Checked, format: CheckFormat) -> None:
    """Print the outcome of one run, and below it what did not hold."""
    from scenarios.regression import annotation
    from scenarios.run.result_sections import unused_notes

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
        title = f"sim check: {one.label}" if one.label else "sim check"
        for place, message in one.complaints:
            typer.echo(annotation(level, place, title, message))
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
