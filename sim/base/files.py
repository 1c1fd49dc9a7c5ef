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
import io
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, TextIO, cast

from sim.base.errors import InputError, clipped

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


def read_text(path: StrPath, *, most: int = MOST_BYTES, unpack: bool = True) -> str:
    """Return the text of a file in UTF-8, without the mark with which spreadsheets begin; as `read_bytes`.

    Raises
    ------
    InputError
        As `read_bytes`, or it is not UTF-8.
    """
    try:
        return read_bytes(path, most=most, unpack=unpack).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from None


def loads_once(text: str | bytes) -> Any:
    """Return what JSON holds; a key that stands twice in an object is refused: the last would win in silence.

    Raises
    ------
    ValueError, RecursionError
        As `json.loads`, or there is such a key.

    Examples
    --------
    >>> loads_once('{"m": 1, "m": 2}')
    Traceback (most recent call last):
    ValueError: the key 'm' stands twice in {'m': 2}
    """
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n]))
        raise ValueError(f"the key {twice!r} stands twice in {clipped(found)}")
    return found


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


# ----------------------------------------------------------------------------------------------------------
# Files that are written whole or not at all, with the same bytes for the same content.


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; put it in place when the block ends without an error.

    Parameters
    ----------
    path : path
        Where the file will be; an old one there is replaced.

    Raises
    ------
    InputError
        Its directory does not exist, or something is there that is no file.
    OSError
        It cannot be written (a full disk, no permission); its ``filename`` is `path`.
    """
    target = Path(path)
    beside = _made_beside(target)
    try:
        with _named(target, beside):
            yield beside
            beside.chmod(0o644)
            os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a place where `atomic_path` cannot put a file, before work is done for it; leave nothing there.

    Raises
    ------
    InputError, OSError
        As `atomic_path`.
    """
    _made_beside(Path(path)).unlink()


def _made_beside(target: Path) -> Path:
    """Return a new, empty file in the folder of `target`."""
    if not target.parent.is_dir():
        raise InputError(f"{target}: the directory {target.parent} does not exist")
    with _named(target):
        with suppress(FileNotFoundError):
            there = target.stat().st_mode
            if not stat.S_ISREG(there):
                what = "a directory" if stat.S_ISDIR(there) else "not a regular file"
                raise InputError(f"{target}: is {what}")
        # The name of the file itself may be as long as names can be.
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.stem[:20]}.", suffix=target.suffix
        )
        os.close(handle)
    return Path(name)


@contextmanager
def _named(target: Path, beside: Path | None = None) -> Iterator[None]:
    """Let an OSError that names no file, or the temporary one, name `target`."""
    try:
        yield
    except OSError as error:
        if error.filename not in (None, str(beside)) and beside is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(target)) from error


@contextmanager
def atomic_text(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Yield a text file to write to, for content that is too large to be held; as `atomic_path`.

    Gzipped when the name ends in ``.gz``.
    """
    with atomic_path(path) as beside, ExitStack() as stack:
        raw: BinaryIO | gzip.GzipFile = stack.enter_context(beside.open("wb"))
        if Path(path).suffix == ".gz":
            raw = stack.enter_context(gzip.GzipFile("", "wb", compresslevel=5, fileobj=raw, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content`, gzipped when the name ends in ``.gz`` (without a time stamp in the header)."""
    if Path(path).suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    with atomic_path(path) as beside:
        beside.write_bytes(content)


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Write `content` as UTF-8; see `write_bytes`."""
    write_bytes(path, content.encode())
