"""TensorFlow 2.21 itself: the orders in which its executor ran the nodes of graphs on one thread.

`tensorflow_orders` says how they were recorded. Ours is given the nodes of both parts of a graph as
TensorFlow cut them, Sends and Recvs included, and every task has to come in the same place: dead ones, Recvs
that waited or that found what they asked for, all iterations of loops.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from runs import checked
from tensorflow_orders import RECORDED

from policies.issue.tensorflow_executor import TensorFlowExecutor
from scenarios.importers.tensorflow_json import kind_of
from sim import Device, Graph, GraphBuilder, Host, Machine
from sim.machine.task import Task

CASES: dict[str, Any] = json.loads(RECORDED.read_text())["cases"]


def graph_of(case: dict[str, Any]) -> Graph:
    b = GraphBuilder("recorded")
    op_of = {name: op for name, op, *_ in case["nodes"]}
    for name, op, device, inputs, more in case["nodes"]:
        reads, after = [], []
        for ref in inputs.split():
            maker, _, slot = ref.lstrip("^").partition(":")
            if ref[0] == "^":
                after.append(maker)
            elif op_of[maker] == "NextIteration":
                reads.append((maker, 1))
            else:
                reads.append(f"{maker}:{slot or 0}" if op_of[maker] in ("Switch", "Merge") else maker)
        b.op(
            name,
            kind=kind_of(op),
            device=device,
            inputs=reads,
            after=after,
            outputs=(8, 8) if op in ("Switch", "Merge") else 8,
            duration_ns=0,
            attributes=more | case["says"].get(name, {}),
        )
    return b.build()


class InOrder:
    """Notes what ends, in order."""

    def __init__(self) -> None:
        self.order: list[tuple[int, bool]] = []

    def started(self, task: Task) -> None:
        """Nothing to note."""

    def ended(self, task: Task) -> None:
        self.order.append((task.op, task.dead))


@pytest.mark.parametrize("name", CASES)
def test_every_task_comes_where_tensorflow_ran_it(name: str) -> None:
    case = CASES[name]
    g = graph_of(case)
    cpus = tuple(Device(cpu, "cpu", workers=1) for cpu in ("cpu0", "cpu1"))
    machine = Machine(cpus, hosts=(Host("process", ("cpu0", "cpu1")),))
    watch = InOrder()
    checked(g, machine, TensorFlowExecutor(-(case["threads"] == "caller")), observers=[watch])
    # A Recv that was sent a dead token is dead for us; TensorFlow's log calls it live.
    mine = [f"{g.op_names[op]}{' dead' * (dead and g.kind(op) != 'recv')}" for op, dead in watch.order]
    real = [case["nodes"][at][0] if at >= 0 else f"{case['nodes'][-1 - at][0]} dead" for at in case["order"]]
    assert mine == real


def test_what_was_recorded() -> None:
    """Each kind of case is there, and each kind of event."""
    words = {name.split()[0] for name in CASES}
    assert words == {"random", "loop", "queue"}
    dead = {case["nodes"][-1 - at][1] for case in CASES.values() for at in case["order"] if at < 0}
    assert dead >= {"_Send", "AddN", "Identity", "Exit"}
    assert sum(len(case["order"]) for case in CASES.values()) > 2000
