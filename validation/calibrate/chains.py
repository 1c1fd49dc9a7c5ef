"""Cases of blocks, which are chains of one kernel, and the samples taken from their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sim.base.arrays import IntArray
from validation.cases.case import Case, CaseOp
from validation.real.work import Observation

LENGTH: Final = 20
"""Number of ops in a chain, three times as many for kernels of a few us."""

DROPPED: Final = 4
"""First ops of a chain on threads, which are ignored: caches, clocks and pages warm up."""

ROUNDS: Final = 3
"""Interference counts only if every clean round shows it."""

Kernel = tuple[str, Mapping[str, int]]
"""kind, attributes"""


def block_case(
    name: str, ops: Sequence[CaseOp], devices: Mapping[str, Mapping[str, int]], **options: Any
) -> Case:
    """Return a case that belongs to no experiment."""
    return Case(name, "calibration", "calibration", ops, devices, **options)


def chain(
    kernel: Kernel, n: int, *, device: str = "dev0", name: str = "o", lanes: Sequence[int] = (0,),
    linked: bool = True,
) -> list[CaseOp]:  # fmt: skip
    """Return `n` ops of one kernel, each after the one before.

    Parameters
    ----------
    kernel : tuple
    n : int
    device, name : str
        Device; prefix of the ops' names.
    lanes : sequence of int
        Streams that take turns.
    linked : bool
        Whether each op waits for the one before.
    """
    kind, facts = kernel
    return [
        CaseOp(
            f"{name}{i}", kind, [f"{name}{i - 1}"] * (linked and i > 0), facts, device, lanes[i % len(lanes)]
        )
        for i in range(n)
    ]


def in_turn(*chains: Sequence[CaseOp]) -> list[CaseOp]:
    """Return the ops of chains of equal length, interleaved: all first ones, all second ones, ..."""
    return [op for ops in zip(*chains, strict=True) for op in ops]


def spans_ns(seen: Observation) -> IntArray:
    """Return the duration of each op, in order of start."""
    tasks = seen.trace.tasks
    return tasks["end_ns"] - tasks["start_ns"]


def warm_ns(case: Case, seen: Observation) -> dict[str, list[float]]:
    """Return the durations of a chain's ops on threads once it is warm, by the name of the case."""
    return {case.name: spans_ns(seen)[DROPPED:].tolist()}


def sampled(case: Case, seen: Observation) -> dict[str, list[float]]:
    """Return the samples of a run: its makespan, by the name of the case, and the times between its ops.

    ``NAME issues`` is the time from one launch to the next, ``NAME latencies`` that from a launch to its
    start, ``NAME gaps`` that from an end to the next start (both without the first two ops), and
    ``NAME host`` the issuing time if it was measured.
    """
    name, tasks = case.name, seen.trace.tasks
    gaps = tasks["start_ns"][1:] - tasks["end_ns"][:-1]
    return {
        name: [float(seen.makespan_ns)],
        f"{name} issues": np.diff(np.sort(tasks["issue_ns"])).tolist(),
        f"{name} latencies": (tasks["start_ns"] - tasks["issue_ns"])[2:].tolist(),
        f"{name} gaps": np.maximum(0, gaps)[2:].tolist(),
        f"{name} host": [] if seen.host_ns is None else [float(seen.host_ns)],
    }
