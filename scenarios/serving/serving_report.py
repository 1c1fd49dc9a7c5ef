"""The report of a serving run: rates, latencies as in vLLM's benchmark, and why requests were late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from policies.serving.batcher import QUEUE, Request
from scenarios.serving.engine import EngineEvent, Serve
from scenarios.serving.metrics import METRICS, STATS, serving_metrics
from sim.base.arrays import IntArray, group_pairs
from sim.base.units import NS_PER_MS, format_count, format_duration, round_half_up
from sim.export.tables import largest, percent, text_table
from sim.notebook import Section

# ----------------------------------------------------------------------------------------------------------
# Why a request was late: its time divided into parts that add up to the nanosecond.
#
#     arrival                first step                                                     last token
#       │ queue: next step │ blocks, budget, seats │ prefill │ decode │ shared │ preempted │ recompute │
#
#     next step    until the engine looked at it, because a step was under way
#     blocks       the first waiting request did not fit into the cache; budget, seats: or into the step
#     prefill      steps with a part of its prompt; lost: the part of them that a prefix would have saved if
#                  its blocks had not been taken
#     decode       steps that sampled one token; shared: together with prompts of others
#     budget       between two of its steps it was running, but others took the whole step (`turn`)
#     preempted    it had lost its blocks; recompute: steps that compute lost tokens again
#     pull         keys and values of its prompt were being transferred

PARTS: Final = (
    "next step",
    *QUEUE[1:],
    "pull",
    "prefill",
    "lost",
    "decode",
    "shared",
    "turn",
    "preempted",
    "recompute",
)
_CODE: Final = {part: code for code, part in enumerate(PARTS)}
_STEPS: Final = ("prefill", "recompute")


class _Replica:
    """The passes of a replica in columns, with one at the beginning that did nothing."""

    def __init__(self, passes: pd.DataFrame) -> None:
        self.scheduled = np.append(0, passes["scheduled_ns"])
        self.why, self.head = np.append(0, passes["why"]), np.append(-1, passes["head"])
        steps = passes[passes["tokens"] > 0]
        self.numbers, self.ends = steps.index.to_numpy(), steps["end_ns"].to_numpy()

    def latest(self, begin: int, end: int) -> tuple[slice, IntArray]:
        """Return the passes that were the latest one between two moments, and for how long each was."""
        first = int(self.scheduled.searchsorted(begin, "right")) - 1
        window = slice(first, int(self.scheduled.searchsorted(end)))
        return window, np.diff(self.scheduled[window].clip(begin), append=end)


class Lateness:
    """Divides the time of requests into parts.

    Attributes
    ----------
    first, all : DataFrame
        Time of each request to its first and to its last token in ns: a row for each id, a column for each
        of `PARTS`.
    """

    def __init__(self, serve: Serve, requests: Sequence[Request]) -> None:
        self._replicas = {i: _Replica(passes) for i, passes in serve.passes.groupby("replica")}
        self._columns = {name: column.to_numpy() for name, column in serve.passes.items()}
        events = group_pairs((event[0].id, event) for event in serve.events)
        divided = [self._divide(request, events.get(request.id, [])) for request in requests]
        ids = [request.id for request in requests]
        self._ids = np.array([*ids, None], object)  # None: nobody at the head
        self.first, self.all = (pd.DataFrame([*rows], ids, PARTS) for rows in zip(*divided, strict=True))

    def _divide(self, request: Request, events: Sequence[EngineEvent]) -> list[IntArray]:
        """Return the time of a request to its first and to its last token, by part."""
        replica, columns = self._replicas[request.replica], self._columns
        chunks = [number for _, number, event in events if event in _STEPS]
        sampled = replica.numbers[replica.ends.searchsorted(request.token_ns)]
        steps = np.sort(np.append(sampled, chunks)).astype(int)
        steps = steps[np.diff(steps, prepend=-1) > 0]
        start, end = columns["start_ns"][steps], columns["end_ns"][steps]
        before = np.append(request.arrival_ns, end[:-1])
        waits, waited = np.full(len(steps), _CODE["turn"]), start - before
        spent = np.where(columns["chunks"][steps] > 0, _CODE["shared"], _CODE["decode"])
        more = np.zeros(len(PARTS), np.int64)  # of parts that come before the first token
        queued = {0: start[0]}  # step → until when it was in a queue before
        for asker, number, event in events:
            i = int(steps.searchsorted(number))
            if i == len(steps):  # preempted when its last token was under way
                continue
            (spent if event in _STEPS else waits)[i] = _CODE[event]
            if event == "pull":
                queued[i] = columns["scheduled_ns"][number]
            elif event == "prefill" and asker.lost:
                missing = max(1, asker.prompt - (asker.hits or 0))
                lost = round_half_up((end[i] - start[i]) * min(1.0, asker.lost / missing))
                more[[_CODE["lost"], _CODE["prefill"]]] += lost, -lost
        for i, until_ns in queued.items():
            queue = self._replicas[columns["replica"][steps[i]]]
            window, ns = queue.latest(before[i], until_ns)
            more += np.bincount(queue.why[window], ns, len(PARTS)).astype(np.int64)
            waited[i] -= until_ns - before[i]
        codes, ns = np.stack([waits, spent], axis=1), np.stack([waited, end - start], axis=1)
        first = int(end.searchsorted(request.token_ns[0])) + 1
        return [
            more + np.bincount(codes[:n].ravel(), ns[:n].ravel(), len(PARTS)).astype(np.int64)
            for n in (first, len(steps))
        ]

    def behind(self, request: Request) -> dict[str, int]:
        """Return the requests longest at the head of the queue while a request waited, and how long in ns."""
        assert request.scheduled_ns is not None
        replica = self._replicas[request.replica]
        window, ns = replica.latest(request.arrival_ns, request.scheduled_ns)
        heads = pd.Series(ns, self._ids[replica.head[window]]).groupby(level=0, sort=False).sum()
        heads_ns: dict[Any, int] = heads[(heads > 0) & (heads.index != request.id)].nlargest(3).to_dict()
        return heads_ns


# ----------------------------------------------------------------------------------------------------------

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
    slowest = sorted(requests, key=lambda request: request.arrival_ns - request.token_ns[0])[:_SLOWEST]
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
                "id": request.id,
                "arrival_ns": request.arrival_ns,
                "ttft_ns": request.token_ns[0] - request.arrival_ns,
                "e2el_ns": request.token_ns[-1] - request.arrival_ns,
                "first_ns": late.first.loc[request.id][lambda ns: ns > 0].to_dict(),
                "all_ns": late.all.loc[request.id][lambda ns: ns > 0].to_dict(),
                "behind_ns": late.behind(request),
            }
            for request in slowest
        ],
        "engines": [_engine(serve, replica) for replica in range(len(serve.names))],
    }


def _engine(serve: Serve, number: int) -> dict[str, Any]:
    passes = serve.passes[serve.passes["replica"] == number]
    changed = passes["waiting"] != passes["waiting"].shift(fill_value=0)
    return {
        "name": serve.names[number],
        "steps": int((passes["tokens"] > 0).sum()),
        "busy_ns": int((passes["end_ns"] - passes["start_ns"]).sum()),
        "tokens": int(passes["tokens"].sum()),
        "preemptions": int(passes["preempted"].sum()),
        "peak_blocks": int(max(passes["used"], default=0)),
        "peak_waiting": int(max(passes["waiting"], default=0)),
        "waiting": passes.loc[changed, ["scheduled_ns", "waiting"]].to_numpy().tolist(),
    }


def serving_section(report: Mapping[str, Any]) -> Section:
    """Return the report of a serving run as lines and tables."""
    rate = report["request_throughput"]
    lines = [line for line in (report["queue_grows"] or report["short_run"],) if line]
    lines.append(
        f"{format_count(report['requests'], 'request')} on {format_count(report['replicas'], 'replica')}, "
        f"{format_count(report['gpus'], 'GPU')} in all: {rate:,.4g} requests/s, "
        f"{report['output_throughput']:,.5g} tokens/s"
    )
    if report["limits_ns"]:
        limits = ", ".join(f"{name} <= {format_duration(ns)}" for name, ns in report["limits_ns"].items())
        share = report["request_goodput"] / rate
        lines.append(f"goodput {report['request_goodput']:,.4g} requests/s ({percent(share)} keep {limits})")
    pulled = " or pulled" * (report["mean_parts_ns"]["all"]["pull"] > 0)
    lines.append(
        f"{percent(report['hit_share'])} of prompt tokens were in the cache{pulled}; "
        f"{format_count(report['preemptions'], 'preemption')}"
    )
    if surplus := report["surplus_tokens"]:
        why = "after a preemption this batcher counts a request's tokens from 0 again, as Sarathi-Serve does"
        lines.append(f"{surplus:,} of the tokens are more than was asked for: {why}")
    metrics = [
        {"latency": name, **{stat: _ms(report[f"{stat}_{name}_ms"]) for stat in STATS}} for name in METRICS
    ]
    beside = [
        {"measured (and off by)": name, **{stat: _compare(report, f"{stat}_{name}_ms") for stat in STATS}}
        for name in METRICS
        if f"mean_{name}_ms" in report.get("measured", {})
    ]
    parts = [part for part in PARTS if report["mean_parts_ns"]["all"][part] >= 0.5]
    times = [
        {"time of a request": f"to its {token} token"}
        | {part: format_duration(round(ns[part])) for part in parts}
        for token, ns in zip(("first", "last"), report["mean_parts_ns"].values(), strict=True)
    ]
    slowest = [
        {**row, "spent": largest(row["first_ns"], most=3), "behind": largest(row["behind_ns"], most=3)}
        for row in report["slowest"]
    ]
    slowest_columns = ["slowest: id", "arrives: arrival_ns", "ttft_ns", "spent"]
    slowest_columns += ["behind"] * any(row["behind"] for row in slowest)  # requests at the head of a queue
    total = f"{report['kv_blocks']:,}"
    engines = [{**row, "most blocks": f"{row['peak_blocks']:,} of {total}"} for row in report["engines"]]
    engine_columns = ["engine: name", "steps", "busy_ns", "tokens", "preempted: preemptions"]
    engine_columns += ["most blocks", "most waiting: peak_waiting"]
    listed = text_table(slowest, slowest_columns), text_table(engines, engine_columns)
    return Section(lines, [table for table in (metrics, beside, times, *listed) if table])


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


def serving_rank(report: Mapping[str, Any]) -> tuple[float, float]:
    """Return a sort key, smaller for better service: goodput as shown, if there are limits, then latency.

    Examples
    --------
    >>> serving_rank({"limits_ns": {"ttft": 9}, "request_goodput": 7.34567, "p99_e2el_ms": 20.0})
    (-7.346, 20.0)
    """
    goodput = float(f"{report['request_goodput']:.4g}") if report["limits_ns"] else 0.0
    return -goodput, report["p99_e2el_ms"]


def time_of_requests(report: Mapping[str, Any], first: Mapping[str, Any] | None = None) -> str:
    """Return a line on the parts of a request's time, or how they differ from those of another run."""
    parts = report["mean_parts_ns"]["all"]
    if first is None:
        return f"a request takes {_ms(report['mean_e2el_ms'])} on average: {largest(parts, most=3)}"
    more = {part: round(ns - first["mean_parts_ns"]["all"][part]) for part, ns in parts.items()}
    changed = sorted((part for part in PARTS if more[part]), key=lambda part: -abs(more[part]))[:3]
    if not changed:
        return "requests take as long"
    off = report["mean_e2el_ms"] - first["mean_e2el_ms"]
    changes = (f"{'+-'[more[part] < 0]}{format_duration(abs(more[part]))} {part}" for part in changed)
    return f"a request takes {_ms(abs(off))} {'longer' if off > 0 else 'less'}: {', '.join(changes)}"


def _ms(value: float) -> str:
    return format_duration(round(value * NS_PER_MS))


def _compare(report: Mapping[str, Any], key: str) -> str:
    """Return a measured number, if known, and how far the simulated one is from it."""
    measured = report["measured"].get(key)
    off = f" ({report[key] / measured - 1:+.1%})" if measured else ""
    return "" if measured is None else _ms(measured) + off
