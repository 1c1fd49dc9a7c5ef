"""Blocks of a calibration: measured between two sentinels, twice, until the machine leaves them in peace.

::

    sentinel ─ warm-up ─ round 1 ─ round 2 ─ sentinel      accepted when the sentinels agree and no median of
                                                           a duration moves from one round to the next

Where runs take the pulse of their threads, every run has to be of the same speed
(`validation.calibrate.machine_state`): a calibration whose blocks saw different clocks is of no machine at
all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from sim.job.job import Job
from sim.words.errors import RunError
from validation.calibrate.journal import Journal
from validation.calibrate.machine_state import DisturbedError, Speed
from validation.cases.backends import Executor, sentinel_ns
from validation.cases.case import Case
from validation.host.clock import now_ns, others_ns
from validation.real.gate import MAX_DELAY, MAX_DRIFT, MAX_OTHERS, Sentinel
from validation.real.work import Observation

__all__ = ["ATTEMPTS", "CrowdedError", "DisturbedError", "Samples", "Session", "run_case"]

ATTEMPTS: Final = 6
"""How often a block is measured before calibrating gives up."""

PROBE_ATTEMPTS: Final = 3
"""The same, of what no prediction needs."""

_RUNS: Final = {"threads": 3}
"""Runs in a round where something else may disturb a run in its middle: their median does not mind one."""

_MAX_MOVED: Final = {**MAX_DRIFT, "threads": 0.03}
"""How far a median may move from one round to the next."""

Samples = dict[str, list[float]]
"""name → ns of every sample."""


class CrowdedError(DisturbedError):
    """Other processes took the cores, and to begin anew would not change that."""


class Session:
    """Blocks, sentinels, and what came out so far."""

    def __init__(self, backend: str, executor: Executor, quick: bool, journal: Journal | None = None) -> None:
        self.backend, self.executor, self.quick = backend, executor, quick
        self.samples: Samples = {}
        self.tables: list[dict[str, Any]] = []
        self.deadline: float | None = None
        self.journal = journal or Journal(backend)
        self.sentinels: list[dict[str, Any]] = list(self.journal.sentinels)
        self.speed = Speed(backend, executor)
        self.runs = 1 if quick else _RUNS.get(backend, 1)
        self.quiet_ns: list[float] = [  # sentinels of accepted blocks
            ns for one in self.sentinels if one["accepted"] for ns in (one["before"], one["after"])
        ]

    def in_time(self) -> None:
        """Check that there is time left for what can be done without.

        Raises
        ------
        RunError
            There is none.
        """
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise RunError("the time for calibrating was up")

    def block(
        self,
        name: str,
        cases: Sequence[Case],
        read: Callable[[Case, Observation], Samples],
        repeats: int = 1,
        steady: Sequence[str] | None = None,
    ) -> Samples:
        """Run the cases of a block until the machine leaves it in peace; return the samples.

        Parameters
        ----------
        name : str
        cases : sequence of Case
        read : callable
            Makes samples of a run.
        repeats : int
            Runs of each case in each of the two rounds.
        steady : sequence of str, optional
            Samples whose median has to be the same in both rounds; by default those named as the cases.

        Raises
        ------
        DisturbedError
            It never did.
        """
        rounds: list[Samples] = []

        def twice() -> tuple[Samples, list[Observation]]:  # what is steady is there both times
            runs = []
            rounds[:] = [{}, {}]
            for case in cases:
                job = case.job()
                run_case(self.executor, case, job)  # warm: pages, caches, whatever is made lazily
                for samples in [each for each in rounds for _ in range(repeats * self.runs)]:
                    seen = self.speed.quiet(name, partial(run_case, self.executor, case, job), self.sentinels)
                    runs.append(seen)
                    if seen.wrong:
                        raise RunError(f"calibrating {name!r}: wrong results of {', '.join(seen.wrong[:5])}")
                    for key, values in read(case, seen).items():
                        samples.setdefault(key, []).extend(values)
            return _joined(rounds), runs

        def moved() -> float:
            names = [case.name for case in cases] if steady is None else steady
            return max(_moved(rounds[0], rounds[1], name) for name in names)

        return self._quiet(name, twice, moved, ATTEMPTS)

    def probe(self, name: str, measure: Callable[[], Samples], steady: Sequence[str] = ()) -> Samples | None:
        """Measure something that no prediction needs: when it cannot be, say so and go on.

        Parameters
        ----------
        name : str
        measure : callable
            One round; there are two.
        steady : sequence of str
            Samples whose median has to be the same in both rounds.

        Returns
        -------
        mapping or None
            The samples of both rounds; None when it failed, which the sentinels of the calibration tell.
        """
        rounds: list[Samples] = []

        def twice() -> tuple[Samples, list[Observation]]:
            rounds[:] = [measure(), measure()]
            return _joined(rounds), []

        def moved() -> float:
            return max((_moved(rounds[0], rounds[1], key) for key in steady), default=0.0)

        try:
            self.in_time()
            return self._quiet(name, twice, moved, PROBE_ATTEMPTS)
        except Exception as error:  # whatever a library raises: nothing needs this
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.sentinels.append({"block": name, "accepted": False, "why": f"not measured: {said}"})
            return None

    def _quiet(
        self,
        name: str,
        measure: Callable[[], tuple[Samples, list[Observation]]],
        moved_between: Callable[[], float],
        attempts: int,
    ) -> Samples:
        """Measure between two sentinels until nothing disturbs; keep in mind what was rejected."""
        key, known = self.journal.found(name)
        if known is not None:
            return known
        why, crowded = "", False
        for _ in range(attempts):
            company = _Company()
            before = sentinel_ns(self.backend, self.executor)
            found, runs = measure()
            moved = moved_between()
            after = sentinel_ns(self.backend, self.executor)
            taken = [ns for seen in runs for pulse in seen.pulses for ns in pulse]
            why = ""
            if before is not None and after is not None:
                taken = [before, after]
                drift = Sentinel(before, after).drift
                why = f"the sentinel moved by {drift:.1%}" if drift > MAX_DRIFT[self.backend] else ""
            worst = max((seen.delayed for seen in runs), default=0.0)
            if not why and worst > MAX_DELAY:
                why = f"the machine stood in the way for {worst:.1%} of a makespan"
            crowded = not why and self.backend == "threads" and (share := company.share()) > MAX_OTHERS
            if crowded:
                why = f"other processes took {share:.0%} of the cores"
            if not why and moved > _MAX_MOVED[self.backend]:
                why = f"a median moved by {moved:.1%} from one round to the next"
            self.sentinels.append(
                {"block": name, "before": taken[0], "after": taken[-1], "accepted": not why}
                | ({"why": why} if why else {})
            )
            if not why:
                self.quiet_ns += taken
                self.journal.add(key, found, self.sentinels)
                return found
        raise (CrowdedError if crowded else DisturbedError)(
            f"calibrating {name!r}: {why}, {attempts} times in a row; nothing is written. "
            "Stop what else runs on this machine, or try later"
        )

    def keep(self, found: Samples) -> None:
        """Add samples of quantities."""
        for key, values in found.items():
            self.samples.setdefault(key, []).extend(values)


class _Company:
    """Who else runs on the cores, from now on."""

    def __init__(self) -> None:
        self.begin_ns, self.others_ns = now_ns(), others_ns()

    def share(self) -> float:
        """Return which part of the cores other processes have taken; 0 where nobody counts it."""
        now = others_ns()
        if now is None or self.others_ns is None:
            return 0.0
        cores = len(os.sched_getaffinity(0))
        return (now - self.others_ns) / max(1, cores * (now_ns() - self.begin_ns))


def _joined(rounds: Sequence[Samples]) -> Samples:
    """Return the samples of all rounds together."""
    found: Samples = {}
    for samples in rounds:
        for key, values in samples.items():
            found.setdefault(key, []).extend(values)
    return found


def _moved(first: Samples, second: Samples, key: str) -> float:
    """Return how far the median of a duration is from that of the next round."""
    if key not in first:  # a latency, which may move: its spread is part of the result
        return 0.0
    a, b = float(np.median(first[key])), float(np.median(second[key]))
    return abs(a - b) / max(1.0, min(a, b))


def run_case(executor: Executor, case: Case, job: Job) -> Observation:
    """Execute a case's plan, or let its policy drive."""
    plan = case.plan()
    return (
        executor.drive(job, case.make_policy())
        if plan is None
        else executor.execute(job, plan, gated=case.gated)
    )
