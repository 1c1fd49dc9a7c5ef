"""Measured durations of one kind of op, with interpolation between measured shapes.

A table is rows of (shape, latency). Latencies span five decades and shapes go up by factors, so everything
happens in logarithms: between two neighbours the table follows a power law, at a measured shape it says
exactly what was measured, and outside the neighbours it warns (:class:`ExtrapolationWarning`)::

    log latency        o measured
      |            ?.o          inside: between the neighbours
      |        o'
      |  ? - o                  outside: the neighbours' slope goes on, and a warning says so
      +-------------- log size

Interpolation is explained in :mod:`devices.cost.kriging`; it treats full grids, grids with holes and
scattered shapes alike.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from devices.cost.kriging import Kriging
from devices.cost.measured import NOTHING_SAID, Measured, read_record, well_formed
from sim.base.arrays import BoolArray, FloatArray, IntArray
from sim.base.errors import InputError, UnknownNameError

_LOG_LIMIT = float(np.log(2.0**63)) - 1e-6


class ExtrapolationWarning(UserWarning):
    """A table was asked beyond what was measured around the shape."""


@dataclass(frozen=True)
class Axis:
    """One number of a shape.

    Attributes
    ----------
    name : str
        As `lookup` takes it: ``m``, ``seq_len``.
    scale : {"log", "exact"}
        ``log``: positive, and values between are interpolated. ``exact``: a variant such as the head
        dimension; there is nothing between two variants.
    """

    name: str
    scale: Literal["log", "exact"] = "log"

    def __post_init__(self) -> None:
        """Refuse what no lookup could use."""
        if self.scale not in ("log", "exact"):
            raise InputError(f"axis {self.name!r} has scale {self.scale!r}; it is 'log' or 'exact'")


@dataclass(frozen=True, eq=False)
class CostTable:
    """Measured latencies of one kind of op on one device.

    Build one with :meth:`from_rows`, which sorts the rows and merges repeated shapes, or read one with
    :func:`devices.cost.cost_table.load_table`.

    Attributes
    ----------
    device, kind : str
        What was measured where: ``"NVIDIA H200"``, ``"matmul"``.
    axes : tuple of Axis
        What a shape consists of, in the order of the columns.
    shapes : ndarray of int64, shape (n, axes)
        The measured shapes, distinct, in lexicographic order.
    latency_ns : ndarray of int64, shape (n,)
        What each took; positive.
    provenance : mapping
        Where the numbers come from: source, licence, library versions, clocks, protocol, sample counts.
    measured : Measured
        In which data types, and what a latency contains besides the kernel.

    Examples
    --------
    >>> table = CostTable.from_rows(
    ...     "toy", "copy", [Axis("nbytes")], [(1024, 1000), (4096, 2000)], {"source": "made up"}
    ... )
    >>> table.lookup(nbytes=4096), table.lookup(nbytes=2048)
    (2000, 1414)
    """

    device: str
    kind: str
    axes: tuple[Axis, ...]
    shapes: IntArray
    latency_ns: IntArray
    provenance: Mapping[str, Any] = field(default_factory=dict)
    measured: Measured = NOTHING_SAID

    @classmethod
    def from_rows(
        cls,
        device: str,
        kind: str,
        axes: Sequence[Axis],
        rows: Iterable[Sequence[int]] | IntArray,
        provenance: Mapping[str, Any] | None = None,
        *,
        measured: Measured = NOTHING_SAID,
    ) -> CostTable:
        """Build a table of rows (shape..., latency_ns); a shape that occurs repeatedly gets its median.

        Raises
        ------
        InputError
            No rows, rows of a wrong length, a number that is not whole, a latency or a size on a log axis
            that is not positive, an axis named twice.
        """
        names = [axis.name for axis in axes]
        if not names or len(set(names)) != len(names):
            raise InputError(f"a table needs axes with distinct names, not {names}")
        where, columns = f"the table of {kind!r} on {device!r}", (*names, "latency_ns")
        try:
            given = np.array(rows if isinstance(rows, np.ndarray) else [list(row) for row in rows])
        except ValueError as error:
            raise InputError(f"{where} has rows of different lengths; each is {columns}") from error
        if given.ndim != 2 or given.shape[1] != len(names) + 1:
            raise InputError(f"{where} needs rows of {columns}; got an array of shape {given.shape}")
        if given.dtype.kind not in "iu":
            raise InputError(f"{where} needs whole numbers (sizes, and latencies in ns), not {given.dtype}")
        whole = given.astype(np.int64)
        positive = np.array([axis.scale == "log" for axis in axes] + [True])
        bad = np.argwhere((whole <= 0) & positive)
        if len(bad):
            row, column = bad[0].tolist()
            raise InputError(
                f"{where}: row {row} has {columns[column]} = {whole[row, column]}; "
                "it must be positive, as there is no logarithm of it"
            )
        shapes, group, count = np.unique(whole[:, :-1], axis=0, return_inverse=True, return_counts=True)
        ordered = whole[np.lexsort((whole[:, -1], group.ravel())), -1]
        begin = np.cumsum(count) - count
        latency = (ordered[begin + (count - 1) // 2] + ordered[begin + count // 2] + 1) // 2  # half up
        return cls(device, kind, tuple(axes), shapes, latency, dict(provenance or {}), measured)

    @cached_property
    def _measured(self) -> dict[tuple[int, ...], int]:
        return dict(zip(map(tuple, self.shapes.tolist()), self.latency_ns.tolist(), strict=True))

    @cached_property
    def _variants(self) -> dict[tuple[int, ...], Kriging]:
        """Per combination of the exact axes: what interpolates log latencies between positions."""
        variants: dict[tuple[int, ...], list[int]] = {}
        for row, key in enumerate(map(tuple, self.shapes[:, self._exact].tolist())):
            variants.setdefault(key, []).append(row)
        return {
            key: Kriging(self._position(self.shapes[rows]), np.log(self.latency_ns[rows]))
            for key, rows in variants.items()
        }

    @cached_property
    def _exact(self) -> list[int]:
        return [column for column, axis in enumerate(self.axes) if axis.scale == "exact"]

    def _position(self, shapes: IntArray) -> FloatArray:
        """Where shapes lie for the purpose of distances, one column per log axis."""
        return np.asarray(np.log(np.delete(shapes, self._exact, axis=1)))

    def lookup(self, **sizes: npt.ArrayLike) -> int | IntArray:
        """Return the latency of a shape, or of many.

        Parameters
        ----------
        **sizes : int or array of int
            One value, or arrays that broadcast together, for each axis by name.

        Returns
        -------
        int or ndarray of int64
            Nanoseconds, rounded half up; an int when every argument is a single number.

        Raises
        ------
        UnknownNameError
            There is no such axis.
        InputError
            An axis is missing, a size is not whole or not positive, or a variant (the value of an ``exact``
            axis) was never measured.

        Warns
        -----
        ExtrapolationWarning
            A shape lies outside the box of the measured shapes nearest to it.
        """
        names = [axis.name for axis in self.axes]
        for name in sizes:
            if name not in names:
                raise UnknownNameError(f"axis of the table of {self.kind!r}", name, names)
        if missing := [name for name in names if name not in sizes]:
            raise InputError(
                f"the table of {self.kind!r} needs {', '.join(names)}; missing: {', '.join(missing)}"
            )
        columns = np.broadcast_arrays(*(np.asarray(sizes[name]) for name in names))
        for name, column in zip(names, columns, strict=True):
            if column.size and column.dtype.kind not in "iu":
                raise InputError(f"{name} must be whole, not {column.dtype}")
        asked = np.stack([column.astype(np.int64).ravel() for column in columns], axis=1)
        distinct, back = np.unique(asked, axis=0, return_inverse=True)
        latency_ns, outside = self.estimate(distinct)
        if outside.any():
            ends = zip(self.axes, self.shapes.min(axis=0), self.shapes.max(axis=0), strict=True)
            ranges = ", ".join(f"{axis.name} {low} to {high}" for axis, low, high in ends)
            warnings.warn(
                f"the table of {self.kind!r} on {self.device!r} was asked for "
                f"{self._in_words(distinct[outside])}, outside the measured shapes around it (whole table: "
                f"{ranges}); the result is extrapolated with their slope",
                ExtrapolationWarning,
                stacklevel=2,
            )
        found = latency_ns[back.ravel()].reshape(columns[0].shape)
        return int(found) if found.ndim == 0 else found

    def estimate(self, asked: IntArray) -> tuple[IntArray, BoolArray]:
        """Return the latencies of shapes, and which are extrapolated, without a warning.

        Parameters
        ----------
        asked : ndarray of int64, shape (n, axes)
            Shapes, in the order of the axes.

        Raises
        ------
        InputError
            A size is not positive, or a variant was never measured.
        """
        for column, axis in enumerate(self.axes):
            if axis.scale == "log" and len(asked) and int(asked[:, column].min()) <= 0:
                raise InputError(f"{axis.name} is {int(asked[:, column].min())}; it must be positive")
        measured, known = self._measured, list(map(tuple, asked.tolist()))
        latency = np.array([measured.get(shape, 0) for shape in known], dtype=np.int64)
        log_ns, outside = np.zeros(len(asked)), np.zeros(len(asked), np.bool_)
        rows_of: dict[tuple[int, ...], list[int]] = {}
        for row in np.flatnonzero(latency == 0).tolist():
            rows_of.setdefault(tuple(asked[row, self._exact].tolist()), []).append(row)
        for key, rows in rows_of.items():
            if key not in self._variants:
                names = [self.axes[column].name for column in self._exact]
                shown = [
                    ", ".join(f"{n}={v}" for n, v in zip(names, k, strict=True))
                    for k in (key, *self._variants)
                ]
                raise InputError(
                    f"the table of {self.kind!r} on {self.device!r} has no measurement with {shown[0]}, and "
                    f"nothing can be said between variants. Measured: {'; '.join(shown[1:])}"
                )
            log_ns[rows], outside[rows] = self._variants[key].at(self._position(asked[rows]))
        if log_ns.max(initial=0) > _LOG_LIMIT:
            worst = asked[int(log_ns.argmax())].tolist()
            raise InputError(f"the table of {self.kind!r} extrapolates to over 292 years at {worst}")
        estimated = np.floor(np.exp(log_ns) + 0.5).astype(np.int64)
        return np.where(latency > 0, latency, estimated), outside

    def _in_words(self, asked: IntArray) -> str:
        """Return the first of some shapes in words, and how many more there are."""
        sizes = zip(self.axes, asked[0].tolist(), strict=True)
        first = ", ".join(f"{axis.name}={size}" for axis, size in sizes)
        others = len(asked) - 1
        return first + (f" and {others} other shape{'s' * (others > 1)}" if others else "")


# ----------------------------------------------------------------------------------------------------------
# Cost tables as files: JSON with provenance, schema ``sim.cost_table/1``.
#
#     {"schema": "sim.cost_table/1", "device": "NVIDIA H200", "unit": "ns", "kind": "matmul",
#      "axes": [{"name": "m", "scale": "log"}, ...],
#      "measured": {"dtypes": ["bf16"], "contains": ["gap"]},
#      "provenance": {"source": ..., "licence": ..., "protocol": ...},
#      "rows": [[m, n, k, latency_ns], ...]}
#
# ``scale`` and ``measured`` (`devices.cost.measured`) may be left out. One row a line, to compare files.

SCHEMA = "sim.cost_table/1"
_KEYS = ("schema", "device", "unit", "kind", "axes", "measured", "provenance", "rows")


def save_table(table: CostTable, path: str | Path) -> None:
    """Write `table` as JSON, compressed when the name ends in ``.gz``; the same table, the same bytes."""
    head = {
        "schema": SCHEMA,
        "device": table.device,
        "unit": "ns",
        "kind": table.kind,
        "axes": [dataclasses.asdict(axis) for axis in table.axes],
        "measured": table.measured.to_json(),
        "provenance": dict(table.provenance),
    }
    rows = np.column_stack([table.shapes, table.latency_ns]).tolist()
    opened = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    text = f'{opened},\n "rows": [\n{body}\n ]\n}}\n'.encode()
    target = Path(path)
    target.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)


def load_table(path: str | Path) -> CostTable:
    """Read a table.

    Raises
    ------
    InputError
        The file is no such table; the message names the file and what is wrong with it.

    Examples
    --------
    >>> import tempfile
    >>> table = CostTable.from_rows("toy", "copy", [Axis("nbytes")], [(1024, 900)], {"source": "made up"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_table(table, f"{folder}/copy.json.gz")
    ...     load_table(f"{folder}/copy.json.gz").lookup(nbytes=1024)
    900
    """
    return table_of(read_record(path, "a cost table", SCHEMA), path)


def table_of(data: Mapping[str, Any], path: str | Path) -> CostTable:
    """Return the table that a file holds; `path` names it in messages."""
    with well_formed(path):
        axes = (("an axis: ", axis, ("name", "scale")) for axis in data["axes"])
        for where, given, known in (("", data, _KEYS), *axes):
            if unknown := sorted(set(given) - set(known)):
                raise InputError(f"{where}unknown keys {', '.join(unknown)}; known: {', '.join(known)}")
        if data.get("unit") != "ns":
            raise InputError(f"'unit' must be 'ns', found {data.get('unit')!r}")
        return CostTable.from_rows(
            data["device"],
            data["kind"],
            [Axis(**axis) for axis in data["axes"]],
            data["rows"],
            data["provenance"],
            measured=Measured.read(data.get("measured", {})),
        )
