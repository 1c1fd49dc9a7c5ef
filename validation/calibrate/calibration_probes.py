"""Costs of a GPU besides streams and kernels: queue, calls, copies, allocator, kernel contexts, event hops.

Predictions use the queue's depth, copies in both directions at once and the cost of a cold cache if they were
measured, and do without if not, so a failed probe is reported and the calibration goes on. Copies and
kernels become tables in contexts of their own (`pinned`, `pageable`, `cold`, ...): a duration without the
context in which it was measured is biased.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sim.base.errors import RunError
from sim.graph.builder import GraphBuilder
from validation.calibrate.session import Samples, Session
from validation.gpu.gpu_probes import (
    allocation_ns,
    copy_ns,
    duplex_ns,
    event_hop_ns,
    issue_costs_ns,
    kernel_ns,
    queue_depth,
)  # fmt: skip
from validation.gpu.torch_work import TorchWork
from validation.real.statistics import summary

SAMPLES: Final = 15
"""Samples of each probe in each of its two rounds."""

COPY_BYTES: Final = [1 << k for k in range(12, 27, 2)]
"""4 KiB to 64 MiB."""

ALLOCATION_BYTES: Final = [1 << 12, 4 << 20, 64 << 20, 1 << 30]
"""A small segment, one for a medium request, and two of their own."""

KERNELS: Final = {"matmul": (512, 2048, 4096), "elementwise": (1024, 4096), "softmax": (1024, 4096)}
"""kind → sizes, measured in every context."""

CONTEXTS: Final = (
    ("cold", "cold", "bfloat16"),
    # `warm` is what the grid has measured; the others are compared with this.
    ("warm", "isolated", "bfloat16"),
    ("neighbours busy", "neighbours busy", "bfloat16"),
    ("warm", "warm, fp16", "float16"),
    ("warm", "warm, fp32", "float32"),  # without TF32
)
"""Context, name of its tables, torch's name of the data type: after flushing L2, after the kernel
itself, beside products on another stream; in data types other than bf16, the type of all other tables."""


def probes(session: Session, torch: Any) -> None:
    """Measure all probes."""
    session.keep(session.probe("launch queue", partial(_queue_depth, torch)))
    session.keep(session.probe("calls of the host", partial(_calls, torch)))
    session.keep(session.probe("copies both ways", partial(_duplex, torch), ["duplex_slowdown_ppm"]))
    session.keep(session.probe("event hops", partial(_hops, torch)))
    _copies(session, torch)
    _allocations(session, torch)
    _kernels(session, torch)


# -- quantities ------------------------------------------------------------------------------------


def _queue_depth(torch: Any) -> Samples:
    depths = [queue_depth(torch) for _ in range(3)]
    if not all(depth.held_up for depth in depths):
        raise RunError(f"the host was never held up, in {depths[0].launches} launches")
    return {"queue_depth": [float(depth.launches) for depth in depths]}


def _calls(torch: Any) -> Samples:
    """Host time of each kind of call; predictions use the measured launch costs of plans, `issue_ns`."""
    return {f"issue_{kind}_ns": samples for kind, samples in issue_costs_ns(torch, SAMPLES).items()}


def _duplex(torch: Any) -> Samples:
    """Both directions at once: time relative to the slower of the two alone."""
    found = duplex_ns(torch, 1 << 26, SAMPLES)
    alone = max(summary(found["h2d"]).median, summary(found["d2h"]).median)
    return {"duplex_slowdown_ppm": [1e6 * ns / alone for ns in found["both"]]}


def _hops(torch: Any) -> Samples:
    return {f"event_{name}_added_ns": values for name, values in event_hop_ns(torch, SAMPLES).items()}


# -- tables ----------------------------------------------------------------------------------------


def _copies(session: Session, torch: Any) -> None:
    """Copies by size: a table for each kind."""
    for direction, pinned in (("h2d", True), ("d2h", True), ("d2d", True), ("h2d", False), ("d2h", False)):
        context = "on the device" if direction == "d2d" else "pinned" if pinned else "pageable"

        def measure(direction: str = direction, pinned: bool = pinned) -> Samples:
            return {str(n): copy_ns(torch, direction, n, SAMPLES, pinned=pinned) for n in COPY_BYTES}

        # Small copies are all latency, which may drift: its spread is part of the result.
        steady = [str(nbytes) for nbytes in COPY_BYTES if nbytes >= 1 << 24] if pinned else []
        found = session.probe(f"copies {direction}, {context}", measure, steady)
        if found:
            sizes = {(nbytes,): found[str(nbytes)] for nbytes in COPY_BYTES}
            session.table(f"copy-{direction}", ("nbytes",), context, sizes)


def _allocations(session: Session, torch: Any) -> None:
    """Host time to allocate a segment, to allocate a cached block, and to release a segment."""
    found: dict[str, dict[tuple[int, ...], list[float]]] = {"fresh": {}, "reuse": {}, "release": {}}
    for nbytes in ALLOCATION_BYTES:
        measure = partial(allocation_ns, torch, nbytes, SAMPLES)
        for name, values in session.probe(f"allocation of {nbytes} bytes", measure).items():
            found[name][nbytes,] = values
    for context, sizes in found.items():
        if sizes:
            session.table("allocation", ("nbytes",), context, sizes)


def _kernels(session: Session, torch: Any) -> None:
    """The same kernels in every context."""
    for kind, sizes in KERNELS.items():
        for context, called, dtype in CONTEXTS:
            builder = GraphBuilder(kind)
            for size in sizes:
                builder.op(f"{kind}-{size}", kind=kind, duration_ns=1, attributes={"size": size, "repeat": 1})
            work = TorchWork(torch, builder.build(), dtype=dtype)

            def measure(work: TorchWork = work, context: str = context) -> Samples:
                return {
                    name: kernel_ns(torch, partial(work.launch, op), context, SAMPLES)
                    for op, name in enumerate(work.names)
                }

            steady = [f"{kind}-{size}" for size in sizes if size >= 4096 and context != "neighbours busy"]
            found = session.probe(f"{kind}, {called}", measure, steady)
            if found:
                samples = {(size, 1): found[f"{kind}-{size}"] for size in sizes}
                session.table(kind, ("size", "repeat"), called, samples)
