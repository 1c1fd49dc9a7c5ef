"""Errors on kernels that no fit has seen: a fifth of the rows, whole layers, and a whole GPU left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from devices.cost.kernel_fits import GENERATION_WIDTH, NEAREST_WIDTH
from devices.cost.kernel_model import KernelWork, Model, Sheet, shifted
from devices.presets import device_preset
from sim.base.arrays import BoolArray, FloatArray
from studies.kernels.fitting import (
    drawn,
    fit_measured,
    fit_model,
    fit_shared,
    kernel_ns,
    predicted,
    thinned,
)
from studies.kernels.tables import Rows, Table

NEAR: Final = {
    "ampere": ("hopper",),
    "ada": ("ampere",),
    "hopper": ("blackwell", "ampere"),
    "blackwell": ("hopper",),
}
"""Whose rows a generation takes of which nothing was measured."""
MOST: Final = 5000  # rows of a GPU that are judged, and known: of as many as 38,000 it would take hours
NEUSIGHT: Final = {"bmm": 0.138, "linear": 0.139, "elementwise": 0.193, "softmax": 0.139, "layer_norm": 0.567}
"""Published errors on GPUs left out (H100, L4, A100 80GB PCIe; ASPLOS 2025)."""


class Line(NamedTuple):
    """Mean relative errors of one table on one GPU, and shares of rows inside the 10-90 % interval."""

    table: str
    gpu: str
    dtype: str
    rows: int
    roofline: float
    local: float
    fifth: float
    inside: float
    layer: float
    layer_inside: float
    gpu_out: float
    gpu_out_inside: float
    after_20: float


def error(predicted_ns: FloatArray, ns: FloatArray) -> float:
    """Return the mean relative error."""
    return float(np.mean(np.abs(predicted_ns / ns - 1)))


def held(count: int, seed: int = 7) -> BoolArray:
    """Return a fifth of the rows."""
    return np.asarray(np.random.default_rng(seed).random(count) < 0.2)


def held_layers(layer: NDArray[Any], seed: int = 7) -> BoolArray:
    """Return the rows of a fifth of the layers."""
    names = np.unique(layer)
    out = np.random.default_rng(seed).permutation(len(names))[: max(1, round(0.2 * len(names)))]
    return np.isin(layer, names[out])


def roofline_ns(work: KernelWork, sheet: Sheet) -> FloatArray:
    """Return the bare data sheet's time: the longer of arithmetic and DRAM."""
    flops = np.asarray(work.flops, float)
    flops = flops.min(axis=1) if flops.ndim > 1 else flops
    nbytes = work.dram_bytes + work.warm_bytes + work.cycled_bytes
    longest = np.maximum(flops / sheet.peak_of(work.dtype), nbytes / sheet.dram_bytes_per_s)
    return np.asarray(longest * 1e9)


def local_regression(
    known: Rows, asked: Rows, names: Sequence[str], most: int = 400
) -> tuple[NDArray[Any], FloatArray]:
    """Return some rows, and their time by a plane through the ten nearest rows, all in logarithms."""

    def logs(rows: Rows) -> FloatArray:
        sizes = [np.asarray(rows.sizes.get(n, 1.0), float) + 0 * rows.ns for n in names]
        return np.log(np.maximum(np.stack(sizes, 1), 0.5))

    x, at, y = logs(known), logs(asked), np.log(known.ns)
    picked = np.random.default_rng(3).permutation(len(at))[:most]
    out = np.empty(len(picked))
    ridge = np.diag([1e-9] + [1e-2] * len(names))
    for j, i in enumerate(picked):
        distance = ((x - at[i]) ** 2).sum(1)
        near = np.argpartition(distance, min(10, len(distance) - 1))[:10]
        weight = 1 / (np.sqrt(distance[near]) + 0.1)
        a = np.concatenate([np.ones((len(near), 1)), x[near] - at[i]], 1)
        w = a * weight[:, None]
        out[j] = np.linalg.solve(w.T @ a + ridge, w.T @ y[near])[0]
    return picked, np.exp(out)


def own(table: Table, gpu: str, rows: Rows, groups: Any = None) -> Model:
    """Return the fit of a measured GPU."""
    if table.lenders is not None:
        return fit_measured(table.family, rows, table.sheet(gpu), table.dtype)
    return fit_model(table.family_of(gpu), [(rows, table.sheet(gpu))], table.dtype, groups=groups)


def _generation(gpu: str) -> str:
    return str(device_preset(gpu)["generation"])


def pooled(
    table: Table, gpus: Sequence[str], most: int, unseen: float, family_of: str | None = None
) -> Model:
    """Return one fit to rows of several GPUs."""
    parts = thinned([table.part(gpu) for gpu in gpus], most, np.random.default_rng(5))
    which = np.repeat(np.arange(len(gpus)), [len(rows.ns) for rows, _ in parts])
    groups = which if len(gpus) > 1 else None
    return fit_model(table.family_of(family_of or gpus[0]), parts, table.dtype, groups=groups, unseen=unseen)


def lent(table: Table, gpus: Iterable[str]) -> Model:
    """Return the fit that an unmeasured GPU takes from some: stiffer, as there is another to be met."""
    parts = [table.part(gpu) for gpu in gpus]
    return fit_shared(replace(table.family, **table.stiff), parts, table.dtype)


@lru_cache(maxsize=1)
def _shared(table: Table) -> dict[str, Model]:
    """Return the fit of each GPU's lenders."""
    lenders = table.lenders or (lambda gpu: [])
    given = {gpu: [k for k in lenders(gpu) if k in table.rows] for gpu in table.rows}
    return {gpu: lent(table, mine) for gpu, mine in given.items() if mine}


def without(table: Table) -> dict[str, Model]:
    """Return what each GPU would take had it not been measured; not of one that is alone in the table."""
    if table.lenders is not None:
        models, misses = _shared(table), left_out(table)
        return {g: as_sure_as(m, [e for k, e in misses.items() if k != g]) for g, m in models.items()}
    found = {}
    for gpu in table.rows if len(table.rows) > 1 else ():
        others = [g for g in table.rows if g != gpu]
        same = [g for g in others if _generation(g) == _generation(gpu)]
        near = [g for g in others if _generation(g) in NEAR.get(_generation(gpu), ())]
        gpus = same or near or others
        unseen = NEAREST_WIDTH if not same else GENERATION_WIDTH if len(gpus) < 2 else 0.0
        found[gpu] = pooled(table, gpus, 12_000 // len(gpus) if same else 6000, unseen, gpu)
    return found


def as_sure_as(model: Model, misses: Sequence[FloatArray]) -> Model:
    """Return a model of unmeasured GPUs whose interval holds 80 % of what models of others missed; each of
    these weighs the same.
    """
    each = np.abs(np.concatenate(misses))
    weight = np.concatenate([np.full(len(miss), 1 / len(miss)) for miss in misses])
    order = np.argsort(each)
    place = np.searchsorted(np.cumsum(weight[order]), 0.8 * len(misses))
    return replace(model, spread_edges=(), spread=(float(each[order][place]),))


def left_out(table: Table) -> dict[str, FloatArray]:
    """Return by how much (log) the fit of its lenders misses each kernel of each GPU."""
    found = {}
    for gpu, model in _shared(table).items():
        rows, sheet = table.part(gpu)
        found[gpu] = np.log(predicted(model, rows, sheet)[0] / rows.ns)
    return found


def judge(table: Table) -> Iterator[Line]:
    """Return the errors of each GPU of a table."""
    rng = np.random.default_rng(11)
    table = replace(table, rows={g: drawn([table.part(g)], MOST, rng)[0][0] for g in table.rows})
    left = without(table)
    for gpu in table.rows:
        (rows, sheet), other = table.part(gpu), left.get(gpu)

        def score(model: Model, asked: Rows, sheet: Sheet = sheet) -> tuple[float, float]:
            ns, width = predicted(model, asked, sheet)
            return error(ns, asked.ns), float(np.mean(np.abs(np.log(ns / asked.ns)) <= width))

        fifth, layers = held(len(rows.ns)), held_layers(rows.layer)
        known = rows.take(~layers)
        picked, near = local_regression(rows.take(~fifth), rows.take(fifth), table.logs)
        after = []
        for seed in range(5 if other is not None else 0):
            few = rows.take(np.random.default_rng(seed).permutation(len(rows.ns))[:20])
            seen = few.take(few.ns > 1.3 * few.floor_ns)
            if other is not None and len(seen.ns):
                after.append(score(shifted(other, seen.sizes, sheet, kernel_ns(seen)), rows)[0])
        yield Line(
            table.name,
            gpu,
            table.dtype,
            len(rows.ns),
            error(roofline_ns(table.family.work(rows.sizes, sheet, table.dtype), sheet), rows.ns),
            error(near, rows.take(fifth).ns[picked]),
            *score(own(table, gpu, rows.take(~fifth)), rows.take(fifth)),
            *score(own(table, gpu, known, known.layer), rows.take(layers)),
            *(score(other, rows) if other is not None else (np.nan, np.nan)),
            float(np.mean(after)) if after else np.nan,
        )


def markdown(lines: Sequence[Line]) -> str:
    """Return a table of errors."""
    head = (
        "| kernels | GPU | dtype | rows | roofline | local regression | a fifth | inside | by layer | inside "
    )
    head += "| GPU left out | inside | after 20 kernels | NeuSight, GPUs left out |"
    body = []
    for line in lines:
        numbers = (*line[4:], NEUSIGHT.get(line.table, np.nan))
        shares = ("" if np.isnan(x) else f"{x:.1%}" for x in numbers)
        body.append(f"| {line.table} | {line.gpu} | {line.dtype} | {line.rows} | {' | '.join(shares)} |")
    return "\n".join([head, "|---|---|---|" + "---:|" * 11, *body]) + "\n"
