"""Costs of a GPU besides streams and kernels: queue, calls, copies, allocator, kernel contexts, event hops.

Predictions use the queue's depth, copies in both directions at once and the cost of a cold cache if they were
measured, and do without if not, so a failed probe is reported and the calibration goes on. Copies and
kernels become tables in contexts of their own (`pinned`, `pageable`, `cold`, ...): a duration without the
context in which it was measured is biased.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim.base.errors import InputError, RunError
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

# --------------------------------------------------------------------------------------------------------
# Copies as pieces of alpha + beta n: one latency and rate for small ones, others for large ones.
#
# One line (Hockney 1994, "The communication challenge for MPP", Parallel Computing 20) cannot fit five
# decades: another engine or the host makes small copies. At measured sizes the table is the better
# answer; pieces are for readers, and for extrapolation.


class Piece(NamedTuple):
    """One line of a fit.

    Attributes
    ----------
    from_nbytes, to_nbytes : int
        Range of the measured sizes to which it was fitted, both included.
    alpha_ns : int
    bandwidth_bytes_per_s : int
        1 / beta; 0 if time does not grow with size.
    max_error : float
        Largest relative error at a measured size.
    """

    from_nbytes: int
    to_nbytes: int
    alpha_ns: int
    bandwidth_bytes_per_s: int
    max_error: float


def fit_pieces(nbytes: Sequence[int], ns: Sequence[int]) -> list[Piece]:
    """Fit at most two lines with the least sum of squared relative errors.

    Each has three sizes or more, because two determine a line without any error.

    Parameters
    ----------
    nbytes : sequence of int
        Sizes, ascending.
    ns : sequence of int
        Time of each; positive.

    Raises
    ------
    InputError
        There are fewer than two sizes, sizes do not ascend, or times are not positive.

    Examples
    --------
    >>> [piece[:4] for piece in fit_pieces([1000, 2000, 4000], [1500, 2000, 3000])]
    [(1000, 4000, 1000, 2000000000)]
    """
    x, y = np.asarray(nbytes, np.float64), np.asarray(ns, np.float64)
    if len(x) < 2 or len(x) != len(y) or (np.diff(x) <= 0).any() or (y <= 0).any():
        raise InputError("fitting needs two rising sizes or more, and a positive time for each")
    splits = [len(x), *range(3, len(x) - 2)]
    found = [
        [_line(x[part], y[part]) for part in (slice(0, k), slice(k, None)) if len(x[part])] for k in splits
    ]
    best = min(found, key=lambda lines: sum(line[1] for line in lines))
    return [line[0] for line in best]


def _line(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[Piece, float]:
    """Return a line with non-negative latency and rate, and its squared relative error."""
    candidates = []
    columns = np.stack([1 / y, x / y], axis=1)
    for used in ([0, 1], [0], [1]):
        solved = np.linalg.lstsq(columns[:, used], np.ones(len(x)), rcond=None)[0]
        if (solved >= 0).all():
            line = np.zeros(2)
            line[used] = solved
            candidates.append(line)
    alpha, beta = min(candidates, key=lambda line: float(((columns @ line - 1) ** 2).sum()))
    error = columns @ np.array([alpha, beta]) - 1
    rate = int(np.floor(1e9 / beta + 0.5)) if beta > 0 else 0
    piece = Piece(int(x[0]), int(x[-1]), int(np.floor(alpha + 0.5)), rate, float(np.abs(error).max()))
    return piece, float((error**2).sum())


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
    """Copies by size: a table for each kind, and the fitted pieces of alpha + beta n."""
    for direction, pinned in (("h2d", True), ("d2h", True), ("d2d", True), ("h2d", False), ("d2h", False)):
        context = "on the device" if direction == "d2d" else "pinned" if pinned else "pageable"

        def measure(direction: str = direction, pinned: bool = pinned) -> Samples:
            return {str(n): copy_ns(torch, direction, n, SAMPLES, pinned=pinned) for n in COPY_BYTES}

        # Small copies are all latency, which may drift: its spread is part of the result.
        steady = [str(nbytes) for nbytes in COPY_BYTES if nbytes >= 1 << 24] if pinned else []
        found = session.probe(f"copies {direction}, {context}", measure, steady)
        if found:
            sizes = {(nbytes,): found[str(nbytes)] for nbytes in COPY_BYTES}
            table = session.table(f"copy-{direction}", ("nbytes",), context, sizes)
            pieces = fit_pieces(COPY_BYTES, [ns for _, ns in table["rows"]])
            table["pieces"] = [piece._asdict() for piece in pieces]


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
