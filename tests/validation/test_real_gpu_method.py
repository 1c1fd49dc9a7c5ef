"""What a GPU is calibrated for: contexts, repeats, copies in company; the device's state."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping
from typing import Any

import fake_h200
import numpy as np
import pytest
from fake_torch import Driver, Torch

from devices.cost.calibration import Calibration
from sim.base.errors import InfeasibleError, RunError
from sim.job.job import Job
from sim.record.plan import Plan
from validation.calibrate import DisturbedError, calibrate, not_calibrated
from validation.calibrate.gpu_costs import REPEATS
from validation.calibrate.grid import durations
from validation.calibrate.session import Session
from validation.cases.calibrated import lookup
from validation.cases.case import Case, CaseOp
from validation.cases.draws import draw
from validation.cases.tables import GRID
from validation.experiments import memory_experiment
from validation.experiments.contexts import blended, durations_ns
from validation.experiments.predict import predict_case
from validation.gpu import torch_device
from validation.gpu.cuda import Cuda
from validation.gpu.gpu_probes import issue_costs_ns
from validation.gpu.torch_device import DeviceState, smi_facts
from validation.gpu.torch_memory import idle_streams
from validation.gpu.torch_work import TorchWork, captured
from validation.real.work import Observation

US = 1000


def table(kind: str, context: str, rows: list[list[int]]) -> dict[str, Any]:
    return {"kind": kind, "axes": ["size", "repeat"], "along": "repeat", "context": context, "rows": rows}


def calibration(tables: list[dict[str, Any]], l2_bytes: int = 0, **quantities: int) -> Calibration:
    named = {name: {"median": value} for name, value in {"gap_ns": 0, "event_ns": 0, **quantities}.items()}
    return Calibration("cuda", "made up", {"l2_bytes": l2_bytes}, named, tables)


def chain(n: int, reads: int = 1, streams: int = 1) -> Case:
    ops = [
        CaseOp(
            f"o{i}", "matmul", [f"o{i - reads}"] if i >= reads else [], {"size": 1024, "repeat": 1}, "dev0",
            i % streams,
        )
        for i in range(n)
    ]  # fmt: skip
    return Case("chain", "x", "test", ops, {"dev0": {"streams": streams}})


# -- durations -------------------------------------------------------------------------------------


def test_repeats_between_measured_ones_are_on_a_straight_line() -> None:
    rows = [[512, 1, 4000], [512, 8, 32_000], [2048, 1, 26_000], [2048, 8, 208_000], [4096, 1, 200_000]]
    found = calibration([table("matmul", "warm", rows)])
    assert [lookup(found, "matmul", size=512, repeat=r) for r in (1, 3, 8)] == [4000, 12_000, 32_000]
    assert lookup(found, "matmul", size=2048, repeat=5) == 130_000
    assert 4000 < lookup(found, "matmul", size=1024, repeat=1) < 26_000  # between the sizes: the power law


def test_an_input_that_has_left_the_cache_makes_its_reader_cold() -> None:
    tables = [
        table("matmul", c, [[1024, 1, ns]]) for c, ns in (("warm", 90), ("isolated", 100), ("cold", 140))
    ]
    near, far = chain(6), chain(6, reads=3)
    two_results = 2 * 2 * 1024**2
    assert durations_ns(near, calibration(tables, two_results)) == [90] * 6
    # Three results lie between o0 and o3's reading of it, one of its two inputs.
    assert durations_ns(far, calibration(tables, two_results - 1)) == [90, 90, 90, 110, 110, 110]
    assert durations_ns(far, calibration(tables, 2 * two_results)) == [90] * 6
    assert durations_ns(far, calibration(tables)) == [90] * 6  # nobody knows the cache


def test_partitions_are_between_alone_and_busy() -> None:
    tables = [
        table("block", context, [[2048, r, ns * r] for r in (1, 4)])
        for context, ns in (("partition 2", 100 * US), ("partition 2 busy", 120 * US))
    ]
    case = draw("f-pipeline", "cuda")[0]
    alone = sum(case.durations_ns(calibration(tables)))
    assert alone < sum(predict_case(case, calibration(tables))["duration_ns"]) < 1.2 * alone
    assert predict_case(case, calibration(tables[:1]))["duration_ns"] == case.durations_ns(
        calibration(tables)
    )
    assert blended([100, 100], [120, 120], np.array([0, 1]), np.array([0.25, 0.5])) == [110, 105]


def test_copies_both_ways_slow_one_another_down_and_kernels_not() -> None:
    rows = {"h2d": 100 * US, "d2h": 100 * US, "matmul": 200 * US}
    tables = [table(kind, "warm", [[4096, 1, ns], [4096, 8, 8 * ns]]) for kind, ns in rows.items()]
    ops = [
        CaseOp(kind, kind, [], {"size": 4096, "repeat": 1}, "dev0", lane) for lane, kind in enumerate(rows)
    ]
    case = Case("both", "x", "test", ops, {"dev0": {"streams": 3}})
    plain, slow = (
        predict_case(case, calibration(tables, duplex_slowdown_ppm=ppm)) for ppm in (10**6, 1_300_000)
    )
    assert plain["end_ns"] == [100 * US, 100 * US, 200 * US]
    assert slow["end_ns"] == [130 * US, 130 * US, 200 * US]


def test_what_a_frame_takes_is_in_the_prediction_of_a_gated_plan() -> None:
    tables = [table("matmul", "warm", [[1024, 1, 100]])]
    gated = chain(4)
    assert predict_case(gated, calibration(tables, frame_1_ns=7))["makespan_ns"] == 407
    assert predict_case(gated, calibration(tables))["makespan_ns"] == 400


def test_a_full_launch_queue_holds_the_host_up_in_the_prediction() -> None:
    """Three places: the fourth launch waits for the first kernel, and with it what is on the other stream."""
    tables = [table("matmul", "warm", [[1024, 1, 100 * US]])]
    ops = [CaseOp(f"o{i}", "matmul", [], {"size": 1024, "repeat": 1}, "dev0", int(i == 4)) for i in range(5)]
    case = Case("full", "x", "test", ops, {"dev0": {"streams": 2}}, notes={"gated": False})
    costs = {"issue_ns": 1, "launch_latency_ns": 0}
    free, full = (
        predict_case(case, calibration(tables, **costs, queue_depth=depth))["start_ns"][4]
        for depth in (1000, 3)
    )
    assert free == 5
    assert full > 100 * US


def test_a_kernel_that_was_not_calibrated_costs_its_case_alone() -> None:
    lost = [
        {"block": "driven", "accepted": False, "why": "not measured: no"},
        {"block": "launch", "accepted": False, "why": "moved"},
        {"block": "launch", "accepted": True},
    ]
    found = Calibration("cuda", "x", {}, {}, [], lost)
    assert not_calibrated(found) == {"driven": "not measured: no"}


class Unsteady(Cuda):
    """A device on which some products take longer in the second round of a block than in the first."""

    moves: Mapping[str, float] = {}

    def execute(self, job: Job, plan: Plan, **options: Any) -> Observation:
        name = job.graph.name
        seen = super().execute(job, plan, **options)
        self.runs = {**getattr(self, "runs", {}), name: getattr(self, "runs", {}).get(name, 0) + 1}
        second = (self.runs[name] - 1) % (1 + 2 * REPEATS) > REPEATS  # one run to warm up, and two rounds
        return dataclasses.replace(
            seen, truth_ns=round(seen.makespan_ns * (self.moves.get(name, 1) if second else 1))
        )


@pytest.fixture
def few_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validation.gpu.cuda.run_queue_ns", lambda: None)
    monkeypatch.setitem(GRID, "cuda", {"matmul": [(256, 1), (1024, 1), (1024, 2), (1024, 4), (4096, 1)]})


@pytest.mark.usefixtures("few_products")
def test_small_products_have_a_floor_and_what_is_unsteady_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = fake_h200.Torch()
    fake_h200.own_clock(monkeypatch, torch)
    unsteady = Unsteady(torch, Driver())
    unsteady.moves = {"matmul-256x1": 1.03, "matmul-1024x2": 1.2, "matmul-4096x1": 1.015}
    session = Session("cuda", unsteady)
    durations(session)
    [table] = session.tables
    assert [row[:2] for row in table["rows"]] == [[256, 1], [1024, 1], [1024, 4], [4096, 1]]
    found = Calibration("cuda", "x", {}, {}, session.tables, session.sentinels)
    assert not_calibrated(found) == {
        "durations of matmul-1024x2": "not measured: calibrating 'durations of matmul-1024x2': "
        "a median moved by 20.0% from one round to the next, 6 times in a row"
    }
    ends = [lookup(found, "matmul", size=1024, repeat=r) for r in (1, 4)]
    assert ends[0] < lookup(found, "matmul", size=1024, repeat=2) < ends[1]
    # The floor is for a few us: 3 % of a long product is too much.
    unsteady.moves = {"matmul-4096x1": 1.03}
    unsteady.runs = {}
    session = Session("cuda", unsteady)
    durations(session)
    assert [row[0] for row in session.tables[0]["rows"]] == [256, 1024, 1024, 1024]


@pytest.mark.slow
@pytest.mark.usefixtures("few_products")
def test_without_any_product_there_is_no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_h200.Torch()
    fake_h200.own_clock(monkeypatch, torch)
    unsteady = Unsteady(torch, Driver())
    unsteady.moves = dict.fromkeys([f"matmul-{n}x{r}" for n in (256, 1024, 4096) for r in (1, 2, 4)], 2.0)
    with pytest.raises(DisturbedError, match=r"matmul-256x1.*6 times in a row; nothing is written"):
        calibrate("cuda", unsteady)


# -- the device ------------------------------------------------------------------------------------


def test_a_sleeping_device_is_woken_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_h200.Torch()
    fake_h200.own_clock(monkeypatch, torch)
    state = DeviceState(torch)
    slow = iter([900_000, 500_000, 300_000, 250_000, 249_000, 0])
    monkeypatch.setattr(state, "product_ns", lambda: next(slow))
    state.wake()
    assert next(slow) == 0
    state.wake()  # it has just worked
    torch.cuda.host_ms += 1000
    monkeypatch.setattr(state, "product_ns", lambda: 250_000)
    before = torch.cuda.launches
    state.wake()
    assert torch.cuda.launches > before


def test_what_nvidia_smi_says_is_kept_and_its_silence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "580.159.04, 1980 MHz, 1980 MHz, 3201 MHz, 34, 120.5 W, 700.00 W\n"

    def run(query: list[str], **options: Any) -> Any:
        return subprocess.CompletedProcess(query, 0, stdout=said)

    monkeypatch.setattr(torch_device.subprocess, "run", run)
    facts = smi_facts()
    assert facts["driver_version"] == "580.159.04"
    assert facts["clocks.sm"] == "1980 MHz"
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    assert smi_facts() == {"clocks": "nvidia-smi does not say: FileNotFoundError"}


def test_a_device_that_cannot_be_used_is_said_so() -> None:
    torch = Torch()

    def busy() -> None:
        raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable\nand advice")

    torch.cuda.synchronize = busy  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"^torch: CUDA-capable device\(s\) is/are busy or unavailable$"):
        Cuda(torch, Driver())


@pytest.mark.parametrize("where", ["begin", "end"])
def test_what_cannot_be_captured_is_launched_kernel_by_kernel_and_said(where: str) -> None:
    torch = Torch()
    torch.cuda.capture_fails = where
    cuda = Cuda(torch, Driver())
    case = draw("f-pipeline", "cuda")[0]
    plan = case.plan()
    assert plan is not None
    assert cuda.execute(case.job(), plan).wrong == []
    why = "not permitted" if where == "begin" else "failed due to a previous error"
    assert f"operation {why}" in cuda.provenance()["not captured as CUDA graphs"]


@pytest.mark.parametrize("where", ["begin", "end"])
def test_a_failed_capture_leaves_the_allocator_as_it_was(where: str) -> None:
    """Else it believes in a capture for ever: emptying its cache fails, and the memory experiment with it."""
    torch = Torch()
    cuda = Cuda(torch, Driver())
    case = draw("f-pipeline", "cuda")[0]
    plan = case.plan()
    assert plan is not None
    torch.cuda.capture_fails = where
    cuda.execute(case.job(), plan)
    with pytest.raises(RunError, match="operation"):
        issue_costs_ns(torch, 1)
    steps = [["alloc", 0, 1000, 0], ["empty_cache"], ["free", 0]]
    assert memory_experiment.measure_program(cuda, steps)[0]["allocated"] == [1024, 1024, 0]
    torch.cuda.capture_fails = ""
    cuda.execute(case.job(), plan)  # captured now, in a fresh pool
    assert set(issue_costs_ns(torch, 1)) >= {"graph"}
    assert torch.cuda.allocating == []


def test_of_a_failed_capture_the_first_error_is_told() -> None:
    torch = Torch()
    torch.cuda.capture_fails = "end"

    def launch() -> None:
        raise RuntimeError("no workspace\nand advice")

    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RunError, match=r"^no workspace$"):
        captured(torch, launch, torch.cuda.graph_pool_handle())


def test_an_op_is_one_launch_however_many_kernels_it_has() -> None:
    torch = Torch()
    cuda = Cuda(torch, Driver())
    case = draw("e-random", "cuda")[0]
    plan = Plan.from_json(case.plan().to_json())  # type: ignore[union-attr]
    job = case.job()
    cuda.execute(job, plan)
    work = cuda._work(job)
    assert isinstance(work, TorchWork)
    assert work.launches == len(case.ops)
    assert len(work.pools) == 2  # ops of a stream share one


def test_no_plan_comes_near_the_depth_of_a_launch_queue() -> None:
    """A gate would open too early: the host waits for a place while the queue waits for the gate."""
    for experiment in ("a-chain", "b-fork-join", "c-overlap", "e-random", "f-pipeline"):
        for case in draw(experiment, "cuda"):
            assert len(case.ops) < 200


def test_an_allocator_with_other_rules_is_not_compared() -> None:
    torch = Torch()
    torch.cuda.memory_snapshot = lambda: [{"stream": 0, "is_expandable": True}]  # type: ignore[method-assign]
    with pytest.raises(InfeasibleError, match="expandable segments"):
        idle_streams(torch, 1)
