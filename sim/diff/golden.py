"""A run against a table of the ops of an earlier one: what changed, and the first op that moved, in one line.

::

    the makespan is 80 us, not 50 us; of 4 ops in both 2 start at another time; the first to move is 'c',
    which starts at 40 us, not 0 ns: in this run at 0 ns 'c' is ready and an issuer is free, but in-order runs
    'b' first
"""

from __future__ import annotations

import numpy as np

from sim.diff.differences import Differences, differences
from sim.diff.ops_table import read_ops_table, runs_in, schedule_of_table
from sim.diff.schedule import schedule_of
from sim.diff.why import told_apart, why_first_moved
from sim.files.reading import StrPath
from sim.record.record import Record

__all__ = ["against_table"]


def against_table(trace: Record, path: StrPath, policy: str | None = None) -> str:
    """Say what differs between a run and the table of an earlier one; empty if nothing does.

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
    return "" if d.same else "; ".join([*_counts(d), *_first(d, golden.title)])


def _counts(d: Differences) -> list[str]:
    makespan = told_apart(d.b.makespan_ns, d.a.makespan_ns)
    found = [f"the makespan is {makespan[0]}, not {makespan[1]}"] * (d.b.makespan_ns != d.a.makespan_ns)
    changes = [
        (int(d.moved.sum()), "start at another time"),
        (int(d.resized.sum()), "last longer or shorter"),
        (int(d.relaned.sum()), "run on another lane"),
        (len(d.only_b), "are new"),
        (len(d.only_a), "are gone"),
    ]
    told = ", ".join(f"{n:,} {what}" for n, what in changes if n)
    return [*found, *([f"of {len(d.pairs.a):,} ops in both {told}"] if told else [])]


def _first(d: Differences, golden: str) -> list[str]:
    """Name the first op that moved, and why; if none has, what lasts longer, or is in one of them only."""
    why = why_first_moved(d, (golden, "this run"))
    if why is not None:
        now, then = told_apart(int(d.b.start_ns[why.b]), int(d.a.start_ns[why.a]))
        told = f"the first to move is {d.b.name_of(why.b)}, which starts at {now}, not {then}"
        return [f"{told}: {'; '.join(why.chain)}" if why.chain else told]
    if d.resized.any():
        k = d.kinds(1)[0].most
        a, b = int(d.pairs.a[k]), int(d.pairs.b[k])
        now, then = told_apart(int(d.b.lasted_ns[b]), int(d.a.lasted_ns[a]))
        return [f"{d.b.name_of(b)} lasts {now}, not {then}"]
    one = [
        f"{schedule.name_of(int(only[0]))} is {what}"
        for schedule, only, what in ((d.b, d.only_b, "new"), (d.a, d.only_a, "gone"))
        if len(only)
    ]
    lanes = np.flatnonzero(d.relaned)
    if not one and len(lanes):
        a, b = int(d.pairs.a[lanes[0]]), int(d.pairs.b[lanes[0]])
        one = [f"{d.b.name_of(b)} runs on {d.b.lane_of(b)}, not {d.a.lane_of(a)}"]
    return one
