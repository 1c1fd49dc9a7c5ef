"""Traces that several tests look at."""

from __future__ import annotations

from typing import Any

from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, Trace, simulate


def two_streams() -> Trace:
    """a and b on two streams of a GPU, c on the host."""
    builder = GraphBuilder("two streams")
    builder.op("a", duration_ns=10_001, outputs=1000)
    builder.op("b", inputs=["a"], duration_ns=20_000, kind="matmul", outputs=500)
    builder.op("c", inputs=["b"], duration_ns=5_000, device="cpu0")

    class Alternate:
        def assign(self, job: Any) -> list[int]:
            return [0, 1, 0]

    machine = Machine((Device("gpu0", streams=2, issue_ns=3_000), Device("cpu0", "cpu", workers=1)))
    return simulate(builder.build(), machine, ReadyQueue(synchronisation="issue"), streams=Alternate())
