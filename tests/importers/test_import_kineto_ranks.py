"""The ranks of a job, recorded one by one, run together: on one clock, and their collectives meet."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from cuda_programs import Run, Step, gpu, host, ran
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import recorded
from runs import checked
from scenario_texts import write

from devices.machine import make_machine
from policies.issue.ready_queue import ReadyQueue
from policies.streams import Recorded
from scenarios.file.document import Document
from scenarios.importers import load_graph
from scenarios.recorded.select import Names
from scenarios.recorded.setup import run_recorded
from scenarios.variants.sweep import stamps
from scenarios.variants.variant import points_of
from sim import Graph, GraphBuilder
from sim.base.errors import InputError
from sim.explain.idle import idle_reasons
from sim.job.noise import Noise
from sim.trace import Trace
from studies.recorded_ranks import (
    as_recorded,
    as_simulated,
    load_ranks,
    scaled,
    waiting_ns,
    without_waiting,
)


def together(
    programs: Sequence[Sequence[Step]],
    durations: Sequence[Sequence[int]],
    transfers: Sequence[int],
    **more: Any,
) -> list[Run]:
    """Run the programs of ranks: collectives end when the last rank has come and the transfer is over.

    Starts with collectives that take no time, and lets them end later until nothing changes.
    """
    ends = [0] * len(transfers)
    while True:
        runs = [
            ran(program, own, ends=ends, **{key: value[rank] for key, value in more.items()})
            for rank, (program, own) in enumerate(zip(programs, durations, strict=True))
        ]
        found = [
            max(run.start[run.collectives[k]] for run in runs) + transfer
            for k, transfer in enumerate(transfers)
        ]
        if found == ends:
            return runs
        ends = found


def record(folder: Path, runs: Sequence[Run], **known: Any) -> Path:
    """Write what was recorded of each rank."""
    for rank, run in enumerate(runs):
        info = {"backend": "nccl", "rank": rank, "world_size": len(runs)} | known
        content = {"distributedInfo": info, "traceEvents": run.events}
        (folder / f"rank{rank}.json").write_text(json.dumps(content))
    return folder


def simulated(graph: Graph, ranks: int, noise: Noise | None = None) -> Trace:
    """Run them on GPUs that cost nothing themselves."""
    devices = {
        "gpu": {"kind": "gpu", "count": ranks, "streams": 4},
        "cpu": {"kind": "cpu", "count": ranks, "cores": 2},
    }
    policy = ReadyQueue(synchronisation="issue")
    return checked(graph, make_machine({"devices": devices}), policy, streams=Recorded(), noise=noise)


def starts(trace: Trace) -> dict[str, int]:
    """Return when each op starts, in ns."""
    names = trace.job.graph.op_names
    return {
        names[op]: ns
        for op, ns in zip(trace.tasks["op"].tolist(), trace.tasks["start_ns"].tolist(), strict=True)
    }


TWO = [[("launch", 7), ("collective", 20)], [("work", 100), ("launch", 7), ("collective", 20)]]
"""Rank 1 comes 100 us later."""
SCENARIO = """\
machine:
  devices:
    gpu: {kind: gpu, count: 2, streams: 2}
    cpu: {kind: cpu, count: 2, cores: 1}
workload: {kineto: WHAT}
policy: {name: ready-queue, synchronisation: issue, streams: recorded}
"""

NCCL = "ncclKernel_AllReduce_RING_LL_Sum_float"


def test_a_late_rank_by_hand(tmp_path: Path) -> None:
    """By clocks that are 5 ms apart. What rank 0 was recorded to wait is no time of its collective."""
    runs = together(TWO, [[10, 0], [10, 0]], [8], clock=[1000, 6000])
    graph = load_graph(record(tmp_path, runs), format="kineto")
    assert graph.name == tmp_path.name
    assert {*graph.pins} == {"gpu0", "gpu1", "cpu0", "cpu1"}
    own = [graph.attributes[graph.index(f"rank{rank}/{NCCL}.1")] for rank in (0, 1)]
    # by one clock rank 0 starts at 8 and rank 1 at 108 us; both end at 116
    assert [each["recorded_start_ns"] for each in own] == [8_000, 108_000]
    assert [each["recorded_ns"] for each in own] == [108_000, 8_000]
    assert {each["communicator"] for each in own} == {"nccl0"}
    collectives = [graph.index(f"rank{rank}/{NCCL}.1") for rank in (0, 1)]
    assert graph.duration_ns[collectives].tolist() == [8_000, 8_000]
    trace = simulated(graph, 2)
    assert trace.makespan_ns == 116_000
    assert starts(trace)[f"rank0/{NCCL}.1"] == 8_000
    ends = dict(zip(trace.tasks["op"].tolist(), trace.tasks["end_ns"].tolist(), strict=True))
    assert [ends[op] for op in collectives] == [116_000, 116_000]


def test_recordings_that_begin_at_different_times(tmp_path: Path) -> None:
    """Rank 1's begins 300 us later: nobody knows what it did before, and that time stays."""
    runs = together(TWO, [[10, 0], [10, 0]], [8], begin=[0, 300])
    graph = load_graph(record(tmp_path, runs), format="kineto")
    before = graph.index("rank1/before.thread0")
    assert graph.duration_ns[before] == 400_000  # its trace begins with its first call, after 100 us of work
    assert simulated(graph, 2).makespan_ns == 416_000
    assert Names(graph).find("cpu1").any()
    assert not Names(graph).find("cpu1")[before]


def test_a_straggler_makes_the_others_wait(tmp_path: Path) -> None:
    """Rank 0's kernel takes 10, then 210 us: now rank 1 waits for it."""
    programs = [[("launch", 7), ("record", 0, 7), ("wait", 20, 0), ("collective", 20)]] * 2
    was = together(programs, [[10, 0], [20, 0]], [8])
    graph = load_graph(record(tmp_path, was), format="kineto")
    kernel = graph.index("rank0/kernel.0")
    ns = graph.duration_ns.copy()
    ns[kernel] = 210_000
    trace = simulated(replace(graph, duration_ns=ns), 2)
    now = together(programs, [[210, 0], [20, 0]], [8])
    assert trace.makespan_ns == 1000 * max(run.end[1] for run in now) == 222_000
    late = [idle_reasons(run)["gpu1"].get("late rank", 0) for run in (simulated(graph, 2), trace)]
    assert late == [0, 190_000]


def test_collectives_of_several_ranks_keep_their_sizes(tmp_path: Path) -> None:
    """By the kernel, or by the range around its launch; only of an all-to-all they may differ."""
    runs = together([[("collective", 20)] * 5] * 2, [[0] * 5] * 2, [10] * 5)
    for rank, run in enumerate(runs):
        kernels = [event for event in run.events if event["name"] == NCCL]
        launches = {event["args"]["correlation"]: event for event in run.events if event not in kernels}
        for n, event in enumerate(kernels):
            if n == 0:
                event["args"] |= {"dtype": "BFloat16", "In msg nelems": 8, "Out msg nelems": 8}
            elif n == 1:
                event["args"] |= {"dtype": "Float", "In msg nelems": 8 + rank, "Out msg nelems": 8}
            elif n in (2, 3):
                call = launches[event["args"]["correlation"]]
                shape = {"Input Dims": [[3, 4 + rank * (n - 2)], [1]], "Input type": ["float", "long int"]}
                name = ("nccl:all_reduce", "nccl:all_to_all")[n - 2]
                run.events.append({**call, "cat": "user_annotation", "name": name, "args": shape})
                inside = {**call, "cat": "user_annotation", "name": "record_param_comms", "args": {}}
                run.events.append(inside)  # which says nothing of sizes
                event["name"] = (NCCL, "ncclKernel_SendRecv")[n - 2]
    graph = load_graph(record(tmp_path, runs), format="kineto")
    sizes = [
        (int(graph.bytes_read[op]), int(graph.bytes_written[op]))
        for op, own in sorted(graph.attributes.items(), key=lambda item: item[1]["recorded_start_ns"])
        if "communicator" in own
    ]
    assert sizes == [(16, 16)] * 2 + [(0, 0)] * 2 + [(56, 56)] * 2 + [(56, 0), (68, 0)] + [(0, 0)] * 2
    simulated(graph, 2)


@pytest.mark.parametrize("named", [True, False])
def test_two_communicators(tmp_path: Path, named: bool) -> None:
    """By the process groups that the traces name, or by streams in the order of their first kernel.

    Two kernels are at once under way, and the ranks number their streams differently.
    """
    programs = [
        [("collective", first), ("collective", second), ("work", late), ("launch", 7)]
        for first, second, late in ((20, 21, 5), (30, 31, 50))
    ]
    runs = together(programs, [[0, 0, 10]] * 2, [40, 30])
    if named:
        for run in runs:
            for event in run.events:
                if event["name"] == NCCL:
                    which = event["args"]["stream"] % 10
                    event["args"] |= {"Process Group Name": f"g{which}", "Process Group Ranks": "[0, 1]"}
    graph = load_graph(record(tmp_path, runs), format="kineto")
    found = {
        (own["stream"], own["communicator"]) for own in graph.attributes.values() if "communicator" in own
    }
    names = ("g0", "g1") if named else ("nccl0", "nccl1")
    assert found == {(20, names[0]), (21, names[1]), (30, names[0]), (31, names[1])}
    trace = simulated(graph, 2)
    assert starts(trace)[f"rank0/{NCCL}.1"] == 8_000  # beside the first, which ends at 44 us
    assert trace.makespan_ns == 1000 * max(max(run.end) for run in runs)


def groups_of_four(folder: Path, *streams: int) -> Path:
    """Write four ranks in two groups of one name, and in one of all; with the collectives of some streams.

    They come to their pair's at 14, 24, 34 and 44 us, which end at 32 and 52, and to that of all 4 us later.
    """
    runs = []
    for rank in range(4):
        program = [("work", 10 * (rank + 1)), ("collective", 20), ("collective", 21)]
        run = ran(program, [0, 0], ends=[32 if rank < 2 else 52, 56], clock=rank * 777)
        run.events = [e for e in run.events if e["name"] != NCCL or e["args"]["stream"] in streams]
        for event in run.events:
            if event["name"] == NCCL:
                pair = [0, 1] if rank < 2 else [2, 3]
                of_pair = event["args"]["stream"] == 20
                event["args"]["Process Group Name"] = "tp" if of_pair else "world"
                event["args"]["Process Group Ranks"] = str(pair if of_pair else [0, 1, 2, 3])
        runs.append(run)
    return record(folder, runs)


def test_groups_of_one_name_and_other_ranks_are_others(tmp_path: Path) -> None:
    graph = load_graph(groups_of_four(tmp_path, 20, 21), format="kineto")
    found = {
        (graph.op_names[op][:5], own["communicator"], int(graph.duration_ns[op]))
        for op, own in graph.attributes.items()
        if "communicator" in own
    }
    tp = {("rank0", "tp"), ("rank1", "tp"), ("rank2", "tp.1"), ("rank3", "tp.1")}
    assert found == {(*each, 8_000) for each in (*tp, *((f"rank{rank}", "world") for rank in range(4)))}
    assert simulated(graph, 4).makespan_ns == 46_000  # the first recording begins at 10 us


def test_clocks_that_nothing_connects_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rank 2 has no collective that ends together with one of rank 0"):
        load_graph(groups_of_four(tmp_path, 20), format="kineto")


def test_kernels_of_pairs_do_not_meet(tmp_path: Path) -> None:
    runs = together([[("collective", 20), ("collective", 21)]] * 2, [[0, 0]] * 2, [8, 8])
    for run in runs:
        for event in run.events:
            if event["name"] == NCCL and event["args"]["stream"] == 21:
                event["args"]["Collective name"] = "send"
    with pytest.warns(UserWarning, match="2 kernels send or receive between two ranks, and it is not clear"):
        graph = load_graph(record(tmp_path, runs), format="kineto")
    assert sum("communicator" in own for own in graph.attributes.values()) == 2


STAGES = [
    [("launch", 7), ("record", 1, 7), ("wait", 20, 1), ("collective", 20)] * 2 + [("collective", 21)],
    [("collective", 20), ("record", 1, 20), ("wait", 7, 1), ("launch", 7)] * 2 + [("collective", 21)],
]
"""A pipeline of two ranks and two micro-batches, which sums something up in the end."""


def stages(forward: Sequence[int]) -> list[Run]:
    """Record it: what a forward takes on each rank, and sends of 8 us, which wait for their recvs."""
    durations = [[forward[0], 0] * 2 + [0], [0, forward[1]] * 2 + [0]]
    runs = together(STAGES, durations, [8, 8, 8], clock=[0, 777])
    for rank, run in enumerate(runs):
        side = (
            {"Collective name": "recv", "Src Rank": 0} if rank else {"Collective name": "send", "Dst Rank": 1}
        )
        for event in run.events:
            if event["name"] == NCCL and event["args"]["stream"] == 20:
                event["args"] |= side
    return runs


@pytest.mark.parametrize("other", [(50, 90), (200, 30), (1, 1)])
def test_a_recv_waits_for_its_send(tmp_path: Path, other: tuple[int, int]) -> None:
    graph = load_graph(record(tmp_path, stages((50, 30))), format="kineto")
    assert {own["communicator"] for own in graph.attributes.values() if "peer" in own} == {"nccl.0-1"}
    assert graph.kind(graph.index(f"rank1/{NCCL}.0")) == "recv"
    ns = graph.duration_ns.copy()
    for op, name in enumerate(graph.op_names):
        if graph.kind(op) == "kernel":
            ns[op] = 1000 * other[name.startswith("rank1")]
    for each, run in ((graph, stages((50, 30))), (replace(graph, duration_ns=ns), stages(other))):
        assert simulated(each, 2).makespan_ns == 1000 * max(max(own.end) for own in run)


def test_a_send_that_was_buffered_does_not_wait(tmp_path: Path) -> None:
    """Both ends of the first last 1 ms longer; the second is over when rank 1, 1 ms late, asks for it."""
    runs = stages((50, 30))
    nccl = [[event for event in run.events if event["name"] == NCCL] for run in runs]
    for event in nccl[1]:
        event["ts"] += 1000
    for event in (nccl[0][0], nccl[0][2]):
        event["dur"] += 1000
    with pytest.warns(
        UserWarning, match="1 sends ended before their recvs began, as what they sent was buff"
    ):
        graph = load_graph(record(tmp_path, runs), format="kineto")
    assert sum("peer" in own for own in graph.attributes.values()) == 2


def test_clocks_go_by_the_median(tmp_path: Path) -> None:
    """Of three collectives the first ended 2 us earlier on rank 1, by a clock that is 500 us fast."""
    programs = [[("collective", 20)] * 3] * 2
    runs = together(programs, [[0] * 3] * 2, [8] * 3, clock=[0, 500])
    [first, *_] = [event for event in runs[1].events if event["name"] == NCCL]
    first["dur"] -= 2
    graph = load_graph(record(tmp_path, runs), format="kineto")
    own = [graph.attributes[graph.index(f"rank{rank}/{NCCL}.2")] for rank in (0, 1)]
    assert own[0]["recorded_start_ns"] == own[1]["recorded_start_ns"] == 20_000


def test_clocks_that_drift_apart(tmp_path: Path) -> None:
    """Rank 1 comes 5 us later, by a clock that gains 60 us a second: 600 us from the first to the second."""
    ten_s = 10**7
    programs = [
        [("work", late), ("collective", 20), *[("work", ten_s), ("collective", 20)] * 2] for late in (0, 5)
    ]
    runs = together(programs, [[0] * 3] * 2, [8] * 3)
    for event in runs[1].events:
        begin, end = (at * (1 + 60e-6) for at in (event["ts"], event["ts"] + event["dur"]))
        event |= {"ts": begin, "dur": end - begin}
    graph = load_graph(record(tmp_path, runs), format="kineto")
    own = [graph.attributes[graph.index(f"rank{rank}/{NCCL}.0")]["recorded_ns"] for rank in (0, 1)]
    assert own == [13_000, 8_000]
    assert graph.duration_ns[graph.index(f"rank0/{NCCL}.0")] == 8_000


def test_a_wait_that_one_rank_cannot_have_had_is_none(tmp_path: Path) -> None:
    """An older trace does not say for what stream 7 waits; on rank 0 it went on beside the collective."""
    runs = []
    for at in (30, 60):
        events = [
            host("cudaLaunchKernel", 1, 0, 4),
            gpu(NCCL, 1, 4, 46, stream=20),
            host("cudaStreamWaitEvent", 2, 10, 4),
            host("cudaLaunchKernel", 3, at - 4, 4),
            gpu("kernel", 3, at, 5),
        ]
        runs.append(Run(events))
    record(tmp_path, runs)
    graph = load_graph(tmp_path, format="kineto")
    consumers = {graph.op_names[op] for op in graph.edges.consumer.tolist()}
    assert consumers >= {"rank0/kernel.1", "rank1/kernel.1"}
    from_nccl = {
        graph.op_names[b]
        for a, b in zip(graph.edges.producer.tolist(), graph.edges.consumer.tolist(), strict=True)
        if NCCL in graph.op_names[a]
    }
    assert from_nccl == set()
    alone = load_graph(tmp_path / "rank1.json")
    assert f"{NCCL}.0" in {alone.op_names[op] for op in alone.edges.producer.tolist()}


def test_a_changed_rank_is_not_resumed(tmp_path: Path) -> None:
    """What a sweep keeps of an interrupted run goes by the content of all traces in the folder."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    path = write(tmp_path, SCENARIO.replace("WHAT", "ranks"))
    points = points_of(["seed=1"])
    found = []
    for transfer in (8, 8, 9):
        record(folder, together(TWO, [[10, 0], [10, 0]], [transfer]))
        found.append(stamps(Document.read(path), points))
    assert found[0] == found[1] != found[2]


def test_exposed_communication_by_hand(tmp_path: Path) -> None:
    """Rank 0 computes from 4 to 14 us and communicates from 8 to 116; rank 1 from 104 to 114, 108 to 116."""
    graph = load_ranks(record(tmp_path, together(TWO, [[10, 0], [10, 0]], [8], clock=[0, 50])))
    for spans in (as_recorded(graph), as_simulated(run_recorded(graph))):
        assert spans.exposed.tolist() == [102_000, 2_000]
        assert spans.waited.tolist() == [100_000, 0]
        assert spans.span.tolist() == [116_000, 16_000]  # rank 1's recording begins at 100 us
    note = "  collectives recorded on one rank alone: what they waited for other ranks is in bandwidth\n"
    alone, both = (sim("explain", path).stdout for path in (tmp_path / "rank0.json", tmp_path))
    assert f"102 us  bandwidth 102 us\n{note}" in alone
    assert "102 us  straggler 100 us, bandwidth 2 us" in both
    assert note not in both
    nobody = as_simulated(run_recorded(without_waiting(graph)))
    assert nobody.exposed.tolist() == [2_000, 2_000]


def test_ranks_become_a_graph_file(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    record(folder, together(TWO, [[10, 0], [10, 0]], [8]))
    done = sim("import", folder, "--out", tmp_path / "g.json")
    assert (done.exit_code, "kineto and chakra read one with the ranks" in done.stderr) == (2, True)
    assert sim("import", folder, "--out", tmp_path / "g.json", "--format", "kineto").exit_code == 0
    assert simulated(load_graph(tmp_path / "g.json"), 2).makespan_ns == 116_000
    with pytest.raises(
        InputError, match=r"rank0\.json and 1 more: of several files the format must be given"
    ):
        load_graph([folder / "rank0.json", folder / "rank1.json"])


# -- any programs ---------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(1, 40)),
        st.tuples(st.just("launch"), st.sampled_from([7, 20])),
        st.tuples(st.just("item"), st.sampled_from([7, 20])),
        st.just(("record", 0, 7)),
        st.just(("record", 1, 20)),
        st.just(("wait", 20, 0)),
        st.just(("wait", 7, 1)),
        st.tuples(st.just("sync stream"), st.sampled_from([7, 20])),
        st.just(("sync device",)),
    ),
    max_size=6,
)
RANK = st.lists(STEPS, min_size=4, max_size=4)
"""What a rank does before, between and after three collectives."""


@examples(30)
@given(st.lists(RANK, min_size=2, max_size=3), st.randoms(use_true_random=False))
def test_recorded_ranks_tell_any_other_run_of_the_job(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[list[list[Step]]], random: Any
) -> None:
    """Recorded with some durations and clocks, simulated with others: every task starts when it should."""
    folder = tmp_path_factory.mktemp("job")
    programs = [
        [("launch", 7), *a, ("collective", 20), *b, ("collective", 20), *c, ("collective", 20), *d]
        for a, b, c, d in ranks
    ]
    one, two = ([[random.randint(1, 300) for _ in program] for program in programs] for _ in range(2))
    moves = [[random.randint(1, 50) for _ in range(3)] for _ in range(2)]
    was = together(programs, one, moves[0])
    clocks = [random.randint(0, 10**6) for _ in programs]
    graph = load_graph(record(folder, together(programs, one, moves[0], clock=clocks)), format="kineto")
    streams = [
        [event["args"]["stream"] for event in run.events if event["cat"] in ("kernel", "gpu_memcpy")]
        for run in was
    ]
    known = {
        (rank, streams[rank][i], 1000 * start): i
        for rank, run in enumerate(was)
        for i, start in enumerate(run.start)
    }
    task_of = {
        op: (rank, known[rank, own["stream"], own["recorded_start_ns"]])
        for op, own in graph.attributes.items()
        if "kernel" in own
        for rank in [int(graph.op_names[op][len("rank")])]
    }
    assert len(task_of) == len(known)
    for durations, transfers in ((one, moves[0]), (two, moves[1])):
        ns = graph.duration_ns.copy()
        runs = together(programs, durations, transfers)
        for op, (rank, i) in task_of.items():
            meets = "communicator" in graph.attributes[op]
            ns[op] = 1000 * (transfers[runs[rank].collectives.index(i)] if meets else durations[rank][i])
        start = starts(simulated(replace(graph, duration_ns=ns), len(programs)))
        assert {op: start[graph.op_names[op]] for op in task_of} == {
            op: 1000 * runs[rank].start[i] for op, (rank, i) in task_of.items()
        }


# -- eight ranks of DLRM --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dlrm() -> Graph:
    """Return the eight ranks of a step of DLRM on V100, together."""
    folder = recorded("kineto/v100_dlrm_8_ranks")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* GPU tasks have no launch in the trace")
        return load_graph(folder, format="kineto")


def test_a_slow_gpu_is_the_one_of_its_whole_number() -> None:
    b = GraphBuilder("two")
    for k in (1, 10):
        b.op(f"kernel{k}", duration_ns=10, device=f"gpu{k}")
    assert scaled(b.build(), "gpu1", 2.0).duration_ns.tolist() == [20, 10]


@pytest.mark.slow
def test_the_ranks_of_dlrm_meet_as_recorded(dlrm: Graph) -> None:
    trace = simulated(dlrm, 8)
    start = starts(trace)
    ends = dict(zip(trace.tasks["op"].tolist(), trace.tasks["end_ns"].tolist(), strict=True))
    members = [op for op, own in dlrm.attributes.items() if "communicator" in own]
    assert len(members) == 8 * 8
    by_end = sorted({ends[op] for op in members})
    assert len(by_end) == 8  # each collective ends on all ranks at one instant
    for op in members:
        own = dlrm.attributes[op]
        assert abs(own["recorded_start_ns"] - start[dlrm.op_names[op]]) < 100_000
        assert own["recorded_start_ns"] + own["recorded_ns"] == pytest.approx(ends[op], abs=100_000)


@pytest.mark.slow
def test_exposed_communication_of_dlrm(dlrm: Graph) -> None:
    """As in docs/importers.md: within 1 % of the recording, and 0.03 ms; spans within 0.3 %."""
    was, now = as_recorded(dlrm), as_simulated(run_recorded(dlrm))
    assert was.exposed.tolist() == [
        *[5_537_000, 11_056_000, 3_217_000, 9_450_000, 6_550_000, 6_211_000, 3_289_000, 1_580_000]
    ]
    assert now.exposed == pytest.approx(was.exposed, rel=0.01, abs=30_000)
    assert now.span == pytest.approx(was.span, rel=0.003)
    assert now.waited == pytest.approx(was.waited, rel=0.01, abs=30_000)
    nobody = as_simulated(run_recorded(without_waiting(dlrm)))
    assert (nobody.exposed < 220_000).all()
    together_, alone = waiting_ns(run_recorded(scaled(dlrm, "gpu", 0.01))), waiting_ns(run_recorded(dlrm))
    assert together_[1] > 0.98 * alone[1]  # they wait for hosts of other ranks


@pytest.mark.slow
def test_a_straggler_among_the_ranks_of_dlrm(dlrm: Graph) -> None:
    """Rank 2's host takes 20 % longer: the others wait for it, and rank 2 for nobody."""
    late = [
        {name: why.get("late rank", 0) for name, why in idle_reasons(simulated(dlrm, 8, noise)).items()}
        for noise in (None, Noise(devices={"cpu2": 1.2}))
    ]
    assert all(late[1][f"gpu{rank}"] > late[0][f"gpu{rank}"] for rank in range(8) if rank != 2)
    assert late[1]["gpu2"] < late[0]["gpu2"]
