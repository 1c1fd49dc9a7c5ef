"""Duration of a step from tables of measured kernels, in the format of LLMServingSim's profiler.

::

    dense.csv         layer, tokens, time_us                  products, norms, ...: per layer, or once
    per_sequence.csv  layer, sequences, time_us               the head, sampling
    attention.csv     prefill_chunk, kv_prefill, n_decode, kv_decode, time_us       both in one kernel
    moe.csv           tokens, activated_experts, time_us
    skew.csv          n, t_mean_us, t_max_us, t_skew_us       uneven, and even of mean and longest length

Times are linear between measured sizes, and extrapolated beyond the largest. Uneven decodes take ``mean +
alpha (longest - mean)``, with the alpha that best fits the measurements with the same number of decodes.

Source: casys-kaist/LLMServingSim, ``profiler/README.md`` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from policies.serving.batcher import Step
from sim.base.arrays import FloatArray
from sim.base.errors import InputError, in_file
from sim.base.units import round_half_up

_ONCE: Final = ("embedding", "final_layernorm")
_TWICE: Final = "layernorm"
"""Occurs twice in a layer: before attention, and before the middle."""
_ATTENTION: Final = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


class TableStep:
    """A step whose kernels were measured.

    Parameters
    ----------
    folder : path
        Folder of one model on one GPU type, in one layout (``tp2``).
    layers : int
    all_reduce_ns : callable, optional
        ``all_reduce_ns(tokens)``: time of the all-reduce that each layer has twice.

    Raises
    ------
    InputError
        A file is missing, or has another format.
    """

    def __init__(
        self, folder: Path, layers: int, all_reduce_ns: Callable[[int], float] = lambda tokens: 0.0
    ) -> None:
        self.layers, self.all_reduce_ns = layers, all_reduce_ns
        dense = _by_layer(folder / "dense.csv", "tokens")
        once = [dense.pop(name) for name in _ONCE if name in dense]
        each = [*dense.values(), *([dense[_TWICE]] if _TWICE in dense else [])]
        self.dense = _sum(each, [layers] * len(each), once)
        self.head = _sum([], [], list(_by_layer(folder / "per_sequence.csv", "sequences").values()))
        self.attention = _Grid(_read(folder / "attention.csv", _ATTENTION), _ATTENTION)
        experts = folder / "moe.csv"
        self.experts = None
        if experts.exists():
            table = _read(experts, ("tokens", "activated_experts"))
            self.experts = _Grid(table, ("tokens", "activated_experts"))
        skew = folder / "skew.csv"
        self.alpha = _alpha(skew) if skew.exists() else None
        self._known: dict[tuple[float, ...], int] = {}

    def __call__(self, step: Step) -> int:
        """Return the duration of a step in ns."""
        chunk = context = decodes = cached = longest = 0
        for count, before in zip(step.tokens.values(), step.contexts, strict=True):
            if count == 1:
                decodes, cached, longest = decodes + 1, cached + before + 1, max(longest, before + 1)
            else:
                chunk, context = chunk + count, context + count * before
        mean = cached / decodes if decodes else 0.0
        shape = (chunk, context / chunk if chunk else 0.0, decodes)
        key = (len(step.samples), *shape, mean, longest)
        if key not in self._known:
            attention = self.attention.at(*shape, mean)
            if longest > mean and self.alpha is not None:
                attention += self.alpha(decodes) * (self.attention.at(*shape, longest) - attention)
            tokens = chunk + decodes
            us = self.dense(tokens) + self.head(len(step.samples)) + self.layers * attention
            if self.experts is not None:
                us += self.layers * self.experts.at(tokens, self.experts.axes[1][-1])
            self._known[key] = round_half_up(1000 * us + 2 * self.layers * self.all_reduce_ns(tokens))
        return self._known[key]


def _read(path: Path, columns: Sequence[str], *, time: bool = True) -> Any:
    with in_file(path):
        try:
            table = pd.read_csv(path)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read as a table: {error}") from None
        needed = [*columns, *(["time_us"] if time else [])]
        if missing := [name for name in needed if name not in table]:
            raise InputError(f"has no column {missing[0]}; it has {', '.join(map(str, table))}")
        for name in needed:
            if name != "layer" and not pd.api.types.is_numeric_dtype(table[name]):
                raise InputError(f"column {name} should hold numbers")
        return table


def _by_layer(path: Path, size: str) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return the sizes and times of each layer."""
    table = _read(path, ("layer", size)).sort_values(size)
    return {
        str(name): (rows[size].to_numpy(float), rows["time_us"].to_numpy(float))
        for name, rows in table.groupby("layer", sort=True)
    }


def _sum(
    each: Sequence[tuple[FloatArray, FloatArray]],
    times: Sequence[int],
    once: Sequence[tuple[FloatArray, FloatArray]],
) -> Callable[[float], float]:
    """Return the total time of layers, as a function of one size."""
    counted = [*zip(each, times, strict=True), *((of, 1) for of in once)]
    sizes = np.unique(np.concatenate([x for (x, _), _ in counted]))
    total = sum(n * np.interp(sizes, x, y) for (x, y), n in counted)
    last = (total[-1] - total[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0.0

    def at(size: float) -> float:
        if not size:
            return 0.0
        return float(np.interp(size, sizes, total) + max(0.0, size - sizes[-1]) * last)

    return at


def _alpha(path: Path) -> Callable[[float], float]:
    """Return alpha of uneven decodes, as a function of their number."""
    table = _read(path, ("n", "t_mean_us", "t_max_us", "t_skew_us"), time=False).dropna()
    span, more = (table[name] - table["t_mean_us"] for name in ("t_max_us", "t_skew_us"))
    sums = pd.DataFrame({"n": table["n"], "x": span * more, "y": span * span}).groupby("n").sum()
    counts, alphas = sums.index.to_numpy(float), (sums["x"] / sums["y"]).to_numpy()
    return lambda decodes: float(np.interp(decodes, counts, alphas))


class _Grid:
    """Times over a grid of sizes; a point without a measurement has the time of the next smaller sizes."""

    def __init__(self, table: Any, columns: Sequence[str]) -> None:
        self.axes = [np.unique(table[name].to_numpy(float)) for name in columns]
        self.values = np.full([len(axis) for axis in self.axes], np.nan)
        places = [np.searchsorted(axis, table[name]) for axis, name in zip(self.axes, columns, strict=True)]
        self.values[tuple(places)] = table["time_us"]
        for axis in range(len(self.axes)):  # a size that does not matter was measured only at 0
            filled = pd.DataFrame(np.moveaxis(self.values, axis, 0).reshape(len(self.axes[axis]), -1))
            shape = np.moveaxis(self.values, axis, 0).shape
            self.values = np.moveaxis(filled.ffill().to_numpy().reshape(shape), 0, axis)
        self.values = np.nan_to_num(self.values)  # nothing to do

    def at(self, *sizes: float) -> float:
        """Return the time, interpolated linearly on each axis."""
        found = self.values
        for axis, size in zip(self.axes, sizes, strict=True):
            high = int(np.clip(np.searchsorted(axis, size), 1, len(axis) - 1)) if len(axis) > 1 else 0
            low = max(0, high - 1)
            part = (size - axis[low]) / (axis[high] - axis[low]) if high > low else 0.0
            found = found[low] + max(part, 0.0) * (found[high] - found[low]) if part else found[low]
        return float(found)
