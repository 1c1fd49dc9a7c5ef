"""The grid of ranks, and rewrites for ranks one after another."""

from __future__ import annotations

from itertools import product

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from parallel_helpers import layers

from policies.parallel.ddp import DistributedDataParallel
from policies.parallel.fsdp2 import FullyShard
from policies.parallel.rank_grid import MEGATRON, Grid, Ranked, RankOrder, all_ranks, read_order
from sim import Graph
from sim.base.errors import GraphError, InputError


@given(st.permutations(MEGATRON), st.lists(st.integers(1, 3), min_size=5, max_size=5), st.data())
@examples(40)
def test_the_grid_is_a_table_of_coordinates(order: list[str], sizes: list[int], data: st.DataObject) -> None:
    """Another formulation: all coordinates, the last dimension slowest; groups agree in all others."""
    grid = Grid(dict(zip(order, sizes, strict=True)))
    table = [
        dict(zip(order, at[::-1], strict=True)) for at in product(*(range(size) for size in sizes[::-1]))
    ]
    assert grid.ranks == len(table)
    rank = data.draw(st.integers(0, grid.ranks - 1))
    assert grid.at(rank) == table[rank]
    assert grid.rank(table[rank]) == rank
    dimensions = data.draw(st.sets(st.sampled_from(order)))

    def group(of: int) -> list[int]:
        others = [name for name in order if name not in dimensions]
        return [r for r, at in enumerate(table) if all(at[name] == table[of][name] for name in others)]

    assert grid.members(dimensions, rank) == group(rank)
    groups = sorted({tuple(group(r)) for r in range(grid.ranks)})
    assert grid.number("-".join(sorted(dimensions)), rank) == groups.index(tuple(group(rank)))
    assert grid.groups(dimensions) == len(groups)


def test_megatrons_groups() -> None:
    """The example of ``initialize_model_parallel``: 16 GPUs, tensor 2, pipeline 4, so data parallel 2."""
    grid = Grid({"tp": 2, "dp": 2, "pp": 4})
    firsts = [[r for r in range(16) if grid.members(name, r)[0] == r] for name in ("tp", "dp", "pp")]
    groups = [
        [grid.members(name, r) for r in row] for name, row in zip(("tp", "dp", "pp"), firsts, strict=True)
    ]
    assert groups[0] == [[k, k + 1] for k in range(0, 16, 2)]
    assert groups[1] == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert groups[2] == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


@pytest.mark.parametrize("order", ["tp-dp", "tp-dp-xp", "tp-dp-pp-pp", 3, None])
def test_wrong_orders(order: object) -> None:
    with pytest.raises(InputError, match="order has to name each of tp, dp, pp once"):
        read_order(order, ["tp", "dp", "pp"])


def seen(graph: Graph) -> list[list[str]]:
    """Return the communicators of each rank."""
    return [
        sorted(
            {
                f"{one['communicator']}"
                for op, one in graph.attributes.items()
                if graph.pins[graph.pin_code[op]] == rank and "communicator" in one
            }
        )
        for rank in graph.pins
    ]


def test_ranks_can_be_numbered_anew_and_named() -> None:
    """HSDP: neighbours share parameters; with the other order every other rank does."""
    there = FullyShard(4, shard=2).rewrite_ranks(Ranked.of(layers([40])))
    assert seen(there.graph()) == [
        ["replicate 0", "shard 0"],
        ["replicate 1", "shard 0"],
        ["replicate 0", "shard 1"],
        ["replicate 1", "shard 1"],
    ]
    moved = RankOrder("replicas-dp", ["a", "b", "c", "d"]).rewrite_ranks(there)
    assert seen(moved.graph()) == [
        ["replicate 0", "shard 0"],
        ["replicate 0", "shard 1"],
        ["replicate 1", "shard 0"],
        ["replicate 1", "shard 1"],
    ]
    assert moved.graph().pins == ("a", "b", "c", "d")
    assert moved.grid.sizes == {"replicas": 2, "dp": 2}
    assert {id(one) for one in moved.programs} == {id(there.programs[0])}


def test_what_cannot_be_combined_is_refused() -> None:
    two = DistributedDataParallel(2)
    with pytest.raises(GraphError, match="is divided into dp already"):
        all_ranks(layers([40]), two, two)
    with pytest.raises(GraphError, match="has communicators already"):
        two.apply(two.apply(layers([40])))
    with pytest.raises(InputError, match="devices: 3, for 2 ranks"):
        all_ranks(layers([40]), two, RankOrder(devices=["a", "b", "c"]))
    with pytest.raises(GraphError, match="has no ranks"):
        RankOrder().apply(layers([40]))
