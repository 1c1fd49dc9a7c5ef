"""Serving engines run step by step, and what they did in the columns of recorded cases.

A case is a JSON object: ``engine`` (a batcher and its cache), ``step_us`` (what a step takes), ``requests``,
then what was recorded: ``steps`` and ``requests_out``. Those of ``shared/data/serving_steps`` were recorded
from vLLM 0.19.0 and Sarathi-Serve. ``python tests/serving_runs.py`` writes ``tests/data/serving_steps.json``:
six small ones that our own engine ran, so that a clone without the recorded ones still compares every column.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.serving.batcher import Batcher, Request, Step
from policies.serving.classic import Orca, Sarathi, Static, VllmV0
from policies.serving.kv_blocks import KvBlocks
from policies.serving.vllm import Vllm019
from scenarios.serving.engine import Serve, StepTime
from sim.base.units import round_half_up

RECORDED = Path(__file__).parent / "data" / "serving_steps.json"
US = 1000
CLASSIC = {"static": Static, "orca": Orca, "vllm-v0": VllmV0, "sarathi": Sarathi}

Case = Mapping[str, Any]


def linear_step(base_ns: int, token_ns: float = 0.0, request_ns: float = 0.0) -> StepTime:
    """Return what a step takes: so much, and more for each token and each request."""
    return lambda step: round_half_up(
        base_ns + token_ns * sum(step.tokens.values()) + request_ns * len(step.tokens)
    )


def batcher_of(engine: Case) -> Batcher:
    """Return the batcher of a case, with an empty cache."""
    if engine["policy"] in CLASSIC:
        size = engine.get("max_num_batched_tokens", engine.get("chunk_size"))  # Sarathi's word
        options = {} if size is None else {"max_num_batched_tokens": size}
        made: Batcher = CLASSIC[engine["policy"]](max_num_seqs=engine["max_num_seqs"], **options)
    else:
        made = Vllm019(
            max_num_seqs=engine["max_num_seqs"],
            max_num_batched_tokens=engine["max_num_batched_tokens"],
            enable_chunked_prefill=engine["chunked_prefill"],
            enable_prefix_caching=engine["prefix_caching"],
            scheduling_policy=engine["policy"],
            long_prefill_token_threshold=engine["long_prefill_token_threshold"],
            scheduler_reserve_full_isl=engine["reserve_full_isl"],
            num_speculative_tokens=engine["spec_tokens"],
            draft_model=engine["spec_draft_model"],
            async_scheduling=engine["async"],
        )
    made.begin(
        KvBlocks(engine["num_blocks"], engine["block_size"], made.reserved_blocks), engine["max_model_len"]
    )
    return made


def requests_of(case: Case) -> list[Request]:
    """Return the requests of a case, by arrival."""
    found = []
    for each in case["requests"]:
        segments = [tuple(part) for part in each["prompt"]] if isinstance(each["prompt"], list) else []
        tokens = sum(count for _, count in segments) if segments else each["prompt"]
        found.append(
            Request(
                each["id"],
                each["arrival_us"] * US,
                tokens,
                each["output"],
                priority=each.get("priority", 0),
                segments=segments,
                accepted=each.get("accept", ()),
                remote=each.get("remote", False),
            )
        )
    return sorted(found, key=lambda request: request.arrival_ns)


def run_case(case: Case) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return what our engine does in a case: ``steps`` and ``requests_out`` as they are recorded."""
    engine, us = case["engine"], case["step_us"]
    classic = engine["policy"] in CLASSIC
    batcher, requests = batcher_of(engine), requests_of(case)
    scheduled: list[tuple[Step, dict[str, Any]]] = []
    serve = Serve(linear_step(us["base"] * US, us["token"] * US, us["seq"] * US), [batcher])
    begin = serve.begin

    def note(replica: int, step: Step, pulled: dict[Request, int]) -> int:
        tables = {request.id: request.blocks for request in batcher.running}
        text = json.dumps(tables, sort_keys=True, separators=(",", ":"))
        waiting = [request.id for request in batcher.waiting]  # type: ignore[attr-defined]
        after: dict[str, Any] = {"running": list(tables), "blocks_used": batcher.cache.used}
        if classic:
            after |= {"order": [request.id for request in step.tokens], "waiting": waiting, "ignored": []}
        else:
            after |= {"waiting": len(waiting), "tables_crc": zlib.crc32(text.encode())}
            after |= {"aside": [request.id for request in batcher.aside]}  # type: ignore[attr-defined]
        scheduled.append((step, after))
        return begin(replica, step, pulled)

    serve.begin = note  # type: ignore[method-assign]
    serve.pull = lambda now, request, tokens: now + (us["kv_base"] + us["kv_token"] * tokens) * US
    serve.run(requests)
    steps = []
    for over, (step, after) in zip(serve.passes.itertuples(), scheduled, strict=True):
        found = after | {
            "start": over.start_ns // US,
            "end": over.end_ns // US,
            "tokens": _by_id(step.tokens),
            "preempted": [request.id for request in step.preempted],
            "finished": [request.id for request in step.finished],
        }
        if not classic:
            found |= {
                "scheduled_at": over.scheduled_ns // US,
                "hits": _by_id(step.hits),
                "out": _by_id(step.out),
                "drafts": _by_id(step.drafts),
                "pulled": _by_id(step.pulls),
            }
        elif not (step.tokens or step.preempted):
            continue  # such passes were not recorded
        steps.append(found)
    return steps, {request.id: _outcome(request, classic) for request in requests}


def _by_id(counts: Mapping[Request, int]) -> dict[str, int]:
    return {request.id: count for request, count in counts.items()}


def _outcome(request: Request, classic: bool) -> dict[str, Any]:
    """Return when a request was scheduled first, and had its first and last token."""
    first, last = (request.token_ns[i] // US if request.token_ns else None for i in (0, -1))
    scheduled = None if request.scheduled_ns is None else request.scheduled_ns // US
    found = {"first_scheduled": scheduled, "first_token": first, "last_token": last}
    found["preemptions"] = request.preemptions
    return found | ({"tokens": request.outputs} if classic else {"cached": request.hits or 0})


# ----------------------------------------------------------------------------------------------------------

_VLLM = {
    "block_size": 4,
    "num_blocks": 13,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "chunked_prefill": True,
    "prefix_caching": True,
    "policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "reserve_full_isl": True,
    "spec_tokens": 0,
    "spec_draft_model": False,
    "async": True,
}
_CLASSIC = {"block_size": 4, "num_blocks": 10, "max_num_seqs": 4, "max_model_len": 64}
_US = {"base": 100, "token": 10, "seq": 1, "kv_base": 150, "kv_token": 5}


def _small_cases() -> list[dict[str, Any]]:
    """Return a few requests each, that meet what a batcher can do in a dozen steps."""
    shared = [["system", 10]]
    asked = [
        {"id": f"r{i}", "arrival_us": 120 * i, "prompt": [*shared, [f"u{i}", 2 + 5 * i]], "output": 9 - i}
        for i in range(4)
    ]
    follows = [["system", 10], ["u0", 2], ["out:r0", 9], ["more", 3]]
    turns = [*asked[:3], {"id": "r3", "arrival_us": 3000, "prompt": follows, "output": 2}]
    ranked = [each | {"priority": 3 - i} for i, each in enumerate(asked)]
    drafts = [each | {"accept": [2, 0, 1]} for each in asked]
    remote = [each | {"remote": i != 1} for i, each in enumerate(asked)]
    plain = [each | {"prompt": sum(part[1] for part in each["prompt"])} for each in asked]
    return [
        {
            "name": "async, a prefix in common, then a second turn",
            "engine": _VLLM | {"num_blocks": 15},
            "requests": turns,
        },
        {
            "name": "priority, preempted in favour of the last to come",
            "engine": _VLLM | {"policy": "priority", "async": False, "reserve_full_isl": False},
            "requests": ranked,
        },
        {
            "name": "two drafts of a model, at most six tokens of a request in a step",
            "engine": _VLLM
            | {"spec_tokens": 2, "spec_draft_model": True, "async": False, "long_prefill_token_threshold": 6},
            "requests": drafts,
        },
        {
            "name": "prompts that are pulled, and one that is not",
            "engine": _VLLM | {"async": False},
            "requests": remote,
        },
        {
            "name": "vllm-v0, preempted",
            "engine": _CLASSIC | {"policy": "vllm-v0", "max_num_batched_tokens": 32},
            "requests": plain,
        },
        {
            "name": "sarathi, preempted",
            "engine": _CLASSIC | {"policy": "sarathi", "chunk_size": 12},
            "requests": plain,
        },
    ]


def write() -> None:
    """Write what our engine does in the small cases."""
    cases = [case | {"step_us": _US} for case in _small_cases()]
    for case in cases:
        case["steps"], case["requests_out"] = run_case(case)
    lines = ",\n".join(json.dumps(case) for case in cases)
    RECORDED.write_text(f"[{lines}]\n", encoding="utf-8")


if __name__ == "__main__":
    write()
