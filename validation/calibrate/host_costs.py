"""Costs of the host, streams and workers: queue, events, decisions, shared cores, and reading results.

Constants are read by every op, so some cache has them; a result is written once, and read once or twice.
In a chain each op reads one result, so the table of durations includes that; three chains show the cost of
one more::

    none   o0  o1  o2  o3 ...      one   o0 ─► o1 ─► o2 ─► ...      two   o0 ─► o1 ─► o2 ─► o3 ...
                                                                           └───────────┴──► (and o1 ─► o3)

The core that made a result, and its age, matter less than one more result to read.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from validation.calibrate.chains import (
    LENGTH,
    ROUNDS,
    block_case,
    chain,
    in_turn,
    sampled,
    spans_ns,
    warm_ns,
)  # fmt: skip
from validation.calibrate.session import Samples, Session
from validation.cases.case import Case, CaseOp
from validation.real.work import Observation

MS: Final = 1_000_000

READ_SIZE: Final = 384
"""Rows and columns of the matrices that are read."""

_SMALL: Final = {
    "timer": ("sleep", {"sleep_ns": MS}),
    "threads": ("matmul", {"size": 256, "repeat": 2}),
}


def streams(session: Session) -> None:
    """Costs of the host and the streams of the timer: full queue, empty queue, events."""
    n, one = 60, {"dev0": {"streams": 1}}
    alone = chain(_SMALL["timer"], n, linked=False)
    full = block_case("full", alone, one, notes={"gated": False})
    queued = block_case("queued", alone, one)
    # Two streams take turns: a stream is idle, its host is far ahead, and so it waits for an event.
    turns = block_case("turns", chain(_SMALL["timer"], n, lanes=(0, 1)), {"dev0": {"streams": 2}})
    slow = ("sleep", {"sleep_ns": MS, "issue_sleep_ns": 3 * MS})
    idle = block_case("idle", chain(slow, n // 2, linked=False), one)

    got: Samples = {}
    for name, cases in (("launch", [full, queued]), ("events", [turns]), ("latency", [idle])):
        got |= session.block(name, cases, sampled, steady=())
    session.keep(
        {
            "issue_ns": got["full issues"],
            "gap_ns": got["queued gaps"],
            "event_ns": got["turns gaps"],
            "launch_latency_ns": got["idle latencies"],
        }
    )


def decisions(session: Session) -> None:
    """From readiness (and a free worker) to start, under a ready queue on two workers, awake and woken."""
    kind, facts = _SMALL[session.backend]
    rng = np.random.default_rng([*b"calibration/decisions"])
    ops = []
    for i in range(60):
        chosen = sorted(rng.permutation(np.arange(max(0, i - 4), i))[: min(i, 2)].tolist())
        ops.append(CaseOp(f"o{i}", kind, [f"o{j}" for j in chosen], facts, "cpu0"))
    case = block_case("decisions", ops, {"cpu0": {"workers": 2}}, policy={"name": "ready-queue"})

    def read(case: Case, seen: Observation) -> Samples:
        own, woken = reactions_ns(seen)
        return {"decision_ns": own, "woken_ns": woken}

    session.keep(session.block("decisions", [case], read))


def reactions_ns(seen: Observation) -> tuple[list[float], list[float]]:
    """Return, for every task of workers, the time from (inputs there and worker free) to its start.

    Returns
    -------
    tuple of list
        For workers that had just ended a task; for workers that were idle, and were woken.
    """
    trace = seen.trace
    tasks = trace.tasks
    end_of = dict(zip(tasks["op"].tolist(), tasks["end_ns"].tolist(), strict=True))
    predecessors = trace.job.graph.predecessors.lists()
    free: dict[int, int] = {}
    own: list[float] = []
    woken: list[float] = []
    for op, lane, start, end in zip(
        *(tasks[name].tolist() for name in ("op", "stream", "start_ns", "end_ns")), strict=True
    ):
        ready = max((end_of[p] for p in predecessors[op]), default=0)
        if lane in free and free[lane] >= ready:
            own.append(float(start - free[lane]))
        elif ready:
            woken.append(float(start - ready))
        free[lane] = end
    return own, woken


def busy_workers(session: Session) -> None:
    """Two independent chains on two workers against one: the slowdown by a neighbour."""
    n, drop = 16, 4
    size = (384, 2)
    kernel = ("matmul", {"size": size[0], "repeat": size[1]})
    ops = in_turn(*(chain(kernel, n, device="cpu0", name=name) for name in "ab"))
    case = block_case("busy", ops, {"cpu0": {"workers": 2}}, policy={"name": "ready-queue"})

    def read(case: Case, seen: Observation) -> Samples:
        return {"busy": spans_ns(seen)[2 * drop : -2].tolist()}

    rounds = [session.block("busy", [case], read)["busy"] for _ in range(ROUNDS)]
    measured = [row for table in session.tables if table["kind"] == kernel[0] for row in table["rows"]]
    alone = next(ns for *measured_size, ns in measured if measured_size == [*size])
    slowdown = min(float(np.median(busy)) / alone for busy in rounds)
    session.keep({"corun_slowdown_ppm": [(slowdown if slowdown > 1.02 else 1.0) * 1e6]})
    session.table(
        "matmul", ("size", "repeat"), "neighbours busy", {size: [ns for busy in rounds for ns in busy]}
    )


def reads(session: Session) -> None:
    """Measure the cost of reading one more result; it counts only if every clean round shows it."""
    facts = {"size": READ_SIZE, "repeat": 2}
    cases = []
    for k, name in enumerate(("none", "one", "two")):
        ops = [
            CaseOp(f"o{i}", "matmul", [f"o{j}" for j in range(max(0, i - k), i)], facts, "cpu0")
            for i in range(LENGTH)
        ]
        cases.append(block_case(name, ops, {"cpu0": {"workers": 1}}, policy={"name": "in-order"}))
    rounds = [session.block("reads", cases, warm_ns) for _ in range(ROUNDS)]
    one_ns = [float(np.median(found["two"]) - np.median(found["none"])) / 2 for found in rounds]
    session.keep({"read_ns": [float(np.median(one_ns)) if min(one_ns) > 0 else 0.0]})
