"""``python -m studies.training DATA [PAGE]``: judge published training steps; print the page, or write it.

A source takes up to a few minutes. With a page, what is done is kept beside it, source by source, and the
same command goes on there; ``--only`` prints the errors of single sources, layout by layout.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from studies.training.judge import LEFT_OUT, SOURCES, STEPS_FILE, Judge, Judgement, memory_errors
from studies.training.kept import Kept
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
    judge, kept = Judge(given.data), Kept(given.page, given.data, rows)
    judgements: list[Judgement] = []
    for name in given.only or SOURCES:
        begun = time.monotonic()
        found = kept.get(name)
        if found is None:
            found = every[name](judge)
            kept.put(name, found)
            print(f"{name}: {len(found.judged)} rows, {time.monotonic() - begun:.0f} s", file=sys.stderr)
        else:
            print(f"{name}: {len(found.judged)} rows, as kept", file=sys.stderr)
        judgements.append(found)
    if given.only:
        print(summary(judgements), *map(source_rows, judgements), sep="", end="")
    elif given.page is None:
        print(page(judgements, rows, memory_errors(rows)), end="")
    else:
        given.page.write_text(page(judgements, rows, memory_errors(rows)), encoding="utf-8")
        kept.clear()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
