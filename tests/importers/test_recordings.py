"""Recordings come out again, gaps and all, and what nothing explains is told."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim
from cuda_programs import gpu, host
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import recorded
from runs import run_text
from scenario_texts import write

from devices.machine import make_machine
from scenarios.importers import load_graph, write_graph
from scenarios.recorded.many_ranks import as_scenario
from scenarios.recorded.setup import recorded_machine, residue, run_recorded, with_facts
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.base.errors import InputError, ScenarioError
from sim.explain.derived import DerivedColumns
from sim.explain.idle import idle_reasons
from sim.explain.makespan_breakdown import breakdown
from sim.explain.path import executed_path
from sim.explain.time_use import time_use
from sim.metrics import device_use
from sim.trace import Trace
from studies.recorded_ranks import load_ranks
from studies.recordings import faster, kendall_tau, replay

Write = Callable[..., Path]


@pytest.fixture
def trace(tmp_path: Path) -> Write:
    """Return what writes events into a file."""

    def write(*events: dict[str, Any], name: str = "trace.json") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({"traceEvents": list(events)}))
        return path

    return write


def starts(trace: Trace) -> dict[str, int]:
    """Return when each op starts, in ns."""
    names = trace.job.graph.op_names
    ops, ns = trace.tasks["op"].tolist(), trace.tasks["start_ns"].tolist()
    return {names[op]: start for op, start in zip(ops, ns, strict=True)}


# -- recordings -----------------------------------------------------------------------------------

RECORDINGS = [
    pytest.param("a100_training_rank3.json.gz", marks=pytest.mark.slow),
    *[f"h100_{name}.json.gz" for name in ("bert_small", "qwen_0_5b", "vit")],
    *[f"v100_dlrm_8_ranks/rank{rank}.json.gz" for rank in range(8)],
    pytest.param("v100_dlrm_8_ranks", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_comes_out_again(name: str) -> None:
    """As docs/importers.md says: the span, the idle time of each stream; and the order of starts."""
    graph = load_ranks(recorded(f"kineto/{name}"))
    trace = run_recorded(graph)
    trace.check()
    found = replay(graph, trace)
    assert abs(found.off) < 0.001
    assert abs(found.idle_off) < 0.01
    assert found.tau > 0.999
    assert found.residue.share == pytest.approx(0.073 if name.startswith("a100") else 0, abs=0.001)
    if name.endswith(".gz"):  # what ranks wait for is not their own GPU
        fast = faster(graph, trace)
        assert fast.simulated_ns == pytest.approx(fast.recorded_ns, rel=0.02, abs=7_000)
        assert fast.left_ns <= 0.01 * fast.recorded_ns
        assert fast.work_ns == fast.same_ns > 0


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=20))
def test_kendalls_tau_counts_every_pair(pairs: list[tuple[int, int]]) -> None:
    x, y = (np.array(row) for row in zip(*pairs, strict=True))
    signs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i in range(len(x)) for j in range(i)]
    apart = [sum(bool(sign[k]) for sign in signs) for k in (0, 1)]
    if all(apart):
        tau = sum(a * b for a, b in signs) / (apart[0] * apart[1]) ** 0.5
        assert kendall_tau(x, y) == pytest.approx(tau)


# -- what the GPU takes itself --------------------------------------------------------------------

BACK_TO_BACK = [
    host("cudaLaunchKernel", 1, 0, 4),
    gpu("a", 1, 6, 50),
    host("cudaLaunchKernel", 2, 4, 4),
    gpu("b", 2, 57, 50),
    host("cudaLaunchKernel", 3, 8, 4),
    gpu("c", 3, 109, 50),
    host("cudaLaunchKernel", 4, 12, 4),
    gpu("d", 4, 162, 50),
    host("cudaStreamWaitEvent", 5, 16, 1),
    host("cudaLaunchKernel", 6, 17, 4),
    gpu("e", 6, 216, 50, stream=20),
]
"""A launch latency of 2 us; gaps of 1, 2 and 3 us, 2 usually; a hop of 4 us to stream 20."""


def test_gaps_latency_and_hop_by_hand(trace: Write) -> None:
    graph = load_graph(trace(*BACK_TO_BACK))
    facts = {"gap": "2000ns", "event_hop": "4000ns", "launch_latency": "2000ns"}
    assert graph.device_facts == {"gpu": facts}
    assert recorded_machine(graph)["devices"]["gpu"] == {"kind": "gpu", "streams": 2, **facts}
    assert "delay" not in graph.kinds  # gaps of 1 and 3 us are usual, too
    found = starts(run_recorded(graph))
    assert [found[name] for name in ("a.0", "b.1", "c.2", "d.3", "e.4")] == [
        *[6_000, 58_000, 110_000, 162_000, 216_000]
    ]


def test_kernels_that_overlap_make_the_mean_gap_shorter(trace: Write) -> None:
    """In a CUDA graph: gaps of 3, -1, 3 and -1 us are 1 us each, so that the last kernel ends as recorded."""
    starts_at = [20, 33, 42, 55, 64]
    events = [gpu(f"k{n}", 1, at, 10) for n, at in enumerate(starts_at)]
    graph = load_graph(trace(host("cudaGraphLaunch", 1, 0, 5), *events))
    assert graph.device_facts["gpu"]["gap"] == "1000ns"
    assert run_recorded(graph).makespan_ns == 74_000


def test_a_long_gap_leaves_what_is_usual_to_the_device(trace: Write) -> None:
    """40 us between d and f: 2 before the delay, 2 after it, and 36 that nothing explains."""
    events = [host("cudaLaunchKernel", 7, 21, 4), gpu("f", 7, 252, 10)]
    graph = load_graph(trace(*BACK_TO_BACK, *events))
    delay = graph.index("delay.5")
    assert graph.duration_ns[delay] == 36_000
    assert graph.attributes[delay] == {"stream": 7, "recorded_start_ns": 214_000}
    run = run_recorded(graph)
    run.check()
    assert starts(run)["f.5"] == 252_000
    assert residue(run) == (0, 0.0, 1, 36_000)  # e ends at 266, f at 262


def test_what_is_on_the_path_is_unexplained(tmp_path: Path, trace: Write) -> None:
    """The kernel after the gap ends last: 36 of 272 us."""
    trace(*BACK_TO_BACK, host("cudaLaunchKernel", 7, 21, 4), gpu("f", 7, 252, 20))
    done = sim("run", tmp_path / "trace.json")
    assert "\nunexplained 36 us, 13.2% of the makespan\n" in done.stdout
    told = json.loads(sim("run", tmp_path / "trace.json", "--json").stdout)
    assert told["makespan_ns"] == 272_000
    assert told["unexplained"] == {
        "ns": 36_000,
        "share": 36 / 272,
        "delays": 1,
        "delays_ns": 36_000,
    }
    # a to d one after another, and from 216 to 272 e or f: a delay is no computing
    assert told["devices"]["gpu"]["time_ns"]["compute"] == 4 * 50_000 + 56_000


def test_a_delay_is_idle_time_with_a_reason(trace: Write) -> None:
    """Without stream 20: 36 us between two gaps of 2."""
    events = [*BACK_TO_BACK[:8], host("cudaLaunchKernel", 7, 21, 4), gpu("f", 7, 252, 20)]
    run = run_recorded(load_graph(trace(*events)))
    assert idle_reasons(run)["gpu"] == {"host": 4_000, "launch": 12_000, "unexplained": 36_000}
    assert time_use(run)["gpu"] == {"compute": 220_000, "communicate": 0, "wait": 52_000, "idle": 0}
    use = device_use(run)["gpu"]
    assert (use.busy_ns, use.idle_ns) == (220_000, 52_000)
    steps = [step for step in executed_path(run) if step.reason == "unexplained"]
    assert [(step.start_ns, step.end_ns) for step in steps] == [(214_000, 250_000)]
    assert breakdown(DerivedColumns(run)).parts == {"compute": 220_000, **idle_reasons(run)["gpu"]}


def test_a_recording_without_residue_says_so(tmp_path: Path, trace: Write) -> None:
    trace(*BACK_TO_BACK)
    assert "\nunexplained 0 ns, 0.0% of the makespan\n" in sim("run", tmp_path / "trace.json").stdout
    plain = "machine: {devices: {cpu0: {kind: cpu}}}\nworkload: {ops: {a: {duration: 1us, kind: delay}}}\n"
    assert "unexplained" not in sim("run", write(tmp_path, plain)).stdout


GRAPH = [
    host("cudaGraphLaunch", 1, 0, 10),
    *[gpu(name, 1, 12 + 11 * n, 10) for n, name in enumerate("abc")],
    gpu("fork", 1, 26, 14, stream=20),
    gpu("join", 1, 56, 5),
    host("cudaLaunchKernel", 2, 10, 4),
    gpu("after", 2, 62, 5),
    host("cudaDeviceSynchronize", 3, 14, 56),
]
"""One call launches a, b and c, 1 us apart on stream 7, and a branch on stream 20; the join waits for it."""


def test_what_a_cuda_graph_hides_stays_as_delays(trace: Write) -> None:
    """The fork starts 14 us after it was launched, the join 11 us after c and a gap: nobody says why."""
    graph = load_graph(trace(*GRAPH))
    facts = {"gap": "1000ns", "event_hop": "1000ns", "launch_latency": "2000ns"}
    assert graph.device_facts == {"gpu": facts}
    delays = [op for op in range(len(graph)) if graph.kind(op) == "delay"]
    assert [graph.op_names[op] for op in delays] == ["delay.2", "delay.4"]
    assert graph.duration_ns[delays].tolist() == [13_000, 10_000]
    run = run_recorded(graph)
    run.check()
    found = starts(run)
    for op, own in graph.attributes.items():
        if "kernel" in own:
            assert found[graph.op_names[op]] == own["recorded_start_ns"], graph.op_names[op]
    assert run.makespan_ns == 70_000
    assert residue(run) == (10_000, 10 / 70, 2, 23_000)


TWO_THREADS = [
    host("cudaLaunchKernel", 1, 0, 4),
    gpu("a", 1, 4, 40),
    host("cudaLaunchKernel", 2, 10, 4, tid=2),
    gpu("b", 2, 44, 30),
    host("cudaStreamSynchronize", 3, 20, 57, tid=2),
    host("cudaLaunchKernel", 4, 77, 4, tid=2),
    gpu("c", 4, 81, 10),
    host("cudaLaunchKernel", 5, 50, 4),
    gpu("d", 5, 54, 10, stream=20),
]
"""Thread 1 launches a and d, 46 us of work apart, thread 2 b and, when that has ended, c."""


def test_two_threads_launch_side_by_side(trace: Write) -> None:
    graph = load_graph(trace(*TWO_THREADS))
    assert recorded_machine(graph)["devices"]["cpu"] == {"kind": "cpu", "cores": 2}
    kernels = ("a.0", "b.1", "d.2", "c.3")
    found = starts(run_recorded(graph))
    assert [found[name] for name in kernels] == [4_000, 44_000, 54_000, 81_000]
    ns = graph.duration_ns.copy()
    ns[[graph.index(name) for name in kernels]] = 1_000
    found = starts(run_recorded(replace(graph, duration_ns=ns)))
    # b as soon as it is launched; its wait is over at 20 us, 3 us later the call, and then c is launched
    assert [found[name] for name in kernels] == [4_000, 14_000, 54_000, 27_000]


def test_a_wait_for_kernels_that_the_file_lacks_is_unexplained(tmp_path: Path, trace: Write) -> None:
    """It takes 3 us behind a kernel and 1,203 us without one, so that 1,200 of 2,029 us are left over."""
    path = trace(
        host("cudaLaunchKernel", 1, 0, 4),
        gpu("a", 1, 4, 500),
        host("cudaDeviceSynchronize", 2, 10, 497),
        host("cudaDeviceSynchronize", 3, 517, 1203),
        host("cudaLaunchKernel", 4, 1725, 4),
        gpu("b", 4, 1729, 300),
    )
    graph = load_graph(path)
    delay = graph.index("delay.call2")
    assert (graph.duration_ns[delay], graph.duration_ns[graph.index("synchronize.2")]) == (1_200_000, 3_000)
    run = run_recorded(graph)
    run.check()
    assert (run.makespan_ns, residue(run)) == (2_029_000, (1_200_000, 1_200 / 2_029, 1, 1_200_000))
    assert idle_reasons(run)["cpu"]["unexplained"] == 1_200_000
    found = json.loads(sim("whatif", path, "--also", "{host: x0}", "--only", "unexplained", "--json").stdout)
    # without the delay; and with it, the kernels and the wait for the first one alone
    assert [one["makespan_ns"] for one in found["what_ifs"]] == [829_000, 500_000 + 1_200_000 + 300_000]


def test_a_copy_from_pageable_memory_waits_for_what_is_before_it(trace: Write) -> None:
    """A large one: its call goes on from when the kernel ends, and has waited 80 us by then."""
    graph = load_graph(
        trace(
            host("cudaLaunchKernel", 1, 0, 4),
            gpu("a", 1, 4, 100),
            host("cudaMemcpyAsync", 2, 24, 90),
            gpu("Memcpy HtoD (Pageable -> Device)", 2, 105, 8),
        )
    )
    assert graph.attributes[graph.index("launch.1")]["recorded_wait_ns"] == 80_000


# -- the machine that was recorded ----------------------------------------------------------------

GIVEN = """\
machine:
  devices:
    gpu0: {{kind: gpu, streams: 2{more}}}
    cpu0: {{kind: cpu, cores: 1}}
workload: {{kineto: trace.json}}
policy: {{name: ready-queue, synchronisation: issue, streams: recorded}}
"""


def last_end(scenario: Path, *sets: str) -> int:
    """Return the makespan, in us."""
    return run_scenario(load_scenario(scenario, sets=sets)).trace.makespan_ns // 1000


@pytest.mark.parametrize(
    ("more", "us"),
    [("", 266), (", gap: 0", 260), (", gap: 5us", 275), (", launch_latency: 0", 264)],
)
def test_a_machine_has_the_gaps_that_it_does_not_say(
    tmp_path: Path, trace: Write, more: str, us: int
) -> None:
    trace(*BACK_TO_BACK)
    assert last_end(write(tmp_path, GIVEN.format(more=more))) == us


def test_each_gpu_of_a_count_has_its_own(trace: Write) -> None:
    facts = {f"gpu{rank}": {"gap": f"{rank}us", "event_hop": "2us"} for rank in range(3)}
    graph = replace(load_graph(trace(*BACK_TO_BACK)), device_facts=facts)
    one = {"kind": "gpu", "event_hop": "7us"}
    devices = {"gpu": {**one, "count": 3}, "gpu2": {"gap": "9us"}, "cpu0": {"kind": "cpu"}}
    machine = make_machine(with_facts({"devices": devices}, graph))
    assert [(device.gap_ns, device.event_ns) for device in machine.devices] == [
        *[(0, 7_000), (1_000, 7_000), (9_000, 7_000), (0, 0)]
    ]


def test_a_scenario_without_a_machine_runs_it_on_the_recorded_one(tmp_path: Path, trace: Write) -> None:
    path = trace(*BACK_TO_BACK)
    alone = write(tmp_path, "workload: {kineto: trace.json}\n")
    assert last_end(path) == last_end(alone) == 266
    changed = "machine: {preset: recorded, devices: {gpu: {gap: 0}}}\nworkload: {kineto: trace.json}\n"
    assert last_end(write(tmp_path, changed)) == 260
    assert last_end(path, "machine.devices.gpu={gap: 0}") == 260
    assert as_scenario(path)["workload"] == {"kineto": "trace.json"}
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert load_scenario(path).name == "trace"
    assert load_scenario(tmp_path / "packed.json.gz").name == "packed"


def test_what_is_wrong_with_a_recording_is_told_in_one_line(tmp_path: Path, trace: Write) -> None:
    packed = gzip.compress(trace(*BACK_TO_BACK).read_bytes())
    (tmp_path / "cut.json.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "empty").mkdir()
    trace(host("cudaLaunchKernel", 1, 0, 4), name="host.json")
    for name, says in {
        "cut.json.gz": "truncated or damaged gzip",
        "empty": "is a directory",
        "host.json": "no kernel, copy or fill of a GPU",
        "no.json.gz": "no such file",
    }.items():
        done = sim("run", tmp_path / name)
        [line] = done.stderr.strip().splitlines()
        assert (done.exit_code, says in line) == (2, True), line


def test_a_graph_file_keeps_what_was_recorded(tmp_path: Path, trace: Write) -> None:
    graph = load_graph(trace(*BACK_TO_BACK))
    write_graph(graph, tmp_path / "g.json.gz")
    assert load_graph(tmp_path / "g.json.gz").device_facts == graph.device_facts
    assert last_end(tmp_path / "g.json.gz") == 266


def test_what_is_no_recording_needs_a_machine(tmp_path: Path) -> None:
    write(tmp_path, json.dumps({"schema": "sim.graph/1", "name": "g", "ops": [{"name": "a"}]}), "g.json")
    with pytest.raises(ScenarioError, match=r"s\.yaml: machine: is missing|s\.yaml:1:1: machine: is missing"):
        run_text("workload: {graph: g.json}\n", tmp_path)
    preset = "machine: {preset: recorded}\nworkload: {graph: g.json}\n"
    with pytest.raises(ScenarioError, match=r"s\.yaml:1:19: machine\.preset: 'g' is no recording"):
        run_text(preset, tmp_path)
    with pytest.raises(InputError, match="is no recording; known"):
        as_scenario(tmp_path / "g.json")
