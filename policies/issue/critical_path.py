"""List scheduling by bottom level: of the ready ops, the one with the longest way to go first.

The *bottom level* of an op is the longest path from it to the end of the graph, its own duration
included (`sim.Job.bottom_level_ns`). Taking the highest level first is Hu's rule (Hu 1961, "Parallel
sequencing and assembly line problems", Operations Research 9(6)); with durations that differ it is
the HLFET list schedule of Adam, Chandy and Dickson (1974, CACM 17(12)). It is a heuristic: never worse
than 2 - 1/m times the optimum on m equal workers (Graham 1969), and usually within a few percent.
"""

from __future__ import annotations

import numpy as np

from policies.issue.program_order import ProgramOrder, group_programs
from policies.option_checks import SYNCHRONISATIONS, one_of
from sim import Job
from sim.policy.order import Order

__all__ = ["CriticalPath"]


class CriticalPath(ProgramOrder):
    """Issue the ready op with the longest path to the end.

    Ties break by op index. An earlier iteration comes before a later one: otherwise the beginning of
    the next iteration, which has the whole graph before it, would keep the present one from ending.

    Parameters
    ----------
    synchronisation : str
        ``"completion"``: an op is ready when its inputs are computed. ``"issue"``: when they are issued.

    Raises
    ------
    InputError
        Another word.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("the long chain is added last")
    >>> for name, inputs, ns in (("a", [], 20), ("b", [], 20), ("c", [], 20), ("d", ["c"], 20)):
    ...     _ = b.op(name, inputs=inputs, duration_ns=ns)
    >>> simulate(b.build(), Machine((Device("cpu0", "cpu", workers=2),)), CriticalPath()).makespan_ns
    40
    """

    scope = "group"

    def __init__(self, synchronisation: str = "completion") -> None:
        self.synchronisation = one_of("critical-path", "synchronisation", synchronisation, SYNCHRONISATIONS)

    def as_data(self, job: Job) -> Order:
        """Return the ops of each group by bottom level, the highest first, then by index."""
        return Order("place", group_programs(job, np.argsort(-job.bottom_level_ns, kind="stable")))
