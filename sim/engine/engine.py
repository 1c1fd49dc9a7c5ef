"""One run of a job under a policy: the loop over instants (see `sim.engine`)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from sim.base.arrays import LATEST_NS
from sim.base.options import whole_numbers
from sim.base.startup import collector_paused
from sim.engine.hooks import notify
from sim.engine.outcome import trace_of
from sim.engine.state import RunState, Stream
from sim.graph.failures import FAILED
from sim.issuers import refuse_wrong
from sim.job.job import read_only
from sim.machine.device import MANAGED, WAIT
from sim.machine.task import BACKGROUND, Issuer, Task
from sim.record.record import Wait
from sim.trace import Trace

T = TypeVar("T")

_by_id = attrgetter("id")
_by_issuer = attrgetter("issuer.index")
_by_start = attrgetter("start_ns", "round", "stream", "id")


class Engine(RunState):
    """One run of a job under a policy; implements `sim.job.context.Context` for devices and links.

    Parameters
    ----------
    job : Job
    policy : Policy
    flow : Flow, optional
        The result of `make_flow`, if already made.
    memory : callable, optional
        ``memory(job, context)`` returns the `Memory` of the run; by default memory is unlimited.
    observers : iterable of Observer
    conditions : Conditions, optional
        When parts of the machine fail, and how fast they are.
    """

    __slots__ = ()

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> Trace:
        """Run to the end.

        Raises
        ------
        StuckError
            When tasks remain and nothing can happen any more.
        """
        if self.breakdowns is not None:
            self.end = self._end_unless_cut
        self.policy.prepare(read_only(self.job))
        if (least_ns := self.policy.not_before_ns(read_only(self.job))) is not None:
            source = f"{type(self.policy).__name__}.not_before_ns"
            n = self.job.iterations * len(self.job.graph)
            self.not_before_ns = whole_numbers(least_ns, source, n, below=LATEST_NS)
        with collector_paused():
            self._eligible(self.readiness.roots())
            while True:
                if self.arrived:
                    self._eligible(_drain(self.arrived, _by_id))
                if self.ended:
                    self._complete()
                self._pay()
                if self.issuers.changed or self.starved:
                    self._ask()
                if self.touched:
                    self._start_heads()
                if self.settling:
                    self._settle()
                next_ns = self.clock.peek()
                if next_ns == inf:
                    break
                self._advance(next_ns)
                if self.breakdowns is not None and self._is_over():
                    break
            trace = trace_of(self)
        # The run, its memory and its processors refer to each other; cleared, they need no garbage collector.
        self.memory = self.memory_at_issue = self.memory_at_start = None
        self.processors.clear()
        self.end_callbacks.clear()
        return trace

    def _advance(self, to_ns: float) -> None:
        """Go to the next instant, or to another round of this one, and note everything that fires there."""
        self.round = self.round + 1 if to_ns == self.now_ns else 0
        self.now_ns = int(to_ns)
        self.clock.step()
        while self.clock.peek() == to_ns:
            self.clock.step()
        # Everything is noted by now, so these calls begin events of the next round.
        if self.called:
            for callback, value in _drain(self.called):
                callback(value)

    # -- 1. complete ---------------------------------------------------------------------------

    def _complete(self) -> None:
        """End the tasks that end now, and make eligible those that waited for them."""
        ended = _drain(self.ended, _by_start)
        for task in ended:
            task.end_ns = self.now_ns
            if self.open is not None:
                self._record_status(task)
            self._leave(task)
            (self.transfers if task.group < 0 else self.tasks).add(task)
        if self.gives_back:
            self._give_back(ended)
        for task in ended:
            # Under "issue" the policy already heard of a launched task when it was put on its stream.
            launched = task.group < 0 or not (task.dead or self.executed[task.op])
            heard = self.asynchronous and launched and task.stream != BACKGROUND
            self._pass_on(self._newly_ready(task), task, not heard)
        memory = self.memory  # under control flow, memory that no token refers to any more is free now
        if self.starved and memory is not None and memory.watcher is not None and memory.has_freed():
            self._retry_starved()
        if self.runs is not None and (begun := self.runs.take_begun()):
            self._eligible(begun if self.rendezvous is None else self.rendezvous.match(begun))
        if self.asynchronous:
            for task in self.readiness.take_released():
                if task.group < 0:
                    self._carry(task)
                else:
                    self._retry(task)

    def _newly_ready(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` ended; off any stream, a task is issued only then, too.

        The end of a failed task is not announced, so its consumers never become eligible.
        """
        if task.status:
            self._fail(task)
            return []
        if task.stream == BACKGROUND and self.asynchronous and not (task.dead or self.executed[task.op]):
            return self.readiness.on_issue(task) + self.readiness.on_end(task)
        return self.readiness.on_end(task)

    def _leave(self, task: Task) -> None:
        """Free the issuer, or the stream and the place in the launch queue, that `task` occupied."""
        issuer = task.issuer
        if issuer is None:
            self.issuers.end_copy(task)
            return
        if (communicators := self.communicators_of[task.op]) is not None:
            for following in communicators.leave(task):
                self._retry(following)
        if self.resources is not None:
            for following in self.resources.give_back(task):
                self._retry(following)
        executed = task.dead or task.status or self.executed[task.op]
        if (executed or task.op in self.holding) and task.id not in self.detached_ids:
            self.issuers.free(issuer)
        if executed or task.stream == BACKGROUND:
            return
        stream = self.streams[task.stream]
        stream.running = None
        stream.free_ns = task.end_ns + self.gap_ns[task.op]
        self.touched.add(stream.index)
        parked = self.launch_queues[stream.device].leave()
        if parked is not None:
            self.placed.append(parked)

    def _give_back(self, ended: list[Task]) -> None:
        """Give back shared resources and unneeded memory of ended tasks; refused tasks try again."""
        for task in ended:
            device = -1 if task.stream < 0 or self._is_skipped(task) else self.device_of[task.op]
            if device >= 0 and (end := self.end_callbacks[device]) is not None:
                end(task)
                blocked = self.blocked[device]
                while blocked:
                    self._retry(blocked.popleft())
        if self.observers:
            for task in ended:
                notify(self.observers, "ended", task)
        if self.memory is not None and self.memory.follows_ends:
            freed = [self.memory.release(task) for task in ended]  # of all, so `any` must not stop early
            if any(freed) and self.starved:
                self._retry_starved()

    def _pass_on(self, ready: list[Task], task: Task, announce: bool, issuer: Issuer | None = None) -> None:
        """Continue the Recvs whose request `task` met, then announce the tasks that it made eligible.

        An empty list is announced only if `announce`. `issuer` noticed; by default, it is the one that took
        `task` and stayed with it.
        """
        if issuer is None and task.id not in self.detached_ids:
            issuer = task.issuer
        if self.rendezvous is not None:
            for recv in self.rendezvous.take_arrived():
                self._receive(recv, issuer)
        if ready or announce:
            self._eligible(ready, task, announce, issuer)

    def _eligible(
        self, tasks: list[Task], cause: Task | None = None, announce: bool = True, taker: Issuer | None = None
    ) -> None:
        """Stamp new tasks and announce them, also an empty list if `announce`; issue transfers."""
        if self.open is not None:
            if self.failing is not None:
                tasks = [task for task in tasks if task.group >= 0 or not self.failing.is_aborted(task)]
            self.open.update((task.id, task) for task in tasks)
        if self.release_ns or self.not_before_ns is not None:
            tasks = [task for task in tasks if not self._is_postponed(task)]
        issued = []
        for task in tasks:
            if task.ready_ns < 0:
                task.ready_ns = self.now_ns
            if task.group >= 0:
                issued.append(task)
                self.issuers.changed.add(task.group)
        if cause is None:
            for task in issued:
                self.policy.ready(task)
        elif issued or announce:
            self.policy.ended(cause, issued, taker)
        if len(issued) < len(tasks):
            for task in tasks:
                if task.group < 0 and self.issuers.begin_copy(task):
                    self._issue_transfer(task)

    def _is_postponed(self, task: Task) -> bool:
        """Whether `task` is released, or wanted by its policy, only later; it is announced then."""
        if task.group < 0 or task.dead:
            return False
        at_ns = self.release_ns.get(task.op, 0)
        if at_ns <= self.now_ns and self.not_before_ns is not None:
            at_ns = int(self.not_before_ns[task.iteration * len(self.job.graph) + task.op])
            if task.ready_ns < 0:
                task.ready_ns = self.now_ns
        if at_ns <= self.now_ns:
            return False
        self._schedule(at_ns - self.now_ns, self.arrived.append, task)
        return True

    # -- transfers: issued by the engine itself ------------------------------------------------

    def _issue_transfer(self, transfer: Task) -> None:
        """Issue a transfer, and start it once its tensor is there."""
        transfer.issue_ns = self.now_ns
        if self.asynchronous:
            self._pass_on(self.readiness.on_issue(transfer), transfer, False)
            if not self.readiness.may_start(transfer):
                return
        self._carry(transfer)

    def _carry(self, transfer: Task) -> None:
        """Give a transfer to the network once its request has arrived and there is memory for it."""
        if self.breakdowns is not None and not self.breakdowns.carries(transfer):
            return
        if transfer.floor_ns > self.now_ns:
            self._schedule(transfer.floor_ns - self.now_ns, self.requested.append, transfer)
        elif self.memory is not None and not transfer.dead and self.memory.acquire(transfer) == WAIT:
            self.starved.append(transfer)
        elif self.network is None or transfer.dead:  # a dead token weighs nothing
            self.started(transfer)
            self._schedule(0, self.end, transfer)
        else:
            self.network.start(transfer)

    # -- 2. pay --------------------------------------------------------------------------------

    def _pay(self) -> None:
        """Continue tasks that were refused or parked, and those whose launch is paid for."""
        if self.retried or self.placed:
            for task in _drain(self.retried):
                if task.stream != BACKGROUND or self._events_arrived(task):
                    self._start(task)
            for task in _drain(self.placed):
                self._push(task)
        if self.recorded:
            for task in _drain(self.recorded, _by_issuer):
                self._on_launch(task)
        if self.paid:
            for task in _drain(self.paid, _by_issuer):
                self._issue(task)
        if self.requested:
            for transfer in _drain(self.requested, _by_id):
                self._carry(transfer)
        while self.issuers.copies and (waited := self.issuers.next_copy()) is not None:
            self._issue_transfer(waited)

    def _issue(self, task: Task) -> None:
        """Let a worker execute `task`; or put it on its stream, or park it if the launch queue is full."""
        if task.op in self.detached_ops:
            self._detach(task)
        elif self.executed[task.op]:
            self._start(task)
        elif self.failing is not None and self.failing.verdict(task):
            self._launch_failed(task)
        elif self.launch_queues[self.device_of[task.op]].enter(task):
            self._push(task)

    def _push(self, task: Task) -> None:
        """Put a task on its stream; free its issuer unless the task holds it until it ends."""
        stream = self.stream_of[task.op]
        task.issue_ns = self.now_ns
        task.stream = stream.index
        if (communicators := self.communicators_of[task.op]) is not None:
            communicators.on_issue(task)
        if not stream.queue:
            self.touched.add(stream.index)
        stream.queue.append(task)
        if record_ns := self.record_ns[task.op]:
            self._schedule(record_ns, self.recorded.append, task)
        else:
            self._on_launch(task)

    def _on_launch(self, task: Task) -> None:
        """Free the issuer of a launched task, and make eligible the tasks that may be launched behind it."""
        if task.op not in self.holding:
            self.issuers.free(task.issuer)
        if self.asynchronous:
            self._pass_on(self.readiness.on_issue(task), task, True)
            if task.op not in self.holding:
                self.detached_ids.add(task.id)  # its issuer will not notice its end

    # -- parts of the machine that fail --------------------------------------------------------

    def _end_unless_cut(self, task: Task) -> None:
        """End a task, unless its device has failed before now."""
        assert self.breakdowns is not None
        if self.breakdowns.ends(task):
            self.ended.append(task)

    def _is_over(self) -> bool:
        """Whether all is done, or the step is aborted; tasks that end at this instant have ended."""
        assert self.breakdowns is not None
        if self.breakdowns.detection is not None and self.ended:
            self._complete()
        done = len(self.tasks) + len(self.transfers) >= self.readiness.total
        return done or self.breakdowns.detection is not None

    # -- ops that fail -------------------------------------------------------------------------

    def _record_status(self, task: Task) -> None:
        """Record the status of a task that is over; a task on a stream cannot have failed."""
        assert self.open is not None
        self.open.pop(task.id, None)
        if self.failing is None:
            return
        by_issuer = task.dead or task.stream == BACKGROUND or (task.group >= 0 and self.executed[task.op])
        if by_issuer and not task.status:
            task.status = self.failing.verdict(task)

    def _launch_failed(self, task: Task) -> None:
        """Let a launch return an error: nothing reaches the stream."""
        task.issue_ns = self.now_ns
        self._begin(task, BACKGROUND)
        if self.observers:
            notify(self.observers, "started", task)
        self._schedule(0, self.ended.append, task)

    def _fail(self, task: Task) -> None:
        """Apply the consequences of a failed `task`; an aborted one is itself a consequence."""
        assert self.failing is not None
        if task.status == FAILED:
            self.issuers.stop(self.failing.on_failure(task))
            if self.rendezvous is not None:
                self.rendezvous.abort()

    # -- tasks that go on without their issuer -------------------------------------------------

    def _detach(self, task: Task) -> None:
        """Let an asynchronous op run by itself, or a Recv wait by itself for its tensor.

        The issuer goes on with something else, but executes a task that takes no time itself, on the spot.
        """
        if task.op not in self.asking:
            if self.duration_of(task) or self.communicators_of[task.op] is not None:
                self._send_to_background(task)
                self.issuers.free(task.issuer)
            self._start(task)
            return
        if task.issue_ns < 0:
            task.issue_ns = self.now_ns
        assert self.rendezvous is not None
        self._eligible(self.rendezvous.ask(task))
        self.detached_ids.add(task.id)
        for recv in self.rendezvous.take_arrived():
            self._receive(recv, task.issuer)
        self.issuers.free(task.issuer)

    def _send_to_background(self, task: Task) -> None:
        self.detached_ids.add(task.id)
        task.stream = BACKGROUND

    def _receive(self, recv: Task, issuer: Issuer | None) -> None:
        """Continue a Recv that has its tensor; if it takes no time, `issuer` completes it at once."""
        self._send_to_background(recv)
        if self.failing is not None:
            recv.status = recv.status or self.failing.verdict(recv)
        if not recv.status:
            if not self._events_arrived(recv):
                return
            if self.duration_of(recv):
                self._start(recv)
                return
            if self.memory_at_start is not None and not self._has_memory(recv):
                return
        self._begin(recv, recv.stream)
        if self.observers:
            notify(self.observers, "started", recv)
        recv.end_ns = self.now_ns
        if self.open is not None:
            self.open.pop(recv.id, None)
        self.tasks.add(recv)
        if self.gives_back:
            self._give_back([recv])
        self._pass_on(self._newly_ready(recv), recv, True, issuer)

    def _events_arrived(self, task: Task) -> bool:
        """Whether every launched task that a task off any stream follows has ended; if not, retry then."""
        if not self.asynchronous or task.dead or self.executed[task.op]:
            return True
        if not self.readiness.may_start(task):
            task.wait = Wait.EVENT
            return False
        if task.floor_ns > self.now_ns:
            self._schedule(task.floor_ns - self.now_ns, self._retry, task)
            return False
        return True

    # -- 3. ask --------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask free issuers until none takes a task and no issued task frees memory for others."""
        self.issuers.ask(self._take)
        while self.starved and self.memory is not None and self.memory.has_freed():
            self._retry_starved()
            self.issuers.ask(self._take)

    def _take(self, issuer: Issuer, task: Task) -> None:
        """Let `issuer` take `task` from the policy."""
        refuse_wrong(self.policy, self.job, self.flow.n_nodes, issuer, task)
        task.issuer = issuer
        if not self._is_skipped(task):
            self._claim(task)
            return
        if task.issue_ns < 0:
            task.issue_ns = self.now_ns
        self._begin(task, issuer.stream)
        self._schedule(0, self.ended.append, task)

    def _is_skipped(self, task: Task) -> bool:
        """Whether `task` is dead and executes nothing, as do all dead tasks except Sends and Recvs."""
        return task.dead and task.op not in self.transmits

    def _claim(self, task: Task) -> None:
        """Take memory for `task`, if it is taken at issue, and pay for both."""
        cost = self.issue_ns[task.op]
        if self.memory_at_issue is not None:
            calls = self.memory_at_issue.acquire(task)
            if calls == WAIT:
                task.wait = Wait.MEMORY
                self.starved.append(task)
                return
            task.calls_ns += calls
            cost += calls
        if self.executed[task.op]:
            task.issue_ns = self.now_ns
            if (communicators := self.communicators_of[task.op]) is not None:
                communicators.on_issue(task)
        if cost:
            self._schedule(cost, self.paid.append, task)
        else:
            self._issue(task)

    # -- 4. heads ------------------------------------------------------------------------------

    def _start_heads(self) -> None:
        """Start the first task of every stream where something changed."""
        touched = sorted(self.touched)
        self.touched.clear()
        for index in touched:
            stream = self.streams[index]
            if stream.running is None and stream.queue and self._start_head(stream, stream.queue[0]):
                stream.running = stream.queue.popleft()

    def _start_head(self, stream: Stream, task: Task) -> bool:
        if self.asynchronous and not self.readiness.may_start(task):
            task.wait = Wait.EVENT
            return False
        at_ns = max(task.issue_ns + stream.launch_ns, stream.free_ns, task.floor_ns)
        if at_ns > self.now_ns:
            task.wait = task.wait or Wait.LAUNCH
            self._schedule(at_ns - self.now_ns, self.touched.add, stream.index)
            return False
        return self._start(task)

    def _start(self, task: Task) -> bool:
        """Start `task` if its communicator, memory and shared resources allow it now."""
        device = self.device_of[task.op]
        if self.breakdowns is not None and self.breakdowns.is_down(device):
            return False
        communicators = self.communicators_of[task.op]
        if communicators is not None and not communicators.may_start(task):
            task.wait = Wait.COMMUNICATOR
            return False
        if self.memory_at_start is not None and not self._has_memory(task):
            return False
        if self.resources is not None and not self.resources.take(task):
            task.wait = Wait.RESOURCES
            return False
        processor = None if task.stream == BACKGROUND else self.processors[device]
        if task.stream != BACKGROUND and self.executed[task.op]:
            self._begin(task, task.issuer.lane_on(device))  # type: ignore[union-attr]
        else:
            self._begin(task, task.stream)
        if processor is None:
            ns = self.duration_of(task)
        else:
            ns = processor.start(task)
            if type(ns) is not int or ns < MANAGED:
                source, ops = f"{type(processor).__name__}.start", [self.job.graph.op_names[task.op]]
                ns = int(whole_numbers([ns], source, least=MANAGED, of=ops)[0])
            if ns == WAIT:
                task.start_ns = -1
                task.wait = Wait.RESOURCES
                self.blocked[device].append(task)
                return False
            if task.start_ns > self.now_ns:  # the processor delays it, and knows until when
                task.round = 0
                self.call_at(task.start_ns, self.started, task)
        if communicators is not None:
            if task.start_ns == self.now_ns:
                communicators.on_start(task)
        elif ns != MANAGED:
            self._schedule(ns, self.end, task)
        if self.observers and task.start_ns == self.now_ns:
            notify(self.observers, "started", task)
        return True

    def _has_memory(self, task: Task) -> bool:
        """Whether `task` has its memory now; if not, it tries again later."""
        assert self.memory_at_start is not None
        cost_ns = self.memory_at_start.acquire(task)
        if not cost_ns:
            return True
        task.wait = Wait.MEMORY
        if cost_ns == WAIT:
            self.starved.append(task)
        else:
            task.floor_ns = self.now_ns + cost_ns
            self._schedule(cost_ns, self._retry, task)
        return False

    def _retry(self, task: Task) -> None:
        """Let a task that was refused try to start again in this round."""
        if self.executed[task.op] or task.stream == BACKGROUND:
            self.retried.append(task)
        else:
            self.touched.add(task.stream)

    def _retry_starved(self) -> None:
        """Let the tasks that wait for memory try again, first come, first served, now that some is free."""
        assert self.memory is not None
        full = set()  # devices of tasks that were refused again: nothing overtakes them there
        for task in _drain(self.starved):
            k = task.op - self.flow.n_ops  # of a transfer
            device = self.device_of[task.op] if k < 0 else int(self.flow.destination[k])
            if device in full:
                self.starved.append(task)
            elif k >= 0:
                self._carry(task)
            elif not self.memory.at_issue:
                self._retry(task)
            else:
                self._claim(task)
                if self.starved and self.starved[-1] is task:
                    full.add(device)

    # -- 5. settle -----------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let devices and networks divide their capacity, now that all demands on it are known."""
        while self.settling:
            for callback in _drain(self.settling):
                callback()


def _drain(noted: list[T], key: Callable[[T], Any] | None = None) -> list[T]:
    """Return and clear the noted items, sorted by `key` if one is given."""
    items = noted[:]
    noted.clear()
    if key is not None and len(items) > 1:
        items.sort(key=key)
    return items
