"""Output on stdout: JSON for programs, lines and tables for people, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from unicodedata import combining, east_asian_width

from scenarios.cli.terminal import escape

if TYPE_CHECKING:
    from scenarios.report.compare import Comparison
    from scenarios.run.execute import Result
    from scenarios.variants.repeat import Repeats

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
    cells = [tuple(rows[0]), *(tuple(row.values()) for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for n, row in enumerate(cells):
        line = [
            " " * (width - _width(cell)) * (i >= left) + cell + " " * (width - _width(cell)) * (i < left)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
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
        shown = textwrap.wrap(line, max(width - indent, 20), break_on_hyphens=False) or [""]
        head = f"  {name}{' ' * (indent - 2 - _width(name))}"
        print("\n".join([head + shown[0], *(" " * indent + more for more in shown[1:])]).rstrip())


def _width(text: str) -> int:
    """Return the number of terminal columns that `text` takes once it is escaped."""
    text = escape(text)
    wide = (1 + (east_asian_width(c) in "WF") for c in text if not combining(c))
    return len(text) if text.isascii() else sum(wide)


def print_json(value: Any) -> None:
    """Print a value as JSON; equal values give equal bytes."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_told(told: Result | Comparison) -> None:
    """Print the result of one run, or the comparison of several."""
    print(strong(told.title))
    for i, part in enumerate(told.sections):
        print("\n" * bool(i) + "\n".join(part.lines), end="\n" * bool(part.lines))
        for table in part.tables:
            print_table(table)
        for note in part.notes:
            print(note)


def print_repeats(repeats: Sequence[Repeats]) -> None:
    """Print the distribution of each case's makespan over the seeds."""
    from sim.base.units import format_duration
    from sim.export.tables import text_table

    rows = []
    for each in repeats:
        low, high = min(each.makespan_ns), max(each.makespan_ns)
        told = each.to_json()
        row = {**told, "policy": each.result.policy, "min_ns": low, "max_ns": high}
        rows.append(row | {"failed": None if each.failed is None else len(each.failed)})
    columns = ["policy", "runs", "min_ns", "p5_ns", "p50_ns", "p95_ns", "max_ns"]
    some_may = any(each.failed is not None for each in repeats)
    print_table(text_table(rows, [*columns, *(["failed"] * some_may)]))
    for row in rows:
        if row["mean_interval_ns"] is not None and row["min_ns"] < row["max_ns"]:
            intervals = (row["mean_interval_ns"], row["p50_interval_ns"])
            mean, median = (" .. ".join(map(format_duration, interval)) for interval in intervals)
            of = f"{row['policy']}: " * (len(rows) > 1)
            print(f"{of}mean {format_duration(row['mean_ns'])} (95 %: {mean}), median (95 %: {median})")
        elif row["runs"] > 1 and row["min_ns"] == row["max_ns"]:
            print(f"{row['policy']}: all seeds take the same; nothing that a seed draws counts here")
