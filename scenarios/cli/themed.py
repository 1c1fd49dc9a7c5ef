"""``--theme light|dark|print``: an option of every verb that draws, in one place, as `with_limit` is.

A verb draws if it has an option of `PICTURES`; one that writes a report always does. The theme holds while
the verb runs, for whatever it draws and saves (`sim.plot.theme`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Final

import typer

from scenarios.cli.process.added_option import takes_also
from sim.words.errors import InputError, UnknownNameError

__all__ = ["PICTURES", "THEMES", "with_theme"]

THEMES: Final = ("light", "dark", "print")
"""Those of `sim.plot.theme`, which imports more than help needs."""
PICTURES: Final = ("gantt", "html", "links", "memory", "roofline", "timeline", "plot", "pareto", "report")
"""Options that name a file with a picture, a page, or the folder of a report."""

_Option = Annotated[
    str | None,
    typer.Option(
        "--theme",
        metavar="NAME",
        autocompletion=lambda incomplete: [name for name in THEMES if name.startswith(incomplete)],
        help="How pictures and pages look: light, dark, or print (every colour has a hatch).",
    ),
]


def with_theme(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb that takes ``--theme`` as well, if it draws; another one as it is."""
    parameters = inspect.signature(verb).parameters
    draws = [name for name in parameters if name in PICTURES]
    if not draws or "theme" in parameters:
        return verb

    @wraps(verb)
    def run(*, theme: str | None, **given: Any) -> Any:
        if theme is None:
            return verb(**given)
        if theme not in THEMES:
            raise UnknownNameError("theme", theme, THEMES, path=["--theme"])
        if not any(given[name] for name in draws) and not given.get("open_page") and draws != ["report"]:
            options = ", ".join(f"--{name}" for name in draws)
            raise InputError(f"--theme {theme}: is how a picture looks; name the file of one ({options})")
        from sim.plot.theme import theme as drawn_in

        with drawn_in(theme):
            return verb(**given)

    return takes_also(run, verb, "theme", _Option)
