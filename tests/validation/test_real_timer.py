"""Real execution on threads: what must hold whatever the machine is doing. No test here compares times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import CriticalPath, ReadyQueue
from policies.linearize import UserOrder
from policies.pipeline.evaluate import StageTimes
from policies.pipeline.registry import generate
from policies.streams import RoundRobinStreams
from scenarios.builders.pipeline_graph import pipeline_graph, plain_machine
from scenarios.builders.pipeline_stage import PipelineStage
from sim import Device, Graph, GraphBuilder, Job, Machine, Policy, Task, simulate
from sim.base.arrays import Csr
from sim.base.errors import InputError, StuckError, UnknownNameError
from sim.job.build_job import make_job
from sim.machine.links import Link
from sim.machine.machine import Host
from sim.record.plan import Plan
from validation.cases.draws import draw
from validation.real.clock import now_ns, run_queue_ns, sleep_until
from validation.real.driver import Driver
from validation.real.lanes import Event
from validation.real.threads import NumpyWork, Threads
from validation.real.timer import Timer

MS = 1_000_000
TWO = Machine((Device("cpu0", "cpu", workers=2),))


def random_graph(n: int, seed: int, ms: int = 2) -> Graph:
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"random {seed}")
    for i in range(n):
        width = min(int(rng.integers(0, 3)), i)
        before = sorted(rng.permutation(i)[:width].tolist())
        b.op(f"o{i}", inputs=[f"o{j}" for j in before], duration_ns=ms * MS)
    return b.build()


def keeps_order(seen_job: Job, start: dict[int, int], end: dict[int, int]) -> bool:
    edges = seen_job.graph.edges
    pairs = zip(edges.producer.tolist(), edges.consumer.tolist(), strict=True)
    return all(end[producer] <= start[consumer] for producer, consumer in pairs)


def by_op(trace_tasks: dict[str, np.ndarray], column: str) -> dict[int, int]:
    return dict(zip(trace_tasks["op"].tolist(), trace_tasks[column].tolist(), strict=True))


@pytest.mark.parametrize(
    "policy",
    [ReadyQueue(), ReadyQueue("lifo"), InOrder(), OutOfOrder(4), CriticalPath()],
    ids=["ready-queue", "lifo", "in-order", "out-of-order", "critical-path"],
)
def test_one_policy_object_drives_both_worlds(policy: Policy) -> None:
    prepared: list[Job] = []
    given: list[Task] = []
    prepare, following = policy.prepare, policy.next

    def note(job: Job) -> None:
        prepared.append(job)
        prepare(job)

    def take(issuer: object) -> Task | None:
        task = following(issuer)  # type: ignore[arg-type]
        if task is not None:
            given.append(task)
        return task

    policy.prepare, policy.next = note, take  # type: ignore[method-assign, assignment]
    job = make_job(random_graph(16, 1), TWO)
    simulated = simulate(job.graph, TWO, policy)
    assert len(given) == 16
    seen = Timer().drive(job, policy)
    # The very same object was prepared for, and asked in, both worlds.
    assert len(prepared) == 2
    assert prepared[1] is job
    assert len(given) == 32
    assert sorted(task.id for task in given[16:]) == list(range(16))
    assert {id(task) for task in given[16:]}.isdisjoint(id(task) for task in given[:16])
    assert seen.wrong == []
    assert keeps_order(job, by_op(seen.trace.tasks, "start_ns"), by_op(seen.trace.tasks, "end_ns"))
    assert type(seen.trace) is type(simulated)
    assert seen.trace.policy == simulated.policy


def test_1f1b_is_the_same_schedule_and_policy_in_both_worlds() -> None:
    schedule = generate("1f1b", ranks=2, micro_batches=3)
    stage = PipelineStage(StageTimes(forward=2 * MS, backward=4 * MS))
    graph = pipeline_graph(schedule, [stage] * 2)
    machine = plain_machine(2)
    decisions = {"linearize": UserOrder([str(slot) for program in schedule.programs for slot in program])}
    policy = InOrder()
    simulated = simulate(graph, machine, policy, **decisions)
    seen = Timer().drive(make_job(graph, machine, **decisions), policy)
    assert seen.wrong == []
    for rank in range(2):
        orders = [
            trace.tasks["op"][trace.tasks["stream"] == rank].tolist() for trace in (simulated, seen.trace)
        ]
        assert orders[0] == orders[1]
        names = [seen.trace.job.graph.op_names[op] for op in orders[1]]
        assert names == [str(slot) for slot in schedule.programs[rank]]


def test_driver_holds_the_policy_it_was_given() -> None:
    policy = OutOfOrder(3)
    assert Driver(make_job(random_graph(3, 0), TWO), policy).policy is policy


@pytest.mark.parametrize("streams", [2, 4])
@pytest.mark.parametrize("synchronisation", ["issue", "completion"])
def test_launches_on_streams(streams: int, synchronisation: str) -> None:
    machine = Machine((Device("gpu0", streams=streams, queue_depth=3),))
    job = make_job(random_graph(20, 2), machine, streams=RoundRobinStreams())
    seen = Timer().drive(job, ReadyQueue(synchronisation=synchronisation))
    assert seen.wrong == []
    assert keeps_order(job, by_op(seen.trace.tasks, "start_ns"), by_op(seen.trace.tasks, "end_ns"))
    for stream in range(streams):
        mine = seen.trace.tasks["stream"] == stream
        issued = seen.trace.tasks["issue_ns"][mine]
        assert (np.diff(issued) >= 0).all(), "a stream starts in the order of issue"


@pytest.mark.parametrize(
    "machine", [Machine((Device("gpu0", streams=3, issue_ns=1),)), TWO], ids=["gpu", "cpu"]
)
def test_a_plan_is_executed_exactly(machine: Machine) -> None:
    graph = random_graph(20, 3)
    synchronisation = "issue" if machine is not TWO else "completion"
    plan = simulate(
        graph, machine, ReadyQueue(synchronisation=synchronisation), streams=RoundRobinStreams()
    ).plan()
    seen = Timer().execute(make_job(graph, machine, streams=RoundRobinStreams()), plan)
    assert seen.wrong == []
    again = seen.trace.plan()
    assert set(again.streams) == set(plan.streams)
    for name in plan.streams:
        expected = [task.op for task in plan if task.stream == name]
        assert [task.op for task in again if task.stream == name] == expected


@pytest.mark.parametrize("ns", [1, MS])
def test_the_plan_of_a_case_is_what_issue_in_order_does_whatever_the_durations(ns: int) -> None:
    case = draw("e-random", "timer")[0]
    machine = Machine(tuple(dataclasses.replace(device, issue_ns=1) for device in case.machine().devices))
    policy = InOrder(synchronisation="issue")
    graph = case.graph([ns] * len(case.ops))
    trace = simulate(graph, machine, policy, engine="simpy", **case.decisions())
    plan = case.plan()
    assert plan is not None
    assert plan.digest == trace.plan().digest


def program_plan(job: Job) -> Plan:
    return simulate(
        job.graph, job.machine, InOrder(synchronisation="issue"), streams=RoundRobinStreams()
    ).plan()


def without_waits(plan: object) -> object:
    n = len(plan)  # type: ignore[arg-type]
    return dataclasses.replace(plan, waits=Csr(np.zeros(n + 1, np.int64), np.zeros(0, np.int64)))  # type: ignore[type-var]


@pytest.fixture
def across() -> tuple[Job, Callable[[], object]]:
    """A long op on one stream and its consumer on another, and the plan."""
    b = GraphBuilder("across")
    b.op("long", kind="matmul", duration_ns=300 * MS, attributes={"size": 400, "repeat": 25})
    b.op("reader", kind="matmul", inputs=["long"], duration_ns=MS, attributes={"size": 400, "repeat": 1})
    job = make_job(b.build(), Machine((Device("gpu0", streams=2),)), streams=RoundRobinStreams())
    return job, lambda: program_plan(job)


def test_a_planted_broken_order_is_caught(across: tuple[Job, Callable[[], object]]) -> None:
    job, plan = across
    assert Timer().execute(job, plan()).wrong == []  # type: ignore[arg-type]
    assert Timer().execute(job, without_waits(plan())).wrong == ["reader"]  # type: ignore[arg-type]


def test_a_planted_broken_order_is_caught_by_real_kernels(across: tuple[Job, Callable[[], object]]) -> None:
    job, plan = across
    backend = Threads()
    assert backend.execute(job, plan()).wrong == []  # type: ignore[arg-type]
    assert backend.execute(job, without_waits(plan())).wrong == ["reader"]  # type: ignore[arg-type]


@pytest.mark.parametrize("repeat", [1, 2, 3])
@pytest.mark.parametrize("kind", ["matmul", "elementwise", "copy", "softmax", "attention"])
def test_numpy_kernels_leave_what_they_should(kind: str, repeat: int) -> None:
    b = GraphBuilder("one")
    b.op("a", kind=kind, attributes={"size": 8, "repeat": repeat})
    work = NumpyWork(b.build())
    x, y = work.constants[8]
    work.compute(0)
    powers = np.exp(x @ y.T / 8**0.5)
    expected = {
        "matmul": x @ np.linalg.matrix_power(y, repeat),
        "elementwise": x / 2**repeat + y * (1 - 2.0**-repeat),
        "copy": x,
        "attention": powers / powers.sum(axis=1, keepdims=True) @ y,
    }
    if kind == "softmax":
        assert np.allclose(work.results[0].sum(axis=1), 1)
    else:
        assert np.allclose(work.results[0], expected[kind])


def test_real_kernels_under_a_policy() -> None:
    b = GraphBuilder("products")
    for i in range(8):
        before = [f"o{j}" for j in range(max(0, i - 2), i)]
        b.op(f"o{i}", kind="matmul", inputs=before, duration_ns=1, attributes={"size": 64})
    seen = Threads().drive(make_job(b.build(), TWO), ReadyQueue())
    assert seen.wrong == []


def test_every_waiter_has_a_lock_of_its_own() -> None:
    event = Event()
    first, second = event.waiter(), event.waiter()
    assert first is not None
    assert second is not None
    assert first is not second
    assert not first.acquire(blocking=False)
    event.record()
    assert first.acquire(blocking=False)
    assert second.acquire(blocking=False)
    assert event.waiter() is None


class Refuses(Policy):
    """Gives nothing after the first task."""

    def prepare(self, job: Job) -> None:
        self.tasks: list[Task] = []

    def ready(self, task: Task) -> None:
        if task.op == 0:
            self.tasks.append(task)

    def next(self, issuer: object) -> Task | None:
        return self.tasks.pop() if self.tasks else None


class GivesTwice(Refuses):
    """Gives the first task for ever."""

    def next(self, issuer: object) -> Task | None:
        return self.tasks[0] if self.tasks else None


def test_a_policy_that_stops_is_stuck_at_once() -> None:
    with pytest.raises(StuckError, match="2 tasks remain, among them o1, o2"):
        Timer().drive(make_job(random_graph(3, 0, ms=1), TWO), Refuses())


def test_a_policy_that_gives_a_task_twice_is_refused() -> None:
    with pytest.raises(InputError, match="GivesTwice gave cpu0/w1 op 'o0', which was taken before"):
        Timer().drive(make_job(random_graph(3, 0, ms=1), TWO), GivesTwice())


def test_what_is_not_executed_is_refused_before_anything_runs() -> None:
    two = Machine(
        (Device("a"), Device("b")),
        links=(Link("a->b", "a", "b"),),
        network=lambda machine, context: None,  # type: ignore[arg-type, return-value]
    )
    b = GraphBuilder("one")
    b.op("x", duration_ns=1)
    with pytest.raises(InputError, match="leave the machine's links out"):
        Timer().drive(make_job(b.build(), two), ReadyQueue())


def test_a_plan_that_does_not_fit_is_refused() -> None:
    job = make_job(random_graph(4, 0), Machine((Device("gpu0", streams=2),)), streams=RoundRobinStreams())
    plan = program_plan(job)
    with pytest.raises(UnknownNameError, match="stream 'elsewhere'"):
        Timer().execute(job, dataclasses.replace(plan, streams=("elsewhere", "gpu0/1")))
    small = make_job(random_graph(3, 0), job.machine, streams=RoundRobinStreams())
    doubled = dataclasses.replace(program_plan(small), op=np.array([0, 1, 1]), stream=np.array([0, 1, 1]))
    with pytest.raises(InputError, match="leaves out op 'o2'"):
        Timer().execute(small, doubled)
    hosts = Machine((Device("gpu0", streams=2),), hosts=(Host("h", ("gpu0",), threads=2),))
    mixed = dataclasses.replace(plan, issuers=("h0", "h1"), issuer=np.array([0, 0, 1, 1]))
    with pytest.raises(InputError, match="two issuers feed"):
        Timer().execute(make_job(job.graph, hosts, streams=RoundRobinStreams()), mixed)


def test_clock() -> None:
    begin = now_ns()
    sleep_until(begin + 2 * MS)
    assert now_ns() >= begin + 2 * MS
    before = now_ns()
    sleep_until(begin)  # past: at once
    assert now_ns() >= before
    delay = run_queue_ns()
    assert delay is None or delay >= 0
