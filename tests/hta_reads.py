"""What Holistic Trace Analysis says of folders of traces: a script for an environment that has it.

    python tests/hta_reads.py FOLDER ... > answers.json

It is a program of its own because what it needs (a pandas, a Jupyter) is its own business. HTA rounds times
to whole µs unless HTA_DISABLE_NS_ROUNDING is 1; with it, its µs are floats of whole ns.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

DELAY_US = 0.005
"""Shorter gaps of a stream HTA calls the launches of kernels."""


def ns(us: float) -> int:
    """Return whole ns; HTA's sums of floats are off by less than a thousandth."""
    found = round(1000 * us)
    assert abs(1000 * us - found) < 1e-3, us
    return found


def answers(folder: str) -> dict[str, Any]:
    """Return temporal breakdown, overlap and idle time of the streams of each rank, in ns."""
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_dir=folder)
    times = ("idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)")
    table = analysis.get_temporal_breakdown(visualize=False).sort_values("rank")
    found = {
        str(int(row["rank"])): {name.removesuffix("_time(us)"): ns(row[name]) for name in times}
        for _, row in table.iterrows()
    }
    for _, row in analysis.get_comm_comp_overlap(visualize=False).iterrows():
        percent = row["comp_comm_overlap_pctg"]
        found[str(int(row["rank"]))]["overlap"] = None if percent != percent else percent
    for rank in analysis.t.get_ranks():
        table, _ = BreakdownAnalysis.get_idle_time_breakdown(analysis.t, DELAY_US, rank=rank, visualize=False)
        found[str(rank)]["streams"] = {
            f"{row['stream']} {row['idle_category']}": row["idle_time"] for _, row in table.iterrows()
        }
    return found


if __name__ == "__main__":
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    with contextlib.redirect_stdout(sys.stderr):
        read = {os.path.basename(os.path.normpath(folder)): answers(folder) for folder in sys.argv[1:]}
    print(json.dumps(read, indent=1, sort_keys=True))
