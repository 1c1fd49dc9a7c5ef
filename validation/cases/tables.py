"""Content of ``experiments.toml`` by backend: calibrated sizes, time limits of steps, and goals."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_TABLES: Final[Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("experiments.toml").read_text(encoding="utf-8")
)

BUDGET_S: Final[Mapping[str, Mapping[str, int]]] = {
    backend: {step: about["budget_s"] for step, about in steps.items()} for backend, steps in _TABLES.items()
}
"""Backend → ``"calibrate"`` or experiment → time limit in seconds."""

GOALS: Final[Mapping[str, Mapping[str, Mapping[str, float]]]] = {
    backend: {step: about.get("goals", {}) for step, about in steps.items()}
    for backend, steps in _TABLES.items()
}
"""Backend → experiment → metric → bound."""

GRID: Final[dict[str, dict[str, list[tuple[int, ...]]]]] = {
    backend: {kind: [*map(tuple, sizes)] for kind, sizes in steps["calibrate"]["grid"].items()}
    for backend, steps in _TABLES.items()
}
"""Backend → kind → sizes to measure."""
