"""``sim list`` and ``sim new``: what ships with the program, and a first scenario of your own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import typer


def list_(
    name: str | None = None,
    json: bool = False,
) -> None:
    """List the scenarios that ship: templates for `sim new`, and examples, each with one line.

    Every one runs in seconds, where it is or as a copy (`sim new FILE --template NAME`).

    Parameters
    ----------
    name : NAME
        Describe only this one.
    """
    from scenarios.cli.output import print_json
    from scenarios.cli.text_tables import print_list
    from scenarios.shipped import find_shipped, shipped_scenarios

    known = list(shipped_scenarios()) if name is None else [find_shipped(name)]
    if json:
        return print_json([{**one._asdict(), "path": str(one.path)} for one in known])
    if name is not None:
        (one,) = known
        print(f"{one.title}\n\n{one.description}\n")
        print(f"sim run {one.path}\nsim new {one.path.name} --template {one.name}      # a copy to change")
        return
    for title, templates, about in (
        ("templates, to begin with", True, attrgetter("description")),
        ("examples", False, attrgetter("title")),
    ):
        rows = [(one.name, about(one)) for one in known if one.is_template == templates]
        print_list(title, rows)
    print("\n`sim list NAME` tells what one shows; `sim new FILE --template NAME` makes a copy to change.")


def new(
    file: Path | None = None,
    template: str | None = None,
    force: bool = False,
) -> None:
    """Write a first scenario: from a few questions on a terminal, or from a template.

    It runs at once, and its comments say what to change next. Files that it names come with it.

    Parameters
    ----------
    file : FILE
        Where to write it; by default here, under the template's name.
    template : --template NAME
        pipeline, gpu, cluster or trace, or any example that `sim list` names; copied without questions.
    force : --force
        Replace an existing file.
    """
    from scenarios.shipped import fill_template, find_shipped, shipped_scenarios, write_scenario
    from sim.base.errors import InputError

    asks = template is None
    if template is None:
        known = [one.name for one in shipped_scenarios() if one.is_template]
        if not _on_terminal():
            raise InputError(f"give --template NAME: {', '.join(known)}, or an example of `sim list`")
        for one in shipped_scenarios():
            if one.is_template:
                typer.echo(f"  {one.name:10}{one.description}")
        template = _ask("What do you want to simulate", "gpu", lambda name: find_shipped(name).name)
    source = find_shipped(template)
    target = file or Path(source.path.name)
    if target.suffix not in (".yaml", ".yml"):
        raise InputError(f"{target}: a scenario ends in .yaml")
    if target.exists() and not force:
        raise InputError(f"{target}: is there already; name another file, or replace it with --force")
    text = source.path.read_text(encoding="utf-8")
    text = fill_template(text, _ask if asks else lambda asked, default, check: default, target)
    for path in write_scenario(target, text):
        typer.echo(f"wrote {path}")
    typer.echo(f"\nsim run {target}")


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask(asked: str, default: str, check: Callable[[str], str]) -> str:
    """Ask on the terminal until the answer is accepted."""
    from sim.base.errors import SimError

    def read(answer: str) -> str:
        try:
            return check(answer.strip())
        except SimError as error:
            raise typer.BadParameter(str(error)) from None

    found: str = typer.prompt(f"{asked}?", default=default, value_proc=read, prompt_suffix=" ")
    return found
