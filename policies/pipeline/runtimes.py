"""Runtimes of pipelines: schedule and checkpointing that a framework is known by."""

from __future__ import annotations

from typing import Final

from policies.runtimes import Runtime

__all__ = ["pipedream", "torchgpipe"]

torchgpipe: Final = Runtime(
    "torchgpipe: GPipe, backward passes last in, first out, all but the last micro-batch recomputed",
    name="gpipe",
    order="lifo",
    checkpoint="except_last",
)
pipedream: Final = Runtime(
    "PipeDream: asynchronous 1F1B with stashed weights, no recomputation",
    name="pipedream",
    checkpoint="never",
)
