"""The state of a run in progress; the loop that changes it is in `sim.engine.engine`."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from itertools import count
from math import inf
from typing import Any

import numpy as np
import simpy

from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InfeasibleError, InputError
from sim.base.options import require_call, whole_numbers
from sim.engine.breakdowns import Breakdowns, Paced
from sim.engine.communicators import Communicators
from sim.engine.failing_ops import Failing
from sim.engine.hooks import Memory, Observer, notify
from sim.faults import Conditions
from sim.graph.frames import has_control_flow
from sim.graph.rendezvous_keys import RendezvousKeys, rendezvous_keys
from sim.issuers import Issuers
from sim.job.context import Context
from sim.job.costs import issue_costs_ns
from sim.job.job import Job, read_only
from sim.job.transfers import Flow, check_routes, holding_ops, host_groups, make_flow
from sim.machine.device import Processor
from sim.machine.links import Message, Network
from sim.machine.task import Task
from sim.policy import Policy
from sim.readiness.counters import CounterReadiness, Readiness, RunsInTurn, has_runs
from sim.readiness.rendezvous import Rendezvous, with_keyed_transfers
from sim.readiness.tokens import TaggedTokenReadiness, predicate_values
from sim.record.record import TASK_COLUMNS, TRANSFER_COLUMNS, ColumnWriter

# ----------------------------------------------------------------------------------------------------------
# The parts of a run: its nodes and their readiness, host threads, the network.


def make_network(job: Job, flow: Flow, context: Context) -> Network | None:
    """Return the network that carries the transfers of a run; None: they take no time.

    Raises
    ------
    InfeasibleError
        There are links but no network, or no route connects two devices.
    """
    machine = job.machine
    if (flow.n_nodes == flow.n_ops and not job.carried.any()) or not machine.links:
        return None
    if machine.network is None:
        raise InfeasibleError(
            "the machine has links but no network to carry transfers over them: "
            "give it one, such as Machine(devices, links, network=devices.network.make_network)"
        )
    check_routes(job, flow)
    return machine.network(machine, context)


# ----------------------------------------------------------------------------------------------------------
# Where issued tasks wait: the streams of a device, and its launch queue.


class Stream:
    """A queue of issued tasks that run one at a time.

    Attributes
    ----------
    index, device : int
        Its lane, counted over the machine, and the index of its device.
    launch_ns : int
        Time from issue to the earliest start.
    queue : deque of Task
        Tasks issued and not started.
    running : Task or None
    free_ns : int
        Earliest start of the next task: the end of the last one plus the gap behind that.
    """

    __slots__ = ("device", "free_ns", "index", "launch_ns", "queue", "running")

    def __init__(self, index: int, device: int, launch_ns: int) -> None:
        self.index, self.device, self.launch_ns = index, device, launch_ns
        self.queue: deque[Task] = deque()
        self.running: Task | None = None
        self.free_ns = 0


class LaunchQueue:
    """A device's places for launches that have not ended; with none free, a launch and its issuer are parked.

    Parameters
    ----------
    depth : int or None
        Number of places; None is no limit.

    Examples
    --------
    >>> places, (a, b) = LaunchQueue(1), [Task(k, k, 0, 0) for k in range(2)]
    >>> places.enter(a), places.enter(b)
    (True, False)
    >>> places.leave() is b, places.leave() is None
    (True, True)
    """

    __slots__ = ("_left", "_parked")

    def __init__(self, depth: int | None) -> None:
        self._left = inf if depth is None else depth
        self._parked: deque[Task] = deque()

    def enter(self, task: Task) -> bool:
        """Take a place for `task`, or park it; return whether it has a place."""
        if not self._left:
            self._parked.append(task)
            return False
        self._left -= 1
        return True

    def leave(self) -> Task | None:
        """Give a place back; return the first parked task, which now has the place."""
        if self._parked:
            return self._parked.popleft()
        self._left += 1
        return None


# ----------------------------------------------------------------------------------------------------------
# Resources of the machine that ops take besides their device: licences, ports, people.
#
#     resources: {crane: 1}       a ▇▇▇▇▇ crane
#                                 b ·····▇▇▇ crane        waits for a
#                                 c ▇▇▇▇▇▇▇▇▇             needs none


class SharedResources:
    """The free units of each resource, and the tasks that wait: a first-come, first-served line per resource.

    An op takes everything it needs at once, from its start to its end. So a task that holds a resource runs,
    or waits for its own device, and no task waits for ever.

    Parameters
    ----------
    job : Job
    """

    def __init__(self, job: Job) -> None:
        self._free = dict(job.machine.resources)
        self._needs: Mapping[int, Mapping[str, int]] = job.graph.attribute("resources")
        self._lines: dict[str, deque[Task]] = {name: deque() for name in self._free}
        self._arrival: dict[int, int] = {}  # waiting task, by id → its number in order of arrival
        self._numbers = count()
        self._held: set[int] = set()

    def take(self, task: Task) -> bool:
        """Take what a task needs, or put it in line; return whether it holds its resources."""
        if task.id in self._held or not (needs := self._needs.get(task.op)):
            return True
        if task.id not in self._arrival:
            self._arrival[task.id] = next(self._numbers)
            for name in needs:
                self._lines[name].append(task)
        self._serve(needs)
        return task.id in self._held

    def give_back(self, task: Task) -> list[Task]:
        """Give back a task's resources; return the waiting tasks that have theirs now."""
        if task.id not in self._held:
            return []
        self._held.remove(task.id)
        for name, n in self._needs[task.op].items():
            self._free[name] += n
        return self._serve(self._needs[task.op])

    def _serve(self, names: Iterable[str]) -> list[Task]:
        """Let tasks that are first in all their lines have what they need if it is free.

        Only what happened in the lines `names` can have let them.
        """
        served: list[Task] = []
        lines, changed = self._lines, [*names]
        for name in changed:  # the list grows
            if not lines[name]:
                continue
            task = lines[name][0]
            needs = self._needs[task.op]
            if all(lines[resource][0] is task and self._free[resource] >= n for resource, n in needs.items()):
                for resource, n in needs.items():
                    self._free[resource] -= n
                    lines[resource].popleft()
                served.append(task)
                changed += needs
        self._held.update(task.id for task in served)
        return sorted(served, key=lambda task: self._arrival.pop(task.id))


# ----------------------------------------------------------------------------------------------------------


def _asynchronous_ops(policy: Policy, job: Job) -> Set[int]:
    """Return the ops that a policy says are asynchronous."""
    source = f"{type(policy).__name__}.asynchronous_ops"
    if not isinstance(ops := policy.asynchronous_ops(read_only(job)), Set):
        raise InputError(f"{source} returned {ops!r}, should be a set of ops")
    whole_numbers(list(ops), source, below=len(job.graph))
    return ops


class RunState:
    """The parts of a run, the events noted at the present instant, and its `Context` methods.

    Parameters
    ----------
    job : Job
    policy : Policy
    flow, memory, observers, conditions
        See `sim.engine.engine.Engine`.
    """

    # Without slots, method calls are a third slower on an object with thirty attributes or more.
    __slots__ = (
        "arrived", "asking", "asynchronous", "blocked", "breakdowns", "called", "clock", "communicators",
        "communicators_of", "conditions", "detached_ids", "detached_ops", "device_of", "drawn",
        "duration_ns", "end", "end_callbacks", "ended", "executed", "failing", "flow", "frames", "gap_ns",
        "gives_back", "holding", "issue_ns", "issuers", "job", "launch_queues", "memory", "memory_at_issue",
        "memory_at_start", "messages", "network", "not_before_ns", "now_ns", "observers", "open", "paid",
        "placed", "policy", "processors", "readiness", "record_ns", "recorded", "release_ns", "rendezvous",
        "requested", "resources", "retried", "round", "runs", "settling", "starved", "stream_of", "streams",
        "taken", "tasks", "touched", "transfers", "transmits",
    )  # fmt: skip

    def __init__(
        self,
        job: Job,
        policy: Policy,
        *,
        flow: Flow | None = None,
        memory: Callable[[Job, Context], Memory] | None = None,
        observers: Iterable[Observer] = (),
        conditions: Conditions | None = None,
    ) -> None:
        machine, context = job.machine, self
        self.job, self.policy = job, policy
        self.observers = list(observers)
        self.clock = simpy.Environment()
        self.now_ns = self.round = 0
        # Events that have fired at the present instant, and tasks that wait for something to come free.
        self.called: list[tuple[Callable[[Any], None], Any]] = []
        self.arrived: list[Task] = []  # tasks that are released now, and waited for nothing else
        self.ended: list[Task] = []
        self.end: Callable[[Task], None] = self.ended.append
        self.paid: list[Task] = []
        self.recorded: list[Task] = []  # launches whose events are recorded
        self.placed: list[Task] = []  # launches that were parked and have a place now
        self.retried: list[Task] = []  # tasks of workers that may try to start again
        self.requested: list[Task] = []  # transfers whose request has arrived
        self.blocked: list[deque[Task]] = [deque() for _ in machine.devices]  # refused by the processor
        self.starved: list[Task] = []  # refused by the memory
        self.settling: list[Callable[[], None]] = []
        flow = make_flow(job) if flow is None else flow
        keys = rendezvous_keys(job.graph)
        self.flow = with_keyed_transfers(job, flow, keys) if keys.recvs else flow
        self.memory = memory(job, context) if memory else None
        self.failing = None
        if job.failures is not None:
            self.failing = Failing(job, self.flow, policy, job.failures, with_memory=memory is not None)
        self.conditions = conditions
        self.breakdowns: Breakdowns | None = None
        # Tasks that are eligible and have not ended, by id, if some may fail.
        may_fail = self.failing is not None or conditions is not None
        self.open: dict[int, Task] | None = {} if may_fail else None
        self.taken: list[tuple[int, int]] = []  # results of switches: task id, index of the live output
        self._make_readiness(keys, flow)
        self.asynchronous = self.readiness.asynchronous
        # For each op: its device, whether a worker executes it, the cost of issuing it, its duration.
        self.device_of: list[int] = job.device_of.tolist()
        self.executed: list[bool] = (~job.launched).tolist()
        self.issue_ns: list[int] = issue_costs_ns(job).tolist()
        self.record_ns = [0] * len(job.graph) if job.record_ns is None else job.record_ns.tolist()
        self.duration_ns: list[list[int]] = (  # of each iteration
            [job.duration_ns.tolist()] * job.iterations if job.noisy_ns is None else job.noisy_ns.tolist()
        )
        self.drawn = job.drawn
        self.holding = holding_ops(job)
        # Ops that go on without their issuer: asynchronous ones, and Recvs that ask when they are taken.
        self.asking = self.rendezvous.asking if self.rendezvous is not None else frozenset[int]()
        self.detached_ops = _asynchronous_ops(policy, job) | self.asking
        # Sends and Recvs that execute even when dead: the other side has to know.
        nodes = job.graph.is_kind("send", "recv") & ~job.launched & policy.asks_in_turn
        self.transmits = self.asking.union(np.flatnonzero(nodes).tolist())
        self.detached_ids: set[int] = set()  # ids of tasks that went on without their issuer
        # Transfers (nodes) that a host thread has to make, with the group of its issuers.
        copier = host_groups(job, self.flow.tensor, self.flow.source, self.flow.destination).tolist()
        copies = {self.flow.n_ops + k: group for k, group in enumerate(copier) if group != UNSET}
        self.issuers = Issuers(machine, policy, copies)
        # Where tasks are issued to, and the resources that they share there.
        self.streams = [
            Stream(first + lane, d, device.launch_latency_ns)
            for d, (first, device) in enumerate(zip(machine.first_stream, machine.devices, strict=False))
            for lane in range(device.lanes)
        ]
        lane_of: list[int] = job.stream_of.tolist() if job.launched.any() else []
        self.stream_of = [self.streams[lane] for lane in lane_of]
        self.gap_ns: list[int] = job.gap_ns.tolist()
        self.touched: set[int] = set()  # streams where something has changed
        self.launch_queues = [LaunchQueue(device.queue_depth) for device in machine.devices]
        paces = {} if conditions is None else conditions.paces
        self.processors: list[Processor | None] = []
        for d, device in enumerate(machine.devices):
            make = partial(Paced, pace=paces[d]) if d in paces else device.processor
            processor = None if make is None else make(device, context)
            if processor is not None:
                require_call(f"the processor of {device.name!r}", processor, "task", method="start")
            self.processors.append(processor)
        self.messages = array("q")  # flattened fields of each `Message` in turn
        self.network = make_network(job, self.flow, context)
        if conditions is not None:
            assert self.open is not None
            cut = None if self.network is None else self.network.cut_links
            self.breakdowns = Breakdowns(context, conditions, self.open, self.issuers.stop, cut)
        self.communicators: Communicators | None = None
        # For each op and transfer: the communicators, if it belongs to one.
        self.communicators_of: list[Communicators | None] = [None] * self.flow.n_nodes
        if (collectives := job.collectives) is not None:
            self.communicators = Communicators(context, collectives, self.network, self.breakdowns)
            for op in collectives.op.tolist():
                self.communicators_of[op] = self.communicators
                for ns in self.duration_ns:  # a collective lasts until its ranks have met and are done
                    ns[op] = 0
        self.release_ns: Mapping[int, int] = job.graph.attribute("release")
        self.not_before_ns: IntArray | None = None  # set once the policy is prepared
        self.resources = SharedResources(job) if job.graph.attribute("resources") else None
        at_issue = self.memory is not None and self.memory.at_issue
        self.memory_at_issue = self.memory if at_issue else None
        self.memory_at_start = None if at_issue else self.memory
        # For each device: the callback for the end of a task, which frees what the task had.
        self.end_callbacks = [processor.end if processor else None for processor in self.processors]
        follows_ends = self.memory is not None and self.memory.follows_ends
        self.gives_back = follows_ends or any(self.end_callbacks) or bool(self.observers)
        # The results.
        self.frames: dict[str, int] = {}
        frames = self.frames if has_control_flow(job.graph) else None
        extra_columns = [*(["status"] if may_fail else []), *([] if frames is None else ["dead"])]
        n_tasks, n_transfers = self.flow.n_ops * job.iterations, len(self.flow.tensor) * job.iterations
        self.tasks = ColumnWriter((*TASK_COLUMNS, "calls_ns", *extra_columns), n_tasks, frames)
        self.transfers = ColumnWriter(TRANSFER_COLUMNS, n_transfers, frames)

    def _make_readiness(self, keys: RendezvousKeys, graph_flow: Flow) -> None:
        """Create the readiness of tasks; `graph_flow` lacks the transfers that Sends start."""
        job, flow, policy, memory = self.job, self.flow, self.policy, self.memory
        self.readiness: Readiness
        if has_control_flow(job.graph):
            watcher, values = memory.watcher if memory else None, predicate_values(job, flow)
            tokens = TaggedTokenReadiness(job, flow, policy.synchronisation, values, watcher)
            self.readiness, tokens.sides = tokens, self.taken
        else:
            recvs = keys.recvs if policy.asks_in_turn else ()
            self.readiness = CounterReadiness(job, flow, policy.synchronisation, recvs)
        self.runs: RunsInTurn | None = None
        self.rendezvous: Rendezvous | None = None
        if policy.runs_in_turn and has_runs(job):
            self.readiness = self.runs = RunsInTurn(self.readiness, job, graph_flow)
        if keys.recvs:
            is_aborted = (lambda task: False) if self.failing is None else self.failing.is_aborted
            on_meeting = (lambda send, recv: None) if memory is None else memory.on_meeting
            self.readiness = self.rendezvous = Rendezvous(
                self.readiness, self, keys, policy.asks_in_turn, is_aborted, on_meeting
            )

    # -- for processors, networks and memory: `sim.job.context.Context` ------------------------------

    def call_at(self, time_ns: int, callback: Callable[[Any], None], value: Any = None) -> None:
        """Call ``callback(value)`` at `time_ns`."""
        self._schedule(time_ns - self.now_ns, self.called.append, (callback, value))

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` at the present instant, once all its ends and starts are known."""
        self.settling.append(callback)

    def started(self, task: Task) -> None:
        """Record that a task whose start was delayed begins to execute now."""
        if task.start_ns < self.now_ns:
            self._begin(task, task.stream)
        if (communicators := self.communicators_of[task.op]) is not None:
            communicators.on_start(task)
        if self.breakdowns is not None and task.group < 0:
            self.breakdowns.watch_transfer(task)
        if self.observers:
            notify(self.observers, "started", task)

    def duration_of(self, task: Task) -> int:
        """Return the undisturbed duration of `task`; a collective, by itself, takes no time."""
        if self.drawn is not None:
            return self.drawn(task.op, task.iteration, str(task.frame or ""))
        return self.duration_ns[task.iteration][task.op]

    def carried(self, message: Message) -> None:
        """Record a message that has arrived."""
        self.messages.extend(message)

    def finish(self, task: Task) -> None:
        """End a task at the present instant."""
        self.end(task)

    def _schedule(self, delay_ns: int, note: Callable[[Any], None], value: Any) -> None:
        """Let SimPy call ``note(value)`` after a delay; it may do nothing but note that the event fired."""
        self.clock.timeout(delay_ns).callbacks.append(lambda _: note(value))

    def _begin(self, task: Task, lane: int) -> None:
        task.start_ns, task.round, task.stream = self.now_ns, self.round, lane
