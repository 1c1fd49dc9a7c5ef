"""Fit a few numbers of a calibration to measured steps, and predict layouts that the fit has not seen.

::

    rows of other groups ──► logarithms of the free numbers, by least absolute errors ──► calibration ──► row

Each row counts by the logarithm of predicted / measured. Gauss-Newton steps with weights 1/|error| (least
absolute errors, so that a few outliers do not dominate) and a weak pull to the start of the fit, so that
numbers that the rows do not determine stay at the data sheet's values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from devices.collectives.groups import Fabric, NodeFabrics
from scenarios.builders.train.calibration import TrainingCalibration
from scenarios.builders.train.step import step_ns
from studies.training.published import Published

_SPREAD: Final = 0.5
"""Prior standard deviation of the logarithm of a number around its start."""

_ERROR: Final = 0.04
"""Error expected of any row."""


def _scaled(calibration: TrainingCalibration, name: str, factor: float) -> TrainingCalibration:
    fabrics = calibration.collectives
    assert isinstance(fabrics, NodeFabrics)
    fabric: Fabric = getattr(fabrics, name)
    base = fabric.efficiency or {"default": 1.0}
    scaled = replace(fabric, efficiency={kind: value * factor for kind, value in base.items()})
    changed: dict[str, Any] = {name: scaled}
    return replace(calibration, collectives=replace(fabrics, **changed))


FREE: Final[Mapping[str, Callable[[TrainingCalibration, float], TrainingCalibration]]] = {
    "product": lambda c, x: replace(c, product=c.product * x),
    "attention": lambda c, x: replace(
        c,
        attention_forward=(c.attention_forward or 1.0) * x,
        attention_backward=(c.attention_backward or 1.0) * x,
    ),
    "elementwise": lambda c, x: replace(
        c, pass_efficiency={kind: value * x for kind, value in c.pass_efficiency.items()}
    ),
    "gap": lambda c, x: replace(c, gap_ns=c.gap_ns * x),
    "sustained": lambda c, x: replace(c, sustained=c.sustained * x),
    "contention": lambda c, x: replace(c, contention=c.contention * x),
    "disturbance": lambda c, x: replace(c, hiding=max(0.0, 1 - (1 - c.hiding) * x)),
    "node": lambda c, x: _scaled(c, "node", x),
    "between": lambda c, x: _scaled(c, "between", x),
}
"""Name → the calibration with that number multiplied by a factor."""


def predicted_ms(row: Published, calibration: TrainingCalibration) -> float:
    """Return the predicted step of a row, in ms."""
    return step_ns(replace(row.training, calibration=calibration)) / 1e6


def fit(
    rows: Sequence[Published],
    base: TrainingCalibration,
    free: Sequence[str],
    *,
    steps: int = 6,
    known: dict[tuple[str, bytes], float] | None = None,
) -> TrainingCalibration:
    """Return the calibration whose free numbers fit the rows.

    Fits with the same `base` and `free` begin alike: `known` caches their predictions.
    """
    return _times(base, free, fitted(rows, base, free, steps, {} if known is None else known))


def fitted(
    rows: Sequence[Published],
    base: TrainingCalibration,
    free: Sequence[str],
    steps: int,
    known: dict[tuple[str, bytes], float],
) -> list[float]:
    """Return the logarithms by which the free numbers of `fit` differ from those of `base`."""

    def errors(logs: np.ndarray) -> np.ndarray:
        calibration, at = _times(base, free, logs.tolist()), logs.tobytes()
        for row in rows:
            if (row.id, at) not in known:
                known[row.id, at] = predicted_ms(row, calibration)
        return np.array([np.log(known[row.id, at] / row.step_ms) for row in rows])

    def loss(at: np.ndarray, logs: np.ndarray) -> float:
        return float(np.abs(at).sum() / _ERROR + (logs**2).sum() / _SPREAD**2 / 2)

    logs = np.zeros(len(free))
    if not rows:
        return [0.0] * len(free)
    jacobian, at = np.zeros((len(rows), len(free))), errors(logs)
    for step in range(steps):
        if step % 2 == 0:
            for k in range(len(free)):
                moved = logs.copy()
                moved[k] += 0.05
                jacobian[:, k] = (errors(moved) - at) / 0.05
        weight = 1 / (_ERROR * np.maximum(np.abs(at), 0.01))
        normal = jacobian.T @ (weight[:, None] * jacobian) + np.eye(len(free)) / _SPREAD**2
        gradient = jacobian.T @ (weight * at) + logs / _SPREAD**2
        move = -np.clip(np.linalg.solve(normal, gradient), -0.7, 0.7)
        for part in (1, 1 / 2, 1 / 4, 1 / 8):  # shorter steps, because some rates stop being the limit
            there = errors(logs + part * move)
            if loss(there, logs + part * move) < loss(at, logs):
                logs, at = logs + part * move, there
                break
    return list(map(float, logs))


def _times(base: TrainingCalibration, free: Sequence[str], logs: Sequence[float]) -> TrainingCalibration:
    for name, log in zip(free, logs, strict=True):
        base = FREE[name](base, float(np.exp(log)))
    return base


def folds(rows: Sequence[Published], most: int) -> list[set[str]]:
    """Return the groups of each fold: each group in one fold, at most `most` folds."""
    groups = sorted({row.group for row in rows})
    count = min(most, len(groups))
    return [set(groups[k::count]) for k in range(count)]


def predictions(
    rows: Sequence[Published], base: TrainingCalibration, free: Sequence[str], *, most_folds: int = 5
) -> dict[str, float]:
    """Return the predicted step of each row, by id, in ms, from a fit to other groups than the row's."""
    found: dict[str, float] = {}
    known: dict[tuple[str, bytes], float] = {}
    for out in folds(rows, most_folds):
        calibration = fit([row for row in rows if row.group not in out], base, free, known=known)
        found.update({row.id: predicted_ms(row, calibration) for row in rows if row.group in out})
    return found
