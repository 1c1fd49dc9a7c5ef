"""All ranks of a job from the recording of one: who meets whom, and how long transfers take."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from chakra_files import host, kernel, node, trace_of
from cli_runner import sim

from scenarios.importers import load_graph
from scenarios.recorded.changes import ManyRanks
from scenarios.recorded.many_ranks import on_layout
from scenarios.recorded.setup import run_recorded
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.base.errors import InputError, ScenarioError
from sim.graph.graph import Graph


def layout(parallel, **more):
    return ManyRanks(parallel=parallel, **more)


def task(at: int, dur: int, correlation: int, name: str = "gemm", stream: int = 7, **args: Any) -> list[Any]:
    """A launch, and what it launched."""
    of = {"ph": "X", "args": {"correlation": correlation, "device": 0, "stream": stream, **args}}
    call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at - 2, "dur": 2}
    return [of | call, of | {"cat": "kernel", "name": name, "ts": at, "dur": dur}]


def reduce(at: int, dur: int, correlation: int, *, group: str = "0", ranks: Any = None, n: int = 256) -> list[Any]:  # fmt: skip  # noqa: E501
    """An all-reduce of so many floats, on the stream of its process group."""
    of: dict[str, Any] = {
        "In msg nelems": n,
        "Out msg nelems": n,
        "dtype": "Float",
        "Process Group Name": group,
    }
    if isinstance(ranks, int):
        of |= {"Group size": ranks}
    elif ranks is not None:
        of |= {"Process Group Ranks": str(ranks), "Group size": len(ranks)}
    return task(at, dur, correlation, "ncclDevKernel_AllReduce", 20 + int(group), **of)


def trace(folder: Path, *tasks: list[Any], name: str = "trace.json", **more: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({"traceEvents": [event for each in tasks for event in each], **more}))
    return path


STEP = [task(2, 10, 1), reduce(13, 40, 2), task(60, 10, 3), reduce(71, 4, 4)]
"""Two all-reduces of one size: the first waited for another rank."""


def times(graph: Graph, word: str) -> dict[str, tuple[int, int]]:
    trace = run_recorded(graph)
    trace.check()
    rows = zip(*(trace.tasks[name].tolist() for name in ("op", "start_ns", "end_ns")), strict=True)
    return {graph.op_names[op]: (a // 1000, b // 1000) for op, a, b in rows if word in graph.op_names[op]}


def scenario(folder: Path, ranks: str, rest: str = "") -> Path:
    path = folder / "s.yaml"
    path.write_text(f"name: ranks\nworkload: {{kineto: trace.json, ranks: {ranks}}}\n{rest}")
    return path


def test_transfers_are_the_shortest_of_their_size(tmp_path: Path) -> None:
    graph = on_layout(load_graph(trace(tmp_path, *STEP)), layout({"dp": 2}))
    calls = [op for op in range(len(graph)) if graph.kind(op) == "all_reduce"]
    assert [graph.op_names[op].partition("/")[0] for op in calls] == ["rank0", "rank0", "rank1", "rank1"]
    assert graph.duration_ns[calls].tolist() == 4 * [4000]
    assert [graph.attributes[op]["communicator"] for op in calls] == 4 * ["dp"]
    assert [graph.attributes[op]["recorded_ns"] for op in calls] == [40_000, 4000, 40_000, 4000]
    assert sorted(graph.pins) == ["cpu0", "cpu1", "gpu0", "gpu1"]
    kept = on_layout(load_graph(trace(tmp_path, *STEP)), layout({"dp": 2}, collectives="recorded"))
    assert kept.duration_ns[calls].tolist() == [40_000, 4000, 40_000, 4000]


def test_recorded_ranks_are_not_folded(tmp_path: Path) -> None:
    trace(tmp_path, *STEP)
    done = sim("run", scenario(tmp_path, "{parallel: {dp: 2}}", "fold: true"))
    assert done.exit_code == 2
    assert "fold: ranks of a recording are not folded: each has a host beside its GPU" in done.stderr


def test_equal_ranks_are_what_a_recording_of_all_would_be(tmp_path: Path) -> None:
    """Against the importer of several ranks: two equal recordings of one program."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(2):
        trace(folder, *STEP, name=f"{rank}.json", distributedInfo={"rank": rank, "world_size": 2})
    both = load_graph(folder, format="kineto")
    made = on_layout(load_graph(trace(tmp_path, *STEP)), layout({"dp": 2}, collectives="recorded"))
    assert sorted(made.op_names) == sorted(both.op_names)
    assert times(made, "") == times(both, "")


def test_groups_are_told_by_their_ranks(tmp_path: Path) -> None:
    steps = [reduce(2, 5, 1, group="1", ranks=[0, 1]), reduce(9, 5, 2, group="2", ranks=[0, 2])]
    steps.append(reduce(16, 5, 3, group="3", ranks=[0, 1, 2, 3]))
    graph = on_layout(load_graph(trace(tmp_path, *steps)), layout({"dp": 2, "tp": 2}))
    found: dict[str, list[str]] = {}
    for op in range(len(graph)):
        if "communicator" in graph.attributes.get(op, {}):
            found.setdefault(graph.op_names[op][:5], []).append(graph.attributes[op]["communicator"])
    assert found == {
        "rank0": ["tp0", "dp0", "tp-dp"],
        "rank1": ["tp0", "dp1", "tp-dp"],
        "rank2": ["tp1", "dp0", "tp-dp"],
        "rank3": ["tp1", "dp1", "tp-dp"],
    }
    other = on_layout(load_graph(tmp_path / "trace.json"), layout({"dp": 2, "tp": 2}, order="dp-tp"))
    assert other.attributes[other.index("rank1/ncclDevKernel_AllReduce.0")]["communicator"] == "dp0"


def test_groups_are_told_by_their_sizes(tmp_path: Path) -> None:
    """A job of other ranks than were recorded: two of four are alike in size, and have to be told."""
    steps = [reduce(2, 5, 1, group="1", ranks=4), reduce(9, 5, 2, group="2", ranks=[50, 57])]
    graph = load_graph(trace(tmp_path, *steps))
    made = on_layout(graph, layout({"tp": 2, "dp": 4}))
    assert [
        made.attributes[made.index(f"rank3/ncclDevKernel_AllReduce.{k}")]["dimension"] for k in (0, 1)
    ] == ["dp", "tp"]
    with pytest.raises(InputError, match=r"the group '2' .* has 2 ranks, which fits tp and cp of the layout"):
        on_layout(graph, layout({"tp": 2, "cp": 2, "dp": 4}))
    assert on_layout(graph, layout({"tp": 2, "cp": 2, "dp": 4}, groups={"2": "cp"})).n_edges


def test_a_late_rank_makes_others_wait(tmp_path: Path) -> None:
    """All on one stream, launched at the begin; what rank 1 does, transfers too, takes twice as long."""
    steps = [task(2, 10, 1), reduce(12, 4, 2), task(16, 10, 3), reduce(26, 4, 4)]
    events = [event for each in steps for event in each]
    for event in events:
        event["args"]["stream"] = 7
        if event["cat"] == "cuda_runtime":
            event |= {"ts": 0, "dur": 2} if event["args"]["correlation"] == 1 else {"ts": 2, "dur": 0}
    trace(tmp_path, events)
    run = run_scenario(load_scenario(scenario(tmp_path, "2", "noise: {devices: {gpu1: 2}}\n"))).trace
    run.check()
    graph, late = run.job.graph, {}
    for op, start, end in zip(*(run.tasks[k].tolist() for k in ("op", "start_ns", "end_ns")), strict=True):
        if graph.kind(op) == "all_reduce":
            late.setdefault(graph.op_names[op][:5], []).append((start // 1000, end // 1000))
    assert late == {"rank0": [(12, 30), (40, 58)], "rank1": [(22, 30), (50, 58)]}


def test_the_machine_says_what_collectives_take(tmp_path: Path) -> None:
    trace(tmp_path, *STEP)
    path = scenario(
        tmp_path,
        "{parallel: {dp: 2}, collectives: machine}",
        "machine:\n  preset: recorded\n  links: [{from: gpu0, to: gpu1, bandwidth: 1GB/s, duplex: true}]\n"
        "  collectives: {model: formula, algorithm: ring}\n",
    )
    run = run_scenario(load_scenario(path)).trace
    ops = [op for op in range(len(run.job.graph)) if run.job.graph.kind(op) == "all_reduce"]
    took = dict(
        zip(run.tasks["op"].tolist(), (run.tasks["end_ns"] - run.tasks["start_ns"]).tolist(), strict=True)
    )
    assert [took[op] for op in ops] == 4 * [1024]  # 2 (2 - 1) / 2 of 1,024 bytes at 1 GB/s


def test_chakra_traces_have_ranks_too(tmp_path: Path) -> None:
    path = tmp_path / "t.et"
    nccl = kernel(4, "ncclAllGather", 20, by=3, us=9, type=7, comm_type=2, comm_size=100, pg_name="0")
    path.write_bytes(
        trace_of(host(1, "mm", us=1), kernel(2, "k", by=1, us=5), host(3, "c10d::x", us=1), nccl)
    )
    graph = on_layout(load_graph(path), layout({"dp": 4}))
    op = graph.index("rank2/ncclAllGather#4")
    assert (graph.attributes[op]["communicator"], int(graph.bytes_written[op])) == ("dp", 400)
    assert times(graph, "rank2/nccl") == {"rank2/ncclAllGather#4": (6, 15)}


def test_traces_of_generators_have_ranks_too(tmp_path: Path) -> None:
    """No streams and no times: the collective takes what the machine says, on eight ranks."""
    reduce = node(2, "sum", 7, us=0, data=[1], comm_type=0, comm_size=8_000_000, is_cpu_op=False)
    (tmp_path / "t.0.et").write_bytes(trace_of(node(1, "fwd", us=5, is_cpu_op=False), reduce))
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: ranks\nmachine:\n  devices: {gpu: {kind: gpu, count: 8}}\n"
        "  collectives: {algorithm: ring, bandwidth: 1GB/s}\n"
        "workload: {chakra: t.0.et, ranks: 8}\n"
    )
    assert run_scenario(load_scenario(path)).trace.makespan_ns == 5000 + 14_000_000  # 2 x 7/8 of 8 MB


def test_sizes_that_are_not_known_are_told(tmp_path: Path) -> None:
    steps = [task(2, 10, 1), task(13, 40, 2, "ncclKernel_AllReduce", 20)]
    graph = load_graph(trace(tmp_path, *steps))
    with pytest.warns(UserWarning, match="sizes of collectives are not known, 1 of 1: they keep"):
        made = on_layout(graph, layout({"dp": 2}))
    assert made.duration_ns[made.is_kind("all_reduce")].tolist() == [40_000, 40_000]
    with pytest.raises(InputError, match="lacks sizes of collectives, 1 of 1"):
        on_layout(graph, layout({"dp": 2}, collectives="machine"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_layout(graph, layout({"dp": 2}, collectives="recorded"))


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ("{parallel: {pp: 2}}", r"workload\.ranks\.pp: stages of a pipeline run programs of their own"),
        ("{parallel: {dp: 3}}", r"workload\.ranks: the group '1' .* has 2 ranks, which fits no dimension"),
        ("{parallel: {dp: 2}, groups: {x: dp}}", r"workload\.ranks\.groups\.x: no collective .* is on 'x'"),
        ("{parallel: {dp: 2}, groups: {'1': tp}}", r"workload\.ranks\.groups\.1: 'tp' is no dimension"),
        ("{parallel: {dp: 2}, order: tp}", r"workload\.ranks\.order: order has to name each of dp once"),
        ("{parallel: {dp: 200000}}", "200,?000 ranks"),
        ("0", r"workload\.ranks"),
        ("{dp: 2}", r"workload\.ranks\.dp: no such key; .*parallel"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(tmp_path: Path, ranks: str, says: str) -> None:
    trace(tmp_path, reduce(2, 5, 1, group="1", ranks=[0, 1]))
    with pytest.raises(ScenarioError, match=says):
        load_scenario(scenario(tmp_path, ranks)).graph  # noqa: B018
    done = sim("run", tmp_path / "s.yaml")
    assert (done.exit_code, "Traceback" in done.stderr) == (2, False)


def test_only_recordings_of_one_gpu_are_put_on_ranks(tmp_path: Path) -> None:
    from sim import GraphBuilder

    b = GraphBuilder("none")
    b.op("a", duration_ns=1)
    with pytest.raises(InputError, match="the recording is none: no op says where it ran"):
        on_layout(b.build(), layout({"dp": 2}))
    graph = on_layout(load_graph(trace(tmp_path, *STEP)), layout({"dp": 2}))
    with pytest.raises(InputError, match="is of several ranks already"):
        on_layout(graph, layout({"dp": 2}))
