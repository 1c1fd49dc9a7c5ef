"""The timeline that Perfetto opens: rules of the format, checked on what is written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, Trace, simulate
from sim.export.chrome import chrome_events, write_chrome


def trace() -> Trace:
    builder = GraphBuilder("two streams")
    builder.op("a", duration_ns=10_001, outputs=1000)
    builder.op("b", inputs=["a"], duration_ns=20_000, kind="matmul", outputs=500)
    builder.op("c", inputs=["b"], duration_ns=5_000, device="cpu0")

    class Alternate:
        def assign(self, job: Any) -> list[int]:
            return [0, 1, 0]

    machine = Machine((Device("gpu0", streams=2, issue_ns=3_000), Device("cpu0", "cpu", workers=1)))
    return simulate(builder.build(), machine, ReadyQueue(synchronisation="issue"), streams=Alternate())


def test_slices_say_what_ran_where_and_when() -> None:
    slices = {e["name"]: e for e in chrome_events(trace()) if e["ph"] == "X"}
    assert (slices["a"]["ts"], slices["a"]["dur"], slices["a"]["cat"]) == (3.0, 10.001, "kernel")
    assert (slices["launch b"]["ts"], slices["launch b"]["dur"]) == (3.0, 3.0)
    assert slices["b"]["args"]["waited for"] == "event"
    assert slices["c"]["cat"] == "cpu_op"
    assert all(e["tid"] >= 1 for e in slices.values())


def test_launches_and_kernels_are_tied_by_correlation_and_flow() -> None:
    events = list(chrome_events(trace()))
    kernels = {e["args"]["correlation"] for e in events if e.get("cat") == "kernel"}
    launches = {e["args"]["correlation"] for e in events if e.get("cat") == "cuda_runtime"}
    assert kernels == launches == {1, 2}
    flows = [e for e in events if e["ph"] in "sf" and e["cat"] == "ac2g"]
    assert [e["id"] for e in flows] == [1, 1, 2, 2]
    assert all(e["bp"] == "e" for e in flows if e["ph"] == "f")


def test_arrows_lead_from_producers_to_consumers_on_other_lanes() -> None:
    events = [e for e in chrome_events(trace()) if e.get("cat") == "data"]
    assert [(e["ph"], e["pid"], e["tid"]) for e in events] == [
        ("s", 10, 1), ("f", 10, 2), ("s", 10, 2), ("f", 11, 1)
    ]  # fmt: skip
    assert [e for e in chrome_events(trace(), arrows=1) if e.get("cat") == "data"] == events[:2]


def test_files_are_equal_for_equal_traces_and_valid_json(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_chrome(trace(), tmp_path / name)
    first, second = (tmp_path / name for name in ("a.json.gz", "b.json.gz"))
    assert first.read_bytes() == second.read_bytes()
    content = json.loads(gzip.decompress(first.read_bytes()))
    assert content["distributedInfo"] == {"rank": 0}
    assert b'"distributedInfo": {"rank": 0}' in gzip.decompress(first.read_bytes())
    counters = [e for e in content["traceEvents"] if e["ph"] == "C"]
    assert max(e["args"]["in use (bytes)"] for e in counters) == 1500
    names = {e["args"]["name"] for e in content["traceEvents"] if e["name"] == "process_name"}
    assert names == {"hosts", "gpu0", "cpu0"}
