"""Failures as annotations: GitHub shows them beside the lines of a pull request.

    ::error file=s.yaml,line=12,col=13,title=sim check: 1f1b::makespan is 80 us, expected 50 us

The format: "Workflow commands for GitHub Actions", https://docs.github.com/en/actions/reference/workflow-commands,
and for what is escaped, ``packages/core/src/command.ts`` of https://github.com/actions/toolkit.
"""

from __future__ import annotations

from scenarios.file.yaml_read import Place

__all__ = ["annotation"]


def annotation(level: str, place: Place, title: str, message: str) -> str:
    r"""Return the line that makes an annotation.

    Parameters
    ----------
    level : str
        ``error``, ``warning`` or ``notice``.
    place : Place
    title, message : str

    Examples
    --------
    >>> print(annotation("error", Place("s.yaml", 3, 7), "sim check: a, b", "50% more\nthan before"))
    ::error file=s.yaml,line=3,col=7,title=sim check%3A a%2C b::50%25 more%0Athan before
    """
    values = {"file": place.source, "line": place.line, "col": place.column, "title": title}
    given = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in values.items() if value)
    return f"::{level} {given}::{_escaped(message)}"


def _escaped(text: str, also: str = "") -> str:
    for character in ("%", "\r", "\n", *also):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
