"""``python -m studies.training DATA [PAGE]``: judge published training steps; print the page, or write it.

A source takes up to a few minutes. ``--only`` prints the errors of single sources, layout by layout.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sim.base.errors import InputError, UnknownNameError
from studies.program import run
from studies.training.judge import LEFT_OUT, SOURCES, Judge, memory_errors
from studies.training.page import page, source_rows, summary


def main(
    data: Path,
    file: Annotated[Path | None, typer.Argument(metavar="PAGE", help="default: it is printed")] = None,
    only: Annotated[list[str] | None, typer.Option(help="a source, whose errors are printed")] = None,
) -> None:
    """Judge published training steps of a folder of data, and write the page of results."""
    every = {**SOURCES, **LEFT_OUT}
    if only and file:
        raise InputError("a page has all sources; leave it out with --only")
    if unknown := [name for name in only or () if name not in every]:
        raise UnknownNameError("source", unknown[0], every)
    judge, judgements = Judge(data), []
    for name in only or SOURCES:
        begun = time.monotonic()
        judgements.append(every[name](judge))
        taken_s = time.monotonic() - begun
        print(f"{name}: {len(judgements[-1].judged)} rows, {taken_s:.0f} s", file=sys.stderr)
    if only:
        print(summary(judgements), *map(source_rows, judgements), sep="", end="")
        return
    text = page(judgements, judge.rows, judge.refused, memory_errors(judge.rows))
    if file is None:
        print(text, end="")
    else:
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run(main)
