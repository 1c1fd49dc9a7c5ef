"""``sim bench FOLDER``: policies and solvers on a set of instances."""

from __future__ import annotations

import typer

from sim.base.plugins import NOTHING, Allowed


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
    from scenarios.cli.output import print_json
    from scenarios.cli.running import Ticker, save_picture, say_written
    from scenarios.cli.terminal import show_warnings
    from scenarios.cli.text_tables import print_table
    from scenarios.report.pictures import profile_plot
    from scenarios.variants import bench as benches
    from scenarios.variants.executors import executor_of
    from sim.base.arrays import group_pairs
    from sim.base.errors import list_names
    from sim.base.units import parse_duration
    from sim.export.tables import text_table

    limit_ns = parse_duration(f"{limit}s" if limit.replace(".", "", 1).isdigit() else limit, what="--limit")
    methods = [(name, 0) for name in policy or ("ready-queue", "critical-path")] + [(benches.HEFT, 0)]
    methods += [(benches.RANDOM, orders)] * bool(orders) + [(benches.OPTIMUM, limit_ns)] * bool(limit_ns)
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
        standings = [each._asdict() for each in benches.standings(rows)]
        for each in standings:
            each["proven"] = each["proven"] if each["method"] == benches.OPTIMUM else None
            each["mean time"] = f"{each['seconds']:.2f} s"
        columns = ["set", "method", "instances", "mean gap: gap", "best known: best", "proven", "mean time"]
        print_table(text_table(standings, columns), left=2)
        open_ = {row["instance"]: None for row in rows if row["known_upper_ns"] is None and not row["error"]}
        if open_:
            print(f"no best known: {list_names([*open_], 5)}; their gaps are to the best of these methods")
    told = group_pairs(((row["instance"], row["error"]), row["method"]) for row in failed)
    for (instance, error), names in told.items():
        which = "" if len(names) == len(methods) else f", {', '.join(names)}"
        typer.echo(f"{instance}{which}: {error}", err=True)
    for contradiction in wrong:
        typer.echo(f"cannot be: {contradiction}", err=True)
    if wrong or failed:
        raise typer.Exit(1)
