"""Ops that fail in a scenario: what the key says, what the commands print, what is refused and where."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from cli_runner import sim

from scenarios.importers.graph_json import read_graph, write_graph
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import GraphBuilder
from sim.explain.failed_ops import failed_tasks

TEXT = """\
machine: {devices: {cpu0: {kind: cpu, cores: 2}}}
workload:
  ops:
    a: {duration: 10us, output: 1kB}
    f: {duration: 10us, inputs: [a], output: 1kB, fails: {at: [1]}}
    g: {duration: 30us, inputs: [a], output: 1kB}
    h: {duration: 5us, inputs: [g], output: 1kB}
    z: {duration: 5us, inputs: [f, h]}
policy: {runtime: tensorflow}
iterations: 3
"""


def written(folder: Path, *changes: tuple[str, str]) -> str:
    """Return a file with the scenario above, changed."""
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "fails.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_run_says_in_one_line_what_failed_where_and_in_which_step(tmp_path: Path) -> None:
    ops = tmp_path / "ops.csv"
    result = sim("run", written(tmp_path), "--ops", str(ops))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:3] == [
        "fails: tensorflow",
        "op 'f' failed on cpu0 in step 1 at 70 us; 6 never ran",
        "makespan 95 us, until all that ran had ended; 9 tasks ran",
    ]
    with ops.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["op"], row["iteration"]) for row in rows if row["status"] == "failed"] == [("f", "1")]
    assert {row["status"] for row in rows} == {"done", "failed"}


def test_run_as_json_tells_the_same(tmp_path: Path) -> None:
    found = json.loads(sim("run", written(tmp_path), "--json").stdout)
    assert found["failures"] == {
        "failed": 1,
        "aborted": 0,
        "never_ran": 6,
        "tasks": [{"op": "f", "device": "cpu0", "step": 1, "frame": "", "time_ns": 70_000}],
    }
    assert (found["lower_bound_ns"], found["engine"]) == (0, "simpy: some of the ops may fail")


def test_a_run_that_does_not_fail_says_so_and_is_as_ever(tmp_path: Path) -> None:
    plain = sim("run", written(tmp_path, (", fails: {at: [1]}", "")), "--json").stdout
    never = sim("run", written(tmp_path, ("{at: [1]}", "{probability: 0}")), "--json").stdout
    told = json.loads(never)
    assert told.pop("failures") == {"failed": 0, "aborted": 0, "never_ran": 0, "tasks": []}
    assert {**told, "engine": ""} == {**json.loads(plain), "engine": ""}
    assert "failed" not in sim("run", written(tmp_path, ("{at: [1]}", "{probability: 0}"))).stdout


def test_every_file_of_a_run_that_failed_is_written(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("g.html", "g.svg", "t.json")]
    gantt = ["--gantt", files[0], "--gantt", files[1], "--trace", files[2], "--arrows"]
    assert sim("run", written(tmp_path), *gantt).exit_code == 0
    assert '"status":"failed"' in Path(files[2]).read_text(encoding="utf-8")
    explained = sim("explain", written(tmp_path)).stdout
    assert "op 'f' failed on cpu0 in step 1 at 70 us; 6 never ran; no bound." in explained


def test_what_is_expected_may_be_a_failure(tmp_path: Path) -> None:
    expect = 'iterations: 3\nexpect: {failed: 1, never_ran: 6, aborted: 0, "end.h[1]": 95us}\n'
    assert sim("check", written(tmp_path, ("iterations: 3\n", expect))).exit_code == 0
    never = 'iterations: 3\nexpect: {"end.z[1]": 95us}\n'
    result = sim("run", written(tmp_path, ("iterations: 3\n", never)))
    assert result.exit_code == 2
    assert "expect.end.z[1]: this run has no such result" in result.stderr


def test_a_comparison_does_not_rank_what_is_not_the_same_work(tmp_path: Path) -> None:
    both = (
        "iterations: 3\ncompare: [tensorflow-executor, {label: whole, set: {workload.ops.f.fails: false}}]\n"
    )
    result = sim("compare", written(tmp_path, ("iterations: 3\n", both)))
    assert result.exit_code == 1
    assert [line.split()[0] for line in result.stdout.splitlines()[2:4]] == ["whole", "tensorflow-executor"]
    assert "an op failed" in result.stdout
    none = sim("compare", written(tmp_path), "--policy", "ready-queue", "--policy", "sequential")
    assert none.exit_code == 1
    assert "op 'f' failed on cpu0 in step 1 at 80 us; 8 never ran" in none.stderr


def test_a_sweep_and_repeats_say_which_runs_failed(tmp_path: Path) -> None:
    rows = json.loads(sim("sweep", written(tmp_path), "--vary", "iterations=2,3", "--json").stdout)
    assert [row["error"] for row in rows] == [
        "op 'f' failed on cpu0 in step 1 at 70 us; 1 never ran",
        "op 'f' failed on cpu0 in step 1 at 70 us; 6 never ran",
    ]
    path = written(tmp_path, ("{at: [1]}", "{probability: 0.2}"))
    told = json.loads(sim("run", path, "--repeat", "30", "--json").stdout)["repeats"]
    scenario = load_scenario(path)
    failed = [
        seed
        for seed in told["seeds"]
        if failed_tasks(run_scenario(load_scenario(path, sets=[f"seed={seed}"])).trace)
    ]
    assert told["failed"] == failed
    assert 0 < len(failed) < 30
    assert scenario.name == "fails"
    assert f" {len(failed)}" in sim("run", path, "--repeat", "30").stdout.splitlines()[-2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "{at: [1]}",
            "{at: [3]}",
            "fails.yaml:5:58: workload.ops.f.fails: op 'f': fails: there is no step 3: ",
        ),
        ("{at: [1]}", "yes", "workload.ops.f.fails: 'yes' does not say when an op fails; give true"),
        ("{at: [1]}", "{at: [1]}, attributes: {fails: true}", "workload.ops.f: has fails twice"),
        (
            "fails: {at: [1]}",
            "attributes: {fails: {on: 1}}",
            "workload.ops.f.attributes.fails: op 'f': fails: {'on': 1} does",
        ),
        ("fails: {at: [1]}", "fail: true", "workload.ops.f.fail: no such key; did you mean 'fails'?"),
        (
            "runtime: tensorflow",
            "name: out-of-order",
            "policy: some ops may fail, and nobody knows what OutOf",
        ),
        ("iterations: 3", "iterations: 3\nmemory: {}", "fails.yaml:11:9: memory: an allocator cannot follow"),
        (
            "iterations: 3",
            "iterations: 3\nengine: kernel",
            "the kernel cannot run this: some of the ops may fail",
        ),
        (
            "runtime: tensorflow",
            "runtime: tensorflow, compile: [{name: prune, fetches: [h]}]",
            "policy.compile.0: prune: removes the op 'f', which may fail",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    result = sim("run", written(tmp_path, (old, new)))
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_op_that_stands_for_others_does_not_fail_itself(tmp_path: Path) -> None:
    call = "z: {kind: call, fails: true, inputs: [f], attributes: {body: g}}\n"
    functions = (
        call + "  functions: {g: {inputs: [x], ops: {y: {inputs: [x], duration: 1us}}, outputs: [y]}}\n"
    )
    path = written(tmp_path, ("z: {duration: 5us, inputs: [f, h]}\n", functions))
    result = sim("run", path)
    assert result.exit_code == 2
    assert "workload.ops.z.fails: op 'z' stands for other ops; let one of these fail" in result.stderr


def test_a_cuda_graph_is_launched_as_a_whole(tmp_path: Path) -> None:
    gpu = ("cpu0: {kind: cpu, cores: 2}", "gpu0: {kind: gpu}")
    result = sim("run", written(tmp_path, gpu, ("tensorflow", "cuda-graph")))
    assert result.exit_code == 2
    assert "a CUDA graph is launched as a whole; launch ops one by one (cuda_graph: false)" in result.stderr


def test_a_device_whose_memory_is_too_small_is_found_without_an_allocator(tmp_path: Path) -> None:
    small = ("cores: 2}", "cores: 2, memory: 1.5kB}")
    result = sim("run", written(tmp_path, small))
    assert result.exit_code == 1
    assert "out of memory on cpu0" in result.stderr


def test_a_search_for_a_placement_knows_nothing_of_failures(tmp_path: Path) -> None:
    two = ("cpu0: {kind: cpu, cores: 2}", "cpu0: {kind: cpu, cores: 2}, cpu1: {kind: cpu, cores: 2}")
    tuned = ("runtime: tensorflow", "runtime: tensorflow, placement: {name: auto-tune, budget: 20}")
    fails = json.loads(sim("run", written(tmp_path, two, tuned), "--json").stdout)
    whole = json.loads(sim("run", written(tmp_path, two, tuned, (", fails: {at: [1]}", "")), "--json").stdout)
    assert fails["tuning"] == whole["tuning"]


def test_a_step_of_a_session_that_there_is_not_has_its_place(tmp_path: Path) -> None:
    path = tmp_path / "sessions.yaml"
    path.write_text(
        "machine: {devices: {cpu0: {kind: cpu, cores: 2}}}\n"
        "workload:\n  sessions:\n"
        "    bad: {iterations: 3, workload: {ops: {x: {duration: 1ms, fails: {at: [5]}}}}}\n"
        "    good: {workload: {ops: {u: {duration: 1ms}}}}\n"
        "policy: {runtime: tensorflow}\n",
        encoding="utf-8",
    )
    result = sim("run", str(path))
    assert result.exit_code == 2
    assert "sessions.yaml:4:69: workload.ops.x.fails: op 'x': fails: there is no step 5" in result.stderr


def test_a_graph_file_keeps_it(tmp_path: Path) -> None:
    b = GraphBuilder("two")
    b.op("a", duration_ns=10, attributes={"fails": {"at": [1]}})
    b.op("b", duration_ns=10, inputs=["a"])
    path = tmp_path / "two.json"
    write_graph(b.build(), path)
    assert read_graph(path).attributes[0] == {"fails": {"at": [1]}}
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "machine: {devices: {cpu0: {kind: cpu, cores: 1}}}\nworkload: {graph: two.json}\niterations: 2\n"
        "policy: {runtime: tvm-graph-executor}\nexpect: {failed: 1, never_ran: 1, makespan: 30ns}\n",
        encoding="utf-8",
    )
    assert sim("run", str(scenario)).exit_code == 0


def test_the_example_is_as_its_description_says(root: Path) -> None:
    scenario = load_scenario(root / "scenarios" / "examples" / "failure.yaml")
    result = run_scenario(scenario, check=True)
    assert result.passed
    (failed,) = failed_tasks(result.trace)
    assert (failed.op, failed.device, failed.step, failed.time_ns) == ("check", "worker", 1, 42_000_000)
