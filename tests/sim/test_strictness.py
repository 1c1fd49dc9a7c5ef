"""Non-strict ops: they start with the first of their inputs; everything else happens as it would."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from drawn_runs import draw_graph, draw_machine
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from policy_helpers import FRAMEWORKS, cpu, gpu, same_times, spans
from program_helpers import programs
from runs import checked

from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from policies.issue.replay import Planned, ReplayPlan
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.work_queues import KeepFirst, StreamStacks
from policies.rewrite.fusion import Fusion
from scenarios.ops.control_flow import while_loop
from sim import Device, Graph, GraphBuilder, Link, Machine, Policy, Trace, simulate
from sim.base import plugins
from sim.base.errors import GraphError, InfeasibleError, InvariantError
from sim.explain.bounds import bounds
from sim.explain.idle import idle_reasons
from sim.explain.path import executed_path
from sim.job.build_job import make_job
from sim.job.job import Placement
from sim.readiness.eligibility import non_strict_ops
from sim.record.dependencies import dependencies

LOOSE = {"strict": False}

POLICIES: dict[str, Callable[[], Policy]] = {
    "tfrt": StreamStacks,
    "onnxruntime-parallel": KeepFirst,
    "at completion": ReadyQueue,
    "at issue": lambda: ReadyQueue(synchronisation="issue"),
}

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def join(strict: bool = False, *, after: str | None = None, sizes: bool = False) -> Graph:
    """Return fast (10) and slow (50) into join (10), then last (10); `gate` takes 30."""
    b = GraphBuilder("join")
    b.op("fast", outputs=100 * sizes, duration_ns=10)
    b.op("slow", outputs=200 * sizes, duration_ns=50)
    b.op("gate", duration_ns=30)
    b.op(
        "join",
        inputs=["slow", "fast"],
        after=[after] if after else [],
        duration_ns=10,
        attributes={"strict": strict},
    )
    b.op("last", inputs=["join"], duration_ns=10)
    return b.build()


# -- worked by hand -----------------------------------------------------------------------------


@every_policy
def test_a_join_starts_after_the_fast_branch_and_the_slow_one_is_still_computed(
    policy: Callable[[], Policy],
) -> None:
    trace = checked(join(), cpu(3), policy())
    assert spans(trace) == {
        "fast": (0, 10), "slow": (0, 50), "gate": (0, 30), "join": (10, 20), "last": (20, 30)
    }  # fmt: skip
    assert spans(simulate(join(strict=True), cpu(3), policy()))["join"] == (50, 60)


@every_policy
@pytest.mark.parametrize(("after", "start_ns"), [("gate", 30), ("fast", 10), ("slow", 50)])
def test_a_control_edge_is_always_waited_for(policy: Callable[[], Policy], after: str, start_ns: int) -> None:
    trace = checked(join(after=after), cpu(3), policy())
    assert spans(trace)["join"] == (start_ns, start_ns + 10)


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_every_runtime_runs_it_once(name: str) -> None:
    beside = ("streams", "linearize", "cuda_graph", "allocator")
    choices = {k: v for k, v in FRAMEWORKS[name].items() if k not in beside}
    policy: Policy = plugins.lookup("sim.policies", choices.pop("name"))(**choices)
    trace = checked(join(), cpu(3), policy, iterations=2)
    assert np.bincount(trace.tasks["op"]).tolist() == [2] * 5


@every_policy
def test_control_edges_alone_do_not_start_it(policy: Callable[[], Policy]) -> None:
    """The gate opens at 5, and the first input comes at 10."""
    b = GraphBuilder("gate first")
    for name, ns in {"gate": 5, "a": 10, "b": 20}.items():
        b.op(name, duration_ns=ns)
    b.op("join", inputs=["a", "b"], after=["gate"], duration_ns=1, attributes=LOOSE)
    trace = checked(b.build(), cpu(3), policy())
    assert spans(trace)["join"] == (10, 11)


@every_policy
def test_an_input_that_is_there_from_the_start_is_the_first(policy: Callable[[], Policy]) -> None:
    b = GraphBuilder("parameter")
    b.parameter("w", 100)
    b.op("a", duration_ns=10)
    b.op("gate", duration_ns=4)
    b.op("join", inputs=["a", "w"], after=["gate"], duration_ns=1, attributes=LOOSE)
    trace = checked(b.build(), cpu(3), policy())
    assert spans(trace)["join"] == (4, 5)
    assert bounds(trace).critical_path_ns == 10


def test_what_reads_one_tensor_twice_runs_once() -> None:
    b = GraphBuilder("twice")
    b.op("a", duration_ns=10)
    b.op("join", inputs=["a", "a"], duration_ns=1, attributes=LOOSE)
    trace = checked(b.build(), cpu(1), ReadyQueue())
    assert spans(trace)["join"] == (10, 11)


def test_iterations() -> None:
    """Join reads slow of the iteration before, which is there from the start in the first: join 0..5.

    From the second on fast comes first: join 0..5, fast 5..15, join 15..20, fast 20..30, join 30..35,
    beside slow 0..50, 50..100, 100..150.
    """
    b = GraphBuilder("loop")
    b.op("fast", inputs=[("join", 1)], duration_ns=10)
    b.op("slow", inputs=[("slow", 1)], duration_ns=50)
    b.op("join", inputs=["fast", ("slow", 1)], duration_ns=5, attributes=LOOSE)
    trace = checked(b.build(), cpu(3), ReadyQueue(), iterations=3)
    start = {op: trace.tasks["start_ns"][trace.tasks["op"] == k].tolist() for k, op in enumerate("fsj")}
    assert start == {"f": [0, 5, 20], "s": [0, 50, 100], "j": [0, 15, 30]}
    assert bounds(trace).critical_path_ns == trace.makespan_ns == 150


def test_the_first_arrival_over_a_link_counts() -> None:
    """Near (30) is at hand at 30; far (10) travels 5 ns and is there at 15."""
    b = GraphBuilder("far")
    b.op("near", duration_ns=30, device="d0")
    b.op("far", outputs=1, duration_ns=10, device="d1")
    b.op("join", inputs=["near", "far"], duration_ns=1, device="d0", attributes=LOOSE)
    devices = (Device("d0", "cpu", workers=2), Device("d1", "cpu", workers=1))
    machine = Machine(devices, (Link("d1->d0", "d1", "d0", 5, None),), network=make_network)
    trace = checked(b.build(), machine, ReadyQueue())
    assert spans(trace)["join"] == (15, 16)
    plan = trace.plan()
    assert [plan[k].op for k in plan[2].waits] == ["far"]
    assert [(s.kind, s.start_ns, s.end_ns) for s in executed_path(trace)] == [("task", 0, 30)]


# -- what is said about it ----------------------------------------------------------------------


def test_bounds_wait_for_the_earliest_input_only() -> None:
    """Slow takes 50 on its own; fast, join and last 30; a strict join makes that 70."""
    assert bounds(make_job(join(), cpu(3))).critical_path_ns == 50
    assert bounds(make_job(join(strict=True), cpu(3))).critical_path_ns == 70
    assert bounds(make_job(join(after="gate"), cpu(3))).critical_path_ns == 50
    assert bounds(make_job(join(), cpu(1))).lower_bound_ns == 110


def test_no_edge_leads_from_what_came_too_late() -> None:
    trace = simulate(join(), cpu(3), ReadyQueue())
    edges = dependencies(trace)
    names = [trace.job.graph.op_names[op] for op in trace.tasks["op"].tolist()]
    pairs = {
        (names[p], names[c]) for p, c in zip(edges.producer.tolist(), edges.consumer.tolist(), strict=True)
    }
    assert pairs == {("fast", "join"), ("join", "last")}


def test_explanations_name_the_first_input() -> None:
    """On two devices: what waits for join waits for fast, and the path from last leads there."""
    b = GraphBuilder("two")
    b.op("fast", duration_ns=10, device="d0")
    b.op("slow", duration_ns=25, device="d0")
    b.op("join", inputs=["slow", "fast"], duration_ns=20, device="d1", attributes=LOOSE)
    machine = Machine((Device("d0", "cpu", workers=2), Device("d1", "cpu", workers=1)))
    trace = simulate(b.build(), machine, ReadyQueue())
    assert idle_reasons(trace)["d1"] == {"dependency": 10}
    steps = [
        (trace.job.graph.op_names[trace.tasks["op"][s.row]], s.start_ns, s.end_ns)
        for s in executed_path(trace)
    ]
    assert steps == [("fast", 0, 10), ("join", 10, 30)]


def test_a_plan_waits_for_what_came_first_and_replays_to_the_same_times() -> None:
    trace = simulate(join(after="gate"), cpu(3), ReadyQueue())
    plan = trace.plan()
    waits = {task.op: {plan[k].op for k in task.waits} for task in plan}
    assert "slow" not in waits["join"]
    planned = Planned(plan)
    again = simulate(join(after="gate"), cpu(3), ReplayPlan(plan), placement=planned, streams=planned)
    assert same_times(trace, again)


def test_a_start_before_the_first_input_is_found() -> None:
    trace = simulate(join(), cpu(3), ReadyQueue())
    row = trace.job.graph.index("join")
    k = int(np.flatnonzero(trace.tasks["op"] == row)[0])
    for column in ("ready_ns", "issue_ns", "start_ns", "end_ns"):
        trace.tasks[column][k] -= 1
    with pytest.raises(InvariantError, match="first of its inputs was there at 10 ns"):
        trace.check()


def test_a_start_before_a_control_edge_is_found() -> None:
    trace = simulate(join(after="gate"), cpu(3), ReadyQueue())
    k = int(np.flatnonzero(trace.tasks["op"] == trace.job.graph.index("join"))[0])
    for column in ("ready_ns", "issue_ns", "start_ns", "end_ns"):
        trace.tasks[column][k] -= 1
    with pytest.raises(InvariantError, match="op 'join' started at 29 ns, before op 'gate' ended at 30 ns"):
        trace.check()


# -- in branches and loops ------------------------------------------------------------------------


def branch(outcome: bool, *, after: str = "", also: str = "") -> Graph:
    """A join of both sides of a condition (the true one 10, the false one 20), and of another op."""
    b = GraphBuilder("branch")
    b.op("p", duration_ns=1, attributes={"outcome": outcome})
    b.op("x", duration_ns=0)
    b.op("s", kind="switch", inputs=["x", "p"], outputs=[1, 1], duration_ns=0)
    b.op("f", inputs=["s:0"], duration_ns=20)
    b.op("t", inputs=["s:1"], duration_ns=10)
    b.op("other", duration_ns=50)
    follows = [after] if after else []
    b.op("join", inputs=["f", "t", *([also] if also else [])], after=follows, duration_ns=1, attributes=LOOSE)
    b.op("end", kind="merge", inputs=["join", "f"], duration_ns=0)
    return b.build()


def runs(trace: Trace, name: str) -> list[tuple[int, bool]]:
    """Return start and deadness of every run of an op."""
    mine = trace.tasks["op"] == trace.job.graph.index(name)
    return list(
        zip(trace.tasks["start_ns"][mine].tolist(), (trace.tasks["dead"][mine] != 0).tolist(), strict=True)
    )


@every_policy
@pytest.mark.parametrize(
    ("outcome", "options", "expected"),
    [
        (True, {}, (11, False)),  # the dead side does not count
        (False, {}, (21, False)),
        (True, {"also": "other"}, (11, False)),
        (True, {"after": "other"}, (50, False)),
        (True, {"after": "f"}, (11, True)),  # it follows what is dead
        (False, {"after": "f"}, (21, False)),
    ],
)
def test_the_first_live_input_counts(
    policy: Callable[[], Policy], outcome: bool, options: dict[str, str], expected: tuple[int, bool]
) -> None:
    trace = checked(branch(outcome, **options), cpu(4), policy())
    assert runs(trace, "join") == [expected]
    assert bounds(trace).critical_path_ns <= trace.makespan_ns


def test_when_all_inputs_are_dead_so_is_the_op() -> None:
    b = GraphBuilder("dead")
    b.op("p", duration_ns=1, attributes={"outcome": True})
    b.op("s", kind="switch", inputs=["p", "p"], outputs=[1, 1], duration_ns=0)
    for name in ("f", "g"):
        b.op(name, inputs=["s:0"], duration_ns=9)
    b.op("join", inputs=["f", "g"], duration_ns=9, attributes=LOOSE)
    b.op("end", kind="merge", inputs=["join", "s:1"], duration_ns=0)
    trace = checked(b.build(), cpu(4), ReadyQueue())
    assert runs(trace, "join") == [(1, True)]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "tfrt"])  # which has one thread here
@pytest.mark.parametrize("parallel", [1, 3])
def test_in_a_loop_it_runs_once_in_each_iteration(policy: str, parallel: int) -> None:
    """The join passes fast (10) on, beside slow (15), which holds the iteration all the same."""

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("fast", inputs=[v["i"]], duration_ns=10)
        b.op("slow", inputs=[v["i"]], duration_ns=15)
        return {"i": b.op("join", inputs=["slow", "fast"], duration_ns=1, attributes=LOOSE)}

    b = GraphBuilder("loop")
    b.op("zero", duration_ns=0)
    while_loop(b, "loop", {"i": "zero"}, body, trips=3, parallel_iterations=parallel)
    trace = checked(b.build(), cpu(4), POLICIES[policy]())
    step = 15 if parallel == 1 else 11  # one at a time: the next begins when slow has ended
    assert [start for start, dead in runs(trace, "join") if not dead] == [10 + step * k for k in range(3)]
    assert [dead for _, dead in runs(trace, "join")] == [False] * 3 + [True]


@examples(60)
@given(g=programs(), loose=st.lists(st.booleans(), min_size=1, max_size=5), cores=st.integers(1, 4))
def test_programs_run_the_same_ops_strict_or_not(g: Graph, loose: list[bool], cores: int) -> None:
    """Which ops run, and how often, does not depend on who waits for what."""
    ops = [op for op in range(len(g)) if g.kind(op) == "op"]
    attributes = {op: {**g.attributes.get(op, {}), "strict": not loose[op % len(loose)]} for op in ops}
    changed = dataclasses.replace(g, attributes={**g.attributes, **attributes})
    counts = []
    for graph in (g, changed):
        trace = checked(graph, cpu(cores), TensorFlowExecutor())
        assert bounds(trace).critical_path_ns <= trace.makespan_ns
        counts.append(np.bincount(trace.tasks["op"][trace.tasks["dead"] == 0], minlength=len(g)).tolist())
    assert counts[0] == counts[1]


# -- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 2])
def test_what_nobody_waited_for_is_given_back(iterations: int) -> None:
    """Fast is held until join has read it (10..20); slow until it is made (50): its reader is through."""
    trace = checked(join(sizes=True), cpu(3), ReadyQueue(), memory=tensor_memory(), iterations=iterations)
    assert trace.memory is not None
    log = trace.memory
    assert log["change"].sum() == 0
    graph = trace.job.graph
    freed = {
        (graph.tensor_name(int(t)), int(at))
        for t, at, change, i in zip(
            *(log[c] for c in ("tensor", "time_ns", "change", "iteration")), strict=True
        )
        if change < 0 and not i
    }
    if iterations == 1:
        assert {("fast", 20), ("slow", 50)} <= freed


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_memory_comes_back_whatever_is_not_strict(seed: int, iterations: int) -> None:
    rng = np.random.default_rng(seed)
    graph, machine = draw_graph(rng, int(rng.integers(1, 25)), iterations > 1), draw_machine(rng)
    device_of: list[int] = rng.integers(0, len(machine.devices), len(graph)).tolist()
    by_worker = [machine.devices[d].workers > 0 for d in device_of]
    loose = {op: {"strict": bool(rng.random() < 0.5)} for op in range(len(graph)) if by_worker[op]}

    class Drawn(Placement):
        def place(self, graph: object, machine: object, cost_ns: object) -> list[int]:
            return device_of

    for lifetime in ("execution", "issue"):
        trace = checked(
            dataclasses.replace(graph, attributes=loose),
            machine,
            ReadyQueue(synchronisation="issue"),
            placement=Drawn(),
            memory=tensor_memory(lifetime=lifetime),
            iterations=iterations,
        )
        assert trace.memory is not None
        here = trace.memory["iteration"] >= 0  # not what is there from the beginning
        assert trace.memory["change"][here].sum() == 0


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("synchronisation", ["completion", "issue"])
def test_streams_refuse(synchronisation: str) -> None:
    with pytest.raises(
        InfeasibleError, match="op 'join' has strict: false and is launched on a stream of gpu0"
    ):
        simulate(join(), gpu(2), ReadyQueue(synchronisation=synchronisation))


def test_streams_refuse_in_a_loop_too() -> None:
    with pytest.raises(InfeasibleError, match="op 'join' has strict: false and is launched on a stream"):
        simulate(branch(True), gpu(2), ReadyQueue())


def test_a_word_is_no_truth() -> None:
    b = GraphBuilder("word")
    b.op("a", attributes={"strict": "no"})
    with pytest.raises(GraphError, match="op 'a': strict: 'no' is neither true nor false"):
        non_strict_ops(b.build())


@pytest.mark.parametrize(("strict", "left"), [(True, 1), (False, 3)])
def test_fusion_leaves_it_alone(strict: bool, left: int) -> None:
    """An op fused with its only producer would wait for the producer's inputs, all of them."""
    b = GraphBuilder("relu")
    b.op("slow", kind="relu", duration_ns=50)
    b.op("fast", kind="relu", duration_ns=10)
    b.op("join", kind="add", inputs=["fast", "slow"], duration_ns=1, attributes={"strict": strict})
    assert len(Fusion().apply(b.build())) == left


# -- properties ---------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(POLICIES)), st.integers(1, 4))
def test_making_ops_non_strict_breaks_nothing(seed: int, policy: str, iterations: int) -> None:
    """Whatever runs on workers is made non-strict or not; a strict attribute alone changes nothing."""
    rng = np.random.default_rng(seed)
    graph, machine = draw_graph(rng, int(rng.integers(1, 25)), iterations > 1), draw_machine(rng)
    device_of: list[int] = rng.integers(0, len(machine.devices), len(graph)).tolist()
    by_worker = [machine.devices[d].workers > 0 for d in device_of]
    loose = {op: {"strict": bool(rng.random() < 0.5)} for op in range(len(graph)) if by_worker[op]}
    tight = {op: {"strict": True} for op in loose}

    class Drawn(Placement):
        def place(self, graph: object, machine: object, cost_ns: object) -> list[int]:
            return device_of

    def run(attributes: dict[int, dict[str, bool]]) -> Trace:
        changed = dataclasses.replace(graph, attributes=attributes)
        return simulate(changed, machine, POLICIES[policy](), placement=Drawn(), iterations=iterations)

    trace = run(loose)
    trace.check()
    assert sum(step.end_ns - step.start_ns for step in executed_path(trace)) == trace.makespan_ns
    edges = dependencies(trace)
    end = np.concatenate((trace.tasks["end_ns"], trace.transfers["end_ns"]))
    start = np.concatenate((trace.tasks["start_ns"], trace.transfers["start_ns"]))
    assert (end[edges.producer] <= start[edges.consumer]).all()
    plan = trace.plan()
    assert type(plan).from_json(plan.to_json()).digest == plan.digest
    assert bounds(trace).critical_path_ns <= bounds(run(tight)).critical_path_ns
    assert same_times(run(tight), run({}))
