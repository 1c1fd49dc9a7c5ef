"""What a search found, as plain values and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scenarios.tune.tune import Trial, Tuning
from sim.analysis.bounds import bounds

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TUNING_SCHEMA", "trial_table", "tuning_report"]

TUNING_SCHEMA: Final = "sim.tuning/1"
"""What ``"schema"`` says in the output of ``sim tune --json``."""


def tuning_report(tuning: Tuning, against: str | None = None) -> dict[str, Any]:
    """Return what ``sim tune --json`` prints: the best trial, where the search began, how it got better."""
    trials = tuning.trials
    told = {
        "schema": TUNING_SCHEMA,
        "goal": {
            "result": tuning.goal.what,
            "most": tuning.goal.most,
            "limits": [*map(str, tuning.goal.limits)],
        },
        "trials": len(trials),
        "answers": sum(tuning.goal.allows(trial.row) for trial in trials if trial.level is None),
        "best": None if tuning.best is None else _plain(tuning, tuning.best) | _bound(tuning),
        "starts": [_plain(tuning, k) for k, trial in enumerate(trials) if trial.what == "start"],
        "improvements": [_plain(tuning, k) for k in improvements(tuning)],
    }
    return told if against is None else told | {"front": [_plain(tuning, k) for k in tuning.front(against)]}


def _bound(tuning: Tuning) -> dict[str, Any]:
    """Return how far the makespan of the best is above its lower bound; see `sim.metrics.summary`."""
    limits, makespan_ns = bounds(tuning.trace), tuning.trace.makespan_ns
    return {
        "lower_bound_ns": limits.lower_bound_ns,
        "gap": limits.gap(makespan_ns),
        "no_gap": limits.no_gap,
    }


def improvements(tuning: Tuning) -> list[int]:
    """Return the trials that were the best when they were run."""
    found: list[int] = []
    for k, trial in enumerate(tuning.trials):
        if trial.level is not None or not tuning.goal.allows(trial.row):
            continue
        if not found or tuning.cost(trial) < tuning.cost(tuning.trials[found[-1]]):
            found.append(k)
    return found


def _plain(tuning: Tuning, k: int) -> dict[str, Any]:
    return {"trial": k + 1, **_row(tuning.trials[k])}


def _row(trial: Trial) -> dict[str, Any]:
    settings = dict(setting.split("=", 1) for setting in trial.settings)
    return {**settings, "what": trial.what, "policy": trial.policy, **trial.row}


def trial_table(tuning: Tuning) -> pd.DataFrame:
    """Return one row a trial."""
    import pandas as pd

    return pd.DataFrame([_plain(tuning, k) for k in range(len(tuning.trials))])
