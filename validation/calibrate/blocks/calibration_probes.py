"""What a GPU has besides streams and kernels: queue, calls, copies, allocator, contexts of kernels, hops.

Predictions use the queue's depth, both directions at once and what a cold cache costs where they were
measured, and do without where not, so a probe that fails is said and the calibration goes on. Copies and
kernels become tables in contexts of their own (`pinned`, `pageable`, `cold`, ...): a duration without the
company it was measured in is biased.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from devices.memory.allocators.caching import CachingAllocator
from sim.graph.builder import GraphBuilder
from sim.words.errors import RunError
from validation.calibrate.blocks.piecewise import fit_pieces
from validation.calibrate.session import Samples, Session
from validation.gpu.gpu_probes import (
    allocated,
    allocation_ns,
    copy_ns,
    duplex_ns,
    event_hop_ns,
    kernel_ns,
    queue_depth,
)
from validation.gpu.host_calls import issue_costs_ns
from validation.gpu.torch_work import TorchWork
from validation.host.statistics import summary

__all__ = ["COPY_BYTES", "KERNELS", "probes"]

COPY_BYTES: Final = [1 << k for k in range(12, 27, 2)]
"""4 KiB to 64 MiB."""

ALLOCATION_BYTES: Final = [1 << 12, 4 << 20, 64 << 20, 1 << 30]
"""A small segment, one for a medium request, and two of their own."""

ROUNDED_BYTES: Final = [1, 511, 512, 513, 1000, (1 << 20) - 1, (1 << 20) + 1, (10 << 20) + 1]
"""Requests on both sides of what the allocator's rules tell apart."""

KERNELS: Final = {"matmul": (512, 2048, 4096), "elementwise": (1024, 4096), "softmax": (1024, 4096)}
"""kind → sizes, measured in every context."""

CONTEXTS: Final = ("cold", "warm", "neighbours busy")

DTYPES: Final = {"fp16": "float16", "fp32": "float32"}
"""Data types besides bf16, in which everything else is measured: our name → torch's. fp32 without TF32."""


def probes(session: Session, torch: Any) -> None:
    """Measure all of them."""
    n = 5 if session.quick else 15
    _queue(session, torch)
    _issue_costs(session, torch, n)
    _copies(session, torch, n)
    _duplex(session, torch, n)
    _allocator(session, torch, n)
    _contexts(session, torch, n)
    _hops(session, torch, n)
    _data_types(session, torch, n)


def _queue(session: Session, torch: Any) -> None:
    def measure() -> Samples:
        depths = [queue_depth(torch) for _ in range(3)]
        if not all(depth.held_up for depth in depths):
            raise RunError(f"the host was never held up, in {depths[0].launches} launches")
        return {"queue_depth": [float(depth.launches) for depth in depths]}

    session.keep(session.probe("launch queue", measure) or {})


def _issue_costs(session: Session, torch: Any, n: int) -> None:
    """What each kind of call costs the host; predictions use what a plan's launches cost, `issue_ns`."""

    def measure() -> Samples:
        return {f"issue_{kind}_ns": samples for kind, samples in issue_costs_ns(torch, n).items()}

    session.keep(session.probe("calls of the host", measure) or {})


def _table(session: Session, kind: str, context: str, found: dict[int, list[float]]) -> dict[str, Any]:
    """Keep a table over bytes, and return it."""
    stats = {nbytes: summary(values) for nbytes, values in found.items()}
    table = {
        "kind": kind,
        "axes": ["nbytes"],
        "context": context,
        "rows": [[nbytes, max(1, s.median)] for nbytes, s in stats.items()],
        "statistics": [s.to_json() for s in stats.values()],
    }
    session.tables.append(table)
    return table


def _copies(session: Session, torch: Any, n: int) -> None:
    """Copies by size: a table each, and the pieces of alpha + beta n that fit it."""
    for direction, pinned in (("h2d", True), ("d2h", True), ("d2d", True), ("h2d", False), ("d2h", False)):
        context = "on the device" if direction == "d2d" else "pinned" if pinned else "pageable"

        def measure(direction: str = direction, pinned: bool = pinned) -> Samples:
            return {
                str(nbytes): [float(ns) for ns in copy_ns(torch, direction, nbytes, n, pinned=pinned)]
                for nbytes in COPY_BYTES
            }

        # Small copies are all latency, which may move: its spread is part of the result.
        steady = [str(nbytes) for nbytes in COPY_BYTES if nbytes >= 1 << 24] if pinned else []
        found = session.probe(f"copies {direction}, {context}", measure, steady)
        if found is not None:
            sizes = {nbytes: found[str(nbytes)] for nbytes in COPY_BYTES}
            table = _table(session, f"copy-{direction}", context, sizes)
            sizes_ns = [row[1] for row in table["rows"]]
            table["pieces"] = [piece._asdict() for piece in fit_pieces(COPY_BYTES, sizes_ns)]


def _duplex(session: Session, torch: Any, n: int) -> None:
    """Both directions at once: how much longer than the slower of the two alone."""

    def measure() -> Samples:
        found = duplex_ns(torch, 1 << 26, n)
        alone = max(summary(found["h2d"]).median, summary(found["d2h"]).median)
        return {"duplex_slowdown_ppm": [1e6 * ns / alone for ns in found["both"]]}

    session.keep(session.probe("copies both ways", measure, ["duplex_slowdown_ppm"]) or {})


def _allocator(session: Session, torch: Any, n: int) -> None:
    """The host's time for a segment, for a cached block, for giving it back; and whether rounding is ours."""
    found: dict[str, dict[int, list[float]]] = {"fresh": {}, "reuse": {}, "release": {}}

    def measure(nbytes: int) -> Callable[[], Samples]:
        def once() -> Samples:
            samples = allocation_ns(torch, nbytes, n)
            return {name: [float(ns) for ns in values] for name, values in samples.items()}

        return once

    for nbytes in ALLOCATION_BYTES:
        samples = session.probe(f"allocation of {nbytes} bytes", measure(nbytes))
        for name, values in (samples or {}).items():
            found[name][nbytes] = values
    for context, sizes in found.items():
        if sizes:
            _table(session, "allocation", context, sizes)

    def rounding() -> Samples:
        for nbytes, taken, reserved in allocated(torch, ROUNDED_BYTES):
            model = CachingAllocator()
            block = model.alloc(nbytes)
            if (taken, reserved) != (block.nbytes, model.reserved):
                raise RunError(
                    f"an allocation of {nbytes} bytes took {taken} of a segment of {reserved}; the model "
                    f"says {block.nbytes} of {model.reserved}"
                )
        return {"allocator_rounding_bytes": [float(allocated(torch, [1])[0][1])]}

    session.keep(session.probe("rounding of allocations", rounding) or {})


def _contexts(session: Session, torch: Any, n: int) -> None:
    """The same kernels after a flushed L2, after themselves, and beside products on another stream."""
    for kind in KERNELS:
        work = _work(torch, kind)
        for context in CONTEXTS:
            # `warm` is what the grid has measured; here it is what the other two compare with.
            _kernels(session, torch, work, kind, context, "isolated" if context == "warm" else context, n)


def _data_types(session: Session, torch: Any, n: int) -> None:
    """The same kernels on other data types, after themselves: tables for ops that have them."""
    for dtype, name in DTYPES.items():
        for kind in KERNELS:
            _kernels(session, torch, _work(torch, kind, name), kind, "warm", f"warm, {dtype}", n)


def _work(torch: Any, kind: str, dtype: str = "bfloat16") -> TorchWork:
    """Return one op of a kind for each of its sizes."""
    builder = GraphBuilder(kind)
    for size in KERNELS[kind]:
        builder.op(f"{kind}-{size}", kind=kind, duration_ns=1, attributes={"size": size, "repeat": 1})
    return TorchWork(torch, builder.build(), dtype=dtype)


def _kernels(
    session: Session, torch: Any, work: TorchWork, kind: str, context: str, called: str, n: int
) -> None:
    """Keep a table of the ops of `work`, measured in one context."""
    sizes = KERNELS[kind]

    def measure() -> Samples:
        return {
            str(size): [
                float(ns)
                for ns in kernel_ns(torch, lambda op=op: work.launch(op), context, n)  # type: ignore[misc]
            ]
            for op, size in enumerate(sizes)
        }

    steady = [str(size) for size in sizes if size >= 4096] if context != "neighbours busy" else []
    found = session.probe(f"{kind}, {called}", measure, steady)
    if found is None:
        return
    stats = [summary(found[str(size)]) for size in sizes]
    session.tables.append(
        {
            "kind": kind, "axes": ["size", "repeat"], "context": called,
            "rows": [[size, 1, s.median] for size, s in zip(sizes, stats, strict=True)],
            "statistics": [s.to_json() for s in stats],
        }
    )  # fmt: skip


def _hops(session: Session, torch: Any, n: int) -> None:
    def measure() -> Samples:
        found = event_hop_ns(torch, n)
        return {f"event_{name}_added_ns": values for name, values in found.items()}

    session.keep(session.probe("event hops", measure) or {})
