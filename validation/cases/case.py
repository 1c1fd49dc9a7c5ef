"""A case: one graph on one machine, executed under a plan or driven by a policy.

It is data, so that it can be written to a file, hashed, and rebuilt on the measuring machine. It has no
durations: the simulator takes them from a calibration, a real machine takes its own time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from devices.cost.calibration import Calibration
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import CriticalPath, ReadyQueue
from policies.linearize import UserOrder
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph
from sim.job.build_job import make_job
from sim.job.job import Decided, Job
from sim.machine.device import Details, Device
from sim.machine.machine import Machine
from sim.policy import Policy
from sim.record.plan import Plan
from sim.simulation import simulate
from validation.cases.calibrated import lookup, quantity
from validation.cases.slowed_workers import Waking
from validation.real.measured_kernels import HOLDS_HOST

_POLICIES: Final[Mapping[str, Callable[..., Policy]]] = {
    "critical-path": CriticalPath,
    "in-order": InOrder,
    "out-of-order": OutOfOrder,
    "ready-queue": ReadyQueue,
}

_HOST: Final = ("issue_ns", "launch_latency_ns")
_STREAM: Final = ("gap_ns", "event_ns")
"""Costs of the host and the streams of a device: fields of a device, and quantities of a calibration."""


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class CaseOp:
    """One op: its name, its kernel (`validation.real.measured_kernels`), its inputs and its
    place.

    Attributes
    ----------
    name, kind : str
    inputs : sequence of str
    facts : mapping
        Attributes of the kernel.
    device : str
    lane : int
        Stream of the device; meaningless on workers.
    """

    name: str
    kind: str
    inputs: Sequence[str]
    facts: Mapping[str, int]
    device: str
    lane: int = 0


@dataclass(frozen=True)
class Case:
    """One graph on one machine under one plan or policy.

    Attributes
    ----------
    name : str
        Unique in its experiment.
    experiment, split : str
        ``"e-random"``; ``"test"``, ``"development"`` or ``"calibration"``.
    ops : sequence of CaseOp
    devices : mapping of str to mapping
        By name: ``{"workers": 2}`` or ``{"streams": 4}``.
    order : sequence of str
        Program order; empty: as the ops are given.
    policy : mapping, optional
        Name and options of the driving policy; None: a plan is executed.
    group : str
        Cases of a group differ only in their policy: their makespans are compared with one another.
    label : str
        Name of the policy within the group.
    """

    name: str
    experiment: str
    split: str
    ops: Sequence[CaseOp]
    devices: Mapping[str, Mapping[str, int]]
    order: Sequence[str] = ()
    policy: Mapping[str, Any] | None = None
    group: str = ""
    label: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Case:
        """Rebuild a case from the result of `to_json`."""
        return cls(**{**content, "ops": [CaseOp(**op) for op in content["ops"]]})

    def to_json(self) -> dict[str, Any]:
        """Return the case as a JSON value."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @property
    def digest(self) -> str:
        """Hash of the case; equal cases have equal hashes."""
        return digest(self.to_json())

    @property
    def gated(self) -> bool:
        """Whether a GPU's queues are filled before the clock starts: for plans, unless about the host."""
        return self.policy is None and bool(self.notes.get("gated", True))

    def make_policy(self) -> Policy:
        """Return the driving policy, or in-order issue if a plan is executed."""
        if self.policy is None:
            return InOrder(synchronisation="issue")
        options = dict(self.policy)
        return _POLICIES[options.pop("name")](**options)

    def graph(self, duration_ns: Sequence[int] | None = None) -> Graph:
        """Return the graph; ops take 1 ns if no durations are given."""
        builder = GraphBuilder(self.name)
        for k, op in enumerate(self.ops):
            builder.op(
                op.name,
                kind=op.kind,
                inputs=op.inputs,
                device=op.device,
                attributes=dict(op.facts),
                duration_ns=1 if duration_ns is None else int(duration_ns[k]),
            )
        return builder.build()

    def durations_ns(self, calibration: Calibration) -> list[int]:
        """Return each op's duration from a calibration, alone on its device."""
        return self._looked_up(calibration, "warm" if self._whole(calibration) else self._part)

    def busy_durations_ns(self, calibration: Calibration) -> list[int] | None:
        """Return the same while the other partitions of a GPU are busy; None if there are none or unknown."""
        busy = f"{self._part} busy"
        if self._whole(calibration) or not any(table["context"] == busy for table in calibration.tables):
            return None
        return self._looked_up(calibration, busy)

    def _whole(self, calibration: Calibration) -> bool:
        return calibration.backend != "cuda" or len(self.devices) == 1

    @property
    def _part(self) -> str:
        return f"partition {len(self.devices)}"

    def _looked_up(self, calibration: Calibration, context: str) -> list[int]:
        return [
            lookup(
                calibration,
                op.kind,
                context=context,
                **{k: v for k, v in op.facts.items() if k != "issue_sleep_ns"},
            )
            for op in self.ops
        ]

    def frame_ns(self, calibration: Calibration) -> int:
        """Return the overhead of the two events around a plan on a GPU: the makespan of an empty plan.

        If the makespan includes the host or a policy, the latencies measured there include the overhead.
        """
        if calibration.backend != "cuda" or not self.gated:
            return 0
        streams = sum(spec["streams"] for spec in self.devices.values())
        return quantity(calibration, f"frame_{streams}_ns", 0)

    def machine(self, calibration: Calibration | None = None, *, looked: bool = False) -> Machine:
        """Return the machine: with the costs of a calibration, or without any.

        Parameters
        ----------
        calibration : Calibration, optional
        looked : bool
            Whether events around every op are recorded on the GPU, as in a run to be replayed.
        """
        return Machine(
            tuple(
                Device(
                    name,
                    "cpu" if "workers" in spec else "gpu",
                    streams=spec.get("streams", 1),
                    workers=spec.get("workers", 0),
                    **({} if calibration is None else self._costs("workers" in spec, calibration, looked)),
                )
                for name, spec in self.devices.items()
            )
        )

    def _costs(self, is_cpu: bool, calibration: Calibration, looked: bool) -> dict[str, Any]:
        """Return the costs of issuing, launching and waiting on a device of the case."""
        if is_cpu:
            awake_ns = quantity(calibration, "decision_ns")
            wake_ns = quantity(calibration, "woken_ns", awake_ns) - awake_ns
            waking = {"processor": Waking, "details": Details(wake_ns=wake_ns)} if wake_ns > 0 else {}
            return {"issue_ns": awake_ns, **waking}
        if calibration.backend == "cuda":
            return self._gpu_costs(calibration, looked)
        costs = {name: quantity(calibration, name) for name in _HOST + _STREAM}
        slept = {op.facts["issue_sleep_ns"] for op in self.ops if "issue_sleep_ns" in op.facts}
        if slept:  # all ops of a case have the same, because a device has one number
            costs["issue_ns"] += lookup(calibration, "sleep", sleep_ns=slept.pop())
        return costs

    def _gpu_costs(self, calibration: Calibration, looked: bool) -> dict[str, Any]:
        """Return the costs of a GPU: filled before the clock starts, fed by a host, or driven by a policy."""
        look = "looked_" if looked else ""
        named = {"gap_ns": f"{look}gap_ns", "event_ns": f"{look}event_ns"}
        if self.policy is not None:
            named |= {
                "issue_ns": "driven_issue_ns",
                "launch_latency_ns": f"driven_{look}latency_ns",
                "gap_ns": f"driven_{look}gap_ns",
            }
        elif not self.gated:  # otherwise the host has no effect
            named |= {name: name for name in _HOST}
        costs: dict[str, Any] = {field: quantity(calibration, name) for field, name in named.items()}
        if not self.gated:
            costs["queue_depth"] = quantity(calibration, "queue_depth", 0) or None
        return costs

    def job(self, duration_ns: Sequence[int] | None = None) -> Job:
        """Return the job, with given durations and no other costs."""
        return make_job(self.graph(duration_ns), self.machine(), **self.decisions())

    def decisions(self) -> dict[str, Any]:
        """Return the decisions besides the policy, as arguments of `sim.simulate`."""
        return {
            "streams": Decided([op.lane for op in self.ops]),
            "linearize": UserOrder(self.order or [op.name for op in self.ops]),
        }

    def simulated(self) -> Case:
        """Return the case to simulate: ops that a copy of pageable memory delays wait for it.

        Such a copy holds the host, so that everything launched later starts later, on any stream; a
        dependency has the same effect. The executed plan has none: there the host itself waits.
        """
        if not any(op.kind in HOLDS_HOST for op in self.ops):
            return self
        ops: list[CaseOp] = []
        holds = ""
        for op in self.ops:
            held = [holds] if holds and holds not in op.inputs else []
            ops.append(replace(op, inputs=[*op.inputs, *held]))
            holds = op.name if op.kind in HOLDS_HOST else holds
        return replace(self, ops=ops)

    def plan(self) -> Plan | None:
        """Return the plan to execute, for a host that issues the program without looking at results.

        None when a policy drives.
        """
        if self.policy is not None:
            return None
        # Launching takes a moment, so that tasks are numbered in the order of the program.
        machine = Machine(tuple(replace(device, issue_ns=1) for device in self.machine().devices))
        # The simulator's kernel needs only numpy, like the measuring machine.
        return simulate(self.graph(), machine, self.make_policy(), engine="kernel", **self.decisions()).plan()
