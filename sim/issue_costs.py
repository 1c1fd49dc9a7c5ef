"""What issuing each op costs its issuer: one answer for the engine, the invariants and the explanations."""

from __future__ import annotations

import numpy as np

from sim.graph import IntArray
from sim.job import Job

__all__ = ["issue_costs_ns"]


def issue_costs_ns(job: Job) -> IntArray:
    """Return what issuing each op costs its issuer, in ns.

    Parameters
    ----------
    job : Job

    Returns
    -------
    array of int64
        What the job says (`Job.issue_ns`); else `Device.issue_ns_by_kind` of the op's kind where it is given,
        and `Device.issue_ns` for the rest.
    """
    if job.issue_ns is not None:
        return job.issue_ns.copy()
    table = np.array(
        [[d.issue_ns_by_kind.get(kind, d.issue_ns) for kind in job.graph.kinds] for d in job.machine.devices]
    )
    return table.reshape(len(job.machine.devices), -1)[job.device_of, job.graph.kind_code]
