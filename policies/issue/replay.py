"""Replay: follow a plan, whoever made it.

::

    trace.plan() ──► plan ──► Replay    each issuer takes its own tasks, in its own order
                       └────► Planned   the devices, streams and program order that go with them

A plan says who puts what where and in which order, and has no times but those until which ops wait on
purpose (`sim.record.plan`), so the same plan can be tried on a machine with other costs, or with a task
moved. What does not fit the graph or the machine is refused before time 0.

A plan keeps the order of each worker of a CPU, and not which of two workers was first. Where that decides, as
under in-order issue, or when two workers begin collectives of one communicator, a replay may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from policies.issue.program_order import ProgramOrder
from policies.option_checks import SYNCHRONISATIONS, one_of
from sim import Graph, Job, Machine
from sim.base.arrays import IntArray
from sim.base.errors import InputError, UnknownNameError, located
from sim.base.files import read_text
from sim.issuers import process_names
from sim.job.job import Placement
from sim.policy import Order
from sim.record.plan import Plan


def read_plan(plan: Plan | None, file: Path | None) -> Plan:
    """Return the plan, or read it from the file (`sim.record.plan.Plan.to_json`); exactly one is given.

    Raises
    ------
    InputError
        Both or none are given, or the file cannot be read or holds no plan.
    """
    if (plan is None) == (file is None):
        raise InputError("replay: give either a plan or the file of one")
    if plan is not None:
        return plan
    with located("file"):
        return Plan.from_json(read_text(file or ""))


class ReplayPlan(ProgramOrder):
    """Each issuer takes its tasks from a plan, in the plan's order.

    Parameters
    ----------
    plan : Plan, optional
    file : path, optional
        A file with the plan, in place of the plan.
    synchronisation : str
        ``"completion"`` or ``"issue"``, which a plan does not say: the one of the run that it comes
        from gives the same times again.

    Raises
    ------
    InputError
        Not exactly one of plan and file, a file that holds no plan, or another word.

    Examples
    --------
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("fork")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"]}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=10)
    >>> graph, machine = b.build(), Machine((Device("cpu0", "cpu", workers=2),))
    >>> plan = simulate(graph, machine, ReadyQueue()).plan()
    >>> simulate(graph, machine, ReplayPlan(plan)).plan().digest == plan.digest
    True
    """

    def __init__(
        self, plan: Plan | None = None, file: Path | None = None, synchronisation: str = "completion"
    ) -> None:
        self.plan = read_plan(plan, file)
        self.synchronisation = one_of("replay", "synchronisation", synchronisation, SYNCHRONISATIONS)

    def as_data(self, job: Job) -> Order:
        """Return the tasks of every issuer.

        Raises
        ------
        UnknownNameError
            An op, issuer or device that graph or machine does not have.
        InputError
            A task that is missing or doubled, on another device than it is placed on, or issued by
            someone who does not serve it.
        """
        plan = self.plan
        op, keys = _tasks(job, plan)
        device = np.array(_devices(job.machine, plan), dtype=np.int64)[plan.stream]
        _require_placement(job, op, device)
        issuers = job.machine.issuers()
        index = {issuer.name: issuer.index for issuer in issuers}
        for name in plan.issuers:
            if name not in index:
                raise UnknownNameError("issuer", name, index)
        by = np.array([index[name] for name in plan.issuers], dtype=np.int64)[plan.issuer]
        group = np.array([issuer.group for issuer in issuers])
        wrong = group[by] != job.group_of[op]
        if wrong.any():
            k = int(wrong.argmax())
            raise InputError(
                f"replay: the plan lets {issuers[by[k]].name} issue op {job.graph.op_names[op[k]]!r}, "
                f"which is on {job.machine.devices[device[k]].name} and not its to issue"
            )
        return Order("place", [keys[by == issuer.index] for issuer in issuers], 1, "issuer")

    def not_before_ns(self, job: Job) -> IntArray | None:
        """Return until when the tasks of the plan wait on purpose (see `sim.policy.Policy`)."""
        if self.plan.not_before_ns is None:
            return None
        _, keys = _tasks(job, self.plan)
        until = np.zeros(len(keys), np.int64)
        until[keys] = self.plan.not_before_ns
        return until


class Planned(Placement):
    """The placement, stream assignment and program order of a plan.

    Parameters
    ----------
    plan : Plan, optional
    file : path, optional
        A file with the plan, in place of the plan.

    Raises
    ------
    InputError
        Not exactly one of them, or a file that holds no plan.

    Examples
    --------
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from sim.job.job import Placement
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", duration_ns=10), b.op("b", duration_ns=10)
    >>> graph, machine = b.build(), Machine((Device("gpu0"), Device("gpu1")))
    >>> class Apart(Placement):
    ...     def place(self, graph, machine, cost_ns):
    ...         return [1, 0]
    >>> plan = simulate(graph, machine, ReadyQueue(), placement=Apart()).plan()
    >>> simulate(graph, machine, ReplayPlan(plan), placement=Planned(plan)).makespan_ns
    10
    """

    def __init__(self, plan: Plan | None = None, file: Path | None = None) -> None:
        self.plan = read_plan(plan, file)

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        UnknownNameError
            An op or device that graph or machine does not have.
        InputError
            An op that the plan leaves out or has on two devices.
        """
        return self._per_op(graph, _devices(machine, self.plan), "device")

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device.

        Raises
        ------
        UnknownNameError
            An op, device or stream that graph or machine does not have.
        InputError
            An op that the plan leaves out or has on two streams.
        """
        machine, plan = job.machine, self.plan
        lane_of: dict[str, int] = {}
        for device, first in zip(machine.devices, machine.first_stream, strict=False):
            if device.workers:  # a worker runs what it takes: its tasks have no stream of their own
                lane_of |= {machine.stream_name(first + k): 0 for k in range(device.lanes)}
                continue
            # The streams of one process after another, as `sim.issuers.with_processes` puts them.
            several, each = len(process_names(job.graph)) or 1, device.lanes
            if device.for_streams is not None and several == 1:  # it has as many as the plan uses
                each += len(plan.streams)
            lane_of |= {f"{device.name}/{k}": k % each for k in range(several * each)}
        for name in plan.streams:
            if name not in lane_of:
                raise UnknownNameError("stream", name, lane_of)
        lanes = [lane_of[name] for name in plan.streams]
        return self._per_op(job.graph, lanes, "stream")

    def order(self, job: Job) -> Sequence[int]:
        """Return the ops in the order in which the plan first issues them.

        Raises
        ------
        UnknownNameError
            An op that the graph does not have.
        """
        op = [job.graph.index(name) for name in self.plan.ops]
        return list(dict.fromkeys(op[k] for k in self.plan.op.tolist()))

    def _per_op(self, graph: Graph, of_stream: list[int], what: str) -> list[int]:
        """Return the value of each op's tasks, which must agree."""
        found: dict[int, int] = {}
        op = [graph.index(name) for name in self.plan.ops]
        for k, stream in zip(self.plan.op.tolist(), self.plan.stream.tolist(), strict=True):
            if found.setdefault(op[k], of_stream[stream]) != of_stream[stream]:
                raise InputError(f"replay: the plan has op {self.plan.ops[k]!r} on more than one {what}")
        missing = [name for k, name in enumerate(graph.op_names) if k not in found]
        if missing:
            raise InputError(f"replay: the plan leaves out op {missing[0]!r} of graph {graph.name!r}")
        return [found[k] for k in range(len(graph))]


def _devices(machine: Machine, plan: Plan) -> list[int]:
    """Return the device index of each stream of the plan."""
    return [machine.device_index(name) for name in plan.devices]


def _tasks(job: Job, plan: Plan) -> tuple[IntArray, IntArray]:
    """Return the op of each task of a plan, and its number in the job, which has each once."""
    op = np.array([job.graph.index(name) for name in plan.ops], dtype=np.int64)[plan.op]
    keys = plan.iteration * len(job.graph) + op
    _require_each_once(job, keys.tolist())
    return op, keys


def _require_each_once(job: Job, keys: list[int]) -> None:
    n = len(job.graph)
    total = n * job.iterations
    count = Counter(keys)
    wrong = next((key for key in (*range(total), *keys) if count[key] != 1 or not 0 <= key < total), None)
    if wrong is not None:
        iteration, op = divmod(wrong, n)
        times = {0: "leaves out", 1: "has"}.get(count[wrong], f"has {count[wrong]} times")
        raise InputError(
            f"replay: the plan {times} op {job.graph.op_names[op]!r} of iteration {iteration}; "
            f"the run has {n} ops and {job.iterations} iteration(s), each task once"
        )


def _require_placement(job: Job, op: IntArray, device: IntArray) -> None:
    elsewhere = job.device_of[op] != device
    if elsewhere.any():
        k = int(elsewhere.argmax())
        names = [d.name for d in job.machine.devices]
        raise InputError(
            f"replay: the plan has op {job.graph.op_names[op[k]]!r} on {names[device[k]]}, and it is placed "
            f"on {names[job.device_of[op[k]]]}; use the plan's placement too (placement: replay)"
        )
