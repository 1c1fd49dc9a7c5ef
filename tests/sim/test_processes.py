"""Sessions that are processes: a host thread and streams each; times by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_runs import draw_graph
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.machine import make_machine
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import ReadyQueue
from policies.issue.replay import Planned, ReplayPlan
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from policies.streams import PerBranch, RoundRobinStreams
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.workloads.sessions import Session, side_by_side
from sim import Device, Graph, GraphBuilder, Host, Machine, Policy, Trace, simulate
from sim.base.errors import InputError, ScenarioError
from sim.kernel.run import NotOnKernelError


def ops(**durations: int) -> Graph:
    b = GraphBuilder("ops")
    for name, ns in durations.items():
        b.op(name, duration_ns=ns)
    return b.build()


def gpu(**keys: Any) -> Machine:
    return make_machine({"devices": {"gpu0": {"kind": "gpu", **keys}}})


def times(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return op → start and end."""
    tasks = trace.tasks
    every = zip(*(tasks[name].tolist() for name in ("op", "start_ns", "end_ns")), strict=True)
    return {trace.job.graph.op_names[op]: (start, end) for op, start, end in every}


def issuers(trace: Trace) -> list[str]:
    return [issuer.name for issuer in trace.job.machine.issuers()]


TWO = {"a": Session(ops(f=1000, g=1000)), "b": Session(ops(f=1000, g=1000))}


@pytest.mark.parametrize("policy", [Sequential(), InOrder(synchronisation="issue"), ReadyQueue()])
def test_each_process_launches_for_itself(policy: Policy) -> None:
    """A launch takes 10 us; the kernels of the two processes get half of the GPU each."""
    trace = checked(side_by_side("two", TWO), gpu(issue_cost="10us"), policy)
    assert times(trace) == {
        "a/f": (10_000, 12_000),
        "b/f": (10_000, 12_000),
        "a/g": (20_000, 22_000),
        "b/g": (20_000, 22_000),
    }
    assert issuers(trace) == ["gpu0/host/a", "gpu0/host/b"]
    one = simulate(side_by_side("two", TWO, processes="one"), gpu(issue_cost="10us"), policy)
    assert one.makespan_ns == 41_000
    assert issuers(one) == ["gpu0/host"]


def test_processes_take_turns_on_a_gpu() -> None:
    """b's two kernels of 10 ns run at half speed beside a's; the rest of it at full speed."""
    sessions = {"a": Session(ops(f=40)), "b": Session(ops(f=10, g=10))}
    trace = checked(side_by_side("two", sessions), gpu(), Sequential())
    assert times(trace) == {"a/f": (0, 60), "b/f": (0, 20), "b/g": (20, 40)}
    assert trace.job.machine.stream_name(int(trace.tasks["stream"][1])) == "gpu0/1"


def test_an_op_that_no_host_launches_is_refused() -> None:
    builder = GraphBuilder("one")
    builder.op("a", duration_ns=1)
    machine = Machine((Device("gpu0"),), hosts=(Host("h", ("gpu0",), process="other"),))
    with pytest.raises(InputError, match="no host launches op 'a': each host of its device is of another pr"):
        simulate(builder.build(), machine, InOrder())


def test_streams_of_a_process_do_not_count_as_processes() -> None:
    """a has the half for its two kernels together, which do not disturb one another."""
    sessions = {"a": Session(ops(f=10, g=10)), "b": Session(ops(f=10))}
    trace = simulate(side_by_side("two", sessions), gpu(streams=2), ReadyQueue(), streams=RoundRobinStreams())
    assert times(trace) == {"a/f": (0, 20), "a/g": (0, 20), "b/f": (0, 20)}


def test_streams_that_share_sms_share_them_among_processes() -> None:
    """As under MPS: kernels of half of the SMs run side by side, at full speed."""
    b = GraphBuilder("half")
    b.op("f", duration_ns=10, attributes={"sms": 2})
    sessions = {"a": Session(b.build()), "b": Session(b.build()), "c": Session(b.build())}
    machine = gpu(streams=2, sharing="sm", sms=4)
    trace = checked(side_by_side("three", sessions), machine, Sequential())
    assert times(trace) == {"a/f": (0, 10), "b/f": (0, 10), "c/f": (10, 20)}
    assert trace.job.machine.devices[0].streams == 6


def test_partitions_and_priorities_are_those_of_each_process() -> None:
    keys = {
        "streams": [{"priority": -1}, {}],
        "sharing": "sm",
        "sms": 4,
        "partitions": {"x": 1, "y": 3},
    }
    device = gpu(**keys).devices[0]
    assert device.for_processes is not None
    details = device.for_processes(device, 2).details
    assert details.partition_of == (0, 1, 0, 1)
    assert details.stream_priorities == (-1, 0, -1, 0)


def test_streams_are_assigned_as_if_the_others_were_not_there() -> None:
    """Of b's two branches each has a stream, though a's work is on the first one."""
    sessions = {"a": Session(ops(f=50)), "b": Session(ops(f=5, g=5))}
    trace = simulate(side_by_side("two", sessions), gpu(streams=2), ReadyQueue(), streams=PerBranch())
    name = trace.job.machine.stream_name
    assert [name(s) for s in trace.job.stream_of.tolist()] == ["gpu0/0", "gpu0/2", "gpu0/3"]


def test_processes_take_turns_on_the_workers_of_a_cpu() -> None:
    sessions = {"a": Session(ops(f=10, g=10, h=10)), "b": Session(ops(f=10, g=10))}
    graph = side_by_side("two", sessions)
    for policy in (Sequential(), InOrder(in_flight=1), InOrder(in_flight=1, per="machine")):
        one, two = (simulate(graph, Machine((Device("cpu0", "cpu", workers=n),)), policy) for n in (1, 2))
        ends = {"a/f": 10, "b/f": 20, "a/g": 30, "b/g": 40, "a/h": 50}
        assert {name: end for name, (_, end) in times(one).items()} == ends
        assert two.makespan_ns == 30


def test_a_process_waits_for_its_own_copies_only() -> None:
    """a copies 100 bytes of pageable memory in 100 ns; b launches meanwhile."""
    machine = make_machine(
        {
            "devices": {
                "cpu0": {"kind": "cpu", "pin_memory": False},
                "gpu0": {"kind": "gpu", "issue_cost": "10ns"},
            },
            "links": [{"from": "cpu0", "to": "gpu0", "bandwidth": "1GB/s"}],
        }
    )
    b = GraphBuilder("copies")
    b.input("x", 100, device="cpu0")
    b.op("f", inputs=["x"], duration_ns=10, device="gpu0"), b.op("g", duration_ns=10, device="gpu0")
    sessions = {"a": Session(b.build()), "b": Session(ops(f=10, g=10))}
    trace = checked(side_by_side("two", sessions), machine, Sequential())
    assert times(trace) == {"b/f": (10, 20), "b/g": (20, 30), "a/f": (110, 120), "a/g": (120, 130)}
    one = simulate(side_by_side("two", sessions, "one"), machine, Sequential())
    assert times(one)["b/f"] == (130, 140)  # one thread: it copies, launches both of a, then b's first


def test_a_cuda_graph_is_one_launch_of_each_process(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {gpu0: {kind: gpu, issue_cost: 10us}}}\nworkload:\n  sessions:\n"
        "    a: {workload: {ops: {f: {duration: 1us}, g: {duration: 1us}}}}\n"
        "    b: {workload: {ops: {f: {duration: 4us}}}}\npolicy: {runtime: cuda-graph}\niterations: 2\n"
    )
    trace = run_scenario(load_scenario(path)).trace
    assert times(trace)["a/f"] == (20_000, 22_000)  # of the second iteration
    assert trace.job.issue_ns is not None
    assert trace.job.issue_ns.tolist() == [10_000, 0, 10_000]


def test_the_default_stream_is_that_of_a_process() -> None:
    from devices.launches import with_legacy_streams
    from sim.issuers import with_processes
    from sim.job.build_job import make_job

    sessions = {"a": Session(ops(f=10, g=10)), "b": Session(ops(f=10, g=10))}
    machine = gpu(streams=2, legacy_stream=True)
    job = with_processes(make_job(side_by_side("two", sessions), machine, streams=RoundRobinStreams()))
    edges = with_legacy_streams(job).graph.edges
    names = job.graph.op_names
    found = [(names[p], names[c]) for p, c in zip(edges.producer, edges.consumer, strict=True)]
    assert found == [("a/f", "a/g"), ("b/f", "b/g")]


def test_programs_with_jumps_are_walked_by_each_process(tmp_path: Path) -> None:
    """Loops of 3 x 10 us and 2 x 10 us on two cores, at once; one process walks one after the other."""
    path = tmp_path / "s.yaml"
    loop = (
        "functions: {step: {inputs: [i], ops: {add: {inputs: [i], duration: 10us}}, outputs: [add]}}, "
        "ops: {zero: {duration: 0us}, loop: {kind: while, inputs: [zero], "
        "attributes: {body: step, trips: TRIPS}}}"
    )
    path.write_text(
        "machine: {devices: {cpu0: {kind: cpu, cores: 2}}}\nworkload:\n  sessions:\n"
        f"    a: {{workload: {{{loop.replace('TRIPS', '3')}}}}}\n"
        f"    b: {{workload: {{{loop.replace('TRIPS', '2')}}}}}\npolicy: {{runtime: tvm-vm}}\n"
    )
    assert run_scenario(load_scenario(path)).trace.makespan_ns == 30_000
    one = load_scenario(path, sets=["workload.processes=one"])
    assert run_scenario(one).trace.makespan_ns == 50_000


def test_sessions_of_tensorflow_are_of_one_process(tmp_path: Path) -> None:
    graph, machine = side_by_side("two", TWO), gpu(issue_cost="10us")
    assert issuers(simulate(graph, machine, TensorFlowExecutor())) == ["gpu0/host"]
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {gpu0: {kind: gpu}}}\nworkload:\n  processes: each\n  sessions:\n"
        "    a: {workload: {ops: {f: {duration: 1us}}}}\npolicy: {runtime: tensorflow}\n"
    )
    with pytest.raises(ScenarioError, match=r"workload.processes: .*are always of one process"):
        run_scenario(load_scenario(path))


def test_a_host_may_be_of_a_process() -> None:
    hosts = (Host("x", ("gpu0",), process="a"), Host("y", ("gpu0",), process="b"))
    machine = Machine((Device("gpu0"),), hosts=hosts)
    assert [machine.groups_for(name).tolist() for name in ("a", "b", "c")] == [[0], [1], [-1]]
    with pytest.raises(InputError, match="two hosts serve 'gpu0' for 'a'"):
        Machine((Device("gpu0"),), hosts=(*hosts, Host("z", ("gpu0",), process="a")))


def test_the_kernel_says_that_it_knows_no_processes() -> None:
    graph = side_by_side("two", TWO)
    with pytest.raises(NotOnKernelError, match="several processes launch on the same devices"):
        simulate(graph, gpu(), ReadyQueue(), engine="kernel")


def test_what_a_rewrite_made_is_of_the_process_of_its_neighbours() -> None:
    b = GraphBuilder("made")
    b.op("a0", outputs=8, duration_ns=1, attributes={"process": "a"})
    b.op("send", inputs=["a0"], outputs=8, duration_ns=1)
    b.op("more", inputs=["send"], duration_ns=1)
    b.op("recv", outputs=8, duration_ns=1)
    b.op("b0", inputs=["recv"], duration_ns=1, attributes={"process": "b"})
    job = simulate(b.build(), gpu(), ReadyQueue()).job
    assert job.process_of is not None
    assert job.process_of.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("streams", [None, PerBranch()])
def test_a_plan_of_processes_can_be_followed(streams: PerBranch | None) -> None:
    graph, machine = side_by_side("two", TWO), gpu(issue_cost="10us", streams=2)
    trace = simulate(graph, machine, Sequential(), streams=streams)
    planned = Planned(trace.plan())
    replay = ReplayPlan(trace.plan(), synchronisation="issue")
    again = simulate(graph, machine, replay, placement=planned, streams=planned)
    assert times(again) == times(trace)


def test_a_plan_orders_the_tasks_of_all_processes_on_a_worker() -> None:
    """a/f, a/g, b/f, b/g, as the ready queue takes them, and not in turns."""
    graph, machine = side_by_side("two", TWO), Machine((Device("cpu0", "cpu", workers=1),))
    trace = simulate(graph, machine, ReadyQueue())
    plan = trace.plan()
    assert times(simulate(graph, machine, ReplayPlan(plan), placement=Planned(plan))) == times(trace)


@examples(40)
@given(st.integers(0, 2**32), st.sampled_from([Sequential, InOrder, OutOfOrder, ReadyQueue]))
def test_processes_on_gpus_of_their_own_do_not_notice_one_another(seed: int, kind: type[Policy]) -> None:
    """Though one host thread serves both GPUs in the machine's description."""
    rng = np.random.default_rng(seed)
    graphs = {name: pinned(draw_graph(rng, 8, distances=False), d) for name, d in (("a", "d0"), ("b", "d1"))}
    devices = tuple(Device(d, issue_ns=7, launch_latency_ns=5, gap_ns=1, streams=2) for d in ("d0", "d1"))
    machine = Machine(devices, hosts=(Host("host", ("d0", "d1")),))
    sessions = {name: Session(graph) for name, graph in graphs.items()}
    both = checked(side_by_side("two", sessions), machine, kind(), streams=RoundRobinStreams())
    found = times(both)
    for name, graph in graphs.items():
        alone = simulate(graph, machine, kind(), streams=RoundRobinStreams())
        assert times(alone) == {op: found[f"{name}/{op}"] for op in times(alone)}


def pinned(graph: Graph, device: str) -> Graph:
    """Return the same ops, all on one device, with no tensors from elsewhere."""
    b = GraphBuilder(graph.name)
    for op, name in enumerate(graph.op_names):
        before = sorted(set(graph.predecessors.row(op).tolist()))
        b.op(
            name,
            after=[graph.op_names[p] for p in before],
            duration_ns=int(graph.duration_ns[op]),
            device=device,
        )
    return b.build()


@examples(30)
@given(st.integers(0, 2**32))
def test_two_processes_of_the_same_work_take_twice_as_long(seed: int) -> None:
    """Without cost of the host each always has a kernel running, so each always has the half."""
    rng = np.random.default_rng(seed)
    graph = ops(**{f"op{k}": int(ns) for k, ns in enumerate(rng.integers(1, 60, size=8))})
    alone = times(simulate(graph, gpu(), Sequential()))
    both = times(
        simulate(side_by_side("two", {"a": Session(graph), "b": Session(graph)}), gpu(), Sequential())
    )
    for name, (start, end) in alone.items():
        assert both[f"a/{name}"] == both[f"b/{name}"] == (2 * start, 2 * end)
