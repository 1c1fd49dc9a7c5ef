"""Check whether the machine was quiet: sentinels around a measurement, and delays caused by others.

::

    sentinel ── run or block of runs ── sentinel     accepted if the two agree within 2 % (GPU kernels,
                                                     sleeps) or 6 % (kernels on a CPU), also with their values
                                                     when the machine was calibrated, and nothing delayed a
                                                     run by more than 1 % of its makespan

Threads that compute have sentinels of their own (`validation.real.threads`), one pair each: the worst one
counts.

A measurement that fails is kept and marked; it never counts, and nothing is repeated because its result is
unwelcome: the decision does not use the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from validation.real.work import Observation

MAX_DELAY: Final = 0.01
"""Delay by others, as a share of the makespan, above which a run does not count."""

MAX_DRIFT: Final = {"timer": 0.02, "threads": 0.06, "cuda": 0.02}
"""Maximum relative change of a sentinel across a block."""

MAX_OTHERS: Final = 0.1
"""Share of the cores that other processes may take while CPU kernels are calibrated. Threads of real-time
priority never queue behind them, so delays do not show it; they still share caches and clock, and two
busy loops on two cores steadily made products of matrices 10 % slower."""

MAX_PROBE: Final = 0.02
"""Maximum change of a makespan by events around single ops, if these are to be trusted."""


class Sentinel(NamedTuple):
    """A fixed kernel before and after a block.

    Attributes
    ----------
    before_ns, after_ns : int
    """

    before_ns: int
    after_ns: int

    @property
    def drift(self) -> float:
        """Difference of the two, relative to the smaller one."""
        return abs(self.after_ns - self.before_ns) / max(1, min(self.before_ns, self.after_ns))

    def away(self, usual_ns: float) -> float:
        """The larger relative difference of the two from `usual_ns`."""
        return max(abs(ns - usual_ns) for ns in self) / usual_ns


def around(before_ns: int | None, after_ns: int | None) -> list[Sentinel]:
    """Return the sentinel around something; empty if there is none."""
    return [] if before_ns is None or after_ns is None else [Sentinel(before_ns, after_ns)]


def verdict(
    backend: str,
    runs: Sequence[Observation],
    sentinels: Sequence[Sentinel],
    calibrated_ns: float | None = None,
) -> str:
    """Return why runs do not count; empty if they do.

    Parameters
    ----------
    backend : str
    runs : sequence of Observation
        One run, or those of a block; they may have sentinels of their own.
    sentinels : sequence of Sentinel
        Those around the runs.
    calibrated_ns : float, optional
        The sentinel's time when the machine was calibrated: in another state it is another machine.
    """
    sentinels = [*(Sentinel(*pulse) for seen in runs for pulse in seen.pulses), *sentinels]
    delayed = max((seen.delayed for seen in runs), default=0.0)
    if delayed > MAX_DELAY:
        return f"the machine stood in the way for {delayed:.1%} of the makespan"
    drift = max((sentinel.drift for sentinel in sentinels), default=0.0)
    if drift > MAX_DRIFT[backend]:
        return f"the sentinel moved by {drift:.1%}"
    if calibrated_ns:
        away = max((sentinel.away(calibrated_ns) for sentinel in sentinels), default=0.0)
        if away > MAX_DRIFT[backend]:
            return f"the sentinel is {away:.1%} off what it was when the machine was calibrated"
    return ""
