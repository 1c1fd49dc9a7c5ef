"""The kernel gives the trace of the engine on SimPy, in every column, compiled and as it is written."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples, seeds
from hypothesis import event, given
from hypothesis import strategies as st

from devices.cores import CorePool
from devices.network import make_network
from devices.sm_processor import LeftoverSMs
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import CriticalPath, ReadyQueue
from policies.issue.replay import ReplayPlan
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from policies.issue.work_queues import KeepFirst, StreamStacks
from sim import Device, Graph, GraphBuilder, Host, Issuer, Job, Link, Machine, Policy, Task, Trace, simulate
from sim.base.compiled import load
from sim.base.errors import InputError, StuckError
from sim.job.build_job import make_job
from sim.job.job import Placement
from sim.job.noise import Noise
from sim.kernel import stealing
from sim.kernel.run import is_compiled, run
from sim.kernel.stealing import FROM_THE_START, NOBODY
from sim.machine.device import Details
from sim.record.record import Wait
from tests.kernel_helpers import KERNELS, same
from tests.policy_helpers import dags


class Drawn(Placement):
    """A placement and streams as drawn: numbers that are taken modulo what there is."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def place(self, graph: Graph, machine: Machine, cost_ns: object) -> list[int]:
        """Return one device index per op."""
        return [self.numbers[op % len(self.numbers)] % len(machine.devices) for op in range(len(graph))]

    def assign(self, job: Job) -> list[int]:
        """Return one lane per op."""
        lanes = [job.machine.devices[d].lanes for d in job.device_of.tolist()]
        return [self.numbers[-1 - op % len(self.numbers)] % n for op, n in enumerate(lanes)]

    def order(self, job: Job) -> list[int]:
        """Return a topological order in which what is free comes in the order of the numbers."""
        graph = job.graph
        rank = {op: (self.numbers[op % len(self.numbers)], op) for op in range(len(graph))}
        edges = graph.edges
        now = edges.distance == 0
        before = [set() for _ in rank]  # type: list[set[int]]
        for a, b in zip(edges.producer[now].tolist(), edges.consumer[now].tolist(), strict=True):
            before[b].add(a)
        order: list[int] = []
        while len(order) < len(rank):
            op = min(
                (op for op in rank if op not in order and before[op] <= set(order)), key=rank.__getitem__
            )
            order.append(op)
        return order


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Draw CPUs and GPUs with overheads that are small, so that much happens at one time."""
    ns = st.integers(0, 4)
    devices = []
    for d in range(draw(st.integers(1, 3))):
        issue: dict[str, Any] = {"issue_ns": draw(ns), "issue_ns_by_kind": {"copy": draw(ns)}}
        if draw(st.booleans()):
            if draw(st.booleans()):
                issue |= {
                    "processor": CorePool,
                    "cores": draw(st.integers(2, 5)),
                    "cores_per_op": draw(st.integers(1, 2)),
                }
            if draw(st.booleans()):
                staging = draw(st.none() | st.integers(1, 12).map(lambda n: n * 10**9 // 4))
                issue |= {"pageable": True, "staging_bytes_per_s": staging}
            devices.append(Device(f"d{d}", "cpu", workers=draw(st.integers(1, 3)), **issue))
        else:
            launch = {"launch_latency_ns": draw(ns), "gap_ns": draw(ns), "event_ns": draw(ns)}
            depth = draw(st.none() | st.integers(1, 3))
            streams = draw(st.integers(1, 3))
            if draw(st.booleans()):
                launch |= {"processor": LeftoverSMs, "details": draw(sms(streams))}
            devices.append(Device(f"d{d}", streams=streams, queue_depth=depth, **launch, **issue))
    served = [d.name for d in devices if not d.workers]
    if draw(st.booleans()):
        served += [d.name for d in devices if d.workers][:1]
    hosts = (Host("host", tuple(served), draw(st.integers(1, 2))),) if served and draw(st.booleans()) else ()
    links = draw(rings([d.name for d in devices])) if len(devices) > 1 and draw(st.booleans()) else ()
    if links and draw(st.integers(0, 3)) == 0:
        copying = replace(devices[0].details, copy_engines=draw(st.integers(1, 2)))
        devices[0] = replace(devices[0], details=copying)
    return Machine(tuple(devices), links, hosts, make_network if links else None)


@st.composite
def sms(draw: st.DrawFn, streams: int) -> Details:
    """Draw the SMs of a GPU, in partitions or not."""
    n = draw(st.integers(2, 12))
    if draw(st.integers(0, 3)):
        return Details(sms=n)
    some = draw(st.integers(1, n - 1))
    of = draw(st.lists(st.integers(0, 1), min_size=streams, max_size=streams))
    return Details(sms=n, partition_sms=(some, n - some), partition_of=tuple(of))


@st.composite
def rings(draw: st.DrawFn, names: list[str]) -> tuple[Link, ...]:
    """Draw links both ways around the devices, so that some routes have several; all alike, or not."""
    kinds = draw(st.sampled_from((["serial"], ["shared"], ["independent"], ["serial", "shared"])))
    links = []
    for a, b in pairwise([*names, names[0]]):
        for source, destination in ((a, b), (b, a)):
            sharing, latency = draw(st.sampled_from(kinds)), draw(st.integers(0, 3))
            rate = draw(st.none() | st.integers(1, 12).map(lambda n: n * 10**9 // 4))
            links.append(Link(f"{source}>{destination}", source, destination, latency, rate, sharing))
    return tuple({link.name: link for link in links}.values())


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Draw a policy that is data, of either synchronisation."""
    word = draw(st.sampled_from(("completion", "issue")))
    return draw(
        st.sampled_from(
            [
                lambda: ReadyQueue("fifo", word),
                lambda: ReadyQueue("lifo", word),
                lambda: CriticalPath(word),
                lambda: InOrder(synchronisation=word),
                lambda: InOrder(per="machine", synchronisation=word),
                lambda: InOrder(in_flight=2),
                lambda: InOrder(in_flight=1, per="machine"),
                lambda: OutOfOrder(2, word),
                lambda: OutOfOrder(5, word),
                lambda: OutOfOrder(None, word),
                Sequential,
                lambda: KeepFirst(runs="side-by-side"),
                lambda: StreamStacks(runs="side-by-side"),
                lambda: StreamStacks(blocking_threads=1, runs="side-by-side"),
                lambda: TensorFlowExecutor(runs="side-by-side"),
                lambda: TensorFlowExecutor(-1, runs="side-by-side"),
                lambda: TensorFlowExecutor(inter_op_parallelism_threads=2, runs="side-by-side"),
                lambda: TensorFlowExecutor(session_inter_op_thread_pool=(1, 1), runs="side-by-side"),
            ]
        )
    )()


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the arguments of `simulate`."""
    iterations = draw(st.integers(1, 3))
    graph = draw(dags(max_ops=14, max_ns=draw(st.sampled_from((5, 40))), distances=iterations > 1))
    some = st.sets(st.integers(0, len(graph) - 1))
    attributes: dict[int, dict[str, Any]] = {op: {} for op in range(len(graph))}
    for op in draw(some):
        attributes[op] = {"grid": draw(st.integers(1, 30)), "cores": draw(st.integers(1, 2))}
    for op in draw(some):
        attributes[op] |= {"stream_id": draw(st.integers(0, 2)), "blocking": draw(st.booleans())}
    for op in draw(some):
        pool = draw(st.integers(0, 1))
        attributes[op] |= {
            "expensive": draw(st.booleans()),
            "session": f"s{pool}",
            "inter_op_thread_pool": pool,
        }
    if draw(st.integers(0, 3)) == 0:
        for op in draw(some):
            attributes[op]["release"] = draw(st.integers(0, 60))
    if draw(st.integers(0, 3)) == 0:  # ops that keep their host thread
        for op in draw(some):
            attributes[op]["host_waits"] = True
    graph = with_attributes(graph, attributes)
    decisions = Drawn(draw(st.lists(st.integers(0, 11), min_size=3, max_size=6)))
    return {
        "graph": graph,
        "machine": draw(machines()),
        "policy": draw(policies()),
        "placement": decisions,
        "streams": decisions,
        "linearize": draw(st.sampled_from((None, decisions))),
        "iterations": iterations,
        "noise": draw(st.sampled_from((None, Noise(sigma=0.5, straggler_probability=0.1)))),
        "seed": draw(st.integers(0, 3)),
    }


def with_attributes(graph: Graph, attributes: dict[int, dict[str, Any]]) -> Graph:
    """Return the graph with other attributes."""
    return replace(graph, attributes=attributes)


def job_of(given: dict[str, Any]) -> tuple[Job, Policy]:
    """Return the job and the policy of the arguments of `simulate`."""
    decided = dict(given)
    graph, machine, policy = (decided.pop(name) for name in ("graph", "machine", "policy"))
    return make_job(graph, machine, **decided), policy


def agree(given: dict[str, Any]) -> Trace | None:
    """Assert that all engines do the same; return the trace, None when the run got stuck."""
    expected: Trace | None = None
    job, policy = job_of(given)
    try:
        with suppress(StuckError):
            expected = simulate(**given, engine="simpy")
    except InputError as error:
        for pure in KERNELS:
            with pytest.raises(InputError, match=re.escape(str(error))):
                run(job, policy, pure=pure)
        return None
    for pure in KERNELS:
        found = run(job, policy, pure=pure)
        if isinstance(policy, TensorFlowExecutor) and policy.as_data(job) is None:  # several source nodes
            assert isinstance(found, str)
            assert "asked task by task" in found
            continue
        if isinstance(found, str) and "threads that steal" in found:
            continue
        if expected is None:
            assert isinstance(found, str), "the kernel ran what gets stuck on SimPy"
            assert "tasks remain" in found
            continue
        if isinstance(found, str) and "a connection carries more" in found:
            continue
        assert not isinstance(found, str), found
        same(expected.tasks, found.tasks)
        same(expected.transfers, found.transfers)
    return expected


@given(runs())
@examples(300)
def test_the_kernel_does_what_simpy_does(given: dict[str, Any]) -> None:
    trace = agree(given)
    event("stuck" if trace is None else "transfers" if len(trace.transfers["id"]) else "no transfers")


@given(runs())
@examples(100)
def test_a_replay_does_too(given: dict[str, Any]) -> None:
    trace = agree(given)
    if trace is not None:
        plan = trace.plan()
        agree({**given, "policy": ReplayPlan(plan, synchronisation=given["policy"].synchronisation)})


def chain(n: int = 3, **of: Any) -> Graph:
    b = GraphBuilder("chain")
    for i in range(n):
        b.op(f"o{i}", inputs=[f"o{i - 1}"] if i else [], duration_ns=10, **of)
    return b.build()


class ByNext(ReadyQueue):
    def next(self, issuer: Issuer) -> Task | None:
        return super().next(issuer)


class ByReady(ReadyQueue):
    def ready(self, task: Task) -> None:
        super().ready(task)


class ByEnded(ReadyQueue):
    def ended(self, task: Task, now_ready: Any, issuer: Any) -> None:
        super().ended(task, now_ready, issuer)


class ByPrepare(ReadyQueue):
    def prepare(self, job: Job) -> None:
        super().prepare(job)


class ByScope(ReadyQueue):
    scope = "machine"


class ByHelper(ReadyQueue):
    def _helper(self) -> None:
        pass


class OnlyInit(ReadyQueue):
    def __init__(self) -> None:
        super().__init__("lifo")


class Below(ByNext):
    pass


def refusal(
    policy: Policy, graph: Graph | None = None, machine: Machine | None = None, **of: Any
) -> str | None:
    found = run(make_job(graph or chain(), machine or Machine((Device("gpu0"),)), **of), policy)
    return found if isinstance(found, str) else None


@pytest.mark.parametrize("policy", [ByNext, ByReady, ByEnded, ByPrepare, ByScope, ByHelper, Below])
def test_a_class_of_ones_own_is_asked_task_by_task(policy: Callable[[], Policy]) -> None:
    assert refusal(policy()) == f"the policy {policy.__name__} has to be asked task by task"  # type: ignore[attr-defined]


def test_another_default_changes_nothing_that_matters() -> None:
    assert refusal(OnlyInit()) is None


def test_a_verb_that_is_replaced_on_the_object_counts() -> None:
    policy = ReadyQueue()
    policy.next = lambda issuer: None  # type: ignore[method-assign]
    assert "ReadyQueue has to be asked" in str(refusal(policy))


def test_what_64_bits_cannot_count_is_refused() -> None:
    b = GraphBuilder("long")
    for i in range(3):
        b.op(f"o{i}", duration_ns=1 << 60)
    assert refusal(ReadyQueue(), b.build()) == "the run may last longer than 64 bits can count"


def test_what_32_bits_cannot_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.kernel.columns._MAX_COUNT", 15)  # (3 ops + 2 * 2 edges) * 2 and a stream
    assert refusal(ReadyQueue()) is None
    monkeypatch.setattr("sim.kernel.columns._MAX_COUNT", 14)
    assert refusal(ReadyQueue()) == "the run may have more tasks than 32 bits can count"


@pytest.mark.parametrize("pure", KERNELS)
def test_an_edge_may_reach_further_than_32_bits_can_count(pure: bool) -> None:
    def tasks(distance: int) -> Any:
        b = GraphBuilder("far")
        b.op("a", inputs=[("b", distance)], duration_ns=10)
        b.op("b", inputs=["a"], duration_ns=5)
        trace = run(make_job(b.build(), Machine((Device("gpu0"),)), iterations=3), ReadyQueue(), pure=pure)
        assert isinstance(trace, Trace)
        return trace.tasks

    same(tasks(3), tasks(1 << 40))


def test_an_estimate_that_changes_is_not_data() -> None:
    policy = TensorFlowExecutor(clock_hz=3_000_000_000)
    assert (
        refusal(policy, machine=Machine((Device("cpu0", "cpu", workers=1),)))
        == "the policy TensorFlowExecutor has to be asked task by task"
    )


def test_other_obstacles_are_named() -> None:
    graph = with_attributes(chain(), {1: {"strict": False}})
    cpu = Machine((Device("cpu0", "cpu", workers=1),))
    assert "strict: false" in str(refusal(ReadyQueue(), graph, cpu))


def test_a_trace_says_which_engine_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = chain(), Machine((Device("gpu0"),))
    which = "kernel" if is_compiled() else "kernel (pure Python)"
    assert simulate(graph, machine, ReadyQueue(), engine="kernel").engine == which
    monkeypatch.setenv("SIM_PURE", "1")
    assert simulate(graph, machine, ReadyQueue(), engine="simpy").engine == "simpy"
    why = "the policy ByNext has to be asked task by task"
    assert simulate(graph, machine, ByNext()).engine == f"simpy: {why}"
    with pytest.raises(InputError, match=f"the kernel cannot run this: {why}"):
        simulate(graph, machine, ByNext(), engine="kernel")
    with pytest.raises(InputError, match="did you mean 'kernel'"):
        simulate(graph, machine, ByNext(), engine="kernal")


def test_a_kernel_that_is_not_compiled_runs_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = chain(), Machine((Device("gpu0"),))
    monkeypatch.setenv("SIM_PURE", "1")
    assert simulate(graph, machine, ReadyQueue()).engine == "kernel (pure Python)"
    monkeypatch.delenv("SIM_PURE")
    if is_compiled():
        assert simulate(graph, machine, ReadyQueue()).engine == "kernel"
    monkeypatch.setattr("sim.kernel.run.is_compiled", lambda: False)
    assert simulate(graph, machine, ReadyQueue()).engine == "simpy: the kernel is not compiled here"
    assert simulate(graph, machine, ReadyQueue(), engine="kernel").engine.startswith("kernel")


def test_who_gets_stuck_is_told_why_whatever_the_engine() -> None:
    graph, machine = chain(), Machine((Device("cpu0", "cpu", workers=1),))
    for engine in ("simpy", "kernel", "auto"):
        with pytest.raises(StuckError, match="o0 has all its inputs"):
            simulate(graph, machine, InOrder(), linearize=Backwards(), engine=engine)


class Backwards:
    def order(self, job: Job) -> list[int]:
        return list(range(len(job.graph)))[::-1]


@pytest.mark.parametrize("seed", range(6))
def test_kernels_that_splinter_the_sms_take_the_same_course(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = GraphBuilder("odd")
    for i in range(250):
        before = {int(j) for j in rng.integers(max(0, i - 12), i, 2)} if i else set()
        b.op(
            f"o{i}",
            inputs=[f"o{j}" for j in sorted(before)],
            duration_ns=int(rng.integers(1, 3000)),
            attributes={"grid": int(rng.integers(1, 600)), "blocks_per_sm": int(rng.integers(1, 3))},
        )
    gpu = Device("gpu0", streams=8, processor=LeftoverSMs, details=Details(sms=132), gap_ns=3, event_ns=5)
    decisions = Drawn(rng.integers(0, 100, 250).tolist())
    policy = ReadyQueue(synchronisation="issue")
    given = {
        "graph": b.build(),
        "machine": Machine((gpu,)),
        "policy": policy,
        "streams": decisions,
        "seed": 0,
    }
    trace = agree(given)
    assert trace is not None
    assert (trace.tasks["wait"] == Wait.RESOURCES).sum() > 20


class Deques:
    """What `Stealing` does, with lists: the back of each is its last entry."""

    def __init__(self, cheap: list[int], pool: list[int], pool_of: list[int]) -> None:
        self.cheap, self.pool, self.pool_of = cheap, pool, pool_of
        self.queue: list[list[int]] = [[] for _ in pool_of]
        self.deque: list[list[int]] = [[] for _ in pool_of]
        self.roots: list[list[int]] = [[] for _ in range(max(pool_of) + 1)]

    def make(self, maker: int, tasks: list[int]) -> None:
        mine = [task for task in tasks if maker >= 0 and self.pool_of[maker] == self.pool[task]]
        kept = [task for task in mine if not self.cheap[task]]
        for task in tasks:
            if maker == FROM_THE_START:
                self.roots[self.pool[task]].append(task)
            elif task not in mine:
                self.deque[self.pool_of.index(self.pool[task])].append(task)
            elif self.cheap[task]:
                self.queue[maker].append(task)
        if kept and not self.queue[maker]:
            self.queue[maker].append(kept.pop())
        for task in kept:
            self.deque[maker].insert(0, task)

    def take(self, who: int) -> int:
        pool = self.pool_of[who]
        roots, self.roots[pool] = self.roots[pool], []
        self.make(who, roots)
        of_pool = [other for other in range(len(self.pool_of)) if self.pool_of[other] == pool]
        others = [other for other in of_pool if other > who] + [other for other in of_pool if other < who]
        for mine in (self.queue[who], self.deque[who]):
            if mine:
                return mine.pop(0)
        return next((self.deque[other].pop() for other in others if self.deque[other]), NOBODY)


@pytest.mark.parametrize("stealing", [stealing, load("stealing")])
@pytest.mark.parametrize("seed", seeds(20))
def test_queues_and_deques_in_two_columns_are_those_in_lists(stealing: Any, seed: int) -> None:
    draw, n, pool_of = random.Random(seed), 60, [0, 0, 0, 1, 1]
    cheap = [int(draw.random() < 0.3) for _ in range(n)]
    pool = [draw.choice(pool_of) for _ in range(n)]
    columns, lists = stealing.Stealing(n, n, cheap, pool, pool_of), Deques(cheap, pool, pool_of)
    made = 0
    while made < n:
        more = list(range(made, min(n, made + draw.randint(1, 5))))
        maker = draw.randint(NOBODY, 4) if made else FROM_THE_START
        made += len(more)
        lists.make(maker, more)
        columns.begin(maker)
        for task in more:
            columns.add(task, task)
        columns.finish()
        for _ in range(draw.randint(0, 5)):
            who = draw.randrange(len(pool_of))
            assert columns.take(who) == lists.take(who)
    for who in range(len(pool_of)):
        assert [columns.take(who) for _ in range(n)] == [lists.take(who) for _ in range(n)]


@pytest.mark.skipif("SIM_CHECKED_KERNEL" not in os.environ, reason="wants the kernel of make test-all")
def test_of_a_checked_kernel_an_index_out_of_bounds_is_an_error() -> None:
    checked = load("stealing")
    assert str(Path(os.environ["SIM_CHECKED_KERNEL"]).resolve()) in str(checked.__file__)
    some = checked.Stealing(4, 4, [0] * 4, [0] * 4, [0, 0])
    with pytest.raises(IndexError):
        some.add(9, 9)
