"""Which transfers use which link."""

from __future__ import annotations

import numpy as np

from sim.graph.csr import Csr
from sim.record.record import Record
from sim.words.arrays import IntArray

__all__ = ["transfers_on_links"]


def transfers_on_links(trace: Record) -> tuple[IntArray, IntArray]:
    """Return (row of the transfer, link) for every link that a transfer crosses, by link, then row."""
    machine = trace.job.machine
    n = len(machine.devices)
    pairs, which = np.unique(
        trace.transfers["source"] * n + trace.transfers["destination"], return_inverse=True
    )
    used = Csr.of_rows([machine.route(*divmod(pair, n)) for pair in pairs.tolist()]).take(which)
    row, link = used.rows(), used.indices
    order = np.argsort(link, kind="stable")
    return row[order], link[order]
