"""The model ``table``: measured times, with interpolation between them.

::

    op,ranks,bytes,time_us             all_reduce,8,1048576,26.1
    collectives: {model: table, file: nccl.csv, columns: {elements: message_size, time_ms: latency},
                  where: {device: NVIDIA H200}, dtype: half}

Between two measured sizes the time is a line in log-log, since latency and bandwidth are powers of the size
at both ends. Below the smallest size a collective takes as long as that one, since that is latency; beyond
the largest nothing is known, unless `beyond` is ``bandwidth``: then that of the largest holds. Rows with the
same kind, number of ranks and size are repetitions, of which the mean is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from operator import itemgetter
from pathlib import Path
from typing import Final, Literal

from devices.describe.field_types import dtype_bits, dtype_name
from sim.base.arrays import LATEST_NS, group_pairs
from sim.base.errors import InputError, UnknownNameError, error_path, hint
from sim.base.files import read_table
from sim.base.plugins import NOWHERE, Origin
from sim.base.units import format_bytes, round_half_up
from sim.machine.communicators import Call
from sim.machine.machine import Machine

ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "op": ("op", "op_name", "kind", "collective"),
    "ranks": ("ranks", "gpus", "num_gpus", "nranks"),
    "bytes": ("bytes", "nbytes", "size"),
    "elements": ("elements", "count"),
    "dtype": ("dtype", "nccl_dtype", "type"),
    "time_us": ("time_us", "latency_us", "time"),
    "time_ms": ("time_ms", "latency_ms"),
}
"""Role of a column -> the names by which it is recognised. A ``time`` is in us, as nccl-tests prints it."""

Measurements = Mapping[tuple[str, int], Sequence[tuple[int, float]]]
"""Kind and number of ranks -> sizes in bytes, rising, and the us of each."""


def read_measurements(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    dtype: str | None = None,
) -> Measurements:
    """Return what a CSV file holds, plain or gzipped.

    Parameters
    ----------
    path : path
    columns : mapping
        Which column is the ``op``, the number of ``ranks``, the size in ``bytes`` (as nccl-tests counts it)
        or in ``elements``, the ``dtype``, ``time_us`` or ``time_ms``; for those whose names are not known.
    where : mapping
        Column -> the value that a row must have to count.
    dtype : str, optional
        Which of several types.

    Raises
    ------
    InputError
        No such file, a column that is missing, a row that is no measurement, or rows that differ in what was
        not chosen.
    """
    header, rows = read_table(path)
    if not header:
        raise InputError(f"{path}: is empty; a table has a line of names and one for each measurement")
    if not all(name.isprintable() for name in header):
        raise InputError(f"{path}: is no table; its first line should name the columns")
    column_of = _columns(path, header, columns or {})
    chosen = dict(where or {})
    if dtype is not None:
        if "dtype" not in column_of:
            raise InputError(f"{path}: has no column of types, so dtype: {dtype} has no meaning")
        chosen[column_of["dtype"]] = dtype
    for name in chosen:
        if name not in header:
            raise InputError(f"{path}: has no column {name!r}{hint(name, header)}", path=("where",))
    measured = group_pairs(
        _measurement(line, row, column_of)
        for line, row in rows
        if all(row[name] == str(value) for name, value in chosen.items())
    )
    if not measured:
        for name, value in chosen.items():
            values = {row[name] for _, row in rows}
            if str(value) not in values:
                raise InputError(f"{path}: no row has {name} {value!r}{hint(str(value), values)}")
        raise InputError(f"{path}: has no rows" + (" with all that was asked for" if chosen else ""))
    _check_alike(path, measured)
    return group_pairs(
        ((kind, ranks), (nbytes, sum(us for us, _ in alike) / len(alike)))
        for (kind, ranks, nbytes), alike in sorted(measured.items())
    )


def _columns(path: str | Path, header: Sequence[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return each role's column."""
    for role, name in chosen.items():
        if role not in ROLES:
            raise UnknownNameError("column's role", role, ROLES)
        if name not in header:
            raise InputError(f"{path}: has no column {name!r}{hint(name, header)}", path=("columns", role))
    usual = {role: next((name for name in names if name in header), "") for role, names in ROLES.items()}
    column_of: dict[str, str] = {}
    for roles in (("op",), ("ranks",), ("bytes", "elements"), ("time_us", "time_ms"), ("dtype",)):
        present = [role for role in roles if role in chosen] or [role for role in roles if usual[role]]
        columns = {role: chosen.get(role, usual[role]) for role in present}
        if present == ["time_us", "time_ms"]:
            us, ms = columns.values()
            raise InputError(
                f"{path}: both {us!r} and {ms!r} are times; say columns: {{time_us: {us}}}", path=("columns",)
            )
        if present:
            column_of[present[0]] = columns[present[0]]
        elif roles != ("dtype",):
            raise InputError(
                f"{path}: which column is {' or '.join(roles)}? It has {', '.join(header)}; "
                f"say columns: {{{roles[0]}: NAME}}",
                path=("columns",),
            )
    if "elements" in column_of and "dtype" not in column_of:
        raise InputError(f"{path}: sizes count elements, and no column says their type; say columns: dtype")
    return column_of


_Row = tuple[float, Mapping[str, str]]
"""The us of a measurement, and what its line says."""


def _measurement(
    line: str, row: Mapping[str, str], column_of: Mapping[str, str]
) -> tuple[tuple[str, int, int], _Row]:
    """Return kind, ranks and bytes of a line, and its measurement."""
    kind = row[column_of["op"]].lower().replace("-", "_")
    kind = {"alltoall": "all_to_all", "allreduce": "all_reduce", "allgather": "all_gather",
            "reducescatter": "reduce_scatter", "sendrecv": "send"}.get(kind, kind)  # fmt: skip
    size_in = "bytes" if "bytes" in column_of else "elements"
    time_in = "time_us" if "time_us" in column_of else "time_ms"
    values = [row[column_of[role]] for role in ("ranks", size_in, time_in)]
    try:
        ranks, size = int(values[0]), int(values[1])
        us = float(values[2]) * (1 if time_in == "time_us" else 1000)
    except ValueError:
        rule = f"ranks and {size_in} are whole numbers, {time_in} is a number"
        raise InputError(f"{line}: {', '.join(map(repr, values))} is no measurement; {rule}") from None
    if "elements" in column_of:
        with error_path(line):
            size = size * dtype_bits(dtype_name(row[column_of["dtype"]])) // 8
    if ranks < 1 or size < 0 or not 0 < us * 1000 < LATEST_NS:
        raise InputError(f"{line}: {ranks} ranks, {size} bytes, {us} us is no measurement")
    return (kind, ranks, size), (us, row)


def _check_alike(path: str | Path, measured: Mapping[tuple[str, int, int], Sequence[_Row]]) -> None:
    """Refuse rows of one size that are not repetitions: they differ in words."""
    for (kind, ranks, nbytes), rows in measured.items():
        for name in rows[0][1]:
            values = sorted({row[name] for _, row in rows})
            if len(values) > 1 and not all(map(_is_number, values)):
                problem = f"{len(rows)} rows for {kind} of {nbytes} bytes on {ranks} ranks differ in {name}"
                choose = f"choose one, with where: {{{name}: {values[0]}}}"
                raise InputError(f"{path}: {problem}: {', '.join(values[:6])}; {choose}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class MeasuredTable:
    """Collectives take what a table of measured times says.

    Parameters
    ----------
    file : str
        A CSV file, such as the output of nccl-tests.
    columns : mapping, optional
        Which column is the ``op``, the number of ``ranks``, the size in ``bytes`` or in ``elements``, the
        ``dtype``, ``time_us`` or ``time_ms``; for those whose names are not known.
    where : mapping, optional
        Column -> the value that a row must have to count.
    dtype : str, optional
        Which of several types.
    beyond : str
        What larger sizes than the largest do: ``refuse``, or keep its ``bandwidth``.
    origin : Origin
        Where a relative path begins.
    """

    file: str
    columns: dict[str, str] | None = None
    where: dict[str, str] | None = None
    dtype: str | None = None
    beyond: Literal["refuse", "bandwidth"] = "refuse"
    origin: Origin = NOWHERE
    _measured: Measurements = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read the file."""
        read = read_measurements(self.origin.file(self.file), self.columns, self.where, self.dtype)
        object.__setattr__(self, "_measured", read)

    def time_ns(self, call: Call, machine: Machine) -> int:
        """Return the ns that a call takes once all its ranks are there."""
        if len(call.ranks) == 1:
            return 0
        kind = "all_reduce" if call.kind == "barrier" else call.kind
        return round_half_up(1000 * self.time_us(kind, len(call.ranks), call.nbytes))

    def sizes(self, kind: str, ranks: int) -> Iterator[tuple[int, float]]:
        """Yield the sizes that were measured, and the us of each."""
        yield from self._measured.get((kind, ranks), ())

    def spans(self, kind: str, ranks: int, nbytes: int) -> bool:
        """Return whether a size was measured, or lies between two that were."""
        points = self._measured.get((kind, ranks))
        return points is not None and points[0][0] <= nbytes <= points[-1][0]

    def time_us(self, kind: str, ranks: int, nbytes: int) -> float:
        """Return the us of a size that was measured, or lies between two that were.

        Raises
        ------
        InputError
            No such kind or number of ranks, or more bytes than were measured.
        """
        points = self._measured.get((kind, ranks))
        if points is None:
            kinds = sorted({one for one, _ in self._measured})
            if kind not in kinds:
                raise InputError(f"{self.file} has no {kind}; it has {', '.join(kinds)}")
            numbers = ", ".join(str(n) for one, n in sorted(self._measured) if one == kind)
            raise InputError(f"{self.file} has no {kind} on {ranks} ranks; it has those on {numbers}")
        k = bisect_left(points, nbytes, key=itemgetter(0))
        if k == len(points):
            largest, us = points[-1]
            if self.beyond == "bandwidth" and largest:
                return us * nbytes / largest
            advice = "; beyond: bandwidth keeps the bandwidth of the largest" if largest else ""
            raise InputError(
                f"the largest {kind} on {ranks} ranks in {self.file} has {format_bytes(largest)}, and this "
                f"one {format_bytes(nbytes)}{advice}"
            )
        if k == 0 or points[k][0] == nbytes:
            return points[k][1]
        (low, us), (high, more_us) = points[k - 1], points[k]
        if low == 0:
            return us + (more_us - us) * nbytes / high
        share = (log(nbytes) - log(low)) / (log(high) - log(low))
        return exp(log(us) + share * (log(more_us) - log(us)))
