"""Noise and what a policy may know: drawn from the seed, before time 0, for each task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import checked

from policies.issue.ready_queue import CriticalPath, ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from scenarios.ops.control_flow import while_loop
from sim import Device, Graph, GraphBuilder, Machine, simulate
from sim.base.errors import InputError, UnknownNameError
from sim.explain.bounds import bounds
from sim.job.build_job import make_job
from sim.job.noise import Noise


def wide(n: int, ns: int = 1_000_000) -> Graph:
    builder = GraphBuilder("wide")
    for i in range(n):
        builder.op(f"op{i}", duration_ns=ns, device=f"gpu{i % 2}")
    return builder.build()


MACHINE = Machine((Device("gpu0"), Device("gpu1")))


def lasted(**options: Any) -> Any:
    trace = checked(wide(2000), MACHINE, ReadyQueue(), **options)
    return (trace.tasks["end_ns"] - trace.tasks["start_ns"])[np.argsort(trace.tasks["id"])]


def test_noise_has_mean_one_and_the_spread_asked_for() -> None:
    ns = lasted(noise=Noise(sigma=0.1), seed=3)
    assert ns.mean() / 1e6 == pytest.approx(1, abs=0.01)
    assert np.log(ns / 1e6).std() == pytest.approx(0.1, rel=0.05)


def test_the_same_seed_gives_the_same_luck_to_every_policy() -> None:
    a, b = lasted(noise=Noise(sigma=0.1), seed=3), lasted(noise=Noise(sigma=0.1), seed=3)
    assert a.tolist() == b.tolist()
    lifo = simulate(wide(2000), MACHINE, ReadyQueue("lifo"), noise=Noise(sigma=0.1), seed=3)
    by_id = np.argsort(lifo.tasks["id"])
    assert (lifo.tasks["end_ns"] - lifo.tasks["start_ns"])[by_id].tolist() == a.tolist()
    assert lasted(noise=Noise(sigma=0.1), seed=4).tolist() != a.tolist()


def test_a_slow_device_and_stragglers() -> None:
    ns = lasted(noise=Noise(devices={"gpu1": 1.5}))
    assert set(ns[::2].tolist()) == {1_000_000}
    assert set(ns[1::2].tolist()) == {1_500_000}
    late = lasted(noise=Noise(straggler_probability=0.1, straggler_factor=4), seed=1) == 4_000_000
    assert late.mean() == pytest.approx(0.1, abs=0.02)


def test_every_iteration_is_drawn_anew() -> None:
    builder = GraphBuilder("step")
    builder.op("a", inputs=[("a", 1)], duration_ns=1_000_000)
    trace = checked(builder.build(), Machine((Device("g"),)), ReadyQueue(), iterations=50, noise=Noise(0.2))
    assert len(set((trace.tasks["end_ns"] - trace.tasks["start_ns"]).tolist())) == 50


def test_noise_is_not_known_and_estimates_are_wrong() -> None:
    job = make_job(wide(2000), MACHINE, noise=Noise(sigma=0.5), seed=1)
    assert set(job.known_ns.tolist()) == {1_000_000}
    guess = make_job(wide(2000), MACHINE, knowledge="estimate", estimate_error=0.3, seed=1).known_ns
    assert np.log(guess / 1e6).std() == pytest.approx(0.3, rel=0.05)


def test_list_scheduling_needs_to_know_durations() -> None:
    """One long chain among short ops: with durations known it is started first."""
    builder = GraphBuilder("chain")
    for i in range(8):
        builder.op(f"short{i}", duration_ns=10)
    builder.op("long", duration_ns=60)
    machine = Machine((Device("cpu0", "cpu", workers=2),))
    known, unknown = (
        simulate(builder.build(), machine, CriticalPath(), knowledge=k).makespan_ns for k in ("exact", "none")
    )
    assert (known, unknown) == (70, 100)


def test_control_flow_with_noise_meets_the_same_luck_under_every_policy() -> None:
    """What an op takes follows from where it runs in the loop, not from when; sigma 0 changes nothing."""

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("aside", inputs=[v["i"]], duration_ns=1000)
        return {"i": b.op("step", inputs=[v["i"]], duration_ns=1000)}

    b = GraphBuilder("loop")
    b.op("zero", duration_ns=1000)
    while_loop(b, "loop", {"i": "zero"}, body, trips=20)
    g = b.build()
    machine = Machine((Device("cpu0", "cpu", workers=3),))

    def lasted(policy: Any, sigma: float, seed: int = 0) -> dict[tuple[int, int], int]:
        trace = checked(g, machine, policy, noise=Noise(sigma=sigma), seed=seed)
        assert trace.makespan_ns >= bounds(trace).lower_bound_ns
        tasks = trace.tasks
        keys = zip(tasks["op"].tolist(), tasks["frame"].tolist(), strict=True)
        return dict(zip(keys, (tasks["end_ns"] - tasks["start_ns"]).tolist(), strict=True))

    lasts = lasted(ReadyQueue(), 0.2)
    step = [ns for (op, _), ns in lasts.items() if g.op_names[op] == "step"]
    assert len(set(step)) == 20
    assert 850 < np.mean(step) < 1150
    assert lasted(ReadyQueue(), 0.2) == lasts
    assert lasted(ReadyQueue(), 0.2, seed=1) != lasts
    for policy in (TensorFlowExecutor(), Sequential()):
        other = lasted(policy, 0.2)
        assert sorted(other.values()) == sorted(lasts.values())
    assert set(lasted(TensorFlowExecutor(), 0.0).values()) == {0, 1000}


def test_wrong_noise_is_refused() -> None:
    with pytest.raises(InputError, match="sigma must be >= 0"):
        Noise(sigma=-1)
    with pytest.raises(InputError, match="factor of gpu0 must be positive"):
        Noise(devices={"gpu0": 0})
    with pytest.raises(UnknownNameError, match="unknown device 'gpu7'"):
        make_job(wide(2), MACHINE, noise=Noise(devices={"gpu7": 2}))
    with pytest.raises(InputError, match="knowledge must be exact, mean, estimate or none; found 'all'"):
        make_job(wide(2), MACHINE, knowledge="all")
