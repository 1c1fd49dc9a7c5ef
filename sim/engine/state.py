"""The state of a run, and what everybody may do with it.

Three classes add to it what happens along a task's way, each in a file of its own::

    State ◄── Starting (issued → start)  ◄── Issuing (eligible → issued)  ◄── Engine (the loop, ends)
"""

from __future__ import annotations

import warnings
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from operator import attrgetter
from typing import Any

import numpy as np
from simpy.events import NORMAL

from sim.control_flow import TaggedTokenReadiness
from sim.engine.clock import Clock
from sim.engine.hooks import Memory, Observer
from sim.errors import InfeasibleError, InputError
from sim.frames import has_control_flow
from sim.hosting import HostThreads, host_groups
from sim.issue_costs import issue_costs_ns
from sim.job import Job
from sim.meeting import find_meetings
from sim.model import Issuer, Network, Policy, Processor, Task
from sim.program_order import decided
from sim.readiness import CompletionReadiness, IssueReadiness, Readiness
from sim.rendezvous import Rendezvous, with_meeting_transfers
from sim.rows import task_rows, transfer_rows
from sim.transfers import Flow, check_routes, make_flow

__all__ = ["Event", "State", "Stream", "by_index"]


class Event:
    """Something of ours in SimPy's queue that is not a task."""

    __slots__ = ("callbacks", "value")
    _ok = True

    def __init__(self, value: Any) -> None:
        self.callbacks: Any = None
        self.value = value


class Stream:
    """A queue of issued tasks; one runs at a time."""

    __slots__ = (
        "announce", "certain", "device", "dirty", "free_ns", "gap_ns", "index", "launch_ns", "queue",
        "running", "waking", "woken",
    )  # fmt: skip

    def __init__(self, index: int, device: int, launch_ns: int, gap_ns: int) -> None:
        self.index, self.device, self.launch_ns, self.gap_ns = index, device, launch_ns, gap_ns
        self.queue: deque[Task] = deque()
        self.running: Task | None = None
        self.free_ns = 0
        self.dirty = False
        self.waking = False  # whether a wake-up lies ahead
        self.woken = False  # whether it is at the present instant
        self.certain = False  # whether nothing can hold up a start that lies ahead
        self.announce: Callable[[Task, int], int] | None = None  # else: whom to tell of it beforehand


by_index = attrgetter("index")


class State:
    """Everything that changes during a run. Implements `sim.model.Context` for devices and networks."""

    # An instance of so many attributes would have a dictionary of its own (CPython shares keys up to 30), in
    # which the hot loop looks longer: 5 % of a task's time.
    __slots__ = (
        "_on_call", "_on_end", "_on_paid", "_on_postponed", "_on_wake", "asynchronous", "blocked",
        "by_group", "calls", "certain", "clock", "depth", "device_of", "direct", "dirty_groups",
        "dirty_streams", "duration_ns", "ended", "executed", "flow", "frames", "give_back", "holding",
        "hosts", "idle", "is_dirty", "issue_ns", "issuers", "job", "limited", "memory", "network",
        "noisy_ns", "now_ns", "now_ready_at_issue", "now_ready_of", "observers", "outstanding", "paid",
        "parked", "plain", "policy", "policy_ended", "postponed", "processors", "readiness", "rendezvous",
        "schedule", "settling", "shared", "starved", "stream_of", "streams", "task_rows", "tasks",
        "transfer_rows", "transfers",
    )  # fmt: skip

    job: Job

    def __init__(
        self,
        job: Job,
        policy: Policy,
        *,
        memory: Callable[[Job, State], Memory] | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        machine = job.machine
        self.job, self.policy = job, policy
        self.clock = Clock()
        self.now_ns = 0
        self.schedule = self.clock.schedule
        self.observers = list(observers)
        self.flow: Flow = make_flow(job)
        meetings = find_meetings(job.graph)
        if meetings.recvs:
            self.flow = with_meeting_transfers(job, self.flow, meetings)
        at_issue = policy.synchronisation == "issue"
        dynamic = has_control_flow(job.graph)
        self.readiness: Readiness
        if dynamic:
            self.readiness = TaggedTokenReadiness(job, self.flow, at_issue, decided(job, self.flow))
        else:
            self.readiness = (IssueReadiness if at_issue else CompletionReadiness)(job, self.flow)
        self.rendezvous: Rendezvous | None = None
        if meetings.recvs:
            self.rendezvous = self.readiness = Rendezvous(self.readiness, job, self.flow, meetings, self)
        if dynamic and memory is not None:
            raise InputError(
                "an allocator cannot follow tensors through frames: leave memory out for control flow"
            )
        self.duration_ns: list[int] = job.duration_ns.tolist()
        self.noisy_ns: list[list[int]] | None = None if job.noisy_ns is None else job.noisy_ns.tolist()
        self.device_of: list[int] = job.device_of.tolist()
        has_workers = [device.workers > 0 for device in machine.devices]
        self.executed = [has_workers[d] for d in self.device_of]  # by a worker; else launched on a stream
        # Launched ops that keep their host thread until they end, such as copies from pageable memory.
        self.holding = frozenset(
            op
            for op, given in job.graph.attributes.items()
            if (given.get("host_waits") or given.get("pageable")) and not self.executed[op]
        )
        self.stream_of: list[int] = []
        costs_ns = issue_costs_ns(job)
        self.issue_ns: list[int] | None = costs_ns.tolist() if costs_ns.any() else None
        self.issuers = machine.issuers()
        self.idle: list[list[Issuer]] = [[] for _ in range(job.n_groups)]
        for issuer in self.issuers:
            self.idle[issuer.group].append(issuer)
        hosted = host_groups(job, self.flow.source, self.flow.destination)
        self.hosts: HostThreads | None = None
        if (hosted >= 0).any():
            nodes = self.flow.n_ops + np.flatnonzero(hosted >= 0)
            copied = zip(nodes.tolist(), hosted[hosted >= 0].tolist(), strict=True)
            self.hosts = HostThreads(dict(copied), self.idle)
        self.by_group = policy.scope == "group"
        self.is_dirty = [False] * job.n_groups
        self.dirty_groups: list[int] = []
        self.streams: list[Stream] = [
            Stream(first + lane, d, device.launch_latency_ns, device.gap_ns)
            for d, (first, device) in enumerate(zip(machine.first_stream, machine.devices, strict=False))
            for lane in range(device.lanes)
        ]
        if not all(self.executed):
            self.stream_of = job.stream_of.tolist()
        self.dirty_streams: list[Stream] = []
        self.processors: list[Processor | None] = [
            device.processor(device, self) if device.processor else None for device in machine.devices
        ]
        self.give_back = [processor.end if processor else None for processor in self.processors]
        self.shared = any(self.give_back)  # whether the end of a task has to be told
        self.blocked: list[deque[Stream | Task]] = [deque() for _ in machine.devices]  # by a processor's WAIT
        self.outstanding = [0] * len(machine.devices)
        depths = [device.queue_depth for device in machine.devices]
        self.limited = any(depth is not None for depth in depths)
        self.depth = [inf if depth is None else depth for depth in depths]
        self.parked: list[deque[Task]] = [
            deque() for _ in machine.devices
        ]  # launches that found the queue full
        self.network: Network | None = None
        if self.flow.n_nodes > self.flow.n_ops and machine.links:
            if machine.network is None:
                raise InfeasibleError("the machine has links but no network to carry transfers over them")
            check_routes(job, self.flow)
            self.network = machine.network(machine, self)
        self.memory = memory(job, self) if memory else None
        self.asynchronous = self.readiness.asynchronous
        self.now_ready_of, self.now_ready_at_issue = self.readiness.ended, self.readiness.issued
        self.policy_ended = policy.ended
        self.starved: list[Task] = []  # tasks that wait for memory
        self.calls: dict[int, int] = {}  # task → ns its issuer spent on calls of the allocator, where it did
        self.ended: list[Task] = []
        self.paid: list[Task] = []
        self.frames: dict[str, int] = {}
        n_transfers = self.flow.n_nodes - self.flow.n_ops
        self.task_rows = task_rows(job.graph, self.flow.n_ops * job.iterations, self.frames)
        self.transfer_rows = transfer_rows(n_transfers * job.iterations)
        self.tasks = self.task_rows.tasks
        self.transfers = self.transfer_rows.tasks
        self.settling: list[Callable[[], None]] = []
        self.postponed: dict[Task, Event] = {}
        # Without any of these all that the engine does at a start or an end is to put it down.
        unwatched = not (self.observers or self.noisy_ns or dynamic)
        self.plain = unwatched and not any(self.processors) and self.memory is None
        unheld = unwatched and (self.memory is None or self.memory.at_issue)  # memory is no reason to wait
        self.certain = [unheld and processor is None for processor in self.processors]
        for stream in self.streams:
            stream.certain = self.certain[stream.device]
            if unheld:
                stream.announce = getattr(self.processors[stream.device], "announce", None)
        free = self.issue_ns is None and self.memory is None
        at_once = [
            free and workers and certain for workers, certain in zip(has_workers, self.certain, strict=True)
        ]
        # Whether a worker executes what it takes at once.
        self.direct = self.executed if free and self.plain else [at_once[d] for d in self.device_of]
        # One list of callbacks for each sort of event, shared by all of them. A completion only notes
        # the task, so the callback is the list's own append.
        self._on_end: list[Callable[[Any], None]] = [self.ended.append]
        self._on_paid: list[Callable[[Any], None]] = [self.paid.append]
        self._on_wake: list[Callable[[Any], None]] = [self._note_wake]
        self._on_postponed: list[Callable[[Any], None]] = [self._note_postponed]
        self._on_call: list[Callable[[Any], None]] = [self._note_call]

    def call_at(self, time_ns: int, callback: Callable[[Any], None], value: Any = None) -> None:
        """Call ``callback(value)`` at `time_ns`."""
        event = Event((callback, value))
        event.callbacks = self._on_call
        self.schedule(event, NORMAL, time_ns - self.now_ns)  # type: ignore[arg-type]

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` at the present instant, once all that ends and starts at it is known."""
        self.settling.append(callback)

    @property
    def again(self) -> bool:
        """Whether this instant was settled before, and what was done then caused something more."""
        return self.clock.before == self.now_ns

    def end_at(self, task: Task, end_ns: int) -> None:
        """Let a task that was begun beforehand end at another instant than was said."""
        task.callbacks = ()  # at the instant that was said before nothing happens
        said = self.postponed.get(task)
        if said is not None:
            said.callbacks = ()
        self.postponed[task] = event = Event(task)
        self._schedule(event, self._on_postponed, end_ns - self.now_ns)

    def _note_postponed(self, event: Event) -> None:
        del self.postponed[event.value]
        self.ended.append(event.value)

    def started(self, task: Task) -> None:
        """Put down that a task, which its processor had put off, begins to execute now."""
        if self.now_ns > task.start_ns:
            task.start_ns = self.now_ns
        if self.observers:
            self._tell("started", task)

    def duration_of(self, task: Task) -> int:
        """Return how long `task` takes when nothing else disturbs it."""
        if self.noisy_ns is not None:
            return self.noisy_ns[task.iteration][task.op]
        return self.duration_ns[task.op]

    def finish(self, task: Task) -> None:
        """End a task at the present instant."""
        self.ended.append(task)

    def _schedule(self, what: Any, callbacks: list[Callable[[Any], None]], delay_ns: int) -> None:
        what.callbacks = callbacks  # SimPy runs through the list and never changes it
        self.schedule(what, NORMAL, delay_ns)

    def _note_wake(self, task: Task) -> None:
        stream = self.streams[task.stream]
        stream.waking, stream.woken = False, True
        self._touch(stream)

    def _note_call(self, event: Event) -> None:
        self.now_ns = self.clock.now  # type: ignore[assignment]  # the loop sets it after all events
        callback, value = event.value
        callback(value)

    def _touch(self, stream: Stream) -> None:
        if not stream.dirty:
            stream.dirty = True
            self.dirty_streams.append(stream)

    def _free(self, issuer: Issuer | None) -> None:
        assert issuer is not None
        group = issuer.group
        idle = self.idle[group]
        if idle:
            insort(idle, issuer, key=by_index)
        else:
            idle.append(issuer)
        if not self.is_dirty[group]:
            self.is_dirty[group] = True
            self.dirty_groups.append(group)

    def _tell(self, what: str, task: Task) -> None:
        for observer in tuple(self.observers):
            try:
                getattr(observer, what)(task)
            except Exception as error:
                self.observers.remove(observer)
                warnings.warn(
                    f"observer {observer!r} raised {error!r} and was dropped", RuntimeWarning, stacklevel=2
                )
