"""Timelines are written in pieces: what is held of a run besides are a few numbers a task."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from policies.issue.ready_queue import ReadyQueue
from policies.streams import RoundRobinStreams
from sim import Device, GraphBuilder, Machine, Trace, simulate
from sim.export.chrome import write_chrome


def large(n: int) -> Trace:
    b = GraphBuilder("large")
    for i in range(n):
        given = {"device": f"gpu{i % 4}", "inputs": [f"op{i - 4}"] if i >= 4 else []}
        b.op(f"op{i}", kind=("matmul", "copy")[i % 2], duration_ns=1000 + i % 7, outputs=100, **given)
    gpus = tuple(Device(f"gpu{k}", streams=2, issue_ns=300) for k in range(4))
    return simulate(
        b.build(), Machine(gpus), ReadyQueue(synchronisation="issue"), streams=RoundRobinStreams()
    )


def peak_bytes(run: Trace, path: Path) -> int:
    """Return the least of two peaks: threads that earlier tests have left may allocate meanwhile."""
    peaks = []
    for _ in range(2):
        tracemalloc.start()
        try:
            write_chrome(run, path)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_task_more_takes_a_few_numbers_more(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is 700 bytes in the file and, as objects, 2 kB in memory: neither is held."""
    monkeypatch.setattr("sim.export.chrome._PIECE", 50)
    monkeypatch.setattr("sim.export.chrome._BATCH", 50)
    peak_bytes(large(10), tmp_path / name)  # what is imported at the first use
    few, many = (peak_bytes(large(n), tmp_path / name) for n in (500, 2_500))
    assert many - few < 400 * 2_000


def test_the_same_trace_gives_the_same_bytes_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_chrome(large(20), tmp_path / "a.json")
    monkeypatch.setattr("sim.export.chrome._BATCH", 1)
    monkeypatch.setattr("sim.export.chrome._PIECE", 1)
    write_chrome(large(20), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]
