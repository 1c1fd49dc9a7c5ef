"""Topological order, by Kahn's algorithm (1962, "Topological sorting of large networks", CACM 5(11))."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from policies.option_checks import one_of
from sim import Job
from sim.graph.walks import Dag

__all__ = ["Topological", "as_freed"]


class Topological:
    """Topological order; of the free ops, the first by `ties` comes first.

    Parameters
    ----------
    ties : str
        ``"least-index"``: the op that was added first to the graph. It is stable: ops that were added
        in a topological order keep it. This is also the order of a job without a linearizer.
        ``"fifo"``: the op that became free first (breadth first).

    Raises
    ------
    InputError
        Another word.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two chains")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["b"], "x": [], "y": ["x"]}.items():
    ...     _ = b.op(name, inputs=inputs)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> [[job.graph.op_names[op] for op in Topological(t).order(job)] for t in ("least-index", "fifo")]
    [['a', 'b', 'c', 'x', 'y'], ['a', 'x', 'b', 'y', 'c']]
    """

    def __init__(self, ties: str = "least-index") -> None:
        self.ties = one_of("topological", "ties", ties, ("least-index", "fifo"))

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order."""
        if self.ties == "least-index":
            return job.graph.topological_order.tolist()  # type: ignore[no-any-return]
        return as_freed(job.graph.dag(), depth_first=False)


def as_freed(dag: Dag, *, depth_first: bool) -> list[int]:
    """Return the order of Kahn's algorithm with a queue, or, depth first, with a stack.

    Examples
    --------
    >>> dag = Dag([[1, 2], [3], [], []], [[], [0], [0], [1]])
    >>> as_freed(dag, depth_first=False), as_freed(dag, depth_first=True)
    ([0, 1, 2, 3], [0, 1, 3, 2])
    """
    pending = dag.pending()
    free = deque(dag.sources())
    order = []
    while free:
        op = free.popleft()
        order.append(op)
        freed = dag.freed_by(op, pending)
        if depth_first:
            free.extendleft(reversed(freed))
        else:
            free.extend(freed)
    return order
