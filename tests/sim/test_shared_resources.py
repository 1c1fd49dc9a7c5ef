"""Resources that ops take beside their device, releases, and what schedules with due dates come to."""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.cores import CorePool
from devices.machine import make_machine
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import ReadyQueue
from policies.streams import RoundRobinStreams
from sim import Device, Graph, GraphBuilder, Machine, Trace, simulate
from sim.base.errors import InfeasibleError, InputError
from sim.explain.bounds import bounds
from sim.explain.derived import DerivedColumns
from sim.explain.idle import final_waits, idle_reasons
from sim.explain.narration import op_text
from sim.explain.path import executed_path
from sim.job.build_job import make_job
from sim.job.noise import Noise
from sim.kernel.run import run
from sim.metrics import summary
from sim.objectives import energy_pj, mean_flow_time_ns, weighted_tardiness_ns
from sim.record.record import WAITS
from tests.policy_helpers import dags

CPU = Device("cpu0", "cpu", workers=4)


def graph_of(**ops: tuple[int, list[str], dict[str, Any]]) -> Graph:
    b = GraphBuilder("drawn by hand")
    for name, (ns, before, attributes) in ops.items():
        b.op(name, duration_ns=ns, after=before, attributes=attributes)
    return b.build()


def starts(trace: Trace) -> dict[str, int]:
    rows = zip(trace.tasks["op"].tolist(), trace.tasks["start_ns"].tolist(), strict=True)
    return {trace.job.graph.op_names[op]: start for op, start in rows}


def run_on(graph: Graph, resources: dict[str, int], device: Device = CPU, **of: Any) -> Trace:
    trace = simulate(graph, Machine((device,), resources=resources), ReadyQueue(), **of)
    trace.check()
    return trace


def needs(**resources: int) -> dict[str, Any]:
    return {"resources": resources}


def test_an_op_waits_for_what_others_have() -> None:
    graph = graph_of(a=(10, [], needs(crane=1)), b=(5, [], needs(crane=1)), c=(3, [], {}))
    trace = run_on(graph, {"crane": 1})
    assert starts(trace) == {"a": 0, "c": 0, "b": 10}
    waits = dict(zip(trace.tasks["op"].tolist(), final_waits(trace).tolist(), strict=True))
    assert WAITS[waits[1]] == "resources"
    assert "'b' waits for crane, which 'a' has" in op_text(DerivedColumns(trace), "b")
    assert [(step.kind, step.row, step.end_ns) for step in executed_path(trace)] == [
        ("task", 0, 10),
        ("task", 2, 15),
    ]


def test_two_of_three() -> None:
    ops = {name: (10, [], needs(crane=n)) for name, n in (("a", 2), ("b", 2), ("c", 1))}
    # c came after b, which takes of the same, and so stands behind it
    assert starts(run_on(graph_of(**ops), {"crane": 3})) == {"a": 0, "b": 10, "c": 10}
    assert starts(run_on(graph_of(**ops), {"crane": 4})) == {"a": 0, "b": 0, "c": 10}


def test_who_waits_for_two_holds_neither_and_keeps_its_place_in_both_lines() -> None:
    graph = graph_of(
        a=(10, [], needs(x=1)),
        b=(5, [], needs(x=1, y=1)),
        c=(3, [], needs(y=1)),
        d=(3, [], needs(z=1)),
    )
    assert starts(run_on(graph, {"x": 1, "y": 1, "z": 1})) == {"a": 0, "d": 0, "b": 10, "c": 15}


def test_the_head_of_a_stream_waits_and_all_behind_it() -> None:
    machine = Machine((Device("gpu0"), Device("gpu1")), resources={"x": 1})
    b = GraphBuilder("two devices")
    for op, (ns, device, attributes) in {
        "a": (10, "gpu0", needs(x=1)),
        "b": (5, "gpu1", needs(x=1)),
        "c": (3, "gpu1", {}),
    }.items():
        b.op(op, duration_ns=ns, device=device, attributes=attributes)
    trace = simulate(b.build(), machine, ReadyQueue())
    trace.check()
    assert starts(trace) == {"a": 0, "b": 10, "c": 15}
    assert idle_reasons(trace)["gpu1"] == {"resources": 10}


def test_ten_thousand_in_line_take_some_seconds() -> None:
    n = 10_000
    b = GraphBuilder("one at a time, each at the head of a stream")
    for i in range(n):
        b.op(f"op{i}", duration_ns=1, attributes={"resources": {"crane": 1}})
    machine = Machine((Device("gpu0", streams=n),), resources={"crane": 1, "port": 1})
    begun = process_time()
    assert simulate(b.build(), machine, InOrder(), streams=RoundRobinStreams()).makespan_ns == n
    assert process_time() - begun < 8


def test_resources_are_held_while_cores_are_waited_for() -> None:
    device = Device("cpu0", "cpu", workers=4, cores=2, processor=CorePool)
    graph = graph_of(
        a=(10, [], {"cores": 2}), b=(5, [], {"cores": 2, **needs(x=1)}), c=(5, [], {"cores": 1, **needs(x=1)})
    )
    assert starts(run_on(graph, {"x": 1}, device)) == {"a": 0, "b": 10, "c": 15}


def test_a_rank_that_waits_for_others_holds_nothing() -> None:
    b = GraphBuilder("one collective")
    for device in ("gpu0", "gpu1"):
        b.op(
            device,
            kind="all_reduce",
            device=device,
            duration_ns=1,
            attributes={"communicator": "dp", **needs(x=1)},
        )
    with pytest.raises(InputError, match="all_reduce 'gpu0' meets other ranks, and cannot hold resources"):
        make_job(b.build(), Machine((Device("gpu0"), Device("gpu1")), resources={"x": 2}))


@pytest.mark.usefixtures("both_engines")
def test_a_release_holds_an_op_and_not_its_worker() -> None:
    graph = graph_of(a=(4, [], {"release": 10}), b=(5, [], {}), c=(5, [], {}), d=(2, ["b"], {"release": 3}))
    trace = simulate(graph, Machine((Device("cpu0", "cpu", workers=1),)), ReadyQueue())
    trace.check()
    assert starts(trace) == {"b": 0, "c": 5, "d": 10, "a": 12}  # d was ready at 5, a at 10
    ready = dict(zip(trace.tasks["op"].tolist(), trace.tasks["ready_ns"].tolist(), strict=True))
    assert ready == {0: 10, 1: 0, 2: 0, 3: 5}


@pytest.mark.usefixtures("both_engines")
def test_time_before_a_release_is_told() -> None:
    trace = simulate(
        graph_of(a=(4, [], {}), b=(5, ["a"], {"release": 10})), Machine((Device("gpu0"),)), ReadyQueue()
    )
    assert idle_reasons(trace) == {"gpu0": {"release": 6}}
    steps = [(step.kind, step.reason, step.start_ns, step.end_ns) for step in executed_path(trace)]
    assert steps == [("wait", "release", 0, 10), ("task", "", 10, 15)]
    assert "'b' is not released yet" in op_text(DerivedColumns(trace), "b")
    limits = bounds(trace)
    assert (limits.lower_bound_ns, limits.critical_path_ns) == (15, 9)


@pytest.mark.usefixtures("both_engines")
def test_a_release_holds_in_every_iteration_and_at_issue() -> None:
    graph = graph_of(a=(4, [], {"release": 10}), b=(5, ["a"], {}))
    for word in ("issue", "completion"):
        trace = simulate(
            graph, Machine((Device("gpu0"),)), ReadyQueue(synchronisation=word), iterations=2, seed=0
        )
        trace.check()
        assert min(trace.tasks["ready_ns"].tolist()) == 10
        assert trace.makespan_ns == 28


def test_a_resource_is_a_bound() -> None:
    graph = graph_of(**{name: (10, [], needs(crane=2)) for name in "abc"})
    limits = bounds(run_on(graph, {"crane": 4}))
    assert limits.by_source["resource crane"] == 15
    assert limits.binding == "resource crane"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (needs(crne=1), "op 'a' takes 'crne', which is no resource of the machine; did you mean 'crane'"),
        (needs(crane=3), "op 'a' takes 3 of crane, of which the machine has 2"),
        (needs(crane=0), "op 'a': resources: 0 is no whole number of at least 1"),
        ({"resources": ["crane"]}, "does not say how much of which resource is taken"),
        ({"release": "soon"}, "op 'a': release: 'soon'"),
        ({"due": -1}, "op 'a': due: -1 is no whole number of at least 0"),
        ({"weight": 0.5}, "op 'a': weight: 0.5 is no whole number"),
        ({"weight": 2}, "op 'a' has a weight, and no due date"),
    ],
)
def test_what_cannot_be_is_refused_before_time_0(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, InfeasibleError), match=r".") as error:
        make_job(graph_of(a=(1, [], attributes)), Machine((Device("gpu0"),), resources={"crane": 2}))
    assert message in str(error.value)


def test_the_kernel_leaves_resources_to_simpy() -> None:
    job = make_job(graph_of(a=(1, [], needs(x=1))), Machine((CPU,), resources={"x": 1}))
    assert run(job, ReadyQueue()) == "ops take resources beside their device"


def test_tardiness_flow_time_and_energy_by_hand() -> None:
    machine = make_machine(
        {
            "resources": {"crane": 1},
            "devices": {"line": {"kind": "cpu", "cores": 3, "power": {"busy": "300W", "idle": "60W"}}},
        }
    )
    graph = graph_of(
        a=(10, [], {"release": 4, **needs(crane=1)}),
        b=(5, [], needs(crane=1)),
        c=(7, ["a"], {"release": 30, "due": 35, "weight": 2}),
        d=(7, ["b"], {"due": 10, **needs(crane=1)}),
    )
    trace = simulate(graph, machine, ReadyQueue())
    assert starts(trace) == {"b": 0, "a": 5, "d": 15, "c": 30}
    assert weighted_tardiness_ns(trace) == 2 * (37 - 35) + (22 - 10)
    assert mean_flow_time_ns(trace) == ((37 - 4) + 22) / 2
    assert energy_pj(trace) == 300_000 * 29 + 60_000 * 8
    told = summary(trace)
    assert (told["weighted_tardiness_ns"], told["mean_flow_time_ns"], told["energy_pj"]) == (
        16,
        27.5,
        9180000,
    )
    plain = simulate(graph_of(a=(1, [], {})), Machine((CPU,)), ReadyQueue())
    assert weighted_tardiness_ns(plain) is energy_pj(plain) is None
    assert not {"weighted_tardiness_ns", "mean_flow_time_ns", "energy_pj"} & set(summary(plain))


@st.composite
def drawn(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run with resources, cores and releases, of which much happens at one time."""
    graph = draw(dags(max_ops=12, max_ns=5))
    attributes: dict[int, dict[str, Any]] = {}
    for op in range(len(graph)):
        takes = draw(st.dictionaries(st.sampled_from("xyz"), st.integers(1, 2), max_size=3))
        attributes[op] = {"resources": takes, "cores": draw(st.integers(1, 2))}
        if draw(st.integers(0, 3)) == 0:
            attributes[op]["release"] = draw(st.integers(0, 20))
    cores = {"processor": CorePool, "cores": draw(st.integers(2, 3))} if draw(st.booleans()) else {}
    devices = (
        Device("cpu0", "cpu", workers=draw(st.integers(1, 4)), issue_ns=draw(st.integers(0, 1)), **cores),
        Device("gpu0", streams=draw(st.integers(1, 2)), launch_latency_ns=draw(st.integers(0, 2))),
    )
    word = draw(st.sampled_from(("completion", "issue")))
    return {
        "graph": replace(graph, attributes=attributes),
        "machine": Machine(devices, resources={name: draw(st.integers(2, 3)) for name in "xyz"}),
        "policy": draw(
            st.sampled_from([ReadyQueue("lifo", word), InOrder(synchronisation=word), OutOfOrder(3, word)])
        ),
        "noise": draw(st.sampled_from((None, Noise(sigma=0.5)))),
        "iterations": draw(st.integers(1, 2)),
    }


@given(drawn())
@examples(150)
def test_every_run_ends_and_keeps_to_what_there_is(given: dict[str, Any]) -> None:
    trace = simulate(**given)
    trace.check()
    f = DerivedColumns(trace)
    for device, reasons in idle_reasons(f).items():
        k = trace.job.machine.device_index(device)
        assert sum(reasons.values()) == summary(trace)["devices"][device]["idle_ns"], (device, k)
    path = executed_path(f)
    assert sum(step.end_ns - step.start_ns for step in path) == trace.makespan_ns
