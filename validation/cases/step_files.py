"""The files that link the steps: one folder per step, one file per experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple

from devices.cost.calibration import well_formed
from sim.base.arrays import LATEST_NS
from sim.base.errors import InputError
from sim.base.files import write_text
from sim.record.plan import Plan
from validation.cases.case import Case, digest

STEPS: Final = {
    "plans": "sim.plans/1",
    "predictions": "sim.predictions/1",
    "measurements": "sim.measurements/1",
}
"""Step → schema of its files."""


def step_path(out: Path, step: str, experiment: str) -> Path:
    """Return the path of an experiment's file for a step."""
    return out / step / f"{experiment}.json"


def write(out: Path, step: str, experiment: str, content: dict[str, Any]) -> None:
    """Write the file of an experiment atomically."""
    path = step_path(out, step, experiment)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schema": STEPS[step], "experiment": experiment, **content}, separators=(",", ":"))
    write_text(path, text.replace('{"name":', '\n{"name":') + "\n")


def read(out: Path, step: str, experiment: str) -> dict[str, Any] | None:
    """Read the file of an experiment; None if there is none.

    Raises
    ------
    InputError
        The file exists but has other content.
    """
    return read_path(step_path(out, step, experiment), step)


def read_all(out: Path, experiment: str) -> dict[str, dict[str, Any] | None]:
    """Return the files of all steps of an experiment, by step, as `read` does."""
    return {step: read(out, step, experiment) for step in STEPS}


def read_path(path: Path, step: str) -> dict[str, Any] | None:
    """Read a file of a step from any path, as `read` does."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != STEPS[step]:
        raise InputError(f"{path}: 'schema' must be {STEPS[step]!r}")
    with well_formed(path):
        _check_cases(step, content)
    return content


# ----------------------------------------------------------------------------------------------------------
# Checks of a file that somebody may have edited, before its numbers are used.

_NEEDED: Final[Mapping[str, Mapping[str, Any]]] = {
    "plans": {"cases": list},
    "predictions": {"plans": str, "calibration": str, "cases": list},
    "measurements": {"plans": str, "predictions": (str, NoneType), "provenance": dict, "cases": list},
}
_CASE: Final[Mapping[str, Mapping[str, Any]]] = {
    "plans": {"name": str},
    "predictions": {"name": str},
    "measurements": {"name": str, "runs": list},
}
_RUN: Final = {"makespan_ns": int, "clean": bool, "why": str, "wrong": list, "issue_ns": list, "stream": list}


def _check_cases(step: str, content: Mapping[str, Any]) -> None:
    _check_keys(content, _NEEDED[step])
    for entry in content["cases"]:
        _check_keys(entry, _CASE[step])
        for k, run in enumerate(entry["runs"] if step == "measurements" else ()):
            with well_formed(f"case {entry['name']!r}, run {k}"):
                _check_run(run)
        if step == "predictions" and "makespan_ns" in entry:
            with well_formed(f"case {entry['name']!r}"):
                _check_times(entry, ("makespan_ns",))


def _check_keys(content: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    for key, kind in needed.items():
        if not isinstance(content[key], kind):
            raise InputError(f"{key!r} is {content[key]!r:.60}")


def _check_run(run: Mapping[str, Any]) -> None:
    if "allocated" in run:
        _check_times(run, ("allocated", "reserved"))
        return
    _check_keys(run, _RUN)
    _check_times(run, ("issue_ns", "start_ns", "end_ns", "stream", "makespan_ns", "looked_ns", "host_ns"))
    if not run["makespan_ns"]:
        raise InputError("'makespan_ns' is 0")
    if not isinstance(run.get("probe_error", 0.0), (int, float)):
        raise InputError(f"'probe_error' is {run['probe_error']!r:.60}")
    for op, (start, end) in enumerate(zip(run["start_ns"], run["end_ns"], strict=True)):
        if end < start:
            raise InputError(f"op {op} starts at {start} and ends at {end} ns")
    if not len(run["issue_ns"]) == len(run["start_ns"]) == len(run["stream"]):
        raise InputError("'issue_ns', 'start_ns', 'end_ns' and 'stream' need one number an op")


def _check_times(run: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Raise if columns or single numbers are not whole numbers from 0 on that fit 63 bits."""
    for column in columns:
        found = run.get(column, ())
        for value in found if isinstance(found, (list, tuple)) else [found]:
            if type(value) is not int or not 0 <= value <= LATEST_NS:
                raise InputError(f"{column!r} has {value!r:.60}; it should be a whole number, 0 or more")


# ----------------------------------------------------------------------------------------------------------


def read_plans(out: Path, experiment: str) -> dict[str, Any]:
    """Read the plans of an experiment.

    Raises
    ------
    InputError
        There are none.
    """
    plans = read(out, "plans", experiment)
    if plans is None:
        raise InputError(f"{step_path(out, 'plans', experiment)} is missing: draw the plans first")
    return plans


class Recorded(NamedTuple):
    """The files of an experiment that belong together.

    Attributes
    ----------
    plans, measurements : dict
    predictions : dict or None
        None: predict again.
    predicted_before : bool
        Whether the measurement names these predictions, so that they were made before it.
    predicted_from : str
        Digest of the calibration from which they were made; empty if there is none.
    """

    plans: dict[str, Any]
    measurements: dict[str, Any]
    predictions: dict[str, Any] | None
    predicted_before: bool
    predicted_from: str


def recorded(out: Path, experiment: str, *, recompute: bool) -> Recorded | list[str]:
    """Return the recorded files of an experiment, or the missing steps.

    Parameters
    ----------
    out : Path
    experiment : str
    recompute : bool
        Whether predictions are not needed.

    Raises
    ------
    InputError
        Predictions, plans and measurements do not belong together.
    """
    found = read_all(out, experiment)
    plans, predictions, measurements = found.values()
    if plans is None or measurements is None or (predictions is None and not recompute):
        return [step for step, content in found.items() if content is None]
    if any(
        content is not None and content["plans"] != digest(plans) for content in (measurements, predictions)
    ):
        raise InputError(f"{experiment}: plans were changed after they were used; draw and measure again")
    cases = zip(plans["cases"], measurements["cases"], strict=False)
    if len(plans["cases"]) != len(measurements["cases"]) or any(a["name"] != b["name"] for a, b in cases):
        raise InputError(f"{experiment}: the measured cases are not those of the plans")
    before = predictions is not None and measurements["predictions"] == digest(predictions)
    made_from = predictions["calibration"] if predictions is not None else ""
    return Recorded(plans, measurements, None if recompute else predictions, before, made_from)


def read_case(entry: dict[str, Any]) -> tuple[Case, Plan | None]:
    """Return a case from a file of plans, and the plan to execute; None if a policy drives.

    Raises
    ------
    InputError
        Its hash differs from that recorded when it was drawn.
    """
    case, plan = Case.from_json(entry["case"]), entry["plan"]
    if case.digest != entry["digest"]:
        raise InputError(f"case {case.name!r} was changed after it was drawn")
    return case, None if plan is None else Plan.from_json(json.dumps(plan))
