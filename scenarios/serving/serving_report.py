"""The report of a serving run: rates, latencies as in vLLM's benchmark, and why requests were late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd

from policies.serving.batcher import Request
from scenarios.serving.engine import Serve
from scenarios.serving.lateness import PARTS, Lateness
from scenarios.serving.metrics import METRICS, STATS, serving_metrics
from sim.base.units import NS_PER_MS, format_duration
from sim.export.tables import largest, percent, text_table
from sim.notebook import Section

_SLOWEST: Final = 5
"""Number of requests that are listed: those that waited longest for their first token."""
OF_SERVING: Final = {
    "GPUs": "gpus",
    "requests/s": "request_throughput",
    "tokens/s": "output_throughput",
    "goodput/s": "request_goodput",
    "ttft p99": "p99_ttft_ms",
    "tpot p99": "p99_tpot_ms",
    "e2el p99": "p99_e2el_ms",
    "hits": "hit_share",
    "preempted": "preemptions",
}
"""Column title in a table of serving runs -> key of its number."""


def serving_report(
    serve: Serve, requests: Sequence[Request], limits: Mapping[str, int], tensor: int
) -> dict[str, Any]:
    """Return the value of the key ``serving`` in the summary of a run.

    Parameters
    ----------
    serve : Serve
        Engines that have served the requests.
    requests : sequence of Request
    limits : mapping of str to int
        ``ttft``, ``tpot``, ``e2el`` → ns, if given.
    tensor : int
        GPUs per replica.
    """
    late, n = Lateness(serve, requests), len(requests)
    slowest = sorted(requests, key=lambda each: each.arrival_ns - each.token_ns[0])[:_SLOWEST]
    metrics = serving_metrics(requests, limits)
    return {
        **metrics,
        "short_run": metrics["short_run"] if serve.in_flight is None else None,
        "requests": n,
        "replicas": len(serve.batchers),
        "gpus": tensor * len(serve.engines),
        "kv_blocks": serve.batchers[0].cache.blocks,
        "limits_ns": dict(limits),
        "mean_parts_ns": {"first": (late.first.sum() / n).to_dict(), "all": (late.all.sum() / n).to_dict()},
        "slowest": [
            {
                "id": each.id,
                "arrival_ns": each.arrival_ns,
                "ttft_ns": each.token_ns[0] - each.arrival_ns,
                "e2el_ns": each.token_ns[-1] - each.arrival_ns,
                "first_ns": late.first.loc[each.id][lambda ns: ns > 0].to_dict(),
                "all_ns": late.all.loc[each.id][lambda ns: ns > 0].to_dict(),
                "behind_ns": late.behind(each),
            }
            for each in slowest
        ],
        "engines": [_engine(of, late.passes.query(f"replica == {i}")) for i, of in enumerate(serve.names)],
    }


def _engine(name: str, passes: pd.DataFrame) -> dict[str, Any]:
    changed = passes["waiting"] != passes["waiting"].shift(fill_value=0)
    return {
        "name": name,
        "steps": int((passes["tokens"] > 0).sum()),
        "busy_ns": int((passes["end_ns"] - passes["start_ns"]).sum()),
        "tokens": int(passes["tokens"].sum()),
        "preemptions": int(passes["preempted"].sum()),
        "peak_blocks": int(max(passes["used"], default=0)),
        "peak_waiting": int(max(passes["waiting"], default=0)),
        "waiting": passes.loc[changed, ["scheduled_ns", "waiting"]].to_numpy().tolist(),
    }


def serving_section(told: Mapping[str, Any]) -> Section:
    """Return the report of a serving run as lines and tables."""
    replicas, gpus, rate = told["replicas"], told["gpus"], told["request_throughput"]
    lines = [line for line in (told["queue_grows"] or told["short_run"],) if line]
    lines.append(
        f"{told['requests']:,} requests on {replicas:,} replica{'s'[: replicas != 1]}, "
        f"{gpus:,} GPU{'s'[: gpus != 1]} in all: {rate:,.4g} requests/s, "
        f"{told['output_throughput']:,.5g} tokens/s"
    )
    if told["limits_ns"]:
        limits = ", ".join(f"{name} <= {format_duration(ns)}" for name, ns in told["limits_ns"].items())
        share = told["request_goodput"] / rate
        lines.append(f"goodput {told['request_goodput']:,.4g} requests/s ({percent(share)} keep {limits})")
    pulled = " or pulled" * (told["mean_parts_ns"]["all"]["pull"] > 0)
    lines.append(
        f"{percent(told['hit_share'])} of prompt tokens were in the cache{pulled}; "
        f"{told['preemptions']:,} preemption{'s'[: told['preemptions'] != 1]}"
    )
    metrics = [{"latency": of, **{stat: _ms(told[f"{stat}_{of}_ms"]) for stat in STATS}} for of in METRICS]
    beside = [
        {"measured (and off by)": name, **{stat: _beside(told, f"{stat}_{name}_ms") for stat in STATS}}
        for name in METRICS
        if f"mean_{name}_ms" in told.get("measured", {})
    ]
    parts = [part for part in PARTS if told["mean_parts_ns"]["all"][part] >= 0.5]
    where = [
        {"time of a request": f"to its {token} token", **{of: format_duration(round(ns[of])) for of in parts}}
        for token, ns in zip(("first", "last"), told["mean_parts_ns"].values(), strict=True)
    ]
    slowest = [
        {**of, "spent": largest(of["first_ns"], most=3), "behind": largest(of["behind_ns"], most=3)}
        for of in told["slowest"]
    ]
    of_slowest = ["slowest: id", "arrives: arrival_ns", "ttft_ns", "spent"]
    of_slowest += ["behind"] * any(of["behind"] for of in slowest)  # other requests, at the head of a queue
    blocks = f"of {told['kv_blocks']:,}"
    engines = [{**of, "most blocks": f"{of['peak_blocks']:,} {blocks}"} for of in told["engines"]]
    of_engines = ["engine: name", "steps", "busy_ns", "tokens", "preempted: preemptions", "most blocks"]
    tables = [
        metrics,
        beside,
        where,
        text_table(slowest, of_slowest),
        text_table(engines, [*of_engines, "most waiting: peak_waiting"]),
    ]
    return Section(lines, [table for table in tables if table])


def serving_rows(
    summaries: Mapping[str, Mapping[str, Any]], failed: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, str]]:
    """Return one row of text per run, by the titles of its columns.

    Parameters
    ----------
    summaries : mapping of str to mapping
        Policy -> the summary of its run.
    failed : sequence of mapping
        Rows of the runs without a summary.
    """
    rows = [
        {"policy": policy, "makespan_ns": summary["makespan_ns"], **summary["serving"]}
        for policy, summary in summaries.items()
    ]
    columns = [f"{title}: {key}" for title, key in OF_SERVING.items()]
    return text_table([*rows, *failed], ["policy", "makespan_ns", *columns])


def serving_rank(told: Mapping[str, Any]) -> tuple[float, float]:
    """Return a sort key, smaller for better service: goodput as shown, if there are limits, then latency.

    Examples
    --------
    >>> serving_rank({"limits_ns": {"ttft": 9}, "request_goodput": 7.34567, "p99_e2el_ms": 20.0})
    (-7.346, 20.0)
    """
    goodput = float(f"{told['request_goodput']:.4g}") if told["limits_ns"] else 0.0
    return -goodput, told["p99_e2el_ms"]


def time_of_requests(told: Mapping[str, Any], first: Mapping[str, Any] | None = None) -> str:
    """Return a line on the parts of a request's time, or how they differ from those of another run."""
    parts = told["mean_parts_ns"]["all"]
    if first is None:
        return f"a request takes {_ms(told['mean_e2el_ms'])} on average: {largest(parts, most=3)}"
    more = {part: round(ns - first["mean_parts_ns"]["all"][part]) for part, ns in parts.items()}
    changed = sorted((part for part in PARTS if more[part]), key=lambda part: -abs(more[part]))[:3]
    if not changed:
        return "requests take as long"
    off = told["mean_e2el_ms"] - first["mean_e2el_ms"]
    changes = (f"{'+-'[more[part] < 0]}{format_duration(abs(more[part]))} {part}" for part in changed)
    return f"a request takes {_ms(abs(off))} {'longer' if off > 0 else 'less'}: {', '.join(changes)}"


def _ms(value: float) -> str:
    return format_duration(round(value * NS_PER_MS))


def _beside(told: Mapping[str, Any], key: str) -> str:
    """Return a measured number, if known, and how far the simulated one is from it."""
    measured = told["measured"].get(key)
    off = f" ({told[key] / measured - 1:+.1%})" if measured else ""
    return "" if measured is None else _ms(measured) + off
