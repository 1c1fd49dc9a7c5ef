"""Compute, communicate, wait and idle add up to the makespan on every device, in every output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cli_runner import sim
from drawn_runs import draw_run
from scenario_texts import write

from sim.explain.communication import COMMUNICATION
from sim.explain.time_use import time_use
from sim.trace import Trace

OVERLAP = """\
machine: {devices: {gpu0: {kind: gpu, streams: 2}, cpu0: {kind: cpu, cores: 4}}}
workload:
  ops:
    a: {kind: matmul, duration: 10us, device: gpu0}
    reduce: {kind: all_reduce, duration: 10us, device: gpu0}
    b: {kind: matmul, duration: 5us, device: gpu0, inputs: [reduce]}
    host: {duration: 4us, device: cpu0, inputs: [a]}
policy: {name: ready-queue, streams: {name: per-kind, streams: {all_reduce: STREAM}}}
"""


def by_hand(trace: Trace, device: int) -> tuple[int, int]:
    """Return the ns in which an op that computes runs, and in which only others do, instant by instant."""
    computing, running = (np.zeros(trace.makespan_ns, bool) for _ in range(2))
    for row in np.flatnonzero(trace.device == device):
        span = slice(int(trace.tasks["start_ns"][row]), int(trace.tasks["end_ns"][row]))
        running[span] = True
        if trace.job.graph.kind(int(trace.tasks["op"][row])) not in COMMUNICATION:
            computing[span] = True
    return int(computing.sum()), int((running & ~computing).sum())


@pytest.mark.parametrize("seed", range(12))
def test_the_four_add_up_on_every_device(seed: int) -> None:
    trace = draw_run(seed)
    for d, use in enumerate(time_use(trace).values()):
        assert sum(use.values()) == trace.makespan_ns
        compute, communicate = by_hand(trace, d)
        assert use["compute"] == compute
        assert use["communicate"] >= communicate


@pytest.mark.parametrize(("stream", "compute", "communicate"), [(1, 15, 0), (0, 15, 10)])
def test_overlapped_communication_reads_differently(
    tmp_path: Path, stream: int, compute: int, communicate: int
) -> None:
    path = write(tmp_path, OVERLAP.replace("STREAM", str(stream)))
    found = json.loads(sim("run", path, "--json").stdout)
    use = found["devices"]["gpu0"]["time_ns"]
    assert (use["compute"], use["communicate"]) == (compute * 1000, communicate * 1000)
    assert found["devices"]["gpu0"]["busy_ns"] == found["makespan_ns"], "all reads 100 % busy"


def test_an_op_that_computes_and_communicates_in_turn(tmp_path: Path) -> None:
    """Of a, 4 of 10 us are communication; beside it b computes for 7 us, so that 3 us of it are exposed."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {gpu0: {kind: gpu, streams: 2}}}\n"
        "workload:\n"
        "  ops:\n"
        "    a: {kind: matmul, duration: 10us, attributes: {communicates_ns: 4000, stream: 0}}\n"
        "    b: {kind: matmul, duration: 7us, attributes: {stream: 1}}\n"
        "policy: {name: ready-queue, streams: recorded}\n"
    )
    use = json.loads(sim("run", path, "--json").stdout)["devices"]["gpu0"]["time_ns"]
    assert use == {"compute": 7000, "communicate": 3000, "wait": 0, "idle": 0}
    assert "3 us  inside ops 3 us" in sim("explain", path).stdout


def test_tables_use_the_four_words(tmp_path: Path) -> None:
    path = write(tmp_path, OVERLAP.replace("STREAM", "0"))
    lines = sim("run", path).stdout.splitlines()
    head = next(line for line in lines if line.startswith("device"))
    assert " ".join(head.split()).startswith("device compute communicate wait idle cores used span")
    assert "4.0% of 4" in next(line for line in lines if line.startswith("cpu0"))
    told = next(line for line in sim("explain", path).stdout.splitlines() if line.startswith("  gpu0"))
    shares = re.findall(r"(compute|communicate|wait|idle) +([0-9.]+) %", told)
    assert shares == [("compute", "60.0"), ("communicate", "40.0"), ("wait", "0.0"), ("idle", "0.0")]
