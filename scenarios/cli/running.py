"""Runs cases and shows progress on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from scenarios.cli.output import escape, unwrap
from sim.base.errors import InputError, RunError, SimError
from sim.base.plugins import Allowed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from scenarios.report.compare import Comparison
    from scenarios.report.outputs import Files
    from scenarios.run.execute import Result
    from scenarios.run.scenario import Case
    from scenarios.variants.repeat import Repeats


# ----------------------------------------------------------------------------------------------------------
# Progress on stderr, for work that takes longer than a second.


_QUIET_S: Final = 10.0
"""Time between two lines of progress, if there is no terminal on which to update one line."""


@contextmanager
def progress(activity: str, *, after_s: float = 1.0) -> Iterator[None]:
    """Report on stderr what is being done, and for how long, once it has taken `after_s` seconds.

    On a terminal, one line is updated and erased at the end; elsewhere a single line is written.

    Parameters
    ----------
    activity : str
        ``"simulating in-order"``.
    after_s : float
        Time until the first report, in seconds.
    """
    done = threading.Event()
    thread = threading.Thread(target=_show_progress, args=(activity, done, after_s), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show_progress(activity: str, done: threading.Event, after_s: float) -> None:
    begun = time.monotonic()
    if done.wait(after_s):
        return
    stream, activity = unwrap(sys.stderr), escape(activity)
    if not stream.isatty():
        print(f"{activity} ...", file=stream, flush=True)
        done.wait()
        return
    while True:
        print(f"\r{activity} ... {time.monotonic() - begun:.0f} s", end="", file=stream, flush=True)
        if done.wait(1.0):
            print(f"\r{' ' * (len(activity) + 20)}\r", end="", file=stream, flush=True)
            return


class Ticker:
    """Reports finished runs and remaining time on stderr, up to four times a second on a terminal."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.before: int | None = None
        self.begun_s = self.shown_s = time.monotonic()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Update the line; if not on a terminal, write a new one every ten seconds."""
        if self.before is None:
            self.before = done
        now_s, stream = time.monotonic(), unwrap(sys.stderr)
        live = stream.isatty()
        if now_s - self.shown_s <= (0.25 if live else _QUIET_S) and not (live and done == total):
            return
        self.shown_s = now_s
        if done > self.before and now_s - self.begun_s > 1:
            left_s = (now_s - self.begun_s) / (done - self.before) * (total - done)
            note += f", {left_s:.0f} s left" if left_s < 100 else f", {left_s / 60:.0f} min left"
        line = f"{done:,} of {total:,} {self.unit}{note}"
        typer.echo(f"\r{line}\x1b[K" if live else line, nl=not live or done == total, file=stream)


# ----------------------------------------------------------------------------------------------------------


def cases_of(
    path: str,
    policies: Sequence[str] | None,
    sets: Sequence[str] | None,
    allowed: Allowed,
    *,
    compare: bool = False,
) -> list[Case]:
    """Return the runs that ``--policy`` names; by default the scenario's own, or all that it compares.

    Raises
    ------
    InputError
        A name is unknown or given twice.
    """
    from scenarios.file.document import Document
    from scenarios.run.scenario import scenario_of

    for i, name in enumerate(policies or ()):
        if policies and name in policies[:i]:
            raise InputError(f"--policy {name} is given twice")
    scenario = scenario_of(Document.read(path, allowed).with_settings(sets or ()))
    if policies:
        return [scenario.case(name) for name in policies]
    if compare and (own_label := scenario.left_out()) is not None:
        message = f"{own_label}, the scenario's own policy, is not compared: compare: lists others"
        typer.echo(f"{message}; list it there, too, or name what to compare with --policy", err=True)
    return scenario.cases() if compare else [scenario.case()]


def run_all(cases: Sequence[Case], *, record_memory: bool = False) -> list[Result]:
    """Run cases one after another, and report on stderr those that take longer than a second."""
    from scenarios.run.execute import run_case

    results = []
    for case, position in _count_cases(cases):
        try:
            _prepare(case, position)
            with progress(f"simulating {case.label}{position}"):
                results.append(run_case(case, record_memory=record_memory))
            results[-1].share()
        except SimError as error:
            if position and error.exit_status == 1:  # the message that follows does not name the run
                typer.echo(f"{case.label}{position}:", err=True)
            raise
    return results


def compare_all(cases: Sequence[Case]) -> Comparison:
    """Run cases as `run_all` does; one that runs out of memory, or cannot be built, does not stop the others.

    Nor does one that gets stuck, or in which an op fails; the latter is not compared, as it does other work.
    A message of several lines goes to stderr; the comparison shows the first line of each.

    Raises
    ------
    RunError
        None of them finishes.
    InputError
        None of them can be built.
    """
    from scenarios.report.compare import Comparison
    from scenarios.variants.variant import attempt

    results, failures, stories = [], [], []
    for case, position in _count_cases(cases):
        with suppress(SimError):  # the attempt below reports it
            _prepare(case, position)
        with progress(f"simulating {case.label}{position}"):
            run = attempt(case, advise=True)
        if run.result is not None and run.error is None:
            run.result.share()
            results.append(run.result)
        else:
            failures.append(run)
            stories.append(f"{case.label}{position}:\n{run.error}" if position else str(run.error))
    if not results:
        first = failures[0].error
        raise first if isinstance(first, InputError) else RunError("\n".join(stories))
    for failure, story in zip(failures, stories, strict=True):
        if str(failure.error) != failure.line:
            typer.echo(story, err=True)
    return Comparison(results, failures)


def _count_cases(cases: Sequence[Case]) -> list[tuple[Case, str]]:
    """Return the cases, each with text such as " (2 of 3)" if there are several."""
    n = len(cases)
    return [(case, f" ({i} of {n})" if n > 1 else "") for i, case in enumerate(cases, start=1)]


def _prepare(case: Case, position: str = "") -> None:
    """Build the work of a case, which may mean reading a large file."""
    with progress(f"reading {case.scenario.name}{position}"):
        _ = case.work


def check_charts(files: Files, open_page: bool, **options: bool) -> None:
    """Raise if options of Gantt charts are given but no chart is drawn."""
    for name, is_given in options.items():
        if is_given and not (files["gantt"] or open_page):
            message = "is drawn into a Gantt chart; name its file with --gantt"
            raise InputError(f"--{name.replace('_', '-')}: {message}")


def finish(results: Sequence[Result], files: Files, open_page: bool, **options: bool) -> None:
    """Write the requested files, name each, and exit with status 1 if an expectation is not met."""
    pages = [path for path in files["gantt"] or () if path.lower().endswith(".html")]
    if open_page and results and not pages:
        from tempfile import NamedTemporaryFile

        # A browser reads it later, so it is not deleted.
        with NamedTemporaryFile(prefix="sim-", suffix=".html", delete=False) as page:
            pages = [page.name]
        files = {**files, "gantt": [*(files["gantt"] or ()), *pages]}
    if any(files.values()):
        from scenarios.report.outputs import write_outputs

        written: list[str] = []
        try:
            with progress("writing files"):
                write_outputs(results, files, **options, wrote=written.append)
        finally:
            say_written(*written)
    if open_page and results:
        import webbrowser

        for path in pages:
            if not webbrowser.open(Path(path).resolve().as_uri()):
                typer.echo(f"no browser found here; open {path} in one, it needs no network", err=True)
    if not all(result.passed for result in results):
        raise typer.Exit(1)


def say_written(*paths: str) -> None:
    """Report on stderr which files were written."""
    for path in paths:
        typer.echo(f"wrote {path}", err=True)


def save_picture(picture: Axes | Figure, path: str) -> None:
    """Save a picture, and report its file."""
    from sim.plot.figure import save

    save(picture, path)
    say_written(path)


def run_repeatedly(cases: Sequence[Case], runs: int) -> list[Repeats]:
    """Run each case with `runs` seeds, and report on stderr those that take longer than a second."""
    from scenarios.variants.repeat import repeat

    done = []
    for case in cases:
        _prepare(case)
        with progress(f"simulating {case.label} with {runs} seeds"):
            done.append(repeat(case, runs))
    return done
