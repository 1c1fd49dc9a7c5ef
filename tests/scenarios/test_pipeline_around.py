"""What is around a schedule: copies, skips, reductions, steps; and everything else that runs pipelines."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pipeline_runs import FOLDER, GOOD, SIZED, block, in_pipeline, run
from scenario_texts import write

from policies.issue.program_order import InOrder
from policies.pipeline.evaluate import StageTimes
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.registry import generate, schedules
from scenarios.builders.pipeline_graph import AsWritten, CommunicationStream, pipeline_graph, plain_machine
from scenarios.builders.pipeline_stage import Around, PipelineStage
from scenarios.run.execute import Result, run_case, run_scenario
from scenarios.run.load import load_scenario
from sim import simulate
from sim.base import plugins
from sim.base.errors import InfeasibleError, InputError, OutOfMemoryError, ScenarioError

# -- around ------------------------------------------------------------------------------------------


def test_copies_on_compute_streams_block_both_ends(tmp_path: Path) -> None:
    """One micro-batch, two ranks: F, copy, F, B, copy, B, with or without copy streams."""
    sets = in_pipeline(stages=2, micro_batches=2, transfer="1ms")
    beside = run(tmp_path, *sets, policy="gpipe")
    blocking = run(tmp_path, *sets, "workload.pipeline.overlap=false", policy="gpipe")
    assert beside.trace.makespan_ns == 2_000_000 + 1_000_000 + 5_000_000 + 1_000_000 + 2_000_000
    assert blocking.trace.makespan_ns == 13_000_000
    copies = [op for op in blocking.trace.job.graph.op_names if op.startswith("copy")]
    assert len(copies) == 2 * 2 * 2  # two micro-batches, forward and backward, two ends


@pytest.mark.parametrize(
    ("checkpoint", "rank0", "ms"),
    [
        ("never", "0F0 send 0F1 send receive 0B1 receive 0B0", 10),
        ("except_last", "0F0 send 0F1 send receive 0B1 receive 0R0 0B0", 12),
        ("always", "0F0 send 0F1 send receive 0R1 0B1 receive 0R0 0B0", 13),
    ],
)
def test_a_recomputation_queues_behind_the_copy_of_the_gradient(
    tmp_path: Path, checkpoint: str, rank0: str, ms: int
) -> None:
    """Two stages, two micro-batches, all 1 ms, copies included; the order of torchgpipe's compute stream."""
    sets = in_pipeline(stages=2, micro_batches=2, checkpoint=checkpoint)
    result = run(tmp_path, *sets, text=COPYING)
    assert on_rank(result, 0) == rank0
    assert result.trace.makespan_ns == ms * 1_000_000


def test_a_stage_receives_before_it_sends_what_it_computed_last(tmp_path: Path) -> None:
    """torchgpipe's fence goes through the stages in rising order: receive(i), send(i - 1), then F(i)."""
    forward = "receive 1F0 receive send 1F1 receive send 1F2 send"
    backward = "receive 1B2 send receive 1B1 send receive 1B0 send"
    assert on_rank(run(tmp_path, text=COPYING), 1) == f"{forward} {backward}"


COPYING = """\
name: copies on the compute streams
workload:
  pipeline:
    {stages: 3, micro_batches: 3, forward: 1ms, backward: 1ms, transfer: 1ms, overlap: false}
policy: gpipe
"""


def on_rank(result: Result, rank: int) -> str:
    """Return what a rank runs, in order, without the posts."""
    job = result.trace.job
    words = []
    for name, device in zip(job.graph.op_names, job.device_of.tolist(), strict=True):
        if device == rank and name.startswith("copy"):
            words.append("send" if " from " in name else "receive")
        elif device == rank and not name.startswith("post"):
            words.append(name)
    return " ".join(words)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for name, _ in schedules()} - {"custom"}))
@pytest.mark.parametrize(
    "around", ["checkpoint: never", "checkpoint: always", "portals: true", "portals: false"]
)
def test_copies_on_compute_streams_work_under_every_schedule(tmp_path: Path, name: str, around: str) -> None:
    """No schedule deadlocks, and blocking copies are never faster than those beside the computation."""
    chunks = 2 if name in ("interleaved-1f1b", "interleaved-zb", "looped-bfs") else None
    text = f"""\
workload:
  pipeline:
    {{ranks: 4, micro_batches: 8, forward: 2ms, input_grad: 2ms, weight_grad: 2ms, transfer: 1ms, {around}}}
policy: {{name: {name}{f", chunks: {chunks}" if chunks else ""}}}
"""
    if "portals" in around:
        skips = "[{from: 0, to: 3, size: 1MB}, {from: 1, to: 3, size: 1MB}, {from: 1, to: 2, size: 1MB}]"
        text = text.replace(around, f"{around}, checkpoint: except_last, skips: {skips}")
    blocking = run(tmp_path, "workload.pipeline.overlap=false", text=text)
    beside = run(tmp_path, text=text)
    assert blocking.trace.makespan_ns > beside.trace.makespan_ns
    copies = [name for name in blocking.trace.job.graph.op_names if name.startswith("copy")]
    assert len(copies) == len(set(copies)) == 2 * len(beside.trace.transfers["start_ns"])


@pytest.mark.parametrize("portals", ["true", "false"])
def test_skips_go_straight_or_through(tmp_path: Path, portals: str) -> None:
    """8 MB from stage 0 to stage 2: straight over one link, or over two and kept on the way."""
    text = """\
machine:
  devices: {gpu: {kind: gpu, count: 3}}
  links:
    - {from: gpu0, to: gpu1, bandwidth: 1GB/s}
    - {from: gpu1, to: gpu2, bandwidth: 1GB/s}
    - {from: gpu0, to: gpu2, bandwidth: 1GB/s}
workload:
  pipeline:
    stages: 3
    micro_batches: 2
    forward: 1ms
    backward: 2ms
    activation: 1MB
    skips: [{from: 0, to: 2, size: 8MB}]
policy: gpipe
"""
    result = run(tmp_path, f"workload.pipeline.portals={portals}", text=text)
    sent = {name: use["bytes"] for name, use in result.summary["links"].items() if use["bytes"]}
    if portals == "true":
        near = {"gpu0->gpu1": 2, "gpu1->gpu0": 2, "gpu1->gpu2": 2, "gpu2->gpu1": 2}
        assert sent == {name: n * 10**6 for name, n in near.items()} | {
            "gpu0->gpu2": 16 * 10**6,
            "gpu2->gpu0": 16 * 10**6,
        }
    else:
        assert sent == dict.fromkeys(("gpu0->gpu1", "gpu1->gpu0", "gpu1->gpu2", "gpu2->gpu1"), 18 * 10**6)
    kept = [bands["activations"] for bands in block(result)["memory_bytes"]]
    assert kept[1] == (2 * 10**6 if portals == "true" else 18 * 10**6)


def test_recompute_without_the_dependency_keeps_everything(tmp_path: Path) -> None:
    """Without it the last stage computes all again before any backward: all of it is alive at once."""
    sets = in_pipeline(kept="10MB", activation="1MB", checkpoint="always", micro_batches=4)
    ordered = block(run(tmp_path, *sets, policy="gpipe"))
    free = block(run(tmp_path, *sets, "workload.pipeline.backward_dependency=false", policy="gpipe"))
    assert ordered["memory_bytes"][3]["recomputed"] == 9 * 10**6
    assert free["memory_bytes"][3]["recomputed"] == 4 * 9 * 10**6
    assert free["makespan_ns"] >= ordered["makespan_ns"]


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "dualpipe-v"])
def test_only_where_all_forwards_come_first_the_dependency_can_go(tmp_path: Path, name: str) -> None:
    sets = in_pipeline(checkpoint="always", backward_dependency="false")
    with pytest.raises(ScenarioError, match=f"under {name} that stage runs .* such as gpipe or looped-bfs"):
        run(tmp_path, *sets, policy=name, text=GOOD.replace("stages: 4", "ranks: 4"))
    run(tmp_path, *sets, policy="looped-bfs", text=GOOD.replace("stages: 4", "ranks: 4, chunks: 2"))


def test_a_reduction_beside_the_computation_needs_a_stream(tmp_path: Path) -> None:
    sets = ["workload.pipeline.dp={replicas: 3, bandwidth: 10GB/s}"]
    with pytest.raises(InputError, match="has one stream; give it streams: 2, or say overlap: false"):
        run(tmp_path, *sets, policy="1f1b", text=SIZED)
    beside = run(tmp_path, *sets, "machine.devices.gpu.streams=2", policy="1f1b", text=SIZED)
    ring_ns = 13_981_013  # 2 * 2 / 3 * 100 MiB / (10 B/ns) is a third of a ns more
    names, trace = beside.trace.job.graph.op_names, beside.trace
    row = [names[op] for op in trace.tasks["op"].tolist()].index("all-reduce of stage 0 on gpu0")
    assert trace.tasks["end_ns"][row] - trace.tasks["start_ns"][row] == ring_ns


def test_parameters_are_gathered_beside_the_first_forward_in_buckets() -> None:
    """Half of 8 ns before the step's first micro-batch; the last rank gathers while it waits for one."""
    stages = [PipelineStage(StageTimes(forward=10, backward=20))] * 2
    schedule = generate("1f1b", ranks=2, micro_batches=2)
    around = Around(all_reduce_ns=(4, 4), all_gather_ns=(4, 4), optimizer_ns=(1, 1), buckets=2)
    graph = pipeline_graph(schedule, stages, around=around)
    how: dict[str, Any] = {"streams": CommunicationStream(), "linearize": AsWritten()}
    trace = simulate(graph, plain_machine(2, streams=2), InOrder(), **how)
    tasks, names = trace.tasks, graph.op_names
    columns = (tasks[name].tolist() for name in ("op", "start_ns", "end_ns"))
    span = {names[op]: (start, end) for op, start, end in zip(*columns, strict=True)}
    assert [span[f"all-gather of stage 0 on rank0/{k}"] for k in (1, 2)] == [(0, 2), (2, 4)]
    assert [span[f"all-gather of stage 1 on rank1/{k}"] for k in (1, 2)] == [(0, 2), (2, 4)]
    assert [span[f"0F0/{k}"] for k in (1, 2)] == [(2, 7), (7, 12)]
    assert [span[f"1F0/{k}"] for k in (1, 2)] == [(12, 17), (17, 22)]
    assert span["0F1"] == (12, 22)
    # the last backward ends at 92, the second bucket of its gradients 2 ns later, the optimizer 1 ns later
    assert trace.makespan_ns == 95
    # the next step gathers what the optimizer has updated
    assert simulate(graph, plain_machine(2, streams=2), InOrder(), iterations=2, **how).makespan_ns == 190
    behind = pipeline_graph(schedule, stages, around=replace(around, overlap=False))
    after = simulate(behind, plain_machine(2), InOrder(), linearize=AsWritten())
    assert after.makespan_ns == 90 + 4 + 1 + 4
    plain = pipeline_graph(schedule, stages, around=Around(optimizer_ns=(1, 1)))
    for graph, what in ((behind, "all-gather"), (plain, "optimizer")):
        for stage in range(2):
            op = graph.index(f"{stage}F0")
            assert [graph.op_names[k] for k in graph.after.row(op)] == [
                f"{what} of stage {stage} on rank{stage}"
            ]
        assert graph.after_distance.sum() == 2  # the first forward of the next iteration, on each rank


# -- torchgpipe's ablation -----------------------------------------------------------------------------


def test_the_ablation_of_torchgpipe(data_dir: Path) -> None:
    """Throughput and utilisation rise at every step; memory ranks as published."""
    published = json.loads((data_dir / "published" / "torchgpipe_benchmarks.json").read_text())
    rows = published["unet_timeline"]["rows"]
    results = [run_case(case, check=True) for case in load_scenario(FOLDER / "unet.yaml").cases()]
    assert len(results) == len(rows) == 4
    throughput = [128e9 / result.trace.makespan_ns for result in results]
    blocks = [result.summary["pipeline"] for result in results]
    used = [sum(b["busy_ns"]) / (4 * b["makespan_ns"]) for b in blocks]
    reserved = [sum(b["reserved_bytes"]) for b in blocks]
    assert throughput == sorted(throughput)
    assert used == sorted(used)

    def ranks(values: list[float]) -> list[int]:
        return sorted(range(4), key=values.__getitem__)

    assert ranks(reserved) == ranks([row["memory_GiB"] for row in rows]) == [1, 3, 2, 0]
    for found, row in zip(throughput, rows, strict=True):
        assert found == pytest.approx(row["throughput"], rel=0.11)
    for share, row in zip(used, rows, strict=True):
        assert share == pytest.approx(row["utilization"], abs=0.15)

    # What the scenario's description says of the comparison.
    def gain(values: list[float]) -> float:
        return values[1] / values[0] - 1

    assert [round(value, 1) for value in throughput] == [33.5, 36.9, 55.5, 58.8]
    assert [round(100 * share) for share in used] == [40, 44, 67, 71]
    assert [round(nbytes / 2**30, 1) for nbytes in reserved] == [31.6, 15.1, 22.0, 17.0]
    measured_gain = gain([row["throughput"] for row in rows])
    assert (round(100 * gain(throughput)), round(100 * measured_gain)) == (10, 35)
    assert reserved[0] / 2**30 == pytest.approx(0.6 * rows[0]["memory_GiB"], rel=0.02)


# -- names -----------------------------------------------------------------------------------------------


def test_a_runtime_is_a_schedule_with_its_checkpointing(tmp_path: Path) -> None:
    text = GOOD.replace("{name: 1f1b}", "{runtime: torchgpipe}")
    ops = run(tmp_path, text=text).trace.job.graph.op_names
    assert sum(name[1] == "R" for name in ops) == 4 * 7
    assert block(run(tmp_path, policy="pipedream"))["schedule"] == "pipedream"


def test_other_packages_add_schedules(tmp_path: Path) -> None:
    def eager(ranks: int, micro_batches: int, *, warm_up: int = 1) -> Schedule:
        """All forwards first, and then some."""
        return replace(
            generate("gpipe", ranks=ranks, micro_batches=micro_batches, order="fifo"), name="eager"
        )

    plugins.register("sim.pipelines", "eager", eager)
    try:
        assert dict(schedules())["eager"] == "All forwards first, and then some."
        assert block(run(tmp_path, "policy.name=eager", "policy.warm_up=2"))["schedule"] == "eager"
        with pytest.raises(ScenarioError, match="eager has no option 'warmup'; did you mean 'warm_up'"):
            run(tmp_path, "policy.name=eager", "policy.warmup=2")
    finally:
        plugins.unregister("sim.pipelines", "eager")


def test_chunks_of_another_packages_schedule() -> None:
    def asked(ranks: int, micro_batches: int, chunks: int) -> Schedule:
        return generate("looped-bfs", ranks=ranks, micro_batches=micro_batches, chunks=chunks)

    def three(ranks: int, micro_batches: int, chunks: int = 3) -> Schedule:
        return asked(ranks, micro_batches, chunks)

    for make, default in ((asked, 1), (three, 3)):
        plugins.register("sim.pipelines", "mine", make)
        try:
            assert generate("mine", ranks=2, micro_batches=2).chunks == default
            assert generate("mine", ranks=2, micro_batches=2, chunks=2).chunks == 2
        finally:
            plugins.unregister("sim.pipelines", "mine")


# -- the command line ------------------------------------------------------------------------------------


def test_schedules_as_text() -> None:
    table = (
        "cycle 0   (0,0)\ncycle 1   (1,0) (0,1)\ncycle 2   (2,0) (1,1) (0,2)\n"
        "cycle 3   (3,0) (2,1) (1,2)\ncycle 4         (3,1) (2,2)\ncycle 5               (3,2)\n"
    )
    assert "unknown pipeline schedule 'gipe'; did you mean 'gpipe'?" in sim("schedule", "gipe").stderr
    arguments = ("schedule", "gpipe", "--ranks", 3, "--micro-batches", 4)
    text = sim(*arguments, "--set", "order=fifo").stdout
    assert text.startswith(table + "\nrank 0  F0 F1 F2 F3 .")
    assert "B0 -- B1 -- B2 -- B3 --" in text
    assert sim(*arguments, "--set", "checkpoint=always").stdout.count("R3") == 3
    sizes = ("--ranks", 3, "--micro-batches", 4)
    limited = sim("schedule", "zb-auto", *sizes, "--set", "limit=4", "--set", "kept=2").stdout
    assert limited != sim("schedule", "zb-auto", *sizes).stdout
    uneven = sim("schedule", "zb-auto", *sizes, "--set", "forward=[1,2,1]").stdout
    assert [line.count("--") for line in uneven.splitlines()] == [0, 4, 0]


@given(
    name=st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v"]),
    ranks=st.sampled_from([2, 4]),
    rounds=st.integers(1, 2),
)
@examples(15)
def test_torch_csv_goes_both_ways(
    tmp_path_factory: pytest.TempPathFactory, name: str, ranks: int, rounds: int
) -> None:
    sizes = ("--ranks", ranks, "--micro-batches", 2 * ranks * rounds)
    out = sim("schedule", name, *sizes, "--format", "torch-csv")
    assert out.exit_code == 0
    path = tmp_path_factory.mktemp("csv") / "orders.csv"
    path.write_text(out.stdout, encoding="utf-8")
    again = sim("schedule", "custom", "--set", f"file={path}", "--format", "torch-csv")
    assert again.stdout == out.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("gipe", "--ranks", 2, "--micro-batches", 2),
            "unknown pipeline schedule 'gipe'; did you mean 'gpipe'?",
        ),
        (("gpipe", "--ranks", 2), "gpipe needs --micro-batches"),
        (("1f1b", "--ranks", 2, "--micro-batches", 2, "--set", "order"), "should be KEY=VALUE"),
        (("zb-v", "--ranks", 2, "--micro-batches", 4, "--chunks", 1), "zb-v"),
        (
            ("zb-auto", "--ranks", 2, "--micro-batches", 2, "--set", "limit=2GB"),
            "limit: should be a whole number, not '2GB'",
        ),
        (
            ("zb-h1", "--ranks", 2, "--micro-batches", 2, "--set", "forward=3"),
            "zb-h1 has no option 'forward'",
        ),
    ],
)
def test_wrong_usage_of_schedule(arguments: tuple[object, ...], said: str) -> None:
    result = sim("schedule", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not result.stdout


def test_schedules_are_listed_and_compared(tmp_path: Path) -> None:
    listed = json.loads(sim("policies", "--json").stdout)
    assert {entry["name"] for entry in listed["pipelines"]} >= {name for name, _ in schedules()}
    picture = tmp_path / "pareto.png"
    result = sim("compare", write(tmp_path), "--policy", "in-order", "--pareto", picture)
    assert (result.exit_code, result.stderr) == (
        2,
        "--pareto compares schedules of a pipeline; the workload is none\n",
    )
    path = write(tmp_path, GOOD)
    result = sim("compare", path, "--policy", "1f1b", "--policy", "zb-h1", "--pareto", picture)
    assert result.exit_code == 0
    assert picture.stat().st_size > 10_000
    rows = [line.split() for line in result.stdout.splitlines() if "%" in line and "makespan" in line]
    assert [(row[0], row[5], row[6]) for row in rows] == [
        ("zb-h1", "11.11%", "11.11%"),
        ("1f1b", "27.27%", "27.27%"),
    ]


def test_names_in_the_picture_of_time_against_memory_do_not_collide() -> None:
    from matplotlib.text import Text

    from scenarios.report.pipeline_compare import pareto

    scenario = load_scenario("scenarios/examples/schedules.yaml")
    cases = [case for case in scenario.cases() if case.label != "zb-auto"]  # which searches for a while
    ax = pareto([run_case(case) for case in cases])
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    boxes = [Text.get_window_extent(text) for text in ax.texts]  # without a line to its point
    assert len(boxes) == len(cases)
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    frame = ax.get_window_extent()
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)


# -- together with the rest --------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_memory_limit_is_one_of_all_memory(tmp_path: Path, chunks: int) -> None:
    """80 MB with 50 MB of parameters, gradients and optimizer state leave 30 MB: what 30 MB alone would."""
    text = f"""\
workload:
  pipeline: {{ranks: 3, micro_batches: 6, forward: 3us, input_grad: 2us, weight_grad: 1us, kept: 10MB}}
policy: {{name: zb-auto, solver: greedy, chunks: {chunks}, limit: 30MB}}
"""
    bare = run(tmp_path, text=text)
    resident = in_pipeline(parameters="10MB", gradients="10MB", optimizer_state="30MB")
    full = run(tmp_path, *resident, "policy.limit=80MB", text=text)
    assert max(sum(bands.values()) for bands in block(full)["memory_bytes"]) <= 80 * 10**6
    assert full.trace.makespan_ns == bare.trace.makespan_ns
    with pytest.raises(ScenarioError, match=r"limit 50 MB leaves nothing .* of a rank take 50 MB"):
        run(tmp_path, *resident, "policy.limit=50MB", text=text)


def test_the_search_and_its_bound(tmp_path: Path) -> None:
    """zb-auto knows the workload's times, sizes and limit; CP-SAT proves what it found, or beats it."""
    pytest.importorskip("ortools", reason="needs the extra opt")
    text = """\
workload:
  pipeline: {ranks: 3, micro_batches: 4, forward: 3us, input_grad: 2us, weight_grad: 1us, kept: 10MB}
policy: {name: zb-auto, limit: 40MB}
"""
    found = run(tmp_path, text=text)
    proven = run(tmp_path, "policy.solver=cp-sat", text=text)
    assert max(block(proven)["span_ns"]) <= max(block(found)["span_ns"])
    small = run(tmp_path, "policy.limit=20MB", text=text)
    assert max(max(bands.values()) for bands in block(small)["memory_bytes"]) <= 20 * 10**6
    assert small.trace.makespan_ns > found.trace.makespan_ns
    with pytest.raises(InfeasibleError, match="no order fits"):
        run(tmp_path, "policy.limit=5MB", text=text)


def test_an_allocator_sees_the_same_memory(tmp_path: Path) -> None:
    counted = run(tmp_path, policy="1f1b", text=SIZED)
    cached = run(tmp_path, "memory.allocator=caching", policy="1f1b", text=SIZED)
    for name, use in cached.summary["devices"].items():
        assert use["peak_memory_bytes"] == counted.summary["devices"][name]["peak_memory_bytes"]
    with pytest.raises(OutOfMemoryError, match="out of memory on gpu"):
        run(tmp_path, "memory.allocator=caching", policy="gpipe", text=SIZED)


def test_a_schedule_makes_its_own_decisions(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="a pipeline's schedule decides it: 1f1b takes no placement"):
        run(tmp_path, "policy={name: 1f1b, placement: heft}")


@pytest.mark.parametrize(("policy", "steps"), [("zb-h2", 24), ("zb-h1", 27)])
def test_steps_follow_one_another_as_far_as_they_are_synchronised(
    tmp_path: Path, policy: str, steps: int
) -> None:
    """Zero bubble: without a wait of all for all, the next step begins where a rank's span ends."""
    free = [run(tmp_path, f"iterations={n}", policy=policy).trace.makespan_ns for n in (1, 2, 3)]
    assert [b - a for a, b in itertools.pairwise(free)] == [steps * 1_000_000] * 2
    waiting = ["workload.pipeline.optimizer={duration: 1ms, synchronisation: 0ms}"]
    bound = [run(tmp_path, *waiting, f"iterations={n}", policy=policy).trace.makespan_ns for n in (1, 2)]
    assert bound[1] - bound[0] == 28_000_000


def test_unequal_links_are_named(tmp_path: Path) -> None:
    """Every device pair its own link; only the slow one is waited for."""
    text = (FOLDER / "straggler.yaml").read_text(encoding="utf-8").replace("./scenario", "scenario")
    path = write(tmp_path, text)
    slow = ["workload.pipeline.stages=4", "machine.links.2.bandwidth=2GB/s"]
    told = run_scenario(load_scenario(path, sets=slow), "1f1b").summary["pipeline"]
    assert told["bottleneck"] == "transfer gpu2<->gpu3"
    assert max(told["exposed_ns"]) > 10_000_000


def test_messages_inside_a_stage(tmp_path: Path) -> None:
    """One micro-batch, two stages: F c F c B c B c; nothing hides the messages."""
    text = """\
workload:
  pipeline: {stages: 2, micro_batches: 1, forward: 1ms, backward: 2ms, collectives: 0.5ms}
policy: gpipe
"""
    result = run(tmp_path, text=text)
    assert result.trace.makespan_ns == 8_000_000
    told = block(result)
    assert told["busy_ns"] == [3_000_000, 3_000_000]
    assert told["waits_for"] == [{"stage 1": 3_000_000, "collective": 1_500_000}, {"collective": 500_000}]
    assert told["exposed_ns"] == [1_500_000, 500_000]
    split = run(tmp_path, *in_pipeline(stages=4, micro_batches=4, collectives="1ms"), policy="zb-h1")
    plain = run(tmp_path, *in_pipeline(stages=4, micro_batches=4), policy="zb-h1")
    assert split.trace.makespan_ns > plain.trace.makespan_ns + 4 * 2 * 1_000_000 - 1
