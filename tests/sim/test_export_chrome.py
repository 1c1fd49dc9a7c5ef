"""The timeline that Perfetto opens: rules of the format, checked on what is written."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from chrome_helpers import chrome_events
from drawn_runs import draw_run
from examples import seeds
from trace_examples import two_streams

from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Host, Link, Machine, simulate
from sim.base.errors import InputError
from sim.explain.time_use import time_use
from sim.export.chrome import write_chrome


def test_slices_say_what_ran_where_and_when() -> None:
    slices = {e["name"]: e for e in chrome_events(two_streams()) if e["ph"] == "X"}
    assert (slices["a"]["ts"], slices["a"]["dur"], slices["a"]["cat"]) == (3.0, 10.001, "kernel")
    launches = [e for e in chrome_events(two_streams()) if e.get("cat") == "cuda_runtime"]
    assert [(e["name"], e["args"]["op"], e["ts"], e["dur"]) for e in launches] == [
        ("cudaLaunchKernel", "a", 0.0, 3.0),
        ("cudaLaunchKernel", "b", 3.0, 3.0),
    ]
    assert slices["b"]["args"]["waited for"] == "event"
    assert slices["c"]["cat"] == "cpu_op"
    assert all(e["tid"] >= 1 for e in slices.values())


def test_launches_and_kernels_are_tied_by_correlation_and_flow() -> None:
    events = list(chrome_events(two_streams()))
    kernels = {e["args"]["correlation"] for e in events if e.get("cat") == "kernel"}
    launches = {e["args"]["correlation"] for e in events if e.get("cat") == "cuda_runtime"}
    assert kernels == launches == {1, 2}
    flows = [e for e in events if e["ph"] in "sf" and e["cat"] == "ac2g"]
    assert [e["id"] for e in flows] == [1, 1, 2, 2]
    assert all(e["bp"] == "e" for e in flows if e["ph"] == "f")


def test_arrows_lead_from_producers_to_consumers_on_other_lanes() -> None:
    events = [e for e in chrome_events(two_streams()) if e.get("cat") == "data"]
    assert [(e["ph"], e["pid"], e["tid"]) for e in events] == [
        ("s", 10, 1), ("f", 10, 2), ("s", 10, 2), ("f", 11, 1)
    ]  # fmt: skip
    assert [e for e in chrome_events(two_streams(), arrows=1) if e.get("cat") == "data"] == events[:2]


def test_files_are_equal_for_equal_traces_and_valid_json(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_chrome(two_streams(), tmp_path / name)
    first, second = (tmp_path / name for name in ("a.json.gz", "b.json.gz"))
    assert first.read_bytes() == second.read_bytes()
    content = json.loads(gzip.decompress(first.read_bytes()))
    assert content["distributedInfo"] == {"rank": 0, "world_size": 1}
    assert b'"distributedInfo": {"rank": 0, "world_size": 1}' in gzip.decompress(first.read_bytes())
    counters = [e for e in content["traceEvents"] if e["ph"] == "C"]
    assert max(e["args"].get("in use (bytes)", 0) for e in counters) == 1500
    names = {e["args"]["name"] for e in content["traceEvents"] if e["name"] == "process_name"}
    assert names == {"hosts", "gpu0", "cpu0"}


def ns(event: dict[str, Any]) -> tuple[int, int]:
    """Return begin and end of a slice in whole ns."""
    begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
    assert (begin / 1000, length / 1000) == (event["ts"], event["dur"]), "three decimals are exact"
    return begin, begin + length


@pytest.mark.parametrize("seed", seeds(60))
def test_slices_of_a_thread_follow_one_another_and_flows_end_in_slices(seed: int) -> None:
    run = draw_run(seed)
    events = list(chrome_events(run))
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for e in events:
        if e["ph"] == "X":
            threads.setdefault((e["pid"], e["tid"]), []).append(ns(e))
    for spans in threads.values():
        spans.sort()
        assert all(one[1] <= following[0] for one, following in itertools.pairwise(spans))
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(threads) <= named
    assert all(tid >= 1 for _, tid in named)
    for e in events:
        if e["ph"] in "sf":
            at = round(e["ts"] * 1000)
            assert any(a <= at < b or a == at == b for a, b in threads[e["pid"], e["tid"]]), e
    begins = [((e["cat"], e["id"]), e["ts"]) for e in events if e["ph"] == "s"]
    ends = {(e["cat"], e["id"]): e["ts"] for e in events if e["ph"] == "f"}
    assert sorted(flow for flow, _ in begins) == sorted(ends)
    assert sum(e["ph"] == "f" for e in events) == len(ends)
    assert all(at <= ends[flow] for flow, at in begins), "arrows lead forward"


@pytest.mark.parametrize("seed", seeds(20))
def test_counters_count_what_runs(seed: int) -> None:
    run = draw_run(seed)
    for d, device in enumerate(run.job.machine.devices):
        mine = [e for e in chrome_events(run) if e["ph"] == "C" and f"tasks on {device.name}" in e["args"]]
        rows = run.device == d
        for e in mine:
            at = round(e["ts"] * 1000)
            running = (run.tasks["start_ns"][rows] <= at) & (at < run.tasks["end_ns"][rows])
            assert e["args"][f"tasks on {device.name}"] == int(running.sum())


def test_transfers_that_overlap_get_threads_of_their_own() -> None:
    builder = GraphBuilder("shared link")
    for name in "ab":
        builder.op(name, outputs=1000, device="gpu0", duration_ns=0)
        builder.op(f"to {name}", inputs=[name], device="gpu1", duration_ns=0)
    link = Link("wire", "gpu0", "gpu1", 0, 10**9, "shared")
    machine = Machine((Device("gpu0", streams=2), Device("gpu1")), (link,), network=make_network)
    run = simulate(builder.build(), machine, ReadyQueue())
    events = list(chrome_events(run))
    assert [(e["tid"], e["dur"], e["args"]["bytes"]) for e in events if e["name"].startswith("transfer")] == [
        (1, 2.0, 1000),
        (2, 2.0, 1000),
    ]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 2]
    assert names == ["wire", "wire (2)"]


def test_workers_launch_from_their_own_lanes() -> None:
    """A pool of CPU workers that serves a GPU has no host thread besides."""
    builder = GraphBuilder("pool")
    builder.op("a", duration_ns=10, device="cpu0")
    builder.op("b", inputs=["a"], duration_ns=10, device="gpu0")
    machine = Machine(
        (Device("cpu0", "cpu", workers=1), Device("gpu0", issue_ns=2)),
        hosts=(Host("pool", ("cpu0", "gpu0")),),
    )
    events = list(chrome_events(simulate(builder.build(), machine, ReadyQueue())))
    (launch,) = (e for e in events if e.get("cat") == "cuda_runtime")
    (op,) = (e for e in events if e.get("cat") == "cpu_op")
    assert (launch["pid"], launch["tid"]) == (op["pid"], op["tid"])
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"cpu0", "gpu0"}


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    write_chrome({"first": two_streams(), "second": two_streams()}, tmp_path / "both.json")
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == [f"{run}: {name}" for run in ("first", "second") for name in ("hosts", "gpu0", "cpu0")]
    begins = {(e["cat"], e["id"]): e["pid"] // 10_000 for e in events if e["ph"] == "s"}
    ends = [((e["cat"], e["id"]), e["pid"] // 10_000) for e in events if e["ph"] == "f"]
    assert len(begins) == len(ends) == 8
    assert dict(ends) == begins, "arrows stay in their run"
    assert len(events) == 2 * len(list(chrome_events(two_streams())))


def test_what_takes_no_time_is_shown_at_its_instant() -> None:
    builder = GraphBuilder("instants")
    for k, length in enumerate((5, 0, 0, 7, 0)):
        builder.op(f"op{k}", inputs=[f"op{k - 1}"] if k else [], duration_ns=length)
    run = simulate(builder.build(), Machine((Device("gpu0", streams=2),)), ReadyQueue())
    kernels = [(e["name"], *ns(e)) for e in chrome_events(run) if e.get("cat") == "kernel"]
    assert kernels == [("op0", 0, 5), ("op1", 5, 5), ("op2", 5, 5), ("op3", 5, 12), ("op4", 12, 12)]


def test_processes_and_threads_are_shown_in_the_order_of_the_machine() -> None:
    events = list(chrome_events(two_streams()))
    threads = [(e["tid"], e["args"]["sort_index"]) for e in events if e["name"] == "thread_sort_index"]
    assert len(threads) == 4
    assert all(index == tid - 1 for tid, index in threads)
    order = {e["args"]["sort_index"]: e["pid"] for e in events if e["name"] == "process_sort_index"}
    name = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [name[pid] for _, pid in sorted(order.items())] == ["hosts", "gpu0", "cpu0"]


def test_names_are_escaped(tmp_path: Path) -> None:
    builder = GraphBuilder("names")
    builder.op('quote " and \\ and ü', kind='k"', duration_ns=1)
    write_chrome(simulate(builder.build(), Machine((Device("gpu0"),)), ReadyQueue()), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert 'quote " and \\ and ü' in {e["name"] for e in events}


def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        write_chrome(two_streams(), tmp_path / "nowhere" / "t.json")
    assert list(tmp_path.iterdir()) == []


def test_what_a_gpu_runs_is_called_as_tools_know_it() -> None:
    """Collectives and copies by their kinds, recorded kernels by their names; a delay is no work of a GPU."""
    b = GraphBuilder("titles")
    for name, kind, kernel in (
        ("sum", "all_reduce", None),
        ("move", "copy", None),
        ("cat.1", "copy", "void CatArrayBatchedCopy<float>(float*)"),
        ("DtoH.2", "copy", "Memcpy DtoH (Device -> Pinned)"),
        ("Memset.3", "fill", "Memset (Device)"),
        ("delay.4", "delay", None),
        ("mm", "matmul", None),
    ):
        given = {"recorded_start_ns": 0} | ({} if kernel is None else {"kernel": kernel})
        b.op(name, kind=kind, duration_ns=10, device="gpu0", attributes=given)
        b.op(f"{name} on npu0", kind=kind, duration_ns=10, device="npu0")
    run = simulate(b.build(), Machine((Device("gpu0"), Device("npu0", "npu"))), ReadyQueue())
    slices = [e for e in chrome_events(run) if e["ph"] == "X" and e["cat"] != "cuda_runtime"]
    found = [(e["cat"], e["name"], e["args"].get("op"), "stream" in e["args"]) for e in slices]
    assert [each for each in found if "npu0" not in each[1]] == [
        ("kernel", "ncclDevKernel_AllReduce(sum)", "sum", True),
        ("gpu_memcpy", "Memcpy (move)", "move", True),
        ("kernel", "void CatArrayBatchedCopy<float>(float*)", "cat.1", True),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", "DtoH.2", True),
        ("gpu_memset", "Memset (Device)", "Memset.3", True),
        ("delay", "delay.4", None, False),
        ("kernel", "mm", None, True),
    ]
    assert {op for _, name, op, _ in found if "npu0" in name} == {None}
    use = time_use(run)["gpu0"]
    assert (use["compute"], use["communicate"], use["wait"]) == (20, 40, 10)
    calls = [e["name"] for e in chrome_events(run) if e.get("cat") == "cuda_runtime" and e["pid"] == 1]
    assert {*calls} == {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "launch"}


def test_devices_are_told_in_the_words_of_kineto(tmp_path: Path) -> None:
    builder = GraphBuilder("devices")
    for device in ("gpu1", "cpu0"):
        builder.op(device, duration_ns=1, device=device)
    machine = Machine(
        (
            Device("gpu0"),
            Device("cpu0", "cpu", workers=1),
            Device("gpu1", memory_bytes=2**30, gap_ns=1, launch_latency_ns=2),
        )
    )
    write_chrome(simulate(builder.build(), machine, ReadyQueue()), tmp_path / "t.json")
    content = json.loads((tmp_path / "t.json").read_text())
    own = {"launch_latency": 2, "gap": 1, "event_hop": 0}
    assert content["deviceProperties"] == [
        {"id": 0, "name": "gpu1", "kind": "gpu", "totalGlobalMem": 2**30} | own
    ]
    (op,) = (e for e in content["traceEvents"] if e["name"] == "gpu1")
    assert (op["args"]["device"], op["args"]["stream"]) == (0, 3)
