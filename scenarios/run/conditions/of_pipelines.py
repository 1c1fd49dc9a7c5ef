"""Keys of a pipeline: its stages, layers and cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from scenarios.file.document import Loc
from scenarios.run.conditions.rule import Rule

if TYPE_CHECKING:
    from scenarios.run.scenario import Case

__all__ = ["OF_PIPELINES"]


def _pipeline(case: Case) -> Any:
    """Return the ``pipeline:`` of the workload."""
    return case.scenario.content.workload.pipeline  # type: ignore[attr-defined]


def _phase(*letters: str) -> Callable[[Case, Loc], bool]:
    """Return a condition that holds where the schedule has such an action, alone or beside another."""
    return lambda case, loc: any(set(letters) <= set(phase.split("+")) for phase in case.work.graph.phases)


def _stage_key(name: str) -> tuple[str, ...]:
    return tuple(f"workload.pipeline.{at}{name}" for at in ("", "stages.*.", "layers.*."))


OF_PIPELINES: Final[tuple[Rule, ...]] = (
    Rule(
        _stage_key("recompute") + _stage_key("stage_input") + ("workload.pipeline.backward_dependency",),
        _phase("R"),
        "the schedule recomputes nothing; say checkpoint: always (or except_last), or leave it out",
    ),
    Rule(
        _stage_key("kept_for_weight_grad"),
        _phase("W"),
        "the schedule computes both gradients in one backward, B; choose one that splits it, or leave it out",
    ),
    Rule(
        _stage_key("overlapped"),
        lambda case, loc: any("+" in phase for phase in case.work.graph.phases),
        "no slot of the schedule has a forward and a backward; choose one with such slots, as dualpipe, or "
        "leave it out",
    ),
    Rule(
        ("workload.pipeline.backward_ratio",),
        lambda case, loc: _pipeline(case).graph is not None,
        "it is for layers that are cut from a graph; give graph, or leave it out",
    ),
    Rule(
        ("workload.pipeline.partition",),
        lambda case, loc: any(
            getattr(_pipeline(case), key) is not None for key in ("layers", "profile", "graph")
        ),
        "there are no layers to cut into stages; give layers, profile or graph, or leave it out",
    ),
    Rule(
        ("workload.pipeline.bandwidth", "workload.pipeline.levels"),
        lambda case, loc: str(_pipeline(case).partition).startswith("pipedream"),
        "only PipeDream's planners read it; say partition: pipedream, or leave it out",
    ),
    Rule(
        ("workload.pipeline.portals",),
        lambda case, loc: bool(_pipeline(case).skips),
        "there are no skip connections; give skips, or leave it out",
    ),
    Rule(
        ("workload.pipeline.devices",),
        lambda case, loc: case.scenario.content.machine is not None,
        "there is no machine; give one, or leave it out",
    ),
    Rule(
        ("workload.pipeline.model.tensor_bandwidth",),
        lambda case, loc: _pipeline(case).model.tensor_parallel > 1,
        "a layer is on one device; say tensor_parallel: 2 or more, or leave it out",
    ),
)
