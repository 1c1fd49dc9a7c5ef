"""Gradient accumulation: micro-batches one after another, sums over replicas after the last."""

from __future__ import annotations

import pytest
from parallel_helpers import by_stream, layers, run

from policies.parallel.accumulation import GradientAccumulation
from policies.parallel.context_parallel import ContextParallel
from policies.parallel.ddp import DistributedDataParallel, MegatronDDP
from policies.parallel.rank_grid import all_ranks
from policies.parallel.tensor_parallel import TensorParallel
from policies.parallel.zero import ZeroOne
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import read
from scenarios.builders.gpt import Gpt
from sim.base.errors import GraphError, InputError

THREE = layers([40, 40, 40])


def test_replicas_sum_after_the_last_micro_batch() -> None:
    """A micro-batch is 900 ns; buckets {w2, w1} and {w0} of 160 and 80 ns, as with one micro-batch."""
    graph = all_ranks(THREE, GradientAccumulation(3), DistributedDataParallel(2, bucket_size_bytes=60))
    found = by_stream(run(graph, 2))
    assert found["all_reduce"] == [(2600, 2760, "all_reduce0"), (2760, 2840, "all_reduce1")]
    order = [name for _, _, name in found["compute"]]
    assert order[9:12] == ["micro1/l0", "micro1/l1", "micro1/l2"]
    assert order[14:18] == ["micro1/l2/weight_grad", "micro1/w2/accumulate", *order[16:18]]
    inputs = read(graph).externals
    assert {name for name in inputs if name.startswith("gpu0/")} == {
        *(f"gpu0/w{k}" for k in range(3)),
        *(f"gpu0/micro{k}/x" for k in range(3)),
    }
    three = GradientAccumulation(3).apply(THREE)
    assert len(by_stream(run(MegatronDDP(2).apply(three), 2))["all_reduce"]) == 1
    assert len([name for name in ZeroOne(2).apply(three).op_names if "reduce" in name]) == 2


def test_one_micro_batch_changes_names_only() -> None:
    one = [name.replace("micro0/", "") for name in GradientAccumulation(1).apply(THREE).op_names]
    assert one == [*THREE.op_names]


def test_ranks_exchange_inside_layers_for_each_micro_batch_and_at_the_end_once() -> None:
    sizes = Gpt(model="gpt", layers=2, hidden=64, heads=4, sequence=32, vocabulary=128, batch=1)
    step = TrainingRewrite().apply(sizes.graph())
    rewrites = TensorParallel(2, sequence_parallel=True), ContextParallel(2)
    split = all_ranks(step, *rewrites)
    graph = all_ranks(step, *rewrites, GradientAccumulation(3), DistributedDataParallel(1))

    def count(of: object, word: str) -> int:
        names = getattr(of, "op_names", [])
        return sum(name.startswith("gpu1/") and word in name for name in names)

    for word in ("all_gather", "reduce_scatter", "send", "recv"):
        assert count(graph, word) == 3 * count(split, word) > 0
    assert count(graph, "gradients/all_reduce") == count(split, "gradients/all_reduce") == 1
    groups = {each.get("group") for each in graph.attributes.values()}
    assert {f"micro{k}/layer0.attention/0" for k in range(3)} <= groups


def test_wrong_places_and_numbers() -> None:
    with pytest.raises(GraphError, match="comes before the rewrite for replicas"):
        all_ranks(THREE, DistributedDataParallel(2), GradientAccumulation(2))
    with pytest.raises(GraphError, match="gradient-accumulation does not take a step of several"):
        all_ranks(THREE, GradientAccumulation(2), GradientAccumulation(2))
    with pytest.raises(InputError, match="micro_batches must be a whole number of at least 1; found 0"):
        GradientAccumulation(0)
