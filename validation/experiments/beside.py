"""A calibration beside each experiment: the one that was made in the state in which the machine is.

::

    calibration.json ──► a, b ── the cores run 10 % slower, and stay so ──► calibrations/d.json ──► d
           └──────────────────── they are back ──────────────────────────────────────────────────► e, f

A calibration is made before the predictions that use it, and those before anything of the experiment is
measured; which one is used is settled by the sentinel alone. Where no calibration fits and none can be made,
the runs are refused by their gate, and the experiment is inconclusive.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from devices.cost.calibration import Calibration, load_calibration, save_calibration
from validation.calibrate import DisturbedError, calibrate
from validation.calibrate.machine_state import looks_ns
from validation.cases.backends import Executor
from validation.real.gate import MAX_DRIFT

_PATIENCE_S: Final = 6.0
"""How long to wait for a state that is known before another one is calibrated."""

_PAUSE_S: Final = 0.5
_LOOKS: Final = 3


def _path(out: Path, experiment: str) -> Path:
    return out / "calibrations" / f"{experiment}.json"


def own_calibration(out: Path, experiment: str) -> Calibration | None:
    """Return the calibration that an experiment has to itself; None when it uses that of the folder."""
    path = _path(out, experiment)
    return load_calibration(path) if path.exists() else None


class Beside:
    """Chooses, and where none fits makes, the calibration of each experiment.

    Parameters
    ----------
    out : Path
    first : Calibration
        That of the folder.
    executor : Executor
    say : callable
        Told what happens.
    anew : bool
        False: the first one is used for all, whatever has become of the machine.
    """

    def __init__(
        self, out: Path, first: Calibration, executor: Executor, say: Callable[[str], None], *, anew: bool
    ) -> None:
        self.out, self.executor, self.say, self.anew = out, executor, say, anew
        self.known = [first]

    def choose(self, experiment: str) -> Calibration:
        """Return the calibration for an experiment that is about to be predicted and measured."""
        first = self.known[0]
        if first.backend != "threads" or not self.anew:  # sleeps and GPUs have no such states
            return own_calibration(self.out, experiment) or first
        _path(self.out, experiment).unlink(missing_ok=True)  # of a measurement that is replaced now
        found = self._wait() or self._anew(experiment)
        if found is not None and found is not first:
            _path(self.out, experiment).parent.mkdir(exist_ok=True)
            save_calibration(found, _path(self.out, experiment))
        return found or first

    def _wait(self) -> Calibration | None:
        """Return a known calibration as soon as one fits."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            speed_ns = statistics.median(looks_ns(self.executor, _LOOKS))
            for calibration in self.known:
                usual_ns = calibration.quantity("sentinel_ns")
                if abs(speed_ns - usual_ns) <= MAX_DRIFT[calibration.backend] * usual_ns:
                    return calibration
            if time.monotonic() > until:
                return None
            time.sleep(_PAUSE_S)

    def _anew(self, experiment: str) -> Calibration | None:
        self.say(f"{experiment}: the cores run at another speed than during calibration; calibrating again")
        try:
            self.known.append(calibrate(self.known[0].backend, self.executor))
        except DisturbedError as error:
            self.say(f"{experiment}: {error}")
            return None
        return self.known[-1]
