"""Reading and writing files: only regular ones, of limited size and compression ratio.

::

    path ──► open: a pipe, device or folder is refused, and never waited for
              │
              └► at most MOST_BYTES; for gzip at most MOST_RATIO times the packed bytes

A gzip file can expand to a thousand times its size. Real graphs and traces shrink to a tenth, at most to a
thirtieth, so a file that expands beyond `MOST_RATIO` is not a real one.
"""

from __future__ import annotations

import csv
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
from typing import Any, BinaryIO, Final, TextIO

from sim.base.errors import InputError, clip_repr
from sim.base.startup import collector_paused
from sim.base.units import format_count

StrPath = str | os.PathLike[str]

MOST_BYTES: Final = 4 * 2**30
"""Maximum size of a file after unpacking: a million ops take a tenth of it."""

MOST_RATIO: Final = 100
"""Maximum bytes per packed byte, in a file that unpacks to more than `_SMALL` bytes."""

_SMALL: Final = 64 * 2**20
_CHUNK: Final = 2 * 2**20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_NONBLOCK: Final = getattr(os, "O_NONBLOCK", 0)  # for the writer of a pipe
_LFS: Final = b"version https://git-lfs.github.com/spec/"


def read_bytes(
    path: StrPath, *, most: int = MOST_BYTES, head: int | None = None, unpack: bool = True
) -> bytes:
    """Return the content of a file, unpacked if it is gzipped (by content, not by name).

    Parameters
    ----------
    path : path
    most : int
        Maximum size of the content, in bytes.
    head : int, optional
        Number of bytes to read from the beginning; by default everything.
    unpack : bool
        Whether gzip files are unpacked.

    Raises
    ------
    InputError
        The file does not exist, is not regular, not permitted, damaged or truncated gzip, too large, or a
        pointer of Git LFS.
    """
    with _readable(path) as raw:
        stream: Any = gzip.GzipFile(fileobj=raw) if unpack and raw.peek(2)[:2] == _GZIP_MAGIC else raw
        if head is not None:
            return bytes(stream.read(head))
        content, size = io.BytesIO(), os.fstat(raw.fileno()).st_size if stream is raw else 0
        while size <= most and (chunk := stream.read(_CHUNK)):  # with no second copy of a large file
            size = content.tell() + content.write(chunk)
            if size > _SMALL and size > MOST_RATIO * raw.tell():
                more = f"unpacks to more than {MOST_RATIO} times its size"
                raise InputError(f"{path}: {more}; if that is meant, unpack it first")
        if size > most:
            limit = f"{most // 2**30} GiB" if most >= 2**30 else f"{most // 2**20} MiB"
            raise FileTooLargeError(f"{path}: is larger than {limit}")
        return content.getvalue()


def read_text(path: StrPath, *, most: int = MOST_BYTES, unpack: bool = True) -> str:
    """Return the text of a UTF-8 file, without a byte-order mark; otherwise like `read_bytes`.

    Raises
    ------
    InputError
        As `read_bytes`, or it is not UTF-8.
    """
    try:
        return read_bytes(path, most=most, unpack=unpack).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from None


@collector_paused(keeps=True)
def read_table(path: StrPath) -> tuple[list[str], list[tuple[str, dict[str, str]]]]:
    """Return the names of the columns of a CSV file, and its rows: where each stands, and its values.

    Raises
    ------
    InputError
        As `read_text`, two columns have one name, or a row has more or fewer values than there are columns.
    """
    try:
        reader = csv.reader(io.StringIO(read_text(path)))
        lines = [(reader.line_num, line) for line in reader]
    except csv.Error as error:
        raise InputError(f"{path}: is no table in CSV: {error}") from None
    header = [name.strip() for name in lines[0][1]] if lines else []
    duplicate = next((name for name in header if name and header.count(name) > 1), None)
    if duplicate:
        raise InputError(f"{path}:1: two columns are called {duplicate!r}; rename or remove one")
    rows = []
    for number, line in lines[1:]:
        if line and len(line) != len(header):
            raise InputError(f"{path}:{number}: {format_count(len(line), 'value')}, not {len(header)}")
        if line:
            rows.append((f"{path}:{number}", dict(zip(header, map(str.strip, line), strict=True))))
    return header, rows


def loads_once(text: str | bytes) -> Any:
    """Return the content of JSON; raise on a duplicate key, of which the last would win silently.

    Raises
    ------
    ValueError, RecursionError
        As for `json.loads`, or there is a duplicate key.

    Examples
    --------
    >>> loads_once('{"m": 1, "m": 2}')
    Traceback (most recent call last):
    ValueError: the key 'm' stands twice in {'m': 2}
    """
    return json.loads(text, object_pairs_hook=_refuse_duplicates)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        duplicate = next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n]))
        raise ValueError(f"the key {duplicate!r} stands twice in {clip_repr(mapping)}")
    return mapping


class FileTooLargeError(InputError):
    """A file is larger than the limit."""


@contextmanager
def _readable(path: StrPath) -> Iterator[Any]:
    """Open a regular file; name the file in every error."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCK)) as raw:
            if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
                raise InputError(f"{path}: is not a regular file")
            if raw.peek(len(_LFS)).startswith(_LFS):
                raise InputError(f"{path}: is a pointer of Git LFS in place of the file; run git lfs pull")
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


# ----------------------------------------------------------------------------------------------------------
# Files are written whole or not at all, with the same bytes for the same content.


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it into place if the block ends without an error.

    Parameters
    ----------
    path : path
        The final path of the file; an existing file is replaced.

    Raises
    ------
    InputError
        The directory does not exist, or something at the path is not a regular file.
    OSError
        It cannot be written (a full disk, no permission); its ``filename`` is `path`.
    """
    target = Path(path)
    temporary = _create_beside(target)
    try:
        with _name_in_errors(target, temporary):
            yield temporary
            temporary.chmod(0o644)
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise if `atomic_path` could not write a file there, before any work is done; leave nothing behind.

    Raises
    ------
    InputError, OSError
        As `atomic_path`.
    """
    _create_beside(Path(path)).unlink()


def _create_beside(target: Path) -> Path:
    """Return a new, empty file in the folder of `target`."""
    if not target.parent.is_dir():
        raise InputError(f"{target}: the directory {target.parent} does not exist")
    with _name_in_errors(target):
        with suppress(FileNotFoundError):
            mode = target.stat().st_mode
            if not stat.S_ISREG(mode):
                kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
                raise InputError(f"{target}: is {kind}")
        # The name of the file itself may be as long as names can be.
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.stem[:20]}.", suffix=target.suffix
        )
        os.close(handle)
    return Path(name)


@contextmanager
def _name_in_errors(target: Path, temporary: Path | None = None) -> Iterator[None]:
    """Make an OSError that names no file, or the temporary one, name `target`."""
    try:
        yield
    except OSError as error:
        if error.filename not in (None, str(temporary)) and temporary is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(target)) from error


@contextmanager
def atomic_text(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Yield a text file to write to, for content too large to hold; otherwise like `atomic_path`.

    It is gzipped if the name ends in ``.gz``.
    """
    with atomic_path(path) as temporary, ExitStack() as stack:
        raw: BinaryIO | gzip.GzipFile = stack.enter_context(temporary.open("wb"))
        if Path(path).suffix == ".gz":
            raw = stack.enter_context(gzip.GzipFile("", "wb", compresslevel=5, fileobj=raw, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content`, gzipped if the name ends in ``.gz`` (without a time stamp in the header)."""
    if Path(path).suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Write `content` as UTF-8; see `write_bytes`."""
    write_bytes(path, content.encode())
