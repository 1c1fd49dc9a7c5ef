"""Latencies and rates of served requests, defined and named as in vLLM's benchmark.

::

    TTFT   first token - arrival                TPOT   (last - first) / (tokens - 1); one token: none
    E2EL   last token - arrival                 ITL    between two tokens, of all requests pooled
    duration    from the first arrival to the last token

Percentiles are numpy's, linear; ``std`` divides by n. Source: vLLM 0.19.0, ``vllm/benchmarks/serve.py``
(``calculate_metrics``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from policies.serving.batcher import Request
from scenarios.serving.requests import read_rows, unzip
from sim.base.arrays import IntArray
from sim.base.errors import InputError, in_file
from sim.base.units import NS_PER_MS, NS_PER_S, format_duration

METRICS: Final = ("ttft", "tpot", "itl", "e2el")
STATS: Final = ("mean", "median", "p99", "std")
_LEAST_WAITING, _LEAST_SHARE, _LEAST_GROWTH, _SAMPLES = 20, 0.02, 1.2, 64
"""The queue grows if at least `_LEAST_WAITING` requests, and `_LEAST_SHARE` of all, wait for their first
token in the last third of the arrival period, and if `_LEAST_GROWTH` times as many wait in each third as in
the one before. Each number is a mean over `_SAMPLES` moments. Of 100 drawn runs of 500 requests, that holds
for none at 0.9 of the capacity, for 67 at 1.1 times, and for all at 1.5 times."""


_SHORT_RUN: Final = 5
"""A run is short if its requests arrive for less than this many times as long as one of them takes."""


def serving_metrics(requests: Sequence[Request], limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the metrics of finished requests.

    Parameters
    ----------
    requests : sequence of Request
    limits : mapping of str to int
        ``ttft``, ``tpot``, ``e2el`` in ns: a request within all of them counts in the goodput.

    Examples
    --------
    >>> request = Request("r0", 0, prompt=10, output=3)
    >>> request.token_ns.extend([20_000_000, 30_000_000, 50_000_000])
    >>> found = serving_metrics([request], {"ttft": 25_000_000})
    >>> found["mean_ttft_ms"], found["mean_tpot_ms"], found["median_itl_ms"], found["request_goodput"]
    (20.0, 15.0, 15.0, 20.0)
    """
    rows = [(r.arrival_ns, r.token_ns[0], r.token_ns[-1], r.prompt, len(r.token_ns)) for r in requests]
    served = pd.DataFrame(rows, columns=["arrival", "first", "last", "prompt", "tokens"])
    gaps = np.concatenate([np.diff(request.token_ns) for request in requests])
    gaps = gaps[gaps > 0]  # tokens of the same step have no gap
    metrics = latency_metrics(served, gaps, limits)
    return {
        **metrics,
        "hit_share": sum(request.hits or 0 for request in requests) / metrics["total_input_tokens"],
        "preemptions": sum(request.preemptions for request in requests),
        "surplus_tokens": sum(max(0, len(request.token_ns) - request.output) for request in requests),
        "queue_grows": _growth_message(served["arrival"].to_numpy(), served["first"].to_numpy()),
        "short_run": _short_message(served["arrival"], metrics["mean_e2el_ms"]),
    }


def latency_metrics(served: pd.DataFrame, gaps: IntArray | None, limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the rates and latencies of requests.

    Parameters
    ----------
    served : DataFrame
        Of each request: times of ``arrival``, ``first`` and ``last`` token in ns, and numbers of ``prompt``
        tokens and of ``tokens`` in the answer.
    gaps : array of int or None
        Times between steps that gave a request tokens, of all requests, in ns; None: unknown.
    limits : mapping of str to int
    """
    n, prompts, answers = len(served), int(served["prompt"].sum()), int(served["tokens"].sum())
    seconds = float(served["last"].max() - served["arrival"].min()) / NS_PER_S or 1.0
    latency = pd.DataFrame({"ttft": served["first"] - served["arrival"]})
    latency["e2el"] = served["last"] - served["arrival"]
    latency["tpot"] = (latency["e2el"] - latency["ttft"]) / (served["tokens"] - 1).clip(1)
    good = (latency[[*limits]] <= [*limits.values()]).all(axis=1).sum()
    pooled: dict[str, Any] = {**latency, "tpot": latency["tpot"][served["tokens"] > 1], "itl": gaps}
    metrics: dict[str, Any] = {
        "duration": seconds,
        "completed": n,
        "total_input_tokens": prompts,
        "total_output_tokens": answers,
        "request_throughput": n / seconds,
        "output_throughput": answers / seconds,
        "total_token_throughput": (prompts + answers) / seconds,
        "request_goodput": int(good) / seconds,
    }
    for name in METRICS:
        if pooled[name] is not None:
            ms = np.asarray(pooled[name] if len(pooled[name]) else [0]) / NS_PER_MS
            values = np.mean(ms), *np.percentile(ms, [50, 99]), np.std(ms)
            metrics |= {f"{stat}_{name}_ms": float(value) for stat, value in zip(STATS, values, strict=True)}
    return metrics


def _short_message(arrival: pd.Series, takes_ms: float) -> str | None:
    """Return a message if the engines were filling up in much of the time in which requests came."""
    come_ns, takes_ns = int(np.ptp(arrival)), round(takes_ms * NS_PER_MS)
    if not 0 < come_ns < _SHORT_RUN * takes_ns:
        return None
    come, takes = format_duration(come_ns), format_duration(takes_ns)
    return f"a short run: requests came for {come}, and each took {takes}; more of them may wait longer"


def _growth_message(arrival: IntArray, first: IntArray) -> str | None:
    """Return a message if requests arrive faster than they are served; None if not, or if unknown."""
    n, begin, end = len(arrival), int(arrival.min()), int(arrival.max())
    times = np.linspace(begin, end, 3 * _SAMPLES + 1)
    come, begun = (np.searchsorted(np.sort(times_ns), times, "right") for times_ns in (arrival, first))
    queue = come - begun
    one, two, three = queue[1:].reshape(3, _SAMPLES).mean(1)
    grows = two >= _LEAST_GROWTH * one and three >= _LEAST_GROWTH * two
    if not grows or three < max(_LEAST_WAITING, _LEAST_SHARE * n) or begin == end:
        return None
    half, waiting = queue[3 * _SAMPLES // 2], queue[-1]
    came, served = (count / ((end - begin) / NS_PER_S) for count in (n, n - waiting))
    return (
        f"the queue grows without end: {came:,.3g} requests/s come and {served:,.3g} are begun; {waiting:,} "
        f"of {n:,} wait when the last one comes ({half:,} when half the time is over), so that latencies "
        "tell how long the run was"
    )


# ----------------------------------------------------------------------------------------------------------
# A measured run of a serving engine, to compare with a simulated one.
#
#     vLLM's benchmark     its result, with or without --save-detailed; its own figures are kept as they are
#     LLMServingSim        requests.jsonl of a recorded run: {queued_ts, first_token_ts, ...}, in s

_KEYS: Final = re.compile(r"duration|completed|total_\w+_tokens|\w+_throughput|\w+_(ttft|tpot|itl|e2el)_ms")
"""Figures in vLLM's result that concern all requests."""
_LISTS: Final = ("input_lens", "output_lens", "ttfts", "itls")
_RECORDED: Final = {"arrival": "queued_ts", "first": "first_token_ts", "last": "last_token_ts"}


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
    rows = pd.DataFrame([row for _, row in read_rows(path)])
    with in_file(path):
        try:
            if {"request_throughput", "mean_ttft_ms"} <= {*rows}:
                return _vllm_metrics(rows.iloc[-1].to_dict(), limits)
            if {*_RECORDED.values()} <= {*rows}:
                times = {name: _ns(rows[column]) for name, column in _RECORDED.items()}
                served = rows.rename(columns={"input_toks": "prompt", "output_toks": "tokens"})
                return latency_metrics(served.assign(**times), None, limits)
        except (KeyError, TypeError, ValueError) as error:
            problem = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(problem) from None
        raise InputError("is no result of vLLM's benchmark, and no recorded run of LLMServingSim")


def _vllm_metrics(row: dict[Any, Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the metrics of a vLLM result; those that it does not state are computed from its requests."""
    stated = {key: row[key] for key in row if _KEYS.fullmatch(key) and isinstance(row[key], int | float)}
    if not row.keys() >= set(_LISTS):
        return stated
    requests = pd.DataFrame(unzip(row, _LISTS))
    requests = requests[requests["output_lens"] > 0]  # the others failed
    gaps = requests["itls"].map(_ns)
    served = requests.rename(columns={"input_lens": "prompt", "output_lens": "tokens"})
    served = served.assign(arrival=0, first=_ns(requests["ttfts"]))
    served["last"] = served["first"] + gaps.map(np.sum)
    metrics = latency_metrics(served, np.concatenate([*gaps]), limits)
    metrics["request_goodput"] *= metrics["duration"] / row["duration"]
    return {**metrics, **stated}


def _ns(seconds: Any) -> IntArray:
    ns: IntArray = np.rint(np.asarray(seconds, float) * NS_PER_S).astype(np.int64)
    return ns
