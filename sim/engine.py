"""The engine: one loop over instants, on SimPy.

At each instant, in this order::

    1. all completions, in the order in which they were scheduled     (_complete)
    2. memory is released, then tasks become eligible                 (_complete)
    3. every free issuer is asked, in machine order,                  (_ask_groups, _ask_all)
       until none takes a task
    4. streams start their heads, in machine order                    (_start_heads)

SimPy keeps the queue of future instants; callbacks only note what fired, and the whole instant is
settled at once when no event of the same time is left. That is what makes the order above hold
whatever the order of events inside an instant, and what makes ties reproducible.

A task's way through it::

    eligible ─ policy.next ─► taken ─ issue cost ─► issued on a stream ─ head, events, launch ─► start ─► end
                                └─ a CPU worker executes what it takes ──────────────────────────►┘
"""

from __future__ import annotations

import gc
import warnings
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol

import simpy
from simpy.events import NORMAL

from sim.control_flow import TaggedTokenReadiness, has_control_flow
from sim.errors import InfeasibleError, InputError, RunError
from sim.graph import Graph, IntArray
from sim.job import Job, make_job
from sim.model import (
    MANAGED,
    WAIT,
    Issuer,
    Linearizer,
    Machine,
    Network,
    Placement,
    Policy,
    Processor,
    StreamAssignment,
    Task,
)
from sim.readiness import CompletionReadiness, IssueReadiness, Readiness
from sim.stuck import stuck_error
from sim.trace import Trace, Wait
from sim.transfers import Flow, make_flow

__all__ = ["Memory", "Observer", "simulate"]


class Observer(Protocol):
    """Watches a run. Costs nothing when absent; one that raises is dropped with a warning."""

    def started(self, task: Task) -> None:
        """`task` began to execute at ``task.start_ns``."""

    def ended(self, task: Task) -> None:
        """`task` finished at ``task.end_ns``."""


class Memory(Protocol):
    """Gives tasks the memory of their outputs and takes it back after the last consumer."""

    at_issue: bool
    """Whether memory is taken when a task is issued (else when it starts)."""

    def acquire(self, task: Task) -> int:
        """Take what `task` needs; return the ns it costs the issuer, or `WAIT` until something is freed.

        Asked again for the same task after a `WAIT`, or after it was granted: then it returns 0.

        Raises
        ------
        OutOfMemoryError
            When it cannot be had and waiting is not wanted.
        """

    def release(self, task: Task) -> bool:
        """`task` ended: free what nobody needs any more; return whether anything was freed."""

    def columns(self) -> dict[str, IntArray]:
        """Return the log: ``time_ns, device, change, in_use, requested, reserved``, in order."""


class _Event:
    """Something of ours in SimPy's queue that is not a task."""

    __slots__ = ("callbacks", "value")
    _ok = True

    def __init__(self, value: Any) -> None:
        self.callbacks: Any = None
        self.value = value


class _Stream:
    """A queue of issued tasks; one runs at a time."""

    __slots__ = ("device", "dirty", "free_ns", "gap_ns", "index", "launch_ns", "queue", "running", "wake_ns")

    def __init__(self, index: int, device: int, launch_ns: int, gap_ns: int) -> None:
        self.index, self.device, self.launch_ns, self.gap_ns = index, device, launch_ns, gap_ns
        self.queue: deque[Task] = deque()
        self.running: Task | None = None
        self.free_ns = 0
        self.wake_ns = -1
        self.dirty = False


_by_index = attrgetter("index")


class Engine:
    """One run; `simulate` is the way in. Implements `sim.model.Context` for devices and networks."""

    def __init__(
        self,
        job: Job,
        policy: Policy,
        *,
        memory: Callable[[Job, Engine], Memory] | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        machine = job.machine
        self.job, self.policy = job, policy
        self.env = simpy.Environment(initial_time=0)
        self.now_ns = 0
        self.schedule = self.env.schedule
        self.observers = list(observers)
        self.flow: Flow = make_flow(job)
        at_issue = policy.synchronisation == "issue"
        dynamic = has_control_flow(job.graph)
        self.readiness: Readiness
        if dynamic:
            self.readiness = TaggedTokenReadiness(job, self.flow, at_issue)
        else:
            self.readiness = (IssueReadiness if at_issue else CompletionReadiness)(job, self.flow)
        if dynamic and memory is not None:
            raise InputError(
                "an allocator cannot follow tensors through frames: leave memory out for control flow"
            )
        self.duration_ns: list[int] = job.duration_ns.tolist()
        self.device_of: list[int] = job.device_of.tolist()
        has_workers = [device.workers > 0 for device in machine.devices]
        self.executed = [has_workers[d] for d in self.device_of]  # by a worker; else launched on a stream
        self.stream_of: list[int] = []
        self.issue_ns: list[int] | None = _issue_costs(job)
        self.issuers = machine.issuers()
        self.idle: list[list[Issuer]] = [[] for _ in range(job.n_groups)]
        for issuer in self.issuers:
            self.idle[issuer.group].append(issuer)
        self.by_group = policy.scope == "group"
        self.is_dirty = [False] * job.n_groups
        self.dirty_groups: list[int] = []
        self.streams: list[_Stream] = [
            _Stream(first + lane, d, device.launch_latency_ns, device.gap_ns)
            for d, (first, device) in enumerate(zip(machine.first_stream, machine.devices, strict=False))
            for lane in range(device.lanes)
        ]
        if not all(self.executed):
            self.stream_of = job.stream_of.tolist()
        self.dirty_streams: list[_Stream] = []
        self.processors: list[Processor | None] = [
            device.processor(device, self) if device.processor else None for device in machine.devices
        ]
        self.shared = any(self.processors)
        self.blocked: list[deque[_Stream | Task]] = [
            deque() for _ in machine.devices
        ]  # by a processor's WAIT
        self.outstanding = [0] * len(machine.devices)
        self.depth = [device.queue_depth for device in machine.devices]
        self.limited = any(depth is not None for depth in self.depth)
        self.parked: list[deque[Task]] = [
            deque() for _ in machine.devices
        ]  # launches that found the queue full
        self.network: Network | None = None
        if self.flow.n_nodes > self.flow.n_ops and machine.links:
            if machine.network is None:
                raise InfeasibleError("the machine has links but no network to carry transfers over them")
            for a, b in sorted(
                set(zip(self.flow.source.tolist(), self.flow.destination.tolist(), strict=True))
            ):
                machine.route(a, b)  # refuse before time 0 what can never arrive
            self.network = machine.network(machine, self)
        self.memory = memory(job, self) if memory else None
        self.asynchronous = self.readiness.asynchronous
        self.now_ready_of = self.readiness.ended
        self.policy_ended = policy.ended
        self.starved: list[Task] = []  # tasks that wait for memory
        self.ended: list[Task] = []
        self.paid: list[Task] = []
        self.tasks: list[Task] = []
        self.transfers: list[Task] = []
        self.plain = not (self.shared or self.memory or self.observers or dynamic)
        # One list of callbacks for each sort of event, shared by all of them. A completion only notes
        # the task, so the callback is the list's own append.
        self._on_end: list[Callable[[Any], None]] = [self.ended.append]
        self._on_paid: list[Callable[[Any], None]] = [self.paid.append]
        self._on_wake: list[Callable[[Any], None]] = [self._note_wake]
        self._on_call: list[Callable[[Any], None]] = [self._note_call]

    # -- Context: what processors and networks may use ---------------------------------------

    def call_at(self, time_ns: int, callback: Callable[[Any], None], value: Any = None) -> None:
        """Call ``callback(value)`` at `time_ns`."""
        self._schedule(_Event((callback, value)), self._on_call, time_ns - self.now_ns)

    def finish(self, task: Task) -> None:
        """End a task at the present instant."""
        self.ended.append(task)

    # -- what fired: noted now, settled when the instant is complete ---------------------------

    def _schedule(self, what: Any, callbacks: list[Callable[[Any], None]], delay_ns: int) -> None:
        what.callbacks = callbacks  # SimPy runs through the list and never changes it
        self.schedule(what, NORMAL, delay_ns)

    def _note_wake(self, event: _Event) -> None:
        stream: _Stream = event.value
        if stream.wake_ns == self.now_ns:
            stream.wake_ns = -1
            self._touch(stream)

    def _note_call(self, event: _Event) -> None:
        callback, value = event.value
        callback(value)

    # -- the loop ----------------------------------------------------------------------------

    def run(self) -> Trace:
        """Run to the end.

        Raises
        ------
        StuckError
            When tasks remain and nothing can happen any more.
        """
        self.policy.prepare(self.job)
        peek, step = self.env.peek, self.env.step
        never = float("inf")
        with _collector_paused():
            self._eligible(None, self.readiness.roots(), None, True)
            now: float = 0
            while now != never:
                if self.ended:
                    self._complete()
                if self.paid:
                    self._issue_paid()
                if not self.by_group:
                    self._ask_all()
                elif self.dirty_groups:
                    self._ask_groups()
                if self.dirty_streams:
                    self._start_heads()
                now = peek()
                if now != never:
                    self.now_ns = now  # type: ignore[assignment]
                    step()
                    while peek() == now:
                        step()
        over = [task.id for task in chain(self.tasks, self.transfers) if task.end_ns >= 0]
        if len(over) < self.readiness.total:
            waiting = dict(self.readiness.unfinished(set(over)))
            raise stuck_error(self.readiness.name, waiting, self.policy)
        memory = self.memory.columns() if self.memory is not None else None
        return Trace.from_tasks(self.job, self.flow, self.policy, self.tasks, self.transfers, memory)

    def _complete(self) -> None:
        ended = self.ended[:]
        self.ended.clear()
        now = self.now_ns
        for task in ended:
            task.end_ns = now
            issuer = task.issuer
            if issuer is not None:
                if task.dead or self.executed[task.op]:
                    self._free(issuer)
                else:
                    self._leave_stream(task)
        freed = False
        if not self.plain:
            for task in ended:
                if self.shared and task.issuer is not None and not task.dead:
                    self._leave_processor(task)
                if self.observers:
                    self._tell("ended", task)
            if self.memory is not None:
                for task in ended:
                    freed |= self.memory.release(task)
        now_ready_of = self.now_ready_of
        asynchronous = self.asynchronous
        for task in ended:
            issuer = task.issuer
            told = asynchronous and (
                issuer is None or not (task.dead or self.executed[task.op])
            )  # when issued
            self._eligible(task, now_ready_of(task), issuer, not told)
        if asynchronous:
            for task in self.readiness.released():
                if task.group < 0:
                    self._carry(task)
                else:
                    self._touch(self.streams[task.stream])
        if freed and self.starved:
            self._feed()

    def _leave_stream(self, task: Task) -> None:
        """Free the stream, and a place in the launch queue, of a task that ended."""
        stream = self.streams[task.stream]
        stream.running = None
        stream.free_ns = task.end_ns + stream.gap_ns
        if stream.queue and not stream.dirty:
            stream.dirty = True
            self.dirty_streams.append(stream)
        if self.limited:
            device = stream.device
            self.outstanding[device] -= 1
            if self.parked[device]:
                self.paid.append(self.parked[device].popleft())

    def _leave_processor(self, task: Task) -> None:
        """Give back what the device's tasks share; whoever was refused may try again."""
        device = self.device_of[task.op]
        processor = self.processors[device]
        if processor is None:
            return
        processor.end(task)
        for what in self.blocked[device]:
            if isinstance(what, Task):
                self.paid.append(what)
            else:
                self._touch(what)
        self.blocked[device].clear()

    def _issue_paid(self) -> None:
        """Go on with tasks that are taken: their issue cost is paid, or what they waited for is free."""
        paid = self.paid[:]
        self.paid.clear()
        for task in paid:
            issuer = task.issuer
            assert issuer is not None
            if self.executed[task.op]:
                self._begin(task)
            else:
                self._free(issuer)
                self._push(task)

    # -- eligible → taken --------------------------------------------------------------------

    def _eligible(self, cause: Task | None, tasks: list[Task], issuer: Issuer | None, tell: bool) -> None:
        """Stamp new tasks, tell the policy of them (of none at all only if `tell`), start transfers."""
        is_dirty = self.is_dirty
        moving = False
        now = self.now_ns
        for task in tasks:
            task.ready_ns = now
            group = task.group
            if group < 0:
                moving = True
            elif not is_dirty[group]:
                is_dirty[group] = True
                self.dirty_groups.append(group)
        if not moving:
            if cause is None:
                for task in tasks:
                    self.policy.ready(task)
            elif tasks or tell:
                self.policy_ended(cause, tasks, issuer)
            return
        self._eligible(cause, [task for task in tasks if task.group >= 0], issuer, tell)
        for task in tasks:
            if task.group < 0:
                task.issue_ns = self.now_ns
                if self.asynchronous:
                    self._issued(task)
                    if not self.readiness.may_start(task):
                        continue
                self._carry(task)

    def _carry(self, transfer: Task) -> None:
        if self.memory is not None and self.memory.acquire(transfer) == WAIT:
            self.starved.append(transfer)
            return
        self.transfers.append(transfer)
        if self.network is None or transfer.dead:  # a dead token weighs nothing
            transfer.start_ns = self.now_ns
            self._schedule(transfer, self._on_end, 0)
        else:
            self.network.start(transfer)

    def _ask_groups(self) -> None:
        """Ask the free issuers of every group where something changed, until none takes a task."""
        ask = self.policy.next
        while self.dirty_groups:
            groups, self.dirty_groups = self.dirty_groups, []
            if len(groups) > 1:
                groups.sort()
            for group in groups:
                self.is_dirty[group] = False
                idle = self.idle[group]
                while idle:
                    task = ask(idle[0])
                    if task is None:
                        break
                    self._take(idle[0], task)

    def _ask_all(self) -> None:
        """Ask every free issuer of the machine, until none takes a task."""
        ask = self.policy.next
        took = True
        while took:
            took = False
            for idle in self.idle:
                for issuer in idle[:]:
                    task = ask(issuer)
                    if task is not None:
                        took = True
                        self._take(issuer, task)

    def _free(self, issuer: Issuer | None) -> None:
        assert issuer is not None
        group = issuer.group
        idle = self.idle[group]
        if idle:
            insort(idle, issuer, key=_by_index)
        else:
            idle.append(issuer)
        if not self.is_dirty[group]:
            self.is_dirty[group] = True
            self.dirty_groups.append(group)

    def _take(self, issuer: Issuer, task: Task) -> None:
        if task.issuer is not None or task.ready_ns < 0 or task.group != issuer.group:
            raise RunError(
                f"policy {type(self.policy).__name__} gave {issuer.name} "
                f"op {self.job.graph.op_names[task.op]!r}, "
                + ("which was taken before" if task.issuer is not None else "which it may not take (now)")
            )
        task.issuer = issuer
        executed = self.executed[task.op]
        if executed and self.plain and self.issue_ns is None:
            self.idle[issuer.group].remove(issuer)
            task.stream = issuer.stream
            task.issue_ns = now = self.now_ns
            self._start(task, now)
            return
        if task.dead:  # executes nothing: the issuer passes it by
            self.idle[issuer.group].remove(issuer)
            task.stream = issuer.stream
            task.issue_ns = task.start_ns = self.now_ns
            self.tasks.append(task)
            self._schedule(task, self._on_end, 0)
            return
        cost = self.issue_ns[task.op] if self.issue_ns is not None else 0
        if self.memory is not None and self.memory.at_issue:
            extra = self.memory.acquire(task)
            if extra == WAIT:
                task.wait = Wait.MEMORY
                self.idle[issuer.group].remove(issuer)
                self.starved.append(task)
                return
            cost += extra
        if cost or executed:
            self.idle[issuer.group].remove(issuer)
        self._pay(task, cost)

    def _pay(self, task: Task, cost_ns: int) -> None:
        """Spend the issuer's time on `task`, then let it execute or be put on its stream."""
        executed = self.executed[task.op]
        if executed:
            task.issue_ns = self.now_ns
        if cost_ns:
            self._schedule(task, self._on_paid, cost_ns)
        elif executed:
            self._begin(task)
        else:
            self._push(task)

    def _feed(self) -> None:
        """Memory was freed: let those who wait for it try again, first come first served."""
        starved, self.starved = self.starved, []
        assert self.memory is not None
        for k, task in enumerate(starved):
            if task.group < 0:
                self._carry(task)
                continue
            if not self.memory.at_issue:
                if self.executed[task.op]:
                    self._begin(task)
                else:
                    self._touch(self.streams[task.stream])
                continue
            extra = self.memory.acquire(task)
            if extra == WAIT:
                self.starved.extend(starved[k:])
                return
            cost = extra + (self.issue_ns[task.op] if self.issue_ns is not None else 0)
            if not cost and not self.executed[task.op]:
                self._free(task.issuer)
            self._pay(task, cost)

    # -- taken → issued ----------------------------------------------------------------------

    def _push(self, task: Task) -> None:
        """Put a task on its stream, unless the device's launch queue is full."""
        op = task.op
        if self.limited:
            device = self.device_of[op]
            depth = self.depth[device]
            if depth is not None and self.outstanding[device] >= depth:
                self.parked[device].append(task)
                assert task.issuer is not None
                self.idle[task.issuer.group].remove(task.issuer)
                return
            self.outstanding[device] += 1
        task.issue_ns = self.now_ns
        stream = self.streams[self.stream_of[op]]
        task.stream = stream.index
        stream.queue.append(task)
        if stream.running is None and len(stream.queue) == 1:
            self._touch(stream)
        if self.asynchronous:
            self._issued(task)

    def _issued(self, task: Task) -> None:
        self._eligible(task, self.readiness.issued(task), task.issuer, task.group >= 0)

    # -- issued → start ----------------------------------------------------------------------

    def _touch(self, stream: _Stream) -> None:
        if not stream.dirty:
            stream.dirty = True
            self.dirty_streams.append(stream)

    def _start_heads(self) -> None:
        dirty, self.dirty_streams = self.dirty_streams, []
        if len(dirty) > 1:
            dirty.sort(key=_by_index)
        now = self.now_ns
        may_start = self.readiness.may_start if self.asynchronous else None
        for stream in dirty:
            stream.dirty = False
            if stream.running is not None or not stream.queue:
                continue
            task = stream.queue[0]
            if may_start is not None and not may_start(task):
                task.wait = Wait.EVENT
                continue
            at = max(now, task.issue_ns + stream.launch_ns, stream.free_ns, task.floor_ns)
            if at > now:
                task.wait = task.wait or Wait.LAUNCH
                if not self.plain:  # the device may have changed its mind by then
                    if stream.wake_ns != at:
                        stream.wake_ns = at
                        self._schedule(_Event(stream), self._on_wake, at - now)
                    continue
            if self.plain:
                self._start(task, at)
            elif not self._admit(task, stream):
                continue
            stream.queue.popleft()
            stream.running = task

    def _start(self, task: Task, at_ns: int) -> None:
        """Start a task, now or later, that nothing can hold up any more."""
        task.start_ns = at_ns
        self.tasks.append(task)
        task.callbacks = self._on_end
        self.schedule(task, NORMAL, at_ns - self.now_ns + self.duration_ns[task.op])  # type: ignore[arg-type]

    def _begin(self, task: Task) -> None:
        """Start a task that a CPU worker has taken."""
        task.stream = task.issuer.stream  # type: ignore[union-attr]
        if self.plain:
            self._start(task, self.now_ns)
        else:
            self._admit(task, task)

    def _admit(self, task: Task, waiting: _Stream | Task) -> bool:
        """Start `task` if memory and the device's resources allow it now."""
        op = task.op
        if self.memory is not None and not self.memory.at_issue and self.memory.acquire(task) == WAIT:
            task.wait = Wait.MEMORY
            self.starved.append(task)
            return False
        ns = self.duration_ns[op]
        if self.shared:
            device = self.device_of[op]
            processor = self.processors[device]
            if processor is not None:
                ns = processor.start(task)
                if ns == WAIT:
                    task.wait = Wait.RESOURCES
                    self.blocked[device].append(waiting)
                    return False
        task.start_ns = self.now_ns
        self.tasks.append(task)
        if ns != MANAGED:
            self._schedule(task, self._on_end, ns)
        if self.observers:
            self._tell("started", task)
        return True

    def _tell(self, what: str, task: Task) -> None:
        for observer in tuple(self.observers):
            try:
                getattr(observer, what)(task)
            except Exception as error:
                self.observers.remove(observer)
                warnings.warn(
                    f"observer {observer!r} raised {error!r} and was dropped", RuntimeWarning, stacklevel=2
                )


def _issue_costs(job: Job) -> list[int] | None:
    """Return what issuing each op costs its issuer, or None when nothing costs anything."""
    devices = job.machine.devices
    if not any(device.issue_ns or device.issue_ns_by_kind for device in devices):
        return None
    kinds = job.graph.kinds
    table = [[d.issue_ns_by_kind.get(kind, d.issue_ns) for kind in kinds] for d in devices]
    codes = job.graph.kind_code.tolist()
    return [table[d][k] for d, k in zip(job.device_of.tolist(), codes, strict=True)]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector: a run makes many objects and no cycles worth collecting."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def simulate(
    graph: Graph,
    machine: Machine,
    policy: Policy,
    *,
    placement: Placement | None = None,
    streams: StreamAssignment | None = None,
    linearize: Linearizer | None = None,
    memory: Callable[[Job, Engine], Memory] | None = None,
    iterations: int = 1,
    knowledge: str = "exact",
    seed: int = 0,
    observers: Iterable[Observer] = (),
) -> Trace:
    """Run `graph` on `machine` under `policy` and return what happened.

    Parameters
    ----------
    graph : Graph
    machine : Machine
    policy : Policy
        Issues tasks; prepared anew for every run.
    placement, streams, linearize, iterations, knowledge, seed
        The other decisions; see `sim.job.make_job`.
    memory : callable, optional
        ``memory(job, engine)`` returns the `Memory` of the run; by default memory is unlimited.
    observers : iterable of Observer
        Told of every start and end.

    Returns
    -------
    Trace

    Raises
    ------
    InputError
        A wrong number, name or pin.
    InfeasibleError
        Refused before time 0: an op that no device can run, devices no link connects.
    StuckError
        Nothing can happen any more and tasks remain.
    OutOfMemoryError
        An allocation failed.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("fork")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"]}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=10)
    >>> simulate(b.build(), Machine((Device("cpu0", "cpu", workers=2),)), ReadyQueue()).makespan_ns
    20
    """
    job = make_job(
        graph,
        machine,
        placement=placement,
        streams=streams,
        linearize=linearize,
        iterations=iterations,
        knowledge=knowledge,
        seed=seed,
    )
    return Engine(job, policy, memory=memory, observers=observers).run()
