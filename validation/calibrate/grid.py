"""Durations of ops: one at a time on one stream or worker, warm, every (kind, size) of a grid."""

from __future__ import annotations

from functools import partial
from typing import Any

from validation.calibrate.chains import LENGTH, block_case, chain, warm_ns
from validation.calibrate.gpu_costs import REPEATS, bare
from validation.calibrate.session import Session
from validation.cases.tables import GRID
from validation.real.measured_kernels import HOLDS_HOST, kernel_axes


def durations(session: Session) -> None:
    """One op at a time: a chain on one stream or worker."""
    for kind in GRID[session.backend]:
        _durations(session, kind)


def _durations(session: Session, kind: str) -> None:
    """Measure every size of a kind: on a GPU each alone, from makespans; else from the ops' own times."""
    backend, axes, sizes = session.backend, kernel_axes(kind), GRID[session.backend][kind]
    on_gpu = backend == "cuda"
    options: dict[str, Any] = {"devices": {"dev0": {"streams": 1}}}
    if backend == "threads":
        options = {"devices": {"cpu0": {"workers": 1}}, "policy": {"name": "in-order"}}
    if kind in HOLDS_HOST:
        options["notes"] = {"gated": False}
    [device] = options["devices"]
    cases = {}
    for size in sizes:
        n = 3 * LENGTH if on_gpu and size[0] in (256, 512) else LENGTH
        ops = chain((kind, dict(zip(axes, size, strict=True))), n, device=device)
        cases[size] = block_case(f"{kind}-{'x'.join(map(str, size))}", ops, **options)
    if on_gpu:  # only some experiments use the other kinds
        found = session.each(
            "durations of", list(cases.values()), partial(bare, session), REPEATS, needed=kind == "matmul"
        )
        measured = {size: found[case.name] for size, case in cases.items() if case.name in found}
        if measured:
            session.table(kind, axes, "warm", measured, along="repeat")
        return
    found = session.block(f"durations of {kind}", list(cases.values()), warm_ns)
    session.table(kind, axes, "warm", {size: found[case.name] for size, case in cases.items()})
