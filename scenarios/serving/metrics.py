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
_FEW, _BACKLOG, _GROWTH, _TIMES = 20, 0.02, 1.2, 64
"""The queue grows if at least this many requests, and this part of all, wait for their first token in the
last third of the arrival period, and if in the second and last third this many times as many wait as in the
third before. Each is a mean over this many moments. Of 100 drawn runs of 500 requests, that holds for none at
0.9 of the capacity, for 67 at 1.1 times, and for all at 1.5 times."""

_FILLED: Final = 5
"""Requests that come for less than this many times as long as one takes mostly meet engines that fill up."""


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
    rows = [(of.arrival_ns, of.token_ns[0], of.token_ns[-1], of.prompt, len(of.token_ns)) for of in requests]
    served = pd.DataFrame(rows, columns=["arrival", "first", "last", "prompt", "tokens"])
    gaps = np.concatenate([np.diff(each.token_ns) for each in requests])
    gaps = gaps[gaps > 0]  # tokens of the same step have no gap
    found = latency_metrics(served, gaps, limits)
    return {
        **found,
        "hit_share": sum(each.hits or 0 for each in requests) / found["total_input_tokens"],
        "preemptions": sum(each.preemptions for each in requests),
        "queue_grows": _growing(served["arrival"].to_numpy(), served["first"].to_numpy()),
        "short_run": _short(int(np.ptp(served["arrival"])), round(found["mean_e2el_ms"] * NS_PER_MS)),
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
    found: dict[str, Any] = {
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
            found |= {f"{stat}_{name}_ms": float(of) for stat, of in zip(STATS, values, strict=True)}
    return found


def _short(come_ns: int, takes_ns: int) -> str | None:
    """Return a message if the engines were filling up in much of the time in which requests came."""
    if not 0 < come_ns < _FILLED * takes_ns:
        return None
    come, takes = format_duration(come_ns), format_duration(takes_ns)
    return f"a short run: requests came for {come}, and each took {takes}; more of them may wait longer"


def _growing(arrival: IntArray, first: IntArray) -> str | None:
    """Return a message if requests arrive faster than they are served; None if not, or if unknown."""
    n, begin, end = len(arrival), int(arrival.min()), int(arrival.max())
    times = np.linspace(begin, end, 3 * _TIMES + 1)
    come, begun = (np.searchsorted(np.sort(of), times, "right") for of in (arrival, first))
    queue = come - begun
    one, two, three = queue[1:].reshape(3, _TIMES).mean(1)
    if three < max(_FEW, _BACKLOG * n, _GROWTH * two) or two < _GROWTH * one or begin == end:
        return None
    half, whole = queue[3 * _TIMES // 2], queue[-1]
    came, served = (count / ((end - begin) / NS_PER_S) for count in (n, n - whole))
    return (
        f"the queue grows without end: {came:,.3g} requests/s come and {served:,.3g} are begun; {whole:,} of "
        f"{n:,} wait when the last one comes ({half:,} when half the time is over), so that latencies tell "
        "how long the run was"
    )


# ----------------------------------------------------------------------------------------------------------
# A measured run of a serving engine, to compare with a simulated one.
#
#     vLLM's benchmark     its result, with or without --save-detailed; its own figures are kept as they are
#     LLMServingSim        requests.jsonl of a recorded run: {queued_ts, first_token_ts, ...}, in s

_OWN: Final = re.compile(r"duration|completed|total_\w+_tokens|\w+_throughput|\w+_(ttft|tpot|itl|e2el)_ms")
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
                return _of_vllm(rows.iloc[-1].to_dict(), limits)
            if {*_RECORDED.values()} <= {*rows}:
                times = {name: _ns(rows[column]) for name, column in _RECORDED.items()}
                served = rows.rename(columns={"input_toks": "prompt", "output_toks": "tokens"})
                return latency_metrics(served.assign(**times), None, limits)
        except (KeyError, TypeError, ValueError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(what) from None
        raise InputError("is no result of vLLM's benchmark, and no recorded run of LLMServingSim")


def _of_vllm(row: dict[Any, Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the metrics of a vLLM result; those that it does not state are computed from its requests."""
    own = {key: value for key, value in row.items() if _OWN.fullmatch(key) and isinstance(value, int | float)}
    if not row.keys() >= set(_LISTS):
        return own
    each = pd.DataFrame(unzip(row, _LISTS))
    each = each[each["output_lens"] > 0]  # the others failed
    gaps = each["itls"].map(_ns)
    served = each.rename(columns={"input_lens": "prompt", "output_lens": "tokens"})
    served = served.assign(arrival=0, first=_ns(each["ttfts"]))
    served["last"] = served["first"] + gaps.map(np.sum)
    found = latency_metrics(served, np.concatenate([*gaps]), limits)
    found["request_goodput"] *= found["duration"] / row["duration"]
    return {**found, **own}


def _ns(seconds: Any) -> IntArray:
    found: IntArray = np.rint(np.asarray(seconds, float) * NS_PER_S).astype(np.int64)
    return found
