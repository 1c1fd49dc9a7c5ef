"""Runs one case with several seeds, and describes the distribution of the makespan.

::

    seed       0     1     2     3     4    ...   the scenario's seed, and those after it
    makespan  101   98    107   99    103   ...   p5 ≤ p50 ≤ p95: makespans that occurred, no interpolation

The seed draws the noise, the errors of estimates, and the random choices of a policy. Without these, all
runs are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from scenarios.run.execute import Result, run_case, trace_of
from scenarios.run.prepare_job import Jobs
from scenarios.run.scenario import Case
from sim.base.arrays import MOST_RUNS, at_most
from sim.base.errors import InputError
from sim.base.units import round_half_up
from sim.trace import Trace

_LEAST_RUNS: Final = 6
"""With fewer runs even the interval from the least to the largest covers the median in under 95% of cases."""


@dataclass(frozen=True, eq=False)
class Repeats:
    """The results of several runs of one case.

    Attributes
    ----------
    result : Result
        The run with the first seed.
    seeds, makespan_ns : sequence of int
        One entry per run.
    failed : sequence of int, optional
        Seeds with which an op failed, if ops may fail.
    """

    result: Result
    seeds: Sequence[int]
    makespan_ns: Sequence[int]
    failed: Sequence[int] | None = None

    def percentile_ns(self, percent: int) -> int:
        """Return the least makespan that at least `percent` per cent of the runs do not exceed.

        Examples
        --------
        >>> Repeats(None, range(4), [40, 10, 30, 20]).percentile_ns(50)
        20
        """
        return int(np.percentile(self.makespan_ns, percent, method="inverted_cdf"))

    def intervals(self) -> dict[str, Any]:
        """Return the mean, and 95% confidence intervals of mean and median; None for few runs.

        The interval of the mean is Student's. That of the median lies between two of the makespans and holds
        for any distribution: each run is below or above the median with probability one half.

        Examples
        --------
        >>> Repeats(None, range(9), [40, 10, 30, 20, 50, 60, 90, 70, 80]).intervals()
        {'mean_ns': 50, 'mean_interval_ns': [29, 71], 'p50_interval_ns': [20, 80]}
        """
        n, ranked = len(self.makespan_ns), sorted(self.makespan_ns)
        values: dict[str, Any] = {"mean_ns": round_half_up(float(np.mean(ranked))), "mean_interval_ns": None}
        if n < _LEAST_RUNS:
            return values | {"p50_interval_ns": None}
        mean, off = mean_with_interval(ranked)
        values["mean_interval_ns"] = [round_half_up(mean + side) for side in (-off, off)]
        k = np.arange(1, n // 2)
        log_counts = np.concatenate(([0.0], np.cumsum(np.log((n - k + 1) / k))))  # logarithms of binomials
        below = np.cumsum(np.exp(log_counts - n * np.log(2)))  # probability that at most this many are below
        rank = int(np.searchsorted(below, 0.025, side="right")) - 1
        return values | {"p50_interval_ns": [ranked[rank], ranked[n - 1 - rank]]}

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which ``sim run --repeat`` adds to its JSON."""
        return {
            "runs": len(self.seeds),
            "seeds": list(self.seeds),
            "makespan_ns": list(self.makespan_ns),
            "p5_ns": self.percentile_ns(5),
            "p50_ns": self.percentile_ns(50),
            "p95_ns": self.percentile_ns(95),
            **self.intervals(),
            **({} if self.failed is None else {"failed": list(self.failed)}),
        }


def mean_with_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half the width of its 95% confidence interval after Student.

    Student's quantile comes from Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5).

    Examples
    --------
    >>> mean, off = mean_with_interval([40, 10, 30, 20, 50, 60, 90, 70, 80])
    >>> round(mean), round(off)
    (50, 21)
    """
    n, z = len(values), NormalDist().inv_cdf(0.975)
    t = z + (z**3 + z) / (4 * (n - 1)) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * (n - 1) ** 2)
    return float(np.mean(values)), t * float(np.std(values, ddof=1)) / n**0.5


def repeat(case: Case, runs: int) -> Repeats:
    """Run a case with its seed and the seeds after it.

    Parameters
    ----------
    case : Case
    runs : int

    Raises
    ------
    InputError
        Fewer than one run.
    RunError
        One of the runs cannot continue.
    """
    at_most(MOST_RUNS, runs, "runs")
    if runs < 1:
        raise InputError(f"a case is run at least once, not {runs} times")
    first = case.scenario.content.seed
    seeds = range(first, first + runs)
    job_with = Jobs(case)
    result = run_case(case, job=job_with(first))
    outcomes = [_outcome(result.trace), *(_outcome(trace_of(case, job_with(seed))) for seed in seeds[1:])]
    makespans = [makespan_ns for makespan_ns, _ in outcomes]
    failed = [seed for seed, (_, fails) in zip(seeds, outcomes, strict=True) if fails]
    return Repeats(result, seeds, makespans, failed if result.trace.on_failure is not None else None)


def _outcome(trace: Trace) -> tuple[int, bool]:
    """Return the makespan of a run, and whether an op failed; the trace is not kept."""
    return trace.makespan_ns, trace.failed
