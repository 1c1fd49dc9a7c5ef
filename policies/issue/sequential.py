"""Sequential: one thread walks a program, and each op is done with before the next is looked at.

::

    host     a ▇▇▇ b ▇▇ ·c· ·d· e ▇▇▇      ▇ executes on the CPU; ·x· only enqueues on a stream
    stream                ▇▇▇▇▇▇▇c▇▇▇d▇▇▇

Done with means: executed, for an op of a CPU; enqueued, for an op of a GPU, whose stream keeps the order. So
run TVM's graph executor and virtual machine, ONNX Runtime's sequential executor and an eager PyTorch script;
they differ in the order of the program (`policies.linearize`), not in this. A graph with control flow is
compiled to a program with jumps (`policies.issue.executors.virtual_machine`).
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.issue.executors.virtual_machine import VirtualMachine
from sim import Issuer, Job, Policy, Task
from sim.graph.frames import has_control_flow
from sim.policy.order import Order

__all__ = ["Sequential"]


class Sequential(Policy):
    """One thread walks a program; it executes a CPU's op, or enqueues a GPU's op, before the next one.

    Notes
    -----
    An op of another device's issuer is handed over: whoever serves its device takes it, and the program goes
    on when that is done with it.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("independent")
    >>> for name in "abc":
    ...     _ = b.op(name, duration_ns=10)
    >>> simulate(b.build(), Machine((Device("cpu0", "cpu", workers=4),)), Sequential()).makespan_ns
    30
    """

    synchronisation = "issue"

    def prepare(self, job: Job) -> None:
        """Put the program at its beginning."""
        self._jumps: VirtualMachine | None = None
        if has_control_flow(job.graph):
            self._jumps = VirtualMachine()
            self._jumps.prepare(job)
            return
        self._program: list[int] = job.order.tolist()
        self._n = len(job.graph)
        self._at = 0
        self._total = len(self._program) * job.iterations
        self._eligible: dict[tuple[int, int], Task] = {}
        self._current: Task | None = None

    def as_data(self, job: Job) -> Order | None:
        """Return the program of the one thread; one with jumps is no such order."""
        if has_control_flow(job.graph):
            return None
        return Order("place", [job.order], 1, "machine", in_flight=1)

    def ready(self, task: Task) -> None:
        """Note that `task` is eligible; it waits for its turn."""
        if self._jumps is not None:
            self._jumps.ready(task)
            return
        self._eligible[task.iteration, task.op] = task

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Go on when the current op is done with."""
        if self._jumps is not None:
            self._jumps.ended(task, now_ready, issuer)
            return
        if task is self._current:
            self._current = None
        for t in now_ready:
            self._eligible[t.iteration, t.op] = t

    def next(self, issuer: Issuer) -> Task | None:
        """Return the op whose turn it is, if it is eligible and `issuer` serves its device."""
        if self._jumps is not None:
            return self._jumps.next(issuer)
        if self._current is not None or self._at == self._total:
            return None
        iteration, k = divmod(self._at, self._n)
        key = (iteration, self._program[k])
        task = self._eligible.get(key)
        if task is None or task.group != issuer.group:
            return None
        del self._eligible[key]
        self._at += 1
        self._current = task
        return task
