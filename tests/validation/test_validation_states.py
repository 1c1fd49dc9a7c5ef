"""Cores whose speed comes in states: pulses, gates, calibrations beside experiments, wake-ups."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from runs import checked

from devices.cost.calibration import Calibration
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Machine, Trace
from sim.job.build_job import make_job
from sim.machine.device import Details
from validation.calibrate import DisturbedError, machine_state, session
from validation.calibrate.host_costs import reactions_ns
from validation.calibrate.machine_state import Speed, looks_ns, usual
from validation.cases import step_files
from validation.cases.case import Case, CaseOp, digest
from validation.cases.draws import EXPERIMENTS
from validation.cases.slowed_workers import CorunSlowdown, Waking
from validation.experiments.contexts import durations_ns
from validation.experiments.predict import draw_plans, predict, predict_case, simulate_case
from validation.real.clock import others_ns
from validation.real.gate import Sentinel, verdict
from validation.real.threads import Threads
from validation.real.timer import Timer
from validation.real.work import Observation
from validation.report.experiment_report import experiment_report

WORKERS = Device(
    "cpu0", "cpu", workers=2, issue_ns=20, processor=Waking,
    details=Details(wake_ns=80),
)  # fmt: skip


def graph() -> Graph:
    b = GraphBuilder("late")
    b.op("a", duration_ns=1000)
    b.op("c", duration_ns=2000)
    b.op("b", inputs=["a"], duration_ns=500)
    b.op("d", inputs=["c", "b"], duration_ns=300)
    return b.build()


def run(device: Device = WORKERS) -> Trace:
    return checked(graph(), Machine((device,)), InOrder())


def times(trace: Trace) -> dict[str, tuple[int, int]]:
    names = trace.job.graph.op_names
    return {
        names[op]: (start, end)
        for op, start, end in zip(
            *(trace.tasks[column].tolist() for column in ("op", "start_ns", "end_ns")), strict=True
        )
    }


# -- workers that were woken ----------------------------------------------------------------------


def test_a_worker_that_slept_begins_later() -> None:
    """By hand: both are woken first, b follows a at once, d waits for c and wakes the other worker."""
    assert times(run()) == {"a": (100, 1100), "c": (100, 2100), "b": (1120, 1620), "d": (2200, 2500)}


def test_without_a_wake_up_it_is_a_decision_alone() -> None:
    awake = dataclasses.replace(WORKERS, processor=None, details=Details())
    none = dataclasses.replace(WORKERS, details=Details(wake_ns=0))
    assert times(run(awake)) == times(run(none))


def test_woken_workers_slow_one_another_down_too() -> None:
    slow = dataclasses.replace(WORKERS, details=Details(wake_ns=80, corun_slowdown=(1, 2)))
    # Of c, 1000 ns beside a, 20 alone, 500 beside b, 480 alone.
    assert times(run(slow)) == {"a": (100, 2100), "c": (100, 3600), "b": (2120, 3120), "d": (3700, 4000)}


def test_reactions_tell_awake_from_woken() -> None:
    own, woken = reactions_ns(Observation(run(), []))
    assert (own, woken) == ([20.0], [100.0])


# -- durations ------------------------------------------------------------------------------------


def calibration(sentinel_ns: int = 1_000_000, **quantities: int) -> Calibration:
    medians = {"sentinel_ns": sentinel_ns, "decision_ns": 20_000, **quantities}
    return Calibration(
        "threads",
        "a machine",
        {},
        {name: {"median": ns} for name, ns in medians.items()},
        [
            {
                "kind": "matmul", "axes": ["size", "repeat"], "context": "warm",
                "rows": [[384, 1, 1_000_000], [384, 2, 2_000_000]], "statistics": [],
            }
        ],
    )  # fmt: skip


def case() -> Case:
    facts = {"size": 384, "repeat": 1}
    reads: dict[str, Sequence[str]] = {"a": [], "b": ["a"], "c": ["a", "b"], "d": ["a", "b", "c"]}
    ops = [CaseOp(name, "matmul", inputs, facts, "cpu0") for name, inputs in reads.items()]
    return Case("reads", "e-random", "test", ops, {"cpu0": {"workers": 2}}, policy={"name": "ready-queue"})


def test_results_that_are_read_cost_more_than_constants() -> None:
    """A kernel reads two at most; the table was measured with one."""
    found = durations_ns(case(), calibration(read_ns=50_000))
    assert found == [950_000, 1_000_000, 1_050_000, 1_050_000]
    assert durations_ns(case(), calibration()) == [1_000_000] * 4


def test_a_calibration_that_knows_of_waking_simulates_it() -> None:
    plain, waking = calibration(), calibration(woken_ns=100_000)
    assert case().machine(plain).devices[0].processor is None
    device = case().machine(waking).devices[0]
    assert device.processor is Waking
    assert device.details.wake_ns == 80_000
    # A chain on two workers: whoever ends an op takes the next one; only the first was asleep.
    difference = predict_case(case(), waking)["makespan_ns"] - predict_case(case(), plain)["makespan_ns"]
    assert difference == 80_000


def test_interference_keeps_the_wake_up() -> None:
    def device(**quantities: int) -> Device:
        return simulate_case(case(), [1000] * 4, calibration(**quantities)).job.machine.devices[0]

    both = device(woken_ns=100_000, corun_slowdown_ppm=1_500_000)
    assert both.processor is Waking
    assert both.details.wake_ns == 80_000
    assert both.details.corun_slowdown[1] == 1.5
    assert device(corun_slowdown_ppm=1_500_000).processor is CorunSlowdown


# -- pulses and gates -----------------------------------------------------------------------------


def pulsed(*pulses: tuple[int, int]) -> Observation:
    return Observation(run(), [], pulses=pulses)


def test_the_worst_thread_decides() -> None:
    assert verdict("threads", [pulsed((1000, 1010), (990, 1000))], [], 1000.0) == ""
    assert "moved by 8.0%" in verdict("threads", [pulsed((1000, 1010), (1000, 1080))], [], 1000.0)
    slow = pulsed((1000, 1010), (1100, 1110))
    assert verdict("threads", [slow], []) == ""
    assert "11.0% off what it was" in verdict("threads", [slow], [], 1000.0)
    assert "moved by 10.0%" in verdict("threads", [pulsed((1000, 1000))], [Sentinel(1000, 1100)])


def test_threads_that_compute_take_their_pulse() -> None:
    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, kind="matmul", duration_ns=1, attributes={"size": 32})
    job = make_job(b.build(), Machine((Device("cpu0", "cpu", workers=2),)))
    pulses = Threads().drive(job, ReadyQueue()).pulses
    assert len(pulses) == 2
    assert all(ns > 0 for pulse in pulses for ns in pulse)
    sleeping = make_job(graph(), Machine((Device("cpu0", "cpu", workers=2),)))
    assert Timer().drive(sleeping, ReadyQueue()).pulses == ()
    assert len(looks_ns(Threads(), 1)) == 1


@pytest.mark.parametrize(
    ("looks", "state_ns"),
    [([100], 100), ([100, 110, 101, 111, 102], 101), ([110, 111, 100, 112], 111), ([100, 110], 100)],
)
def test_the_usual_state_is_the_most_frequent_and_of_two_the_faster(
    looks: list[float], state_ns: float
) -> None:
    assert usual(looks, 0.03) == state_ns


class Still:
    """A clock that nobody waits for."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds

    def monotonic(self) -> float:
        self.now_s += 0.1
        return self.now_s


def test_runs_at_another_speed_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    still = Still()
    monkeypatch.setattr(machine_state, "time", still)
    monkeypatch.setattr(machine_state, "looks_ns", lambda executor, n: [1000.0] * n)
    rejected: list[dict[str, Any]] = []
    runs = iter([pulsed((1100, 1100)), pulsed((1000, 1100)), pulsed((1000, 1010)), pulsed((1500, 1500))])
    speed = Speed("threads", Threads())
    seen = speed.quiet("busy", lambda: next(runs), rejected)
    assert seen.pulses == ((1000, 1010),)
    assert [one["accepted"] for one in rejected] == [False, False]
    assert still.slept_s == [0.2, 0.4]
    with pytest.raises(DisturbedError, match=r"'busy': the sentinel is 50\.0% off"):
        speed.quiet("busy", lambda: pulsed((1500, 1500)), rejected)
    asleep = Observation(run(), [])
    assert Speed("timer", Timer()).quiet("sleeps", lambda: asleep, rejected) is asleep


def test_a_calibration_beside_busy_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real-time threads never queue behind them: only what they took of the cores tells."""
    taken = itertools.count(step=10**15)  # more than all the time there is
    monkeypatch.setattr(session, "others_ns", lambda: next(taken))
    busy = session.Session("threads", Threads())
    with pytest.raises(
        session.CrowdedError, match=r"'x': other processes took .* of the cores, 6 times in a row"
    ):
        busy._quiet("x", lambda: ([{"x": [1.0]}, {}], [pulsed((1000, 1000))]), (), session.ATTEMPTS)
    monkeypatch.setattr(session, "others_ns", lambda: None)
    assert busy._quiet("x", lambda: ([{"x": [1.0]}, {}], [pulsed((1000, 1000))]), (), 1) == {"x": [1.0]}


def test_what_others_take_of_the_cores_is_counted() -> None:
    begin = others_ns()
    if begin is None:
        pytest.skip("nobody counts here what processes take")
    begin_ns = time.perf_counter_ns()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        time.sleep(0.5)
        other.kill()
    now = others_ns()
    assert now is not None
    assert now - begin > 0.05 * (time.perf_counter_ns() - begin_ns)


def test_a_goal_that_cannot_be_told_is_not_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ratio needs both cases of a group: without, the experiment is inconclusive, however good one is."""
    cases = [
        dataclasses.replace(case(), name=name, experiment="d-head-of-line", group="one", label=name)
        for name in ("in-order", "out-of-order")
    ]
    monkeypatch.setitem(EXPERIMENTS, "d-head-of-line", lambda backend, split: iter(cases))
    known = calibration()
    draw_plans("d-head-of-line", "threads", tmp_path)
    predict("d-head-of-line", tmp_path, known)
    plans, predictions = (
        step_files.read(tmp_path, step, "d-head-of-line") for step in ("plans", "predictions")
    )
    assert plans is not None
    assert predictions is not None
    entries = []
    for one, predicted, quiet in zip(cases, predictions["cases"], (3, 1), strict=True):
        run = {
            **{key: predicted[key] for key in ("makespan_ns", "start_ns", "end_ns")},
            "issue_ns": predicted["start_ns"], "stream": predicted["lane"], "wrong": [],
        }  # fmt: skip
        runs = [{**run, "clean": k < quiet, "why": "" if k < quiet else "slow"} for k in range(3)]
        entries.append({"name": one.name, "runs": runs})
    measured = {
        "plans": digest(plans), "predictions": digest(predictions), "provenance": {}, "cases": entries,
    }  # fmt: skip
    step_files.write(tmp_path, "measurements", "d-head-of-line", measured)
    found = experiment_report("d-head-of-line", tmp_path, "threads", known)
    assert found["metrics"]["prediction.max"] < 1e-6
    assert found["inconclusive"] == [{"case": "out-of-order", "why": "1 quiet runs of 3; slow"}]
    assert (found["status"], found["why"]) == ("inconclusive", "ratio.max could not be told")
