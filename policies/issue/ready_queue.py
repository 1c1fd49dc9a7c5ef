"""The ready queue: whatever is ready runs, breadth first (FIFO) or depth first (LIFO).

This is the graph-based scheduler of dataflow runtimes: an op is queued at the moment its last
input is there, and any free issuer takes the op at the front (TensorFlow white paper 2015,
section 3.1: "a queue of ready nodes").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from policies.option_checks import one_of
from sim import Issuer, Job, Policy, Task
from sim.policy.order import Order

__all__ = ["ReadyQueue"]


class ReadyQueue(Policy):
    """One queue of ready tasks per group of issuers.

    Parameters
    ----------
    order : str
        ``"fifo"`` (breadth first) or ``"lifo"`` (depth first).
    synchronisation : str
        ``"completion"`` or ``"issue"``; see `sim.Policy`.

    Raises
    ------
    InputError
        Another word.
    """

    scope = "group"

    def __init__(self, order: str = "fifo", synchronisation: str = "completion") -> None:
        self.order = one_of("ready-queue", "order", order, ("fifo", "lifo"))
        self.synchronisation = synchronisation
        self._fifo = order == "fifo"
        self._queues: list[deque[Task]] = []

    def prepare(self, job: Job) -> None:
        """Make an empty queue for every group."""
        self._queues = [deque() for _ in range(job.n_groups)]

    def as_data(self, job: Job) -> Order:
        """Return the order of the queue."""
        return Order("fifo" if self._fifo else "lifo")

    def ready(self, task: Task) -> None:
        """Queue `task`."""
        self._queues[task.group].append(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Queue what became ready, in edge order."""
        for t in now_ready:
            self._queues[t.group].append(t)

    def next(self, issuer: Issuer) -> Task | None:
        """Return the first task, or the last one when the order is lifo."""
        queue = self._queues[issuer.group]
        if not queue:
            return None
        return queue.popleft() if self._fifo else queue.pop()
