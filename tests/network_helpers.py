"""A machine of links, and transfers that are ready at given times: what the network tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from runs import checked

from devices import fair_sharing as maxmin
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Link, Machine, Trace
from sim.machine.device import Details

GB = 10**9
"""Bytes a second that are one byte a nanosecond."""


class Transfer(NamedTuple):
    """Bytes to be moved, from when on."""

    ready_ns: int
    source: str
    destination: str
    nbytes: int


def machine_of(links: list[Link], **details: dict[str, Any]) -> Machine:
    """Return a machine of many-worker CPUs at the ends of the links; `details` by device."""
    names = sorted({end for link in links for end in (link.source, link.destination)})
    devices = tuple(
        Device(name, "cpu", workers=64, details=Details(**details.get(name, {}))) for name in names
    )
    return Machine(devices, tuple(links), network=make_network)


def run(machine: Machine, transfers: list[Transfer]) -> Trace:
    """Run a graph in which an op of length `ready_ns` produces what a transfer carries."""
    b = GraphBuilder("transfers")
    for i, move in enumerate(transfers):
        b.op(f"make{i}", outputs=move.nbytes, duration_ns=move.ready_ns, device=move.source)
        b.op(f"use{i}", inputs=[f"make{i}"], duration_ns=0, device=move.destination)
    return checked(b.build(), machine, ReadyQueue())


def moved(machine: Machine, transfers: list[Transfer]) -> list[tuple[int, int]]:
    """Return (start, end) of each transfer."""
    trace = run(machine, transfers)
    columns = trace.transfers
    producer = trace.job.graph.tensor_producer[columns["tensor"]]
    spans = {
        int(op) // 2: (int(start), int(end))
        for op, start, end in zip(producer, columns["start_ns"], columns["end_ns"], strict=True)
    }
    return [spans[i] for i in range(len(transfers))]


def arrivals(machine: Machine, transfers: list[Transfer]) -> list[int]:
    """Return when each transfer has arrived."""
    return [end for _, end in moved(machine, transfers)]


def max_min(
    routes: Sequence[Sequence[int]], capacity: Mapping[int, int], flows: Sequence[int] | None = None
) -> list[Fraction]:
    """Return the max-min fair rate of a flow on each route; of `flows` on it, by default one."""
    links = {link: maxmin.SharedLink(capacity[link]) for route in routes for link in route}
    made = []
    for i, route in enumerate(routes):
        made.append(maxmin.Route(tuple(links[link] for link in route), 1 if flows is None else flows[i]))
        for used in made[i].links:
            used.routes[i] = made[i]
            used.flows += made[i].flows
    maxmin.fill(list(links.values()), 1)
    return [Fraction(*route.share) for route in made]
