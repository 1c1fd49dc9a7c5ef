"""Which transfers use which link."""

from __future__ import annotations

import numpy as np

from sim.record.record import Record
from sim.words.arrays import IntArray

__all__ = ["transfers_on_links"]


def transfers_on_links(trace: Record) -> tuple[IntArray, IntArray]:
    """Return (row of the transfer, link) for every link that a transfer crosses, by link, then row."""
    machine = trace.job.machine
    pair = trace.transfers["source"] * len(machine.devices) + trace.transfers["destination"]
    rows, links = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for p in sorted(set(pair.tolist())):
        mine = np.flatnonzero(pair == p)
        for k in machine.route(*divmod(p, len(machine.devices))):
            rows.append(mine)
            links.append(np.full(len(mine), k))
    row, link = np.concatenate(rows), np.concatenate(links)
    order = np.lexsort((row, link))
    return row[order], link[order]
