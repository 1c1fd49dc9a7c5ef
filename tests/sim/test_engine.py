"""The engine, to the nanosecond: every number here was worked out by hand in the comment beside it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

import pytest
from runs import checked

from devices.machine import make_device
from policies.issue.ready_queue import ReadyQueue
from policies.streams import Recorded
from sim import Device, Graph, GraphBuilder, Host, Issuer, Job, Link, Machine, Policy, Task, Trace, simulate
from sim.base.errors import GraphError, InfeasibleError, InputError, StuckError
from sim.explain.bounds import bounds
from sim.explain.idle import idle_reasons

pytestmark = pytest.mark.usefixtures("both_engines")


def graph_of(
    edges: Mapping[str, Sequence[Any]], duration_ns: int | Mapping[str, int] = 10, **device: str
) -> Graph:
    """Build a graph from {op: inputs}; `device` pins ops by name."""
    builder = GraphBuilder("test")
    for name, inputs in edges.items():
        ns = duration_ns if isinstance(duration_ns, int) else duration_ns[name]
        builder.op(name, inputs=inputs, duration_ns=ns, device=device.get(name))
    return builder.build()


def cpu(workers: int, name: str = "cpu0", **numbers: Any) -> Device:
    return Device(name, "cpu", workers=workers, **numbers)


def intervals(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return {op: (start, end)}, in start order; ``op[i]`` when there are several iterations."""
    names = trace.job.graph.op_names
    out = {}
    for op, iteration, start, end in zip(
        *(trace.tasks[c].tolist() for c in ("op", "iteration", "start_ns", "end_ns")), strict=True
    ):
        out[f"{names[op]}[{iteration}]" if trace.job.iterations > 1 else names[op]] = (start, end)
    return out


FIVE = {"a": [], "b": [], "c": ["b"], "d": ["a", "c"], "e": ["d"]}


def test_chain_is_the_sum() -> None:
    trace = simulate(graph_of({"a": [], "b": ["a"], "c": ["b"]}), Machine((cpu(4),)), ReadyQueue())
    assert intervals(trace) == {"a": (0, 10), "b": (10, 20), "c": (20, 30)}


def test_fork_join_is_its_longest_branch() -> None:
    edges = {"fork": [], "x": ["fork"], "y": ["fork"], "z": ["fork"], "join": ["x", "y", "z"]}
    ns = {"fork": 5, "x": 30, "y": 20, "z": 10, "join": 5}
    assert simulate(graph_of(edges, ns), Machine((cpu(3),)), ReadyQueue()).makespan_ns == 5 + 30 + 5
    # Two workers: x runs 5..35 on one; y 5..25, z 25..35 on the other.
    assert simulate(graph_of(edges, ns), Machine((cpu(2),)), ReadyQueue()).makespan_ns == 40
    assert simulate(graph_of(edges, ns), Machine((cpu(1),)), ReadyQueue()).makespan_ns == 70


def test_five_nodes_on_two_workers() -> None:
    """a and b are ready at once, then c, d and e follow one another."""
    trace = simulate(graph_of(FIVE), Machine((cpu(2),)), ReadyQueue())
    assert intervals(trace) == {"a": (0, 10), "b": (0, 10), "c": (10, 20), "d": (20, 30), "e": (30, 40)}


def test_lifo_runs_the_newest_first() -> None:
    edges = {"root": [], "x": ["root"], "y": ["root"], "y1": ["y"]}
    fifo = simulate(graph_of(edges), Machine((cpu(1),)), ReadyQueue("fifo"))
    lifo = simulate(graph_of(edges), Machine((cpu(1),)), ReadyQueue("lifo"))
    assert list(intervals(fifo)) == ["root", "x", "y", "y1"]
    assert list(intervals(lifo)) == ["root", "y", "y1", "x"]


def test_synchronous_against_asynchronous_issue() -> None:
    """One GPU, issue 4 ns, kernels 10 ns.

    Synchronous: the host waits for each kernel, so a step is 4 + 10. Asynchronous: a is issued at
    4 and runs 4..14; b is issued at 8, c at 12, and both run back to back.
    """
    graph = graph_of({"a": [], "b": ["a"], "c": ["b"]})
    machine = Machine((Device("gpu0", issue_ns=4),))
    waiting = simulate(graph, machine, ReadyQueue(synchronisation="completion"))
    running = simulate(graph, machine, ReadyQueue(synchronisation="issue"))
    assert intervals(waiting) == {"a": (4, 14), "b": (18, 28), "c": (32, 42)}
    assert intervals(running) == {"a": (4, 14), "b": (14, 24), "c": (24, 34)}
    assert running.tasks["issue_ns"].tolist() == [4, 8, 12]


class Alternate:
    """Ops on streams 0, 1, 0, 1, ..."""

    def assign(self, job: Job) -> list[int]:
        return [op % 2 for op in range(len(job.graph))]


def test_every_overhead_of_a_stream_has_its_place() -> None:
    """Issue 3, launch latency 5, gap 1, event 2; a and c on stream 0, b and d on stream 1.

    a is issued at 3 and starts at 3 + 5 = 8, ends 18. b (after a, other stream) is issued at 6 and
    waits for a's event: 18 + 2 = 20, ends 30. c (after nothing) is issued at 9 and follows a on its
    stream: 18 + gap 1 = 19, ends 29. d (after b and c) is issued at 12: b, on its own stream, ends
    30 (+ gap 1 = 31), c's event arrives at 29 + 2 = 31, so it starts at 31.
    """
    graph = graph_of({"a": [], "b": ["a"], "c": [], "d": ["b", "c"]})
    device = Device("gpu0", streams=2, issue_ns=3, launch_latency_ns=5, gap_ns=1, event_ns=2)

    class InProgramOrder(ReadyQueue):
        """A heap would do the same; here the queue is short enough to sort."""

        def next(self, issuer: Issuer) -> Task | None:
            queue = sorted(self._queues[0], key=lambda task: task.op)
            if queue:
                self._queues[0].remove(queue[0])
            return queue[0] if queue else None

    trace = simulate(graph, Machine((device,)), InProgramOrder(synchronisation="issue"), streams=Alternate())
    assert intervals(trace) == {"a": (8, 18), "c": (19, 29), "b": (20, 30), "d": (31, 41)}


@pytest.mark.parametrize(
    ("kind", "end", "bound", "idle"),
    [("reshape", 37, 32, {"launch": 2, "event": 5}), ("copy", 39, 36, {"launch": 6, "event": 3})],
)
def test_a_view_of_no_time_leaves_no_gap(kind: str, end: int, bound: int, idle: dict[str, int]) -> None:
    """Gap 2, event 5: a ends at 10, b begins at 12, c waits until 17 for the event of x, d begins at 27."""
    b = GraphBuilder("view")
    rows = ("a", 10, 0, []), ("b", 0, 0, ["a"]), ("x", 12, 1, []), ("c", 8, 0, ["b", "x"]), ("d", 0, 0, ["c"])
    for name, ns, stream, inputs in (*rows, ("e", 10, 0, ["d"])):
        b.op(name, kind=kind, inputs=inputs, duration_ns=ns, attributes={"stream": stream})
    machine = Machine((Device("gpu0", streams=2, gap_ns=2, event_ns=5),))
    trace = simulate(b.build(), machine, ReadyQueue(synchronisation="issue"), streams=Recorded())
    found = {name: end for name, (_, end) in intervals(trace).items()}
    assert found == {"a": 10, "b": 12, "x": 12, "c": 25, "d": 27, "e": end}
    assert bounds(trace).by_source["stream gpu0/0"] == bound
    assert idle_reasons(trace) == {"gpu0": idle}


def test_a_barrier_of_ranks_is_a_kernel_even_of_no_time() -> None:
    b = GraphBuilder("barrier")
    b.op("meet", kind="barrier", duration_ns=0, attributes={"communicator": "all"})
    b.op("a", inputs=["meet"], duration_ns=10)
    trace = simulate(b.build(), Machine((Device("gpu0", gap_ns=2),)), ReadyQueue())
    assert intervals(trace) == {"meet": (0, 0), "a": (2, 12)}


def test_a_full_launch_queue_blocks_the_host() -> None:
    """Depth 2, issue 1, kernels of 100: op 2 is paid for at 3 but issued when op 0 ends."""
    graph = graph_of({"a": [], "b": [], "c": [], "d": []}, 100)
    machine = Machine((Device("gpu0", issue_ns=1, queue_depth=2),))
    trace = simulate(graph, machine, ReadyQueue(synchronisation="issue"))
    assert trace.tasks["issue_ns"].tolist() == [1, 2, 101, 201]
    assert trace.makespan_ns == 401


class FourStreams:
    """Each op on a stream of its own."""

    def assign(self, job: Job) -> list[int]:
        return list(range(len(job.graph)))


def test_launches_enter_a_full_queue_in_the_order_in_which_they_came() -> None:
    """Depth 1, three host threads, kernels of 10 on streams of their own: a is in the queue, b and c wait.

    b's thread is free when b is in, at 10, takes d, and waits behind c.
    """
    graph = graph_of({"a": [], "b": [], "c": [], "d": []})
    machine = Machine(
        (Device("gpu0", streams=4, queue_depth=1),), hosts=(Host("host", ("gpu0",), threads=3),)
    )
    trace = simulate(graph, machine, ReadyQueue(synchronisation="issue"), streams=FourStreams())
    assert intervals(trace) == {"a": (0, 10), "b": (10, 20), "c": (20, 30), "d": (30, 40)}
    assert trace.tasks["issue_ns"].tolist() == [0, 10, 20, 30]


def test_launches_that_are_paid_for_at_one_instant_go_in_machine_order() -> None:
    """a costs the first thread 3, then c 2; b costs the second one 5. At 5, c is launched before b."""
    builder = GraphBuilder("at 5")
    for name, kind in (("a", "add"), ("b", "mul"), ("c", "sub")):
        builder.op(name, kind=kind, duration_ns=10)
    gpu = make_device("gpu0", {"kind": "gpu", "issue_cost": {"add": "3ns", "mul": "5ns", "sub": "2ns"}})
    machine = Machine((gpu,), hosts=(Host("host", ("gpu0",), threads=2),))
    trace = simulate(builder.build(), machine, ReadyQueue(synchronisation="issue"))
    assert intervals(trace) == {"a": (3, 13), "c": (13, 23), "b": (23, 33)}


@pytest.mark.parametrize("scope", ["group", "machine"])
def test_issuers_are_asked_in_machine_order_whoever_became_eligible_first(scope: str) -> None:
    """a, on the last CPU, makes an op of each CPU eligible, that of the last one first."""
    taken = []

    class Notes(ReadyQueue):
        def next(self, issuer: Issuer) -> Task | None:
            task = super().next(issuer)
            if task is not None:
                taken.append((issuer.name, task.op))
            return task

    graph = graph_of({"a": [], "b": ["a"], "c": ["a"], "d": ["a"]}, a="cpu2", b="cpu2", c="cpu1", d="cpu0")
    policy = Notes()
    policy.scope = scope
    simulate(graph, Machine(tuple(cpu(1, f"cpu{i}") for i in range(3))), policy)
    assert taken == [("cpu2/w0", 0), ("cpu0/w0", 3), ("cpu1/w0", 2), ("cpu2/w0", 1)]


def test_one_host_thread_serves_two_gpus() -> None:
    """The shared host pays 5 ns for each launch, one after another; two hosts pay in parallel."""
    graph = graph_of({"a": [], "b": []}, 10, a="gpu0", b="gpu1")
    devices = (Device("gpu0", issue_ns=5), Device("gpu1", issue_ns=5))
    own = simulate(graph, Machine(devices), ReadyQueue())
    shared = simulate(graph, Machine(devices, hosts=(Host("host", ("gpu0", "gpu1")),)), ReadyQueue())
    assert intervals(own) == {"a": (5, 15), "b": (5, 15)}
    assert intervals(shared) == {"a": (5, 15), "b": (10, 20)}


def test_a_worker_reads_what_a_gpu_has_computed_only_when_it_has() -> None:
    """Under asynchronous issue b (CPU) still waits for a (GPU), and c (GPU) for b."""
    graph = graph_of({"a": [], "b": ["a"], "c": ["b"]}, 10, a="gpu0", b="cpu0", c="gpu0")
    machine = Machine((Device("gpu0", issue_ns=1), cpu(1)))
    trace = simulate(graph, machine, ReadyQueue(synchronisation="issue"))
    assert intervals(trace) == {"a": (1, 11), "b": (11, 21), "c": (22, 32)}


def test_iterations_overlap_as_far_as_edges_allow() -> None:
    """Producer 10, consumer 20, one worker each; the consumer's own state comes from the iteration before."""
    builder = GraphBuilder("stream")
    builder.op("load", duration_ns=10, device="loader")
    builder.op("train", inputs=["load", ("train", 1)], duration_ns=20, device="trainer")
    machine = Machine((cpu(1, "loader"), cpu(1, "trainer")))
    trace = simulate(builder.build(), machine, ReadyQueue(), iterations=3)
    assert intervals(trace) == {
        "load[0]": (0, 10),
        "load[1]": (10, 20),
        "train[0]": (10, 30),
        "load[2]": (20, 30),
        "train[1]": (30, 50),
        "train[2]": (50, 70),
    }


def test_a_distance_bounds_how_far_ahead_a_producer_runs() -> None:
    """A double buffer: load of iteration i waits for train of iteration i - 2."""
    builder = GraphBuilder("double buffer")
    builder.op("load", after=[("train", 2)], duration_ns=1, device="loader")
    builder.op("train", inputs=["load"], duration_ns=20, device="trainer")
    machine = Machine((cpu(1, "loader"), cpu(1, "trainer")))
    trace = simulate(builder.build(), machine, ReadyQueue(), iterations=4)
    starts = {name: start for name, (start, _) in intervals(trace).items()}
    # train runs 1..21, 21..41, 41..61, 61..81
    assert [starts[f"load[{i}]"] for i in range(4)] == [0, 1, 21, 41]


def test_zero_durations_pass_in_one_instant() -> None:
    trace = simulate(graph_of(FIVE, 0), Machine((cpu(1),)), ReadyQueue())
    assert trace.makespan_ns == 0
    assert list(intervals(trace)) == ["a", "b", "c", "d", "e"]


def test_completions_of_an_instant_are_settled_before_anyone_is_asked() -> None:
    """x and y end together; z, which needs both, is taken by the first worker in machine order."""
    trace = simulate(
        graph_of({"x": [], "y": [], "z": ["x", "y"], "w": ["y"]}), Machine((cpu(2),)), ReadyQueue()
    )
    worker = dict(zip(trace.tasks["op"].tolist(), trace.tasks["stream"].tolist(), strict=True))
    assert worker == {0: 0, 1: 1, 2: 0, 3: 1}
    assert trace.makespan_ns == 20


class Never(ReadyQueue):
    """Issues nothing."""

    def next(self, issuer: Issuer) -> Task | None:
        return None


def test_a_policy_that_issues_nothing_is_stuck() -> None:
    with pytest.raises(
        StuckError,
        match=r"(?s)3 tasks remain.*a has all its inputs; the policy never issues it.*b waits for a",
    ):
        simulate(graph_of({"a": [], "b": ["a"], "c": ["b"]}), Machine((cpu(1),)), Never())


class Greedy(ReadyQueue):
    """Gives the same task twice."""

    def next(self, issuer: Issuer) -> Task | None:
        return self._queues[0][0] if self._queues[0] else None


def test_a_task_taken_twice_is_an_error() -> None:
    with pytest.raises(InputError, match=r"Greedy gave cpu0/w0 op 'a', which was taken before"):
        simulate(graph_of({"a": []}), Machine((cpu(1),)), Greedy())


def test_what_is_no_task_is_an_error() -> None:
    class Numbers(Greedy):
        def next(self, issuer: Issuer) -> Any:
            return 3

    with pytest.raises(
        InputError, match=r"Numbers gave cpu0/w0 3, which is no task: next\(\) returns a task"
    ):
        simulate(graph_of({"a": []}), Machine((cpu(1),)), Numbers())


COLUMNS = (
    "known_ns",
    "bottom_level_ns",
    "stream_of",
    "order",
    "graph.duration_ns",
    "graph.topological_order",
)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_policy_cannot_change_what_other_runs_share(column: str) -> None:
    """``rank = job.known_ns; rank += 1000`` would make every op longer, under the next policy, too."""

    class Mine(ReadyQueue):
        def prepare(self, job: Job) -> None:
            rank = attrgetter(column)(job)
            rank += 1000

    with pytest.raises(ValueError, match="read-only"):
        simulate(graph_of({"a": []}), Machine((cpu(1),)), Mine())


def test_a_policy_cannot_write_into_a_job_or_its_graph() -> None:
    writes: list[Callable[[Job], object]] = [
        lambda job: job.graph.attributes[0].update(cores=2),  # type: ignore[attr-defined]
        lambda job: job.graph.attribute("cores").clear(),  # type: ignore[attr-defined]
        lambda job: job.graph.op_names.sort(),  # type: ignore[attr-defined]
        lambda job: job.graph.successors.indices.sort(),
        lambda job: job.programs[0].pop(),  # type: ignore[attr-defined]
        lambda job: job.known_costs_ns.clear(),  # type: ignore[attr-defined]
        lambda job: setattr(job, "machine", None),
        lambda job: setattr(job, "mine", 1),
    ]

    class Mine(ReadyQueue):
        def prepare(self, job: Job) -> None:
            for write in writes:
                with pytest.raises((AttributeError, TypeError, ValueError), match=r"read-only|no attribute"):
                    write(job)
            super().prepare(job)

    builder = GraphBuilder("two")
    builder.op("a", duration_ns=10, attributes={"cores": 1})
    builder.op("b", duration_ns=10, inputs=["a"])
    trace = pickle.loads(pickle.dumps(simulate(builder.build(), Machine((cpu(1),)), ReadyQueue())))
    assert simulate(trace.job.graph, Machine((cpu(1),)), Mine()).makespan_ns == 20


def test_a_changed_graph_has_the_attributes_of_the_first_and_no_views_of_views() -> None:
    builder = GraphBuilder("one")
    builder.op("a", attributes={"cores": 1})
    graph = builder.build()
    assert replace(graph, name="other").attributes is graph.attributes
    assert replace(graph, attributes={**graph.attributes}).attributes[0] is graph.attributes[0]


def test_a_policy_without_verbs_says_what_it_lacks() -> None:
    with pytest.raises(InputError, match=r"Policy must define ready\(\)"):
        simulate(graph_of({"a": []}), Machine((cpu(1),)), Policy())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: Device("d", issue_ns=0.7),
            r"device 'd': issue_ns should be a whole number from 0 on, not 0\.7",
        ),
        (lambda: Device("d", gap_ns=-1), "device 'd': gap_ns should be a whole number from 0 on, not -1"),
        (lambda: Device("d", memory_bytes=-5), "device 'd': memory_bytes should be a whole number from 0 on"),
        (lambda: Device("d", streams=1.5), "device 'd': streams should be a whole number from 1 on"),  # type: ignore[arg-type]
        (lambda: Device("d", queue_depth="x"), "device 'd': queue_depth should be a whole number from 1 on"),  # type: ignore[arg-type]
        (lambda: Device("d", issue_ns_by_kind={"op": 0.5}), "issue_ns_by_kind should be a mapping to"),  # type: ignore[dict-item]
        (lambda: Host("h", "d0"), "host 'h': serves should be a tuple of names, not 'd0'"),  # type: ignore[arg-type]
        (lambda: Host("h", ("d",), 0), "host 'h': threads should be a whole number from 1 on, not 0"),
        (lambda: Machine(Device("d")), r"devices should be a tuple of Device, not Device\("),  # type: ignore[arg-type]
        (
            lambda: Machine((Device("d"),), hosts=("d",)),
            r"hosts should be a tuple of Host, not \('d',\)",
        ),  # type: ignore[arg-type]
        (lambda: Link("l", "a", "b", -5), "link 'l': latency_ns should be a whole number from 0 on, not -5"),
        (
            lambda: Link("l", "a", "b", 5, 0),
            r"link 'l': bandwidth\w+ should be a whole number from 1 on, not 0",
        ),
    ],
)
def test_numbers_of_a_machine_that_mean_nothing_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


def test_rates_of_a_machine_may_be_written_as_floats() -> None:
    link = Link("l", "a", "b", bandwidth_bytes_per_s=25e9)  # type: ignore[arg-type]
    assert (type(link.bandwidth_bytes_per_s), link) == (int, Link("l", "a", "b", 0, 25 * 10**9))


def test_what_no_device_can_run_is_refused_before_time_0() -> None:
    gpu = Device("gpu0", kinds=frozenset({"matmul"}))
    with pytest.raises(
        InfeasibleError, match=r"op 'a' of kind 'op' can run on no device: gpu0 \(gpu\) does not support it"
    ):
        simulate(graph_of({"a": []}), Machine((gpu,)), ReadyQueue())
    for forgotten in ({"outputs": 100}, {"kind": "matmul"}, {"flops": 100}):
        b = GraphBuilder("forgotten")
        b.op("a", kind="reshape", outputs=100)
        b.op("b", inputs=["a"], **forgotten)
        with pytest.raises(InfeasibleError, match=r"op 'b' .* cpu0 \(cpu\) has no cost model, and the op no"):
            simulate(b.build(), Machine((cpu(1),)), ReadyQueue())
    with pytest.raises(
        InputError, match="op 'a' is pinned to 'gpu7', which is no device of the machine; known: cpu, cpu0"
    ):
        simulate(graph_of({"a": []}, 1, a="gpu7"), Machine((cpu(1),)), ReadyQueue())


class Recorder:
    """Writes down what it is told, and changes it afterwards, in vain."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, int]] = []

    def started(self, task: Task) -> None:
        self.log.append(("started", task.op, task.start_ns))
        task.op = task.stream = 7

    def ended(self, task: Task) -> None:
        self.log.append(("ended", task.op, task.end_ns))


def test_observers_see_every_start_and_end_in_order_of_time() -> None:
    recorder = Recorder()
    device = Device("gpu0", launch_latency_ns=5)
    simulate(graph_of({"a": [], "b": ["a"]}), Machine((device,)), ReadyQueue(), observers=[recorder])
    assert recorder.log == [("started", 0, 5), ("ended", 0, 15), ("started", 1, 20), ("ended", 1, 30)]


def test_observers_change_nothing() -> None:
    device = Device("gpu0", streams=2, issue_ns=3, launch_latency_ns=5, gap_ns=1, event_ns=2, queue_depth=2)
    for synchronisation in ("completion", "issue"):
        policy = ReadyQueue(synchronisation=synchronisation)
        alone = simulate(graph_of(FIVE), Machine((device,)), policy, streams=Alternate())
        watched = simulate(
            graph_of(FIVE), Machine((device,)), policy, streams=Alternate(), observers=[Recorder()]
        )
        assert intervals(alone) == intervals(watched)


class Broken:
    """Raises when told of a start."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def started(self, task: Task) -> None:
        raise self.error

    def ended(self, task: Task) -> None:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)])
def test_a_broken_observer_is_dropped_with_a_warning(error: BaseException) -> None:
    with pytest.warns(RuntimeWarning, match="was dropped"):
        trace = simulate(graph_of(FIVE), Machine((cpu(1),)), ReadyQueue(), observers=[Broken(error)])
    assert trace.makespan_ns == 50


def test_observers_and_processors_of_another_form_are_refused() -> None:
    def refused(says: str, processor: Any = None, **given: Any) -> None:
        machine = Machine((Device("gpu0", processor=processor),))
        with pytest.raises(InputError, match=says):
            simulate(graph_of(FIVE), machine, ReadyQueue(), **given)

    refused("observers should be a list of observers, not 3", observers=3)
    refused(r"an observer should have a method started\(task\); int has none", observers=[5])
    refused(r"the processor of 'gpu0' should take \(device, context\): too many", lambda device: None)
    refused(r"the processor of 'gpu0' should have a method start\(task\)", lambda device, context: 5)


def test_a_pool_runs_its_cpu_and_launches_for_a_gpu() -> None:
    """One worker: a (CPU) 0..10, then it pays 5 to launch b, and is free for c (CPU) while b runs."""
    graph = graph_of({"a": [], "b": ["a"], "c": ["a"]}, 10, a="cpu0", b="gpu0", c="cpu0")
    devices = (cpu(1), Device("gpu0", issue_ns=5))
    pool = Machine(devices, hosts=(Host("process", ("cpu0", "gpu0")),))
    assert [issuer.name for issuer in pool.issuers()] == ["cpu0/w0"]
    trace = simulate(graph, pool, ReadyQueue())
    assert intervals(trace) == {"a": (0, 10), "b": (15, 25), "c": (15, 25)}
    with pytest.raises(InputError, match=r"'process' are .* equally many: cpu0 has 1, cpu1 has 2; give all"):
        Machine((cpu(1), cpu(2, "cpu1")), hosts=(Host("process", ("cpu0", "cpu1")),))


@pytest.mark.parametrize("synchronisation", ["completion", "issue"])
def test_an_edge_that_leads_past_the_last_iteration_costs_no_memory(synchronisation: str) -> None:
    b = GraphBuilder("far")
    b.op("a", duration_ns=10)
    b.op("b", duration_ns=10, inputs=["a", ("a", 2**40)], after=[("b", 2**61)])
    policy = ReadyQueue(synchronisation=synchronisation)
    trace = checked(b.build(), Machine((Device("gpu0"),)), policy, iterations=2, engine="simpy")
    assert trace.makespan_ns == 40


def test_a_synchronisation_that_does_not_exist_is_refused() -> None:
    policy = ReadyQueue()
    policy.synchronisation = "isue"
    with pytest.raises(InputError, match="synchronisation 'isue'; did you mean 'issue'"):
        simulate(graph_of({"a": []}), Machine((cpu(1),)), policy)


@pytest.mark.parametrize("given", ["ready-queue", ReadyQueue])
def test_a_policy_is_an_instance(given: Any) -> None:
    with pytest.raises(InputError, match=r"policy should be an instance of a policy, such as ReadyQueue\(\)"):
        simulate(graph_of({"a": []}), Machine((cpu(1),)), given)


def test_what_is_no_graph_or_machine_is_told() -> None:
    graph, machine, mistaken = graph_of({"a": []}), Machine((cpu(1),)), cast("Any", simulate)
    with pytest.raises(InputError, match=r"graph should be a Graph, what build\(\) returns"):
        mistaken(GraphBuilder("g"), machine, ReadyQueue())
    with pytest.raises(InputError, match="machine should be a Machine, not Device"):
        mistaken(graph, cpu(1), ReadyQueue())


@pytest.mark.parametrize("ns", [10.5, "10us", float("nan"), float("inf")])
def test_a_duration_that_is_not_whole_is_refused(ns: Any) -> None:
    """It would be cut without a word."""
    builder = GraphBuilder("one")
    for given in ({"duration_ns": ns}, {"duration_by_kind": {"gpu": ns}}):
        with pytest.raises(GraphError, match="which is no whole number of ns"):
            builder.op("a", **given)
        builder = GraphBuilder("one")
    assert builder.append("a", duration_ns=1e4) == 0
    assert builder.build().duration_ns.tolist() == [10_000]


@pytest.mark.parametrize("number", [1.5, "3", float("nan"), float("inf")])
@pytest.mark.parametrize("of", ["flops", "bytes_read", "bytes_written", "outputs", "stage", "micro_batch"])
def test_sizes_and_costs_that_are_not_whole_are_refused(of: str, number: Any) -> None:
    builder = GraphBuilder("one")
    what = "an output" if of == "outputs" else of
    with pytest.raises(GraphError, match=rf"op 'a' has {what} of .*, which is no whole number"):
        builder.op("a", duration_ns=1, **{of: number})
    builder.op("a", duration_ns=1, **{of: 3e9})
    assert len(builder.build()) == 1


@pytest.mark.parametrize("number", [2.5, "2", -1])
def test_iterations_and_distances_that_are_not_whole_are_refused(number: Any) -> None:
    builder = GraphBuilder("one")
    builder.op("a", duration_ns=1)
    with pytest.raises(InputError, match=rf"iterations should be a whole number from 1 on, not {number!r}"):
        simulate(builder.build(), Machine((cpu(1),)), ReadyQueue(), iterations=number)
    with pytest.raises(InputError, match=rf"seed should be a whole number from 0 on, not {number!r}"):
        simulate(builder.build(), Machine((cpu(1),)), ReadyQueue(), seed=number)
    with pytest.raises(GraphError, match=rf"input \('a', {number!r}\) should be a name, or a name and a dis"):
        builder.op("b", duration_ns=1, inputs=[("a", number)])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"inputs": [("a", None)]},
            r"op 'b': input \('a', None\) should be a name, or a name and a distance, a who",
        ),
        (
            {"inputs": [("a", 1, 2)]},
            r"op 'b': input \('a', 1, 2\) should be a name, or a name and a distance",
        ),
        ({"after": [None]}, "op 'b': control input None should be a name, or a name and a distance"),
        ({"inputs": None}, r"op 'b': None should stand in a list: \[None\]"),
        ({"after": "ab"}, r"op 'b': 'ab' should stand in a list: \['ab'\]"),  # its letters could be ops, too
        ({"inputs": [7]}, "input 7: nothing has this number"),
        ({"after": [-2]}, "control input -2: nothing has this number"),
        ({"kind": ["matmul"]}, r"kind, device, dtype and phase should be text, not \['matmul'\]"),
        ({"device": 0}, "kind, device, dtype and phase should be text, not 0"),
        ({"attributes": "x"}, "op 'b': 'x' should be a mapping"),
        ({"attributes": {1: "x"}}, "op 'b': {1: 'x'} should be a mapping of names"),
        ({"duration_by_kind": {1: 5}}, "op 'b': {1: 5} should be a mapping of names"),
        ({"name": 7}, "an op or tensor needs a name, not 7"),
    ],
)
def test_what_an_op_cannot_have_is_refused(given: dict[str, Any], says: str) -> None:
    builder = GraphBuilder("one")
    builder.op("a", duration_ns=1)
    with pytest.raises(GraphError, match=says):
        builder.build() if builder.op(**{"name": "b", "duration_ns": 1} | given) else None
