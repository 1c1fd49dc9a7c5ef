"""Which threads run the ops of which session: TensorFlow's inter-op thread pools.

::

    one pool           [w0 w1 w2 w3]              all sessions
    one a session      [w0 w1] [w2 w3]            session a, session b
    a list of sizes    [w0] [w1 w2 w3]            each session chooses one by number

A pool's threads are workers of one CPU; a host's threads that only launch are one pool always. Threads are
not cores: pools with more threads than the CPU has cores share its time (`devices.processor`).

Source: tensorflow/core/common_runtime/direct_session.cc (``NewThreadPoolFromSessionOptions``) and the fields
of ``ConfigProto``.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim import Job
from sim.words.errors import InputError

__all__ = ["PoolLayout"]


class PoolLayout:
    """Threads divided into pools, for a job.

    Parameters
    ----------
    job : Job
        Its ops carry the attributes ``session`` and ``inter_op_thread_pool``; without them all are one
        session.
    size : int
        Threads of a pool; 0: all workers, or with a pool per session as many as there are cores.
    per_session : bool
        Whether every session has its own.
    sizes : sequence of int
        Sizes of several pools instead.

    Attributes
    ----------
    members : list of list of int
        Issuers of each pool.
    of_op : list of int
        Pool of each op.
    of_thread : list of int
        Pool of each issuer; -1: none.

    Raises
    ------
    InputError
        More threads than workers, or a session that chooses a pool that does not exist.
    """

    def __init__(self, job: Job, size: int, per_session: bool, sizes: Sequence[int]) -> None:
        given, pools = job.graph.attribute("session"), job.graph.attribute("inter_op_thread_pool")
        names = [given.get(op, "") for op in range(len(job.graph))]
        sessions = {name: k for k, name in enumerate(dict.fromkeys(names))}
        issuers = job.machine.issuers()
        self.members: list[list[int]] = []
        self.of_thread = [-1] * len(issuers)
        first_pool: list[int] = []
        several: list[bool] = []
        for group in range(job.n_groups):
            threads = [issuer for issuer in issuers if issuer.group == group]
            first_pool.append(len(self.members))
            executes = threads[0].stream >= 0
            several.append(executes and (per_session or bool(sizes)))
            wanted = [len(threads)]
            if executes and per_session:
                cpu = next(d for k in threads[0].devices if (d := job.machine.devices[k]).workers)
                wanted = [size or cpu.cores or len(threads)] * len(sessions)
            elif executes and (sizes or size):
                wanted = list(sizes) or [size]
            self._divide([thread.index for thread in threads], wanted)
        self.of_op = []
        for op, (name, group) in enumerate(zip(names, job.group_of.tolist(), strict=True)):
            chosen = 0
            if several[group] and per_session:
                chosen = sessions[name]
            elif several[group]:
                chosen = pools.get(op, 0)
                if chosen >= len(sizes):
                    raise InputError(
                        f"session {name!r} chooses inter_op_thread_pool {chosen!r}; "
                        f"there are {len(sizes)}, counted from 0"
                    )
            self.of_op.append(first_pool[group] + chosen)

    def _divide(self, threads: list[int], wanted: list[int]) -> None:
        if sum(wanted) > len(threads):
            many = " and ".join(map(str, wanted))
            raise InputError(
                f"tensorflow-executor: pools of {many} threads need {sum(wanted)} workers, and the CPU has "
                f"{len(threads)}; give it inter_op: {sum(wanted)}, or ask for fewer threads"
            )
        at = 0
        for size in wanted:
            for thread in threads[at : at + size]:
                self.of_thread[thread] = len(self.members)
            self.members.append(threads[at : at + size])
            at += size
