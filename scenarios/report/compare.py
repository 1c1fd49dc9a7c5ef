"""Comparison of the same work under several policies: who is fastest, and why the others are slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from scenarios.report.pipeline_compare import is_pipelines, pipeline_rows
from scenarios.run import result_sections as shown
from scenarios.run.execute import Result
from scenarios.variants.variant import Row, VariantRun
from sim.base.arrays import group_pairs
from sim.base.units import NS_PER_S, format_duration
from sim.diff.differences import differences
from sim.diff.propagated_delays import why_first_moved
from sim.diff.schedule import schedule_of
from sim.explain.derived import DerivedColumns
from sim.explain.makespan_breakdown import breakdown, breakdown_text, change, change_text
from sim.explain.time_use import OnPath, difference_ns
from sim.export.tables import number_text, peak_text, percent, size, text_table
from sim.notebook import Section, card_of

COMPARISON_SCHEMA: Final = "sim.comparison/1"
"""Value of ``"schema"`` in the output of ``sim compare --json``."""


@dataclass(frozen=True)
class Comparison:
    """The results of one scenario under several policies.

    Attributes
    ----------
    results : sequence of Result
        At least one, in the order of the request.
    failures : sequence of VariantRun
        Runs that could not start or continue, or did other work, in the same order.
    """

    results: Sequence[Result]
    failures: Sequence[VariantRun] = ()

    @cached_property
    def ranked(self) -> list[Result]:
        """The results, fastest first; equal ones in the order of the request.

        Serving engines are ranked by the number of requests that they serve within their limits.
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
        """Whether all runs are serving engines, whose makespan depends on the last arrival."""
        return all("serving" in result.summary for result in self.results)

    @cached_property
    def lower_bound_ns(self) -> int:
        """A lower bound of all runs: the least of their own, which depend on placement and streams."""
        return min(int(result.summary["lower_bound_ns"]) for result in self.results)

    @cached_property
    def devices_used(self) -> list[int]:
        """Number of devices on which ops ran, including folded ones, for each of `ranked`."""
        used = [
            (result.trace.job.machine.stands_for, np.unique(result.trace.device)) for result in self.ranked
        ]
        return [int(times[devices].sum()) for times, devices in used]

    @cached_property
    def samples(self) -> list[int]:
        """Samples of a step (else of the run), all replicas together, for each of `ranked`; 0: unknown."""
        runs = [(result.summary, result.summary.get("train", {})) for result in self.ranked]
        steps = [(run.get("samples_per_s", 0), step.get("step_ns", run["makespan_ns"])) for run, step in runs]
        return [round(rate * ns / NS_PER_S) for rate, ns in steps]

    @property
    def unequal(self) -> str:
        """Numbers of devices and samples, and who used them, largest first; empty if all used the same."""
        differences = []
        for resource, counts in (("devices", self.devices_used), ("samples", self.samples)):
            by_count = group_pairs(zip(counts, (result.policy for result in self.ranked), strict=True))
            if len(by_count) > 1 and 0 not in by_count:
                who = (f"{', '.join(by_count[count])} on {count:,}" for count in sorted(by_count)[::-1])
                differences.append(f"different numbers of {resource} ({'; '.join(who)})")
        return " and ".join(differences)

    @property
    def loops_counted_once(self) -> bool:
        """Whether chains through loops count once in a run's lower bound (`sim.explain.bounds.Bounds`)."""
        return any(result.summary["loops_counted_once"] for result in self.results)

    @cached_property
    def too_close(self) -> list[str]:
        """Policies closer to the fastest than the uncertainty of op costs (`sim.explain.time_use`)."""
        costs = []
        for result in self.ranked:
            by_kind = (result.summary["makespan_interval"] or {"by_kind": {}})["by_kind"]
            costs.append({kind: OnPath(part["path_ns"], part["spread"]) for kind, part in by_kind.items()})
        best = self.fastest.trace.makespan_ns
        return [
            result.policy
            for result, cost in zip(self.ranked[1:], costs[1:], strict=True)
            if not self.serves and 0 < result.trace.makespan_ns - best < difference_ns(cost, costs[0])
        ]

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        """A table for people: one row per run, fastest first, failed ones last."""
        failed = [{"policy": failure.label, "makespan_ns": failure.outcome} for failure in self.failures]
        if self.serves:
            from scenarios.serving.serving_report import serving_rows

            return serving_rows({result.policy: result.summary for result in self.ranked}, failed)
        fastest, bound = self.fastest.trace.makespan_ns, self.lower_bound_ns
        uneven, rate = 0 not in self.samples and len({*self.samples}) > 1, "samples_per_s"
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
                    "most compute": f"{busiest} {percent(share)}" if share else "",
                    "highest peak memory": _highest_peak(result),
                    **({"samples/s": number_text(rate, result.summary[rate])} if uneven else {}),
                }
            )
        return text_table([*rows, *failed], rows[0])

    @cached_property
    def reasons(self) -> list[tuple[str, str]]:
        """For each of these rows, the policy and a line on why it is as fast as it is, or failed."""
        failed = ((failure.label, failure.line.rstrip(":")) for failure in self.failures)
        return [*((result.policy, self.why(result)) for result in self.ranked), *failed]

    def __repr__(self) -> str:
        """Return the number of runs, and the fastest policy."""
        return f"<Comparison of {len(self.rows)} runs: fastest {self.fastest.policy!r}>"

    def _repr_html_(self) -> str:
        """Return what ``sim compare`` prints, for a notebook."""
        return card_of(self.title, self.sections)

    @property
    def title(self) -> str:
        """Name of the scenario, and whether its runs use different numbers of devices or samples."""
        return self.fastest.scenario + (f": the runs use {self.unequal}" if self.unequal else "")

    @cached_property
    def sections(self) -> list[Section]:
        """The comparison as sections: a table of all runs, fastest first, and a line on each."""
        ranked, loops = self.ranked, self.loops_counted_once
        width = max(len(policy) for policy, _ in self.reasons)
        lines = [f"{policy:{width}}  {reason}" for policy, reason in self.reasons]
        if self.lower_bound_ns and not self.serves:
            once = " (chains through loops counted once)" if loops else ""
            lines.append(f"Lower bound of all runs: {format_duration(self.lower_bound_ns)}{once}.")
        if self.too_close:
            close = ", ".join(self.too_close)
            lines.append(f"Nearer to {self.fastest.policy} than the costs of ops are sure: {close}")
        notes = [
            *shown.no_gap_notes(result.summary["no_gap"] for result in ranked if not (loops or self.serves)),
            *shown.unused_notes({result.policy: result.summary["unused_devices"] for result in ranked}),
            *shown.stream_notes(
                {result.policy: result.trace for result in ranked},
                {result.policy for result in ranked if result.case.decisions.own_streams},
            ),
            *shown.model_notes(result.summary for result in ranked),
        ]
        expected = any(result.case.expectations for result in ranked)
        outcomes = [outcome for result in ranked for outcome in result.outcomes]
        return [
            Section([], [self.rows]),
            *([Section([], [pipeline_rows(ranked)])] if is_pipelines(ranked) else []),
            Section(lines, [], notes),
            *shown.outcome_sections(expected, outcomes),
        ]

    def why(self, result: Result) -> str:
        """Return a line on why a run is as fast as it is, or why it is slower than the fastest."""
        if self.serves:
            from scenarios.serving.serving_report import time_of_requests

            first = None if result is self.fastest else self.fastest.summary["serving"]
            return time_of_requests(result.summary["serving"], first)
        facts = self._columns[self.ranked.index(result)]
        if result is self.fastest:
            return breakdown_text(facts, self.lower_bound_ns)
        return change_text(facts, self._columns[0]) + self._delay_text(result)

    def _delay_text(self, result: Result) -> str:
        """Return what a policy runs first, if that delays the first op that moved."""
        runs = [schedule_of(run.trace, "", policy=run.policy) for run in (result, self.fastest)]
        cause = why_first_moved(differences(*runs), names := (result.policy, self.fastest.policy))
        if cause is None or (cause.later, cause.reason) != ("a", "policy"):
            return ""
        return f"; {cause.chain[0].removeprefix(f'in {names[0]} ')}"

    @cached_property
    def _columns(self) -> list[DerivedColumns]:
        return [DerivedColumns(result.trace, result.policy) for result in self.ranked]

    def to_json(self) -> dict[str, Any]:
        """Return what ``sim compare --json`` prints: the results, fastest first, each with its `why`."""
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
                    "slower_by_ns": change(facts, self._columns[0]).parts,
                    "why": self.why(result),
                }
                for result, used, facts in zip(self.ranked, self.devices_used, self._columns, strict=True)
            ],
            "failed": [
                {"policy": failure.label, "what": failure.outcome, "message": str(failure.error)}
                for failure in self.failures
            ],
        }


def _highest_peak(result: Result) -> str:
    """Return the device with the highest memory peak, the peak, and the capacity if known.

    A peak of 0 has no device.
    """
    peaks = {name: use["peak_memory_bytes"] for name, use in result.summary["devices"].items()}
    fullest = max(peaks, key=lambda name: peaks[name])
    if not peaks[fullest]:
        return peak_text(result.summary, peaks[fullest])
    limit = next(device.memory_bytes for device in result.trace.job.machine.devices if device.name == fullest)
    if "train" in result.summary:
        limit = result.summary["train"]["capacity_bytes"]
    return f"{fullest} {size(peaks[fullest])}" + (f" of {size(limit)}" if limit else "")
