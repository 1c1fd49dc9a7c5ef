"""What the tests of placements share: the published example, random problems, what schedules satisfy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from policies.placement.list_schedule import ListSchedule
from policies.placement.problem import NEVER, Problem
from sim import Device, Graph, GraphBuilder, Link, Machine, Task
from sim.job.context import Context
from sim.job.costs import costs_ns

# Topcuoglu, Hariri and Wu 2002, IEEE TPDS 13(3), figure 2: ten tasks on three processors.
COSTS = [
    *[(14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10)],
    *[(13, 16, 9), (7, 15, 11), (5, 11, 14), (18, 12, 20), (21, 7, 16)],
]
TRAVEL = {
    (1, 2): 18,
    (1, 3): 12,
    (1, 4): 9,
    (1, 5): 11,
    (1, 6): 14,
    (2, 8): 19,
    (2, 9): 16,
    (3, 7): 23,
    (4, 8): 27,
    (4, 9): 23,
    (5, 9): 13,
    (6, 8): 15,
    (7, 10): 17,
    (8, 10): 11,
    (9, 10): 13,
}


def published_graph() -> Graph:
    """Return the ten tasks: at 1 byte/ns, a tensor's size is its travel time."""
    b = GraphBuilder("Topcuoglu 2002")
    outputs: dict[int, list[int]] = {op: [] for op in range(1, 11)}
    inputs: dict[int, list[str]] = {op: [] for op in range(1, 11)}
    for (producer, consumer), ns in TRAVEL.items():
        k = len(outputs[producer])
        inputs[consumer].append(f"n{producer}:{k}" if k else f"n{producer}")
        outputs[producer].append(ns)
    for op, costs in enumerate(COSTS, start=1):
        b.op(
            f"n{op}",
            inputs=inputs[op],
            outputs=outputs[op],
            duration_by_kind={f"p{k}": ns for k, ns in enumerate(costs, start=1)},
        )
    return b.build()


class Independent:
    """A network in which no transfer meets another: the model of the paper."""

    def __init__(self, machine: Machine, context: Context) -> None:
        self.context = context
        self.nbytes = context.flow.nbytes.tolist()  # type: ignore[attr-defined]
        self.n_ops = context.flow.n_ops  # type: ignore[attr-defined]

    def start(self, task: Task) -> None:
        task.start_ns = now = self.context.now_ns
        self.context.call_at(now + self.nbytes[task.op - self.n_ops], self.context.finish, task)


def full_mesh(devices: Sequence[Device], latency_ns: int = 0, rate: int = 10**9, **more: object) -> Machine:
    """Return the devices with a link from each to each, by default of 1 byte/ns."""
    links = [
        Link(f"{a.name}-{b.name}", a.name, b.name, latency_ns, rate)
        for a, b in itertools.permutations(devices, 2)
    ]
    return Machine(tuple(devices), tuple(links), **more)  # type: ignore[arg-type]


def three_processors(**more: object) -> Machine:
    """Return the paper's three processors."""
    return full_mesh([Device(f"P{k}", f"p{k}") for k in (1, 2, 3)], **more)


def problem_of(graph: Graph, machine: Machine) -> Problem:
    """Return the problem of placing `graph` on `machine`."""
    return Problem(graph, machine, [costs_ns(graph, device) for device in machine.devices])


@st.composite
def problems(draw: st.DrawFn, max_ops: int = 9, kinds: Sequence[str] = ("p1", "p2", "p3")) -> Problem:
    """Draw a graph with costs per kind of device, pins and colocation, and a machine for it."""
    n = draw(st.integers(1, max_ops))
    b = GraphBuilder("drawn")
    b.input("x", draw(st.integers(0, 20)), device=draw(st.sampled_from((None, "D0"))))
    for i in range(n):
        before = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        costs = draw(st.lists(st.integers(0, 15), min_size=len(kinds), max_size=len(kinds)))
        can = draw(st.sets(st.sampled_from(kinds), min_size=1))
        together = draw(st.integers(0, 6))
        b.op(
            f"o{i}",
            inputs=[f"o{j}" for j in before] + (["x"] if draw(st.integers(0, 3)) == 0 else []),
            outputs=draw(st.integers(0, 20)),
            duration_by_kind={k: ns for k, ns in zip(kinds, costs, strict=True) if k in can or together < 2},
            attributes={"colocate": f"group{together}"} if together < 2 else None,
        )
    devices = [
        Device(f"D{k}", kind, streams=draw(st.integers(1, 2)))
        for k, kind in enumerate((*kinds, *draw(st.lists(st.sampled_from(kinds), max_size=1))))
    ]
    return problem_of(b.build(), full_mesh(devices, draw(st.integers(0, 3))))


def require_valid(schedule: ListSchedule, problem: Problem) -> None:
    """Assert that ops last what they cost, have their inputs, share no lane, and are where they may be."""
    for op in range(problem.n):
        device, start = schedule.device[op], schedule.start_ns[op]
        assert device in problem.devices_of[op]
        assert schedule.end_ns[op] - start == problem.cost_ns[op][device]
        assert schedule.device[problem.group_of[op]] == device
        for home, nbytes in problem.arrivals[op]:
            assert start >= problem.travel_ns(home, device, nbytes)
        for producer, nbytes in problem.producers[op]:
            travel = problem.travel_ns(schedule.device[producer], device, nbytes)
            assert travel < NEVER
            assert start >= schedule.end_ns[producer] + travel
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for op in range(problem.n):
        assert 0 <= schedule.lane[op] < problem.machine.devices[schedule.device[op]].lanes
        span = (schedule.start_ns[op], schedule.end_ns[op])
        lanes.setdefault((schedule.device[op], schedule.lane[op]), []).append(span)
    for busy in lanes.values():
        busy.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(busy))


def every_placement(problem: Problem) -> Iterator[list[int]]:
    """Yield every placement that pins, costs and colocation allow."""
    for placed in itertools.product(*problem.devices_of):
        if all(placed[op] == placed[group] for op, group in enumerate(problem.group_of)):
            yield list(placed)
