"""Scalars of a YAML file replaced where they stand: comments, layout and order stay as they were written.

::

    makespan: {at_most: 45us}   # with both cores        65us at line 3, column 21
                        └──► 65us
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml

from scenarios.file.yaml_read import LOADER, read_yaml_text
from sim.files.atomic_files import write_bytes

__all__ = ["replace_scalars", "rewrite_file"]

_PROPERTIES: Final = re.compile(r"([&!]\S*\s+)*")
"""Anchors and tags, which begin a scalar's place."""


def rewrite_file(path: str | Path, new: Mapping[tuple[int, int], str]) -> None:
    """Replace scalars in a file, whole or not at all.

    Parameters
    ----------
    path : path
        A link leads to the file that is rewritten.
    new : mapping of (int, int) to str
        As for `replace_scalars`.
    """
    content = Path(path).read_bytes()
    text = content.decode("utf-8-sig")
    bom = content[: len(content) - len(text.encode())]
    write_bytes(os.path.realpath(path), bom + replace_scalars(text, new).encode())


def replace_scalars(text: str, new: Mapping[tuple[int, int], str]) -> str:
    """Return a YAML text with other scalars.

    Parameters
    ----------
    text : str
    new : mapping of (int, int) to str
        Line and column of a scalar, counted from 1, to what it is to say. Quotes stay quotes.

    Examples
    --------
    >>> print(replace_scalars("a: {b: 1us, c: '2us'}  # both", {(1, 8): "3us", (1, 16): "4us"}))
    a: {b: 3us, c: '4us'}  # both
    """
    parts, done = [], 0
    for begin, end, place in _scalars(text):
        if place in new:
            parts += [text[done:begin], _like(text[begin:end], new[place])]
            done = end
    return "".join([*parts, text[done:]])


def _scalars(text: str) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield where each scalar begins and ends, and its line and column."""
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.ScalarEvent):
            start, end = event.start_mark, event.end_mark
            assert start is not None
            assert end is not None
            written = text[start.index : end.index]
            properties = _PROPERTIES.match(written)
            assert properties is not None
            yield start.index + properties.end(), end.index, (start.line + 1, start.column + 1)


def _like(old: str, new: str) -> str:
    """Return a new scalar in the quotes of the old one."""
    if old.startswith("'"):
        return "'" + new.replace("'", "''") + "'"
    plain = re.fullmatch(r"[\w.]([\w./%+ -]*[\w./%+-])?", new) and (_is_text(new) or not _is_text(old))
    return new if plain and not old.startswith('"') else json.dumps(new, ensure_ascii=False)


def _is_text(plain: str) -> bool:
    """Whether a scalar without quotes is text, and no number or other word of YAML."""
    return isinstance(read_yaml_text(plain, "").value, str)
