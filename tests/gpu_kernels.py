"""Kernels on a simulated GPU: launches for tests, drawn or written down, and what came of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hypothesis import strategies as st
from runs import checked

from devices.machine import make_device
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Job, Machine, Trace


class Launch(NamedTuple):
    """A kernel of the test: on which stream, how long alone, and what it asks for."""

    stream: int
    duration_ns: int
    attributes: Mapping[str, Any] = MappingProxyType({})
    ready_ns: int = 0


class OnStream:
    """Put each kernel where its launch says; ops on the host have no stream to choose."""

    def __init__(self, launches: list[Launch]) -> None:
        self.launches = launches

    def assign(self, job: Job) -> list[int]:
        return [
            self.launches[int(name[1:])].stream if name.startswith("k") else 0 for name in job.graph.op_names
        ]


def run(launches: list[Launch], processor: Any = None, **spec: Any) -> Trace:
    """Run kernels; one that is ready later waits for an op on a host with workers enough."""
    streams = 1 + max(launch.stream for launch in launches)
    gpu = make_device("gpu0", {"kind": "gpu", "sharing": "sm", "streams": streams, **spec})
    if processor is not None:
        gpu = dataclasses.replace(gpu, processor=processor)
    b = GraphBuilder("kernels")
    for i, launch in enumerate(launches):
        after = []
        if launch.ready_ns:
            after = [b.op(f"until{i}", duration_ns=launch.ready_ns, device="host")]
        b.op(
            f"k{i}", duration_ns=launch.duration_ns, device="gpu0", after=after, attributes=launch.attributes
        )
    machine = Machine((gpu, Device("host", "cpu", workers=len(launches))))
    return checked(b.build(), machine, ReadyQueue(), streams=OnStream(launches))


def spans(trace: Trace) -> list[tuple[int, int]]:
    """Return (start, end) of each kernel, in the order of the launches."""
    found = {}
    for op, start, end in zip(*(trace.tasks[c].tolist() for c in ("op", "start_ns", "end_ns")), strict=True):
        name = trace.job.graph.op_names[op]
        if name.startswith("k"):
            found[int(name[1:])] = (start, end)
    return [found[i] for i in range(len(found))]


grids = st.one_of(
    st.builds(lambda g: {"grid": g}, st.integers(1, 20)),
    st.builds(lambda g: {"sms": g}, st.integers(1, 6)),
    st.just({}),
)
kernels = st.builds(
    lambda stream, duration_ns, attributes, ready_ns, nbytes: Launch(
        stream, duration_ns, {**attributes, "dram_bytes": nbytes}, ready_ns
    ),
    st.integers(0, 3),
    st.integers(1, 30),
    grids,
    st.integers(0, 40),
    st.integers(0, 400),
)
