"""Our own traces come back: what is read from the file of a run runs as that run did, to the nanosecond."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from communicator_helpers import draw_collectives, draw_ranks
from drawn_runs import DrawnStreams, draw_graph, draw_run
from examples import seeds
from import_helpers import columns, recorded
from trace_examples import two_streams

from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.streams import Recorded
from scenarios.importers import convert, load_graph
from scenarios.importers.kineto.kineto import load
from scenarios.ops.control_flow import cond
from scenarios.recorded.setup import as_recorded, run_recorded
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Device, Graph, GraphBuilder, Machine, Trace, simulate
from sim.base.errors import InputError
from sim.explain.communication import transfers_on_links
from sim.export.chrome import write_chrome, write_ranks
from sim.job.costs import issue_costs_ns
from sim.machine.device import Details

EXAMPLES = Path(__file__).parents[2] / "scenarios" / "examples"

Ran = Counter[tuple[str, str, int, int]]


def what_ran(run: Trace) -> Ran:
    """Count (name, device, start, end) of everything that a run did: ops, launches, links crossed."""
    graph, tasks, moved = run.job.graph, run.tasks, run.transfers
    device = [run.job.machine.devices[d].name for d in run.device.tolist()]
    begin = tasks["issue_ns"] - issue_costs_ns(run.job)[tasks["op"]]
    issuers = run.job.machine.issuers()
    found: Ran = Counter()
    for row in np.flatnonzero(run.executed).tolist():
        name = graph.op_names[int(tasks["op"][row])]
        if name.startswith("delay."):
            continue
        found[name, device[row], int(tasks["start_ns"][row]), int(tasks["end_ns"][row])] += 1
        issuer = issuers[int(tasks["issuer"][row])]
        if begin[row] < tasks["issue_ns"][row] and run.job.launched[tasks["op"][row]]:
            who = run.job.machine.stream_name(issuer.stream).split("/")[0] if issuer.executes else "hosts"
            found[f"launch.{name}", who, int(begin[row]), int(tasks["issue_ns"][row])] += 1
    for row in transfers_on_links(run)[0].tolist():
        name = f"transfer {graph.tensor_name(int(moved['tensor'][row]))}"
        found[name, "links", int(moved["start_ns"][row]), int(moved["end_ns"][row])] += 1
    return found


def what_came_back(again: Trace) -> Ran:
    """Count the same of a run of what was read, but for delays; the second run of op a is called a#1."""
    graph, tasks = again.job.graph, again.tasks
    found: Ran = Counter()
    for row, op in enumerate(tasks["op"].tolist()):
        if not graph.op_names[op].startswith("delay."):
            name, device = graph.op_names[op].split("#")[0], graph.pins[int(graph.pin_code[op])]
            found[name, device, int(tasks["start_ns"][row]), int(tasks["end_ns"][row])] += 1
    return found


def check_returns(run: Trace, path: Path) -> Graph:
    """Assert that the run read from a file, or a folder, is the one that wrote it; return the graph."""
    graph = load(path)
    again = run_recorded(graph)
    again.check()
    assert again.makespan_ns == run.makespan_ns
    assert what_came_back(again) == what_ran(run)
    was = as_recorded(graph)
    assert len(was.op) == len(graph), "and says itself when it ran"
    row = np.argsort(again.tasks["op"])
    assert again.tasks["start_ns"][row].tolist() == was.start_ns.tolist()
    assert again.tasks["end_ns"][row].tolist() == was.end_ns.tolist()
    return graph


# -- textbook -----------------------------------------------------------------------------------


def durations(graph: Graph) -> dict[str, int]:
    return dict(zip(graph.op_names, graph.duration_ns.tolist(), strict=True))


def test_edges_are_those_of_the_run_and_latency_and_gap_the_devices(tmp_path: Path) -> None:
    """launch a 0 to 3, a from 5 (latency 2) to 15, launch b 3 to 6, b from 16 (gap 1)."""
    b = GraphBuilder("two")
    b.op("a", duration_ns=10)
    b.op("b", inputs=["a"], duration_ns=20)
    machine = Machine((Device("gpu0", issue_ns=3, launch_latency_ns=2, gap_ns=1),))
    run = simulate(b.build(), machine, ReadyQueue(synchronisation="issue"))
    assert run.tasks["start_ns"].tolist() == [5, 16]
    write_chrome(run, tmp_path / "t.json")
    graph = check_returns(run, tmp_path / "t.json")
    predecessors = {
        name: {graph.op_names[p] for p in graph.predecessors.row(op)}
        for op, name in enumerate(graph.op_names)
    }
    assert predecessors == {
        "launch.a": set(), "launch.b": {"launch.a"}, "a": {"launch.a"}, "b": {"launch.b", "a"}
    }  # fmt: skip
    assert durations(graph) == {"launch.a": 3, "launch.b": 3, "a": 10, "b": 20}
    assert graph.device_facts == {"gpu0": {"launch_latency": "2ns", "gap": "1ns", "event_hop": "0ns"}}
    assert graph.attributes[graph.index("launch.a")] == {
        "thread": "gpu0/host", "call": "cudaLaunchKernel", "recorded_start_ns": 0
    }  # fmt: skip


def two_kernels(tmp_path: Path, gap_ns: int) -> Graph:
    """Two on two streams; the second is launched, without cost, when the first has ended; latency 7 ns."""
    b = GraphBuilder("two")
    b.op("a", duration_ns=10, attributes={"stream": 0})
    b.op("b", inputs=["a"], duration_ns=20, attributes={"stream": 1})
    machine = Machine((Device("gpu0", streams=2, launch_latency_ns=7, gap_ns=gap_ns),))
    run = simulate(b.build(), machine, ReadyQueue(), streams=Recorded())
    write_chrome(run, tmp_path / "t.json")
    return check_returns(run, tmp_path / "t.json")


def test_what_nothing_explains_is_a_delay(tmp_path: Path) -> None:
    """The launch that cost nothing is not there; of the 7 ns behind a, the gap behind the delay takes 5."""
    graph = two_kernels(tmp_path, gap_ns=5)
    assert durations(graph) == {"a": 10, "delay.b": 2, "b": 20}
    assert graph.device_facts["gpu0"]["gap"] == "5ns"


def test_a_device_without_facts_where_a_delay_would_come_too_late(tmp_path: Path) -> None:
    """7 ns are less than the gap behind any delay."""
    graph = two_kernels(tmp_path, gap_ns=9)
    assert durations(graph) == {"delay.a": 7, "a": 10, "delay.b": 7, "b": 20}
    assert graph.device_facts == {}


def test_a_host_that_waits_for_results_does_so_again(tmp_path: Path) -> None:
    b = GraphBuilder("two")
    b.op("a", duration_ns=10)
    b.op("b", inputs=["a"], duration_ns=20)
    run = simulate(b.build(), Machine((Device("gpu0", issue_ns=3),)), ReadyQueue())
    write_chrome(run, tmp_path / "t.json")
    graph = check_returns(run, tmp_path / "t.json")
    assert "delay" not in graph.kinds
    waits = graph.predecessors.row(graph.index("launch.b")).tolist()
    assert {graph.op_names[p] for p in waits} == {"launch.a", "a"}


def test_collectives_meet_again(tmp_path: Path) -> None:
    """Rank 1 comes 30 ns late: it has the transfer, and the others wait for it again."""
    b = GraphBuilder("two ranks")
    for rank, ns in enumerate((20, 50)):
        b.op(f"work@{rank}", duration_ns=ns, device=f"gpu{rank}")
        b.op(
            f"sum@{rank}",
            kind="all_reduce",
            after=[f"work@{rank}"],
            duration_ns=7,
            device=f"gpu{rank}",
            attributes={"communicator": "dp"},
        )
    run = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue())
    write_chrome(run, tmp_path / "t.json")
    graph = check_returns(run, tmp_path / "t.json")
    for rank, waited in enumerate((30, 0)):
        op = graph.index(f"sum@{rank}")
        assert graph.duration_ns[op] == 7
        assert graph.attributes[op] == {
            "stream": rank + 1,
            "communicator": "dp",
            "kernel": f"ncclDevKernel_AllReduce(sum@{rank})",
            "recorded_start_ns": 50 - waited,
            "recorded_ns": 7 + waited,
        }


def test_views_of_one_instant_follow_one_another_in_any_order_of_files(tmp_path: Path) -> None:
    b = GraphBuilder("views")
    b.op("a", duration_ns=10, device="gpu1")
    b.op("made", kind="reshape", inputs=["a"], device="gpu1")
    b.op("read", kind="reshape", inputs=["made"], device="gpu0")
    run = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), InOrder(), iterations=2)
    write_ranks(run, tmp_path)
    check_returns(run, tmp_path)


def test_a_switch_leaves_no_gap_again(tmp_path: Path) -> None:
    b = GraphBuilder("branch")
    b.op("x", duration_ns=10)
    b.op("go", duration_ns=10, attributes={"outcome": True})
    one, other = (lambda b, v, name=name: [b.op(name, inputs=[v["x"]], duration_ns=10)] for name in "ab")
    cond(b, "if", "go", ["x"], one, other)
    run = simulate(b.build(), Machine((Device("gpu0", gap_ns=3),)), ReadyQueue())
    write_chrome(run, tmp_path / "t.json")
    assert check_returns(run, tmp_path / "t.json").device_facts["gpu0"]["gap"] == "3ns"


def test_a_rank_that_stands_for_several_meets_itself_again(tmp_path: Path) -> None:
    b = GraphBuilder("a ring of folded ranks")
    b.op("work", duration_ns=9, device="gpu0")
    for stream, kind in enumerate(("send", "recv")):
        given = {"communicator": "pp", "peer": "gpu0", "pair": 0, "group": "ring", "stream": stream}
        after = ["work"] if kind == "recv" else []
        b.op(kind, kind=kind, after=after, duration_ns=5, device="gpu0", attributes=given)
    run = simulate(b.build(), Machine((Device("gpu0", streams=2),)), ReadyQueue(), streams=Recorded())
    write_chrome(run, tmp_path / "t.json")
    graph = check_returns(run, tmp_path / "t.json")
    assert len(graph.in_communicators) == 2
    assert durations(graph)["send"] == 5


# -- any run ------------------------------------------------------------------------------------


def ops_of(graph: Graph) -> dict[str, tuple[object, ...]]:
    """Return all of every op by name: what several files hold at one instant has no order among them."""
    names = graph.op_names
    return {
        name: (
            graph.kind(k),
            *(int(column[k]) for column in (graph.duration_ns, graph.bytes_read, graph.bytes_written)),
            graph.pins[int(graph.pin_code[k])],
            graph.attributes.get(k),
            sorted(names[other] for other in graph.after.row(k).tolist()),
        )
        for k, name in enumerate(names)
    }


@pytest.mark.parametrize("seed", seeds(120))
def test_any_run_comes_back(seed: int, tmp_path: Path) -> None:
    """Streams, several devices, workers, hosts, links, loops over iterations; from a file or a folder."""
    run = draw_run(seed)
    write_chrome(run, tmp_path / "t.json")
    graph = check_returns(run, tmp_path / "t.json")
    if any(not run.job.machine.devices[d].workers for d in run.device.tolist()):
        write_ranks(run, tmp_path / "ranks")
        assert ops_of(check_returns(run, tmp_path / "ranks")) == ops_of(graph)


@pytest.mark.parametrize("seed", seeds(60))
def test_any_collectives_come_back(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(1, 5))
    graph = draw_collectives(rng, ranks, int(rng.integers(1, 15)), distances=seed % 3 == 0)
    policy = InOrder(synchronisation=("issue", "completion")[seed % 2])
    run = simulate(graph, draw_ranks(rng, ranks), policy, streams=Recorded(), iterations=1 + seed % 3)
    write_chrome(run, tmp_path / "t.json")
    back = check_returns(run, tmp_path / "t.json")
    assert len(back.in_communicators) == len(graph.in_communicators) * (1 + seed % 3)


@pytest.mark.parametrize("seed", seeds(40))
def test_what_is_read_is_a_model_of_the_run(seed: int, tmp_path: Path) -> None:
    """With other durations it runs as the program would have, if nothing but edges and streams decides."""
    rng = np.random.default_rng(seed)
    graph = draw_graph(rng, int(rng.integers(1, 30)), distances=False)
    machine = Machine((Device("d0", "gpu", streams=int(rng.integers(1, 4))),))

    def ran(durations: np.ndarray) -> Trace:
        policy = InOrder(synchronisation="issue")
        return simulate(
            replace(graph, duration_ns=durations), machine, policy, streams=DrawnStreams(), seed=seed
        )

    write_chrome(ran(graph.duration_ns), tmp_path / "t.json")
    back = load(tmp_path / "t.json")
    assert "delay" not in back.kinds
    other = rng.integers(0, 60, len(graph))
    mine = np.array([other[graph.index(name)] for name in back.op_names])
    assert what_came_back(run_recorded(replace(back, duration_ns=mine))) == what_ran(ran(other))


@pytest.mark.parametrize(
    "name", ["unet", "loop", "rendezvous", "worker_fails", "recv_blocks_forward", "pageable"]
)
def test_examples_come_back(name: str, tmp_path: Path) -> None:
    """Allocators, branches, loops, asynchronous ops, failures, group calls: their schedules do."""
    run = run_scenario(load_scenario(EXAMPLES / f"{name}.yaml")).trace
    write_chrome(run, tmp_path / "t.json")
    check_returns(run, tmp_path / "t.json")


@pytest.mark.parametrize(
    "name",
    [
        "h100_bert_small.json.gz",
        pytest.param("v100_dlrm_8_ranks", marks=pytest.mark.slow),
        pytest.param("h100_qwen_0_5b.json.gz", marks=pytest.mark.slow),
    ],
)
def test_a_recording_goes_round(name: str, tmp_path: Path) -> None:
    """recording → graph → run → trace → graph → run: the second graph has the same ops as the first."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no launch in the trace")
        first = load(recorded(f"kineto/{name}"))
    run = run_recorded(first)
    write_ranks(run, tmp_path / "ranks")
    second = check_returns(run, tmp_path / "ranks")
    assert Counter(second.op_names) == Counter(first.op_names)
    ns = {op: int(n) for op, n in zip(first.op_names, first.duration_ns, strict=True)}
    assert {op: int(n) for op, n in zip(second.op_names, second.duration_ns, strict=True)} == ns
    # A trace of a simulation does not say which GPU the simulated one stands for.
    times = {
        name: {k: v for k, v in own.items() if k != "description"} for name, own in first.device_facts.items()
    }
    assert second.device_facts == {name: own for name, own in times.items() if {*own.values()} != {"0ns"}}
    kinds = {op: first.kind(k) for k, op in enumerate(first.op_names)}
    assert {op: second.kind(k) for k, op in enumerate(second.op_names)} == kinds


def test_through_a_graph_file_and_the_format_is_found(tmp_path: Path) -> None:
    run = two_streams()
    write_chrome(run, tmp_path / "t.json.gz")
    convert(tmp_path / "t.json.gz", tmp_path / "graph.json.gz")
    assert columns(load_graph(tmp_path / "graph.json.gz")) == columns(load_graph(tmp_path / "t.json.gz"))
    assert what_came_back(run_recorded(load_graph(tmp_path / "graph.json.gz"))) == what_ran(run)
    alone = load(tmp_path / "t.json.gz", host="none")
    assert [*alone.op_names] == ["a", "b"]


# -- what cannot come back ----------------------------------------------------------------------


def test_an_npu_comes_back_without_its_units(tmp_path: Path) -> None:
    b = GraphBuilder("npu")
    b.op("a", duration_ns=10)
    device = Device("npu0", "npu", streams=2, details=Details(sms=4))
    run = simulate(b.build(), Machine((device,)), ReadyQueue())
    write_chrome(run, tmp_path / "t.json")
    with pytest.warns(UserWarning, match=r"t\.json: npu0 is an NPU; .* without the units of its cores"):
        check_returns(run, tmp_path / "t.json")


def changed(path: Path, change: Any) -> None:
    data = json.loads(path.read_text())
    for event in data["traceEvents"]:
        change(data, event)
    path.write_text(json.dumps(data))


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    b = GraphBuilder("two ranks")
    for rank in range(2):
        given = {"communicator": "dp"}
        b.op(f"sum@{rank}", kind="all_reduce", duration_ns=7_000, device=f"gpu{rank}", attributes=given)
        b.op(f"then@{rank}", after=[f"sum@{rank}"], duration_ns=1_000, device=f"gpu{rank}")
    run = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue())
    write_chrome(run, tmp_path / "t.json")
    return tmp_path / "t.json"


def test_collectives_that_did_not_end_together_keep_their_times(two_ranks: Path) -> None:
    def shorter(_: Any, event: Any) -> None:
        if event["ph"] == "X" and "sum@1" in event["name"]:
            event["dur"] = 5.5

    changed(two_ranks, shorter)
    with pytest.warns(UserWarning, match=r"communicator 'dp' did not end together on all ranks"):
        graph = load(two_ranks)
    assert graph.in_communicators == []
    assert [int(graph.duration_ns[graph.index(f"sum@{rank}")]) for rank in range(2)] == [7_000, 5_500]
    assert int(graph.duration_ns[graph.index("delay.then@1")]) == 1_500


def begins_early(_: Any, event: Any) -> None:
    if event["name"] == "then@0":
        event["ts"] = 6


def says_two_runs(data: Any, _: Any) -> None:
    data["simulated"]["runs"] = 2


def loses_a_name(_: Any, event: Any) -> None:
    if event["name"] == "thread_name":
        event["name"] = "x"


def feeds_from_nobody(_: Any, event: Any) -> None:
    if "after" in event.get("args", {}):
        event["args"]["after"] = ["x"]


def waits_for_text(_: Any, event: Any) -> None:
    if "after" in event.get("args", {}):
        event["args"]["after"] = "x"


def has_no_kind(_: Any, event: Any) -> None:
    if "kind" in event.get("args", {}):
        event["args"]["kind"] = 5


def has_no_devices(data: Any, _: Any) -> None:
    data.pop("deviceProperties", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (waits_for_text, r"t\.json: traceEvents\[\d+\]: after is no list but 'x'"),
        (has_no_kind, r"t\.json: traceEvents\[\d+\]: kind is no text but 5"),
        (has_no_devices, r"t\.json: was written by a simulation, and has no deviceProperties any more"),
        (begins_early, r"t\.json: then@0 begins before sum@0 ends, for which it waited"),
        (says_two_runs, r"t\.json: holds 2 runs; write a trace of each"),
        (loses_a_name, r"t\.json: traceEvents\[\d+\]: no \(10, 1\)"),
        (feeds_from_nobody, r"t\.json: then@0 waited for what is not in the trace"),
    ],
)
def test_traces_that_were_changed_are_refused(change: Any, message: str, two_ranks: Path) -> None:
    changed(two_ranks, change)
    with pytest.raises(InputError, match=message):
        load(two_ranks)


def test_runs_side_by_side_are_refused(tmp_path: Path) -> None:
    write_chrome({"one": two_streams(), "two": two_streams()}, tmp_path / "t.json")
    with pytest.raises(InputError, match="holds 2 runs"):
        load(tmp_path / "t.json")


def test_one_rank_of_a_run_is_read_with_delays_in_place_of_the_others(tmp_path: Path) -> None:
    b = GraphBuilder("two")
    b.op("a", duration_ns=10, device="gpu0")
    b.op("b", inputs=["a"], duration_ns=5, device="gpu1")
    run = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue())
    write_ranks(run, tmp_path / "ranks")
    with pytest.warns(UserWarning, match="1 other ranks are missing"):
        graph = load(tmp_path / "ranks" / "rank1.json.gz")
    assert dict(zip(graph.op_names, graph.duration_ns.tolist(), strict=True)) == {"delay.b": 10, "b": 5}
    write_chrome(two_streams(), tmp_path / "ranks" / "rank0.json.gz")
    with pytest.raises(InputError, match=r"rank1\.json\.gz: is of another run than .*rank0\.json\.gz"):
        load(tmp_path / "ranks")


def test_half_of_the_ranks_are_refused(two_ranks: Path, tmp_path: Path) -> None:
    write_ranks(two_streams(), tmp_path / "ranks")
    (tmp_path / "ranks" / "rank1.json").write_text('{"traceEvents": []}')
    with pytest.raises(InputError, match=r"rank0\.json\.gz: was written by a simulation, and not all others"):
        load(tmp_path / "ranks")
