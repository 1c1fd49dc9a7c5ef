"""Was the machine quiet? Sentinels around what is measured, and how long others held it up.

::

    sentinel ── run or block of runs ── sentinel     accepted when the two agree within 2 % (GPU kernels,
                                                     sleeps) or 6 % (kernels on a CPU), with what they were
                                                     when the machine was calibrated, too, and nothing held a
                                                     run up for longer than 1 % of its makespan

Threads that compute bring sentinels of their own (`validation.real.threads`), one pair each: the worst one
counts.

A measurement that fails is kept and marked; it never counts, and nothing is repeated because its result is
unwelcome: whether it counts is settled without looking at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from validation.real.work import Observation

MAX_DELAY: Final = 0.01
"""Delay by others, as a share of the makespan, above which a run does not count."""

MAX_DRIFT: Final = {"timer": 0.02, "threads": 0.06, "cuda": 0.02}
"""How far a sentinel may move across a block."""

MAX_OTHERS: Final = 0.1
"""Part of the cores that other processes may take while kernels on a CPU are calibrated. Threads of real-time
priority never queue behind them, so that no delay tells; they share caches and clock all the same, and two
busy loops on two cores made products of matrices 10 % slower, steadily."""

MAX_PROBE: Final = 0.02
"""How far looking at single ops may change a makespan, if they are to be believed."""


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
        """How far the two are apart, as a share of the smaller one."""
        return abs(self.after_ns - self.before_ns) / max(1, min(self.before_ns, self.after_ns))

    def away(self, usual_ns: float) -> float:
        """How far the two are from `usual_ns`, as a share of it: the worse of them."""
        return max(abs(ns - usual_ns) for ns in self) / usual_ns


def around(before_ns: int | None, after_ns: int | None) -> list[Sentinel]:
    """Return the sentinel around something; none where nobody looks."""
    return [] if before_ns is None or after_ns is None else [Sentinel(before_ns, after_ns)]


def verdict(
    backend: str,
    runs: Sequence[Observation],
    sentinels: Sequence[Sentinel],
    calibrated_ns: float | None = None,
) -> str:
    """Return why runs do not count; empty when they do.

    Parameters
    ----------
    backend : str
    runs : sequence of Observation
        One, or those of a block; they may have taken sentinels of their own.
    sentinels : sequence of Sentinel
        Around them.
    calibrated_ns : float, optional
        What the sentinel took when the machine was calibrated: in another state it is another machine.
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
