"""``sim whatif FILE``: what would make a recorded program faster, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.base.errors import InputError
from sim.base.plugins import NOTHING, Allowed

if TYPE_CHECKING:
    from scenarios.variants.variant import Variant
    from scenarios.variants.what_ifs import WhatIfs


def whatif(
    file: str,
    only: list[str] | None = None,
    also: list[str] | None = None,
    sets: list[str] | None = None,
    plot: str | None = None,
    json: bool = False,
    allowed: Allowed = NOTHING,
) -> None:
    """Simulate a recording as it is and with changes, and print how much time each change saves.

    For a scenario it changes the machine, too: a device twice as fast, one more stream, free launches. The
    file is read once. To run a recording with a change, write a scenario with `workload: {what_if: ...}`.

    Parameters
    ----------
    file : FILE
        A recording, the folder of one with all ranks, a graph file or a scenario.
    only : --only WORD
        Only what-ifs with this word or key, such as cuda_graph; may be given several times.
    also : --also WHAT-IF
        One more what-if, written as in a scenario: 'remove: [softmax]', '{host: x0.5, cuda_graph:
        true}', '[{fuse: [gemm]}, {gap: x0}]' one after another; may be given several times.
    plot : --plot FILE
        Draw how much time each change saves (.png, .svg, .pdf).
    """
    from scenarios.cli.output import print_json
    from scenarios.cli.running import progress, save_picture
    from scenarios.cli.search_tables import print_what_ifs
    from scenarios.report.pictures import draw_what_ifs, to_json
    from scenarios.variants.machine_what_ifs import machine_trials
    from scenarios.variants.what_ifs import WhatIfs, chosen, standard_trials, try_all

    given = [_parse(text) for text in also or ()]  # first of all, because it may be wrong
    with progress(f"reading {file}"):
        what_ifs = WhatIfs(file, sets or (), allowed)
        name = what_ifs.name
        if what_ifs.settings:
            if given or plot is not None:
                option = "--also" if given else "--plot"
                raise InputError(f"{option} is of graphs; {name} has none of its own")
            return _try_settings(what_ifs, only or [""], json)
        known = standard_trials(what_ifs.timed_graph)
    with progress(f"simulating {name}"):
        recorded_ns = what_ifs.recorded_ns
        if not recorded_ns:  # do not list what only recordings have
            known = [each for each in known if what_ifs.timed and not each.why_not]
            labels = {each.label for each in known}
            known += [each for each in machine_trials(what_ifs.trace) if each.label not in labels]
    trials = chosen(known, only or [""])
    with progress(f"simulating {name} with {len(trials) + len(given)} changes"):
        rows = list(try_all(what_ifs, trials, given))
    if plot is not None:
        save_picture(draw_what_ifs(name, rows), plot)
    if json:
        print_json(to_json(name, recorded_ns, rows))
    else:
        print_what_ifs(name, recorded_ns, rows)


def _try_settings(what_ifs: WhatIfs, only: list[str], json: bool) -> None:
    """Try settings, for a workload whose graph follows from them."""
    from scenarios.cli.output import print_json
    from scenarios.cli.running import progress
    from scenarios.cli.search_tables import print_rows
    from scenarios.fields.goals import Goal
    from scenarios.variants.variant import Variants
    from scenarios.variants.what_ifs import chosen

    first, *others = what_ifs.settings
    trials, runs = [first, *chosen(others, only)], Variants(*what_ifs.made_of)
    with progress(f"trying {len(trials) - 1} changes of {what_ifs.name}"):
        rows = [{"what if": trial.label, **runs.row(trial)} for trial in trials]
    if json:
        print_json({"name": what_ifs.name, "what_ifs": rows})
    else:
        print_rows(rows, ["what if"], Goal("e2el_p99"))


def _parse(text: str) -> Variant:
    """Return a what-if from the command line."""
    from scenarios.file.yaml_read import read_yaml_text
    from scenarios.report.pictures import as_yaml_line
    from scenarios.variants.what_ifs import name_what_if, read_what_if, what_if

    value = read_yaml_text(text, f"--also {text}", places=False).plain()
    if not value or not all(isinstance(one, dict) for one in (value if isinstance(value, list) else [value])):
        told = "should be a what-if, as in --also 'remove: [softmax]', or a list of such"
        raise InputError(f"--also {text}: {told}")
    with name_what_if(text):
        read_what_if(value)
    return what_if(as_yaml_line(value), value)
