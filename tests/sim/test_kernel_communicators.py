"""Communicators on the kernel: every column is the one of the engine on SimPy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from communicator_helpers import draw_collectives, draw_ranks
from examples import examples
from hypothesis import event, given
from hypothesis import strategies as st
from kernel_helpers import KERNELS, same

from devices.cores import CorePool
from devices.memory.registry import MemorySpec
from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from devices.sm_processor import LeftoverSMs
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import CriticalPath, ReadyQueue
from policies.streams import Recorded
from sim import Device, GraphBuilder, Job, Link, Machine, Policy, simulate
from sim.base.errors import StuckError
from sim.engine.engine import Engine
from sim.job.build_job import make_job
from sim.job.noise import Noise
from sim.kernel.run import run
from sim.machine.device import Details
from sim.trace import Trace

POLICIES = [
    *(lambda word=word: InOrder(synchronisation=word) for word in ("completion", "issue")),
    *(lambda word=word: ReadyQueue("fifo", word) for word in ("completion", "issue")),
    lambda: InOrder(in_flight=2),
    lambda: OutOfOrder(4, "issue"),
    lambda: CriticalPath("issue"),
]


def draw_machine(rng: np.random.Generator, ranks: int) -> Machine:
    """Return ranks with SMs or cores to share, links between them or none."""
    devices = []
    for device in draw_ranks(rng, ranks).devices:
        if device.workers and rng.random() < 0.2:
            device = replace(device, processor=CorePool, cores=2)
        elif not device.workers and rng.random() < 0.3:
            device = replace(device, processor=LeftoverSMs, details=Details(sms=6))
        devices.append(device)
    links = []
    if ranks > 1 and rng.random() < 0.5:
        for a in range(ranks):
            for b in {(a + 1) % ranks, (a - 1) % ranks} - {a}:
                sharing = "serial" if rng.random() < 0.5 else "shared"
                links.append(Link(f"d{a}->d{b}", f"d{a}", f"d{b}", int(rng.integers(0, 9)), 10**10, sharing))
    return Machine(tuple(devices), tuple(links), network=make_network if links else None)


def on_simpy(job: Job, policy: Policy, **more: object) -> Trace | None:
    with suppress(StuckError):
        return Engine(job, policy, **more).run()  # type: ignore[arg-type]
    return None


@given(st.integers(0, 10**6))
@examples(200)
def test_the_kernel_does_what_simpy_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, iterations = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    graph = draw_collectives(rng, ranks, int(rng.integers(1, 14)), iterations > 1, rng.random() < 0.4)
    policy = POLICIES[int(rng.integers(0, len(POLICIES)))]
    noise = Noise(sigma=0.4) if rng.random() < 0.3 else None
    job = make_job(graph, draw_machine(rng, ranks), streams=Recorded(), iterations=iterations, noise=noise)
    counted = MemorySpec("counted", options={"asynchronous": True})
    specs = {device.name: counted for device in job.machine.devices}
    memory = tensor_memory(specs, lifetime=["execution", "issue"][seed % 2]) if seed % 3 == 0 else None
    expected = on_simpy(job, policy(), memory=memory)
    for pure in KERNELS:
        found = run(job, policy(), memory=memory, pure=pure)
        if isinstance(found, str) and "wait for cores" in found:
            event("cores")
            continue
        if expected is None:
            event("stuck")
            assert found == "nothing can happen any more and tasks remain"
            continue
        event("ran")
        assert not isinstance(found, str), found
        found.check()
        same(expected.tasks, found.tasks)
        same(expected.transfers, found.transfers)
        if memory is not None:
            assert expected.memory is not None
            assert found.memory is not None
            same(expected.memory, found.memory)


def hanging() -> tuple[GraphBuilder, Machine]:
    b = GraphBuilder("deadlock")
    for gpu, order in (("gpu0", "AB"), ("gpu1", "BA")):
        for name in order:
            attributes = {"communicator": name}
            b.op(f"{gpu}/{name}", kind="all_reduce", duration_ns=10, device=gpu, attributes=attributes)
    return b, Machine((Device("gpu0"), Device("gpu1")))


@pytest.mark.parametrize("engine", ["auto", "kernel", "simpy"])
def test_every_engine_tells_who_waits_for_whom(engine: str) -> None:
    b, machine = hanging()
    with pytest.raises(StuckError, match="gpu0/A waits for gpu1 on communicator 'A'"):
        simulate(b.build(), machine, InOrder(synchronisation="issue"), engine=engine)


@pytest.mark.parametrize("engine", ["auto", "kernel", "simpy"])
def test_every_engine_tells_of_other_orders(engine: str) -> None:
    b = GraphBuilder("mismatch")
    for gpu, order in (("gpu0", ("all_reduce", "barrier")), ("gpu1", ("barrier", "all_reduce"))):
        for kind in order:
            b.op(f"{gpu}/{kind}", kind=kind, duration_ns=10, device=gpu, attributes={"communicator": "c"})
    machine = Machine((Device("gpu0", streams=2), Device("gpu1", streams=2)))
    message = "gpu0 issues all_reduce 'gpu0/all_reduce', and gpu1 issues barrier 'gpu1/barrier'"
    with pytest.raises(StuckError, match=message):
        simulate(b.build(), machine, InOrder(synchronisation="issue"), engine=engine)


def test_cores_that_collectives_wait_for_are_left_to_simpy() -> None:
    b = GraphBuilder("cores")
    for cpu in ("cpu0", "cpu1"):
        b.op(f"{cpu}/a", kind="barrier", duration_ns=10, device=cpu, attributes={"communicator": "c"})
    machine = Machine(
        tuple(Device(f"cpu{k}", "cpu", workers=2, cores=1, processor=CorePool) for k in range(2))
    )
    trace = simulate(b.build(), machine, InOrder())
    assert trace.engine == "simpy: collectives wait for cores of cpu0"
    assert trace.makespan_ns == 10
