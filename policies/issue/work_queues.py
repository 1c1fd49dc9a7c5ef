"""Two executors in which a thread keeps some of the ops that it made ready, and queues the others.

``onnxruntime-parallel``
    The thread that finished an op goes on with the *first* consumer that became ready; the others go to
    a queue that all threads take from, in order (onnxruntime/core/framework/parallel_executor.cc).
``tfrt``
    Kernels carry a stream id. Ready kernels of the stream that the thread works on go to its inline stack
    (last in, first out), the others to the work queue (TFRT's ``BEFExecutor``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sim import Issuer, Job, Policy, Task

__all__ = ["KeepFirst", "StreamStacks"]


class _KeepOrQueue(Policy):
    """A stack of its own for every thread, and one queue per group of threads."""

    synchronisation = "issue"

    def prepare(self, job: Job) -> None:
        """Make empty queues."""
        self._kept: list[list[Task]] = [[] for _ in job.machine.issuers()]
        self._queues: list[deque[Task]] = [deque() for _ in range(job.n_groups)]

    def ready(self, task: Task) -> None:
        """Queue `task`."""
        self._queues[task.group].append(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Keep what belongs to the thread, queue the rest."""
        for k, t in enumerate(now_ready):
            if issuer is not None and t.group == issuer.group and self.keeps(task, t, k):
                self._kept[issuer.index].append(t)
            else:
                self._queues[t.group].append(t)

    def keeps(self, done: Task, task: Task, k: int) -> bool:
        """Return whether the thread that finished `done` keeps `task`, the k-th it made ready."""
        raise TypeError(f"{type(self).__name__} must define keeps()")

    def next(self, issuer: Issuer) -> Task | None:
        """Return the last kept op, else the first of the queue."""
        kept = self._kept[issuer.index]
        if kept:
            return kept.pop()
        queue = self._queues[issuer.group]
        return queue.popleft() if queue else None


class KeepFirst(_KeepOrQueue):
    """ONNX Runtime's parallel executor."""

    def keeps(self, done: Task, task: Task, k: int) -> bool:
        """Keep the first consumer only."""
        return k == 0


class StreamStacks(_KeepOrQueue):
    """TFRT's executor; an op's attribute ``stream_id`` (0 by default) says to which stream it belongs.

    Notes
    -----
    All kernels are strict here: they wait for all their arguments.
    """

    def prepare(self, job: Job) -> None:
        """Read the stream ids."""
        super().prepare(job)
        attributes = job.graph.attributes
        self._stream_id = {op: int(a["stream_id"]) for op, a in attributes.items() if "stream_id" in a}

    def keeps(self, done: Task, task: Task, k: int) -> bool:
        """Keep the ops of the same stream."""
        return self._stream_id.get(done.op, 0) == self._stream_id.get(task.op, 0)
