"""Reverse depth-first order, the default of ONNX Runtime's sequential executor.

The walk begins at the ops that nobody consumes and goes against the edges; an op is placed after
everything that it needs. Of several ends, and of several producers, the one with the largest index
is visited first (onnxruntime, core/graph/graph_viewer.cc and ``Graph::ReverseDFSFrom`` of graph.cc).
"""

from __future__ import annotations

from collections.abc import Sequence

from sim import Job

__all__ = ["ReverseDepthFirst"]


class ReverseDepthFirst:
    """Depth first from the outputs: each op right before the first that needs it (ONNX Runtime's default).

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two branches")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"], "d": ["b"], "e": ["d", "c"]}.items():
    ...     _ = b.op(name, inputs=inputs)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [job.graph.op_names[op] for op in ReverseDepthFirst().order(job)]
    ['a', 'b', 'd', 'c', 'e']
    """

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        dag = job.graph.dag()
        visited = bytearray(len(job.graph))
        order = []
        stack = [op for op, row in enumerate(dag.successors) if not row]
        while stack:
            op = stack.pop()
            if op < 0:  # everything it needs is placed
                order.append(~op)
                continue
            if visited[op]:
                continue
            visited[op] = 1
            stack.append(~op)
            stack.extend(p for p in sorted(dag.predecessors[op]) if not visited[p])
        return order
