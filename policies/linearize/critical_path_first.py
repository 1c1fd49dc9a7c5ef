"""Critical path first: a program order by bottom level, for runtimes that issue a fixed list."""

from __future__ import annotations

from collections.abc import Sequence

from sim import Job
from sim.graph.walks import least_first

__all__ = ["CriticalPathFirst"]


class CriticalPathFirst:
    """Topological order; of the free ops, the one with the longest path to the end comes first.

    Ties break by op index. Without durations (``knowledge: none``) every op counts as one.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("short and long")
    >>> for name, inputs, ns in (("a", [], 1), ("b", [], 1), ("c", ["b"], 9), ("d", ["a", "c"], 1)):
    ...     _ = b.op(name, inputs=inputs, duration_ns=ns)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [job.graph.op_names[op] for op in CriticalPathFirst().order(job)]
    ['b', 'c', 'a', 'd']
    """

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        return least_first(job.graph.dag(), (-job.bottom_level_ns).tolist())
