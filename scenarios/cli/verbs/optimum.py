"""``sim optimum SCENARIO``: the best possible schedule, or how far from it the policies can be."""

from __future__ import annotations

from sim.base.plugins import NOTHING, Allowed


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
    from scenarios.cli.output import print_json
    from scenarios.cli.running import compare_all, progress, say_written
    from scenarios.cli.search_tables import print_optimum
    from scenarios.fields.results import RESULTS, result_of_run
    from scenarios.file.document import Document
    from scenarios.run.prepare_job import job_of
    from scenarios.run.scenario import scenario_of
    from scenarios.variants.optimum import find_optimum
    from scenarios.variants.tune_report import check_winner, write_found
    from sim.base.errors import InputError, in_file
    from sim.base.units import parse_duration

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
        found = find_optimum(
            results, limit_ns=limit_ns, placed=not devices, seed=seed, what=minimise, jobs=jobs
        )
    if json:
        print_json(found.to_json())
    else:
        print_optimum(found, limit_ns)
    if out is not None:
        best = found.best
        cost = result_of_run(minimise, best.numbers, best.trace)
        unit = RESULTS[minimise].unit
        paths = write_found(
            out,
            best.case,
            best.trace,
            own=best is results[0] and not policy,
            expect={minimise: unit.show(cost)},
            head="Found by sim optimum: "
            + ("no schedule takes less." if found.proven else found.sentence(limit_ns)),
        )
        say_written(*paths)
