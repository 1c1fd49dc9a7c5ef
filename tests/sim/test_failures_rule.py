"""What a failed op takes with it: the rule as an invariant, on any run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_runs import DrawnPlacement, DrawnStreams, draw_graph, draw_machine
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from program_helpers import programs
from runs import checked
from test_failures import DIAMOND, cpu, graph_of, sending, two_cpus
from test_order_of_ties import LooksAway

from devices.network import make_network
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from policies.issue.work_queues import StreamStacks
from policies.rewrite.partition import Partition
from scenarios.run.rewriting import pin_ops
from sim import Device, Graph, Link, Machine, Policy, Trace, simulate
from sim.base.errors import InvariantError, StuckError
from sim.explain.narration import explain_text
from sim.export.tables import task_table
from sim.graph.failures import STATUSES
from sim.job.noise import Noise
from sim.metrics import summary


def without(trace: Trace, op: str) -> Trace:
    """Return the trace without the row of an op."""
    row = trace.tasks["op"].tolist().index(trace.job.graph.index(op))
    return replace(trace, tasks={name: np.delete(column, row) for name, column in trace.tasks.items()})


def with_status(trace: Trace, op: str, status: str) -> Trace:
    column = trace.status.copy()
    column[trace.tasks["op"] == trace.job.graph.index(op)] = STATUSES.index(status)
    return replace(trace, tasks={**trace.tasks, "status": column})


def test_the_check_finds_what_breaks_the_rule() -> None:
    trace = checked(graph_of(DIAMOND), Machine((cpu(workers=2),)), TensorFlowExecutor())
    with pytest.raises(InvariantError, match="op 'w' of iteration 0 never ran, and nothing kept"):
        without(trace, "w").check()
    two = simulate(graph_of({**DIAMOND, "x": {"fails": True}}), trace.job.machine, TensorFlowExecutor())
    with pytest.raises(InvariantError, match="'f' was to fail, and did not"):
        with_status(two, "f", "done").check()
    with pytest.raises(InvariantError, match="'h' failed, and was not to"):
        with_status(trace, "h", "failed").check()
    with pytest.raises(InvariantError, match="'w' was aborted at 7 ns; no failure before then does that"):
        with_status(trace, "w", "aborted").check()
    with pytest.raises(
        InvariantError, match=r"'h' started at .*, and something that it reads was never made"
    ):
        without(trace, "g").check()
    whole = simulate(graph_of({**DIAMOND, "f": {"ns": 10, "inputs": ["a"]}}), trace.job.machine, ReadyQueue())
    with pytest.raises(InvariantError, match="'z' did not end well, and no op may fail"):
        with_status(whole, "z", "failed").check()
    # With another word, the same rows break another rule.
    stopped = simulate(graph_of(DIAMOND), Machine((cpu(workers=2),)), ReadyQueue())
    with pytest.raises(InvariantError, match="took op 'h'"):
        replace(stopped, on_failure="stop-group").check()
    alone = simulate(graph_of(DIAMOND), Machine((cpu(workers=2),)), InOrder())
    with pytest.raises(InvariantError, match="op 'h' of iteration 0 never ran"):
        replace(alone, on_failure="skip").check()


def test_the_check_finds_what_an_aborted_step_still_sent() -> None:
    ops = {
        "f": {"ns": 10, "device": "cpu0", "fails": True},
        "p": {"ns": 40, "device": "cpu0", "outputs": 1000},
        "y": {"ns": 5, "inputs": ["p"], "device": "cpu1"},
    }
    sent = checked(graph_of(ops), two_cpus(latency_ns=100), ReadyQueue())
    with pytest.raises(InvariantError, match="was ready when its step had been aborted"):
        replace(sent, on_failure="abort").check()
    kept = simulate(graph_of(ops), two_cpus(latency_ns=100), TensorFlowExecutor())
    with pytest.raises(InvariantError, match="'p' of iteration 0 was never sent to cpu1"):
        replace(kept, on_failure="skip").check()
    met = checked(sending(40), two_cpus(latency_ns=100), ReadyQueue())
    with pytest.raises(InvariantError, match="aborted"):
        replace(met, on_failure="abort").check()


# -- any run -------------------------------------------------------------------------------------

POLICIES: Sequence[Callable[[], Policy]] = (
    ReadyQueue,
    lambda: ReadyQueue("lifo", "issue"),
    InOrder,
    lambda: InOrder(per="machine"),
    lambda: InOrder(synchronisation="issue"),
    Sequential,
    TensorFlowExecutor,
    lambda: TensorFlowExecutor(runs="side-by-side"),
    lambda: TensorFlowExecutor(-1),
    StreamStacks,
)


def failing(graph: Graph, rng: np.random.Generator, iterations: int) -> Graph:
    """Return the graph with some ops that fail."""
    attributes = {op: dict(given) for op, given in graph.attributes.items()}
    for op in range(len(graph)):
        if rng.random() < 0.1:
            forms = [True, {"probability": 0.4}, {"at": [int(rng.integers(0, iterations))]}]
            attributes.setdefault(op, {})["fails"] = forms[int(rng.integers(0, 3))]
    return replace(graph, attributes=attributes)


def tell_all(trace: Trace) -> None:
    """Hold the invariants, and compute all that is told of a run."""
    trace.check()
    summary(trace), explain_text(trace), task_table(trace, transfers=True)


@examples(120)
@given(st.integers(0, 2**30))
def test_any_run_keeps_the_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    iterations = int(rng.integers(1, 4))
    graph = failing(draw_graph(rng, int(rng.integers(1, 25)), iterations > 1), rng, iterations)
    machine, make = draw_machine(rng), POLICIES[int(rng.integers(0, len(POLICIES)))]
    noise = Noise(sigma=0.2) if rng.random() < 0.3 else None

    def run(observers: Sequence[Any] = ()) -> Trace:
        return simulate(
            graph, machine, make(), placement=DrawnPlacement(seed), streams=DrawnStreams(),
            iterations=iterations, noise=noise, seed=seed, observers=observers,
        )  # fmt: skip

    try:
        trace = run()
    except StuckError:  # edges to the next run, which TensorFlow begins only when this one is over
        plain = replace(graph, attributes={})
        with pytest.raises(StuckError):
            simulate(plain, machine, make(), placement=DrawnPlacement(seed), streams=DrawnStreams(),
                     iterations=iterations, seed=seed)  # fmt: skip
        return
    tell_all(trace)
    again = run([LooksAway()])
    assert all(np.array_equal(trace.tasks[name], again.tasks[name]) for name in trace.tasks)


@examples(60)
@given(programs(), st.integers(0, 2**30))
def test_any_run_with_control_flow_keeps_the_rule(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    iterations = int(rng.integers(1, 3))
    devices = [cpu(workers=2), Device("gpu0", streams=2, issue_ns=1, launch_latency_ns=3)]
    links = (Link("l", "cpu0", "gpu0", 3, 10**9), Link("m", "gpu0", "cpu0", 3, 10**9))
    machine = Machine(tuple(devices), links, network=make_network)
    policies = [ReadyQueue, Sequential, StreamStacks, *POLICIES[6:8]]
    tell_all(
        simulate(
            failing(graph, rng, iterations),
            machine,
            policies[int(rng.integers(0, 5))](),
            placement=DrawnPlacement(seed),
            iterations=iterations,
            seed=seed,
        )
    )


@examples(80)
@given(st.integers(0, 2**30))
def test_any_run_of_a_partitioned_graph_keeps_the_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    iterations = int(rng.integers(1, 4))
    whole, machine = draw_graph(rng, int(rng.integers(2, 25)), False), draw_machine(rng)
    device_of = np.array(DrawnPlacement(seed).place(whole, machine, None))
    graph = failing(Partition(rendezvous=True).apply(pin_ops(whole, machine, device_of)), rng, iterations)
    make = POLICIES[int(rng.choice([0, 1, 5, 6, 6, 7, 8, 9]))]
    try:
        trace = simulate(graph, machine, make(), streams=DrawnStreams(), iterations=iterations, seed=seed)
    except StuckError:  # a program that receives before it sends
        attributes = {
            op: {k: v for k, v in given.items() if k != "fails"} for op, given in graph.attributes.items()
        }
        plain = replace(graph, attributes=attributes)
        with pytest.raises(StuckError):
            simulate(plain, machine, make(), streams=DrawnStreams(), iterations=iterations, seed=seed)
        return
    tell_all(trace)
