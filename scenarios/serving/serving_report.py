"""The report of a serving run: rates, latencies as in vLLM's benchmark, and why requests were late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from policies.serving.batcher import Batcher, Request
from scenarios.serving.engine import EnginePass
from scenarios.serving.lateness import PARTS, LatenessObserver
from scenarios.serving.metrics import METRICS, STATS, serving_metrics
from sim.base.units import format_duration
from sim.export.tables import percent, titled
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


@dataclass(frozen=True, eq=False)
class Served:
    """A finished serving run: its requests, its passes, and its replicas.

    Attributes
    ----------
    requests : sequence of Request
    passes : sequence of EnginePass
    batchers : sequence of Batcher
        One per replica; those that only compute prompts come last.
    replicas : int
        Number of replicas, without those that only compute prompts.
    tensor, blocks : int
        GPUs, and blocks of keys and values, per replica.
    late : LatenessObserver
        Observer of the passes.
    fixed_bytes, block_bytes : int or None
        Bytes of weights and activations, and of a block, in the memory of each GPU; None: unknown.
    """

    requests: Sequence[Request]
    passes: Sequence[EnginePass]
    batchers: Sequence[Batcher]
    replicas: int
    tensor: int
    blocks: int
    late: LatenessObserver
    fixed_bytes: int | None = None
    block_bytes: int = 0

    @property
    def names(self) -> list[str]:
        """Names of the engines."""
        more = len(self.batchers) - self.replicas
        return [*(f"replica{i}" for i in range(self.replicas)), *(f"prefill{i}" for i in range(more))]


def device_report(served: Served) -> dict[str, dict[str, int | None]]:
    """Return the memory of each GPU of the engines: the peak in use, and what the blocks reserve."""
    if served.fixed_bytes is None:
        return {name: dict.fromkeys(("peak_memory_bytes", "peak_reserved_bytes")) for name in served.names}
    most = [_engine(served, i)["peak_blocks"] for i in range(len(served.batchers))]
    return {
        name: {
            "peak_memory_bytes": served.fixed_bytes + blocks * served.block_bytes,
            "peak_reserved_bytes": served.fixed_bytes + served.blocks * served.block_bytes,
        }
        for name, blocks in zip(served.names, most, strict=True)
    }


def serving_report(served: Served, limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the value of the key ``serving`` in the summary of a run.

    Parameters
    ----------
    served : Served
    limits : mapping of str to int
        ``ttft``, ``tpot``, ``e2el`` → ns, if given.
    """
    late = served.late.of
    slowest = sorted(served.requests, key=lambda each: each.arrival_ns - each.token_ns[0])[:_SLOWEST]
    n = len(served.requests)
    return {
        **serving_metrics(served.requests, limits),
        "requests": n,
        "replicas": served.replicas,
        "gpus": served.tensor * len(served.batchers),
        "kv_blocks": served.blocks,
        "limits_ns": dict(limits),
        "mean_parts_ns": {
            "first": {part: sum(of.first_ns.get(part, 0) for of in late.values()) / n for part in PARTS},
            "all": {part: sum(of.all_ns.get(part, 0) for of in late.values()) / n for part in PARTS},
        },
        "slowest": [
            {
                "id": each.id,
                "arrival_ns": each.arrival_ns,
                "ttft_ns": each.token_ns[0] - each.arrival_ns,
                "e2el_ns": each.token_ns[-1] - each.arrival_ns,
                "first_ns": late[each.id].first_ns,
                "all_ns": late[each.id].all_ns,
                "behind_ns": dict(sorted(served.late.behind(each).items(), key=lambda of: -of[1])[:3]),
            }
            for each in slowest
        ],
        "engines": [_engine(served, i) for i in range(len(served.batchers))],
    }


def _engine(served: Served, i: int) -> dict[str, Any]:
    passes = [each for each in served.passes if each.replica == i]
    waiting = [(each.scheduled_ns, each.waiting) for each in passes]
    changes = [new for old, new in pairwise([(0, 0), *waiting]) if old[1] != new[1]]
    return {
        "name": served.names[i],
        "steps": sum(each.tokens > 0 for each in passes),
        "busy_ns": sum(each.end_ns - each.start_ns for each in passes),
        "tokens": sum(each.tokens for each in passes),
        "preemptions": sum(each.preempted for each in passes),
        "peak_blocks": max((each.used for each in passes), default=0),
        "peak_waiting": max((each.waiting for each in passes), default=0),
        "waiting": changes,
    }


def serving_section(told: Mapping[str, Any]) -> Section:
    """Return the report of a serving run as lines and tables."""
    replicas, gpus = told["replicas"], told["gpus"]
    line = f"{told['requests']:,} requests on {replicas:,} replica{'s'[: replicas != 1]}"
    line += f", {gpus:,} GPU{'s'[: gpus != 1]} in all: {told['request_throughput']:,.4g} requests/s, "
    line += f"{told['output_throughput']:,.5g} tokens/s"
    lines = [line]
    if told["limits_ns"]:
        limits = ", ".join(f"{name} <= {format_duration(ns)}" for name, ns in told["limits_ns"].items())
        share = told["request_goodput"] / told["request_throughput"] if told["request_throughput"] else 0.0
        lines.append(f"goodput {told['request_goodput']:,.4g} requests/s ({percent(share)} keep {limits})")
    lines.append(
        f"{percent(told['hit_share'])} of prompt tokens were in the cache; "
        f"{told['preemptions']:,} preemption{'s'[: told['preemptions'] != 1]}"
    )
    if told["queue_grows"]:
        lines.insert(0, told["queue_grows"])
    metrics = [
        {"latency": name, **{stat: _ms(told[f"{stat}_{name}_ms"]) for stat in STATS}} for name in METRICS
    ]
    measured = told.get("measured", {})
    beside = [
        {
            "measured (and off by)": name,
            **{stat: _beside(told, measured, f"{stat}_{name}_ms") for stat in STATS},
        }
        for name in METRICS
        if f"mean_{name}_ms" in measured
    ]
    parts = [part for part in PARTS if told["mean_parts_ns"]["all"][part] >= 0.5]
    where = [
        {
            "time of a request": f"to its {when} token",
            **{part: format_duration(round(of[part])) for part in parts},
        }
        for when, of in (("first", told["mean_parts_ns"]["first"]), ("last", told["mean_parts_ns"]["all"]))
    ]
    slowest = [
        {
            "slowest": each["id"],
            "arrives": format_duration(each["arrival_ns"]),
            "ttft": format_duration(each["ttft_ns"]),
            "spent": _largest(each["first_ns"]),
            "behind": _largest(each["behind_ns"]),
        }
        for each in told["slowest"]
    ]
    engines = [
        {
            "engine": each["name"],
            "steps": f"{each['steps']:,}",
            "busy_ns": each["busy_ns"],
            "tokens": f"{each['tokens']:,}",
            "preempted": f"{each['preemptions']:,}",
            "most blocks": f"{each['peak_blocks']:,} of {told['kv_blocks']:,}",
            "most waiting": f"{each['peak_waiting']:,}",
        }
        for each in told["engines"]
    ]
    shown = [metrics, beside, where, slowest, titled(engines, list(engines[0]))]
    return Section(lines, [table for table in shown if table])


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
    return titled([*rows, *failed], ["policy", "makespan_ns", *columns])


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
        return f"a request takes {_ms(told['mean_e2el_ms'])} on average: {_largest(parts)}"
    more = {part: round(ns - first["mean_parts_ns"]["all"][part]) for part, ns in parts.items()}
    largest = sorted((part for part in PARTS if more[part]), key=lambda part: -abs(more[part]))[:3]
    if not largest:
        return "requests take as long"
    off = _ms(abs(told["mean_e2el_ms"] - first["mean_e2el_ms"]))
    word = "longer" if told["mean_e2el_ms"] > first["mean_e2el_ms"] else "less"
    changes = (
        f"{'-' if more[part] < 0 else '+'}{format_duration(abs(more[part]))} {part}" for part in largest
    )
    return f"a request takes {off} {word}: {', '.join(changes)}"


def _ms(value: float) -> str:
    return format_duration(round(value * 1e6))


def _beside(told: Mapping[str, Any], measured: Mapping[str, Any], key: str) -> str:
    """Return a measured number, and how far the simulated one is from it."""
    if key not in measured:
        return ""
    off = f" ({told[key] / measured[key] - 1:+.1%})" if measured[key] else ""
    return _ms(measured[key]) + off


def _largest(parts: Mapping[str, int]) -> str:
    """Return the three largest parts of a time as text."""
    ranked = sorted(parts.items(), key=lambda of: -of[1])[:3]
    return ", ".join(f"{name} {format_duration(round(ns))}" for name, ns in ranked)
