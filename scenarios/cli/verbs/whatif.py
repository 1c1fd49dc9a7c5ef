"""``sim whatif FILE``: what would make a recorded program faster, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli.shared_options import Json, Sets, option
from sim.base.plugins import NOTHING, Allowed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scenarios.variants.recording_trials import TrialOutcome, WhatIfTrial


def whatif(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A recording, the folder of one with all ranks, a graph file or a scenario."
        ),
    ],
    only: Annotated[
        list[str] | None,
        option(
            "--only WORD",
            "Only what-ifs with this word or key, such as cuda_graph; may be given several times.",
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        option(
            "--also WHAT-IF",
            "One more what-if, written as in a scenario: 'remove: [softmax]', '{host: x0.5, cuda_graph: "
            "true}'.",
        ),
    ] = None,
    sets: Sets = None,
    plot: Annotated[str | None, option("--plot FILE", "Draw what is saved (.png, .svg, .pdf).")] = None,
    json: Json = False,
    allowed: Allowed = NOTHING,
) -> None:
    """Simulate a recording as it is and with changes, and print how much time each change saves.

    For a scenario it changes the machine, too: a device twice as fast, one more stream, free launches. The
    file is read once. To run a recording with a change, write a scenario with `workload: {what_if: ...}`.
    """
    from scenarios.cli.output import print_json
    from scenarios.cli.running import progress
    from scenarios.report.outputs import PICTURES, check_path
    from scenarios.report.pictures import draw_what_ifs, to_json
    from scenarios.variants.machine_trials import machine_trials
    from scenarios.variants.recording_trials import base_of, chosen, standard_trials, try_all

    if plot is not None:
        check_path("plot", plot, PICTURES)
    asked = [_asked(text) for text in also or ()]  # before anything is read: it may be wrong
    with progress(f"reading {file}"):
        base = base_of(file, sets=sets or (), allowed=allowed)
    with progress(f"simulating {base.name}"):
        known = standard_trials(base.graph)
        if not base.recorded_ns:  # what only recordings have is not missed
            known = [each for each in known if base.timed and not each.why_not]
            labels = {each.label for each in known}
            known += [each for each in machine_trials(base.trace) if each.label not in labels]
    trials = [*chosen(known, only or [""]), *asked]
    with progress(f"simulating {base.name} with {len(trials)} changes"):
        outcomes = list(try_all(base, trials))
    if plot is not None:
        from sim.plot.figure import save

        save(draw_what_ifs(base.name, outcomes), plot)
        typer.echo(f"wrote {plot}", err=True)
    if json:
        print_json(to_json(base.name, base.recorded_ns, outcomes))
    else:
        _print(base.name, base.recorded_ns, outcomes)


def _asked(text: str) -> WhatIfTrial:
    """Return a what-if of the command line."""
    from scenarios.file.yaml_read import read_yaml_text
    from scenarios.report.pictures import written
    from scenarios.variants.recording_trials import WhatIfTrial, asked, read_what_if
    from sim.base.errors import InputError

    value = read_yaml_text(text, f"--also {text}", places=False).plain()
    if not isinstance(value, dict) or not value:
        raise InputError(f"--also {text}: should be a what-if, as in --also 'remove: [softmax]'")
    with asked(text):
        read_what_if(value)
    return WhatIfTrial(written(value), value, given=True)


def _print(name: str, recorded_ns: int | None, outcomes: Sequence[TrialOutcome]) -> None:
    from scenarios.cli.text_tables import print_table, strong
    from scenarios.report.pictures import ranked, written
    from sim.base.units import format_duration
    from sim.export.tables import percent

    base, *others = ranked(outcomes)
    base_ns = base.makespan_ns or 0
    told = format_duration(base_ns)
    if recorded_ns:
        told += f" simulated, {format_duration(recorded_ns)} recorded ({base_ns / recorded_ns - 1:+.2%})"
    print(f"{strong(name)}: {told}")
    rows = [
        {"what if": base.label, "what_if": "", "makespan": format_duration(base_ns), "saved": "", "share": ""}
    ]
    for each in others:
        makespan_ns = each.makespan_ns or 0
        saved_ns = base_ns - makespan_ns
        sign = "-" if saved_ns < 0 else ""
        rows.append(
            {
                "what if": each.label,
                "what_if": written(each.what_if),
                "makespan": format_duration(makespan_ns),
                "saved": sign + format_duration(abs(saved_ns)),
                "share": " .. ".join(
                    percent(ns / base_ns)
                    for ns in sorted(
                        {saved_ns, saved_ns if each.other_saved_ns is None else each.other_saved_ns}
                    )
                    if base_ns
                ),
            }
        )
    print_table(rows, left=2)
    for tried in (True, False):
        notes: dict[str, list[str]] = {}
        for each in outcomes:
            if (each.makespan_ns is not None) == tried:
                for note in each.notes:
                    notes.setdefault(note, []).append(each.label)
        for note, labels in notes.items():
            print(f"{'' if tried else 'not tried: '}{', '.join(labels)}: {note}")
