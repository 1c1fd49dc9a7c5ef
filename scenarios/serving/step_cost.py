"""Duration of a step of a serving engine, from the kernels of a transformer in its parallel layout.

::

    a layer   norm ─ qkv ─ rotary ─ attention ─ proj ─ all-reduce ─ norm ─ up ─ gate ─ down ─ all-reduce
              products have one row per token of the step           (or experts)
    the head  products have one row per request that samples

    attention in two kernels: decodes, with one query each over the cache; and chunks of prompts over the
    tokens before them and their own. Within each kernel all requests have the mean length

The kernels of a layer are those of the forward pass in training (`scenarios.builders.train.layers`), timed by
the calibration's cost model. Few sizes are computed; the others are interpolated between these. Up to 512
tokens they are the sizes of the CUDA graphs that vLLM captures, and to which it pads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from devices.collectives.groups import NcclGroups, peer_all_reduce_ns
from policies.serving.batcher import Step
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.calibration import LOW_PRECISION, TrainingCalibration
from scenarios.builders.train.kernels import Attention, Collective, Experts, Kernel, Pass
from scenarios.builders.train.layers import RankWork
from scenarios.builders.train.layout import ParallelLayout, ReplicaBatch
from sim.base.errors import InputError, in_file
from sim.base.units import round_half_up

GRAPH_SIZES: Final[Sequence[int]] = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Token counts of the captured CUDA graphs; other counts are padded. Source: vLLM 0.19.0,
``vllm/config/vllm.py`` (``_set_cudagraph_sizes``)."""

_KEPT_BYTES: Final = {name: recipe.kept for name, recipe in LOW_PRECISION.items()}
_BYTES: Final = {"bf16": 2.0, "fp16": 2.0, **_KEPT_BYTES, "fp8-block": 1 + 4 / 128**2}
"""Bytes of a weight with its scales: fp8 has one per block of 128 x 128, activations one per 128."""

_LARGEST: Final = 10**12
"""Largest size, or time in us, in a table."""
_LONG_STEPS: Final = range(0, 2**24, 64)
"""Token counts at which longer steps are computed."""
_SIZES: Final = (1, *(size << power for power in range(23) for size in (2, 3)), 2**24)
"""1, 2, 3, 4, 6, 8, 12, 16, ..."""


def interpolate(value: Callable[..., float], axes: Sequence[Sequence[float]], *sizes: float) -> float:
    """Return a value known on a grid: linear in each size, and constant before the first of an axis.

    Parameters
    ----------
    value : callable
        ``value(*sizes)`` of sizes on the axes.
    axes : sequence
        Ascending sizes. Beyond the last the line goes on if it rises, else its last value holds.
    *sizes : float
    """
    if not axes:
        return value()
    axis, size = axes[0], sizes[0]
    i = max(0, min(bisect_right(axis, size), len(axis) - 1) - 1)
    first = interpolate(partial(value, axis[i]), axes[1:], *sizes[1:])
    if size <= axis[i] or len(axis) == 1:
        return first
    last = interpolate(partial(value, axis[i + 1]), axes[1:], *sizes[1:])
    part = (size - axis[i]) / (axis[i + 1] - axis[i])
    part = min(part, 1) if last < first else part
    return (1 - part) * first + part * last


def _graph_size(count: int) -> int:
    """Return the size of the CUDA graph for so many tokens or requests, at most the largest."""
    return GRAPH_SIZES[min(bisect_left(GRAPH_SIZES, count), len(GRAPH_SIZES) - 1)]


class ModelStep:
    """A step of a language model on one replica.

    Parameters
    ----------
    model : Architecture
    calibration : TrainingCalibration
    tensor : int
        GPUs that share each layer.
    experts : {"shared", "apart"}
        Whether each GPU has a part of every expert, or some whole experts.

    Raises
    ------
    InputError
        The GPUs cannot share the model, or the state of some layers is not in blocks.
    """

    def __init__(
        self, model: Architecture, calibration: TrainingCalibration, tensor: int = 1, experts: str = "shared"
    ) -> None:
        if "M" in model.pattern or model.o_rank:
            unsupported = "attention with pooled keys" if model.o_rank else "layers of Mamba-2"
            raise InputError(f"serving knows keys and values in blocks, and no {unsupported}")
        self.model, self.calibration, self.tensor, self.experts = model, calibration, tensor, experts
        self.layout = ParallelLayout(tp=tensor, sequence_parallel=False, node=calibration.node)
        self.group = self.layout.group("tp")
        fabric = calibration.collectives
        fits = None if calibration.alone is None else calibration.alone.fits
        nvlink = isinstance(fabric, NcclGroups) or getattr(fabric, "measured", None) is not None
        self.peers = nvlink or (fits is not None and fits.sheet.generation == "cdna3")
        self.kinds = Counter(model.kind(layer) for layer in range(model.layers))
        self.work = self.work_of(1)
        # A chunk of a prompt counts as a whole prompt with the same number of scores.
        self._decode = cache(lambda requests, cached: self._attention(requests, 1, cached - 1))
        self._prefill = cache(lambda requests, length: self._attention(requests, length, 0))
        self._layers, self._head = cache(self._layers_ns), cache(self._head_ns)

    def __call__(self, step: Step) -> int:
        """Return the duration of a step in ns."""
        counts, contexts = np.fromiter(step.tokens.values(), int), np.array(step.contexts)
        decode = counts == 1
        decodes, chunks = int(decode.sum()), int((~decode).sum())
        tokens, axes = int(counts.sum()), (_SIZES, _SIZES)
        short = tokens <= GRAPH_SIZES[-1]
        ns = self._layers(_graph_size(tokens)) if short else interpolate(self._layers, (_LONG_STEPS,), tokens)
        ns += self._head(len(step.samples))
        if decodes:
            ns += interpolate(self._decode, axes, decodes, (contexts[decode] + 1).sum() / decodes)
        if chunks:
            square = np.sqrt(counts * (counts + 2 * contexts))[~decode].sum()
            ns += interpolate(self._prefill, axes, chunks, square / chunks)
        return round_half_up(ns)

    # -- parts of a step --------------------------------------------------------------------------------

    def _layers_ns(self, tokens: int) -> float:
        """Return the time of the layers for a number of tokens, without attention."""
        work = self.work_of(tokens)
        ns = self._ns([kernel for piece in work.embedding() for kernel in piece.forward])
        for kind, layers in self.kinds.items():
            kernels = [kernel for kernel in self._kernels(work, kind) if not isinstance(kernel, Attention)]
            ns += layers * self._ns(kernels)
        return ns

    def _head_ns(self, requests: int) -> float:
        """Return the time of the last norm, the head and sampling for a number of requests."""
        if not requests or not self.model.vocabulary:
            return 0.0
        rows = _graph_size(requests)
        norm, head, _ = self.work_of(rows).head()
        logits = rows * self.model.vocabulary
        share = Collective("all_gather", 2 * logits, "tp")
        sample = Pass(4 * logits * 3)  # cast to fp32, and read to find the largest logit
        return self._ns([*norm.forward, *head.forward, share, sample])

    def _attention(self, batch: int, queries: int, cached: int) -> float:
        """Return the time of attention in all layers, for `batch` prompts of `queries` queries each."""
        ns = 0.0
        for kind, layers in self.kinds.items():
            for kernel in self._kernels(self.work, kind):
                if isinstance(kernel, Attention):
                    window = min(kernel.window and self.model.window, queries + cached)
                    resized = kernel._replace(batch=batch, sequence=queries, cached=cached, window=window)
                    ns += layers * self._ns([resized])
        return ns

    # -- kernels ----------------------------------------------------------------------------------------

    def work_of(self, tokens: int) -> RankWork:
        """Return the work of a rank in a step with this number of tokens."""
        return RankWork(self.model, self.layout, ReplicaBatch(1, tokens))

    def _kernels(self, work: RankWork, kind: str) -> Iterator[Kernel]:
        """Yield the kernels of a layer's forward pass."""
        for part in kind:
            if part != "E":
                for piece in work.layer(part):
                    yield from piece.forward
                continue
            m, tokens = self.model, work.tokens
            for piece in work.layer(part):
                if piece.name == "router" or piece.name.startswith(("shared", "latent")):
                    yield from (kernel for kernel in piece.forward if not isinstance(kernel, Collective))
            shared = (1, self.tensor) if self.experts == "apart" else (self.tensor, 1)
            yield Experts(tokens, m.expert_latent, m.expert_middle, m.top_k, m.experts, *shared)
            yield Collective("all_reduce", work.wide, "tp")

    def _ns(self, kernels: Sequence[Kernel]) -> float:
        """Return the time of kernels that run one after the other."""
        timed = [kernel for kernel in kernels if not isinstance(kernel, Collective)]
        total = sum(self.calibration.kernels_ns(timed))
        for kernel in kernels:
            if isinstance(kernel, Collective):
                ns = self.calibration.collective_ns(kernel.kind, kernel.nbytes, self.group)
                if kernel.kind == "all_reduce" and self.peers:  # the engine uses the faster one
                    ns = min(ns, peer_all_reduce_ns(self.tensor, kernel.nbytes))
                total += ns
        return total

    def all_reduce_ns(self, tokens: int) -> float:
        """Return the time of an all-reduce of the hidden state of this number of tokens."""
        return self._ns([Collective("all_reduce", 2 * tokens * self.model.hidden, "tp")])

    # -- memory of a GPU --------------------------------------------------------------------------------

    def weights(self, dtype: str) -> int:
        """Return the bytes of the weights in a data type; embedding and head stay in 16 bits."""
        words = self.model.vocabulary * (2 - self.model.tied) * self.model.hidden
        return round_half_up((2 * words + _BYTES[dtype] * (self.model.parameters - words)) / self.tensor)

    def token_bytes(self, dtype: str) -> int:
        """Return the bytes of the keys and values of a token; each GPU has latent ones in full."""
        m = self.model
        heads = max(1, m.kv_heads // self.tensor) * (m.query_head + m.value_head)
        return round_half_up(_BYTES[dtype] * (m.kv_rank + m.rotary_head if m.kv_rank else heads)) * m.layers

    def activations(self, tokens: int, requests: int) -> int:
        """Return the bytes of the widest piece of a layer, the hidden state, and the logits in fp32."""
        work = self.work_of(tokens)
        widest = max(piece.input + piece.output for kind in self.kinds for piece in work.layer(kind))
        return widest + 4 * tokens * self.model.hidden + 4 * requests * self.model.vocabulary


# ----------------------------------------------------------------------------------------------------------
# Tables of measured kernels, in the format of LLMServingSim's profiler.
#
#     dense.csv         layer, tokens, time_us                  products, norms, ...: per layer, or once
#     per_sequence.csv  layer, sequences, time_us               the head, sampling
#     attention.csv     prefill_chunk, kv_prefill, n_decode, kv_decode, time_us       both in one kernel
#     moe.csv           tokens, activated_experts, time_us
#     skew.csv          n, t_mean_us, t_max_us, t_skew_us       uneven, and even of mean and longest length
#
# Times are linear between measured sizes, and extrapolated beyond the largest. Uneven decodes take ``mean +
# alpha (longest - mean)``, with the alpha that best fits the measurements with the same number of decodes.
#
# Source: casys-kaist/LLMServingSim, ``profiler/README.md`` (Apache-2.0).


AllReduce = Callable[[int], float]


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

    def __init__(self, folder: Path, layers: int, all_reduce_ns: AllReduce | None = None) -> None:
        self.layers, self.all_reduce_ns = layers, all_reduce_ns
        times = {"layernorm": 2 * layers, "embedding": 1, "final_layernorm": 1}  # a layer has two norms
        self.dense = _line(_sum(folder / "dense.csv", "tokens", times, layers))
        self.head = _line(_sum(folder / "per_sequence.csv", "sequences", {}, 1))
        sizes = "prefill_chunk", "kv_prefill", "n_decode", "kv_decode"
        self.attention = _grid(folder / "attention.csv", *sizes)
        moe, skew = folder / "moe.csv", folder / "skew.csv"
        self.experts = _most_experts(moe) if moe.exists() else None
        self.alpha = _alpha(skew) if skew.exists() else None

    def __call__(self, step: Step) -> int:
        """Return the duration of a step in ns."""
        counts, contexts = np.fromiter(step.tokens.values(), int), np.array(step.contexts)
        decode = counts == 1
        lengths, chunk = contexts[decode] + 1, int(counts[~decode].sum())
        mean, longest = (lengths.mean(), lengths.max()) if len(lengths) else (0.0, 0)
        shape = chunk, (counts * contexts)[~decode].sum() / max(chunk, 1), len(lengths)
        attention = self.attention(*shape, mean)
        if longest > mean and self.alpha is not None:
            attention += self.alpha(len(lengths)) * (self.attention(*shape, longest) - attention)
        tokens = chunk + len(lengths)
        us = self.dense(tokens) + self.layers * attention
        if step.samples:
            us += self.head(len(step.samples))
        if self.experts is not None:
            us += self.layers * self.experts(tokens)
        sent = 0.0 if self.all_reduce_ns is None else self.all_reduce_ns(tokens)
        return round_half_up(1000 * us + 2 * self.layers * sent)


def _read(path: Path, *columns: str) -> pd.DataFrame:
    types = {name: str if name == "layer" else float for name in columns}
    with in_file(path):
        try:
            table = pd.read_csv(path, usecols=[*columns], dtype=types).dropna()
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read as a table of {', '.join(columns)}: {error}") from None
        numbers = table.select_dtypes("number").to_numpy()
        if not numbers.size or numbers.min() < 0 or numbers.max() > _LARGEST:
            raise InputError(f"should have rows, and in them numbers from 0 to {_LARGEST:,}")
        return table


def _sum(path: Path, size: str, times: dict[str, int], default: int) -> pd.Series:
    """Return the total time of layers, each so many times, by a size."""
    table = _read(path, "layer", size, "time_us").pivot_table("time_us", size, "layer")
    layers = table.interpolate(method="index", limit_direction="both")
    total: pd.Series = layers.dot(pd.Series({layer: times.get(str(layer), default) for layer in layers}))
    return total


def _most_experts(path: Path) -> Callable[[float], float]:
    """Return the time of as many experts as were measured, by the number of tokens."""
    table = _read(path, "tokens", "activated_experts", "time_us")
    by_experts = table.pivot_table("time_us", "tokens", "activated_experts")
    return _line(by_experts.ffill(axis="columns").iloc[:, -1])


def _alpha(path: Path) -> Callable[[float], float]:
    """Return alpha of uneven decodes, as a function of their number."""
    table = _read(path, "n", "t_mean_us", "t_max_us", "t_skew_us")
    span, more = (table[name] - table["t_mean_us"] for name in ("t_max_us", "t_skew_us"))
    sums = pd.DataFrame({"n": table["n"], "x": span * more, "y": span * span}).groupby("n").sum()
    counts, alphas = sums.index.to_numpy(float), (sums["x"] / sums["y"]).to_numpy()
    return lambda decodes: float(np.interp(decodes, counts, alphas))


def _line(times: pd.Series) -> Callable[[float], float]:
    """Return times as a function of the size that is their index."""
    return partial(interpolate, times.to_dict().__getitem__, [times.index.tolist()])


def _grid(path: Path, *columns: str) -> Callable[..., float]:
    """Return times as a function of sizes; one without a measurement is that of the next smaller sizes."""
    times = _read(path, *columns, "time_us").groupby([*columns])["time_us"].mean()
    axes = [sorted(set(times.index.get_level_values(name))) for name in columns]
    times = times.reindex(pd.MultiIndex.from_product(axes, names=columns))
    for name in columns:  # a size that does not matter was measured only at 0
        times = times.groupby(level=[other for other in columns if other != name]).ffill()
    table = times.fillna(0).to_dict()  # nothing to do
    return partial(interpolate, lambda *sizes: table[sizes], axes)
