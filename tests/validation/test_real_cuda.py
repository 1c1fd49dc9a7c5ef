"""The cuda backend without a GPU: against a fake torch, and its names against the real one."""

from __future__ import annotations

import ctypes
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_torch import Driver, Torch

from devices.cost.calibration import Calibration, load_calibration
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine
from sim.base.errors import InfeasibleError, InputError, RunError
from sim.job.build_job import make_job
from sim.record.plan import Plan
from validation import steps
from validation.calibrate.gpu_costs import BATCHES
from validation.cases import step_files
from validation.cases.case import Case, CaseOp
from validation.cases.draws import draw
from validation.cases.tables import GRID
from validation.gpu.cuda import Cuda
from validation.gpu.partitions import Resource, partition_streams
from validation.gpu.torch_work import TorchWork


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrate what the experiments here ask for alone; the clock is made up, and the host is not."""
    monkeypatch.setattr("validation.gpu.cuda.run_queue_ns", lambda: None)
    monkeypatch.setattr("fake_torch.Cuda.HELD_UP_S", 0.0)
    grid = {
        "matmul": [
            *[(256, 1), (1024, 1), (1024, 80), (2048, 1), (2048, 4), (2048, 16), (4096, 1), (4096, 8)],
            *[(512, 1), (512, 8)],
        ],
        "h2d": [(4096, 1)],
        **{kind: [(4096, 1)] for kind in ("d2h", "h2d-pageable", "d2h-pageable")},
        "attention": [(1024, 1)],
    }
    monkeypatch.setitem(GRID, "cuda", grid)
    for model in list(BATCHES):  # a fake torch differentiates nothing
        monkeypatch.delitem(BATCHES, model)


@pytest.fixture
def cuda() -> Cuda:
    return Cuda(Torch(), Driver())


def case(kinds: list[str], streams: int = 2) -> Case:
    ops = [
        CaseOp(f"o{i}", kind, [f"o{j}" for j in range(max(0, i - 2), i)], {"size": 16}, "dev0", i % streams)
        for i, kind in enumerate(kinds)
    ]
    return Case("kinds", "test", "development", ops, {"dev0": {"streams": streams}})


def test_a_plan_runs_with_its_waits_and_right_results(cuda: Cuda) -> None:
    one = case(["matmul", "elementwise", "copy", "softmax", "attention", "block", "matmul"])
    plan = one.plan()
    assert plan is not None
    seen = cuda.execute(one.job(), plan)
    assert seen.wrong == []
    assert seen.probe_error == 0
    assert seen.trace.plan().digest == plan.digest
    # A chain in truth: every op reads the one before it.
    start, end = seen.trace.tasks["start_ns"], seen.trace.tasks["end_ns"]
    assert (start[1:] >= end[:-1]).all()
    assert seen.makespan_ns == end[-1]


def test_a_broken_order_is_caught(cuda: Cuda) -> None:
    one = case(["matmul"] * 4)
    plan = one.plan()
    assert plan is not None
    work = cuda._work(one.job())
    job = one.job()
    work = TorchWork(cuda.torch, job.graph)
    work.reset()
    for op in (0, 2, 1, 3):  # 2 before 1, which it reads
        work.launch(op)
    assert work.wrong() == ["o2", "o3"]


@pytest.mark.parametrize("policy", [ReadyQueue(), ReadyQueue(synchronisation="issue"), InOrder()])
def test_a_policy_drives_the_device(cuda: Cuda, policy: ReadyQueue | InOrder) -> None:
    one = case(["matmul"] * 8)
    seen = cuda.drive(one.job(), policy)
    assert seen.wrong == []
    assert len(seen.trace) == 8
    assert seen.trace.policy == type(policy).__name__


def test_partitions_come_from_one_call() -> None:
    driver = Driver(sms=132)
    handles, sms = partition_streams(4, driver=driver)
    assert len(set(handles)) == 4
    assert sms == 32
    assert driver.splits == 1


def test_too_many_partitions_are_refused_with_a_reason() -> None:
    with pytest.raises(InfeasibleError, match="make 1 groups, not the 4 asked for"):
        partition_streams(4, driver=Driver(sms=1))


def test_groups_are_smaller_where_equal_ones_find_no_room() -> None:
    driver = Driver(sms=132, room=7)
    handles, sms = partition_streams(8, driver=driver)
    assert (len(set(handles)), sms, driver.splits) == (8, 8, 2)


def test_a_resource_is_laid_out_as_in_c_and_without_a_driver_that_is_told() -> None:
    assert ctypes.sizeof(Resource) == 144
    assert Resource.sm.offset == 96
    with pytest.raises(InfeasibleError, match=r"need libcuda\.so\.1, which is not here"):
        partition_streams(8)


@pytest.mark.parametrize("name", ["cuDevSmResourceSplitByCount", "cuGreenCtxStreamCreate"])
def test_a_library_before_green_contexts_is_refused(name: str) -> None:
    with pytest.raises(InfeasibleError, match=f"libcuda has no {name}: it is older than CUDA 12.4"):
        partition_streams(2, driver=Driver(lacks=name))


@pytest.mark.parametrize("count", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_partitions_that_do_not_bind_are_refused(count: int) -> None:
    """Streams that run on all SMs would show a pipeline without any sharing, and nobody would notice."""
    [one, *_] = [case for case in draw("f-pipeline", "cuda") if len(case.devices) == count]
    plan, driver = one.plan(), Driver(binds=False)
    assert plan is not None
    lame = Cuda(Torch(), driver)
    for _ in range(2):  # refused again without splitting again
        with pytest.raises(InfeasibleError, match=f"does not bind: on 1/{count} of the SMs .* 1.0 times"):
            lame.execute(one.job(), plan)
    assert driver.splits == 1
    good = Cuda(Torch(), Driver())
    good.execute(one.job(), plan)
    assert good.provenance()[f"SMs of each of {count} partitions"] == str(132 // count // 8 * 8)


def test_pipelines_run_on_partitions(cuda: Cuda) -> None:
    one = draw("f-pipeline", "cuda")[0]
    plan = one.plan()
    assert plan is not None
    assert cuda.execute(one.job(), plan).wrong == []


def test_a_gate_that_opens_early_is_made_longer(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    one = case(["matmul"] * 3)
    plan = one.plan()
    assert plan is not None
    spins: list[int] = []
    begin = cuda._begin

    def note(streams: list[object], spin: int) -> object:
        spins.append(spin)
        started = begin(streams, spin)
        started[0].query = lambda: len(spins) < 3  # open too early, twice
        return started

    monkeypatch.setattr(cuda, "_begin", note)
    assert cuda.execute(one.job(), plan).wrong == []
    first, second, third = (spin - 500_000 for spin in spins[:3])
    assert (second, third) == (4 * first, 16 * first)


def test_an_error_of_torch_loses_the_case_alone(cuda: Cuda) -> None:
    def fail(*given: object, **options: object) -> None:
        raise RuntimeError("CUDA error: out of luck\nand more")

    cuda.torch.mm = fail
    one = case(["matmul"] * 3)
    with pytest.raises(RunError, match=r"^torch: CUDA error: out of luck$"):
        cuda.drive(one.job(), ReadyQueue())


def test_what_a_gpu_cannot_do_is_refused(cuda: Cuda) -> None:
    with pytest.raises(InfeasibleError, match="no CUDA device"):
        Cuda(Torch(available=False))
    b = GraphBuilder("naps")
    b.op("a", kind="sleep", duration_ns=5, attributes={"sleep_ns": 5})
    with pytest.raises(InputError, match="unknown kind of op 'a' on a GPU: 'sleep'"):
        cuda.drive(make_job(b.build(), Machine((Device("gpu0"),))), ReadyQueue())
    with pytest.raises(InputError, match="not CPU workers"):
        cuda.drive(make_job(b.build(), Machine((Device("cpu0", workers=1),))), ReadyQueue())


@pytest.mark.slow
def test_the_whole_command_runs(cuda: Cuda, tmp_path: Path) -> None:
    names = ["c-overlap", "f-pipeline"]
    result = steps.run("cuda", tmp_path, names, runs=3, executor=cuda)
    assert [entry["experiment"] for entry in result["experiments"]] == names
    for name in names:
        measured = step_files.read(tmp_path, "measurements", name)
        assert measured is not None
        assert [entry.get("skipped") for entry in measured["cases"]] == [None] * len(measured["cases"])
        assert all(not run["wrong"] for entry in measured["cases"] for run in entry["runs"])
    contexts = {table["context"] for table in load_calibration(tmp_path / "calibration.json").tables}
    assert contexts > {"warm", "partition 2", "partition 4", "partition 8"}


@pytest.mark.slow
def test_without_partitions_the_other_experiments_go_on(tmp_path: Path) -> None:
    class Old:
        """Bindings before green contexts."""

    lame = Cuda(Torch(), Old())
    result = steps.run("cuda", tmp_path, ["b-fork-join", "f-pipeline"], runs=1, executor=lame)
    by_name = {entry["experiment"]: entry for entry in result["experiments"]}
    assert by_name["b-fork-join"]["cases"] == 6
    assert by_name["f-pipeline"]["status"] == "inconclusive"
    told = load_calibration(tmp_path / "calibration.json").sentinels
    assert any("older than CUDA 12.4" in entry.get("why", "") for entry in told)


def test_every_name_exists_in_torch() -> None:
    torch = pytest.importorskip("torch")
    folder = Path(__file__).resolve().parents[2] / "validation" / "gpu"
    text = "".join(
        (folder / f"{name}.py").read_text()
        for name in (
            "cuda",
            "torch_work",
            "torch_device",
            "torch_models",
            "gpu_probes",
            "torch_memory",
        )
    )
    for name in sorted(set(re.findall(r"torch\.cuda\.(\w+)", text))):
        assert hasattr(torch.cuda, name), f"torch.cuda.{name}"
    for name in sorted(set(re.findall(r"torch\.(\w+)", text)) - {"cuda"}):
        assert hasattr(torch, name), f"torch.{name}"


def test_calls_fit_the_signatures_of_torch() -> None:
    """Of what a CPU cannot call; keywords that another version lacks would be noticed on a GPU only."""
    torch = pytest.importorskip("torch")
    calls = [
        (torch.cuda.CUDAGraph.capture_begin, (None,), {"pool": None}),
        (torch.cuda.CUDAGraph.capture_end, (None,), {}),
        (torch.cuda.CUDAGraph.replay, (None,), {}),
        (torch.cuda.Event.__new__, (None,), {"enable_timing": True}),
        (torch.cuda.Event.elapsed_time, (None, None), {}),
        (torch.cuda.Stream.wait_event, (None, None), {}),
        (torch.cuda.ExternalStream.__new__, (None, 1), {}),
        (torch.cuda.graph_pool_handle, (), {}),
        (torch.cuda.memory_snapshot, (), {}),
        (torch.cuda._sleep, (1,), {}),
    ]
    for function, arguments, options in calls:
        inspect.signature(function).bind(*arguments, **options)


def test_the_kernels_are_the_same_in_torch_on_a_cpu() -> None:
    """Calls and arguments of the kernels, run by the real torch where there is no GPU."""
    torch = pytest.importorskip("torch")
    from validation.gpu.torch_work import _compute
    from validation.real.measured_kernels import Kernel

    torch.manual_seed(0)
    x, y, out, scratch = (torch.randn(16, 16, dtype=torch.bfloat16) for _ in range(4))
    for kind in ("matmul", "elementwise", "copy", "softmax", "attention", "block"):
        out.fill_(float("nan"))
        _compute(torch, Kernel(kind, size=16, repeat=2), x, y, out, scratch)
        assert bool(torch.isfinite(out).all()), kind


def test_a_plan_survives_its_file(cuda: Cuda) -> None:
    plan = draw("e-random", "cuda")[0].plan()
    assert plan is not None
    assert Plan.from_json(plan.to_json()).digest == plan.digest


_BARE = """
import importlib.abc, pathlib, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"simpy", "pydantic", "pandas", "typer", "rich", "yaml", "matplotlib"}:
            raise ImportError(f"{name} is not to be imported here", name=name)
sys.meta_path.insert(0, Blocked())
sys.path.insert(0, "tests")
from fake_torch import Driver, Torch
from validation.gpu.cuda import Cuda
from validation.calibrate.gpu_costs import BATCHES
from validation.cases import backends
from validation.command import main
import validation.gpu.cuda
validation.gpu.cuda.run_queue_ns = lambda: None  # what holds this host up means nothing on a made-up clock
BATCHES.clear()
validation.calibrate.PARTITIONS = ()
backends.BACKENDS["cuda"] = lambda: Cuda(Torch(), Driver())
given = ["--backend", "cuda", "--out", sys.argv[1], "--experiments", "b,d", "--runs", "3"]
raise SystemExit(main(given))
"""


@pytest.mark.slow
def test_a_machine_without_the_simulator_measures_and_another_reports(tmp_path: Path) -> None:
    """The command ends well, says what to do, and its folder has all that a report needs."""
    root, out = Path(__file__).resolve().parents[2], tmp_path / "there"
    done = subprocess.run(
        [sys.executable, "-c", _BARE, str(out)], capture_output=True, text=True, cwd=root, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "sim validate --report there" in done.stdout
    assert "Traceback" not in done.stderr
    result, text = steps.validate(None, None, "b,d", None, report=out, dry_run=False)
    assert result is not None
    for entry in result["experiments"]:
        assert not entry["predicted_before_measuring"]
        assert entry["metrics"]["prediction.n"] >= 6
    assert "predicted after measuring" in text


def test_pageable_copies_hold_the_host_and_show_no_overlap(cuda: Cuda) -> None:
    """Three streams from pageable memory take as long as one stream: nothing is launched meanwhile."""
    from validation.experiments.predict import predict_case

    tables = [
        {
            "kind": kind,
            "axes": ["size", "repeat"],
            "context": "warm",
            "rows": [[4096, r, 10**6] for r in (1, 8)],
        }
        for kind in ("matmul", "h2d", "d2h", "h2d-pageable", "d2h-pageable")
    ]
    names = ("issue_ns", "launch_latency_ns", "gap_ns", "event_ns")
    free = Calibration("cuda", "made up", {}, {name: {"median": 0} for name in names}, tables)
    ns = {}
    for one in draw("c-overlap", "cuda")[:3]:
        ns[one.label] = predict_case(one, free)["makespan_ns"]
        assert cuda.execute(one.job(), Plan.from_json(one.plan().to_json()), gated=one.gated).wrong == []
    assert ns["pageable memory"] == ns["one stream"] == 24 * 10**6
    assert ns["three streams"] < 0.6 * ns["one stream"]
