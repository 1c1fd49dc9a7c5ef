"""What a policy's `synchronisation` means: which edges count when their producer is issued.

::

    completion    none: every edge counts when its producer has ended (TensorFlow on CPU, TVM)
    issue         those between tasks that are launched on streams: the device keeps the order
                  (CUDA streams and events, TFRT)

An edge that counts when its producer is issued lets its consumer be issued behind it; an event wait at the
head of the consumer's stream then holds back the start. All the others count at the end. A CPU worker
executes what it takes, so an edge into or out of its task counts at the end under either: the host cannot
read what the device has not computed.

A new synchronisation is a word in `sim.policy.policy.Synchronisation` and a row in the table here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from sim.job.job import Job
from sim.job.transfers import Flow
from sim.words.arrays import BoolArray
from sim.words.errors import UnknownNameError

__all__ = ["edges_at_issue", "launched_nodes"]


def launched_nodes(job: Job, flow: Flow) -> BoolArray:
    """Return whether each node is launched on a stream, or is a transfer, which behaves as if it were."""
    return np.append(job.launched, np.ones(flow.n_nodes - flow.n_ops, dtype=bool))


def _between_launched(job: Job, flow: Flow) -> BoolArray:
    launched = launched_nodes(job, flow)
    return launched[flow.producer] & launched[flow.consumer]


_AT_ISSUE: Final[Mapping[str, Callable[[Job, Flow], BoolArray] | None]] = {
    "completion": None,
    "issue": _between_launched,
}


def edges_at_issue(synchronisation: str, job: Job, flow: Flow) -> BoolArray | None:
    """Return which edges count when their producer is issued; None: nothing has to be told of issues.

    Raises
    ------
    UnknownNameError
        There is no such synchronisation.
    """
    if synchronisation not in _AT_ISSUE:
        raise UnknownNameError("synchronisation", synchronisation, _AT_ISSUE)
    found = _AT_ISSUE[synchronisation]
    return None if found is None else found(job, flow)
