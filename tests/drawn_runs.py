"""Random (graph, machine, policy) triples, each from one seed, for the tests that read traces."""

from __future__ import annotations

import numpy as np

from devices.network import make_network
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Host, Job, Link, Machine, Policy, Trace, simulate
from sim.job.job import Placement

KINDS = ("matmul", "reshape", "copy", "add")


def draw_graph(rng: np.random.Generator, n: int, distances: bool) -> Graph:
    """Return a graph of `n` ops with data and control edges, inputs and a parameter."""
    b = GraphBuilder(f"drawn {n}")
    b.input("x", int(rng.integers(0, 2000)), device="d0" if rng.random() < 0.5 else None)
    b.parameter("w", 500)
    for i in range(n):
        before = [int(j) for j in rng.integers(0, i, size=min(i, int(rng.integers(0, 4))))] if i else []
        inputs: list[str | tuple[str, int]] = [f"op{j}" for j in dict.fromkeys(before)]
        if i < 3:
            inputs.append("x")
        if rng.random() < 0.2:
            inputs.append("w")
        if distances and i and rng.random() < 0.2:
            inputs.append((f"op{int(rng.integers(0, n))}", int(rng.integers(1, 3))))
        kind = KINDS[int(rng.integers(0, len(KINDS)))]
        b.op(
            f"op{i}",
            kind=kind,
            inputs=inputs,
            after=[f"op{int(rng.integers(0, i))}"] if i and rng.random() < 0.1 else (),
            outputs=int(rng.integers(0, 3000)),
            duration_ns=int(rng.integers(0, 60)) * (kind != "reshape"),
        )
    return b.build()


def draw_machine(rng: np.random.Generator) -> Machine:
    """Return one to three devices with overheads or without, links or none, one host or several."""
    n = int(rng.integers(1, 4))
    overheads = rng.random() < 0.6
    devices = []
    for d in range(n):
        issue = {"issue_ns": int(rng.integers(0, 12)), "issue_ns_by_kind": {"copy": int(rng.integers(0, 5))}}
        if rng.random() < 0.35:
            devices.append(
                Device(f"d{d}", "cpu", workers=int(rng.integers(1, 4)), **(issue if overheads else {}))
            )
            continue
        launch = {
            "launch_latency_ns": int(rng.integers(0, 9)),
            "gap_ns": int(rng.integers(0, 4)),
            "event_ns": int(rng.integers(0, 6)),
            "queue_depth": int(rng.integers(1, 6)) if rng.random() < 0.3 else None,
            **issue,
        }
        devices.append(
            Device(f"d{d}", "gpu", streams=int(rng.integers(1, 4)), **(launch if overheads else {}))
        )
    links = []
    if n > 1 and rng.random() < 0.8:
        for a in range(n):
            for b in {(a + 1) % n, (a - 1) % n}:
                sharing = "serial" if rng.random() < 0.5 else "shared"
                latency = int(rng.integers(0, 20))
                links.append(
                    Link(f"d{a}->d{b}", f"d{a}", f"d{b}", latency, int(rng.integers(1, 90)) * 10**9, sharing)
                )
    pools = [device.name for device in devices if device.workers]
    launched = [device.name for device in devices if not device.workers]
    hosts = ()
    if launched and rng.random() < 0.5:  # one host for all; sometimes a CPU's workers are its threads
        pool = pools[:1] if rng.random() < 0.5 else []
        hosts = (Host("host", (*pool, *launched), int(rng.integers(1, 3))),)
    return Machine(tuple(devices), tuple(links), hosts, make_network if links else None)


def draw_policy(rng: np.random.Generator, ordered: bool = True) -> Policy:
    """Return a policy of either synchronisation; `ordered`: perhaps one that follows a program."""
    synchronisation = "issue" if rng.random() < 0.5 else "completion"
    which = int(rng.integers(0 if ordered else 2, 4))
    if which == 0:
        return InOrder(synchronisation=synchronisation)
    if which == 1:
        return OutOfOrder(window=int(rng.integers(1, 6)), synchronisation=synchronisation)
    return ReadyQueue("fifo" if which == 2 else "lifo", synchronisation)


class DrawnPlacement(Placement):
    """Puts every op on a device drawn from the job's seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def place(self, graph: Graph, machine: Machine, cost_ns: object) -> list[int]:
        """Return one device index per op."""
        return np.random.default_rng(self.seed).integers(0, len(machine.devices), len(graph)).tolist()


class DrawnStreams:
    """Puts every op on a stream drawn from the job's seed."""

    def assign(self, job: Job) -> list[int]:
        """Return one lane per op."""
        lanes = np.array([device.lanes for device in job.machine.devices])[job.device_of]
        return (job.rng("streams").integers(0, 1 << 30, len(lanes)) % lanes).tolist()


def draw_run(seed: int, n: int | None = None) -> Trace:
    """Return the trace of a random graph on a random machine under a random policy."""
    rng = np.random.default_rng(seed)
    iterations = int(rng.integers(1, 4))
    graph = draw_graph(rng, int(rng.integers(1, 30)) if n is None else n, iterations > 1)
    return simulate(
        graph,
        draw_machine(rng),
        draw_policy(rng),
        placement=DrawnPlacement(seed),
        streams=DrawnStreams(),
        iterations=iterations,
        seed=seed,
    )
