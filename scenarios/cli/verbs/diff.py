"""``sim diff A B``: which ops moved, the first one that did and why, where the time went."""

from __future__ import annotations

import typer

from sim.base.plugins import NOTHING, Allowed


def diff(
    file: str,
    other: str | None = None,
    policy: list[str] | None = None,
    sets: list[str] | None = None,
    sets_a: list[str] | None = None,
    sets_b: list[str] | None = None,
    over: str | None = None,
    top: int = 10,
    gantt: list[str] | None = None,
    json: bool = False,
    exit_code: bool = False,
    allowed: Allowed = NOTHING,
) -> None:
    """Show what differs between two runs: which ops moved, the first that did and why, idle time by reason.

    A and B are two files; or one scenario under two policies (`--policy` twice) or two settings (`--set-b`);
    or one recording, which is then compared with its simulation. Two recordings are compared as they were
    recorded.

    Parameters
    ----------
    file : A
        A scenario, a recording, a table of ops or a trace that `sim run` wrote, or a plan.
    other : B
        Another of these.
    policy : --policy NAME
        As for `sim run`. Given twice, the first is for A and the second for B; given once with one
        file, it is for B.
    sets_a : --set-a KEY=VALUE
        As --set, for A only.
    sets_b : --set-b KEY=VALUE
        As --set, for B only.
    over : --over DURATION
        Ignore differences in start and duration up to this; default: 1us if one side was recorded, else
        0.
    top : --top N >= 1
        Show at most N rows of each table.
    gantt : --gantt FILE
        Draw both on one time axis, with what moved (.png, .svg, .pdf).
    exit_code : --exit-code
        Exit with status 1 if anything differs.
    """
    from scenarios.cli.difference_table import print_difference
    from scenarios.cli.output import print_json
    from scenarios.cli.running import progress, save_picture
    from scenarios.report.diff import Answer, two_sides
    from sim.base.units import parse_duration
    from sim.diff.differences import differences

    over_ns = None if over is None else parse_duration(over, what="--over")
    given = (policy or (), sets or (), sets_a or (), sets_b or ())
    paths = [file] if other is None else [file, other]
    sides = two_sides(paths, *given, allowed=allowed)
    schedules = []
    for letter, side in zip("AB", sides, strict=True):
        with progress(f"{letter}: {side.title}"):
            schedules.append(side.schedule())
    a, b = schedules
    if over_ns is None:
        over_ns = 1000 if a.recorded or b.recorded else 0
    with progress("comparing"):
        answer = Answer(differences(a, b, over_ns=over_ns), top)
        if json:
            print_json(answer.to_json())
        else:
            print_difference(answer)
    for path in gantt or ():
        from sim.plot.diff import diff_gantt

        with progress(f"drawing {path}"):
            save_picture(diff_gantt(answer.differences), path)
    if exit_code and not answer.differences.same:
        raise typer.Exit(1)
