"""Causes of failures and of slowness in a training run (`sim.faults.sources` says when they come)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from sim.faults.sources import Source

__all__ = ["Detection", "Failure", "SlowDown"]

Detection = Literal["send-recv", "health-check", "timeout"]


@dataclass(frozen=True)
class Failure(Source):
    """A cause of failures.

    Attributes
    ----------
    detect : Detection
        What tells the run of it.
    repair_ns : int
        The machine is back so long after it failed.
    restart_ns : int or None
        Time of a restart after this failure, in place of the run's.
    """

    detect: Detection = "send-recv"
    repair_ns: int = 0
    restart_ns: int | None = None


@dataclass(frozen=True)
class SlowDown(Source):
    """A cause of slowness: for `lasts_ns`, steps of the machine take `factor` times as long."""

    lasts_ns: int = 0
    factor: Fraction = Fraction(1)
