"""``sim explain SCENARIO``: the critical path, and the cause of each idle gap."""

from __future__ import annotations

import typer

from sim.base.plugins import NOTHING, Allowed


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
        Show what this op waited for, what led to it, and what waited for it.
    most : --most >= 0
        Show this many of the longest steps and idle gaps.
    """
    from scenarios.builders.input_pipeline import limit_line
    from scenarios.cli.output import print_json
    from scenarios.cli.running import cases_of, run_all
    from scenarios.report.explanation import explanation
    from sim.base.units import parse_duration
    from sim.explain.derived import DerivedColumns
    from sim.explain.narration import explain_text, op_text

    from_ns = parse_duration(begin, what="--from")
    to_ns = None if end is None else parse_duration(end, what="--to")
    results = run_all(cases_of(scenario, policy, sets, allowed))
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
        if told := result.summary.get("data_loading"):
            typer.echo(f"\n{limit_line(told)}")
