"""Queues between data-loading workers and training, where only the run decides who gets which batch.

Each group of issuers has a FIFO queue of ready tasks, except for the ops that graphs of `scenarios.builders`
mark by their kind and the attribute ``loader``::

    kind             taken                                            then
    request, load    by its worker alone, in the order handed out     the worker stays with it: first the
                                                                      request, then the load
    next_that_came   when a batch has arrived and is not returned     the next batch handed out goes to the
                                                                      worker whose batch it was
    pull_tuned       while the buffer has fewer than its limit        (push, ask, next: its contents)

The attribute ``worker`` names the worker of a batch, at least for the first ones. A batch has arrived when
the last op that makes it has ended: ``pin_memory``, or ``load``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from sim import Issuer, Job, Policy, Task
from sim.base.arrays import group_pairs
from sim.base.errors import InputError
from sim.graph.graph import Graph

# ----------------------------------------------------------------------------------------------------------
# tf.data's prefetch autotuner: the number of elements that the buffer may hold.
#
#     up      limit 1, and after each doubling: until an element is taken from a full buffer    ──► down
#     down    until an element is wanted and the buffer is empty: the limit doubles             ──► up
#
# As in ``PrefetchAutotuner::RecordConsumption`` of tensorflow/core/kernels/data/prefetch_autotuner.cc: from
# 2048 on, the limit grows by 2048 instead. The memory budget is left out.

_THRESHOLD: Final = 2048


class PrefetchAutotuner:
    """The limit of one buffer.

    Attributes
    ----------
    limit : int

    Examples
    --------
    >>> tuner, limits = PrefetchAutotuner(), []
    >>> for size in (0, 1, 0, 1, 0, 2, 0):
    ...     tuner.on_consume(size)
    ...     limits.append(tuner.limit)
    >>> limits
    [1, 1, 2, 2, 2, 2, 4]
    """

    def __init__(self) -> None:
        self.limit = 1
        self._up = True

    def on_consume(self, size: int) -> None:
        """Note that an element is wanted while the buffer holds `size`."""
        if self._up:
            self._up = size != self.limit
        elif size == 0:
            self.limit += min(self.limit, _THRESHOLD)
            self._up = True


_DECIDED: Final = ("next_that_came", "pull_tuned", "request_kept")
"""Kinds of op that no other policy can handle."""


class _Mark(NamedTuple):
    """Kind, loader and batch of an op of a loader."""

    kind: str
    loader: int
    batch: int


@dataclass
class _Loader:
    """The state of one loader in one epoch.

    Attributes
    ----------
    worker_of : dict of int to int
        Batch → its worker, counted among the issuers of the group.
    next_handed : int
        Batch to hand out next.
    came : deque of int
        Batches that have arrived and are not returned yet.
    buffered : int
        Elements in the buffer.
    """

    worker_of: dict[int, int]
    next_handed: int
    came: deque[int] = field(default_factory=deque)
    buffered: int = 0
    tuner: PrefetchAutotuner = field(default_factory=PrefetchAutotuner)


class LoaderQueues(Policy):
    """FIFO queues, with index queues, batches returned as they arrive, and tuned buffers.

    Raises
    ------
    InputError
        If the loading device has fewer workers than batches are handed out to.
    """

    on_failure = None

    def prepare(self, job: Job) -> None:
        """Find the loader and the batch of each op."""
        self._queues: list[deque[Task]] = [deque() for _ in range(job.n_groups)]
        self._gated: list[list[Task]] = [[] for _ in range(job.n_groups)]
        issuers = job.machine.issuers()
        self._of_group = [[i.index for i in issuers if i.group == g] for g in range(job.n_groups)]
        self._own: list[deque[Task]] = [deque() for _ in issuers]
        # The load (iteration, op) that each issuer has requested, and those that are ready.
        self._keeps: list[tuple[int, int] | None] = [None] * len(issuers)
        self._kept: dict[tuple[int, int], Task] = {}
        self._loaders: dict[tuple[int, int], _Loader] = {}
        self._read(job)

    def _read(self, job: Job) -> None:
        """Read kinds and attributes of the ops."""
        graph, counts = job.graph, Counter[tuple[str, int]]()
        self._mark: dict[int, _Mark] = {}
        for op, loader in graph.attribute("loader").items():
            kind = graph.kinds[graph.kind_code[op]].removesuffix("_kept")
            self._mark[op] = _Mark(kind, int(loader), counts[kind, loader])
            counts[kind, loader] += 1
        op_of = {mark: op for op, mark in self._mark.items()}
        marks = self._mark.items()
        requests = {op: op_of.get(mark._replace(kind="request")) for op, mark in marks if mark.kind == "load"}
        self._load_of = {request: op for op, request in requests.items() if request is not None}
        self._asked_for = set(self._load_of.values())
        self._worker = {  # of a request or load
            op: self._check_op(job, op, int(worker))
            for op, worker in graph.attribute("worker").items()
            if op in self._mark and self._mark[op].kind in ("request", "load")
        }
        # Of each loader: the workers of its first batches, and the kind of op with whose end a batch arrives.
        loads = ((op, mark) for op, mark in marks if mark.kind == "load")
        self._primed = group_pairs(
            (mark.loader, self._worker[op]) for op, mark in loads if op in self._worker
        )
        self._last = {mark.loader: mark.kind for _, mark in marks if mark.kind in ("load", "pin_memory")}
        # Loaders that return batches as they arrive.
        self._returns = {mark.loader for _, mark in marks if mark.kind == "next_that_came"}

    def _check_op(self, job: Job, op: int, worker: int) -> int:
        group = int(job.group_of[op])
        if worker >= len(self._of_group[group]):
            device = job.machine.devices[int(job.device_of[op])].name
            raise InputError(
                f"loader-queues: batches are handed out to {worker + 1} workers or more, and {device} has "
                f"{len(self._of_group[group])}; give it as many cores"
            ).about(job.graph.op_names[op])
        return worker

    def _loader(self, task: Task, loader: int) -> _Loader:
        """Return the state of a task's loader in its epoch; every epoch has its own iterator."""
        key = loader, task.iteration
        if key not in self._loaders:
            self._loaders.pop((loader, task.iteration - 1), None)
            primed = dict(enumerate(self._primed.get(loader, ())))
            self._loaders[key] = _Loader(primed, len(primed))
        return self._loaders[key]

    def ready(self, task: Task) -> None:
        """Queue `task` for its worker, behind its condition, or for all issuers of its group."""
        kind, loader, batch = self._mark.get(task.op, _Mark("", 0, 0))
        if kind in ("next_that_came", "pull_tuned"):
            self._gated[task.group].append(task)
        elif kind == "load" and task.op in self._asked_for:
            self._kept[task.iteration, task.op] = task
        elif kind in ("request", "load") and (task.op in self._worker or loader in self._returns):
            worker = self._worker.get(task.op)
            if worker is None:
                worker = self._loader(task, loader).worker_of[batch]
            self._own[self._of_group[task.group][worker]].append(task)
        else:
            self._queues[task.group].append(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Note a batch that has arrived, and what became ready."""
        if task.op in self._mark:
            kind, loader, batch = self._mark[task.op]
            if loader in self._returns and kind == self._last[loader]:
                self._loader(task, loader).came.append(batch)
        super().ended(task, now_ready, issuer)

    def next(self, issuer: Issuer) -> Task | None:
        """Return the task that the issuer must go on with, else one of its own, else any it may take."""
        if (load := self._keeps[issuer.index]) is not None:
            task = self._kept.pop(load, None)
            if task is not None:
                self._keeps[issuer.index] = None
            return task
        queue = self._own[issuer.index] or self._queues[issuer.group]
        task = queue.popleft() if queue else self._take_open(issuer.group)
        if task is not None:
            self._on_take(task, issuer)
        return task

    def _take_open(self, group: int) -> Task | None:
        """Return a task of a group whose condition holds."""
        for i, task in enumerate(self._gated[group]):
            kind, loader, _ = self._mark[task.op]
            state = self._loader(task, loader)
            if state.came if kind == "next_that_came" else state.buffered < state.tuner.limit:
                return self._gated[group].pop(i)
        return None

    def _on_take(self, task: Task, issuer: Issuer) -> None:
        """Update the loader's state when `issuer` takes `task`."""
        if task.op not in self._mark:
            return
        kind, loader, _ = self._mark[task.op]
        state = self._loader(task, loader)
        if kind == "request":
            self._keeps[issuer.index] = task.iteration, self._load_of[task.op]
        elif kind == "next_that_came":
            state.worker_of[state.next_handed] = state.worker_of.pop(state.came.popleft())
            state.next_handed += 1
        elif kind == "push":
            state.buffered += 1
        elif kind == "ask":
            if not state.buffered:
                state.tuner.on_consume(0)
        elif kind == "next":
            state.tuner.on_consume(state.buffered)
            state.buffered -= 1


def refuse_undecided(graph: Graph, policy: Policy) -> None:
    """Raise if a graph that needs `LoaderQueues` runs under another policy.

    Raises
    ------
    InputError
        If the policy would treat the loader's ops like any others.
    """
    if not isinstance(policy, LoaderQueues) and bool(np.any(graph.is_kind(*_DECIDED))):
        raise InputError(
            "that batches are returned as they come, a buffer is tuned or a thread keeps to what it reads is "
            "decided in the run, and only the policy loader-queues decides it; name it, or no policy"
        )
