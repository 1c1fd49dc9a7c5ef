"""The plan of a training run, its causes of failures and slow-downs, and its course."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from math import exp, sqrt
from typing import Final, Literal, NamedTuple

from sim.base.arrays import LATEST_NS, MOST_RUNS, at_most
from sim.faults import Source, arrivals

# ----------------------------------------------------------------------------------------------------------
# Causes of failures and slow-downs in a training run (`sim.faults` draws their times).

Detection = Literal["send-recv", "health-check", "timeout"]


@dataclass(frozen=True)
class Failure(Source):
    """A cause of failures.

    Attributes
    ----------
    detect : Detection
        How the run notices the failure.
    repair_ns : int
        Time from the failure until the machine returns.
    restart_ns : int or None
        Time of a restart after this failure, instead of the run's.
    """

    detect: Detection = "send-recv"
    repair_ns: int = 0
    restart_ns: int | None = None


@dataclass(frozen=True)
class SlowDown(Source):
    """A cause of slowness: for `lasts_ns`, steps of the machine take `factor` times as long."""

    lasts_ns: int = 0
    factor: Fraction = Fraction(1)


# ----------------------------------------------------------------------------------------------------------
# How often to save: Young's and Daly's intervals, and the exact expectation that they approximate.
#
#     |-- tau: computing --|- delta: saving -|-- tau --|- delta -|-- tau --
#                                                       ^ failure, every M on average: after R the run
#                                                         continues from its last checkpoint
#
# If failures are exponentially distributed at all times, the expected time until tau of work is saved is
# ``M e^(R/M) (e^((tau + delta)/M) - 1)`` (J. T. Daly, "A higher order estimate of the optimum checkpoint
# interval for restart dumps", Future Generation Computer Systems 22, 2006).


def young(save: float, mtbf: float) -> float:
    """Return the interval of J. W. Young (Communications of the ACM 17(9), 1974): sqrt(2 delta M).

    Examples
    --------
    >>> young(10, 20_000)
    632.4555320336759
    """
    return sqrt(2 * save * mtbf)


def daly(save: float, mtbf: float) -> float:
    """Return Daly's interval (2006).

    Examples
    --------
    >>> round(daly(10, 20_000), 3), daly(40_000, 20_000)
    (625.806, 20000)
    """
    if save >= 2 * mtbf:
        return mtbf
    part = save / (2 * mtbf)
    return sqrt(2 * save * mtbf) * (1 + sqrt(part) / 3 + part / 9) - save


def best(save: float, mtbf: float) -> float:
    """Return the interval with the highest expected goodput, which does not depend on the restart time.

    There the derivative is zero: ``x e^x = e^x - e^(-save/mtbf)`` for x = interval/mtbf, between 0 and 1.

    Examples
    --------
    >>> round(best(10, 20_000), 3)
    625.807
    """
    low, high, target = 0.0, 1.0, exp(-save / mtbf)
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if (1 - middle) * exp(middle) < target else (middle, high)
    return low * mtbf


# ----------------------------------------------------------------------------------------------------------
# The slowest worker's factor, and when it changes.

_NOMINAL: Final = Fraction(1)

Slow = tuple[int, int, int, Fraction]
"""(start, end, machine, factor)"""


class WorkerPace:
    """The slow-downs of all machines, drawn as time proceeds.

    Parameters
    ----------
    sources : tuple of SlowDown
    machines, seed : int
    """

    def __init__(self, sources: tuple[SlowDown, ...], machines: int, seed: int) -> None:
        self._sources = sources
        self._coming = arrivals(sources, machines, seed)
        self._next = next(self._coming, None)
        self._now: list[tuple[int, int, Fraction]] = []  # (end, machine, factor), a heap by end
        self.seen: list[Slow] = []

    def factor(self, now_ns: int, members: Collection[int]) -> Fraction:
        """Return by which factor steps that begin now are longer than nominal."""
        while self._next is not None and self._next.time_ns <= now_ns:
            start_ns, source, machine = self._next
            cause = self._sources[source]
            heappush(self._now, (start_ns + cause.lasts_ns, machine, cause.factor))
            self.seen.append((start_ns, start_ns + cause.lasts_ns, machine, cause.factor))
            at_most(MOST_RUNS, len(self.seen), "slow-downs of a training run")
            self._next = next(self._coming, None)
        while self._now and self._now[0][0] <= now_ns:
            heappop(self._now)
        return max((factor for _, machine, factor in self._now if machine in members), default=_NOMINAL)

    @property
    def changes_ns(self) -> int:
        """Next time at which the factor may change, as of the last call of `factor`."""
        begins = LATEST_NS if self._next is None else self._next.time_ns
        return min(begins, self._now[0][0]) if self._now else begins


# ----------------------------------------------------------------------------------------------------------

STATES: Final = ("computing", "redoing", "saving", "detecting", "restarting", "waiting")
"""States of a run, which is always in one of them."""


class Checkpoints(NamedTuple):
    """When checkpoints are saved, and what that costs; times in ns.

    Attributes
    ----------
    every_ns, every_steps : int or None
        Interval from the last one to the end of a step; or number of steps. Both None: never.
    save_ns : int
        Time to write a checkpoint.
    asynchronous : bool
        Whether the run computes meanwhile; the next checkpoint waits until this one is written.
    pause_ns : int
        Time for which an asynchronous checkpoint stops the run.
    restore_ns : int
        Time to load a checkpoint.
    """

    every_ns: int | None = None
    every_steps: int | None = None
    save_ns: int = 0
    asynchronous: bool = False
    pause_ns: int = 0
    restore_ns: int = 0


_NO_CHECKPOINTS: Final = Checkpoints()


@dataclass(frozen=True)
class TrainingPlan:
    """A training run before it starts; times in ns.

    Attributes
    ----------
    step_ns : int
        Time of a step at full size, without slow workers.
    steps, limit_ns : int or None
        Number of steps, or time, after which the run ends.
    workers, spares, replica, minimum : int
        Working and spare machines; see `policies.recovery.Fleet`.
    checkpoints : Checkpoints
    failures : tuple of Failure
    slow_downs : tuple of SlowDown
    restart_ns, restart_worker_ns : int
        Time to start all processes anew, or those of workers that join.
    health_check_ns, timeout_ns : int
        Time between two checks, the first at 0; time for which a collective waits for a missing worker.
    """

    step_ns: int
    steps: int | None
    limit_ns: int | None
    workers: int
    spares: int = 0
    replica: int | Fraction = 1
    minimum: int = 1
    checkpoints: Checkpoints = _NO_CHECKPOINTS
    failures: tuple[Failure, ...] = ()
    slow_downs: tuple[SlowDown, ...] = ()
    restart_ns: int = 0
    restart_worker_ns: int = 0
    health_check_ns: int = 0
    timeout_ns: int = 0

    @property
    def machines(self) -> int:
        """Workers and spare machines."""
        return self.workers + self.spares


class MachineChange(NamedTuple):
    """A change of a machine's state at `start_ns`: ``spare``, ``in repair``, or ``job``, in the run."""

    start_ns: int
    machine: int
    state: str


@dataclass
class Life:
    """The course of a training run.

    Attributes
    ----------
    changes : list of MachineChange
        Machines that leave the run or join it.
    slow : list of Slow
    interruptions : dict of str to int
        Count by cause, without failures of spare machines, and those during the detection of another one.
    timeline : list of (str, int, int)
        State, start and end, without gaps.
    end_ns, steps : int
    useful_ns : int
        Time that the steps that count take at full size and pace.
    lost_ns : int
        Time of computing that failures wasted.
    checkpoints, restarts, fewest_workers : int
    """

    changes: list[MachineChange]
    slow: list[Slow]
    interruptions: dict[str, int]
    timeline: list[tuple[str, int, int]] = field(default_factory=list)
    end_ns: int = 0
    steps: int = 0
    useful_ns: int = 0
    lost_ns: int = 0
    checkpoints: int = 0
    restarts: int = 0
    fewest_workers: int = 0

    @property
    def goodput(self) -> float:
        """Useful share of the time."""
        return self.useful_ns / self.end_ns if self.end_ns else 1.0

    @property
    def time_ns(self) -> dict[str, int]:
        """Time in each of `STATES`."""
        spent = dict.fromkeys(STATES, 0)
        for state, start, end in self.timeline:
            spent[state] += end - start
        return spent
