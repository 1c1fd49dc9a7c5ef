"""Replay: follow a plan from any source.

::

    trace.plan() ──► plan ──► Replay    each issuer takes its own tasks, in its own order
                       └────► Planned   the devices, streams and program order that go with them

A plan says who puts which task where and in which order. Its only times are those until which ops wait on
purpose (`sim.record.plan`), so the same plan can be tried on a machine with other costs, or with a task
moved. A plan that does not fit the graph or the machine is refused before time 0.

A plan keeps the order of each CPU worker, but not which of two workers was first. Where that matters, as
under in-order issue or when two workers begin collectives of one communicator, a replay may differ.
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
from sim.base.errors import InputError, UnknownNameError, error_path
from sim.base.files import read_text
from sim.issuers import process_names
from sim.job.job import Placement
from sim.policy import Order
from sim.record.plan import Plan


def read_plan(plan: Plan | None, file: Path | None) -> Plan:
    """Return `plan`, or read it from `file` (`sim.record.plan.Plan.to_json`); give exactly one.

    Raises
    ------
    InputError
        If both or neither are given, or the file cannot be read or holds no plan.
    """
    if (plan is None) == (file is None):
        raise InputError("replay: give either a plan or the file of one")
    if plan is not None:
        return plan
    with error_path("file"):
        return Plan.from_json(read_text(file or ""))


class ReplayPlan(ProgramOrder):
    """Each issuer takes its tasks from a plan, in the plan's order.

    Parameters
    ----------
    plan : Plan, optional
    file : path, optional
        A file with the plan, in place of `plan`.
    synchronisation : str
        ``"completion"`` or ``"issue"``. A plan does not record it; the value of the original run
        reproduces its times.

    Raises
    ------
    InputError
        If not exactly one of plan and file is given, the file holds no plan, or the word is unknown.

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

    @error_path("plan")
    def as_data(self, job: Job) -> Order:
        """Return the tasks of every issuer.

        Raises
        ------
        UnknownNameError
            If the graph or the machine lacks an op, issuer or device of the plan.
        InputError
            If a task is missing, appears twice, is not on the device it is placed on, or is issued by
            an issuer that does not serve that device.
        """
        plan = self.plan
        op, keys = _tasks(job, plan)
        device = np.array(_devices(job.machine, plan), dtype=np.int64)[plan.stream]
        issuers, names = job.machine.issuers(), [entry.name for entry in job.machine.devices]
        elsewhere = job.device_of[op] != device
        if elsewhere.any():
            k = int(elsewhere.argmax())
            raise InputError(
                f"replay: the plan has op {job.graph.op_names[op[k]]!r} on {names[device[k]]}, and it is "
                f"placed on {names[job.device_of[op[k]]]}; use the plan's placement too (placement: replay)"
            )
        index = {issuer.name: issuer.index for issuer in issuers}
        for name in plan.issuers:
            if name not in index:
                raise UnknownNameError("issuer", name, index)
        issuer_of = np.array([index[name] for name in plan.issuers], dtype=np.int64)[plan.issuer]
        group = np.array([issuer.group for issuer in issuers])
        wrong = group[issuer_of] != job.group_of[op]
        if wrong.any():
            k = int(wrong.argmax())
            raise InputError(
                f"replay: the plan lets {issuers[issuer_of[k]].name} issue op {job.graph.op_names[op[k]]!r}, "
                f"which is on {names[device[k]]} and not its to issue"
            )
        return Order("place", [keys[issuer_of == issuer.index] for issuer in issuers], 1, "issuer")

    def not_before_ns(self, job: Job) -> IntArray | None:
        """Return the times until which the plan's tasks wait on purpose (see `sim.policy.Policy`)."""
        if self.plan.not_before_ns is None:
            return None
        _, keys = _tasks(job, self.plan)
        not_before = np.zeros(len(keys), np.int64)
        not_before[keys] = self.plan.not_before_ns
        return not_before


class Planned(Placement):
    """The placement, stream assignment and program order of a plan.

    Parameters
    ----------
    plan : Plan, optional
    file : path, optional
        A file with the plan, in place of `plan`.

    Raises
    ------
    InputError
        If not exactly one is given, or the file holds no plan.

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

    @error_path("placement")
    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        UnknownNameError
            If the graph or the machine lacks an op or device of the plan.
        InputError
            If the plan leaves out an op or has it on two devices.
        """
        return self._per_op(graph, _devices(machine, self.plan), "device")

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device.

        Raises
        ------
        UnknownNameError
            If the graph or the machine lacks an op, device or stream of the plan.
        InputError
            If the plan leaves out an op or has it on two streams.
        """
        machine, plan = job.machine, self.plan
        lane_of: dict[str, int] = {}
        for device, first in zip(machine.devices, machine.first_stream, strict=False):
            if device.workers:  # workers have no streams
                lane_of |= {machine.stream_name(first + k): 0 for k in range(device.lanes)}
                continue
            # Streams go process by process, as in `sim.issuers.with_processes`.
            several, n_lanes = len(process_names(job.graph)) or 1, device.lanes
            if device.for_streams is not None and several == 1:  # the device takes as many as the plan uses
                n_lanes += len(plan.streams)
            lane_of |= {f"{device.name}/{k}": k % n_lanes for k in range(several * n_lanes)}
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
            If the graph lacks an op of the plan.
        """
        op = [job.graph.index(name) for name in self.plan.ops]
        return list(dict.fromkeys(op[k] for k in self.plan.op.tolist()))

    def _per_op(self, graph: Graph, of_stream: list[int], noun: str) -> list[int]:
        """Return the value of each op's tasks, which must agree."""
        values: dict[int, int] = {}
        op = [graph.index(name) for name in self.plan.ops]
        for k, stream in zip(self.plan.op.tolist(), self.plan.stream.tolist(), strict=True):
            if values.setdefault(op[k], of_stream[stream]) != of_stream[stream]:
                raise InputError(f"replay: the plan has op {self.plan.ops[k]!r} on more than one {noun}")
        missing = [name for k, name in enumerate(graph.op_names) if k not in values]
        if missing:
            raise InputError(f"replay: the plan leaves out op {missing[0]!r} of graph {graph.name!r}")
        return [values[k] for k in range(len(graph))]


def _devices(machine: Machine, plan: Plan) -> list[int]:
    """Return the device index of each stream of the plan."""
    return [machine.device_index(name) for name in plan.devices]


def _tasks(job: Job, plan: Plan) -> tuple[IntArray, IntArray]:
    """Return the op of each task of a plan and its number in the job; the plan must have each task once."""
    op = np.array([job.graph.index(name) for name in plan.ops], dtype=np.int64)[plan.op]
    keys = plan.iteration * len(job.graph) + op
    n, total, count = len(job.graph), len(job.graph) * job.iterations, Counter(keys.tolist())
    wrong = next((key for key in (*range(total), *count) if count[key] != 1 or not 0 <= key < total), None)
    if wrong is not None:
        iteration, wrong_op = divmod(wrong, n)
        times = {0: "leaves out", 1: "has"}.get(count[wrong], f"has {count[wrong]} times")
        raise InputError(
            f"replay: the plan {times} op {job.graph.op_names[wrong_op]!r} of iteration {iteration}; "
            f"the run has {n} ops and {job.iterations} iteration(s), each task once"
        )
    return op, keys
