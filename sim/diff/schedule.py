"""Which op ran where and when: the common form of a run, a recording and a table of ops.

::

    Trace ──schedule_of──► OpSchedule ◄──schedule_of_table── a table (no edges, so less is known of causes)
                               │
                               └──► sim.diff.differences
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sim.base.arrays import LATEST_NS, UNSET, BoolArray, Codes, IntArray
from sim.base.errors import InputError, UnknownNameError, extra, hint
from sim.base.files import StrPath, loads_once, read_bytes
from sim.base.intervals import union
from sim.base.units import format_count
from sim.explain.derived import DerivedColumns
from sim.export.tables import text_of_csv
from sim.record.record import Record

if TYPE_CHECKING:
    import pandas as pd

TRANSFER: Final = "transfer"
"""Kind of a row that is not an op."""

FILLERS: Final = ("before", "delay")
"""Kinds of op that importers insert for gaps in a recording; they were not recorded."""

UNEXPLAINED: Final = "unexplained"
"""In a recording: no recorded reason held the op up any more."""

_NUMBER: Final = re.compile(r"\.\d+$")


@dataclass(frozen=True, eq=False)
class OpSchedule:
    """A schedule: one row for each task and transfer.

    Attributes
    ----------
    title : str
        The title of the schedule.
    names : sequence of str
        The op of each row; for a transfer, its tensor.
    kinds, devices, lanes : sequence of str
        Vocabularies of the next three. The lane of a transfer is ``gpu0→gpu1``.
    kind, device, lane : array of int64
        Codes; a transfer has no device (-1).
    iteration : array of int64
    start_ns, begin_ns, end_ns : array of int64
        A collective starts, and begins once its ranks have met.
    compared : array of bool
        Whether the row executed and is not a filler.
    makespan_ns : int
    derived : DerivedColumns, optional
        Derived columns of its trace, with the same rows (transfers after tasks).
    table_columns : mapping of str to sequence, optional
        Further columns of a table, if there is no trace: ``ready_ns``, ``issue_ns``, ``wait`` (one of
        `sim.record.record.WAITS` per row) and ``issuer`` (empty if the table does not give it).
    recorded : bool
        Whether the times were recorded rather than computed.
    frames : sequence of str
        The loops and iterations of each row, empty outside all loops; without control flow none at all.
    """

    title: str
    names: Sequence[str]
    kinds: Sequence[str]
    kind: IntArray
    devices: Sequence[str]
    device: IntArray
    lanes: Sequence[str]
    lane: IntArray
    iteration: IntArray
    start_ns: IntArray
    begin_ns: IntArray
    end_ns: IntArray
    compared: BoolArray
    makespan_ns: int
    derived: DerivedColumns | None = None
    table_columns: Mapping[str, Sequence[Any] | IntArray] | None = None
    recorded: bool = False
    frames: Sequence[str] = ()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.start_ns)

    @cached_property
    def lasted_ns(self) -> IntArray:
        """Duration of each row, without waiting for other ranks."""
        return self.end_ns - self.begin_ns

    @cached_property
    def busy_ns(self) -> IntArray:
        """Total time in which some op ran on each device, without fillers and waits for ranks."""
        rows = np.flatnonzero(self.compared & (self.device >= 0))
        return union(self.begin_ns[rows], self.end_ns[rows], self.device[rows]).lengths(len(self.devices))

    def kind_of(self, row: int) -> str:
        """Return the kind of a row."""
        return self.kinds[int(self.kind[row])]

    def lane_of(self, row: int) -> str:
        """Return the name of a row's lane."""
        return self.lanes[int(self.lane[row])]

    def count_text(self, rows: IntArray) -> str:
        """Return how many of the rows are ops and how many transfers, as in "3 ops and 1 transfer"."""
        transfers = int((self.device[rows] == UNSET).sum())
        ops = format_count(len(rows) - transfers, "op")
        return f"{ops} and {format_count(transfers, 'transfer')}" if transfers else ops

    def frame_of(self, row: int) -> str:
        """Return the loops and iterations in which a row ran."""
        return self.frames[row] if self.frames else ""

    def name_of(self, row: int) -> str:
        """Return the name of a row in sentences.

        Examples
        --------
        ``'conv'``, ``'conv'[2]`` of the third iteration, ``the transfer of 'x' (gpu0→gpu1)``.
        """
        again = f"[{int(self.iteration[row])}]" if self.iterations > 1 else ""
        name = f"{self.names[row]!r}{again}" + (f" in {frame}" if (frame := self.frame_of(row)) else "")
        if self.kind_of(row) == TRANSFER:
            return f"the transfer of {name} ({self.lane_of(row)})"
        return name

    @cached_property
    def iterations(self) -> int:
        """The number of iterations."""
        return int(self.iteration.max(initial=0)) + 1

    @cached_property
    def labels(self) -> list[str]:
        """Name of each row without the number that an importer gave it: ``gemm`` for ``gemm.17``."""
        return [_NUMBER.sub("", name) for name in self.names]

    def labels_by(self, key: str) -> list[str] | None:
        """Like `labels`, but by an attribute of kernels, also of launched kernels; None if there are none."""
        if self.derived is None:
            return None
        graph = self.derived.job.graph
        values = {op: str(value) for op, value in graph.attribute(key).items()}
        if not values:
            return None
        labels = []
        for row, op in enumerate(self.derived.trace.tasks["op"].tolist()):
            label = values.get(op)
            if label is None:
                launched = (values[k] for k in graph.successors.row(op).tolist() if k in values)
                label = f"{self.labels[row]} {next(launched, '')}"
            labels.append(f"{self.kind_of(row)} {label}")
        return labels + self.labels[len(labels) :]

    @cached_property
    def numbered(self) -> bool:
        """Whether names number the events of one recording, so that another recording has other names."""
        rows = np.flatnonzero(self.compared).tolist()
        count = sum(self.names[row] != self.labels[row] for row in rows)
        return bool(rows) and 10 * count >= 9 * len(rows)


def schedule_of(
    trace: Record, title: str, *, policy: str | None = None, recorded: bool = False
) -> OpSchedule:
    """Return the schedule of a run.

    Parameters
    ----------
    trace : Trace
    title : str
        The title of the schedule.
    policy : str, optional
        The policy's name in sentences; default: the name of its class.
    recorded : bool
        Whether the times were recorded.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=5)
    >>> schedule = schedule_of(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()), "A")
    >>> schedule.name_of(0), schedule.lane_of(0), schedule.end_ns.tolist()
    ("'a'", 'gpu0/0', [5])
    """
    graph, machine, tasks, transfers = trace.job.graph, trace.job.machine, trace.tasks, trace.transfers
    op, n_moved = tasks["op"], len(transfers["id"])
    devices = [device.name for device in machine.devices]
    lanes, lane = trace.lanes
    none = np.full(n_moved, -1)
    names = [graph.op_names[index] for index in op.tolist()]
    names += [graph.tensor_name(t) for t in transfers["tensor"].tolist()]
    ends = (transfers[end].tolist() for end in ("source", "destination"))
    routes = {len(op) + k: f"{devices[a]}→{devices[b]}" for k, (a, b) in enumerate(zip(*ends, strict=True))}
    compared = np.concatenate((trace.executed & ~graph.is_kind(*FILLERS)[op], np.ones(n_moved, bool)))
    tensor, source, destination = (graph.attribute(key) for key in ("tensor", "source", "destination"))
    for row in np.flatnonzero(graph.is_kind(TRANSFER)[op]).tolist():  # of a simulation's trace that was read
        index = int(op[row])
        if index in tensor.keys() & source.keys() & destination.keys():
            names[row], routes[row] = tensor[index], f"{source[index]}→{destination[index]}"
        else:
            compared[row] &= not recorded  # another link that the same transfer crosses
    kinds = list(dict.fromkeys((*graph.kinds, TRANSFER)))
    lane = np.concatenate((lane, none))
    numbers = Codes[str]()
    lane[list(routes)] = len(lanes) + numbers.of(routes.values())
    return OpSchedule(
        title,
        names,
        kinds,
        np.concatenate((graph.kind_code[op], np.full(n_moved, kinds.index(TRANSFER)))),
        devices,
        np.concatenate((trace.device, none)),
        [*lanes, *numbers],
        lane,
        trace.of_rows("iteration"),
        trace.of_rows("start_ns"),
        np.concatenate((trace.begins_ns, transfers["start_ns"])),
        trace.of_rows("end_ns"),
        compared,
        trace.makespan_ns,
        DerivedColumns(trace, policy, recorded),
        None,
        recorded,
        [trace.frames[code] for code in trace.of_rows("frame").tolist()] if "frame" in tasks else (),
    )


# ----------------------------------------------------------------------------------------------------------
# Tables of ops, as written by `sim run --ops`.
#
# A table needs ``op``, ``start_ns`` and ``end_ns``; the other columns of `sim.export.tables.task_table` are
# optional. A table of several runs has a column ``policy``, which gives the run of each row.

_NEEDED: Final = ("op", "start_ns", "end_ns")


def read_ops_table(path: StrPath) -> pd.DataFrame:
    """Read a table of ops.

    Parameters
    ----------
    path : path
        ``.csv``, ``.json`` (a list of rows), either gzipped, or ``.parquet``.

    Raises
    ------
    InputError
        No such file, not a table, a missing column, or a time that is not a whole number.
    MissingExtraError
        Parquet without pyarrow.
    """
    import pandas as pd

    content = read_bytes(path)
    name = os.fspath(path).lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        with extra("parquet", "reading Parquet files"):
            import pyarrow  # noqa: F401
    try:
        if name.endswith(".parquet"):
            table = pd.read_parquet(io.BytesIO(content), engine="pyarrow")
        elif name.endswith(".csv"):
            table = pd.read_csv(io.BytesIO(content), keep_default_na=False, dtype=str)
            if b"'" in content or b"\\u00" in content:  # otherwise no row needs unescaping
                table = table.map(text_of_csv)
        else:
            table = pd.DataFrame(loads_once(content))
    except Exception as error:  # each of the three readers raises errors of its own
        reason = " ".join(f"{error}".split())[:200]
        raise InputError(f"{path}: no table of ops, as `sim run --ops` writes one ({reason})") from None
    for column in _NEEDED:
        if column not in table.columns:
            raise InputError(
                f"{path}: no column {column!r}; a table of ops has op, start_ns and end_ns"
                f"{hint(column, [str(present) for present in table.columns])}"
            )
    if doubled := [column for column in table.columns if f"{column}.1" in table.columns]:  # as pandas reads
        raise InputError(f"{path}: the column {doubled[0]!r} stands twice")
    if not len(table):
        raise InputError(f"{path}: a table without rows")
    for column in ("start_ns", "end_ns"):
        table[column] = _integers(path, table, column)
    wrong = np.flatnonzero((table["start_ns"] < 0) | (table["end_ns"] < table["start_ns"]))
    if len(wrong):
        row = int(wrong[0])
        op, start, end = (table[name].iloc[row] for name in _NEEDED)
        raise InputError(f"{path}: row {row + 1} ({op}) starts at {start} ns and ends at {end} ns")
    return table


def runs_in(table: pd.DataFrame) -> list[str]:
    """Return the policies of the runs in a table, in order; empty if it holds one unnamed run."""
    return [] if "policy" not in table.columns else [str(name) for name in dict.fromkeys(table["policy"])]


def schedule_of_table(path: StrPath, table: pd.DataFrame, policy: str | None = None) -> OpSchedule:
    """Return the schedule of the only run in a table, or of the named one.

    Raises
    ------
    InputError
        It holds several runs and none is named, or not the named one.
    """
    runs = runs_in(table)
    if policy is not None and policy not in runs:
        if not runs:
            raise InputError(f"--policy {policy}: {path} holds one run, and does not name its policy")
        raise UnknownNameError(f"run in {path}", policy, runs)
    if policy is None and len(runs) > 1:
        raise InputError(f"{path}: holds runs of {', '.join(runs)}; name one with --policy")
    if runs:
        table = table[table["policy"].astype(str) == (policy or runs[0])]
    n = len(table)
    kinds, kind = _codes(_column(table, "kind", "op"))
    moves = np.zeros(n, bool) if TRANSFER not in kinds else kind == kinds.index(TRANSFER)
    ends = zip(_column(table, "source"), _column(table, "destination"), strict=True)
    rows = zip(moves.tolist(), ends, _column(table, "stream", "?"), strict=True)
    lanes, lane = _codes(["→".join(between) if is_move else stream for is_move, between, stream in rows])
    devices, device = _codes(_column(table, "device", "?"))
    start, end = table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
    iteration = _integers(path, table, "iteration") if "iteration" in table.columns else np.zeros(n, np.int64)
    columns: dict[str, Sequence[Any] | IntArray] | None = None
    if {"ready_ns", "issue_ns", "wait"} <= set(table.columns):
        ready, issue = (_integers(path, table, column) for column in ("ready_ns", "issue_ns"))
        words = {column: _column(table, column) for column in ("wait", "issuer")}
        columns = {"ready_ns": ready, "issue_ns": issue, **words}
    dead = np.array([text in ("True", "true", "1") for text in _column(table, "dead")])
    fills = np.isin(kind, [k for k, word in enumerate(kinds) if word in FILLERS])
    compared: BoolArray = ~(dead & (end == start)) & ~fills
    if any(moves):  # a transfer is on no device
        keep = np.unique(device[~moves]).tolist()
        device = np.where(moves, -1, np.searchsorted(keep, device))
        devices = [devices[d] for d in keep]
    return OpSchedule(
        title=f"{os.path.basename(os.fspath(path))}" + (f": {policy}" if policy else ""),
        names=_column(table, "op"),
        kinds=kinds,
        kind=kind,
        devices=devices,
        device=device,
        lanes=lanes,
        lane=lane,
        iteration=iteration,
        start_ns=start,
        begin_ns=start,
        end_ns=end,
        compared=compared,
        makespan_ns=int(end.max()),
        table_columns=columns,
        frames=_column(table, "frame"),
    )


def _column(table: pd.DataFrame, name: str, missing: str = "") -> list[str]:
    """Return a column as text, with `missing` for absent values."""
    if name not in table.columns:
        return [missing] * len(table)
    column = table[name].astype(object)
    texts: list[str] = column.where(column.notna() & (column != ""), missing).map(str).tolist()
    return texts


def _codes(values: list[str]) -> tuple[list[str], IntArray]:
    """Return the distinct values in order of first use, and the index of each value."""
    numbers = Codes[str]()
    code = numbers.of(values)
    return list(numbers), code


def _integers(path: StrPath, table: pd.DataFrame, column: str) -> IntArray:
    """Return a column of whole numbers."""
    import pandas as pd

    number = pd.to_numeric(table[column], errors="coerce")
    whole = (number.abs() <= LATEST_NS) & (number % 1 == 0) & ((number >= 0) | column.endswith("_ns"))
    wrong = np.flatnonzero(~whole.fillna(False).to_numpy(bool))
    if len(wrong):
        row, value = int(wrong[0]), str(table[column].iloc[wrong[0]])
        fault = "no whole number" + (" of ns" if column.endswith("_ns") else " from 0 on")
        raise InputError(f"{path}: row {row + 1}: {column} is {value[:40]!r}, {fault}")
    return number.to_numpy(np.int64)
