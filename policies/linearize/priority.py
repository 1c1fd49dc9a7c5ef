"""Priority order, ONNX Runtime's other execution order.

Kahn's algorithm that takes shape and size ops first, then the lowest priority number, then the
lowest index (onnxruntime, core/graph/graph_viewer.cc, ``PriorityNodeCompare``). On a graph without
priorities it is the topological order with the least index first.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim import Job
from sim.graph.walks import least_first

__all__ = ["Priority"]


class Priority:
    """Topological order by ``attributes["priority"]``: the lowest number first, 0 where none is given.

    Parameters
    ----------
    first_kinds : iterable of str
        Kinds of op that come before all others as soon as they are free.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("urgent")
    >>> _ = b.op("a"), b.op("b", kind="shape"), b.op("c", attributes={"priority": -1})
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [job.graph.op_names[op] for op in Priority().order(job)]
    ['b', 'c', 'a']
    """

    def __init__(self, first_kinds: Sequence[str] = ("shape", "size")) -> None:
        self.first_kinds = frozenset([first_kinds] if isinstance(first_kinds, str) else first_kinds)

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        graph = job.graph
        late = [kind.lower() not in self.first_kinds for kind in graph.kinds]
        keys = [(late[code], 0) for code in graph.kind_code.tolist()]
        for op, priority in graph.attribute("priority").items():
            keys[op] = (keys[op][0], priority)
        return least_first(graph.dag(), keys)
