"""Bytes for importers: decompressed when they are compressed, and every failure in one line."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from sim.words.errors import GraphError, InputError, UnknownNameError

__all__ = ["StrPath", "choice", "fixed_batch", "in_file", "read_bytes", "read_head", "read_json", "stem"]

StrPath = str | os.PathLike[str]

_MAX_BYTES = 4 * 2**30
"""Largest file read, after decompression: a million ops take a tenth of it, a gzip bomb would take it all."""

_GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: StrPath) -> bytes:
    """Return the whole content of `path`, decompressed when it is gzipped (by content, not by name).

    Raises
    ------
    InputError
        No such file, a directory, no permission, a truncated or damaged gzip file, too large a file.
    """
    content = _read(path, _MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise InputError(f"{path}: holds more than {_MAX_BYTES // 2**30} GiB")
    return content


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
    return _read(path, size)


def _read(path: StrPath, size: int) -> bytes:
    try:
        with open(path, "rb") as raw:
            if raw.peek(2)[:2] != _GZIP_MAGIC:
                return raw.read(size)
            with gzip.open(raw) as unzipped:
                return cast("IO[bytes]", unzipped).read(size)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory, not a file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: a truncated or damaged gzip file ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


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
