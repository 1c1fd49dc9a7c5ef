"""Published training steps: what is predicted of layouts that nothing was calibrated on, and how far off."""

from __future__ import annotations

import csv
import gzip
from dataclasses import replace
from pathlib import Path

import pytest
import training_fits

from scenarios.builders.train.calibration import TrainingCalibration
from studies.training import calibrate
from studies.training.calibrate import fit, folds, predicted_ms, predictions
from studies.training.judge import SOURCES, STEPS_FILE, Judge, memory_errors, sheet
from studies.training.page import faster, page, source_rows, summary
from studies.training.published import Published

PAGE = Path(__file__).parents[2] / "studies" / "training" / "results.md"


@pytest.fixture(scope="module")
def judge(data_dir: Path) -> Judge:
    """Return a judge of the data folder."""
    if not (data_dir / STEPS_FILE).exists():
        pytest.skip(f"no {STEPS_FILE} in the data folder")
    return Judge(data_dir)


@pytest.fixture(scope="module")
def rows(judge: Judge) -> list[Published]:
    """Return the rows of the file that can be described."""
    return judge.rows


@pytest.fixture(scope="module")
def steps(rows: list[Published]) -> list[Published]:
    """Return Megatron-LM's steps of 2021 on at most 8 stages: those of more take a second to predict."""
    found = [row for row in rows if row.source == "megatron-2104.04473-T1"]
    return [row for row in found if row.training.layout.pp <= 8]


def test_every_row_is_described_or_says_why_not(judge: Judge) -> None:
    assert len(judge.rows) + len(judge.refused) == 456
    assert all(reason for _, reason in judge.refused)
    assert len({row.source for row in judge.rows}) == 10
    every = {"simumax-b200-v1.2", "vtrain-a100-multi", "mosaicml-llm-foundry"}
    assert not every & {source for source, _ in judge.refused}


def test_published_models_and_flop_are_those_of_the_rows(data_dir: Path, rows: list[Published]) -> None:
    """The MFU that MosaicML prints follows from our flop, its step, and the peak of its GPU."""
    with gzip.open(data_dir / STEPS_FILE, "rt", encoding="utf-8", newline="") as file:
        note = {row["id"]: row["note"] for row in csv.DictReader(file)}
    for row in rows:
        if row.source == "mosaicml-llm-foundry" and row.hardware == "h100_80gb bf16":
            of = row.training
            mfu = of.flops / (of.layout.ranks * 989e12 * row.step_ms / 1e3)
            assert note[row.id].startswith("MFU ")
            assert 100 * mfu == pytest.approx(float(note[row.id].split()[1]), rel=0.021)


def test_memory_of_each_rank_within_half_a_percent(rows: list[Published]) -> None:
    """SimuMax's B200 cases: Megatron-LM's allocated peak, rank by rank; its own tool is 0.4 % off."""
    found = memory_errors(rows)
    off = [predicted / measured - 1 for _, _, predicted, measured in found]
    assert len(off) == 30
    assert sum(map(abs, off)) / len(off) <= 0.005
    dense = [
        predicted / measured - 1 for row, _, predicted, measured in found if not row.training.model.experts
    ]
    assert max(map(abs, dense)) <= 0.002


def test_a_row_does_not_tell_its_own_prediction(steps: list[Published]) -> None:
    """What is measured of a group changes nothing of what is predicted of it."""
    mine = [row for row in steps if row.training.layout.pp <= 4][:3]
    base = sheet("A100 bf16")
    before = predictions(mine, base, ("product",), most_folds=3)
    changed = [replace(mine[0], step_ms=3 * mine[0].step_ms), *mine[1:]]
    after = predictions(changed, base, ("product",), most_folds=3)
    assert after[mine[0].id] == before[mine[0].id]
    assert after[mine[1].id] > before[mine[1].id]


def test_folds_hold_each_group_once(rows: list[Published]) -> None:
    mine = [row for row in rows if row.source == "vtrain-a100-multi"]
    found = folds(mine, 5)
    assert len(found) == 5
    assert sorted(group for fold in found for group in fold) == sorted({row.group for row in mine})


def test_a_fit_finds_the_numbers_that_made_the_steps(steps: list[Published]) -> None:
    true = replace(sheet("A100 bf16"), product=0.6, pass_efficiency={"elementwise": 0.5})
    made = [replace(row, step_ms=predicted_ms(row, true)) for row in steps]
    found = fit(made, sheet("A100 bf16"), ("product", "elementwise"), steps=8)
    assert found.product == pytest.approx(0.6, rel=0.01)
    assert found.pass_efficiency["elementwise"] == pytest.approx(0.5, rel=0.03)


def test_the_page_has_the_memory_and_the_rows_without_description(judge: Judge) -> None:
    text = PAGE.read_text(encoding="utf-8")
    fresh = page([], judge.rows, judge.refused, memory_errors(judge.rows))
    for part in ("Memory of each", "What sources leave open", "Where a step", "Rows that cannot be"):
        begin = fresh.index(f"## {part}")
        end = fresh.find("\n## ", begin + 1)
        assert fresh[begin : end if end > 0 else None].rstrip("\n") in text


GOALS = {
    "simumax": ("mean", 0.04),
    "vtrain": ("median", 0.08),
    "mosaic": ("mean", 0.06),
    "bridge_dense": ("mean", 0.06),
    "bridge_experts": ("mean", 0.07),
    "bridge_others": ("mean", 0.08),
}
"""To be reached: SimuMax's own tool is 5.6 % off on its rows, constant MFU 9 to 10 % on MosaicML's."""

FITTED_ANEW = "simumax"


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_a_source_reaches_its_goal_and_the_page_says_what_came_out(
    judge: Judge, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the calibrations that were fitted when the page was written; one source fits them anew."""
    if source != FITTED_ANEW:
        monkeypatch.setattr(calibrate, "fitted", training_fits.Fits(training_fits.read()))
    found = SOURCES[source](judge)
    error = found.error(lambda one: one.predicted)
    if source in GOALS:
        which, goal = GOALS[source]
        assert getattr(error, which) <= goal
        assert getattr(error, which) < getattr(found.error(lambda one: one.constant), which)
        assert getattr(error, which) < getattr(found.error(lambda one: one.formula), which)
    if source == "simumax":
        assert abs(error.bias) <= 0.02
    text = PAGE.read_text(encoding="utf-8")
    assert source_rows(found, 0.1).rstrip("\n") in text, "python -m tests.training_fits DATA fits anew"
    assert summary([found]).splitlines()[4] in text


@pytest.mark.slow
def test_which_of_two_rows_of_a_model_is_faster(judge: Judge) -> None:
    rows = [one for name in SOURCES if name.startswith("bridge") for one in SOURCES[name](judge).judged]
    pairs, right, naive = faster(rows, lambda row: row.training.model)
    assert pairs > 1000
    assert right / pairs >= max(0.9, naive / pairs)
    assert f"{100 * right / pairs:.1f} % of {pairs:,} pairs" in PAGE.read_text(encoding="utf-8")


def test_a_data_sheet_is_found_by_the_longest_name() -> None:
    assert sheet("a100_40gb bf16").memory_bandwidth == 1.555e12
    assert sheet("H100-96GB HBM2e 500W fp8").peak == 1978.9e12
    assert sheet("GB200 fp4").peak == 4 * 2500e12
    assert isinstance(sheet("H200 bf16"), TrainingCalibration)
