"""Steps of whole models: real arithmetic by torch on a CPU, on the clock of a fake device."""

from __future__ import annotations

from functools import partial
from typing import Any

import fake_torch
import pytest

from devices.cost.calibration import Calibration
from sim.base.errors import RunError
from validation.calibrate.gpu_costs import BATCHES, model_steps
from validation.calibrate.session import Session
from validation.cases.draws import draw, step_case
from validation.experiments.predict import predict_case
from validation.gpu import cuda as backend
from validation.gpu import torch_models
from validation.gpu.torch_device import DeviceState
from validation.gpu.torch_models import ModelWork, step_kinds
from validation.real.work import Observation

torch = pytest.importorskip("torch")


class Hybrid:
    """Torch's arithmetic with a fake device."""

    def __init__(self) -> None:
        self.cuda = fake_torch.Cuda()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class OnCpu(ModelWork):
    """Takes 10 us of the fake device for each sample and op."""

    def __init__(self, hybrid: Any, graph: Any) -> None:
        super().__init__(hybrid, graph, device="cpu")

    def launch(self, op: int) -> None:
        super().launch(op)
        self.torch.cuda.launch(lambda: None, ms=0.01 * self.batch)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> backend.Cuda:
    for key, value in {
        "width": 16, "heads": 2, "tokens": 8, "words": 32, "channels": 4, "pixels": 16,
    }.items():  # fmt: skip
        monkeypatch.setitem(torch_models.SHAPES, key, value)
    monkeypatch.setattr(backend, "ModelWork", OnCpu)
    monkeypatch.setattr(DeviceState, "product_ns", lambda self: 1000)
    return backend.Cuda(Hybrid(), fake_torch.Driver())


def run(cuda: backend.Cuda, model: str, batch: int) -> Observation:
    case = step_case(model, batch, "h-models", "test")
    plan = case.plan()
    assert plan is not None
    return cuda.execute(case.job(), plan)


@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_a_step_runs_with_right_gradients(cuda: backend.Cuda, model: str) -> None:
    seen = run(cuda, model, 4)
    assert seen.wrong == []
    assert seen.makespan_ns == pytest.approx(13 * 40_000, abs=13)


@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_gradients_by_segment_are_those_of_the_whole(cuda: backend.Cuda, model: str) -> None:
    """Torch differentiates the loss of all segments at once; the chain of backwards has to agree."""
    work = OnCpu(Hybrid(), step_case(model, 4, "h-models", "test").graph())
    for op in range(len(work.kinds) - 1):
        work.launch(op)
    x = work.input
    for function, _ in work.segments:
        x = function(x)
    whole = torch.autograd.grad(x, [p for _, parameters in work.segments for p in parameters])
    pieces = [g for k in range(torch_models.SEGMENTS) for g in work.gradients[k]]
    assert float(x.detach()) > 0
    for mine, right in zip(pieces, whole, strict=True):
        assert torch_models._alike(mine, right)


def test_a_broken_order_is_caught(cuda: backend.Cuda) -> None:
    work = OnCpu(Hybrid(), step_case("gpt", 2, "h-models", "test").graph())
    work.launch(0)
    with pytest.raises(RunError, match="'gpt-2-f' reads '1 out'"):
        work.launch(2)
    work.reset()
    for op in range(len(work.kinds)):
        work.launch(op)
    work.gradients[3][0] = work.gradients[3][0] * 2
    assert work.wrong() == ["gpt-3-b"]


def test_other_batches_are_predicted(cuda: backend.Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in BATCHES:
        monkeypatch.setitem(BATCHES, model, [2, 8])
    session = Session("cuda", cuda)
    for model in BATCHES:
        model_steps(session, model)
    disturbed = [one["why"] for one in session.sentinels if not one.get("accepted", True)]
    if disturbed:
        pytest.skip(f"inconclusive: the machine was disturbed: {disturbed[0]}")
    assert {table["kind"] for table in session.tables} == {*step_kinds("gpt"), *step_kinds("resnet")}
    found = Calibration(
        "cuda", "fake", {}, {"gap_ns": {"median": 0}, "event_ns": {"median": 0}}, session.tables
    )
    for model in BATCHES:
        predicted = predict_case(step_case(model, 4, "h-models", "test"), found)
        assert predicted["makespan_ns"] == pytest.approx(run(cuda, model, 4).makespan_ns, rel=0.001)


def test_batches_predicted_were_never_calibrated() -> None:
    for case in draw("h-models", "cuda"):
        batch = case.ops[0].facts["batch"]
        calibrated = BATCHES[case.name.partition("-")[0]]
        assert batch not in calibrated
        assert min(calibrated) < batch < max(calibrated)


def test_a_model_that_fails_loses_the_other_not(cuda: backend.Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BATCHES, "gpt", [2])
    monkeypatch.setitem(BATCHES, "resnet", [2])

    def broken(self: ModelWork) -> Any:
        raise RunError("no room")

    monkeypatch.setattr(OnCpu, "_gpt", broken)
    session = Session("cuda", cuda)
    for model in BATCHES:
        session.attempt(model, partial(model_steps, session, model))
    assert [entry["why"] for entry in session.sentinels if not entry["accepted"]] == ["not measured: no room"]
    assert {table["kind"] for table in session.tables} == set(step_kinds("resnet"))
