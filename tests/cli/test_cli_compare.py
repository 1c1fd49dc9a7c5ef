"""``sim compare``: whose memory it shows, and what becomes of an entry that cannot go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import write

TEXT = """\
name: who fits
machine: {devices: {cpu0: {kind: cpu}, gpu0: {kind: gpu, memory: 100MB}}}
workload:
  ops:
    a: {duration: 10us, output: 40MB, device: gpu0}
    b: {duration: 10us, inputs: [a], output: 40MB, device: gpu0}
    c: {duration: 30us, output: 1MB, device: cpu0}
policy: {name: in-order}
compare:
  - in-order
  - {label: tight, name: in-order, set: {machine.devices.gpu0.memory: 60MB}}
  - {label: waits, name: in-order, set: {machine.devices.gpu0.memory: 60MB, memory.when_full: wait}}
"""
"""gpu0 holds a and b, 80 MB, from 10 to 20 us; cpu0 is the one that computes most, and holds 1 MB."""


def test_the_peak_shown_is_that_of_the_device_with_the_highest(tmp_path: Path) -> None:
    shown = sim("compare", write(tmp_path, TEXT), "--policy", "in-order").stdout
    header, row = shown.splitlines()[1:3]
    assert header.endswith("highest peak memory")
    assert "cpu0 100.0%" in row
    assert row.endswith("gpu0 76.29 MiB of 95.37 MiB")
    nothing = TEXT.replace(", output: 40MB", "").replace(", output: 1MB", "")
    assert (
        sim("compare", write(tmp_path, nothing), "--policy", "in-order")
        .stdout.splitlines()[2]
        .endswith(" 0 B")
    )


def test_no_device_computes_most_where_none_computes(tmp_path: Path) -> None:
    text = "machine: {devices: {gpu0: {kind: gpu}}}\nworkload: {ops: {a: {duration: 0ns}}}\n"
    assert "gpu0" not in sim("compare", write(tmp_path, text), "--policy", "in-order").stdout


def test_an_entry_that_runs_out_of_memory_is_a_row(tmp_path: Path) -> None:
    result = sim("compare", write(tmp_path, TEXT), "--ops", tmp_path / "ops.csv")
    assert result.exit_code == 1
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[2][:3] == ["in-order", "30", "us"]
    assert rows[3] == ["tight", "out", "of", "memory"]
    assert rows[4] == ["waits", "stuck"]
    assert "tight     out of memory on gpu0 (counted allocator): 'b' asks for 38.15 MiB" in result.stdout
    assert "waits     nothing can happen any more and 1 task" in result.stdout
    assert "tight (2 of 3):\nout of memory on gpu0" in result.stderr
    assert "  largest holders  'a' 38.15 MiB" in result.stderr
    assert "  b waits for memory: 38.15 MiB on gpu0" in result.stderr
    assert (tmp_path / "ops.csv").exists()


def test_json_has_those_that_failed_apart(tmp_path: Path) -> None:
    result = sim("compare", write(tmp_path, TEXT), "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, [one["policy"] for one in told["results"]]) == (1, ["in-order"])
    assert [(one["policy"], one["what"]) for one in told["failed"]] == [
        ("tight", "out of memory"),
        ("waits", "stuck"),
    ]
    assert told["failed"][0]["message"].startswith("out of memory on gpu0 (counted allocator): 'b' asks for")


@pytest.mark.parametrize("names", [("tight",), ("tight", "waits")])
def test_without_any_that_ends_there_is_nothing_to_compare(tmp_path: Path, names: tuple[str, ...]) -> None:
    result = sim("compare", write(tmp_path, TEXT), *(part for name in names for part in ("--policy", name)))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("out of memory on gpu0") == 1
    assert ("waits (2 of 2):\nnothing can happen any more" in result.stderr) == (len(names) == 2)


def test_an_entry_that_cannot_be_built_is_a_row_that_names_the_way_out(tmp_path: Path) -> None:
    """As after a failed run the exit status is 1; if none can be built, it is that of wrong input."""
    text = """\
name: one stage a rank
workload:
  train: {model: {layers: 8, hidden: 256, heads: 4, vocabulary: 1000}, calibration: h100-sxm,
          parallel: {pp: 2}, sequence: 256, batch: 4}
policy: 1f1b
compare: [1f1b, zb-v, interleaved-1f1b]
"""
    result = sim("compare", write(tmp_path, text))
    assert result.exit_code == 1, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[3] == ["zb-v", "cannot", "be", "built"]
    assert "zb-v has 4 stages on 2 ranks, and pp·chunks = 2; set parallel.chunks: 2" in result.stdout
    assert "chunks: 2" not in result.stderr
    none = sim("compare", write(tmp_path, text.replace("[1f1b, zb-v", "[zb-v")))
    assert none.exit_code == 2
    assert none.stderr.count("set parallel.chunks: 2") == 1


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    told = "in-order, the scenario's own policy, is not compared"
    assert told not in sim("compare", write(tmp_path, TEXT)).stderr
    others = TEXT.replace("  - in-order\n", "").replace("name: in-order, set", "name: ready-queue, set")
    path = write(tmp_path, others)
    assert sim("compare", path).stderr.count(told) == 1
    assert told not in sim("compare", path, "--policy", "ready-queue").stderr


def test_a_picture_says_which_runs_it_leaves_out(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT)
    told = "not in the files that are written, as there is no result: tight, waits\n"
    assert told in sim("compare", path, "--gantt", tmp_path / "g.png").stderr
    assert "not in the files" not in sim("compare", path).stderr


def test_a_recording_has_no_peak_of_memory_in_a_comparison_either() -> None:
    """As in `sim run`: its kernels name no tensors, so a peak of 0 B would be wrong."""
    example = Path(__file__).resolve().parents[2] / "scenarios" / "examples" / "what_if.yaml"
    rows = sim("compare", example).stdout.splitlines()[2:9]
    assert [row.split("  ")[-1].strip() for row in rows] == ["not recorded"] * 7
