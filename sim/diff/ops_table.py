"""Schedules from tables of ops, as written by `sim run --ops`.

A table needs ``op``, ``start_ns`` and ``end_ns``; the other columns of `sim.export.tables.task_table` are
optional. A table of several runs has a column ``policy``, which gives the run of each row.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from sim.base.arrays import LATEST_NS, BoolArray, Codes, IntArray
from sim.base.errors import InputError, UnknownNameError, extra, hint
from sim.base.files import StrPath, loads_once, read_bytes
from sim.diff.differences import Differences, differences
from sim.diff.propagated_delays import told_apart, why_first_moved
from sim.diff.schedule import FILLERS, TRANSFER, OpSchedule, RowNotes, schedule_of
from sim.export.tables import text_of_csv
from sim.record.record import Record

if TYPE_CHECKING:
    import pandas as pd


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
        what = " ".join(f"{error}".split())[:200]
        raise InputError(f"{path}: no table of ops, as `sim run --ops` writes one ({what})") from None
    for column in _NEEDED:
        if column not in table.columns:
            raise InputError(
                f"{path}: no column {column!r}; a table of ops has op, start_ns and end_ns"
                f"{hint(column, [str(each) for each in table.columns])}"
            )
    if twice := [column for column in table.columns if f"{column}.1" in table.columns]:  # as pandas reads it
        raise InputError(f"{path}: the column {twice[0]!r} stands twice")
    if not len(table):
        raise InputError(f"{path}: a table without rows")
    for column in ("start_ns", "end_ns"):
        table[column] = _whole(path, table, column)
    wrong = np.flatnonzero((table["start_ns"] < 0) | (table["end_ns"] < table["start_ns"]))
    if len(wrong):
        row = int(wrong[0])
        start, end = int(table["start_ns"].iloc[row]), int(table["end_ns"].iloc[row])
        raise InputError(
            f"{path}: row {row + 1} ({table['op'].iloc[row]}) starts at {start} ns and ends at {end} ns"
        )
    return table


def runs_in(table: pd.DataFrame) -> list[str]:
    """Return the policies of the runs in a table, in order; empty if it holds one unnamed run."""
    return [] if "policy" not in table.columns else [str(each) for each in dict.fromkeys(table["policy"])]


def has_run(path: StrPath, policy: str) -> bool:
    """Whether a table exists and holds one unnamed run, or a run of that name.

    Raises
    ------
    InputError
        The file is something else.
    """
    if not os.path.exists(path):
        return False
    runs = runs_in(read_ops_table(path))
    return not runs or policy in runs


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
    ways = zip(moves.tolist(), ends, _column(table, "stream", "?"), strict=True)
    lanes, lane = _codes(["→".join(between) if is_move else own for is_move, between, own in ways])
    devices, device = _codes(_column(table, "device", "?"))
    start, end = table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
    iteration = _whole(path, table, "iteration") if "iteration" in table.columns else np.zeros(n, np.int64)
    told = None
    if {"ready_ns", "issue_ns", "wait"} <= set(table.columns):
        ready, issue = (_whole(path, table, column) for column in ("ready_ns", "issue_ns"))
        told = RowNotes(ready, issue, _column(table, "wait"), _column(table, "issuer"))
    dead = np.array([each in ("True", "true", "1") for each in _column(table, "dead")])
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
        told=told,
        frames=_column(table, "frame"),
    )


def _column(table: pd.DataFrame, name: str, missing: str = "") -> list[str]:
    """Return a column as text, with `missing` for absent values."""
    if name not in table.columns:
        return [missing] * len(table)
    column = table[name].astype(object)
    found: list[str] = column.where(column.notna() & (column != ""), missing).map(str).tolist()
    return found


def _codes(values: list[str]) -> tuple[list[str], IntArray]:
    """Return the distinct values in order of first use, and the index of each value."""
    numbers = Codes[str]()
    code = numbers.of(values)
    return list(numbers), code


def _whole(path: StrPath, table: pd.DataFrame, column: str) -> IntArray:
    """Return a column of whole numbers."""
    import pandas as pd

    number = pd.to_numeric(table[column], errors="coerce")
    whole = (number.abs() <= LATEST_NS) & (number % 1 == 0) & ((number >= 0) | column.endswith("_ns"))
    wrong = np.flatnonzero(~whole.fillna(False).to_numpy(bool))
    if len(wrong):
        row, value = int(wrong[0]), str(table[column].iloc[wrong[0]])
        what = "no whole number" + (" of ns" if column.endswith("_ns") else " from 0 on")
        raise InputError(f"{path}: row {row + 1}: {column} is {value[:40]!r}, {what}")
    return number.to_numpy(np.int64)


# ----------------------------------------------------------------------------------------------------------
# Comparison of a run with a table of the ops of an earlier one: what changed, and the first op that moved.
#
#     the makespan is 80 us, not 50 us
#     of 4 ops in both 2 start at another time
#     the first to move is 'c', which starts at 40 us, not 0 ns:
#       in this run at 0 ns 'c' is ready and an issuer is free, but in-order runs 'b' first

_MOST: Final = 5
"""Maximum number of new or missing ops that are named."""


def against_table(trace: Record, path: StrPath, policy: str | None = None, *, over_ns: int = 0) -> list[str]:
    """Return the differences between a run and the table of an earlier one, as lines; empty if none.

    Parameters
    ----------
    trace : Trace
    path : path
        A table written by `sim run --ops`.
    policy : str, optional
        The name of the run. In a table of several runs, it selects the run of that name.
    over_ns : int
        Starts, durations and makespans that differ by no more count as equal.

    Raises
    ------
    InputError
        No such file, not a table of ops, or it holds several runs and none of that name.
    """
    table = read_ops_table(path)
    golden = schedule_of_table(path, table, policy if len(runs_in(table)) > 1 else None)
    d = differences(golden, schedule_of(trace, "", policy=policy), over_ns=over_ns)
    return [] if d.same else [*_counts(d), *_first(d, Path(path).name)]


def _counts(d: Differences) -> list[str]:
    makespan = told_apart(d.b.makespan_ns, d.a.makespan_ns)
    longer = abs(d.b.makespan_ns - d.a.makespan_ns) > d.over_ns
    found = [f"the makespan is {makespan[0]}, not {makespan[1]}"] * longer
    changes = [
        (int(d.moved.sum()), "starts", "start", " at another time"),
        (int(d.resized.sum()), "lasts", "last", " longer or shorter"),
        (int(d.relaned.sum()), "runs", "run", " on another lane"),
    ]
    told = ", ".join(f"{n:,} {one if n == 1 else many}{what}" for n, one, many, what in changes if n)
    found += [f"of {len(d.pairs.a):,} ops in both {told}"] if told else []
    for schedule, only, what in ((d.b, d.only_b, "new"), (d.a, d.only_a, "gone")):
        if len(only):
            names = ", ".join(schedule.name_of(row) for row in only[:_MOST].tolist())
            more = ", ..." if len(only) > _MOST else ""
            found.append(f"{_ops(len(only))} {what}: {names}{more}")
    return found


def _ops(n: int) -> str:
    return "1 op is" if n == 1 else f"{n:,} ops are"


def _first(d: Differences, golden: str) -> list[str]:
    """Return the first op that moved, and why; if none has, one that lasts longer or runs elsewhere."""
    why = why_first_moved(d, (golden, "this run"))
    if why is not None:
        now, then = told_apart(int(d.b.start_ns[why.b]), int(d.a.start_ns[why.a]))
        told = f"the first to move is {d.b.name_of(why.b)}, which starts at {now}, not {then}"
        return [told + ":" * bool(why.chain), *(f"  {line}" for line in why.chain)]
    if d.resized.any():
        k = d.kinds(1)[0].most
        a, b = int(d.pairs.a[k]), int(d.pairs.b[k])
        now, then = told_apart(int(d.b.lasted_ns[b]), int(d.a.lasted_ns[a]))
        return [f"{d.b.name_of(b)} lasts {now}, not {then}"]
    lanes = np.flatnonzero(d.relaned)
    if len(lanes):
        a, b = int(d.pairs.a[lanes[0]]), int(d.pairs.b[lanes[0]])
        return [f"{d.b.name_of(b)} runs on {d.b.lane_of(b)}, not {d.a.lane_of(a)}"]
    return []
