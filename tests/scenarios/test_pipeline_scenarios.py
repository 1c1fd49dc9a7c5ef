"""Pipelines as scenarios: any schedule as policy, what is told of a run, what is said of a wrong one."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pipeline_runs import FOLDER, GOOD, SIZED, block, in_pipeline, run
from scenario_texts import write

from policies.pipeline.custom import to_csv
from policies.pipeline.evaluate import StageTimes, evaluate
from policies.pipeline.registry import generate
from scenarios.importers.graph_json import write_graph
from scenarios.regression import check_file
from scenarios.report.pipeline_compare import pipeline_rows
from scenarios.run.execute import run_case, run_scenario
from scenarios.run.load import load_scenario
from scenarios.workloads.pipeline_workload import micro_batch_sizes
from sim import GraphBuilder
from sim.base.errors import InputError, OutOfMemoryError, ScenarioError, StuckError

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
        ("zb-h1", {}), ("zb-h2", {}), ("interleaved-zb", {"chunks": 2}), ("zb-v", {}),
        ("zb-auto", {"solver": "greedy"}),
        ("v-half", {}), ("v-min", {}), ("dualpipe", {}), ("dualpipe-v", {}), ("chimera", {}),
        ("pipedream", {}), ("forward-only", {}), ("forward-only", {"in_flight": 3}),
    ],
)  # fmt: skip
def test_every_schedule_is_a_policy(tmp_path: Path, policy: str, sets: dict[str, Any]) -> None:
    """The simulated times are those of the evaluation, whatever the machine of the scenario looks like."""
    own = {key: sets[key] for key in sets if key in ("in_flight", "solver")}
    sets = {"transfer": "0.25ms", **{key: sets[key] for key in sets if key not in own}}
    found = run(tmp_path, *in_pipeline(**sets), f"policy={json.dumps({'name': policy, **own})}")
    told = block(found)
    options = {"transfer": 1, "forward": 4, "input_grad": 4, "weight_grad": 4} if policy == "zb-auto" else {}
    schedule = generate(policy, ranks=told["ranks"], micro_batches=8, chunks=told["chunks"], **options, **own)
    quarter = StageTimes(forward=4, input_grad=4, weight_grad=4)
    expected = evaluate(schedule, quarter, transfer=1)
    assert told["makespan_ns"] == expected.makespan * 250_000
    assert told["span_ns"] == [span * 250_000 for span in expected.spans]
    assert told["idle_ns"] == [idle * 250_000 for idle in expected.idle]
    assert told["makespan_bubble"] == float(expected.bubble)
    assert told["span_bubble"] == float(expected.span_bubble)
    assert [sum(causes.values()) for causes in told["waits_for"]] == told["idle_ns"]


def test_an_optimizer_step_between_slots_is_no_idle_time(tmp_path: Path) -> None:
    """Two stages whose slots take 1 and 2 ms, and which step for 1 ms after each B: rank 0 waits for 3 ms.

    rank 0   F F · · B B o F B B o · B B o
    rank 1     F B B o F B B o F B B o
    """
    sets = in_pipeline(stages=2, micro_batches=3, weight_grad="1ms", optimizer="1ms")
    told = block(run(tmp_path, *sets, policy="pipedream"))
    assert told["idle_ns"] == [3_000_000, 0]
    assert told["waits_for"] == [{"stage 1": 3_000_000}, {}]


@examples(25)
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


def test_inference_over_a_graph_by_hand(tmp_path: Path) -> None:
    """Stage 0 takes 7 ns and holds 3 bytes while b runs; stage 1 takes 13 ns: four leave in 7 + 4 * 13.

    While the last micro-batch is on stage 0, two that have left it still lie there: 10 + 2 + 3 bytes.
    """
    b = GraphBuilder("chain")
    b.parameter("w", 10)
    b.parameter("v", 20)
    b.op("a", duration_ns=1, outputs=2)
    b.op("b", duration_ns=3, inputs=["a", "w"], outputs=1)
    b.op("c", duration_ns=3, inputs=["b"], outputs=1)
    b.op("d", duration_ns=13, inputs=["c", "v"], outputs=1)
    write_graph(b.build(), tmp_path / "graph.json")
    text = """
workload: {pipeline: {graph: graph.json, ranks: 2, micro_batches: 4, partition: [3, 1]}}
policy: forward-only
"""
    found = block(run(tmp_path, text=text))
    assert (found["makespan_ns"], found["latency_ns"]) == (59, {"median": 32, "max": 59 - 21})
    assert found["micro_batches_per_s"] == pytest.approx(4e9 / 59)
    twice = block(run(tmp_path, "iterations=2", text=text))
    assert (twice["makespan_ns"], twice["latency_ns"]) == (7 + 8 * 13, {"median": 44, "max": 111 - 49})
    assert twice["micro_batches_per_s"] == pytest.approx(8e9 / 111)
    assert found["memory_bytes"] == [
        {"parameters": 10, "buffers": 3, "working": 2},
        {"parameters": 20, "working": 1},
    ]


def test_a_backward_is_as_many_times_as_long_as_the_forward_of_an_op(tmp_path: Path) -> None:
    """One rank: two micro-batches of 7 ns forward, and 14 ns (by default twice as long) or 21 ns backward."""
    b = GraphBuilder("one")
    b.op("a", duration_ns=7, outputs=2)
    write_graph(b.build(), tmp_path / "graph.json")
    text = "workload: {pipeline: {graph: graph.json, ranks: 1, micro_batches: 2}}\npolicy: gpipe\n"
    found = [block(run(tmp_path, *sets, text=text)) for sets in ((), ("workload.pipeline.backward=x3",))]
    assert [each["makespan_ns"] for each in found] == [2 * (7 + 14), 2 * (7 + 21)]
    with pytest.raises(ScenarioError, match=r"pipeline.backward: is a factor of what ops of a graph take"):
        run(tmp_path, "workload.pipeline.backward=x3")
    with pytest.raises(ScenarioError, match=r"pipeline.kept: has no effect: the graph, or the profile, says"):
        run(tmp_path, "workload.pipeline.kept=1MB", text=text)


def test_copies_that_block_keep_micro_batches_from_queueing_before_a_slow_stage(tmp_path: Path) -> None:
    """Micro-batch k starts at 5 k and ends at 12 + 10 (k + 1); if copies block, rank 2 takes one in 11."""
    text = """
workload:
  pipeline: {stages: [{forward: 5ms}, {forward: 5ms}, {forward: 10ms}], micro_batches: 16, transfer: 1ms}
policy: forward-only
"""
    free = block(run(tmp_path, text=text))
    held = block(run(tmp_path, "workload.pipeline.overlap=false", text=text))
    assert (free["makespan_ns"], held["makespan_ns"]) == (172_000_000, 12_000_000 + 16 * 11_000_000)
    assert free["latency_ns"] == {"median": 62_000_000, "max": 97_000_000}
    assert held["latency_ns"] == {"median": 37_000_000, "max": 37_000_000}


@pytest.mark.parametrize("copy_streams", ["true", "false"])
@pytest.mark.parametrize(
    ("in_flight", "makespan_ms", "median_ms", "most_ms"),
    [(1, 352, 22, 22), (2, 186, 22, 27), (3, 172, 30, 32), (10**30, 172, 62, 97)],
)
def test_micro_batches_in_flight_are_limited(
    tmp_path: Path, in_flight: int, makespan_ms: int, median_ms: int, most_ms: int, copy_streams: str
) -> None:
    """Of two, both leave 22 ms after they entered, but the second, which waits for 5 ms; of three, 30."""
    text = f"""
workload:
  pipeline:
    stages: [{{forward: 5ms}}, {{forward: 5ms}}, {{forward: 10ms}}]
    micro_batches: 16
    transfer: 1ms
policy: {{name: forward-only, in_flight: {in_flight}}}
"""
    found = block(run(tmp_path, f"workload.pipeline.overlap={copy_streams}", text=text))
    if copy_streams == "true" or in_flight == 1:
        assert found["makespan_ns"] == makespan_ms * 1_000_000
        assert found["latency_ns"] == {"median": median_ms * 1_000_000, "max": most_ms * 1_000_000}
    else:  # ranks wait for copies of others, too
        assert found["makespan_ns"] >= makespan_ms * 1_000_000
    assert found["bubble_formula"] is None


def test_micro_batches_that_queue_may_take_all_memory_and_a_limit_on_them_is_named(tmp_path: Path) -> None:
    """What arrives takes the room of what stage 1 sends on; with one at a time each takes 5 + 1 + 5 ms."""
    text = """
machine:
  devices: {gpu: {kind: gpu, count: 2, memory: 200MB}}
  links: [{from: gpu0, to: gpu1, bandwidth: 100GB/s}]
workload: {pipeline: {ranks: 2, micro_batches: 8, forward: 5ms, activation: 100MB}}
memory: {when_full: wait}
policy: {name: forward-only, in_flight: %s}
"""
    with pytest.raises(StuckError, match=r"fewer micro-batches, as policy\.in_flight of forward-only says"):
        run(tmp_path, text=text % 8)
    assert run(tmp_path, text=text % 1).trace.makespan_ns == 8 * 11_000_000


@pytest.mark.parametrize("key", ["optimizer=1ms", "dp={all_reduce: 1ms}"])
def test_inference_has_no_step_at_the_end(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match="forward-only has no backward; leave out"):
        run(tmp_path, f"workload.pipeline.{key}", policy="forward-only")


def test_only_inference_can_do_without_a_backward(tmp_path: Path) -> None:
    text = "workload: {pipeline: {stages: 2, micro_batches: 2, forward: 1ms}}\npolicy: forward-only\n"
    assert run(tmp_path, text=text).trace.makespan_ns == 3_000_000
    with pytest.raises(InputError, match="the stage has no time for them: give backward"):
        run(tmp_path, text=text, policy="1f1b")


@pytest.mark.parametrize("key", ["checkpoint=always", "collectives=1ms"])
def test_no_formula_knows_of_recomputation_or_messages_inside_a_stage(tmp_path: Path, key: str) -> None:
    """Its work is F and B."""
    assert block(run(tmp_path, f"workload.pipeline.{key}"))["bubble_formula"] is None


def test_zero_bubble_is_said_of_the_span(tmp_path: Path) -> None:
    found = block(run(tmp_path, *in_pipeline(stages=8), policy="zb-v"))
    assert found["idle_ns"] == [0, 0, 0, 0]
    assert (found["span_bubble"], found["formula_of"], found["bubble_formula"]) == (0.0, "span", 0.0)
    assert found["bubble"] == found["makespan_bubble"] > 0


def test_pipedream_never_has_all_gradients_to_sum(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="updates after each backward, and dp sums gradients after the last"):
        run(tmp_path, "workload.pipeline.dp={all_reduce: 1ms}", policy="pipedream")


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
            (rate,) = (entry.expect[key].equals for key in entry.expect if key.endswith("bubble"))
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["stages_1_5b_8x24", "stages_1_5b_8x32", "stages_6_2b_8x24", "stages_14_6b_16x48", "v_6_2b_16x48"]
)
def test_published_bubble_rates(name: str) -> None:
    """Five of the 21 files; ``sim check scenarios/examples/zero_bubble`` runs them all in half a minute."""
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
    with pytest.warns(
        UserWarning, match=r"a batch of 5 in 4 micro-batches is split into 3, of 2\+2\+1 samples"
    ):
        result = run(tmp_path, text=text)
    assert block(result)["micro_batches"] == 3
    assert result.trace.makespan_ns == (2 * 30 + 15) * 1000  # the last one has half of the samples


@pytest.mark.filterwarnings("ignore:a batch of 5 in 4 micro-batches is split into 3")
@pytest.mark.parametrize("checkpoint", ["never", "always"])  # written at once, and slot by slot
def test_a_short_micro_batch_sends_and_keeps_less(checkpoint: str, tmp_path: Path) -> None:
    text = f"""\
machine: {{devices: {{gpu: {{kind: gpu, count: 2}}}}, links: [{{from: gpu0, to: gpu1, bandwidth: 1GB/s}}]}}
workload:
  pipeline:
    {{ranks: 2, batch: 5, micro_batches: 4, forward: 10us, backward: 20us, activation: 1MB, kept: 3MB,
      checkpoint: {checkpoint}}}
policy: gpipe
"""
    result = run(tmp_path, text=text)
    moved = result.trace.transfers
    assert sorted(moved["nbytes"].tolist()) == [500_000, 500_000] + [1_000_000] * 4
    graph = result.trace.job.graph
    whole, short = (graph.tensor_nbytes[graph.outputs.row(graph.index(f"0F{k}"))].tolist() for k in (0, 2))
    assert [2 * nbytes for nbytes in short] == whole
    assert result.summary["samples_per_s"] == pytest.approx(5e9 / result.trace.makespan_ns)


# -- memory ------------------------------------------------------------------------------------------


def test_memory_by_what_it_is_for(tmp_path: Path) -> None:
    found = block(run(tmp_path, policy="1f1b", text=SIZED))
    first, second = found["memory_bytes"]
    resident = {"parameters": 100 << 20, "gradients": 100 << 20, "optimizer state": 200 << 20}
    assert {key: first[key] for key in resident} == {key: second[key] for key in resident} == resident
    assert (first["activations"], second["activations"]) == (200 << 20, 100 << 20)


def test_what_one_micro_batch_needs_no_schedule_saves(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        run(
            tmp_path,
            "workload.pipeline.micro_batches=2",
            "workload.pipeline.kept=2GiB",
            text=SIZED,
            policy="1f1b",
        )
    assert "fewer micro-batch" not in str(caught.value)
    assert "more memory" in str(caught.value)


def test_what_does_not_fit_is_explained(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        run(tmp_path, text=SIZED)
    said = str(caught.value)
    assert said.startswith("gpipe: rank ")
    assert (
        "of 1 GiB at micro-batch 7: activations 800 MiB, optimizer state 200 MiB, parameters 100 MiB" in said
    )
    assert (
        "it would fit with 2 fewer micro-batches in flight, or checkpoint: always (recomputation), or "
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
        (
            ["policy=mine:make"],
            "code needs a name: an entry point, or sim.base.plugins.register; known: 1f1b",
        ),
        (["policy.name=gpipe", "policy.ordr=fifo"], "gpipe has no option 'ordr'; did you mean 'order'?"),
        (in_pipeline(chunks=3), "4 stages cannot be shared by ranks of 3 chunks"),
        (in_pipeline(chunks=2), "1f1b has one stage a rank, not 2 chunks"),
        (in_pipeline(stages="[{}, {forward: 2ms}]", micro_batches=0), "micro_batches"),
        (in_pipeline(ranks=4), "has stages and ranks; give stages"),
        (in_pipeline(backward="1ms"), "backward is 1000000 ns, and input_grad and weight_grad add up to"),
        (
            in_pipeline(backward="[1ms, 2ms]"),
            "is not a quantity; accepted: ns, us, ms, s, min, h, d, as in '10us'",
        ),
        (in_pipeline(bakward="1ms"), "no such key; did you mean 'backward'?"),
        (
            ["policy.checkpoint=allways"],
            "should be 'never', 'except_last' or 'always', not 'allways'; did you mean 'always'?",
        ),
        (in_pipeline(skips="[{from: 1, to: 1, size: 1MB}]"), "leads to a later stage, not from 1 to 1"),
        (["policy={name: custom, file: no.csv}"], "no.csv}: policy.file: "),
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


def test_ranks_of_an_order_with_chunks_have_to_say_so(tmp_path: Path) -> None:
    (tmp_path / "order.csv").write_text(to_csv(generate("zb-v", ranks=2, micro_batches=2)), encoding="utf-8")
    path = write(tmp_path, CUSTOM.replace("stages: 2", "ranks: 2"))
    said = "stages given: 2; custom has 4 on 2 ranks; say chunks: 2"
    assert said in sim("run", path).stderr
    assert sim("run", path, "--set", "workload.pipeline.chunks=2").exit_code == 0


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


@pytest.mark.parametrize(("batch", "recomputed"), [(8, "0 1 2"), (5, "0 1 2"), (7, "0 1 2"), (6, "0 1 2")])
def test_except_last_leaves_out_the_last_micro_batch_asked_for(
    tmp_path: Path, batch: int, recomputed: str
) -> None:
    """Of eight samples in four; five or six samples make only three micro-batches, and all are recomputed."""
    text = f"""\
workload:
  pipeline:
    {{stages: 1, batch: {batch}, micro_batches: 4, forward: 1ms, backward: 1ms, checkpoint: except_last}}
policy: gpipe
"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = run(tmp_path, text=text).trace.job.graph.op_names
    assert " ".join(sorted(name[2:] for name in names if name[1] == "R")) == recomputed


def test_bubbles_of_a_comparison_are_of_the_same_thing(tmp_path: Path) -> None:
    """Uneven stages: the bubble is that of the makespan also for zb-auto, which is published by the span."""
    stage = "{forward: %s, input_grad: 1ms, weight_grad: 1ms}"
    file = tmp_path / "uneven.yaml"
    file.write_text(
        f"workload: {{pipeline: {{stages: [{stage % '1ms'}, {stage % '3ms'}], micro_batches: 4}}}}\n"
        "policy: 1f1b\n"
    )
    scenario = load_scenario(file)
    results = [run_case(scenario.case(name)) for name in ("1f1b", "zb-auto")]
    for told, result in zip(pipeline_rows(results), results, strict=True):
        work = 4 * (3 + 5) * 1_000_000
        whole = 2 * result.trace.makespan_ns
        assert told["bubble"] == f"{100 * (whole - work) / whole:.2f}%"
        assert result.summary["pipeline"]["bubble"] == (whole - work) / whole
        assert told["span bubble"] == f"{100 * result.summary['pipeline']['span_bubble']:.2f}%"
        assert "formula" not in told  # published for equal stages


def test_a_refusal_names_the_schedule(tmp_path: Path) -> None:
    file = tmp_path / "halves.yaml"
    file.write_text(
        "workload: {pipeline: {stages: 2, micro_batches: 4, forward: 1ms, backward: 2ms}}\npolicy: 1f1b\n"
    )
    with pytest.raises(ScenarioError, match="zb-h1: the schedule has I actions"):
        load_scenario(file).case("zb-h1").work  # noqa: B018
