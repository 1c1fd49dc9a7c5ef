"""``python -m studies.training DATA [PAGE]``: judge published training steps; print the page, or write it.

A source takes up to a few minutes. ``--only`` prints the errors of single sources, layout by layout.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from studies.training.judge import LEFT_OUT, SOURCES, STEPS_FILE, Judge, memory_errors
from studies.training.page import page, source_rows, summary
from studies.training.published import read_published


def main(arguments: list[str]) -> int:
    """Write the page of results, or print it."""
    parser = argparse.ArgumentParser(
        "python -m studies.training", description="Judge published training steps."
    )
    parser.add_argument("data", type=Path, help="the data folder")
    parser.add_argument(
        "page", type=Path, nargs="?", help="where the page is written; default: it is printed"
    )
    every = {**SOURCES, **LEFT_OUT}
    parser.add_argument("--only", action="append", choices=every, help="a source, whose errors are printed")
    given = parser.parse_args(arguments)
    if not (given.data / STEPS_FILE).is_file():
        parser.error(f"there is no {STEPS_FILE} in {given.data}")
    if given.only and given.page:
        parser.error("a page has all sources; leave it out with --only")
    rows = read_published(given.data / STEPS_FILE)
    judge, judgements = Judge(given.data), []
    for name in given.only or SOURCES:
        begun = time.monotonic()
        judgements.append(every[name](judge))
        taken_s = time.monotonic() - begun
        print(f"{name}: {len(judgements[-1].judged)} rows, {taken_s:.0f} s", file=sys.stderr)
    if given.only:
        print(summary(judgements), *map(source_rows, judgements), sep="", end="")
    elif given.page is None:
        print(page(judgements, rows, memory_errors(rows)), end="")
    else:
        given.page.write_text(page(judgements, rows, memory_errors(rows)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
