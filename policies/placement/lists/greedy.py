"""Greedy placement with a cost model, as TensorFlow's white paper describes it.

Walk over the graph from its sources; for each op and each device that can run it, estimate when it
would finish there: when the device is free and the inputs have been copied to it, plus the op's cost.
Take the device where that is least (Abadi et al. 2015, "TensorFlow: large-scale machine learning on
heterogeneous distributed systems", section 3.2.1). It looks neither ahead nor back.
"""

from __future__ import annotations

from policies.placement.lists.list_schedule import Builder, ListPlacement, Schedule
from policies.placement.problem import Problem

__all__ = ["Greedy"]


class Greedy(ListPlacement):
    """In topological order, each op on the device where it would finish first.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two ops, two devices")
    >>> for name in "ab":
    ...     _ = b.op(name, duration_by_kind={"cpu": 30, "gpu": 10})
    >>> machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0", "gpu")))
    >>> make_job(b.build(), machine, placement=Greedy()).device_of.tolist()
    [1, 1]
    """

    def schedule(self, problem: Problem) -> Schedule:
        """Return the greedy schedule."""
        return Builder(problem, insertion=False).put_all(problem.graph.topological_order.tolist())
