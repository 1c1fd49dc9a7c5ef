"""What a search found as a scenario that can be run again: settings, the plan it follows, what it reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scenarios.fields.results import RESULTS
from scenarios.file.document import Document
from scenarios.tune.tune import Tuning
from sim.files.atomic_files import check_writable, write_text
from sim.trace import Trace
from sim.words.errors import InputError

__all__ = ["check_winner", "write_found", "write_winner"]


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
    best, goal = tuning.trials[tuning.best], tuning.goal
    unit = RESULTS[goal.what.partition(".")[0]].unit
    least = "most" if goal.most else "least"
    return write_found(
        path,
        best.document,
        None if best.follows is None else tuning.trace,
        best.follows,
        expect={goal.what: unit.show(best.row[goal.column])},
        head=f"Found by sim tune: the {least} {goal.what} of {len(tuning.trials):,} trials.",
    )


def write_found(
    path: str, document: Document, trace: Trace | None, follows: str | None, *, expect: Any, head: str
) -> list[str]:
    """Write a scenario, and the plan of a run if it is to follow that; return the files.

    Raises
    ------
    InputError
        A file cannot be written.
    """
    left_out = ("compare", "expect", "extends")
    found = {key: value for key, value in document.root.plain().items() if key not in left_out}
    written = []
    if trace is not None:
        plan = Path(path).with_suffix(".plan.json")
        write_text(plan, trace.plan().to_json())
        written.append(str(plan))
        replay = {"name": "replay", "file": plan.name}
        found["policy"] = {**replay, "synchronisation": follows, "placement": replay, "streams": replay}
    found["expect"] = expect
    text = yaml.dump(found, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)
    write_text(path, f"# {head}\n{text}")
    return [path, *written]


class _Plain(yaml.SafeDumper):
    """Writes what stands twice twice, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Whether a value is written out wherever it stands."""
        return True
