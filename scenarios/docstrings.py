"""Docstrings in numpydoc's form, split into their summary, their text, and the meaning of each parameter.

::

    Convert every op to one format.          summary
    ...                                      text: paragraphs before the first section
    format : str                             parameters["format"].type
        ``"NCHW"`` or ``"NHWC"``.            parameters["format"].meaning

https://numpydoc.readthedocs.io/en/latest/format.html describes the form. Markup is removed from what is
shown, because a terminal cannot render it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple


class ParameterDoc(NamedTuple):
    """The type and meaning of a parameter in a docstring."""

    type: str
    meaning: str


class Docstring(NamedTuple):
    """A docstring, split into its parts."""

    summary: str
    text: str
    parameters: Mapping[str, ParameterDoc]


_SECTION: Final = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def read_docstring(thing: object) -> Docstring:
    """Return the parts of the docstring of a class, function or instance.

    Parameters that a class does not describe are taken from its bases, so that nothing is written twice.

    Parameters
    ----------
    thing : object
        An instance may have a docstring of its own.

    Examples
    --------
    >>> read_docstring(read_docstring).parameters
    {'thing': ParameterDoc(type='object', meaning='An instance may have a docstring of its own.')}
    """
    kinds = inspect.getmro(thing)[:-1] if isinstance(thing, type) else [thing]
    parameters: dict[str, ParameterDoc] = {}
    for kind in kinds:
        for section in ("Parameters", "Attributes"):
            parameters = {**_parameters(_sections(kind).get(section, "")), **parameters}
    summary, _, text = _sections(kinds[0]).get("", "").partition("\n")
    return Docstring(summary, text.strip("\n"), parameters)


def rule(thing: object) -> str:
    """Return the docstring of the module of `thing`, with the rule that it follows and its source."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    return "" if module is None else inspect.getdoc(module) or ""


def plain(text: str) -> str:
    """Return a text without its markup, for terminals.

    Examples
    --------
    >>> plain('``"fifo"`` (see `sim.Policy` and :func:`options`)')
    '"fifo" (see sim.Policy and options)'
    """
    text = re.sub(r"^::\n\n|:(?=:\n)", "", text, flags=re.MULTILINE)
    return re.sub(r":\w+:(?=`)|`", "", text)


def _sections(thing: object) -> dict[str, str]:
    """Return the sections of a docstring by title; the text before the first has an empty title."""
    title, *parts = _SECTION.split(inspect.cleandoc(getattr(thing, "__doc__", None) or ""))
    return {"": title, **dict(zip(parts[::2], parts[1::2], strict=True))}


def _parameters(section: str) -> dict[str, ParameterDoc]:
    """Return the parameters in a section; several may share a line: ``ranks, chunks : int``."""
    parameters = {}
    for entry in re.split(r"\n(?=\S)", section.strip()):
        head, _, meaning = entry.partition("\n")
        names, _, kind = head.partition(" : ")
        for name in filter(None, names.split(",")):
            parameters[name.strip(" *")] = ParameterDoc(kind.strip(), " ".join(meaning.split()))
    return parameters
