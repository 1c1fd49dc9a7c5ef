"""The job: a graph, a machine, and the decisions made before time 0.

`make_job` gets the costs of the ops from every device's cost model, places the ops, and leaves the rest
(streams, program order) to be computed when a policy or the engine first asks for it, so that an unused
decision costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr, IntArray, frozen_property
from sim.base.errors import InputError
from sim.base.options import whole_numbers
from sim.graph.graph import Graph, longest_path_ns
from sim.graph.rendezvous_keys import program_edges, program_order
from sim.graph.views import launches_nothing
from sim.graph.walks import Dag
from sim.job.collectives import Collectives, collectives_of, is_modelled
from sim.machine.communicators import CarriedCollectives
from sim.machine.machine import Machine

if TYPE_CHECKING:
    from sim.faults import Faults
    from sim.graph.failures import Failures


_T = TypeVar("_T")


@dataclass(eq=False)
class Job:
    """The information that a policy may use before time 0.

    Attributes
    ----------
    graph : Graph
    machine : Machine
    device_of : array of int
        Device index of every op.
    duration_ns : array of int64
        Duration of each op on its device, without noise.
    known_ns : array of int64
        What the policy may know of the durations (the scenario's `knowledge`).
    iterations : int
    seed : int
        Seed for random decisions: use ``job.rng("what for")``.
    noisy_ns : array of int64, shape (iterations, ops), optional
        Actual duration of each task, if there is noise.
    drawn : callable, optional
        ``drawn(op, iteration, frame)``: the same under control flow, where tasks are not known in advance.
    issue_ns : array of int64, optional
        Cost of issuing each op to its issuer, instead of the devices' costs.
    known_costs_ns : sequence of array of int64
        Known costs of each op on each device, -1 where it cannot run: what the placement saw.
    record_ns : array of int64, optional
        Cost to its issuer, after launching each op, of recording the event that other streams wait for.
    failures : Failures, optional
        The tasks that fail, if some op may.
    faults : Faults, optional
        The parts of the machine that may fail or become slow, and the consequences.
    processes : tuple of str
        The processes, if there are several (`sim.issuers`).
    process_of : array of int64, optional
        Index of each op's process; None: there is only one.
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
    drawn: Callable[[int, int, str], int] | None = None
    issue_ns: IntArray | None = None
    known_costs_ns: Sequence[IntArray] = ()
    record_ns: IntArray | None = None
    failures: Failures | None = None
    faults: Faults | None = None
    processes: tuple[str, ...] = ()
    process_of: IntArray | None = None

    once_results: dict[Hashable, Any] | None = field(default=None, init=False, repr=False)
    """Results of `once`, if the job is run with many seeds."""

    def task_ns(self, op: IntArray, iteration: IntArray, frame: Sequence[str] = ()) -> IntArray:
        """Return the undisturbed durations of tasks, including noise.

        With control flow, `frame` gives the loops and iterations of each task.
        """
        if self.drawn is not None:
            tasks = zip(op.tolist(), iteration.tolist(), frame, strict=True)
            return np.array([self.drawn(*task) for task in tasks], np.int64)
        if self.noisy_ns is None:
            return self.duration_ns[op]
        return np.asarray(self.noisy_ns[iteration, op])

    def once(self, key: Hashable, work: Callable[[], _T]) -> _T:
        """Return a result that does not depend on the seed; a job with many seeds computes it only once."""
        if self.once_results is None:
            return work()
        if key not in self.once_results:
            self.once_results[key] = work()
        result: _T = self.once_results[key]
        return result

    def with_seed(self, seed: int) -> Job | None:
        """Return the job under another seed, with nothing drawn; None: its decisions used the seed.

        Decisions and derived results are shared between the seeds.
        """
        if self.once_results is None:
            self.once_results = {}
        if _SEED_USED in vars(self):
            return None
        job = copy(self)
        job.seed, job.noisy_ns, job.drawn, job.failures = seed, None, None, None
        return job

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator that depends only on the seed and on `purpose`."""
        return drawing(purpose, self.seed)

    @cached_property
    def collectives(self) -> Collectives | None:
        """The ops that belong to communicators; None: there are none.

        Raises
        ------
        InputError
            See `sim.job.collectives.collectives_of`.
        """
        return collectives_of(self.graph, self.machine, self.device_of)

    @frozen_property
    def meets(self) -> BoolArray:
        """Whether each op belongs to a communicator."""
        meets = np.zeros(len(self.graph), dtype=bool)
        if self.collectives is not None:
            meets[self.collectives.op] = True
        return meets

    @frozen_property
    def carried(self) -> BoolArray:
        """Which collectives travel over the links message by message, instead of taking a known time."""
        c = self.collectives
        if c is None or not isinstance(self.machine.collectives, CarriedCollectives):
            return np.zeros(0 if c is None else len(c.op), dtype=bool)
        return is_modelled(self.graph, self.machine, c)

    @frozen_property
    def ops_on(self) -> Csr:
        """Device → its ops, in graph order."""
        placed = np.flatnonzero(self.device_of != UNSET)
        return Csr.group(self.device_of[placed], placed, len(self.machine.devices))

    @frozen_property
    def launched(self) -> BoolArray:
        """Whether each op is launched on a stream; otherwise a worker of its CPU executes it."""
        return np.array([device.workers == 0 for device in self.machine.devices])[self.device_of]

    @frozen_property
    def gap_ns(self) -> IntArray:
        """The gap that each op leaves behind it on its stream; 0 on a worker, or if it launches no kernel."""
        gap = np.array([0 if d.workers else d.gap_ns for d in self.machine.devices])[self.device_of]
        return np.where(launches_nothing(self.graph, self.duration_ns), 0, gap)

    @frozen_property
    def group_of(self) -> IntArray:
        """Group of issuers that serves each op."""
        group = self.groups_that_serve(self.device_of, self.process_of)
        if (without := group == UNSET).any():
            op = self.graph.op_names[int(without.argmax())]
            raise InputError(f"no host launches op {op!r}: each host of its device is of another process")
        return group

    def groups_that_serve(self, device: IntArray, process: IntArray | None) -> IntArray:
        """Return, for each device, the group of issuers that serves it for a process."""
        if process is None:
            return self.machine.group_of[device]
        return np.stack([self.machine.groups_for(name) for name in self.processes])[process, device]

    @cached_property
    def process_of_tensor(self) -> IntArray | None:
        """Process of each tensor: that of the op that makes it, else of one that reads it."""
        if self.process_of is None:
            return None
        graph = self.graph
        process = np.zeros(graph.n_tensors, np.int64)
        process[graph.inputs.indices] = self.process_of[graph.inputs.rows()]
        produced = graph.tensor_producer >= 0
        process[produced] = self.process_of[graph.tensor_producer[produced]]
        return process

    @cached_property
    def n_groups(self) -> int:
        """Number of groups of issuers."""
        return len(self.machine.hosts_in_order)

    def dag(self) -> Dag:
        """Return the precedence in a program of all ops: edges, and Sends before their Recvs."""
        return Dag.of(program_edges(self.graph), len(self.graph))

    @frozen_property
    def order(self) -> IntArray:
        """The program order: that of the linearizer, else the topological one with the least index first.

        Raises
        ------
        InputError
            The linearizer does not return every op once.
        """
        if self.linearize is None:
            return program_order(self.graph)
        try:
            source, n = f"{type(self.linearize).__name__}.order", len(self.graph)
            order = whole_numbers(self.linearize.order(read_only(self, _SeenJob)), source, below=n)
            times = np.bincount(order, minlength=n)
            if (wrong := np.flatnonzero(times != 1)).size:
                op, often = self.graph.op_names[wrong[0]], int(times[wrong[0]])
                raise InputError(f"{source} returned the op {op!r} {often} times, not once")
        except InputError as error:
            raise error if error.op is not None else error.under("linearize") from None
        return order

    def find_misordered(self) -> str | None:
        """Return which op a linearizer put before one that it waits for; None: there is none."""
        if self.linearize is None:
            return None
        position = np.argsort(self.order)
        for op, before in enumerate(self.dag().predecessors):
            late = next((producer for producer in before if position[producer] > position[op]), None)
            if late is not None:
                first, other = (self.graph.op_names[producer] for producer in (op, late))
                source = f"{type(self.linearize).__name__}.order"
                return f"{source} puts {first} before {other}, for which it waits"
        return None

    @cached_property
    def programs(self) -> tuple[tuple[int, ...], ...]:
        """The program order of each group of issuers."""
        return tuple(map(tuple, Csr.group(self.group_of[self.order], self.order, self.n_groups).lists()))

    @frozen_property
    def stream_of(self) -> IntArray:
        """Stream of each op, counted over the machine; by default the first lane of its device.

        Raises
        ------
        InputError
            The assignment names a stream that the device does not have.
        """
        first = np.array(self.machine.first_stream, dtype=np.int64)[self.device_of]
        if self.streams is None:
            return first
        lanes = np.array([d.lanes for d in self.machine.devices])[self.device_of]
        owner = f"{type(self.streams).__name__}.assign"
        return first + whole_numbers(self.lane, owner, below=lanes, of=self.graph.op_names)

    @frozen_property
    def lane(self) -> IntArray:
        """Stream of each op as assigned, counted within its device."""
        assert self.streams is not None
        try:
            owner = f"{type(self.streams).__name__}.assign"
            return whole_numbers(
                self.streams.assign(read_only(self, _SeenJob)), owner, len(self.graph), of=self.graph.op_names
            )
        except InputError as error:
            raise error if error.op is not None else error.under("streams") from None

    @frozen_property
    def bottom_level_ns(self) -> IntArray:
        """Longest path from each op to the end, in known durations, without transfers."""
        return longest_path_ns(self.graph, self.known_ns)


_SEED_USED: Final = "asked for the seed"


class _ReadOnlyJob(Job):
    """A job as a policy sees it."""

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse to replace a value, or to add one: other runs share the job."""
        if name in vars(self) or name not in self.__dataclass_fields__:
            raise AttributeError(f"a job is read-only: its {name} cannot be set")
        super().__setattr__(name, value)


class _SeenJob(_ReadOnlyJob):
    """A job as decisions before time 0 see it: it records whether they use the seed."""

    @property
    def seed(self) -> int:
        """The seed."""
        vars(self)[_SEED_USED] = True
        return int(vars(self)["seed"])

    @seed.setter
    def seed(self, seed: int) -> None:
        vars(self)["seed"] = seed


def read_only(job: Job, kind: type[Job] = _ReadOnlyJob) -> Job:
    """Return the job as users' code sees it, sharing all of its derived results."""
    view = kind.__new__(kind)
    object.__setattr__(view, "__dict__", vars(job))
    return view


class Tried(NamedTuple):
    """A placement that a search tried.

    Attributes
    ----------
    what : str
        The name of a starting placement, or how many ops were moved where.
    makespan_ns : int or None
        The resulting makespan; None if it could not run (out of memory, no link).
    best_ns : int or None
        The best so far; None as long as none could run.
    """

    what: str
    makespan_ns: int | None
    best_ns: int | None


def drawing(purpose: str, seed: int) -> np.random.Generator:
    """Return a generator that depends only on `seed` and `purpose`."""
    return np.random.default_rng([seed, *purpose.encode()])


class Placement:
    """Chooses a device for every op: subclass it and override `place`.

    Attributes
    ----------
    soft : bool
        Whether it may put an op elsewhere if its pin cannot be met.
    tried : sequence of Tried
        The placements that the last call of `place` tried, in order, if it searches.
    """

    soft: bool = False
    tried: Sequence[Tried] = ()

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op.

        ``cost_ns[d][op]`` is what may be known of the cost of op on device d (`knowledge`); -1: it cannot
        run there.
        """
        raise InputError(f"{type(self).__name__} must define place(graph, machine, cost_ns)")


class Linearizer(Protocol):
    """Puts all ops in one program order."""

    def order(self, job: Job) -> Sequence[int]:
        """Return a permutation of the ops; producers need not come first, but a stuck run is an error."""


class StreamAssignment(Protocol):
    """Chooses a stream of its device for every launched op."""

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device."""


class Decided(NamedTuple):
    """A program order, or streams, decided earlier: a `Linearizer` and a `StreamAssignment`."""

    values: Sequence[int]

    def order(self, job: Job) -> Sequence[int]:
        """Return the ops in order."""
        return self.values

    def assign(self, job: Job) -> Sequence[int]:
        """Return the stream of each op."""
        return self.values
