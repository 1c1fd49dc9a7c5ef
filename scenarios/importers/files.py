"""Bytes in and out for importers: gunzipped by content, written whole or not at all, failures in one line."""

from __future__ import annotations

import gzip
import io
import os
import threading
import zlib
from pathlib import Path
from typing import IO, cast

from sim.errors import InputError

__all__ = ["MAX_BYTES", "StrPath", "gzipped", "read_bytes", "read_head", "write_bytes"]

StrPath = str | os.PathLike[str]

MAX_BYTES = 4 * 2**30
"""Largest file read, after decompression: a million ops take a tenth of it, a gzip bomb would take it all."""

_GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: StrPath) -> bytes:
    """Return the whole content of `path`, decompressed when it is gzipped (by content, not by name).

    Raises
    ------
    InputError
        No such file, a directory, no permission, a truncated or damaged gzip file, too large a file.
    """
    content = _read(path, MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: holds more than {MAX_BYTES // 2**30} GiB")
    return content


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


def gzipped(content: bytes) -> bytes:
    """Compress `content` so that equal content gives equal bytes: no name and no time in the header."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as file:
        file.write(content)
    return buffer.getvalue()


def write_bytes(path: StrPath, content: bytes) -> None:
    """Write `content` to `path`, gzipped when the name ends in ``.gz``; whole or not at all.

    Raises
    ------
    InputError
        The folder is missing or may not be written, or `path` is a directory.
    """
    target = Path(path)
    data = gzipped(content) if target.suffix == ".gz" else content
    try:
        if target.exists() and not target.is_file():
            if target.is_dir():
                raise IsADirectoryError(None, "is a directory")
            target.write_bytes(data)  # a pipe or a device: there is nothing to replace
            return
        beside = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            with open(beside, "xb") as file:
                file.write(data)
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
