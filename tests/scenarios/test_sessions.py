"""Several sessions on one machine: their graphs side by side, and whose threads run what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from runs import checked

from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from scenarios.ops.control_flow import while_loop
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.workloads.sessions import Session, side_by_side
from sim import Device, Graph, GraphBuilder, Machine, Trace, simulate
from sim.base.errors import InputError, ScenarioError


def cpu(workers: int, cores: int = 0) -> Machine:
    return Machine((Device("cpu0", "cpu", workers=workers, cores=cores),))


def chain(n: int = 2) -> Graph:
    b = GraphBuilder("chain")
    b.input("x", 8), b.parameter("w", 100)
    for i in range(n):
        b.op(f"op{i}", inputs=[f"op{i - 1}", "w"] if i else ["x", "w"], outputs=8, duration_ns=10)
    return b.build()


def wide(n: int = 4) -> Graph:
    b = GraphBuilder("wide")
    for i in range(n):
        b.op(f"op{i}", duration_ns=10)
    return b.build()


def lanes(trace: Trace) -> dict[str, set[int]]:
    """Return session → the threads that ran its ops."""
    out: dict[str, set[int]] = {}
    for op, stream in zip(trace.tasks["op"].tolist(), trace.tasks["stream"].tolist(), strict=True):
        out.setdefault(trace.job.graph.op_names[op].partition("/")[0], set()).add(stream)
    return out


def test_batches_of_a_session_run_one_after_another_and_sessions_do_not_wait() -> None:
    g = side_by_side("two", {"a": Session(chain(), iterations=3), "b": Session(chain())})
    trace = checked(g, cpu(4), ReadyQueue())
    end = dict(zip((g.op_names[op] for op in trace.tasks["op"]), trace.tasks["end_ns"].tolist(), strict=True))
    assert [end[f"a/{i}/op1"] for i in range(3)] == [20, 40, 60]
    assert end["b/op1"] == 20
    assert [*g.external_names] == ["a/0/x", "a/w", "a/1/x", "a/2/x", "b/x", "b/w"]


def test_a_batch_reads_what_the_batch_before_made_and_begins_after_it() -> None:
    b = GraphBuilder("step")
    b.op("grad", inputs=[("update", 1)], duration_ns=10)
    b.op("update", inputs=["grad"], outputs=8, duration_ns=5)
    g = side_by_side("one", {"a": Session(b.build(), iterations=3)})
    trace = simulate(g, cpu(4), ReadyQueue(), iterations=2)
    begun = [trace.tasks["start_ns"][trace.tasks["op"] == g.index(f"a/{k}/grad")].tolist() for k in range(3)]
    assert begun == [[0, 45], [15, 60], [30, 75]]


def test_a_batch_begins_where_its_ops_are_and_not_on_the_first_accelerator(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {cpu0: {kind: cpu, cores: 1}, gpu0: {kind: gpu, issue_cost: 5us}}}\n"
        "workload: {sessions: {a: {workload: {ops: {f: {duration: 10us, device: cpu0}}}, iterations: 3}}}\n"
        "expect: {makespan: 30us, utilisation.gpu0: 0%}\n"
    )
    assert all(outcome.passed for outcome in run_scenario(load_scenario(path)).outcomes)


def test_batches_follow_one_another_through_loops_and_dead_branches() -> None:
    b = GraphBuilder("loop")
    b.op("zero", duration_ns=0)

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("aside", inputs=[v["i"]], duration_ns=50)
        return {"i": b.op("step", inputs=[v["i"]], duration_ns=10)}

    while_loop(b, "loop", {"i": "zero"}, body, trips=2, parallel_iterations=1)
    b.op("p", duration_ns=1, attributes={"outcome": True})
    b.op("s", kind="switch", inputs=["zero", "p"], outputs=(0, 0), duration_ns=0)
    b.op("never", inputs=["s"], duration_ns=1000)
    trace = checked(side_by_side("twice", {"a": Session(b.build(), iterations=2)}), cpu(4), ReadyQueue())
    assert trace.makespan_ns == 2 * 2 * 50
    assert set(trace.frames) == {"", *(f"a/{batch}/loop:{i}" for batch in (0, 1) for i in (0, 1, 2))}


def test_the_next_batch_waits_for_what_enters_a_loop_and_is_not_read_there() -> None:
    b = GraphBuilder("unread")
    b.op("zero", duration_ns=0), b.op("late", duration_ns=100)
    while_loop(b, "loop", {"i": "zero"}, lambda b, v: {"i": b.op("step", inputs=[v["i"]], duration_ns=10)},
               trips=2, invariants=["late"])  # fmt: skip
    trace = checked(side_by_side("twice", {"a": Session(b.build(), iterations=2)}), cpu(4), ReadyQueue())
    assert trace.makespan_ns == 2 * 100


@pytest.mark.parametrize(
    ("policy", "batch_us"), [("tensorflow", 81), ("tfrt", 81), ("ready-queue", 81), ("tvm-vm", 121)]
)
def test_the_next_batch_waits_for_what_runs_in_a_loop_and_nobody_reads(
    tmp_path: Path, policy: str, batch_us: int
) -> None:
    """The exits come at 41 us, and the second `log` ends at 81."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {cpu0: {kind: cpu, cores: 4}}}\nworkload:\n  sessions:\n    a:\n"
        "      iterations: 3\n      workload:\n        ops:\n          zero: {duration: 1us}\n"
        "          loop: {kind: while, inputs: [zero], attributes: {body: step, trips: 2}}\n"
        "        functions:\n          step: {inputs: [i], outputs: [add], ops: {add: {inputs: [i], "
        "duration: 20us}, log: {inputs: [add], duration: 40us}}}\n"
    )
    trace = run_scenario(load_scenario(path), policy, check=True).trace
    assert trace.makespan_ns == 3 * batch_us * 1000


@pytest.mark.parametrize("policy", ["tensorflow", "onnxruntime", "tfrt", "pytorch-eager"])
def test_batches_on_a_gpu_follow_one_another_as_iterations_do(tmp_path: Path, policy: str) -> None:
    """Where calls are in turn, nothing is launched ahead of the end of the batch before it."""
    machine = "machine: {devices: {gpu0: {kind: gpu, streams: 2, issue_cost: 10us}}}\n"
    work = "{ops: {f: {duration: 100us}, g: {duration: 3us}}}"
    path = tmp_path / "s.yaml"
    path.write_text(f"{machine}workload: {work}\niterations: 3\n")
    ends = run_scenario(load_scenario(path), policy).trace.makespan_ns
    path.write_text(f"{machine}workload: {{sessions: {{a: {{iterations: 3, workload: {work}}}}}}}\n")
    assert run_scenario(load_scenario(path), policy, check=True).trace.makespan_ns == ends


@pytest.mark.parametrize("policy", ["tensorflow", "tfrt"])
def test_batches_of_a_loop_that_is_cut_over_devices_run_one_after_another(
    tmp_path: Path, policy: str
) -> None:
    """What cutting adds says of no session that it is of it: it is of that of its neighbours."""
    machine = "{a: {kind: cpu, cores: 2}, b: {kind: cpu, cores: 2}}, links: [{from: a, to: b}]"
    loop = "{kind: while, inputs: [zero], attributes: {body: step, trips: 2}}"
    step = "{add: {inputs: [i], duration: 20us, device: a}, log: {inputs: [add], duration: 40us, device: b}}"
    path = tmp_path / "s.yaml"
    path.write_text(
        f"machine: {{devices: {machine}}}\niterations: 2\nworkload:\n  sessions:\n    s:\n"
        "      iterations: 2\n      workload:\n"
        f"        ops: {{zero: {{duration: 1us, device: a}}, loop: {loop}}}\n"
        f"        functions: {{step: {{inputs: [i], outputs: [add], ops: {step}}}}}\n"
        f"policy: {{runtime: {policy}, compile: [{{name: partition, rendezvous: true}}]}}\n"
    )
    assert run_scenario(load_scenario(path), check=True).trace.makespan_ns == 4 * 81_000


SESSIONS = {"a": Session(wide(), inter_op_thread_pool=1), "b": Session(wide())}


@pytest.mark.parametrize(
    ("options", "threads", "makespan"),
    [
        ({}, {"a": {0, 1, 2, 3}, "b": {0, 1, 2, 3}}, 20),
        ({"inter_op_parallelism_threads": 2}, {"a": {0, 1}, "b": {0, 1}}, 40),
        ({"use_per_session_threads": True, "inter_op_parallelism_threads": 1}, {"a": {0}, "b": {1}}, 40),
        ({"use_per_session_threads": True}, {"a": {0, 1}, "b": {2, 3}}, 20),
        ({"session_inter_op_thread_pool": [1, 3]}, {"a": {1, 2, 3}, "b": {0}}, 40),
    ],
)
def test_pools(options: dict[str, Any], threads: dict[str, set[int]], makespan: int) -> None:
    """Four ops of 10 ns in each session; CPU with four workers on two cores, which only count for sizes."""
    trace = simulate(side_by_side("two", SESSIONS), cpu(4, cores=2), TensorFlowExecutor(**options))
    used = lanes(trace)
    assert all(used[name] <= threads[name] for name in threads)
    assert set().union(*used.values()) == set().union(*threads.values())
    assert trace.makespan_ns == makespan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_per_session_threads": True, "inter_op_parallelism_threads": 3},
         r"pools of 3 and 3 threads need 6 workers, and the CPU has 4; give it workers: 6"),
        ({"session_inter_op_thread_pool": [2]}, "session 'a' chooses inter_op_thread_pool 1; there are 1"),
        ({"inter_op_parallelism_threads": -2}, "whole number of at least -1"),
        ({"use_per_session_threads": True, "session_inter_op_thread_pool": [2]}, "not both"),
        ({"session_inter_op_thread_pool": [0]}, "must be sizes >= 1"),
    ],
)  # fmt: skip
def test_wrong_pools(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(side_by_side("two", SESSIONS), cpu(4), TensorFlowExecutor(**options))


def test_sessions_do_not_meet_by_the_same_words() -> None:
    """Of two sessions with a communicator, or a key, of the same name, each meets itself."""
    b = GraphBuilder("ranks")
    for gpu, size in (("gpu0", 8), ("gpu1", 8)):
        dp = {"communicator": "dp"}
        b.op(f"{gpu}/c", kind="all_reduce", device=gpu, bytes_read=size, duration_ns=10, attributes=dp)
    b.op("send", kind="send", outputs=8, device="gpu0", duration_ns=0, attributes={"key": "x"})
    b.op("recv", kind="recv", outputs=8, device="gpu1", duration_ns=0, attributes={"key": "x"})
    model = b.build()
    machine = Machine((Device("gpu0", streams=2), Device("gpu1", streams=2)))
    both = {"a": Session(model, iterations=2), "b": Session(model)}
    trace = checked(side_by_side("two", both), machine, ReadyQueue())
    assert trace.job.collectives is not None
    assert trace.job.collectives.names == ("a/dp", "b/dp")
    keys = {given["key"] for given in trace.job.graph.attributes.values() if "key" in given}
    assert keys == {"a/x", "b/x"}


def test_the_shipped_scenario_tells_pools_apart(root: Path) -> None:
    """With one pool ops wait for a thread; with one each, for a thread of the right session."""
    scenario = load_scenario(root / "scenarios" / "examples" / "sessions.yaml")
    waits = {}
    for label in ("one pool of 4", "a pool of 2 each"):
        table = run_scenario(scenario, label, check=True).trace.to_pandas()
        waits[label] = set(table["wait"]) - {""}
    assert waits == {"one pool of 4": {"issuer"}, "a pool of 2 each": {"policy"}}


def test_a_mistake_in_a_session_has_its_place(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {cpu0: {kind: cpu}}}\nworkload:\n  sessions:\n"
        "    a:\n      workload:\n        ops:\n          f: {inputs: [g]}\n"
    )
    with pytest.raises(ScenarioError, match=r"s.yaml:7:24: .*unknown input 'g'"):
        run_scenario(load_scenario(path))
    done = sim("run", path)
    assert done.exit_code == 2
    for more in ("", "\n      iterations: 2"):  # ops are a/f, or a/0/f
        text = path.read_text().partition("          f:")[0]
        path.write_text(f"{text}          f: {{duration: 1us, device: gpu}}{more}\n")
        with pytest.raises(ScenarioError, match=r"s.yaml:7:38: workload.sessions.a.*.f.device: op 'a/.*cpu"):
            run_scenario(load_scenario(path))


def test_a_session_takes_every_workload_but_a_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    text = (
        "machine: {devices: {cpu0: {kind: cpu, cores: 2}}}\n"
        "workload:\n  sessions:\n    a: {workload: WORK}\n    b: {workload: {ops: {f: {duration: 1us}}}}\n"
    )
    path.write_text(text.replace("WORK", "{build: {model: branchy, width: 3, layers: 2, duration: 1us}}"))
    trace = run_scenario(load_scenario(path), check=True).trace
    assert set(lanes(trace)) == {"a", "b"}
    for work, message in (
        (
            "{pipeline: {stages: 2}}",
            "s.yaml:4:19: .*pipeline cannot be the workload of a session: its schedule is",
        ),
        ("{serving: {}}", "s.yaml:4:19: .*serving cannot be the workload of a session: its batcher is"),
        ("{sessions: {}}", "s.yaml:4:19: .*sessions cannot be .*: list all of them under one sessions"),
        ("{op: {}}", "s.yaml:4:19: .*should be a mapping with just one of the keys build, chakra, "),
        ("{torch: m:f}", "--allow-code"),
    ):
        path.write_text(text.replace("WORK", work))
        with pytest.raises(ScenarioError, match=message):
            run_scenario(load_scenario(path))
