"""Plans: orders and waits by hand, nothing lost by leaving waits out, files, hashes, wrong files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from drawn_runs import draw_run
from examples import seeds

from policies.issue.ready_queue import ReadyQueue
from scenarios.ops.control_flow import while_loop
from sim import Device, GraphBuilder, Job, Machine, Plan, Trace, simulate
from sim.base.errors import InputError


class Lanes:
    """Puts ops on the given lanes."""

    def __init__(self, *lanes: int) -> None:
        self.lanes = lanes

    def assign(self, job: Job) -> tuple[int, ...]:
        return self.lanes


def three_streams() -> Trace:
    """a, b, c on stream 0; d reads a and b, e reads a after d, on stream 1; f reads c and d on stream 2."""
    b = GraphBuilder("streams")
    reads = {"a": "", "b": "a", "c": "b", "d": "ab", "e": "a", "f": "cd"}
    for name, inputs in reads.items():
        b.op(name, inputs=list(inputs), after=["d"] if name == "e" else [], duration_ns=10)
    machine = Machine((Device("gpu0", streams=3, issue_ns=1),))
    return simulate(b.build(), machine, ReadyQueue(synchronisation="issue"), streams=Lanes(0, 0, 0, 1, 1, 2))


def test_orders_and_waits() -> None:
    plan = three_streams().plan()
    rows = [(t.op, t.stream, [plan[w].op for w in t.waits], t.records) for t in plan]
    assert rows == [
        ("a", "gpu0/0", [], False),
        ("b", "gpu0/0", [], True),
        ("c", "gpu0/0", [], True),
        ("d", "gpu0/1", ["b"], True),
        ("f", "gpu0/2", ["c", "d"], False),
        ("e", "gpu0/1", [], False),
    ], "d needs no event of a, which comes before b; e none at all, because d has waited for b"
    assert {t.issuer for t in plan} == {"gpu0/host"}


def test_iterations_and_distances() -> None:
    b = GraphBuilder("loop")
    b.op("a", duration_ns=10, device="gpu0")
    b.op("b", duration_ns=10, inputs=["a", ("b", 1)], device="gpu1")
    trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue(), iterations=2)
    rows = [
        (t.op, t.iteration, t.device, [(plan[w].op, plan[w].iteration) for w in t.waits])
        for plan in [trace.plan()]
        for t in plan
    ]
    assert rows == [
        ("a", 0, "gpu0", []),
        ("a", 1, "gpu0", []),
        ("b", 0, "gpu1", [("a", 0)]),
        ("b", 1, "gpu1", [("a", 1)]),
    ]


@pytest.mark.parametrize("seed", seeds(80))
def test_streams_and_waits_imply_every_edge(seed: int) -> None:
    """Whoever starts each stream's tasks in order, and keeps the waits, keeps the graph's order."""
    trace = draw_run(seed)
    plan, graph = trace.plan(), trace.job.graph
    assert len(plan) == len(graph) * trace.job.iterations
    over: list[set[int]] = []  # what has ended for sure when a task starts
    last: dict[str, int] = {}
    number = {}
    for k, task in enumerate(plan):
        number[task.op, task.iteration] = k
        before = [*task.waits, *([last[task.stream]] if task.stream in last else [])]
        assert all(w < k and plan[w].stream != task.stream for w in task.waits)
        over.append(set(before).union(*(over[w] for w in before)))
        last[task.stream] = k
    for p, c, distance, _ in zip(*graph.edges, strict=True):
        for iteration in range(int(distance), trace.job.iterations):
            producer = number[graph.op_names[p], iteration - int(distance)]
            assert producer in over[number[graph.op_names[c], iteration]]


@pytest.mark.parametrize("seed", seeds(30))
def test_streams_wait_for_one_another_in_order(seed: int) -> None:
    """A second wait of one stream for another is for something later: the rest is implied."""
    plan = draw_run(seed, 15).plan()
    latest: dict[tuple[str, str], int] = {}
    for task in plan:
        streams = [plan[w].stream for w in task.waits]
        assert len(set(streams)) == len(streams)
        for w, stream in zip(task.waits, streams, strict=True):
            assert w > latest.get((task.stream, stream), -1)
            latest[task.stream, stream] = w


def test_a_plan_survives_a_file() -> None:
    plan = draw_run(7).plan()
    again = Plan.from_json(plan.to_json())
    assert list(again) == list(plan)
    assert again.digest == plan.digest
    assert plan.digest[:12] in repr(plan)


def test_different_plans_have_different_hashes() -> None:
    plans = [draw_run(seed).plan() for seed in range(30)]
    assert len({plan.digest for plan in plans}) == len({plan.to_json() for plan in plans}) > 25


def test_the_hash_depends_on_nothing_else(root: Path) -> None:
    code = "from drawn_runs import draw_run; print(draw_run(11).plan().digest)"
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "1",
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}",
    }
    there = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == draw_run(11).plan().digest


def broken(**changes: object) -> str:
    """Return the JSON of a plan with some keys overwritten."""
    return json.dumps({**json.loads(three_streams().plan().to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a plan is JSON: line 1"),
        ('{"schema": 1, "schema": 2}', "a plan is JSON: the key 'schema' stands twice"),
        ("[]", 'a plan has "schema": "sim.plan/1"'),
        (broken(schema="sim.graph/1"), "this has none or another"),
        (broken(ops=["a"]), "names 1 op,"),
        (broken(devices=[]), "different lengths"),
        (broken(waits={"task": [1], "for": [2]}), "task 1 of the plan waits for 2"),
        (broken(waits={"task": [1, 2], "for": [0]}), "different lengths"),
        (broken(waits=None), "lacks something"),
        (broken(tasks={"op": [0]}), "lacks something"),
        (
            broken(tasks={**json.loads(three_streams().plan().to_json())["tasks"], "not_before_ns": [1]}),
            "a list of 1, should",
        ),
    ],
)
def test_wrong_files(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Plan.from_json(text)


def test_control_flow_has_no_plan() -> None:
    b = GraphBuilder("while")
    b.op("zero", duration_ns=0)
    while_loop(
        b, "loop", {"i": "zero"}, lambda b, v: {"i": b.op("add", inputs=[v["i"]], duration_ns=0)}, trips=3
    )
    trace = simulate(b.build(), Machine((Device("cpu0", "cpu", workers=1),)), ReadyQueue())
    with pytest.raises(InputError, match="what runs is decided during the run"):
        trace.plan()


def test_reading_a_plan_needs_numpy_only() -> None:
    code = (
        "import sys, sim.record.plan\n"
        "heavy = {'pandas', 'simpy', 'matplotlib', 'pydantic', 'typer', 'yaml'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
