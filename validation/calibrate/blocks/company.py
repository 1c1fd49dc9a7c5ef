"""What company costs: neighbours on the same cores or SMs, and a part of the SMs alone."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from sim.words.errors import RunError
from validation.calibrate.blocks.gpu_costs import REPEATS, bare_ns, frame_ns
from validation.calibrate.blocks.grid import serial, spans
from validation.calibrate.session import Samples, Session
from validation.cases.case import Case, CaseOp
from validation.host.statistics import summary
from validation.real.work import Observation

__all__ = ["busy_workers", "partitions", "shared_sms"]


SIZES: Final = (512, 1024, 2048)
"""Of products on streams that share all SMs."""


def shared_sms(session: Session) -> None:
    """Products on 2 and 4 streams that share all SMs against one stream: what company costs each of them.

    It depends on how much of the GPU a kernel fills, so it is measured for every size that plans have.
    """
    n = 4 if session.quick else 8
    for size, (k, more) in itertools.product(SIZES, ((2, ""), (4, "_4"))):
        name = f"corun_{size}_slowdown{more}_ppm"
        facts = {"size": size, "repeat": 8}
        alone, busy = (
            Case(
                f"{label}-{k}", "calibration", "calibration",
                [
                    CaseOp(f"o{j}.{i}", "matmul", [f"o{j}.{i - 1}"] if i else [], facts, "dev0", j)
                    for i in range(n)
                    for j in range(lanes)
                ],
                {"dev0": {"streams": k}},
            )
            for label, lanes in (("alone", 1), ("busy", k))
        )  # fmt: skip

        def read(case: Case, seen: Observation) -> Samples:
            return {case.name: [seen.makespan_ns - frame_ns(session, k)]}  # noqa: B023

        rounds = [
            session.block(f"{k} streams of {size}", [alone, busy], read, REPEATS)
            for _ in range(1 if session.quick else 3)
        ]
        factors = [float(np.median(r[busy.name]) / np.median(r[alone.name])) for r in rounds]
        # Interference counts only if every clean round shows it.
        session.keep({name: [max(1.0, min(factors)) * 1e6]})


PARTITIONS: Final = (2, 4, 8)
"""Into how many parts the SMs are split."""


def partitions(session: Session) -> None:
    """The blocks of a pipeline on one of p equal groups of SMs, where the driver can split them.

    Alone, and while all other groups do the same: SMs are their own, caches, memory and power are not.
    """
    n = 6 if session.quick else 10
    for p in PARTITIONS:
        machine = {f"rank{r}": {"streams": 1} for r in range(p)}
        sizes = [(2048, repeat) for repeat in (1, 2, 4)]
        contexts = {f"partition {p}": 1, f"partition {p} busy": p}
        cases = {}
        for (size, repeat), (context, working) in itertools.product(sizes, contexts.items()):
            facts = {"size": size, "repeat": repeat}
            ops = [
                CaseOp(f"r{r}.{i}", "block", [f"r{r}.{i - 1}"] if i else [], facts, f"rank{r}")
                for r in range(p)
                for i in range(n if r < working else 1)
            ]
            cases[context, repeat] = Case(
                f"{context}, {repeat}", "calibration", "calibration", ops, machine, notes={"chain": n}
            )

        def read(case: Case, seen: Observation) -> Samples:
            return {case.name: [bare_ns(session, case, seen)]}

        try:
            session.in_time()
            found = session.block(f"blocks on a {p}th of the SMs", list(cases.values()), read, REPEATS)
        except RunError as error:  # the rest of the calibration is good without
            session.sentinels.append({"block": f"partitions, {p}", "accepted": False, "why": str(error)})
            continue
        for context in contexts:
            stats = [summary(found[cases[context, repeat].name]) for _, repeat in sizes]
            session.tables.append(
                {
                    "kind": "block", "axes": ["size", "repeat"], "context": context,
                    "along": "repeat",
                    "rows": [[*size, s.median] for size, s in zip(sizes, stats, strict=True)],
                    "statistics": [s.to_json() for s in stats],
                }
            )  # fmt: skip


def busy_workers(session: Session) -> None:
    """Two independent chains on two workers against one: what company costs."""
    n, drop = (8, 2) if session.quick else (16, 4)
    kind, facts = "matmul", {"size": 384, "repeat": 2}
    ops = serial("threads", kind, facts, n, "a") + serial("threads", kind, facts, n, "b")
    both = [op for pair in zip(ops[:n], ops[n:], strict=True) for op in pair]
    case = Case(
        "busy", "calibration", "calibration", both, {"cpu0": {"workers": 2}}, policy={"name": "ready-queue"}
    )

    def read(case: Case, seen: Observation) -> Samples:
        return {"busy": spans(seen)[2 * drop : -2].tolist()}

    rounds = [session.block("busy", [case], read)["busy"] for _ in range(1 if session.quick else 3)]
    alone = next(
        row[-1]
        for table in session.tables
        if table["kind"] == kind
        for row in table["rows"]
        if row[:2] == [384, 2]
    )
    factors = [float(np.median(busy)) / alone for busy in rounds]
    # Interference counts only if every clean round shows it.
    slowdown = min(factors) if min(factors) > 1.02 else 1.0
    session.keep({"corun_slowdown_ppm": [slowdown * 1e6]})
    stats = summary([ns for busy in rounds for ns in busy])
    session.tables.append(
        {
            "kind": kind, "axes": ["size", "repeat"], "context": "neighbours busy",
            "rows": [[384, 2, stats.median]], "statistics": [stats.to_json()],
        }
    )  # fmt: skip
