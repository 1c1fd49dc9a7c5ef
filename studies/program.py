"""What the programs of the studies share: how they are called, their errors, and their tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sim.base.errors import InputError, SimError

Data = Annotated[Path, typer.Option(metavar="DIR", help="folder of measurements")]
Tables = Annotated[list[str] | None, typer.Argument(metavar="TABLE", help="default: all")]


def run(main: Callable[..., None]) -> None:
    """Run a function as a program: its parameters are arguments and options, its docstring is the help.

    Wrong input is one line, and an exit status of its own.
    """
    try:
        typer.run(main)
    except FileNotFoundError as error:
        print(f"{error.filename}: no such file", file=sys.stderr)
        sys.exit(InputError.exit_status)
    except SimError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int | None = None) -> str:
    """Return a table of Markdown; columns after the first `words`, if given, are numbers, to the right.

    Examples
    --------
    >>> print(markdown_table(("name", "ms"), [("a", "1.5")], 1), end="")
    | name | ms |
    |---|---:|
    | a | 1.5 |
    """
    left = len(head) if words is None else words
    rule = f"|{'---|' * left}{'---:|' * (len(head) - left)}"
    first, *rest = (f"| {' | '.join(line)} |" for line in (head, *rows))
    return "\n".join([first, rule, *rest]) + "\n"
