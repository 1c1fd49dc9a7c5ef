"""Memory-aware order: a greedy list order that keeps the bytes in use low.

::

    free ops    x: makes 8, is the last to read 2   →  +6
                y: makes 1, is the last to read 4   →  -3    ← next

Finding the order of least peak memory is NP-complete for general graphs (Sethi 1975, "Complete
register allocation problems", SIAM J. Comput. 4(3)); taking the op that adds least is the usual greedy
answer (XLA has one: ``ListMemoryScheduler``, hlo_memory_scheduler.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from sim import Job

__all__ = ["MemoryAware"]


class MemoryAware:
    """Topological order; of the free ops, the one that adds the fewest bytes comes first.

    An op adds the bytes of its outputs (of those that somebody reads) and gives back those of every
    tensor of which it is the last reader. Ties break by op index.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("reduce early")
    >>> for name, inputs, size in (("a", [], 9), ("b", [], 9), ("ra", ["a"], 1), ("rb", ["b"], 1)):
    ...     _ = b.op(name, inputs=inputs, outputs=size)
    >>> _ = b.op("sum", inputs=["ra", "rb"], outputs=1)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [job.graph.op_names[op] for op in MemoryAware().order(job)]
    ['a', 'ra', 'b', 'rb', 'sum']
    """

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        graph, dag = job.graph, job.graph.dag()
        nbytes = graph.tensor_nbytes.tolist()
        # Each reader counts once; a tensor read across iterations, or produced by nobody, is never freed.
        reads = [sorted(set(row)) for row in graph.inputs.lists()]
        carried = set(graph.inputs.indices[graph.input_distance > 0].tolist())
        carried |= {t for t, producer in enumerate(graph.tensor_producer.tolist()) if producer < 0}
        readers: list[set[int]] = [set() for _ in nbytes]
        for op, tensors in enumerate(reads):
            for t in tensors:
                readers[t].add(op)
        adds = [sum(nbytes[t] for t in row if readers[t]) for row in graph.outputs.lists()]
        for t, ops in enumerate(readers):
            if len(ops) == 1 and t not in carried:
                adds[next(iter(ops))] -= nbytes[t]
        pending = dag.pending()
        heap = [(adds[op], op) for op in dag.sources()]
        heapify(heap)
        placed = bytearray(len(graph))
        order = []
        while heap:
            _, op = heappop(heap)
            if placed[op]:  # an entry from before it became the last reader of something
                continue
            placed[op] = 1
            order.append(op)
            for t in reads[op]:
                readers[t].discard(op)
                if len(readers[t]) == 1 and t not in carried:
                    last = next(iter(readers[t]))
                    adds[last] -= nbytes[t]
                    if not pending[last]:
                        heappush(heap, (adds[last], last))
            for freed in dag.freed_by(op, pending):
                heappush(heap, (adds[freed], freed))
        return order
