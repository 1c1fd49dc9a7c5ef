"""What company costs: neighbours on the same cores or SMs, and a part of the SMs alone."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Final

import numpy as np

from validation.calibrate.blocks.chains import block_case, chain, in_turn, spans_ns
from validation.calibrate.blocks.gpu_costs import REPEATS, bare, frame_ns
from validation.calibrate.session import Samples, Session
from validation.cases.case import Case
from validation.real.work import Observation

__all__ = ["PARTITIONS", "SIZES", "busy_workers", "partitions", "shared_sms"]

SIZES: Final = (512, 1024, 2048)
"""Of products on streams that share all SMs."""

PARTITIONS: Final = (2, 4, 8)
"""Into how many parts the SMs are split."""

_ROUNDS: Final = 3
"""Interference counts only if every clean round shows it."""


def shared_sms(session: Session) -> None:
    """Products on 2 and 4 streams that share all SMs against one stream: what company costs each of them.

    It depends on how much of the GPU a kernel fills, so it is measured for every size that plans have.
    """
    for size, (k, more) in itertools.product(SIZES, ((2, ""), (4, "_4"))):
        kernel = ("matmul", {"size": size, "repeat": 8})
        chains = [chain(kernel, 8, name=f"o{lane}.", lanes=(lane,)) for lane in range(k)]
        machine = {"dev0": {"streams": k}}
        cases = [block_case("alone", chains[0], machine), block_case("busy", in_turn(*chains), machine)]

        def read(case: Case, seen: Observation, frame: float) -> Samples:
            return {case.name: [seen.makespan_ns - frame]}

        read_bare = partial(read, frame=frame_ns(session, k))
        rounds = [session.block(f"{k} streams of {size}", cases, read_bare, REPEATS) for _ in range(_ROUNDS)]
        factors = [np.median(found["busy"]) / np.median(found["alone"]) for found in rounds]
        session.keep({f"corun_{size}_slowdown{more}_ppm": [max(1.0, float(min(factors))) * 1e6]})


def partitions(session: Session, p: int) -> None:
    """The blocks of a pipeline on one of p equal groups of SMs, where the driver can split them.

    Alone, and while all other groups do the same: SMs are their own, caches, memory and power are not.
    """
    n, size, repeats = 10, 2048, (1, 2, 4)
    machine = {f"rank{r}": {"streams": 1} for r in range(p)}
    contexts = {f"partition {p}": 1, f"partition {p} busy": p}
    cases = [
        block_case(
            f"{context}, {repeat}",
            [
                op
                for r in range(p)
                for op in chain(
                    ("block", {"size": size, "repeat": repeat}),
                    n if r < working else 1,
                    device=f"rank{r}",
                    name=f"r{r}.",
                )
            ],
            machine,
            notes={"chain": n},
        )
        for repeat, (context, working) in itertools.product(repeats, contexts.items())
    ]
    found = session.block(f"blocks on a {p}th of the SMs", cases, partial(bare, session), REPEATS)
    for context in contexts:
        samples = {(size, repeat): found[f"{context}, {repeat}"] for repeat in repeats}
        session.table("block", ("size", "repeat"), context, samples, along="repeat")


def busy_workers(session: Session) -> None:
    """Two independent chains on two workers against one: what company costs."""
    n, drop = 16, 4
    size = (384, 2)
    kernel = ("matmul", {"size": size[0], "repeat": size[1]})
    ops = in_turn(*(chain(kernel, n, device="cpu0", name=name) for name in "ab"))
    case = block_case("busy", ops, {"cpu0": {"workers": 2}}, policy={"name": "ready-queue"})

    def read(case: Case, seen: Observation) -> Samples:
        return {"busy": spans_ns(seen)[2 * drop : -2].tolist()}

    rounds = [session.block("busy", [case], read)["busy"] for _ in range(_ROUNDS)]
    measured = [row for table in session.tables if table["kind"] == kernel[0] for row in table["rows"]]
    alone = next(ns for *measured_size, ns in measured if measured_size == [*size])
    slowdown = min(float(np.median(busy)) / alone for busy in rounds)
    session.keep({"corun_slowdown_ppm": [(slowdown if slowdown > 1.02 else 1.0) * 1e6]})
    session.table(
        "matmul", ("size", "repeat"), "neighbours busy", {size: [ns for busy in rounds for ns in busy]}
    )
