"""Graphs made from a few sizes: small ones worked by hand, and what holds for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import columns
from runs import run_text
from scenario_texts import write

from devices.collectives.groups import Fabric
from scenarios.builders.builder import Builder
from scenarios.builders.data_loaders import DataLoadingFields
from scenarios.builders.gpt import Gpt
from scenarios.builders.random_dag import Branchy, RandomDag
from scenarios.run.load import load_scenario
from scenarios.workloads.built import BUILDERS
from sim import Graph
from sim.base.errors import InputError, ScenarioError
from sim.graph.graph import Role, longest_path_ns
from sim.trace import Trace


def weight_flops(model: Gpt) -> int:
    """Flop of a layer's products with weights, forward, for a micro-batch: 24·b·s·h²."""
    return 24 * model.batch * model.sequence * model.hidden**2


def parameters(model: Gpt) -> int:
    """Return all but those of the last norm: 12h² + 13h a layer, and tied embeddings."""
    return (model.layers * (12 * model.hidden + 13) + model.vocabulary + model.sequence) * model.hidden


def output_flops(model: Gpt) -> int:
    """Flop of the output layer, forward: 2·b·s·h·V."""
    return 2 * model.batch * model.sequence * model.hidden * model.vocabulary


def run(folder: Path, build: str, rest: str = "") -> Trace:
    """Run a built workload on the machine that it brings."""
    text = f"workload: {{build: {{{build}}}}}\npolicy: {{name: ready-queue, streams: recorded}}\n{rest}"
    return run_text(text, folder).trace


def refused(folder: Path, build: str) -> str:
    """Return what is said of a wrong one."""
    with pytest.raises(ScenarioError) as caught:
        run(folder, build)
    return str(caught.value).replace(f"{folder}/", "")


# -- data loading ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "makespan_ms"),
    [
        ("prefetch: 0", 5 * (2 + 3 + 4)),  # one after another
        ("prefetch: 1", 5 * (2 + 3) + 4),  # a batch is made while the one before is trained on
        ("prefetch: 2", 2 + 3 + 5 * 4),  # training is the bottleneck
        ("prefetch: 9", 2 + 3 + 5 * 4),
        ("prefetch: 1, workers: 4", 5 * (2 + 3) + 4),  # no more than one batch is made ahead
        ("prefetch: 0, transfer: 1ms", 5 * (2 + 3 + 1 + 4)),
        ("prefetch: 9, transfer: 1ms", 2 + 3 + 1 + 5 * 4),
        ("prefetch: 9, transfer: 1ms, pin_memory: false", 2 + 3 + 5 * (1 + 4)),
        ("prefetch: 9, transfer: 5ms", 2 + 3 + 5 * 5 + 4),  # the copies are the bottleneck
        ("prefetch: 9, replicas: 2", 2 + 3 + 5 * 4),
        ("prefetch: 9, replicas: 2, all_reduce: 2ms", 2 + 3 + 5 * (4 + 2)),
        ("prefetch: 0, replicas: 2, all_reduce: 2ms", 5 * (2 + 3 + 4 + 2)),
    ],
)
def test_five_batches(tmp_path: Path, options: str, makespan_ms: int) -> None:
    text = f"model: data-loading, load: 2ms, preprocess: 3ms, train: 4ms, {options}"
    assert run(tmp_path, text, "iterations: 5\n").makespan_ns == makespan_ms * 1_000_000


def test_a_producer_is_never_further_ahead_than_the_buffer(tmp_path: Path) -> None:
    """Load 0-1, 1-2 at once, then the third when batch 0 is taken (at 2), the fourth when 1 is (at 12)."""
    trace = run(
        tmp_path,
        "model: data-loading, load: 1ms, preprocess: 1ms, train: 10ms, prefetch: 2",
        "iterations: 4\n",
    )
    load = trace.job.graph.index("load")
    starts = trace.tasks["start_ns"][trace.tasks["op"] == load]
    assert sorted(starts.tolist()) == [0, 1_000_000, 2_000_000, 12_000_000]


@given(
    times=st.tuples(*[st.integers(0, 9)] * 4),
    depths=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    workers=st.integers(1, 3),
    pinned=st.booleans(),
)
def test_a_deeper_buffer_is_never_worse(
    times: tuple[int, ...], depths: tuple[int, int], workers: int, pinned: bool
) -> None:
    """With a core for every worker, edges decide alone: the longest path of the unrolled graph."""

    def makespan(depth: int) -> int:
        load, prepare, copy, train = times
        ns = {"load": load, "preprocess": prepare, "train": train, "transfer": copy}
        sizes: dict[str, Any] = {"prefetch": depth, "workers": workers, "pin_memory": pinned}
        of = DataLoadingFields(model="data-loading", **{key: f"{n}ns" for key, n in ns.items()}, **sizes)
        return unrolled_ns(of.graph(), 6)

    shallow, deep = sorted(depths)
    assert makespan(deep) <= makespan(shallow) <= makespan(0) == 6 * sum(times)


def unrolled_ns(graph: Graph, iterations: int) -> int:
    """Return when everything is over if edges alone hold tasks back."""
    end: dict[tuple[int, int], int] = {}
    edges = [
        (int(p), int(c), int(d))
        for p, c, d in zip(graph.edges.producer, graph.edges.consumer, graph.edges.distance, strict=True)
    ]
    for i in range(iterations):
        for op in graph.topological_order.tolist():
            before = (end.get((i - d, p), 0) for p, c, d in edges if c == op)
            end[i, op] = max(before, default=0) + int(graph.duration_ns[op])
    return max(end.values())


def test_ring() -> None:
    assert Fabric(10**9).time_ns("all_reduce", 8_000, 8) == 2 * 7 * 1_000
    slow = Fabric(3 * 10**9, latency_ns={"default": 5})
    assert slow.time_ns("all_reduce", 3, 3) == 4 * 5 + 4 / 3
    assert Fabric(latency_ns={"default": 5}).time_ns("all_reduce", 3, 3) == 20


# -- branches and random graphs -------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_branches(blocks: int, width: int, depth: int) -> None:
    sizes: dict[str, Any] = {"blocks": blocks, "width": width, "layers": depth}
    graph = Branchy(model="branchy", duration="10ns", **sizes).graph()
    assert len(graph) == blocks * (width * depth + 2)
    longest = longest_path_ns(graph, graph.duration_ns).max()
    assert longest == 10 * blocks * (depth + 2)


def random_dag(**sizes: Any) -> Graph:
    return RandomDag(model="random-dag", **sizes).graph()


@given(seed=st.integers(0, 100), layers=st.integers(1, 12), probability=st.floats(0, 1))
def test_random_graphs_keep_their_ranges(seed: int, layers: int, probability: float) -> None:
    def draw() -> Graph:
        return random_dag(
            layers=layers,
            width=[2, 5],
            probability=probability,
            duration=["10ns", "20ns"],
            output=["0B", "7B"],
            seed=seed,
        )

    graph = draw()
    assert columns(graph) == columns(draw())
    layer = [int(name[1:].partition("/")[0]) for name in graph.op_names]
    assert all(2 <= layer.count(k) <= 5 for k in range(layers))
    assert 10 <= graph.duration_ns.min() <= graph.duration_ns.max() <= 20
    assert graph.tensor_nbytes.max() <= 7
    for op, before in enumerate(graph.predecessors.lists()):
        assert all(layer[p] < layer[op] for p in before)
        assert (layer[op] - 1 in {layer[p] for p in before}) == (layer[op] > 0)


def test_extremes_of_the_edge_probability() -> None:
    every = random_dag(layers=4, width=3, probability=1)
    assert len(every.edges.producer) == 3 * 3 + 3 * 6 + 3 * 9
    assert len(random_dag(layers=4, width=3, probability=0).edges.producer) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("width: [3, 2]", "workload.build.width: [3, 2] is no range"),
        ("width: [0, 2]", "workload.build.width.0: should be greater than or equal to 1"),
        ("duration: [-1us, 2us]", "workload.build.duration.0: '-1us' is negative"),
        ("layers: 0", "workload.build.layers: should be greater than or equal to 1"),
        ("probability: 1.5", "workload.build.probability: should be less than or equal to 1"),
    ],
)
def test_wrong_random_graphs(options: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as error:
        run(tmp_path, f"model: random-dag, {options}")
    assert message in str(error.value)


# -- transformers ---------------------------------------------------------------------------------


SMALL = Gpt(model="gpt", layers=3, hidden=64, heads=4, sequence=16, vocabulary=100, batch=2)


def flops(graph: Graph, *kinds: str, phase: str | None = None) -> int:
    """Return the flop of the ops of some kinds and one phase."""
    phases = [graph.phases[code] if code >= 0 else None for code in graph.phase_code.tolist()]
    return sum(
        int(graph.flops[op])
        for op in range(len(graph))
        if graph.kind(op) in kinds and (phase is None or phases[op] == phase)
    )


def parameter_nbytes(graph: Graph) -> int:
    return int(graph.tensor_nbytes[graph.tensor_role == Role.PARAMETER].sum())


def test_forward_has_the_arithmetic_of_the_formulas() -> None:
    graph = SMALL.graph()
    m, tokens = SMALL, 2 * 16
    biases = 9 * m.hidden * tokens * m.layers
    assert flops(graph, "gemm", "matmul") == m.layers * weight_flops(m) + output_flops(m) + biases
    softmax = 6 * 2 * 4 * 16 * 16  # scale 1 + softmax 5 of every score
    assert flops(graph, "attention") == m.layers * (4 * m.batch * m.sequence**2 * m.hidden + softmax)
    final_norm = 2 * m.hidden
    assert parameter_nbytes(graph) == 2 * (parameters(m) + final_norm)


def test_a_training_step_has_twice_the_products_again() -> None:
    graph = SMALL.model_copy(update={"optimizer": "adam"}).graph()
    products = SMALL.layers * weight_flops(SMALL) + output_flops(SMALL)
    assert flops(graph, "matmul", phase="I") == flops(graph, "matmul", phase="W") == products
    forward, backward = flops(graph, "attention"), flops(graph, "attention_grad")
    assert 2 * forward < backward < 3 * forward  # five products for two, and pointwise work
    trained = parameters(SMALL) + 2 * SMALL.hidden
    assert parameter_nbytes(graph) == (2 + 12) * trained
    assert flops(graph, "adam") == 14 * trained
    # Every gradient is as large as its weight, and read by the optimizer.
    read = {op: graph.inputs.row(op).tolist() for op in range(len(graph)) if graph.kind(op) == "adam"}
    made = sum(
        int(graph.tensor_nbytes[t]) for row in read.values() for t in row if graph.tensor_producer[t] >= 0
    )
    assert made == 2 * trained


def test_the_next_step_waits_for_the_weights_of_this_one() -> None:
    graph = SMALL.model_copy(update={"optimizer": "adam"}).graph()
    later = {
        (graph.op_names[p], graph.op_names[c])
        for p, c, d in zip(graph.edges.producer, graph.edges.consumer, graph.edges.distance, strict=True)
        if d == 1
    }
    names = [name for name in graph.external_names if "/" not in name and name != "tokens"]
    forward = {op for op in range(len(graph)) if graph.phases[graph.phase_code[op]] == "F"}
    reads = {
        op: {graph.external_names[t] for t in graph.inputs.row(op) if t < len(graph.external_names)}
        for op in forward
    }
    assert later == {
        (f"{name}/update", graph.op_names[op]) for name in names for op in forward if name in reads[op]
    }


def test_products_have_their_shape() -> None:
    graph = SMALL.model_copy(update={"optimizer": "adam"}).graph()

    def shape(op: str) -> tuple[int, ...]:
        return tuple(graph.attributes[graph.index(op)][axis] for axis in "mnk")

    assert shape("layer0.qkv") == (32, 192, 64)
    assert shape("layer0.qkv/input_grad") == (32, 64, 192)
    assert shape("layer0.qkv/weight_grad") == (64, 192, 32)
    assert shape("head") == (32, 100, 64)
    assert shape("head/weight_grad") == (64, 100, 32)
    attention = graph.attributes[graph.index("layer2.attention")]
    assert [attention[axis] for axis in ("batch", "seq_len", "heads", "head_dim")] == [2, 16, 4, 16]


def test_activations_are_held_from_forward_to_backward() -> None:
    """What a layer reads in its backward is what products, norms, gelu and attention read forward."""
    graph = SMALL.model_copy(update={"optimizer": "adam"}).graph()
    consumers = {
        graph.op_names[op]: [graph.op_names[c] for c in row]
        for op, row in enumerate(graph.successors.lists())
    }
    assert "layer0.gelu/grad" in consumers["layer0.up"]
    assert "layer0.down/weight_grad" in consumers["layer0.gelu"]
    assert "layer0.attention/grad" in consumers["layer0.qkv"]
    assert "layer1.norm1/grad" in consumers["layer0.add2"]


@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")
def test_a_gpt_in_a_scenario(tmp_path: Path) -> None:
    text = "model: gpt, layers: 2, hidden: 64, heads: 4, sequence: 16, vocabulary: 100, optimizer: adam"
    trace = run(tmp_path, text, "machine: {devices: {gpu0: {preset: h200-sxm}}}\niterations: 2\n")
    assert len(trace) == 2 * 90
    assert (trace.tasks["end_ns"] >= trace.tasks["start_ns"]).all()


# -- the key `build:` -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "says"),
    [
        ("model: gtp", ":1:27: workload.build.model: there is no model 'gtp'; did you mean 'gpt'?"),
        (
            "layers: 3",
            f"workload.build: should be a mapping with the key model, one of {', '.join(BUILDERS)}",
        ),
        ("model: branchy, branches: 3", "workload.build.branches: no such key; branches is now width"),
        ("model: data-loading, train: 1ms", "workload.build.load: is missing"),
        (
            "model: random-dag, width: [3, 2]",
            "workload.build.width: [3, 2] is no range from least to greatest",
        ),
        (
            "model: random-dag, duration: [5ns, 1ns]",
            "workload.build.duration: [5, 1] is no range from least to greatest",
        ),
        (
            "model: gpt, layers: 1, hidden: 10, heads: 3, sequence: 4",
            "workload.build: hidden size 10 is no multiple of 3 heads",
        ),
    ],
)
def test_mistakes(tmp_path: Path, build: str, says: str) -> None:
    machine = "machine: {devices: {gpu0: {kind: gpu}}}\n"
    text = f"workload: {{build: {{{build}}}}}\n{machine}"
    with pytest.raises(ScenarioError) as caught:
        run_text(text, tmp_path)
    (line,) = str(caught.value).splitlines()
    assert says in line


def test_every_builder_says_what_it_is() -> None:
    for builder in BUILDERS.values():
        assert builder.__doc__


def test_a_random_graph_is_the_same_under_any_seed_of_the_scenario(tmp_path: Path) -> None:
    machine = "machine: {devices: {cpu0: {kind: cpu, cores: 4}}}\n"
    once = run(tmp_path, "model: random-dag, seed: 3", f"{machine}seed: 1\n")
    again = run(tmp_path, "model: random-dag, seed: 3", f"{machine}seed: 2\n")
    other = run(tmp_path, "model: random-dag, seed: 4", f"{machine}seed: 1\n")
    assert columns(once.job.graph) == columns(again.job.graph) != columns(other.job.graph)


WRONG_KEYS = [
    (Branchy, {"model": "branchy", "width": 0}),
    (Branchy, {"model": "branchy", "broad": 2}),
    (RandomDag, {"model": "random-dag", "layers": "3"}),
    (DataLoadingFields, {"model": "data-loading", "load": "1ns"}),
    (DataLoadingFields, {"model": "data-loading", "load": "1ns", "train": "1"}),
]


@pytest.mark.parametrize(("builder", "keys"), WRONG_KEYS)
def test_python_code_gets_the_errors_of_a_file(
    tmp_path: Path, builder: type[Builder], keys: dict[str, Any]
) -> None:
    path = write(tmp_path, json.dumps({"workload": {"build": keys}}))
    with pytest.raises(ScenarioError) as from_file:
        load_scenario(path)
    with pytest.raises(InputError) as from_python:
        builder(**keys)
    told = ".".join(("workload.build", *map(str, from_python.value.path)))
    assert str(from_file.value).split(": ", 1)[1] == f"{told}: {from_python.value.message}"


def test_python_code_gets_all_its_errors_at_once() -> None:
    keys: dict[str, Any] = {"model": "data-loading", "load": "1ns", "replicas": 0}
    with pytest.raises(InputError) as caught:
        DataLoadingFields(**keys)
    assert sorted(str(caught.value).splitlines()) == [
        "replicas: should be greater than or equal to 1, not 0",
        "train: is missing",
    ]
