"""What `sim tune` prints: how far it is, and what it found."""

from __future__ import annotations

import sys
import time

import typer

from scenarios.cli.process.terminal import unescaped
from scenarios.cli.text_tables import print_table
from scenarios.fields.results import column_of_result, shown_result
from scenarios.tune.report import improvements
from scenarios.tune.tune import Trial, Tuning
from sim.analysis.bounds import bounds
from sim.export.result_rows import percent
from sim.words.units import format_duration

__all__ = ["Ticker", "print_tuning"]

_SHOWN = 12
"""Improvements that are listed; of more the first and the last."""


class Ticker:
    """Says on a terminal how many trials are done, the best, and the time left."""

    def __init__(self, budget: int) -> None:
        self.budget, self.begun, self.told = budget, time.monotonic(), 0.0

    def __call__(self, tuning: Tuning) -> None:
        """Renew the line, four times a second."""
        now, n = time.monotonic(), len(tuning.trials)
        last = n == self.budget
        if not sys.stderr.isatty() or not (last or now - self.told > 0.25):
            return
        self.told = now
        best = (
            "none yet" if tuning.best is None else shown_result(tuning.goal.what, _value(tuning, tuning.best))
        )
        left = format_duration(round((now - self.begun) / n * (self.budget - n) * 1e9), digits=2)
        line = f"{n:,} of {self.budget:,} trials, best {best}, {left} left"
        typer.echo(f"\r{line:<70}", nl=last, file=unescaped(sys.stderr))


def print_tuning(tuning: Tuning, against: str | None = None) -> None:
    """Print the best, how the search got there, and the front."""
    trials, goal = tuning.trials, tuning.goal
    if tuning.best is None:
        why = next((trial.row["error"] for trial in trials if trial.row["error"]), "limits are not kept")
        typer.echo(f"{len(trials):,} trials, and none is an answer: {why}")
        return
    best = trials[tuning.best]
    limits = f", with {', '.join(map(str, goal.limits))}" if goal.limits else ""
    told = shown_result(goal.what, best.row[goal.column])
    typer.echo(f"best {goal.what} {told} of {len(trials):,} trials{limits}{_gain(tuning)}")
    if best.settings:
        typer.echo(f"  {', '.join(best.settings)}")
    if best.what not in ("settings", "start"):
        typer.echo("  with an order of its own: --out FILE.yaml keeps it")
    typer.echo(f"  {_above(tuning)}")
    typer.echo()
    better = improvements(tuning)
    shown = better if len(better) <= _SHOWN else [*better[:2], *better[-(_SHOWN - 2) :]]
    print_table([_line(tuning, k, goal.what) for k in shown])
    if against is not None:
        typer.echo(f"\nPareto front of {goal.what} and {against}")
        print_table([_line(tuning, k, goal.what, against) for k in tuning.front(against)])


def _above(tuning: Tuning) -> str:
    """Say how far the makespan of the best is above its lower bound."""
    limits, makespan_ns = bounds(tuning.trace), tuning.trace.makespan_ns
    gap = limits.gap(makespan_ns)
    if gap is None:
        return f"no lower bound: {limits.no_gap}"
    return f"{percent(gap)} above the lower bound of these devices and streams ({limits.binding})"


def _gain(tuning: Tuning) -> str:
    """Say by how much the best is better than the best start."""
    assert tuning.best is not None
    starts = [t for t in tuning.trials if t.what == "start" and tuning.goal.allows(t.row)]
    if not starts:
        return ""
    first = min(starts, key=tuning.cost)
    before, after = tuning.cost(first), tuning.cost(tuning.trials[tuning.best])
    if before == after or not before:
        return f"; no better than {first.policy}"
    return f"; {100 * abs(after / before - 1):.1f} % better than {first.policy}, the best to start from"


def _line(tuning: Tuning, k: int, *results: str) -> dict[str, str]:
    trial: Trial = tuning.trials[k]
    return {
        "trial": f"{k + 1:,}",
        **dict(setting.split("=", 1) for setting in trial.settings),
        "policy": trial.policy,
        "changed": trial.what if trial.what not in ("settings", "start") else "",
        **{name: shown_result(name, trial.row[column_of_result(name)]) for name in results},
    }


def _value(tuning: Tuning, k: int) -> int | float | str:
    value: int | float | str = tuning.trials[k].row[tuning.goal.column]
    return value
