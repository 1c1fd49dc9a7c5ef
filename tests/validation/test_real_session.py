"""A whole session of the cuda backend on a fake H200 whose costs are known: what is predicted, what it takes,
and what goes wrong without losing the rest.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_h200
import fake_torch
import pytest

from devices.cost.calibration import load_calibration
from validation import steps
from validation.__main__ import main
from validation.calibrate import DisturbedError
from validation.calibrate.gpu_costs import BATCHES, PARTITIONS
from validation.cases import backends, draws, step_files
from validation.cases.tables import GRID
from validation.gpu.cuda import Cuda
from validation.gpu.torch_device import DeviceState

pytestmark = pytest.mark.slow


@contextmanager
def few_sizes() -> Iterator[pytest.MonkeyPatch]:
    """Calibrate what the experiments ask for, without partitions of the SMs, and without models, which a fake
    torch does not differentiate.
    """
    with pytest.MonkeyPatch.context() as patch:
        kept = {kind: [size for size in GRID["cuda"][kind] if size[0] != 1024] for kind in ("h2d", "d2h")}
        kept |= {f"{kind}-pageable": [(4096, 1)] for kind in kept}
        patch.setitem(GRID, "cuda", {"matmul": GRID["cuda"]["matmul"], **kept})
        patch.setattr("validation.calibrate.PARTITIONS", ())
        for model in list(BATCHES):
            patch.delitem(BATCHES, model)
        yield patch


@pytest.fixture(autouse=True)
def _few_sizes() -> Iterator[None]:
    with few_sizes():
        yield


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration of the fake device, without probes."""
    out = tmp_path_factory.mktemp("calibration")
    with few_sizes() as patch:
        made = fake_h200.Torch()
        fake_h200.own_clock(patch, made)
        patch.setattr("validation.calibrate.probes", lambda session, torch: None)
        session(made, out, "g")
    return out / "calibration.json"


@pytest.fixture
def out(calibration: Path, tmp_path: Path) -> Path:
    """A folder with that calibration."""
    shutil.copy(calibration, tmp_path)
    return tmp_path


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> fake_h200.Torch:
    made = fake_h200.Torch()
    fake_h200.own_clock(monkeypatch, made)
    return made


@pytest.fixture
def no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validation.calibrate.probes", lambda session, torch: None)


class Told(list[str]):
    """What a session said, and the device's clock when it did."""

    def __init__(self, torch: fake_h200.Torch) -> None:
        super().__init__()
        self.torch, self.at_s = torch, []

    def __call__(self, text: str) -> None:
        self.append(text)
        self.at_s.append(self.torch.cuda.host_ms / 1000)


def session(torch: fake_h200.Torch, out: Path, letters: str, **options: Any) -> tuple[dict[str, Any], Told]:
    told = Told(torch)
    executor = options.pop("executor", None) or Cuda(torch, fake_torch.Driver())
    result = steps.run("cuda", out, steps.choose(letters), runs=3, executor=executor, say=told, **options)
    return {entry["experiment"]: entry for entry in result["experiments"]}, told


def test_what_is_known_of_a_device_is_predicted_within_the_budget(
    torch: fake_h200.Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibrated, predicted, measured and reported; the device's own seconds are below the dry run's."""
    monkeypatch.setattr("validation.calibrate.PARTITIONS", PARTITIONS)
    found, told = session(torch, tmp_path, "a,b,c,d,e,f,g")
    for name, entry in found.items():
        assert entry["status"] == "met", (name, entry["why"], entry["inconclusive"])
        assert entry["predicted_before_measuring"], name
        assert entry["inconclusive"] == []
        assert entry.get("metrics", {}).get("prediction.max", 0) < 0.03, name
    for name in ("scatter.png", "worst.png", "report.md", "report.json", "calibration.json"):
        assert (tmp_path / name).stat().st_size > 1000
    begins = [(text.partition(":")[0], at) for text, at in zip(told, told.at_s, strict=True)]
    begins.append(("end", torch.cuda.host_ms / 1000))
    spent: dict[str, float] = {}
    for (name, begin), (_, end) in itertools.pairwise(begins):
        spent[name] = spent.get(name, 0.0) + end - begin
    budget = steps.BUDGET_S["cuda"]
    assert spent.pop("calibrating cuda") < budget["calibrate"] / 2
    assert set(spent) == set(found)
    assert all(seconds < budget[name] / 2 for name, seconds in spent.items()), spent


class Killed(KeyboardInterrupt):
    """Somebody stopped the session."""


class Dies(Cuda):
    """A backend whose session is stopped at some execution."""

    left = 0

    def execute(self, *given: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise Killed
        return super().execute(*given, **options)


@pytest.mark.usefixtures("no_probes")
def test_what_was_interrupted_goes_on_where_it_was(torch: fake_h200.Torch, tmp_path: Path) -> None:
    dying = Dies(torch, fake_torch.Driver())
    dying.left = 200  # in the middle of calibrating
    with pytest.raises(Killed):
        session(torch, tmp_path, "b", executor=dying)
    assert not (tmp_path / "calibration.json").exists()
    again = Dies(torch, fake_torch.Driver())
    again.left = 10**9
    _dies_after_calibrating(again, 10)
    with pytest.raises(Killed):
        session(torch, tmp_path, "b", executor=again)
    calibration = (tmp_path / "calibration.json").read_text()
    measured = step_files.read(tmp_path, "measurements", "b-fork-join")
    assert measured is not None
    done = [entry for entry in measured["cases"] if "skipped" not in entry]
    assert 0 < len(done) < len(measured["cases"])
    found, told = session(torch, tmp_path, "b")
    assert "calibrating cuda" not in told
    assert (tmp_path / "calibration.json").read_text() == calibration
    assert found["b-fork-join"]["status"] == "met"
    now = step_files.read(tmp_path, "measurements", "b-fork-join")
    assert now is not None
    assert now["cases"][: len(done)] == done
    _, told = session(torch, tmp_path, "b")
    assert told == ["b-fork-join: measured before"]


def _dies_after_calibrating(backend: Dies, executions: int) -> None:
    """Let a backend die so many executions after the calibration was written."""
    right, asked = backend.provenance, itertools.count()

    def provenance() -> dict[str, Any]:
        if next(asked) == 1:  # the first time is when the calibration is done
            backend.left = executions
        return right()

    backend.provenance = provenance  # type: ignore[method-assign]


def test_an_experiment_that_raises_loses_no_other(
    torch: fake_h200.Torch, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(backend: str, split: str) -> Iterator[Any]:
        yield from list(draws.fork_join(backend, split))[:1]
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(steps, "_count", lambda name, backend: 1)
    monkeypatch.setitem(draws.EXPERIMENTS, "b-fork-join", broken)
    found, told = session(torch, out, "a,b,e")
    assert found["b-fork-join"]["status"] == "inconclusive"
    assert [found[name]["status"] for name in ("a-chain", "e-random")] == ["met", "met"]
    assert any("ZeroDivisionError: a bug" in text for text in told)


def test_no_memory_for_a_case_loses_the_case(torch: fake_h200.Torch, out: Path) -> None:
    full = torch.full

    def small(shape: tuple[int, int], *given: Any, **options: Any) -> Any:
        if shape[0] == 4096:
            raise RuntimeError("CUDA out of memory. Tried to allocate 32.00 MiB\nand advice")
        return full(shape, *given, **options)

    torch.full = small  # type: ignore[method-assign]
    found, _ = session(torch, out, "a")
    [lost] = found["a-chain"]["inconclusive"]
    assert lost == {"case": "chain-3", "why": "torch: CUDA out of memory. Tried to allocate 32.00 MiB"}
    assert found["a-chain"]["metrics"]["prediction.n"] == 4 * 3
    torch.full = full  # type: ignore[method-assign]
    found, _ = session(torch, out, "a")  # what was skipped is taken up
    assert found["a-chain"]["inconclusive"] == []


def test_a_disturbed_device_gets_no_calibration_and_keeps_its_good_blocks(
    torch: fake_h200.Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ns = itertools.accumulate(itertools.repeat(250_000), lambda last, _: round(1.06 * last))
    monkeypatch.setattr(DeviceState, "sentinel_ns", lambda self: next(ns))
    monkeypatch.setattr("validation.calibrate.session.ATTEMPTS", 2)
    with pytest.raises(DisturbedError, match="the sentinel moved"):
        session(torch, tmp_path, "a")
    assert not (tmp_path / "calibration.json").exists()


def test_a_disturbed_run_does_not_count(
    torch: fake_h200.Torch, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = DeviceState.sentinel_ns
    monkeypatch.setattr(DeviceState, "sentinel_ns", lambda self: int(1.05 * right(self)))
    monkeypatch.setattr("validation.experiments.measure.PAUSE_S", 0.0)
    found, _ = session(torch, out, "b")
    assert found["b-fork-join"]["status"] == "inconclusive"
    assert "off what it was when the machine was calibrated" in found["b-fork-join"]["why"]


def test_time_for_calibrating_that_is_up_leaves_out_what_can_be_done_without(
    torch: fake_h200.Torch, tmp_path: Path
) -> None:
    found, _ = session(torch, tmp_path, "a,b", limit_s=0.0)
    told = {
        one["block"]: one.get("why", "") for one in load_calibration(tmp_path / "calibration.json").sentinels
    }
    assert told["launch queue"] == "not measured: the time for calibrating was up"
    assert found["a-chain"]["inconclusive"][0]["why"] == "the time was up"


def test_the_command_itself_runs(
    torch: fake_h200.Torch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As `make validate-gpu` calls it, from start to the page that it prints."""
    monkeypatch.setitem(backends.BACKENDS, "cuda", lambda: Cuda(torch, fake_torch.Driver()))
    monkeypatch.setattr("validation.calibrate.probes", lambda session, torch: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert main(["--backend", "cuda", "--limit", "420", "--experiments", "g,b", "--runs", "3"]) == 0
    [folder] = (tmp_path / "validation" / "data").iterdir()
    assert folder.name.startswith("fake-gpu-20")
    assert [path.name for path in tmp_path.iterdir()] == ["validation"]
    said = capsys.readouterr()
    assert "| b-fork-join | 6 | 18 |" in said.out
    assert "calibrating cuda" in said.err
