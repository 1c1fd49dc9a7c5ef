"""Batchers against recorded schedulers: every step, request and block table is the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from serving_runs import RECORDED, Case, run_case

SMALL = json.loads(RECORDED.read_text(encoding="utf-8"))


def differences(case: Case) -> list[str]:
    """Return where our engine differs from what was recorded: columns of the first such step, requests."""
    steps, outcomes = run_case(case)
    if len(steps) != len(case["steps"]):
        return [f"{len(steps)} steps, not {len(case['steps'])}"]
    for number, (ours, theirs) in enumerate(zip(steps, case["steps"], strict=True)):
        wrong = [key for key in theirs if not _same(ours.get(key), theirs[key], ordered=key != "hits")]
        if wrong:
            return [f"step {number}: {key} {ours.get(key)}, not {theirs[key]}" for key in wrong]
    return [
        f"{name}: {outcomes[name]}, not {theirs}"
        for name, theirs in case["requests_out"].items()
        if outcomes[name] != theirs
    ]


def _same(ours: Any, theirs: Any, *, ordered: bool) -> bool:
    """Return whether they are equal; of mappings the order counts, but where a recording sorts it."""
    return bool(ours == theirs and (not ordered or not isinstance(theirs, dict) or [*ours] == [*theirs]))


@pytest.mark.parametrize("folder", [pytest.param("vllm", marks=pytest.mark.slow), "pull", "classic"])
def test_recorded_schedulers(data_dir: Path, folder: str) -> None:
    """vLLM 0.19's scheduler, with pulls of prompts, and Sarathi-Serve's: all columns of all steps."""
    paths = sorted((data_dir / "serving_steps" / folder).glob("*.json.gz"))
    if not paths:
        pytest.skip(f"no recorded steps in {data_dir / 'serving_steps' / folder}")
    wrong = {}
    for path in paths:
        if found := differences(json.loads(gzip.decompress(path.read_bytes()))):
            wrong[path.name] = found
    assert not wrong


@pytest.mark.parametrize("case", SMALL, ids=[case["name"] for case in SMALL])
def test_small_cases(case: Case) -> None:
    """Six small cases, recorded with this engine when it equalled the recorded ones."""
    assert not differences(case)


def test_eagle_finds_a_block_less() -> None:
    """Of a prefix of ten tokens two blocks of four are there; EAGLE takes one, and of one block none.

    Source: vLLM 0.19, v1/core/single_type_kv_cache_manager.py (``use_eagle``).
    """
    drafts = next(case for case in SMALL if case["engine"].get("spec_draft_model"))
    hits = {}
    for model in (True, "eagle"):
        engine = drafts["engine"] | {"spec_draft_model": model, "num_blocks": 40}
        for prefix in (10, 7):
            requests = [
                each | {"prompt": [["system", prefix], *each["prompt"][1:]]} for each in drafts["requests"]
            ]
            _, outcomes = run_case(drafts | {"engine": engine, "requests": requests})
            hits[model, prefix] = [outcomes[f"r{i}"]["cached"] for i in range(4)]
    assert hits == {
        (True, 10): [0, 8, 8, 8],
        ("eagle", 10): [0, 4, 4, 4],
        (True, 7): [0, 4, 4, 4],
        ("eagle", 7): [0, 0, 0, 0],
    }
