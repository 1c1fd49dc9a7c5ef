"""``expect: {schedule: golden.csv}``: a schedule that was written down once, and what is said of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import HEAD_OF_LINE, changed, write

IN_ORDER = HEAD_OF_LINE
HEAD = changed("{name: in-order}", "{name: out-of-order, window: 4}", HEAD_OF_LINE)
EXPECT = "expect: {schedule: golden.csv}\n"


def golden(folder: Path, *policies: str) -> None:
    given = [word for policy in policies for word in ("--policy", policy)]
    assert sim("run", write(folder, HEAD), *given, "--ops", folder / "golden.csv").exit_code == 0


def failure(folder: Path, text: str) -> str:
    """Check a scenario that fails, and return what is said."""
    result = sim("check", write(folder, text + EXPECT))
    assert result.exit_code == 1
    _, first, *lines, _ = result.stdout.splitlines()
    assert first.endswith("schedule is not that of golden.csv")
    return "\n".join(line.removeprefix(" " * 9) for line in lines)


def test_the_same_schedule_passes(tmp_path: Path) -> None:
    golden(tmp_path)
    path = write(tmp_path, HEAD + EXPECT)
    assert sim("check", path).exit_code == 0
    result = sim("run", path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["expect"] == [
        {"what": "schedule", "equals": "golden.csv", "actual": "golden.csv", "passed": True}
    ]


def test_a_collective_that_waits_for_a_late_rank_passes(tmp_path: Path) -> None:
    ranks = """\
machine: {devices: {gpu: {kind: gpu, count: 2}}}
workload:
  ops:
    early: {kind: all_reduce, duration: 5us, device: gpu0, attributes: {communicator: dp}}
    work: {duration: 30us, device: gpu1}
    late: {kind: all_reduce, duration: 5us, device: gpu1, inputs: [work], attributes: {communicator: dp}}
policy: in-order
"""
    path = write(tmp_path, ranks + EXPECT)
    assert sim("check", path, "--update").exit_code == 0
    assert sim("check", path).exit_code == 0


def test_the_first_op_that_moved_is_named(tmp_path: Path) -> None:
    golden(tmp_path)
    assert failure(tmp_path, IN_ORDER) == (
        "the makespan is 80 us, not 50 us\n"
        "of 4 ops in both 2 start at another time, 1 runs on another lane\n"
        "the first to move is 'c', which starts at 40 us, not 0 ns:\n"
        "  in this run at 0 ns 'c' is ready and an issuer is free, but in-order runs 'b' first\n"
        "  in golden.csv 'c' comes before 'b', which starts at 40 us there"
    )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("d: {duration: 30us}", "d: {duration: 29us}", "of 4 ops in both 1 lasts longer or shorter\n"
         "'d' lasts 29 us, not 30 us"),
        ("d: {duration: 30us}", "d: {duration: 30us}\n    e: {duration: 1us}", "1 op is new: 'e'"),
        ("    d: {duration: 30us}\n", "", "1 op is gone: 'd'"),
    ],
)  # fmt: skip
def test_what_did_not_move(tmp_path: Path, old: str, new: str, told: str) -> None:
    golden(tmp_path)
    assert failure(tmp_path, changed(old, new, HEAD)) == told


def test_another_lane(tmp_path: Path) -> None:
    (tmp_path / "golden.csv").write_text("op,stream,start_ns,end_ns\na,cpu0/w1,0,10000\n")
    text = changed(HEAD[HEAD.index("    a:") : HEAD.index("policy")], "    a: {duration: 10us}\n", HEAD)
    assert (
        failure(tmp_path, text) == "of 1 op in both 1 runs on another lane\n'a' runs on cpu0/w0, not cpu0/w1"
    )


def test_a_table_of_several_runs_holds_each_to_its_own(tmp_path: Path) -> None:
    golden(tmp_path, "in-order", "out-of-order")
    compare = "compare: [{name: in-order, expect: {schedule: golden.csv}}, out-of-order]\n"
    assert sim("check", write(tmp_path, HEAD + compare)).exit_code == 0
    other = sim(
        "check", write(tmp_path, HEAD + "compare: [{name: ready-queue, expect: {schedule: golden.csv}}]\n")
    )
    assert other.exit_code == 2
    assert "unknown run in " in other.stdout
    assert "known: in-order, out-of-order" in other.stdout


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("schedule: none.csv", "expect.schedule: "),
        ("schedule: 3", "should be text, not 3"),
        ("schedule: {at_most: golden.csv}", "expect.schedule: is a file, and equals it or does not"),
        ("schedule: ../golden.csv", "expect.schedule: "),
        ("schedule.a: golden.csv", "is of the whole run: write schedule"),
        ("schedule: bad.csv", "bad.csv: no column 'start_ns'"),
    ],
)
def test_mistakes(tmp_path: Path, expect: str, message: str) -> None:
    golden(tmp_path)
    (tmp_path / "bad.csv").write_text("op\na\n")
    result = sim("check", write(tmp_path, f"{HEAD}expect: {{{expect}}}\n"))
    assert result.exit_code == 2, result.stdout
    assert message in result.stdout
    assert sim("sweep", write(tmp_path, HEAD), "--vary", "seed=1,2", "--minimise", "schedule").exit_code == 2


def test_a_host_that_issues_in_another_order(tmp_path: Path) -> None:
    """Issuing takes as long as before: what has changed is who is issued first."""
    text = """\
machine: {devices: {gpu0: {kind: gpu, streams: 2, issue_cost: 1us}}}
workload: {ops: {a: {duration: 9us}, b: {duration: 9us}}}
policy: {name: ready-queue, order: fifo, streams: {name: per-branch, spread: next}}
"""
    assert sim("run", write(tmp_path, text), "--ops", tmp_path / "golden.csv").exit_code == 0
    assert failure(tmp_path, changed("fifo", "lifo", text)).splitlines()[1:] == [
        "the first to move is 'a', which starts at 2 us, not 1 us:",
        "  in this run at 1 us 'a' is ready, and gpu0/host issues it",
        "  in golden.csv 'a' comes before 'b', which is issued at 2 us there",
    ]
