"""Drawing and predicting: the cases to run, and the simulator's prediction before they are measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from devices.cost.calibration import Calibration
from sim.base.errors import InputError
from sim.machine.machine import Machine
from sim.policy import Policy
from sim.simulation import simulate
from sim.trace import Trace
from validation.cases import step_files
from validation.cases.calibrated import quantity
from validation.cases.case import Case, digest
from validation.cases.draws import draw
from validation.cases.slowed_workers import CorunSlowdown
from validation.experiments import memory_experiment
from validation.experiments.contexts import FloatArray, blended, durations_ns
from validation.real.measured_kernels import HOLDS_HOST

CORUN_SIZES: Final = (512, 1024, 2048)
"""Sizes of products whose slowdown by others was measured on a GPU; the nearest one is used."""


def draw_plans(experiment: str, backend: str, out: Path, split: str = "test") -> None:
    """Write the cases of an experiment, with the plans to execute."""
    if experiment == memory_experiment.NAME:
        programs = memory_experiment.draw(backend, split)
        entries = [{"name": name, "steps": steps} for name, steps in programs.items()]
    else:
        entries = [_entry(case) for case in draw(experiment, backend, split)]
    step_files.write(out, "plans", experiment, {"backend": backend, "split": split, "cases": entries})


def _entry(case: Case) -> dict[str, Any]:
    plan = case.plan()
    return {
        "name": case.name,
        "case": case.to_json(),
        "digest": case.digest,
        "plan": None if plan is None else json.loads(plan.to_json()),
        "plan_digest": None if plan is None else plan.digest,
    }


def with_interference(machine: Machine, case: Case, calibration: Calibration) -> Machine:
    """Return the machine with the slowdown measured for its lanes beside others, if any.

    Kernels slow kernels down, by how much of the device they fill, and copies to the device copies from it.
    """
    size = max((op.facts.get("size", 0) for op in case.ops), default=0)
    measured = [n for n in CORUN_SIZES if f"corun_{n}_slowdown_ppm" in calibration.quantities]
    fills = f"{min(measured, key=lambda n: abs(n - size))}_" if measured else ""
    two = quantity(calibration, f"corun_{fills}slowdown_ppm", 1_000_000) / 1_000_000
    four = quantity(calibration, f"corun_{fills}slowdown_4_ppm", round(two * 1_000_000)) / 1_000_000
    copies = max(1.0, quantity(calibration, "duplex_slowdown_ppm", 1_000_000) / 1_000_000)
    if two == four == copies == 1:
        return machine
    factors = (1, two, (two + four) / 2, four)
    devices = tuple(
        replace(
            device,
            processor=device.processor or CorunSlowdown,
            details=replace(
                device.details,
                corun_slowdown=factors,
                corun_exempt=frozenset(("h2d", "d2h", *HOLDS_HOST)),
                corun_exempt_slowdown=(1, copies),
            ),
        )
        if device.lanes > 1
        else device
        for device in machine.devices
    )
    return replace(machine, devices=devices)


def simulate_case(
    case: Case, duration_ns: Sequence[int], calibration: Calibration | None, policy: Policy | None = None,
    *, issue_ns: int | None = None, alone: bool = True, looked: bool = False,
) -> Trace:  # fmt: skip
    """Simulate a case; without a calibration only the ops take time.

    Parameters
    ----------
    case : Case
    duration_ns : sequence of int
        By op.
    calibration : Calibration, optional
    policy : Policy, optional
        Default: the policy of the case.
    issue_ns : int, optional
        Host time of a launch, if not the calibrated one.
    alone : bool
        Whether the durations are those of ops alone; durations measured beside others include the slowdown.
    looked : bool
        Whether the durations are from a GPU with events around every op, which has other overheads.
    """
    policy = policy or case.make_policy()
    case = case.simulated()
    machine = case.machine(calibration, looked=looked)
    if calibration is not None and alone:
        machine = with_interference(machine, case, calibration)
    if issue_ns is not None:
        machine = replace(machine, devices=tuple(replace(d, issue_ns=issue_ns) for d in machine.devices))
    return simulate(case.graph(duration_ns), machine, policy, **case.decisions())


def predict_case(case: Case, calibration: Calibration) -> dict[str, Any]:
    """Return the simulator's prediction of a case, and those of simpler predictors.

    Returns
    -------
    dict
        ``makespan_ns``; ``order`` of starts (op indices); ``start_ns`` and ``end_ns`` by op; ``duration_ns``
        given to the simulator; ``naive``: makespan by the sum of durations, by the critical path, and by
        simulating without overheads.
    """
    duration_ns = durations_ns(case, calibration)
    trace = simulate_case(case, duration_ns, calibration)
    busy_ns = case.busy_durations_ns(calibration)
    if busy_ns is not None:  # partitions: simulate once to find how busy the others are, and once more
        duration_ns = blended(duration_ns, busy_ns, trace.job.device_of, _busy_share(trace))
        trace = simulate_case(case, duration_ns, calibration)
    trace.check()
    return {
        "name": case.name,
        "digest": case.digest,
        "makespan_ns": trace.makespan_ns + case.frame_ns(calibration),
        "order": trace.tasks["op"].tolist(),
        "start_ns": by_op(trace, "start_ns"),
        "end_ns": by_op(trace, "end_ns"),
        "lane": by_op(trace, "stream"),
        "duration_ns": duration_ns,
        "naive": {
            "sum of durations": sum(duration_ns),
            "critical path": int(trace.job.bottom_level_ns.max()),
            "no overheads": simulate_case(case, duration_ns, None).makespan_ns,
        },
    }


def predict_or_say_why(case: Case, calibration: Calibration) -> dict[str, Any]:
    """Return the prediction of a case, or under ``not_predicted`` which kernel was not calibrated.

    Such a case is still measured: there may be no second chance.
    """
    try:
        return predict_case(case, calibration)
    except InputError as error:
        return {"name": case.name, "digest": case.digest, "not_predicted": str(error)}


def _busy_share(trace: Trace) -> FloatArray:
    """Return, by device, the share of the makespan in which it works."""
    tasks = trace.tasks
    lasted = tasks["end_ns"] - tasks["start_ns"]
    work = np.bincount(trace.job.device_of[tasks["op"]], lasted, minlength=len(trace.job.machine.devices))
    return np.asarray(work / max(1, trace.makespan_ns))


def by_op(trace: Trace, column: str) -> list[int]:
    """Return a column of a trace of one iteration, by op."""
    return trace.tasks[column][np.argsort(trace.tasks["op"])].tolist()  # type: ignore[no-any-return]


def calibration_digest(calibration: Calibration) -> str:
    """Return the digest of the parts of a calibration that a prediction uses."""
    return digest([calibration.quantities, calibration.tables])


def predict(experiment: str, out: Path, calibration: Calibration) -> None:
    """Predict all cases of a drawn experiment, and write the predictions with digests."""
    plans = step_files.read_plans(out, experiment)
    if experiment == memory_experiment.NAME:
        predictions = [
            {"name": entry["name"], **memory_experiment.predicted(entry["steps"])} for entry in plans["cases"]
        ]
    else:
        cases = (step_files.read_case(entry)[0] for entry in plans["cases"])
        predictions = [predict_or_say_why(case, calibration) for case in cases]
    content = {
        "plans": digest(plans),
        "calibration": calibration_digest(calibration),
        "cases": predictions,
    }
    step_files.write(out, "predictions", experiment, content)
