"""What every command says beside its results: devices that were not used, bounds that say nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

__all__ = ["no_gap_notes", "unused_notes"]

_MOST: Final = 20
"""How many devices are named."""


def unused_notes(unused: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each set of devices that some runs left unused.

    Parameters
    ----------
    unused : mapping of str to sequence of str
        Run -> its unused devices; where not all runs have the same ones, a line names its runs.

    Examples
    --------
    >>> unused_notes({"heft": ["gpu1"], "single": ["gpu1"]})
    ['unused: gpu1']
    >>> unused_notes({"heft": [], "single": ["gpu1", "gpu2"]})
    ['unused under single: gpu1, gpu2']
    """
    runs_of: dict[tuple[str, ...], list[str]] = {}
    for run, devices in unused.items():
        runs_of.setdefault(tuple(devices), []).append(run)
    return [
        ("unused" if len(runs_of) == 1 else f"unused under {', '.join(runs)}") + f": {_named(devices)}"
        for devices, runs in runs_of.items()
        if devices
    ]


def no_gap_notes(reasons: Iterable[str | None]) -> list[str]:
    """Return a line for each reason why runs are not measured against a lower bound.

    Examples
    --------
    >>> no_gap_notes([None, "an op failed", "an op failed"])
    ['no lower bound: an op failed']
    """
    return [f"no lower bound: {reason}" for reason in dict.fromkeys(filter(None, reasons))]


def _named(devices: Sequence[str]) -> str:
    more = len(devices) - _MOST
    return ", ".join(devices[:_MOST]) + (f" and {more} more" if more > 0 else "")
