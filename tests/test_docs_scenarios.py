"""Scenarios in docs/scenarios.md, npu.md, runtimes.md run and come out as expected; every key is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import write

from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from scenarios.schema import ScenarioFile

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "scenarios.md").read_text(encoding="utf-8")
BLOCKS = [
    block
    for page in (PAGE, *((DOCS / name).read_text(encoding="utf-8") for name in ("npu.md", "runtimes.md")))
    for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    if not block.startswith(("ops:", "workload:"))  # a part of one
]


@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")
@pytest.mark.parametrize("text", BLOCKS, ids=range(len(BLOCKS)))
def test_a_scenario_of_the_page_runs(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    result = sim("run", path)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert ("all as expected" in result.stdout) == ("expect" in text)
    for case in load_scenario(path).cases():
        assert run_case(case, check=True).trace.makespan_ns > 0


def test_the_page_names_every_key() -> None:
    keys = [field.alias or name for name, field in ScenarioFile.model_fields.items()]
    assert [key for key in keys if f"`{key}`" not in PAGE] == ["$schema"]
