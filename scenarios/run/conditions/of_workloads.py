"""Keys of a workload: data loading, and what-ifs of recordings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from scenarios.file.document import Loc
from scenarios.run.conditions.rule import Rule
from sim.words.units import parse_duration

if TYPE_CHECKING:
    from scenarios.build.loading.input_pipeline import InputPipeline
    from scenarios.run.scenario import Case

__all__ = ["OF_WORKLOADS"]


def _of_pipeline(names: tuple[str, ...], holds: Callable[[InputPipeline, Case], bool], why: str) -> Rule:
    """Return the rule of keys of a builder, which holds for all but those with an input pipeline."""

    def holds_for(case: Case, loc: Loc) -> bool:
        from scenarios.build.loading.input_pipeline import InputPipeline

        of = getattr(case.scenario.content.workload, "build_", None)
        return not isinstance(of, InputPipeline) or holds(of, case)

    return Rule(tuple(f"workload.build.{name}" for name in names), holds_for, why)


def _has_recorded_gap(case: Case, loc: Loc) -> bool:
    """Whether the gap of some GPU is the recording's."""
    known = case.work.graph.device_facts
    return any(
        parse_duration(facts["gap"]) == device.gap_ns
        for device in case.work.machine.devices
        if "gap" in (facts := known.get(device.name, known.get(device.kind, {})))
    )


OF_WORKLOADS: Final[tuple[Rule, ...]] = (
    _of_pipeline(
        ("size_jitter",),
        lambda of, case: bool(of.size),
        "nothing is read from storage; give the items a size, or leave it out",
    ),
    _of_pipeline(
        ("storage",),
        lambda of, case: bool(of.size) and case.scenario.content.machine is None,
        "items have no size, or the scenario's machine has links that say how fast the storage is; give a "
        "size and no machine, or leave it out",
    ),
    _of_pipeline(
        ("seed",),
        lambda of, case: bool(of.jitter or of.size_jitter),
        "nothing is drawn; give jitter or size_jitter, or leave it out",
    ),
    _of_pipeline(
        ("all_reduce",),
        lambda of, case: of.replicas > 1,
        "one replica has nobody to meet; give replicas: 2 or more, or leave it out",
    ),
    _of_pipeline(
        ("prefetch_factor", "in_order"),
        lambda of, case: bool(of.loaders().get("loader")),
        "the script loads by itself; give num_workers: 1 or more, or leave it out",
    ),
    Rule(
        tuple(f"workload.what_if.{at}{key}" for at in ("", "*.") for key in ("gap", "cuda_graph.gap")),
        _has_recorded_gap,
        "the machine's GPUs have gaps of their own, and not the recording's; leave out one of the two",
    ),
)
