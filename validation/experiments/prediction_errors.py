"""Errors of the prediction, of a replay, and of the best possible predictor; never mixed.

For every run that counts, with measured makespan m::

    prediction   (simulated with a calibration that never saw the graph - m) / m
    replay       (simulated with the durations and decisions of that very run - m) / m
    decided      (simulated with calibrated durations and the decisions of that run - m) / m
    noise floor  (median of the other runs of the same case - m) / m

A prediction error below the floor cannot be distinguished from noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import numpy as np

from devices.cost.calibration import Calibration
from sim.job.job import Job
from sim.machine.task import Issuer, Task
from sim.policy import Policy
from sim.record.plan import Plan
from sim.trace import Trace
from validation.cases.case import Case
from validation.experiments.predict import simulate_case
from validation.real.gate import MAX_PROBE
from validation.real.measured_kernels import HOLDS_HOST
from validation.real.statistics import kendall_tau
from validation.real.work import measured_trace

# --------------------------------------------------------------------------------------------------------
# Repeat the decisions of a real run in the simulator.
#
# A plan says who runs what, in which order on each stream; if workers take their tasks themselves, it
# leaves out who was held back by whom. In-order issue, say, lets nobody pass: a decision is made after the
# decisions before it. So decisions are repeated in their original order, which a plan also
# has: its tasks are numbered in order of issue.


class Redecide(Policy):
    """Gives every task to its issuer in the plan, in the plan's order of issue within a group.

    Parameters
    ----------
    plan : Plan
    synchronisation : str
        That of the policy that decided.

    Notes
    -----
    `policies.issue.replay.ReplayPlan`, in contrast, lets each issuer go its own way through its list.
    """

    def __init__(self, plan: Plan, synchronisation: str) -> None:
        self.plan, self.synchronisation = plan, synchronisation
        self._todo: list[list[tuple[int, int]]] = []
        self._eligible: dict[int, Task] = {}
        self._n = 0

    def prepare(self, job: Job) -> None:
        """Put the decisions in order, one queue per group."""
        self._n = len(job.graph)
        self._eligible = {}
        self._todo = [[] for _ in range(job.n_groups)]
        issuers = {issuer.name: issuer for issuer in job.machine.issuers()}
        for task in self.plan:
            issuer = issuers[task.issuer]
            key = task.iteration * self._n + job.graph.index(task.op)
            self._todo[issuer.group].append((issuer.index, key))
        for line in self._todo:
            line.reverse()

    def ready(self, task: Task) -> None:
        """Note that `task` is eligible."""
        self._eligible[task.iteration * self._n + task.op] = task

    def next(self, issuer: Issuer) -> Task | None:
        """Return the task of the group's next decision, if it is this issuer's and eligible."""
        line = self._todo[issuer.group]
        if not line or line[-1][0] != issuer.index or line[-1][1] not in self._eligible:
            return None
        return self._eligible.pop(line.pop()[1])


GAP = 0.02
"""Starts further apart than this share of the makespan must come in the predicted order."""


@dataclass(frozen=True)
class Point:
    """One run that counts.

    Attributes
    ----------
    case, group, label : str
    measured_ns, predicted_ns : int
    prediction, replay, decided, floor : float
        Signed errors as shares of the measured makespan.
    naive : mapping of str to float
        The errors of simpler predictors.
    tau : float
        Kendall's tau between the predicted and measured order of starts.
    inversions : int
        Pairs of ops that started in the other order although the prediction has them far apart.
    """

    case: str
    group: str
    label: str
    measured_ns: int
    predicted_ns: int
    prediction: float
    replay: float
    decided: float
    floor: float
    naive: Mapping[str, float]
    tau: float
    inversions: int


def spread(errors: Sequence[float]) -> dict[str, float]:
    """Return mean and maximum of the absolute errors, the bias (mean with sign), and their number.

    Only errors that could not be measured (NaN) are dropped.

    Examples
    --------
    >>> spread([0.5, -0.25])
    {'mean': 0.375, 'max': 0.5, 'bias': 0.125, 'n': 2}
    """
    errors = [error for error in errors if not isnan(error)]
    if not errors:
        return {}
    size = [abs(error) for error in errors]
    bias = statistics.fmean(errors)
    return {"mean": statistics.fmean(size), "max": max(size), "bias": bias, "n": len(errors)}


def rebuild(case: Case, run: Mapping[str, Any]) -> Trace:
    """Return the trace of a recorded run."""
    duration_ns = np.subtract(run["end_ns"], run["start_ns"]).tolist()
    job = case.job(duration_ns)
    issuers = job.machine.issuers()
    by_lane = {issuer.stream: issuer for issuer in issuers if issuer.executes}
    by_group = {issuer.group: issuer for issuer in issuers}
    group_of = job.group_of.tolist()
    tasks = []
    for op in range(len(job.graph)):
        task = Task(op, op, 0, group_of[op])
        task.stream = int(run["stream"][op])
        task.issuer = by_lane.get(task.stream) or by_group[task.group]
        task.ready_ns = task.issue_ns = int(run["issue_ns"][op])
        task.start_ns, task.end_ns = int(run["start_ns"][op]), int(run["end_ns"][op])
        tasks.append(task)
    return measured_trace(job, tasks)


def _host_ns(case: Case, run: Mapping[str, Any]) -> int | None:
    """Return the host's issuing time of a run, per op; None if the host also had to wait."""
    held = any(op.kind in HOLDS_HOST for op in case.ops)
    if case.policy is not None or held or not max(run["issue_ns"]):
        return None
    return int(max(run["issue_ns"]) / len(run["issue_ns"]) + 0.5)


def inversions(start_ns: Sequence[int], measured_ns: Sequence[int], gap_ns: float) -> int:
    """Return the number of op pairs that start in the other order although predicted far apart."""
    predicted, measured = np.asarray(start_ns), np.asarray(measured_ns)
    later = predicted[None, :] - predicted[:, None] > gap_ns
    return int((later & (measured[None, :] < measured[:, None])).sum())


def points_of(
    case: Case, plan: Plan | None, predicted: Mapping[str, Any], runs: Sequence[Mapping[str, Any]],
    calibration: Calibration,
) -> list[Point]:  # fmt: skip
    """Return one point for each run that counts.

    Parameters
    ----------
    case : Case
    plan : Plan or None
        The plan that was executed; None when a policy drove.
    predicted : mapping
        As `validation.experiments.predict.predict_case` returned it.
    runs : sequence of mapping
        As measured.
    calibration : Calibration
    """
    clean = [run for run in runs if run["clean"]]
    synchronisation, frame_ns = case.make_policy().synchronisation, case.frame_ns(calibration)
    points = []
    for k, run in enumerate(clean):
        m = run["makespan_ns"]
        others = [other["makespan_ns"] for i, other in enumerate(clean) if i != k]
        decisions = Redecide(rebuild(case, run).plan() if plan is None else plan, synchronisation)
        replay, tau, inverted = nan, nan, 0
        if run.get("probe_error", 0) <= MAX_PROBE:  # else events around ops have changed what they measured
            lasted = np.subtract(run["end_ns"], run["start_ns"]).tolist()
            host_ns, looked_ns = _host_ns(case, run), run.get("looked_ns") or m
            replayed = simulate_case(
                case, lasted, calibration, decisions, issue_ns=host_ns, alone=False, looked=True
            )
            replay = (replayed.makespan_ns + frame_ns - looked_ns) / looked_ns
            tau = kendall_tau(predicted["order"], np.argsort(run["start_ns"], kind="stable").tolist())
            inverted = inversions(predicted["start_ns"], run["start_ns"], GAP * predicted["makespan_ns"])
        decided = simulate_case(case, predicted["duration_ns"], calibration, decisions)
        points.append(
            Point(
                case=case.name,
                group=case.group,
                label=case.label,
                measured_ns=m,
                predicted_ns=predicted["makespan_ns"],
                prediction=(predicted["makespan_ns"] - m) / m,
                replay=replay,
                decided=(decided.makespan_ns + frame_ns - m) / m,
                floor=(statistics.median(others) - m) / m if others else 0.0,
                naive={name: (ns - m) / m for name, ns in predicted["naive"].items()},
                tau=tau,
                inversions=inverted,
            )
        )
    return points
