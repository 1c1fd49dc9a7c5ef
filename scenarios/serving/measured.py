"""A measured run of a serving engine, with the same metrics as a simulated one, to compare the two.

::

    vLLM's benchmark     its result, with or without --save-detailed; its own figures are kept as they are
    LLMServingSim        requests.jsonl of a recorded run: {queued_ts, first_token_ts, last_token_ts, ...}: s

Sources: vLLM 0.19.0, ``vllm/benchmarks/serve.py``; casys-kaist/LLMServingSim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from scenarios.serving.metrics import METRICS, STATS, latency_metrics
from scenarios.serving.requests import Row, read_rows
from sim.base.arrays import IntArray
from sim.base.errors import InputError, in_file
from sim.base.units import NS_PER_S

_OWN: Final = (
    *("duration", "completed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "output_throughput", "total_token_throughput"),
    *(f"{stat}_{metric}_ms" for metric in METRICS for stat in STATS),
)
"""Figures in vLLM's result that concern all requests."""
_LISTS: Final = ("input_lens", "output_lens", "ttfts", "itls")
_TIMES: Final = ("queued_ts", "first_token_ts", "last_token_ts")


def measured_metrics(path: Path, limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the metrics of a measured run that are known, by the keys of `serving_metrics`.

    Parameters
    ----------
    path : path
        May be gzipped.
    limits : mapping of str to int
        ``ttft``, ``tpot``, ``e2el`` in ns, for the goodput, if each request was recorded.

    Raises
    ------
    InputError
        The file has another format, or a value is wrong.
    """
    with in_file(path):
        rows = [row for _, row in read_rows(path, whole=True)]
        try:
            if rows and rows[0].keys() >= {"request_throughput", "mean_ttft_ms"}:
                return _of_vllm(rows[-1], limits)
            if rows and rows[0].keys() >= set(_TIMES):
                return _of_recorded(rows, limits)
        except (KeyError, TypeError, ValueError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(what) from None
        raise InputError("is no result of vLLM's benchmark, and no recorded run of LLMServingSim")


def _of_vllm(row: Row, limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the metrics of a vLLM result; those that it does not state are computed from its requests."""
    own = {key: row[key] for key in _OWN if isinstance(row.get(key), int | float)}
    if not row.keys() >= set(_LISTS):
        return own
    each = [of for of in zip(*(row[key] for key in _LISTS), strict=True) if of[1]]  # the others failed
    prompts, tokens, ttft, itls = (list(of) for of in zip(*each, strict=True))
    first = _ns(ttft)
    gaps = [_ns(of) for of in itls]
    last = first + np.array([int(of.sum()) for of in gaps], np.int64)
    found = latency_metrics(
        np.zeros_like(first), first, last, np.array(tokens), sum(prompts), np.concatenate(gaps), limits
    )
    found["request_goodput"] *= found["duration"] / row["duration"]
    return {**found, **own}


def _of_recorded(rows: Sequence[Row], limits: Mapping[str, int]) -> dict[str, Any]:
    arrival, first, last = (_ns([row[key] for row in rows]) for key in _TIMES)
    tokens = np.array([row["output_toks"] for row in rows])
    return latency_metrics(arrival, first, last, tokens, sum(row["input_toks"] for row in rows), None, limits)


def _ns(seconds: Sequence[float]) -> IntArray:
    found: IntArray = np.rint(np.asarray(seconds, float) * NS_PER_S).astype(np.int64)
    return found
