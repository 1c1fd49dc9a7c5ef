"""Experiment j: measured again on another day, beside what was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from validation.cases import step_files
from validation.experiments import days


def write(out: Path, date: str, ns: list[int], plans: str = "p") -> None:
    measured = [(n, True) for n in ns] + [(1, False)]
    ops: dict[str, list[int]] = {name: [] for name in ("issue_ns", "start_ns", "end_ns", "stream")}
    runs = [{"makespan_ns": n, "clean": clean, "why": "", "wrong": [], **ops} for n, clean in measured]
    cases = [{"name": "one", "runs": runs}, {"name": "few", "runs": runs[:2]}]
    content = {"plans": plans, "predictions": None, "provenance": {"date": date}, "cases": cases}
    step_files.write(out, "measurements", "e-random", content)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    cases = [{"name": name, "makespan_ns": 990} for name in ("one", "few")]
    step_files.write(tmp_path, "predictions", "e-random", {"plans": "p", "calibration": "", "cases": cases})
    write(tmp_path, "2026-01-01", [1000, 1001, 999])
    return tmp_path


def test_both_days_are_reported_against_one_prediction(out: Path) -> None:
    assert days.compare_days(out, "e-random") == []
    assert days.to_markdown({"e-random": []}) == ""
    assert days.keep_day(out, "e-random") == out / "measurements-2026-01-01" / "e-random.json"
    write(out, "2026-01-02", [1100, 1101, 1099])
    [row] = days.compare_days(out, "e-random")
    assert (row["case"], row["then_ns"], row["now_ns"]) == ("one", 1000, 1100)
    assert row["then_error"] == pytest.approx(-0.01)
    assert row["now_error"] == pytest.approx(-0.1)
    assert row["moved"] == pytest.approx(0.1)
    text = days.to_markdown({"e-random": [row]})
    assert "(2026-01-01) | -1.00% |" in text
    assert "(2026-01-02) | -10.00% | +10.00% |" in text


def test_what_was_kept_first_stays_and_other_plans_are_other_cases(out: Path) -> None:
    kept = days.keep_day(out, "e-random")
    assert kept is not None
    before = json.loads(kept.read_text())
    write(out, "2026-01-01", [5, 5, 5])
    days.keep_day(out, "e-random")
    assert json.loads(kept.read_text()) == before
    write(out, "2026-01-02", [1100, 1101, 1099], plans="others")
    assert days.compare_days(out, "e-random") == []
    assert days.keep_day(out, "a-chain") is None
