"""The least tardiness, flow time and energy: by hand, and beside all orders there are."""

from __future__ import annotations

import json
import random
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from examples import seeds

from policies.issue.program_order import InOrder
from policies.optimum_model import OBJECTIVES
from scenarios.run.execute import Result, run_case
from scenarios.run.load import load_scenario
from scenarios.variants.optimum import find_optimum
from scenarios.variants.schedules import ListedOrder
from sim.base.errors import InputError

LIMIT = 20 * 10**9

TWO_JOBS = """\
machine:
  resources: {crane: 1}
  devices: {line: {kind: cpu, cores: 3, power: {busy: 300W, idle: 60W}}}
workload:
  ops:
    a: {duration: 10us, attributes: {resources: {crane: 1}, release: 4us}}
    b: {duration: 5us, attributes: {resources: {crane: 1}}}
    c: {duration: 7us, inputs: [a], attributes: {release: 30us, due: 35us, weight: 2}}
    d: {duration: 7us, inputs: [b], attributes: {due: 10us, resources: {crane: 1}}}
policy: in-order
"""


def result_of(tmp_path: Path, text: str) -> Result:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return run_case(load_scenario(path).case())


@pytest.mark.parametrize(
    ("what", "cost"),
    [
        ("weighted_tardiness", 2 * 2000 + 2000),  # b, d, a: d ends at 12
        ("mean_flow_time", (37 - 4) * 1000 + 12_000),
        ("makespan", 37_000),
    ],
)
def test_by_hand(tmp_path: Path, what: str, cost: int) -> None:
    found = find_optimum([result_of(tmp_path, TWO_JOBS)], limit_ns=LIMIT, goal=what)
    assert (found.cost(found.best), found.proven) == (cost, True)


def test_idle_power_lets_the_work_stay_together(tmp_path: Path) -> None:
    """A slower device that draws less, in the time that the faster one needs for the rest anyway."""
    text = """\
machine:
  devices:
    fast: {kind: gpu, power: {busy: 100W, idle: 10W}}
    slow: {kind: npu, power: {busy: 20W, idle: 5W}}
workload:
  ops:
    a: {duration: {fast: 10us, slow: 20us}}
    b: {duration: {fast: 10us, slow: 20us}}
    c: {duration: {fast: 10us, slow: 20us}}
policy: {name: in-order, placement: round-robin}
"""
    found = find_optimum([result_of(tmp_path, text)], limit_ns=LIMIT, placed=False, goal="energy")
    # all on the slow one: 60 us x (20 + 10 W); one there, two on the fast one: 20 us x (100 + 20 W)
    assert found.cost(found.best) == 60_000 * 30_000
    assert found.proven
    fastest = find_optimum([result_of(tmp_path, text)], limit_ns=LIMIT, placed=False)
    assert (fastest.cost(fastest.best), fastest.proven) == (20_000, True)


def test_what_ops_cover_together_is_paid_for_once(tmp_path: Path) -> None:
    text = """\
machine:
  devices:
    pair: {kind: cpu, cores: 2, power: {busy: 100W, idle: 10W}}
    one: {kind: cpu, power: {busy: 300W, idle: 5W}}
workload:
  ops:
    x: {duration: 4us, device: pair, attributes: {release: 1us}}
    y: {duration: 3us, device: pair}
    z: {duration: 2us, inputs: [y], device: pair}
    w: {duration: 1us, device: one}
policy: in-order
"""
    found = find_optimum([result_of(tmp_path, text)], limit_ns=LIMIT, goal="energy")
    # the pair is busy from 0 to 5 us: y and z beside x; the other one for 1 us of them
    assert found.cost(found.best) == 5_000 * 100_000 + 1_000 * 300_000 + 4_000 * 5_000
    assert found.proven


def drawn(rng: random.Random) -> str:
    """Return a scenario of five ops, in which workers, resources and releases are short."""
    lines = []
    for k in range(5):
        takes = {name: rng.randint(1, 2) for name in "xy" if rng.random() < 0.6}
        before = [f"o{j}" for j in range(k) if rng.random() < 0.25]
        attributes: dict[str, Any] = {"resources": takes} if takes else {}
        if rng.random() < 0.4:
            attributes["release"] = f"{rng.randint(1, 15)}us"
        if k == 4 or rng.random() < 0.6:
            attributes |= {"due": f"{rng.randint(2, 20)}us", "weight": rng.randint(1, 4)}
        op = {"duration": f"{rng.randint(1, 9)}us", "after": before, "attributes": attributes}
        lines.append(f"    o{k}: {json.dumps(op)}")
    power = "power: {busy: 100W, idle: 30W}"
    return "\n".join(
        [
            "machine:",
            f"  resources: {{x: {rng.randint(2, 3)}, y: 2}}",
            f"  devices: {{cpu0: {{kind: cpu, cores: {rng.choice((1, 2, 5))}, {power}}}}}",
            "workload:",
            "  ops:",
            *lines,
            "policy: in-order",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(12))
def test_no_order_is_better(tmp_path: Path, seed: int) -> None:
    base = result_of(tmp_path, drawn(random.Random(seed)))
    order = {op: k for k, op in enumerate(range(len(base.trace.job.graph)))}
    edges = list(zip(*(c.tolist() for c in base.trace.job.graph.edges[:2]), strict=True))
    runs = []
    for ops in permutations(order):
        place = {op: k for k, op in enumerate(ops)}
        if all(place[a] < place[b] for a, b in edges):
            case = base.case.deciding(policy=InOrder(), linearize=ListedOrder(list(ops)))
            runs.append(run_case(case).trace)
    for what, objective in OBJECTIVES.items():
        found = find_optimum([base], limit_ns=LIMIT, goal=what)
        least = min(map(objective.of, runs))
        assert found.lower_bound <= least
        assert found.proven
        assert found.cost(found.best) <= least  # a plan may wait on purpose, which no order does


WAITS = """\
machine:
  devices: {cpu: {kind: cpu, cores: 2, power: {busy: 100W, idle: 10W}}}
workload:
  ops:
    a: {duration: 4us, attributes: {release: 6us, due: 10us, weight: 5, cores: 2}}
    b: {duration: 4us, attributes: {release: 3us, due: 9us}}
    c: {duration: 4us}
policy: ready-queue
"""


@pytest.mark.parametrize(
    ("what", "cost"),
    [
        ("weighted_tardiness", 5_000),  # b waits, so that a is in time, and ends at 14 us
        (
            "energy",
            8 * 100 * 10**6 + 3 * 10 * 10**6,
        ),  # c waits for b: paid for once
    ],
)
def test_a_plan_may_wait_on_purpose_and_runs_again_so(tmp_path: Path, what: str, cost: int) -> None:
    found = find_optimum([result_of(tmp_path, WAITS)], limit_ns=LIMIT, goal=what)
    assert (found.cost(found.best), found.proven) == (cost, True)
    sim("optimum", tmp_path / "s.yaml", "--minimise", what, "--out", tmp_path / "best.yaml")
    assert "not_before_ns" in (tmp_path / "best.plan.json").read_text()
    assert sim("check", tmp_path / "best.yaml").exit_code == 0


def test_what_nothing_says_is_refused(tmp_path: Path) -> None:
    plain = result_of(
        tmp_path,
        "machine: {devices: {gpu0: {kind: gpu}}}\nworkload: {ops: {a: {duration: 1us}}}\npolicy: in-order\n",
    )
    with pytest.raises(InputError, match="no op has a due date"):
        find_optimum([plain], limit_ns=LIMIT, goal="weighted_tardiness")
    with pytest.raises(InputError, match=r"unknown objective 'energi'; did you mean 'energy'"):
        find_optimum([plain], limit_ns=LIMIT, goal="energi")


def test_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TWO_JOBS)
    ran = sim(
        "optimum", tmp_path / "s.yaml", "--minimise", "weighted_tardiness", "--out", tmp_path / "best.yaml"
    )
    assert "the least weighted tardiness is 6 us: no order has less" in ran.stdout
    assert "expect:\n  weighted_tardiness: 6 us" in (tmp_path / "best.yaml").read_text()
    assert sim("check", tmp_path / "best.yaml").exit_code == 0
    told = json.loads(sim("optimum", tmp_path / "s.yaml", "--minimise", "mean_flow_time", "--json").stdout)
    assert (told["objective"], told["value"], told["lower_bound"], told["lower_bound_ns"]) == (
        "mean_flow_time",
        22_500,
        22_500,
        None,
    )
