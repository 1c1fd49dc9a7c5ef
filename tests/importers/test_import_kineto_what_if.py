"""A recording is a model of the program: with other durations it runs as the program would have run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_programs import BLOCKING_COPY, Gpu, Run, gpu, host, operator, ran, sync
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import recorded

from scenarios.importers.kineto.kineto import load
from scenarios.recorded.setup import run_recorded
from sim import Graph

Load = Callable[..., Graph]


@pytest.fixture
def trace(tmp_path: Path) -> Load:
    """Return what writes events into a file, and loads it."""

    def write(*events: dict[str, Any], **options: Any) -> Graph:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": list(events)}))
        return load(path, **options)

    return write


def on_gpu(graph: Graph) -> np.ndarray:
    """Return which ops are tasks of the GPU."""
    return np.array([graph.pins[code].startswith("gpu") for code in graph.pin_code.tolist()])


def faster(graph: Graph, times: int) -> Graph:
    """Return the graph with a GPU so many times as fast."""
    ns = graph.duration_ns.copy()
    ns[on_gpu(graph)] //= times
    return replace(graph, duration_ns=ns)


def starts_and_ends(graph: Graph) -> tuple[dict[str, int], dict[str, int]]:
    """Return when each op starts and ends as soon as its edges allow."""
    start, end = [0] * len(graph), [0] * len(graph)
    predecessors, duration = graph.predecessors.lists(), graph.duration_ns.tolist()
    for op in graph.topological_order.tolist():
        start[op] = max((end[p] for p in predecessors[op]), default=0)
        end[op] = start[op] + duration[op]
    return dict(zip(graph.op_names, start, strict=True)), dict(zip(graph.op_names, end, strict=True))


def waiting_ns(graph: Graph) -> tuple[int, int]:
    """Return how long the host waits inside its calls, as recorded and as simulated."""
    start, end = starts_and_ends(graph)
    point: dict[tuple[str, str], int] = {}
    was = now = 0
    for op, name in enumerate(graph.op_names):
        own = graph.attributes.get(op, {})
        if "thread" in own:
            thread = graph.pins[graph.pin_code[op]], own["thread"]
            if "recorded_wait_ns" in own:
                was += own["recorded_wait_ns"]
                now += start[name] - point.get(thread, 0)
            point[thread] = end[name]
    return was, now


# -- any program ----------------------------------------------------------------------------------

STREAMS = st.sampled_from([7, 20])
EVENTS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("work"), st.integers(1, 40)),
    st.tuples(st.just("launch"), STREAMS),
    st.tuples(st.just("item"), STREAMS),
    st.tuples(st.just("record"), EVENTS, STREAMS),
    st.tuples(st.just("wait"), STREAMS, EVENTS),
    st.tuples(st.just("sync stream"), STREAMS),
    st.tuples(st.just("sync event"), EVENTS),
    st.tuples(st.just("sync device")),
)


@examples(60)
@given(st.lists(STEPS, max_size=30), st.randoms(use_true_random=False))
def test_the_recording_of_a_run_tells_any_other_run_of_the_program(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], random: Any
) -> None:
    """Recorded with some durations, simulated with others: every task starts when the program starts it."""
    program = [("launch", 7), *steps, ("launch", 7)]
    one, two = ([random.randint(1, 300) for _ in program] for _ in range(2))
    path = tmp_path_factory.mktemp("drawn") / "trace.json"
    was = ran(program, one, clock=1000)
    path.write_text(json.dumps({"traceEvents": was.events}))
    graph = load(path)
    assert "delay" not in graph.kinds
    task_of = tasks_of(graph, was)
    for durations in (one, two):
        ns = graph.duration_ns.copy()
        for op, task in task_of.items():
            ns[op] = 1000 * durations[task]
        start, _ = starts_and_ends(replace(graph, duration_ns=ns))
        run = ran(program, durations)
        assert [start[graph.op_names[op]] for op in task_of] == [
            1000 * run.start[i] for i in task_of.values()
        ]


PREFIX = [("launch", 7), ("launch", 7), ("record", 0, 7), ("wait", 20, 0), ("launch", 20)]
"""Shows the three of `Gpu`, if its tasks are long."""
TAKES = st.builds(Gpu, st.integers(0, 5), st.integers(0, 4), st.integers(0, 4))


@examples(40)
@given(st.lists(STEPS, max_size=20), TAKES, st.randoms(use_true_random=False))
def test_a_gpu_that_takes_time_itself_is_known_by_its_recording(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], takes: Gpu, random: Any
) -> None:
    """Gaps, hops and latencies are estimated exactly, and any other run of the program has them, too."""
    program = [*PREFIX, *steps, ("launch", 7)]
    one, two = ([random.randint(1, 300) for _ in program] for _ in range(2))
    one[:3] = two[:3] = [200] * 3
    path = tmp_path_factory.mktemp("drawn") / "trace.json"
    was = ran(program, one, takes=takes)
    path.write_text(json.dumps({"traceEvents": was.events}))
    graph = load(path)
    known = dict(zip(("launch_latency", "gap", "event_hop"), takes, strict=True))
    assert graph.device_facts["gpu"] == {key: f"{1000 * known[key]}ns" for key in graph.device_facts["gpu"]}
    assert "delay" not in graph.kinds
    task_of = tasks_of(graph, was)
    for durations in (one, two):
        ns = graph.duration_ns.copy()
        for op, task in task_of.items():
            ns[op] = 1000 * durations[task]
        trace, run = run_recorded(replace(graph, duration_ns=ns)), ran(program, durations, takes=takes)
        at = dict(zip(trace.tasks["op"].tolist(), trace.tasks["start_ns"].tolist(), strict=True))
        assert [at[op] for op in task_of] == [1000 * run.start[i] for i in task_of.values()]


def tasks_of(graph: Graph, run: Run) -> dict[int, int]:
    """Return which task of a run each op is: no two start at one time on one stream."""
    tasks = [event["args"]["stream"] for event in run.events if event["cat"] in ("kernel", "gpu_memcpy")]
    known = {(stream, 1000 * run.start[i]): i for i, stream in enumerate(tasks)}
    return {
        op: known[own["stream"], own["recorded_start_ns"]]
        for op, own in graph.attributes.items()
        if "kernel" in own
    }


# -- the rules, one by one ------------------------------------------------------------------------


def test_a_blocking_copy_waits(trace: Load) -> None:
    """1 ms of kernel, a copy to the host, 1 ms of kernel: with a GPU 100 times faster all takes 0.05 ms."""
    graph = trace(*BLOCKING_COPY)
    _, end = starts_and_ends(graph)
    assert end["b.2"] == 2_035_000
    start, end = starts_and_ends(faster(graph, 100))
    # launches are issued in 5 us: the copy until 15; it ends at 15.1, the call 5 us later, the launch 15 more
    assert (end["launch.1"], end["DtoH.1"], end["synchronize.1"]) == (15_000, 15_100, 20_100)
    assert (start["b.2"], end["b.2"]) == (35_100, 45_100)
    assert waiting_ns(graph) == (1_000_000, 1_000_000)
    assert waiting_ns(faster(graph, 100)) == (1_000_000, 100)


def test_the_host_works_as_long_as_before(trace: Load) -> None:
    """`.item()` in a loop: of 20 x 100 us of waiting next to nothing is left, of 20 x 30 us of work all."""
    program = [("work", 23), ("launch", 7), ("item", 7)] * 20
    graph = trace(*ran(program, [100, 1] * 20).events)
    was, now = waiting_ns(faster(graph, 100))
    assert was == 20 * 97_000  # 101 us of the GPU, less 4 us in which the copy is issued
    assert now == 20 * 10  # the copy
    _, end = starts_and_ends(faster(graph, 100))
    assert max(end.values()) == 20 * (23 + 4 + 4 + 3) * 1000 - 23_000 + 20 * 10


def test_what_it_takes_to_issue_a_copy_is_the_median_of_launches(trace: Load) -> None:
    """Launches of 5, 7 and 60 us; of copies that had nothing to wait for, those count alone: 9 us."""
    events = [
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 1000),
        host("cudaLaunchKernel", 2, 5, 7),
        gpu("b", 2, 1005, 10),
        host("cudaLaunchKernel", 3, 12, 60),
        gpu("c", 3, 1015, 10),
        host("cudaMemcpy", 4, 72, 1000),
        gpu("Memcpy DtoH (Device -> Pinned)", 4, 1025, 10, category="gpu_memcpy"),
    ]
    alone = [
        host("cudaMemcpy", 5, 2000, 15),
        gpu("Memcpy DtoH (Device -> Pinned)", 5, 2009, 1, category="gpu_memcpy"),
    ]
    for more, ns in (([], 7_000), (alone, 9_000)):
        graph = trace(*events, *more)
        assert graph.duration_ns[graph.index("launch.3")] == ns


def test_a_copy_within_the_device_does_not_wait(trace: Load) -> None:
    events = [
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 10),
        host("cudaMemcpy", 2, 5, 40),
        gpu("Memcpy DtoD (Device -> Device)", 2, 15, 10, category="gpu_memcpy"),
    ]
    assert "synchronize" not in trace(*events).kinds
    events[-1]["name"] = "Memcpy HtoD (Pinned -> Device)"
    assert "synchronize" in trace(*events).kinds


@pytest.mark.parametrize(
    ("direction", "call_us", "waits"),
    [("Pageable -> Device", 1020, True), ("Pageable -> Device", 5, False), ("Pinned -> Device", 5, False)],
)
def test_pageable_memory_is_staged_after_what_is_before_it(
    trace: Load, direction: str, call_us: int, waits: bool
) -> None:
    """A call that returns when the copy has begun waited for the kernel; small copies, and pinned, do not."""
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 1000),
        host("cudaMemcpyAsync", 2, 10, call_us),
        gpu(f"Memcpy HtoD ({direction})", 2, 1010, 50, category="gpu_memcpy"),
        host("cudaLaunchKernel", 3, 1040, 5),
        gpu("b", 3, 1060, 5),
    )
    start, _ = starts_and_ends(faster(graph, 100))
    assert (("a.0", "launch.1") in edges(graph)) == waits
    assert start["launch.2"] == (20_000 if waits else 15_000)


def test_a_small_copy_from_pageable_memory_waits_for_nothing(trace: Load) -> None:
    """Its call returns before the copy begins, though the kernel before it had long ended."""
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 10),
        host("cudaMemcpyAsync", 2, 50, 5),
        gpu("Memcpy HtoD (Pageable -> Device)", 2, 58, 1, category="gpu_memcpy"),
    )
    assert ("a.0", "launch.1") not in edges(graph)


def test_a_stream_is_through_when_what_it_waits_for_is(trace: Load) -> None:
    """The host waits for stream 7, which has nothing but a wait for stream 20."""
    program = [
        ("launch", 20),
        ("record", 0, 20),
        ("wait", 7, 0),
        ("record", 1, 7),
        ("sync stream", 7),
        ("launch", 7),
    ]
    for sync_ in (("sync stream", 7), ("sync event", 1)):
        program[4] = sync_
        graph = trace(*ran(program, [100, 1]).events)
        assert ("kernel.0", "synchronize.4") in edges(graph)
        assert starts_and_ends(faster(graph, 100))[0]["kernel.1"] == (4 * 4 + 4 + 3) * 1000


def test_an_event_of_an_older_trace_is_the_last_that_was_recorded(trace: Load) -> None:
    events = [
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 100),
        host("cudaEventRecord", 2, 5, 1),
        host("cudaLaunchKernel", 3, 6, 5),
        gpu("b", 3, 105, 100),
        host("cudaEventSynchronize", 4, 12, 95),
        host("cudaLaunchKernel", 5, 110, 5),
        gpu("c", 5, 205, 5),
    ]
    assert ("a.0", "synchronize.3") in edges(trace(*events))
    assert ("b.1", "synchronize.3") not in edges(trace(*events))
    noted = sync("Event Sync", 4, -1, wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1)
    assert edges(trace(*events, noted)) == edges(trace(*events))  # the profiler did not know


def test_the_thread_of_gradients_and_its_caller_take_turns(trace: Load) -> None:
    """The forward waits for the GPU; so the backward, on a thread of its own, begins later, and the rest."""
    gradient = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        operator("aten::mm", 0, 10, **{"Sequence number": 5}),
        host("cudaLaunchKernel", 1, 5, 5),
        gpu("forward", 1, 10, 100),
        host("cudaStreamSynchronize", 2, 20, 93),
        operator(gradient, 130, 30, tid=2, **{"Sequence number": 5}),
        host("cudaLaunchKernel", 3, 140, 5, tid=2),
        gpu("backward", 3, 145, 100),
        host("cudaLaunchKernel", 4, 145, 5, tid=2),
        gpu("ncclKernel_AllReduce_RING_LL_Sum_float", 4, 150, 60, stream=20),
        host("cudaStreamWaitEvent", 5, 152, 1, tid=2),
        host("cudaLaunchKernel", 6, 200, 5),
        gpu("step", 6, 245, 10),
    ]
    graph = trace(*events)
    assert ("ncclKernel_AllReduce_RING_LL_Sum_float.2", "step.3") in edges(graph)
    threads = {own["thread"] for own in graph.attributes.values() if "thread" in own}
    assert threads == {"thread0"}
    chain = [
        ("launch.0", "host.1"),
        ("host.1", "synchronize.1"),
        ("synchronize.1", "launch.2"),
        ("launch.2", "launch.3"),
    ]
    assert edges(graph) >= {*chain, ("forward.0", "synchronize.1")}
    start, _ = starts_and_ends(faster(graph, 100))
    # from 0: launched at 5, done at 6; the call at 15 ends 3 us later; 32 us until the backward is launched
    assert start["backward.1"] == 15_000 + 3_000 + 32_000
    own = operator(gradient, 165, 5, **{"Sequence number": 5})  # the caller runs gradients of its own
    assert edges(trace(*events, own)) == edges(graph)
    other = operator(gradient, 165, 5, tid=3, **{"Sequence number": 5})  # two GPUs, two threads: side by side
    with pytest.warns(UserWarning, match=r"2 thread\(s\) run gradients"):
        assert ("synchronize.1", "launch.2") not in edges(trace(*events, other))


def test_an_older_trace_numbers_the_thread_of_the_forward(trace: Load) -> None:
    """PyTorch 1.8 has no ``evaluate_function``, and writes threads of operators as strings."""
    events = [
        operator("aten::mm", 0, 10, tid="1", **{"Sequence number": 5, "Fwd thread id": 0}),
        host("cudaLaunchKernel", 1, 5, 5),
        gpu("forward", 1, 10, 10),
        operator("MmBackward", 30, 20, tid="2", **{"Sequence number": 5, "Fwd thread id": 1}),
        host("cudaLaunchKernel", 2, 40, 5, tid=2),
        gpu("backward", 2, 45, 10),
        host("cudaLaunchKernel", 3, 60, 5),
        gpu("step", 3, 65, 10),
    ]
    assert edges(trace(*events)) >= {("launch.0", "launch.1"), ("launch.1", "launch.2")}


def test_the_oldest_traces_do_not_number_operators(trace: Load) -> None:
    """The caller of the backward is the only other thread that calls the GPU, and quiet meanwhile."""
    events = [
        operator("aten::mm", 0, 10),
        host("cudaLaunchKernel", 1, 5, 5),
        gpu("forward", 1, 10, 10),
        operator("MmBackward", 30, 20, tid=2),
        host("cudaLaunchKernel", 2, 40, 5, tid=2),
        gpu("backward", 2, 45, 10),
        operator("torch::autograd::AccumulateGrad", 52, 3, tid=2),
        host("cudaLaunchKernel", 3, 60, 5),
        gpu("step", 3, 65, 10),
    ]
    found = trace(*events)
    assert edges(found) >= {("launch.0", "launch.1"), ("launch.1", "launch.2")}
    assert sum(found.duration_ns[found.pin_code == found.pins.index("cpu")].tolist()) == 60_000
    for busy in (host("cudaLaunchKernel", 4, 53, 1), host("cudaMemsetAsync", 4, 2, 1, tid=3)):
        with pytest.warns(UserWarning, match=r"1 thread\(s\) run gradients, and it is not clear who waits"):
            assert ("launch.1", "launch.2") not in edges(trace(*events, busy))


@pytest.mark.parametrize(("apart", "waits"), [(8, True), (10, True), (11, False)])
def test_clocks_that_are_apart(trace: Load, apart: int, waits: bool) -> None:
    """A synchronising call of MI300X ends up to 8.5 us before the last kernel, by the clocks of both."""
    graph = trace(
        host("hipLaunchKernel", 1, 0, 5),
        gpu("kernel", 1, 10, 90),
        host("hipDeviceSynchronize", 2, 20, 80 - apart),
        host("hipLaunchKernel", 3, 150, 5),
        gpu("next", 3, 155, 10),
    )
    assert (("kernel.0", "synchronize.1") in edges(graph)) == waits
    start, _ = starts_and_ends(faster(graph, 100))
    assert start["next.1"] == (20_000 + 55_000 if waits else 155_000)  # called at 20; launched 55 us later


def test_what_a_process_group_waits_for_itself_holds_no_kernel(trace: Load) -> None:
    """The join after the launch, inside the group's operator, is none; the one outside is."""
    events = [
        operator("c10d::allreduce_", 0, 20),
        host("cudaStreamWaitEvent", 1, 1, 1),
        host("cudaLaunchKernel", 2, 3, 5),
        gpu("ncclKernel_AllReduce_RING_LL_Sum_float", 2, 8, 10, stream=20),
        host("cudaStreamWaitEvent", 3, 12, 1),
        host("cudaLaunchKernel", 4, 30, 5),
        gpu("a", 4, 35, 5),
        host("cudaStreamWaitEvent", 5, 40, 1),
        host("cudaLaunchKernel", 6, 50, 5),
        gpu("b", 6, 55, 5),
    ]
    nccl = "ncclKernel_AllReduce_RING_LL_Sum_float.0"
    assert {edge for edge in edges(trace(*events, host="none")) if nccl in edge} == {(nccl, "b.2")}


def test_a_gap_that_nothing_explains_stays(trace: Load) -> None:
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 25, 10),  # 20 us after its launch: the device's
        host("cudaLaunchKernel", 2, 10, 5),
        gpu("b", 2, 135, 10),  # 100 us after the kernel before it
    )
    start, _ = starts_and_ends(graph)
    delay = graph.index("delay.1")
    assert (start["delay.1"], graph.duration_ns[delay]) == (15_000, 100_000)
    assert start["b.1"] == 115_000
    assert graph.attributes[delay] == {"stream": 7, "recorded_start_ns": 35_000}


def test_launches_before_the_trace_begins(trace: Load) -> None:
    """Nobody knows what they waited for: the time before them, and between them, stays."""
    events = [gpu("a", 1, 0, 10), gpu("b", 2, 60, 10), host("cudaDeviceSynchronize", 3, 20, 55)]
    with pytest.warns(UserWarning, match="2 of 2 GPU tasks have no launch in the trace"):
        graph = trace(*events)
    start, end = starts_and_ends(graph)
    assert (start["b.1"], end["synchronize.0"]) == (60_000, 75_000)
    assert waiting_ns(graph) == (50_000, 50_000)


def edges(graph: Graph) -> set[tuple[str, str]]:
    """Return producer and consumer of every edge."""
    names, found = graph.op_names, graph.edges
    return {
        (names[a], names[b]) for a, b in zip(found.producer.tolist(), found.consumer.tolist(), strict=True)
    }


# -- recordings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "waits_us"),
    [
        pytest.param("a100_training_rank3", 74_647, marks=pytest.mark.slow),
        ("h100_qwen_0_5b", 16_261),
        ("v100_dlrm_8_ranks/rank0", 1_955),
        ("v100_dlrm_8_ranks/rank4", 4_802),
        ("v100_dlrm_8_ranks/rank6", 370),
    ],
)
@pytest.mark.filterwarnings("ignore:.* GPU tasks have no launch")
def test_a_faster_gpu_takes_the_waiting_away(name: str, waits_us: int) -> None:
    """At 100 times the speed at least 80 % of it is gone, and the host's own work is all there."""
    graph = load(recorded(f"kineto/{name}.json.gz"))
    was, now = waiting_ns(graph)
    assert was // 1000 == waits_us
    assert now <= was
    _, left = waiting_ns(faster(graph, 100))
    assert left <= 0.2 * was
    host_ns = graph.duration_ns[~on_gpu(graph)]
    assert (faster(graph, 100).duration_ns[~on_gpu(graph)] == host_ns).all()
