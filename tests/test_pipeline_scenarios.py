"""Pipelines as scenarios: any schedule as policy, what is told of a run, what is said of a wrong one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario_texts import write

from policies.pipeline import Schedule, StageTimes, evaluate, generate, schedules
from scenarios.check import check_file
from scenarios.load import load_scenario
from scenarios.run import Result, run_case, run_scenario
from scenarios.workloads.pipeline import micro_batch_sizes
from sim import plugins
from sim.errors import InputError, OutOfMemoryError, ScenarioError, StuckError

FOLDER = Path(__file__).resolve().parents[1] / "scenarios"

GOOD = """\
name: a pipeline
workload:
  pipeline: {stages: 4, micro_batches: 8, forward: 1ms, input_grad: 1ms, weight_grad: 1ms}
policy: {name: 1f1b}
"""


def run(folder: Path, *sets: str, policy: str | None = None, text: str = GOOD) -> Result:
    return run_scenario(load_scenario(write(folder, text), sets=sets), policy, check=True)


def block(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = result.to_json()["pipeline"]
    return found


def in_pipeline(**values: object) -> list[str]:
    return [f"workload.pipeline.{key}={value}" for key, value in values.items()]


# -- the result ------------------------------------------------------------------------------------


def test_the_block_of_1f1b(tmp_path: Path) -> None:
    found = block(run(tmp_path))
    assert {key: found[key] for key in ("ranks", "stages", "chunks", "micro_batches")} == {
        "ranks": 4,
        "stages": 4,
        "chunks": 1,
        "micro_batches": 8,
    }
    assert found["makespan_ns"] == (8 + 4 - 1) * 3_000_000
    assert found["span_ns"] == [33_000_000, 30_000_000, 27_000_000, 24_000_000]
    assert found["bubble"] == found["bubble_formula"] == pytest.approx(3 / 11, abs=1e-15)
    assert found["peak_activations"] == [4, 3, 2, 1]
    assert [sum(causes.values()) for causes in found["waits_for"]] == found["idle_ns"]


@pytest.mark.parametrize(
    ("policy", "sets"),
    [
        ("gpipe", {}), ("1f1b", {}), ("interleaved-1f1b", {"chunks": 2}), ("looped-bfs", {"chunks": 2}),
        ("zb-h1", {}), ("zb-h2", {}), ("interleaved-zb", {"chunks": 2}), ("zb-v", {}), ("zb-auto", {}),
        ("v-half", {}), ("v-min", {}), ("dualpipe", {}), ("dualpipe-v", {}), ("chimera", {}),
        ("pipedream", {}),
    ],
)  # fmt: skip
def test_every_schedule_is_a_policy(tmp_path: Path, policy: str, sets: dict[str, int]) -> None:
    """The simulated times are those of the evaluation, whatever the machine of the scenario looks like."""
    sets = {"transfer": "0.25ms", **sets}
    found = run(tmp_path, *in_pipeline(**sets), policy=policy)
    told = block(found)
    options = {"transfer": 1, "forward": 4, "input_grad": 4, "weight_grad": 4} if policy == "zb-auto" else {}
    schedule = generate(policy, ranks=told["ranks"], micro_batches=8, chunks=told["chunks"], **options)
    quarter = StageTimes(forward=4, input_grad=4, weight_grad=4)
    expected = evaluate(schedule, quarter, transfer=1)
    assert told["makespan_ns"] == expected.makespan * 250_000
    assert told["span_ns"] == [span * 250_000 for span in expected.spans]
    assert told["idle_ns"] == [idle * 250_000 for idle in expected.idle]
    assert told["makespan_bubble"] == float(expected.bubble)
    assert told["span_bubble"] == float(expected.span_bubble)
    assert [sum(causes.values()) for causes in told["waits_for"]] == told["idle_ns"]


@settings(deadline=None, max_examples=25)
@given(p=st.integers(1, 6), m=st.integers(1, 9), f=st.integers(1, 9), b=st.integers(1, 9))
def test_the_bubble_of_gpipe(
    tmp_path_factory: pytest.TempPathFactory, p: int, m: int, f: int, b: int
) -> None:
    folder = tmp_path_factory.mktemp("gpipe")
    text = f"""\
workload: {{pipeline: {{stages: {p}, micro_batches: {m}, forward: {f}us, backward: {b}us}}}}
policy: gpipe
"""
    found = block(run(folder, text=text))
    assert found["makespan_ns"] == (m + p - 1) * (f + b) * 1000
    assert found["bubble"] == found["bubble_formula"] == (p - 1) / (m + p - 1)


def test_zero_bubble_is_said_of_the_span(tmp_path: Path) -> None:
    found = block(run(tmp_path, *in_pipeline(stages=8), policy="zb-v"))
    assert found["idle_ns"] == [0, 0, 0, 0]
    assert (found["bubble"], found["bubble_of"], found["bubble_formula"]) == (0.0, "span", 0.0)
    assert found["makespan_bubble"] > 0


def test_pipedream_tells_versions_and_staleness(tmp_path: Path) -> None:
    found = block(run(tmp_path, policy="pipedream"))
    assert found["weight_versions"] == [4, 3, 2, 1]
    assert found["staleness"] == [3, 2, 1, 0]


# -- the published bubble rates ----------------------------------------------------------------------


def rates_said() -> dict[tuple[int, int, str, str], float]:
    """(ranks, micro-batches, forward, label) → rate, as the shipped scenarios expect it."""
    said = {}
    for path in sorted((FOLDER / "zero_bubble").glob("*.yaml")):
        content = load_scenario(path).content
        fields = content.workload.pipeline  # type: ignore[attr-defined]
        for entry in content.compare:
            rate = entry.expect["pipeline_bubble"].equals
            said[fields.ranks, fields.micro_batches, fields.forward, entry.label] = rate
    return said


def test_the_shipped_rates_are_the_published_ones(data_dir: Path) -> None:
    published = json.loads((data_dir / "published" / "zero_bubble.json").read_text())
    rows = {}
    for key, forward, times in (("stage_rows", "T_F_ms", 1), ("chunk_rows", "chunk_T_F_ms", 2)):
        for row in published[key]:
            for name, rate in row["bubble_rate"].items():
                label = "ZB-V" if name == "ZBV" else name
                size = row["devices"], row["micro_batches"], round(row[forward] * 1_000_000) * times
                rows[(*size, label)] = rate
    assert len(rows) == 96
    assert rates_said() == rows


@pytest.mark.parametrize(
    "name", ["stages_1_5b_8x24", "stages_1_5b_8x32", "stages_6_2b_8x24", "stages_14_6b_16x48", "v_6_2b_16x48"]
)
def test_published_bubble_rates(name: str) -> None:
    """Five of the 21 files; ``sim check scenarios/zero_bubble`` runs them all in half a minute."""
    checked = list(check_file(FOLDER / "zero_bubble" / f"{name}.yaml"))
    assert [message for one in checked for message in one.messages] == []
    assert len(checked) >= 4


# -- splitting the batch -----------------------------------------------------------------------------


@given(batch=st.integers(1, 200), wanted=st.integers(1, 50))
def test_micro_batches_are_those_of_tensor_chunk(batch: int, wanted: int) -> None:
    sizes = micro_batch_sizes(batch, wanted)
    assert sum(sizes) == batch
    assert len(sizes) <= wanted
    assert len(set(sizes[:-1])) <= 1
    assert sizes[0] == -(-batch // wanted)


def test_fewer_micro_batches_than_asked_for_are_said(tmp_path: Path) -> None:
    text = """\
workload: {pipeline: {stages: 1, batch: 5, micro_batches: 4, forward: 10us, backward: 20us}}
policy: gpipe
"""
    with pytest.warns(UserWarning, match=r"a batch of 5 in 4 micro-batches makes 3, of 2\+2\+1 samples"):
        result = run(tmp_path, text=text)
    assert block(result)["micro_batches"] == 3
    assert result.trace.makespan_ns == (2 * 30 + 15) * 1000  # the last one has half of the samples


# -- memory ------------------------------------------------------------------------------------------

SIZED = """\
machine:
  devices: {gpu: {kind: gpu, count: 2, memory: 1GiB}}
  links: [{from: gpu0, to: gpu1, bandwidth: 100GB/s}]
workload:
  pipeline:
    stages: 2
    micro_batches: 8
    forward: 1ms
    backward: 2ms
    activation: 1MiB
    kept: 100MiB
    parameters: 100MiB
    gradients: 100MiB
    optimizer_state: 200MiB
policy: gpipe
"""


def test_memory_by_what_it_is_for(tmp_path: Path) -> None:
    found = block(run(tmp_path, policy="1f1b", text=SIZED))
    first, second = found["memory_bytes"]
    resident = {"weights": 100 << 20, "gradients": 100 << 20, "optimizer state": 200 << 20}
    assert {key: first[key] for key in resident} == {key: second[key] for key in resident} == resident
    assert (first["activations"], second["activations"]) == (200 << 20, 100 << 20)


def test_what_does_not_fit_is_explained(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        run(tmp_path, text=SIZED)
    said = str(caught.value)
    assert said.startswith("gpipe: rank ")
    assert "of 1 GiB at micro-batch 7: activations 800 MiB, optimizer state 200 MiB, weights 100 MiB" in said
    assert (
        "it would fit with 2 micro-batches in flight fewer, or checkpoint: always (recomputation), or "
        in said
    )
    assert run(tmp_path, *in_pipeline(checkpoint="always"), text=SIZED).passed
    assert run(tmp_path, *in_pipeline(micro_batches=6), text=SIZED).passed


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemoryError, match="what stays the whole time is too much by"):
        run(tmp_path, *in_pipeline(parameters="1GiB"), text=SIZED)


# -- what is wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["policy.name=1f1bb"], "'1f1bb' is no pipeline schedule; did you mean '1f1b'?"),
        (["policy.name=gpipe", "policy.ordr=fifo"], "gpipe has no option 'ordr'; did you mean 'order'?"),
        (in_pipeline(chunks=3), "4 stages cannot be shared by ranks of 3 chunks"),
        (in_pipeline(chunks=2), "1f1b has one stage a rank, not 2 chunks"),
        (in_pipeline(stages="[{}, {forward: 2ms}]", micro_batches=0), "micro_batches"),
        (in_pipeline(ranks=4), "has stages and ranks"),
        (in_pipeline(backward="1ms"), "backward is 1000000 ns, and input_grad and weight_grad add up to"),
        (in_pipeline(bakward="1ms"), "no such key; did you mean 'backward'?"),
        (["policy.checkpoint=allways"], "unknown value of checkpoint 'allways'; did you mean 'always'?"),
        (in_pipeline(skips="[{from: 0, to: 1, size: 1MB}]"), "leads over at least one stage"),
    ],
)
def test_wrong_pipelines_are_told(tmp_path: Path, sets: list[str], message: str) -> None:
    with pytest.raises(InputError, match=r".*") as caught:
        run(tmp_path, *sets)
    assert message in str(caught.value)


def test_a_pipeline_needs_a_schedule(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="a pipeline's policy is its schedule"):
        run(tmp_path, text=GOOD.replace("policy: {name: 1f1b}\n", ""))


CUSTOM = (
    GOOD.replace("stages: 4", "stages: 2")
    .replace("micro_batches: 8", "micro_batches: 2")
    .replace("{name: 1f1b}", "{name: custom, file: order.csv}")
)


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1", InputError, "0B1 is missing"),
        ("0F0,0F1,0F1,0B0,0B1\n1F0,1B0,1F1,1B1", InputError, "0F1 is doubled"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,0B1,1F1,1B1", InputError, "stage 0 is on rank 0"),
        (
            "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1",
            StuckError,
            "rank 1 waits at position 0 with 1F1 for 0F1 of rank 0",
        ),
    ],
)
def test_a_wrong_order_is_explained(tmp_path: Path, rows: str, error: type[Exception], said: str) -> None:
    (tmp_path / "order.csv").write_text(rows, encoding="utf-8")
    path = write(tmp_path, CUSTOM)
    with pytest.raises(error, match=said):
        run_scenario(load_scenario(path))
    result = sim("run", path)
    assert result.exit_code == (2 if error is InputError else 1)
    assert said in result.stderr


# -- around ------------------------------------------------------------------------------------------


def test_copies_on_compute_streams_block_both_ends(tmp_path: Path) -> None:
    """One micro-batch, two ranks: F, copy, F, B, copy, B, with or without copy streams."""
    sets = in_pipeline(stages=2, micro_batches=2, transfer="1ms")
    beside = run(tmp_path, *sets, policy="gpipe")
    blocking = run(tmp_path, *sets, "workload.pipeline.copy_streams=false", policy="gpipe")
    assert beside.trace.makespan_ns == 2_000_000 + 1_000_000 + 5_000_000 + 1_000_000 + 2_000_000
    assert blocking.trace.makespan_ns == 13_000_000
    copies = [op for op in blocking.trace.job.graph.op_names if op.startswith("copy")]
    assert len(copies) == 2 * 2 * 2  # two micro-batches, forward and backward, two ends


def test_copies_that_cannot_meet_are_explained(tmp_path: Path) -> None:
    sets = in_pipeline(transfer="1ms", copy_streams="false")
    with pytest.raises(StuckError, match="both ends of a copy must meet"):
        run(tmp_path, *sets, policy="zb-v", text=GOOD.replace("stages: 4", "ranks: 2"))


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


def test_a_reduction_beside_the_computation_needs_a_stream(tmp_path: Path) -> None:
    sets = ["workload.pipeline.data_parallel={replicas: 4, bandwidth: 10GB/s}"]
    with pytest.raises(InputError, match="has one stream; give it streams: 2, or say overlap: false"):
        run(tmp_path, *sets, policy="1f1b", text=SIZED)
    beside = run(tmp_path, *sets, "machine.devices.gpu.streams=2", policy="1f1b", text=SIZED)
    ring_ns = -(-2 * 3 * (100 << 20) * 10**9 // (4 * 10**10))
    names, trace = beside.trace.job.graph.op_names, beside.trace
    row = [names[op] for op in trace.tasks["op"].tolist()].index("all-reduce of stage 0 on gpu0")
    assert trace.tasks["end_ns"][row] - trace.tasks["start_ns"][row] == ring_ns


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
        assert found == pytest.approx(row["throughput"], rel=0.15)
    for share, row in zip(used, rows, strict=True):
        assert share == pytest.approx(row["utilization"], abs=0.13)


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


# -- the command line ------------------------------------------------------------------------------------


def test_schedules_as_text() -> None:
    table = (
        "cycle 0   (0,0)\ncycle 1   (1,0) (0,1)\ncycle 2   (2,0) (1,1) (0,2)\n"
        "cycle 3   (3,0) (2,1) (1,2)\ncycle 4         (3,1) (2,2)\ncycle 5               (3,2)\n"
    )
    arguments = ("schedule", "gpipe", "--ranks", 3, "--micro-batches", 4)
    assert sim(*arguments, "--format", "clock").stdout == table
    text = sim(*arguments, "--set", "order=fifo").stdout
    assert text.startswith(table + "\nrank 0  F0 F1 F2 F3 .")
    assert "B0 -- B1 -- B2 -- B3 --" in text
    assert sim(*arguments, "--set", "checkpoint=always").stdout.count("R3") == 3


@given(
    name=st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v"]),
    ranks=st.sampled_from([2, 4]),
    rounds=st.integers(1, 2),
)
@settings(deadline=None, max_examples=15)
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
        (
            ("1f1b", "--ranks", 2, "--micro-batches", 2, "--format", "clock"),
            "1f1b does not go by clock cycles",
        ),
        (("1f1b", "--ranks", 2, "--micro-batches", 2, "--set", "order"), "should be KEY=VALUE"),
        (("zb-v", "--ranks", 2, "--micro-batches", 4, "--chunks", 1), "zb-v"),
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
