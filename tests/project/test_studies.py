"""Tables of placements and runtimes: they hold what they promise; recorded graphs run under every runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_helpers import FRAMEWORKS

from devices.machine import make_machine
from scenarios.importers import load_graph
from sim import Graph, GraphBuilder
from studies.placements import CPU_AND_TWO_GPUS, compare_placements, placement_bound_ns
from studies.runtimes_study import MACHINES, compare_runtimes, loop, run_under
from studies.serving import judge_offline

pytestmark = pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")


@pytest.fixture(scope="module")
def recorded(data_dir: Path) -> list[Graph]:
    """Return graphs recorded from TensorFlow: Inception v3, and a training step of ResNet-50."""
    return [load_graph(path) for path in sorted((data_dir / "tensorflow").glob("*.json.gz"))]


@pytest.mark.slow
def test_recorded_graphs_run_under_every_runtime(recorded: list[Graph]) -> None:
    assert [len(graph) for graph in recorded] == [1838, 6435]
    machine = make_machine(MACHINES["one H200"])
    for graph in recorded:
        for runtime in FRAMEWORKS:
            trace = run_under(runtime, graph, machine)
            assert len(trace) == len(graph)
            if len(graph) < 2000:
                trace.check()


@pytest.mark.slow
def test_placements_of_recorded_graphs(recorded: list[Graph]) -> None:
    """Greedy, HEFT, a search by simulation, and a bound that none of them can be below."""
    machine = make_machine(CPU_AND_TWO_GPUS)
    for graph in recorded:
        table = compare_placements(graph, machine, budget=8).set_index("placement")
        makespan = table["makespan_ms"]
        assert (makespan >= table["bound_ms"]).all()
        assert makespan["auto-tuned"] <= makespan.min()
        assert makespan["HEFT"] < makespan["greedy"]
        assert (table[["ops on gpu0", "ops on gpu1", "ops on cpu0"]].sum(axis=1) == len(graph)).all()


def test_a_chain_has_its_path_as_bound_and_independent_ops_their_share() -> None:
    machine = make_machine({"devices": {"a": {"kind": "gpu"}, "b": {"kind": "gpu"}}})
    chain, apart = GraphBuilder("chain"), GraphBuilder("apart")
    for i in range(4):
        chain.op(f"op{i}", inputs=[f"op{i - 1}"] if i else [], duration_ns=10)
        apart.op(f"op{i}", duration_ns=10)
    assert placement_bound_ns(chain.build(), machine) == 40
    assert placement_bound_ns(apart.build(), machine) == 20


def transformer_block(batch: int = 8, tokens: int = 512, hidden: int = 1024, heads: int = 16) -> Graph:
    """Return the forward pass of a transformer block in 16 bit: three products side by side, then a chain."""
    b = GraphBuilder("transformer block")
    rows, token = batch * tokens, 2 * batch * tokens * hidden
    scores = 2 * batch * heads * tokens * tokens
    b.input("x", token)

    def product(name: str, inputs: list[str], m: int, n: int, k: int, times: int = 1) -> str:
        weights = b.parameter(f"{name}/w", 2 * n * k) if len(inputs) == 1 else None
        return b.op(
            name,
            kind="matmul",
            dtype="bf16",
            inputs=[*inputs, *([weights] if weights else [])],
            outputs=2 * times * m * n,
            flops=2 * times * m * n * k,
            attributes={"m": m, "n": n, "k": k, "batch": times},
        )

    def pointwise(name: str, kind: str, inputs: list[str], nbytes: int) -> str:
        return b.op(name, kind=kind, dtype="bf16", inputs=inputs, outputs=nbytes, flops=nbytes // 2)

    pointwise("norm1", "layer_norm", ["x"], token)
    for name in ("query", "key", "value"):
        product(name, ["norm1"], rows, hidden, hidden)
    product("scores", ["query", "key"], tokens, tokens, hidden // heads, batch * heads)
    pointwise("softmax", "softmax", ["scores"], scores)
    product("context", ["softmax", "value"], tokens, hidden // heads, tokens, batch * heads)
    product("project", ["context"], rows, hidden, hidden)
    pointwise("add1", "add", ["project", "x"], token)
    pointwise("norm2", "layer_norm", ["add1"], token)
    product("wide", ["norm2"], rows, 4 * hidden, hidden)
    pointwise("gelu", "gelu", ["wide"], 4 * token)
    product("narrow", ["gelu"], rows, hidden, 4 * hidden)
    pointwise("add2", "add", ["narrow", "add1"], token)
    pointwise("out", "layer_norm", ["add2"], token)
    return b.build()


@pytest.fixture(scope="module")
def table(root: Path):  # type: ignore[no-untyped-def]
    """Return the three graphs under all runtimes, by (graph, machine, runtime)."""
    inception = load_graph(root / "scenarios" / "examples" / "graphs" / "inception_v1.json.gz")
    rows = compare_runtimes([inception, transformer_block(), loop()], FRAMEWORKS)
    return rows.set_index(["graph", "machine", "runtime"]).sort_index()


def test_three_graphs_run_under_all_runtimes(table) -> None:  # type: ignore[no-untyped-def]
    assert len(table) == 3 * 2 * len(FRAMEWORKS)
    fails = table["makespan_us"].isna()
    for graph, _, runtime in table.index[fails]:  # a loop cannot be captured, and is no fixed program
        assert graph == "loop"
        assert runtime in ("cuda-graph", "pytorch-distributed")
    assert (table[["makespan_us", "peak_MB"]][~fails] > 0).all(axis=None)


def test_runtimes_differ_where_they_should(table) -> None:  # type: ignore[no-untyped-def]
    """On cores the executors with a pool use branches, the linear ones do not; on a GPU streams do."""
    makespan = table["makespan_us"]
    for graph in ("inception_v1", "transformer block", "loop"):
        cores, gpu = makespan[graph, "four cores"], makespan[graph, "one H200"]
        assert cores["tensorflow"] < cores["tensorflow-caller-thread"]
        assert cores["onnxruntime-parallel"] < cores["onnxruntime"]
        assert cores["tvm-vm"] == cores["tvm-graph-executor"] == cores["pytorch-eager"]
        assert gpu["cuda-streams"] <= gpu["pytorch-eager"]
    assert makespan["loop", "one H200", "cuda-streams"] < makespan["loop", "one H200", "pytorch-eager"]
    assert not (table["host_us"] > makespan * 4).any()


def test_inception_on_a_gpu_is_bound_by_its_host(table) -> None:  # type: ignore[no-untyped-def]
    gpu = table.loc["inception_v1", "one H200"].drop(index="cuda-graph", errors="ignore")
    assert (gpu["host_us"] > 0.9 * gpu["makespan_us"]).all()
    assert set(gpu["why idle"]) <= {"issue", "launch"}


def test_batches_on_eight_mi300x_take_what_was_published() -> None:
    """Llama 3.1 of 70B and 405B in fp8, four prompts at once: nothing was chosen on them."""
    found = judge_offline(4)
    assert list(found.error.abs() < 0.12) == [True, True]
