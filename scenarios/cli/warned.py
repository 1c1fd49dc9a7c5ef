"""How the command shows warnings: a line each on stderr, and one line for what many runs have in common."""

from __future__ import annotations

import warnings

import typer

__all__ = ["Shown", "show_warnings"]


class Shown:
    """Writes warnings to stderr; of those about the same subject in many runs, the first.

    A warning whose text differs from run to run (its counts do) names in its attribute ``subject`` what it is
    about, as `devices.cost.unreliable.PlainRooflineWarning` does.
    """

    def __init__(self) -> None:
        self.subjects: set[str] = set()

    def __call__(self, message: Warning | str, *where: object, **more: object) -> None:
        """Show a warning, in place of `warnings.showwarning`."""
        subject = getattr(message, "subject", None)
        if subject in self.subjects:
            return
        if subject is not None:
            self.subjects.add(subject)
        typer.echo(f"warning: {message}", err=True)


def show_warnings() -> None:
    """Show the warnings of this process as the command does: for the workers that it starts."""
    warnings.showwarning = Shown()
