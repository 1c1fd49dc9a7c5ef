"""However long or broken a name is, what is said of it is one readable line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import changed, write

from scenarios.cli.output import escape, print_table
from sim.base.errors import LONGEST_NAME, UnknownNameError, shorten

LONG = "x" * 2000
BROKEN = "two\\nlines" * 50
"""As it stands in quotes in YAML."""


@pytest.mark.parametrize("name", [LONG, BROKEN])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{name: ready-queue}", '"{}"'),
        ("name: good", '"{}": 1'),
        ("    a: {duration: 10us", '    "{}": {durtion: 10us'),
        ("inputs: [b, c]", 'inputs: ["{}"]'),
        ("cpu0:", '"{}": {kind: cpus}\n    cpu0:'),
        ("kind: cpu", 'preset: "{}"'),
    ],
)
def test_a_name_in_a_scenario(tmp_path: Path, name: str, old: str, new: str) -> None:
    path = write(tmp_path, changed(old, new.replace("{}", name, 1)))
    result = sim("run", path)
    assert result.exit_code == 2
    for line in result.stderr.rstrip("\n").split("\n"):
        assert line.startswith((str(path), "--set"))
        assert len(line) < 500 + len(str(path))


@pytest.mark.parametrize("digits", [4000, 5000])  # the latter are no number to Python
@pytest.mark.parametrize(
    "key", ["machine.devices.cpu0.workers", "policy.window", "seed", "workload.ops.a.flops"]
)
def test_a_number(tmp_path: Path, digits: int, key: str) -> None:
    result = sim("run", write(tmp_path), "--set", f"{key}=-{'9' * digits}")
    assert result.exit_code == 2
    assert len(result.stderr) < 1000


def test_a_name_on_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path)
    for arguments in (["--policy", "q\nw" * 100], ["--set", f"{LONG}=1"], ["--set", f"policy={LONG}"]):
        result = sim("run", path, *arguments)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert len(result.stderr) < 700


def test_columns_meet_below_what_is_escaped_or_combined(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"name": "a\u202eb", "n": "1"}, {"name": "e\u0301", "n": "22"}])
    assert escape(capsys.readouterr().out) == "name       n\na\\u202eb   1\ne\u0301         22\n"


def test_the_ends_of_a_name_stay() -> None:
    name = "first" + LONG + "last"
    assert len(shorten(name)) == LONGEST_NAME
    assert shorten(name).startswith("first")
    assert shorten(name).endswith("last")
    assert len(str(UnknownNameError("policy", name, [name + "2"]))) < 4 * LONGEST_NAME
