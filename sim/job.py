"""The job: a graph, a machine, and what is decided before time 0.

`make_job` asks every device's cost model for the ops, places the ops, and leaves the rest (streams,
program order) to be computed when a policy or the engine first asks for it, so that a decision
that nobody uses costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sim.device import Device
from sim.errors import InfeasibleError, InputError
from sim.frames import has_control_flow
from sim.graph import UNSET, Graph, IntArray, longest_path_ns
from sim.machine import Machine
from sim.noise import Noise, draw_durations

__all__ = ["Job", "Linearizer", "Placement", "StreamAssignment", "costs_ns", "make_job"]


@dataclass(eq=False)
class Job:
    """What a policy may look at before time 0.

    Attributes
    ----------
    graph : Graph
    machine : Machine
    device_of : array of int
        Device index of every op.
    duration_ns : array of int64
        How long each op takes on its device, noise left out.
    known_ns : array of int64
        What the policy may know of that (the scenario's `knowledge`).
    iterations : int
    seed : int
        For decisions that draw: use ``job.rng("what for")``.
    noisy_ns : array of int64, shape (iterations, ops), optional
        How long each task really takes, when there is noise.
    issue_ns : array of int64, optional
        What issuing each op costs its issuer, in place of what the devices say.
    """

    graph: Graph
    machine: Machine
    device_of: IntArray
    duration_ns: IntArray
    known_ns: IntArray
    iterations: int = 1
    seed: int = 0
    linearize: Linearizer | None = None
    streams: StreamAssignment | None = None
    noisy_ns: IntArray | None = None
    issue_ns: IntArray | None = None

    def task_ns(self, op: IntArray, iteration: IntArray) -> IntArray:
        """Return how long tasks take when nothing else disturbs them, noise included."""
        if self.noisy_ns is None:
            return self.duration_ns[op]
        drawn: IntArray = self.noisy_ns[iteration, op]
        return drawn

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator that depends on the seed and on what it is for, and on nothing else."""
        return np.random.default_rng([self.seed, *purpose.encode()])

    @cached_property
    def launched(self) -> npt.NDArray[np.bool_]:
        """Whether each op is launched on a stream; otherwise a worker of its CPU executes it."""
        return np.array([device.workers == 0 for device in self.machine.devices])[self.device_of]

    @cached_property
    def group_of(self) -> IntArray:
        """Group of issuers that serves each op."""
        return self.machine.group_of[self.device_of]

    @cached_property
    def n_groups(self) -> int:
        """Number of groups of issuers."""
        return 1 + int(self.machine.group_of.max())

    @cached_property
    def order(self) -> IntArray:
        """The program order: what the linearizer gives, else topological, least index first.

        Raises
        ------
        InputError
            When the linearizer does not return every op once.
        """
        if self.linearize is None:
            return self.graph.topological_order
        order = np.asarray(self.linearize.order(self), dtype=np.int64)
        if len(order) != len(self.graph) or not np.array_equal(np.sort(order), np.arange(len(order))):
            raise InputError(
                f"linearizer {type(self.linearize).__name__} did not return every op exactly once"
            )
        return order

    @cached_property
    def programs(self) -> list[list[int]]:
        """The program order of each group of issuers."""
        programs: list[list[int]] = [[] for _ in range(self.n_groups)]
        group_of = self.group_of.tolist()
        for op in self.order.tolist():
            programs[group_of[op]].append(op)
        return programs

    @cached_property
    def stream_of(self) -> IntArray:
        """Stream of each op, counted over the machine; the first lane of its device by default.

        Raises
        ------
        InputError
            When the assignment names a stream that the device does not have.
        """
        first = np.array(self.machine.first_stream, dtype=np.int64)[self.device_of]
        if self.streams is None:
            return first
        lane = np.asarray(self.streams.assign(self), dtype=np.int64)
        lanes = np.array([d.lanes for d in self.machine.devices])[self.device_of]
        if len(lane) != len(self.graph) or bool(((lane < 0) | (lane >= lanes)).any()):
            raise InputError(
                f"stream assignment {type(self.streams).__name__} names a stream that does not exist"
            )
        return first + lane

    @cached_property
    def bottom_level_ns(self) -> IntArray:
        """Longest path from each op to the end, in known durations, without transfers."""
        return longest_path_ns(self.graph, self.known_ns)


class Placement:
    """Chooses a device for every op: extend it and override `place`.

    Attributes
    ----------
    soft : bool
        Whether it may put an op elsewhere when its pin cannot be met.
    """

    soft: bool = False

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op. ``cost_ns[d][op]`` is -1 where device d cannot run op."""
        raise NotImplementedError(f"{type(self).__name__} must define place(graph, machine, cost_ns)")


class Linearizer(Protocol):
    """Puts all ops in one program order."""

    def order(self, job: Job) -> Sequence[int]:
        """Return a permutation of the ops; producers need not come first, but a stuck run is an error."""


class StreamAssignment(Protocol):
    """Chooses a stream of its device for every op that is launched."""

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device."""


def costs_ns(graph: Graph, device: Device) -> IntArray:
    """Return how long each op takes on `device`, -1 where it cannot run there.

    An explicit duration for the device's kind wins over an explicit duration, which wins over
    the device's cost model. An op without any of them, on a device without a cost model, takes
    no time when it has no cost facts; otherwise the device cannot time it and -1 is returned.

    Parameters
    ----------
    graph : Graph
    device : Device

    Returns
    -------
    array of int64
        One duration per op in ns.
    """
    ns = graph.duration_ns.copy()
    by_kind = graph.duration_by_kind.get(device.kind)
    if by_kind is not None:
        ns = np.where(by_kind == UNSET, ns, by_kind)
    missing = ns == UNSET
    if missing.any():
        if device.cost is not None:
            ns = np.where(missing, device.cost.durations_ns(graph, device), ns)
        else:
            only_here = np.zeros(len(graph), dtype=bool)  # durations for other kinds of device only
            for other in graph.duration_by_kind.values():
                only_here |= other != UNSET
            free = missing & ~only_here & (graph.flops == 0)
            ns = np.where(free, 0, ns)
    if device.supports is not None:
        able = np.array([kind in device.supports for kind in graph.kinds])
        ns = np.where(able[graph.kind_code], ns, UNSET)
    return ns


def _costs_of_all(graph: Graph, machine: Machine) -> list[IntArray]:
    """Return `costs_ns` for each device; devices that differ in nothing that counts share one array."""
    known: dict[object, IntArray] = {}
    found = []
    for device in machine.devices:
        by_kind = graph.duration_by_kind.get(device.kind)
        given = graph.duration_ns if by_kind is None else np.maximum(graph.duration_ns, by_kind)
        asked = device.cost is not None and bool((given == UNSET).any())
        key = (device.name if asked else device.kind, device.supports)
        if key not in known:
            known[key] = costs_ns(graph, device)
        found.append(known[key])
    return found


def _by_identity(columns: Sequence[IntArray]) -> list[tuple[IntArray, list[int]]]:
    """Return the different arrays among `columns`, each with the positions where it stands."""
    found: dict[int, tuple[IntArray, list[int]]] = {}
    for i, column in enumerate(columns):
        found.setdefault(id(column), (column, []))[1].append(i)
    return list(found.values())


def _timed(cost_ns: Sequence[IntArray]) -> npt.NDArray[np.bool_]:
    """Return, per device and op, whether the device can time the op."""
    able = np.empty((len(cost_ns), len(cost_ns[0])), dtype=bool)
    for column, devices in _by_identity(cost_ns):
        able[devices] = column != UNSET
    return able


class PinnedPlacement(Placement):
    """Put each op where it is pinned; a free op on the first device that can run it."""

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `Placement`)."""
        able = _timed(cost_ns)
        able &= allowed_devices(graph, machine)
        return able.argmax(axis=0).tolist()  # type: ignore[no-any-return]


def allowed_devices(graph: Graph, machine: Machine) -> npt.NDArray[np.bool_]:
    """Return, per device and op, whether the op's pin (a device's name or kind) allows the device.

    Raises
    ------
    InputError
        A pin that names neither a device nor a kind of device of the machine.
    """
    fits = np.ones(
        (len(machine.devices), len(graph.pins) + 1), dtype=bool
    )  # the last column: no pin, code -1
    for code, pin in enumerate(graph.pins):
        fits[:, code] = [pin in (d.name, d.kind) for d in machine.devices]
        if not fits[:, code].any() and (graph.pin_code == code).any():
            op = graph.op_names[int((graph.pin_code == code).argmax())]
            known = sorted({word for d in machine.devices for word in (d.name, d.kind)})
            raise InputError(
                f"op {op!r} is pinned to {pin!r}, which is no device of the machine; "
                f"known: {', '.join(known)}"
            )
    allowed: npt.NDArray[np.bool_] = fits[:, graph.pin_code]
    return allowed


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
) -> Job:
    """Place the ops and put everything together that is known before time 0.

    Parameters
    ----------
    graph, machine
    placement : Placement, optional
        By default ops run where they are pinned, others on the first device that can.
    streams : StreamAssignment, optional
        By default everything on the first stream of its device.
    linearize : Linearizer, optional
        By default the topological order with the least index first.
    iterations : int
        How many times the graph runs.
    knowledge : str
        What a policy may know of durations (noise is never known): ``exact``; ``mean`` of the op's
        kind; ``estimate``, off by a factor drawn for each op; ``none``, 1 for each.
    estimate_error : float
        Standard deviation of the logarithm of that factor.
    noise : Noise, optional
        How the durations of tasks vary.
    seed : int

    Raises
    ------
    InputError
        A wrong number, pin or word.
    InfeasibleError
        An op that no device can run, or that was placed where it cannot run.
    """
    if iterations < 1:
        raise InputError(f"iterations must be at least 1, found {iterations}")
    cost_ns = _costs_of_all(graph, machine)
    chosen_by = placement or PinnedPlacement()
    able = _timed(cost_ns)
    if not isinstance(chosen_by, Placement):
        raise InputError(f"the placement, a {type(chosen_by).__name__}, should extend sim.model.Placement")
    if not chosen_by.soft:
        able &= allowed_devices(graph, machine)
    nowhere = ~able.any(axis=0)
    if nowhere.any():
        raise InfeasibleError(_why_nowhere(graph, machine, int(nowhere.argmax()), int(nowhere.sum())))
    device_of = np.asarray(chosen_by.place(graph, machine, cost_ns), dtype=np.int64)
    duration_ns = np.empty(len(graph), dtype=np.int64)
    for column, devices in _by_identity(cost_ns):
        here = slice(None) if len(devices) == len(cost_ns) else np.isin(device_of, devices)
        duration_ns[here] = column[here]
    if (duration_ns == UNSET).any():
        op = int((duration_ns == UNSET).argmax())
        device = machine.devices[int(device_of[op])]
        reason = _refusal(device, graph, op)
        raise InfeasibleError(
            f"the placement puts op {graph.op_names[op]!r} on {device.name}, which cannot run it"
            + (f": {reason}" if reason else "")
        )
    job = Job(graph, machine, device_of, duration_ns, duration_ns, iterations, seed, linearize, streams)
    job.known_ns = _known(knowledge, job, estimate_error)
    if noise is not None:
        if has_control_flow(graph):
            raise InputError(
                "noise is drawn for each task before time 0; control flow decides on tasks later"
            )
        job.noisy_ns = draw_durations(noise, duration_ns, device_of, machine, iterations, job.rng("noise"))
    return job


def _known(knowledge: str, job: Job, estimate_error: float) -> IntArray:
    graph, duration_ns = job.graph, job.duration_ns
    if knowledge == "exact":
        return duration_ns
    if knowledge == "estimate":
        error = Noise(sigma=estimate_error)
        rng = job.rng("estimates")
        return draw_durations(error, duration_ns, job.device_of, job.machine, 1, rng).ravel()
    if knowledge == "none":
        return np.ones_like(duration_ns)
    if knowledge == "mean":
        total = np.bincount(graph.kind_code, weights=duration_ns)
        count = np.bincount(graph.kind_code)
        mean = np.rint(total / np.maximum(count, 1)).astype(np.int64)
        return mean[graph.kind_code]
    raise InputError(f"knowledge must be exact, mean, estimate or none; found {knowledge!r}")


def _why_nowhere(graph: Graph, machine: Machine, op: int, count: int) -> str:
    kind = graph.kind(op)
    more = f" (and {count - 1} more ops)" if count > 1 else ""
    pinned_to = "" if graph.pin_code[op] == UNSET else graph.pins[int(graph.pin_code[op])]
    pin = f", pinned to {pinned_to!r}," if pinned_to else ""
    devices = "; ".join(
        f"{d.name} ({d.kind}) "
        + (
            "does not support it"
            if d.supports is not None and kind not in d.supports
            else f"cannot: {reason}"
            if (reason := _refusal(d, graph, op))
            else "has no cost for it"
        )
        for d in machine.devices
        if not pinned_to or pinned_to in (d.name, d.kind)
    )
    return f"op {graph.op_names[op]!r} of kind {kind!r}{pin} can run on no device{more}: {devices}"


def _refusal(device: Device, graph: Graph, op: int) -> str | None:
    """Return what the cost model of a device says of an op that it refuses, if it says anything."""
    return None if device.cost is None else device.cost.why_not(graph, op, device)
