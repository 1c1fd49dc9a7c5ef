"""Folding: simulate one of several ranks that do the same at the same time.

::

    shard 0   gpu0  gpu1  gpu2  gpu3          gpu5 is slower. gpu4, 6 and 7 meet it on shard 1, and gpu1 on
    shard 1   gpu4  gpu5* gpu6  gpu7          replicate 1, which leaves four classes, with one rank each:
    replicate k: every fourth                     gpu0 (2, 3)   gpu1   gpu4 (6, 7)   gpu5

Ranks interact only through communicators. So two of them do the same at the same time if they are alike
themselves (with equal programs: a pipeline has one class per stage) and interact alike: collectives take the
same times among the same classes of rank, and messages come from and go to the same classes. This is found by
partition refinement, as for the states of an automaton: ranks that are alike themselves form one class until
their interactions differ (Moore, "Gedanken-experiments on sequential machines", Automata Studies, 1956). The
duration of a collective is the machine's for all its ranks.

If a ring folds into one rank, that rank sends to itself; the attribute ``pair`` says which of its sends and
recvs belong together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from policies.parallel.rank_grid import DATA, Ranked, add_ranks
from sim import Device, Graph, GraphBuilder, Machine
from sim.base.arrays import UNSET, Codes, group_pairs
from sim.job.collectives import modelled_ops
from sim.machine.communicators import Call, CarriedCollectives, HoldsSms, even_nbytes
from sim.machine.machine import Folding

# ----------------------------------------------------------------------------------------------------------
# Interactions of ranks: their collectives with durations, and the peers of their sends and recvs.
#
#     tp 0 pp 0   all_reduce on ``tensor parallel 0``: 7 us        send of 4 MB to the rank of tp 0 pp 1: 3 us
#     tp 1 pp 0   all_reduce on ``tensor parallel 0``: 7 us        send of 4 MB to the rank of tp 1 pp 1: 3 us
#
# The machine is asked for a call's duration with all its ranks, as in a run of all of them.

_PAIRED = {"send": "recv", "recv": "send"}
_OF_GROUP = ("peer", "sends")
"""Attributes for a rank's place in its group, which differ between ranks that do the same."""

Role = tuple[str, str]
"""A program's name for a communicator, and its dimension."""

Timing = tuple[int, int]
"""Duration, and number of SMs held."""


class Pair(NamedTuple):
    """The sends of a rank to another and the recvs there, or the other way round.

    Attributes
    ----------
    label : tuple
        The ops as places in the programs, the sends first: the same on both sides.
    other : int
        Rank on the other side.
    took : tuple
        Durations and SMs for each size.
    """

    label: tuple[tuple[int, ...], tuple[int, ...]]
    other: int
    took: tuple[Timing, ...]


class _Program:
    """The collectives of a program."""

    def __init__(self, graph: Graph, machine: Machine, kinds: Mapping[str, Device]) -> None:
        self.graph, self.own = graph, {op: graph.attributes[op] for op in graph.in_communicators}
        self.together: dict[Role, list[int]] = {}
        """Communicator → ops, except sends and recvs."""
        self.pairs: dict[tuple[Role, int, str], list[int]] = {}
        """Communicator, place of the peer, and kind → ops."""
        for op, facts in self.own.items():
            role, kind = (str(facts["communicator"]), str(facts.get("dimension", DATA))), graph.kind(op)
            ops = self.together.setdefault(role, [])
            if kind in _PAIRED:
                ops = self.pairs.setdefault((role, int(facts["peer"]), kind), [])
            ops.append(op)
        self.modelled = {kind: {*modelled_ops(graph, machine, chip).tolist()} for kind, chip in kinds.items()}
        """Kind of device → ops without an explicit duration there."""

    @cached_property
    def modelled_anywhere(self) -> set[int]:
        """The ops whose duration the machine is asked for on some device."""
        return set().union(*self.modelled.values())

    @cached_property
    def keyed(self) -> dict[Role, list[tuple[int, Hashable]]]:
        """Ops of each communicator with kind and size or, for uneven exchanges, their number in order."""
        keys: dict[Role, list[tuple[int, Hashable]]] = {}
        for role, ops in self.together.items():
            uneven = count()
            keys[role] = [
                (op, next(uneven) if "sends" in self.own[op] else (self.graph.kind(op), self.nbytes(op)))
                for op in ops
            ]
        return keys

    @cached_property
    def messages(self) -> dict[tuple[Role, int, str], list[int]]:
        """Sizes in `pairs` whose duration the machine is asked for."""
        return {
            key: [*dict.fromkeys(self.nbytes(op) for op in ops if op in self.modelled_anywhere)]
            for key, ops in self.pairs.items()
        }

    def nbytes(self, op: int) -> int:
        """Return the size of a collective."""
        attributes, graph = self.own[op], self.graph
        if "sends" in attributes:
            return sum(attributes["sends"].values())
        return int(attributes.get("nbytes", max(graph.bytes_read[op], graph.bytes_written[op])))


class Meets:
    """The interactions of ranks.

    Parameters
    ----------
    ranked : Ranked
    devices : sequence of str
        Device of each rank.
    machine : Machine

    Attributes
    ----------
    alike : list of int
        Number of each rank's program, the same for programs that differ only in places in groups.
    names : list of dict
        Program's name of a communicator → actual name, for each rank.
    inside : dict of str to list of int
        Communicator → its ranks.
    took : dict of str to tuple
        Communicator → durations and SMs of its collectives.
    pairs : list of dict
        Sends to, or recvs from, another rank → their ops and durations, for each rank.
    """

    def __init__(self, ranked: Ranked, devices: Sequence[str], machine: Machine) -> None:
        self._ranked, self._devices, self._machine = ranked, devices, machine
        self._device = [machine.device_index(name) for name in devices]
        kinds = {machine.devices[d].kind: machine.devices[d] for d in self._device}
        different = {id(one): one for one in ranked.programs}
        self._program = {key: _Program(one, machine, kinds) for key, one in different.items()}
        numbers = Codes[Hashable]()
        number = {key: numbers[_key(one)] for key, one in different.items()}
        self.alike = [number[id(one)] for one in ranked.programs]
        self._timings: dict[Call, Timing] = {}
        self.names: list[dict[Role, str]] = []
        self.members: dict[str, list[int]] = {}
        role_of: dict[str, Role] = {}
        for rank in range(len(devices)):
            row = {}
            for role in self.program(rank).together:
                name = row[role] = ranked.communicator(_as_attributes(role), rank)
                self.members.setdefault(name, []).append(rank)
                role_of[name] = role
            self.names.append(row)
        self._calls = {name: self._communicator_calls(name, role) for name, role in role_of.items()}
        self.took = {name: (role_of[name], *calls.values()) for name, calls in self._calls.items()}
        self.pairs = [self._find_pairs(rank) for rank in range(len(devices))]

    def program(self, rank: int) -> _Program:
        """Return the program of a rank."""
        return self._program[id(self._ranked.programs[rank])]

    def durations(self, rank: int) -> dict[int, Timing]:
        """Return durations and SMs of a rank's collectives without an explicit duration."""
        program, durations = self.program(rank), dict[int, Timing]()
        modelled = program.modelled[self._machine.devices[self._device[rank]].kind]
        for role, keyed in program.keyed.items():
            calls = self._calls[self.names[rank][role]]
            durations |= {op: calls[key] for op, key in keyed if op in modelled}
        for (role, peer, kind), ops in program.pairs.items():
            for op in ops:
                if op in modelled:
                    durations[op] = self._timings[self._pair_call(rank, role, peer, kind, program.nbytes(op))]
        return durations

    def classes(self, facts: Sequence[Facts]) -> tuple[list[int], dict[str, int]]:
        """Return the class of each rank, the same for ranks that do the same, and of each communicator."""
        sort = _number_values(zip(self.alike, (tuple(values.items()) for values in facts), strict=True))
        while True:
            met = (
                (self.took[name], frozenset(sort[r] for r in ranks)) for name, ranks in self.members.items()
            )
            class_of = dict(zip(self.members, _number_values(met), strict=True))
            keys = list[Hashable]()
            for number, row, pairs in zip(sort, self.names, self.pairs, strict=True):
                messages = ((ops, pair.label, pair.took, sort[pair.other]) for ops, pair in pairs.items())
                keys.append((number, *(class_of[name] for name in row.values()), *messages))
            finer = _number_values(keys)
            if max(finer) == max(sort):
                return sort, class_of
            sort = finer

    def graph(self, stands: Mapping[int, int], sort: Sequence[int], class_of: Mapping[str, int]) -> Graph:
        """Return the programs of one rank of each class, with explicit durations of collectives."""
        like: dict[int, str] = {}  # class of communicator → its first member
        for name, number in class_of.items():
            like.setdefault(number, name)
        labels: dict[Hashable, int] = {}
        builder = GraphBuilder(self._ranked.programs[0].name)
        for rank in stands.values():
            program = self.program(rank)
            pair_of = {op: pair for ops, pair in self.pairs[rank].items() for op in ops}
            duration_ns, attributes = program.graph.duration_ns.copy(), dict(program.graph.attributes)
            durations = self.durations(rank)
            for op, old in program.own.items():
                new: dict[str, Any] = self._ranked.attributes({**old, "sends": {}}, rank, self._devices)
                del new["sends"]
                new["communicator"] = like[class_of[new["communicator"]]]
                if "sends" in old:
                    new["nbytes"] = program.nbytes(op)
                if "peer" in old:
                    pair = pair_of[op]
                    new["peer"] = self._devices[stands[sort[pair.other]]]
                    new["pair"] = labels.setdefault(pair.label, len(labels))
                if op in durations:
                    duration_ns[op], sms = durations[op]
                    if sms and "sms" not in new:
                        new["sms"] = sms
                attributes[op] = new
            graph = replace(program.graph, duration_ns=duration_ns, attributes=attributes)
            add_ranks(builder, graph, [self._devices[rank]], lambda old, _: old)
        return builder.build()

    def difference(self, rank: int, sort: Sequence[int], class_of: Mapping[str, int]) -> str:
        """Return what a rank's program, or an interaction of it, has that the first one lacks."""
        if self.alike[rank] != self.alike[0]:
            first, coords = (self._ranked.grid.at(r) for r in (0, rank))
            places = (f"{name} {index}" for name, index in coords.items() if index != first[name])
            return f"another program, at {', '.join(places)}"
        for group, firsts in zip(self.names[rank].values(), self.names[0].values(), strict=True):
            if class_of[group] == class_of[firsts]:
                continue
            if self.took[group] != self.took[firsts]:
                return f"collectives on {group!r} take other times than on {firsts!r}"
            classes = {sort[r] for r in self.members[firsts]}
            others = (r for r in self.members[group] if sort[r] not in classes and sort[r] != sort[rank])
            if (other := next(others, None)) is not None:
                return f"meets {self._devices[other]} on {group!r}"
        first_one = self._devices[0]
        return f"its messages take other times than those of {first_one}, or are exchanged with other ranks"

    def _communicator_calls(self, name: str, role: Role) -> dict[Hashable, Timing]:
        """Return the machine's durations and SMs for the collectives of a communicator."""
        members = sorted(self.members[name], key=self._device.__getitem__)
        ranks = tuple(self._device[r] for r in members)
        first, calls = self.program(members[0]), dict[Hashable, Timing]()
        for op, key in first.keyed[role]:
            if op not in first.modelled_anywhere or key in calls:
                continue
            kind, nbytes = first.graph.kind(op).replace("alltoall", "all_to_all"), first.nbytes(op)
            sends: tuple[tuple[int, ...], ...] = ()
            if isinstance(key, int):
                sends = self._sends(members, role, key)
                nbytes = even_nbytes(sends)
            root = ranks[0] if kind in ("broadcast", "reduce") else UNSET
            calls[key] = self._timing(Call(kind, nbytes, ranks, root, name, sends))
        return calls

    def _sends(self, members: Sequence[int], role: Role, k: int) -> tuple[tuple[int, ...], ...]:
        """Return the bytes from each rank to each rank in the k-th uneven exchange on a communicator."""
        group = self._ranked.grid.members(role[1], members[0])
        places, rows = [str(group.index(r)) for r in members], []
        for rank in members:
            program = self.program(rank)
            op = next(op for op, key in program.keyed[role] if key == k)
            rows.append(tuple(program.own[op]["sends"].get(place, 0) for place in places))
        return tuple(rows)

    def _find_pairs(self, rank: int) -> dict[tuple[int, ...], Pair]:
        program, pairs = self.program(rank), dict[tuple[int, ...], Pair]()
        for (role, peer, kind), ops in program.pairs.items():
            other = self._ranked.peer({**_as_attributes(role), "peer": peer}, rank)
            position = self._ranked.grid.members(role[1], rank).index(rank)
            partner_ops = self.program(other).pairs.get((role, position, _PAIRED[kind]), [])
            matched = (ops, partner_ops) if kind == "send" else (partner_ops, ops)
            sizes = program.messages[role, peer, kind]
            took = tuple(self._timing(self._pair_call(rank, role, peer, kind, nbytes)) for nbytes in sizes)
            pairs[tuple(ops)] = Pair((tuple(matched[0]), tuple(matched[1])), other, took)
        return pairs

    def _pair_call(self, rank: int, role: Role, peer: int, kind: str, nbytes: int) -> Call:
        other = self._ranked.peer({**_as_attributes(role), "peer": peer}, rank)
        ranks = (self._device[rank], self._device[other])
        return Call("send", nbytes, ranks if kind == "send" else ranks[::-1], UNSET, self.names[rank][role])

    def _timing(self, call: Call) -> Timing:
        if call not in self._timings:
            model = self._machine.collectives
            assert model is not None
            sms = model.sms(call, self._machine) if isinstance(model, HoldsSms) else 0
            self._timings[call] = model.time_ns(call, self._machine), sms
        return self._timings[call]


def _as_attributes(role: Role) -> dict[str, Any]:
    return {"communicator": role[0], "dimension": role[1]}


def _key(graph: Graph) -> Hashable:
    """Return a key that is equal for programs that do the same, whatever the place in groups."""

    def as_key(value: Any) -> Hashable:
        if isinstance(value, np.ndarray):
            return value.tobytes()
        if isinstance(value, Mapping):
            return repr({key: as_key(item) for key, item in value.items() if key not in _OF_GROUP})
        return tuple(map(as_key, value)) if isinstance(value, list | tuple) else value

    return tuple(as_key(getattr(graph, field.name)) for field in fields(graph))


# ----------------------------------------------------------------------------------------------------------

Facts = Mapping[str, Hashable]
"""Properties of a rank by itself, by their names in messages."""


def why_not(ranked: Ranked, devices: Sequence[str], machine: Machine) -> list[str]:
    """Return the reasons why ranks cannot be folded.

    Parameters
    ----------
    ranked : Ranked
    devices : sequence of str
        Device of each rank.
    machine : Machine
    """
    every, programs = set(devices), list({id(one): one for one in ranked.programs}.values())
    reasons = [
        f"op {program.op_names[op]!r} names a root, {root}"
        for program in programs
        for op, root in program.attribute("root").items()
    ][:1]
    if any(program.attribute("resources") for program in programs):
        reasons.append("the resources of the machine are shared by all of them")
    for host in machine.hosts:
        served = [name for name in host.serves if name in every]
        if served and (len(host.serves) > 1 or host.process):
            reasons.append(f"host {host.name!r} is not there for {served[0]} alone")
            break
    if isinstance(machine.collectives, CarriedCollectives):
        reasons.append("the messages of its collectives share links, not all of which carry the same")
    costs = ((name, machine.devices[machine.device_index(name)].cost) for name in devices)
    by_name = [(name, cost) for name, cost in costs if cost is not None and cost.by_name]
    if by_name and any((program.duration_ns < 0).any() for program in programs):
        name, cost = by_name[0]
        reasons.append(f"the cost model of {name}, a {type(cost).__name__}, may know devices by their names")
    return reasons


def fold(
    ranked: Ranked, devices: Sequence[str], machine: Machine, facts: Sequence[Facts]
) -> tuple[Graph, Machine]:
    """Return the program of one rank of each class, and a machine with these ranks.

    Parameters
    ----------
    ranked, devices, machine
        Ranks for which `why_not` gives no reason.
    facts : sequence of mapping
        Properties that may distinguish each rank, apart from its program and interactions.

    Examples
    --------
    >>> from policies.parallel.rank_grid import Grid
    >>> from sim import Device, GraphBuilder
    >>> b = GraphBuilder("step")
    >>> _ = b.op("f", outputs=8), b.op("r", kind="all_reduce", inputs=["f"], attributes={"communicator": "c"})
    >>> machine = Machine(tuple(Device(f"gpu{r}") for r in range(4)))
    >>> facts = [{"factor": 1}, {"factor": 2}, {"factor": 1}, {"factor": 1}]
    >>> ranked = Ranked(Grid({"dp": 4}), [b.build()] * 4)
    >>> graph, folded = fold(ranked, machine.accelerators, machine, facts)
    >>> graph.op_names, folded.folding.report()["into"]["gpu1"]
    (('gpu0/f', 'gpu0/r', 'gpu1/f', 'gpu1/r'), {'stands_for': 1, 'differs': 'factor is 2, not 1'})
    """
    meets = Meets(ranked, devices, machine)
    sort, class_of = meets.classes(facts)
    of_sort = group_pairs((number, rank) for rank, number in enumerate(sort))
    stands = {number: group[0] for number, group in of_sort.items()}
    members = {devices[group[0]]: tuple(devices[r] for r in group) for group in of_sort.values()}
    differs = {
        devices[r]: _difference(facts[0], facts[r]) or meets.difference(r, sort, class_of)
        for r in list(stands.values())[1:]
    }
    simulated = {*devices}
    folded = Machine(
        tuple(device for device in machine.devices if device.name in members),
        hosts=tuple(host for host in machine.hosts if host.serves[0] in members),
        folding=Folding(
            members,
            differs,
            tuple(d for d in machine.devices if d.name not in simulated),
            {name: len(ranks) for name, ranks in meets.members.items()},
            tuple(d.name for d in machine.devices if d.name in simulated),
        ),
    )
    return meets.graph(stands, sort, class_of), folded


def _number_values(values: Iterable[Hashable]) -> list[int]:
    """Return a number for each value, the same for equal ones, in order of first use."""
    return [*map(Codes[Hashable]().__getitem__, values)]


def _difference(one: Facts, other: Facts) -> str:
    pairs = ((key, one.get(key, "the default"), other.get(key, "the default")) for key in {**one, **other})
    return "; ".join(f"{key} is {second}, not {first}" for key, first, second in pairs if first != second)
