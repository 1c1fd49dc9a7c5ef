"""Keys of ``memory:``: allocators, their limits, and what happens when memory is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scenarios.fields.memory_fields import MemoryFields
from scenarios.file.document import Loc
from scenarios.run.conditions.rule import Rule

if TYPE_CHECKING:
    from scenarios.run.scenario import Case

__all__ = ["OF_MEMORY"]


def _memory(case: Case) -> MemoryFields:
    return case.scenario.content.memory or MemoryFields.model_validate({})


def _limit_counts(case: Case, loc: Loc) -> bool:
    """Whether an op of a model may run where the allocator with its limit manages memory."""
    from devices.memory.groups import Groups

    graph, own = case.work.graph, _memory(case).devices
    managed = [
        d
        for d in case.work.machine.devices
        if (d.name == loc[2] if loc[1] == "devices" else d.name not in own)
    ]
    places = {name for device in managed for name in (device.name, device.kind)}
    group_of = Groups([str(loc[-1])])
    return any(
        group_of(name) == loc[-1] and (pin < 0 or graph.pins[pin] in places)
        for name, pin in zip(graph.op_names, graph.pin_code.tolist(), strict=True)
    )


def _may_be_full(case: Case, loc: Loc) -> bool:
    chosen = [_memory(case).allocator, *_memory(case).devices.values()]
    return (
        any(device.memory_bytes is not None for device in case.work.machine.devices)
        or any("virtual_devices" in values for values in case.scenario.described_devices.values())
        or any(choice.options for choice in chosen if choice is not None)  # which may be limits
    )


OF_MEMORY: Final[tuple[Rule, ...]] = (
    Rule(
        ("memory.allocator",),
        lambda case, loc: not set(case.scenario.described_devices) <= set(_memory(case).devices),
        "every device has an allocator of its own under devices; leave one of them out",
    ),
    Rule(
        ("memory.allocator.limits.*", "memory.devices.*.limits.*"),
        _limit_counts,
        "this allocator manages no device on which an op of the model runs; leave it out",
    ),
    Rule(
        ("memory.when_full",),
        _may_be_full,
        "no device's memory is limited; give a device memory: 80GB, or leave it out",
    ),
)
