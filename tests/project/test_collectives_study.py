"""How well times of collectives are known: on rows that were not looked at, beside plain rules."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from devices.collectives.nccl_model import load_rates
from devices.collectives.nccl_tuner import GENERATIONS
from studies.collectives.fit import (
    RATES,
    SETUPS,
    SHIPPED,
    _fit,
    drawn_fifth,
    error_lines,
    fitted,
    read_measured,
)


def test_a_fifth_of_the_sizes_is_drawn_by_names_alone() -> None:
    rows = [((gpu, kind), 1 << k) for gpu in ("a", "b") for kind in "xyz" for k in range(20)]
    drawn = drawn_fifth(rows)
    assert sum(drawn) == len(rows) // 5
    assert drawn_fifth(reversed(rows)) == drawn[::-1]
    assert drawn_fifth(rows + rows) == drawn + drawn  # a size that comes twice stays together
    assert len({tuple(drawn[k : k + 20]) for k in range(0, len(rows), 20)}) > 3


def test_the_fit_finds_what_it_was_given() -> None:
    rng = np.random.default_rng(7)
    a, rates = rng.uniform(0, 3, (60, 4)), np.array([2.0, 0.0, 0.5, 7.0])
    us = a @ rates
    us[3] *= 2  # one row that is wrong
    found = _fit(a, us, np.ones(4), 1e-6)
    assert found == pytest.approx(rates, abs=5e-3)
    held = _fit(a, us, np.ones(4), 1e6)  # drawn to where they start
    assert held == pytest.approx(np.ones(4), abs=1e-3)


@pytest.mark.slow
def test_times_on_rows_that_were_not_drawn(data_dir: Path) -> None:
    rows = read_measured(data_dir)
    found = pd.DataFrame(error_lines(*rows, fitted(*rows))).set_index("rows")
    h200 = found.loc["H200, NCCL 2.29 (nothing fitted)"]
    assert h200["judged"] == 504
    assert h200["tuner %"] <= 15
    together = found.loc["all that were fitted"]
    assert together["judged"] == sum(found.loc[setup.name, "judged"] for setup in SETUPS) == 2308
    assert together["fitted %"] <= 6
    assert abs(together["bias %"]) <= 1
    assert found.loc["B300, NCCL 2.29", "1 MB and more %"] <= 9
    for setup in SETUPS:
        line = found.loc[setup.name]
        assert line["fitted %"] <= 7
        rules = line[["tuner %", "alpha-beta %", "nearest %", "interpolated %"]]
        assert line["fitted %"] < 0.7 * rules.min()


def test_what_is_shipped_is_what_was_fitted(data_dir: Path) -> None:
    rates = fitted(*read_measured(data_dir))
    for gpu, (name, _) in SHIPPED.items():
        assert list(load_rates(gpu).values()) == pytest.approx(rates[name], rel=1e-4)


def test_every_rate_is_described() -> None:
    text = (files("devices.collectives") / "nccl_fitted.json").read_text(encoding="utf-8")
    gpus = json.loads(text)["gpus"]
    assert set(gpus) == set(GENERATIONS)
    for each in gpus.values():
        assert list(each["rates"]) == list(RATES)
        assert all(rate >= 0 for rate in each["rates"].values())
