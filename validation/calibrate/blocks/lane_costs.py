"""What the host, streams and workers cost: full queue, empty queue, events, decisions."""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from policies.issue.ready_queue import ReadyQueue
from validation.calibrate.session import Samples, Session
from validation.cases.case import Case, CaseOp
from validation.real.work import Observation

__all__ = ["decisions", "reactions_ns", "streams"]

MS: Final = 1_000_000

_SMALL: Final = {
    "timer": ("sleep", {"sleep_ns": MS}),
    "threads": ("matmul", {"size": 256, "repeat": 2}),
}


def streams(session: Session) -> None:
    """What the host and the streams of the timer cost: full queue, empty queue, events."""
    kind, facts = _SMALL["timer"]
    n = 16 if session.quick else 60
    full = Case(
        "full", "calibration", "calibration",
        [CaseOp(f"o{i}", kind, [], facts, "dev0") for i in range(n)], {"dev0": {"streams": 1}},
        notes={"gated": False},
    )  # fmt: skip
    queued = dataclasses.replace(full, name="queued", notes={})

    def read_full(case: Case, seen: Observation) -> Samples:
        tasks = seen.trace.tasks
        if case is full:
            return {"issue_ns": np.diff(np.sort(tasks["issue_ns"])).tolist()}
        return {"gap_ns": np.maximum(0, tasks["start_ns"][1:] - tasks["end_ns"][:-1]).tolist()}

    session.keep(session.block("launch", [full, queued], read_full))
    # Two streams take turns, so a stream is idle, its host is far ahead, and an event is what it waits for.
    turns = Case(
        "turns", "calibration", "calibration",
        [CaseOp(f"o{i}", kind, [f"o{i - 1}"] if i else [], facts, "dev0", i % 2) for i in range(n)],
        {"dev0": {"streams": 2}},
    )  # fmt: skip

    def read_turns(case: Case, seen: Observation) -> Samples:
        tasks = seen.trace.tasks
        return {"event_ns": (tasks["start_ns"][1:] - tasks["end_ns"][:-1]).tolist()[2:]}

    session.keep(session.block("events", [turns], read_turns))
    slow: dict[str, int] = {"sleep_ns": MS, "issue_sleep_ns": 3 * MS}
    idle = Case(
        "idle", "calibration", "calibration",
        [CaseOp(f"o{i}", "sleep", [], slow, "dev0") for i in range(n // 2)], {"dev0": {"streams": 1}},
    )  # fmt: skip

    def read_idle(case: Case, seen: Observation) -> Samples:
        tasks = seen.trace.tasks
        return {"launch_latency_ns": (tasks["start_ns"] - tasks["issue_ns"]).tolist()[2:]}

    session.keep(session.block("latency", [idle], read_idle))


def decisions(session: Session) -> None:
    """From readiness (and a free worker) to start, under a ready queue on two workers, awake and woken."""
    backend = session.backend
    kind, facts = _SMALL[backend]
    rng = np.random.default_rng([*b"calibration/decisions"])
    n = 20 if session.quick else 60
    ops = []
    for i in range(n):
        chosen = sorted(rng.permutation(np.arange(max(0, i - 4), i))[: min(i, 2)].tolist())
        ops.append(CaseOp(f"o{i}", kind, [f"o{j}" for j in chosen], facts, "cpu0"))
    case = Case(
        "decisions",
        "calibration",
        "calibration",
        ops,
        {"cpu0": {"workers": 2}},
        policy={"name": "ready-queue"},
    )
    assert isinstance(case.make_policy(), ReadyQueue)

    def read(case: Case, seen: Observation) -> Samples:
        own, woken = reactions_ns(seen)
        return {"decision_ns": own, "woken_ns": woken}

    session.keep(session.block("decisions", [case], read))


def reactions_ns(seen: Observation) -> tuple[list[float], list[float]]:
    """Return, for every task of workers, the time from (inputs there and worker free) to its start.

    Returns
    -------
    tuple of list
        Of workers that had just ended a task; of workers that had nothing to do, and were woken.
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
