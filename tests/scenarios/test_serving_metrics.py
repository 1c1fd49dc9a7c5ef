"""Numbers of served requests, by hand and against numpy; measured runs in the same numbers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim
from examples import seeds

from policies.serving.batcher import Request
from scenarios.serving.metrics import METRICS, STATS, measured_metrics, serving_metrics
from sim.base.errors import InputError

MS = 1_000_000


def served(arrival_ms: int, *tokens_ms: int, prompt: int = 10) -> Request:
    """Return a request that had its tokens at these times."""
    request = Request(f"r{arrival_ms}", arrival_ms * MS, prompt, len(tokens_ms))
    request.token_ns.extend(at * MS for at in tokens_ms)
    return request


def test_by_hand() -> None:
    """Two requests, the second with one token, and one with two tokens of one step."""
    requests = [served(0, 20, 30, 50), served(10, 40), served(20, 50, 70, 70, 80, prompt=20)]
    found = serving_metrics(requests, {"ttft": 30 * MS, "tpot": 12 * MS})
    assert (found["duration"], found["completed"]) == (0.08, 3)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (40, 8)
    assert found["request_throughput"] == pytest.approx(37.5)
    assert found["output_throughput"] == pytest.approx(100)
    assert found["total_token_throughput"] == pytest.approx(600)
    ttft, tpot, itl, e2el = [20, 30, 30], [15, 10], [10, 20, 20, 10], [50, 30, 60]
    for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", itl), ("e2el", e2el)):
        assert found[f"mean_{name}_ms"] == pytest.approx(np.mean(values))
        assert found[f"median_{name}_ms"] == pytest.approx(np.median(values))
        assert found[f"std_{name}_ms"] == pytest.approx(np.std(values))
        assert found[f"p99_{name}_ms"] == pytest.approx(np.percentile(values, 99))
    assert found["request_goodput"] == pytest.approx(25)  # not the first, whose tpot is 15
    assert found["queue_grows"] is None


@pytest.mark.parametrize("seed", seeds(10))
def test_against_plain_lists(seed: int) -> None:
    """The same as a loop over requests and tokens gives."""
    drawn = np.random.default_rng(seed)
    requests = []
    for at in np.cumsum(drawn.integers(0, 50, 40)).tolist():
        first = at + int(drawn.integers(1, 300))
        more = np.cumsum(drawn.integers(1, 40, drawn.integers(0, 9))).tolist()
        requests.append(served(at, first, *(first + each for each in more)))
    found = serving_metrics(requests, {"e2el": 250 * MS})
    tokens = [list(request.token_ns) for request in requests]
    came = [request.arrival_ns for request in requests]
    values = {
        "ttft": [of[0] - at for of, at in zip(tokens, came, strict=True)],
        "tpot": [(of[-1] - of[0]) / (len(of) - 1) for of in tokens if len(of) > 1],
        "itl": [b - a for of in tokens for a, b in pairwise(of)],
        "e2el": [of[-1] - at for of, at in zip(tokens, came, strict=True)],
    }
    for name in METRICS:
        told = [found[f"{stat}_{name}_ms"] * MS for stat in STATS]
        of = values[name]
        assert told == pytest.approx([np.mean(of), np.median(of), np.percentile(of, 99), np.std(of)])
    seconds = (max(of[-1] for of in tokens) - min(came)) / 1e9
    good = sum(e2el <= 250 * MS for e2el in values["e2el"])
    assert found["request_goodput"] == pytest.approx(good / seconds)


@pytest.mark.parametrize(("gap_ms", "grows"), [(20, False), (11, False), (9, True), (5, True)])
def test_a_queue_that_grows_is_told(gap_ms: int, grows: bool) -> None:
    """One request every `gap_ms`, where each takes 10 ms: the queue grows if they come faster."""
    free, requests = 0, []
    for i in range(400):
        free = max(free, i * gap_ms) + 10
        requests.append(served(i * gap_ms, free))
    told = serving_metrics(requests, {})["queue_grows"]
    assert (told is not None) == grows
    assert told is None or told.startswith("the queue grows without end:")


@pytest.mark.parametrize(("count", "short"), [(50, True), (52, False)])
def test_a_short_run_is_told(count: int, short: bool) -> None:
    """One request every 10 ms, each of 100 ms, comes for 500 ms from the 51st on."""
    told = serving_metrics([served(10 * i, 10 * i + 100) for i in range(count)], {})["short_run"]
    says = "a short run: requests came for 490 ms, and each took 100 ms; more of them may wait longer"
    assert told == (says if short else None)


# -- measured ----------------------------------------------------------------------------------------------

RESULT: dict[str, Any] = {
    "duration": 2.0,
    "completed": 2,
    "request_throughput": 1.0,
    "request_goodput": None,
    "mean_ttft_ms": 375.0,
    "p99_itl_ms": 249.0,
    "input_lens": [10, 20, 30],
    "output_lens": [3, 0, 2],
    "ttfts": [0.25, 0.0, 0.5],
    "itls": [[0.125, 0.125], [], [0.25]],
}


def written(tmp_path: Path, content: object) -> Path:
    """Write a result."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_detailed_result(tmp_path: Path) -> None:
    """What it says of itself is taken; what it does not say follows from its requests."""
    found = measured_metrics(written(tmp_path, RESULT), {"ttft": 300 * MS})
    assert (found["duration"], found["request_throughput"], found["mean_ttft_ms"]) == (2.0, 1.0, 375.0)
    assert (found["p99_itl_ms"], found["total_input_tokens"], found["total_output_tokens"]) == (249.0, 40, 5)
    assert (found["mean_e2el_ms"], found["median_tpot_ms"]) == (625.0, 187.5)
    assert found["mean_itl_ms"] == pytest.approx(500 / 3)
    assert found["request_goodput"] == 0.5  # one of two, in two seconds


def test_a_plain_result(tmp_path: Path) -> None:
    """Without requests it is what it says."""
    plain = {key: value for key, value in RESULT.items() if not isinstance(value, list)}
    found = measured_metrics(written(tmp_path, plain), {"ttft": MS})
    assert found == {key: value for key, value in plain.items() if value is not None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": 1}, "is no result of vLLM's benchmark, and no recorded run of LLMServingSim"),
        (RESULT | {"ttfts": [1.0]}, "input_lens, output_lens, ttfts, itls should be lists of one length"),
        (RESULT | {"itls": [["x"], [], []]}, "could not convert string to float"),
    ],
)
def test_what_is_no_result(tmp_path: Path, content: object, message: str) -> None:
    """Said with the file."""
    with pytest.raises(InputError, match=message) as error:
        measured_metrics(written(tmp_path, content), {})
    assert "result.json" in str(error.value)


def test_recorded_runs(data_dir: Path) -> None:
    """The numbers of two recorded runs are those that their recorder computed."""
    folders = sorted((data_dir / "cluster" / "serving_vllm").glob("RTX*"))
    if not folders:
        pytest.skip("no recorded runs")
    for folder in folders:
        found = measured_metrics(folder / "requests.jsonl", {})
        theirs = dict.fromkeys(("TTFT", "TPOT", "Latency"), "e2el") | {"TTFT": "ttft", "TPOT": "tpot"}
        lines = [line.split() for line in (folder / "summary.txt").read_text().splitlines()]
        rows = [line for line in lines if len(line) > 3 and line[0] in theirs]
        for metric, stat, value, *_ in rows:
            if stat.lower() in ("mean", "median", "p99"):
                ours = found[f"{stat.lower()}_{theirs[metric]}_ms"]
                assert ours == pytest.approx(float(value), abs=0.06)
        assert rows


def test_a_run_beside_a_measured_one(tmp_path: Path) -> None:
    """Its requests and its numbers come from one file; each number is told with how far ours is off."""
    answered = {"output_lens": [3, 2, 2], "start_times": [5.0, 5.0, 5.5]}
    written(tmp_path, RESULT | answered | {"itls": [[0.125, 0.125], [0.25], [0.25]]})
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "name: x\nworkload: {serving: {step: {fixed: 250ms}, kv: {blocks: 99}, measured: result.json, "
        "requests: {trace: result.json}}}\n"
    )
    told = json.loads(sim("run", scenario, "--json").stdout)["serving"]
    assert (told["mean_tpot_ms"], told["measured"]["median_tpot_ms"]) == (250.0, 250.0)
    shown = sim("run", scenario).output
    assert "measured (and off by)" in shown
    assert "249 ms (+0.4%)" in shown
