"""Whether runs that are set side by side cost their ops in ways that compare."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from scenarios.run.load import Scenarios
from scenarios.run.prepare_job import job_of
from scenarios.run.scenario import Case
from sim.base.errors import SimError
from sim.job.job import Job
from sim.machine.device import Device

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
    busy = {*job.device_of.tolist()}
    alike: list[tuple[Device, list[int]]] = []
    for i, device in enumerate(job.machine.devices):
        if i in busy and device.details.preset:
            same = (
                indices
                for other, indices in alike
                if (other.details.preset, other.kind, other.cost)
                == (device.details.preset, device.kind, device.cost)
            )
            if (found := next(same, None)) is None:
                alike.append((device, found := []))
            found.append(i)
    for device, indices in alike:
        if timed is not None:
            costing = costing_of(timed, device)
        else:
            costing = costing_of(job.graph, device, np.isin(job.device_of, indices) & ~job.meets)
        if costing is not None:
            yield costing


def _quiet(case: Case) -> Job:
    """Return the job of a case that runs elsewhere, too: what is wrong with it is said there."""
    with warnings.catch_warnings(action="ignore"):
        return job_of(case)


def cases_at(
    scenarios: Scenarios, points: Iterable[Sequence[str]], policy: str | None = None
) -> list[tuple[Case, None]]:
    """Return one case for each way in which points of a search describe their devices; none if all do alike.

    Parameters
    ----------
    scenarios : Scenarios
    points : iterable of sequences of str
        Of each point what varies, as ``KEY=VALUE``.
    policy : str or None
        Under which they are made.
    """
    ways: dict[tuple[str, ...], Sequence[str]] = {}
    for point in points:
        ways.setdefault(tuple(filter(_is_of_costs, point)), point)
    found = []
    for settings in ways.values() if len(ways) > 1 else ():
        with suppress(SimError):  # the point itself says it
            found.append((scenarios.at(settings).case(policy), None))
    return found


def _is_of_costs(setting: str) -> bool:
    """Whether ``KEY=VALUE`` may change how ops are costed."""
    path = setting.partition("=")[0].split(".")
    if path[:2] == ["machine", "devices"]:
        return len(path) <= 3 or not _OF_COSTS.isdisjoint(path)
    return path in (["machine"], ["machine", "preset"])
