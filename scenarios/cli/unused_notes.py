"""What commands say beside results: unused devices, bounds that say nothing, memory that is nearly full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

__all__ = ["little_room", "no_gap_notes", "unused_notes"]

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


def little_room(peak: int, limit: int) -> str:
    """Return what to know where a peak of tensors leaves less than a twentieth of memory free; else nothing.

    PyTorch's caching allocator needed a device 3 % larger than the tensors of a ResNet-50, TensorFlow's 9 %
    (docs/memory.md); a CUDA context and NCCL's buffers come on top.

    Examples
    --------
    >>> little_room(70, 100), little_room(98, 100)[:24]
    ('', ', too little to rely on:')
    """
    if limit - peak >= limit / 20:
        return ""
    return (
        ", too little to rely on: an allocator leaves gaps between tensors (PyTorch's needed 3% more, "
        "docs/memory.md), CUDA and NCCL take some"
    )


def _named(devices: Sequence[str]) -> str:
    more = len(devices) - _MOST
    return ", ".join(devices[:_MOST]) + (f" and {more} more" if more > 0 else "")
