"""Measuring: run every case of a file of plans several times, and record every run.

Only numpy, torch and this project are imported here, so that it runs wherever torch does.

A run counts if the machine was quiet around it (`validation.real.gate`), whatever it measured. There are
`RUNS` runs that count, of at most `ATTEMPTS`; a case with fewer than `ENOUGH` is inconclusive.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from devices.cost.calibration import Calibration
from sim.base.errors import SimError
from sim.record.plan import Plan
from validation.cases import step_files
from validation.cases.backends import Executor, provenance, reason, run_case
from validation.cases.calibrated import quantity
from validation.cases.case import Case, digest
from validation.experiments import memory_experiment
from validation.experiments.contexts import durations_ns
from validation.real.gate import Sentinel, around, verdict
from validation.real.work import Observation

RUNS: Final = 5
ENOUGH: Final = 3
ATTEMPTS: Final = 15
PAUSE_S: Final = 0.4
"""Pause after a run that does not count, until the disturbance is over; doubled each time in a row."""

LONGEST_S: Final = 1.6


def measure(
    experiment: str,
    out: Path,
    backend: str,
    executor: Executor,
    calibration: Calibration | None = None,
    *,
    runs: int = RUNS,
    attempts: int = ATTEMPTS,
    deadline: float | None = None,
    again: bool = False,
) -> None:
    """Measure an experiment whose plans are in `out`; write every case when it is done.

    Cases that `out` already has, for the same plans and predictions, are not measured again, so that an
    interrupted measurement continues with the next case.

    Parameters
    ----------
    experiment, backend : str
    out : Path
    executor : Executor
    calibration : Calibration, optional
        Gives durations of ops to policies that ask for them, as in the simulator.
    runs : int
        Number of runs of each case that must count.
    attempts : int
        Maximum number of runs to reach it.
    deadline : float, optional
        Value of `time.monotonic`: cases that would begin after it are skipped and reported.
    again : bool
        Whether to repeat cases that were measured before.
    """
    plans = step_files.read_plans(out, experiment)
    predictions = step_files.read(out, "predictions", experiment)
    content: dict[str, Any] = {
        "plans": digest(plans),
        "predictions": None if predictions is None else digest(predictions),
        "provenance": provenance(executor),
        "cases": [
            {"name": entry["name"], "skipped": "not reached yet", "runs": []} for entry in plans["cases"]
        ],
    }
    known = {} if again else _measured(out, experiment, content)
    entries = content["cases"]
    for k, entry in enumerate(plans["cases"]):
        if entry["name"] in known:
            entries[k] = known[entry["name"]]
            continue
        if deadline is not None and time.monotonic() > deadline:
            entries[k]["skipped"] = "the time was up"
            continue
        try:
            if experiment == memory_experiment.NAME:
                done = memory_experiment.measure_program(executor, entry["steps"])
            else:
                case, plan = step_files.read_case(entry)
                done = _measure_case(case, plan, backend, executor, calibration, (runs, attempts))
            entries[k] = {"name": entry["name"], "runs": done}
        except Exception as error:  # whatever a library raises: it loses one case, not the experiment
            entries[k]["skipped"] = reason(error)
            if not isinstance(error, SimError):
                traceback.print_exc()
        step_files.write(out, "measurements", experiment, content)
    step_files.write(out, "measurements", experiment, content)


def _measured(out: Path, experiment: str, content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the cases that were measured before for the same plans and predictions, by name."""
    before = step_files.read(out, "measurements", experiment)
    if before is None or any(before[key] != content[key] for key in ("plans", "predictions")):
        return {}
    return {entry["name"]: entry for entry in before["cases"] if "skipped" not in entry}


def _measure_case(
    case: Case,
    plan: Plan | None,
    backend: str,
    executor: Executor,
    calibration: Calibration | None,
    limits: tuple[int, int],
) -> list[dict[str, Any]]:
    runs, attempts = limits
    # A policy may ask for durations of ops; a plan already exists.
    job = case.job(None if calibration is None or plan is not None else durations_ns(case, calibration))
    # A sleep's duration has no states; cores that a hypervisor moves, and clocks, have.
    usual_ns = quantity(calibration, "sentinel_ns", 0) if calibration and backend != "timer" else None
    done: list[dict[str, Any]] = []
    good = disturbed = 0
    before = executor.sentinel_ns()
    run_case(
        executor, case, job, plan
    )  # warm up threads, pages, caches; on a GPU everything that is created lazily
    for _ in range(attempts):
        seen = run_case(executor, case, job, plan)
        after = executor.sentinel_ns()
        sentinels = around(before, after)
        why = verdict(backend, [seen], sentinels, usual_ns)
        done.append(_record(seen, sentinels, why))
        before = after
        good += not why
        if good == runs:
            break
        disturbed = disturbed + 1 if why else 0
        if disturbed:
            time.sleep(min(LONGEST_S, PAUSE_S * 2 ** (disturbed - 1)))
            before = executor.sentinel_ns()
    return done


def _record(seen: Observation, sentinels: Sequence[Sentinel], why: str) -> dict[str, Any]:
    """Return a run as JSON: times by op, lanes, and order of issue."""
    tasks = seen.trace.tasks
    order = tasks["op"].argsort()
    run: dict[str, Any] = {
        "makespan_ns": seen.makespan_ns,
        "clean": not why,
        "why": why,
        "wrong": seen.wrong,
        "delayed_ns": seen.delayed_ns,
        "sentinel": list(sentinels[0]) if sentinels else None,
        "pulses": [list(pulse) for pulse in seen.pulses],
        "priority": seen.priority,
        "probe_error": seen.probe_error,
    }
    run |= {name: ns for name in ("looked_ns", "host_ns") if (ns := getattr(seen, name)) is not None}
    for column in ("issue_ns", "start_ns", "end_ns", "stream"):
        run[column] = tasks[column][order].tolist()
    return run
