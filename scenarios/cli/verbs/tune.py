"""``sim tune SCENARIO``: the best settings, and the best order, placement and streams."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack

import typer

from sim.base.plugins import NOTHING, Allowed


def tune(
    scenario: str,
    vary: list[str] | None = None,
    schedules: bool = False,
    budget: int = 1000,
    method: str | None = None,
    level: str | None = None,
    policy: list[str] | None = None,
    sets: list[str] | None = None,
    minimise: str | None = None,
    maximise: str | None = None,
    subject_to: list[str] | None = None,
    against: str | None = None,
    jobs: int = 1,
    seed: int = 0,
    out: str | None = None,
    table: str | None = None,
    plot: str | None = None,
    json: bool = False,
    allowed: Allowed = NOTHING,
) -> None:
    """Search for the best settings of a scenario, or for its best schedule; best is the shortest makespan.

    With --vary it tries settings. Without --vary, or with --schedules as well, it changes the order of ops,
    their devices and their streams, starting from the best of the scenario's policies. Each trial is a run as
    `sim run` does it; the result does not depend on --jobs. --minimise or --maximise searches for another
    result. Ctrl-C ends the search and keeps the best so far. Exit status 1: no trial kept the limits.

    Parameters
    ----------
    vary : --vary KEY=V1,V2,...
        Values of a key to try; may be given several times.
    schedules : --schedules
        Change orders, placements and streams; the default without --vary.
    budget : --budget N >= 1
        Make at most N runs.
    method : --method NAME
        How to search --vary: grid (the default if the budget allows), local (the default if not),
        random, halving or optuna.
    level : --level KEY=V1,V2,...
        For halving: a key and its values from cheap to exact, as in iterations=1,4,16.
    against : --against RESULT
        A second result: also show the Pareto front of the two.
    seed : --seed >= 0
        Seed of the search.
    out : --out FILE
        Write the winner as a scenario (.yaml, .yml), beside this one.
    table : --table FILE
        Write all trials (.csv, .csv.gz, .json, .json.gz, .parquet). Runs are kept beside it, in FILE.points:
        an interrupted search continues from them.
    plot : --plot FILE
        Draw the progress of the search, and the Pareto front (.png, .svg, .pdf).
    """
    from scenarios.cli.output import print_json
    from scenarios.cli.running import Ticker, save_picture, say_written
    from scenarios.cli.search_tables import print_tuning
    from scenarios.cli.terminal import show_warnings
    from scenarios.fields.goals import read_goal
    from scenarios.fields.results import shown_result
    from scenarios.variants import tune_report
    from scenarios.variants.executors import executor_of
    from scenarios.variants.sweep import KeptRows, sweeping
    from scenarios.variants.tune import Tuner, Tuning
    from scenarios.variants.variant import Variants, axes_of
    from sim.base.errors import InputError
    from sim.export.tables import write_table

    if out is not None:
        tune_report.check_winner(out, scenario)
    if level is not None and not vary:
        raise InputError("--level is for --method halving of --vary")
    goal = read_goal(minimise or (None if maximise else "makespan"), maximise, subject_to or ())
    assert goal is not None
    if against is not None:
        read_goal(against, None)
        if against == goal.what:
            raise InputError(f"--against {against}: the search is for it already; name another result")
    levels = None if level is None else next(iter(axes_of([level], "--level").items()))
    results = tuple(dict.fromkeys([*goal.results, *([] if against is None else [against])]))
    variants = Variants(scenario, sets or (), allowed, results, whole=False)
    tick = Ticker("runs")

    def tell(tuning: Tuning) -> None:
        best = None if tuning.best is None else tuning.trials[tuning.best].row[goal.column]
        shown = "none yet" if best is None else shown_result(goal.what, best)
        all_settings = vary and not schedules and level is None
        most = min(budget, tuner.size * len(tuner.seeds)) if all_settings else budget
        tick(tuner.runs, most, f", best {shown}")

    axes = axes_of(vary or [])
    tuner = Tuner(variants, goal, axes, policy or [None], levels, seed, tell, jobs)
    interrupted: KeyboardInterrupt | None = None
    try:
        with ExitStack() as open_files:
            if table is not None:
                stamp = tuner.stamp()
                tuner.kept = KeptRows(open_files.enter_context(sweeping(table)), defaultdict(lambda: stamp))
            tuner.executor = open_files.enter_context(executor_of(min(jobs, budget), show_warnings))
            if vary:
                tuner.settings(method, budget if not schedules else max(1, budget // 2))
            if schedules or not vary:
                if method is not None and not vary:
                    raise InputError(f"--method {method} is for settings: give --vary")
                tuner.schedules(budget)
            tuner.compare_on_fresh_seeds()
    except KeyboardInterrupt as stopped:
        kept = f"{table}.points keeps the runs, and the same command goes on there"
        interrupted = stopped if table is None else KeyboardInterrupt(kept)
    tuning = tuner.tuning
    if out is not None and tuning.best is not None:
        say_written(*tune_report.write_winner(tuning, out))
    if table is not None and tuning.trials:
        write_table(tune_report.trial_table(tuning), table)
        say_written(table)
    if plot is not None and tuning.best is not None:
        save_picture(tune_report.tuning_figure(tuning, against), plot)
    if json:
        print_json(tune_report.tuning_report(tuning, against))
    else:
        print_tuning(tuning, against)
    if interrupted is not None:
        raise interrupted
    if tuning.best is None:
        raise typer.Exit(1)
