"""What a task costs the kernel where tensors travel over links that they share, in raw SimPy timeouts.

Tasks are ops and transfers. The time is that of the loop; graphs and columns are made before. Cases::

    shared link       bursts of 100 transfers of odd sizes over one link; hardly any ops
    bus of 8          layers 100 wide on 8 hosts, which all send over one link
    star of 8         layers 100 wide; each host has a link to the switch and one from it
    star of 64        the same with 64 hosts and 1,000 wide
    serial star of 8  star of 8 with links for one transfer at a time
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
from bench_engine import layered
from bench_kernel import laid_out
from measure import cost, needs_compiler, seconds

from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Link, Machine
from sim.base.compiled import load
from sim.job.build_job import make_job
from sim.job.transfers import make_flow
from sim.kernel.columns import routes_of
from sim.kernel.run import to_the_end

BANDWIDTH = 25 * 10**9
"""Of every link, in bytes/s: 25 bytes a ns."""


def star(hosts: int, sharing: str = "shared") -> Machine:
    """Return hosts around a switch, with a link each way."""
    names = [f"d{i}" for i in range(hosts)]
    links = [
        Link(f"{a}>{b}", a, b, 0, BANDWIDTH, sharing)
        for n in names
        for a, b in ((n, "switch"), ("switch", n))
    ]
    devices = [Device(name, "cpu", workers=1) for name in names]
    return Machine((*devices, Device("switch")), tuple(links), network=make_network)


def bus(hosts: int) -> Machine:
    """Return hosts that all send over one link."""
    names = [f"d{i}" for i in range(hosts)]
    links = [Link("bus", "in", "out", 0, BANDWIDTH, "shared")]
    for name in names:
        links += [
            Link(f"{name}>", name, "in", sharing="shared"),
            Link(f">{name}", "out", name, sharing="shared"),
        ]
    devices = [Device(name, "cpu", workers=1) for name in names]
    return Machine((*devices, Device("in"), Device("out")), tuple(links), network=make_network)


def bursts(n: int, largest: int, seed: int = 0) -> Graph:
    """Return a graph of n transfers: every 1,000 ns an op makes 100 tensors, which are read elsewhere."""
    draw = random.Random(seed)
    builder = GraphBuilder("bursts")
    for k in range(n // 100):
        sizes = [draw.randint(1, largest) for _ in range(100)]
        builder.op(f"make{k}", outputs=sizes, duration_ns=1000, device="d0")
        builder.op(f"read{k}", inputs=[f"make{k}:{i}" for i in range(100)], duration_ns=1, device="d1")
    return builder.build()


class Case(NamedTuple):
    """What is run, and how many raw timeouts a task or transfer was measured to cost."""

    machine: Machine
    graph: Any
    timeouts: float


CASES = {
    "shared link": Case(star(2), lambda n: bursts(n, 400), 0.29),
    "bus of 8": Case(bus(8), lambda n: layered(n, largest=100), 0.25),
    "star of 8": Case(star(8), lambda n: layered(n, largest=300), 0.53),
    "star of 64": Case(star(64), lambda n: layered(n, 1000, devices=64, largest=300), 1.13),
    "serial star of 8": Case(star(8, "serial"), lambda n: layered(n, largest=300), 0.16),
}
MARGIN = 1.5


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_a_task_costs_hardly_more_than_it_did(name: str) -> None:
    machine, graph, timeouts = CASES[name]
    job = make_job(graph(50_000), machine)
    flow = make_flow(job)
    routes: Any = routes_of(job, flow)
    kernel: Any = None

    def took_s() -> float:
        nonlocal kernel
        kernel = laid_out(job, ReadyQueue())
        kernel.net = load("network").Net(routes, flow.n_nodes - flow.n_ops)
        return seconds(lambda: to_the_end(kernel))

    found = cost(took_s, flow.n_nodes, rounds=5)
    start, end = (np.asarray(column)[flow.n_ops : flow.n_nodes] for column in (kernel.start, kernel.end))
    flows = float((end - start).sum()) / max(1, kernel.now)
    print(f"| {name} | {flows:.0f} | {1 / found.us:.2f} M tasks/s | {found.timeouts:.2f} raw timeouts |")
    assert kernel.net.status == 0
    assert found.timeouts <= MARGIN * timeouts
