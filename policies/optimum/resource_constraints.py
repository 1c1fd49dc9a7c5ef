"""What tasks cannot have at once: issuers, workers, cores, streams and links, and the order they keep."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from policies.cp_sat import Activities
from policies.optimum.tasks import Tasks
from sim import Job
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.transfers import host_groups

# ----------------------------------------------------------------------------------------------------------
# The order of transfers over a serial link, as constraints: the one that is sent first goes first.

Moved = tuple[int, int]
"""A transfer: its iteration, and its number in the flow."""


class LinkTransfer(NamedTuple):
    """A transfer in a model.

    Attributes
    ----------
    begin
        When it begins.
    ns : int
        How long it takes.
    sent : mapping of (int, int) to time
        The ends of the ops (op, iteration) that make what is moved; empty if it is there from the start.
    """

    begin: Any
    ns: int
    sent: Mapping[tuple[int, int], Any]


class LinkOrder(NamedTuple):
    """Who goes first of two transfers; `chosen` says that `one` does, None: it does in any case.

    `one_behind` and `other_behind` imply that a transfer begins no later than the other one ends.
    """

    one: Moved
    other: Moved
    chosen: Any
    one_behind: Any
    other_behind: Any


def first_come(
    times: Activities, moves: Mapping[Moved, LinkTransfer], pairs: Iterable[tuple[Moved, Moved]]
) -> list[LinkOrder]:
    """Let of each two transfers the one that is sent first go first; of one op the first read."""
    orders = []
    for one, other in pairs:
        if moves[one].sent and moves[one].sent.keys() == moves[other].sent.keys():
            orders.append(LinkOrder(one, other, None, None, _behind(times, moves, one, other, None)))
            continue
        first, second = times.choice([f"{one} first", f"{other} first"])
        other_behind = _behind(times, moves, one, other, first)
        orders.append(LinkOrder(one, other, first, _behind(times, moves, other, one, second), other_behind))
    return orders


def _behind(
    times: Activities, moves: Mapping[Moved, LinkTransfer], first: Moved, then: Moved, chosen: Any
) -> Any:
    """Let one transfer follow another, if that is `chosen`; return what implies that it follows at once."""
    end = moves[first].begin + moves[first].ns
    times.after(moves[then].begin, end, chosen)
    for (a, a_end), (b, b_end) in itertools.product(moves[first].sent.items(), moves[then].sent.items()):
        if a != b:
            times.after(b_end, a_end, chosen)
    at_once = times.literal(f"{then} behind {first}")
    times.after(end, moves[then].begin, at_once)
    if chosen is not None:
        times.implies(at_once, chosen)
    return at_once


def never_wait_on_purpose(
    times: Activities, moves: Mapping[Moved, LinkTransfer], orders: Iterable[LinkOrder]
) -> None:
    """Let each transfer begin when it is sent, or when another one over one of its links ends."""
    behind: dict[Moved, list[Any]] = {moved: [] for moved in moves}
    for order in orders:
        behind[order.other].append(order.other_behind)
        if order.one_behind is not None:
            behind[order.one].append(order.one_behind)
    for moved, others in behind.items():
        at_once = times.literal(f"{moved} at once")
        for sent in moves[moved].sent.values() or [0]:
            times.after(sent, moves[moved].begin, at_once)
        times.some([at_once, *others])


# ----------------------------------------------------------------------------------------------------------

_MOST_PAIRS: Final = 20_000
"""Transfers over one link, or tasks of one stream, taken two by two: of more their order is left out."""


def share(tasks: Tasks, memory: bool) -> list[LinkOrder]:
    """Let nothing be used twice at once; return who goes first over serial links, as far as that is known.

    `memory` says that tasks may have to wait for memory, which is left out.
    """
    job, machine = tasks.job, tasks.machine
    issuers = [issuer.group for issuer in machine.issuers()]
    for group in range(job.n_groups):
        tasks.times.limit(("issuers", group), issuers.count(group))
    used = {d for on in tasks.on for d in on}
    for d in sorted(used):
        device = machine.devices[d]
        need = tasks.cores(d)
        if need:
            tasks.times.limit(("cores", d), device.cores)
        if not device.workers:
            tasks.times.limit(("streams", d), device.streams)
            _in_order(tasks, d)
        tasks.note(device.processor is not None and not need, "ops that slow one another down", device.name)
        tasks.note(
            device.queue_depth is not None and device.queue_depth < tasks.n_ops * job.iterations,
            "launch queues that may be full",
            device.name,
        )
    tasks.note(job.record_ns is not None, "what recording an event costs the host")
    tasks.note(memory, "memory that runs short")
    on_request = bool(rendezvous_keys(job.graph).sends)
    tasks.note(on_request, "Recvs that wait for what is sent to them")
    if tasks.problem is None:
        return _links(tasks, not on_request and not memory)
    meet = any(link.sharing != "independent" for link in machine.links)
    tasks.note(meet, "transfers that meet on a link")
    return []


def _in_order(tasks: Tasks, d: int) -> None:
    """Let the tasks of a single stream start in the order in which they are issued."""
    device = tasks.machine.devices[d]
    ops = [k for k in range(tasks.n_ops) if d in tasks.on[k] and tasks.taken[0][k] is not tasks.start[0][k]]
    if device.streams > 1 or len(ops) < 2:
        return
    line = [(i, k) for i in range(tasks.job.iterations) for k in ops]
    many = len(line) * (len(line) - 1) // 2 > _MOST_PAIRS
    tasks.note(many, "that a stream keeps the order of launches", device.name)
    follows = _follows(tasks.job) if not many else []
    for (i, k), (j, m) in itertools.combinations(line, 2) if not many else ():
        if i == j and (follows[k] >> m & 1 or follows[m] >> k & 1):
            continue  # which edges say
        first, second = tasks.times.choice([f"{k} {i} before {m} {j}", f"{m} {j} before {k} {i}"])
        for (a, p), (b, q), before in (((i, k), (j, m), first), ((j, m), (i, k), second)):
            given = (before, tasks.on[p][d], tasks.on[q][d])
            ns = tasks.duration[a][p][d] + device.gap_ns
            issued = tasks.taken[a][p] + tasks.cost[p][d]
            tasks.times.after(tasks.taken[b][q] + tasks.cost[q][d], issued, *given)
            tasks.times.after(tasks.start[b][q], tasks.start[a][p] + ns, *given)


def _links(tasks: Tasks, known: bool) -> list[LinkOrder]:
    """Let serial links carry one transfer at a time; where it is `known` when, in the order of sending."""
    flow, links = tasks.flow, tasks.machine.links
    if not len(flow.tensor):
        return []
    routes, way = tasks.machine.distinct_routes(flow.source, flow.destination, flow.tensor)
    over: dict[int, list[Moved]] = {}
    for t, which in enumerate(way.tolist()):
        for link in dict.fromkeys(tasks.machine.channels[link] for link in routes[which][2]):
            tasks.note(
                links[link].sharing in ("shared", "fifo"),
                "transfers that share the bandwidth of links",
                links[link].name,
            )
            if links[link].sharing != "serial" or t in tasks.unsure:
                continue
            for i in range(tasks.job.iterations):
                tasks.times.occupy(("link", link), tasks.start[i][tasks.n_ops + t], tasks.travels[t])
                over.setdefault(link, []).append((i, t))
    hosted = bool((host_groups(tasks.job, flow.tensor, flow.source, flow.destination) >= 0).any())
    engines = any(device.details.copy_engines is not None for device in tasks.machine.devices)
    tasks.note(hosted, "hosts that copy pageable memory")
    tasks.note(engines, "copy engines")
    for link in over:
        tasks.times.limit(("link", link), 1)
    many = sum(len(moved) * (len(moved) - 1) // 2 for moved in over.values())
    known = known and not hosted and many <= _MOST_PAIRS
    tasks.note(many > 0 and not known, "the order of transfers over a link")
    if not known:
        return []
    pairs = {pair for moved in over.values() for pair in itertools.combinations(moved, 2)}
    moves = {moved: _move(tasks, *moved) for moved in dict.fromkeys(itertools.chain(*sorted(pairs)))}
    orders = first_come(tasks.times, moves, sorted(pairs))
    if not engines and not tasks.job.carried.any():
        never_wait_on_purpose(tasks.times, moves, orders)
    return orders


def _move(tasks: Tasks, i: int, t: int) -> LinkTransfer:
    """Return a transfer, with the op that makes what it carries: none where that is there."""
    node = tasks.n_ops + t
    sent = [(p, i - d) for p, d in tasks.senders.get(node, []) if i >= d]
    return LinkTransfer(tasks.start[i][node], tasks.travels[t], {(p, j): tasks.end[j][p] for p, j in sent})


def _follows(job: Job) -> list[int]:
    """Return of each op which ones follow it within an iteration, as bits."""
    edges = job.graph.edges.within_iteration()
    after: list[list[int]] = [[] for _ in range(len(job.graph))]
    for p, c in zip(edges.producer.tolist(), edges.consumer.tolist(), strict=True):
        after[p].append(c)
    found = [0] * len(after)
    for op in reversed(job.graph.topological_order.tolist()):
        for consumer in after[op]:
            found[op] |= found[consumer] | 1 << consumer
    return found
