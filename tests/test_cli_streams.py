"""What the command line says of streams to which nothing was assigned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim

SCENARIO = """\
machine: {devices: {gpu0: {kind: gpu, streams: 4}, gpu1: {kind: gpu, streams: 2}}}
workload:
  ops:
    a: {duration: 10us, device: gpu0}
    b: {duration: 20us, device: gpu0}
    c: {duration: 20us, device: gpu1}
compare: [ready-queue, {label: spread, name: ready-queue, streams: round-robin}]
"""
NOTE = "gpu0 used 1 of 4 streams{by}; to use more, set policy.streams (per-branch, per-kind, "


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "streams.yaml"
    file.write_text(SCENARIO)
    return file


def test_streams_without_an_assignment_are_told_once_for_each_device(path: Path) -> None:
    shown = sim("run", path).stdout
    assert NOTE.format(by="") in shown
    assert "gpu1 used" not in shown  # one op needs no second stream


@pytest.mark.parametrize("streams", ["round-robin", "single"])
def test_where_streams_are_assigned_nothing_is_told(path: Path, streams: str) -> None:
    assert "to use more, set" not in sim("run", path, "--set", f"policy.streams={streams}").stdout


def test_a_comparison_names_whom_it_holds_for(path: Path) -> None:
    assert NOTE.format(by=" under ready-queue") in sim("compare", path).stdout
    both = sim("compare", path, "--policy", "ready-queue", "--policy", "in-order").stdout
    assert NOTE.format(by="") in both


def test_json_stays_as_it_is(path: Path) -> None:
    assert "to use more, set" not in json.dumps(json.loads(sim("run", path, "--json").stdout))
