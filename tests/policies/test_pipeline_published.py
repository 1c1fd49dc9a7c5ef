"""The bubble rates published with the zero-bubble schedules come out to four decimals.

Published definitions (arXiv 2401.10241): rate = (cost - m(F+I+W)) / cost, where the cost is the
makespan for 1F1B and ZB-H1, and the longest span of a rank for ZB-H2, ZB-1p, ZB-2p and ZB-V.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policies.pipeline.evaluate import StageTimes, evaluate, transformer_activations
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.registry import generate

pytestmark = pytest.mark.slow

# The models of arXiv 2401.10241, table 3: hidden size, attention heads, sequence length 1024.
SMALL, MEDIUM, LARGE, LARGEST = (2304, 24), (4096, 32), (5120, 40), (6144, 48)
STAGE_ROW_MODELS = {(8, 6): SMALL, (8, 3): MEDIUM, (16, 1): LARGE, (32, 1): LARGEST}
LAYERS = {SMALL: 24, MEDIUM: 32, LARGE: 48, LARGEST: 64}
CHUNK_ROW_MODELS = {16: MEDIUM, 24: LARGE, 32: LARGEST}


def nanoseconds(row: dict[str, Any], *keys: str) -> list[int]:
    return [round(row[key] * 1_000_000) for key in keys]


def searched(
    row: dict[str, Any], times: list[int], transfer: int, model: tuple[int, int], **sizes: Any
) -> Schedule:
    forward, input_grad, weight_grad = times
    held = transformer_activations(hidden=model[0], heads=model[1], sequence=1024)
    micro_batches_held = sizes.pop("held")
    return generate(
        "zb-auto",
        solver="greedy",
        ranks=row["devices"],
        micro_batches=row["micro_batches"],
        forward=forward,
        input_grad=input_grad,
        weight_grad=weight_grad,
        transfer=transfer,
        kept={"backward": held.full, "weight_grad": held.kept},
        limit=micro_batches_held * held.full,
        **sizes,
    )


def rates(row: dict[str, Any], times: list[int], transfer: int) -> dict[str, str]:
    """Bubble rates of the handwritten schedules, with the published definitions."""
    sizes = {"ranks": row["devices"], "micro_batches": row["micro_batches"]}
    stage = StageTimes(times[0], None, *times[1:])
    work = row["micro_batches"] * sum(times)
    runs = {n: evaluate(generate(n, **sizes), stage, transfer=transfer) for n in ("1f1b", "zb-h1", "zb-h2")}
    return {
        "1F1B": rate(runs["1f1b"].makespan, work),
        "ZB-H1": rate(runs["zb-h1"].makespan, work),
        "ZB-H2": rate(max(runs["zb-h2"].spans), work),
    }


def rate(cost: int, work: int) -> str:
    return f"{(cost - work) / cost:.4f}"


def published(row: dict[str, Any]) -> dict[str, str]:
    return {name: f"{value:.4f}" for name, value in row["bubble_rate"].items()}


def test_the_published_rates_of_stages(data_dir: Path) -> None:
    rows = json.loads((data_dir / "published" / "zero_bubble.json").read_text())["stage_rows"]
    assert len(rows) == 12
    for row in rows:
        *times, transfer = nanoseconds(row, "T_F_ms", "T_I_ms", "T_W_ms", "T_comm_ms")
        model = STAGE_ROW_MODELS[row["devices"], row["micro_batch_size"]]
        found = rates(row, times, transfer)
        work = row["micro_batches"] * sum(times)
        for name, times_p in (("ZB-1p", 1), ("ZB-2p", 2)):
            schedule = searched(row, times, transfer, model, held=times_p * row["devices"])
            found[name] = rate(schedule.meta["objective"], work)
        assert found == published(row)


def test_the_published_rates_of_the_v(data_dir: Path) -> None:
    rows = json.loads((data_dir / "published" / "zero_bubble.json").read_text())["chunk_rows"]
    assert len(rows) == 9
    for row in rows:
        *times, transfer = nanoseconds(row, "chunk_T_F_ms", "chunk_T_I_ms", "chunk_T_W_ms", "T_comm_ms")
        model = CHUNK_ROW_MODELS[row["devices"]]
        found = rates(row, [2 * time for time in times], transfer)
        schedule = searched(row, times, transfer, model, held=2 * row["devices"], chunks=2)
        found["ZBV"] = rate(schedule.meta["objective"], 2 * row["micro_batches"] * sum(times))
        assert found == published(row)


def test_interleaved_with_all_its_dependencies_is_above_the_published_rates(data_dir: Path) -> None:
    # The published column lets a chunk start a round before the round's later micro-batches arrive.
    for row in json.loads((data_dir / "published" / "zero_bubble.json").read_text())["stage_rows"]:
        *times, transfer = nanoseconds(row, "T_F_ms", "T_I_ms", "T_W_ms", "T_comm_ms")
        layers = LAYERS[STAGE_ROW_MODELS[row["devices"], row["micro_batch_size"]]]
        chunks = layers // row["devices"]
        schedule = generate(
            "interleaved-1f1b", ranks=row["devices"], micro_batches=row["micro_batches"], chunks=chunks
        )
        stage = StageTimes(round(times[0] / chunks), round(sum(times[1:]) / chunks))
        found = float(evaluate(schedule, stage, transfer=transfer).bubble)
        assert 0.0005 < found - row["bubble_rate_1F1B_I_as_published"] < 0.004
