"""The orders are those of torch.distributed.pipelining, for every size it accepts; the others are refused."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pipeline_torch
import pytest

from policies.pipeline.registry import generate
from sim.base.errors import InputError

GOLDEN = json.loads(pipeline_torch.GOLDEN.read_text(encoding="utf-8"))
OPTIONS: dict[str, dict[str, Any]] = {"gpipe": {"order": "fifo"}}


def ours(name: str, ranks: int, chunks: int, micro_batches: int) -> pipeline_torch.Order | None:
    try:
        schedule = generate(
            name, ranks=ranks, chunks=chunks, micro_batches=micro_batches, **OPTIONS.get(name, {})
        )
    except InputError:
        return None
    return tuple(tuple(map(str, program)) for program in schedule.programs)


@pytest.mark.parametrize("name", pipeline_torch.NAMES)
def test_small_orders_are_torchs(name: str) -> None:
    recorded = GOLDEN["programs"][name]
    assert recorded
    for size, programs in recorded.items():
        found = ours(name, *map(int, size.split(",")))
        assert found is not None, size
        assert [" ".join(program) for program in found] == programs


@pytest.mark.parametrize("name", pipeline_torch.NAMES)
def test_the_grid_has_torchs_digests_and_refusals(name: str) -> None:
    recorded = {
        (*map(int, key.split(",")), m): each
        for key, row in GOLDEN["digests"][name].items()
        for m, each in zip(pipeline_torch.MICRO_BATCHES, row.split(), strict=True)
    }
    assert list(recorded) == pipeline_torch.sizes(name)
    for size, each in recorded.items():
        found = ours(name, *size)
        assert (pipeline_torch.digest(found) if found is not None else "-") == each, size


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("name", pipeline_torch.NAMES)
def test_the_grid_is_torchs(name: str) -> None:
    module = pipeline_torch.torch_schedules()
    wanted = {**pipeline_torch.SINGLE, **pipeline_torch.MULTI}[name]
    if not hasattr(module, wanted):
        pytest.skip(f"this torch has no {wanted}")
    for size in pipeline_torch.sizes(name):
        assert ours(name, *size) == pipeline_torch.torch_order(module, name, *size), size


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("1f1b", {"ranks": 4, "micro_batches": 3}, "at least as many micro-batches as stages"),
        ("interleaved-1f1b", {"ranks": 4, "micro_batches": 9, "chunks": 2}, "use 8 or 10"),
        ("interleaved-zb", {"ranks": 2, "micro_batches": 5, "chunks": 2}, "use 4 or 6"),
        ("zb-v", {"ranks": 2, "micro_batches": 4, "chunks": 3}, "exactly 2 stages a rank"),
        ("dualpipe-v", {"ranks": 2, "micro_batches": 4, "chunks": 1}, "exactly 2 stages a rank"),
        ("dualpipe-v", {"ranks": 4, "micro_batches": 7}, "at least as many micro-batches as stages"),
    ],
)
def test_a_refusal_says_why(name: str, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        generate(name, **sizes)
