"""Idle stretches in words: the longest ones, and all of them by device and reason.

A gap is an idle stretch of a device; its sentence names the task that could have run first and what held
that task back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sim.explain.facts.derived_columns import Facts
from sim.explain.facts.where import EVERYWHERE, Where
from sim.explain.idle import REASONS, IdlePieces, idle_pieces
from sim.explain.told.sentences import blame
from sim.record.record import Record
from sim.words.arrays import UNSET, IntArray

__all__ = ["Gap", "GapGroup", "grouped_gaps", "largest_gaps"]


class Gap(NamedTuple):
    """An idle stretch of a device, its reason, and a sentence that names who is to blame."""

    device: str
    start_ns: int
    length_ns: int
    reason: str
    blame: str


class GapGroup(NamedTuple):
    """The idle stretches of a device, or of several that have the same ones, for one reason.

    Attributes
    ----------
    devices : tuple of str
    reason : str
    total_ns, times, median_ns : int
        Of each device.
    same : bool
        Whether all are equally long.
    longest : Gap
        On the first of these devices.
    """

    devices: tuple[str, ...]
    reason: str
    total_ns: int
    times: int
    median_ns: int
    same: bool
    longest: Gap


def largest_gaps(
    trace: Record, limit: int = 5, facts: Facts | None = None, where: Where = EVERYWHERE
) -> list[Gap]:
    """Return the longest idle stretches of the machine, longest first.

    Parameters
    ----------
    trace : Trace
    limit : int
        How many; stretches after a device's last task are left out.
    facts : Facts, optional
        Of this trace, when the caller has them already.
    where : Where
        What counts.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("ping")
    >>> _ = b.op("a", duration_ns=10, device="gpu0")
    >>> _ = b.op("b", duration_ns=7, device="gpu1", inputs=["a"])
    >>> trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue())
    >>> [(gap.device, gap.length_ns, gap.blame) for gap in largest_gaps(trace)]
    [('gpu1', 10, "'b' needs 'a', which runs on gpu0/0")]
    """
    f = facts or Facts(trace)
    pieces = idle_pieces(trace, f, where)
    real = np.flatnonzero(pieces.row != UNSET)
    longest = real[np.lexsort((pieces.start_ns[real], pieces.device[real], -pieces.length_ns[real]))][:limit]
    return [_gap(f, pieces, k) for k in longest.tolist()]


def grouped_gaps(facts: Facts, where: Where = EVERYWHERE) -> list[GapGroup]:
    """Return all idle stretches by reason and device, the largest total first.

    Devices that were idle for the same times, for the same reason, are told together, as the ranks of a
    job often are. Time after the last task of a device is left out.

    Parameters
    ----------
    facts : Facts
    where : Where
        What counts.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("three launches")
    >>> for name in "abc":
    ...     _ = b.op(name, duration_ns=10)
    >>> trace = simulate(b.build(), Machine((Device("gpu0", issue_ns=15),)), ReadyQueue())
    >>> for group in grouped_gaps(Facts(trace)):
    ...     print(group.devices, group.reason, group.total_ns, group.times, group.median_ns)
    ('gpu0',) issue 25 3 5
    """
    pieces = idle_pieces(facts.trace, facts, where)
    devices: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for here in _runs(pieces):
        same = (int(pieces.reason[here[0]]), tuple(np.sort(pieces.length_ns[here]).tolist()))
        devices.setdefault(same, []).append(int(here[pieces.length_ns[here].argmax()]))
    groups = [
        GapGroup(
            devices=tuple(facts.devices[int(pieces.device[k])].name for k in longest),
            reason=REASONS[reason],
            total_ns=sum(lengths),
            times=len(lengths),
            median_ns=lengths[len(lengths) // 2],
            same=lengths[0] == lengths[-1],
            longest=_gap(facts, pieces, longest[0]),
        )
        for (reason, lengths), longest in devices.items()
    ]
    return sorted(groups, key=lambda group: -group.total_ns * len(group.devices))


def _runs(pieces: IdlePieces) -> Iterator[IntArray]:
    """Yield the stretches of each device and reason."""
    real = np.flatnonzero(pieces.row != UNSET)
    order = real[np.lexsort((real, pieces.reason[real], pieces.device[real]))]
    key = pieces.device[order] * len(REASONS) + pieces.reason[order]
    if len(order):
        yield from np.split(order, np.flatnonzero(np.diff(key)) + 1)


def _gap(f: Facts, pieces: IdlePieces, k: int) -> Gap:
    device, start, length, code, row = (int(column[k]) for column in pieces)
    reason = REASONS[code]
    return Gap(f.devices[device].name, start, length, reason, blame(f, reason, row, start))
