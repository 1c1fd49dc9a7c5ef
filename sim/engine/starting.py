"""Issued → start: streams, event waits, launch latency, and whatever else may hold a start up."""

from __future__ import annotations

from simpy.events import NORMAL

from sim.engine.state import State, Stream, by_index
from sim.model import MANAGED, WAIT, Task
from sim.trace import Wait

__all__ = ["Starting"]


class Starting(State):
    """Starts what is issued, and frees the lane and the device's resources of what has ended."""

    __slots__ = ()

    def _start_heads(self) -> None:
        dirty, self.dirty_streams = self.dirty_streams, []
        if len(dirty) > 1:
            dirty.sort(key=by_index)
        now = self.now_ns
        may_start = self.readiness.may_start if self.asynchronous else None
        for stream in dirty:
            stream.dirty = False
            if stream.running is not None or not stream.queue:
                continue
            task = stream.queue[0]
            if stream.woken:  # it waited for this instant
                stream.woken = False
                at = now
            else:
                if may_start is not None and not may_start(task):
                    task.wait = Wait.EVENT
                    continue
                at = task.issue_ns + stream.launch_ns
                if stream.free_ns > at:
                    at = stream.free_ns
                if task.floor_ns > at:
                    at = task.floor_ns
                if at <= now:
                    at = now
                else:
                    task.wait = task.wait or Wait.LAUNCH
                    foretold = stream.certain or (stream.announce and self.duration_ns[task.op])
                    if not foretold:  # by then memory or the device may be short
                        if not stream.waking:
                            stream.waking = True
                            self._schedule(task, self._on_wake, at - now)
                        continue
            if stream.certain:
                self._start(task, at)
            elif stream.announce:
                task.start_ns = at
                self.tasks.append(task)
                task.callbacks = self._on_end
                self.schedule(task, NORMAL, stream.announce(task, at) - now)  # type: ignore[arg-type]
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
        if self.certain[self.device_of[task.op]]:
            self._start(task, self.now_ns)
        else:
            self._admit(task, task)

    def _admit(self, task: Task, waiting: Stream | Task) -> bool:
        """Start `task` if memory and the device's resources allow it now."""
        if self.memory is not None and not self.memory.at_issue:
            cost_ns = self.memory.acquire(task)
            if cost_ns:
                task.wait = Wait.MEMORY
                if cost_ns == WAIT:
                    self.starved.append(task)
                elif isinstance(waiting, Stream):
                    waiting.waking = True
                    self._schedule(task, self._on_wake, cost_ns)
                else:
                    self._schedule(task, self._on_paid, cost_ns)
                return False
        device = self.device_of[task.op]
        processor = self.processors[device]
        task.start_ns = self.now_ns  # unless the processor puts it off
        if processor is None:
            ns = self.duration_of(task)
        else:
            ns = processor.start(task)
            if ns == WAIT:
                task.start_ns = -1
                task.wait = Wait.RESOURCES
                self.blocked[device].append(waiting)
                return False
        self.tasks.append(task)
        if ns != MANAGED:
            task.callbacks = self._on_end
            self.schedule(task, NORMAL, ns)  # type: ignore[arg-type]
        if self.observers:
            if task.start_ns > self.now_ns:
                self.call_at(task.start_ns, self.started, task)
            elif task.start_ns == self.now_ns:  # else the processor says when
                self.started(task)
        return True

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
        give_back = self.give_back[device]
        if give_back is None:
            return
        give_back(task)
        blocked = self.blocked[device]
        if blocked:
            for what in blocked:
                if isinstance(what, Task):
                    self.paid.append(what)
                else:
                    self._touch(what)
            blocked.clear()
