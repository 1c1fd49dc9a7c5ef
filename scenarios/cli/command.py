"""The command ``sim`` itself: its verbs, and how every one of them ends.

=====  ==================================================================================
0      done
1      a check failed, or the workload cannot run on the machine (out of memory, stuck)
2      wrong usage, or a wrong scenario
130    interrupted
=====  ==================================================================================

What the user did wrong is answered on stderr without a traceback; only the answer goes to stdout.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scenarios.cli.verbs import (
    check,
    compare,
    explain,
    importing,
    known,
    memory,
    run,
    schedule,
    schema,
    sweep,
)
from scenarios.cli.warned import show_warnings
from sim.words import plugins
from sim.words.errors import SimError, UnknownNameError

__all__ = ["app"]


class _Sim(TyperGroup):
    """Turns errors into exit statuses, for the shell and for tests that call the app alike."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            show_warnings()
            try:
                result = super().invoke(ctx)
                sys.stdout.flush()  # here, where a pipe that nobody reads any more is still an exception
                return result
            except KeyboardInterrupt:
                typer.echo("interrupted", err=True)
                raise typer.Exit(130) from None
            except BrokenPipeError:
                raise  # click ends quietly
            except Exception as error:
                status = _exit_status(error)
                if status is None:
                    raise
                typer.echo(_message(error), err=True)
                raise typer.Exit(status) from None


def _exit_status(error: Exception) -> int | None:
    """Return how to exit for an error that is the user's or the run's; None: it is a bug of ours."""
    if isinstance(error, SimError):
        return error.exit_status
    return 2 if isinstance(error, OSError) else None


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


app = typer.Typer(
    cls=_Sim,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # docstrings are wrapped to the terminal, not where they were written
    help="How would this computation graph run on this machine under this scheduling policy, and why?",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from sim.native.compiled import state

        typer.echo(f"sim {version('graph-schedule-sim')}")
        typer.echo(f"kernel: {state()}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version, and whether the kernel is compiled.",
        ),
    ] = False,
) -> None: ...


run.add_to(app)
compare.add_to(app)
explain.add_to(app)
check.add_to(app)
importing.add_to(app)
known.add_to(app)
memory.add_to(app)
schedule.add_to(app)
schema.add_to(app)
sweep.add_to(app)
for _name in plugins.names("sim.commands"):  # verbs of other packages: `add_to(app)` registers them
    with suppress(UnknownNameError):  # it cannot be loaded: a warning says why
        plugins.lookup("sim.commands", _name)(app)
