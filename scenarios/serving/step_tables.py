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

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from policies.serving.batcher import Step
from sim.base.errors import InputError, in_file
from sim.base.units import round_half_up


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
        times = {"layernorm": 2 * layers, "embedding": 1, "final_layernorm": 1}  # a layer has two norms
        self.dense = _sum(folder / "dense.csv", "tokens", times, layers)
        self.head = _sum(folder / "per_sequence.csv", "sequences", {}, 1)
        sizes = "prefill_chunk", "kv_prefill", "n_decode", "kv_decode"
        self.attention = _Grid(folder / "attention.csv", *sizes)
        moe, skew = folder / "moe.csv", folder / "skew.csv"
        self.experts = _Grid(moe, "tokens", "activated_experts") if moe.exists() else None
        self.alpha = _alpha(skew) if skew.exists() else None

    def __call__(self, step: Step) -> int:
        """Return the duration of a step in ns."""
        counts, contexts = np.fromiter(step.tokens.values(), int), np.array(step.contexts)
        decode = counts == 1
        lengths, chunk = contexts[decode] + 1, int(counts[~decode].sum())
        mean, longest = (lengths.mean(), lengths.max()) if len(lengths) else (0.0, 0)
        shape = chunk, (counts * contexts)[~decode].sum() / max(chunk, 1), len(lengths)
        attention = self.attention.at(*shape, mean)
        if longest > mean and self.alpha is not None:
            attention += self.alpha(len(lengths)) * (self.attention.at(*shape, longest) - attention)
        tokens = chunk + len(lengths)
        us = self.dense(tokens) + self.head(len(step.samples)) + self.layers * attention
        if self.experts is not None:
            us += self.layers * self.experts.at(tokens, self.experts.axes[1][-1])
        return round_half_up(1000 * us + 2 * self.layers * self.all_reduce_ns(tokens))


def _read(path: Path, *columns: str) -> pd.DataFrame:
    types = {name: str if name == "layer" else float for name in columns}
    with in_file(path):
        try:
            return pd.read_csv(path, usecols=[*columns], dtype=types)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read as a table of {', '.join(columns)}: {error}") from None


def _sum(path: Path, size: str, times: dict[str, int], default: int) -> Callable[[float], float]:
    """Return the total time of layers, each so many times, as a function of one size."""
    table = _read(path, "layer", size, "time_us").pivot_table("time_us", size, "layer")
    each = table.interpolate(method="index", limit_direction="both")
    total = sum(each[layer] * times.get(str(layer), default) for layer in each)
    sizes, us = each.index.to_numpy(), np.asarray(total)
    slope = (us[-1] - us[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0.0

    def at(count: float) -> float:
        return float(np.interp(count, sizes, us) + max(0.0, count - sizes[-1]) * slope) if count else 0.0

    return at


def _alpha(path: Path) -> Callable[[float], float]:
    """Return alpha of uneven decodes, as a function of their number."""
    table = _read(path, "n", "t_mean_us", "t_max_us", "t_skew_us").dropna()
    span, more = (table[name] - table["t_mean_us"] for name in ("t_max_us", "t_skew_us"))
    sums = pd.DataFrame({"n": table["n"], "x": span * more, "y": span * span}).groupby("n").sum()
    counts, alphas = sums.index.to_numpy(float), (sums["x"] / sums["y"]).to_numpy()
    return lambda decodes: float(np.interp(decodes, counts, alphas))


class _Grid:
    """Times over a grid of sizes; a point without a measurement has the time of the next smaller sizes."""

    def __init__(self, path: Path, *columns: str) -> None:
        times = _read(path, *columns, "time_us").set_index([*columns])["time_us"]
        self.axes = [np.unique(times.index.get_level_values(name)) for name in columns]
        points = pd.MultiIndex.from_product(self.axes)
        self.values = times.reindex(points).to_numpy(copy=True).reshape([len(axis) for axis in self.axes])
        for axis in range(len(columns)):  # a size that does not matter was measured only at 0
            rows = np.moveaxis(self.values, axis, 0)
            for before, here in pairwise(rows):
                np.copyto(here, before, where=np.isnan(here))
        self.values = np.nan_to_num(self.values)  # nothing to do

    def at(self, *sizes: float) -> float:
        """Return the time, interpolated linearly on each axis."""
        found: Any = self.values
        for axis, size in zip(self.axes, sizes, strict=True):
            high = int(np.clip(np.searchsorted(axis, size), 1, len(axis) - 1))
            low = max(0, high - 1)
            part = max(0.0, (size - axis[low]) / (axis[high] - axis[low])) if high > low else 0.0
            found = found[low] + part * (found[high] - found[low])
        return float(found)
