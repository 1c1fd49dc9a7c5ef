"""Auto-tuning: never worse than where it begins, reproducible, within its budget."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from placement_helpers import problems, published_graph, three_processors

from devices.network import make_network
from policies.issue.ready_queue import CriticalPath
from policies.placement.auto_tune import AutoTune
from policies.placement.problem import Problem
from policies.placement.simple import RoundRobinPlacement
from sim import Device, GraphBuilder, Machine, simulate
from sim.base.errors import InputError, OutOfMemoryError, UnknownNameError
from sim.base.plugins import lookup
from sim.job.build_job import make_job
from sim.job.costs import costs_ns
from sim.job.job import Tried

STARTS = ["greedy", "heft", "cpop", "peft", "round-robin", "device-kind"]


def tuned(tune: AutoTune, machine: Machine | None = None) -> Sequence[Tried]:
    """Tune the published graph and return what was tried."""
    machine = machine or three_processors(network=make_network)
    graph = published_graph()
    tune.place(graph, machine, [costs_ns(graph, device) for device in machine.devices])
    return tune.tried


@given(problem=problems(), start=st.sampled_from(STARTS), seed=st.integers(0, 3), budget=st.integers(1, 25))
@examples(40)
def test_it_is_never_worse_than_its_start(problem: Problem, start: str, seed: int, budget: int) -> None:
    machine = Machine(problem.machine.devices, problem.machine.links, network=make_network)
    costs = [costs_ns(problem.graph, device) for device in machine.devices]
    tune = AutoTune(start, budget, seed, policy="critical-path")
    found = tune.place(problem.graph, machine, costs)
    assert all(found[op] in problem.devices_of[op] for op in range(problem.n))
    assert all(found[op] == found[group] for op, group in enumerate(problem.group_of))
    begin = simulate(problem.graph, machine, CriticalPath(), placement=lookup("sim.placements", start)())
    assert tune.tried[0].makespan_ns == begin.makespan_ns
    again = simulate(problem.graph, machine, CriticalPath(), placement=tune)
    assert again.makespan_ns == tune.tried[-1].best_ns
    assert again.makespan_ns <= begin.makespan_ns


def test_the_trajectory_tells_how_it_got_there() -> None:
    found = tuned(AutoTune(budget=60))
    assert [step.what for step in found[:2]] == ["heft", "greedy"]
    assert len(found) == 60
    best = [step.best_ns for step in found]
    assert best == sorted(best, reverse=True)
    assert best[-1] == min(step.makespan_ns or 0 for step in found)
    assert found[2].what.endswith(("ops to P1", "ops to P2", "ops to P3"))


def test_the_same_seed_finds_the_same() -> None:
    assert tuned(AutoTune(budget=40, seed=5)) == tuned(AutoTune(budget=40, seed=5))
    assert tuned(AutoTune(budget=40, seed=5)) != tuned(AutoTune(budget=40, seed=6))


def test_a_larger_budget_is_never_worse() -> None:
    found = [tuned(AutoTune(budget=budget))[-1].best_ns for budget in (1, 2)]
    assert found == [91, 91]  # the first start, then the better of two


def test_a_budget_without_end_is_over_when_all_placements_were_tried() -> None:
    b = GraphBuilder("two ops, two devices")
    b.op("a", duration_ns=10)
    b.op("b", duration_ns=10)
    tune = AutoTune(budget=10**19)
    make_job(b.build(), Machine((Device("gpu0"), Device("gpu1"))), placement=tune)
    assert len(tune.tried) <= 2 + 4
    assert tune.tried[-1].best_ns == 10


def test_another_measure_than_the_simulator() -> None:
    calls = []

    def ones(placement: Sequence[int]) -> int:
        calls.append(list(placement))
        return sum(d != 1 for d in placement)

    found = tuned(AutoTune(start=RoundRobinPlacement(), budget=400, evaluate=ones))
    assert len(calls) == len(found) <= 400
    assert (found[-1].best_ns or 0) <= 1
    assert len({tuple(placement) for placement in calls}) == len(calls)  # nothing is tried twice


def test_what_cannot_run_is_told_and_left_out() -> None:
    def memory(placement: Sequence[int]) -> int:
        if placement[0] == 0:
            raise OutOfMemoryError("device P1 is full")
        return 100 - sum(placement)

    found = tuned(AutoTune(start=["round-robin", "heft"], budget=50, evaluate=memory))
    assert found[0].makespan_ns is None
    assert found[1].makespan_ns == 100 - sum(lookup("sim.placements", "heft")().schedule(_published()).device)
    with pytest.raises(OutOfMemoryError, match="device P1 is full"):
        tuned(AutoTune(start="round-robin", evaluate=memory))


def _published() -> Problem:
    graph, machine = published_graph(), three_processors()
    return Problem(graph, machine, [costs_ns(graph, device) for device in machine.devices])


def test_nothing_to_choose() -> None:
    b = GraphBuilder("pinned")
    b.op("a", device="gpu1", duration_ns=5)
    tune = AutoTune(start="pinned")
    trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), CriticalPath(), placement=tune)
    assert trace.job.device_of.tolist() == [1]
    assert len(tune.tried) == 1


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InputError, match="budget must be a whole number of at least 1; found 0"):
        AutoTune(budget=0)
    with pytest.raises(InputError, match="start must name placements"):
        AutoTune(start=[])
    with pytest.raises(InputError, match="start must name placements"):
        AutoTune(start=3)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="unknown placement 'hefty'; did you mean 'heft'"):
        tuned(AutoTune(start="hefty"))
    with pytest.raises(UnknownNameError, match="unknown policy 'fifo'"):
        tuned(AutoTune(policy="fifo"))
