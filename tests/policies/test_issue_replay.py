"""Replay of plans: the same times again, on other machines, and what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from policy_helpers import FIVE, cpu, gpu, graph_of, same_times, spans
from triple_helpers import Run, runs

from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import CriticalPath, ReadyQueue
from policies.issue.replay import Planned, ReplayPlan
from policies.streams import PerBranch
from sim import Device, Machine, Policy, Trace, simulate
from sim.base.errors import InputError, UnknownNameError
from sim.job.job import Placement
from sim.kernel.run import NotOnKernelError
from sim.record.plan import Plan

TWO = Machine((Device("gpu0", streams=2), Device("gpu1")))


class Alternate(Placement):
    """Puts op k on device k modulo their number."""

    def place(self, graph: object, machine: Machine, cost_ns: list[object]) -> list[int]:
        return [op % len(machine.devices) for op in range(len(cost_ns[0]))]  # type: ignore[arg-type]


def again(trace: Trace, machine: Machine | None = None, policy: Policy | None = None) -> Trace:
    """Run what a trace decided once more."""
    plan = trace.plan()
    planned = Planned(plan)
    return simulate(
        trace.job.graph,
        machine or trace.job.machine,
        policy or ReplayPlan(plan),
        placement=planned,
        streams=planned,
        linearize=planned,
        iterations=trace.job.iterations,
    )


def same_order(a: Trace, b: Trace) -> bool:
    """Whether two runs issued the same tasks at the same times on the same streams."""

    def rows(trace: Trace) -> list[tuple[int, ...]]:
        t = trace.tasks
        names = ("id", "stream", "issuer", "issue_ns", "start_ns", "end_ns")
        return sorted(zip(*(t[name].tolist() for name in names), strict=True))

    return rows(a) == rows(b)


@given(runs())
@examples(50)
def test_work_conserving_runs_come_out_the_same(run: Run) -> None:
    """Whoever never idles beside eligible work would take each task when the plan's issuer takes it."""
    synchronisation = run.policy.synchronisation
    # A host that serves several devices may launch for nothing while a full queue holds it up elsewhere.
    run = run._replace(machine=replace(run.machine, hosts=()))
    for policy in (ReadyQueue("lifo", synchronisation), OutOfOrder(None, synchronisation), CriticalPath()):
        first = run._replace(policy=policy).trace()
        second = again(first, policy=ReplayPlan(first.plan(), synchronisation=policy.synchronisation))
        second.check()
        assert same_order(first, second)
        assert second.plan().digest == first.plan().digest


@given(runs())
@examples(50)
def test_no_task_starts_later_than_it_did(run: Run) -> None:
    """Without anything shared: an order per issuer holds nothing back that it did not hold back before."""
    devices = tuple(replace(d, processor=None, cores=0, cores_per_op=1) for d in run.machine.devices)
    run = run._replace(machine=Machine(devices))
    first = run.trace()
    second = again(first, policy=ReplayPlan(first.plan(), synchronisation=run.policy.synchronisation))
    second.check()
    before = dict(zip(first.tasks["id"].tolist(), first.tasks["start_ns"].tolist(), strict=True))
    for id, start in zip(second.tasks["id"].tolist(), second.tasks["start_ns"].tolist(), strict=True):
        assert start <= before[id]


def test_a_plan_is_followed_where_the_policy_would_do_otherwise() -> None:
    # The plan of a slow machine, in which b comes after c, on a machine where b would go first.
    graph = graph_of({"a": [], "b": ["a"], "c": [], "d": ["c"]}, {"a": 10, "b": 10, "c": 5, "d": 5})
    trace = simulate(graph, cpu(1), ReadyQueue("lifo"))
    assert list(spans(trace)) == ["c", "d", "a", "b"]
    assert list(spans(simulate(graph, cpu(1), ReadyQueue()))) == ["a", "c", "b", "d"]
    assert list(spans(again(trace))) == ["c", "d", "a", "b"]


def test_a_plan_on_a_machine_with_other_costs() -> None:
    trace = simulate(graph_of(FIVE), gpu(2), ReadyQueue(), streams=PerBranch())
    slower = again(trace, gpu(2, issue_ns=3, launch_latency_ns=1))
    assert slower.plan().digest == trace.plan().digest
    assert slower.makespan_ns > trace.makespan_ns


def test_placement_and_streams_come_from_the_plan() -> None:
    trace = simulate(graph_of(FIVE), TWO, InOrder(), placement=Alternate(), streams=PerBranch(), iterations=2)
    second = again(trace)
    assert same_times(trace, second)
    assert second.job.device_of.tolist() == [0, 1, 0, 1, 0]
    assert second.job.stream_of.tolist() == trace.job.stream_of.tolist()
    assert second.job.order.tolist() == [0, 1, 2, 3, 4]


def test_a_plan_from_a_file(tmp_path: Path) -> None:
    trace = simulate(graph_of(FIVE), cpu(2), ReadyQueue())
    file = tmp_path / "plan.json"
    file.write_text(trace.plan().to_json(), encoding="utf-8")
    replayed = simulate(graph_of(FIVE), cpu(2), ReplayPlan(file=file), placement=Planned(file=file))
    assert same_times(trace, replayed)
    for wrong, message in ((tmp_path, "is a directory"), (tmp_path / "none", "no such file")):
        with pytest.raises(InputError, match=message):
            ReplayPlan(file=wrong)
    (tmp_path / "no.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="a plan has"):
        Planned(file=tmp_path / "no.json")
    with pytest.raises(InputError, match="either a plan or the file"):
        ReplayPlan()
    with pytest.raises(InputError, match="either a plan or the file"):
        Planned(trace.plan(), file)
    with pytest.raises(InputError, match="synchronisation must be one of"):
        ReplayPlan(trace.plan(), synchronisation="none")


def test_what_waits_on_purpose_is_ready_and_not_taken() -> None:
    trace = again(simulate(graph_of(FIVE), TWO, InOrder(), iterations=2))
    plan = trace.plan()
    assert plan.not_before_ns is None
    last = int(plan.op[-1])
    waits = replace(plan, not_before_ns=np.array([0] * (len(plan) - 1) + [500]))
    assert Plan.from_json(waits.to_json()).digest == waits.digest != plan.digest
    assert (waits[0].not_before_ns, waits[len(plan) - 1].not_before_ns) == (0, 500)
    late = again(trace, policy=ReplayPlan(waits))
    row = np.flatnonzero((late.tasks["op"] == last) & (late.tasks["iteration"] == 1))[0]
    assert late.tasks["ready_ns"][row] < 500 == late.tasks["issue_ns"][row]
    assert late.plan().digest == waits.digest
    late.check()
    planned = Planned(waits)
    with pytest.raises(NotOnKernelError, match="ops wait on purpose"):
        simulate(
            graph_of(FIVE),
            TWO,
            ReplayPlan(waits),
            placement=planned,
            streams=planned,
            iterations=2,
            engine="kernel",
        )


def test_a_timed_plan_keeps_what_a_line_held_back() -> None:
    """Of two workers one waits in line behind b, for which a plan of each worker knows no reason."""
    graph = graph_of({"a": [], "b": ["a"], "c": []}, {"a": 9, "b": 1, "c": 2})
    machine = Machine((Device("cpu0", "cpu", workers=2),))
    trace = simulate(graph, machine, InOrder())
    assert spans(trace)["c"] == (9, 11)
    assert spans(again(trace))["c"] == (0, 2)
    assert spans(again(trace, policy=ReplayPlan(trace.plan(timed=True))))["c"] == (9, 11)


def edited(plan: Plan, **columns: object) -> Plan:
    """Return the plan with other contents."""
    content = json.loads(plan.to_json())
    for name, value in columns.items():
        place = content["tasks"] if name in content["tasks"] else content
        place[name] = value
    content["waits"] = {"task": [], "for": []}
    return Plan.from_json(json.dumps(content))


def test_a_plan_that_does_not_fit_is_refused() -> None:
    trace = simulate(graph_of(FIVE), TWO, ReadyQueue(), placement=Alternate())
    plan = trace.plan()

    def run(plan: Plan, graph: dict[str, list[str]] = FIVE, machine: Machine = TWO, **more: int) -> Trace:
        return simulate(graph_of(graph), machine, ReplayPlan(plan), placement=Alternate(), **more)

    assert same_times(run(plan), trace)
    with pytest.raises(UnknownNameError, match="unknown op 'e'"):
        run(plan, {"a": [], "b": [], "c": [], "d": []})
    with pytest.raises(InputError, match="leaves out op 'f' of iteration 0"):
        run(plan, {**FIVE, "f": []})
    with pytest.raises(InputError, match=r"leaves out op 'a' of iteration 1; .* 2 iteration\(s\)"):
        run(plan, iterations=2)
    with pytest.raises(InputError, match="has op 'a' of iteration 1"):
        run(
            edited(
                plan,
                op=[*plan.op.tolist(), 0],
                iteration=[0] * 5 + [1],
                stream=[*plan.stream.tolist(), 0],
                issuer=[*plan.issuer.tolist(), 0],
            )
        )
    with pytest.raises(InputError, match="has 2 times op 'a' of iteration 0"):
        run(
            edited(
                plan,
                op=[*plan.op.tolist(), 0],
                iteration=[0] * 6,
                stream=[*plan.stream.tolist(), 0],
                issuer=[*plan.issuer.tolist(), 0],
            )
        )
    with pytest.raises(UnknownNameError, match="unknown issuer 'cpu0/w0'"):
        run(edited(plan, issuers=["cpu0/w0", "gpu1/host"]))
    with pytest.raises(InputError, match="lets gpu1/host issue op 'a', which is on gpu0"):
        run(edited(plan, issuers=["gpu1/host", "gpu0/host"]))
    with pytest.raises(UnknownNameError, match="unknown device 'gpu2'"):
        run(edited(plan, devices=["gpu0", "gpu2"]))
    other = Machine((Device("gpu1"), Device("gpu0", streams=2)))
    with pytest.raises(InputError, match="has op 'a' on gpu0, and it is placed on gpu1; use the plan's"):
        run(plan, machine=other)
    streams = Planned(edited(plan, streams=["gpu0/7", "gpu1/0"]))
    with pytest.raises(UnknownNameError, match="unknown stream 'gpu0/7'"):
        simulate(graph_of(FIVE), TWO, ReplayPlan(plan), placement=Alternate(), streams=streams)
    with pytest.raises(InputError, match="leaves out op 'f' of graph"):
        simulate(graph_of({**FIVE, "f": []}), TWO, ReadyQueue(), placement=Planned(plan))
    twice = simulate(graph_of(FIVE), TWO, ReadyQueue(), placement=Alternate(), iterations=2).plan()
    moved = twice.stream.tolist()
    moved[-1] = 1 - moved[-1]
    with pytest.raises(InputError, match="has op 'e' on more than one device"):
        simulate(
            graph_of(FIVE), TWO, ReadyQueue(), placement=Planned(edited(twice, stream=moved)), iterations=2
        )
