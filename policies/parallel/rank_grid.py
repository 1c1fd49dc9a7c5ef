"""The grid of ranks: the number of each, and its communication groups in every dimension of parallelism.

::

    order tp-cp-dp-pp, two of each: the first changes fastest from rank to rank

    rank  0  1  2  3  4  5  6  7  8 ...        tp: {0 1} {2 3} ...      cp: {0 2} {1 3} ...
    tp    0  1  0  1  0  1  0  1  0            dp: {0 4} {1 5} ...      pp: {0 8} {1 9} ...
    cp    0  0  1  1  0  0  1  1  0            cp-dp: {0 2 4 6} {1 3 5 7} ...
    dp    0  0  0  0  1  1  1  1  0
    pp    0  0  0  0  0  0  0  0  1

Megatron-LM's order is tp-cp-ep-dp-pp, or tp-cp-ep-pp-dp as an option; Llama 3's is tp-cp-pp-dp.

Sources: megatron/core/parallel_state.py (``RankGenerator``, ``generate_masked_orthogonal_rank_groups``, the
default of ``order``); "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from policies.option_checks import whole
from policies.parallel.training_step import refuse_several_devices
from policies.rewrite.backward import OPTIMIZERS
from sim import Graph, GraphBuilder
from sim.base.arrays import MOST_BUILT, UNSET, Csr, IntArray, at_most, group_pairs
from sim.base.errors import GraphError, InputError, hint
from sim.base.units import format_count
from sim.graph.graph import Role

MEGATRON: Final = ("tp", "cp", "ep", "dp", "pp")
"""Tensor, context, expert, data and pipeline parallelism, the fastest-changing first."""

DATA: Final = "cp-dp"
"""The dimensions over which gradients are summed: context-parallel ranks see other tokens, as replicas do."""


@dataclass(frozen=True)
class Grid:
    """Sizes of the dimensions.

    Attributes
    ----------
    sizes : mapping of str to int
        Size of each dimension, the fastest-changing first.

    Examples
    --------
    >>> grid = Grid({"tp": 2, "dp": 3})
    >>> grid.ranks, grid.at(3), grid.rank({"tp": 1, "dp": 1})
    (6, {'tp': 1, 'dp': 1}, 3)
    >>> grid.members("dp", 3), grid.number("dp", 3), grid.groups("tp-dp")
    ([1, 3, 5], 1, 1)
    """

    sizes: Mapping[str, int]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes.values())

    def at(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a rank."""
        coords = {}
        for name, size in self.sizes.items():
            rank, coords[name] = divmod(rank, size)
        return coords

    def rank(self, coords: Mapping[str, int]) -> int:
        """Return the number of the rank at given coordinates."""
        number = 0
        for name in reversed([*self.sizes]):
            number = number * self.sizes[name] + coords[name]
        return number

    def members(self, dimensions: str | Iterable[str], rank: int = 0) -> list[int]:
        """Return the group of `rank`: the ranks that differ from it only in the given dimensions.

        Parameters
        ----------
        dimensions : str or iterable of str
            Names, or one word such as ``"tp-dp"``; names that the grid lacks are ignored.
        rank : int
        """
        varying = _names(dimensions)
        positions, stride = [0], 1
        for name, size in self.sizes.items():
            if name in varying:
                rank -= rank // stride % size * stride  # to the group's first place in this dimension
                positions = [position + i * stride for i in range(size) for position in positions]
            stride *= size
        return [rank + position for position in positions]

    def number(self, dimensions: str | Iterable[str], rank: int) -> int:
        """Return the number of a rank's group over given dimensions, in the order of first ranks."""
        return self._others(dimensions).rank(self.at(rank))

    def groups(self, dimensions: str | Iterable[str]) -> int:
        """Return the number of groups over given dimensions."""
        return self._others(dimensions).ranks

    def _others(self, dimensions: str | Iterable[str]) -> Grid:
        varying = _names(dimensions)
        return Grid({name: size for name, size in self.sizes.items() if name not in varying})

    def reorder(self, order: Sequence[str]) -> Grid:
        """Return the grid with its dimensions in another order; dimensions not in `order` come last."""
        names = [*(name for name in order if name in self.sizes), *(n for n in self.sizes if n not in order)]
        return Grid({name: self.sizes[name] for name in names})


def _names(dimensions: str | Iterable[str]) -> set[str]:
    return set(dimensions.split("-")) if isinstance(dimensions, str) else set(dimensions)


def read_order(order: object, known: Sequence[str]) -> tuple[str, ...]:
    """Return the dimensions that a word such as ``tp-cp-dp-pp`` names, each of `known` once.

    Raises
    ------
    InputError
        If one is missing, unknown or repeated.

    Examples
    --------
    >>> read_order("tp-pp-dp", ["tp", "dp", "pp"])
    ('tp', 'pp', 'dp')
    """
    names = tuple(order.split("-")) if isinstance(order, str) else ()
    if sorted(names) != sorted(known):
        wrong = next((name for name in names if name not in known), None)
        near = "" if wrong is None else hint(wrong, known)
        message = f"order has to name each of {', '.join(known)} once, as in {'-'.join(known)}"
        raise InputError(f"{message}; found {order!r}{near}", path=("order",))
    return names


# ----------------------------------------------------------------------------------------------------------
# Ranks: their number and devices, and a copy of one program on every device.
#
#     F  B  all_reduce  U     ──►     gpu0/F  gpu0/B  gpu0/all_reduce  gpu0/U
#                                     gpu1/F  gpu1/B  gpu1/all_reduce  gpu1/U        joined by ``ddp``
#
# Copies are shifted columns: a thousand ranks of a thousand ops take seconds.

MOST_RANKS: Final = 100_000
"""Most devices accepted; a larger number is taken for a typing error."""


def gpus(n: int) -> tuple[str, ...]:
    """Return the devices of `n` ranks if the machine is unknown: gpu0, gpu1, ..."""
    return tuple(f"gpu{r}" for r in range(n))


@dataclass(frozen=True)
class Ranks:
    """The value of an option for ranks: a number, devices, or neither, for as many as there is room for.

    Attributes
    ----------
    n : int or None
    names : tuple of str or None
        None: the accelerators of the machine, in machine order.

    Examples
    --------
    >>> Ranks.of("ddp", 2), Ranks.of("ddp", ["left", "right"]).names
    (Ranks(n=2, names=None), ('left', 'right'))
    """

    n: int | None = None
    names: tuple[str, ...] | None = None

    @staticmethod
    def of(policy: str, value: object, option: str = "ranks") -> Ranks:
        """Return the parsed value of an option.

        Raises
        ------
        InputError
            If it is neither a number nor a list of distinct names.
        """
        if isinstance(value, list | tuple):
            names = tuple(value)
            if names and len(set(map(str, names))) == len(names) and all(isinstance(n, str) for n in names):
                return Ranks(len(names), names)
            message = "must be a number of GPUs or a list of devices, each once"
            raise InputError(f"{policy}: {option} {message}; found {value!r}", path=(option,))
        return Ranks(whole(policy, option, value, most=MOST_RANKS))


_NUMBERS: Final = (
    *("duration_ns", "flops", "bytes_read", "bytes_written", "stage", "micro_batch"),
    *("input_distance", "after_distance"),
)
"""Columns that are the same on every rank."""


def add_ranks(
    builder: GraphBuilder,
    graph: Graph,
    ranks: Sequence[str],
    attributes: Callable[[Mapping[str, Any], int], Mapping[str, Any]],
    device: Callable[[str, int], str] | None = None,
) -> None:
    """Add a copy of `graph` for every rank, with ops and tensors named after its device.

    Parameters
    ----------
    builder : GraphBuilder
    graph : Graph
    ranks : sequence of str
        Device of each rank.
    attributes : callable
        ``attributes(facts, rank)`` returns the attributes of an op on the rank with that index in `ranks`.
    device : callable, optional
        ``device(name, rank)`` returns a rank's device for ops that `graph` pins to device `name`, if ranks
        have several devices; by default all of a rank is on the device that it is named after.

    Raises
    ------
    InputError
        If there are more ops than fit.
    """
    at_most(MOST_BUILT, len(builder) + len(ranks) * len(graph), "ops")
    n, size, n_in = len(ranks), len(graph), len(graph.external_names)
    externals = list(zip(graph.tensor_nbytes[:n_in].tolist(), graph.tensor_role[:n_in].tolist(), strict=True))
    pinned = graph.tensor_pin[:n_in].tolist()
    pins_of = [[name if device is None else device(p, r) for p in graph.pins] for r, name in enumerate(ranks)]
    first: list[int] = []  # first input or parameter of each rank
    for rank, pins in zip(ranks, pins_of, strict=True):
        for name, (nbytes, role), pin in zip(graph.external_names, externals, pinned, strict=True):
            add = builder.parameter if role == Role.PARAMETER else builder.input
            add(f"{rank}/{name}", nbytes, device=pins[pin] if pin != UNSET else None)
        first.append(builder.external(f"{rank}/{graph.external_names[0]}") if n_in else 0)
    op, output = len(builder), builder.tensor(len(builder))
    n_out = graph.outputs.indices.size
    tensors = graph.inputs.indices
    inputs = [
        np.where(tensors < n_in, first[r] - tensors, output + r * n_out + tensors - n_in) for r in range(n)
    ]
    after = [graph.after.indices + op + r * size for r in range(n)]
    places = list(ranks), np.repeat(np.arange(n), size)
    if device is not None:
        codes = np.tile(graph.pin_code, n)
        shift = places[1] * len(graph.pins)
        places = [name for pins in pins_of for name in pins], np.where(codes == UNSET, UNSET, codes + shift)
    builder.extend(
        [f"{rank}/{name}" for rank in ranks for name in graph.op_names],
        kind=(graph.kinds, np.tile(graph.kind_code, n)),
        inputs=_tile(graph.inputs, inputs),
        outputs=_tile(graph.outputs, [graph.tensor_nbytes[graph.outputs.indices]] * n),
        device=places,
        after=_tile(graph.after, after),
        phase=(graph.phases, np.tile(graph.phase_code, n)),
        dtype=(graph.dtypes, np.tile(graph.dtype_code, n)),
        **{name: np.tile(getattr(graph, name), n) for name in _NUMBERS},
        duration_by_kind={
            kind: {op + r * size + k: ns for r in range(n) for k, ns in enumerate(column.tolist()) if ns >= 0}
            for kind, column in graph.duration_by_kind.items()
        },
        attributes={
            op + r * size + k: attributes(facts, r) for r in range(n) for k, facts in graph.attributes.items()
        },
    )


def _tile(rows: Csr, entries: list[IntArray]) -> Csr:
    """Return the rows repeated, with the entries of each repetition."""
    counts = np.tile(rows.counts(), len(entries))
    return Csr.of_counts(counts, np.concatenate(entries))


# ----------------------------------------------------------------------------------------------------------
# Ranks before assignment to devices: the program of each, and its place in the grid.
#
#  one device ──tensor-parallel──► tp 0, tp 1 ──ddp: each program with its sums──► tp 0 dp 0, tp 1 dp 0, ...
#  one program                     one program, twice                              one program, eight times
#
# A rank's program is that of one device: its communicators are named after dimensions (``communicator: tensor
# parallel``, ``dimension: tp``), and a peer is a place in the group. So rewrites can be composed, and most
# ranks share a program. On devices, groups get numbers (``tensor parallel 3``), a peer is a device, and the
# attribute ``rank`` is (place, size) in each dimension, the fastest first.

REPLICAS = "replicas"
"""Dimension of groups that each shard all parameters (HSDP)."""

_ORDER = (*MEGATRON[:4], REPLICAS, *MEGATRON[4:])


@dataclass(frozen=True)
class Ranked:
    """The programs of ranks.

    Attributes
    ----------
    grid : Grid
        Grid of the ranks; without dimensions there are no ranks yet, but one device and its program.
    programs : sequence of Graph
        Program of each rank; equal ones are the same object.
    devices : tuple of str or None
        Device of each rank, if the user named them; None: the accelerators of the machine.
    accelerators : tuple of str or None
        The machine's accelerators, in machine order; None: unknown, taken as gpu0, gpu1, ...
    """

    grid: Grid
    programs: Sequence[Graph]
    devices: tuple[str, ...] | None = None
    accelerators: tuple[str, ...] | None = None

    @staticmethod
    def of(graph: Graph, accelerators: tuple[str, ...] | None = None) -> Ranked:
        """Return the single device that runs a graph, for rewrites to make ranks of.

        Raises
        ------
        GraphError
            If the graph has several devices, communicators or control flow.
        """
        refuse_several_devices(graph)
        return Ranked(Grid({}), [graph], None, accelerators)

    def refuse(self, dimensions: Iterable[str], advice: str) -> None:
        """Raise if the ranks are divided into one of these dimensions already.

        Raises
        ------
        GraphError
            If they are.
        """
        for name in (name for name in dimensions if name in self.grid.sizes):
            raise GraphError(f"graph {self.programs[0].name!r} is divided into {name} already; {advice}")

    def room(self, policy: str, ranks: Ranks) -> int:
        """Return the factor by which ranks are multiplied; by default as many as there is room for.

        Raises
        ------
        InputError
            If no number is given and the machine is unknown or its accelerators cannot be divided evenly,
            or if devices are named and there are ranks already.
        """
        if self.grid.ranks > 1 and (ranks.names or (self.devices and ranks.n != 1)):
            message = f"there are {self.grid.ranks} ranks already, so give the number of parts"
            raise InputError(f"{message}; rank-order names devices", path=("ranks",))
        if ranks.n is not None:
            return ranks.n
        if self.accelerators is None:
            raise InputError(f"{policy}: give ranks: how many, or a list of devices", path=("ranks",))
        n, remainder = divmod(len(self.accelerators), self.grid.ranks)
        if remainder or not n:
            has = f"the machine has {format_count(len(self.accelerators), 'accelerator')}"
            message = f"{has}, which {self.grid.ranks} ranks each cannot share evenly; give ranks"
            raise InputError(f"{policy}: {message}", path=("ranks",))
        return n

    def multiply(
        self,
        added: Mapping[str, int],
        program: Callable[[Graph, Grid, Mapping[str, int]], Graph],
        *,
        names: tuple[str, ...] | None = None,
        varies: Iterable[str] = (),
    ) -> Ranked:
        """Return more ranks: the present ones at every place of further dimensions.

        Parameters
        ----------
        added : mapping of str to int
            Sizes of the added dimensions.
        program : callable
            ``program(one, grid, coords)`` returns the new program of a rank at these coordinates, from `one`.
        names : tuple of str, optional
            Names of the devices.
        varies : iterable of str
            Added dimensions along which programs differ.

        Raises
        ------
        GraphError
            If a dimension exists already.
        """
        replicas = "one rewrite for replicas, such as expert-parallel, is enough"
        self.refuse(added, replicas if "dp" in added else "one such rewrite is enough")
        grid = Grid({**self.grid.sizes, **added}).reorder(_ORDER)
        built: dict[tuple[int, ...], Graph] = {}
        placed = []
        for coords in map(grid.at, range(grid.ranks)):
            one = self.programs[self.grid.rank(coords)]
            key = (id(one), *(coords[name] for name in varies))
            if key not in built:
                built[key] = program(one, grid, coords)
            placed.append(built[key])
        return Ranked(grid, placed, names or self.devices, self.accelerators)

    def each(self, program: Callable[[Graph], Graph]) -> Ranked:
        """Return the ranks, or the single device, with each program replaced."""
        new = {id(one): program(one) for one in self.programs}
        return replace(self, programs=[new[id(one)] for one in self.programs])

    def on_devices(self) -> tuple[str, ...]:
        """Return the device of each rank.

        Raises
        ------
        InputError
            If the machine has fewer accelerators than there are ranks.
        """
        n = self.grid.ranks
        if self.devices is not None or self.accelerators is None:
            return self.devices or gpus(n)
        if len(self.accelerators) < n:
            many = f"{n:,} ranks"
            if len(self.grid.sizes) > 1:
                many += f" ({' x '.join(f'{name} {size:,}' for name, size in self.grid.sizes.items())})"
            has = format_count(len(self.accelerators), "accelerator")
            message = f"there are {many}, and the machine has {has}"
            raise InputError(message, path=("ranks",))
        return self.accelerators[:n]

    def graph(self) -> Graph:
        """Return the graph in which each rank runs its program; without ranks, the program."""
        if not self.grid.sizes:
            return self.programs[0]
        devices = self.on_devices()
        builder = GraphBuilder(self.programs[0].name)
        ranks = group_pairs((id(program), rank) for rank, program in enumerate(self.programs))

        def on_rank(facts: Mapping[str, Any], k: int) -> Mapping[str, Any]:
            return self.attributes(facts, group[k], devices) if "communicator" in facts else facts

        for group in ranks.values():
            add_ranks(builder, self.programs[group[0]], [devices[rank] for rank in group], on_rank)
        return builder.build()

    def attributes(self, attributes: Mapping[str, Any], rank: int, devices: Sequence[str]) -> dict[str, Any]:
        """Return the attributes of a collective on a rank."""
        dimension = attributes.get("dimension", DATA)
        result = {**attributes, "dimension": dimension, "communicator": self.communicator(attributes, rank)}
        if "sends" in attributes:
            members = self.grid.members(dimension, rank)
            result["sends"] = {devices[members[int(k)]]: nbytes for k, nbytes in attributes["sends"].items()}
        if "peer" in attributes:
            result["peer"] = devices[self.peer(attributes, rank)]
        result["rank"] = {name: (index, self.grid.sizes[name]) for name, index in self.grid.at(rank).items()}
        return result

    def communicator(self, attributes: Mapping[str, Any], rank: int) -> str:
        """Return the name of a collective's communicator on a rank."""
        dimension, name = attributes.get("dimension", DATA), str(attributes["communicator"])
        return name if self.grid.groups(dimension) == 1 else f"{name} {self.grid.number(dimension, rank)}"

    def peer(self, attributes: Mapping[str, Any], rank: int) -> int:
        """Return the rank to which a rank sends or from which it receives."""
        return self.grid.members(attributes.get("dimension", DATA), rank)[int(attributes["peer"])]


class OnRanks:
    """Base of rewrites that create ranks or change their programs; override `rewrite_ranks`."""

    def rewrite_ranks(self, ranked: Ranked) -> Ranked:
        """Return the ranks after the rewrite."""
        raise InputError(f"{type(self).__name__} must define rewrite_ranks(ranked)")

    def apply(self, graph: Graph) -> Graph:
        """Return the graph of all ranks after the rewrite."""
        return all_ranks(graph, self)


def all_ranks(graph: Graph, *rewrites: OnRanks) -> Graph:
    """Return the graph of all ranks after several rewrites of the graph of one device."""
    ranked = Ranked.of(graph)
    for rewrite in rewrites:
        ranked = rewrite.rewrite_ranks(ranked)
    return ranked.graph()


REPLICATE: Final = "replicate"
"""The communicator of groups that each shard all parameters."""


class UnsummedWarning(UserWarning):
    """Ranks update parameters with gradients of only some tokens of a sequence."""


def warn_of_unsummed(ranked: Ranked) -> None:
    """Warn if ranks split sequences and no rewrite for replicas sums their gradients.

    Warns
    -----
    UnsummedWarning
    """
    sizes = ranked.grid.sizes
    if "cp" in sizes and "dp" not in sizes and OPTIMIZERS.keys() & {*ranked.programs[0].kinds}:
        message = "nothing sums the gradients of context-parallel ranks: end policy.compile with a rewrite"
        more = "for replicas, such as {name: ddp, ranks: 1}"
        warnings.warn(UnsummedWarning(f"{message} {more}"), stacklevel=2)


class DataParallel(OnRanks):
    """Base of rewrites that replicate the present ranks and sum gradients; override `step`.

    Ranks with parts of one sequence (context parallelism) sum their gradients together with the replicas.

    Parameters
    ----------
    ranks : int or list of str, optional
        Number of ranks, or their devices. A number means the first accelerators of the machine, in machine
        order; the default is all of them.
    """

    name: ClassVar[str]
    pipeline_rank = 0
    """Pipeline rank for which `step` is called; stages of ops do not give it, as sums are of other stages."""

    def __init__(self, ranks: int | list[str] | None = None) -> None:
        self.ranks = Ranks() if ranks is None else Ranks.of(self.name, ranks)

    def sizes(self, n: int) -> dict[str, int]:
        """Return the dimensions of `n` replicas; the first is that of ranks that shard parameters."""
        return {"dp": n}

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the program of a rank that sums its gradients with `n` - 1 others."""
        raise InputError(f"{type(self).__name__} must define step(graph, n)")

    def rewrite_ranks(self, ranked: Ranked) -> Ranked:
        """Return replicas of all present ranks."""
        policy = copy(self)
        policy.ranks = replace(self.ranks, n=ranked.room(self.name, self.ranks))
        assert policy.ranks.n is not None

        def program(one: Graph, grid: Grid, coords: Mapping[str, int]) -> Graph:
            policy.pipeline_rank = coords.get("pp", 0)
            return policy.step(one, len(grid.members(DATA)))

        return ranked.multiply(policy.sizes(policy.ranks.n), program, names=policy.ranks.names)

    def whole(self, option: str, value: object, least: int = 1) -> int:
        """Return the value of an option that must be a whole number."""
        return whole(self.name, option, value, least=least)


class RankOrder(OnRanks):
    """Number the ranks of a combination in another order, or put them on other devices.

    Rewrites for many ranks, one after another: each takes the programs of all ranks and multiplies them.

    ::

        compile: [training, {name: tensor-parallel, ranks: 2}, {name: ddp, ranks: 4}]

        one device ──tensor-parallel──► gpu0, gpu1 ──ddp: each program with its sums──► gpu0 ... gpu7
                                        tp 0, tp 1                                      tp fastest, then dp

    Parameters
    ----------
    order : str, optional
        Dimensions, the fastest-changing first: ``tp-cp-dp-pp``, ``tp-cp-pp-dp``, ...; by default unchanged,
        which is Megatron-LM's tp-cp-ep-dp-pp.
    devices : list of str, optional
        Device of each rank; by default the accelerators of the machine, in machine order.

    Raises
    ------
    InputError
        If the dimensions are not the graph's, or the number of devices is not that of ranks (when applied).
    """

    def __init__(self, order: str | None = None, devices: list[str] | None = None) -> None:
        self.order = order
        self.devices = None if devices is None else Ranks.of("rank-order", devices, "devices").names

    def rewrite_ranks(self, ranked: Ranked) -> Ranked:
        """Return the ranks, renumbered."""
        old = ranked.grid
        if old.ranks < 2:
            name = ranked.programs[0].name
            raise GraphError(f"graph {name!r} has no ranks; let the rewrites that make them come first")
        grid = old if self.order is None else old.reorder(read_order(self.order, tuple(old.sizes)))
        if self.devices is not None and len(self.devices) != grid.ranks:
            message = f"rank-order: devices: {len(self.devices)}, for {format_count(grid.ranks, 'rank')}"
            raise InputError(message, path=("devices",))
        programs = [ranked.programs[old.rank(grid.at(r))] for r in range(grid.ranks)]
        return Ranked(grid, programs, self.devices or ranked.devices, ranked.accelerators)
