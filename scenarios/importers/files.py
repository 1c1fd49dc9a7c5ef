"""Bytes for importers: decompressed when they are compressed, and every failure in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sim.files.reading import StrPath, read_bytes
from sim.words.errors import GraphError, InputError, UnknownNameError

__all__ = [
    "TRACES",
    "StrPath",
    "all_files",
    "choice",
    "files_in",
    "fixed_batch",
    "in_file",
    "job_name",
    "read_bytes",
    "read_head",
    "read_json",
    "stem",
]


TRACES: Final[Mapping[str, tuple[str, ...]]] = {
    "kineto": (".json", ".json.gz"),
    "chakra": (".et", ".et.gz", ".chakra", ".chakra.gz"),
}
"""Formats of which a folder holds the traces of all ranks of a job, and how their names end."""


def read_json(path: StrPath) -> Any:
    """Return what a JSON file holds.

    Raises
    ------
    InputError
        As `read_bytes`, or it is not JSON.
    """
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None


def read_head(path: StrPath, size: int = 1 << 16) -> bytes:
    """Return the first `size` bytes of what `read_bytes` would return."""
    return read_bytes(path, head=size)


def stem(path: StrPath, *endings: str) -> str:
    """Return the name of a file without its folder and its endings, ``.gz`` among them: that of its graph.

    Examples
    --------
    >>> stem("traces/rank0.json.gz", ".json")
    'rank0'
    """
    name = os.fspath(path).replace("\\", "/").rpartition("/")[2].removesuffix(".gz")
    for ending in endings:
        name = name.removesuffix(ending)
    return name


def files_in(folder: StrPath, *formats: str) -> list[str]:
    """Return the names of the traces in a folder.

    Parameters
    ----------
    folder : path
    *formats : str
        Keys of `TRACES`; default: all.

    Raises
    ------
    InputError
        There is none, or the folder cannot be read.
    """
    endings = [ending for format in formats or TRACES for ending in TRACES[format]]
    try:
        found = sorted(name for name in os.listdir(folder) if name.endswith(tuple(endings)))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror or error})") from None
    if not found:
        raise InputError(f"{folder}: no trace in this folder ({' or '.join(endings[:2])})")
    return found


def all_files(path: StrPath | Sequence[StrPath], format: str) -> list[StrPath]:
    """Return the files that a path, a list of them, or a folder stands for."""
    given = [path] if isinstance(path, str | os.PathLike) else [*path]
    if not given:
        raise InputError("no trace is given")
    found: list[StrPath] = []
    for each in given:
        inside = files_in(each, format) if os.path.isdir(each) else None
        found += [each] if inside is None else [os.path.join(each, name) for name in inside]
    return found


def job_name(path: StrPath | Sequence[StrPath]) -> str:
    """Return what the ranks of a job are called together: the name of their folder."""
    first = path if isinstance(path, str | os.PathLike) else os.path.dirname(os.fspath(next(iter(path))))
    return os.path.basename(os.path.abspath(first)) or "ranks"


@contextmanager
def in_file(path: object) -> Iterator[None]:
    """Begin the message of an error with the file (or model) that it is about."""
    try:
        yield
    except InputError as error:
        kind = GraphError if isinstance(error, GraphError) else InputError
        raise kind(f"{path}: {error}") from None


def fixed_batch(path: StrPath, batch: int | None, why: str) -> None:
    """Refuse a batch size for a file that has one of its own."""
    if batch is not None:
        raise InputError(f"{path}: {why}, so batch={batch} cannot be set")


def choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    """Check an option that is one of a few words; UnknownNameError when it is none of them."""
    if value not in allowed:
        raise UnknownNameError(f"value of {option}", value, allowed)
