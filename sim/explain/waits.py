"""The column `wait` in its final form: who held a task back between ready and start.

The engine knows that a task was not taken at once; whether its issuers had no time for it or the policy
did not let them is seen only afterwards.
"""

from __future__ import annotations

import numpy as np

from sim.explain.facts.derived_columns import Facts
from sim.record.record import Record, Wait
from sim.words.arrays import IntArray

__all__ = ["final_waits"]


def final_waits(trace: Record) -> IntArray:
    """Return the code of `sim.record.record.Wait` of every task.

    ``ISSUER`` becomes ``POLICY`` where some issuer of the group was free for more than half of the time
    from ready until somebody took the task. What a worker pays for issuing counts as ``ISSUER``.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.in_order import InOrder
    >>> b = GraphBuilder("head of line")
    >>> _ = b.op("a", duration_ns=10, device="gpu0")
    >>> _ = b.op("b", duration_ns=10, device="gpu1", inputs=["a"])
    >>> _ = b.op("c", duration_ns=10, device="gpu1")
    >>> trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), InOrder())
    >>> trace.tasks["op"].tolist(), final_waits(trace).tolist(), Wait.POLICY
    ([0, 1, 2], [0, 0, 2], 2)
    """
    f = Facts(trace)
    by_issuer = (f.wait == Wait.ISSUER) | (f.by_worker & (f.wait == Wait.STREAM))
    waited = f.taken - f.ready
    busy = f.issuers_busy.between(f.ready, f.taken, f.group)
    held_back = (waited > 0) & (2 * busy < waited)
    return np.where(by_issuer, np.where(held_back, Wait.POLICY, Wait.ISSUER), f.wait)
