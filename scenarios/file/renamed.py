"""Keys that scenarios had once, in one table: what to write instead.

A scenario that was written for an older version gets its answer at the key::

    s.yaml:4:27: machine.devices.npu0.dma_engines: is called copy_engines now
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scenarios.file.document import Document
from scenarios.file.faults import in_order
from scenarios.file.yaml_read import Place

__all__ = ["RENAMED", "refuse_renamed"]

RENAMED: Final[Mapping[str, str]] = {
    "policy.allocator": "stands under memory now: memory: {allocator: ...}",
    "compare.*.allocator": "stands under memory now: set: {memory.allocator: ...}",
    "machine.devices.*.allocator": "stands under memory now: memory: {devices: {NAME: ...}}, or "
    "memory: {allocator: ...} for all devices",
    "memory.limits": "is an option of the allocator now: memory: {allocator: {name: pool, limits: {...}}}",
    "memory.allocator.lifetime": "stands beside the allocator now: memory: {lifetime: ...}",
    "memory.allocator.when_full": "stands beside the allocator now: memory: {when_full: ...}",
    "machine.devices.*.dma_engines": "is called copy_engines now",
    "machine.devices.*.sm_fraction": "is said with use_sms now: use_sms: 50%",
    "machine.devices.*.clock": "is gone, for nothing used it; put it into description or sources",
    "machine.devices.*.l2": "is gone, for nothing used it; put it into description or sources",
    "machine.links.*.source": "is called sources now, as in devices and machines",
}
"""Dotted path of each key that is gone (``*``: any key or item) -> the end of the message."""


def refuse_renamed(document: Document) -> None:
    """Refuse keys of an older version.

    Raises
    ------
    ScenarioError
        A line for each, with its place and what to write instead.
    """
    lines: dict[str, Place] = {}
    for pattern, message in RENAMED.items():
        for loc in document.matching(pattern):
            lines[str(document.error(loc, message, key=True))] = document.place(loc, key=True)
    if lines:
        raise in_order(lines)
