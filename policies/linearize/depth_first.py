"""Depth-first order: finish a branch before the next one begins, which keeps few tensors alive."""

from __future__ import annotations

from collections.abc import Sequence

from policies.linearize.topological import as_freed
from sim import Job

__all__ = ["DepthFirst"]


class DepthFirst:
    """Topological order that continues with the consumers of the op just placed.

    Kahn's algorithm with a stack: of the consumers that an op makes free, the first by edge order
    comes next, and the others wait until its branch has come to its end, or to a join.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two branches")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"], "d": ["b"], "e": ["d", "c"]}.items():
    ...     _ = b.op(name, inputs=inputs)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [job.graph.op_names[op] for op in DepthFirst().order(job)]
    ['a', 'b', 'd', 'c', 'e']
    """

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        return as_freed(job.graph.dag(), depth_first=True)
