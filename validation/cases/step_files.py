"""The files that join the steps: one folder a step, one file an experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sim.words.errors import InputError
from validation.cases.case import Case

__all__ = ["STEPS", "read", "read_cases", "read_path", "step_path", "write"]

STEPS: Final = {
    "plans": "sim.plans/1",
    "predictions": "sim.predictions/1",
    "measurements": "sim.measurements/1",
}
"""step → schema of its files."""


def step_path(out: Path, step: str, experiment: str) -> Path:
    """Return where a step keeps an experiment."""
    return out / step / f"{experiment}.json"


def write(out: Path, step: str, experiment: str, content: dict[str, Any]) -> None:
    """Write the file of an experiment, whole or not at all."""
    path = step_path(out, step, experiment)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schema": STEPS[step], "experiment": experiment, **content}, separators=(",", ":"))
    part = path.with_suffix(".part")
    part.write_text(text.replace('{"name":', '\n{"name":') + "\n")
    part.replace(path)


def read(out: Path, step: str, experiment: str) -> dict[str, Any] | None:
    """Read the file of an experiment; None when there is none.

    Raises
    ------
    InputError
        It is there and is something else.
    """
    return read_path(step_path(out, step, experiment), step)


def read_path(path: Path, step: str) -> dict[str, Any] | None:
    """Read a file of a step, wherever it lies; None when there is none.

    Raises
    ------
    InputError
        It is there and is something else.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != STEPS[step]:
        raise InputError(f"{path}: 'schema' must be {STEPS[step]!r}")
    return content


def read_cases(plans: dict[str, Any]) -> list[Case]:
    """Return the cases of a file of plans.

    Raises
    ------
    InputError
        A case is not the one that was hashed when it was drawn.
    """
    cases = []
    for entry in plans["cases"]:
        case = Case.from_json(entry["case"])
        if case.digest != entry["digest"]:
            raise InputError(f"case {case.name!r} was changed after it was drawn")
        cases.append(case)
    return cases
