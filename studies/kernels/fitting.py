"""Fit a family: parameters by damped least squares, grids by reweighted ones, spread from folds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from devices.cost.kernel_model import (
    Family,
    KernelGrid,
    Model,
    Parameters,
    Sheet,
    doublings,
    grid_correction,
    physics,
    take,
)
from sim.base.arrays import BoolArray, FloatArray, IntArray
from studies.kernels.tables import Rows

Part = tuple[Rows, Sheet]
"""Rows of one GPU, and its data sheet."""
LeftOut = Callable[[BoolArray], tuple[FloatArray, FloatArray]]
"""Of rows to leave out of a fit: their errors (log), and log2(ns)."""

WIDTH: Final = {
    "fixed_ns": 0.8,
    "flop_share": 0.3,
    "rounding": 0.5,
    "dram_share": 0.25,
    "l2_share": 0.4,
    "cycled_share": 0.3,
    "overlap": 0.5,
}
"""How far a parameter may move from its start: standard deviation of its logarithm (default 1)."""
LEAST: Final = {"overlap": 1.0}
MOST: Final = {
    "rounding": 1.0,
    "flop_share": 1.1,
    "dram_share": 1.05,
    "l2_share": 1.5,
    "cycled_share": 0.5,
    "overlap": 12.0,
}
IN_MODELS: Final = {"p4": -0.117, "t4": -0.225}
"""Difference (log) of linear layers in whole models from the table on 70 W cards, which one repeated kernel
heats more: from seven runs of BERT and GPT-2, shrunk. With each left out in turn, these are 6 % off (9
and 14 % without)."""
SHARP: Final = 12.0  # of the corner between the host's time and the kernel's time
HIDDEN_NS: Final = 1e4
"""Part of a product's kernel that overlaps the host's time; from batched products on A100 and P100."""
CONV_FIXED_NS: Final = (
    5000.0  # the same for a convolution; the shortest of DeepBench take 12 us on a V100 in all
)
KERNEL_FIXED_NS: Final = (
    1500.0  # for a kernel in fp32 among others: the rest of its table's time comes from the measurement
)


def shown(ns: FloatArray, rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Return the time that a table shows for a kernel with its launch, and the share that is the kernel's.

    It is at least the host's time; for products, the host's time followed by the rest of the kernel's.
    """
    floor = np.asarray(rows.floor_ns, float)
    if not floor.any():
        return ns, np.ones_like(ns)
    if rows.waits:
        past = np.hypot(ns, HIDDEN_NS)
        seen = floor + past - HIDDEN_NS
        return seen, ns**2 / past / seen
    seen = (ns**SHARP + floor**SHARP) ** (1 / SHARP)
    return seen, (ns / seen) ** SHARP


def kernel_ns(rows: Rows) -> FloatArray:
    """Return the kernels' own times, for rows well above the host's time."""
    if not rows.waits:
        return rows.ns
    return np.asarray(np.sqrt((rows.ns - rows.floor_ns) * (rows.ns - rows.floor_ns + 2 * HIDDEN_NS)))


def bends(grid: KernelGrid) -> FloatArray:
    """Return the matrix of second differences of a grid's values along each axis."""
    size, rows = int(np.prod(grid.shape)), []
    number = np.arange(size).reshape(grid.shape)
    for axis, knots in enumerate(grid.knots):
        line = np.moveaxis(number, axis, -1).reshape(-1, len(knots))
        each = np.arange(len(line))
        for a in range(len(knots) - 2):
            left, right = knots[a + 1] - knots[a], knots[a + 2] - knots[a + 1]
            block, scale = np.zeros((len(line), size)), np.sqrt((left + right) / 2)
            block[each, line[:, a]] = scale / left
            block[each, line[:, a + 1]] = -scale / left - scale / right
            block[each, line[:, a + 2]] = scale / right
            rows.append(block)
    return np.concatenate(rows) if rows else np.zeros((0, size))


def fit_grids(
    family: Family,
    features: Mapping[str, FloatArray],
    target: FloatArray,
    weight: FloatArray | None = None,
) -> tuple[KernelGrid, ...]:
    """Return grids whose sum is closest to `target` in absolute deviations (reweighted least squares)."""
    grids = family.grids
    corners = [grid.corners(features) for grid in grids]
    sizes = [int(np.prod(g.shape)) for g in grids]
    begins = np.cumsum([0, *sizes])
    total = int(begins[-1])
    penalty = np.zeros((total, total))
    for grid, begin, size in zip(grids, begins, sizes, strict=False):
        second, part = bends(grid), slice(begin, begin + size)
        penalty[part, part] = family.smooth * second.T @ second + family.ridge * np.eye(size)
    index = np.concatenate([i + b for (i, _), b in zip(corners, begins, strict=False)], 1)
    share = np.concatenate([s for _, s in corners], 1)
    solution: FloatArray = np.zeros(total)
    base = np.ones(len(target)) if weight is None else weight
    for _ in range(6):
        error = np.abs(target - (solution[index] * share).sum(1))
        robust = base * 0.05 / np.maximum(error, 0.02) if solution.any() else base
        normal = np.zeros(total * total)
        for begin in range(0, len(target), 4096):  # bounds the memory for pairs
            rows = slice(begin, begin + 4096)
            pairs = index[rows, :, None] * total + index[rows, None, :]
            heavy = (share[rows] * robust[rows, None])[:, :, None] * share[rows, None, :]
            normal += np.bincount(pairs.ravel(), heavy.ravel(), total * total)
        right = np.bincount(index.ravel(), (share * (robust * target)[:, None]).ravel(), total)
        solution[:] = np.linalg.solve(normal.reshape(total, total) + penalty, right)
    return tuple(
        replace(g, values=solution[b : b + n].reshape(g.shape))
        for g, b, n in zip(grids, begins, sizes, strict=False)
    )


def nearest(
    misses: Callable[[FloatArray], FloatArray], names: Sequence[str], centre: FloatArray, rounds: int
) -> FloatArray:
    """Return logarithms of parameters with the least absolute errors: damped Gauss-Newton with a prior."""
    width = np.array([WIDTH.get(n, 1.0) for n in names])
    most = np.log([MOST.get(n, 1e9) for n in names])
    least = np.log([LEAST.get(n, 1e-9) for n in names])

    def loss(x: FloatArray, r: FloatArray) -> float:
        return float(np.abs(r).mean() + 0.5 / len(r) * (((x - centre) / width) ** 2).sum())

    x, damping = centre.copy(), 1.0
    r = misses(x)
    for _ in range(rounds):
        slope = np.stack([(misses(x + 0.03 * np.eye(len(x))[i]) - r) / 0.03 for i in range(len(x))], 1)
        robust = 1 / np.maximum(np.abs(r), 0.02)
        normal = (slope * robust[:, None]).T @ slope + np.diag(1 / width**2)
        right = -(slope * robust[:, None]).T @ r - (x - centre) / width**2
        for _ in range(6):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), right)
            trial = np.clip(x + np.clip(step, -0.7, 0.7), least, most)
            new = misses(trial)
            if loss(trial, new) < loss(x, r):
                x, r, damping = trial, new, damping / 3
                break
            damping *= 4
    return x


def drawn(parts: Sequence[Part], most: int, rng: np.random.Generator) -> list[Part]:
    """Return at most `most` rows of all parts together, in their order."""
    ends = np.cumsum([len(rows.ns) for rows, _ in parts])
    keep = np.sort(rng.permutation(ends[-1])[:most])
    each = zip(parts, np.split(keep, np.searchsorted(keep, ends[:-1])), [0, *ends], strict=False)
    return [(rows.take(mine - begin), sheet) for (rows, sheet), mine, begin in each]


def thinned(parts: Sequence[Part], most: int, rng: np.random.Generator) -> list[Part]:
    """Return at most `most` rows of each part."""
    return [drawn([part], most, rng)[0] for part in parts]


def fit_parameters(
    family: Family, parts: Sequence[Part], dtype: str, rounds: int, *, own_fixed: bool = False
) -> list[Parameters]:
    """Return the parameters of each part: common to all, optionally with fixed times of their own."""
    names = [n for n in family.free if n != "fixed_ns" or not own_fixed]
    each = ["fixed_ns"] * len(parts) if own_fixed and "fixed_ns" in family.free else []
    works = [family.work(rows.sizes, sheet, dtype) for rows, sheet in parts]

    def made(x: FloatArray, i: int) -> Parameters:
        values = np.exp([*x[: len(names)], *x[len(names) :][i : i + 1]])
        return replace(family.start, **dict(zip([*names, "fixed_ns"], values.tolist(), strict=False)))

    def misses(x: FloatArray) -> FloatArray:
        return np.concatenate([
            np.log(shown(physics(work, sheet, made(x, i))[0], rows)[0] / rows.ns)
            for i, (work, (rows, sheet)) in enumerate(zip(works, parts, strict=True))
        ])  # fmt: skip

    every = [*names, *each]
    x = nearest(misses, every, np.log([getattr(family.start, n) for n in every]), rounds)
    return [made(x, i) for i in range(len(parts))]


def physics_misses(
    family: Family, parts: Sequence[Part], dtype: str, parameters: Sequence[Parameters]
) -> tuple[dict[str, FloatArray], FloatArray, FloatArray]:
    """Return features of all rows, the error of the physics (log), and the kernel's share of the time."""
    columns, target, weight = [], [], []
    for (rows, sheet), each in zip(parts, parameters, strict=True):
        base, features = Model(family, dtype, each).base(rows.sizes, sheet)
        seen, share = shown(base, rows)
        columns.append(features)
        target.append(np.log(rows.ns / seen))  # a row hidden by the floor has no information
        weight.append(share)
    joined = {k: np.concatenate([c[k] for c in columns]) for k in columns[0]}
    return joined, np.concatenate(target), np.concatenate(weight)


def fit_pooled(
    family: Family, parts: Sequence[Part], dtype: str
) -> tuple[Model, dict[str, FloatArray], FloatArray]:
    """Return a fit to rows of one GPU, or of several together, the features of all rows, and the error of the
    physics (log).
    """
    few = drawn(parts, 4000, np.random.default_rng(0))
    found = fit_parameters(family, few, dtype, 15)
    features, target, _ = physics_misses(family, parts, dtype, found)
    return Model(family, dtype, found[0], fit_grids(family, features, target)), features, target


def fit_own(family: Family, part: Part, dtype: str) -> Model:
    """Return a fit to rows of one GPU; its spread comes from rows left out."""
    model, features, target = fit_pooled(family, [part], dtype)

    def left_out(out: BoolArray) -> tuple[FloatArray, FloatArray]:
        grids = fit_grids(family, take(features, ~out), target[~out])
        return target[out] - grid_correction(grids, take(features, out)), features["ns"][out]

    return with_spread(model, part[0], left_out, 5, max(1, min(4, len(target) // 100)))


def with_spread(model: Model, rows: Rows, left_out: LeftOut, folds: int, bins: int) -> Model:
    """Return the model with the half width of its 10-90 % interval: of rows left out and, where layers are
    few, what whole layers left out add, by the distance from those that are left.

    That distance as it is, its root, or none beyond a doubling contain as many in either half of the tables.
    """
    misses, log2_ns, _ = _misses(rows, left_out, np.random.default_rng(1).integers(0, folds, len(rows.ns)))
    model = spread_by(model, misses, log2_ns, bins)
    layers, fold = rows.layers(), layer_folds(rows.layer, folds)
    if not layers or not fold.any():
        return model
    misses, log2_ns, far = _misses(rows, left_out, fold)
    added = np.sqrt(np.maximum(misses**2 - model.near(log2_ns) ** 2, 0))[far > 0] / far[far > 0]
    return replace(model, away=float(np.quantile(added, 0.8)) if len(added) else 0.0, layers=layers)


def layer_folds(layer: Any, folds: int, seed: int = 1) -> IntArray:
    """Return in which of some folds, of about as many layers, each row is left out with its layer."""
    of_row = np.unique(layer, return_inverse=True)[1]
    order = np.random.default_rng(seed).permutation(of_row.max() + 1)
    return np.asarray(order[of_row] % folds)


def _misses(rows: Rows, left_out: LeftOut, fold: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the errors (log) of rows left out, log2(ns), and how far each is from the layers left in."""
    misses, log2_ns, far = np.zeros((3, len(rows.ns)))
    for f in np.unique(fold):
        out = fold == f
        misses[out], log2_ns[out] = left_out(out)
        far[out] = doublings(rows.take(out).sizes, rows.take(~out).layers())
    return misses, log2_ns, far


def spread_by(model: Model, misses: FloatArray, log2_ns: FloatArray, bins: int) -> Model:
    """Return the model with the half width of its 10-90 % interval by size, from errors of rows left out."""
    edges = np.quantile(log2_ns, np.linspace(0, 1, bins + 1)[1:-1])
    where = np.searchsorted(edges, log2_ns)
    spread = tuple(float(np.quantile(np.abs(misses[where == b]), 0.8)) for b in range(bins))
    return replace(model, spread_edges=tuple(map(float, edges)), spread=spread)


def as_sure_as(model: Model, lenders: Iterable[Model]) -> Model:
    """Return a model of other GPUs with the half width of the lenders on their own rows, without the addition
    for another GPU (`Model.wider`).
    """
    every = [*lenders]
    near = np.sqrt(np.mean(np.square([width for one in every for width in one.spread])))
    away = np.sqrt(np.mean(np.square([one.away for one in every])))
    first = every[0].layers
    return replace(model, spread_edges=(), spread=(float(near),), away=float(away), layers=first)


def fit_shared(family: Family, parts: Sequence[Part], dtype: str) -> Model:
    """Return one model of one or several equally weighted GPUs, each with its own fixed time."""
    rng = np.random.default_rng(0)
    found = fit_parameters(family, thinned(parts, 2000, rng), dtype, 20, own_fixed=True)
    more = thinned(parts, 20000, rng)
    features, target, share = physics_misses(family, more, dtype, found)
    weight = np.concatenate([np.full(len(rows.ns), min(1.0, 4000 / len(rows.ns))) for rows, _ in more])
    fixed = float(np.exp(np.mean(np.log([each.fixed_ns for each in found]))))
    grids = fit_grids(family, features, target, share * weight + 1e-6)
    return Model(family, dtype, replace(found[0], fixed_ns=fixed), grids)


def fit_measured(family: Family, rows: Rows, sheet: Sheet, dtype: str, folds: int = 3) -> Model:
    """Return a shared fit of one GPU; its spread comes from rows left out."""

    def left_out(out: BoolArray) -> tuple[FloatArray, FloatArray]:
        inner, left = fit_shared(family, [(rows.take(~out), sheet)], dtype), rows.take(out)
        misses = np.log(predicted(inner, left, sheet)[0] / left.ns)
        return misses, inner.base(left.sizes, sheet)[1]["ns"]

    model = fit_shared(family, [(rows, sheet)], dtype)
    return with_spread(model, rows, left_out, folds, 4 if len(rows.ns) > 200 else 1)


FEW: Final = 3.0
"""Stiffness factor of grids that few kernels move: recordings of an MI300X, each program left out."""


def fit_moved(model: Model, rows: Rows, sheet: Sheet) -> Model:
    """Return another GPU's model moved to a few kernels, in parameters and then in grids; its spread is of
    layers left out.
    """
    left_out = np.zeros(len(rows.ns))
    for layer in np.unique(rows.layer):
        out = rows.layer == layer
        left = rows.take(out)
        left_out[out] = np.log(left.ns) - _moved(model, rows.take(~out), sheet).log_ns(left.sizes, sheet)[0]
    return spread_by(_moved(model, rows, sheet), left_out, np.log2(rows.ns), 1)


def _moved(model: Model, rows: Rows, sheet: Sheet) -> Model:
    smooth, ridge = FEW * model.family.smooth, FEW * model.family.ridge
    family = replace(model.family, start=model.parameters, smooth=smooth, ridge=ridge)
    bends = grid_correction(model.grids, model.base(rows.sizes, sheet)[1])
    bare = replace(rows, ns=rows.ns / np.exp(bends))
    found = fit_parameters(family, [(bare, sheet)], model.dtype, 30)
    features, target, _ = physics_misses(family, [(rows, sheet)], model.dtype, found)
    more = fit_grids(family, features, target - grid_correction(model.grids, features))
    both = (replace(g, values=g.values + m.values) for g, m in zip(model.grids, more, strict=True))
    return replace(model, parameters=found[0], grids=tuple(both))


def predicted(model: Model, rows: Rows, sheet: Sheet) -> tuple[FloatArray, FloatArray]:
    """Return the time that a table would show, and log half widths."""
    ns, width = model.predict(rows.sizes, sheet)
    return shown(ns, rows)[0], width


def alone(model: Model, gpu: str = "") -> Model:
    """Return a model of a kernel in fp32 without the effects of measuring: fixed time, and a hot card."""
    if model.family.name == "linear" and gpu in IN_MODELS:
        first, *rest = model.grids
        model = replace(model, grids=(replace(first, values=first.values + IN_MODELS[gpu]), *rest))
    own = CONV_FIXED_NS if model.family.name == "conv" else KERNEL_FIXED_NS
    fixed = min(own, model.parameters.fixed_ns)
    if model.dtype != "fp32" or model.family.name == "conv_any":
        return model
    return replace(model, parameters=replace(model.parameters, fixed_ns=fixed))
