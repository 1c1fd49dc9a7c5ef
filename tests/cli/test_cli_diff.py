"""``sim diff``: what its sides may be, what it prints, draws and refuses."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from cuda_programs import Step, ran
from scenario_texts import HEAD_OF_LINE, changed, write

from scenarios.importers import load_graph
from scenarios.recorded.setup import run_recorded
from scenarios.report.diff import recorded_trace
from sim.diff.differences import differences
from sim.diff.schedule import schedule_of

HEAD = HEAD_OF_LINE + "compare: [in-order, {label: window 4, name: out-of-order, window: 4}]\n"

PROGRAM: Sequence[Step] = (("launch", 7), ("launch", 20), ("launch", 7), ("item", 7), ("launch", 20))


def answer(*arguments: object) -> Any:
    result = sim("diff", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def recording(folder: Path, name: str, durations: Sequence[int], program: Sequence[Step] = PROGRAM) -> Path:
    path = folder / name
    events = ran(program, durations).events
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


# -- what it says -----------------------------------------------------------------------------------


def test_one_scenario_under_two_policies(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD)
    result = sim(
        "diff", path, "--policy", "in-order", "--policy", "window 4", "--gantt", tmp_path / "both.png"
    )
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "A  head of line: in-order",
        "B  head of line: window 4",
        "makespan 80 us in A, 50 us in B: 30 us (37.5%) shorter",
        "A is 30 us slower, mainly because in-order holds ready ops back (+20 us); +10 us computing",
        "4 ops are in both (by name)",
        "of those in both 2 start at another time, 2 of them by themselves; 0 last longer or shorter; "
        "1 run on another lane",
        "",
        "First to move: 'c' on cpu0/w1 starts at 40 us in A, 0 ns in B: 40 us earlier",
        "  in A at 0 ns 'c' is ready and an issuer is free, but in-order runs 'b' first",
        "  in B 'c' comes before 'b', which starts at 40 us there",
        "  until it started, it waited in A for policy 40 us; in B for nothing",
        "",
        "moved most      kind  lane     start in A  start in B   moved",
        "'c' and 1 more  op    cpu0/w1       40 us        0 ns  -40 us",
        "",
        "makespan of cpu0   in A   in B  difference",
        "compute           60 us  50 us      -10 us",
        "policy            20 us   0 ns      -20 us",
        "",
        "2 ops are on the critical path of both; 1 in A only: 'd'",
    ]
    assert (tmp_path / "both.png").read_bytes()[:4] == b"\x89PNG"
    assert sim("diff", path, "--policy", "window 4").stdout == result.stdout  # its own policy is A


def test_json(tmp_path: Path) -> None:
    told = answer(write(tmp_path, HEAD), "--policy", "window 4", "--top", 1)
    assert told["schema"] == "sim.diff/1"
    assert told["makespan_difference_ns"] == -30_000
    assert (told["matched"], told["matched_by"], told["moved"], told["changed_lane"]) == (4, "name", 2, 1)
    first = told["first_moved"]
    assert (first["a"]["op"], first["later_in"], first["reason"], first["root"]) == (
        "c",
        "a",
        "policy",
        "order",
    )
    assert first["a"] == {"op": "c", "name": "'c'", "lane": "cpu0/w1", "start_ns": 40_000}
    assert first["waited_ns"] == {"a": {"policy": 40_000}, "b": {}}
    assert told["moved_most"] == [{"by_ns": -40_000, "ops": 2, "first": told["moved_most"][0]["first"]}]
    assert told["makespan"] == {
        "parts_of": {"a": "cpu0", "b": "cpu0"},
        "parts": {"compute": {"a_ns": 60_000, "b_ns": 50_000}, "policy": {"a_ns": 20_000, "b_ns": 0}},
    }
    assert told["critical_path"]["only_a"] == ["d"]


def test_a_setting_of_one_side(tmp_path: Path) -> None:
    path = write(tmp_path)
    told = answer(path, "--set-b", "workload.ops.b.duration=33us")
    assert told["b"]["title"] == "good: ready-queue (workload.ops.b.duration=33us)"
    assert [one["kind"] for one in told["durations"]] == ["op"]
    assert told["first_moved"]["why"][-1] == "'b' lasts 20 us in A, 33 us in B"
    both = answer(path, "--set", "workload.ops.b.duration=33us", "--set-a", "workload.ops.c.duration=1us")
    assert both["makespan_difference_ns"] == 0
    assert both["changed_duration"] == 1
    refused = sim("diff", path, "--set-b", "workload.ops.z.duration=1us")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("--set-b workload.ops.z.duration=1us: ")


def test_two_scenarios_and_the_exit_status(tmp_path: Path) -> None:
    a = write(tmp_path)
    b = write(tmp_path, changed("c: {duration: 30us", "c: {duration: 31us"), "t.yaml")
    told = answer(a, b)
    assert told["makespan_difference_ns"] == 1000
    assert sim("diff", a, b).exit_code == 0
    assert sim("diff", a, b, "--exit-code").exit_code == 1
    assert sim("diff", a, b, "--exit-code", "--over", "1us").exit_code == 0
    same = sim("diff", a, a, "--exit-code")
    assert same.exit_code == 0
    assert same.stdout.endswith("makespan 45 us in A, 45 us in B: the same\nnothing differs in 4 ops\n")


def test_transfers_are_counted_apart_from_ops(root: Path) -> None:
    example = root / "scenarios" / "examples" / "rendezvous.yaml"
    assert sim("diff", example, example).stdout.endswith("nothing differs in 9 ops and 2 transfers\n")


@pytest.mark.parametrize("ending", ["csv", "json.gz", "parquet"])
def test_a_table_of_ops(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    path, ops = write(tmp_path, HEAD), tmp_path / f"ops.{ending}"
    two = ("--policy", "in-order", "--policy", "window 4")
    assert sim("run", path, *two, "--ops", ops).exit_code == 0
    told = answer(ops)
    assert told["first_moved"]["a"]["op"] == "c"
    assert told["first_moved"]["why"] == ["in A at 0 ns 'c' is ready, and the policy holds it back"]
    assert told["critical_path"] is None
    assert told["moved"] == 2
    assert answer(ops, *two[::-1][::-1]) == told
    assert answer(ops, path, "--policy", "in-order")["same"]
    assert not answer(path, ops, "--policy", "in-order", "--policy", "window 4")["same"]


def test_a_table_with_transfers_devices_and_iterations(tmp_path: Path) -> None:
    linked = """\
name: linked
machine:
  devices: {gpu0: {kind: gpu}, gpu1: {kind: gpu}}
  links: [{from: gpu0, to: gpu1, bandwidth: 1GB/s}]
workload:
  ops:
    a: {duration: 10us, output: 4MB, device: gpu0}
    b: {duration: 20us, inputs: [a], device: gpu1}
policy: {name: in-order}
"""
    path, ops = write(tmp_path, linked), tmp_path / "ops.csv"
    assert sim("run", path, "--ops", ops).exit_code == 0
    told = answer(path, ops)
    assert told["same"]
    assert told["matched"] == 3
    assert told["idle"] == {}
    faster = answer(ops, path, "--set-b", "machine.links.0.bandwidth=2GB/s")
    assert faster["changed_duration"] == 1
    assert faster["first_moved"]["a"]["op"] == "b"


@pytest.mark.parametrize("name", ["head_of_line", "gpipe", "fsdp2"])
def test_compare_explain_and_diff_say_the_same(root: Path, name: str) -> None:
    """One decomposition: what the parts of two runs are in one verb, they are in all of them."""
    path = root / "scenarios" / "examples" / f"{name}.yaml"
    fast, *_, slow = json.loads(sim("compare", path, "--json").stdout)["results"]
    told = answer(path, "--policy", slow["policy"], "--policy", fast["policy"])
    parts = told["makespan"]["parts"]
    for side, one in (("a", slow), ("b", fast)):
        assert {part: both[f"{side}_ns"] for part, both in parts.items() if both[f"{side}_ns"]} == one[
            "parts_ns"
        ]
        explained = json.loads(sim("explain", path, "--policy", one["policy"], "--json").stdout)
        assert [explained[key] for key in ("parts_of", "parts_ns", "waits_for_ns")] == [
            one[key] for key in ("parts_of", "parts_ns", "waits_for_ns")
        ]
    differ = {part: both["a_ns"] - both["b_ns"] for part, both in parts.items()}
    assert {part: ns for part, ns in differ.items() if ns} == slow["slower_by_ns"]
    assert sum(differ.values()) == slow["makespan_ns"] - fast["makespan_ns"]
    assert slow["why"].startswith(
        sim("diff", path, "--policy", slow["policy"], "--policy", fast["policy"])
        .stdout.splitlines()[3]
        .removeprefix("A is ")
    )


def test_a_plan(tmp_path: Path) -> None:
    path, plan = write(tmp_path, HEAD), tmp_path / "plan.json"
    assert sim("run", path, "--policy", "window 4", "--plan", plan).exit_code == 0
    told = answer(path, plan)
    assert told["makespan_difference_ns"] == -30_000
    assert told["b"]["title"] == "head of line: plan.json"
    assert answer(plan, path, "--policy", "window 4")["same"]
    other = write(tmp_path, HEAD.replace(" d:", " e:"), "other.yaml")
    assert re.match(r"\S*plan\.json: .*unknown op", sim("diff", other, plan).stderr)


@pytest.mark.parametrize(
    "scenario",
    [
        "machine: {devices: {gpu0: {kind: gpu, streams: 2}}}\n"
        "workload: {build: {model: branchy, blocks: 60, width: 4, duration: 10us}}\n"  # the schema comes late
        "policy: {name: ready-queue, streams: per-branch}\n",
        "workload: {pipeline: {stages: 2, micro_batches: 3, forward: 1ms, backward: 2ms}}\npolicy: 1f1b\n",
    ],
)
def test_a_run_under_its_own_plan_is_the_same(tmp_path: Path, scenario: str) -> None:
    path, plan = tmp_path / "s.yaml", tmp_path / "plan.json"
    path.write_text(scenario)
    assert sim("run", path, "--plan", plan).exit_code == 0
    assert answer(path, plan)["same"]


def test_the_page_shows_what_is_printed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    page = (root / "docs" / "diff.md").read_text(encoding="utf-8")
    block = page.partition("\nTables follow")[0].partition("\n    sim diff ")[2]
    command, _, shown = block.partition("\n\n")
    printed = sim("diff", *shlex.split(command)).stdout
    assert printed.startswith(textwrap.dedent(shown))


# -- recordings -------------------------------------------------------------------------------------


def test_a_recording_and_its_simulation(tmp_path: Path) -> None:
    path = recording(tmp_path, "trace.json", [30, 10, 20, 5, 8])
    told = answer(path, "--over", "0ns")
    assert told["a"]["recorded"]
    assert not told["b"]["recorded"]
    assert told["same"]  # this program was run without launch latency
    assert sim("diff", path).stdout.splitlines()[:2] == [
        "A  trace.json, as recorded",
        "B  trace.json, simulated",
    ]


def test_a_recording_under_another_setting_is_simulated(tmp_path: Path) -> None:
    path = recording(tmp_path, "trace.json", [30, 10, 20, 5, 8])
    told = answer(path, "--set-b", "noise={devices: {gpu: 2}}")
    assert not told["a"]["recorded"]
    assert told["makespan_difference_ns"] > 0
    kernels = [one for one in told["durations"] if one["kind"] == "kernel"]
    assert kernels[0]["b_ns"] == 2 * kernels[0]["a_ns"]


def test_a_scenario_of_a_recording(tmp_path: Path) -> None:
    recording(tmp_path, "trace.json", [30, 10, 20, 5, 8])
    text = """\
name: replayed
machine: {devices: {gpu0: {kind: gpu, streams: 2}, cpu0: {kind: cpu, cores: 1}}}
workload: {kineto: trace.json}
policy: {name: ready-queue, synchronisation: issue, streams: recorded}
"""
    told = answer(write(tmp_path, text))
    assert told["a"]["recorded"]
    assert told["matched"] == told["b"]["ops"]


def test_two_recordings(tmp_path: Path) -> None:
    a = recording(tmp_path, "a.json", [30, 10, 20, 5, 8])
    longer = (("launch", 20), *PROGRAM)
    b = recording(tmp_path, "b.json", [1, 30, 10, 20, 5, 8], longer)
    told = answer(a, b)
    assert told["a"]["recorded"]
    assert told["b"]["recorded"]
    assert told["matched_by"] == "order"
    assert told["only_a"]["ops"] == 0
    assert {one["op"]: one["ops"] for one in told["only_b"]["most"]} == {"kernel": 1, "launch": 1}


def test_the_recorded_schedule_is_a_trace(tmp_path: Path) -> None:
    graph = load_graph(recording(tmp_path, "trace.json", [30, 10, 20, 5, 8]))
    trace, run = recorded_trace(graph, "trace.json"), run_recorded(graph)
    trace.check()
    assert trace.makespan_ns == run.makespan_ns
    found = differences(schedule_of(trace, "A", recorded=True), schedule_of(run, "B"))
    assert found.same


@pytest.mark.parametrize("name", ["h100_bert_small", "h100_vit"])
def test_real_recordings(data_dir: Path, name: str) -> None:
    told = answer(data_dir / "kineto" / f"{name}.json.gz")
    assert told["only_a"]["ops"] == told["only_b"]["ops"] == 0
    assert abs(told["makespan_difference_ns"]) < 5000
    assert told["changed_duration"] == 0
    assert told["matched"] == told["a"]["ops"]
    for side in ("a_ns", "b_ns"):
        parts = told["makespan"]["parts"]
        assert sum(both[side] for both in parts.values()) == told[side[0]]["makespan_ns"]


@pytest.mark.filterwarnings("ignore:.*no launch in the trace")
def test_ranks_of_one_job_are_two_recordings_of_one_program(data_dir: Path) -> None:
    ranks = data_dir / "kineto" / "v100_dlrm_8_ranks"
    told = answer(ranks / "rank0.json.gz", ranks / "rank1.json.gz")
    assert (told["matched"], told["only_a"]["ops"], told["only_b"]["ops"]) == (543, 1, 68)
    assert told["durations"][0]["kind"] == "all_to_all"  # rank 1 waits for the others


# -- what is wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["head.yaml"], "is one run; name a second file, another --policy (it compares in-order, window 4)"),
        (["none.yaml", "head.yaml"], "none.yaml: no such file"),
        (["one.csv"], "one.csv: holds one run; name a second file"),
        (["three.csv"], "three.csv: holds the runs a, b, c; name two with --policy"),
        (["two.csv", "one.csv", "--policy", "c"], "unknown run in two.csv 'c'. Known: a, b"),
        (["one.csv", "one.csv", "--policy", "a"], "--policy a: one.csv holds one run"),
        (["one.csv", "head.yaml", "--set-a", "x=1"], "--set-a x=1: one.csv is a table of what ran"),
        (["plan.json"], "plan.json: a plan has no times; name the scenario"),
        (["plan.json", "one.csv"], "plan.json: a plan has no times; name the scenario"),
        (["result.json", "one.csv"], "result.json: is sim.result/1, which has no ops; `sim run --ops"),
        (["graph.json", "one.csv"], "graph.json: no op says when it was recorded (recorded_start_ns)"),
        (["noise.json", "one.csv"], "noise.json: no known format"),
        (
            ["lacks.csv", "one.csv"],
            "lacks.csv: no column 'start_ns'; a table of ops has op, start_ns and end_ns",
        ),
        (["late.csv", "one.csv"], "late.csv: row 2 (y) starts at 9 ns and ends at 8 ns"),
        (["text.csv", "one.csv"], "text.csv: row 1: start_ns is 'soon', no whole number of ns"),
        (["huge.csv", "one.csv"], "huge.csv: row 1: end_ns is '99999999999999999999', no whole number of ns"),
        (["back.csv", "one.csv"], "back.csv: row 1: iteration is '-1', no whole number from 0 on"),
        (["twice.csv", "one.csv"], "twice.csv: the column 'op' stands twice"),
        (["twice.json", "one.csv"], "the key 'op' stands twice in"),
        (["empty.csv", "one.csv"], "empty.csv: a table without rows"),
        (["void.csv", "one.csv"], "void.csv: no table of ops"),
        (["one.csv", "bad.parquet"], "bad.parquet: no table of ops"),
        (["two.csv", "--over", "3"], "--over: '3' has no unit"),
        (["two.csv", "--gantt", "x.html"], "--gantt x.html: should end in .png, .svg, .pdf"),
        (
            ["two.csv", "--policy", "a", "--policy", "b", "--policy", "c"],
            "takes one policy for each side, not 3",
        ),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, HEAD, "head.yaml")
    head = "op,start_ns,end_ns\n"
    for name, text in {
        "one.csv": f"{head}x,0,5\ny,5,8\n",
        "two.csv": "policy,op,start_ns,end_ns\na,x,0,5\nb,x,1,5\n",
        "three.csv": "policy,op,start_ns,end_ns\na,x,0,5\nb,x,1,5\nc,x,1,5\n",
        "lacks.csv": "op,start,end_ns\nx,0,5\n",
        "late.csv": f"{head}x,0,5\ny,9,8\n",
        "text.csv": f"{head}x,soon,5\n",
        "huge.csv": f"{head}x,0,99999999999999999999\n",
        "back.csv": "op,start_ns,end_ns,iteration\nx,0,5,-1\n",
        "twice.csv": "op,op,start_ns,end_ns\nx,y,0,5\n",
        "twice.json": '[{"op": "x", "op": "y", "start_ns": 0, "end_ns": 5}]',
        "empty.csv": head,
        "void.csv": "",
        "bad.parquet": "PAR1 no",
        "plan.json": '{"schema":"sim.plan/1"}',
        "result.json": '{"schema": "sim.result/1"}',
        "graph.json": '{"schema": "sim.graph/1", "name": "g", "ops": [{"name": "a", "duration_ns": 5}]}',
        "noise.json": '{"x": 1}',
    }.items():
        (tmp_path / name).write_text(text)
    if any(name.endswith(".parquet") for name in arguments):
        pytest.importorskip("pyarrow")
    result = sim("diff", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output


def test_other_work_has_nothing_in_common(tmp_path: Path) -> None:
    a, b = write(tmp_path, HEAD), write(tmp_path, HEAD.replace("a:", "x:").replace("[a]", "[x]"), "b.yaml")
    told = sim("diff", a, b).stdout
    assert told.splitlines()[3].startswith("3 ops are in both (by name); 1 in A only; 1 in B only")
    assert re.search(r"\nin A only .* time .*\na .* 40 us ", told)
    (tmp_path / "c.csv").write_text("op,start_ns,end_ns\nq,0,1\n")
    told = sim("diff", a, tmp_path / "c.csv").stdout.splitlines()[3]
    assert told == "none of the 4 ops in A and the 1 op in B has the same name: is it the same work?"


def test_a_table_of_twice_the_same_op_pairs_them_in_order(tmp_path: Path) -> None:
    head = "op,start_ns,end_ns\n"
    (tmp_path / "a.csv").write_text(f"{head}x,0,5\nx,5,8\n")
    (tmp_path / "b.csv").write_text(f"{head}x,6,9\nx,0,5\nx,20,21\n")
    told = answer(tmp_path / "a.csv", tmp_path / "b.csv")
    assert (told["matched"], told["moved"], told["only_b"]["ops"]) == (2, 1, 1)
    assert told["first_moved"]["why"] == ["in B at 5 ns 'x' does not start; the file does not say why"]
    with gzip.open(tmp_path / "b.csv.gz", "wb") as packed:
        packed.write((tmp_path / "b.csv").read_bytes())
    assert answer(tmp_path / "b.csv", tmp_path / "b.csv.gz")["same"]


def test_a_trace_and_a_table_of_one_run_name_transfers_and_iterations_alike(tmp_path: Path) -> None:
    """The copy for gpu2 crosses two links; it is one transfer, as in the table."""
    path = tmp_path / "hops.yaml"
    path.write_text(
        """
        machine:
          devices: {gpu: {kind: gpu, count: 3}}
          links: [{from: gpu0, to: gpu1, bandwidth: 1GB/s}, {from: gpu1, to: gpu2, bandwidth: 1GB/s}]
        workload:
          ops:
            a: {duration: 10us, output: 10kB, device: gpu0}
            b: {duration: 10us, inputs: [a], device: gpu1}
            c: {duration: 10us, inputs: [a], device: gpu2}
        policy: in-order
        """,
        encoding="utf-8",
    )
    trace, table, slower = (tmp_path / name for name in ("t.json", "t.csv", "slower.json"))
    sim("run", path, "--trace", trace, "--ops", table, "--set", "iterations=3")
    assert "nothing differs in 15 ops" in sim("diff", trace, table).stdout
    assert sim("run", trace).stderr.splitlines() == []  # no warning of attributes that transfers have
    sim("run", path, "--trace", trace, "--ops", table)
    sim("run", path, "--trace", slower, "--set", "workload.ops.a.output=20kB")
    assert "nothing differs in 5 ops" in sim("diff", trace, table).stdout
    assert "the transfer of 'a' (gpu0→gpu" in sim("diff", trace, slower).stdout
