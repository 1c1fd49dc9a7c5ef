"""Which op ran where and when: the common form of a run, a recording and a table of ops.

::

    Trace ──schedule_of──► Schedule ◄── columns of a table (no edges, so less is known of causes)
                               │
                               └──► sim.diff.differences
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from sim.base.arrays import BoolArray, Codes, IntArray
from sim.base.intervals import union
from sim.explain.derived import DerivedColumns
from sim.record.record import Record

TRANSFER: Final = "transfer"
"""Kind of a row that is not an op."""

FILLERS: Final = ("before", "delay")
"""Kinds of op that importers insert for gaps in a recording; they were not recorded."""

_NUMBER: Final = re.compile(r"\.\d+$")


@dataclass(frozen=True)
class RowNotes:
    """Further columns of a table of ops, besides its times.

    Attributes
    ----------
    ready_ns, issue_ns : array of int64
    wait : sequence of str
        One of `sim.record.record.WAITS` per row.
    issuer : sequence of str
        The issuer of each row; empty if the table does not give it.
    """

    ready_ns: IntArray
    issue_ns: IntArray
    wait: Sequence[str]
    issuer: Sequence[str]


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
    facts : DerivedColumns, optional
        Derived columns of its trace, with the same rows (transfers after tasks).
    told : RowNotes, optional
        The notes of a table, if there is no trace.
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
    facts: DerivedColumns | None = None
    told: RowNotes | None = None
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
        if self.facts is None:
            return None
        graph = self.facts.job.graph
        known = {op: str(value) for op, value in graph.attribute(key).items()}
        if not known:
            return None
        found = []
        for row, op in enumerate(self.facts.trace.tasks["op"].tolist()):
            own = known.get(op)
            if own is None:
                launched = (known[each] for each in graph.successors.row(op).tolist() if each in known)
                own = f"{self.labels[row]} {next(launched, '')}"
            found.append(f"{self.kind_of(row)} {own}")
        return found + self.labels[len(found) :]

    @cached_property
    def numbered(self) -> bool:
        """Whether names number the events of one recording, so that another recording has other names."""
        rows = np.flatnonzero(self.compared).tolist()
        found = sum(self.names[row] != self.labels[row] for row in rows)
        return bool(rows) and 10 * found >= 9 * len(rows)


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
    graph, machine, tasks, moved = trace.job.graph, trace.job.machine, trace.tasks, trace.transfers
    op, n_moved = tasks["op"], len(moved["id"])
    devices = [device.name for device in machine.devices]
    lanes, lane = trace.lanes
    none = np.full(n_moved, -1)
    names = [graph.op_names[each] for each in op.tolist()]
    names += [graph.tensor_name(t) for t in moved["tensor"].tolist()]
    ends = (moved[end].tolist() for end in ("source", "destination"))
    ways = {len(op) + k: f"{devices[a]}→{devices[b]}" for k, (a, b) in enumerate(zip(*ends, strict=True))}
    compared = np.concatenate((trace.executed & ~graph.is_kind(*FILLERS)[op], np.ones(n_moved, bool)))
    tensor, source, destination = (graph.attribute(key) for key in ("tensor", "source", "destination"))
    for row in np.flatnonzero(graph.is_kind(TRANSFER)[op]).tolist():  # of a simulation's trace that was read
        each = int(op[row])
        if each in tensor.keys() & source.keys() & destination.keys():
            names[row], ways[row] = tensor[each], f"{source[each]}→{destination[each]}"
        else:
            compared[row] &= not recorded  # another link that the same transfer crosses
    kinds = list(dict.fromkeys((*graph.kinds, TRANSFER)))
    lane = np.concatenate((lane, none))
    numbers = Codes[str]()
    lane[list(ways)] = len(lanes) + numbers.of(ways.values())
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
        np.concatenate((trace.begins_ns, moved["start_ns"])),
        trace.of_rows("end_ns"),
        compared,
        trace.makespan_ns,
        DerivedColumns(trace, policy, recorded),
        None,
        recorded,
        [trace.frames[code] for code in trace.of_rows("frame").tolist()] if "frame" in tasks else (),
    )
