"""Megatron-LM's buckets, and parameter servers: worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim
from parallel_helpers import by_stream, layers, run
from runs import checked

from devices.cost.cost_models import FixedCost
from devices.machine import make_machine
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.parallel.ddp import MegatronDDP
from policies.parallel.parameter_server import ParameterServer
from policies.parallel.training_step import TrainingStep
from policies.rewrite.backward import TrainingRewrite
from sim import Device, GraphBuilder, Machine, Policy
from sim.base.errors import InputError
from sim.explain.training import staleness
from sim.job.noise import Noise

FOUR = layers([40] * 4)


# -- Megatron-LM ----------------------------------------------------------------------------------


def test_buckets_by_elements_from_the_last_parameter() -> None:
    step = TrainingStep(layers([40, 80, 40, 40]))
    found = MegatronDDP(2, bucket_size=20).buckets(step)
    assert [[each.name for each in row] for row in found] == [["w3", "w2"], ["w1"], ["w0"]]
    assert [len(row) for row in MegatronDDP(2, bucket_size=20, overlap=False).buckets(step)] == [4]
    later = MegatronDDP(2, bucket_size=20)
    later.pipeline_rank = 1
    assert [len(row) for row in later.buckets(step)] == [4]
    assert MegatronDDP(8).bucket_size == 40_000_000
    assert MegatronDDP(64).bucket_size == 64_000_000


def test_a_ready_bucket_is_not_held_back() -> None:
    """Of buckets [w], [v] the second is ready first, and goes first; DDP would hold it back."""
    b = GraphBuilder("out of order")
    b.input("x", 40), b.parameter("v", 40), b.parameter("w", 40)
    b.op("a", kind="matmul", inputs=["x", "w"], outputs=40, duration_ns=10)
    b.op("b", kind="matmul", inputs=["a", "v"], outputs=40, duration_ns=10)
    graph = MegatronDDP(2, bucket_size=1).apply(TrainingRewrite().apply(b.build()))
    names = [
        name[5:]
        for name in graph.op_names
        if name.startswith("gpu0/") and ("reduce" in name or "weight" in name)
    ]
    assert names == ["b/weight_grad", "all_reduce1", "a/weight_grad", "all_reduce0"]


def test_the_distributed_optimizer_gathers_in_the_next_forward() -> None:
    """Waiting for the first bucket's gather launches the second's, which runs beside layers 0 and 1."""
    options = {"sharding": "zero-1", "overlap": ["grad_reduce", "param_gather"]}
    found = by_stream(run(MegatronDDP(2, bucket_size=20, **options).apply(FOUR), 2))
    assert found["all_gather"] == [(0, 80, "all_gather1"), (80, 160, "all_gather0")]
    assert found["compute"][0] == (80, 180, "l0")
    assert found["reduce_scatter"] == [(980, 1060, "reduce_scatter0"), (1280, 1360, "reduce_scatter1")]


def test_without_overlap_gathers_end_the_step() -> None:
    graph = MegatronDDP(2, bucket_size=20, sharding="zero-1").apply(FOUR)
    found = by_stream(run(graph, 2))
    assert [name for _, _, name in found["compute"]][-2:] == ["all_gather1", "all_gather0"]


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(InputError, match="param_gather has no effect"):
        MegatronDDP(2, overlap=["param_gather"])
    with pytest.raises(InputError, match="overlap must be a list of names; found 'param_gather'"):
        MegatronDDP(2, overlap="param_gather", sharding="zero-1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="did you mean 'param_gather'"):
        MegatronDDP(2, overlap=["param_gathers"], sharding="zero-1")  # type: ignore[list-item]


# -- parameter servers ----------------------------------------------------------------------------


def serve(
    times: list[int], iterations: int, servers: int = 1, asynchronous: bool = True, links: bool = False
):  # type: ignore[no-untyped-def]
    """Run one layer of 40 bytes on workers whose forward, loss and gradient take `times` each."""
    names = [f"ps{k}" for k in range(servers)]
    graph = ParameterServer(len(times), names, asynchronous).apply(layers([40] * servers, ns=100))
    workers = tuple(Device(f"gpu{r}", cost=FixedCost(1)) for r in range(len(times)))
    machine = Machine((*workers, *(Device(name, "cpu", workers=1, cost=FixedCost(1)) for name in names)))
    if links:
        cpu = {"kind": "cpu", "cores": 1, "cost": {"fixed": "1ns"}}
        machine = make_machine(
            {
                "devices": {
                    "gpu": {"kind": "gpu", "count": len(times), "cost": {"fixed": "1ns"}},
                    **dict.fromkeys(names, cpu),
                },
                "links": [{"from": "gpu*", "to": name, "bandwidth": "1GB/s"} for name in names],
            }
        )
    noise = Noise(devices={f"gpu{r}": factor for r, factor in enumerate(times) if factor != 1})
    return checked(graph, machine, ReadyQueue(), iterations=iterations, noise=noise, engine="simpy")


def test_synchronous_workers_wait_for_the_slowest() -> None:
    """A step is 300 ns on one and 600 on the other; then a sum and an update of 1 ns."""
    trace = serve([1, 2], 3, asynchronous=False)
    assert trace.makespan_ns == 3 * 602
    assert staleness(trace) == {}


def test_asynchronous_workers_do_not_and_are_stale() -> None:
    """The fast one updates at 300, 601, 902, ..., the slow one at 600, 1201: two updates come in between."""
    trace = serve([1, 2], 4)
    found = staleness(trace)
    assert {worker: len(row) for worker, row in found.items()} == {"gpu0": 4, "gpu1": 4}
    # gpu0 updates at 300-301, 601-602, 902-903, 1203-1204; gpu1 at 600-601, 1201-1202, 1802, 2403
    assert found == {"gpu0": [0, 1, 0, 1], "gpu1": [1, 2, 1, 0]}


ASYNCHRONOUS = """
name: two workers, one half as fast
machine:
  devices: {gpu0: {kind: gpu}, gpu1: {kind: npu}, ps: {kind: cpu, cores: 1, bandwidth: 40GB/s}}
iterations: 4
workload:
  inputs: {x: 40B}
  parameters: {w0: 40B}
  ops:
    l0: {kind: matmul, inputs: [x, w0], output: 40B, duration: {gpu: 100ns, npu: 200ns}}
policy:
  name: ready-queue
  compile: [training, {name: parameter-server, workers: [gpu0, gpu1], servers: [ps], asynchronous: true}]
expect: {mean_staleness: {at_least: 0.5, at_most: 1.5}, max_staleness: 2}
"""


def test_a_run_says_how_stale_updates_were(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(ASYNCHRONOUS, encoding="utf-8")
    shown = sim("run", str(tmp_path / "s.yaml"))
    assert shown.exit_code == 0, shown.output
    told = json.loads(sim("run", str(tmp_path / "s.yaml"), "--json").stdout)["staleness"]
    assert (told["updates"], sum(told["counts"]), told["max"]) == (8, 8, len(told["counts"]) - 1)
    assert told["mean"] == sum(k * n for k, n in enumerate(told["counts"])) / 8
    assert told["workers"]["gpu1"]["mean"] > told["workers"]["gpu0"]["mean"]
    rows = [line.split() for line in shown.output.splitlines()]
    assert ["staleness", "updates", "share"] in rows
    assert ["2", str(told["counts"][2]), f"{100 * told['counts'][2] / 8:.1f}%"] in rows


@pytest.mark.parametrize("policy", [ReadyQueue, InOrder])
def test_a_server_works_on_gradients_in_the_order_in_which_they_come(policy: type[Policy]) -> None:
    """Those of w2, w1, w0 are there after 600, 800 and 900 ns; each takes 2 ns to sum and update."""
    cpu = Device("ps", "cpu", workers=1, cost=FixedCost(1))
    machine = Machine((*(Device(f"gpu{r}", cost=FixedCost(1)) for r in range(2)), cpu))
    trace = checked(ParameterServer(2, ["ps"]).apply(layers([40] * 3)), machine, policy())
    ends = trace.to_pandas().set_index("op")["end_ns"]
    assert [ends[f"ps/w{k}/update"] for k in (2, 1, 0)] == [602, 802, 902]


@pytest.mark.parametrize("policy", ["in-order", "sequential"])
def test_servers_that_take_pushes_as_they_come_have_no_fixed_order(tmp_path: Path, policy: str) -> None:
    """In program order an early push waits for another worker's, so the workers would be synchronous."""
    (tmp_path / "s.yaml").write_text(ASYNCHRONOUS.replace("ready-queue", policy), encoding="utf-8")
    shown = sim("run", str(tmp_path / "s.yaml"))
    assert shown.exit_code == 2
    assert (
        "s.yaml:13:100: policy.compile.1.asynchronous: parameter-server: servers take pushes" in shown.stderr
    )


def test_synchronous_workers_are_not_stale(tmp_path: Path) -> None:
    text = ASYNCHRONOUS.replace("asynchronous: true", "asynchronous: false").partition("expect")[0]
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    assert "staleness" not in json.loads(sim("run", str(tmp_path / "s.yaml"), "--json").stdout)
    (tmp_path / "s.yaml").write_text(f"{text}expect: {{max_staleness: 0}}\n", encoding="utf-8")
    assert "this run has no such result" in sim("run", str(tmp_path / "s.yaml")).output


def test_pushes_and_pulls_go_over_the_links() -> None:
    """40 bytes at 1 GB/s, a link each: a step pulls 40 ns, computes, pushes 40 ns, sums and updates."""
    trace = serve([1, 1], 2, asynchronous=False, links=True)
    assert trace.makespan_ns == 2 * (40 + 300 + 40 + 2)


def test_servers_take_parameters_in_turn() -> None:
    graph = ParameterServer(1, ["ps0", "ps1"]).apply(layers([40] * 3))
    updates = [name for name in graph.op_names if name.endswith("/update")]
    assert updates == ["ps0/w2/update", "ps1/w1/update", "ps0/w0/update"]
    with pytest.raises(InputError, match="servers must be a list of devices"):
        ParameterServer(1, 2)  # type: ignore[arg-type]
