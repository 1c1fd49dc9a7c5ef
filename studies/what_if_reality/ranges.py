"""What the host did inside named ranges of a trace, such as the data loader's: a what-if without it.

::

    thread   ──[enumerate(DataLoader)#...__next__   ]──[launch]──[launch]
    host op   [ host.7, from the last call to this one ]

    without   [      ]──[launch]──[launch]

Profilers note ranges as operators or annotations of a thread. A host op lasts since the call before it, so
that a range is a part of it.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from scenarios.importers.files import items
from scenarios.importers.kineto.kineto_events import read_events
from sim import Graph
from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.base.files import StrPath
from sim.base.intervals import union
from sim.base.units import round_half_up

_NOTES: Final = frozenset({"operator", "cpu_op", "user_annotation"})


def ranges_of(path: StrPath, name: str) -> tuple[IntArray, IntArray]:
    """Return begin and end of the ranges whose names contain a text, in ns from the first call, in order.

    Raises
    ------
    InputError
        There is none.
    """
    found = [
        (event["ts"], Fraction(event["ts"]) + Fraction(event["dur"]))
        for event in items(path, "a trace", "traceEvents", {})
        if event.get("ph") == "X"
        and str(event.get("cat", "")).lower() in _NOTES
        and name in str(event.get("name"))
    ]
    if not found:
        raise InputError(f"{path}: no range of the host is called *{name}*")
    begin_ns = read_events(path)[0].begin_ns
    ns = np.array([[round_half_up(1000 * Fraction(us)) - begin_ns for us in each] for each in found])
    alone = union(ns[:, 0], ns[:, 1], np.zeros(len(ns), np.int64))
    return alone.start, alone.end


def without(graph: Graph, start: IntArray, end: IntArray) -> Graph:
    """Return the graph of a recording whose host does nothing in ranges, which are apart and in order."""
    ns = graph.duration_ns.copy()
    for op, own in graph.attributes.items():
        if "thread" in own and "recorded_start_ns" in own:
            begin = int(own["recorded_start_ns"])
            inside = np.minimum(end, begin + int(ns[op])) - np.maximum(start, begin)
            ns[op] -= int(np.maximum(inside, 0).sum())
    return replace(graph, duration_ns=ns)
