"""Latencies and rates of served requests, defined and named as in vLLM's benchmark.

::

    TTFT   first token - arrival                TPOT   (last - first) / (tokens - 1); one token: none
    E2EL   last token - arrival                 ITL    between two tokens, of all requests pooled
    duration    from the first arrival to the last token

Percentiles are numpy's, linear; ``std`` divides by n. Source: vLLM 0.19.0, ``vllm/benchmarks/serve.py``
(``calculate_metrics``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from policies.serving.batcher import Request
from sim.base.arrays import FloatArray, IntArray
from sim.base.units import NS_PER_MS, NS_PER_S

METRICS: Final = ("ttft", "tpot", "itl", "e2el")
STATS: Final = ("mean", "median", "p99", "std")
_FEW, _BACKLOG, _GROWTH, _TIMES = 20, 0.02, 1.2, 64
"""The queue grows if at least this many requests, and this part of all, wait for their first token in the
last third of the arrival period, and if in the second and last third this many times as many wait as in the
third before. Each is a mean over this many moments. Of 100 drawn runs of 500 requests, that holds for none at
0.9 of the capacity, for 67 at 1.1 times, and for all at 1.5 times."""


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
    tokens = [np.frombuffer(request.token_ns, np.int64) for request in requests]
    pooled = np.concatenate([at[1:] - at[:-1] for at in tokens])
    prompts = sum(request.prompt for request in requests)
    arrival = np.array([request.arrival_ns for request in requests], np.int64)
    first = np.array([request.token_ns[0] for request in requests], np.int64)
    return {
        **latency_metrics(
            arrival,
            first,
            np.array([request.token_ns[-1] for request in requests], np.int64),
            np.array([len(at) for at in tokens]),
            prompts,
            pooled[pooled > 0],  # tokens of the same step have no gap
            limits,
        ),
        "hit_share": sum(request.hits or 0 for request in requests) / prompts if prompts else 0.0,
        "preemptions": sum(request.preemptions for request in requests),
        "queue_grows": _growing(arrival, first),
    }


def latency_metrics(
    arrival: IntArray,
    first: IntArray,
    last: IntArray,
    tokens: IntArray,
    prompts: int,
    gaps: IntArray | None,
    limits: Mapping[str, int],
) -> dict[str, Any]:
    """Return the rates and latencies of requests.

    Parameters
    ----------
    arrival, first, last : array of int
        Times of arrival, first token and last token of each, in ns.
    tokens : array of int
        Number of tokens in the answer to each.
    prompts : int
        Tokens of all prompts.
    gaps : array of int or None
        Times between steps that gave a request tokens, of all requests, in ns; None: unknown.
    limits : mapping of str to int
    """
    seconds = float(last.max() - arrival.min()) / NS_PER_S or 1.0
    several = tokens > 1
    tpot = np.where(several, (last - first) / np.maximum(tokens - 1, 1), 0.0)
    of = {"ttft": first - arrival, "tpot": tpot, "e2el": last - arrival}
    good = np.ones(len(arrival), bool)
    for name, limit in limits.items():
        good &= of[name] <= limit
    answers = int(tokens.sum())
    latencies = {"ttft": of["ttft"], "tpot": tpot[several], "itl": gaps, "e2el": of["e2el"]}
    found: dict[str, Any] = {
        "duration": seconds,
        "completed": len(arrival),
        "total_input_tokens": prompts,
        "total_output_tokens": answers,
        "request_throughput": len(arrival) / seconds,
        "output_throughput": answers / seconds,
        "total_token_throughput": (prompts + answers) / seconds,
        "request_goodput": int(good.sum()) / seconds,
    }
    for name, values in latencies.items():
        if values is not None:
            found |= _stats(name, values / NS_PER_MS)
    return found


def _stats(name: str, ms: FloatArray) -> dict[str, float]:
    ms = ms if len(ms) else np.zeros(1)
    return {
        f"mean_{name}_ms": float(ms.mean()),
        f"median_{name}_ms": float(np.median(ms)),
        f"std_{name}_ms": float(ms.std()),
        f"p99_{name}_ms": float(np.percentile(ms, 99)),
    }


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
