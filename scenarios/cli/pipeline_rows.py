"""What `sim run` prints of a pipeline: bubble and formula, and a row for each rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.words.units import format_bytes, format_duration

__all__ = ["RANK_COLUMNS", "pipeline_line", "rank_rows"]

RANK_COLUMNS = ("rank", "span", "idle in span", "activations", "waits for", "memory at the peak")
"""Columns of the table of `rank_rows`."""


def pipeline_line(told: Mapping[str, Any]) -> str:
    """Return sizes, bubble and formula in one line.

    Examples
    --------
    >>> told = {"ranks": 4, "stages": 4, "micro_batches": 8, "bubble": 0.25, "bubble_of": "makespan"}
    >>> pipeline_line({**told, "bubble_formula": 0.25, "formula": "makespan = ..."})
    '4 ranks, 4 stages, 8 micro-batches: bubble 25.00% of the makespan; formula 25.00% (makespan = ...)'
    """
    whole = "makespan" if told["bubble_of"] == "makespan" else "longest span"
    formula = (
        ""
        if told["bubble_formula"] is None
        else f"; formula {100 * told['bubble_formula']:.2f}% ({told['formula']})"
    )
    return (
        f"{told['ranks']} ranks, {told['stages']} stages, {told['micro_batches']} micro-batches: "
        f"bubble {100 * told['bubble']:.2f}% of the {whole}{formula}"
    )


def rank_rows(told: Mapping[str, Any], *, shown: int = 2) -> list[tuple[str, ...]]:
    """Return one row of text a rank, for `RANK_COLUMNS`; of what it waited for and held, the largest."""
    rows: list[tuple[str, ...]] = []
    for rank, device in enumerate(told["devices"]):
        waits = list(told["waits_for"][rank].items())[:shown]
        bands = sorted(told["memory_bytes"][rank].items(), key=lambda item: -item[1])[:shown]
        rows.append(
            (
                f"{rank} ({device})",
                format_duration(told["span_ns"][rank]),
                format_duration(told["idle_ns"][rank]),
                str(told["peak_activations"][rank]),
                ", ".join(f"{cause} {format_duration(ns)}" for cause, ns in waits),
                ", ".join(f"{name} {format_bytes(size, iec=True)}" for name, size in bands),
            )
        )
    return rows
