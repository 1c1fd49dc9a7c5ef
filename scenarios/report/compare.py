"""The same work under several policies: who is fastest, and why the others are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from scenarios.report.pipeline_compare import is_pipelines, pipeline_rows
from scenarios.run.execute import Result
from scenarios.variants.variant import VariantRun
from sim.base.units import format_duration
from sim.explain.bounds import bounds
from sim.explain.derived import DerivedColumns
from sim.explain.makespan_breakdown import Chain
from sim.explain.uncertainty import OnPath, difference_ns
from sim.export.tables import percent, size
from sim.notebook import card
from sim.trace import Trace

# ----------------------------------------------------------------------------------------------------------
# Where the makespan went, and why two runs of the same work differ, in one line.
#
# Begin at the task that ended last and step back to the input that came last, again and again: each step
# splits the time since then into executing, travelling and waiting, so the parts of a run add up to its
# makespan (`sim.explain.makespan_breakdown`), and the parts of a difference to the difference:
#
#  a executing 40 │ b executing 10                      50 us  out of order: nothing waits
#  d held back by the policy 50 │ d executing 30        80 us  in order
#                                                       30 slower: +50 held back by the policy, -20 executing
#
# `sim.explain.path.executed_path` steps back along lanes and issuers too, to whoever was in the way; here one
# asks not who, but what for.

_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "executing": ("executing", "its chain of ops takes longer to execute"),
    "communication": ("exposed communication", "more of its communication is exposed"),
    "transfer": ("moving data", "its chain moves more data"),
    "link": ("waiting for a link", "its transfers wait for links"),
    "issuer": ("waiting for the host or a worker", "ops wait for the host or a worker"),
    "policy": ("held back by the policy", "the policy holds ready ops back"),
    "stream": ("queued on a stream", "ops queue on their streams"),
    "event": ("waiting for an event", "ops wait for events"),
    "launch": ("launching", "launch latency is exposed"),
    "resources": ("waiting for resources of the device", "ops wait for resources of the device"),
    "memory": ("waiting for memory", "ops wait for memory"),
    "communicator": ("queued on a communicator", "collectives queue on their communicators"),
    "late rank": ("waiting for a late rank", "collectives wait for late ranks"),
    "unexplained": ("idle, and nothing recorded says why", "more of a recording is unexplained"),
    "recovery": ("starting anew after a failure", "parts of the machine fail"),
    "device": ("waiting for the device", "ops wait for the device"),
}
"""Part of a makespan -> what it is called, and why a run is slower when the largest increase is in it."""

PARTS: Final[Mapping[str, str]] = {part: name for part, (name, _) in _PARTS.items() if part != "device"}
"""Parts of a makespan, and what they are called; of a difference, stream and resources together are one."""


def makespan_parts(trace: Trace) -> dict[str, int]:
    """Return the parts of `PARTS` that occur, in ns; they add up to the makespan.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.program_order import InOrder
    >>> b = GraphBuilder("b holds c up")
    >>> for name, inputs, ns in (("a", [], 40), ("b", ["a"], 10), ("c", [], 30)):
    ...     _ = b.op(name, inputs=inputs, duration_ns=ns)
    >>> machine = Machine((Device("cpu0", "cpu", workers=2),))
    >>> makespan_parts(simulate(b.build(), machine, InOrder()))
    {'executing': 30, 'policy': 40}
    """
    return _in_order(Chain(DerivedColumns(trace)).parts())


def _in_order(parts: Mapping[str, int]) -> dict[str, int]:
    return {part: parts[part] for part in PARTS if parts.get(part)}


def difference(trace: Trace, best: Trace) -> str:
    """Say in one line why `trace` took longer than `best`.

    The largest increase is the main cause; the other parts follow. A task that is issued waits for the device
    on a stream or for its resources: where both changed, their sum is one part. What a task waits longer for
    others because these, the same ops, last longer is executing.
    """
    f, of_best = DerivedColumns(trace), DerivedColumns(best)
    chain = Chain(f)
    mine, other = chain.parts(), Chain(of_best).parts()
    more = {part: mine.get(part, 0) - other.get(part, 0) for part in PARTS}
    longer = chain.longer(of_best)
    for part, ns in longer.items():
        more[part] -= ns
    more["executing"] += sum(longer.values())
    total = trace.makespan_ns - best.makespan_ns
    if not any(more.values()):
        return "the same"
    if not total:
        return "equally fast"
    if more["stream"] and more["resources"]:
        more["device"] = more.pop("stream") + more.pop("resources")
    if total < 0:
        return f"{format_duration(-total)} faster: {_terms(more, total)}"
    cause = max(more, key=lambda part: more[part])
    slower = f"{format_duration(total)} slower"
    because = _because(f, of_best, cause, 2 * sum(longer.values()) >= more[cause])
    ns = more.pop(cause)
    if not any(more.values()):
        return f"{slower} because {because}"
    return f"{slower}, mainly because {because} ({_signed(ns)}); {_terms(more, total - ns)}"


def _terms(more: Mapping[str, int], total: int) -> str:
    """Name the three largest parts; sum up the rest, and what is below a twentieth of the largest."""
    largest = sorted((part for part in more if more[part]), key=lambda part: -abs(more[part]))
    shown = [part for part in largest[:3] if 20 * abs(more[part]) >= abs(more[largest[0]])]
    terms = [f"{_signed(more[part])} {_PARTS[part][0]}" for part in shown]
    rest = total - sum(more[part] for part in shown)
    return ", ".join(terms + [f"{_signed(rest)} other"] * (rest != 0))


def _because(f: DerivedColumns, best: DerivedColumns, part: str, ops_last_longer: bool) -> str:
    """Say what makes a part of the makespan longer; for the host's part, whether it waits for kernels."""
    if part == "issuer" and not _launches_ahead(f) and _launches_ahead(best):
        return "the host waits for each kernel"
    if part == "executing" and ops_last_longer:
        return "its ops take longer to execute"
    return _PARTS[part][1]


def _launches_ahead(f: DerivedColumns) -> bool:
    """Whether any launched task was taken before its inputs were there."""
    return bool((~f.by_worker & (f.taken < f.data[: f.n])).any())


def why_fast(trace: Trace, bound_ns: int | None = None) -> str:
    """Say in one line how near a run comes to the lower bound, and what its makespan consists of.

    Parameters
    ----------
    trace : Trace
    bound_ns : int, optional
        A bound that other runs have too; by default the run's own.
    """
    limits, parts = bounds(trace), makespan_parts(trace)
    if not parts:
        return "takes no time"
    largest = sorted(parts, key=lambda part: -parts[part])[:3]
    terms = [f"{format_duration(parts[part])} {PARTS[part]}" for part in largest]
    rest = trace.makespan_ns - sum(parts[part] for part in largest)
    made_of = ", ".join([*terms, *([f"{format_duration(rest)} other"] if rest else [])])
    bound = limits.lower_bound_ns if bound_ns is None else bound_ns
    if limits.loops_counted_once or not bound:
        return made_of
    binding = f" ({limits.binding})" if bound == limits.lower_bound_ns else ""
    if trace.makespan_ns == bound:
        return f"at the lower bound{binding}: {made_of}"
    above = 100 * (trace.makespan_ns / bound - 1)
    return f"{above:.1f}% above the lower bound{binding}: {made_of}"


def _signed(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{format_duration(abs(ns))}"


# ----------------------------------------------------------------------------------------------------------

COMPARISON_SCHEMA: Final = "sim.comparison/1"
"""What ``"schema"`` says in the output of ``sim compare --json``."""


@dataclass(frozen=True)
class Comparison:
    """Results of one scenario.

    Attributes
    ----------
    results : sequence of Result
        In the order in which they were asked for; at least one.
    failures : sequence of VariantRun
        What could not begin or go on, or is not the same work, likewise.
    """

    results: Sequence[Result]
    failures: Sequence[VariantRun] = ()

    @cached_property
    def ranked(self) -> list[Result]:
        """The results, the fastest first; equal ones in the order in which they were asked for."""
        return sorted(self.results, key=lambda result: result.trace.makespan_ns)

    @property
    def fastest(self) -> Result:
        """The one with the least makespan."""
        return self.ranked[0]

    @cached_property
    def lower_bound_ns(self) -> int:
        """A bound of every run: the least of their own, each of which holds for its placement and streams."""
        return min(int(result.summary["lower_bound_ns"]) for result in self.results)

    @cached_property
    def devices_used(self) -> list[int]:
        """On how many devices ops ran, those that were folded included, for each of `ranked`."""
        used = [
            (result.trace.job.machine.stands_for, np.unique(result.trace.device)) for result in self.ranked
        ]
        return [int(times[devices].sum()) for times, devices in used]

    @property
    def unequal(self) -> str:
        """Who ran on how many devices, most first; empty where all ran on equally many."""
        by_count: dict[int, list[str]] = {}
        for result, count in zip(self.ranked, self.devices_used, strict=True):
            by_count.setdefault(count, []).append(result.policy)
        if len(by_count) < 2:
            return ""
        return "; ".join(f"{', '.join(by_count[count])} on {count}" for count in sorted(by_count)[::-1])

    @property
    def loops_counted_once(self) -> bool:
        """Whether chains through loops count once in the bound of a run (`sim.explain.bounds.Bounds`)."""
        return any(result.summary["loops_counted_once"] for result in self.results)

    @cached_property
    def too_close(self) -> list[str]:
        """Who is nearer to the fastest than the costs of ops allow to say (`sim.explain.uncertainty`)."""
        told = [(result.summary["makespan_interval"] or {"by_kind": {}})["by_kind"] for result in self.ranked]
        sure = [{kind: OnPath(one["path_ns"], one["spread"]) for kind, one in of.items()} for of in told]
        best = self.fastest.trace.makespan_ns
        return [
            result.policy
            for result, own in zip(self.ranked[1:], sure[1:], strict=True)
            if 0 < result.trace.makespan_ns - best < difference_ns(own, sure[0])
        ]

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        """A table for people: a row for each run, the fastest first, those that could not go on last."""
        fastest, bound = self.fastest.trace.makespan_ns, self.lower_bound_ns
        rows = []
        for result in self.ranked:
            devices, makespan = result.summary["devices"], result.trace.makespan_ns
            computes = {name: use["time_ns"]["compute"] for name, use in devices.items()}
            busiest = max(computes, key=lambda name: computes[name])
            rows.append(
                {
                    "policy": result.policy,
                    "makespan": format_duration(makespan),
                    "vs fastest": f"{makespan / fastest:.3f}x" if fastest else "",
                    "above bound": percent(makespan / bound - 1)
                    if bound and not self.loops_counted_once
                    else "",
                    "most compute": f"{busiest} {percent(computes[busiest] / makespan if makespan else 0.0)}",
                    "highest peak memory": _highest_peak(result),
                }
            )
        nothing = dict.fromkeys(rows[0], "")
        return [
            *rows,
            *({**nothing, "policy": each.label, "makespan": each.what} for each in self.failures),
        ]

    @cached_property
    def reasons(self) -> list[tuple[str, str]]:
        """Of each of these rows the policy, and in a line why it is as fast as it is, or could not go on."""
        failed = ((each.label, each.line.rstrip(":")) for each in self.failures)
        return [*((result.policy, self.why(result)) for result in self.ranked), *failed]

    def __repr__(self) -> str:
        """Return who was compared, and who was fastest."""
        return f"<Comparison of {len(self.rows)} runs: fastest {self.fastest.policy!r}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what ``sim compare`` prints."""
        more = pipeline_rows(self.ranked) if is_pipelines(self.ranked) else []
        rows = [{**row, "why": why} for row, (_, why) in zip(self.rows, self.reasons, strict=True)]
        unequal = [f"the runs use different numbers of devices ({self.unequal})"] if self.unequal else []
        return card(self.fastest.scenario, unequal, rows, more)

    def why(self, result: Result) -> str:
        """Return one line: why it is as fast as it is, or why it is slower than the fastest."""
        if result is self.fastest:
            return why_fast(result.trace, self.lower_bound_ns)
        return difference(result.trace, self.fastest.trace)

    def to_json(self) -> dict[str, Any]:
        """Return what ``sim compare --json`` prints: the results, the fastest first, each with its `why`."""
        return {
            "schema": COMPARISON_SCHEMA,
            "scenario": self.fastest.scenario,
            "fastest": self.fastest.policy,
            "lower_bound_ns": self.lower_bound_ns,
            "loops_counted_once": self.loops_counted_once,
            "too_close_to_tell": self.too_close,
            "results": [
                {
                    **result.to_json(),
                    "devices_used": used,
                    "parts_ns": makespan_parts(result.trace),
                    "why": self.why(result),
                }
                for result, used in zip(self.ranked, self.devices_used, strict=True)
            ],
            "failed": [
                {"policy": failure.label, "what": failure.what, "message": str(failure.error)}
                for failure in self.failures
            ],
        }


def _highest_peak(result: Result) -> str:
    """Return the device whose memory has the highest peak, how high it is, and of how much, where known.

    A peak of 0 has no name.
    """
    peaks = {name: use["peak_memory_bytes"] for name, use in result.summary["devices"].items()}
    device = max(peaks, key=lambda name: peaks[name])
    limit = next(each.memory_bytes for each in result.trace.job.machine.devices if each.name == device)
    if "train" in result.summary:
        limit = result.summary["train"]["memory_limit_bytes"]
    return (
        f"{device} {size(peaks[device])}" + (f" of {size(limit)}" if limit else "")
        if peaks[device]
        else size(0)
    )
