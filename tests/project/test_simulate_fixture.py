"""The fixture ``simulate`` of the pytest plugin: what it runs, and what its failures say."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd  # noqa: F401  # pytester forgets what a run inside it is the first to import
import pytest
from scenario_texts import GOOD, HEAD_OF_LINE, changed, write

from scenarios.shipped import find_shipped, write_scenario
from scenarios.simulate_fixture import Simulate
from sim import Device, GraphBuilder, Issuer, Job, Machine, Policy, Task
from sim.base.errors import InputError

pytest_plugins = ["pytester"]

DICT = {
    "machine": {"devices": {"cpu0": {"kind": "cpu", "cores": 1}}},
    "workload": {
        "ops": {
            "a": {"duration": "10us"},
            "b": {"duration": "20us", "inputs": ["a"]},
            "c": {"duration": "5us"},
        }
    },
}


class Lifo(Policy):
    """What became ready last runs first."""

    def prepare(self, job: Job) -> None:
        self.stack: list[Task] = []

    def ready(self, task: Task) -> None:
        self.stack.append(task)

    def next(self, issuer: Issuer) -> Task | None:
        return self.stack.pop() if self.stack else None


def test_a_scenario_a_mapping_and_a_graph(tmp_path: Path, simulate: Simulate) -> None:
    write(tmp_path, HEAD_OF_LINE + "compare: [{label: window 4, name: out-of-order, window: 4}]\n")
    here = Simulate(tmp_path / "test_it.py")
    assert here("s.yaml").makespan_ns == here("s.yaml")["makespan"] == 80_000
    assert here("s.yaml", policy="window 4")["makespan"] == 50_000
    assert here("s.yaml", policy="ready-queue", sets=["workload.ops.a.duration=1us"])["start.b"] == 10_000
    own = here("s.yaml", policy=Lifo)
    assert (own.policy, own.summary["policy"], own.order("cpu0")) == ("Lifo", "Lifo", ["d", "c", "a", "b"])
    first, last = simulate(DICT), simulate(DICT, policy=Lifo())
    assert (first.order(), last.order()) == (["a", "c", "b"], ["c", "a", "b"])
    assert first.idle_ns == {"cpu0": 0}
    assert last.trace.to_pandas()["op"].tolist() == last.order()
    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10)
    graph = b.build()
    for machine in (Machine((Device("cpu0", workers=1),)), DICT["machine"]):
        run = simulate(graph, machine, Lifo, iterations=2)
        assert run.makespan_ns == 40
        assert run["start.a[1]"] == 10
    assert simulate(graph, DICT["machine"]).policy == "ready-queue"
    assert simulate(graph, DICT["machine"], "in-order").order() == ["a", "b"]


def test_what_does_not_hold_is_said(tmp_path: Path) -> None:
    simulate = Simulate(tmp_path / "test_it.py")
    fifo, own = simulate(DICT), simulate(DICT, policy=Lifo)
    own.expect({"makespan": {"at_most": "1.0 x fifo"}, "order.cpu0": ["c", "b"], "idle.cpu0": 0}, fifo=fifo)
    with pytest.raises(AssertionError) as caught:
        own.expect({"end.b": {"at_most": "0.5 x fifo"}, "start.a": 0, "tasks": 3}, fifo=fifo)
    assert str(caught.value).splitlines() == [
        "under Lifo, not as expected:",
        "end.b is 35 us, expected at most 17.5 us (0.5 x fifo)",
        "start.a is 5 us, expected 0 ns",
        "  at 0 ns 'a' is ready, and cpu0/w0 executes 'c' first (5 us)",
    ]
    with pytest.raises(
        InputError, match=r"test_it.py: expect.schedule: golden.csv: no such file; write it with"
    ):
        own.expect({"schedule": "golden.csv"})
    updating = Simulate(tmp_path / "test_it.py", {})
    updating(DICT, policy=Lifo).expect({"schedule": "golden.csv"})
    assert updating.new_tables == {(tmp_path / "golden.csv", ""): "Lifo"}
    with pytest.raises(InputError, match="was just written for another run"):
        updating(DICT).expect({"schedule": "golden.csv"})
    own.expect({"schedule": "golden.csv"})
    with pytest.raises(AssertionError) as caught:
        fifo.expect({"schedule": "golden.csv"})
    assert str(caught.value).splitlines() == [
        "under ready-queue, not as expected:",
        "schedule is not that of golden.csv",
        "  of 3 ops in both 2 start at another time",
        "  the first to move is 'a', which starts at 0 ns, not 5 us:",
        "    in golden.csv at 0 ns 'a' is ready, and its issuer is busy",
    ]


def test_mistakes(tmp_path: Path) -> None:
    simulate = Simulate(tmp_path / "test_it.py")
    write(
        tmp_path,
        "workload: {pipeline: {ranks: 2, micro_batches: 2, forward: 1ms, backward: 1ms}}\npolicy: 1f1b\n",
    )
    b = GraphBuilder("one")
    b.op("a", duration_ns=10)
    for call, says in (
        (lambda: simulate("s.yaml", policy=Lifo), "a pipeline's policy is its schedule: name one"),
        (lambda: simulate("t.yaml"), "t.yaml: no such file"),
        (lambda: simulate(DICT, policy="redy-queue"), "did you mean 'ready-queue'?"),
        (lambda: simulate({**DICT, "sed": 1}), r"test_it.py: sed: no such key; did you mean 'seed'\?"),
        (lambda: simulate(DICT, DICT["machine"], iterations=2), "machine, iterations: a scenario says"),
        (lambda: simulate(b.build()), "a graph needs a machine"),
        (lambda: simulate(DICT).expect({"makspan": "1us"}), "unknown result 'makspan'; did you"),
        (lambda: simulate(DICT).expect({"tasks": {"at_mots": 1}}), "at_mots: no such key; did you"),
        (lambda: simulate(DICT).expect({"tasks": "1 x own"}), "there is no other run 'own'"),
        (lambda: simulate(DICT)["makspan"], "unknown result 'makspan'; did you mean 'makespan'"),
        (lambda: simulate(DICT)["idle.gpu0"], "idle.gpu0: this run has no such result"),
        (lambda: simulate(DICT).order("gpu0"), "gpu0"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=says):
            call()


def test_in_a_project(pytester: pytest.Pytester) -> None:
    """Failures point to the test, and not into the simulator; what is written is listed."""
    write(pytester.path, changed("makespan: 45us", "makespan: 44us"), "s.yaml")
    pytester.makepyfile(
        """
        def test_it(simulate):
            simulate("s.yaml").expect({"makespan": "44us"})

        def test_schedule(simulate):
            simulate("s.yaml").expect({"schedule": "golden.csv"})
        """
    )
    options = ["-p", "no:cacheprovider", "-q"]
    failed = pytester.runpytest_inprocess(*options)
    failed.assert_outcomes(failed=2)
    failed.stdout.fnmatch_lines(["E * makespan is 45 us, expected 44 us", "", "*.py:2: AssertionError"])
    assert "simulated.py" not in str(failed.stdout)
    pytester.makeini("[pytest]\nsim_check = true\n")
    updated = pytester.runpytest_inprocess(*options, "--sim-update")
    updated.assert_outcomes(failed=1, passed=2)
    updated.stdout.fnmatch_lines(
        [
            "*sim: new values*",
            "s.yaml:13:13: makespan is 45 us, expected 44 us",
            "  written: 45us in place of 44us",
            "*golden.csv: the schedule of ready-queue",
        ]
    )
    assert (pytester.path / "s.yaml").read_text() == GOOD
    assert (
        pytester.runpytest_inprocess(*options, "--sim-update", "-n", "1").ret == pytest.ExitCode.USAGE_ERROR
    )


@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")
@pytest.mark.parametrize("page", ["regression.md", "extending.md"])
def test_tests_of_the_documentation_pass(pytester: pytest.Pytester, root: Path, page: str) -> None:
    text = (root / "docs" / page).read_text(encoding="utf-8")
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (pytester.path / name).write_text(code)
    write_scenario(pytester.path / "s.yaml", find_shipped("quickstart").path.read_text())
    options = ["-p", "no:cacheprovider", "-q"]
    assert pytester.runpytest_inprocess(*options, "--sim-update").ret == 0
    assert pytester.runpytest_inprocess(*options).ret == 0
    assert (pytester.path / "longest_first.csv").exists()
