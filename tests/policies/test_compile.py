"""Compiling in scenarios: the steps of ``compile``, shown, switched, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim

from scenarios.importers import read_graph
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.base import plugins
from sim.base.errors import ScenarioError

TEXT = """\
machine: {devices: {gpu0: {kind: gpu, issue_cost: 1us}}}
workload:
  inputs: {x: 8B}
  ops:
    m: {kind: matmul, inputs: [x], output: 8B, duration: 10us}
    b: {kind: bias_add, inputs: [m], output: 8B, duration: 2us}
    unused: {kind: relu, inputs: [m], output: 8B, duration: 3us}
    y: {kind: attention, inputs: [b], output: 8B, duration: 4us}
policy: {name: sequential, compile: [{name: prune, fetches: [y]}, fusion]}
"""


def write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "s.yaml"
    path.write_text(text)
    return path


def ops(path: Path, *sets: str) -> list[str]:
    return [*run_scenario(load_scenario(path, sets=sets), check=True).trace.job.graph.op_names]


def test_steps_are_applied_in_order_and_can_be_switched_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert ops(path) == ["b", "y"]
    assert ops(path, "policy.compile=[fusion, {name: prune, fetches: [y]}]") == ["m", "b", "y"]
    assert ops(path, "policy.compile=[fusion]") == ["m", "b", "unused", "y"]
    assert ops(path, "policy.compile=[]") == ["m", "b", "unused", "y"]


def test_the_graph_is_shown_before_and_after(tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    done = sim("run", write(tmp_path), "--show-graph", before, after, "--json")
    assert done.exit_code == 0, done.output
    assert [*read_graph(before).op_names] == ["m", "b", "unused", "y"]
    fused = read_graph(after)
    assert [*fused.op_names] == ["b", "y"]
    assert fused.attributes[0] == {"fused": ["matmul", "bias_add"]}
    assert json.loads(done.stdout)["tasks"] == 2


def test_one_graph_is_shown_at_a_time(tmp_path: Path) -> None:
    done = sim(
        "run",
        write(tmp_path),
        "--policy",
        "sequential",
        "--policy",
        "in-order",
        "--show-graph",
        "a.json",
        "b.json",
    )
    assert done.exit_code == 2
    assert "--show-graph: shows the graph of one run" in done.stderr


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("[fusoin]", r"policy.compile.0: unknown rewrite 'fusoin'; did you mean 'fusion'"),
        ("[cse, {name: fusion, patterns: some}]", r"policy.compile.1.patterns: fusion: patterns must be"),
        ("[{name: prune, fetches: [z]}]", r"policy.compile.0: prune: unknown op or tensor 'z'"),
    ],
)
def test_wrong_steps_are_refused_with_their_place(tmp_path: Path, steps: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        ops(write(tmp_path), f"policy.compile={steps}")


def test_a_runtime_may_compile(tmp_path: Path) -> None:
    plugins.register("sim.runtimes", "fusing", {"name": "sequential", "compile": ["fusion"]})
    try:
        text = TEXT[: TEXT.index("policy:")]
        assert ops(write(tmp_path, f"{text}policy: {{runtime: fusing}}\n")) == ["m", "b", "unused", "y"]
        assert ops(
            write(tmp_path, f"{text}policy: {{runtime: fusing, compile: [{{name: prune, fetches: [y]}}]}}\n")
        ) == ["m", "b", "y"]
    finally:
        plugins.unregister("sim.runtimes", "fusing")


PARTITION = """\
machine:
  devices: {cpu0: {kind: cpu, cores: 8}, gpu0: {kind: gpu}}
  links: [{from: cpu0, to: gpu0, latency: 1us, bandwidth: 1GB/s}]
workload:
  ops:
    a: {duration: {cpu: 10us, gpu: 30us}, output: 1kB}
    b: {duration: {cpu: 30us, gpu: 10us}, inputs: [a], output: 1kB}
    c: {duration: {cpu: 30us, gpu: 10us}, inputs: [a], output: 1kB}
    d: {duration: {cpu: 10us, gpu: 30us}, inputs: [b, c]}
policy: {name: ready-queue, placement: heft, compile: [partition]}
"""


def test_a_partition_is_made_where_the_placement_puts_the_ops(tmp_path: Path) -> None:
    """HEFT puts b and c on the GPU: 10 + 2 + 20 + 2 + 10 = 44 us, a's copy and c's being on the way.

    In the explicit form b's Send takes its turn on the GPU's only stream, behind c, so that both copies leave
    at 32 us: 2 us later.
    """
    path = write(tmp_path, PARTITION)
    assert run_scenario(load_scenario(path, sets=["policy.compile=[]"])).trace.makespan_ns == 44_000
    trace = run_scenario(load_scenario(path), check=True).trace
    assert trace.makespan_ns == 46_000
    table = trace.to_pandas().set_index("op")
    assert table["device"][["a", "b", "c", "d"]].tolist() == ["cpu0", "gpu0", "gpu0", "cpu0"]
    assert sum(table["kind"] == "recv") == 3


@pytest.mark.parametrize("knowledge", ["none", "{estimate: 2}"])
def test_a_partition_is_made_by_what_the_placement_may_know(tmp_path: Path, knowledge: str) -> None:
    path = write(tmp_path, f"{PARTITION}knowledge: {knowledge}\nseed: 1\n")
    alone, cut = (
        run_scenario(load_scenario(path, sets=sets)).trace.to_pandas().set_index("op")["device"][[*"abcd"]]
        for sets in (["policy.compile=[]"], [])
    )
    assert cut.tolist() == alone.tolist() != ["cpu0", "gpu0", "gpu0", "cpu0"]


def test_rewrites_are_listed() -> None:
    assert "constant-folding" in sim("policies").stdout
