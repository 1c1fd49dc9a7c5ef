"""Blocks of a calibration: measured between two sentinels, twice, until the machine is undisturbed.

::

    sentinel ─ warm-up ─ round 1 ─ round 2 ─ sentinel      accepted when the sentinels agree and no median of
                                                           a duration moves from one round to the next

If runs time the pulse of their threads, every run must have the same speed
(`validation.calibrate.machine_state`): a calibration whose blocks saw different clocks is valid for no
machine.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from sim.base.errors import RunError
from validation.calibrate.machine_state import DisturbedError, Speed
from validation.cases.backends import Executor, reason, run_case
from validation.cases.case import Case
from validation.real.clock import now_ns, others_ns
from validation.real.gate import MAX_DRIFT, MAX_OTHERS, around, verdict
from validation.real.statistics import summary
from validation.real.work import Observation

T = TypeVar("T")

LATE: Final = "the time for calibrating was up"
"""Reason for not measuring something that more time would allow."""

ATTEMPTS: Final = 6
"""How often a block is measured before calibrating gives up."""

PROBE_ATTEMPTS: Final = 3
"""The same, for quantities that no prediction needs."""

_RUNS: Final = {"threads": 3}
"""Runs in a round if something may disturb the middle of a run: the median tolerates one such run."""

_MAX_MOVED: Final = {**MAX_DRIFT, "threads": 0.03}
"""Maximum relative change of a median from one round to the next."""

_FLOOR_NS: Final = {"cuda": 200.0}
"""Change always allowed for a median: launches vary by more than 2 % of a kernel of a few us."""

Samples = dict[str, list[float]]
"""Name → ns of every sample."""


class CrowdedError(DisturbedError):
    """Other processes took the cores, and starting over would not change that."""


class Session:
    """Blocks, sentinels, and the results so far."""

    def __init__(self, backend: str, executor: Executor, deadline: float | None = None) -> None:
        self.backend, self.executor = backend, executor
        self.samples: Samples = {}
        self.tables: list[dict[str, Any]] = []
        self.deadline = deadline
        self.lost: dict[str, Exception] = {}  # what was omitted, by name
        self.sentinels: list[dict[str, Any]] = []
        self.speed = Speed(backend, executor)
        self.quiet_ns: list[float] = []  # sentinels of accepted blocks

    # -- measuring ------------------------------------------------------------------------------

    def block(
        self,
        name: str,
        cases: Sequence[Case],
        read: Callable[[Case, Observation], Samples],
        repeats: int = 1,
        steady: Sequence[str] | None = None,
    ) -> Samples:
        """Run the cases of a block until undisturbed, and return the samples.

        Parameters
        ----------
        name : str
        cases : sequence of Case
        read : callable
            Makes samples of a run.
        repeats : int
            Runs of each case in each of the two rounds.
        steady : sequence of str, optional
            Samples whose medians must agree in both rounds; by default those named like the cases.

        Raises
        ------
        DisturbedError
            Every attempt was disturbed.
        """

        def measure() -> tuple[list[Samples], list[Observation]]:
            rounds: list[Samples] = [{}, {}]
            runs = []
            for case in cases:
                job, plan = case.job(), case.plan()
                once = partial(run_case, self.executor, case, job, plan)
                once()  # warm: pages, caches, whatever is made lazily
                for samples in rounds:
                    for _ in range(repeats * _RUNS.get(self.backend, 1)):
                        seen = self.speed.quiet(name, once, self.sentinels)
                        runs.append(seen)
                        if seen.wrong:
                            raise RunError(
                                f"calibrating {name!r}: wrong results of {', '.join(seen.wrong[:5])}"
                            )
                        _add(samples, read(case, seen))
            return rounds, runs

        return self._quiet(
            name, measure, [case.name for case in cases] if steady is None else steady, ATTEMPTS
        )

    def probe(
        self, name: str, measure: Callable[[], Samples], steady: Sequence[str] = (), *, needed: bool = False
    ) -> Samples:
        """Measure something that no prediction needs; if that fails, report it and go on.

        Parameters
        ----------
        name : str
        measure : callable
            Measures one of the two rounds.
        steady : sequence of str
            Samples whose medians must agree in both rounds.
        needed : bool
            As for `attempt`.

        Returns
        -------
        mapping
            The samples of both rounds; empty if it failed, which the sentinels of the calibration record.
        """

        def twice() -> tuple[list[Samples], list[Observation]]:
            return [measure(), measure()], []

        return (
            self.attempt(name, lambda: self._quiet(name, twice, steady, PROBE_ATTEMPTS), needed=needed) or {}
        )

    def each(
        self, what: str, cases: Sequence[Case], read: Callable[[Case, Observation], Samples], repeats: int,
        *, needed: bool = False,
    ) -> Samples:  # fmt: skip
        """Run every case as a block of its own; what cannot be measured is omitted and reported.

        Parameters
        ----------
        what : str
            Blocks are named after this and their case.
        cases, read, repeats
            As for `block`.
        needed : bool
            As for `attempt`.
        """
        found: Samples = {}
        for case in cases:
            name = f"{what} {case.name}"
            found |= self.attempt(name, partial(self.block, name, [case], read, repeats), needed=needed) or {}
        return found

    def attempt(self, name: str, measure: Callable[[], T], *, needed: bool = False) -> T | None:
        """Measure something optional; if that fails, report it and go on.

        Parameters
        ----------
        name : str
        measure : callable
        needed : bool
            Whether most experiments need it: then it is measured even after the deadline.
        """
        try:
            if not needed and self.deadline is not None and time.monotonic() > self.deadline:
                raise RunError(LATE)
            return measure()
        except Exception as error:  # whatever a library raises: the rest of the calibration is still valid
            why = "not measured: " + reason(error).partition("\n")[0]
            self.sentinels.append({"block": name, "accepted": False, "why": why})
            self.lost[name] = error
            return None

    def _quiet(
        self,
        name: str,
        measure: Callable[[], tuple[list[Samples], list[Observation]]],
        steady: Sequence[str],
        attempts: int,
    ) -> Samples:
        """Measure between two sentinels until undisturbed; record what was rejected."""
        why, crowded = "", False
        for _ in range(attempts):
            begin_ns, others_before_ns = now_ns(), others_ns()
            before = self.executor.sentinel_ns()
            (first, second), runs = measure()
            floor_ns = _FLOOR_NS.get(self.backend, 0.0)
            moved = max((_moved(first, second, each, floor_ns) for each in steady), default=0.0)
            sentinels = around(before, self.executor.sentinel_ns())
            taken = [*itertools.chain.from_iterable(sentinels or (p for seen in runs for p in seen.pulses))]
            why = verdict(self.backend, runs, sentinels)
            share = _share_of_others(begin_ns, others_before_ns) if self.backend == "threads" else 0.0
            crowded = not why and share > MAX_OTHERS
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
                _add(first, second)
                return first
        raise (CrowdedError if crowded else DisturbedError)(
            f"calibrating {name!r}: {why}, {attempts} times in a row"
        )

    # -- keeping --------------------------------------------------------------------------------

    def keep(self, found: Samples) -> None:
        """Add samples of quantities."""
        _add(self.samples, found)

    def table(
        self, kind: str, axes: Sequence[str], context: str, found: Mapping[Any, Sequence[float]],
        **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Add a table and return it: the median for each size, and statistics of the samples.

        Parameters
        ----------
        kind : str
        axes : sequence of str
            Components of a size.
        context : str
            Context in which it was measured.
        found : mapping of tuple of int to sequence of float
            size → samples, ns.
        **more
            Other keys of the table.
        """
        stats = {size: summary(samples) for size, samples in found.items()}
        table = {
            "kind": kind,
            "axes": list(axes),
            "context": context,
            "rows": [[*size, max(1, one.median)] for size, one in stats.items()],
            "statistics": [one._asdict() for one in stats.values()],
            **more,
        }
        self.tables.append(table)
        return table


def _share_of_others(begin_ns: int, others_before_ns: int | None) -> float:
    """Return the share of the cores taken by other processes since `begin_ns`; 0 if unknown."""
    now = others_ns()
    if now is None or others_before_ns is None:
        return 0.0
    cores = len(os.sched_getaffinity(0))
    return (now - others_before_ns) / max(1, cores * (now_ns() - begin_ns))


def _add(samples: Samples, more: Samples) -> None:
    for key, values in more.items():
        samples.setdefault(key, []).extend(values)


def _moved(first: Samples, second: Samples, key: str, floor_ns: float) -> float:
    """Return the relative change of a median from one round to the next; 0 up to a floor."""
    if key not in first:  # a latency, which may drift: its spread is part of the result
        return 0.0
    a, b = float(np.median(first[key])), float(np.median(second[key]))
    return 0.0 if abs(a - b) <= floor_ns else abs(a - b) / max(1.0, min(a, b))
