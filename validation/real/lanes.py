"""A machine made of threads: one per host, one per worker, one per stream.

::

    Driver ─assignment──► host thread ──issue, push──► stream thread ──wait events, run──► Event.record
      ▲                        │                            │
      └────── issued ──────────┘        completed ──────────┤
      ▲                                                     │
      └─────────────────────────────────────────────────────┘
    A CPU worker is a host and its own stream in one thread: it runs what it is assigned.

The `Work` defines what a kernel is: a sleep (`validation.real.timer`) or numpy
(`validation.real.threads`). All threads are ready before the clock starts. Nothing spins, and every waiter
has a lock of its own.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from sim.base.errors import StuckError
from sim.job.job import Job
from sim.machine.task import Issuer, Task
from sim.policy import Policy
from sim.record.plan import Plan
from sim.record.record import Wait
from validation.real.clock import Heart, prefer_this_thread, quiet_interpreter, run_queue_ns, stolen_ns
from validation.real.driver import Assignments, Driver, Follower
from validation.real.work import Observation, Work, measured_trace

# --------------------------------------------------------------------------------------------------------
# Events between streams: recorded once, and every waiter has a lock of its own.
#
# A lock that many threads wait for wakes them one after another, each taking and releasing it; a
# lock per waiter is one hand-over each, the cost of a hardware event.


class Event:
    """Happens once. `waiter` before it blocks, `record` lets everybody go."""

    __slots__ = ("_guard", "_happened", "_waiters")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._happened = False
        self._waiters: list[threading.Lock] = []

    def waiter(self) -> threading.Lock | None:
        """Return a lock that can be acquired once the event has happened; None if it has."""
        with self._guard:
            if self._happened:
                return None
            lock = threading.Lock()
            lock.acquire()
            self._waiters.append(lock)
            return lock

    def record(self) -> None:
        """Let the event happen."""
        with self._guard:
            self._happened = True
            waiters, self._waiters = self._waiters, []
        for lock in waiters:
            lock.release()


_TIMEOUT_S: Final = 60.0

_Launch = tuple[Task, list[threading.Lock]]


class _Run:
    """One run of the work that a driver hands out."""

    def __init__(self, driver: Driver, work: Work, *, pinned: bool) -> None:
        job, machine = driver.job, driver.job.machine
        self.job, self.driver, self.work, self.pinned = job, driver, work, pinned
        self.guard = threading.Lock()  # the driver decides for one thread at a time
        self.issuers = machine.issuers()
        self.seats: list[SimpleQueue[Task | None]] = [SimpleQueue() for _ in self.issuers]
        self.device_of = job.device_of.tolist()
        self.queues: dict[int, SimpleQueue[_Launch | None]] = {
            first + lane: SimpleQueue()
            for first, device in zip(machine.first_stream, machine.devices, strict=False)
            for lane in range(0 if device.workers else device.streams)
        }
        self.slots = [
            None if device.queue_depth is None else threading.Semaphore(device.queue_depth)
            for device in machine.devices
        ]
        self.events = [Event() for _ in range(self.driver.total)]
        self.done: list[Task] = []
        self.active = 0
        self.failure: BaseException | None = None
        self.over = threading.Event()
        self.delays: list[int | None] = []
        self.pulses: dict[int, tuple[int, int]] = {}
        self.priority = "normal"

    def run(self) -> list[Task]:
        ready = threading.Barrier(1 + len(self.issuers) + len(self.queues))
        bodies: list[tuple[int, Callable[..., None], Any]] = [
            (k, self._sit, issuer) for k, issuer in enumerate(self.issuers)
        ]
        bodies += [(k, self._stream, stream) for k, stream in enumerate(self.queues)]
        threads = [
            threading.Thread(target=self._thread, args=(ready, number, *body), daemon=True)
            for number, body in enumerate(bodies)
        ]
        threads.append(threading.Thread(target=self._open, args=(ready,), daemon=True))
        with quiet_interpreter():
            for thread in threads:
                thread.start()
            try:
                in_time = self.over.wait(_TIMEOUT_S)
            finally:
                self._stop()
                for thread in threads:
                    thread.join(timeout=10)
        if self.failure is not None:
            raise self.failure
        if not in_time:
            raise StuckError(f"the real run did not end within {_TIMEOUT_S:g} s: {self._remaining()}")
        return self.done

    def _open(self, ready: threading.Barrier) -> None:
        """Start the clock and hand out the tasks that can begin.

        Runs on a thread with the priority of those it wakes: one of lower priority loses its core to the
        first, and wakes the second when that is done, a hundred milliseconds later.
        """
        prefer_this_thread()
        ready.wait()
        try:
            self.driver.prepare()
            with self.guard:
                assigned = self.driver.begin()
                self.active += len(assigned)
            self._hand_out(assigned, None)
            self._notice_stuck()
        except BaseException as error:
            self._fail(error)

    def _remaining(self) -> str:
        over = {task.id for task in self.done}
        n = len(self.job.graph)
        names = [self.job.graph.op_names[i % n] for i in range(self.driver.total) if i not in over]
        return f"{len(names)} tasks remain, among them {', '.join(names[:5])}"

    def _stop(self) -> None:
        """Let every thread see that the run is over."""
        self.over.set()
        for queue in self.queues.values():
            queue.put(None)
        for seat in self.seats:
            seat.put(None)
        for event in self.events:
            event.record()
        for slot in self.slots:
            if slot is not None:
                slot.release(len(self.issuers))

    # -- threads -----------------------------------------------------------------------------

    def _thread(
        self, ready: threading.Barrier, number: int, core: int, body: Callable[..., None], what: object
    ) -> None:
        self.priority = prefer_this_thread(core if self.pinned else None)
        pulse_ns = self.work.pulse_ns(number)
        before = run_queue_ns()
        ready.wait()
        try:
            body(what)
        except BaseException as error:
            self._fail(error)
        after = run_queue_ns()
        self.delays.append(None if before is None or after is None else after - before)
        pulse_after_ns = self.work.pulse_ns(number)
        if pulse_ns is not None and pulse_after_ns is not None:
            self.pulses[number] = (pulse_ns, pulse_after_ns)

    def _sit(self, issuer: Issuer) -> None:
        """Issue, or execute, what is assigned to `issuer`, until the run is over."""
        seat = self.seats[issuer.index]
        while (given := seat.get()) is not None:
            task: Task | None = given
            while task is not None and not self.over.is_set():
                if self.driver.executed[task.op]:
                    task.issue_ns = self.driver.now()
                    self._execute(task, self._waiters(task))
                    task = self._completed(task, issuer)
                else:
                    task = self._launch(task, issuer)

    def _stream(self, stream: int) -> None:
        """Execute what is put on `stream`, in order."""
        queue = self.queues[stream]
        while (item := queue.get()) is not None and not self.over.is_set():
            self._execute(*item)
            slot = self.slots[self.device_of[item[0].op]]
            if slot is not None:
                slot.release()
            self._completed(item[0], None)

    # -- what threads do with a task -----------------------------------------------------------

    def _launch(self, task: Task, issuer: Issuer) -> Task | None:
        self.work.issue(task)
        slot = self.slots[self.device_of[task.op]]
        if slot is not None:
            slot.acquire()
        task.issue_ns = self.driver.now()
        self.queues[task.stream].put((task, self._waiters(task)))
        with self.guard:
            assigned = self.driver.issued(task)
            self.active += len(assigned)
        return self._hand_out(assigned, issuer)

    def _waiters(self, task: Task) -> list[threading.Lock]:
        locks = (self.events[id].waiter() for id in self.driver.waits(task))
        return [lock for lock in locks if lock is not None]

    def _execute(self, task: Task, waiters: list[threading.Lock]) -> None:
        for lock in waiters:
            task.wait = Wait.EVENT
            lock.acquire()
        if self.over.is_set():
            return
        task.start_ns = self.driver.now()
        self.work.run(task)
        task.end_ns = self.driver.now()

    def _completed(self, task: Task, worker: Issuer | None) -> Task | None:
        """Tell waiters and the driver that `task` ended; return what `worker` takes next."""
        if self.over.is_set():
            return None
        self.events[task.id].record()
        with self.guard:
            self.done.append(task)
            assigned = self.driver.completed(task)
            self.active += len(assigned) - 1
        if len(self.done) == self.driver.total:
            self.over.set()
        mine = self._hand_out(assigned, worker)
        self._notice_stuck()
        return mine

    def _hand_out(self, assigned: Assignments, me: Issuer | None) -> Task | None:
        """Wake the issuers with assignments; return the calling thread's own."""
        mine = None
        for issuer, task in assigned:
            task.issuer = issuer
            if issuer is me:
                mine = task
            else:
                self.seats[issuer.index].put(task)
        return mine

    def _notice_stuck(self) -> None:
        with self.guard:
            stuck = not self.active and len(self.done) < self.driver.total and self.failure is None
        if stuck:
            self._fail(StuckError(f"the run is stuck, nothing was issued: {self._remaining()}"))

    def _fail(self, error: BaseException) -> None:
        """End the run; the thread that waits for it reports the first failure."""
        with self.guard:
            self.failure = self.failure or error
        self.over.set()


class LaneBackend(ABC):
    """A backend on threads of this machine; subclasses define `work` and `pinned`."""

    name: str
    pinned = False

    @abstractmethod
    def work(self, job: Job) -> Work:
        """Return the work of a job's ops.

        Raises
        ------
        InputError
            This backend does not support one of them.
        """

    def drive(self, job: Job, policy: Policy) -> Observation:
        """Let `policy` decide while the tasks really run.

        Raises
        ------
        InputError, StuckError
            See `validation.real.driver.Driver`; nothing more was issued although tasks remained, or the
            time is up.
        """
        return self._run(Driver(job, policy))

    def execute(self, job: Job, plan: Plan, *, gated: bool = True) -> Observation:
        """Execute `plan`; there is no gate here, because hosts are fast compared with these kernels.

        Raises
        ------
        InputError, UnknownNameError, StuckError
            See `validation.real.driver.Follower` and `drive`.
        """
        return self._run(Follower(job, plan))

    def _run(self, driver: Driver) -> Observation:
        work = self.work(driver.job)
        work.reset()
        run = _Run(driver, work, pinned=self.pinned)
        before = stolen_ns()
        if self.pinned:  # every core has its thread, and a heart would have to wait for one
            done, late_ns = run.run(), 0
        else:
            with Heart() as heart:
                done = run.run()
            late_ns = heart.latest_ns
        stolen = stolen_ns() - before
        delays = [delay for delay in run.delays if delay is not None]
        return Observation(
            measured_trace(driver.job, done, driver.decided_by),
            work.wrong(),
            max([*delays, stolen, late_ns]),
            run.priority,
            pulses=tuple(pulse for _, pulse in sorted(run.pulses.items())),
        )

    def sentinel_ns(self) -> int | None:
        """Return the current time of a fixed piece of work; None if every run times its threads' pulse."""
        return None

    def provenance(self) -> dict[str, Any]:
        """Return what the numbers depend on besides the machine."""
        return {}
