"""Tensors under control flow on an allocator: cases worked by hand, and against graphs without it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim
from drawn_programs import draw_program, flowing, unrolled
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.memory.registry import MemorySpec
from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from scenarios.ops.control_flow import cond, while_loop
from sim import Device, Graph, GraphBuilder, Host, Link, Machine, Trace, simulate
from sim.base.errors import InputError, OutOfMemoryError, StuckError
from sim.explain.memory_use import memory_use
from sim.graph.views import forwarding
from sim.job.noise import Noise
from sim.record.record import Wait

Row = tuple[int, int, str]
"""Time, change in bytes, and what was taken or given back."""


def cpu(nbytes: int | None = None, workers: int = 8) -> Machine:
    return Machine((Device("cpu0", "cpu", workers=workers, memory_bytes=nbytes),))


def run(graph: Graph, machine: Machine | None = None, policy: Any = None, **memory: Any) -> Trace:
    return checked(graph, machine or cpu(), policy or ReadyQueue(), memory=tensor_memory(**memory))


def rows(trace: Trace) -> list[Row]:
    assert trace.memory is not None
    times, changes, tensors = (trace.memory[c].tolist() for c in ("time_ns", "change", "tensor"))
    names = [trace.job.graph.tensor_name(tensor) for tensor in tensors]
    return list(zip(times, changes, names, strict=True))


def peak(trace: Trace, device: int = 0) -> int:
    assert trace.memory is not None
    return int(trace.log_of(device)["in_use"].max(initial=0))


def levels(trace: Trace, device: int = 0) -> list[tuple[int, int]]:
    """Return what is in use at the end of each instant at which that changes."""
    log = trace.log_of(device)
    return changes(dict(zip(log["time_ns"].tolist(), log["in_use"].tolist(), strict=True)).items())


def changes(steps: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the steps that change anything, from 0 on."""
    found, before = [], 0
    for time, now in steps:
        if now != before:
            found.append((time, now))
        before = now
    return found


def condition(outcome: bool) -> Graph:
    """x (100 B) and p, 10 ns each; then f (70 B) or else g (7000 B), and y (5 B), 10 ns each."""
    b = GraphBuilder("if")
    b.op("x", outputs=100, duration_ns=10)
    b.op("p", outputs=1, duration_ns=10, attributes={"outcome": outcome})
    (join,) = cond(
        b,
        "if",
        "p",
        ["x"],
        lambda b, v: [b.op("f", inputs=[v["x"]], outputs=70, duration_ns=10)],
        lambda b, v: [b.op("g", inputs=[v["x"]], outputs=7000, duration_ns=10)],
    )
    b.op("y", inputs=[join], outputs=5, duration_ns=10)
    return b.build()


@pytest.mark.parametrize(("outcome", "branch", "nbytes"), [(True, "f", 70), (False, "g", 7000)])
def test_the_branch_that_runs_decides_about_the_peak(outcome: bool, branch: str, nbytes: int) -> None:
    """x stays until the branch has read it through the switch, the branch's output through the merge."""
    trace = run(condition(outcome))
    assert rows(trace) == [
        (0, 100, "x"), (0, 1, "p"),
        (10, -1, "p"), (10, nbytes, branch),
        (20, -100, "x"), (20, 5, "y"),
        (30, -nbytes, branch), (30, -5, "y"),
    ]  # fmt: skip
    assert peak(trace) == 100 + nbytes


@pytest.mark.parametrize("when_full", ["error", "wait"])
def test_a_branch_that_cannot_have_its_memory_matters_only_if_it_runs(when_full: str) -> None:
    assert peak(run(condition(True), cpu(200), when_full=when_full)) == 170
    with pytest.raises(OutOfMemoryError, match=r"(?s)'g' asks for 6.836 KiB on stream 0, at 10 ns"):
        run(condition(False), cpu(200), when_full=when_full)


def chain_loop(trips: int) -> Graph:
    """A state of 1000 B; in each iteration a temporary of 300 B, and from that the next state."""
    b = GraphBuilder("loop")
    b.op("init", outputs=1000, duration_ns=10)

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        t = b.op("temporary", inputs=[v["s"]], outputs=300, duration_ns=10)
        return {"s": b.op("state", inputs=[t], outputs=1000, duration_ns=10)}

    out = while_loop(b, "loop", {"s": "init"}, body, trips=trips)
    b.op("last", inputs=[out["s"]], duration_ns=10)
    return b.build()


def test_a_loop_holds_what_one_iteration_holds_however_long_it_runs() -> None:
    """State and temporary, one made from the other: never more than one of each."""
    assert peak(run(chain_loop(0))) == 1000
    assert {peak(run(chain_loop(trips))) for trips in (1, 2, 5, 50)} == {1300}
    assert rows(run(chain_loop(1))) == [
        (0, 1000, "init"), (10, 300, "temporary"),
        (20, -1000, "init"), (20, 1000, "state"), (30, -300, "temporary"),
        (40, -1000, "state"),
    ]  # fmt: skip


def counting_loop(parallel: int) -> Graph:
    """Three iterations: a counter (10 B, 10 ns); beside it a slow op (100 B, 30 ns) that reads w (1000 B)."""
    b = GraphBuilder("loop")
    b.op("zero", outputs=10, duration_ns=5)
    b.op("w", outputs=1000, duration_ns=5)

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("slow", inputs=[v["i"], v["w"]], outputs=100, duration_ns=30)
        return {"i": b.op("count", inputs=[v["i"]], outputs=10, duration_ns=10)}

    out = while_loop(b, "loop", {"i": "zero"}, body, trips=3, invariants=["w"], parallel_iterations=parallel)
    b.op("last", inputs=[out["i"]], duration_ns=10)
    return b.build()


def test_what_does_not_change_stays_until_the_loop_is_over() -> None:
    """Iterations 5 .. 35 .. 65 .. 95; a counter stays while slow reads it, and while it is parked."""
    assert rows(run(counting_loop(1))) == [
        (0, 10, "zero"), (0, 1000, "w"),
        (5, 100, "slow"), (5, 10, "count"),
        (35, -10, "zero"), (35, -100, "slow"), (35, 100, "slow"), (35, 10, "count"),
        (65, -10, "count"), (65, -100, "slow"), (65, 100, "slow"), (65, 10, "count"),
        (95, -10, "count"), (95, -100, "slow"), (95, -1000, "w"), (105, -10, "count"),
    ]  # fmt: skip


@pytest.mark.parametrize("parallel", [1, 2, 3, 10])
def test_as_many_iterations_hold_something_as_may_run_at_once(parallel: int) -> None:
    """Counters take 10 ns and slow ops 30, so as many slow ops run at once as may, of three."""
    slow = np.cumsum([change for _, change, name in rows(run(counting_loop(parallel))) if name == "slow"])
    assert slow.max() == 100 * min(parallel, 3)


def test_loops_in_loops() -> None:
    """The inner loop makes 2 and 3 trips. Each work (50 B) reads the one before, step (10 B) the last.

    At most two works live at once; at 35 a step makes place for the first work of the second time.
    """
    b = GraphBuilder("nested")
    b.op("zero", outputs=10, duration_ns=5)

    def inner(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        return {"j": b.op("work", inputs=[v["j"]], outputs=50, duration_ns=10)}

    def outer(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        out = while_loop(b, "inner", {"j": v["i"]}, inner, trips=[2, 3])
        return {"i": b.op("step", inputs=[out["j"]], outputs=10, duration_ns=10)}

    while_loop(b, "outer", {"i": "zero"}, outer, trips=2)
    assert levels(run(b.build())) == [
        (0, 10), (5, 60), (15, 100), (25, 60), (45, 100), (65, 60), (75, 0)
    ]  # fmt: skip


def test_a_host_that_runs_ahead_frees_in_its_own_order() -> None:
    """Launched at once, all is allocated at time 0; slow, which nobody reads, is freed when it is issued."""
    trace = run(counting_loop(1), Machine((Device("gpu0"),)), TensorFlowExecutor(), lifetime="issue")
    assert [(change, name) for _, change, name in rows(trace)] == [
        (10, "zero"), (1000, "w"),
        (100, "slow"), (-100, "slow"), (10, "count"), (-10, "zero"),
        (100, "slow"), (-100, "slow"), (10, "count"), (-10, "count"),
        (100, "slow"), (-100, "slow"), (10, "count"), (-10, "count"),
        (-1000, "w"), (-10, "count"),
    ]  # fmt: skip
    assert {time for time, *_ in rows(trace)} == {0}


def test_views_and_what_else_a_merge_gives() -> None:
    """A view in the branch takes nothing and holds x (100 B); a merge's other output 4 B."""
    b = GraphBuilder("views")
    b.op("x", outputs=100, duration_ns=10)
    b.op("p", duration_ns=0, attributes={"outcome": True})
    b.op("switch", kind="switch", inputs=["x", "p"], outputs=(100, 100), duration_ns=0)
    b.op("flat", inputs=["switch:1"], outputs=100, duration_ns=10, attributes={"view_of": 0})
    b.op("no", inputs=["switch"], outputs=100, duration_ns=10)
    b.op("merge", kind="merge", inputs=["no", "flat"], outputs=(100, 4), duration_ns=5)
    b.op("y", inputs=["merge"], duration_ns=10)
    b.op("z", inputs=["merge:1"], duration_ns=20)
    assert rows(run(b.build())) == [
        (0, 100, "x"), (20, 4, "merge:1"), (35, -100, "x"), (45, -4, "merge:1")
    ]  # fmt: skip


def test_a_merge_keeps_only_what_came_first() -> None:
    """b (100 B) comes to the merge after a: nobody keeps it, and big, which waits for memory, starts then."""
    b = GraphBuilder("two")
    b.op("p", duration_ns=0, attributes={"outcome": True})
    b.op("switch", kind="switch", inputs=["p", "p"], outputs=(0, 0), duration_ns=0)
    b.op("a", inputs=["switch:1"], outputs=40, duration_ns=10)
    b.op("b", outputs=100, duration_ns=20)
    b.op("merge", kind="merge", inputs=["a", "b"], duration_ns=0)
    b.op("y", inputs=["merge"], duration_ns=50)
    b.op("go", duration_ns=5)
    b.op("big", inputs=["go"], outputs=90, duration_ns=10)
    b.op("after", inputs=["big"], duration_ns=1)
    trace = run(b.build(), cpu(150), when_full="wait")
    assert rows(trace) == [
        (0, 100, "b"), (0, 40, "a"), (20, -100, "b"), (20, 90, "big"), (31, -90, "big"), (60, -40, "a")
    ]  # fmt: skip


def test_what_an_op_gets_that_did_not_wait_for_it_stays_while_it_runs() -> None:
    """The join starts with fast (10 B) at 20 and ends at 70; mid (20 B) comes at 30, slow (30 B) too late."""
    b = GraphBuilder("join")
    b.op("p", duration_ns=10, attributes={"outcome": True})
    b.op("switch", kind="switch", inputs=["p", "p"], outputs=(0, 0), duration_ns=0)
    for name, nbytes, ns in (("fast", 10, 10), ("mid", 20, 20), ("slow", 30, 90)):
        b.op(name, inputs=["switch:1"], outputs=nbytes, duration_ns=ns)
    b.op("join", inputs=["fast", "mid", "slow"], duration_ns=50, attributes={"strict": False})
    assert [row for row in rows(run(b.build())) if row[1] < 0] == [
        (70, -10, "fast"), (70, -20, "mid"), (100, -30, "slow")
    ]  # fmt: skip


@pytest.mark.parametrize("outcome", [True, False])
def test_a_copy_of_what_is_dead_takes_nothing(outcome: bool) -> None:
    """x goes to the device of the branch that is taken, 1 ns a byte, and only there."""
    b = GraphBuilder("away")
    b.op("x", outputs=100, duration_ns=10, device="d0")
    b.op("p", duration_ns=0, attributes={"outcome": outcome}, device="d0")
    b.op("switch", kind="switch", inputs=["x", "p"], outputs=(100, 100), duration_ns=0, device="d0")
    b.op("f", inputs=["switch:1"], outputs=7, duration_ns=10, device="d1")
    b.op("g", inputs=["switch"], outputs=9, duration_ns=10, device="d2")
    machine = Machine(
        tuple(Device(f"d{k}", "cpu", workers=2) for k in range(3)),
        tuple(Link(f"l{k}", "d0", f"d{k}", bandwidth_bytes_per_s=10**9) for k in (1, 2)),
        network=make_network,
    )
    trace = run(b.build(), machine)
    name, nbytes = ("f", 7) if outcome else ("g", 9)
    copied = "switch:1" if outcome else "switch"
    assert rows(trace) == [
        (0, 100, "x"), (10, 100, copied), (110, -100, "x"), (110, nbytes, name),
        (120, -100, copied), (120, -nbytes, name),
    ]  # fmt: skip
    assert [peak(trace, device) for device in range(3)] == ([100, 107, 0] if outcome else [100, 0, 109])


def test_iterations_wait_for_memory() -> None:
    """Only one slow op fits beside w and the counters: the iterations take turns, as one at a time would."""
    trace = run(counting_loop(10), cpu(1140), when_full="wait")
    slow = trace.job.graph.op_names.index("slow")
    ran = (trace.tasks["op"] == slow) & (trace.tasks["dead"] == 0)
    assert trace.tasks["start_ns"][ran].tolist() == [5, 35, 65]
    assert trace.tasks["wait"][ran].tolist() == [Wait.NONE, Wait.MEMORY, Wait.MEMORY]
    assert peak(trace) <= 1140


def test_a_plan_is_refused_and_told_why() -> None:
    with pytest.raises(InputError, match="a planned allocator has to know before time 0 which ops run"):
        run(condition(True), specs={"cpu0": MemorySpec("planned")})


def test_repetitions_have_memory_of_their_own() -> None:
    trace = checked(condition(True), cpu(), ReadyQueue(), iterations=3, memory=tensor_memory())
    assert trace.memory is not None
    assert peak(trace) == 3 * 170
    assert sorted(set(trace.memory["iteration"].tolist())) == [0, 1, 2]


@given(st.integers(0, 2**32 - 1))
@examples(150)
def test_known_outcomes_take_what_is_left_of_the_graph(seed: int) -> None:
    """With a thread for everybody a program holds what its unrolled graph holds, at every instant."""
    program = draw_program(np.random.default_rng(seed))
    one, other = (run(make(program), cpu(workers=500)) for make in (flowing, unrolled))
    assert one.makespan_ns == other.makespan_ns
    assert levels(one) == levels(other)


@given(st.integers(0, 2**32 - 1))
@examples(80)
def test_without_an_allocator_a_run_is_said_to_need_as_much(seed: int) -> None:
    """The trace alone says which bytes an exact pool holds at every instant."""
    rng = np.random.default_rng(seed)
    machine = draw_machine(rng, None)
    machine = Machine(
        machine.devices, (), machine.hosts
    )  # a pool takes a copy's bytes when a link is asked for
    graph = flowing(draw_program(rng, devices=2), [device.name for device in machine.devices])
    trace = simulate(graph, machine, ReadyQueue(), memory=tensor_memory(), iterations=2)
    bare = simulate(graph, machine, ReadyQueue(), iterations=2)
    for d, (name, use) in enumerate(memory_use(bare).items()):
        steps = zip(use.times_ns.tolist(), use.in_use_bytes.tolist(), strict=True)
        assert changes(steps) == levels(trace, d), name


def draw_machine(rng: np.random.Generator, nbytes: int | None) -> Machine:
    """Return one or two devices, CPUs or GPUs, with links or without, one host or several."""
    devices = []
    for d in range(int(rng.integers(1, 3))):
        issue = int(rng.integers(0, 3))
        if rng.random() < 0.5:
            workers = int(rng.integers(1, 4))
            devices.append(Device(f"d{d}", "cpu", workers=workers, issue_ns=issue, memory_bytes=nbytes))
        else:
            streams, latency, depth = int(rng.integers(1, 3)), int(rng.integers(0, 5)), [None, 2][issue % 2]
            devices.append(
                Device(
                    f"d{d}",
                    streams=streams,
                    issue_ns=issue,
                    memory_bytes=nbytes,
                    launch_latency_ns=latency,
                    queue_depth=depth,
                )
            )
    names = [device.name for device in devices] if rng.random() < 0.8 else []
    latency = int(rng.integers(0, 9))
    links = [Link(f"{a}-{b}", a, b, latency, 10**9) for a in names for b in names if a != b]
    together = all(not device.workers for device in devices) and rng.random() < 0.5
    hosts = (Host("host", tuple(device.name for device in devices), 1),) if together else ()
    return Machine(tuple(devices), tuple(links), hosts, make_network if links else None)


@given(
    seed=st.integers(0, 2**32 - 1),
    allocator=st.sampled_from(["pool", "bfc", "caching", "counted"]),
    policy=st.sampled_from(["completion", "issue", "tensorflow", "vm"]),
    lifetime=st.sampled_from(["execution", "issue"]),
    when_full=st.sampled_from(["error", "wait"]),
    nbytes=st.sampled_from([None, 5000, 50_000_000]),
    iterations=st.integers(1, 2),
    noisy=st.booleans(),
)
@examples(150)
def test_all_is_given_back_and_never_more_taken_than_there_is(
    seed: int,
    allocator: str,
    policy: str,
    lifetime: str,
    when_full: str,
    nbytes: int | None,
    iterations: int,
    noisy: bool,
) -> None:
    rng = np.random.default_rng(seed)
    machine = draw_machine(rng, nbytes)
    graph = flowing(draw_program(rng, devices=2), [device.name for device in machine.devices])
    chosen = {"tensorflow": TensorFlowExecutor, "vm": Sequential}
    what: dict[str, Any] = {"iterations": iterations, "noise": Noise(0.3) if noisy else None, "seed": seed}

    def go(**more: Any) -> Trace:
        made = chosen[policy]() if policy in chosen else ReadyQueue(synchronisation=policy)
        return simulate(graph, machine, made, **what, **more)

    specs = {device.name: MemorySpec(allocator) for device in machine.devices}
    bare = go()
    try:
        trace = go(memory=tensor_memory(specs, lifetime=lifetime, when_full=when_full))
    except (OutOfMemoryError, StuckError):
        assert nbytes is not None
        return
    trace.check()
    assert trace.memory is not None
    assert trace.memory["in_use"].min(initial=0) >= 0
    for device in range(len(machine.devices)):
        log = trace.log_of(device)
        assert log["in_use"][-1:].sum() == log["requested"][-1:].sum() == 0
        assert (log["reserved"] >= log["in_use"]).all()
        assert nbytes is None or log["reserved"].max(initial=0) <= nbytes
    taken = trace.memory["tensor"][trace.memory["change"] > 0]
    live = trace.tasks["op"][trace.tasks["dead"] == 0]
    made = graph.outputs.take(live).indices
    own = made[(graph.tensor_nbytes[made] > 0) & ~forwarding(graph)[made]]
    moved = trace.transfers
    went = (moved["nbytes"] > 0) & (moved["end_ns"] > moved["start_ns"])
    copied = moved["tensor"][went]
    if nbytes is None:
        assert sorted(taken.tolist()) == sorted([*own.tolist(), *copied.tolist()])
        if allocator != "counted":  # its frees wait for the device
            assert trace.makespan_ns == bare.makespan_ns


LOOP = """\
machine: {devices: {gpu0: {kind: gpu, memory: 16GB}}}
workload:
  ops:
    zero: {duration: 1us, output: 1MB}
    loop: {kind: while, inputs: [zero], attributes: {body: step, trips: 4, parallel_iterations: 1}}
  functions:
    step:
      inputs: [i]
      ops:
        wide: {inputs: [i], duration: 5us, output: 64MB}
        add: {inputs: [wide], duration: 1us, output: 1MB}
      outputs: [add]
policy: {runtime: tensorflow}
memory: {allocator: runtime}
compare:
  - {runtime: pytorch-eager, label: one after another}
  - {runtime: tvm-vm, label: virtual machine}
"""


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    path = tmp_path / "loop.yaml"
    path.write_text(LOOP)
    return path


@pytest.mark.parametrize("allocator", ["runtime", "pool", "bfc", "caching", "counted"])
def test_a_scenario_with_a_loop_has_an_allocator(loop: Path, allocator: str) -> None:
    """Of the counter (1 MB) and the wide tensor (64 MB) one each lives; blocks may be larger."""
    result = sim("run", loop, "--set", f"memory.allocator={allocator}", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["memory"]["gpu0"]
    assert found["peak_requested_bytes"] == 65_000_000
    assert found["allocations"] == 1 + 4 * 2
    if allocator in ("pool", "counted"):
        assert found["peak_in_use_bytes"] <= 65_001_024


def test_a_comparison_has_the_memory_of_loops(loop: Path) -> None:
    result = sim("compare", loop, "--set", "memory.allocator=counted", "--json")
    assert result.exit_code == 0, result.stderr
    peaks = [run["devices"]["gpu0"]["peak_memory_bytes"] for run in json.loads(result.stdout)["results"]]
    assert peaks == [65_000_000] * 2


def test_a_plan_for_a_loop_is_told_at_the_allocator(loop: Path) -> None:
    for setting in ("memory.allocator=planned", "policy.runtime=tvm-vm"):
        result = sim("run", loop, "--set", setting)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "memory.allocator: a planned allocator has to know before time 0" in result.stderr


def test_what_a_run_with_a_loop_asked_of_its_allocator_can_be_replayed(loop: Path) -> None:
    trace = loop.with_name("trace.jsonl")
    result = sim("run", loop, "--set", "memory.allocator=pool", "--memory-trace", trace)
    assert result.exit_code == 0, result.stderr
    result = sim("memory", trace, "--allocator", "pool", "--json")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)["results"]
    assert (found["events"], found["peak_requested_bytes"]) == (18, 65_000_000)
