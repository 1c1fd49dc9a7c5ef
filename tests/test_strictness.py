"""Non-strict ops: they start with the first of their inputs; everything else happens as it would."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from drawn_runs import draw_graph, draw_machine
from hypothesis import given
from hypothesis import strategies as st
from policy_helpers import FRAMEWORKS, cpu, gpu, same_times, spans

from devices.memory.tensors import tensor_memory
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from policies.issue.replay import Planned, Replay
from policies.issue.work_queues import KeepFirst, StreamStacks
from policies.rewrite.fusion import Fusion
from sim import Device, Graph, GraphBuilder, Link, Machine, Policy, Trace, plugins, simulate
from sim.bounds import critical_path_ns, lower_bound_ns
from sim.dependencies import dependencies
from sim.errors import GraphError, InfeasibleError, InputError, InvariantError
from sim.explain.idle import idle_reasons
from sim.explain.path import executed_path
from sim.job import make_job
from sim.strictness import non_strict_ops

LOOSE = {"strict": False}

POLICIES: dict[str, Callable[[], Policy]] = {
    "tfrt": StreamStacks,
    "onnxruntime-parallel": KeepFirst,
    "at completion": ReadyQueue,
    "at issue": lambda: ReadyQueue(synchronisation="issue"),
}

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def join(strict: bool = False, *, after: str | None = None) -> Graph:
    """Return fast (10) and slow (50) into join (10), then last (10); `gate` takes 30."""
    b = GraphBuilder("join")
    b.op("fast", duration_ns=10)
    b.op("slow", duration_ns=50)
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
    trace = simulate(join(), cpu(3), policy())
    trace.check()
    assert spans(trace) == {
        "fast": (0, 10), "slow": (0, 50), "gate": (0, 30), "join": (10, 20), "last": (20, 30)
    }  # fmt: skip
    assert spans(simulate(join(strict=True), cpu(3), policy()))["join"] == (50, 60)


@every_policy
@pytest.mark.parametrize(("after", "start_ns"), [("gate", 30), ("fast", 10), ("slow", 50)])
def test_a_control_edge_is_always_waited_for(policy: Callable[[], Policy], after: str, start_ns: int) -> None:
    trace = simulate(join(after=after), cpu(3), policy())
    trace.check()
    assert spans(trace)["join"] == (start_ns, start_ns + 10)


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_every_runtime_runs_it_once(name: str) -> None:
    choices = {k: v for k, v in FRAMEWORKS[name].items() if k not in ("streams", "linearize", "launch")}
    policy: Policy = plugins.lookup("sim.policies", choices.pop("name"))(**choices)
    trace = simulate(join(), cpu(3), policy, iterations=2)
    trace.check()
    assert np.bincount(trace.tasks["op"]).tolist() == [2] * 5


@every_policy
def test_control_edges_alone_do_not_start_it(policy: Callable[[], Policy]) -> None:
    """The gate opens at 5, and the first input comes at 10."""
    b = GraphBuilder("gate first")
    for name, ns in {"gate": 5, "a": 10, "b": 20}.items():
        b.op(name, duration_ns=ns)
    b.op("join", inputs=["a", "b"], after=["gate"], duration_ns=1, attributes=LOOSE)
    trace = simulate(b.build(), cpu(3), policy())
    trace.check()
    assert spans(trace)["join"] == (10, 11)


@every_policy
def test_an_input_that_is_there_from_the_start_is_the_first(policy: Callable[[], Policy]) -> None:
    b = GraphBuilder("parameter")
    b.parameter("w", 100)
    b.op("a", duration_ns=10)
    b.op("gate", duration_ns=4)
    b.op("join", inputs=["a", "w"], after=["gate"], duration_ns=1, attributes=LOOSE)
    trace = simulate(b.build(), cpu(3), policy())
    trace.check()
    assert spans(trace)["join"] == (4, 5)
    assert critical_path_ns(trace) == 10


def test_what_reads_one_tensor_twice_runs_once() -> None:
    b = GraphBuilder("twice")
    b.op("a", duration_ns=10)
    b.op("join", inputs=["a", "a"], duration_ns=1, attributes=LOOSE)
    trace = simulate(b.build(), cpu(1), ReadyQueue())
    trace.check()
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
    trace = simulate(b.build(), cpu(3), ReadyQueue(), iterations=3)
    trace.check()
    start = {op: trace.tasks["start_ns"][trace.tasks["op"] == k].tolist() for k, op in enumerate("fsj")}
    assert start == {"f": [0, 5, 20], "s": [0, 50, 100], "j": [0, 15, 30]}
    assert critical_path_ns(trace) == trace.makespan_ns == 150


def test_the_first_arrival_over_a_link_counts() -> None:
    """Near (30) is at hand at 30; far (10) travels 5 ns and is there at 15."""
    b = GraphBuilder("far")
    b.op("near", duration_ns=30, device="d0")
    b.op("far", outputs=1, duration_ns=10, device="d1")
    b.op("join", inputs=["near", "far"], duration_ns=1, device="d0", attributes=LOOSE)
    devices = (Device("d0", "cpu", workers=2), Device("d1", "cpu", workers=1))
    machine = Machine(devices, (Link("d1->d0", "d1", "d0", 5, None),), network=make_network)
    trace = simulate(b.build(), machine, ReadyQueue())
    trace.check()
    assert spans(trace)["join"] == (15, 16)
    plan = trace.plan()
    assert [plan[k].op for k in plan[2].waits] == ["far"]
    assert [(s.kind, s.start_ns, s.end_ns) for s in executed_path(trace)] == [("task", 0, 30)]


# -- what is said about it ----------------------------------------------------------------------


def test_bounds_wait_for_the_earliest_input_only() -> None:
    """Slow takes 50 on its own; fast, join and last 30; a strict join makes that 70."""
    assert critical_path_ns(make_job(join(), cpu(3))) == 50
    assert critical_path_ns(make_job(join(strict=True), cpu(3))) == 70
    assert critical_path_ns(make_job(join(after="gate"), cpu(3))) == 50
    assert lower_bound_ns(make_job(join(), cpu(1))) == 110


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
    again = simulate(join(after="gate"), cpu(3), Replay(plan), placement=planned, streams=planned)
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


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("synchronisation", ["completion", "issue"])
def test_streams_refuse(synchronisation: str) -> None:
    with pytest.raises(
        InfeasibleError, match="op 'join' has strict: false and is launched on a stream of gpu0"
    ):
        simulate(join(), gpu(2), ReadyQueue(synchronisation=synchronisation))


def test_control_flow_refuses() -> None:
    b = GraphBuilder("branch")
    b.op("p", attributes={"outcome": True})
    b.op("x")
    b.op("s", kind="switch", inputs=["x", "p"], outputs=[1, 1])
    b.op("f", inputs=["s:0"])
    b.op("t", inputs=["s:1"], attributes=LOOSE)
    b.op("m", kind="merge", inputs=["f", "t"])
    with pytest.raises(InputError, match="op 't' has strict: false, and graph 'branch' has control flow"):
        simulate(b.build(), cpu(1), ReadyQueue())


def test_an_allocator_refuses() -> None:
    with pytest.raises(InputError, match="an allocator counts readers"):
        simulate(join(), cpu(3), ReadyQueue(), memory=tensor_memory())


def test_a_word_is_no_truth() -> None:
    b = GraphBuilder("word")
    b.op("a", attributes={"strict": "no"})
    with pytest.raises(GraphError, match="op 'a': strict is true or false; found 'no'"):
        non_strict_ops(b.build())


@pytest.mark.parametrize(("strict", "left"), [(True, 2), (False, 3)])
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

    class Drawn:
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
    assert critical_path_ns(trace) <= critical_path_ns(run(tight))
    assert same_times(run(tight), run({}))
