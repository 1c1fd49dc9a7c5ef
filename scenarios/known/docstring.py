"""A docstring in numpydoc's form, taken apart: the line, the text below it, and what each parameter means.

::

    Convert every op to one format.          summary
    ...                                      text: paragraphs before the first section
    prefer : str                             parameters["prefer"].type
        ``"NCHW"`` or ``"NHWC"``.            parameters["prefer"].meaning

The form is that of https://numpydoc.readthedocs.io/en/latest/format.html; the markup is taken out of what is
shown, as a terminal has none.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["Docstring", "Told", "plain", "read_docstring", "rule"]


class Told(NamedTuple):
    """What a docstring says of a parameter."""

    type: str
    meaning: str


class Docstring(NamedTuple):
    """A docstring, taken apart."""

    summary: str
    text: str
    parameters: Mapping[str, Told]


_SECTION: Final = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def read_docstring(thing: object) -> Docstring:
    """Return what the docstring of a class, function or instance says.

    A class that tells nothing of a parameter takes it from its bases, so that nothing is written twice.

    Parameters
    ----------
    thing : object
        An instance may have a docstring of its own.

    Examples
    --------
    >>> read_docstring(read_docstring).parameters
    {'thing': Told(type='object', meaning='An instance may have a docstring of its own.')}
    """
    kinds = inspect.getmro(thing)[:-1] if isinstance(thing, type) else [thing]
    told: dict[str, Told] = {}
    for kind in kinds:
        for section in ("Parameters", "Attributes"):
            told = {**_parameters(_sections(kind).get(section, "")), **told}
    summary, _, text = _sections(kinds[0]).get("", "").partition("\n")
    return Docstring(summary, text.strip("\n"), told)


def rule(thing: object) -> str:
    """Return the docstring of the module that `thing` stands in: the rule it follows, and its source."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    return "" if module is None else inspect.getdoc(module) or ""


def plain(text: str) -> str:
    """Return a text without its markup for terminals.

    Examples
    --------
    >>> plain('``"fifo"`` (see `sim.Policy` and :func:`options`)')
    '"fifo" (see sim.Policy and options)'
    """
    text = re.sub(r"^::\n\n|:(?=:\n)", "", text, flags=re.MULTILINE)
    return re.sub(r":\w+:(?=`)|`", "", text)


def _sections(thing: object) -> dict[str, str]:
    """Return the sections of a docstring by title; what comes before the first has none."""
    title, *rest = _SECTION.split(inspect.cleandoc(getattr(thing, "__doc__", None) or ""))
    return {"": title, **dict(zip(rest[::2], rest[1::2], strict=True))}


def _parameters(section: str) -> dict[str, Told]:
    """Return what a section tells of each parameter; several may share a line: ``ranks, chunks : int``."""
    found = {}
    for entry in re.split(r"\n(?=\S)", section.strip()):
        head, _, meaning = entry.partition("\n")
        names, _, kind = head.partition(" : ")
        for name in filter(None, names.split(",")):
            found[name.strip(" *")] = Told(kind.strip(), " ".join(meaning.split()))
    return found
