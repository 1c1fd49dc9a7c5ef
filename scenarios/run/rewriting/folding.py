"""Whether ranks that do the same are simulated once: ``fold: auto | true | false``.

::

    compile: [training, {name: ddp, ranks: 16384}]     ──►  one rank is made, and stands for 16,384
    noise: {devices: {gpu17: 1.2}}                     ──►  two: gpu17, and gpu0 for the other 16,383
    noise: {sigma: 0.05}                               ──►  not folded: each rank has its own luck

``auto`` folds more than 256 ranks, and warns if it cannot; ``true`` folds, or says why that would not be
exact. How ranks are sorted, `policies.compile.parallel.fold.folding` says.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator
from typing import Any, Final

from policies.compile.parallel.fold.folding import fold, why_not
from policies.compile.parallel.grid.ranked import Ranked
from policies.issue.critical_path import CriticalPath
from policies.issue.in_order import InOrder
from policies.issue.out_of_order import OutOfOrder
from policies.issue.ready_queue import ReadyQueue
from policies.linearize.critical_path_first import CriticalPathFirst
from policies.linearize.depth_first import DepthFirst
from policies.linearize.memory_aware import MemoryAware
from policies.linearize.priority import Priority
from policies.linearize.reverse_depth_first import ReverseDepthFirst
from policies.linearize.topological import Topological
from policies.streams.per_branch import PerBranch
from policies.streams.per_kind import PerKind
from policies.streams.recorded import Recorded
from policies.streams.round_robin import RoundRobin
from policies.streams.single import Single
from scenarios.run.decisions import Step
from scenarios.run.scenario import Case
from sim.graph.graph import Graph
from sim.job.pins import PinnedPlacement
from sim.machine.machine import Machine

__all__ = ["NotFoldedWarning", "make_ranks"]

_FEW: Final = 256
"""So many ranks are simulated one by one, unless something else is asked for."""

_BY_DEVICE: Final = (
    *(InOrder, OutOfOrder, ReadyQueue, CriticalPath),
    *(CriticalPathFirst, DepthFirst, MemoryAware, Priority, ReverseDepthFirst, Topological),
    *(PerBranch, PerKind, Recorded, RoundRobin, Single),
    PinnedPlacement,
    type(None),
)
"""What decides for the ops of a device as if there were no others."""


class NotFoldedWarning(UserWarning):
    """Ranks could not be folded, and all are simulated."""


def make_ranks(case: Case, ranked: Ranked, step: Step) -> tuple[Graph, Machine]:
    """Return what ranks run, and on which machine, after the step that is the last to change them.

    Raises
    ------
    ScenarioError
        The scenario wants them folded, and something sets them apart.
    """
    content, machine = case.scenario.content, case.work.machine
    n = ranked.grid.ranks
    if ranked.grid.sizes and (content.fold is True or (content.fold == "auto" and n > _FEW)):
        devices = ranked.on_devices()
        reasons = [*_reasons(case, step), *why_not(ranked, devices, machine)]
        if not reasons:
            return fold(ranked, devices, machine, [*_facts(case, devices)])
        why = f"the ranks cannot be folded: {'; '.join(reasons)}"
        if content.fold is True:
            raise case.scenario.document.error(("fold",), why)
        warnings.warn(NotFoldedWarning(f"{why}; all {n:,} are simulated"), stacklevel=2)
    return ranked.graph(), machine


def _reasons(case: Case, step: Step) -> Iterator[str]:
    """Yield what of the scenario treats ranks one by one."""
    content, decisions = case.scenario.content, case.decisions
    noise = content.noise
    if noise is not None and noise.sigma:
        yield "noise.sigma draws the durations of each rank"
    if noise is not None and noise.straggler_probability:
        yield "noise.straggler_probability draws the stragglers of each rank"
    if content.faults is not None:
        yield "faults meet one rank and not another"
    if decisions.knowledge in ("mean", "estimate"):
        yield f"knowledge: {decisions.knowledge} is of the ops of all ranks together"
    if decisions.compile[-1] is not step:
        yield f"{decisions.compile[-1].name} rewrites what all ranks run, after {step.name}"
    for what in ("policy", "placement", "linearize", "streams"):
        decides = getattr(decisions, what)
        if type(decides) not in _BY_DEVICE:
            yield f"the {what} {type(decides).__name__} may decide for one rank by what others have"


def _facts(case: Case, ranks: tuple[str, ...]) -> Iterator[dict[str, Hashable]]:
    """Yield what is said of each rank."""
    content, described = case.scenario.content, case.scenario.described_devices
    noisy = {} if content.noise is None else content.noise.devices
    memory = {} if content.memory is None else content.memory.devices
    told: dict[int, dict[str, Hashable]] = {}  # devices of a count have one description
    threads: dict[str, int] = {}
    for host in case.work.machine.hosts:
        threads.update(dict.fromkeys(host.serves, host.threads))
    for name in ranks:
        values: dict[str, Any] = described[name]
        if id(values) not in told:
            told[id(values)] = {key: repr(value) for key, value in sorted(values.items())}
        yield {
            **told[id(values)],
            "noise.devices": noisy.get(name, 1.0),
            "memory.devices": repr(memory.get(name)),
            "threads of its host": threads.get(name, 1),
        }
