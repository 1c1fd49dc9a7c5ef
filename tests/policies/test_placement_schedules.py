"""List placements: valid schedules on every problem, never better than the optimum, gaps used."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from placement_helpers import Independent, full_mesh, problem_of, problems, require_valid

from policies import cp_sat as cp_search
from policies.issue.program_order import InOrder
from policies.placement.auto_tune import AutoTune
from policies.placement.exact import Optimal, UnprovenWarning
from policies.placement.list_schedule import (
    Cpop,
    FreeTime,
    Greedy,
    Heft,
    ListPlacement,
    PartialSchedule,
    Peft,
)
from policies.placement.problem import Problem
from sim import Device, Graph, GraphBuilder, Link, Machine, simulate
from sim.base.arrays import IntArray
from sim.base.errors import InfeasibleError, InputError
from sim.job.build_job import make_job
from sim.job.job import Placement

LISTS = [Greedy(), Heft(), Cpop(), Peft()]
by_name = pytest.mark.parametrize("placement", LISTS, ids=lambda p: type(p).__name__)


@by_name
def test_what_a_worker_pays_for_issuing_counts(placement: ListPlacement) -> None:
    b = GraphBuilder("tiny")
    b.op("a", duration_by_kind={"cpu": 100, "gpu": 1500})
    devices = [Device("cpu0", "cpu", workers=1, issue_ns=ns) for ns in (0, 2000)]
    where = [
        make_job(b.build(), Machine((cpu, Device("gpu0"))), placement=placement).device_of[0]
        for cpu in devices
    ]
    assert where == [0, 1]


@by_name
@examples(25)
@given(problem=problems())
def test_every_schedule_is_valid(placement: ListPlacement, problem: Problem) -> None:
    require_valid(placement.schedule(problem), problem)


@by_name
@examples(25)
@given(problem=problems())
def test_the_simulator_is_never_later_than_the_schedule(placement: ListPlacement, problem: Problem) -> None:
    """In order on each lane, as soon as the inputs are there, without contention."""
    latency = problem.machine.links[0].latency_ns

    class Late(Independent):
        def __init__(self, machine: Machine, context: object) -> None:
            super().__init__(machine, context)  # type: ignore[arg-type]
            self.nbytes = [nbytes + latency for nbytes in self.nbytes]

    machine = Machine(problem.machine.devices, problem.machine.links, network=Late)
    schedule = placement.schedule(problem)
    trace = simulate(
        problem.graph,
        machine,
        InOrder(synchronisation="issue"),
        placement=schedule,
        linearize=schedule,
        streams=schedule,
    )
    assert (trace.tasks["start_ns"] <= [schedule.start_ns[op] for op in trace.tasks["op"]]).all()


@given(problem=problems(max_ops=6))
@examples(25)
def test_no_schedule_is_better_than_the_optimum(problem: Problem) -> None:
    pytest.importorskip("ortools", reason="the optimum needs the extra 'opt'")
    optimum = Optimal(time_limit_ns=20_000_000_000).schedule(problem)  # proven, or it would warn
    require_valid(optimum, problem)
    lengths = [placement.schedule(problem).makespan_ns for placement in LISTS]
    assert optimum.makespan_ns <= min(lengths)


def test_an_optimum_that_is_cut_short_has_a_bound() -> None:
    pytest.importorskip("ortools", reason="the optimum needs the extra 'opt'")
    b = GraphBuilder("wide")
    for k in range(40):
        b.op(f"op{k}", duration_by_kind={"p1": 10 + k % 7, "p2": 10 + k % 5, "p3": 10 + k % 3})
    machine = full_mesh([Device(f"D{k}", f"p{k}") for k in (1, 2, 3)])
    problem, optimal = problem_of(b.build(), machine), Optimal(time_limit_ns=1_000_000)
    with pytest.warns(UnprovenWarning, match=r"none takes less than [1-9]\d* ns \(gap [\d.]+%\)"):
        schedule = optimal.schedule(problem)
    require_valid(schedule, problem)


def test_the_limit_of_a_search_is_time_on_the_wall() -> None:
    pytest.importorskip("ortools", reason="the optimum needs the extra 'opt'")
    b = GraphBuilder("30 ops on three GPUs")
    draw = random.Random(1)
    for k in range(30):
        inputs = sorted({draw.randrange(k) for _ in range(2)}) if k > 2 else []
        b.op(f"op{k}", inputs=[f"op{i}" for i in inputs], outputs=100, duration_ns=draw.randrange(50, 500))
    machine = full_mesh([Device(f"gpu{k}") for k in range(3)])
    begin = time.monotonic()
    with pytest.warns(UnprovenWarning):
        Optimal(time_limit_ns=600_000_000, workers=8).schedule(problem_of(b.build(), machine))
    assert time.monotonic() - begin < 60  # it would take hours


def test_a_search_is_the_same_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the solver is told does not leave it the choice of how many threads search, nor of their luck."""
    pytest.importorskip("ortools", reason="the optimum needs the extra 'opt'")
    told, real = [], cp_search.solve

    def noted(solver: Any, model: Any) -> Any:
        told.append(solver.parameters)
        return real(solver, model)

    monkeypatch.setattr("policies.cp_sat.solve", noted)
    b = GraphBuilder("one")
    b.op("a", duration_ns=1)
    Optimal(workers=3, seed=5).schedule(problem_of(b.build(), full_mesh([Device("gpu0"), Device("gpu1")])))
    assert [(one.num_workers, one.interleave_search, one.random_seed) for one in told] == [(3, True, 5)]


def test_greedy_takes_the_device_where_it_ends_first() -> None:
    # c reads b, which is on the slow device: bringing it over costs 15, computing there 12 more.
    b = GraphBuilder("copy or compute")
    b.op("a", outputs=15, duration_by_kind={"cpu": 40, "gpu": 10})
    b.op("b", outputs=15, duration_by_kind={"cpu": 19, "gpu": 10})
    b.op("c", inputs=["b"], duration_by_kind={"cpu": 22, "gpu": 10})
    machine = full_mesh([Device("cpu0", "cpu", workers=1), Device("gpu0", "gpu")])
    schedule = Greedy().schedule(problem_of(b.build(), machine))
    assert schedule.device == [1, 0, 0]
    assert schedule.end_ns == [10, 19, 41]
    slower = Machine(
        machine.devices, tuple(Link(x.name, x.source, x.destination, 0, 10**10) for x in machine.links)
    )
    assert Greedy().schedule(problem_of(b.build(), slower)).device == [1, 0, 1]


def test_gaps_are_used_with_insertion_only() -> None:
    b = GraphBuilder("gap")
    b.op("a", duration_by_kind={"p1": 10})
    b.op("far", outputs=0, duration_by_kind={"p2": 50})
    b.op("late", inputs=["far"], duration_by_kind={"p1": 10})
    b.op("small", duration_by_kind={"p1": 30})
    problem = problem_of(b.build(), full_mesh([Device("D1", "p1"), Device("D2", "p2")]))
    order = range(4)
    assert PartialSchedule(problem, insertion=True).put_all(order).start_ns == [0, 0, 50, 10]
    assert PartialSchedule(problem, insertion=False).put_all(order).start_ns == [0, 0, 50, 60]


def test_a_timeline_of_two_lanes() -> None:
    t = FreeTime(lanes=2)
    t.take(0, 10, 0)
    assert t.earliest(0, 5) == (0, 1)
    t.take(0, 4, 1)
    assert t.earliest(0, 5) == (4, 1)
    t.take(20, 5, 1)
    assert t.earliest(5, 16) == (10, 0)
    assert t.earliest(5, 15) == (5, 1)
    assert t.earliest(7, 0) == (7, 1)


def test_a_device_with_lanes_runs_ops_side_by_side() -> None:
    b = GraphBuilder("three")
    for name in "abc":
        b.op(name, duration_ns=10)
    problem = problem_of(b.build(), Machine((Device("gpu0", streams=2),)))
    schedule = Heft().schedule(problem)
    assert (schedule.lane, schedule.start_ns) == ([0, 1, 0], [0, 0, 10])


def test_graph_inputs_travel_from_where_they_lie() -> None:
    b = GraphBuilder("input on the host")
    b.input("x", 30, device="D1")
    b.op("a", inputs=["x"], duration_by_kind={"p1": 39, "p2": 10})
    b.op("b", inputs=["x"], duration_by_kind={"p1": 41, "p2": 10})
    problem = problem_of(b.build(), full_mesh([Device("D1", "p1"), Device("D2", "p2")]))
    assert Greedy().schedule(problem).device == [0, 1]


def test_what_is_colocated_stays_together() -> None:
    b = GraphBuilder("variable")
    b.op("w", duration_by_kind={"p1": 1, "p2": 2})
    b.op("other", duration_by_kind={"p1": 50, "p2": 1})
    b.op("update", attributes={"colocate": ["w"]}, duration_by_kind={"p1": 50, "p2": 1})
    problem = problem_of(b.build(), full_mesh([Device("D1", "p1"), Device("D2", "p2")]))
    for placement in LISTS:
        device = placement.schedule(problem).device
        assert device[0] == device[2]
        assert device[1] == 1


def test_what_can_never_be_placed_is_refused() -> None:
    devices = [Device("D1", "p1"), Device("D2", "p2")]
    b = GraphBuilder("apart")
    b.op("a", duration_by_kind={"p1": 1}, attributes={"colocate": "g"})
    b.op("b", duration_by_kind={"p2": 1}, attributes={"colocate": "g"})
    with pytest.raises(InfeasibleError, match=r"op 'a' with what it is colocated with \(a, b\)"):
        problem_of(b.build(), full_mesh(devices))
    b = GraphBuilder("unreachable")
    b.op("a", duration_by_kind={"p1": 1}, outputs=1)
    b.op("b", duration_by_kind={"p2": 1}, inputs=["a"])
    one_way = Machine(tuple(devices), (Link("back", "D2", "D1"),))
    with pytest.raises(InfeasibleError, match="no links lead from the inputs of op 'b'"):
        Heft().schedule(problem_of(b.build(), one_way))
    b = GraphBuilder("bad label")
    b.op("a", duration_ns=1, attributes={"colocate": 3})
    with pytest.raises(InputError, match="op 'a': colocate: 3 is neither a name nor a list of names"):
        problem_of(b.build(), full_mesh(devices))


def test_where_no_link_leads_nothing_is_placed() -> None:
    # D2 would be faster for b, but a's output cannot get there.
    b = GraphBuilder("detour")
    b.op("a", duration_by_kind={"p1": 1}, outputs=1)
    b.op("b", duration_by_kind={"p1": 90, "p2": 1}, inputs=["a"])
    one_way = Machine((Device("D1", "p1"), Device("D2", "p2")), (Link("back", "D2", "D1"),))
    for placement in LISTS:
        assert placement.schedule(problem_of(b.build(), one_way)).device == [0, 0]


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InputError, match="time_limit_ns must be a whole number of at least 1; found 0"):
        Optimal(time_limit_ns=0)
    with pytest.raises(InputError, match="workers must be a whole number of at least 1"):
        Optimal(workers=0)


# -- what may be known of durations ------------------------------------------------------------------

DECIDERS = [Heft, Peft, Cpop, Greedy, lambda: AutoTune(start="single", budget=40), Optimal]


def _free_ops(durations: Sequence[int]) -> Graph:
    b = GraphBuilder("free ops")
    for i, ns in enumerate(durations):
        b.op(f"o{i}", kind=f"k{i % 2}", duration_ns=ns)
    return b.build()


def _placed(decider: Any, durations: Sequence[int], knowledge: str, seed: int = 0) -> list[int]:
    machine = Machine((Device("gpu0"), Device("gpu1")))
    job = make_job(_free_ops(durations), machine, placement=decider(), knowledge=knowledge, seed=seed)
    assert job.duration_ns.tolist() == list(durations)  # whatever was known, ops take the time they take
    return job.device_of.tolist()


@pytest.mark.parametrize("decider", DECIDERS)
def test_a_placement_sees_what_may_be_known(decider: Any) -> None:
    if decider is Optimal:
        pytest.importorskip("ortools")
    uneven, even = [900, 100, 100, 100, 300, 300], [300] * 6
    exact = _placed(decider, uneven, "exact")
    assert sum(ns for ns, d in zip(uneven, exact, strict=True) if d == exact[0]) == 900  # a perfect balance
    blind = _placed(decider, uneven, "none")
    assert blind == _placed(decider, even, "none") != exact
    assert blind.count(0) == 3
    by_kind = [433, 167, 433, 167, 433, 167]  # means of 900, 100, 300 and of 100, 100, 300
    assert _placed(decider, uneven, "mean") == _placed(decider, by_kind, "exact")


def test_estimates_of_a_placement_are_those_of_the_policy() -> None:
    seen: list[list[int]] = []

    class Look(Placement):
        def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
            seen.extend(column.tolist() for column in cost_ns)
            return [0] * len(graph)

    b = GraphBuilder("two")
    b.op("a", duration_by_kind={"cpu": 3000, "gpu": 1000})
    b.op("b", duration_by_kind={"cpu": 3000})
    machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0", "gpu")))
    job = make_job(b.build(), machine, placement=Look(), knowledge="estimate", seed=3)
    assert seen[0] == job.known_ns.tolist() != [3000, 3000]
    assert seen[1][1] == -1
    assert abs(seen[0][0] - 3 * seen[1][0]) <= 3  # one factor an op


def test_a_program_order_of_a_placement_sees_no_more() -> None:
    machine = Machine((Device("gpu0"),))
    orders = {
        knowledge: Heft().order(make_job(_free_ops([100, 900]), machine, knowledge=knowledge))
        for knowledge in ("exact", "none")
    }
    assert orders == {"exact": [1, 0], "none": [0, 1]}
