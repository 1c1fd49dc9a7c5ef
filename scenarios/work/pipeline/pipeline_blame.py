"""Whom a rank waits for: every idle moment inside its span, put down to what was running meanwhile.

::

    rank 0   F4 ┊····idle····┊ B0       B0 waits for the gradient of 1B0,
    rank 1      ┊   ┌─ 1B0 ─┐┊          which ran for a part of that time: stage 1's share,
    rank 2      ┊2B0┘        ┊          and waited for 2B0 before: stage 2's share

The chain is followed back from the slot that a rank does next to whatever ended last of what it needed (an
input, its way here, the slot before it on its own rank), until the beginning of the gap. A slow stage or a
slow link is thus named by every rank that stands still because of it, however far away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from policies.pipeline import PHASES
from sim.explain.facts.derived_columns import Facts
from sim.trace import Trace

__all__ = ["is_compute", "waits_for"]


def waits_for(trace: Trace, devices: Sequence[str]) -> list[dict[str, int]]:
    """Return, for each rank, the ns it stood still inside its span by what ran meanwhile, most first.

    Causes are ``stage 2``, ``transfer rank0<->rank1`` (either way), the kind of an op that is no slot, and
    ``launch`` where nothing ran: launch latency, or the cost of issuing.
    """
    facts = Facts(trace)
    numbers = [trace.job.machine.device_index(name) for name in devices]
    walk = _Walk(facts)
    kinds = facts.job.graph.kinds
    slots = np.array([is_compute(kind) for kind in kinds])[facts.job.graph.kind_code[trace.tasks["op"]]]
    rows = np.lexsort((facts.start, facts.device))
    rows = rows[slots[rows]]
    device, start, end = facts.device[rows], facts.start[rows], facts.end[rows]
    found: list[dict[str, int]] = []
    for number in numbers:
        mine = np.flatnonzero(device == number)
        over = np.maximum.accumulate(end[mine])
        gaps = np.flatnonzero(start[mine][1:] > over[:-1]) + 1
        blamed: Counter[str] = Counter()
        for k in gaps.tolist():
            walk.back(int(rows[mine[k]]), int(over[k - 1]), blamed)
        some = (item for item in blamed.items() if item[1])
        found.append(dict(sorted(some, key=lambda item: (-item[1], item[0]))))
    return found


def is_compute(kind: str) -> bool:
    """Whether an op of this kind is a slot of a program, and not a message, an update or a wait."""
    return all(phase in PHASES for phase in kind.split("+"))


class _Walk:
    """Columns as lists, and the walk back from one row."""

    def __init__(self, facts: Facts) -> None:
        moved = facts.trace.transfers
        self.start = np.concatenate((facts.start, moved["start_ns"])).tolist()
        self.end = facts.row_end.tolist()
        self.producer = facts.last_producer.tolist()
        self.before = np.concatenate((facts.before_on_lane, np.full(len(moved["start_ns"]), -1))).tolist()
        # What a row is called: the stage of a slot, the kind of another op, a pair of devices; as codes.
        graph, ops = facts.job.graph, facts.trace.tasks["op"]
        self.names = [f"stage {stage}" for stage in range(int(graph.stage.max(initial=-1)) + 1)]
        slots = np.array([is_compute(kind) for kind in graph.kinds])[graph.kind_code[ops]]
        task = np.where(slots, graph.stage[ops], len(self.names) + graph.kind_code[ops])
        self.names += graph.kinds
        pair = np.minimum(moved["source"], moved["destination"]) * len(facts.devices)
        pairs, which = np.unique(
            pair + np.maximum(moved["source"], moved["destination"]), return_inverse=True
        )
        self.label = np.concatenate((task, len(self.names) + which)).tolist()
        called = [device.name for device in facts.devices]
        for a, b in zip(*(column.tolist() for column in np.divmod(pairs, len(called))), strict=True):
            self.names.append(f"transfer {called[a]}<->{called[b]}")

    def back(self, row: int, until_ns: int, blamed: Counter[str]) -> None:
        """Put the time from `until_ns` to the start of `row` down to what it waited for."""
        at = self.start[row]
        while at > until_ns:
            input_, lane = self.producer[row], self.before[row]
            cause = lane if input_ < 0 or (lane >= 0 and self.end[lane] > self.end[input_]) else input_
            over = self.end[cause] if cause >= 0 else until_ns
            if over < at:
                blamed["launch"] += at - max(over, until_ns)
                at = over
            if cause < 0 or at <= until_ns:
                return
            since = max(self.start[cause], until_ns)
            blamed[self.names[self.label[cause]]] += at - since
            at, row = since, cause
