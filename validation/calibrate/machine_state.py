"""State of the machine: the current speed of its cores, compared with that of the calibration.

The clock of a shared processor has states about ten percent apart, which last from half a second to minutes
(docs/design.md, validation). A calibration holds for one of them, so a session settles on the speed that the
machine has most of the time if nobody disturbs it, and every run of every block has that speed::

    look, look, look, ... ─► usual speed ─► run ─ at that speed? ─ yes ─► it counts
                                             └──── no: wait a little ◄─┘
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from sim.base.errors import RunError
from validation.cases.backends import Executor
from validation.cases.case import Case, CaseOp
from validation.real.gate import MAX_DRIFT, verdict
from validation.real.work import Observation

_LOOKS: Final = 30
_LOOK_PAUSE_S: Final = 0.05
_ATTEMPTS: Final = 20
_PAUSES_S: Final = (0.2, 0.4, 0.8, 1.6)


class DisturbedError(RunError):
    """The machine was not quiet enough to calibrate; nothing was written."""


def looks_ns(executor: Executor, n: int) -> list[float]:
    """Return `n` samples of the cores' speed: times of fixed work on two threads; empty if not supported.

    Parameters
    ----------
    executor : Executor
    n : int
    """
    facts = {"size": 384, "repeat": 1}
    ops = [CaseOp(f"o{k}", "matmul", [], facts, "cpu0") for k in range(2)]
    policy = {"name": "in-order"}
    case = Case("speed", "calibration", "calibration", ops, {"cpu0": {"workers": 2}}, policy=policy)
    job = case.job()
    looks: list[float] = []
    for look in range(n):
        if look:
            time.sleep(_LOOK_PAUSE_S)
        pulses = [ns for pulse in executor.drive(job, case.make_policy()).pulses for ns in pulse]
        if pulses:
            looks.append(statistics.median(pulses))
    return looks


def usual(looks_ns: Sequence[float], spread: float) -> float:
    """Return the centre of the state that most samples belong to; of two equal ones, the faster state.

    Parameters
    ----------
    looks_ns : sequence of float
    spread : float
        Maximum relative distance of samples of the same state.

    Examples
    --------
    >>> usual([100, 101, 112, 99, 111, 112, 90, 101], 0.03)
    100.5
    """
    states = [
        [ns for ns in looks_ns if abs(ns - look) <= spread * look] for look in sorted(looks_ns, reverse=True)
    ]
    return statistics.median(sorted(states, key=len)[-1])


class Speed:
    """Repeats runs that did not have the usual speed of the cores.

    Parameters
    ----------
    backend : str
    executor : Executor
    """

    def __init__(self, backend: str, executor: Executor) -> None:
        self.backend, self.executor = backend, executor
        self.usual_ns: float | None = None

    def quiet(self, name: str, run: Callable[[], Observation], rejected: list[dict[str, Any]]) -> Observation:
        """Return a run; if threads time their pulse, the first run at the usual speed.

        Parameters
        ----------
        name : str
            Name of the block, for `rejected`.
        run : callable
        rejected : list
            Receives the runs that did not count.

        Raises
        ------
        DisturbedError
            No run had the usual speed.
        """
        why = ""
        for attempt in range(_ATTEMPTS):
            seen = run()
            if not seen.pulses:
                return seen
            if self.usual_ns is None:
                self.usual_ns = usual(looks_ns(self.executor, _LOOKS), MAX_DRIFT[self.backend] / 2)
            why = verdict(self.backend, [seen], [], self.usual_ns)
            if not why:
                return seen
            before, after = (statistics.median(pulse) for pulse in zip(*seen.pulses, strict=True))
            rejected.append({"block": name, "before": before, "after": after, "accepted": False, "why": why})
            time.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
        raise DisturbedError(f"calibrating {name!r}: {why}, {_ATTEMPTS} runs in a row")
