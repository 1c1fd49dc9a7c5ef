"""A table of ops that holds later runs to a schedule, written anew for one run.

::

    op,start_ns,...              policy,op,start_ns,...
    a,0,...                      gpipe,a,0,...             as `sim run --ops` writes one run, or several
                                 1f1b,a,0,...
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scenarios.expect.expectation import Run

__all__ = ["write_golden"]


def write_golden(path: Path, run: Run, holders: Sequence[str] = ()) -> None:
    """Write the schedule of a run into a table; what it says of other runs stays.

    Parameters
    ----------
    path : path
    run : Run
    holders : sequence of str
        All runs that are held to the table. If there are others, its rows say of which run they are.

    Raises
    ------
    InputError
        What is there is no table of ops, or nothing can be written there.
    """
    import pandas as pd

    from sim.diff.ops_table import read_ops_table, runs_in
    from sim.export.tables import write_table

    others = [label for label in holders if label != run.policy]
    tables: dict[str, pd.DataFrame] = {}
    if path.exists():
        old = read_ops_table(path)
        runs = runs_in(old)
        tables = dict.fromkeys(others, old)  # a table of one run has held all of them
        if runs:
            tables = {label: old[old["policy"].astype(str) == label] for label in runs}
    rows = run.trace.to_pandas(transfers=True)
    tables[run.policy] = rows
    if others or len(tables) > 1:
        for label, table in tables.items():
            tables[label] = table.drop(columns="policy", errors="ignore").copy()
            tables[label].insert(0, "policy", label)
        rows = pd.concat(tables.values(), ignore_index=True)
    write_table(rows, path)
