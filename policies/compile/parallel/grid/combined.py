"""Rewrites for many ranks, one after another: each takes the programs of all ranks and multiplies them.

::

    compile: [training, {name: tensor-parallel, ranks: 2}, {name: ddp, ranks: 4}]

    one device ──tensor-parallel──► gpu0, gpu1 ──ddp: each program with its sums──► gpu0 ... gpu7
                                    tp 0, tp 1                                      tp fastest, then dp
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import ClassVar, Final, Self

from policies.compile.parallel.grid.rank_grid import DATA, Grid, read_order
from policies.compile.parallel.grid.ranked import REPLICAS, OnRanks, Ranked
from policies.compile.parallel.ranks import Ranks
from policies.compile.training.gradients import OPTIMISERS
from policies.option_checks import whole
from sim import Graph
from sim.words.errors import GraphError, InputError

__all__ = ["REPLICAS", "REPLICATE", "DataParallel", "RankOrder", "UnsummedWarning", "warn_of_unsummed"]

REPLICATE: Final = "replicate"
"""The communicator of groups that each share parameters out."""


class UnsummedWarning(UserWarning):
    """Ranks update parameters with gradients of some tokens of a sequence only."""


def warn_of_unsummed(ranked: Ranked) -> None:
    """Warn if ranks share sequences, and no rewrite for replicas sums their gradients.

    Warns
    -----
    UnsummedWarning
    """
    sizes = ranked.grid.sizes
    if "cp" in sizes and "dp" not in sizes and OPTIMISERS.keys() & {*ranked.programs[0].kinds}:
        message = (
            "nothing sums the gradients of context-parallel ranks: end policy.compile with a rewrite for"
        )
        warnings.warn(UnsummedWarning(f"{message} replicas, such as {{name: ddp, ranks: 1}}"), stacklevel=2)


class DataParallel(OnRanks):
    """A rewrite that makes replicas of what there is, whose gradients are summed: override `step`.

    Ranks that have parts of one sequence (context parallelism) sum their gradients with the replicas'.

    Parameters
    ----------
    ranks : int or list of str, optional
        How many, or which devices. A number means the first accelerators of the machine, in machine order,
        and nothing all of them.
    """

    name: ClassVar[str]

    def __init__(self, ranks: int | list[str] | None = None) -> None:
        self.ranks = Ranks() if ranks is None else Ranks.of(self.name, ranks)

    def sizes(self, n: int) -> dict[str, int]:
        """Return the dimensions of `n` replicas; the first is that of ranks which share parameters out."""
        return {"dp": n}

    def step(self, graph: Graph, n: int) -> Graph:
        """Return what a rank runs that sums its gradients with `n` - 1 others."""
        raise InputError(f"{type(self).__name__} must define step(graph, n)")

    def on_stage(self, rank: int) -> Self:
        """Return the rewrite as it is on a pipeline rank."""
        return self

    def ranked(self, there: Ranked) -> Ranked:
        """Return the replicas of all ranks that there are."""
        of = copy(self)
        of.ranks = replace(self.ranks, n=there.room(self.name, self.ranks))
        assert of.ranks.n is not None

        def program(one: Graph, grid: Grid, at: Mapping[str, int]) -> Graph:
            return of.on_stage(at.get("pp", 0)).step(one, len(grid.members(DATA)))

        return there.multiplied(of.sizes(of.ranks.n), program, names=of.ranks.names)

    def whole(self, option: str, value: object, least: int = 1) -> int:
        """Return the value of an option that is a whole number."""
        return whole(self.name, option, value, least=least)


class RankOrder(OnRanks):
    """Number the ranks of a combination in another order, or put them on other devices.

    Parameters
    ----------
    order : str, optional
        Dimensions, the fastest changing first: ``tp-cp-dp-pp``, ``tp-cp-pp-dp``, ...; by default as they are,
        which is Megatron-LM's tp-cp-ep-dp-pp.
    devices : list of str, optional
        Of each rank; by default the accelerators of the machine, in machine order.

    Raises
    ------
    InputError
        Not the dimensions of the graph, or not as many devices as ranks (when applied).
    """

    def __init__(self, order: str | None = None, devices: list[str] | None = None) -> None:
        self.order = order
        self.devices = None if devices is None else Ranks.of("rank-order", devices, "devices").names

    def ranked(self, there: Ranked) -> Ranked:
        """Return the ranks, numbered anew."""
        old = there.grid
        if old.ranks < 2:
            name = there.programs[0].name
            raise GraphError(f"graph {name!r} has no ranks; let the rewrites that make them come first")
        grid = old
        if self.order is not None:
            grid = old.ordered(read_order(self.order, tuple(old.sizes)))
        if self.devices is not None and len(self.devices) != grid.ranks:
            message = f"rank-order: devices: there are {grid.ranks} ranks and {len(self.devices)} devices"
            raise InputError(message, path=("devices",))
        programs = [there.programs[old.rank(grid.at(r))] for r in range(grid.ranks)]
        return Ranked(grid, programs, self.devices or there.devices, there.accelerators)
