"""A run against a table of the ops of an earlier one: what changed, and the first op that moved.

::

    the makespan is 80 us, not 50 us
    of 4 ops in both 2 start at another time
    the first to move is 'c', which starts at 40 us, not 0 ns:
      in this run at 0 ns 'c' is ready and an issuer is free, but in-order runs 'b' first
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from sim.diff.differences import Differences, differences
from sim.diff.ops_table import read_ops_table, runs_in, schedule_of_table
from sim.diff.schedule import schedule_of
from sim.diff.why import told_apart, why_first_moved
from sim.files.reading import StrPath
from sim.record.record import Record

__all__ = ["against_table"]

_MOST: Final = 5
"""Names of ops that are new or gone."""


def against_table(trace: Record, path: StrPath, policy: str | None = None) -> list[str]:
    """Say what differs between a run and the table of an earlier one, a line each; no line if nothing does.

    Parameters
    ----------
    trace : Trace
    path : path
        A table that `sim run --ops` wrote.
    policy : str, optional
        What the run is called. If the table has several runs, it is the one of that name.

    Raises
    ------
    InputError
        There is no such file, it is no table of ops, or it holds several runs, and none of that name.
    """
    table = read_ops_table(path)
    several = len(runs_in(table)) > 1
    golden = schedule_of_table(path, table, policy if several else None)
    d = differences(golden, schedule_of(trace, "", policy=policy))
    return [] if d.same else [*_counts(d), *_first(d, Path(path).name)]


def _counts(d: Differences) -> list[str]:
    makespan = told_apart(d.b.makespan_ns, d.a.makespan_ns)
    found = [f"the makespan is {makespan[0]}, not {makespan[1]}"] * (d.b.makespan_ns != d.a.makespan_ns)
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
    """Name the first op that moved, and why; if none has, what lasts longer or runs elsewhere."""
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
