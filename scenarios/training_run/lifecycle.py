"""The course of a training run, step by step and failure by failure, on SimPy.

::

    computing ──► saving ──► computing ──x                         x: a failure of a worker
                                         └► detecting ─► (waiting) ─► restarting ─► redoing ─► computing
                                                 the policy is asked ┘

The steps between two of these events are one timeout, so the cost of a simulation depends on the number of
checkpoints and failures, not of steps. An activity that ends at the very instant of a failure has ended, and
one that would start then does not start. A step keeps the pace with which it began.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Generator, Iterator
from heapq import nlargest
from typing import Any, Final

import simpy

from policies.recovery import Fleet, Recovery, Restart
from scenarios.training_run.plan import Failure, Life, Own, TrainingPlan, WorkerPace
from sim.base.arrays import LATEST_NS, MOST_BUILT, at_most
from sim.base.errors import InputError, RunError
from sim.base.options import whole_numbers
from sim.faults import MOST_FAILURES, FaultEvent, arrivals

_NEVER: Final = 2**62


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
        More than a million failures, more than 146 years, or no machine is left to wait for.

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
    return _Run(plan, recovery, seed, coming).whole()


class _FailedError(Exception):
    """Raised when a worker fails while the run needs it."""


class _OverError(Exception):
    """Raised when the time of the run is over."""


Events = Generator[simpy.Event, Any, None]


class _Early(simpy.Event):
    """A timeout that fires before anything that the run ends or begins at the same instant."""

    def __init__(self, env: simpy.Environment, delay: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, simpy.events.URGENT, delay)


class _Run:
    """The state of a simulated training run."""

    def __init__(
        self, plan: TrainingPlan, recovery: Recovery, seed: int, coming: Iterator[FaultEvent] | None
    ) -> None:
        self.plan, self.recovery = plan, recovery
        self.env = simpy.Environment(initial_time=0)
        self.pace = WorkerPace(plan.slow_downs, plan.machines, seed)
        self.coming = arrivals(plan.failures, plan.machines, seed) if coming is None else coming
        self.goal = _NEVER if plan.steps is None else plan.steps
        self.limit_ns = LATEST_NS if plan.limit_ns is None else plan.limit_ns
        # machines
        self.members = set(range(plan.workers))
        self.spare = list(range(plan.workers, plan.machines))  # lowest number first
        self.back_ns: dict[int, int] = {}  # machine in repair -> when it returns
        self.returned = self.env.event()
        # progress
        self.step = self.reached = 0
        self.work_ns = 0  # total time spent computing
        self.saved = (0, 0)  # step and work of the last checkpoint
        self.writing: tuple[int, int, int] | None = None  # step and work of a checkpoint, when it is written
        self.since_step = self.since_ns = 0  # of the last checkpoint or restart
        # failures
        self.failed: Failure | None = None
        self.failed_ns = 0
        self.exposed = False  # whether a failure interrupts the run
        # results
        self.lost_ns = self.checkpoints = self.restarts = self.failures = 0
        self.fewest = plan.workers
        self.timeline: list[tuple[str, int, int]] = []
        self.own = [Own(0, machine, "spare") for machine in range(plan.workers, plan.machines)]
        self.interruptions: Counter[str] = Counter()

    @property
    def now(self) -> int:
        return int(self.env.now)

    def whole(self) -> Life:
        self.job = self.env.process(self._life())
        self.env.process(self._trouble())
        self.env.run(until=self.job)
        self._note_written()
        plan = self.plan
        causes = {cause.name: self.interruptions[cause.name] for cause in plan.failures}
        return Life(
            self.now,
            self.step,
            self.step * plan.step_ns,
            self.lost_ns,
            self.timeline,
            self.own,
            self.pace.seen,
            causes,
            self.checkpoints,
            self.restarts,
            self.fewest,
        )

    # -- machines ----------------------------------------------------------------------------------

    def _trouble(self) -> Events:
        """Process that makes machines fail."""
        for time_ns, source, machine in self.coming:
            if time_ns >= self.limit_ns:
                return
            if time_ns > self.now:
                yield _Early(self.env, time_ns - self.now)
            self.failures += 1
            if self.failures > MOST_FAILURES:
                message = (
                    f"after {MOST_FAILURES:,} failures {self.step:,} steps are done, no more are simulated"
                )
                raise RunError(f"training_run: {message}; a checkpoint may never be reached")
            self._back_by_now(machine)
            if machine not in self.back_ns:
                self._fail(machine, self.plan.failures[source])

    def _fail(self, machine: int, cause: Failure) -> None:
        member = machine in self.members
        if member:
            self.members.remove(machine)
        else:
            del self.spare[bisect_left(self.spare, machine)]
        self.own.append(Own(self.now, machine, "in repair"))
        self.back_ns[machine] = self.now + cause.repair_ns
        if cause.repair_ns:
            self.env.process(self._repair(machine, cause.repair_ns))
        else:
            self._back(machine)
        if member and self.exposed:
            self.exposed = False
            self.failed, self.failed_ns = cause, self.now
            self.job.interrupt()

    def _repair(self, machine: int, repair_ns: int) -> Events:
        yield _Early(self.env, repair_ns)
        self._back_by_now(machine)

    def _back_by_now(self, machine: int) -> None:
        """Bring back a machine whose repair ends at this instant, before it may fail again."""
        if self.back_ns.get(machine) == self.now:
            self._back(machine)

    def _back(self, machine: int) -> None:
        del self.back_ns[machine]
        insort(self.spare, machine)
        self.own.append(Own(self.now, machine, "spare"))
        self.returned.succeed()
        self.returned = self.env.event()

    def _fleet(self) -> Fleet:
        plan, running, spare, out = self.plan, len(self.members), len(self.spare), len(self.back_ns)
        return Fleet(plan.workers, running, spare, out, plan.replica, plan.minimum)

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
        self.own += [Own(self.now, machine, "spare") for machine in leave]
        self.own += [Own(self.now, machine, "job") for machine in join]
        self.members.difference_update(leave)
        self.members.update(join)
        self.fewest = min(self.fewest, workers)

    # -- the run -----------------------------------------------------------------------------------

    def _spend(self, state: str, ns: int, *, exposed: bool = True) -> Events:
        """Stay in a state for `ns`, unless a worker fails (if `exposed`) or the time of the run is over."""
        if not ns:
            return
        if exposed:
            self._heed()
        start = self.now
        end = min(start + ns, self.limit_ns)
        self.exposed = exposed
        try:
            yield self.env.timeout(end - start)
        except simpy.Interrupt:
            if self.now < start + ns:
                raise _FailedError from None
        finally:
            self.exposed = exposed and self.failed is None
            self._tell(state, start, self.now)
        if end < start + ns:
            raise _OverError

    def _tell(self, state: str, start: int, end: int) -> None:
        if end == start:
            return
        if self.timeline and self.timeline[-1][0] == state and self.timeline[-1][2] == start:
            start = self.timeline.pop()[1]
        self.timeline.append((state, start, end))
        at_most(MOST_BUILT, len(self.timeline), "changes of state of a training run")

    def _life(self) -> Events:
        try:
            while self.step < self.goal:
                try:
                    yield from self._train()
                except _FailedError:
                    yield from self._recover()
        except _OverError:
            if self.plan.limit_ns is None:
                done = f"{self.step:,} of {self.goal:,} steps are done"
                raise RunError(f"training_run: after 146 years {done}") from None
        finally:
            self.exposed = False

    def _train(self) -> Events:
        while self.step < self.goal:
            if self._is_due():
                yield from self._save()
                yield from self._resize()
                yield from self._rounds()
            else:
                self._heed()
                yield from self._compute()

    def _is_due(self) -> bool:
        """Whether a checkpoint is due."""
        how = self.plan.checkpoints
        if how.every_steps is not None:
            return self.step - self.since_step >= how.every_steps
        return how.every_ns is not None and self.now - self.since_ns >= how.every_ns

    def _resize(self) -> Events:
        """Continue with another number of workers after the checkpoint is written, if the policy wants it."""
        self._heed()
        if self.recovery.at_checkpoint(self._fleet()) is not None:
            yield from self._regrow()

    def _regrow(self) -> Events:
        yield from self._wait_for_checkpoint()
        self._heed()
        if (restart := self.recovery.at_checkpoint(self._fleet())) is not None:
            yield from self._restart(restart, None)

    def _rounds(self) -> Events:
        """Run identical rounds of computing and saving, while nothing else happens, in a single timeout."""
        how, start = self.plan.checkpoints, self.now
        over = self.failed is not None or start >= self.limit_ns
        if over or self.since_ns != start or (how.asynchronous and self.writing is None):
            return
        steps, pace_ns = self._next_steps()
        computes_ns = steps * pace_ns
        stops_ns = how.save_ns
        if how.asynchronous:
            stops_ns = max(0, how.save_ns - computes_ns) + how.pause_ns
        each_ns = computes_ns + stops_ns
        again = self.step < self.reached
        n = min(
            (int(min(self.env.peek(), self.limit_ns)) - 1 - start) // each_ns,
            (self.pace.changes_ns - start) // each_ns,
            (self.reached - self.step if again else self.goal - self.step - 1) // steps,
            (MOST_BUILT - len(self.timeline)) // 2,
        )
        if n < 2 or not self._saves_after(steps, pace_ns):
            return
        fleet, wanted = self._fleet(), False
        if type(self.recovery).at_checkpoint is not Recovery.at_checkpoint:
            asked = (k for k in range(1, n + 1) if self.recovery.at_checkpoint(fleet) is not None)
            wanted = (k := next(asked, 0)) > 0
            n = k or n
        yield self.env.timeout(n * each_ns)
        self.step += n * steps
        self.work_ns += n * computes_ns
        self.reached = max(self.reached, self.step)
        self.checkpoints += n
        self.saved = (self.step, self.work_ns)
        if how.asynchronous:  # the last checkpoint is still being written
            self.saved = (self.step - steps, self.work_ns - computes_ns)
            self.writing = (self.step, self.work_ns, self.now + how.save_ns)
        self._begin()
        state = "redoing" if again else "computing"
        self._tell(state, start, start + computes_ns if stops_ns else self.now)
        if stops_ns:
            for end in range(start + each_ns, self.now, each_ns):
                self.timeline += (("saving", end - stops_ns, end), (state, end, end + computes_ns))
            self._tell("saving", self.now - stops_ns, self.now)
        if wanted:
            yield from self._regrow()

    def _saves_after(self, steps: int, pace_ns: int) -> bool:
        """Whether the next checkpoint comes exactly `steps` steps after the last one."""
        how = self.plan.checkpoints
        if how.every_ns is None:
            return steps == how.every_steps
        return steps == _ceil(how.every_ns, pace_ns)

    def _heed(self) -> None:
        """Raise if a worker failed, or the run ended, at the instant at which something else ended."""
        if self.failed is not None:
            raise _FailedError
        if self.now >= self.limit_ns:
            raise _OverError

    def _compute(self) -> Events:
        """Compute steps at one pace, at most until the next checkpoint."""
        steps, pace_ns = self._next_steps()
        start = self.now
        try:
            yield from self._spend("redoing" if self.step < self.reached else "computing", steps * pace_ns)
        finally:
            self.work_ns += self.now - start
            self.step += (self.now - start) // pace_ns
            self.reached = max(self.reached, self.step)

    def _next_steps(self) -> tuple[int, int]:
        """Return the number of steps until the next change, and the time of each."""
        now, plan, how = self.now, self.plan, self.plan.checkpoints
        factor = self.pace.factor(now, self.members)
        slower = 2 * len(self.members) * factor.denominator
        pace_ns = (2 * plan.step_ns * plan.workers * factor.numerator + slower // 2) // slower  # half up
        ends = [self.goal - self.step, _ceil(self.pace.changes_ns - now, pace_ns)]
        if how.every_steps is not None:
            ends.append(self.since_step + how.every_steps - self.step)
        elif how.every_ns is not None:
            ends.append(_ceil(self.since_ns + how.every_ns - now, pace_ns))
        if self.step < self.reached:
            ends.append(self.reached - self.step)
        return min(ends), pace_ns

    def _save(self) -> Events:
        how = self.plan.checkpoints
        if how.asynchronous:
            yield from self._wait_for_checkpoint()
            yield from self._spend("saving", how.pause_ns)
            self.writing = (self.step, self.work_ns, self.now + how.save_ns)
        else:
            yield from self._spend("saving", how.save_ns)
            self.saved = (self.step, self.work_ns)
            self.checkpoints += 1
        self._begin()

    def _wait_for_checkpoint(self) -> Events:
        """Wait until the checkpoint that is being written is complete."""
        if self.writing is not None:
            yield from self._spend("saving", max(0, self.writing[2] - self.now))
            self._note_written()

    def _note_written(self) -> None:
        if self.writing is not None and self.writing[2] <= self.now:
            self.saved = self.writing[:2]
            self.checkpoints += 1
            self.writing = None

    def _begin(self) -> None:
        """Start the interval until the next checkpoint."""
        self.since_step, self.since_ns = self.step, self.now

    def _recover(self) -> Events:
        while True:
            assert self.failed is not None
            cause = self.failed
            self.interruptions[cause.name] += 1
            self._note_written()
            self.writing = None
            step, work_ns = self.saved
            self.lost_ns += self.work_ns - work_ns
            self.step, self.saved = step, (step, self.work_ns)
            yield from self._spend("detecting", self._undetected_ns(cause), exposed=False)
            self.failed = None
            self._heed()
            while (restart := self.recovery.after_failure(self._fleet())) is None:
                yield from self._wait()
            try:
                yield from self._restart(restart, cause)
                return
            except _FailedError:
                continue

    def _undetected_ns(self, cause: Failure) -> int:
        if cause.detect == "health-check":  # at the next one
            return -self.failed_ns % self.plan.health_check_ns
        return self.plan.timeout_ns if cause.detect == "timeout" else 0

    def _wait(self) -> Events:
        """Wait until a machine returns from repair."""
        if not self.back_ns:
            waits = f"{_name(self.recovery)} waits, and no machine is in repair ({self._fleet()})"
            raise RunError(f"training_run: {waits}")
        start = self.now
        yield self.returned | self.env.timeout(self.limit_ns - start)
        self._tell("waiting", start, self.now)
        if self.now >= self.limit_ns:
            raise _OverError

    def _restart(self, restart: Restart, cause: Failure | None) -> Events:
        if not isinstance(restart, Restart):
            raise InputError(f"{_name(self.recovery)} returned {restart!r:.60}, should be a Restart or None")
        self._staff(restart.workers)
        self.restarts += 1
        start_ns = self.plan.restart_ns if restart.whole_job else self.plan.restart_worker_ns
        if cause is not None and cause.restart_ns is not None:
            start_ns = cause.restart_ns
        restore_ns = self.plan.checkpoints.restore_ns if self.checkpoints else 0
        yield from self._spend("restarting", start_ns + restore_ns)
        self._begin()


def _ceil(amount: int, each: int) -> int:
    return -(-amount // each)


def _name(recovery: Recovery) -> str:
    return type(recovery).__name__
