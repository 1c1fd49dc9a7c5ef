"""Folded combinations: of ranks that share layers, sequences, stages and experts one of each sort is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from test_folding import same

pytestmark = pytest.mark.filterwarnings("ignore::policies.parallel.tensor_parallel.WholeWarning")

DATA: list[dict[str, Any]] = [
    {"name": "ddp", "bucket_size": "40kB"},
    {"name": "fsdp2", "wrap": r"layer\d+"},
    {"name": "zero-1", "bucket_size": 9000},
    {"name": "zero-2", "bucket_size": 9000},
    {"name": "zero-3", "param_persistence_threshold": 100},
    {"name": "megatron-ddp", "bucket_size": 9000, "sharding": "zero-1"},
]


def scenario(compile_: list[Any], ranks: int, **more: Any) -> dict[str, Any]:
    """Return a training step of a small decoder on GPUs that meet over a bandwidth."""
    sizes = {"hidden": 32, "heads": 4, "sequence": 16, "vocabulary": 64, "batch": 1}
    gpu = {"kind": "gpu", "count": ranks, "streams": 9, "peak": {"bf16": "1TFLOP/s"}, "bandwidth": "1GB/s"}
    return {
        "machine": {
            "devices": {"gpu": gpu},
            "collectives": {"algorithm": "ring", "bandwidth": "1GB/s", "latency": "30ns"},
        },
        "workload": {"build": {"model": "gpt", "layers": 2, **sizes}},
        "policy": {"runtime": "pytorch-distributed", "compile": compile_},
        **more,
    }


def split(tp: int = 1, cp: int = 1, pp: int = 1, **how: Any) -> list[Any]:
    """Return rewrites that share a step out over tp x cp x pp ranks."""
    steps: list[Any] = [{"name": "stages", "partition": ["layer1"]}, "training"] if pp > 1 else ["training"]
    if tp > 1:
        steps.append({"name": "tensor-parallel", "ranks": tp, "sequence_parallel": how.get("sequence", True)})
    if cp > 1:
        steps.append({"name": "context-parallel", "ranks": cp, "context": how.get("method", "ring")})
    if pp > 1:
        steps.append({"name": "pipeline-parallel", "ranks": pp, "micro_batches": how.get("micro_batches", 3)})
    return steps


def into(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what the ranks of a scenario fold into, after comparing with a run of all of them."""
    folded: dict[str, Any] = same(path, content).summary["folded"]["into"]
    return {name: (of["stands_for"], of["differs"]) for name, of in folded.items()}


@st.composite
def drawn(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a combination of up to 16 ranks, some of which may be unlike the others."""
    tp, cp, pp, dp = draw(
        st.sampled_from([(2, 2, 2, 2), (2, 1, 2, 2), (1, 2, 2, 2), (2, 2, 1, 2), (1, 4, 1, 2), (1, 3, 2, 2)])
    )
    method = draw(
        st.sampled_from(["ring", "all-gather", "all-to-all"] if cp != 3 and tp * cp < 8 else ["ring"])
    )
    steps = split(tp, cp, pp, sequence=draw(st.booleans()), method=method)
    able = DATA if pp == 1 else [each for each in DATA if each["name"] not in ("zero-2", "zero-3")]
    steps.append({**draw(st.sampled_from(able)), "ranks": dp})
    if draw(st.booleans()):
        sizes = [name for name, n in (("tp", tp), ("cp", cp), ("dp", dp), ("pp", pp)) if n > 1]
        steps.append({"name": "rank-order", "order": "-".join(draw(st.permutations(sizes)))})
    n = tp * cp * pp * dp
    content = scenario(steps, n)
    machine = content["machine"]
    if slower := draw(st.dictionaries(st.integers(0, n - 1), st.sampled_from([1.25, 1.5]), max_size=2)):
        content["noise"] = {"devices": {f"gpu{k}": factor for k, factor in slower.items()}}
    if draw(st.booleans()):  # ranks that are not equally near
        rates = draw(st.lists(st.sampled_from(["1GB/s", "2GB/s"]), min_size=n, max_size=n))
        machine["links"] = [
            {"from": f"gpu{k}", "to": "switch", "bandwidth": rate, "latency": "5ns", "sharing": "shared"}
            for k, rate in enumerate(rates)
        ]
        machine["devices"]["switch"] = {"kind": "switch"}
    content["iterations"] = draw(st.integers(1, 2))
    return content


@pytest.mark.slow
@examples(8)
@given(content=drawn())
def test_folded_combinations_say_what_all_ranks_say(
    content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    same(tmp_path_factory.mktemp("fold") / "a.yaml", content)


def test_a_ring_folds_into_a_rank_that_sends_to_itself(tmp_path: Path) -> None:
    steps = [*split(cp=4), {"name": "ddp", "ranks": 2}]
    assert into(scenario(steps, 8), tmp_path / "a.yaml") == {"gpu0": (8, None)}


def test_a_pipeline_folds_into_its_stages(tmp_path: Path) -> None:
    steps = [*split(tp=2, cp=2, pp=2), {"name": "ddp", "ranks": 2}]
    found = into(scenario(steps, 16), tmp_path / "a.yaml")
    assert found == {"gpu0": (8, None), "gpu8": (8, "another program, at pp 1")}


def test_a_slow_rank_of_a_pipeline_is_seen_through_messages(tmp_path: Path) -> None:
    """No replicas: gpu1 is slow, and gpu3, the second stage of its pipeline, waits for it."""
    content = scenario([*split(pp=2)[:2], {"name": "pipeline-parallel", "ranks": 2, "micro_batches": 2}], 4)
    content["policy"]["compile"].append({"name": "ddp", "ranks": 2})
    content["noise"] = {"devices": {"gpu1": 1.5}}
    found = into(content, tmp_path / "a.yaml")
    assert found["gpu1"] == (1, "noise.devices is 1.5, not 1.0")
    assert sum(n for n, _ in found.values()) == 4


EXPERTS = {"name": "expert-parallel", "wrap": r"layer\d+(?=\.(?:up|gelu|down))", "experts": 8, "tokens": 16}


@pytest.mark.parametrize(
    ("routing", "sorts"),
    [("balanced", [8]), ({"tokens": [9, 9, 1, 1, 1, 1, 1, 41]}, [2, 4, 2]), ("one-hot", [2, 6])],
    ids=["balanced", "table", "one-hot"],
)
def test_experts_fold_by_load(routing: Any, sorts: list[int], tmp_path: Path) -> None:
    content = scenario(["training", {**EXPERTS, "ranks": 8, "shard": 4, "routing": routing}], 8)
    found = into(content, tmp_path / "a.yaml")
    assert [n for n, _ in found.values()] == sorts
