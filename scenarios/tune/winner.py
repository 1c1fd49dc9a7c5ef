"""The best trial as a scenario that can be run again: its settings, the plan it follows, what it reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scenarios.fields.results import RESULTS
from scenarios.tune.tune import Trial, Tuning
from sim.files.atomic_files import check_writable, write_text
from sim.words.errors import InputError

__all__ = ["check_winner", "write_winner"]


def check_winner(path: str, scenario: str) -> None:
    """Refuse a file that could not be run: what a scenario names is found beside it.

    Raises
    ------
    InputError
        Another folder than the scenario's, no ``.yaml``, or a file that cannot be written.
    """
    if not path.endswith((".yaml", ".yml")):
        raise InputError(f"--out {path}: should end in .yaml")
    folder, home = Path(path).resolve().parent, Path(scenario).resolve().parent
    if folder != home:
        raise InputError(f"--out {path}: what a scenario names is found beside it; write into {home}")
    if Path(path).resolve() == Path(scenario).resolve():
        raise InputError(f"--out {path}: is the scenario itself")
    check_writable(path)


def write_winner(tuning: Tuning, path: str) -> list[str]:
    """Write the best trial as a scenario, and its plan beside it; return the files.

    Raises
    ------
    InputError
        A file cannot be written.
    """
    assert tuning.best is not None
    best, written = tuning.trials[tuning.best], []
    found: dict[str, Any] = {
        key: value
        for key, value in best.document.root.plain().items()
        if key not in ("compare", "expect", "extends")
    }
    if best.follows is not None and tuning.trace is not None:
        plan = Path(path).with_suffix(".plan.json")
        write_text(plan, tuning.trace.plan().to_json())
        written.append(str(plan))
        found["policy"] = _following(best, plan.name)
    goal = tuning.goal
    unit = RESULTS[goal.what.partition(".")[0]].unit
    found["expect"] = {goal.what: unit.show(best.row[goal.column])}
    least = "most" if goal.most else "least"
    head = f"# Found by sim tune: the {least} {goal.what} of {len(tuning.trials):,} trials.\n"
    write_text(path, head + yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=110))
    return [path, *written]


def _following(best: Trial, plan: str) -> dict[str, Any]:
    """Return the policy that follows a plan."""
    return {
        "name": "replay",
        "file": plan,
        "synchronisation": best.follows,
        "placement": {"name": "replay", "file": plan},
        "streams": {"name": "replay", "file": plan},
    }
