"""What tasks wait for: their inputs, wherever they are made, or where that does, the issue of these."""

from __future__ import annotations

import itertools
from typing import Any

from policies.optimum.tasks import Tasks
from policies.placement.problem import NEVER
from sim.words.arrays import UNSET

__all__ = ["wait_for_inputs"]


def wait_for_inputs(tasks: Tasks) -> None:
    """Let no task begin before its inputs are there."""
    flow, iterations = tasks.flow, tasks.job.iterations
    rows = zip(
        flow.producer.tolist(),
        flow.consumer.tolist(),
        flow.distance.tolist(),
        flow.carries.tolist(),
        strict=True,
    )
    for p, c, distance, tensor in rows:
        for i in range(distance, iterations):
            if c >= tasks.n_ops:
                tasks.times.after(tasks.start[i][c], tasks.end[i - distance][p])
            else:
                _edge(tasks, i - distance, p, i, c, tensor)
    if tasks.problem is not None:
        for c, arrivals in enumerate(tasks.problem.arrivals):
            for (home, nbytes), (d, chosen), i in itertools.product(
                arrivals, tasks.on[c].items(), range(iterations)
            ):
                _after(tasks, tasks.taken[i][c], 0, tasks.problem.travel_ns(home, d, nbytes), chosen)


def _edge(tasks: Tasks, before: int, p: int, i: int, c: int, tensor: int) -> None:
    """Let op `c` wait for `p`, wherever both are."""
    producers = {None: None} if p >= tasks.n_ops else tasks.on[p]
    nbytes = -1 if tensor == UNSET or tasks.problem is None else int(tasks.job.graph.tensor_nbytes[tensor])
    for (a, here), (b, there) in itertools.product(producers.items(), tasks.on[c].items()):
        travel = 0 if tasks.problem is None or a is None else tasks.problem.travel_ns(a, b, nbytes)
        begin = tasks.end[before][p]
        device = tasks.machine.devices[b]
        launched = not device.workers and (a is None or not tasks.machine.devices[a].workers)
        if not (tasks.at_issue and launched) or tasks.taken[i][c] is tasks.start[i][c]:
            hop = 0 if not (tasks.at_issue and launched) else _hop(tasks, a, b)
            _after(tasks, tasks.taken[i][c], begin, travel + hop, here, there)
            continue
        _after(tasks, tasks.start[i][c], begin, travel + _hop(tasks, a, b), here, there)
        _issued_before(tasks, tasks.taken[i][c], before, p, here, there)


def _issued_before(tasks: Tasks, time: Any, before: int, node: int, *given: Any) -> None:
    """Let `time` not be before a launched task, or what a transfer carries, is issued."""
    if node >= tasks.n_ops:
        for producer, distance in tasks.senders.get(node, []):
            if before - distance >= 0:
                _issued_before(tasks, time, before - distance, producer, *given)
        return
    for d, chosen in tasks.on[node].items():
        if tasks.machine.devices[d].workers:
            _after(tasks, time, tasks.end[before][node], 0, chosen, *given)
        else:
            _after(tasks, time, tasks.taken[before][node], tasks.cost[node][d], chosen, *given)


def _hop(tasks: Tasks, a: int | None, b: int) -> int:
    """Return how long an event takes at least from a stream (None: a transfer) to one of device `b`."""
    device = tasks.machine.devices[b]
    tasks.note(
        a == b and device.streams > 1 and device.event_ns > 0,
        "events between streams",
        device.name,
    )
    return 0 if a == b else device.event_ns


def _after(tasks: Tasks, later: Any, earlier: Any, delay_ns: int, *given: Any) -> None:
    if delay_ns >= NEVER:
        tasks.times.never(*given)
    else:
        tasks.times.after(later, earlier + delay_ns, *given)
