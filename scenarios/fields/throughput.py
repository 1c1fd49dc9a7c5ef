"""How much a run gets done in a second: micro-batches of a pipeline, samples of a model with a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sim.words.units import NS_PER_S

__all__ = ["RATES", "throughput"]

RATES: Final = ("micro_batches_per_s", "samples_per_s")


def throughput(summary: Mapping[str, Any], iterations: int, batch: int | None) -> dict[str, float]:
    """Return one of `RATES`, over all iterations; nothing where neither is known.

    Parameters
    ----------
    summary : mapping
        Of the run, with the keys ``pipeline`` and ``train`` where it has them.
    iterations : int
    batch : int or None
        The samples of an iteration.

    Examples
    --------
    >>> throughput({"makespan_ns": 2_000_000_000}, iterations=3, batch=32)
    {'samples_per_s': 48.0}
    """
    if (train := summary.get("train")) is not None:
        return {"samples_per_s": train["samples_per_s"]}
    if not summary["makespan_ns"]:
        return {}
    seconds = summary["makespan_ns"] / NS_PER_S
    if (pipeline := summary.get("pipeline")) is not None:
        return {"micro_batches_per_s": iterations * pipeline["micro_batches"] / seconds}
    return {} if batch is None else {"samples_per_s": iterations * batch / seconds}
