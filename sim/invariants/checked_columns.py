"""The columns of a trace as the checks use them, and the words that name a violation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from sim.base.arrays import UNSET, BoolArray, IntArray
from sim.base.errors import InvariantError
from sim.graph.failures import DONE
from sim.graph.frames import has_control_flow
from sim.graph.rendezvous_keys import RendezvousKeys, rendezvous_keys, sent_nbytes
from sim.job.costs import issue_costs_ns
from sim.readiness.eligibility import non_strict_ops
from sim.record.record import Record


class Columns:
    """One trace, one short name per column, and words for its rows."""

    def __init__(self, trace: Record) -> None:
        self.trace, self.job, self.lane = trace, trace.job, trace.lane_name
        self.graph, self.machine = trace.job.graph, trace.job.machine
        self.n, self.iterations = len(self.graph), self.job.iterations
        tasks = trace.tasks
        self.op, self.iteration = tasks["op"], tasks["iteration"]
        self.stream, self.issuer = tasks["stream"], tasks["issuer"]
        self.ready, self.issue = tasks["ready_ns"], tasks["issue_ns"]
        self.start, self.end = tasks["start_ns"], tasks["end_ns"]
        self.row_end = trace.of_rows("end_ns")
        self.dead: BoolArray = np.not_equal(tasks["dead"], 0)
        self.live = trace.executed
        self.done: BoolArray = np.equal(trace.status, DONE)
        # Tasks cut off because a part of the machine failed
        self.cut: BoolArray = ~self.done & (trace.detection is not None)
        self.alone = trace.alone
        self.moved = trace.transfers
        self.issuers = self.machine.issuers()
        self.static = not has_control_flow(self.graph)

    @cached_property
    def non_strict(self) -> BoolArray:
        """Whether each op starts with the first of its inputs (one entry per op)."""
        return non_strict_ops(self.graph)

    @cached_property
    def keys(self) -> RendezvousKeys:
        """Sends and Recvs that meet by key."""
        return rendezvous_keys(self.graph)

    @cached_property
    def sent(self) -> dict[int, int]:
        """Tensor → bytes that the Sends with keys send."""
        return {int(self.graph.outputs.row(op)[0]): sent_nbytes(self.graph, op) for op in self.keys.sends}

    @cached_property
    def device(self) -> IntArray:
        """Device of every task."""
        return self.job.device_of[self.op]

    @cached_property
    def by_worker(self) -> BoolArray:
        """Whether a worker executes the task (else it was launched on a stream)."""
        return np.asarray(~self.job.launched[self.op])

    @cached_property
    def cost(self) -> IntArray:
        """The cost of issuing each task; 0 for a dead one that is passed over."""
        return np.where(self.live, issue_costs_ns(self.job)[self.op], 0)

    @cached_property
    def record(self) -> IntArray:
        """Cost to the issuer after launching each task; 0 if the launch failed."""
        if self.job.record_ns is None:
            return np.zeros_like(self.op)
        return np.where(self.done, self.job.record_ns[self.op], 0)

    @cached_property
    def row_of(self) -> IntArray:
        """Row of the task ``iteration * n + op`` (static graphs), -1 if it never ran."""
        rows = np.full(self.n * self.iterations, UNSET)
        rows[self.iteration * self.n + self.op] = np.arange(len(self.op))
        return rows

    @cached_property
    def done_row_of(self) -> IntArray:
        """Like `row_of`, but also -1 if the task failed or was aborted."""
        rows = self.row_of.copy()
        rows[rows != UNSET] = np.where(self.done[rows[rows != UNSET]], rows[rows != UNSET], UNSET)
        return rows

    # -- words --------------------------------------------------------------------------------

    def task(self, row: int) -> str:
        """Return ``op 'a'``, with the iteration if there are several."""
        suffix = f" (iteration {self.iteration[row]})" if self.iterations > 1 else ""
        return f"op {self.graph.op_names[self.op[row]]!r}{suffix}"

    def task_of(self, k: int) -> str:
        """Return ``op 'a' of iteration 0`` for the task ``iteration * n + op``, which may not have run."""
        iteration, op = divmod(k, self.n)
        return f"op {self.graph.op_names[op]!r} of iteration {iteration}"

    def tell_start(self, row: int) -> str:
        """Return ``op 'a' started at 5 ns``."""
        return f"{self.task(row)} started at {self.start[row]} ns"

    def tell_end(self, row: int) -> str:
        """Return ``op 'a' ended at 7 ns``; rows of transfers follow those of tasks."""
        return f"{self.either(row)} ended at {self.row_end[row]} ns"

    def either(self, row: int) -> str:
        """Return the name of a task or, after the tasks, of a transfer."""
        return self.task(row) if row < len(self.op) else self.transfer(row - len(self.op))

    def transfer(self, row: int) -> str:
        """Return ``the transfer of 'a' to gpu1``."""
        suffix = f" (iteration {self.moved['iteration'][row]})" if self.iterations > 1 else ""
        name = self.graph.tensor_name(int(self.moved["tensor"][row]))
        return f"the transfer of {name!r}{suffix} to {self.device_name(self.moved['destination'][row])}"

    def device_name(self, device: int) -> str:
        """Return the name of a device."""
        return self.machine.devices[int(device)].name

    def issuer_name(self, row: int) -> str:
        """Return the name of the issuer of a task."""
        return self.issuers[int(self.issuer[row])].name


def refuse(bad: BoolArray, tell: Callable[[int], str]) -> None:
    """Raise with the message of `tell` for the first index where `bad` is true, if there is one.

    Raises
    ------
    InvariantError
    """
    if bad.any():
        raise InvariantError(tell(int(bad.argmax())))


def neighbours(order: IntArray, key: IntArray) -> tuple[IntArray, IntArray]:
    """Return (one, next) for rows that are adjacent in `order` and have the same `key`."""
    one, following = order[:-1], order[1:]
    equal = key[one] == key[following]
    return one[equal], following[equal]
