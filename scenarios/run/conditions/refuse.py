"""Keys that have an effect only under a condition, in one table; where it does not hold, the key is refused.

A key that is read and then ignored is a result that the reader of a scenario takes for another one::

    machine: {devices: {gpu0: {kind: gpu, copy_engines: 1}}}       no links: nothing is ever copied
                                          └──► machine.devices.gpu0.copy_engines: has no effect: ...

Where a key stands decides in which runs it has to count. One in the file counts in the scenario's own run or
in an entry of ``compare``; one in the ``set:`` of an entry counts in that entry; one given with ``--set``
counts in that run. Once ``--set`` has changed a scenario, the keys of its file are not checked, and what
``--vary`` tries never is: a sweep may pass points at which a key means nothing. Neither are presets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Final

from scenarios.file.faults import in_order
from scenarios.file.yaml_read import Place
from scenarios.run.conditions.of_decisions import OF_DECISIONS
from scenarios.run.conditions.of_devices import OF_DEVICES
from scenarios.run.conditions.of_machines import OF_MACHINES
from scenarios.run.conditions.of_memory import OF_MEMORY
from scenarios.run.conditions.of_pipelines import OF_PIPELINES
from scenarios.run.conditions.of_workloads import OF_WORKLOADS
from scenarios.run.conditions.rule import Rule
from sim.words.errors import ScenarioError

if TYPE_CHECKING:
    from scenarios.run.scenario import Case

__all__ = ["RULES", "refuse_without_effect"]

RULES: Final[tuple[Rule, ...]] = (
    *OF_DEVICES,
    *OF_MACHINES,
    *OF_WORKLOADS,
    *OF_PIPELINES,
    *OF_MEMORY,
    *OF_DECISIONS,
)
"""Every key that has an effect only under a condition that a scenario decides."""


def refuse_without_effect(case: Case) -> None:
    """Refuse the keys of a scenario that have no effect.

    Parameters
    ----------
    case : Case
        What is about to run.

    Raises
    ------
    ScenarioError
        A line for each, with its place, why it has no effect, and what to do.
    """
    document, base = case.scenario.document, case.base.document
    lines: dict[str, Place] = {}
    for rule in RULES:
        for loc in (loc for pattern in rule.keys for loc in document.matching(pattern)):
            if loc[0] == "compare" and loc[:2] != case.decisions.loc:
                continue  # another entry's
            place = document.place(loc)
            in_file = not place.source.startswith("--")
            if (document.changed and in_file) or place.source.startswith("--vary"):
                continue
            everybodys = in_file and loc[0] != "compare" and place == base.place(loc)
            asked = chain([case], _others(case) if everybodys else ())
            if not any(rule.holds(each, loc) for each in asked):
                lines[str(document.error(loc, f"has no effect: {rule.why}"))] = place
    if lines:
        raise in_order(lines)


def _others(case: Case) -> Iterator[Case]:
    """Yield the runs that the file describes besides; one that is wrong will say so when it is run."""
    base = case.base
    for i in (None, *range(len(base.variants))):
        with suppress(ScenarioError):
            other = base.case() if i is None else base.entry(i)
            if other.decisions.loc != case.decisions.loc:
                yield other
