"""An option that many verbs take alike, put around them in one place (``--limit``, ``--theme``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["takes_also"]


def takes_also(
    run: Callable[..., Any], verb: Callable[..., Any], name: str, option: Any
) -> Callable[..., Any]:
    """Return `run` with the signature of `verb` and one more parameter, as typer reads it.

    Parameters
    ----------
    run : callable
        Called in place of the verb, with the option as well.
    verb : callable
    name : str
    option : type
        Annotated with a `typer.Option`; the default is None.
    """
    plain = inspect.signature(verb, eval_str=True)
    own = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
    parameters = [*plain.parameters.values(), own]
    run.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
