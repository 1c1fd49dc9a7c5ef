"""Scenarios as regression tests: run whatever has an ``expect:`` and say what does not hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scenarios.expect.expectation import Outcome
from scenarios.file.document import Document
from scenarios.file.yaml_read import Place
from scenarios.regression.update import Updated, update
from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from scenarios.run.scenario import Case
from sim.analysis.unused_devices import unused_devices
from sim.words.errors import InputError, InvariantError, RunError, SimError

__all__ = ["SUFFIXES", "Checked", "check_case", "check_file", "is_scenario", "scenario_files"]

SUFFIXES: Final = (".yaml", ".yml")
"""Endings of files that may be scenarios."""


@dataclass(frozen=True)
class Checked:
    """What became of one run of one scenario.

    Attributes
    ----------
    path : str
        The file.
    label : str
        The policy; empty where the file itself is wrong.
    outcomes : tuple of Outcome
        One for each expectation.
    error : SimError or None
        Why there are none.
    unused : tuple of str
        Devices of the machine that it did not use.
    updated : tuple of Updated, optional
        What was done about each outcome that failed, where new values were wanted.
    """

    path: str
    label: str
    outcomes: tuple[Outcome, ...] = ()
    error: SimError | None = None
    unused: tuple[str, ...] = ()
    updated: tuple[Updated, ...] | None = None

    @property
    def exit_status(self) -> int:
        """0 when everything holds (now), 1 when something does not, 2 when the scenario is wrong."""
        if self.error is not None:
            return self.error.exit_status
        if self.updated is not None:
            return 0 if all(each.done for each in self.updated) else 1
        return 0 if all(outcome.passed for outcome in self.outcomes) else 1

    @property
    def complaints(self) -> list[tuple[Place, str]]:
        """What did not hold, and where the scenario says so; line 0: somewhere in the file."""
        if self.error is not None:
            return [*self.error.placed] or [(Place(self.path), str(self.error))]
        if self.updated is not None:
            return [
                (each.outcome.expectation.place, f"{each.outcome.told}\n  {each.told}")
                for each in self.updated
            ]
        return [(outcome.expectation.place, outcome.told) for outcome in self.outcomes if not outcome.passed]

    @property
    def messages(self) -> list[str]:
        """What did not hold, in lines."""
        if self.error is not None:
            return str(self.error).splitlines()
        return [line for place, told in self.complaints for line in f"{place}: {told}".splitlines()]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "scenario": self.path,
            "policy": self.label or None,
            "passed": self.exit_status == 0,
            "expect": [outcome.to_json() for outcome in self.outcomes],
            "messages": self.messages,
            "unused_devices": list(self.unused),
        }


def check_file(
    path: str | Path, *, allow_code: bool = False, allow_outside: bool = False, new_values: bool = False
) -> Iterator[Checked]:
    """Run every case of a scenario that expects something, and check the invariants of its trace.

    Parameters
    ----------
    path : path
    allow_code : bool
        Whether the scenario may name ``module:Class``.
    allow_outside : bool
        Whether it may name files outside its own folder.
    new_values : bool
        Whether what does not hold is written anew, as it came out.

    Yields
    ------
    Checked
        One for each case, or one with the error when the file is wrong. A scenario that expects
        nothing yields one without outcomes: it was read, and not run.
    """
    try:
        cases = load_scenario(path, allow_code=allow_code, allow_outside=allow_outside).expected()
    except InputError as error:
        yield Checked(str(path), "", error=error)
        return
    if not cases:
        yield Checked(str(path), "")
    for case in cases:
        yield check_case(case, new_values=new_values)


def check_case(case: Case, *, new_values: bool = False) -> Checked:
    """Run one case, check the invariants of its trace and what is expected of it; see `check_file`."""
    path = str(case.scenario.document.path)
    try:
        result = run_case(case, check=True, new_tables=new_values)
        result.share()
        updated = tuple(update(result)) if new_values else None
        return Checked(path, case.label, result.outcomes, None, tuple(unused_devices(result.trace)), updated)
    except (InputError, RunError, InvariantError) as error:
        return Checked(path, case.label, error=error)


def scenario_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return the scenario files that `paths` mean: files as they are, folders searched.

    In a folder (and those below it, hidden ones left out), a scenario is a YAML mapping that has a
    ``workload``; other YAML files are not looked at further.

    Raises
    ------
    InputError
        A folder without any scenario.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            found[path] = None
            continue
        inside = [file for file in _yaml_files(path) if is_scenario(file)]
        if not inside:
            raise InputError(f"{path}: no scenario in this folder: no YAML file that has a workload")
        found.update(dict.fromkeys(inside))
    return list(found)


def _yaml_files(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(where, name) for name in sorted(files) if name.endswith(SUFFIXES))


def is_scenario(path: Path) -> bool:
    """Whether a file claims to be a scenario; one that cannot be read does, so that it is not overlooked."""
    try:
        return Document.read(path).root.child("workload") is not None
    except InputError:
        return True
