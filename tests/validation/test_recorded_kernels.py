"""What the sizes of recorded kernels cost, beside what the kernels took."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.kernels.moved import moved
from studies.kernels.recorded import compare, errors
from studies.kernels.tables import tables

PROGRAMS = "h100_bert_small", "h100_vit", "h100_qwen_0_5b"


@pytest.mark.filterwarnings("ignore:.* do not say for which stream or event they wait")
@pytest.mark.filterwarnings("ignore:.* GPU tasks were launched before the trace begins")
def test_kernels_of_recorded_programs_cost_what_they_took(data_dir: Path) -> None:
    """Three eager programs on an H100: the total within 5 %, a shape within 20 % on average."""
    rows = [
        row for name in PROGRAMS for row in compare(str(data_dir / "kineto" / f"{name}.json.gz"), "h100-sxm")
    ]
    assert len(rows) > 15
    total, shape, kernel = errors(rows)
    assert abs(total) < 0.05
    assert shape < 0.20
    assert kernel < 0.10


def test_kernels_move_to_another_gpu_as_they_were_measured_there(data_dir: Path) -> None:
    """Attention without a mask on pairs of four GPUs, which rates alone take for twice what it takes."""
    table = next(table for table in tables(data_dir) if table.name == "encoder")
    found = [*moved(table)]
    assert len(found) == 12
    assert np.mean([pair.error for pair in found]) < 0.08
    assert np.mean([pair.by_rates for pair in found]) > 0.50
    assert {pair.same_generation for pair in found} == {False, True}
