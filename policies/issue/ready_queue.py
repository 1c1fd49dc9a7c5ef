"""The ready queue: whatever is ready runs, breadth first (FIFO) or depth first (LIFO).

This is the graph-based scheduler of dataflow runtimes: an op is queued when its last input
arrives, and any free issuer takes the op at the front (TensorFlow white paper 2015, section 3.1:
"a queue of ready nodes"). Ops that become ready together are queued in edge order or by name::

    root ─┬─► c       fifo, ties: edges       root c a b
          ├─► a       fifo, ties: name        root a b c
          └─► b       lifo                    root b a c
"""

from __future__ import annotations

from bisect import insort
from collections import deque

import numpy as np

from policies.issue.program_order import ProgramOrder, group_programs
from policies.option_checks import SYNCHRONISATIONS, one_of
from sim import Issuer, Job, Policy, Task
from sim.base.errors import InputError
from sim.policy import Order


class ReadyQueue(Policy):
    """One queue of ready tasks per group of issuers.

    Parameters
    ----------
    order : str
        ``"fifo"`` (breadth first) or ``"lifo"`` (depth first).
    ties : str
        Which of the tasks that became ready at one time comes first in a fifo: ``"edges"``, the consumers of
        the op that ended first, in edge order; or ``"name"``, the least name, as in TensorFlow's virtual
        scheduler (`FirstReadyManager` in tensorflow/core/grappler/costs/virtual_scheduler.cc).
    synchronisation : str
        ``"completion"`` or ``"issue"``; see `sim.Policy`.

    Raises
    ------
    InputError
        If an option has any other value, or a lifo breaks ties by name.
    """

    scope = "group"
    on_failure = "skip"

    def __init__(self, order: str = "fifo", synchronisation: str = "completion", ties: str = "edges") -> None:
        self.order = one_of("ready-queue", "order", order, ("fifo", "lifo"))
        self.synchronisation = synchronisation
        self.ties = one_of("ready-queue", "ties", ties, ("edges", "name"))
        if ties == "name" and order == "lifo":
            message = "ready-queue: ties are by name in a fifo only, which goes by when tasks became ready"
            raise InputError(message, path=("ties",))
        self._fifo = order == "fifo"

    def prepare(self, job: Job) -> None:
        """Make an empty queue for every group."""
        self._queues: list[deque[Task]] = [deque() for _ in range(job.n_groups)]
        self._names = job.graph.op_names

    def as_data(self, job: Job) -> Order | None:
        """Return the order of the queue; None for a queue by name, which has to be asked."""
        return None if self.ties == "name" else Order("fifo" if self._fifo else "lifo")

    def ready(self, task: Task) -> None:
        """Queue `task`."""
        if self.ties == "name":
            insort(self._queues[task.group], task, key=lambda t: (t.ready_ns, self._names[t.op], t.id))
        else:
            self._queues[task.group].append(task)

    def next(self, issuer: Issuer) -> Task | None:
        """Return the first task, or the last one if the order is lifo."""
        queue = self._queues[issuer.group]
        if not queue:
            return None
        return queue.popleft() if self._fifo else queue.pop()


class CriticalPath(ProgramOrder):
    """Issue the ready op with the longest path to the end.

    List scheduling by bottom level: of the ready ops, the one with the longest path still to go first.

    The *bottom level* of an op is the longest path from it to the end of the graph, its own duration
    included (`sim.Job.bottom_level_ns`). Taking the highest level first is Hu's rule (Hu 1961, "Parallel
    sequencing and assembly line problems", Operations Research 9(6)); with durations that differ it is
    the HLFET list schedule of Adam, Chandy and Dickson (1974, CACM 17(12)). It is a heuristic: never worse
    than 2 - 1/m times the optimum on m equal workers (Graham 1969), and usually within a few percent.

    Ties break by op index. An earlier iteration comes before a later one: otherwise the start of the
    next iteration, with the whole graph ahead of it, would keep the current one from finishing.

    Parameters
    ----------
    synchronisation : str
        ``"completion"``: an op is ready when its inputs are computed. ``"issue"``: when they are issued.

    Raises
    ------
    InputError
        If `synchronisation` is any other word.

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
