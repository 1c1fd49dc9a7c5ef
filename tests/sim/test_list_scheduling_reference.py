"""List scheduling over links, written a second time in a page, against both engines on drawn graphs."""

from __future__ import annotations

import random

import pytest

from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Link, Machine, simulate


def drawn(seed: int) -> tuple[Graph, Machine]:
    """Return ops on up to three CPUs of one or two workers, with links that carry one message at a time."""
    draw, b = random.Random(seed), GraphBuilder("drawn")
    devices = tuple(Device(f"cpu{d}", "cpu", workers=draw.randint(1, 2)) for d in range(draw.randint(1, 3)))
    for k in range(draw.randint(1, 14)):
        inputs = draw.sample(range(k), draw.randint(0, min(k, 3)))
        b.op(
            f"op{k}",
            inputs=[f"op{i}" for i in inputs],
            outputs=draw.choice((0, 3, 10, 25)),
            duration_ns=draw.randint(1, 9),
            device=draw.choice(devices).name,
        )
    rate, latency = draw.choice((1, 2)) * 10**9, draw.randint(0, 3)
    pairs = [(a.name, c.name) for a in devices for c in devices if a is not c]
    links = tuple(
        Link(f"{a}->{c}", a, c, bandwidth_bytes_per_s=rate, latency_ns=latency, sharing="serial")
        for a, c in pairs
    )
    return b.build(), Machine(devices, links, network=make_network if links else None)


def by_hand(graph: Graph, machine: Machine) -> dict[str, tuple[int, int]]:
    """Return start and end of each op: first come, first served, on workers and on links alike.

    What ends at an instant is settled in the order in which it began; then workers take what was ready first.
    """
    names, pins = graph.op_names, [graph.pins[code] for code in graph.pin_code]
    reads = [sorted({int(graph.tensor_producer[t]) for t in graph.inputs.row(k)}) for k in range(len(names))]
    nbytes = [int(graph.tensor_nbytes[graph.outputs.row(k)[0]]) for k in range(len(names))]
    rate = {(link.source, link.destination): link for link in machine.links}
    missing = [len(of) for of in reads]
    ready: dict[str, list[int]] = {device.name: [] for device in machine.devices}
    free = {device.name: device.workers for device in machine.devices}
    queue: dict[tuple[str, str], list[int]] = {pair: [] for pair in rate}
    busy: dict[tuple[str, str], bool] = dict.fromkeys(rate, False)
    going: list[tuple[int, int, str, int, tuple[str, str]]] = []  # end, number of its start, what
    spans: dict[str, tuple[int, int]] = {}
    begun = now = 0

    def arrive(k: int, at: str) -> None:
        for reader in range(len(names)):
            if pins[reader] == at and k in reads[reader]:
                missing[reader] -= 1
                if not missing[reader]:
                    ready[at].append(reader)

    def send() -> None:
        nonlocal begun
        for pair, waiting in queue.items():
            if waiting and not busy[pair]:
                link, k = rate[pair], waiting.pop(0)
                assert link.bandwidth_bytes_per_s is not None
                lasts = link.latency_ns + -(-nbytes[k] * 10**9 // link.bandwidth_bytes_per_s)
                busy[pair] = True
                going.append((now + lasts, begun, "move", k, pair))
                begun += 1

    for k, pin in enumerate(pins):
        if not missing[k]:
            ready[pin].append(k)
    while True:
        for device in machine.devices:
            while free[device.name] and ready[device.name]:
                k = ready[device.name].pop(0)
                free[device.name] -= 1
                spans[names[k]] = now, now + int(graph.duration_ns[k])
                going.append((spans[names[k]][1], begun, "op", k, ("", "")))
                begun += 1
        if not going:
            return spans
        now = min(end for end, *_ in going)
        ended = sorted(each for each in going if each[0] == now)
        going = [each for each in going if each[0] > now]
        for _, _, what, k, pair in ended:
            if what == "move":
                busy[pair] = False
                arrive(k, pair[1])
                continue
            free[pins[k]] += 1
            arrive(k, pins[k])
            away = dict.fromkeys(pins[r] for r in range(len(names)) if k in reads[r] and pins[r] != pins[k])
            for target in away:
                queue[pins[k], target].append(k)
        send()


@pytest.mark.parametrize("engine", ["simpy", "kernel"])
@pytest.mark.parametrize("seed", range(60))
def test_list_scheduling_is_what_a_page_of_its_own_says(seed: int, engine: str) -> None:
    graph, machine = drawn(seed)
    trace = simulate(graph, machine, ReadyQueue(), engine=engine)
    found = {
        graph.op_names[op]: (start, end)
        for op, start, end in zip(
            *(trace.tasks[key].tolist() for key in ("op", "start_ns", "end_ns")), strict=True
        )
    }
    assert found == by_hand(graph, machine)
