"""Measured zero-bubble throughputs: the table is the published one, and the prediction holds off the fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.issue.program_order import InOrder
from policies.pipeline.evaluate import StageTimes
from scenarios.builders.pipeline_graph import AsWritten, pipeline_graph, plain_machine
from scenarios.builders.pipeline_stage import PipelineStage
from sim import simulate
from sim.metrics import device_use
from studies.zero_bubble.zero_bubble_model import (
    BARE,
    Fit,
    Measured,
    closed_form_ns,
    error,
    fit,
    mean_error,
    measured,
    schedule_ns,
)
from tools.pages.zero_bubble import FITTED, report_text

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).resolve().parents[2] / "studies" / "zero_bubble" / "results.md"


@pytest.fixture(scope="module")
def rows() -> list[Measured]:
    return measured()


def test_the_rows_are_the_published_ones(rows: list[Measured], data_dir: Path) -> None:
    published = json.loads((data_dir / "published" / "zero_bubble.json").read_text())["stage_rows"]
    expected = [
        (row["devices"], row["micro_batches"], row["micro_batch_size"], name, value)
        for row in published
        for name, value in row["measured_samples_per_gpu_per_s"].items()
    ]
    assert [(r.devices, r.micro_batches, r.micro_batch, r.schedule, r.throughput) for r in rows] == expected
    times = [tuple(round(row[f"T_{key}_ms"] * 1e6) for key in "FIW") for row in published for _ in range(4)]
    assert [row.times_ns for row in rows] == times


def test_two_parameters_predict_what_was_not_fitted(rows: list[Measured]) -> None:
    by = fit([row for row in rows if row.group == FITTED])
    rest = [row for row in rows if row.group != FITTED]
    assert len(rest) == 32
    assert mean_error(rows, BARE, schedule_ns) == pytest.approx(0.092, abs=0.0005)
    assert all(error(row, BARE, schedule_ns) > 0 for row in rows)
    assert mean_error(rest, by) < 0.012
    assert max(abs(error(row, by)) for row in rest) < 0.03
    assert 1.0 < by.slow_down < 1.06  # a pipeline is not faster than its profile
    assert 0.1e6 < by.dispatch_ns < 1.5e6
    saved = RESULTS.read_text(encoding="utf-8")
    assert f"**Dispatch of a slot: {by.dispatch_ns / 1e6:.2f} ms.**" in saved
    assert f"off by **{100 * mean_error(rest, by):.1f} %**" in " ".join(saved.split())


def test_a_formula_with_two_parameters_of_its_own_comes_close(rows: list[Measured]) -> None:
    by = fit([row for row in rows if row.group == FITTED], closed_form_ns)
    rest = [row for row in rows if row.group != FITTED]
    assert mean_error(rest, by, closed_form_ns) == pytest.approx(0.0176, abs=0.0005)


@pytest.mark.parametrize("schedule", ["1F1B", "ZB-2p"])
def test_the_step_time_is_the_simulated_one(rows: list[Measured], schedule: str) -> None:
    row = next(row for row in rows if row.schedule == schedule)
    by = Fit(1.03, 600_000.0)
    f, i, w = (round(by.slow_down * ns + by.dispatch_ns) for ns in row.times_ns)
    whole = round(by.slow_down * sum(row.times_ns[1:]) + by.dispatch_ns)
    stage = PipelineStage(StageTimes(f, whole) if row.synchronous else StageTimes(f, None, i, w))
    machine = plain_machine(row.devices, row.transfer_ns)
    graph = pipeline_graph(row.programs, [stage] * row.devices)
    trace = simulate(graph, machine, InOrder(), linearize=AsWritten())
    spans = [use.span_ns for use in device_use(trace).values()]
    found = trace.makespan_ns if row.synchronous else max(spans)
    assert found == schedule_ns(row, by)


def test_the_committed_report_is_up_to_date(rows: list[Measured]) -> None:
    assert RESULTS.read_text(encoding="utf-8") == report_text(rows)
