"""``sim memory TRACE``: what would another allocator have made of these allocations?"""

from __future__ import annotations

from typing import Any

import typer


def memory(
    trace: str,
    allocator: list[str] | None = None,
    capacity: str | None = None,
    sets: list[str] | None = None,
    device: int | None = None,
    ops: str | None = None,
    json: bool = False,
) -> None:
    """Replay an allocation trace through one or more allocators and compare their memory use.

    Events are replayed in order, without times. Exit status 1 if memory runs out; `--ops` then holds the
    events up to there.

    Parameters
    ----------
    trace : TRACE
        JSON lines {"op": "alloc", "id": "x", "nbytes": 4096} (docs/memory.md has all ops; `sim run
        --memory-trace` writes them) or a PyTorch memory snapshot.
    allocator : --allocator NAME
        pool, bfc, caching, counted, planned or scratchpad; may be given several times. Default: all
        that need no capacity.
    capacity : --capacity SIZE
        Memory of the device, such as 80GiB.
    sets : --set KEY=VALUE
        An option of the allocator, such as allow_growth=true.
    device : --device >= 0
        The device, if a snapshot has several.
    ops : --ops FILE
        Write one row per event (.csv, .csv.gz, .json, .json.gz, .parquet).
    """
    from devices.memory.registry import allocators, needs_capacity
    from devices.memory.trace_readers import read_events
    from scenarios.cli.output import print_json
    from scenarios.cli.running import progress, say_written
    from scenarios.file.document import plain_settings
    from scenarios.report.memory_replays import MEMORY_SCHEMA, event_table, replay_report, replay_under
    from sim.base.errors import InputError, OutOfMemoryError
    from sim.base.units import parse_bytes
    from sim.export.tables import write_table

    names = list(dict.fromkeys(allocator or [name for name in allocators() if not needs_capacity(name)]))
    if ops is not None and len(names) > 1:
        raise InputError(f"--ops {ops}: holds the addresses of one allocator; name one --allocator")
    limit = None if capacity is None else parse_bytes(capacity, what="--capacity")
    options = plain_settings(sets or (), "allow_growth=true")
    events = read_events(trace, device=device)
    if not events:
        raise InputError(f"{trace}: has no event, neither an allocation nor a free")
    reports, stories = [], []
    for name in names:
        try:
            with progress(f"replaying {len(events):,} events through {name}"):
                done = replay_under(events, name, limit, options)
        except OutOfMemoryError as error:  # the others are still compared
            stories.append(str(error))
            continue
        if ops is not None:
            write_table(event_table(done), ops)
            until = "" if done.failure is None else f", up to event {len(done.events):,}"
            say_written(f"{ops}{until}")
        if done.failure is None:
            reports.append(replay_report(done, name))
        else:
            stories.append(str(done.failure))
    if not reports:
        raise OutOfMemoryError("\n".join(stories))
    if json:
        print_json({"schema": MEMORY_SCHEMA, "trace": trace, "capacity_bytes": limit, "results": reports})
    else:
        _print(reports)
    if stories:
        raise OutOfMemoryError("\n".join(stories))


def _print(reports: list[dict[str, Any]]) -> None:
    from scenarios.cli.text_tables import print_table
    from sim.base.units import format_count
    from sim.export.tables import size, text_table

    columns = ["allocator", "peak asked for: peak_requested_bytes", "peak in use: peak_in_use_bytes"]
    columns += ["peak reserved: peak_reserved_bytes", "fragmentation_bytes"]
    print_table(text_table(reports, [*columns, "mallocs: device_mallocs", "frees: device_frees"]))
    first = reports[0]
    held = ", ".join(f"{holder['id']} {size(holder['nbytes'])}" for holder in first["holders"])
    typer.echo(
        f"\n{format_count(first['events'], 'event')}; peak after event {first['peak_event']:,}: {held}"
    )
    if first["never_freed"]:
        typer.echo(f"{format_count(first['never_freed'], 'allocation')} never freed")
    if (recorded := first["recorded_reserved_bytes"]) is not None:
        typer.echo(f"the recorded allocator reserved {size(recorded)} at most")
    for report in reports:
        if report["not_followed"]:
            times = format_count(report["not_followed"], "time")
            typer.echo(
                f"{report['allocator']}: {times} the recorded allocator gave memory "
                "back that is not free here: it had other options, or segments from before the recording"
            )
