"""The optimum: every run keeps to the model, no order is better, and what is found runs as was said."""

from __future__ import annotations

import json
import random as dice
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim
from drawn_runs import DrawnPlacement, DrawnStreams, draw_graph, draw_machine, draw_policy
from examples import seeds
from runs import checked

from devices.network import make_network
from policies import cp_sat
from policies.cp_sat import translate, unit_of
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.optimum_lists import Lists, _least_lane
from policies.optimum_model import Follow, JobModel, Timetable
from policies.placement.simple import Given
from policies.schedule_problem import LONGEST, ScheduleProblem, Time
from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from scenarios.variants.optimum import find_optimum
from scenarios.variants.schedules import ListedOrder, SearchSchedule
from sim import Device, Graph, GraphBuilder, Link, Machine, Policy, Trace, simulate
from sim.base import edge_passes
from sim.base.errors import InputError, MissingExtraError
from sim.explain.bounds import bounds

pytest.importorskip("ortools", reason="the optimum needs the extra 'opt'")

EXAMPLES = Path(__file__).resolve().parents[2] / "scenarios" / "examples"
LIMIT = 20 * 10**9


# -- a lower bound -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(60))
def test_every_run_keeps_to_the_model(seed: int) -> None:
    """So that none can be below its optimum, whatever it leaves out: events, launch queues, shared links."""
    from ortools.sat.python import cp_model

    rng = np.random.default_rng(seed)
    iterations = int(rng.integers(1, 4))
    graph, machine = draw_graph(rng, int(rng.integers(1, 30)), iterations > 1), draw_machine(rng)
    policy = draw_policy(rng)
    how = {
        "placement": DrawnPlacement(seed),
        "streams": DrawnStreams(),
        "iterations": iterations,
        "seed": seed,
    }
    trace = simulate(graph, machine, policy, **how)
    model = JobModel(trace.job, policy, trace)
    solver: Any = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(translate(model.times).model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)


@pytest.mark.parametrize("seed", seeds(30))
def test_lists_of_tasks_keep_to_the_model(seed: int) -> None:
    """Whatever the order, and its end is that of the last task."""
    from ortools.sat.python import cp_model

    rng = np.random.default_rng(seed)
    b = GraphBuilder("drawn")
    n, workers = int(rng.integers(4, 25)), int(rng.integers(2, 5))
    for k in range(n):
        inputs = [f"o{j}" for j in range(k) if rng.random() < 0.1]
        b.op(f"o{k}", duration_ns=int(rng.integers(1, 50)), inputs=inputs)
    trace = simulate(b.build(), Machine((Device("cpu", "cpu", workers=workers),)), InOrder())
    model = JobModel(trace.job, InOrder(), trace)
    lists = Lists(model.times)
    assert lists.suits
    key = rng.permutation(len(lists.ns)).astype(float)
    changes = np.array([*rng.integers(1, n + 1, (2, 20)), rng.integers(0, 20, 20)])
    found = [column.tolist() for column in lists.starts(key, lists.least_ns(), changes)]
    source = edge_passes.list_schedule(key, workers, [*lists.columns], lists.least_ns(), changes)
    assert [column.tolist() for column in source] == found
    starts, lane, _ = found
    assert {*lane} <= {*range(workers)}
    model.times.time_hints = dict(enumerate(starts))
    model.times.horizon_ns = starts[0]
    solver: Any = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(translate(model.times).model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    ends = [at + ns for at, ns in zip(starts[1:], trace.job.duration_ns.tolist(), strict=True)]
    assert starts[0] == max(ends) >= lists.least_ns()


def test_one_annealing_fills_lanes_on_which_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is short follows what is long, as in mosaics of images; it stayed 3 ns above the bound."""
    rng, b = np.random.default_rng(6), GraphBuilder("bands")
    for band in "abc":
        long = [b.op(f"long {band}{k}", duration_ns=int(rng.integers(1500, 1900))) for k in range(4)]
        short = [f"short {band}{k}" for k in range(5)]
        for name in short:
            b.op(name, duration_ns=int(rng.integers(10, 90)), inputs=rng.choice(long, 2).tolist())
        b.op(f"join {band}", duration_ns=int(rng.integers(10, 90)), inputs=short)
    trace = simulate(b.build(), Machine((Device("cpu", "cpu", workers=4),)), InOrder())
    model = JobModel(trace.job, InOrder(), trace)
    model.begin_with(trace)
    monkeypatch.setattr("policies.optimum_lists._ROUNDS", 1)
    *_, last = model.lists.better(model.least_ns, float("inf"), seed=0)
    assert last[0] == model.least_ns


@pytest.mark.parametrize("seed", seeds(40))
def test_no_schedule_is_below_what_is_said_of_equal_workers(seed: int) -> None:
    """By all of them: each op, in any order, on any worker as soon as it can be there."""
    rng = np.random.default_rng(seed)
    n, workers = int(rng.integers(3, 6)), int(rng.integers(2, 4))
    ns, density = rng.integers(1, 20, n).tolist(), rng.choice([0, 0.2, 0.5])
    before = [[j for j in range(k) if rng.random() < density] for k in range(n)]
    b = GraphBuilder("drawn")
    for k in range(n):
        b.op(f"o{k}", duration_ns=ns[k], inputs=[f"o{j}" for j in before[k]])
    trace = simulate(b.build(), Machine((Device("cpu", "cpu", workers=workers),)), InOrder())

    def least(end: dict[int, int], free: list[int]) -> int:
        ways = [max(end.values(), default=0)] if len(end) == n else []
        for k, lane in product(range(n), range(workers)):
            if k not in end and all(j in end for j in before[k]):
                done = max([free[lane], *(end[j] for j in before[k])]) + ns[k]
                ways.append(least({**end, k: done}, sorted([*free[:lane], *free[lane + 1 :], done])))
        return min(ways)

    assert JobModel(trace.job, InOrder(), trace).lists.least_ns() <= least({}, [0] * workers)


def test_of_thousands_of_tasks_no_sums_are_looked_at() -> None:
    """Of 18,002 such tasks they took 4 GB and a minute, whatever the limit."""
    effort = iter(range(1))
    assert _least_lane(Counter({1000: 1501, 999: 1, 998: 1501}), 4, 0, effort) == 750_000
    assert next(effort) == 0


def test_the_lane_of_each_length_is_looked_at_where_there_are_some_thousand_sums() -> None:
    """The long tasks of a workflow (nf-core/fetchngs) are whole seconds, but for one of 231 ms."""
    short = Counter({2: 6, 1: 3, 110: 1, 231: 1, 1000: 4, 3000: 2})
    long = Counter({4000: 5, 5000: 5, 6000: 1, 7000: 5, 8000: 1})
    assert _least_lane(short + long, 4, 26_114, iter(range(1000))) == 26_231


@pytest.mark.parametrize(
    ("ns", "after", "workers", "least"),
    [
        ([10, 11, 12, 13, 14], {}, 2, 33),  # of five one worker has three
        ([10, 10, 10, 10, 1, 10, 10, 10, 10], {4: range(4), 5: [4], 6: [4], 7: [4], 8: [4]}, 2, 41),
        ([6, 6, 6, 9, 2], {3: range(3), 4: [3]}, 3, 17),
        ([20, 20, 20, *[3] * 9], {3 + k: [k // 3] for k in range(9)}, 2, 46),
        ([20, 10, 10, 3], {}, 2, 23),  # a worker has 20 of 22, and the other would have 23
        ([20, 20, 10, 10, 7, 1, 1, 1, 1], {}, 3, 27),  # the worker with 7 has at most 21, or 27
        (
            [499238, 318813, 720681, 895329, 209939, 122092, 887241, 535123, 493142, 421693],
            {},
            3,
            1713380,
        ),  # 1701097 would be even
        ([3, 3, 3, 3, 3, 3, 3, 4, 3, 1], {7: range(4), 8: range(4, 7), 9: [7, 8]}, 2, 16),
    ],
)
def test_workers_wait_for_what_has_to_be_before_and_after(
    ns: list[int], after: dict[int, Iterable[int]], workers: int, least: int
) -> None:
    b = GraphBuilder("joins")
    for k, each in enumerate(ns):
        b.op(f"o{k}", duration_ns=each, inputs=[f"o{j}" for j in after.get(k, ())])
    trace = simulate(b.build(), Machine((Device("cpu", "cpu", workers=workers),)), InOrder())
    model = JobModel(trace.job, InOrder(), trace)
    found, _ = model.solve(LIMIT)
    assert model.lists.least_ns() == found.bound_ns == least
    assert found.finished


@pytest.mark.slow
def test_sums_of_many_tasks_are_met_to_the_microsecond(tmp_path: Path) -> None:
    """A split, forty tasks of about ten seconds on four cores, and what needs all of them."""
    rng = dice.Random(1)
    ops: dict[str, Any] = {"split": {"duration": "54ms"}}
    us = [rng.randrange(9_000_000, 10_400_000) for _ in range(40)]
    ops |= {f"b{k}": {"duration": f"{each}us", "inputs": ["split"]} for k, each in enumerate(us)}
    ops["cat"] = {"duration": "35ms", "inputs": [f"b{k}" for k in range(40)]}
    document = {"machine": {"devices": {"cpu0": {"kind": "cpu", "cores": 4}}}, "workload": {"ops": ops}}
    path = tmp_path / "blast.yaml"
    path.write_text(json.dumps(document))
    base = run_case(load_scenario(path).case())
    limits = bounds(base.trace, exact=True)
    model = JobModel(base.trace.job, InOrder(), base.trace, least_ns=limits.lower_bound_ns)
    *_, best = model.by_lists(time.monotonic() + 200)
    found = Follow(best, base.case.decisions.policy.synchronisation)
    again = run_case(
        replace(base.case.deciding(policy=found, linearize=found, streams=found), expectations=())
    )
    assert (
        again.trace.makespan_ns
        == -(-limits.lower_bound_ns // 1000) * 1000
        == 1000 * (-(-sum(us) // 4) + 89_000)
    )


def test_the_time_that_a_search_has_begins_when_the_solver_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ortools.sat.python.cp_model

    name = "ortools.sat.python.cp_model"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(ortools.sat.python, "cp_model")
    monkeypatch.setattr(cp_sat, "monotonic", lambda: 0.0 if name in sys.modules else -1e6)
    assert cp_sat.least(ScheduleProblem("a test", 10), 10**10).finished


def test_the_solver_counts_in_the_unit_of_all_times() -> None:
    """Three ops of 60 us on two workers: half of their work is 90 us, and no sum of them is below 120."""
    b = GraphBuilder("three")
    for name in "abc":
        b.op(name, duration_ns=60_000)
    trace = simulate(b.build(), Machine((Device("cpu", "cpu", workers=2),)), InOrder())
    model = JobModel(trace.job, InOrder(), trace)
    assert unit_of(model.times) == 60_000
    model.times.after(LONGEST, 90_001)  # a bound, which is no time of it
    assert unit_of(model.times) == 60_000
    found, timetable = model.solve(LIMIT)
    assert (found.bound_ns, found.finished) == (120_000, True)
    assert timetable is not None
    assert sorted(timetable.start_ns[0]) == [0, 0, 60_000]


def test_what_takes_no_time_goes_before_what_starts_with_it() -> None:
    b = GraphBuilder("two")
    b.op("a", duration_ns=10)
    b.op("view", kind="reshape", duration_ns=0)
    job = simulate(b.build(), Machine((Device("g", streams=2, gap_ns=2),)), InOrder()).job
    follow = Follow(Timetable([[0, 0]], [[0, 0]], [0, 0], 10), "completion")
    assert (follow.order(job), follow.assign(job)) == ([1, 0], [0, 0])


# -- brute force -------------------------------------------------------------------------------


def orders(graph: Graph) -> Iterator[tuple[int, ...]]:
    """Yield every order of the ops in which producers come first."""
    edges = list(zip(graph.edges.producer.tolist(), graph.edges.consumer.tolist(), strict=True))
    for order in permutations(range(len(graph))):
        place = {op: k for k, op in enumerate(order)}
        if all(place[p] < place[c] for p, c in edges):
            yield order


def draw_tiny(seed: int, sharing: str) -> tuple[Graph, Machine, str, list[int]]:
    """Return five ops on a CPU and a GPU of one stream, with what launching costs, and links or none."""
    rng = np.random.default_rng(seed)
    graph = draw_graph(rng, 5, False)
    synchronisation = "issue" if rng.random() < 0.5 else "completion"
    launch = {"launch_latency_ns": int(rng.integers(0, 9)), "gap_ns": int(rng.integers(0, 4))}
    cpu = Device("d0", "cpu", workers=int(rng.integers(1, 3)), issue_ns=int(rng.integers(0, 5)))
    gpu = Device("d1", "gpu", issue_ns=int(rng.integers(0, 9)), event_ns=int(rng.integers(0, 5)), **launch)
    pairs = [("d0", "d1"), ("d1", "d0")] if sharing else []
    links = tuple(Link(f"{a}{b}", a, b, int(rng.integers(0, 20)), 10**10, sharing) for a, b in pairs)
    machine = Machine((cpu, gpu), links, (), make_network if links else None)
    return graph, machine, synchronisation, rng.integers(0, 2, 5).tolist()


@pytest.mark.parametrize("sharing", ["", "independent", "serial"])
@pytest.mark.parametrize("seed", seeds(7))
def test_no_order_is_better_and_what_is_found_takes_as_long_as_the_solver_says(
    seed: int, sharing: str
) -> None:
    graph, machine, synchronisation, placed = draw_tiny(seed, sharing)
    policy: Policy = InOrder(synchronisation=synchronisation)

    def run(policy: Policy, **how: Any) -> Trace:
        return simulate(graph, machine, policy, placement=Given(placed), **how)

    first = run(policy)
    found, timetable = JobModel(first.job, policy, first).solve(LIMIT)
    assert found.finished
    assert timetable is not None
    follow = Follow(timetable, synchronisation)
    least = min(run(policy, linearize=ListedOrder(order)).makespan_ns for order in orders(graph))
    replayed = run(follow, streams=follow).makespan_ns
    others = [run(ReadyQueue(order, synchronisation)).makespan_ns for order in ("fifo", "lifo")]
    assert bounds(first).lower_bound_ns <= found.bound_ns <= least <= min(first.makespan_ns, *others)
    if sharing != "serial":  # where an op that waits on purpose may let another one's data go first
        assert found.bound_ns == least
    assert found.bound_ns <= replayed
    if found.bound_ns == least:
        assert replayed == least


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["independent", "serial"])
@pytest.mark.parametrize("seed", range(6))
def test_devices_are_chosen_too(sharing: Any, seed: int) -> None:
    """By all placements and orders of four ops on two processors."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("anywhere")
    for k in range(4):
        inputs = [f"op{j}" for j in range(k) if rng.random() < 0.6]
        kind = "reshape" if rng.random() < 0.3 else "op"
        times = {"cpu": int(rng.integers(5, 40)), "gpu": int(rng.integers(5, 40)) * (kind == "op")}
        nbytes = int(rng.integers(0, 9))
        b.op(f"op{k}", kind=kind, inputs=inputs, outputs=nbytes, duration_by_kind=times)
    graph = b.build()
    links = tuple(Link(a + c, a, c, 3, 10**9, sharing) for a, c in (("c", "g"), ("g", "c")))
    machine = Machine((Device("c", "cpu", workers=1), Device("g", gap_ns=3)), links, (), make_network)
    runs = [
        simulate(
            graph,
            machine,
            InOrder(),
            placement=Given([k >> op & 1 for op in range(4)]),
            linearize=ListedOrder(o),
        )
        for k in range(16)
        for o in orders(graph)
    ]
    first = runs[0]
    found, timetable = JobModel(first.job, InOrder(), first, placed=False).solve(LIMIT)
    assert timetable is not None
    follow = Follow(timetable, "completion")
    replayed = simulate(graph, machine, follow, placement=Given(timetable.device))
    least = min(run.makespan_ns for run in runs)
    assert found.bound_ns <= least <= replayed.makespan_ns
    if sharing == "independent":
        assert found.bound_ns == replayed.makespan_ns


FLEXIBLE = """\
machine: {devices: {m0: {kind: cpu, cores: 1}, m1: {kind: cpu, cores: 1}, m2: {kind: cpu, cores: 1}}}
policy: {name: ready-queue, placement: heft}
workload:
  ops:
    a: {duration: {m0: 3us, m1: 5us}}
    b: {duration: {m1: 4us, m2: 2us}, after: [a]}
    c: {duration: {m0: 6us, m2: 7us}}
    d: {duration: {m2: 4us, cpu: 9us}, after: [c]}
"""


def test_each_device_may_take_its_own_time(tmp_path: Path) -> None:
    """A flexible job shop: c needs 6 us on m0, so that d ends at 10 us at best; a and b fit beside."""
    (tmp_path / "s.yaml").write_text(FLEXIBLE)
    result = run_case(load_scenario(tmp_path / "s.yaml").case())
    assert [column.tolist() for column in result.trace.job.known_costs_ns] == [
        [3000, -1, 6000, 9000],
        [5000, 4000, -1, 9000],
        [-1, 2000, 7000, 4000],
    ]
    found = find_optimum([result], limit_ns=LIMIT, placed=False)
    assert (found.best.trace.makespan_ns, found.proven) == (10_000, True)


@pytest.mark.parametrize(("sharing", "least"), [("independent", 121), ("serial", 211)])
def test_what_a_serial_link_carries_takes_turns_wherever_ops_are(sharing: Any, least: int) -> None:
    """Two tensors of 100 ns each, which the other processor reads."""
    b = GraphBuilder("fork")
    b.op("s", duration_by_kind={"cpu": 1}, outputs=[100, 100])
    for k in range(2):
        b.op(f"k{k}", inputs=[f"s:{k}"], duration_by_kind={"gpu": 10})
    link = Link("cg", "c", "g", 0, 10**9, sharing)
    machine = Machine((Device("c", "cpu", workers=1), Device("g")), (link,), (), make_network)
    run = simulate(b.build(), machine, InOrder(), placement=Given([0, 1, 1]))
    found, _ = JobModel(run.job, InOrder(), run, placed=False).solve(LIMIT)
    assert found.bound_ns == run.makespan_ns == least


def test_equal_lanes_are_proven_by_what_is_on_each() -> None:
    """By all ways to share nine ops among three workers; a sum over all of them proves less."""
    ns = [29, 41, 17, 58, 33, 47, 22, 39, 31]
    b = GraphBuilder("nine")
    for k, each in enumerate(ns):
        b.op(f"op{k}", duration_ns=each)
    run = simulate(b.build(), Machine((Device("c", "cpu", workers=3),), (), (), make_network), ReadyQueue())
    found, _ = JobModel(run.job, ReadyQueue(), run).solve(LIMIT)
    least = sum(ns)
    for way in product(range(3), repeat=9):
        loads = [0, 0, 0]
        for each, worker in zip(ns, way, strict=True):
            loads[worker] += each
        least = min(least, max(loads))
    assert found.finished
    assert found.bound_ns == least > -(-sum(ns) // 3)


def test_what_takes_no_time_waits_for_a_worker() -> None:
    """It cannot pass within ten ops that keep five workers busy."""
    b = GraphBuilder("busy")
    for k in range(10):
        b.op(f"op{k}", duration_ns=10, device="five")
    b.op("before", duration_ns=5, device="one")
    b.op("view", inputs=["before"], duration_ns=0, device="five")
    b.op("after", inputs=["view"], duration_ns=15, device="one")
    run = simulate(b.build(), Machine((Device("five", "cpu", workers=5), Device("one", "cpu"))), ReadyQueue())
    found, _ = JobModel(run.job, ReadyQueue(), run).solve(LIMIT)
    assert (found.finished, found.bound_ns) == (True, 25)


# -- part by part ------------------------------------------------------------------------------


def layers(n: int, width: int) -> Graph:
    """Return layers of ops that each read two of the layer before."""
    rng = np.random.default_rng(n)
    b = GraphBuilder("layers")
    for k in range(n):
        before = range(max(0, k // width * width - width), k // width * width)
        inputs = rng.choice(before, 2, replace=False).tolist() if before else []
        b.op(f"op{k}", inputs=[f"op{p}" for p in inputs], duration_ns=int(rng.integers(100, 1000)))
    return b.build()


@pytest.mark.parametrize("synchronisation", ["completion", "issue"])
def test_window_by_window_runs_get_shorter_and_the_same_each_time(
    synchronisation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.optimum_windows._EFFORT", 0.0005)
    graph, machine = layers(40, 5), Machine((Device("gpu0", streams=2, issue_ns=20),))
    policy = ReadyQueue("fifo", synchronisation)
    first = simulate(graph, machine, policy, streams=DrawnStreams())

    def found() -> list[int]:
        best = first
        model = JobModel(first.job, policy, first)
        ends = [best.makespan_ns]
        for n, timetable in enumerate(model.improve(time.monotonic() + 60)):
            if n == 2:
                break
            follow = Follow(timetable, synchronisation, by_start=True)
            trace = checked(graph, machine, follow, linearize=follow, streams=follow)
            if trace.makespan_ns < best.makespan_ns:
                best = trace
                ends.append(trace.makespan_ns)
                model.begin_with(trace)
        return ends

    ends = found()
    limits = bounds(first, synchronisation=synchronisation).by_source
    assert ends[-1] >= max(ns for source, ns in limits.items() if not source.startswith("stream "))
    assert ends[-1] < 0.95 * ends[0]
    assert found() == ends


def test_a_window_may_move_ops_to_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.optimum_windows._EFFORT", 0.0005)
    graph, machine = layers(40, 5), Machine((Device("one"), Device("other")))
    first = simulate(graph, machine, InOrder(), placement=Given([k % 2 for k in range(40)]))
    model = JobModel(first.job, InOrder(), first, placed=False)
    model.begin_with(first)
    timetable = next(model.improve(time.monotonic() + 60))
    follow = Follow(timetable, "completion", by_start=True)
    better = checked(graph, machine, follow, linearize=follow, placement=Given(timetable.device))
    assert (better.device != first.device).any()
    assert better.makespan_ns < first.makespan_ns


def test_what_is_sent_and_never_asked_for_bounds_nothing() -> None:
    """Two Sends with one key, one Recv: one of them travels."""
    b = GraphBuilder("two sends")
    for k, nbytes in enumerate((7, 700)):
        b.op(f"send{k}", kind="send", duration_ns=k, outputs=nbytes, device="a", attributes={"key": "k"})
    b.op("recv", kind="recv", duration_ns=1, device="b", attributes={"key": "k"})
    links = (Link("ab", "a", "b", 0, 10**9, "serial"), Link("ba", "b", "a", 0, 10**9, "serial"))
    devices = (Device("a", "cpu", workers=1), Device("b", "cpu", workers=1))
    trace = simulate(b.build(), Machine(devices, links, (), make_network), ReadyQueue())
    found, _ = JobModel(trace.job, ReadyQueue(), trace).solve(LIMIT)
    assert trace.makespan_ns < 700
    assert max(found.bound_ns, bounds(trace).lower_bound_ns) <= trace.makespan_ns


# -- scenarios ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "placed", "best_us"),
    [
        ("ten_tasks", True, 80),  # on the devices that HEFT chose; the least on any is 73 (`test_tune.py`)
        ("gpipe", True, 33_000),
        ("custom_order", True, 17_000),
    ],
)
def test_examples_are_proven(name: str, placed: bool, best_us: int) -> None:
    loaded = load_scenario(EXAMPLES / f"{name}.yaml")
    results = [run_case(case) for case in (loaded.case(), *loaded.cases())]
    found = find_optimum(results, limit_ns=LIMIT, placed=placed)
    assert found.proven
    assert found.found is not None
    assert found.found.trace.makespan_ns == found.lower_bound == best_us * 1000
    found.found.trace.check()
    alike = [result for result in results if found.unlike(result) is None]
    assert found.base in alike
    assert all(result.trace.makespan_ns >= found.lower_bound for result in alike)


SCENARIO = """\
machine: {devices: {cpu0: {kind: cpu, cores: 2}, gpu0: {kind: gpu, streams: 2, issue_cost: 1us}}}
workload:
  ops:
    a: {duration: 10us, device: cpu0}
    b: {duration: 30us, device: cpu0}
    c: {duration: 20us, device: cpu0}
    d: {duration: 30us, inputs: [c], device: gpu0}
policy: in-order
compare: [ready-queue, {name: in-order, label: streams, synchronisation: issue}]
"""


def test_the_command_says_the_same_each_time_and_what_it_writes_runs_as_it_says(tmp_path: Path) -> None:
    path, out = tmp_path / "s.yaml", tmp_path / "best.yaml"
    path.write_text(SCENARIO)
    told = sim("optimum", path, "--out", out, "--json")
    assert told.stdout == sim("optimum", path, "--json").stdout
    found = json.loads(told.stdout)
    assert (found["makespan_ns"], found["lower_bound_ns"], found["proven"]) == (51_000, 51_000, True)
    assert [row["unlike"] for row in found["policies"]] == [None, None, "synchronisation: issue"]
    assert json.loads(sim("run", out, "--json").stdout)["makespan_ns"] == 51_000
    assert sim("check", out).exit_code == 0
    lines = sim("optimum", path).stdout.splitlines()
    assert lines[1] == "the optimum is 51 us: no order takes less"
    rows = {line.split("  ")[0]: line for line in lines[4:]}
    assert set(rows) == {"optimum", "in-order", "ready-queue", "streams"}
    assert rows["streams"].endswith("(synchronisation: issue)")
    assert rows["optimum"].endswith(" 0.0%")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"a: {duration: 10us": "a: {attributes: {fails: true}, duration: 10us"}, "some of its ops may fail"),
        (
            {"b: {duration: 30us": "b: {attributes: {strict: false}, inputs: [a, c], duration: 30us"},
            "first of their inputs",
        ),
    ],
)
def test_what_cannot_be_said_is_refused(tmp_path: Path, change: dict[str, str], says: str) -> None:
    text = SCENARIO
    for old, new in change.items():
        text = text.replace(old, new)
    (tmp_path / "s.yaml").write_text(text)
    done = sim("optimum", tmp_path / "s.yaml")
    assert done.exit_code == 2
    assert says in done.stderr


def test_conditions_are_refused() -> None:
    done = sim("optimum", EXAMPLES / "condition.yaml")
    assert done.exit_code == 2
    assert "has control flow" in done.stderr


def test_what_is_left_out_is_told() -> None:
    done = sim("optimum", EXAMPLES / "one_communicator.yaml", "--limit", "1s")
    assert "the bound leaves out ranks that wait for one another in collectives" in done.stdout


def test_that_ops_of_one_instant_have_no_order_at_a_resource_is_told(tmp_path: Path) -> None:
    """The plan lets b wait for z, which takes no time; in the run b is there first, and z waits for it."""
    (tmp_path / "s.yaml").write_text("""\
machine: {resources: {r: 2}, devices: {c: {kind: gpu}, e: {kind: cpu, cores: 1}}}
workload:
  ops:
    a: {duration: 1us, device: c}
    b: {duration: 2us, device: e, attributes: {resources: {r: 1}}}
    z: {duration: 0us, device: c, inputs: [a], attributes: {resources: {r: 2}}}
    y: {duration: 2us, device: c, inputs: [z]}
""")
    found = find_optimum([run_case(load_scenario(tmp_path / "s.yaml").case())], limit_ns=LIMIT)
    assert (found.lower_bound, found.cost(found.best)) == (3000, 4000)
    assert [note for note in found.left_out if note.endswith("(r)")]


@pytest.mark.usefixtures("without_ortools")
def test_without_ortools_the_extra_is_named() -> None:
    trace = simulate(draw_tiny(0, "")[0], Machine((Device("d0"),)), InOrder())
    with pytest.raises(MissingExtraError, match="optimum of a scenario needs the extra 'opt'"):
        JobModel(trace.job, InOrder(), trace).solve(LIMIT)


@pytest.mark.parametrize("limit", ["0", "-1s", "soon", "5MB"])
def test_a_wrong_limit_is_one_line(limit: str) -> None:
    done = sim("optimum", EXAMPLES / "head_of_line.yaml", "--limit", limit)
    assert done.exit_code == 2
    assert "--limit" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_search_without_time_still_has_a_bound() -> None:
    done = sim("optimum", EXAMPLES / "ten_tasks.yaml", "--devices", "--limit", "1us", "--json")
    found = json.loads(done.stdout)
    assert not found["proven"]
    assert not found["searched"]
    assert 41_000 <= found["lower_bound_ns"] < found["makespan_ns"]  # n1, n2, n9, n10 where each is fastest


def test_ranks_stay_where_they_are() -> None:
    loaded = load_scenario(EXAMPLES / "one_communicator.yaml")
    with pytest.raises(InputError, match="meet in collectives, and so stay on their devices"):
        find_optimum([run_case(loaded.case())], limit_ns=LIMIT, placed=False)


@pytest.mark.parametrize("seed", range(6))
def test_plans_of_ops_that_need_several_cores_run_as_planned(seed: int, tmp_path: Path) -> None:
    """An op that starts before its turn may take cores that the plan keeps for a larger one."""
    rng = dice.Random(seed)
    ops = {
        f"o{i}": {
            "duration": f"{rng.randint(1, 9)}us",
            "after": [f"o{j}" for j in range(i) if rng.random() < 0.15],
            "attributes": {"cores": rng.choice([1, 1, 2, 3, 4])},
        }
        for i in range(9)
    }
    machine = {"devices": {"cpu": {"kind": "cpu", "cores": 4}}}
    path = tmp_path / "cores.yaml"
    path.write_text(json.dumps({"machine": machine, "workload": {"ops": ops}, "policy": "ready-queue"}))
    result = run_case(load_scenario(path).case(), check=True)
    assert result.trace.makespan_ns >= bounds(result.trace).lower_bound_ns
    assert find_optimum([result], limit_ns=LIMIT).proven


HELD_BACK = """\
machine: {resources: {crane: 1}, devices: {c0: {kind: cpu, cores: 2}, c1: {kind: cpu, cores: 2}}}
workload:
  ops:
    o0: {duration: 13us, device: c1}
    o1: {duration: 25us, device: c1, attributes: {resources: {crane: 1}}}
    o2: {duration: 20us, device: c1, inputs: [o0]}
    o3: {duration: 10us, device: c0, inputs: [o0, o1], attributes: {resources: {crane: 1}}}
    o4: {duration: 24us, device: c1, inputs: [o2], attributes: {resources: {crane: 1}}}
    o5: {duration: 26us, device: c0, inputs: [o4]}
    o6: {duration: 16us, device: c0, inputs: [o5]}
policy: in-order
"""


def test_an_op_that_could_take_what_the_plan_keeps_for_another_stands_behind(tmp_path: Path) -> None:
    """o3 could have the crane from 25 us on, which o4 needs from 33: it stands behind o5, which reads o4."""
    (tmp_path / "s.yaml").write_text(HELD_BACK)
    found = find_optimum([run_case(load_scenario(tmp_path / "s.yaml").case())], limit_ns=LIMIT)
    assert (found.best.trace.makespan_ns, found.proven) == (13_000 + 20_000 + 24_000 + 26_000 + 16_000, True)


KEPT_FREE = """\
machine: {resources: {crane: 1}, devices: {c0: {kind: cpu, cores: 1}, c1: {kind: cpu, cores: 1}}}
workload:
  ops:
    a: {duration: 2us, device: c0}
    b: {duration: 2us, device: c0, inputs: [a], attributes: {resources: {crane: 1}}}
    c: {duration: 9us, device: c0, inputs: [b]}
    d: {duration: 8us, device: c1, attributes: {resources: {crane: 1}}}
policy: in-order
"""


def test_an_op_waits_on_purpose_where_no_order_keeps_it_back(tmp_path: Path) -> None:
    """d could have the crane from the begin on, and leaves it to b."""
    path, best = tmp_path / "s.yaml", tmp_path / "best.yaml"
    path.write_text(KEPT_FREE)
    found = find_optimum([run_case(load_scenario(path).case())], limit_ns=LIMIT)
    assert (found.best.trace.makespan_ns, found.proven) == (13_000, True)
    found.best.trace.check()
    sim("optimum", path, "--out", best)
    assert sim("check", best).exit_code == 0
    told = sim("explain", best).stdout
    assert "c1                     4 us  1 x 4 us           policy" in told
    assert "'d' is ready and an issuer is free, but replay holds it back" in told


CORES_ANYWHERE = """\
machine: {devices: {c0: {kind: cpu, cores: 3}, c1: {kind: cpu, cores: 2}}}
workload:
  ops:
    o0: {duration: {c0: 26us, c1: 11us}, attributes: {cores: 2}}
    o1: {duration: {c0: 16us, c1: 10us}, attributes: {cores: 1}}
    o2: {duration: {c0: 22us, c1: 12us}, attributes: {cores: 1}}
    o3: {duration: {c0: 11us, c1: 29us}, inputs: [o0], attributes: {cores: 2}}
policy: ready-queue
"""


def test_cores_are_counted_wherever_ops_may_go(tmp_path: Path) -> None:
    larger = CORES_ANYWHERE.replace("cores: 2}}\n    o1", "cores: 3}}\n    o1")  # which c1 has not
    for text, best_us in ((CORES_ANYWHERE, 22), (larger, 37)):
        (tmp_path / "s.yaml").write_text(text)
        result = run_case(load_scenario(tmp_path / "s.yaml").case())
        found = find_optimum([result], limit_ns=LIMIT, placed=False)
        assert (found.best.trace.makespan_ns, found.proven) == (best_us * 1000, True)


SHARED_SMS = """\
machine: {devices: {g0: {kind: gpu, streams: 2, issue_cost: 1us, sms: 4, sharing: sm}}}
workload:
  ops:
    o0: {duration: 14us, attributes: {sms: 3}}
    o1: {duration: 5us, attributes: {sms: 1}}
    o2: {duration: 7us, attributes: {sms: 3}}
    o3: {duration: 22us, inputs: [o1], attributes: {sms: 4}}
policy: {name: in-order, synchronisation: issue}
"""


@pytest.mark.slow
def test_what_the_solver_does_not_know_is_tried(tmp_path: Path) -> None:
    """45 us is the best that the solver and list schedules come to; enumeration knows 44 us."""
    (tmp_path / "s.yaml").write_text(SHARED_SMS)
    base = run_case(load_scenario(tmp_path / "s.yaml").case())
    for seed in range(3):
        found = find_optimum([base], limit_ns=LIMIT, seed=seed)
        assert (found.best.trace.makespan_ns, found.lower_bound) == (44_000, 39_000)


def test_only_the_order_of_each_host_makes_another_schedule() -> None:
    b = GraphBuilder("three")
    for name, device in (("a", "g0"), ("b", "g1"), ("c", "g0")):
        b.op(name, duration_ns=1, device=device)
    job = simulate(b.build(), Machine((Device("g0"), Device("g1"))), InOrder()).job
    orders = [SearchSchedule(order, (0, 1, 0), (0, 0, 0)).by_host(job) for order in permutations(range(3))]
    assert [each.order for each in orders] == [(0, 2, 1)] * 2 + [(0, 2, 1), (2, 0, 1)] + [(2, 0, 1)] * 2


TWO_GPUS = """\
machine:
  devices: {g: {kind: gpu, count: 2, streams: 2, sms: 4, sharing: sm}}
workload:
  ops:
    o0: {duration: 14us, device: g0, attributes: {sms: 3}}
    o1: {duration: 5us, device: g1, attributes: {sms: 1}}
    o2: {duration: 7us, device: g0, attributes: {sms: 3}}
"""
MEET = """\
    a0: {kind: all_reduce, duration: 410us, inputs: [o0], device: g0, attributes: {communicator: c}}
    a1: {kind: all_reduce, duration: 410us, inputs: [o1], device: g1, attributes: {communicator: c}}
"""


@pytest.mark.parametrize(("text", "placed"), [(TWO_GPUS + MEET, True), (TWO_GPUS, True), (TWO_GPUS, False)])
def test_several_gpus_whose_kernels_share_sms_have_an_optimum(
    text: str, placed: bool, tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(text)
    result = run_case(load_scenario(tmp_path / "s.yaml").case())
    found = find_optimum([result], limit_ns=LIMIT, placed=placed)
    assert 14_000 <= found.lower_bound <= found.best.trace.makespan_ns


@pytest.mark.slow
def test_strategies_search_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--jobs 3` reaches the solver, and what it proves is what one strategy proves."""
    told, real = [], cp_sat.solve

    def noted(solver: Any, model: Any) -> Any:
        told.append(solver.parameters)
        return real(solver, model)

    monkeypatch.setattr(cp_sat, "solve", noted)
    result = sim("optimum", str(EXAMPLES / "ten_tasks.yaml"), "--devices", "--jobs", "3", "--json")
    assert json.loads(result.stdout)["makespan_ns"] == 73_000
    assert json.loads(result.stdout)["proven"]
    assert [(one.num_workers, one.interleave_search) for one in told] == [(3, True)]


@pytest.mark.parametrize("relaxed", [1e-9, 0.0005])
def test_a_search_without_a_relaxation_goes_on_from_one_with_it(
    relaxed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the first ends: the same is proven, and its bound and solution are kept."""
    known, real = [], cp_sat.solve

    def noted(solver: Any, written: Any) -> Any:
        status = real(solver, written)
        known.append((solver.parameters.linearization_level, solver.best_objective_bound))
        return status

    monkeypatch.setattr(cp_sat, "solve", noted)
    monkeypatch.setattr(cp_sat, "_RELAXED_EFFORT", relaxed)
    run = simulate(layers(16, 4), Machine((Device("c", "cpu", workers=2),)), ReadyQueue())
    found, timetable = JobModel(run.job, ReadyQueue(), run).solve(LIMIT)
    assert found.finished
    assert timetable is not None
    assert found.bound_ns == found.values(Time(0)) == 4528
    assert [level for level, _ in known] == [1, 0]
    assert known[0][1] <= known[1][1]


def test_the_policy_of_the_scenario_may_stand_in_compare(tmp_path: Path) -> None:
    """And not as the first there."""
    path = tmp_path / "both.yaml"
    ops = {name: {"duration": f"{k}us"} for k, name in enumerate("abc", 1)}
    machine = {"devices": {"cpu": {"kind": "cpu"}}}
    of = {"policy": "ready-queue", "compare": ["in-order", "ready-queue"]}
    path.write_text(json.dumps({"machine": machine, "workload": {"ops": ops}, **of}))
    told = json.loads(sim("optimum", path, "--json").stdout)
    assert told["policy"] == "ready-queue"
    assert [row["policy"] for row in told["policies"]] == ["ready-queue", "in-order"]
