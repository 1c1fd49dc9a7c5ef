"""What calls of a recording mean where the profiler says little, and kernels that begin early: by hand."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cuda_programs import gpu, host, ran, sync
from test_import_kineto_what_if import starts_and_ends, tasks_of

from scenarios.importers.kineto.kineto import load
from scenarios.recorded.changes import WhatIf, apply_changes
from scenarios.recorded.setup import as_recorded, run_recorded
from scenarios.variants.what_ifs import WhatIfs, standard_trials, try_all, what_if
from sim import Graph

US = 1000


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., Graph]:
    """Return what writes events into a file, and loads it."""

    def write(*events: dict[str, Any]) -> Graph:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": [*events]}))
        return load(path)

    return write


def starts(graph: Graph, **changes: Any) -> dict[str, int]:
    """Return when each op starts after changes, in us."""
    after = apply_changes(graph, [WhatIf.model_validate(changes)]) if changes else graph
    return {name: at // US for name, at in starts_and_ends(after)[0].items()}


@pytest.mark.parametrize("free", ["cudaFree", "cudaFreeHost", "hipFree", "hipHostFree", "cuMemFree_v2"])
def test_memory_is_freed_when_the_device_is_through(trace: Callable[..., Graph], free: str) -> None:
    """It takes 20 us itself once a has ended; with a of half the time it begins, and ends, 50 us earlier."""
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 100),
        host(free, 2, 10, 115),
        host("cudaLaunchKernel", 3, 125, 5),
        gpu("b", 3, 130, 10),
    )
    assert starts(graph)["b.1"] == 130
    assert starts(graph, scale={"a": "x0.5"})["b.1"] == 80
    assert starts(graph, scale={"a": "x2"})["b.1"] == 230
    assert starts(graph, host="x2")["b.1"] == 10 + 100 + 2 * 25


@pytest.mark.parametrize("free", ["cudaFreeAsync", "cudaFree"])
def test_memory_that_is_freed_while_kernels_run_waits_for_none(
    trace: Callable[..., Graph], free: str
) -> None:
    """Of the pool of a stream; or by a call that came back before the kernel ended."""
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 100),
        host(free, 2, 10, 20),
        host("cudaLaunchKernel", 3, 30, 5),
        gpu("b", 3, 105, 10),
        host("cudaLaunchKernel", 4, 110, 5),
        gpu("c", 4, 115, 10),
    )
    assert starts(graph, scale={"a": "x0.01"})["c.2"] == 115


def test_a_device_is_waited_for_alone(trace: Callable[..., Graph]) -> None:
    """Two GPUs of a process, of which the host waits for the first; the profiler noted which."""
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 100),
        host("cudaLaunchKernel", 2, 5, 5),
        gpu("b", 2, 10, 50, device=1),
        host("cudaDeviceSynchronize", 3, 10, 95),
        sync("Context Sync", 3, 4294967295),
        host("cudaLaunchKernel", 4, 105, 5),
        gpu("c", 4, 110, 10),
    )
    assert starts(graph, scale={"b": "x10"})["c.2"] == 110
    assert starts(graph, scale={"a": "x2"})["c.2"] == 210


def test_an_event_of_an_older_trace_was_over_when_the_wait_was(trace: Callable[..., Graph]) -> None:
    """Two buffers in turn: the host waits for the event before the last, as b was not through."""
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 100),
        host("cudaEventRecord", 2, 5, 1),
        host("cudaLaunchKernel", 3, 6, 5),
        gpu("b", 3, 105, 100),
        host("cudaEventRecord", 4, 11, 1),
        host("cudaEventSynchronize", 5, 12, 95),
        host("cudaLaunchKernel", 6, 210, 5),
        gpu("c", 6, 215, 5),
    )
    assert starts(graph, scale={"a": "x0.5"})["c.2"] == 165


def test_a_launch_inside_another_call_is_one_launch(trace: Callable[..., Graph]) -> None:
    """The driver's call in the runtime's, both with the number of the kernel."""
    events = []
    for n, at in enumerate((0, 20, 40)):
        inner = {**host("cuLaunchKernelEx", n, at, 6), "cat": "cuda_driver"}
        events += [inner, host("cudaLaunchKernelExC", n, at, 10), gpu("k", n, at + 10, 5)]
    graph = trace(*events)
    assert [name for name in graph.op_names if name.startswith("launch")] == [f"launch.{n}" for n in range(3)]
    assert starts(graph)["k.2"] == 50
    assert starts(graph, issue_cost="2us")["k.2"] == 2 + 2 * 12


@pytest.mark.parametrize("gap", [0, 2])
def test_kernels_that_begin_before_the_one_before_them_ends(trace: Callable[..., Graph], gap: int) -> None:
    """By programmatic dependent launch: each takes 10 us, of which 5 are beside the one before it."""
    calls = [host("cudaLaunchKernel", n, 2 * n, 2) for n in range(8)]
    first = [gpu("plain", n, 100 + n * (10 + gap), 10) for n in range(4)]
    since = 130 + 3 * gap
    early = [gpu("early", n, since + 5 * (n - 3), 10) for n in range(4, 8)]
    graph = trace(*calls, *first, *early)
    assert graph.device_facts["gpu"]["gap"] == f"{gap * US}ns"
    assert int(as_recorded(graph).end_ns.max()) == (since + 30) * US
    assert run_recorded(graph).makespan_ns == (since + 30) * US
    gone = apply_changes(graph, [WhatIf.model_validate({"scale": {"early": "x0"}})])
    assert run_recorded(gone).makespan_ns == (since + 10 + 4 * gap) * US


def test_copies_as_rocm_calls_them(trace: Callable[..., Graph]) -> None:
    """Without the copy, and the wait for it, b begins after its launch, on its stream."""
    graph = trace(
        host("hipLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 100),
        host("hipMemcpyWithStream", 2, 10, 110),
        gpu("CopyDeviceToHost", 2, 105, 10, category="gpu_memcpy"),
        host("hipLaunchKernel", 3, 120, 5),
        gpu("b", 3, 125, 10),
    )
    assert starts(graph, scale={"a": "x0.5"})["b.2"] == 75
    assert starts(graph, remove=["transfers"])["b.2"] == 105


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaEventSynchronize"])
def test_what_was_through_when_a_wait_was_over_was_waited_for(trace: Callable[..., Graph], call: str) -> None:
    """A copy on a stream of its own, in an older trace; the thread launched last on another one."""
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("copied", 1, 5, 100, stream=20),
        host("cudaLaunchKernel", 2, 5, 5),
        gpu("a", 2, 10, 10),
        host("cudaEventRecord", 3, 10, 1),
        host(call, 4, 12, 95),
        host("cudaLaunchKernel", 5, 110, 5),
        gpu("b", 5, 115, 5),
    )
    assert starts(graph)["b.2"] == 115
    assert starts(graph, scale={"copied": "x0.5"})["b.2"] == 65
    assert starts(graph, scale={"a": "x5"})["b.2"] == 115


def test_an_event_that_another_thread_recorded(trace: Callable[..., Graph]) -> None:
    """One thread launches, another one waits for what comes of it, in an older trace."""
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 100),
        host("cudaEventRecord", 2, 5, 1),
        host("cudaEventSynchronize", 3, 6, 101, tid=2),
        host("cudaLaunchKernel", 4, 110, 5, tid=2),
        gpu("b", 4, 115, 5, stream=20),
    )
    assert starts(graph)["b.1"] == 115
    assert starts(graph, scale={"a": "x0.5"})["b.1"] == 65


@pytest.mark.parametrize(("call", "waits"), [("hipMemcpyWithStream", True), ("hipMemcpy", False)])
def test_a_copy_within_the_device_that_waits(trace: Callable[..., Graph], call: str, waits: bool) -> None:
    """It came back 1 us after the copy had ended, which for the other one was by chance."""
    graph = trace(
        host("hipLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 100),
        host(call, 2, 10, 106),
        gpu("Memcpy DtoD (Device -> Device)", 2, 105, 10, category="gpu_memcpy"),
        host("hipLaunchKernel", 3, 120, 5),
        gpu("b", 3, 125, 10),
    )
    assert starts(graph, scale={"a": "x0.5"})["b.2"] == (75 if waits else 125)


@pytest.mark.parametrize(("memory", "came_back"), [("pageable", 116), ("pinned", 15)])
def test_a_copy_of_rocm_tells_its_memory_by_when_its_call_came_back(
    trace: Callable[..., Graph], memory: str, came_back: int
) -> None:
    graph = trace(
        host("hipLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 100),
        host("hipMemcpyAsync", 2, 10, came_back - 10),
        gpu("Memcpy DtoH (Device -> Host)", 2, 105, 10, category="gpu_memcpy"),
        host("hipLaunchKernel", 3, 120, 5),
        gpu("b", 3, 125, 10),
    )
    assert starts(graph, scale={"a": "x0.5"})["b.2"] == (75 if memory == "pageable" else 125)


FORK = [("record", 0, 7), ("wait", 20, 0), ("launch", 20), ("record", 1, 20), ("launch", 7)]
GROUP = [("launch", 7), ("record", 0, 7), ("wait", 20, 0), ("launch", 20)]
LATER = [("launch", 7), ("launch", 7), ("launch", 7)]
FLIGHT = [step for n in range(5) for step in (("launch", 7), ("record", n, 7), ("sync event", max(0, n - 2)))]


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        pytest.param([*FORK, ("wait", 7, 1)], False, id="fork and join"),
        pytest.param(
            [("launch", 24), ("launch", 7), *FORK, ("wait", 7, 1)],
            False,
            id="another stream is none of theirs",
        ),
        pytest.param([("wait", 20, 0), ("launch", 7), *FORK, ("sync stream", 20)], False, id="a side stream"),
        pytest.param(
            [
                ("record", 0, 7),
                ("wait", 20, 0),
                ("record", 1, 7),
                ("wait", 24, 1),
                ("launch", 20),
                ("launch", 24),
            ],
            False,
            id="two waits before the launches",
        ),
        pytest.param(
            [*GROUP, ("record", 1, 20), *GROUP, ("record", 2, 20), ("wait", 7, 1), ("wait", 7, 2)],
            False,
            id="all works of a process group",
        ),
        pytest.param(
            [*GROUP, ("record", 1, 20), *GROUP, ("record", 2, 20), *LATER, ("wait", 7, 1)],
            True,
            id="the first of two works",
        ),
        pytest.param(
            [("launch", 20), ("record", 1, 20), ("launch", 20), ("record", 2, 20), *LATER, ("wait", 7, 1)],
            True,
            id="the first of two copies",
        ),
        pytest.param(FLIGHT, False, id="two steps in flight"),
        pytest.param(
            [("launch", 20), ("launch", 7), ("work", 900), ("sync stream", 7)], True, id="both over"
        ),
    ],
)
def test_waits_that_the_profiler_did_not_note(
    trace: Callable[..., Graph], recwarn: pytest.WarningsRecorder, steps: list[Any], told: bool
) -> None:
    """A GPU 100 times as fast, and one of a fifth of the speed, run as the program does; doubts are told."""
    program = [("launch", 7), *steps, ("launch", 7)]
    times = [100 + 37 * n for n in range(len(program))]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        was = ran(program, times)
        graph = trace(*(event for event in was.events if event["cat"] != "cuda_sync"))
    assert [str(each.message).count("do not say for which") for each in recwarn] == [1] * told
    for other in (times, [ns // 100 for ns in times], [5 * ns for ns in times]):
        ns, run = graph.duration_ns.copy(), ran(program, other)
        task_of = tasks_of(graph, was)
        for op, task in task_of.items():
            ns[op] = US * other[task]
        start, _ = starts_and_ends(replace(graph, duration_ns=ns))
        assert [start[graph.op_names[op]] for op in task_of] == [US * run.start[i] for i in task_of.values()]


@pytest.mark.parametrize("apart", [0, 900])
def test_threads_that_take_turns_wait_for_each_other(
    trace: Callable[..., Graph], recwarn: pytest.WarningsRecorder, apart: int
) -> None:
    """Each waits in copies of 1 ms; one that goes on some time after the other waits for something else."""
    warnings.simplefilter("always")
    events, now = [], 0
    for n in range(10):
        copy = gpu("Memcpy DtoH (Device -> Pageable)", n, now + 5, 1000, category="gpu_memcpy")
        events += [host("cudaMemcpyAsync", n, now, 1008, tid=1 + n % 2), copy]
        now += 1010 + apart
    graph = trace(*events)
    end = max(
        starts_and_ends(apply_changes(graph, [WhatIf.model_validate({"scale": {"gpu": "x0.01"}})]))[
            1
        ].values()
    )
    assert (end < 0.05 * now * US) == (not apart)
    assert sum("4 wait(s) of one for the other" in str(each.message) for each in recwarn) == (not apart)


VALUES_READ = [*[("launch", 7)] * 4, ("item", 7), ("sync stream", 7), ("work", 20), ("launch", 20)] * 5
"""So PyTorch reads a value: the copy's call waits for the copy, the next one for its stream."""


@pytest.mark.parametrize("change", [{"remove": "transfers"}, {"scale": {"copy": "x50"}}])
def test_a_wait_behind_a_copy_that_was_waited_for_is_as_the_profiler_notes_it(
    trace: Callable[..., Graph], change: dict[str, Any]
) -> None:
    was = ran(VALUES_READ, [300, 300, 300, 300, 2, 3] * 5)
    noted = trace(*was.events)
    hidden = trace(*(event for event in was.events if event["cat"] != "cuda_sync"))
    assert starts(hidden, **change) == starts(noted, **change)


@pytest.mark.parametrize("hidden", [True, False])
def test_a_saving_that_rests_on_inferred_waits_is_a_range(tmp_path: Path, hidden: bool) -> None:
    was = ran(VALUES_READ, [300, 300, 300, 300, 2, 3] * 5)
    events = [event for event in was.events if not hidden or event["cat"] != "cuda_sync"]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    base = WhatIfs(str(tmp_path / "trace.json"))
    (as_it_is, gone) = try_all(base, [], [what_if("gone", {"remove": "transfers"})])
    assert as_it_is["other_saved_ns"] is None
    assert gone["makespan_ns"] is not None
    assert any("5 wait(s) of the host that were inferred" in note for note in gone["notes"]) == hidden
    if not hidden:
        assert gone["other_saved_ns"] is None
    else:
        assert gone["other_saved_ns"] is not None
        assert gone["other_saved_ns"] > base.trace.makespan_ns - gone["makespan_ns"]


@pytest.mark.parametrize("name", ["hta_alexnet", "hta_event_sync", "hta_event_sync_streams"])
@pytest.mark.filterwarnings("ignore:.*do not say for which stream")
def test_what_is_inferred_of_a_recording_answers_as_what_was_noted(
    root: Path, tmp_path: Path, name: str
) -> None:
    """Of recordings with notes of the profiler, with the notes hidden: every standard what-if saves as much.

    The recordings are of Holistic Trace Analysis, tests/data/critical_path (MIT, Copyright (c) Meta
    Platforms, Inc. and affiliates).
    """
    with gzip.open(root / "tests" / "data" / f"{name}.json.gz") as file:
        whole = json.load(file)
    saved: list[dict[str, int]] = []
    for hidden in (False, True):
        events = [event for event in whole["traceEvents"] if not hidden or event.get("cat") != "cuda_sync"]
        (tmp_path / "trace.json").write_text(json.dumps({**whole, "traceEvents": events}))
        base = WhatIfs(str(tmp_path / "trace.json"))
        more = [what_if(f"gpu {by}", {"scale": {"gpu": by}}) for by in ("x0.01", "x5")]
        found = try_all(base, [*standard_trials(base.graph), *more])
        was = base.trace.makespan_ns
        saved.append({row["label"]: row["saved_ns"] for row in found if row["makespan_ns"]})
    noted, inferred = saved
    assert noted.keys() == inferred.keys()
    for label in noted:
        assert abs(noted[label] - inferred[label]) <= 2e-6 * was, label


def test_an_event_that_is_asked_for_is_not_waited_for(trace: Callable[..., Graph]) -> None:
    """PyTorch's allocator asks for events; the profiler notes that as it notes a wait."""
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 20),
        host("cudaEventRecord", 2, 5, 5),
        host("cudaEventQuery", 3, 30, 5),
        sync("Event Sync", 3, -1, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2),
        host("cudaLaunchKernel", 4, 35, 5),
        gpu("b", 4, 40, 10, stream=8),
    )
    assert starts(graph, scale={"a": "x10"})["b.1"] == 40


def test_a_call_returns_as_long_after_what_it_waits_for_as_others(trace: Callable[..., Graph]) -> None:
    """The host waits for the event before the last; what the last one is for ends 7 us after the call."""
    events, now = [], 0
    for n in range(3):
        events += [host("cudaLaunchKernel", 10 * n, now, 5), gpu("plain", 10 * n, now + 5, 100)]
        events += [host("cudaDeviceSynchronize", 10 * n + 1, now + 5, 103)]
        now += 108
    graph = trace(
        *events,
        host("cudaLaunchKernel", 40, now, 5),
        gpu("a", 40, now + 5, 100),
        host("cudaEventRecord", 41, now + 5, 1),
        host("cudaLaunchKernel", 42, now + 6, 5),
        gpu("short", 42, now + 105, 10),
        host("cudaEventRecord", 43, now + 11, 1),
        host("cudaEventSynchronize", 44, now + 12, 96),
        host("cudaLaunchKernel", 45, now + 108, 5),
        gpu("b", 45, now + 115, 10),
    )
    assert starts(graph, scale={"a": "x0.01", "short": "x30"})["b.5"] == now + 11 + 300


def test_another_thread_s_events_are_not_waited_for(trace: Callable[..., Graph]) -> None:
    """Two threads, each with two streams: each stream waits for what its own thread recorded."""
    graph = trace(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 100),
        host("cudaLaunchKernel", 2, 0, 5, tid=2),
        gpu("long", 2, 5, 150, stream=30),
        host("cudaEventRecord", 3, 6, 1),
        host("cudaEventRecord", 4, 6, 2, tid=2),
        host("cudaStreamWaitEvent", 5, 7, 1),
        host("cudaLaunchKernel", 6, 200, 5),
        gpu("b", 6, 205, 10, stream=20),
    )
    assert starts(graph, scale={"long": "x9"})["b.2"] == 205
    assert starts(graph, scale={"a": "x9"})["b.2"] == 905


@pytest.mark.parametrize("category", ["xpu_runtime", "privateuse1_runtime"])
def test_calls_of_other_devices(trace: Callable[..., Graph], category: str) -> None:
    """Intel's GPUs have queues; the profiler calls the runtime of a device that PyTorch does not know so."""
    calls = [host("urEnqueueKernelLaunch", 1, 0, 5), host("urQueueFinish", 2, 5, 103)]
    calls += [host("urEnqueueKernelLaunch", 3, 110, 5)]
    tasks = [gpu("a", 1, 5, 100), gpu("b", 3, 115, 10)]
    if category.startswith("xpu"):
        for task in tasks:
            task["args"]["sycl queue"] = task["args"].pop("stream")
    graph = trace(*({**call, "cat": category} for call in calls), *tasks)
    assert graph.attributes[graph.index("a.0")]["stream"] == 7
    assert starts(graph, scale={"a": "x0.5"})["b.1"] == 65


@pytest.mark.parametrize("prefetched", [True, False])
def test_a_stream_waits_for_the_event_that_held_it(trace: Callable[..., Graph], prefetched: bool) -> None:
    """An older trace of FSDP: b waits for the first all-gather, while the second one runs already.

    The second one had not ended when b began. So the wait is for the first, if b began much later, too.
    """
    at = 106 if prefetched else 136
    graph = trace(
        host("cudaLaunchKernelExC", 1, 0, 5),
        gpu("gather", 1, 5, 100, stream=20),
        host("cudaEventRecord", 2, 5, 1),
        host("cudaLaunchKernelExC", 3, 6, 5),
        gpu("gather", 3, 105, 100, stream=20),
        host("cudaEventRecord", 4, 11, 1),
        host("cudaStreamWaitEvent", 5, 12, 1),
        host("cudaLaunchKernel", 6, 13, 5),
        gpu("b", 6, at, 50),
    )
    known = starts(graph)["b.2"]  # without the 1 us from the end of one stream to the start on another
    assert known == (105 if prefetched else 136)
    assert starts(graph, scale={"gather.0": "x0.5"})["b.2"] == known - 50
    assert starts(graph, scale={"gather.1": "x0.5"})["b.2"] == known


def full_queue(kernel_us: int, most: int = 1000, kernels: int = 1200) -> list[dict[str, Any]]:
    """Launch kernels every 8 us; a launch waits for a place if there are so many that have not ended."""
    events, ends, now = [], [0], 0
    for n in range(kernels):
        called = now + 3
        now = called + 5 if n < most else max(called, ends[n - most + 1]) + 5
        start = max(now, ends[-1])
        ends.append(start + kernel_us)
        events += [host("cudaLaunchKernel", n, called, now - called), gpu("k", n, start, kernel_us)]
    return events


@pytest.mark.filterwarnings("ignore:.*is the most that CUDA graphs can give")
def test_a_launch_waits_for_a_place_in_a_full_queue(trace: Callable[..., Graph]) -> None:
    """Of 1,200 kernels 1,000 at most can wait: the last launch waits for kernel 199."""
    graph = trace(*full_queue(100))
    assert sum("recorded_wait_ns" in own for own in graph.attributes.values()) == 118
    for change, kernel_us in ((None, 100), ({"scale": {"k": "x0.5"}}, 50)):
        after = graph if change is None else apply_changes(graph, [WhatIf.model_validate(change)])
        _, end_ns = starts_and_ends(after)
        assert end_ns["k.1199"] == (5 + 1200 * kernel_us) * US
        assert end_ns["launch.1199"] == end_ns["k.199"] + 5 * US
    one = apply_changes(graph, [WhatIf.model_validate({"cuda_graph": {"issue_cost": "5us", "node": 0}})])
    assert [name for name in one.op_names if name.startswith("launch")] == ["launch.0"]


def test_a_queue_that_was_never_full_holds_nothing(trace: Callable[..., Graph]) -> None:
    graph = trace(
        *full_queue(100, most=800, kernels=850)
    )  # no GPU's queue is so short: it was something else
    assert not any("recorded_wait_ns" in own for own in graph.attributes.values())
