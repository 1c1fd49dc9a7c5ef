r"""Output on stdout and stderr: JSON for programs, lines and tables for people, and nothing else.

* Control characters in names come from other people's files, and could steer a terminal. They are written as
  ``\u001b``, as in JSON. Bold text, which the command itself uses, is let through.
* If the reader closes early (``| head -1``), or there is none (``>&-``), the rest of the output is dropped,
  and files are still written.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import sysconfig
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO
from unicodedata import combining, east_asian_width

import typer

from sim.base.plugins import packages_of_plugins

if TYPE_CHECKING:
    from scenarios.report.compare import Comparison
    from scenarios.run.execute import Result
    from scenarios.variants.repeat import Repeats

_CONTROL: Final = re.compile(
    r"\x1b\[[01]m|([\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff])"
)
"""Bold on and off; characters that steer a terminal or the direction of text, and lone surrogates."""


def escape(text: str) -> str:
    r"""Return `text` with control characters written as escapes.

    Examples
    --------
    >>> print(escape("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[1]):04x}" if match[1] else match[0], text)


class Terminal:
    """A text stream that escapes what is written, and tolerates a reader that has left."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.written = False

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream itself."""
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write `text`, escaped; return its length. Writing nothing is how callers test for a text stream."""
        if escaped := escape(text):  # such a test expects an error for bytes, not one of the stream
            self.written = True
            with self._forgiving():
                self.stream.write(escaped)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._forgiving():
            self.stream.flush()

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Drop output that has no reader any more; name the stream in all other errors."""
        try:
            yield
        except OSError as error:
            with suppress(OSError, ValueError):  # buffered output must not fail again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, self.stream.name) from None


@contextmanager
def terminal() -> Iterator[None]:
    """Replace stdout and stderr by a `Terminal` in the block."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (s if isinstance(s, Terminal) else Terminal(s or io.StringIO()) for s in before)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def unwrap(stream: TextIO) -> TextIO:
    """Return the stream below a `Terminal`, for a line that is updated in place."""
    return stream.stream if isinstance(stream, Terminal) else stream


# ----------------------------------------------------------------------------------------------------------
# Who caused an unexpected error: this program, or code that the user named.
#
#     scenarios/cli/... ─► sim/engine/engine.py ─► shortest.py:19 ─► heapq.py                theirs
#     scenarios/cli/... ─► sim/engine/engine.py ─► shortest.py:19 ─► sim/graph/graph.py      theirs
#     scenarios/cli/... ─► sim/engine/engine.py ─► numpy/...                                 ours

_ROOT: Final = Path(__file__).resolve().parents[2]
_OURS: Final = ("sim", "devices", "policies", "scenarios", "validation", "studies")


_FRAME: Final = re.compile(r'^ +File "(.+)", line (\d+)', re.MULTILINE)


def place_of_other_code(error: BaseException) -> str | None:
    """Return the file and line at which a user's code failed, or None if the error is ours.

    It is theirs if any frame of the traceback is; the last such frame is returned. Libraries are neither,
    except packages that register plugins. Frames of another process are available as text only.
    """
    libraries = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    plugins = packages_of_plugins(tuple(sys.path))
    calls: list[tuple[Path, int, str]] = []
    current: BaseException | None = error
    while current is not None:  # SimPy raises what a process has raised again, as a cause
        calls += [
            (Path(frame.f_code.co_filename), line, str(frame.f_globals.get("__name__")).split(".")[0])
            for frame, line in traceback.walk_tb(current.__traceback__)
        ]
        current = current.__cause__
    if type(error.__cause__).__name__ == "_RemoteTraceback":
        for name, line in _FRAME.findall(str(error.__cause__)):
            file = Path(name)
            package = (file.relative_to(_ROOT) if file.is_relative_to(_ROOT) else file).parts[0]
            calls.append((file, int(line), package))
    for file, line, package in reversed(calls):
        real = file.resolve()  # a virtual environment may be a link
        ours = package in _OURS and (not file.is_absolute() or real.is_relative_to(_ROOT))
        library = any(real.is_relative_to(folder) for folder in libraries) and package not in plugins
        if file.is_file() and not library and not ours:
            return f"{file}:{line}"
    return None


# ----------------------------------------------------------------------------------------------------------
# How the command shows warnings: one line each on stderr, and one line for a warning that many runs share.


def show_warnings() -> None:
    """Show the warnings of this process as the command does, also in the workers that it starts.

    Of several about the same subject, only the first is shown. A warning whose text differs between runs, for
    example in its counts, has an attribute ``subject``: see `devices.cost.unreliable.PlainRooflineWarning`.
    """
    subjects: set[str] = set()

    def show(message: Warning | str, *where: object, **more: object) -> None:
        subject = getattr(message, "subject", None)
        if subject is None or subject not in subjects:
            typer.echo(f"warning: {message}", err=True)
            if subject is not None:
                subjects.add(subject)

    warnings.showwarning = show


# ----------------------------------------------------------------------------------------------------------
# Lines, tables and JSON.

_WIDTH: Final = 160
"""Width of a list that is written to a file or a pipe."""


def strong(text: str) -> str:
    """Return `text` in bold for a terminal; unchanged for a file or a pipe."""
    bold = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return f"\x1b[1m{text}\x1b[0m" if bold and text else text


def print_table(rows: Sequence[Mapping[str, str]], *, left: int = 1) -> None:
    """Print a table with the keys of its rows as columns; the first `left` are text, the others numbers.

    Examples
    --------
    >>> print_table([{"device": "gpu0", "busy": "60 us"}, {"device": "a longer name", "busy": "5 us"}])
    device          busy
    gpu0           60 us
    a longer name   5 us
    """
    if not rows:  # of a run in which nothing ran
        return
    cells = [tuple(rows[0]), *(tuple(row.values()) for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for n, row in enumerate(cells):
        line = []
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - _width(cell))
            line.append(cell + padding if i < left else padding + cell)
        text = "  ".join(line).rstrip()
        print(strong(text) if n == 0 else text)


def print_list(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print names with a description of each, wrapped to the terminal.

    Examples
    --------
    >>> print_list("runtimes", [("tfrt", "Work queues."), ("tensorflow", "One ready queue.")])
    runtimes
      tfrt          Work queues.
      tensorflow    One ready queue.
    """
    print(title)
    rows = rows or [("(none)", "")]
    indent = max(_width(name) for name, _ in rows) + 6
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    for name, line in rows:
        lines = textwrap.wrap(line, max(width - indent, 20), break_on_hyphens=False) or [""]
        head = f"  {name}{' ' * (indent - 2 - _width(name))}"
        print("\n".join([head + lines[0], *(" " * indent + more for more in lines[1:])]).rstrip())


def _width(text: str) -> int:
    """Return the number of terminal columns that `text` takes once it is escaped."""
    text = escape(text)
    wide = (2 if east_asian_width(character) in "WF" else 1 for character in text if not combining(character))
    return len(text) if text.isascii() else sum(wide)


_answers: list[TextIO] = []


@contextmanager
def json_alone() -> Iterator[None]:
    """Keep stdout for `print_json` in the block: what a policy of the user's own prints goes to stderr."""
    _answers.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _answers.pop()


def print_json(value: Any) -> None:
    """Print a value as JSON; equal values give equal bytes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    print(text, file=_answers[-1] if _answers else None)


def print_report(report: Result | Comparison) -> None:
    """Print the result of one run, or the comparison of several."""
    print(strong(report.title))
    for i, part in enumerate(report.sections):
        if i:
            print()
        for line in part.lines:
            print(line)
        for table in part.tables:
            print_table(table)
        for note in part.notes:
            print(note)


def print_repeats(repeats: Sequence[Repeats]) -> None:
    """Print the distribution of each case's makespan over the seeds."""
    from sim.base.units import format_duration
    from sim.export.tables import text_table

    rows = []
    for repeat in repeats:
        low, high = min(repeat.makespan_ns), max(repeat.makespan_ns)
        numbers = repeat.to_json()
        row = {**numbers, "policy": repeat.result.policy, "min_ns": low, "max_ns": high}
        rows.append(row | {"failed": None if repeat.failed is None else len(repeat.failed)})
    columns = ["policy", "runs", "min_ns", "p5_ns", "p50_ns", "p95_ns", "max_ns"]
    if any(repeat.failed is not None for repeat in repeats):
        columns.append("failed")
    print_table(text_table(rows, columns))
    for row in rows:
        if row["mean_interval_ns"] is not None and row["min_ns"] < row["max_ns"]:
            intervals = (row["mean_interval_ns"], row["p50_interval_ns"])
            mean, median = (" .. ".join(map(format_duration, interval)) for interval in intervals)
            prefix = f"{row['policy']}: " if len(rows) > 1 else ""
            print(f"{prefix}mean {format_duration(row['mean_ns'])} (95 %: {mean}), median (95 %: {median})")
        elif row["runs"] > 1 and row["min_ns"] == row["max_ns"]:
            print(f"{row['policy']}: all seeds take the same; nothing that a seed draws counts here")
