"""Whether runs that are set side by side cost their ops in ways that compare."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from scenarios.run.prepare_job import job_of
from scenarios.run.scenario import Case
from sim.base.errors import SimError
from sim.job.job import Job

if TYPE_CHECKING:
    from devices.cost.cost_warnings import Costing


_OF_COSTS: Final = frozenset(("preset", "kind", "ideal", "cost", "peak", "efficiency", "memory_efficiency"))
"""Keys of a device, another value of which may cost ops in another way."""


def warn_of_unlike_costs(runs: Iterable[tuple[Case, Job | None]]) -> None:
    """Warn if ops of a kind are fitted or measured on one preset and plain rooflines on another.

    Parameters
    ----------
    runs : iterable of (Case, Job or None)
        What was run; without its job, that is made here where it is needed.

    Warns
    -----
    UnreliableCostWarning
        One line that names which is which.
    """
    every = list(runs)
    with suppress(SimError):
        presets = {device.details.preset for case, _ in every for device in case.work.machine.devices}
        if len(presets - {""}) < 2:
            return
        from devices.cost.cost_warnings import unlike_costs
        from devices.cost.unreliable import UnreliableCostWarning

        found = (each for case, job in every for each in _costings(case, job or _quiet(case)))
        if (told := unlike_costs(found)) is not None:
            warnings.warn(UnreliableCostWarning(told), stacklevel=2)


def _costings(case: Case, job: Job) -> Iterator[Costing]:
    """Yield how the devices of a run time what they have to, equal ones together."""
    from devices.cost.cost_warnings import costing_of

    timed = case.scenario.content.workload.timed(case.scenario.document)
    busy, devices = {*job.device_of.tolist()}, job.machine.devices
    preset = [i for i, device in enumerate(devices) if i in busy and device.details.preset]
    alike = grouped(preset, lambda i: (devices[i].details.preset, devices[i].kind, devices[i].cost))
    for indices in alike:
        device = devices[indices[0]]
        if timed is not None:
            costing = costing_of(timed, device)
        else:
            costing = costing_of(job.graph, device, np.isin(job.device_of, indices) & ~job.meets)
        if costing is not None:
            yield costing


def grouped(numbers: Iterable[int], key: Callable[[int], object]) -> list[list[int]]:
    """Return numbers with equal keys, which need no hash, together, in the order of the first of each."""
    groups: list[tuple[object, list[int]]] = []
    for number in numbers:
        mine = key(number)
        same = next((group for known, group in groups if known == mine), None)
        if same is None:
            groups.append((mine, [number]))
        else:
            same.append(number)
    return [group for _, group in groups]


def _quiet(case: Case) -> Job:
    """Return the job of a case that runs elsewhere, too: what is wrong with it is said there."""
    with warnings.catch_warnings(action="ignore"):
        return job_of(case)


def may_change_costs(key: str) -> bool:
    """Whether another value of a key may cost ops in another way."""
    path = key.split(".")
    if path[:2] == ["machine", "devices"]:
        return len(path) <= 3 or not _OF_COSTS.isdisjoint(path)
    return path in (["machine"], ["machine", "preset"])
