"""docs/scenarios.md shows every key of a scenario."""

from __future__ import annotations

from pathlib import Path

from scenarios.schema import ScenarioFile

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")


def test_the_page_names_every_key() -> None:
    keys = [field.alias or name for name, field in ScenarioFile.model_fields.items()]
    assert [key for key in keys if f"`{key}`" not in PAGE] == ["$schema"]
