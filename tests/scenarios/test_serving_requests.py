"""Requests of serving runs: drawn, and read from each format of a trace, whole and damaged."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim
from pydantic import TypeAdapter, ValidationError
from serving_runs import linear_step

from policies.serving.batcher import Request
from policies.serving.kv_blocks import KvBlocks
from policies.serving.vllm import Vllm019
from scenarios.serving.engine import Serve
from scenarios.serving.requests import RequestsFields, read_requests
from sim.base.errors import InputError

FIELDS: Any = TypeAdapter(RequestsFields)


def drawn(seed: int = 0, **fields: Any) -> list[Request]:
    """Return the requests of fields that name no file."""
    found: list[Request] = FIELDS.validate_python(fields).requests(None, seed)
    return found


def trace(tmp_path: Path, text: str) -> Path:
    """Write a trace under a name that tells nothing."""
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    return path


def rows(requests: list[Request]) -> list[tuple[str, int, int, int]]:
    """Return id, arrival in ns, prompt and output of requests."""
    return [(each.id, each.arrival_ns, each.prompt, each.output) for each in requests]


# -- drawn -------------------------------------------------------------------------------------------------


def test_a_poisson_stream_is_as_fast_as_its_rate() -> None:
    """Gaps have the mean and, but for burstiness, the spread that they should; the seed draws them."""
    requests = drawn(rate="50/s", prompt=[10, 20], output=3, count=4000)
    assert (len(requests), requests[0].arrival_ns) == (4000, 0)
    for burstiness, spread in ((1, 1.0), (0.25, 2.0), (4, 0.5)):
        found = drawn(rate="50/s", prompt=10, output=3, count=4000, burstiness=burstiness)
        gaps = np.diff([each.arrival_ns for each in found]) / 1e9
        assert gaps.mean() == pytest.approx(1 / 50, rel=0.1)
        assert gaps.std() / gaps.mean() == pytest.approx(spread, rel=0.1)
    assert {each.prompt for each in requests} == set(range(10, 21))
    assert rows(drawn(rate="50/s", prompt=[10, 20], output=3, count=4000)) == rows(requests)
    assert rows(drawn(1, rate="50/s", prompt=[10, 20], output=3, count=4000)) != rows(requests)


def test_an_even_stream() -> None:
    """Burstiness without end: one every so often."""
    requests = drawn(rate="240/min", prompt=1, output=1, count=3, burstiness=math.inf)
    assert [each.arrival_ns for each in requests] == [0, 250_000_000, 500_000_000]


def test_a_prefix_in_common() -> None:
    """Prompts begin alike, and differ behind; one that is no longer than the prefix is just that."""
    requests = drawn(in_flight=2, prompt=[4, 6], output=1, prefix=5, count=20)
    assert {tuple(each.segments[0]) for each in requests if each.prompt == 4} == {("prefix", 4)}
    longer = [each for each in requests if each.prompt == 6]
    assert [list(each.segments) for each in longer] == [[("prefix", 5), (each.id, 1)] for each in longer]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "should be a mapping with just one of the keys trace, rate, in_flight"),
        ({"rate": "8/s", "in_flight": 4}, "should be a mapping with just one of the keys trace, rate"),
        ({"rate": "8/s", "prompt": 1, "output": 1}, "count\n  Field required"),
        ({"in_flight": 4, "count": 3}, "prompt\n  Field required"),
        ({"in_flight": 4, "prompt": 1, "output": 1, "count": 1, "burstiness": 2}, "burstiness\n  Extra"),
        ({"trace": "a", "prompt": 1}, "prompt\n  Extra"),
        ({"rate": "8", "prompt": 1, "output": 1, "count": 1}, "8"),
        ({"rate": "0/s", "prompt": 1, "output": 1, "count": 1}, "greater than 0"),
        ({"rate": "1.2.3/s", "prompt": 1, "output": 1, "count": 1}, "'1.2.3/s' is not a rate"),
        ({"rate": "1e999/s", "prompt": 1, "output": 1, "count": 1}, "'1e999/s' is not a rate"),
        ({"rate": "8/s", "prompt": [3], "output": 1, "count": 1}, "at least 2 items"),
        (
            {"rate": "8/s", "prompt": [5, 3], "output": 1, "count": 1},
            r"should be \[least, most\], not \[5, 3\]",
        ),
        ({"rate": "8/s", "prompt": 10**9, "output": 1, "count": 1}, "less than or equal to 100000000"),
        ({"rate": "8/s", "prompt": 0, "output": 1, "count": 1}, "greater than or equal to 1"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    """Nothing is guessed, and no key is without effect."""
    with pytest.raises(ValidationError, match=message):
        FIELDS.validate_python(fields)


# -- traces ------------------------------------------------------------------------------------------------

MOONCAKE = """\
{"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 50]}
{"timestamp": 30535, "input_length": 600, "output_length": 26, "hash_ids": [46]}
"""
SESSIONS = """\
{"session_id": "a", "timestamp": 1000, "input_length": 10, "output_length": 4}
{"session_id": "b", "timestamp": 1500.5, "input_length": 20, "output_length": 5}
{"session_id": "a", "delay": 250, "input_length": 30, "output_length": 6}
{"session_id": "a", "input_length": 40, "output_length": 7}
{"session_id": "b", "timestamp": 9000, "input_length": 50, "output_length": 8}
"""
AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,110,27
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
"""
BURST_GPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118.5,GPT-4,417,276,693,API log
"""
LLM_SERVING_SIM = """\
{"input_toks": 3, "output_toks": 4, "arrival_time_ns": 77, "input_tok_ids": [5, 6, 7]}
{"input_toks": 4, "output_toks": 2, "arrival_time_ns": 1077, "input_tok_ids": [5, 6]}
"""
RECORDED = '{"request_id": "bench-0", "input_toks": 9, "output_toks": 5, "arrival_time": 1777142984.5}\n'
OURS = """\
{"id": "one", "arrival": "1.5ms", "prompt": [["system", 100], ["u", 40]], "output": 60, "priority": -2}
{"arrival": "2ms", "prompt": 300, "output": 4, "remote": true, "accepted": [1, 0]}
{"arrival": "1ms", "prompt": 7, "output": 8}
"""
VLLM = {
    "start_times": [12.5, 12.0, 13.0],
    "input_lens": [10, 20, 30],
    "output_lens": [3, 0, 2],
    "ttfts": [0.25, 0.0, 0.5],
    "itls": [[0.125, 0.125], [], [0.25]],
    "duration": 2.0,
    "request_throughput": 1.0,
    "mean_ttft_ms": 375.0,
    "request_goodput": None,
}


def test_mooncake(tmp_path: Path) -> None:
    """Blocks of 512 tokens by their hash; what they do not cover is like no other prompt."""
    first, second = read_requests(trace(tmp_path, MOONCAKE))
    assert rows([first, second]) == [("r0", 0, 1100, 52), ("r1", 3_053_000_000, 600, 26)]
    assert first.segments == [("hash 46", 512), ("hash 47", 512), ("hash 50", 76)]
    assert second.segments == [("hash 46", 512), ("prompt of r1", 88)]


@pytest.mark.parametrize("output", [[3, 0], 3, None])
def test_lists_of_vllm_that_are_of_another_length_are_refused(output: Any, tmp_path: Path) -> None:
    path = trace(tmp_path, json.dumps(VLLM | {"output_lens": output}))
    with pytest.raises(InputError, match="trace:1: start_times, input_lens, output_lens should be lists"):
        read_requests(path)


def test_turns_of_a_session(tmp_path: Path) -> None:
    """A turn with a delay, or without a time, follows the one before; one with a time comes then."""
    found = {each.id: each for each in read_requests(trace(tmp_path, SESSIONS))}
    assert (found["r0"].arrival_ns, found["r1"].arrival_ns, found["r4"].arrival_ns) == (
        0,
        500_500_000,
        8 * 10**9,
    )
    assert (found["r2"].after, found["r2"].delay_ns) == (found["r0"], 250_000_000)
    assert (found["r3"].after, found["r3"].delay_ns) == (found["r2"], 0)
    assert [found[name].after for name in ("r0", "r1", "r4")] == [None, None, None]
    cut = read_requests(trace(tmp_path, SESSIONS), 3)  # who is kept has its predecessor
    assert sorted(each.id for each in cut) == ["r0", "r1", "r2"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AZURE_2023, [("r0", 0, 4808, 10), ("r1", 52_000_000, 110, 27)]),
        ("\ufeff" + AZURE_2024, [("r0", 0, 2162, 5), ("r1", 990_070_000, 2399, 6)]),
        (LLM_SERVING_SIM, [("r0", 0, 3, 4), ("r1", 1000, 4, 2)]),
        (RECORDED, [("bench-0", 0, 9, 5)]),
        (OURS, [("r2", 0, 7, 8), ("one", 500_000, 140, 60), ("r1", 1_000_000, 300, 4)]),
    ],
)
def test_formats(tmp_path: Path, text: str, expected: list[tuple[str, int, int, int]]) -> None:
    """Read by content, from the first request on, by arrival; compressed or not."""
    path = trace(tmp_path, text)
    assert rows(read_requests(path)) == expected
    path.write_bytes(gzip.compress(text.encode()))
    assert rows(read_requests(path)) == expected


def test_who_was_not_answered_is_left_out(tmp_path: Path) -> None:
    """And that is said: BurstGPT has failures, a benchmark too."""
    with pytest.warns(UserWarning, match="leaves out requests without an answer: 1"):
        found = read_requests(trace(tmp_path, BURST_GPT))
    assert rows(found) == [("r0", 0, 472, 18), ("r2", 113_500_000_000, 417, 276)]
    with pytest.warns(UserWarning, match="leaves out requests without an answer: 1"):
        found = read_requests(trace(tmp_path, json.dumps(VLLM)))
    assert rows(found) == [("r0", 0, 10, 3), ("r2", 500_000_000, 30, 2)]


def test_what_else_ours_says(tmp_path: Path) -> None:
    """Prompts of named parts, ranks, pulls, drafts; token ids are prefixes, too."""
    last, one, r1 = read_requests(trace(tmp_path, OURS))
    assert (one.segments, one.priority) == ([("system", 100), ("u", 40)], -2)
    assert (r1.remote, list(r1.accepted), last.remote) == (True, [1, 0], False)
    tokens = read_requests(trace(tmp_path, LLM_SERVING_SIM))
    assert tokens[1].segments == [("token 5", 1), ("token 6", 1), ("prompt of r1", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no request that was answered"),
        (
            "a,b\n1,2\n",
            "trace:2: has none of the columns prompt, .* tokens, input_toks, input_lens, but a, b",
        ),
        (MOONCAKE + "{", "trace:3: not JSON"),
        (MOONCAKE + "[1]", "not JSON|trace:3: should be an object"),
        (MOONCAKE.replace("52", '"x"'), "trace:1: output_length: should be a whole number, not 'x'"),
        (
            MOONCAKE.replace('"hash_ids"', '"input_length"'),
            "trace:1: not JSON: the key 'input_length' stands twice",
        ),
        (MOONCAKE.replace('"timestamp": 30535, ', ""), "trace:2: has none of the columns arrival, timestamp"),
        (
            AZURE_2023 + "\n2023-11-16 18:17:04.0319600,110",
            "trace:5: 2 values, not 3",
        ),
        ('id,arrival,prompt,output\n"a\nb",1ms,4,2\nc,2ms,x,2\n', "trace:4: prompt: should be a whole"),
        (AZURE_2023.replace("4808", "0"), "trace:2: an answer to a prompt without tokens"),
        (
            AZURE_2023.replace("2023-11-16 18:17:03", "yesterday:"),
            "trace:2: 'yest.* no date and time",
        ),
        (BURST_GPT.replace("118.5", "nan"), "trace:4: Timestamp: 'nan s' is not a number and a unit"),
        (OURS.replace('"priority"', '"prio"'), "trace:1: prio: no such key; did you mean 'p"),
        (OURS.replace("true", '"no"'), "trace:2: remote: should be true or false, not 'no'"),
        (OURS.replace('"2ms"', "2"), "trace:2: arrival: 2 has no unit"),
        (OURS + OURS, "trace:4: there is a request 'one' before"),
    ],
)
def test_damaged_traces(tmp_path: Path, text: str, message: str) -> None:
    """File, line, what was found, what is accepted."""
    with pytest.raises(InputError, match=message) as error:
        read_requests(trace(tmp_path, text))
    assert str(tmp_path / "trace") in str(error.value)


def test_a_wrong_row_ends_a_run(tmp_path: Path) -> None:
    """Exit code 2, with the place."""
    trace(tmp_path, MOONCAKE.replace("52", "-1"))
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "name: x\nworkload: {serving: {step: {fixed: 1ms}, kv: {blocks: 99}, requests: {trace: trace}}}\n"
    )
    result = sim("run", scenario)
    assert result.exit_code == 2
    assert "trace:1: output_length: should be greater than or equal to 0, not -1" in result.output


def test_turns_run_after_what_they_follow() -> None:
    """A turn arrives so long after the last token of the one before."""
    first, turn = Request("a", 0, 10, 3), Request("b", 0, 20, 2)
    turn.after, turn.delay_ns = first, 5_000_000
    batcher = Vllm019()
    batcher.begin(KvBlocks(100, 16, 1), 64)
    Serve(linear_step(1_000_000), [batcher]).run([first, turn])
    assert turn.arrival_ns == first.token_ns[-1] + 5_000_000
    assert turn.token_ns[0] > turn.arrival_ns


def test_the_next_in_flight_comes_when_one_ends() -> None:
    """At that moment, also while the engine waits a millisecond after a pass that scheduled nothing."""
    requests = [Request(name, 0, 10, 3) for name in "abc"]
    batcher = Vllm019(max_num_seqs=1)
    batcher.begin(KvBlocks(100, 16, 1), 64)
    Serve(linear_step(1_000_000), [batcher]).run(requests, in_flight=2)
    assert requests[2].arrival_ns == requests[0].token_ns[-1] == 3_000_000
