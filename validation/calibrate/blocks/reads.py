"""What it costs a kernel of threads to read a result, where another reads a constant.

Constants are read by every op, so some cache has them; a result was written once, and is read once or twice.
A chain reads one result an op, so that is what the table of durations has; these three say what one more is::

    none   o0  o1  o2  o3 ...      one   o0 ─► o1 ─► o2 ─► ...      two   o0 ─► o1 ─► o2 ─► o3 ...
                                                                           └───────────┴──► (and o1 ─► o3)

On which core a result was made, and how long ago, makes less of a difference than one more.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from validation.calibrate.blocks.chains import block_case, spans_ns
from validation.calibrate.blocks.grid import DROPPED, LENGTH
from validation.calibrate.session import Samples, Session
from validation.cases.case import Case, CaseOp
from validation.real.work import Observation

__all__ = ["READ_SIZE", "reads"]

READ_SIZE: Final = 384
"""Rows and columns of the matrices that are read."""


def reads(session: Session) -> None:
    """Measure what one result more costs; it counts only if every clean round shows it."""
    facts = {"size": READ_SIZE, "repeat": 2}
    cases = []
    for k, name in enumerate(("none", "one", "two")):
        ops = [
            CaseOp(f"o{i}", "matmul", [f"o{j}" for j in range(max(0, i - k), i)], facts, "cpu0")
            for i in range(LENGTH)
        ]
        cases.append(block_case(name, ops, {"cpu0": {"workers": 1}}, policy={"name": "in-order"}))

    def read(case: Case, seen: Observation) -> Samples:
        return {case.name: spans_ns(seen)[DROPPED:].tolist()}

    rounds = [session.block("reads", cases, read) for _ in range(3)]
    one_ns = [float(np.median(found["two"]) - np.median(found["none"])) / 2 for found in rounds]
    session.keep({"read_ns": [float(np.median(one_ns)) if min(one_ns) > 0 else 0.0]})
