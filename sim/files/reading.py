"""Files that are read: regular ones, of a size that can be held, unpacked as far as any real file goes.

::

    path ──► open: a pipe, device or folder is refused, and never waited for
              │
              └► at most MOST_BYTES; of gzip at most MOST_RATIO times what is packed

A gzip file can stand for a thousand times its size. Graphs and traces that people keep shrink to a tenth, and
to a thirtieth at most, so what goes on beyond `MOST_RATIO` is no such file.
"""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, cast

from sim.words.errors import InputError

__all__ = ["MOST_BYTES", "MOST_RATIO", "FileTooLargeError", "StrPath", "read_bytes", "read_chunks"]

StrPath = str | os.PathLike[str]

MOST_BYTES: Final = 4 * 2**30
"""Largest file that is read, after unpacking: a million ops take a tenth of it."""

MOST_RATIO: Final = 100
"""Most bytes that one packed byte may stand for, in a file that unpacks to more than `_SMALL` bytes."""

_SMALL: Final = 64 * 2**20
_CHUNK: Final = 2 * 2**20
_GZIP_MAGIC: Final = b"\x1f\x8b"


def read_bytes(
    path: StrPath, *, most: int = MOST_BYTES, head: int | None = None, unpack: bool = True
) -> bytes:
    """Return the content of a file, unpacked when it is gzipped (by content, not by name).

    Parameters
    ----------
    path : path
    most : int
        Largest content, in bytes.
    head : int, optional
        Return that many bytes of the beginning only.
    unpack : bool
        Whether gzip files are unpacked.

    Raises
    ------
    InputError
        No such file, no regular file, no permission, a truncated or damaged gzip file, or too large.
    """
    with _readable(path) as raw, _opened(raw, unpack) as stream:
        if head is not None:
            return stream.read(head)
        return b"".join(_chunks(path, raw, stream, most, -1 if stream is raw else _CHUNK))


def read_chunks(path: StrPath, *, most: int = MOST_BYTES) -> Iterator[bytes]:
    """Yield the content of a file piece by piece, for who need not hold all of it; as `read_bytes`."""
    with _readable(path) as raw, _opened(raw, True) as stream:
        yield from _chunks(path, raw, stream, most, _CHUNK)


def _chunks(path: StrPath, raw: Any, stream: IO[bytes], most: int, each: int) -> Iterator[bytes]:
    if stream is raw and os.fstat(raw.fileno()).st_size > most:
        raise _too_large(path, most)
    size = 0
    while chunk := stream.read(each):
        size += len(chunk)
        if size > most:
            raise _too_large(path, most)
        if size > _SMALL and size > MOST_RATIO * raw.tell():
            raise InputError(
                f"{path}: unpacks to more than {MOST_RATIO} times its size; if that is meant, unpack it first"
            )
        yield chunk


@contextmanager
def _opened(raw: Any, unpack: bool) -> Iterator[IO[bytes]]:
    """Unpack what is gzipped."""
    if unpack and raw.peek(2)[:2] == _GZIP_MAGIC:
        with gzip.open(raw) as unpacked:
            yield cast("IO[bytes]", unpacked)
    else:
        yield raw


def _too_large(path: StrPath, most: int) -> InputError:
    size = f"{most // 2**30} GiB" if most >= 2**30 else f"{most // 2**20} MiB"
    return FileTooLargeError(f"{path}: is larger than {size}")


class FileTooLargeError(InputError):
    """A file is larger than what is read."""


@contextmanager
def _readable(path: StrPath) -> Iterator[Any]:
    """Open a regular file; say of every failure which file it is."""
    try:
        with open(path, "rb", opener=_without_waiting) as raw:
            if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
                raise InputError(f"{path}: is not a regular file")
            yield raw
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory, not a file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: a truncated or damaged gzip file ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:  # a path with a null character
        raise InputError(f"{str(path)!r}: cannot be read ({error})") from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; of a pipe, do not wait for somebody to write into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
