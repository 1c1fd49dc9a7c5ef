"""A pipeline schedule as a computation graph: every slot of every rank's program is an op.

::

    rank 0   0F0 0F1 ...        op 0F0 on rank0 ──boundary activation──► op 1F0 on rank1
    rank 1       1F0 1F1 ...    op 1B0 on rank1 ──boundary gradient────► op 0B0 on rank0
                                op 0F0 on rank0 ──what B reads─────────► op 0B0 on rank0

What a micro-batch keeps on a rank is a tensor too, read by its backward, so that the memory of a
pipeline needs nothing of its own: it is alive from F (or R) until the last of B, I and W has ended.
The program of a rank is the program order of its device, run in order; what waits for what is all in
the edges. Edges follow `policies.pipeline.schedule`; ``tests/test_pipeline_workload.py`` compares the
outcome with the independent `policies.pipeline.evaluate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.pipeline import Schedule
from policies.pipeline.action import Action, Slot
from policies.pipeline.evaluate import StageTimes
from sim import Device, Graph, GraphBuilder, Link, Machine
from sim.errors import InputError

__all__ = ["PipelineStage", "pipeline_graph", "plain_machine", "program_order", "rank_name"]


@dataclass(frozen=True)
class PipelineStage:
    """One stage: how long its phases take, and what it sends and keeps, per micro-batch.

    Attributes
    ----------
    times : StageTimes
        Durations in ns.
    boundary_nbytes : int
        Size of the activation sent to the next stage, and of the gradient sent back.
    activation_nbytes : int
        What F (or R) leaves for the backward.
    weight_grad_nbytes : int, optional
        The part of it that I leaves for W; by default all of it.
    parameter_nbytes : int
        Resident weights, gradients and optimizer state.
    checkpoint_nbytes : int, optional
        What a recomputed micro-batch keeps from F to R; by default the boundary activation.
    """

    times: StageTimes
    boundary_nbytes: int = 0
    activation_nbytes: int = 0
    weight_grad_nbytes: int | None = None
    parameter_nbytes: int = 0
    checkpoint_nbytes: int | None = None

    @property
    def kept_nbytes(self) -> int:
        """What is left of the activations after I."""
        return self.activation_nbytes if self.weight_grad_nbytes is None else self.weight_grad_nbytes


def rank_name(rank: int) -> str:
    """Return the name of the device on which a rank runs when no machine is given."""
    return f"rank{rank}"


def plain_machine(ranks: int, transfer_ns: int = 0) -> Machine:
    """Return one plain device a rank, and links that take `transfer_ns` whatever they carry.

    Parameters
    ----------
    ranks : int
    transfer_ns : int
        Time between two different ranks; transfers do not disturb one another. 0: no links.
    """
    devices = tuple(Device(rank_name(r)) for r in range(ranks))
    if not transfer_ns:
        return Machine(devices)
    from devices.network import make_network

    links = tuple(
        Link(f"{a.name}->{b.name}", a.name, b.name, latency_ns=transfer_ns, sharing="shared")
        for a in devices
        for b in devices
        if a is not b
    )
    return Machine(devices, links, network=make_network)


def pipeline_graph(
    schedule: Schedule, stages: Sequence[PipelineStage], devices: Sequence[str] | None = None
) -> Graph:
    """Build the graph of `schedule`.

    Parameters
    ----------
    schedule : Schedule
    stages : sequence of PipelineStage
        One a stage.
    devices : sequence of str, optional
        Name of each rank's device; by default `rank_name`.

    Returns
    -------
    Graph
        One op a slot, in the order of the ranks' programs, with stage, micro-batch and phase.

    Raises
    ------
    InputError
        Not as many stages or devices as the schedule has, or a phase without a time.

    Examples
    --------
    >>> from policies.pipeline import generate
    >>> stage = PipelineStage(StageTimes(forward=1, backward=2))
    >>> pipeline_graph(generate("1f1b", ranks=2, micro_batches=2), [stage] * 2)
    <Graph '1f1b': 8 ops, 12 tensors, 8 edges>
    """
    if len(stages) != schedule.stages:
        raise InputError(f"{len(stages)} stages are given, the schedule has {schedule.stages}")
    devices = devices or [rank_name(r) for r in range(schedule.ranks)]
    if len(devices) != schedule.ranks:
        raise InputError(f"{len(devices)} devices are given, the schedule has {schedule.ranks} ranks")
    return _Writer(schedule, stages, devices).build()


def program_order(schedule: Schedule) -> list[str]:
    """Return the names of the ops, rank after rank, each rank's in its program order."""
    return [slot_name(slot) for program in schedule.programs for slot in program]


def slot_name(slot: Slot) -> str:
    """Return what a slot's op is called: ``0F3``, or ``0F5+7B1`` for an overlapped pair.

    A stage that lives on several ranks runs each micro-batch on one of them, so names are unique.
    """
    return "+".join(str(action) for action in slot.parts)


class _Writer:
    """Writes the ops of one graph; an action's op is known before it is written."""

    def __init__(self, schedule: Schedule, stages: Sequence[PipelineStage], devices: Sequence[str]) -> None:
        self.schedule, self.stages, self.devices = schedule, stages, devices
        self.builder = GraphBuilder(schedule.name)
        self.recomputes = {a for r in range(schedule.ranks) for a in schedule.actions(r) if a.phase == "R"}
        self.op_of: dict[Action, str] = {}
        self.place: dict[Action, int] = {}  # position of an action's outputs in its op's
        self.outputs: dict[str, list[int]] = {}
        for program in schedule.programs:
            for slot in program:
                name = slot_name(slot)
                sizes: list[int] = []
                for action in slot.parts:
                    self.op_of[action] = name
                    self.place[action] = len(sizes)
                    sizes += self._outputs(action)
                self.outputs[name] = sizes

    def build(self) -> Graph:
        for rank in range(self.schedule.ranks):
            for stage in self.schedule.stages_of(rank):
                if self.stages[stage].parameter_nbytes:
                    nbytes = self.stages[stage].parameter_nbytes
                    self.builder.parameter(self._parameters(rank, stage), nbytes)
        for rank, program in enumerate(self.schedule.programs):
            for slot in program:
                self._write(rank, slot)
        return self.builder.build()

    def _parameters(self, rank: int, stage: int) -> str:
        return f"parameters of stage {stage} on {self.devices[rank]}"

    def _outputs(self, action: Action) -> list[int]:
        """Return the sizes of what an action sends on, and of what it keeps for later actions."""
        stage = self.stages[action.stage]
        recomputed = action._replace(phase="R") in self.recomputes
        passing = stage.activation_nbytes - stage.kept_nbytes  # what I is done with
        boundary = stage.boundary_nbytes
        checkpoint = boundary if stage.checkpoint_nbytes is None else stage.checkpoint_nbytes
        if action.phase == "F":
            return [boundary, checkpoint, 0] if recomputed else [boundary, passing, stage.kept_nbytes]
        if action.phase == "R":  # the stage input, kept to the end, is part of the activations
            return [0, passing, max(0, stage.kept_nbytes - checkpoint)]
        return [stage.boundary_nbytes if action.phase in "BI" and action.stage else 0]

    def _tensor(self, action: Action, k: int) -> str:
        """Return the name of output `k` of an action."""
        op = self.op_of[action]
        at = self.place[action] + k
        return f"{op}:{at}" if at else op

    def _inputs(self, action: Action) -> list[str]:
        stage, phase, k = action
        schedule = self.schedule
        if phase == "F":
            return [self._tensor(Action(stage - 1, "F", k), 0)] if stage else []
        if phase == "R":
            return [self._tensor(Action(stage, "F", k), 1)]
        forward = Action(stage, "R" if Action(stage, "R", k) in self.recomputes else "F", k)
        kept = [self._tensor(forward, 2)]
        if forward.phase == "R":
            kept.append(self._tensor(Action(stage, "F", k), 1))
        if phase == "W":
            return [self.op_of[Action(stage, "I", k)], *kept]
        kept.append(self._tensor(forward, 1))
        if stage + 1 < schedule.stages:
            after = Action(stage + 1, "B", k)
            gradient = after if after in self.op_of else Action(stage + 1, "I", k)
            kept.append(self._tensor(gradient, 0))
        return kept

    def _write(self, rank: int, slot: Slot) -> None:
        first = slot.parts[0]
        name = self.op_of[first]
        inputs = [tensor for action in slot.parts for tensor in self._inputs(action)]
        for stage in dict.fromkeys(action.stage for action in slot.parts):
            if self.stages[stage].parameter_nbytes:
                inputs.append(self._parameters(rank, stage))
        phases = "+".join(action.phase for action in slot.parts)
        self.builder.op(
            name,
            kind=phases,
            inputs=inputs,
            outputs=self.outputs[name],
            duration_ns=self._duration(slot),
            device=self.devices[rank],
            stage=first.stage,
            micro_batch=first.micro_batch,
            phase=phases,
        )

    def _duration(self, slot: Slot) -> int:
        for action in slot.parts if len(slot.parts) > 1 else ():
            together = self.stages[action.stage].times.overlapped
            if action.phase == "F" and together is not None:
                return together
        return sum(self.stages[action.stage].times.of(action.phase) for action in slot.parts)
