"""``sim sweep``, ``tune``, ``optimum`` and ``bench``: many runs, to find the best."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import Any

import typer

from scenarios.cli.output import print_json, print_table, show_warnings
from scenarios.cli.running import Ticker, compare_all, progress, save_picture, say_written
from sim.base.errors import InputError, in_file, list_names
from sim.base.plugins import NOTHING, Allowed
from sim.base.units import parse_duration


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
    from scenarios.cli.search_tables import print_answer, print_left_out, print_rows
    from scenarios.fields.goals import read_goal
    from scenarios.fields.results import DONE, OUT_OF_MEMORY
    from scenarios.report.pictures import sweep_plot
    from scenarios.variants import sweep as sweeps
    from scenarios.variants.executors import executor_of
    from scenarios.variants.variant import Variants, column_of, points_of

    if dask is not None and jobs > 1:
        raise InputError("give --jobs or --dask, not both")
    goal = read_goal(minimise, maximise, subject_to or ())
    variants = Variants(scenario, sets or (), allowed, () if goal is None else goal.results)
    points, left_out = variants.fitting(points_of(vary, policy or [None]))
    settings = [column_of(key) for key, _ in points[0].settings]

    tick = Ticker("points")

    def on_point(k: int, n: int) -> None:
        if tick.before is None and k:
            done = f"{k:,} of {n:,} points were done before"
            typer.echo(f"{done} ({out}.points); what was warned of them is not said again", err=True)
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
        drawn = () if goal is None else (goal.result,)
        most = goal is not None and goal.most
        save_picture(sweep_plot(rows, settings, *drawn, most=most), plot)
    show(rows)
    outcomes = {row["outcome"] for row in rows}
    if not (
        outcomes <= {DONE, OUT_OF_MEMORY} and DONE in outcomes if goal is None else goal.rank_answers(rows)
    ):
        raise typer.Exit(1)


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
    from scenarios.cli.search_tables import print_tuning
    from scenarios.fields.goals import read_goal
    from scenarios.fields.results import shown_result
    from scenarios.variants import tune_report
    from scenarios.variants.executors import executor_of
    from scenarios.variants.sweep import KeptRows, sweeping
    from scenarios.variants.tune import Tuner, Tuning
    from scenarios.variants.variant import Variants, axes_of
    from sim.export.tables import write_table

    if out is not None:
        tune_report.check_winner(out, scenario)
    if level is not None and not vary:
        raise InputError("--level is for --method halving of --vary")
    goal = read_goal(minimise or (None if maximise else "makespan"), maximise, subject_to or ())
    assert goal is not None
    if against is not None:
        read_goal(against, None)
        if against == goal.result:
            raise InputError(f"--against {against}: the search is for it already; name another result")
    levels = None if level is None else next(iter(axes_of([level], "--level").items()))
    results = tuple(dict.fromkeys([*goal.results, *([] if against is None else [against])]))
    variants = Variants(scenario, sets or (), allowed, results, all_columns=False)
    tick = Ticker("runs")

    def tell(tuning: Tuning) -> None:
        best = None if tuning.best is None else tuning.trials[tuning.best].row[goal.column]
        best_text = "none yet" if best is None else shown_result(goal.result, best)
        all_settings = vary and not schedules and level is None
        total = min(budget, tuner.size * len(tuner.seeds)) if all_settings else budget
        tick(tuner.runs, total, f", best {best_text}")

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
        message = f"{table}.points keeps the runs, and the same command goes on there"
        interrupted = stopped if table is None else KeyboardInterrupt(message)
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


def optimum(
    scenario: str,
    policy: list[str] | None = None,
    sets: list[str] | None = None,
    limit: str = "60s",
    devices: bool = False,
    minimise: str = "makespan",
    seed: int = 0,
    jobs: int = 1,
    out: str | None = None,
    json: bool = False,
    allowed: Allowed = NOTHING,
) -> None:
    """Search for the order of ops, and their streams, with the least makespan, and prove how good it is.

    The graph, and the devices of the ops, are those of the scenario's own policy, or of the first `--policy`.
    Other policies, and those of `compare:`, are measured against the optimum if they do the same work there.
    A constraint solver (the extra opt) searches, and its schedule is simulated. A proven result is the same
    everywhere; how far an unproven search gets depends on the speed of this machine.

    Parameters
    ----------
    limit : --limit TIME
        Search for at most this long, in wall-clock time.
    devices : --devices
        Also choose devices: an op may go to any that can run it.
    minimise : --minimise RESULT
        makespan, weighted_tardiness, mean_flow_time or energy.
    seed : --seed >= 0
        Seed of the search.
    jobs : --jobs N >= 1
        Run N of the solver's strategies in parallel.
    out : --out FILE
        Write the best as a scenario (.yaml, .yml), beside this one.
    """
    from policies.optimum_model import objective_named, refuse_unmodelled
    from scenarios.cli.search_tables import print_optimum
    from scenarios.fields.results import RESULTS, result_of_run
    from scenarios.file.document import Document
    from scenarios.run.prepare_job import job_of
    from scenarios.run.scenario import scenario_of
    from scenarios.variants.optimum import find_optimum
    from scenarios.variants.tune_report import check_winner, write_found

    limit_ns = parse_duration(f"{limit}s" if limit.replace(".", "", 1).isdigit() else limit, what="--limit")
    if not limit_ns:
        raise InputError("--limit: should be more than 0")
    with in_file(f"--minimise {minimise}"):
        objective_named(minimise)
    if out is not None:
        check_winner(out, scenario)
    loaded = scenario_of(Document.read(scenario, allowed).with_settings(sets or ()))
    cases = [loaded.case(name) for name in policy] if policy else [loaded.case(), *loaded.cases()]
    refuse_unmodelled(job_of(cases[0]), not devices)
    of_label = {case.label: case for case in reversed(cases)}  # the first case of each label
    comparison = compare_all([of_label[label] for label in dict.fromkeys(case.label for case in cases)])
    results = comparison.results
    if results[0].policy != cases[0].label:
        first = comparison.failures[0].error
        assert first is not None
        raise first
    with progress("searching for the optimum"):
        solution = find_optimum(
            results, limit_ns=limit_ns, placed=not devices, seed=seed, goal=minimise, jobs=jobs
        )
    if json:
        print_json(solution.to_json())
    else:
        print_optimum(solution, limit_ns)
    if out is not None:
        best = solution.best
        cost = result_of_run(minimise, best.numbers, best.trace)
        unit = RESULTS[minimise].unit
        paths = write_found(
            out,
            best.case,
            best.trace,
            is_own=best is results[0] and not policy,
            expect={minimise: unit.show(cost)},
            head="Found by sim optimum: "
            + ("no schedule takes less." if solution.proven else solution.sentence(limit_ns)),
        )
        say_written(*paths)


def bench(
    paths: list[str],
    policy: list[str] | None = None,
    sets: list[str] | None = None,
    limit: str = "10s",
    orders: int = 100,
    devices: bool = False,
    jobs: int = 1,
    out: str | None = None,
    plot: str | None = None,
    json: bool = False,
    allowed: Allowed = NOTHING,
) -> None:
    """Compare policies, list schedules and the search for the optimum on a set of instances.

    Instances are job shops (JSPLIB), flexible job shops, projects (PSPLIB, .sm), task graphs (.stg, with the
    machine given by --set) and scenarios. Best known values stand in bounds.csv (instance,lower,upper) or
    instances.json beside them. Each row shows one method on one set: the mean gap to the best known makespan,
    how many instances reach it, how many are proven, and the mean time. With --out, finished instances are
    kept in FILE.points. Exit status 1 if a result contradicts what is known, or an instance does not run.

    Parameters
    ----------
    paths : PATH...
        Instances, scenarios, folders of them, or job_shop, projects.
    limit : --limit TIME
        How long `sim optimum` searches each instance; 0: not at all.
    orders : --random N >= 0
        Try N random orders and keep the best; 0: none.
    devices : --devices
        Also choose devices, as a flexible job shop does by itself.
    out : --out FILE
        Write all rows (.csv, .json, .parquet); the same command continues from it.
    plot : --plot FILE
        Plot the performance profile (.png, .svg, .pdf).
    """
    from scenarios.report.pictures import profile_plot
    from scenarios.variants import bench as benches
    from scenarios.variants.executors import executor_of
    from sim.base.arrays import group_pairs
    from sim.export.tables import text_table

    limit_ns = parse_duration(f"{limit}s" if limit.replace(".", "", 1).isdigit() else limit, what="--limit")
    methods = [(name, 0) for name in policy or ("ready-queue", "critical-path")] + [(benches.HEFT, 0)]
    searches = ((benches.RANDOM, orders), (benches.OPTIMUM, limit_ns))
    methods += [(name, effort) for name, effort in searches if effort]
    points = [
        benches.Point(path, method, tuple(sets or ()), effort, devices, allowed)
        for path in benches.instances_in(paths)
        for method, effort in methods
    ]
    with executor_of(min(jobs, len(points)), show_warnings) as executor:
        rows = benches.bench(points, executor=executor, out=out, done=Ticker("points"))
    if out is not None:
        say_written(out)
    if plot is not None:
        save_picture(profile_plot(benches.profile(rows)), plot)
    wrong, failed = benches.contradictions(rows), [row for row in rows if row["error"]]
    if json:
        print_json(rows)
    else:
        columns = ["set", "method", "instances", "mean gap: gap", "best known: best", "proven", "mean time"]
        print_table(text_table(benches.standings(rows), columns), left=2)
        open_ = {row["instance"]: None for row in rows if row["known_upper_ns"] is None and not row["error"]}
        if open_:
            print(f"no best known: {list_names([*open_], 5)}; their gaps are to the best of these methods")
    methods_by_error = group_pairs(((row["instance"], row["error"]), row["method"]) for row in failed)
    for (instance, error), names in methods_by_error.items():
        suffix = "" if len(names) == len(methods) else f", {', '.join(names)}"
        typer.echo(f"{instance}{suffix}: {error}", err=True)
    for contradiction in wrong:
        typer.echo(f"cannot be: {contradiction}", err=True)
    if wrong or failed:
        raise typer.Exit(1)
