"""The nouns and protocols that the engine, the devices and the policies share.

::

    Machine ── Device ── streams (queues that start in order)
       │          └───── issuers (who put tasks on streams; a CPU worker also runs what it takes)
       └────── Link      (carries bytes between two devices)

    Job  = graph + machine + decisions made before time 0 (placement, streams, program order)
    Task = one execution of an op; the engine moves it  ready → issued → start → end
    Policy: told what happened, asked what next; it holds no clock and never waits

Nothing here takes time or decides anything: devices (package `devices`) do the one, policies
(package `policies`) the other, and `sim.engine` runs them against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from sim.errors import InfeasibleError, InputError, UnknownNameError
from sim.graph import Graph, IntArray

if TYPE_CHECKING:
    from sim.job import Job
    from sim.transfers import Flow

__all__ = [
    "MANAGED",
    "WAIT",
    "Context",
    "CostModel",
    "Device",
    "Host",
    "Issuer",
    "Linearizer",
    "Link",
    "Machine",
    "Network",
    "Placement",
    "Policy",
    "Processor",
    "StreamAssignment",
    "Task",
]


class Task:
    """One execution of an op. Times are integer ns, -1 until they happen.

    Attributes
    ----------
    id : int
        Unique in a run; ``iteration * n_nodes + op`` on a static graph. Ties break by it.
    op : int
        Index of the op in the graph; transfers have indices from ``len(graph)`` on.
    iteration : int
        Which repetition of the graph.
    group : int
        Which group of issuers may take it (`Issuer.group`); -1 for a transfer.
    stream : int
        Number of the stream it is put on, counted over the machine; -1 until issued.
    issuer : Issuer or None
        Who took it.
    ready_ns, issue_ns, start_ns, end_ns : int
        When it became eligible, was put on a stream, began and finished executing.
    floor_ns : int
        It may not start before (an event has to travel from another stream).
    wait : int
        Code of the last reason for which it did not start (`sim.trace.WAITS`).
    frame : object
        Execution frame in TensorFlow's control flow, None on a static graph.
    dead : bool
        Whether it ran as a dead op (control flow), which executes nothing.
    """

    __slots__ = (
        "callbacks",
        "dead",
        "end_ns",
        "floor_ns",
        "frame",
        "group",
        "id",
        "issue_ns",
        "issuer",
        "iteration",
        "op",
        "ready_ns",
        "start_ns",
        "stream",
        "wait",
    )

    def __init__(self, id: int, op: int, iteration: int, group: int) -> None:
        self.id = id
        self.op = op
        self.iteration = iteration
        self.group = group
        self.stream = -1
        self.issuer: Issuer | None = None
        self.ready_ns = self.issue_ns = self.start_ns = self.end_ns = -1
        self.floor_ns = 0
        self.wait = 0
        self.frame: Any = None
        self.dead = False

    # What SimPy's queue asks of an event: a task is itself the event of its next change, which
    # saves making one event per change (and keeps this module free of simpy).
    callbacks: Any
    _ok: Final = True

    def __repr__(self) -> str:
        """Return op and iteration, for debugging."""
        return f"<Task op={self.op} iteration={self.iteration}>"


class Issuer:
    """Who asks the policy for tasks: a host thread that launches, or a CPU worker that executes.

    Attributes
    ----------
    index : int
        Position in machine order, in which free issuers are asked.
    name : str
        ``"cpu0/w1"`` for a worker, ``"gpu0/host"`` for a host thread.
    group : int
        Issuers of one group serve the same devices and may take the same tasks.
    executes : bool
        Whether it is a worker, which runs the tasks of its own CPU that it takes; the tasks of the
        other devices it serves it puts on their streams, as a host thread does with all of them.
    devices : tuple of int
        Indices of the devices it serves.
    """

    __slots__ = ("devices", "executes", "group", "index", "name", "stream")

    def __init__(
        self, index: int, name: str, group: int, executes: bool, devices: tuple[int, ...], stream: int
    ) -> None:
        self.index = index
        self.name = name
        self.group = group
        self.executes = executes
        self.devices = devices
        self.stream = stream  # a worker's own lane, counted over the machine; -1 for a host thread

    def __repr__(self) -> str:
        """Return the name, for debugging."""
        return f"<Issuer {self.name}>"


# -- hardware: descriptions -------------------------------------------------------------------


class CostModel(Protocol):
    """How long ops take on a device."""

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns; -1 where the model does not know the op."""


@dataclass(frozen=True)
class Device:
    """A CPU, GPU or NPU as the engine sees it. What is left out is the ideal.

    Attributes
    ----------
    name, kind : str
        ``"gpu0"``; ``"cpu"``, ``"gpu"`` or ``"npu"`` (any word will do: placement compares it).
    workers : int
        Threads that issue and execute (a CPU). 0: ops are launched on streams by a host.
    streams : int
        Queues whose tasks start in order; one task of a stream runs at a time.
    issue_ns, issue_ns_by_kind : int, mapping of str to int
        What issuing one op costs the issuer; per kind of op where it differs.
    launch_latency_ns : int
        From being put on a stream to the earliest start.
    gap_ns : int
        Least time between the end of a task and the start of the next one of the stream.
    event_ns : int
        From the end of a task to the earliest start of one on another stream that waits for it.
    queue_depth : int or None
        Launches outstanding on the device before the issuer blocks.
    cores, cores_per_op : int
        CPU cores, and how many of them one op occupies (0 cores: not limited).
    memory_bytes : int or None
        Capacity; None is unlimited.
    cost : CostModel or None
        Asked for ops without explicit duration.
    processor : callable or None
        ``processor(device, context)`` returns the `Processor` of a run when tasks of the device
        share something; None when its streams do not disturb one another.
    supports : frozenset of str or None
        Kinds of op it can run; None is all.
    details : mapping
        Everything else that a cost model, processor or allocator reads (peak rates, SMs, ...).
    """

    name: str
    kind: str = "gpu"
    workers: int = 0
    streams: int = 1
    issue_ns: int = 0
    issue_ns_by_kind: Mapping[str, int] = field(default_factory=dict)
    launch_latency_ns: int = 0
    gap_ns: int = 0
    event_ns: int = 0
    queue_depth: int | None = None
    cores: int = 0
    cores_per_op: int = 1
    memory_bytes: int | None = None
    cost: CostModel | None = None
    processor: Callable[[Device, Context], Processor] | None = None
    supports: frozenset[str] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.workers < 0 or self.streams < 1 or (self.queue_depth is not None and self.queue_depth < 1):
            raise InputError(
                f"device {self.name!r}: workers must be >= 0, streams and queue_depth >= 1; found "
                f"workers={self.workers}, streams={self.streams}, queue_depth={self.queue_depth}"
            )
        if min(self.issue_ns, self.launch_latency_ns, self.gap_ns, self.event_ns, self.cores) < 0:
            raise InputError(f"device {self.name!r}: a time or count is negative")
        if self.cores and self.cores_per_op > self.cores:
            raise InputError(
                f"device {self.name!r}: an op takes {self.cores_per_op} cores but there are {self.cores}"
            )

    @property
    def lanes(self) -> int:
        """Number of lanes in the trace: workers of a CPU, streams of anything else."""
        return self.workers or self.streams


@dataclass(frozen=True)
class Link:
    """Carries bytes one way between two devices.

    Attributes
    ----------
    name, source, destination : str
        Names of the link and of the devices at its ends.
    latency_ns : int
        Time before the first byte arrives.
    bandwidth_bytes_per_s : int or None
        None is unlimited: a transfer takes the latency.
    sharing : str
        ``"serial"``: transfers go one after another, in the order in which they became ready.
        ``"shared"``: concurrent transfers share the bandwidth max-min fairly.
    """

    name: str
    source: str
    destination: str
    latency_ns: int = 0
    bandwidth_bytes_per_s: int | None = None
    sharing: str = "serial"


@dataclass(frozen=True)
class Host:
    """Host threads that launch ops on devices; by default each device without workers has its own.

    When one of the devices is a CPU with workers, those workers are the threads: a pool that runs
    the ops of its CPU and launches the ops of the others, as in a TensorFlow process.

    Attributes
    ----------
    name : str
    serves : tuple of str
        Names of the devices, at most one of them with workers.
    threads : int
        Of no meaning when workers are the threads.
    """

    name: str
    serves: tuple[str, ...]
    threads: int = 1


@dataclass(frozen=True)
class Machine:
    """Devices, the links between them, and who issues to which.

    Attributes
    ----------
    devices : tuple of Device
        In machine order, in which ties break.
    links : tuple of Link
        One-way links. Without any, transfers between devices take no time.
    hosts : tuple of Host
        Host threads that serve several devices; devices no host names get one of their own.
    network : callable or None
        ``network(machine, context)`` returns the `Network` of a run; needed when there are links.

    Examples
    --------
    >>> machine = Machine((Device("gpu0", streams=2), Device("cpu0", "cpu", workers=4)))
    >>> [issuer.name for issuer in machine.issuers()]
    ['gpu0/host', 'cpu0/w0', 'cpu0/w1', 'cpu0/w2', 'cpu0/w3']
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    hosts: tuple[Host, ...] = ()
    network: Callable[[Machine, Context], Network] | None = None

    def __post_init__(self) -> None:
        """Refuse doubled and unknown names."""
        if not self.devices:
            raise InputError("a machine needs at least one device")
        names = [d.name for d in self.devices] + [link.name for link in self.links]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two devices or links of the machine are called {name!r}")
        for link in self.links:
            for end in (link.source, link.destination):
                self.device_index(end)
        served = [name for host in self.hosts for name in host.serves]
        for name in served:
            self.device_index(name)
            if served.count(name) > 1:
                raise InputError(f"two hosts serve {name!r}")
        for host in self.hosts:
            pools = [name for name in host.serves if self.devices[self.device_index(name)].workers]
            if len(pools) > 1:
                raise InputError(f"host {host.name!r} serves two CPUs with workers: {', '.join(pools)}")

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {device.name: i for i, device in enumerate(self.devices)}

    def device_index(self, name: str) -> int:
        """Return the position of the device called `name`.

        Raises
        ------
        UnknownNameError
            When there is none.
        """
        try:
            return self._indices[name]
        except KeyError:
            raise UnknownNameError("device", name, self._indices) from None

    @cached_property
    def first_stream(self) -> tuple[int, ...]:
        """Number of the first lane of each device, lanes being counted over the machine."""
        return tuple(np.cumsum([0] + [d.lanes for d in self.devices]).tolist())

    def stream_name(self, stream: int) -> str:
        """Return ``gpu0/1`` for the second stream of gpu0, ``cpu0/w1`` for a worker."""
        device = int(np.searchsorted(self.first_stream, stream, side="right")) - 1
        lane = stream - self.first_stream[device]
        worker = "w" if self.devices[device].workers else ""
        return f"{self.devices[device].name}/{worker}{lane}"

    def issuers(self) -> list[Issuer]:
        """Return fresh issuers in machine order: a host stands where its first device does."""
        host_of = {name: host for host in self.hosts for name in host.serves}
        out: list[Issuer] = []
        done: set[str] = set()
        for device in self.devices:
            host = host_of.get(device.name) or Host(f"{device.name}/host", (device.name,))
            if host.name in done:
                continue
            group = len(done)
            done.add(host.name)
            served = tuple(self.device_index(name) for name in host.serves)
            pool = next((i for i in served if self.devices[i].workers), None)
            if pool is None:
                for t in range(host.threads):
                    name = host.name if host.threads == 1 else f"{host.name}{t}"
                    out.append(Issuer(len(out), name, group, False, served, -1))
            else:
                for w in range(self.devices[pool].workers):
                    lane = self.first_stream[pool] + w
                    out.append(Issuer(len(out), f"{self.devices[pool].name}/w{w}", group, True, served, lane))
        return out

    @cached_property
    def _routes(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {}

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the links (indices) from one device to another: fewest hops, then least latency.

        An empty route means an ideal, instant transfer: the machine has no links at all.

        Raises
        ------
        InfeasibleError
            There are links, but none leads there.
        """
        key = (source, destination)
        if not self.links or source == destination:
            return ()
        if key not in self._routes:
            self._routes[key] = _shortest_route(self, source, destination)
        return self._routes[key]


def _shortest_route(machine: Machine, source: int, destination: int) -> tuple[int, ...]:
    """Breadth-first over the links, the least total latency first among routes of equal length."""
    best: dict[int, tuple[int, tuple[int, ...]]] = {source: (0, ())}
    frontier = dict(best)
    while frontier and destination not in best:
        reached: dict[int, tuple[int, tuple[int, ...]]] = {}
        for at, (latency, path) in frontier.items():
            for k, link in enumerate(machine.links):
                if machine.device_index(link.source) != at:
                    continue
                there = machine.device_index(link.destination)
                candidate = (latency + link.latency_ns, (*path, k))
                if there not in best and (there not in reached or candidate < reached[there]):
                    reached[there] = candidate
        best.update(reached)
        frontier = reached
    if destination not in best:
        a, b = machine.devices[source].name, machine.devices[destination].name
        known = ", ".join(f"{link.source}->{link.destination}" for link in machine.links)
        raise InfeasibleError(f"no route of links leads from {a} to {b}; the machine has {known}")
    return best[destination][1]


# -- hardware: what a device does during a run -------------------------------------------------

WAIT: Final = -1
"""`Processor.start`: not now; the engine asks again when a task of the device ends."""

MANAGED: Final = -2
"""`Processor.start`: begun; the processor itself calls `Context.finish` when it is over."""


class Context(Protocol):
    """What the engine offers to processors and networks."""

    job: Job
    flow: Flow
    now_ns: int

    def call_at(self, time_ns: int, callback: Callable[[Any], None], value: Any = None) -> None:
        """Call ``callback(value)`` at `time_ns`. It cannot be cancelled: let stale calls do nothing."""

    def finish(self, task: Task) -> None:
        """End a task at the present instant."""


class Processor(Protocol):
    """What the tasks of one device share: cores, SMs, memory bandwidth."""

    def start(self, task: Task) -> int:
        """Begin `task` and return how many ns it takes, or `WAIT`, or `MANAGED`."""

    def end(self, task: Task) -> None:
        """`task` is over: release what it held."""


class Network(Protocol):
    """Carries transfers over links."""

    def start(self, task: Task) -> None:
        """Take a transfer that is ready; set ``task.start_ns`` when it begins, finish it when it arrived."""


# -- decisions ---------------------------------------------------------------------------------


class Policy:
    """Decides what is issued next. Override `ready` and `next`; the rest has defaults.

    A policy holds no clock, starts nothing and imports no simpy; the same object drives the
    simulator and the real executors. First in, first out is::

        class Fifo(Policy):
            def prepare(self, job):
                self.queues = [deque() for _ in range(job.n_groups)]
            def ready(self, task):
                self.queues[task.group].append(task)
            def next(self, issuer):
                queue = self.queues[issuer.group]
                return queue.popleft() if queue else None

    Attributes
    ----------
    synchronisation : str
        What *eligible* means. ``"completion"``: all inputs are computed (TensorFlow on CPU, TVM).
        ``"issue"``: all inputs are issued; streams and events keep the order on the device
        (CUDA). Data that a CPU worker reads or writes always waits for completion.
    scope : str
        ``"group"`` promises that `next` depends only on tasks of the issuer's own group and
        answers alike for all issuers of a group, so that the engine asks only where something
        changed. ``"machine"`` (the default) promises nothing: every free issuer is asked.
    """

    synchronisation: str = "completion"
    scope: str = "machine"

    def prepare(self, job: Job) -> None:
        """Look at the job before time 0."""

    def ready(self, task: Task) -> None:
        """Note that `task` has become eligible."""
        raise TypeError(f"{type(self).__name__} must define ready() or ended()")

    def next(self, issuer: Issuer) -> Task | None:
        """Return the task that `issuer`, which is free, takes now; None: nothing yet."""
        raise TypeError(f"{type(self).__name__} must define next()")

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Note that `task` ended (or, under ``"issue"``, was issued) and made `now_ready` eligible.

        `now_ready` is in edge order and may be empty. `issuer` ran or issued `task`; it is None
        for a transfer. Under ``"issue"`` this is called again at the end of a task only when
        that made further tasks eligible.
        """
        for t in now_ready:
            self.ready(t)


class Placement(Protocol):
    """Chooses a device for every op."""

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op. ``cost_ns[d][op]`` is -1 where device d cannot run op."""


class Linearizer(Protocol):
    """Puts all ops in one program order."""

    def order(self, job: Job) -> Sequence[int]:
        """Return a permutation of the ops; producers need not come first, but a stuck run is an error."""


class StreamAssignment(Protocol):
    """Chooses a stream of its device for every op that is launched."""

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device."""
