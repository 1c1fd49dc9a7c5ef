"""Folding: of ranks that do the same at the same time, one is made.

::

    shard 0   gpu0  gpu1  gpu2  gpu3          gpu5 is slower. gpu4, 6 and 7 meet it on shard 1, and gpu1 on
    shard 1   gpu4  gpu5* gpu6  gpu7          replicate 1, so that four sorts are left, a rank of each:
    replicate k: every fourth                     gpu0 (2, 3)   gpu1   gpu4 (6, 7)   gpu5

All ranks run one program, and meet in collectives and nowhere else. So two of them do the same at the same
time if they are alike themselves and meet alike on each communicator: collectives take the same times, among
the same sorts of rank. That is found as the states of an automaton are merged: ranks that are alike
themselves are one sort until what they meet tells them apart (Moore, "Gedanken-experiments on sequential
machines", Automata Studies, 1956). What a collective takes is what the machine says for all its ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import numpy as np

from policies.compile.parallel.ranks import on_ranks
from sim import Device, Graph, Machine
from sim.job.collectives.durations import call_of, modelled_ops
from sim.job.collectives.members import collectives_of
from sim.machine.communicators import Call, CarriedCollectives, HoldsSms
from sim.machine.folding import Folding, folded_model

__all__ = ["fold", "why_not"]

Facts = Mapping[str, Hashable]
"""What is known of a rank by itself, by the word that messages have for it."""


def why_not(program: Graph, ranks: Sequence[str], machine: Machine) -> list[str]:
    """Return what keeps ranks from being folded, in words.

    Parameters
    ----------
    program : Graph
        What each rank runs.
    ranks : sequence of str
        Devices.
    machine : Machine
    """
    found = []
    for op, given in program.attributes.items():
        for what in ("peer", "root"):
            if what in given:
                found.append(f"op {program.op_names[op]!r} names a {what}, {given[what]}")
    for host in machine.hosts:
        here = [name for name in host.serves if name in set(ranks)]
        if here and len(host.serves) > 1:
            found.append(f"host {host.name!r} launches on {here[0]} and {len(host.serves) - 1} more in turn")
        elif here and host.process:
            found.append(f"host {host.name!r} is there for one process")
    if isinstance(machine.collectives, CarriedCollectives):
        found.append("the messages of its collectives share links, not all of which carry the same")
    for name in ranks:
        cost = machine.devices[machine.device_index(name)].cost
        if cost is not None and cost.by_name and (program.duration_ns < 0).any():
            found.append(
                f"the cost model of {name}, a {type(cost).__name__}, may know devices by their names"
            )
            break
    return found


def fold(
    program: Graph,
    ranks: Sequence[str],
    communicator: Callable[[str, int], str],
    machine: Machine,
    facts: Sequence[Facts],
) -> tuple[Graph, Machine]:
    """Return the program on one rank of each sort, and the machine that has these.

    Parameters
    ----------
    program, ranks, machine
        Ranks that `why_not` says nothing of.
    communicator : callable
        ``communicator(name, rank)``: see `policies.compile.parallel.ranks.on_ranks`.
    facts : sequence of mapping
        Of each rank: all that may set it apart, but what it meets.

    Examples
    --------
    >>> from sim import Device, GraphBuilder
    >>> b = GraphBuilder("step")
    >>> _ = b.op("f", outputs=8), b.op("r", kind="all_reduce", inputs=["f"], attributes={"communicator": "c"})
    >>> machine = Machine(tuple(Device(f"gpu{r}") for r in range(4)))
    >>> facts = [{"factor": 1}, {"factor": 2}, {"factor": 1}, {"factor": 1}]
    >>> ranks = [device.name for device in machine.devices]
    >>> graph, folded = fold(b.build(), ranks, lambda name, rank: name, machine, facts)
    >>> graph.op_names, folded.folding.report()["into"]["gpu1"]
    (['gpu0/f', 'gpu0/r', 'gpu1/f', 'gpu1/r'], {'stands_for': 1, 'differs': 'factor is 2, not 1'})
    """
    met = _Met(program, ranks, communicator, machine)
    sort = _numbered(tuple(each.items()) for each in facts)
    while True:
        on = met.sorts(sort)
        finer = _numbered(
            (own, *(on[name] for name in row)) for own, row in zip(sort, met.names, strict=True)
        )
        if max(finer) == max(sort):
            break
        sort = finer
    of_sort: dict[int, list[int]] = {}
    for rank, number in enumerate(sort):
        of_sort.setdefault(number, []).append(rank)
    stands = [same[0] for same in of_sort.values()]
    like: dict[int, str] = {}  # sort of communicator → the first one
    for name, number in on.items():
        like.setdefault(number, name)
    role = {name: k for k, name in enumerate(met.roles)}
    graph = on_ranks(
        program, [ranks[r] for r in stands], lambda name, k: like[on[met.names[stands[k]][role[name]]]]
    )
    members = {ranks[same[0]]: tuple(ranks[r] for r in same) for same in of_sort.values()}
    differs = {ranks[r]: _difference(facts[0], facts[r]) or met.difference(sort, on, r) for r in stands[1:]}
    simulated = {name for names in members.values() for name in names}
    unused = tuple(d.name for d in machine.devices if d.name not in simulated and d.kind != "switch")
    model = machine.collectives
    folded = Machine(
        tuple(device for device in machine.devices if device.name in members),
        hosts=tuple(host for host in machine.hosts if host.serves[0] in members),
        collectives=None if model is None else folded_model(model, machine, met.members),
        folding=Folding(members, differs, unused),
    )
    return graph, folded


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Return a number for each value, equal ones the same, in the order of first use."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(value, len(seen)) for value in values]


def _difference(one: Facts, other: Facts) -> str:
    pairs = (
        (what, one.get(what, "the default"), other.get(what, "the default")) for what in {**one, **other}
    )
    return "; ".join(f"{what} is {theirs}, not {mine}" for what, mine, theirs in pairs if mine != theirs)


class _Met:
    """Whom ranks meet.

    Attributes
    ----------
    roles : list of str
        What the program calls its communicators.
    names : list of list of str
        Of each rank: the communicators that it has in these roles.
    members : dict of str to tuple of int
        Communicator → its devices, in machine order.
    """

    def __init__(
        self, program: Graph, ranks: Sequence[str], communicator: Callable[[str, int], str], machine: Machine
    ) -> None:
        self._ranks, self._machine = ranks, machine
        device = [machine.device_index(name) for name in ranks]
        calls = _calls(program, [machine.devices[d] for d in device], machine)
        self.roles = list(calls)
        self.names = [[communicator(role, r) for role in self.roles] for r in range(len(ranks))]
        self._inside: dict[str, list[int]] = {}  # communicator → its ranks
        asked: dict[str, list[Call]] = {}
        for k, role in enumerate(self.roles):
            for r, row in enumerate(self.names):
                self._inside.setdefault(row[k], []).append(r)
            several = {row[k] for row in self.names}
            if len(several) > 1:  # otherwise it tells nobody apart
                for name in sorted(several):
                    asked.setdefault(name, []).extend(calls[role])
        self.members = {
            name: tuple(sorted({device[r] for r in inside})) for name, inside in self._inside.items()
        }
        self._take = {name: self._answers(name, asked.get(name, ())) for name in self._inside}

    def _answers(self, name: str, calls: Iterable[Call]) -> tuple[int, ...]:
        """Return what the machine says of calls on a communicator."""
        model = self._machine.collectives
        found = []
        for call in calls:
            assert model is not None
            of_all = folded_model(model, self._machine, self.members)
            one = call._replace(communicator=name)
            found.append(of_all.time_ns(one, self._machine))
            if isinstance(of_all, HoldsSms):
                found.append(of_all.sms(one, self._machine))
        return tuple(found)

    def sorts(self, sort: Sequence[int]) -> dict[str, int]:
        """Return the sort of each communicator, where those of the ranks are known."""
        facts = (
            (self._take[name], frozenset(sort[r] for r in inside)) for name, inside in self._inside.items()
        )
        return dict(zip(self._inside, _numbered(facts), strict=True))

    def difference(self, sort: Sequence[int], on: Mapping[str, int], rank: int) -> str:
        """Return what a rank meets that the first one does not."""
        for mine, firsts in zip(self.names[rank], self.names[0], strict=True):
            if on[mine] == on[firsts]:
                continue
            if self._take[mine] != self._take[firsts]:
                return f"collectives on {mine!r} take other times than on {firsts!r}"
            there = {sort[r] for r in self._inside[firsts]}
            other = next(
                (r for r in self._inside[mine] if sort[r] not in there and sort[r] != sort[rank]), None
            )
            if other is not None:
                return f"meets {self._ranks[other]} on {mine!r}"
        return f"does not meet what {self._ranks[0]} meets"


def _calls(program: Graph, devices: Sequence[Device], machine: Machine) -> dict[str, list[Call]]:
    """Return, for each communicator of a program, the different calls that the machine is asked about."""
    alone = Machine((devices[0],), collectives=machine.collectives)
    c = collectives_of(program, alone, np.zeros(len(program), np.int64))
    if c is None:
        return {}
    kinds = {device.kind: device for device in devices}
    wanted = {op for device in kinds.values() for op in modelled_ops(program, machine, device).tolist()}
    found: dict[str, dict[Call, None]] = {name: {} for name in c.names}
    for entry, op in enumerate(c.op.tolist()):
        if op in wanted:
            call = call_of(program, c, entry)
            found[call.communicator][call] = None
    return {name: list(calls) for name, calls in found.items()}
