"""Two executors in which a thread keeps some of the ops that it made ready, and queues the others.

``onnxruntime-parallel``
    The thread that finished an op goes on with the *first* consumer that became ready; the others go to
    a queue that all threads take from, in order (onnxruntime/core/framework/parallel_executor.cc).
``tfrt``
    Kernels carry a stream id. Ready kernels of the stream that the thread works on go to its inline stack
    (last in, first out), the others to the work queue (TFRT's ``BEFExecutor``). Kernels that block (on a
    file, on another machine) have threads of their own, so that they do not keep a core from working
    (``MultiThreadedWorkQueue``: one queue for tasks that do not block, one for those that do).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from policies.option_checks import whole
from sim import Issuer, Job, Policy, Task
from sim.policy.order import Order
from sim.words.arrays import IntArray
from sim.words.errors import InputError

__all__ = ["KeepFirst", "StreamStacks"]


class _KeepOrQueue(Policy):
    """A stack of its own for every thread, and one queue per group of threads."""

    synchronisation = "issue"

    def prepare(self, job: Job) -> None:
        """Make empty queues."""
        issuers = job.machine.issuers()
        self._kept: list[list[Task]] = [[] for _ in issuers]
        self._blocks = [False] * len(job.graph)  # whether an op goes to the threads that may block
        self._may_block = [False] * len(issuers)
        self._queues: dict[tuple[int, bool], deque[Task]] = {
            (group, blocks): deque() for group in range(job.n_groups) for blocks in (False, True)
        }

    def _order(self, job: Job, label: IntArray | None) -> Order:
        """Return who keeps what, by labels where ops have them: two pools a group, one for what may block."""
        self.prepare(job)
        group = np.array([issuer.group for issuer in job.machine.issuers()])
        pool, of_issuer = 2 * job.group_of + self._blocks, 2 * group + self._may_block
        return Order("keep", label=label, pool=pool, pool_of_issuer=of_issuer)

    def ready(self, task: Task) -> None:
        """Queue `task`."""
        self._queues[task.group, self._blocks[task.op]].append(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Keep what belongs to the thread, queue the rest."""
        for k, t in enumerate(now_ready):
            mine = (
                issuer is not None
                and t.group == issuer.group
                and self._blocks[t.op] == self._may_block[issuer.index]
            )
            if issuer is not None and mine and self.keeps(task, t, k):
                self._kept[issuer.index].append(t)
            else:
                self.ready(t)

    def keeps(self, done: Task, task: Task, k: int) -> bool:
        """Return whether the thread that finished `done` keeps `task`, the k-th it made ready."""
        raise TypeError(f"{type(self).__name__} must define keeps()")

    def next(self, issuer: Issuer) -> Task | None:
        """Return the last kept op, else the first of the queue."""
        kept = self._kept[issuer.index]
        if kept:
            return kept.pop()
        queue = self._queues[issuer.group, self._may_block[issuer.index]]
        return queue.popleft() if queue else None


class KeepFirst(_KeepOrQueue):
    """ONNX Runtime's parallel executor."""

    def keeps(self, done: Task, task: Task, k: int) -> bool:
        """Keep the first consumer only."""
        return k == 0

    def as_data(self, job: Job) -> Order:
        """Return that a thread keeps the first."""
        return self._order(job, None)


class StreamStacks(_KeepOrQueue):
    """TFRT's executor; an op's attribute ``stream_id`` (default 0) is the stream that it belongs to.

    Parameters
    ----------
    blocking_threads : int
        Workers, the last ones of a CPU, that run the ops with the attribute ``blocking: true`` and no others;
        0: those ops run as all do.

    Raises
    ------
    InputError
        A negative number; when the run begins: no worker is left for the other ops.

    Notes
    -----
    Kernels wait for all their arguments; non-strict ones (the attribute ``strict: false``) for the first.
    """

    def __init__(self, blocking_threads: int = 0) -> None:
        self.blocking_threads = whole("tfrt", "blocking_threads", blocking_threads, least=0)

    def prepare(self, job: Job) -> None:
        """Read the stream ids, and set threads aside for what blocks."""
        super().prepare(job)
        attributes = job.graph.attributes
        if self.blocking_threads:
            self._set_aside(job)
        self._stream_id = {op: int(a["stream_id"]) for op, a in attributes.items() if "stream_id" in a}

    def keeps(self, done: Task, task: Task, k: int) -> bool:
        """Keep the ops of the same stream."""
        return self._stream_id.get(done.op, 0) == self._stream_id.get(task.op, 0)

    def as_data(self, job: Job) -> Order:
        """Return that a thread keeps the ops of the same stream."""
        label = np.zeros(len(job.graph), np.int64)
        self.prepare(job)
        label[list(self._stream_id)] = list(self._stream_id.values())
        return self._order(job, label)

    def _set_aside(self, job: Job) -> None:
        """Divide the workers of every CPU."""
        for op, attributes in job.graph.attributes.items():
            self._blocks[op] = bool(attributes.get("blocking", False)) and not job.launched[op]
        threads: dict[int, list[int]] = {}
        for issuer in job.machine.issuers():
            if issuer.stream >= 0:
                threads.setdefault(issuer.group, []).append(issuer.index)
        for members in threads.values():
            if self.blocking_threads >= len(members):
                raise InputError(
                    f"tfrt: blocking_threads is {self.blocking_threads}, and the CPU has {len(members)} "
                    "workers; leave one at least for ops that do not block (inter_op gives it more)"
                )
            for thread in members[-self.blocking_threads :]:
                self._may_block[thread] = True
