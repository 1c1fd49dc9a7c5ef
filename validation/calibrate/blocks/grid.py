"""How long ops take: one at a time on one stream or worker, warm, every (kind, size) of a grid."""

from __future__ import annotations

from typing import Any, Final

from validation.calibrate.blocks.gpu_costs import REPEATS, bare_ns
from validation.calibrate.session import Samples, Session
from validation.cases.case import Case, CaseOp
from validation.host.statistics import summary
from validation.real.measured_kernels import HOLDS_HOST, kernel_axes
from validation.real.work import Observation

__all__ = ["GRID", "durations", "serial", "spans"]

MS: Final = 1_000_000

GRID: Final[dict[str, dict[str, list[tuple[int, ...]]]]] = {
    "timer": {"sleep": [(n * MS // 2,) for n in (1, 2, 4, 8, 16, 32)]},
    "threads": {
        # A second product is where a second buffer comes in, so the line bends there.
        "matmul": [(384, 1), (384, 2), (384, 10)],
        "softmax": [(384, 2)],
        "elementwise": [(384, 8)],
        "copy": [(384, 16)],
    },
    "cuda": {
        "matmul": [
            *[(n, 1) for n in (256, 512, 1024, 2048, 4096)],
            *[(512, r) for r in (2, 4, 8)],  # several kernels are one graph: another launch than one
            *[(1024, r) for r in (2, 4, 8, 16, 40, 80)],
            *[(2048, r) for r in (2, 4, 8, 16)],
            *[(4096, r) for r in (4, 8)],
        ],
        "softmax": [(n, 1) for n in (1024, 2048, 4096)],
        "elementwise": [(n, 1) for n in (1024, 2048, 4096)],
        "copy": [(n, 1) for n in (1024, 2048, 4096)],
        "attention": [(n, 1) for n in (1024, 2048)],
        "h2d": [(n, 1) for n in (1024, 2048, 4096)],
        "d2h": [(n, 1) for n in (1024, 2048, 4096)],
        "h2d-pageable": [(n, 1) for n in (1024, 4096)],
        "d2h-pageable": [(n, 1) for n in (1024, 4096)],
    },
}
"""backend → kind → sizes to measure."""


def serial(backend: str, kind: str, facts: dict[str, int], n: int, name: str, lane: int = 0) -> list[CaseOp]:
    device = "cpu0" if backend == "threads" else "dev0"
    return [
        CaseOp(f"{name}{i}", kind, [f"{name}{i - 1}"] if i else [], facts, device, lane) for i in range(n)
    ]


def durations(session: Session) -> None:
    """One op at a time: a chain on one stream or worker, its first ops left out (caches, clocks, pages)."""
    n, drop = (8, 2) if session.quick else (20, 4)
    backend = session.backend
    short = (256, 512) if backend == "cuda" else ()  # kernels of a few us: more of them
    machine = {"cpu0": {"workers": 1}} if backend == "threads" else {"dev0": {"streams": 1}}
    policy = {"name": "in-order"} if backend == "threads" else None
    for kind, sizes in GRID[backend].items():
        axes = kernel_axes(kind)
        cases = [
            Case(
                f"{kind}-{'x'.join(map(str, size))}", "calibration", "calibration",
                serial(
                    backend, kind, dict(zip(axes, size, strict=True)), 3 * n if size[0] in short else n, "o"
                ),
                machine, policy=policy,
                notes={"gated": False} if kind in HOLDS_HOST else {},
            )
            for size in sizes
        ]  # fmt: skip

        def read(case: Case, seen: Observation) -> Samples:
            if backend == "cuda":
                return {case.name: [bare_ns(session, case, seen)]}
            return {case.name: spans(seen)[drop:].tolist()}

        try:
            found = session.block(f"durations of {kind}", cases, read, REPEATS if backend == "cuda" else 1)
        except Exception as error:
            if backend != "cuda" or kind == "matmul":
                raise
            # Most experiments can do without.
            session.sentinels.append({"block": f"durations of {kind}", "accepted": False, "why": str(error)})
            continue
        stats = [summary(found[case.name]) for case in cases]
        session.tables.append(
            {
                "kind": kind,
                "axes": list(axes),
                "context": "warm",
                "rows": [[*size, s.median] for size, s in zip(sizes, stats, strict=True)],
                "statistics": [s.to_json() for s in stats],
                **({"along": "repeat"} if backend == "cuda" else {}),
            }
        )


def spans(seen: Observation) -> Any:
    tasks = seen.trace.tasks
    return tasks["end_ns"] - tasks["start_ns"]
