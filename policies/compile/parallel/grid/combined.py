"""Rewrites for many ranks, one after another: each takes the programs of all ranks and multiplies them.

::

    compile: [training, {name: tensor-parallel, ranks: 2}, {name: ddp, ranks: 4}]

    one device ──tensor-parallel──► gpu0, gpu1 ──ddp: each program with its sums──► gpu0 ... gpu7
                                    tp 0, tp 1                                      tp fastest, then dp

In between, a rank's program is that of one device: what it meets on is the word of a dimension
(``communicator: tensor parallel``, ``dimension: tp``), and a peer is a place in the group. On ranks groups
get numbers (``tensor parallel 3``), a peer is a device, and ``rank`` says where the rank is: (place, size) of
each dimension, the fastest first (`rank_grid`). So the next rewrite finds the grid in the graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from policies.compile.parallel.grid.rank_grid import DATA, MEGATRON, Grid, read_order
from policies.compile.parallel.ranks import OnRanks, Ranks, add_ranks
from policies.compile.records import Edge, Records, read, write
from policies.compile.training.gradients import OPTIMISERS
from sim import Graph, GraphBuilder
from sim.words.arrays import UNSET
from sim.words.errors import GraphError, InputError

__all__ = [
    "REPLICAS",
    "REPLICATE",
    "DataParallel",
    "RankOrder",
    "UnsummedWarning",
    "multiplied",
    "on_each_rank",
    "programs_of",
    "warn_of_unsummed",
]

REPLICAS: Final = "replicas"
"""Dimension of groups that each share parameters out (HSDP)."""

REPLICATE: Final = "replicate"
"""Their communicator."""

_ORDER: Final = (*MEGATRON[:4], REPLICAS, *MEGATRON[4:])

Program = Callable[[Graph, Grid, Mapping[str, int]], Graph]
"""``program(one, grid, at)``: what a rank at some coordinates runs, whose program was `one`."""


def multiplied(
    graph: Graph, ranks: Ranks, added: Mapping[str, int], program: Program, *, varies: bool = False
) -> Graph:
    """Return a graph of more ranks: all that there are, in all places of further dimensions.

    Parameters
    ----------
    graph : Graph
        Of one device, or of ranks that another rewrite has made.
    ranks : Ranks
        The devices of all ranks, where there were none before; else only how many are added counts.
    added : mapping of str to int
        Sizes of the dimensions that are added.
    program : callable
        What a rank runs.
    varies : bool
        Whether that differs in the added dimensions.

    Raises
    ------
    GraphError
        The graph has communicators or devices that no rewrite has made, or the dimensions already.
    InputError
        Devices are named, and there were ranks before.
    """
    old, programs = programs_of(graph)
    for name in added:
        if name in old.sizes:
            raise GraphError(f"graph {graph.name!r} is divided into {name} already")
    if old.ranks > 1 and ranks != Ranks.of("", len(ranks)):
        message = (
            f"there are {old.ranks} ranks already, so give the number of parts; rank-order names devices"
        )
        raise InputError(message, path=("ranks",))
    grid = Grid({**old.sizes, **added}).ordered(_ORDER)
    made: dict[tuple[int, ...], Graph] = {}
    placed = []
    for rank in range(grid.ranks):
        at = grid.at(rank)
        one = programs[old.rank(at)]
        key = (id(one), *(at[name] for name in added if varies))
        if key not in made:
            made[key] = program(one, grid, at)
        placed.append(made[key])
    return _placed(placed, grid, ranks if old.ranks == 1 else Ranks.of("", grid.ranks))


class UnsummedWarning(UserWarning):
    """Ranks update parameters with gradients of some tokens of a sequence only."""


def warn_of_unsummed(graph: Graph) -> None:
    """Warn if ranks share sequences, and no rewrite for replicas sums their gradients.

    Warns
    -----
    UnsummedWarning
    """
    given = (graph.attributes[op].get("rank", {}) for op in graph.in_communicators[:1])
    if any("cp" in rank and "dp" not in rank for rank in given) and OPTIMISERS.keys() & {*graph.kinds}:
        message = (
            "nothing sums the gradients of context-parallel ranks: end policy.compile with a rewrite for"
        )
        warnings.warn(UnsummedWarning(f"{message} replicas, such as {{name: ddp, ranks: 1}}"), stacklevel=2)


class DataParallel(OnRanks):
    """A rewrite that makes replicas of what there is, whose gradients are summed: override `step`.

    Ranks that have parts of one sequence (context parallelism) sum their gradients with the replicas'.
    """

    @property
    def sizes(self) -> dict[str, int]:
        """Dimensions of the replicas; the first is that of ranks which share parameters out."""
        return {"dp": len(self.ranks)}

    def step(self, graph: Graph, n: int) -> Graph:
        """Return what a rank runs that sums its gradients with `n` - 1 others."""
        raise NotImplementedError(f"{type(self).__name__} must define step(graph, n)")

    def on_stage(self, rank: int) -> DataParallel:
        """Return the rewrite as it is on a pipeline rank."""
        return self

    def program(self, graph: Graph) -> Graph:
        """Return what each rank runs, of the step of one device."""
        return self.step(graph, self.sizes["dp"])

    def communicator(self, name: str, rank: int) -> str:
        """Return what a communicator of the program is on a rank, where there are no other dimensions."""
        grid, dimension = Grid(self.sizes), REPLICAS if name == REPLICATE else DATA
        return name if grid.groups(dimension) == 1 else f"{name} {grid.number(dimension, rank)}"

    def apply(self, graph: Graph) -> Graph:
        """Return the program of every rank there is on all its replicas."""
        if not graph.in_communicators:
            return self.everywhere(self.program(programs_of(graph)[1][0]))

        def of_rank(one: Graph, grid: Grid, at: Mapping[str, int]) -> Graph:
            return self.on_stage(at.get("pp", 0)).step(one, len(grid.members(DATA)))

        return multiplied(graph, self.ranks, self.sizes, of_rank)

    def everywhere(self, program: Graph) -> Graph:
        """Return the graph in which every rank runs a program."""
        return _placed([program] * len(self.ranks), Grid(self.sizes), self.ranks)


def on_each_rank(graph: Graph, program: Callable[[Graph], Graph]) -> Graph:
    """Return the graph in which each rank, or the only device, runs another program."""
    grid, programs = programs_of(graph)
    if not grid.sizes:
        return program(graph)
    made = {id(one): program(one) for one in programs}
    return _placed([made[id(one)] for one in programs], grid, _devices(graph, grid))


def _devices(graph: Graph, grid: Grid) -> list[str]:
    """Return the device of each rank."""
    found = [""] * grid.ranks
    for op in graph.in_communicators:
        at: Mapping[str, tuple[int, int]] = graph.attributes[op]["rank"]
        rank = grid.rank({name: place for name, (place, _) in at.items()})
        found[rank] = graph.pins[int(graph.pin_code[op])]
    return found


def programs_of(graph: Graph) -> tuple[Grid, list[Graph]]:
    """Return the grid of a graph's ranks, and the program of each; equal ones are one object.

    Raises
    ------
    GraphError
        Several devices or communicators that no rewrite for ranks has made, or an edge between two ranks.
    """
    of = f"graph {graph.name!r}"
    sizes: dict[str, int] = {}
    for op in graph.in_communicators:
        if "rank" not in graph.attributes[op]:
            raise GraphError(f"{of} has communicators already; ranks are made once").about(graph.op_names[op])
        sizes = {name: size for name, (_, size) in graph.attributes[op]["rank"].items()}
    if not sizes:
        pins = sorted({graph.pins[code] for code in graph.pin_code.tolist() if code != UNSET})
        if len(pins) > 1:
            raise GraphError(f"{of} is on several devices ({', '.join(pins[:5])}); every rank runs all of it")
        return Grid({}), [graph]
    grid = Grid(sizes)
    found: list[Records] = []
    written: list[Graph] = []
    for rank, records in enumerate(_split(read(graph), grid, _devices(graph, grid))):
        same = next((k for k, other in enumerate(found) if other == records), None)
        found.append(records)
        written.append(write(records) if same is None else written[same])
        assert len(written) == rank + 1
    return grid, written


def _split(records: Records, grid: Grid, devices: Sequence[str]) -> list[Records]:
    """Return the ops of each rank, as if it were the only one."""
    rank_of = {name: rank for rank, name in enumerate(devices)}
    parts = [Records(records.name, {}, {}) for _ in devices]

    def own(device: str, name: str) -> str:
        if not name.startswith(f"{device}/"):
            raise GraphError(f"{device} reads {name!r} of another rank; ranks meet on communicators")
        return name[len(device) + 1 :]

    def edges(device: str, given: Sequence[Edge]) -> list[Edge]:
        return [(own(device, name), distance) for name, distance in given]

    for record in records.ops.values():
        if record.device not in rank_of:
            message = f"op {record.name!r} is on {record.device}, which is no rank of the others"
            raise GraphError(message).about(record.name)
        device, rank = record.device, rank_of[record.device]
        attributes = record.attributes
        if "communicator" in attributes:
            attributes = _as_one(attributes, grid, rank, rank_of)
        name = own(device, record.name)
        parts[rank].ops[name] = replace(
            record,
            name=name,
            inputs=edges(device, record.inputs),
            after=edges(device, record.after),
            device=None,
            attributes=attributes,
        )
    readers = {tensor: record.device for record in records.ops.values() for tensor, _ in record.inputs}
    for name, given in records.externals.items():
        if name in readers:
            device = str(readers[name])
            parts[rank_of[device]].externals[own(device, name)] = replace(given, device=None)
    return parts


def _as_one(attributes: dict[str, Any], grid: Grid, rank: int, rank_of: Mapping[str, int]) -> dict[str, Any]:
    """Return the attributes of a collective without what is of this rank: the inverse of `_of_rank`."""
    found = {key: value for key, value in attributes.items() if key != "rank"}
    dimension = found["dimension"]
    if grid.groups(dimension) > 1:
        found["communicator"] = found["communicator"].rpartition(" ")[0]
    members = grid.members(dimension, rank)
    if "sends" in found:
        places = {rank_of[name]: nbytes for name, nbytes in found["sends"].items()}
        found["sends"] = {str(members.index(other)): nbytes for other, nbytes in places.items()}
    if "peer" in found:
        found["peer"] = str(members.index(rank_of[found["peer"]]))
    return found


def _placed(programs: Sequence[Graph], grid: Grid, devices: Sequence[str]) -> Graph:
    """Return the graph in which each rank runs its program."""
    out = GraphBuilder(programs[0].name)
    ranks: dict[int, list[int]] = {}
    for rank, program in enumerate(programs):
        ranks.setdefault(id(program), []).append(rank)
    for same in ranks.values():

        def of_rank(own: Mapping[str, Any], k: int, same: Sequence[int] = same) -> Mapping[str, Any]:
            return _of_rank(own, grid, same[k], devices) if "communicator" in own else own

        add_ranks(out, programs[same[0]], [devices[rank] for rank in same], of_rank)
    return out.build()


def _of_rank(own: Mapping[str, Any], grid: Grid, rank: int, devices: Sequence[str]) -> dict[str, Any]:
    """Return the attributes of a collective on a rank."""
    dimension = own.get("dimension", DATA)
    found = {**own, "dimension": dimension}
    if grid.groups(dimension) > 1:
        found["communicator"] = f"{own['communicator']} {grid.number(dimension, rank)}"
    if "sends" in own:
        members = grid.members(dimension, rank)
        found["sends"] = {devices[members[int(k)]]: nbytes for k, nbytes in own["sends"].items()}
    if "peer" in own:
        found["peer"] = devices[grid.members(dimension, rank)[int(own["peer"])]]
    found["rank"] = {name: (place, grid.sizes[name]) for name, place in grid.at(rank).items()}
    return found


class RankOrder:
    """Number the ranks of a combination in another order, or put them on other devices.

    Parameters
    ----------
    order : str, optional
        Dimensions, the fastest changing first: ``tp-cp-dp-pp``, ``tp-cp-pp-dp``, ...; by default as they are,
        which is Megatron-LM's tp-cp-ep-dp-pp.
    devices : list of str, optional
        Of each rank; by default gpu0, gpu1, ...

    Raises
    ------
    InputError
        Not the dimensions of the graph, or not as many devices as ranks (when applied).
    """

    def __init__(self, order: str | None = None, devices: list[str] | None = None) -> None:
        self.order = order
        self.devices = None if devices is None else Ranks.of("rank-order", devices, "devices")

    def apply(self, graph: Graph) -> Graph:
        """Return the graph with its ranks numbered anew."""
        old, programs = programs_of(graph)
        if old.ranks < 2:
            raise GraphError(f"graph {graph.name!r} has no ranks; let the rewrites that make them come first")
        grid = old
        if self.order is not None:
            grid = old.ordered(read_order(self.order, tuple(old.sizes)))
        devices = self.devices or Ranks.of("rank-order", grid.ranks)
        if len(devices) != grid.ranks:
            message = f"rank-order: devices: there are {grid.ranks} ranks and {len(devices)} devices"
            raise InputError(message, path=("devices",))
        return _placed([programs[old.rank(grid.at(r))] for r in range(grid.ranks)], grid, devices)
