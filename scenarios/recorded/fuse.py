"""What if several kernels were one: ``fuse: [[gelu, dropout], elementwise]``.

A sequence of words (`scenarios.recorded.select`) is looked for on each stream, from the left; one
word stands for any number of kernels in a row::

    [a, b]      a b c a b    ──►    (ab) c (ab)
    [a]         a a b a      ──►    (aa) b a

The kernel in their place takes what they took together, without the gaps between them, or what it is given.
Copies between host and device, and collectives, are no such kernels. It waits for all that they waited for,
and is launched where the last of them was, when all that it reads is there. The calls that launched the
others go, and the host's work between them stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np

from policies.rewrite.records import Edge, OpEntry
from scenarios.recorded import select as roles
from scenarios.recorded.program import RecordedProgram
from scenarios.recorded.select import Names
from sim.base.arrays import BoolArray
from sim.base.errors import InputError, located
from sim.graph.graph import Graph


def fused(
    graph: Graph, words: Sequence[str], *, duration_ns: int | None = None, host_work: bool = True
) -> Graph:
    """Return a graph in which kernels that stand one behind another on a stream are one.

    Parameters
    ----------
    graph : Graph
    words : sequence of str
        What to look for.
    duration_ns : int, optional
        What the kernel takes; by default what its parts take.
    host_work : bool
        Whether the host's work before the calls that go stays.

    Raises
    ------
    InputError
        A word is about no op, no such kernels stand one behind another, or none of them can be one.
    """
    kernels = roles.tasks(graph) & ~roles.collectives(graph) & ~roles.transfers(graph)
    names, place = Names(graph), {name: i for i, name in enumerate(graph.op_names)}
    fits = []
    for n, word in enumerate(words):
        with located(n):
            fits.append(names.find(word) & kernels)
    program = RecordedProgram(graph)
    groups: list[Sequence[int]] = []
    apart: _Told | None = None
    successors = graph.successors.lists()
    for lane in program.lanes.values():
        tasks = [place[name] for name in lane if name in program.tasks]
        for found in _found([[bool(fit[op]) for fit in fits] for op in tasks]):
            members = [tasks[i] for i in found]
            between = _between(graph, successors, members)
            if between is None:
                groups.append(members)
            else:
                apart = apart or (members, between)
    groups, crossed = _without_cycle(graph, groups)
    if not groups:
        told = apart or crossed
        if told is None:
            what = f"no two of {words[0]!r}" if len(words) == 1 else f"no {', '.join(map(repr, words))}"
            raise InputError(f"{what} stand one behind another on a stream")
        one, then, other = (graph.op_names[op] for op in (told[0][0], told[0][-1], told[1]))
        raise InputError(f"{one!r} and {then!r} cannot be one kernel: {other!r} comes between them")
    through: dict[str, list[Edge]] = {}
    for group in groups:
        through |= _fuse(program, [graph.op_names[op] for op in group], duration_ns)
    calls = program.without_launches(through, host_work=host_work)
    program.contract(through | calls, through)
    return program.graph()


def _fuse(program: RecordedProgram, members: Sequence[str], duration_ns: int | None) -> dict[str, list[Edge]]:
    """Let the last kernel do what all did; return the others, with what takes their place."""
    ops = program.records.ops
    parts: list[OpEntry] = [ops[name] for name in members]
    first, last = parts[0], parts[-1]
    idle = [name for part in parts[1:] if (name := program.delay_of(part)) is not None]
    before = program.delay_of(first)
    if before is not None:  # until its launch, which is now that of the last
        mine = program.launch_of.get(before)
        ops[before].after = [
            (program.launch_of[last.name], 0) if edge[0] == mine and last.name in program.launch_of else edge
            for edge in ops[before].after
        ]
    calls = {program.launch_of.get(name) for name in members[:-1]} - {program.launch_of.get(last.name)}
    last.after = list(dict.fromkeys(edge for part in parts for edge in part.after if edge[0] not in calls))
    outside = [edge for part in parts for edge in part.inputs if program.owner(edge[0]) not in members]
    last.inputs = list(dict.fromkeys(outside))
    last.duration_ns = sum(part.duration_ns or 0 for part in parts) if duration_ns is None else duration_ns
    for fact in ("flops", "bytes_read", "bytes_written"):
        setattr(last, fact, sum(getattr(part, fact) for part in parts))
    last.kind = max(parts, key=lambda part: part.duration_ns or 0).kind if duration_ns is None else last.kind
    facts = {key: value for key, value in last.attributes.items() if key in ("stream", "operator")}
    last.attributes = {**facts, "fused": list(members)}
    return {name: [(last.name, 0)] for name in (*members[:-1], *idle)}


def _found(fits: Sequence[Sequence[bool]]) -> Iterator[list[int]]:
    """Yield numbers of kernels that stand one behind another and fit the words."""
    at, n = 0, len(fits[0]) if fits else 0
    while at < len(fits):
        end = at
        if n == 1:
            while end < len(fits) and fits[end][0]:
                end += 1
        elif at + n <= len(fits) and all(fits[at + k][k] for k in range(n)):
            end = at + n
        if end - at > 1:
            yield list(range(at, end))
        at = max(end, at + 1)


_Told = tuple[Sequence[int], int]
"""Kernels that cannot be one, and an op that comes between them."""


def _between(graph: Graph, successors: Sequence[Sequence[int]], members: Sequence[int]) -> int | None:
    """Return an op that has to come after one of some kernels and before a later one; None: there is none."""
    last, own = members[-1], set(members)
    first: dict[int, int] = {}  # of each op that is reached: the one by which the way leaves the kernels
    stack = [*members[:-1]]
    while stack:
        came = stack.pop()
        for op in successors[came]:
            if op in own or op in first or op > last:
                continue
            follows = successors[op]
            if graph.kind(op) == "delay" and own.issuperset(follows):
                continue
            first[op] = first.get(came, op)
            if not own.isdisjoint(follows):
                return first[op]
            stack.append(op)
    return None


def _without_cycle(graph: Graph, groups: Sequence[Sequence[int]]) -> tuple[list[Sequence[int]], _Told | None]:
    """Return groups of kernels that can be one all together, and one that cannot.

    ::

        a1 ──► b2      a1 a2 as one and b1 b2 as one would wait for each other
        b1 ──► a2
    """
    kept, told = list(groups), None
    edges = graph.edges.within_iteration()
    while kept:
        as_one = np.arange(len(graph))
        for members in kept:
            as_one[members] = members[-1]
        producer, consumer = as_one[edges.producer], as_one[edges.consumer]
        apart = producer != consumer
        pairs = zip(producer[apart].tolist(), consumer[apart].tolist(), strict=True)
        before: dict[int, list[int]] = {}
        for one, then in pairs:
            before.setdefault(then, []).append(one)
        try:
            TopologicalSorter(before).prepare()
        except CycleError as error:
            cycle = error.args[1]
            wrong = next(members for members in reversed(kept) if members[-1] in cycle)
            told = wrong, next(op for op in cycle if op != wrong[-1])
            kept.remove(wrong)
        else:
            break
    return kept, told


# ----------------------------------------------------------------------------------------------------------
# What if some ops were not there: ``remove: [DtoH, aten::dropout]``.


def removed(graph: Graph, words: Sequence[str], *, host_work: bool = True) -> Graph:
    """Return a graph without ops (`scenarios.recorded.select`); the order of all others stays.

    A kernel goes with its launch call, and with idle time before it that nothing explains; a copy that the
    host waited for goes with the wait.

    Parameters
    ----------
    graph : Graph
    words : sequence of str
    host_work : bool
        Whether the host's work before a call stays: a recording does not tell how much of it the call needed.

    Raises
    ------
    InputError
        A word is about no op, all are gone, or a collective is left that a rank does not take part in.
    """
    which = Names(graph).find_all(words)
    if which.all():
        raise InputError("nothing is left to run")
    _refuse_alone(graph, which)
    program = RecordedProgram(graph)
    program.drop((graph.op_names[op] for op in np.flatnonzero(which).tolist()), host_work=host_work)
    return program.graph()


def _refuse_alone(graph: Graph, which: BoolArray) -> None:
    """Refuse to take a collective from some ranks only: the others would wait for it, or meet another one."""
    left: dict[str, dict[str, int]] = {}
    for op in graph.in_communicators:
        of = left.setdefault(str(graph.attributes[op]["communicator"]), {})
        pin = graph.pins[int(graph.pin_code[op])]
        of[pin] = of.get(pin, 0) + (not which[op])
    for name, counts in left.items():
        most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
        if counts[most] != counts[least]:
            raise InputError(
                f"of communicator {name!r} {least} would have {counts[least]} collectives left and {most} "
                f"{counts[most]}; remove them on all ranks"
            )
