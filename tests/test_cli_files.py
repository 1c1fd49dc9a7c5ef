"""Files that the command line writes, for one run and for several."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from cli_runner import COMPARE, sim
from scenario_texts import GOOD, write


def test_files_of_one_run(tmp_path: Path) -> None:
    ops, trace, gantt = tmp_path / "ops.csv", tmp_path / "t.json.gz", tmp_path / "g.svg"
    result = sim("run", write(tmp_path), "--ops", ops, "--trace", trace, "--gantt", gantt, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["tasks"] == 4
    assert result.stderr.splitlines() == [f"wrote {gantt}", f"wrote {trace}", f"wrote {ops}"]
    table = ops.read_text().splitlines()
    assert table[0].startswith("op,kind,device,stream,issuer,iteration")
    assert len(table) == 5
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert gantt.read_text().startswith("<?xml")


def test_files_of_several_runs_hold_them_all(tmp_path: Path) -> None:
    ops, trace, gantt = tmp_path / "ops.json", tmp_path / "t.json", tmp_path / "g.png"
    path = write(tmp_path, GOOD + COMPARE)
    assert sim("compare", path, "--ops", ops, "--trace", trace, "--gantt", gantt).exit_code == 0
    rows = json.loads(ops.read_text())
    assert [row["policy"] for row in rows] == ["in-order"] * 4 + ["one core"] * 4 + ["ready-queue"] * 4
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["in-order: cpu0", "one core: cpu0", "ready-queue: cpu0"]
    flows: dict[int, set[int]] = {}
    for event in events:
        if "id" in event:
            flows.setdefault(event["id"], set()).add(event["pid"] // 10_000)
    assert all(len(runs) == 1 for runs in flows.values())
    assert gantt.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("option", "name", "says"),
    [
        ("--gantt", "g.bmp", "should end in .png, .svg, .pdf, .html"),
        ("--trace", "t.csv", "should end in .json, .json.gz, .pftrace, .perfetto-trace"),
        ("--ops", "o.txt", "should end in .csv, .csv.gz, .json, .json.gz, .parquet"),
        ("--ops", "no/o.csv", "there is no folder {folder}/no"),
        ("--ops", "folder.csv", "is a directory"),
    ],
)
def test_files_that_cannot_be_written_are_told_before_anything_runs(
    tmp_path: Path, option: str, name: str, says: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    result = sim("run", tmp_path / "there_is_no_scenario.yaml", option, tmp_path / name)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == f"{option} {tmp_path}/{name}: {says.format(folder=tmp_path)}\n"


def test_two_things_in_one_file(tmp_path: Path) -> None:
    result = sim("run", write(tmp_path), "--ops", tmp_path / "x.json", "--trace", tmp_path / "x.json")
    assert (result.exit_code, result.stderr) == (2, f"--ops {tmp_path}/x.json: is what --trace writes\n")
