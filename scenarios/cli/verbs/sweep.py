"""``sim sweep SCENARIO --vary KEY=V1,V2``: the same scenario at many settings."""

from __future__ import annotations

from typing import Any

import typer

from sim.base.plugins import NOTHING, Allowed


def sweep(
    scenario: str,
    vary: list[str],
    policy: list[str] | None = None,
    sets: list[str] | None = None,
    minimise: str | None = None,
    maximise: str | None = None,
    subject_to: list[str] | None = None,
    jobs: int = 1,
    dask: str | None = None,
    out: str | None = None,
    plot: str | None = None,
    force: bool = False,
    json: bool = False,
    allowed: Allowed = NOTHING,
) -> None:
    """Run a scenario at every combination of settings and policies; one row each.

    Combinations whose sizes do not fit one another (8 heads on 3 ranks) are left out and counted. With
    --out, finished points are kept in FILE.points: an interrupted sweep resumes where it stopped, and a
    finished one is shown again at once, unless the scenario, a file that it names, or the program has
    changed. Only --force replaces a table of another sweep. If a point fails, its row says why. Exit status 1
    if all points fail, or one for another reason than lack of memory. --minimise and --maximise name the best
    point and its runner-up; then exit status 1 means that there is none.

    Parameters
    ----------
    vary : --vary KEY=V1,V2,...
        A key and its values, as in 1,2,4 or 1..8 or 1..64 x2; several times for every combination.
    dask : --dask ADDRESS
        Run on this Dask cluster.
    out : --out FILE
        Write the table (.csv, .json, .parquet); the same command continues from it.
    plot : --plot FILE
        Plot the result of --minimise or --maximise, or the makespan, over the first key (.png, .svg,
        .pdf).
    force : --force
        Replace a table of another sweep, or one with other results.
    """
    from scenarios.cli.output import print_json
    from scenarios.cli.running import Ticker, save_picture, say_written
    from scenarios.cli.search_tables import print_answer, print_left_out, print_rows
    from scenarios.cli.terminal import show_warnings
    from scenarios.fields.goals import read_goal
    from scenarios.fields.results import DONE, OUT_OF_MEMORY
    from scenarios.report.pictures import sweep_plot
    from scenarios.variants import sweep as sweeps
    from scenarios.variants.executors import executor_of
    from scenarios.variants.variant import Variants, column_of, points_of
    from sim.base.errors import InputError

    if dask is not None and jobs > 1:
        raise InputError("give --jobs or --dask, not both")
    goal = read_goal(minimise, maximise, subject_to or ())
    variants = Variants(scenario, sets or (), allowed, () if goal is None else goal.results)
    points, left_out = variants.fitting(points_of(vary, policy or [None]))
    settings = [column_of(key) for key, _ in points[0].settings]

    tick = Ticker("points")

    def on_point(k: int, n: int) -> None:
        if tick.before is None and k:
            told = f"{k:,} of {n:,} points were done before"
            typer.echo(f"{told} ({out}.points); what was warned of them is not said again", err=True)
        tick(k, n)

    def show(rows: list[dict[str, Any]]) -> None:
        if json:
            print_json(
                rows if goal is None else goal.answer(rows, settings) | {"left_out": left_out, "rows": rows}
            )
        elif goal is not None:
            print_answer(rows, settings, goal, left_out)
        elif rows:
            print_rows(rows, settings)
            print_left_out(left_out)

    with executor_of(min(jobs, len(points)), show_warnings, dask) as executor:
        try:
            rows = sweeps.sweep(variants, points, executor=executor, out=out, force=force, done=on_point)
        except sweeps.Interrupted as stopped:
            show(stopped.rows)
            raise
    if out is not None:
        say_written(out)
    if plot is not None:
        drawn = () if goal is None else (goal.what,)
        most = goal is not None and goal.most
        save_picture(sweep_plot(rows, settings, *drawn, most=most), plot)
    show(rows)
    outcomes = {row["outcome"] for row in rows}
    if not (
        outcomes <= {DONE, OUT_OF_MEMORY} and DONE in outcomes if goal is None else goal.rank_answers(rows)
    ):
        raise typer.Exit(1)
