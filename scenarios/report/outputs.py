"""Output files of runs: one figure, one trace or one table, however many policies were run.

::

    --gantt out.png          all runs, one above the other, on one time axis. Below each run that had an
                             allocator: memory over time, a strip for each device
    --gantt out.html         everything about the runs, as a page: chart, memory, links, ops, causes
    --trace out.json.gz      all runs, side by side, for Perfetto; out/, a folder: one run, with one
                             file per GPU
    --ops   out.csv          one row per task or transfer; a first column `policy` if there are several runs
    --memory out.png         memory over time, an axis for each run and device
    --links out.png          how much of each link is used over time, an axis for each run
    --roofline out.png       ops under the roofs of their devices, an axis for each run
    --plan  out.json         the decisions of one run, for `policy: {name: replay, file: out.json}`
    --tuning out.csv         one row for everything that a searching placement tried
    --timeline out.png       a training run and its workers over time, under each recovery policy

Names are checked before anything runs, so that a typing error does not cost a simulation.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sim.base.errors import InputError
from sim.base.files import check_writable, write_bytes, write_text
from sim.export.tables import TABLE_ENDINGS

if TYPE_CHECKING:
    from scenarios.run.execute import Result
    from scenarios.run.scenario import Case


PICTURES: Final = (".png", ".svg", ".pdf")


Files = Mapping[str, Sequence[str] | None]
"""Requested files: a key of `_FILES` -> its files."""


def check_outputs(files: Files) -> None:
    """Raise before anything runs if a file cannot be written.

    Parameters
    ----------
    files : Files

    Raises
    ------
    InputError
        The suffix is unknown, the place is not writable, or two outputs have the same file.
    """
    owners: dict[Path, str] = {}
    for output, path in _output_files(files):
        if output == "trace" and _is_folder(path):
            from sim.export.chrome import check_folder

            with _with_option("--trace "):
                check_folder(path)
        else:
            check_path(output, path, _FILES[output][0])
        target = Path(path).resolve()
        if target in owners:
            raise InputError(f"--{output} {path}: is what --{owners[target]} writes")
        owners[target] = output


def check_cases(cases: Sequence[Case], files: Files) -> None:
    """Raise before the runs of some cases if they cannot fill a file.

    Raises
    ------
    InputError
        Several runs for a file that holds one; a plan of a graph with control flow; a folder with one file
        per GPU, but the machine has none.
    """
    folders = [*filter(_is_folder, files["trace"] or ())]
    for option, paths, holds in (
        ("plan", files.get("plan"), "holds the plan"),
        ("memory-trace", files.get("memory-trace"), "holds the allocations"),
        ("trace", folders, "a folder holds the ranks"),
    ):
        if paths and len(cases) > 1:
            raise InputError(f"--{option} {paths[0]}: {holds} of one run; name one --policy")
    for path in files.get("plan") or ():
        from sim.record.plan import check_planned

        with _with_option(f"--plan {path}: "):
            check_planned(cases[0].work.graph)
    for path in folders:
        if all(device.workers for device in cases[0].work.machine.devices):
            raise InputError(f"--trace {path}: a folder has a file for each GPU, and the machine has none")


def _output_files(files: Files) -> list[tuple[str, str]]:
    """Return pairs of an output and a file, one for each file."""
    return [(output, path) for output, paths in files.items() for path in paths or ()]


def write_outputs(
    results: Sequence[Result],
    files: Files,
    *,
    arrows: bool = False,
    critical_path: bool = False,
    wrote: Callable[[str], object] = lambda path: None,
) -> None:
    """Write the requested files, each completely or not at all; one that cannot be drawn stops no other.

    Parameters
    ----------
    results : sequence of Result
    files : Files
        As for `check_outputs`.
    arrows, critical_path : bool
        Whether Gantt charts have arrows from producers to consumers, and show the critical path.
    wrote : callable
        Called with each file that was written.

    Raises
    ------
    InputError
        Some files cannot be drawn; raised after all others were written.
    """
    refused = []
    for output, path in _output_files(files):
        try:
            if (write := _FILES[output][1]) is not None:
                written = write(results, path) or [path]
            else:
                _write_chart(results, path, arrows=arrows, critical_path=critical_path)
                written = [path]
        except InputError as error:
            refused.append(str(error))
        else:
            for file in written:
                wrote(file)
    if refused:
        raise InputError("\n".join(refused))


def check_path(option: str, path: str | None, endings: tuple[str, ...]) -> None:
    """Raise if an option gives the name of a file that cannot be written.

    Raises
    ------
    InputError
        The suffix is wrong, or the place is not writable.
    """
    if path is None:
        return
    if not Path(path).name.lower().endswith(endings):
        raise InputError(f"--{option} {path}: should end in {', '.join(endings)}")
    try:
        with _with_option(f"--{option} "):
            check_writable(path)
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--{option} {path}: cannot be written ({reason})") from None


def _write_chart(results: Sequence[Result], path: str, **options: bool) -> None:
    from sim.plot import compare_gantt, save, save_page

    traces = {result.policy: result.trace for result in results}
    if path.lower().endswith(".html"):
        sections = {result.policy: result.sections for result in results}
        save_page(traces, path, title=results[0].scenario, sections=sections, **options)
    else:
        save(compare_gantt(traces, **options), path)


def _is_folder(path: str) -> bool:
    return path.endswith(("/", os.sep)) or os.path.isdir(path)


def _write_trace(results: Sequence[Result], path: str) -> None:
    from sim.export.chrome import write_chrome, write_ranks

    if _is_folder(path):
        write_ranks(results[0].trace, path)
        return
    traces = {result.policy: result.trace for result in results}
    write_chrome(results[0].trace if len(results) == 1 else traces, path)


def _write_ops(results: Sequence[Result], path: str) -> None:
    import pandas as pd

    from sim.export.tables import write_table

    tables = [result.trace.to_pandas(transfers=True) for result in results]
    if len(results) > 1:
        for result, table in zip(results, tables, strict=True):
            table.insert(0, "policy", result.policy)
    write_table(tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True), path)


def _write_memory(results: Sequence[Result], path: str) -> None:
    from sim.explain.memory_use import peak_bytes
    from sim.plot import new_figure, save
    from sim.plot.legend import add_legend
    from sim.plot.memory import band_labels, draw_strip, memory_handles, strip_of, tops_of
    from sim.plot.theme import colour_of, plain

    held_memory = [
        (result, device)
        for result in results
        for device, nbytes in peak_bytes(result.trace).items()
        if nbytes
    ]
    if not held_memory:
        raise InputError(f"--memory {path}: there is nothing to draw: nothing is ever held")
    figure, axes = new_figure(len(held_memory), height=max(2.6, 1.5 * len(held_memory)))
    strips = [strip_of(result.trace, device) for result, device in held_memory]
    colours = {label: colour_of(label) for label in band_labels(strips)}
    tops, until_ns = tops_of(strips), max(1, *(result.trace.makespan_ns for result in results))
    for (result, _), strip, ax in zip(held_memory, strips, axes, strict=True):
        draw_strip(ax, strip, colours, tops[strip.kind], until_ns)
        plain(ax, result.policy if len(results) > 1 else None)
        ax.label_outer()
    add_legend(figure, memory_handles([], strips, colours), alone=True)  # shared by all axes
    save(figure, path)


def _write_links(results: Sequence[Result], path: str) -> None:
    from sim.plot import link_heat_map, new_figure, save
    from sim.plot.utilisation import MOST_LINKS

    rows = [min(MOST_LINKS, len(result.trace.job.machine.links)) for result in results]
    figure, axes = new_figure(len(results), height=min(40.0, sum(1.2 + 0.24 * max(3, n) for n in rows)))
    until_ns = max(1, *(result.trace.makespan_ns for result in results))
    for result, ax in zip(results, axes, strict=True):
        with _with_option(f"--links {path}: "):
            link_heat_map(result.trace, ax, title=result.policy, until_ns=until_ns)
        ax.label_outer()
    save(figure, path)


def _write_roofline(results: Sequence[Result], path: str) -> None:
    from sim.plot import new_figure, roofline, save

    figure, axes = new_figure(len(results), width=9.0, height=5.0 * len(results))
    for result, ax in zip(results, axes, strict=True):
        with _with_option(f"--roofline {path}: "):
            roofline(result.trace, ax, title=result.policy)
    save(figure, path)


@contextlib.contextmanager
def _with_option(option: str) -> Iterator[None]:
    """Prefix errors raised in the block with their option, and its file unless the error names it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option}{error}") from None


def _write_tuning(results: Sequence[Result], path: str) -> None:
    import pandas as pd

    from sim.export.tables import write_table

    rows = [
        {"policy": result.policy, "step": step, **tried._asdict()}
        for result in results
        for step, tried in enumerate(result.tried)
    ]
    if not rows:
        raise InputError(f"--tuning {path}: no placement searched (placement: auto-tune does)")
    write_table(pd.DataFrame(rows).astype({"makespan_ns": "Int64", "best_ns": "Int64"}), path)


def _write_timeline(results: Sequence[Result], path: str) -> None:
    lives = {
        (f"{result.policy}: " if len(results) > 1 else "") + name: life
        for result in results
        for name, life in result.lives.items()
    }
    if not lives:
        raise InputError(f"--timeline {path}: there is nothing to draw: the scenario has no training_run")
    from scenarios.training_run.timeline import timeline
    from sim.plot import save

    save(timeline(lives), path)


def _write_pareto(results: Sequence[Result], path: str) -> None:
    from scenarios.report.pipeline_compare import is_pipelines, pareto
    from sim.plot import save

    if not is_pipelines(results):
        raise InputError("--pareto compares schedules of a pipeline; the workload is none")
    save(pareto(results), path)


def _write_memory_trace(results: Sequence[Result], path: str) -> list[str]:
    """Write the allocations of a run, one file for each device with any; return the files.

    With one device it is `path`; with several, ``t.jsonl`` becomes ``t.gpu0.jsonl`` and so on.
    """
    from devices.memory.trace_readers import json_lines

    recordings = {device: events for device, events in (results[0].recordings or {}).items() if events}
    if not recordings:
        raise InputError(f"--memory-trace {path}: there is nothing to write: nothing is ever held")
    ending = ".jsonl.gz" if path.lower().endswith(".gz") else ".jsonl"
    written = []
    for device, events in recordings.items():
        name = path if len(recordings) == 1 else f"{path[: -len(ending)]}.{device}{path[-len(ending) :]}"
        data = "".join(f"{line}\n" for line in json_lines(events)).encode()
        write_bytes(name, data)
        written.append(name)
    return written


_Writer = Callable[[Sequence["Result"], str], list[str] | None]
"""Writes a file, and returns the files if they have other names."""

_FILES: Final[Mapping[str, tuple[tuple[str, ...], _Writer | None]]] = {
    "gantt": ((*PICTURES, ".html"), None),
    "trace": ((".json", ".json.gz"), _write_trace),
    "ops": (TABLE_ENDINGS, _write_ops),
    "memory": (PICTURES, _write_memory),
    "links": (PICTURES, _write_links),
    "roofline": (PICTURES, _write_roofline),
    "plan": ((".json",), lambda results, path: write_text(path, results[0].trace.plan().to_json())),
    "tuning": (TABLE_ENDINGS, _write_tuning),
    "timeline": (PICTURES, _write_timeline),
    "pareto": (PICTURES, _write_pareto),
    "show-graph": ((".json", ".json.gz"), None),
    "memory-trace": ((".jsonl", ".jsonl.gz"), _write_memory_trace),
}
"""Output -> its suffixes, and its writer; None: the writer takes options, or the command writes it."""
