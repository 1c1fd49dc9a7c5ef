"""Where to cut: exact optima, the bound of the block partition, and PipeDream's published plan of VGG-16."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest
from cli_runner import sim
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import run_text
from scenario_texts import write

from policies.pipeline.planners import (
    LayerCost,
    Level,
    Rule,
    block_partition,
    by_size,
    check_balance,
    min_max,
    plan_pipedream,
)
from scenarios.builders.pipeline_layers import cut_stages, graph_layers, layer_costs, profile_layers
from scenarios.importers.pipedream_profile import read_profile
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Device, GraphBuilder
from sim.base.errors import InputError

COSTS = st.lists(st.integers(0, 30), min_size=1, max_size=9)


def blocks(costs: list[int], balance: tuple[int, ...]) -> list[int]:
    ends = list(itertools.accumulate(balance))
    return [sum(costs[end - count : end]) for end, count in zip(ends, balance, strict=True)]


@given(costs=COSTS, data=st.data())
def test_min_max_is_the_optimum(costs: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(costs)))
    found = min_max(costs, k)
    assert (len(found), sum(found), min(found) >= 1) == (k, len(costs), True)
    every = itertools.combinations(range(1, len(costs)), k - 1)
    best = min(max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *cuts, len(costs)))) for cuts in every)
    assert max(blocks(costs, found)) == best


def test_a_layer_has_nothing_that_nobody_speaks_of() -> None:
    """Weights that are too large for replicas leave a cut, which costs nothing."""
    assert LayerCost(5) == LayerCost(5, boundary_nbytes=0, parameter_nbytes=0, kept_nbytes=0)
    assert plan_pipedream([LayerCost(5, parameter_nbytes=100)] * 2, [Level(2, 1)]).slowest_ns == 5


@pytest.mark.parametrize(
    ("costs", "stages", "balance"),
    [  # what torchgpipe.balance.blockpartition.solve answers
        ([1, 2, 3, 4, 5, 6], 2, (4, 2)),
        ([1, 1, 2, 4, 4, 3, 3], 5, (3, 1, 1, 1, 1)),
        ([1, 9, 8, 0, 2, 9, 3, 8, 7, 4, 6, 6, 9], 5, (3, 3, 3, 2, 2)),  # a tie but for rounding
        ([1, 4, 4, 4, 4, 3, 1, 3, 3, 4, 2], 5, (2, 2, 1, 3, 3)),  # another
        ([5] * 7, 3, (2, 2, 3)),
    ],
)
def test_the_block_partition_is_torchgpipes(costs: list[int], stages: int, balance: tuple[int, ...]) -> None:
    assert block_partition(costs, stages) == balance


def test_where_torchgpipes_rule_fails_it_is_said() -> None:
    with pytest.raises(InputError, match=r"leaves stage 1 without a layer, .* take min-max"):
        block_partition([0, 0, 1, 1], 3)
    with pytest.raises(InputError, match="of these 6 costs into 5 stages does not end"):
        block_partition([0, 0, 0, 0, 1, 1], 5)


def test_the_block_partition_is_not_always_min_max() -> None:
    """[1] [1 2] differ by no more than the largest cost, and [1 1] [2] is better still."""
    assert block_partition([1, 1, 2], 2) == (1, 2)
    assert min_max([1, 1, 2], 2) == (2, 1)


def test_by_time_and_by_size() -> None:
    facts = [(9, 1), (9, 1), (1, 9), (1, 9)]
    layers = [LayerCost(time_ns=t, parameter_nbytes=p, kept_nbytes=1) for t, p in facts]
    assert block_partition([layer.time_ns for layer in layers], 2) == (1, 3)
    assert by_size(layers, 2) == (3, 1)


@pytest.mark.parametrize("balance", [[2, 2], [0, 5], [6, -1]])
def test_a_balance_has_to_fit(balance: list[int]) -> None:
    with pytest.raises(InputError, match="does not fit 5 layers"):
        check_balance(balance, 5)
    with pytest.raises(InputError, match="cannot be cut into 6 stages"):
        min_max([1] * 5, 6)


@given(
    times=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    weights=st.lists(st.integers(0, 9), min_size=5, max_size=5),
    sizes=st.lists(st.integers(0, 9), min_size=5, max_size=5),
    workers=st.integers(1, 4),
)
def test_pipedream_finds_the_best_plan(
    times: list[int], weights: list[int], sizes: list[int], workers: int
) -> None:
    """Against every way to cut and replicate; 1 byte takes 1 ns."""
    layers = [LayerCost(t, a, w) for t, a, w in zip(times, sizes, weights, strict=False)]

    def slowest(stages: list[tuple[int, int, int]]) -> float:
        parts = [max(sum(times[i : j + 1]), 2 * (m - 1) * sum(weights[i : j + 1])) / m for i, j, m in stages]
        return max(parts + [2 * sizes[j] for _, j, _ in stages[:-1]])

    def every(first: int, left: int) -> list[list[tuple[int, int, int]]]:
        whole = [[(first, len(times) - 1, left)]]
        return whole + [
            [(first, j, m), *rest]
            for j in range(first, len(times) - 1)
            for m in range(1, left)
            for rest in every(j + 1, left - m)
        ]

    plan = plan_pipedream(layers, [Level(workers, 10**9)])
    assert plan.slowest_ns == pytest.approx(min(slowest(stages) for stages in every(0, workers)))
    assert sum(plan.replicas) == workers
    assert sum(plan.balance) == len(layers)


@given(
    facts=st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=4),
    workers=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    rule=st.sampled_from(get_args(Rule)),
)
@examples(100)
def test_both_rules_of_pipedream_on_levels(
    facts: list[tuple[int, int, int]], workers: list[int], rule: Rule
) -> None:
    """Against every plan, by both sources' formulas; 1 byte takes 1 ns on level 1, 4 on level 2."""
    layers = [LayerCost(time, sent, weights) for time, sent, weights in facts]
    last = len(layers) - 1

    def stage(depth: int, i: int, j: int, m: int, first: int) -> Fraction:
        time = best(depth - 1, i, j)
        sync = (m - 1) * 4**depth * sum(weights for _, _, weights in facts[i : j + 1])
        if rule == "paper":
            return max(time, Fraction(2 * sync)) / m
        inner = workers[depth - 1] if depth and i == first else 1
        return (time + Fraction(4 * sync, m * inner)) / m

    def sent(depth: int, i: int, j: int, m: int) -> Fraction:
        before = 2 * 4**depth * facts[i - 1][1]
        behind = 2 * 4**depth * facts[j][1] if j < last else 0
        return Fraction(before) if rule == "paper" else Fraction(max(before, behind), m)

    def best(depth: int, i: int, j: int) -> Fraction:
        if depth < 0:
            return Fraction(sum(time for time, _, _ in facts[i : j + 1]))
        return min(every(depth, i, i, j, workers[depth]))

    def every(depth: int, first: int, i: int, j: int, left: int) -> Iterator[Fraction]:
        for k in range(i, j + 1):
            for m in [left] if k == j else range(1, left):
                parts = [stage(depth, i, k, m, first)]
                parts += [sent(depth, i, k, m)] if i > first else []
                rest = every(depth, first, k + 1, j, left - m) if k < j else [Fraction(0)]
                yield from (max(*parts, other) for other in rest)

    levels = [Level(count, 10**9 // 4**depth) for depth, count in enumerate(workers)]
    plan = plan_pipedream(layers, levels, rule)
    assert plan.slowest_ns == pytest.approx(float(best(len(workers) - 1, 0, last)))
    assert sum(plan.replicas) == math.prod(workers)


def test_vgg_16_on_four_workers(data_dir: Path) -> None:
    """The published split: the convolutions on three workers, the fully connected layers on one."""
    profile = read_profile(data_dir / "pipedream" / "vgg16.txt")
    layers = profile_layers(profile)
    plan = plan_pipedream(layer_costs(layers), [Level(4, 10**9)])
    assert plan.replicas == (3, 1)
    stages = cut_stages(layers, plan.balance)
    # The weights are in the second stage, the arithmetic in the first: that is why.
    assert stages[1].parameter_nbytes > 10 * stages[0].parameter_nbytes
    assert stages[0].times.of("F") > stages[1].times.of("F")


def test_a_planned_profile_runs(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "vgg16.txt").write_bytes((data_dir / "pipedream" / "vgg16.txt").read_bytes())
    text = """\
workload:
  pipeline: {layers: vgg16.txt, partition: pipedream, stages: 4, bandwidth: 1GB/s, micro_batches: 12}
policy: pipedream
"""
    found = run_text(text, tmp_path).summary["pipeline"]
    assert (found["ranks"], found["stages"]) == (4, 2)
    assert found["weight_versions"] == [2, 2, 2, 1]
    again = load_scenario(tmp_path / "s.yaml", sets=["workload.pipeline.partition=pipedream-optimizer"])
    assert run_scenario(again).summary["pipeline"]["ranks"] == 4
    for partition in ("min-max", "block", "time", "size"):
        scenario = load_scenario(tmp_path / "s.yaml", sets=[f"workload.pipeline.partition={partition}"])
        assert run_scenario(scenario, "1f1b").summary["pipeline"]["ranks"] == 4


def test_what_crosses_a_cut(data_dir: Path) -> None:
    """In a graph with branches everything made before a cut and read behind it is sent."""
    profile = read_profile(data_dir / "pipedream" / "inception_v3.txt")
    layers = profile_layers(profile)
    assert any(layer.boundary_nbytes > layer.activation_nbytes for layer in layers[:-1])
    assert layers[-1].boundary_nbytes == 0
    # A layer that reads two others has both of them before it: behind the later one, both cross.
    index = {layer.name: i for i, layer in enumerate(layer for layer in profile if not layer.is_input)}
    join = next(layer for layer in profile if len(layer.predecessors) > 1)
    read = [index[name] for name in join.predecessors]
    assert layers[max(read)].boundary_nbytes >= sum(layers[i].activation_nbytes for i in set(read))


def test_a_graph_is_cut_into_stages(tmp_path: Path) -> None:
    """A diamond: behind the fork both branches cross; weights belong to who reads them first."""
    builder = GraphBuilder("diamond")
    builder.parameter("w", 40)
    for name, inputs, ns in (
        ("a", ["w"], 10),
        ("b", ["a"], 20),
        ("c", ["a", "w"], 30),
        ("d", ["b", "c"], 40),
    ):
        builder.op(name, inputs=inputs, outputs=100, duration_ns=ns)
    layers = graph_layers(builder.build(), Device("gpu0"))
    assert [layer.boundary_nbytes for layer in layers] == [100, 200, 200, 0]
    assert [layer.parameter_nbytes for layer in layers] == [40, 0, 0, 0]
    assert [layer.times.of("B") for layer in layers] == [20, 40, 60, 80]
    stages = cut_stages(layers, min_max([layer.times.of("F") for layer in layers], 2))
    assert [stage.times.of("F") for stage in stages] == [60, 40]
    assert stages[1].input_nbytes == stages[0].boundary_nbytes == 200


@pytest.mark.filterwarnings("ignore::devices.cost.unreliable.PlainRooflineWarning")  # of convolutions
def test_a_model_from_a_file_as_a_pipeline(tmp_path: Path) -> None:
    text = """\
machine: {devices: {gpu: {preset: h200-sxm, count: 4}}}
workload: {pipeline: {graph: GRAPH, stages: 4, batch: 32, micro_batches: 4}}
policy: gpipe
"""
    source = (
        Path(__file__).resolve().parents[2] / "scenarios" / "examples" / "graphs" / "inception_v1.json.gz"
    )
    (tmp_path / source.name).write_bytes(source.read_bytes())
    scenario = load_scenario(write(tmp_path, text.replace("GRAPH", source.name)))
    told = run_scenario(scenario, check=True).summary["pipeline"]
    assert (told["ranks"], told["stages"], told["micro_batches"]) == (4, 4, 4)
    busy = told["busy_ns"]
    assert max(busy) < 1.6 * sum(busy) / 4  # cut so that the slowest stage is as fast as can be


def test_levels_of_bandwidth(data_dir: Path) -> None:
    """Four servers of four GPUs: all sixteen are used, and slower links between servers never help."""
    layers = layer_costs(profile_layers(read_profile(data_dir / "pipedream" / "vgg16.txt")))
    fast, slow = (plan_pipedream(layers, [Level(4, 10**10), Level(4, rate)]) for rate in (10**10, 10**9))
    assert sum(fast.replicas) == sum(slow.replicas) == 16
    assert sum(fast.balance) == sum(slow.balance) == len(layers)
    assert fast.slowest_ns <= slow.slowest_ns
    one_level = plan_pipedream(layers, [Level(4, 10**10)])
    assert plan_pipedream(layers, [Level(4, 10**10), Level(1, 10**9)]) == one_level


FOUR_LAYERS = [(4, 5, 3), (4, 7, 4), (1, 6, 8), (2, 2, 4)]
"""Of each layer: time in ms, what it sends and its parameters in MB."""

LEVELS = """\
workload:
  pipeline:
    layers: [LAYERS]
    stages: 4
    micro_batches: 8
    partition: pipedream
    bandwidth: [{workers: 2, bandwidth: 10GB/s}, {workers: 2, bandwidth: 1GB/s}]
policy: pipedream
"""


def on_levels(folder: Path) -> Path:
    """Write a scenario that is planned for two servers of two devices."""
    layers = ", ".join(
        f"{{forward: {ms}ms, backward: 0ns, activation: {sent}MB, parameters: {weights}MB}}"
        for ms, sent, weights in FOUR_LAYERS
    )
    return write(folder, LEVELS.replace("LAYERS", layers))


@pytest.mark.parametrize("partition", ["pipedream", "pipedream-optimizer"])
def test_a_scenario_is_planned_on_levels_as_python_does(tmp_path: Path, partition: str) -> None:
    rule: Rule = "paper" if partition == "pipedream" else "optimizer"
    layers = [LayerCost(ms * 10**6, sent * 10**6, weights * 10**6) for ms, sent, weights in FOUR_LAYERS]
    wanted = plan_pipedream(layers, [Level(2, 10**10), Level(2, 10**9)], rule)
    flat = [plan_pipedream(layers, [Level(4, rate)], rule) for rate in (10**10, 10**9)]
    assert all((plan.balance, plan.replicas) != (wanted.balance, wanted.replicas) for plan in flat)
    scenario = load_scenario(on_levels(tmp_path), sets=[f"workload.pipeline.partition={partition}"])
    trace = run_scenario(scenario).trace
    graph = trace.job.graph
    times = [sum(ms for ms, _, _ in FOUR_LAYERS[s.first : s.last + 1]) * 10**6 for s in wanted.stages]
    ran = {(int(graph.stage[op]), int(trace.device[row])) for row, op in enumerate(trace.tasks["op"])}
    assert [sum(stage == s for stage, _ in ran) for s in range(len(times))] == list(wanted.replicas)
    forward = graph.is_kind("F")
    for s, ns in enumerate(times):
        assert set(graph.duration_ns[forward & (graph.stage == s)].tolist()) == {ns}


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("bandwidth=[{workers: 2, bandwidth: 1GB/s}]", "bandwidth has 2 = 2 workers, and there are 4"),
        (
            "bandwidth=",
            "the planner pipedream needs the bandwidth between workers: bandwidth: 1GB/s, or [{workers:",
        ),
        ("bandwidth=[]", "workload.pipeline.bandwidth"),
        ("bandwidth=[{workers: 4}]", "bandwidth"),
    ],
)
def test_levels_that_are_wrong(tmp_path: Path, setting: str, says: str) -> None:
    done = sim("run", on_levels(tmp_path), "--set", f"workload.pipeline.{setting}")
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
