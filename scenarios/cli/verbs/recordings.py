"""``sim diff``, ``whatif``, ``import`` and ``memory``: recordings and other files, read and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from scenarios.cli.output import print_json, print_table
from scenarios.cli.running import progress, save_picture, say_written
from sim.base.errors import InputError, OutOfMemoryError, error_path, in_file
from sim.base.plugins import NOTHING, Allowed
from sim.base.units import format_count, parse_bytes, parse_duration

if TYPE_CHECKING:
    import pandas as pd

    from devices.memory.memory_replay import Replay
    from scenarios.variants.variant import Variant
    from scenarios.variants.what_ifs import WhatIfs


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
    from scenarios.report.diff import Answer, two_sides
    from sim.diff.differences import differences

    over_ns = None if over is None else parse_duration(over, what="--over")
    arguments = (policy or (), sets or (), sets_a or (), sets_b or ())
    paths = [file] if other is None else [file, other]
    sides = two_sides(paths, *arguments, allowed=allowed)
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
    from scenarios.cli.search_tables import print_what_ifs
    from scenarios.report.pictures import draw_what_ifs, to_json
    from scenarios.variants.machine_what_ifs import machine_trials
    from scenarios.variants.what_ifs import WhatIfs, chosen, standard_trials, try_all

    extra = [_read_also(text) for text in also or ()]  # first of all, because it may be wrong
    with progress(f"reading {file}"):
        what_ifs = WhatIfs(file, sets or (), allowed)
        name = what_ifs.name
        if what_ifs.settings:
            if extra or plot is not None:
                option = "--also" if extra else "--plot"
                raise InputError(f"{option} is of graphs; {name} has none of its own")
            return _try_settings(what_ifs, only or [""], json)
        candidates = standard_trials(what_ifs.timed_graph)
    with progress(f"simulating {name}"):
        recorded_ns = what_ifs.recorded_ns
        if not recorded_ns:  # do not list what only recordings have
            candidates = [trial for trial in candidates if what_ifs.timed and not trial.why_not]
            first, second = candidates, machine_trials(what_ifs.trace)
            if len(what_ifs.trace.job.graph) != len(what_ifs.graph):  # what a rewrite adds, these change, too
                first, second = second, first
            labels = {trial.label for trial in first}
            candidates = [*first, *(trial for trial in second if trial.label not in labels)]
    trials = chosen(candidates, only or [""])
    with progress(f"simulating {name} with {format_count(len(trials) + len(extra), 'change')}"):
        rows = list(try_all(what_ifs, trials, extra))
    if plot is not None:
        save_picture(draw_what_ifs(name, rows), plot)
    if json:
        print_json(to_json(name, recorded_ns, rows))
    else:
        print_what_ifs(name, recorded_ns, rows)


def _try_settings(what_ifs: WhatIfs, only: list[str], json: bool) -> None:
    """Try settings, for a workload whose graph follows from them."""
    from scenarios.cli.search_tables import print_rows
    from scenarios.fields.goals import Goal
    from scenarios.variants.variant import Variants
    from scenarios.variants.what_ifs import chosen

    first, *others = what_ifs.settings
    trials, runs = [first, *chosen(others, only)], Variants(*what_ifs.made_of)
    with progress(f"trying {format_count(len(trials) - 1, 'change')} of {what_ifs.name}"):
        rows = [{"what if": trial.label, **runs.row(trial)} for trial in trials]
    if json:
        print_json({"name": what_ifs.name, "what_ifs": rows})
    else:
        print_rows(rows, ["what if"], Goal("e2el_p99"))


def _read_also(text: str) -> Variant:
    """Return a what-if from the command line."""
    from scenarios.file.yaml_read import read_yaml_text
    from scenarios.report.pictures import as_yaml_line
    from scenarios.variants.what_ifs import read_what_if, what_if

    value = read_yaml_text(text, f"--also {text}", places=False).plain()
    if not value or not all(isinstance(one, dict) for one in (value if isinstance(value, list) else [value])):
        message = "should be a what-if, as in --also 'remove: [softmax]', or a list of such"
        raise InputError(f"--also {text}: {message}")
    with in_file(f"--also {text}"):
        read_what_if(value)
    return what_if(as_yaml_line(value), value)


def import_(
    file: str,
    out: str,
    batch: int | None = None,
    format: str | None = None,
    options: list[str] | None = None,
    note: str | None = None,
) -> None:
    """Convert a model to a graph file; a scenario uses it with `workload: {graph: FILE}`.

    Parameters
    ----------
    file : FILE
        The model; its format is detected from its content.
    out : --out FILE
        Where to write the graph (.json, .json.gz).
    batch : --batch >= 1
        Batch size; default: the model's own.
    format : --format NAME
        The format, if it cannot be detected.
    options : --set KEY=VALUE
        An option of the importer, such as dtype=bf16.
    note : --note
        The source and licence of the model, kept in the file.
    """
    from scenarios.file.document import key_and_value
    from scenarios.importers import check_importer, convert

    values = dict(key_and_value(option, "--set", "dtype=bf16") for option in options or ())
    if "batch" in values:
        raise InputError(f"--set batch={values['batch']}: give --batch {values['batch']}")
    if format is not None:
        with in_file(f"--format {format}"):
            check_importer(format)
    with progress(f"importing {file}"):
        done = convert(file, out, batch=batch, format=format, note=note, **values)
    batches = f"at batch {done.batch}" if done.batch is not None else "at its own batch"
    if done.fixed_because is None:
        batches += ", readable at any"
    typer.echo(f"{out}: {format_count(len(done.graph), 'op')}, {batches}")
    if done.fixed_because is not None:
        typer.echo(f"readable at this batch only: {done.fixed_because}", err=True)


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
    from scenarios.file.document import plain_settings
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
            with progress(f"replaying {format_count(len(events), 'event')} through {name}"):
                done = _replay(events, name, limit, options)
        except OutOfMemoryError as error:  # the others are still compared
            stories.append(str(error))
            continue
        if ops is not None:
            write_table(_event_table(done), ops)
            extent = "" if done.failure is None else f", up to event {len(done.events):,}"
            say_written(f"{ops}{extent}")
        if done.failure is None:
            reports.append(_report_replay(done, name))
        else:
            stories.append(str(done.failure))
    if not reports:
        raise OutOfMemoryError("\n".join(stories))
    if json:
        print_json({"schema": "sim.memory/1", "trace": trace, "capacity_bytes": limit, "results": reports})
    else:
        _print_replays(reports)
    if stories:
        raise OutOfMemoryError("\n".join(stories))


def _replay(events: Any, allocator: str, capacity: int | None, options: dict[str, Any]) -> Replay:
    """Return the replay of a trace until its end, or until memory runs out (`Replay.failure`)."""
    from devices.memory.memory_replay import replay_until_full
    from devices.memory.registry import make_allocator, read_allocator

    with error_path(f"--allocator {allocator}"):
        spec = read_allocator({"name": allocator, **options})
    if spec.malloc_ns or spec.free_ns or spec.synchronisation_ns:
        raise InputError("a replay has no clock: costs of malloc, free and synchronisation mean nothing here")
    replayed = make_allocator(spec.allocator, capacity, name="the device", events=events, **spec.options)
    return replay_until_full(events, replayed)


def _report_replay(done: Replay, allocator: str) -> dict[str, Any]:
    """Return the results of a replay as plain values, sizes in bytes."""
    peak, recorded = done.peak_event, done.recorded
    return {
        "allocator": allocator,
        "events": len(done.events),
        "peak_in_use_bytes": done.peak_in_use,
        "peak_requested_bytes": int(done.requested.max(initial=0)),
        "peak_reserved_bytes": done.peak_reserved,
        "peak_event": peak + 1,
        "fragmentation_bytes": int(done.fragmentation[peak]) if peak >= 0 else 0,
        "worst_fragmentation_bytes": int(done.fragmentation.max(initial=0)),
        "device_mallocs": done.device_mallocs,
        "device_frees": done.device_frees,
        "synchronisations": done.synchronisations,
        "retries": done.retries,
        "recorded_reserved_bytes": None if recorded is None else int(recorded.max(initial=0)),
        "not_followed": done.not_followed,
        "holders": [{"id": id, "nbytes": nbytes} for id, nbytes in done.holders_at_peak(5)],
        "never_freed": len(done.never_freed()),
    }


def _event_table(done: Replay) -> pd.DataFrame:
    """Return a table with one row per event: its operation, its address, and the bytes after it."""
    import pandas as pd

    columns = ["op", "id", "nbytes", "stream"]
    events = pd.DataFrame(
        [[getattr(event, name) for name in columns] for event in done.events], columns=columns
    )
    after = ("address", "in_use", "requested", "reserved", "largest_free")
    return events.astype({"id": str}).assign(**{name: getattr(done, name) for name in after})


def _print_replays(reports: list[dict[str, Any]]) -> None:
    from sim.export.tables import size, text_table

    columns = ["allocator", "peak asked for: peak_requested_bytes", "peak in use: peak_in_use_bytes"]
    columns += ["peak reserved: peak_reserved_bytes", "fragmentation_bytes"]
    print_table(text_table(reports, [*columns, "mallocs: device_mallocs", "frees: device_frees"]))
    first = reports[0]
    holders = ", ".join(f"{holder['id']} {size(holder['nbytes'])}" for holder in first["holders"])
    typer.echo(
        f"\n{format_count(first['events'], 'event')}; peak after event {first['peak_event']:,}: {holders}"
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
