"""The ``memory:`` of a scenario: when tensors take memory, and what happens when there is none.

::

    machine: {devices: {gpu0: {preset: h200-sxm, allocator: caching}}}     who manages it, device by device
    policy:  {name: in-order, allocator: bfc}                              ... or on all that say nothing
    memory:  {lifetime: issue, when_full: wait, limits: {train: 50GB}}     this

Options of the policy's allocator of the same names win. What it all does is in `scenarios.allocator`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scenarios.quantities import Bytes, Name, Strict

__all__ = ["MemoryFields"]


class MemoryFields(Strict):
    """When tensors take memory, and what happens when there is none."""

    lifetime: Annotated[
        Literal["execution", "issue"] | None,
        Field(
            description="tensors live from start to the end of the last reader, or from issue to issue; "
            "default: issue if the policy synchronises at issue, else execution"
        ),
    ] = None
    limits: Annotated[
        dict[Name, Bytes] | None,
        Field(
            description="most bytes that each model (session) may hold on every device that names no "
            "allocator: NAME holds tensors of ops NAME/..."
        ),
    ] = None
    when_full: Annotated[
        Literal["error", "wait"],
        Field(description="when memory is full: stop with an error, or let the task wait"),
    ] = "error"
