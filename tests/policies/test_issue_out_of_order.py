"""Out-of-order issue: exact times per window, and what its two ends are equal to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_helpers import cpu, dags, gpu, graph_of, same_times, spans

from policies.issue.program_order import InOrder, OutOfOrder
from policies.streams import RoundRobinStreams
from sim import Device, Graph, GraphBuilder, Issuer, Job, Machine, Policy, Task, simulate
from sim.base.errors import InputError
from sim.job.job import Placement

pytestmark = pytest.mark.usefixtures("both_engines")

#   n0 ──► n1 ──► n2        n3, n4 and n5 wait for nobody
PROGRAM = {"n0": [], "n1": ["n0"], "n2": ["n1"], "n3": [], "n4": [], "n5": []}
TIMES = {"n0": 30, "n1": 10, "n2": 10, "n3": 10, "n4": 10, "n5": 10}


@pytest.mark.parametrize(
    ("window", "starts"),
    [
        (1, {"n1": 30, "n2": 40, "n3": 40, "n4": 50, "n5": 50}),
        (2, {"n1": 30, "n2": 40, "n3": 30, "n4": 40, "n5": 50}),
        (3, {"n1": 30, "n2": 40, "n3": 0, "n4": 30, "n5": 40}),
        (4, {"n1": 30, "n2": 40, "n3": 0, "n4": 10, "n5": 30}),
        (None, {"n1": 30, "n2": 40, "n3": 0, "n4": 10, "n5": 20}),
    ],
)
def test_exact_times(window: int | None, starts: dict[str, int]) -> None:
    trace = simulate(graph_of(PROGRAM, TIMES), cpu(2), OutOfOrder(window))
    assert {name: start for name, (start, _) in spans(trace).items()} == {"n0": 0, **starts}


def test_the_window_spans_iterations() -> None:
    b = GraphBuilder("y carries a state")
    b.op("y", inputs=[("y", 1)], duration_ns=30)
    b.op("x", duration_ns=10)
    graph = b.build()

    def starts_of_x(window: int | None) -> list[int]:
        t = simulate(graph, cpu(2), OutOfOrder(window), iterations=3).tasks
        return t["start_ns"][t["op"] == 1].tolist()

    # Program: y0 x0 y1 x1 y2 x2. With 2 places, x1 may pass y1; x2 waits until y1 is issued at 30.
    assert starts_of_x(1) == [0, 30, 60]
    assert starts_of_x(2) == [0, 10, 30]
    assert starts_of_x(4) == [0, 10, 20]
    assert starts_of_x(None) == [0, 10, 20]


@given(dags(distances=True), st.integers(1, 3), st.integers(1, 3), st.sampled_from(("completion", "issue")))
def test_a_window_of_one_is_issue_in_order(
    graph: Graph, lanes: int, iterations: int, synchronisation: str
) -> None:
    for machine in (cpu(lanes), gpu(lanes, issue_ns=3, launch_latency_ns=2, event_ns=1)):
        runs = [
            simulate(graph, machine, policy, streams=RoundRobinStreams(), iterations=iterations)
            for policy in (
                InOrder(synchronisation=synchronisation),
                OutOfOrder(1, synchronisation),
            )
        ]
        assert same_times(*runs)


class Exhaustive(Policy):
    """Looks through the whole program at every question: the definition, without a data structure."""

    scope = "group"

    def __init__(self, window: int | None) -> None:
        self.window = window

    def prepare(self, job: Job) -> None:
        self.programs = [
            [(i, op) for i in range(job.iterations) for op in program] for program in job.programs
        ]
        self.eligible: dict[tuple[int, int], Task] = {}
        self.issued: set[tuple[int, int]] = set()

    def ready(self, task: Task) -> None:
        self.eligible[task.iteration, task.op] = task

    def next(self, issuer: Issuer) -> Task | None:
        program = self.programs[issuer.group]
        oldest = next((k for k, what in enumerate(program) if what not in self.issued), len(program))
        end = len(program) if self.window is None else oldest + self.window
        for what in program[oldest:end]:
            if what in self.eligible:
                self.issued.add(what)
                return self.eligible.pop(what)
        return None


@given(dags(max_ops=14, distances=True), st.sampled_from((1, 2, 3, 4, 7, None)), st.integers(1, 3))
def test_every_decision_is_the_definition_s(graph: Graph, window: int | None, iterations: int) -> None:
    machine = Machine((Device("cpu0", "cpu", workers=2), Device("gpu0", streams=2)))

    class Alternate(Placement):
        def place(self, graph: Graph, machine: Machine, cost_ns: object) -> list[int]:
            return [op % 2 for op in range(len(graph))]

    runs = [
        simulate(graph, machine, policy, placement=Alternate(), iterations=iterations)
        for policy in (OutOfOrder(window), Exhaustive(window))
    ]
    assert same_times(*runs)


@pytest.mark.parametrize("window", [0, -1, 1.5, "4", True])
def test_a_wrong_window_is_refused(window: object) -> None:
    with pytest.raises(InputError, match="window must be a whole number of at least 1"):
        OutOfOrder(window)  # type: ignore[arg-type]


def test_an_unknown_synchronisation_is_refused() -> None:
    with pytest.raises(InputError, match="one of completion, issue; found 'async'"):
        OutOfOrder(synchronisation="async")
