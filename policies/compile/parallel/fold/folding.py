"""Folding: of ranks that do the same at the same time, one is made.

::

    shard 0   gpu0  gpu1  gpu2  gpu3          gpu5 is slower. gpu4, 6 and 7 meet it on shard 1, and gpu1 on
    shard 1   gpu4  gpu5* gpu6  gpu7          replicate 1, so that four sorts are left, a rank of each:
    replicate k: every fourth                     gpu0 (2, 3)   gpu1   gpu4 (6, 7)   gpu5

Ranks meet on communicators and nowhere else. So two of them do the same at the same time if they are alike
themselves (programs, too: a pipeline has as many sorts as stages) and meet alike: collectives take the same
times, among the same sorts of rank, and what is sent comes from, and goes to, the same sorts. That is found
as the states of an automaton are merged: ranks that are alike themselves are one sort until what they meet
tells them apart (Moore, "Gedanken-experiments on sequential machines", Automata Studies, 1956). What a
collective takes is what the machine says for all its ranks.

A rank of a ring that folds into one sends to itself: which of its sends and recvs belong together says the
attribute ``pair``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from policies.compile.parallel.fold.meets import Meets
from policies.compile.parallel.grid.ranked import Ranked
from policies.compile.parallel.ranks import add_ranks
from sim import Graph, GraphBuilder, Machine
from sim.machine.communicators import CarriedCollectives
from sim.machine.folding import Folding

__all__ = ["fold", "why_not"]

Facts = Mapping[str, Hashable]
"""What is known of a rank by itself, by the word that messages have for it."""


def why_not(ranked: Ranked, devices: Sequence[str], machine: Machine) -> list[str]:
    """Return what keeps ranks from being folded, in words.

    Parameters
    ----------
    ranked : Ranked
    devices : sequence of str
        Of each rank.
    machine : Machine
    """
    every, programs = set(devices), list({id(one): one for one in ranked.programs}.values())
    found = [
        f"op {program.op_names[op]!r} names a root, {root}"
        for program in programs
        for op, root in program.attribute("root").items()
    ][:1]
    for host in machine.hosts:
        here = [name for name in host.serves if name in every]
        if here and (len(host.serves) > 1 or host.process):
            found.append(f"host {host.name!r} is not there for {here[0]} alone")
            break
    if isinstance(machine.collectives, CarriedCollectives):
        found.append("the messages of its collectives share links, not all of which carry the same")
    costs = ((name, machine.devices[machine.device_index(name)].cost) for name in devices)
    by_name = [(name, cost) for name, cost in costs if cost is not None and cost.by_name]
    if by_name and any((program.duration_ns < 0).any() for program in programs):
        name, cost = by_name[0]
        found.append(f"the cost model of {name}, a {type(cost).__name__}, may know devices by their names")
    return found


def fold(
    ranked: Ranked, devices: Sequence[str], machine: Machine, facts: Sequence[Facts]
) -> tuple[Graph, Machine]:
    """Return the program of one rank of each sort, and the machine that has these.

    Parameters
    ----------
    ranked, devices, machine
        Ranks that `why_not` says nothing of.
    facts : sequence of mapping
        Of each rank: all that may set it apart, but what it runs and meets.

    Examples
    --------
    >>> from policies.compile.parallel.grid.rank_grid import Grid
    >>> from sim import Device, GraphBuilder
    >>> b = GraphBuilder("step")
    >>> _ = b.op("f", outputs=8), b.op("r", kind="all_reduce", inputs=["f"], attributes={"communicator": "c"})
    >>> machine = Machine(tuple(Device(f"gpu{r}") for r in range(4)))
    >>> facts = [{"factor": 1}, {"factor": 2}, {"factor": 1}, {"factor": 1}]
    >>> ranked = Ranked(Grid({"dp": 4}), [b.build()] * 4)
    >>> graph, folded = fold(ranked, machine.accelerators, machine, facts)
    >>> graph.op_names, folded.folding.report()["into"]["gpu1"]
    (['gpu0/f', 'gpu0/r', 'gpu1/f', 'gpu1/r'], {'stands_for': 1, 'differs': 'factor is 2, not 1'})
    """
    meets = Meets(ranked, devices, machine)
    sort = _numbered(zip(meets.alike, (tuple(each.items()) for each in facts), strict=True))
    while True:
        on = _sorts(meets, sort)
        finer = _numbered(
            (own, *(on[name] for name in row.values()), *_pairs(meets, rank, sort))
            for rank, (own, row) in enumerate(zip(sort, meets.names, strict=True))
        )
        if max(finer) == max(sort):
            break
        sort = finer
    of_sort: dict[int, list[int]] = {}
    for rank, number in enumerate(sort):
        of_sort.setdefault(number, []).append(rank)
    stands = {number: same[0] for number, same in of_sort.items()}
    graph = _graph(meets, ranked, devices, stands, sort, on)
    members = {devices[same[0]]: tuple(devices[r] for r in same) for same in of_sort.values()}
    differs = {
        devices[r]: _difference(facts[0], facts[r])
        or _of_programs(meets, ranked, r)
        or _of_meetings(meets, devices, sort, on, r)
        for r in list(stands.values())[1:]
    }
    simulated = {name for names in members.values() for name in names}
    folded = Machine(
        tuple(device for device in machine.devices if device.name in members),
        hosts=tuple(host for host in machine.hosts if host.serves[0] in members),
        folding=Folding(
            members,
            differs,
            tuple(d.name for d in machine.devices if d.name not in simulated and d.kind != "switch"),
            {name: len(inside) for name, inside in meets.inside.items()},
            tuple(d.name for d in machine.devices if d.name in simulated),
        ),
    )
    return graph, folded


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Return a number for each value, equal ones the same, in the order of first use."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(value, len(seen)) for value in values]


def _sorts(meets: Meets, sort: Sequence[int]) -> dict[str, int]:
    """Return the sort of each communicator, where those of the ranks are known."""
    facts = ((meets.took[name], frozenset(sort[r] for r in inside)) for name, inside in meets.inside.items())
    return dict(zip(meets.inside, _numbered(facts), strict=True))


def _pairs(meets: Meets, rank: int, sort: Sequence[int]) -> list[Hashable]:
    """Return with which sorts of rank a rank exchanges what."""
    return [(ops, pair.label, pair.took, sort[pair.other]) for ops, pair in meets.pairs[rank].items()]


def _graph(
    meets: Meets,
    ranked: Ranked,
    devices: Sequence[str],
    stands: Mapping[int, int],
    sort: Sequence[int],
    on: Mapping[str, int],
) -> Graph:
    """Return what one rank of each sort runs; its collectives say how long they take."""
    like: dict[int, str] = {}  # sort of communicator → the first one
    for name, number in on.items():
        like.setdefault(number, name)
    labels: dict[Hashable, int] = {}
    out = GraphBuilder(ranked.programs[0].name)
    for rank in stands.values():
        program = meets.of(rank)
        pair_of = {op: pair for ops, pair in meets.pairs[rank].items() for op in ops}
        duration_ns, attributes = program.graph.duration_ns.copy(), dict(program.graph.attributes)
        durations = meets.durations(rank)
        for op, own in program.own.items():
            found: dict[str, Any] = ranked.attributes({**own, "sends": {}}, rank, devices)
            del found["sends"]
            found["communicator"] = like[on[found["communicator"]]]
            if "sends" in own:
                found["nbytes"] = program.nbytes(op)
            if "peer" in own:
                pair = pair_of[op]
                found["peer"] = devices[stands[sort[pair.other]]]
                found["pair"] = labels.setdefault(pair.label, len(labels))
            if op in durations:
                duration_ns[op], sms = durations[op]
                if sms and "sms" not in found:
                    found["sms"] = sms
            attributes[op] = found
        graph = replace(program.graph, duration_ns=duration_ns, attributes=attributes)
        add_ranks(out, graph, [devices[rank]], lambda own, _: own)
    return out.build()


def _difference(one: Facts, other: Facts) -> str:
    pairs = (
        (what, one.get(what, "the default"), other.get(what, "the default")) for what in {**one, **other}
    )
    return "; ".join(f"{what} is {theirs}, not {mine}" for what, mine, theirs in pairs if mine != theirs)


def _of_programs(meets: Meets, ranked: Ranked, rank: int) -> str:
    """Return where in the grid a rank is that runs something else than the first one; empty: the same."""
    if meets.alike[rank] == meets.alike[0]:
        return ""
    first = ranked.grid.at(0)
    places = (f"{name} {at}" for name, at in ranked.grid.at(rank).items() if at != first[name])
    return f"another program, at {', '.join(places)}"


def _of_meetings(
    meets: Meets, devices: Sequence[str], sort: Sequence[int], on: Mapping[str, int], rank: int
) -> str:
    """Return what a rank meets that the first one does not."""
    for mine, firsts in zip(meets.names[rank].values(), meets.names[0].values(), strict=True):
        if on[mine] == on[firsts]:
            continue
        if meets.took[mine] != meets.took[firsts]:
            return f"collectives on {mine!r} take other times than on {firsts!r}"
        known = {sort[r] for r in meets.inside[firsts]}
        other = next((r for r in meets.inside[mine] if sort[r] not in known and sort[r] != sort[rank]), None)
        if other is not None:
            return f"meets {devices[other]} on {mine!r}"
    for here, there in zip(meets.pairs[rank].values(), meets.pairs[0].values(), strict=True):
        if here.took != there.took:
            return f"messages between it and {devices[here.other]} take another time than elsewhere"
        if sort[here.other] != sort[there.other]:
            return f"exchanges with {devices[here.other]}, which is not like {devices[there.other]}"
    return f"does not meet what {devices[0]} meets"
