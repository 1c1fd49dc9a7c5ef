"""Build a job from a graph and a machine: costs, placement, knowledge, noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import is_
from typing import TYPE_CHECKING

import numpy as np

from sim.base.arrays import LATEST_NS, UNSET, Codes, IntArray, freeze, most_by
from sim.base.errors import InfeasibleError, InputError, hint
from sim.base.options import require_call, whole_numbers
from sim.base.room import EDGE_BYTES, TASK_BYTES, check_room
from sim.base.units import NS_PER_S, format_duration
from sim.graph.frames import has_control_flow
from sim.graph.graph import Graph
from sim.job.collectives import Collectives, is_modelled, modelled_ns, modelled_ops
from sim.job.costs import cost_the_same, costs_ns, known_costs
from sim.job.job import Job, Linearizer, Placement, StreamAssignment, drawing
from sim.job.places import PinnedPlacement, first_able, off_its_pin
from sim.machine.device import Device
from sim.machine.machine import Machine

if TYPE_CHECKING:
    from sim.faults import Faults
    from sim.job.noise import Noise


def _costs_by_device(graph: Graph, machine: Machine) -> list[IntArray]:
    """Return `costs_ns` for each device; devices with identical costs share one array."""
    cached: list[tuple[Device, IntArray]] = []
    columns = []
    for device in machine.devices:
        named = device.name in graph.duration_by_kind
        columns_alike = (column for other, column in cached if cost_the_same(device, other))
        column = None if named else next(columns_alike, None)
        if column is None:
            column = costs_ns(graph, device)
            ops = modelled_ops(graph, machine, device)  # their ranks are unknown until ops are placed
            column[ops[column[ops] == UNSET]] = 0
            if not named:
                cached.append((device, column))
        columns.append(column)
    return columns


def make_job(
    graph: Graph,
    machine: Machine,
    *,
    placement: Placement | None = None,
    streams: StreamAssignment | None = None,
    linearize: Linearizer | None = None,
    iterations: int = 1,
    knowledge: str = "exact",
    estimate_error: float = 0.2,
    noise: Noise | None = None,
    seed: int = 0,
    may_fail: bool = True,
    faults: Faults | None = None,
) -> Job:
    """Place the ops and gather everything that is decided before time 0.

    Parameters
    ----------
    graph, machine
    placement : Placement, optional
        By default ops run where they are pinned, others on the first accelerator that can, or else on a CPU
        (`sim.job.places.PinnedPlacement`).
    streams : StreamAssignment, optional
        By default all ops run on the first stream of their device.
    linearize : Linearizer, optional
        By default the topological order with the least index first.
    iterations : int
        How many times the graph runs.
    knowledge : str
        What placements and policies may know about durations (noise is never known): ``exact``; ``mean`` of
        the op's kind; ``estimate``, off by a factor drawn for each op; ``none``, 1 for each.
    estimate_error : float
        Standard deviation of the logarithm of that factor.
    noise : Noise, optional
        How the durations of tasks vary.
    seed : int
    may_fail : bool
        Whether ops with the attribute ``fails`` fail (`sim.graph.failures`). Policies do not know it.
    faults : Faults, optional
        Which parts of the machine fail or become slow. Policies do not know this in advance, either.

    Raises
    ------
    InputError
        A wrong number, pin or word, or an invalid attribute ``fails`` (`sim.graph.failures`).
    InfeasibleError
        No device can run an op, or an op was placed where it cannot run.
    """
    for option, number, minimum in (("iterations", iterations, 1), ("seed", seed, 0)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < minimum:
            raise InputError(f"{option} should be a whole number from {minimum} on, not {number!r}")
    for option, chooser, method in (("streams", streams, "assign"), ("linearize", linearize, "order")):
        if chooser is not None:
            require_call(option, chooser, "job", method=method)
    tasks = len(graph) * iterations
    edges = (len(graph.inputs.indices) + len(graph.after.indices)) * iterations
    check_room(tasks * TASK_BYTES + edges * EDGE_BYTES, f"{tasks:,} tasks with {edges:,} edges")
    cost_ns = _costs_by_device(graph, machine)
    known_ns = known_costs(knowledge, graph, cost_ns, partial(drawing, "estimates", seed), estimate_error)
    freeze(*cost_ns, *known_ns)  # placements and policies see all of these
    device_of, duration_ns = _place_ops(graph, machine, placement or PinnedPlacement(), cost_ns, known_ns)
    expected_ns = duration_ns if known_ns is cost_ns else _costs_on_devices(known_ns, device_of)
    job = Job(graph, machine, device_of, duration_ns, expected_ns, iterations, seed, linearize, streams)
    job.known_costs_ns = tuple(known_ns)
    if job.collectives is not None:
        _time_collectives(job, job.collectives, knowledge, estimate_error)
    freeze(job.duration_ns, job.known_ns)
    draw(job, noise, may_fail=may_fail)
    job.faults = faults if faults is not None and faults.causes else None
    _check_resources(job)
    job.machine = _with_streams(job)
    return job


def _check_resources(job: Job) -> None:
    """Raise if ops take resources that the machine lacks, or hold them while waiting for other ranks."""
    available, graph = job.machine.resources, job.graph
    for op, needs in graph.attribute("resources").items():
        for name, n in needs.items():
            if name not in available:
                unknown = f"takes {name!r}, which is no resource of the machine{hint(name, available)}"
                raise graph.fault(op, unknown, "resources")
            if n > available[name]:
                problem = f"takes {n} of {name}, of which the machine has {available[name]}"
                raise InfeasibleError(f"op {graph.op_names[op]!r} {problem}").about(graph.op_names[op])
        if job.meets[op]:
            raise graph.fault(op, "meets other ranks, and cannot hold resources until they come", "resources")
    for op in graph.attribute("weight"):
        if op not in graph.attribute("due"):
            raise graph.fault(op, "has a weight, and no due date", "weight")
    if graph.attribute("release") and job.faults is not None:
        raise InputError("ops have a release, which no restart of a failed machine can keep")


def draw(job: Job, noise: Noise | None, *, may_fail: bool = True) -> None:
    """Record what the seed of a job determines before time 0: durations, and which tasks fail."""
    graph = job.graph
    if noise is not None:
        from sim.job.noise import draw_by_tag

        expected_ns = noise.expected_ns(job.duration_ns, job.device_of, job.machine)
        if has_control_flow(graph):
            job.drawn = partial(draw_by_tag, noise, expected_ns, job.seed)
        else:
            job.noisy_ns = noise.draw(expected_ns, (job.iterations, len(graph)), job.rng("noise"))
    if may_fail and graph.attribute("fails"):
        from sim.graph.failures import Failures

        job.failures = Failures.of(graph, job.iterations, job.seed)
    _check_total(job)


def _place_ops(
    graph: Graph, machine: Machine, chooser: Placement, cost_ns: list[IntArray], known_ns: Sequence[IntArray]
) -> tuple[IntArray, IntArray]:
    """Return the device of each op, and its duration there."""
    if not isinstance(chooser, Placement):
        raise InputError(f"the placement, a {type(chooser).__name__}, should extend sim.job.job.Placement")
    first = first_able(graph, machine, cost_ns, pinned=not chooser.soft)
    nowhere = first == UNSET
    if nowhere.any():
        op = int(nowhere.argmax())
        raise InfeasibleError(_why_nowhere(graph, machine, op, int(nowhere.sum()))).about(graph.op_names[op])
    device_of = whole_numbers(
        chooser.place(graph, machine, tuple(known_ns)),
        f"{type(chooser).__name__}.place",
        len(graph),
        below=len(machine.devices),
        of=graph.op_names,
    )
    if not chooser.soft and (op_away := off_its_pin(graph, machine, device_of)) is not None:
        device, pin = machine.devices[int(device_of[op_away])], graph.pins[int(graph.pin_code[op_away])]
        name = graph.op_names[op_away]
        message = f"the placement puts op {name!r} on {device.name}; it is pinned to {pin!r}"
        raise InputError(message).about(name)
    duration_ns = _costs_on_devices(cost_ns, device_of)
    if (duration_ns == UNSET).any():
        op = int((duration_ns == UNSET).argmax())
        device = machine.devices[int(device_of[op])]
        reason = _refusal(device, graph, op)
        raise InfeasibleError(
            f"the placement puts op {graph.op_names[op]!r} on {device.name}, which cannot run it"
            + (f": {reason}" if reason else "")
        ).about(graph.op_names[op])
    device_of = device_of.view()
    freeze(device_of)
    return device_of, duration_ns


def _with_streams(job: Job) -> Machine:
    """Return the machine with as many streams as are assigned on devices that leave the number open."""
    machine = job.machine
    if job.streams is None or all(device.for_streams is None for device in machine.devices):
        return machine
    needed = most_by(job.device_of, job.lane + 1, len(machine.devices))
    devices = tuple(
        device.for_streams(device, n) if device.for_streams is not None and n > device.lanes else device
        for device, n in zip(machine.devices, needed.tolist(), strict=True)
    )
    return machine if all(map(is_, devices, machine.devices)) else replace(machine, devices=devices)


def _time_collectives(job: Job, c: Collectives, knowledge: str, estimate_error: float) -> None:
    """Set the durations of collectives from the machine's model, now that their ranks are known."""
    modelled = is_modelled(job.graph, job.machine, c)
    if not modelled.any():
        return
    ops = c.op[modelled]
    job.duration_ns[ops] = modelled_ns(job.graph, job.machine, c, modelled)
    rng = partial(drawing, "estimates", job.seed)
    job.known_ns[ops] = known_costs(knowledge, job.graph, [job.duration_ns], rng, estimate_error)[0][ops]


def _check_total(job: Job) -> None:
    """Raise if the total work does not fit the 64 bits in which times are counted."""
    total = job.iterations * job.duration_ns.sum(dtype=float)
    if job.noisy_ns is not None:
        total = job.noisy_ns.sum(dtype=float)
    if total >= LATEST_NS:
        longest = int(job.duration_ns.argmax())
        name = job.graph.op_names[longest]
        duration = format_duration(int(job.duration_ns[longest]))
        raise InputError(
            f"all tasks take {total / NS_PER_S:.3g} s together, more than the {LATEST_NS / NS_PER_S:.3g} s "
            f"(146 years) that can be counted; the longest op, {name!r}, takes {duration}"
        ).about(name)


def _costs_on_devices(cost_ns: Sequence[IntArray], device_of: IntArray) -> IntArray:
    """Return the cost of each op on its device."""
    cost, different = np.empty(len(device_of), np.int64), {id(column): column for column in cost_ns}
    column_of = Codes[int]().of(map(id, cost_ns))[device_of]
    for code, column in enumerate(different.values()):
        mask = column_of == code
        cost[mask] = column[mask]
    return cost


def _why_nowhere(graph: Graph, machine: Machine, op: int, count: int) -> str:
    kind = graph.kind(op)
    more = f" (and {count - 1} more)" if count > 1 else ""
    pinned_to = "" if graph.pin_code[op] == UNSET else graph.pins[int(graph.pin_code[op])]
    pin = f", pinned to {pinned_to!r}," if pinned_to else ""
    candidates = [d for d in machine.devices if not pinned_to or pinned_to in (d.name, d.kind)]
    devices = "; ".join(f"{d.name} ({d.kind}) {_why_not(d, graph, op)}" for d in candidates)
    return f"op {graph.op_names[op]!r} of kind {kind!r}{more}{pin} can run on no device: {devices}"


def _why_not(device: Device, graph: Graph, op: int) -> str:
    """Return in words why an op has no cost on a device."""
    if device.kinds is not None and graph.kind(op) not in device.kinds:
        return "does not support it"
    if reason := _refusal(device, graph, op):
        return f"cannot: {reason}"
    return "has no cost model, and the op no duration" if device.cost is None else "has no cost for it"


def _refusal(device: Device, graph: Graph, op: int) -> str | None:
    """Return why the cost model of a device refuses an op, if it gives a reason."""
    return None if device.cost is None else device.cost.why_not(graph, op, device)
