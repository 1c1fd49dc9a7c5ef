"""What the host and the streams of a GPU cost, from makespans alone.

Events around single ops lengthen what they measure by a microsecond or two, which is much of a small kernel.
So everything that predicts is a difference of makespans, in which no op was looked at::

    frame        n streams and no op                     what the events around a plan cost
    duration     (chain of n ops - frame) / n            a kernel and the gap before the next
    hop          (chain across two streams - frame - n durations) / (n - 1)
    issue        the host's clock over a plan that the device is faster than
    latency      (such a plan - its issuing - the last kernel)
    driven       the same two under a policy that waits for every end, which is another loop on the host

What looking at ops adds (`looked_*`) is kept beside it: a replay has the durations of a run in which ops were
looked at, and is compared with that very run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from validation.calibrate.session import Samples, Session
from validation.cases.case import Case, CaseOp
from validation.real.work import Observation

__all__ = ["FRAMES", "REPEATS", "bare_ns", "driven", "frame_ns", "frames", "gpu_streams", "or_say_so"]

FRAMES: Final = (1, 2, 3, 4, 8)
"""Numbers of streams that plans have."""

REPEATS: Final = 3
"""Runs of every case in each of the two rounds of a block: a makespan is one sample."""

_SMALL: Final = ("matmul", {"size": 512, "repeat": 1})
_DRIVEN: Final = ("matmul", {"size": 2048, "repeat": 4})


def or_say_so(session: Session, name: str, measure: Callable[[], None]) -> None:
    """Measure what some experiments need and others do not: when it cannot be, say so and go on."""
    try:
        session.in_time()
        measure()
    except Exception as error:  # whatever a library raises: the rest of the calibration is good without
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        session.sentinels.append({"block": name, "accepted": False, "why": f"not measured: {said}"})


def frames(session: Session) -> None:
    """Measure makespans in which nothing is executed."""

    def measure() -> Samples:
        executor: Any = session.executor
        return {f"frame_{k}_ns": [float(ns) for ns in executor.frame_ns(k, 15)] for k in FRAMES}

    session.keep(session.probe("frames", measure) or {})


def frame_ns(session: Session, streams: int) -> float:
    """Return the median frame of so many streams; 0 where it could not be measured."""
    samples = session.samples.get(f"frame_{streams}_ns")
    return float(np.median(samples)) if samples else 0.0


def bare_ns(session: Session, case: Case, seen: Observation) -> float:
    """Return how long one op of a chain took in a run without a look."""
    frame = frame_ns(session, sum(spec["streams"] for spec in case.devices.values())) if case.gated else 0.0
    return float((seen.makespan_ns - frame) / case.notes.get("chain", len(case.ops)))


def _chain(facts: tuple[str, dict[str, int]], n: int, lanes: int, *, linked: bool = True) -> list[CaseOp]:
    kind, sizes = facts
    return [
        CaseOp(f"o{i}", kind, [f"o{i - 1}"] if i and linked else [], sizes, "dev0", i % lanes)
        for i in range(n)
    ]


def gpu_streams(session: Session) -> None:
    """Issuing, latency, gap and hop of plans."""
    n = 16 if session.quick else 60
    blank = Case("", "calibration", "calibration", [], {"dev0": {"streams": 1}})
    full = dataclasses.replace(
        blank, name="full", ops=_chain(_SMALL, n, 1, linked=False), notes={"gated": False}
    )
    queued = dataclasses.replace(full, name="queued", notes={})
    turns = dataclasses.replace(
        blank, name="turns", ops=_chain(_SMALL, n, 2), devices={"dev0": {"streams": 2}}
    )

    def read(case: Case, seen: Observation) -> Samples:
        found = {case.name: [float(seen.makespan_ns)]}
        tasks = seen.trace.tasks
        between = (tasks["start_ns"][1:] - tasks["end_ns"][:-1]).tolist()[2:]
        if case is full:
            assert seen.host_ns is not None
            found["host"] = [float(seen.host_ns)]
        if case is queued:
            found["looked gap"] = [max(0.0, ns) for ns in between]
        if case is turns:
            found["looked hop"] = between
        return found

    got = session.block("streams", [full, queued, turns], read, REPEATS, steady=("queued", "turns"))
    one_ns = (np.median(got["queued"]) - frame_ns(session, 1)) / n
    session.keep(
        {
            "issue_ns": [ns / n for ns in got["host"]],
            "launch_latency_ns": [
                max(0.0, total - host - one_ns) for total, host in zip(got["full"], got["host"], strict=True)
            ],
            "gap_ns": [0.0],  # a duration has the gap in it
            "event_ns": _positive(
                [(ns - frame_ns(session, 2) - n * one_ns) / (n - 1) for ns in got["turns"]]
            ),
            "looked_gap_ns": got["looked gap"],
            "looked_event_ns": _positive(got["looked hop"]),
        }
    )


def driven(session: Session) -> None:
    """A policy drives: what launching costs, and from the end of a kernel to the start of the next."""
    n = 16 if session.quick else 40
    wide = Case(
        "wide", "calibration", "calibration", _chain(_DRIVEN, n, 1, linked=False),
        {"dev0": {"streams": 1}}, policy={"name": "ready-queue"},
    )  # fmt: skip
    deep = dataclasses.replace(wide, name="deep", ops=_chain(_DRIVEN, n, 1), policy={"name": "in-order"})
    plan = dataclasses.replace(deep, name="plan", policy=None)

    def read(case: Case, seen: Observation) -> Samples:
        tasks = seen.trace.tasks
        found = {case.name: [float(seen.makespan_ns)]}
        if case is wide:
            found["issue"] = np.diff(np.sort(tasks["issue_ns"])).tolist()
            found["gap"] = (tasks["start_ns"][1:] - tasks["end_ns"][:-1]).tolist()
        if case is deep:
            found["reaction"] = (tasks["start_ns"][1:] - tasks["end_ns"][:-1]).tolist()
        return found

    got = session.block("driven", [wide, deep, plan], read, REPEATS, steady=("wide", "plan"))
    issue_ns = float(np.median(got["issue"]))
    one_ns = (np.median(got["plan"]) - frame_ns(session, 1)) / n
    session.keep(
        {
            "driven_issue_ns": got["issue"],
            "driven_latency_ns": _positive([ns / n - one_ns - issue_ns for ns in got["deep"]]),
            "driven_gap_ns": _positive([(ns - issue_ns) / n - one_ns for ns in got["wide"]]),
            "driven_looked_latency_ns": _positive([ns - issue_ns for ns in got["reaction"]]),
            "driven_looked_gap_ns": _positive(got["gap"]),
        }
    )


def _positive(samples: Sequence[float]) -> list[float]:
    return [max(0.0, float(ns)) for ns in samples]
