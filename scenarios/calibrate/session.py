"""Blocks of a calibration: measured between two sentinels, twice, until the machine leaves them in peace.

::

    sentinel ─ warm-up ─ round 1 ─ round 2 ─ sentinel      accepted when the sentinels agree and no median of
                                                           a duration moves from one round to the next
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from devices.real.gate import MAX_DELAY, MAX_DRIFT, Sentinel
from devices.real.work import Observation
from scenarios.validate.backends import Executor, sentinel_ns
from scenarios.validate.case import Case
from sim.errors import RunError
from sim.job import Job

__all__ = ["ATTEMPTS", "DisturbedError", "Samples", "Session", "run_case"]

ATTEMPTS: Final = 6
"""How often a block is measured before calibrating gives up."""

PROBE_ATTEMPTS: Final = 3
"""The same, of what no prediction needs."""

Samples = dict[str, list[float]]
"""name → ns of every sample."""


class DisturbedError(RunError):
    """The machine was not quiet enough to calibrate; nothing was written."""


class Session:
    """Blocks, sentinels, and what came out so far."""

    def __init__(self, backend: str, executor: Executor, quick: bool) -> None:
        self.backend, self.executor, self.quick = backend, executor, quick
        self.samples: Samples = {}
        self.tables: list[dict[str, Any]] = []
        self.sentinels: list[dict[str, Any]] = []

    def block(
        self, name: str, cases: Sequence[Case], read: Callable[[Case, Observation], Samples]
    ) -> Samples:
        """Run the cases of a block until the machine leaves it in peace; return the samples.

        Raises
        ------
        DisturbedError
            It never did.
        """
        rounds: list[Samples] = []

        def twice() -> tuple[Samples, float]:  # what is steady is there both times
            worst = 0.0
            rounds[:] = [{}, {}]
            for case in cases:
                job = case.job()
                run_case(self.executor, case, job)  # warm: pages, caches, whatever is made lazily
                for samples in rounds:
                    seen = run_case(self.executor, case, job)
                    worst = max(worst, seen.delayed)
                    if seen.wrong:
                        raise RunError(f"calibrating {name!r}: wrong results of {', '.join(seen.wrong[:5])}")
                    for key, values in read(case, seen).items():
                        samples.setdefault(key, []).extend(values)
            return _joined(rounds), worst

        def moved() -> float:
            return max(_moved(rounds[0], rounds[1], case.name) for case in cases)

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

        def twice() -> tuple[Samples, float]:
            rounds[:] = [measure(), measure()]
            return _joined(rounds), 0.0

        def moved() -> float:
            return max((_moved(rounds[0], rounds[1], key) for key in steady), default=0.0)

        try:
            return self._quiet(name, twice, moved, PROBE_ATTEMPTS)
        except (RunError, RuntimeError) as error:  # torch's errors are RuntimeErrors
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.sentinels.append({"block": name, "accepted": False, "why": f"not measured: {said}"})
            return None

    def _quiet(
        self,
        name: str,
        measure: Callable[[], tuple[Samples, float]],
        moved_between: Callable[[], float],
        attempts: int,
    ) -> Samples:
        """Measure between two sentinels until nothing disturbs; keep in mind what was rejected."""
        why = ""
        for _ in range(attempts):
            before = sentinel_ns(self.backend, self.executor)
            found, worst = measure()
            moved = moved_between()
            sentinel = Sentinel(before, sentinel_ns(self.backend, self.executor))
            why = ""
            if sentinel.drift > MAX_DRIFT[self.backend]:
                why = f"the sentinel moved by {sentinel.drift:.1%}"
            elif worst > MAX_DELAY:
                why = f"the machine stood in the way for {worst:.1%} of a makespan"
            elif moved > MAX_DRIFT[self.backend]:
                why = f"a median moved by {moved:.1%} from one round to the next"
            self.sentinels.append(
                {"block": name, "before": before, "after": sentinel.after_ns, "accepted": not why}
                | ({"why": why} if why else {})
            )
            if not why:
                return found
        raise DisturbedError(
            f"calibrating {name!r}: {why}, {attempts} times in a row; nothing is written. "
            "Stop what else runs on this machine, or try later"
        )

    def keep(self, found: Samples) -> None:
        """Add samples of quantities."""
        for key, values in found.items():
            self.samples.setdefault(key, []).extend(values)


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
