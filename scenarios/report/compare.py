"""The same work under several policies: who is fastest, and why the others are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from scenarios.report.pipeline_compare import is_pipelines, pipeline_rows
from scenarios.run.execute import Result
from scenarios.run.result_sections import model_notes, outcome_sections
from scenarios.run.run_notes import no_gap_notes, stream_notes, unused_notes
from scenarios.variants.variant import Row, VariantRun
from sim.base.units import format_duration
from sim.diff.differences import differences
from sim.diff.propagated_delays import why_first_moved
from sim.diff.schedule import schedule_of
from sim.explain.derived import DerivedColumns
from sim.explain.makespan_breakdown import breakdown, breakdown_text, change, change_text
from sim.explain.time_use import OnPath, difference_ns
from sim.export.tables import percent, size, titled
from sim.notebook import Section, card_of

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
        """The results, the fastest first; equal ones in the order in which they were asked for.

        Of serving engines those come first that serve most requests within their limits.
        """
        if not self.serves:
            return sorted(self.results, key=lambda result: result.trace.makespan_ns)
        from scenarios.serving.serving_report import serving_rank

        return sorted(self.results, key=lambda result: serving_rank(result.summary["serving"]))

    @property
    def fastest(self) -> Result:
        """The first of `ranked`."""
        return self.ranked[0]

    @cached_property
    def serves(self) -> bool:
        """Whether all are serving engines, whose makespan says when the last request came."""
        return all("serving" in result.summary for result in self.results)

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
        """Who is nearer to the fastest than the costs of ops allow to say (`sim.explain.time_use`)."""
        told = [(result.summary["makespan_interval"] or {"by_kind": {}})["by_kind"] for result in self.ranked]
        sure = [{kind: OnPath(one["path_ns"], one["spread"]) for kind, one in of.items()} for of in told]
        best = self.fastest.trace.makespan_ns
        return [
            result.policy
            for result, own in zip(self.ranked[1:], sure[1:], strict=True)
            if not self.serves and 0 < result.trace.makespan_ns - best < difference_ns(own, sure[0])
        ]

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        """A table for people: a row for each run, the fastest first, those that could not go on last."""
        failed = [{"policy": each.label, "makespan_ns": each.what} for each in self.failures]
        if self.serves:
            from scenarios.serving.serving_report import serving_rows

            return serving_rows({result.policy: result.summary for result in self.ranked}, failed)
        fastest, bound = self.fastest.trace.makespan_ns, self.lower_bound_ns
        rows: list[Row] = []
        for result in self.ranked:
            devices, makespan = result.summary["devices"], result.trace.makespan_ns
            computes = {name: use["time_ns"]["compute"] for name, use in devices.items()}
            busiest = max(computes, key=lambda name: computes[name])
            share = computes[busiest] / makespan if makespan else 0.0
            rows.append(
                {
                    "policy": result.policy,
                    "makespan_ns": makespan,
                    "vs fastest": f"{makespan / fastest:.3f}x" if fastest else "",
                    "above bound": makespan / bound - 1 if bound and not self.loops_counted_once else None,
                    "most compute": f"{busiest} {percent(share)}",
                    "highest peak memory": _highest_peak(result),
                }
            )
        return titled([*rows, *failed], rows[0])

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
        return card_of(self.title, self.sections)

    @property
    def title(self) -> str:
        """The scenario, and whether its runs use different numbers of devices."""
        unequal = f": the runs use different numbers of devices ({self.unequal})" if self.unequal else ""
        return self.fastest.scenario + unequal

    @cached_property
    def sections(self) -> list[Section]:
        """What there is to tell: one table for all runs, the fastest first, and a line each on why."""
        ranked, loops = self.ranked, self.loops_counted_once
        width = max(len(policy) for policy, _ in self.reasons)
        lines = [f"{policy:{width}}  {why}" for policy, why in self.reasons]
        if self.lower_bound_ns and not self.serves:
            once = " (chains through loops counted once)" * loops
            lines.append(f"Lower bound of all runs: {format_duration(self.lower_bound_ns)}{once}.")
        if self.too_close:
            close = ", ".join(self.too_close)
            lines.append(f"Nearer to {self.fastest.policy} than the costs of ops are sure: {close}")
        notes = [
            *no_gap_notes(result.summary["no_gap"] for result in ranked if not (loops or self.serves)),
            *unused_notes({result.policy: result.summary["unused_devices"] for result in ranked}),
            *stream_notes({result.policy: result.trace for result in ranked}),
            *model_notes(result.summary for result in ranked),
        ]
        return [
            Section([], [self.rows]),
            *([Section([], [pipeline_rows(ranked)])] if is_pipelines(ranked) else []),
            Section(lines, [], notes),
            *outcome_sections([outcome for result in ranked for outcome in result.outcomes]),
        ]

    def why(self, result: Result) -> str:
        """Return one line: why it is as fast as it is, or why it is slower than the fastest."""
        if self.serves:
            from scenarios.serving.serving_report import time_of_requests

            first = None if result is self.fastest else self.fastest.summary["serving"]
            return time_of_requests(result.summary["serving"], first)
        facts = self._facts[self.ranked.index(result)]
        if result is self.fastest:
            return breakdown_text(facts, self.lower_bound_ns)
        return change_text(facts, self._facts[0]) + self._held_back(result)

    def _held_back(self, result: Result) -> str:
        """Say what a policy runs first, if that is why the first op that moved starts later than it could."""
        runs = [schedule_of(each.trace, "", policy=each.policy) for each in (result, self.fastest)]
        why = why_first_moved(differences(*runs), names := (result.policy, self.fastest.policy))
        if why is None or (why.later, why.reason) != ("a", "policy"):
            return ""
        return f"; {why.chain[0].removeprefix(f'in {names[0]} ')}"

    @cached_property
    def _facts(self) -> list[DerivedColumns]:
        return [DerivedColumns(result.trace, result.policy) for result in self.ranked]

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
                    **breakdown(facts).to_json(),
                    "slower_by_ns": change(facts, self._facts[0]).parts,
                    "why": self.why(result),
                }
                for result, used, facts in zip(self.ranked, self.devices_used, self._facts, strict=True)
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
        limit = result.summary["train"]["capacity_bytes"]
    return (
        f"{device} {size(peaks[device])}" + (f" of {size(limit)}" if limit else "")
        if peaks[device]
        else size(0)
    )
