"""Recorded routing: a file that says to which experts every token went.

::

    rank,expert0,expert1         a token a row; `rank` may be missing          .csv, .csv.gz
    0,3,17
    experts (tokens, top_k), ranks (tokens,)                                   .npz
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from sim.files.reading import MOST_BYTES, read_bytes
from sim.words.arrays import IntArray
from sim.words.errors import InputError
from sim.words.limits import at_most

__all__ = ["Trace", "read_trace"]

_DAMAGED: Final = (
    *(ValueError, OSError, EOFError, KeyError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What reading a file raises that is no archive of arrays."""


class Trace(NamedTuple):
    """Routed tokens.

    Attributes
    ----------
    experts : array of int64, (tokens, top_k)
    ranks : array of int64 or None
        Of each token; None: nobody says.
    """

    experts: IntArray
    ranks: IntArray | None


def read_trace(path: Path, experts: int, top_k: int) -> Trace:
    """Return what a file holds.

    Parameters
    ----------
    path : path
    experts, top_k : int
        How many experts there are, and how many of them a token goes to.

    Raises
    ------
    InputError
        No such file, no such columns, or a token that goes nowhere, or to one expert twice.
    """
    trace = _npz(path) if path.name.endswith(".npz") else _csv(path)
    if trace.experts.shape[1:] != (top_k,) or not len(trace.experts):
        shape = " x ".join(map(str, trace.experts.shape))
        raise InputError(f"{path}: must have {top_k} expert(s) a token, as top_k says; found {shape}")
    for what, column, most in (("expert", trace.experts, experts), ("rank", trace.ranks, None)):
        if column is None:
            continue
        bad = (column < 0) if most is None else (column < 0) | (column >= most)
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            known = "" if most is None else f"; there are 0 to {most - 1}"
            raise InputError(f"{path}: token {row} has {what} {int(column[bad][0])}{known}")
    twice = (np.diff(np.sort(trace.experts, axis=1), axis=1) == 0).any(axis=1)
    if twice.any():
        raise InputError(f"{path}: token {int(twice.argmax())} goes to one expert twice")
    return trace


def _csv(path: Path) -> Trace:
    content = read_bytes(path)
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is no table ({error})") from None
    header = [name.strip() for name in rows[0]] if rows else []
    chosen = [k for k, name in enumerate(header) if name.startswith("expert")]
    if not chosen or set(header) - {"rank"} - {header[k] for k in chosen}:
        raise InputError(
            f"{path}: its first line must name the columns expert0, expert1, ..., and may name rank"
        )
    cells = []
    for number, row in enumerate(rows[1:], start=2):
        try:
            cells.append([int(cell) for cell in row])
        except ValueError as error:
            raise InputError(f"{path}:{number}: {error}") from None
        if len(row) != len(header):
            raise InputError(f"{path}:{number}: {len(row)} values under {len(header)} columns")
    try:
        table = np.array(cells, np.int64).reshape(-1, len(header))
    except OverflowError:
        raise InputError(f"{path}: has numbers that are no experts") from None
    return Trace(table[:, chosen], table[:, header.index("rank")] if "rank" in header else None)


def _npz(path: Path) -> Trace:
    content = io.BytesIO(read_bytes(path))
    try:
        with zipfile.ZipFile(content) as archive:
            at_most(MOST_BYTES, sum(each.file_size for each in archive.infolist()), "bytes")
        with np.load(content, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except _DAMAGED as error:
        raise InputError(f"{path}: is no .npz file ({error})") from None
    if "experts" not in found or set(found) - {"experts", "ranks"}:
        raise InputError(f"{path}: must have an array experts, and may have ranks; found {sorted(found)}")
    for name, array in found.items():
        whole = isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.ndim in (1, 2)
        if not whole or len(array) != len(found["experts"]):
            raise InputError(f"{path}: {name} must be whole numbers, a row for each token")
    experts = found["experts"].astype(np.int64)
    ranks = found["ranks"].astype(np.int64).ravel() if "ranks" in found else None
    return Trace(experts.reshape(len(experts), -1), ranks)
