"""The course of a training run, step by step and failure by failure.

::

    computing ──► saving ──► computing ──x                         x: a failure of a worker
                                         └► detecting ─► (waiting) ─► restarting ─► redoing ─► computing
                                                 the policy is asked ┘

The steps between two of these events take time at once, so the cost of a simulation depends on the number of
checkpoints and failures, not of steps. An activity that ends at the very instant of a failure has ended, and
one that would start then does not start. A step keeps the pace with which it began.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush, nlargest
from itertools import islice
from typing import Final, Literal

from policies.recovery import Fleet, Recovery, Restart
from scenarios.training_run.plan import Failure, Life, MachineChange, TrainingPlan, WorkerPace
from sim.base.arrays import LATEST_NS, MOST_BUILT, at_most
from sim.base.errors import InputError, RunError
from sim.base.options import whole_numbers
from sim.faults import MOST_FAILURES, FaultEvent, arrivals

_NEVER: Final = 2**62

_MOST_RESTARTS: Final = 10_000
"""Restarts from the same step after which a run without a time limit is given up."""


def live(
    plan: TrainingPlan, recovery: Recovery, seed: int = 0, coming: Iterator[FaultEvent] | None = None
) -> Life:
    """Return the course of a plan under a recovery policy.

    Parameters
    ----------
    plan : TrainingPlan
    recovery : Recovery
    seed : int
    coming : iterator of FaultEvent, optional
        Failures, if they are known; by default drawn from the plan's causes and the seed.

    Raises
    ------
    RunError
        More than a million failures, 10,000 in a row before the next checkpoint, more than 146 years, or no
        machine is left to wait for.

    Examples
    --------
    >>> from policies.recovery import RestartJob
    >>> from scenarios.training_run.plan import Checkpoints
    >>> broken = Failure("broken", at=((25, 0),))
    >>> saved = Checkpoints(every_steps=1, save_ns=2)
    >>> plan = TrainingPlan(10, 4, None, 1, checkpoints=saved, failures=(broken,), restart_ns=5)
    >>> for state, start, end in live(plan, RestartJob()).timeline:
    ...     print(f"{start:2}-{end:2} {state}")
     0-10 computing
    10-12 saving
    12-22 computing
    22-24 saving
    24-25 computing
    25-30 restarting
    30-40 computing
    40-42 saving
    42-52 computing
    """
    run = _Run(plan, recovery, seed, coming)
    run.run_to_end()
    life = run.life
    life.end_ns, life.steps, life.useful_ns = run.now, run.step, run.step * plan.step_ns
    return life


class _FailedError(Exception):
    """Raised when a worker fails while the run needs it."""


class _OverError(Exception):
    """Raised when the time of the run is over."""


class _Run:
    """The state of a simulated training run."""

    def __init__(
        self, plan: TrainingPlan, recovery: Recovery, seed: int, coming: Iterator[FaultEvent] | None
    ) -> None:
        self.plan, self.recovery = plan, recovery
        self.now = 0
        self.pace = WorkerPace(plan.slow_downs, plan.machines, seed)
        self.goal = _NEVER if plan.steps is None else plan.steps
        self.limit_ns = LATEST_NS if plan.limit_ns is None else plan.limit_ns
        # machines
        self.members = set(range(plan.workers))
        self.spare = list(range(plan.workers, plan.machines))  # lowest number first
        self.in_repair: set[int] = set()
        self.coming = arrivals(plan.failures, plan.machines, seed) if coming is None else coming
        self.events: list[tuple[int, bool, int, int]] = []
        """A heap of returns of machines and the next failure: (time, whether it fails, machine, cause)."""
        self._expect_failure()
        # progress
        self.step = self.reached = 0
        self.work_ns = 0  # total time spent computing
        self.saved = (0, 0)  # step and work of the last checkpoint
        self.writing: tuple[int, int, int] | None = None  # step and work of a checkpoint, when it is written
        self.since_step = self.since_ns = 0  # of the last checkpoint or restart
        self.again = (0, 0)  # the step of the last restart, and how many in a row came back to it
        self.failed: Failure | None = None
        spares = [MachineChange(0, machine, "spare") for machine in range(plan.workers, plan.machines)]
        causes = dict.fromkeys((cause.name for cause in plan.failures), 0)
        self.life = Life(spares, self.pace.seen, causes, fewest_workers=plan.workers)
        self.failures = 0

    # -- machines ----------------------------------------------------------------------------------

    def _expect_failure(self) -> None:
        """Add the next failure to the events."""
        for time_ns, source, machine in islice(self.coming, 1):
            if time_ns < self.limit_ns:
                heappush(self.events, (time_ns, True, machine, source))

    def _pass_time(self, end: int, awaited: Literal["failure", "notice", "return"]) -> None:
        """Let machines fail and return until a time, or until the instant of what is awaited.

        That is a failure of a worker, the notice of one, or the return of a machine. A repair that ends at
        the instant of a failure has ended before it.
        """
        while self.events and self.events[0][0] <= end:
            self.now, fails, machine, source = heappop(self.events)
            if not fails:
                self.in_repair.remove(machine)
                insort(self.spare, machine)
                self.life.changes.append(MachineChange(self.now, machine, "spare"))
                if awaited == "return":
                    end = self.now
                continue
            self._expect_failure()
            self.failures += 1
            if self.failures > MOST_FAILURES:
                done = f"after {MOST_FAILURES:,} failures {self.step:,} steps are done, no more are simulated"
                raise RunError(f"training_run: {done}; a checkpoint may never be reached")
            if machine in self.in_repair:
                continue
            cause = self.plan.failures[source]
            self.life.changes.append(MachineChange(self.now, machine, "in repair"))
            self.in_repair.add(machine)
            heappush(self.events, (self.now + cause.repair_ns, False, machine, 0))
            if machine not in self.members:
                del self.spare[bisect_left(self.spare, machine)]
                continue
            self.members.remove(machine)
            if awaited == "failure":
                end, self.failed = self.now, min(self.failed or cause, cause, key=self._unnoticed_ns)
            elif awaited == "notice":
                end = min(end, self.now + self._unnoticed_ns(cause))
        self.now = end

    def _fleet(self) -> Fleet:
        plan, running, spare, repairs = self.plan, len(self.members), len(self.spare), len(self.in_repair)
        return Fleet(plan.workers, running, spare, repairs, plan.replica, plan.minimum)

    def _staff(self, workers: int) -> None:
        """Staff the run with `workers` machines: its members first, then spares by lowest number."""
        whole_numbers([workers], f"{_name(self.recovery)}: the workers of a Restart")
        more = workers - len(self.members)
        if not (self.plan.minimum <= workers <= self.plan.workers and more <= len(self.spare)):
            raise InputError(f"{_name(self.recovery)} asks for {workers} workers of {self._fleet()}")
        leave = sorted(nlargest(-more, self.members))
        join = self.spare[: max(0, more)]
        del self.spare[: len(join)]
        for machine in leave:
            insort(self.spare, machine)
        self.life.changes += [MachineChange(self.now, machine, "spare") for machine in leave]
        self.life.changes += [MachineChange(self.now, machine, "job") for machine in join]
        self.members.difference_update(leave)
        self.members.update(join)
        self.life.fewest_workers = min(self.life.fewest_workers, workers)

    # -- the run -----------------------------------------------------------------------------------

    def _spend(self, state: str, ns: int) -> None:
        """Stay in a state for `ns`, unless a worker fails or the time of the run is over."""
        if not ns:
            return
        self._raise_if_failed()
        start, full_end = self.now, self.now + ns
        end = min(full_end, self.limit_ns)
        self._pass_time(end, "failure")
        self._record(state, start, self.now)
        if self.now < end:
            raise _FailedError
        if end < full_end:
            raise _OverError

    def _record(self, state: str, start: int, end: int) -> None:
        if end == start:
            return
        timeline = self.life.timeline
        if timeline and timeline[-1][0] == state and timeline[-1][2] == start:
            start = timeline.pop()[1]
        timeline.append((state, start, end))
        at_most(MOST_BUILT, len(timeline), "changes of state of a training run")

    def run_to_end(self) -> None:
        try:
            while self.step < self.goal:
                try:
                    self._advance()
                except _FailedError:
                    self._recover()
        except _OverError:
            if self.plan.limit_ns is None:
                done = f"{self.step:,} of {self.goal:,} steps are done"
                raise RunError(f"training_run: after 146 years {done}") from None
        self._note_written()

    def _advance(self) -> None:
        """Save a checkpoint if one is due, or compute until the next one."""
        saving = self.plan.checkpoints
        by_step = saving.every_steps is not None and self.step - self.since_step >= saving.every_steps
        by_time = saving.every_ns is not None and self.now - self.since_ns >= saving.every_ns
        if by_step or by_time:
            self._save()
            self._resize()
        else:
            self._compute()

    def _resize(self) -> None:
        """Continue with another number of workers after the checkpoint is written, if the policy wants it."""
        self._raise_if_failed()
        if self.recovery.at_checkpoint(self._fleet()) is not None:
            self._wait_for_checkpoint()
            self._raise_if_failed()
            if (restart := self.recovery.at_checkpoint(self._fleet())) is not None:
                self._restart(restart, None)

    def _raise_if_failed(self) -> None:
        """Raise if a worker failed, or the run ended, at the instant at which something else ended."""
        if self.failed is not None:
            raise _FailedError
        if self.now >= self.limit_ns:
            raise _OverError

    def _compute(self) -> None:
        """Compute steps at one pace, at most until the next checkpoint."""
        self._raise_if_failed()
        steps, pace_ns = self._next_steps()
        start = self.now
        try:
            self._spend("redoing" if self.step < self.reached else "computing", steps * pace_ns)
        finally:
            self.work_ns += self.now - start
            self.step += (self.now - start) // pace_ns
            self.reached = max(self.reached, self.step)

    def _next_steps(self) -> tuple[int, int]:
        """Return the number of steps until the next change, and the time of each."""
        now, plan, saving = self.now, self.plan, self.plan.checkpoints
        factor = self.pace.factor(now, self.members)
        all_copies, copies = plan.workers // plan.replica, len(self.members) // plan.replica
        slower = 2 * copies * factor.denominator
        pace_ns = (2 * plan.step_ns * all_copies * factor.numerator + slower // 2) // slower  # half up
        ends = [self.goal - self.step, _ceil(self.pace.changes_ns - now, pace_ns)]
        if saving.every_steps is not None:
            ends.append(self.since_step + saving.every_steps - self.step)
        elif saving.every_ns is not None:
            ends.append(_ceil(self.since_ns + saving.every_ns - now, pace_ns))
        if self.step < self.reached:
            ends.append(self.reached - self.step)
        return min(ends), pace_ns

    def _save(self) -> None:
        saving = self.plan.checkpoints
        if saving.asynchronous:
            self._wait_for_checkpoint()
            self._spend("saving", saving.pause_ns)
            self.writing = (self.step, self.work_ns, self.now + saving.save_ns)
        else:
            self._spend("saving", saving.save_ns)
            self.saved = (self.step, self.work_ns)
            self.life.checkpoints += 1
        self._begin()

    def _wait_for_checkpoint(self) -> None:
        """Wait until the checkpoint that is being written is complete."""
        if self.writing is not None:
            self._spend("saving", max(0, self.writing[2] - self.now))
            self._note_written()

    def _note_written(self) -> None:
        if self.writing is not None and self.writing[2] <= self.now:
            self.saved = self.writing[:2]
            self.life.checkpoints += 1
            self.writing = None

    def _begin(self) -> None:
        """Start the interval until the next checkpoint."""
        self.since_step, self.since_ns = self.step, self.now

    def _recover(self) -> None:
        while True:
            assert self.failed is not None
            cause = self.failed
            self.life.interruptions[cause.name] += 1
            self._note_written()
            self.writing = None
            step, work_ns = self.saved
            self.again = (step, self.again[1] + 1 if step == self.again[0] else 1)
            if self.plan.limit_ns is None and self.again[1] > _MOST_RESTARTS:
                message = f"{_MOST_RESTARTS:,} failures in a row come before a checkpoint after step {step:,}"
                raise RunError(f"training_run: {message}; it may never be reached")
            self.life.lost_ns += self.work_ns - work_ns
            self.step, self.saved = step, (step, self.work_ns)
            start = self.now
            self._pass_time(min(start + self._unnoticed_ns(cause), self.limit_ns), "notice")
            self._record("detecting", start, self.now)
            self.failed = None
            self._raise_if_failed()
            while (restart := self.recovery.after_failure(self._fleet())) is None:
                self._wait()
            try:
                self._restart(restart, cause)
                return
            except _FailedError:
                continue

    def _unnoticed_ns(self, cause: Failure) -> int:
        """Return how long the others do not notice a failure that happens now."""
        return {
            "send-recv": 0,
            "health-check": -self.now % (self.plan.health_check_ns or 1),  # at the next one
            "timeout": self.plan.timeout_ns,
        }[cause.detect]

    def _wait(self) -> None:
        """Wait until a machine returns from repair."""
        if not self.in_repair:
            waits = f"{_name(self.recovery)} waits, and no machine is in repair ({self._fleet()})"
            raise RunError(f"training_run: {waits}")
        start = self.now
        self._pass_time(self.limit_ns, "return")
        self._record("waiting", start, self.now)
        if self.now >= self.limit_ns:
            raise _OverError

    def _restart(self, restart: Restart, cause: Failure | None) -> None:
        if not isinstance(restart, Restart):
            raise InputError(f"{_name(self.recovery)} returned {restart!r:.60}, should be a Restart or None")
        self._staff(restart.workers)
        self.life.restarts += 1
        start_ns = self.plan.restart_ns if restart.whole_job else self.plan.restart_worker_ns
        if cause is not None and cause.restart_ns is not None:
            start_ns = cause.restart_ns
        restore_ns = self.plan.checkpoints.restore_ns if self.life.checkpoints else 0
        self._spend("restarting", start_ns + restore_ns)
        self._begin()


def _ceil(amount: int, divisor: int) -> int:
    return -(-amount // divisor)


def _name(recovery: Recovery) -> str:
    return type(recovery).__name__
