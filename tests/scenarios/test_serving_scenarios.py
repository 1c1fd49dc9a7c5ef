"""Serving as a scenario: what a run tells, prompts computed apart, tables, whose batcher, what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from cli_runner import sim
from hypothesis import given
from hypothesis import strategies as st
from serving_runs import linear_step

from devices.collectives.groups import peer_all_reduce_ns
from policies.serving.batcher import Request, Step
from policies.serving.kv_blocks import KvBlocks
from policies.serving.routers import RequestRouter
from policies.serving.vllm import Vllm019
from scenarios.builders.train.architecture import MODELS, Architecture
from scenarios.report.compare import Comparison
from scenarios.run.execute import Result, run_scenario
from scenarios.run.load import read_scenario
from scenarios.serving.engine import Serve
from scenarios.serving.serving_report import Lateness, serving_section
from scenarios.serving.step_cost import GRAPH_SIZES, ModelStep, TableStep, interpolate
from scenarios.variants.optimum import find_optimum
from scenarios.workloads.calibrations import named_calibration
from scenarios.workloads.train_workload import DType
from sim.base import plugins
from sim.base.errors import InputError, OutOfMemoryError, StuckError

MS = 1_000_000
LINEAR = {
    "step": {"fixed": "1ms", "token": "10us"},
    "kv": {"blocks": 200},
    "requests": {"rate": "200/s", "prompt": [20, 60], "output": [5, 30], "count": 60},
}
MODEL = {
    "model": "llama3-8b",
    "calibration": "h100-sxm",
    "requests": {"rate": "20/s", "prompt": 300, "output": 20, "count": 20},
}


def run(serving: dict[str, Any], policy: Any = "vllm-0.19", **more: Any) -> Result:
    """Run a scenario, and hold its trace to the invariants."""
    text = json.dumps({"workload": {"serving": serving}, "policy": policy, **more})
    return run_scenario(read_scenario(text), check=True)


def test_steps_are_tasks_and_parts_add_up() -> None:
    result = run({**LINEAR, "parallel": {"replicas": 2}, "router": "least-outstanding"})
    told = result.summary["serving"]
    assert told["requests"] == 60
    assert sum(each["steps"] for each in told["engines"]) == len(result.trace.tasks["op"])
    assert sum(each["busy_ns"] for each in told["engines"]) == sum(
        device["busy_ns"] for device in result.summary["devices"].values()
    )
    for when, metric in (("first", "ttft"), ("all", "e2el")):
        parts = sum(told["mean_parts_ns"][when].values())
        assert parts == pytest.approx(told[f"mean_{metric}_ms"] * MS)
    for each in told["engines"]:
        assert max([n for _, n in each["waiting"]], default=0) == each["peak_waiting"]
    for each in told["slowest"]:
        assert sum(each["first_ns"].values()) == each["ttft_ns"]
        assert sum(each["all_ns"].values()) == each["e2el_ns"]


@pytest.mark.parametrize(("seats", "queue"), [(1, True), (60, False)])
def test_who_was_ahead_is_a_column_if_there_was_a_queue(seats: int, queue: bool) -> None:
    result = run(LINEAR, {"name": "vllm-0.19", "max_num_seqs": seats})
    slowest = next(table for each in result.sections for table in each.tables if "slowest" in table[0])
    assert ("behind" in slowest[0]) is queue


def test_memory_of_a_replica() -> None:
    """Llama 3 8B in bf16: 16.06 GB of weights, 128 KiB a token of keys and values, 16 tokens a block."""
    told = run({**MODEL, "parallel": {"replicas": 2}}).summary
    for name, engine in zip(("replica0", "replica1"), told["serving"]["engines"], strict=True):
        device = told["devices"][name]
        blocks = told["serving"]["kv_blocks"] - engine["peak_blocks"]
        assert device["peak_reserved_bytes"] - device["peak_memory_bytes"] == blocks * 16 * 131072
        assert 16.06e9 < device["peak_memory_bytes"] - engine["peak_blocks"] * 16 * 131072 < 18e9
        assert 0.89 * 85.02e9 < device["peak_reserved_bytes"] <= 0.9 * 85.02e9
    unknown = run(LINEAR)
    assert unknown.summary["devices"]["replica0"]["peak_memory_bytes"] is None
    assert "not known" in str(unknown.sections)


def test_engines_compare_by_what_they_serve(tmp_path: Path) -> None:
    """The last request comes late: all end with it, and the batcher that lets the others wait is worst."""
    rows = [{"id": f"r{i}", "arrival": f"{i}ms", "prompt": 10, "output": 20} for i in range(8)]
    rows.append({"id": "late", "arrival": "9s", "prompt": 10, "output": 1})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    serving = {**LINEAR, "requests": {"trace": "rows.jsonl"}, "limits": {"ttft": "15ms"}}
    text = json.dumps(
        {"workload": {"serving": serving}, "policy": "static", "compare": ["orca", "vllm-0.19"]}
    )
    scenario = read_scenario(text, folder=tmp_path)
    results = [run_scenario(scenario, policy) for policy in (None, "orca", "vllm-0.19")]
    assert len({result.trace.makespan_ns for result in results}) == 1
    compared = Comparison(results)
    good = {row["policy"]: float(row["goodput/s"]) for row in compared.rows}
    assert [*good][-1] == "static"
    assert sorted(good.values(), reverse=True) == [*good.values()]
    assert good["static"] < good["orca"]
    first, *_, last = [why for _, why in compared.reasons]
    assert first.startswith("a request takes ")
    assert "longer: +" in last
    assert "next step" in last
    assert not any("lower bound" in str(each) for each in compared.sections)


def test_steps_have_no_other_order() -> None:
    with pytest.raises(InputError, match="its steps are what its batcher decided"):
        find_optimum([run(LINEAR)], limit_ns=MS)


@pytest.mark.parametrize("policy", ["vllm-0.19", "static", "orca", "vllm-v0", "sarathi"])
def test_every_batcher_serves(policy: str) -> None:
    told = run(LINEAR, policy).summary["serving"]
    assert told["completed"] == 60
    assert told["total_output_tokens"] >= 60 * 5


@pytest.mark.parametrize("policy", ["vllm-0.19", "static", "orca", "vllm-v0", "sarathi"])
def test_a_batcher_without_seats_is_refused(policy: str) -> None:
    with pytest.raises(InputError, match="max_num_seqs must be a whole number of at least 1; found 0"):
        run(LINEAR, {"name": policy, "max_num_seqs": 0})


@pytest.mark.parametrize("option", ["long_prefill_token_threshold", "num_speculative_tokens"])
def test_counts_of_tokens_are_not_negative(option: str) -> None:
    with pytest.raises(InputError, match=f"{option} must be a whole number of at least 0; found -1"):
        run(LINEAR, {"name": "vllm-0.19", option: -1})


@pytest.mark.parametrize("come", [{"rate": "200/s"}, {"in_flight": 2}])
def test_a_prompt_that_no_step_may_hold_ends_the_run(come: dict[str, Any]) -> None:
    """Also where the next request comes when another one has ended, which none ever does."""
    serving = {**LINEAR, "requests": {**come, "prompt": 20, "output": 5, "count": 9}}
    with pytest.raises(StuckError, match="r0, has 20 tokens to compute at once: a step may have fewer"):
        run(serving, {"name": "vllm-v0", "max_num_batched_tokens": 10})


@pytest.mark.parametrize(("batcher", "surplus"), [("vllm-v0", 13), ("vllm-0.19", 0)])
def test_tokens_that_nobody_asked_for_are_told(batcher: str, surplus: int) -> None:
    """At 33 tokens each needs a third block, of five; the second, with 13 outputs, begins again."""
    requests = {"in_flight": 2, "prompt": 20, "output": 20, "count": 2}
    found = run({**LINEAR, "kv": {"blocks": 5 + (not surplus)}, "requests": requests}, {"name": batcher})
    told = found.summary["serving"]
    assert (told["preemptions"], told["surplus_tokens"]) == (1, surplus)
    assert told["total_output_tokens"] == 2 * 20 + surplus
    lines = [line for line in serving_section(told).lines if "more than was asked for" in line]
    assert [line.split()[0] for line in lines] == ["13"] * (surplus > 0)


def test_drafts_that_nobody_accepts_are_told() -> None:
    requests = {"in_flight": 1, "prompt": 20, "output": 5, "count": 2}
    with pytest.warns(UserWarning, match="no draft is accepted: no request says how many are"):
        found = run({**LINEAR, "requests": requests}, {"name": "vllm-0.19", "num_speculative_tokens": 3})
    assert found.summary["serving"]["short_run"] is None


def test_prompts_are_computed_apart_and_pulled() -> None:
    few = {**MODEL, "requests": {"rate": "2/s", "prompt": 300, "output": 20, "count": 20, "burstiness": 1e9}}
    together, apart = run(few), run({**few, "prefill": {"bandwidth": "1GB/s", "latency": "2ms"}})
    told = apart.summary["serving"]
    assert [each["name"] for each in told["engines"]] == ["replica0", "prefill0"]
    assert told["gpus"] == 2
    cached = ["% of prompt tokens were in the cache; 0", "% of prompt tokens were in the cache or pulled; 0"]
    for result, says in zip((together, apart), cached, strict=True):
        assert says in "".join(line for section in result.sections for line in section.lines)
    # 2 bytes, keys and values of 8 heads of 128 in 32 layers, 300 tokens, at 1 GB/s, and looked at each ms
    pull_ms = 2 + 300 * 2 * 2 * 8 * 128 * 32 / 1e6
    assert pull_ms < told["mean_parts_ns"]["first"]["pull"] / MS < pull_ms + 25
    assert told["engines"][0]["tokens"] == 20 * 20  # the last token of a prompt, and all but the last answer
    assert told["mean_ttft_ms"] > together.summary["serving"]["mean_ttft_ms"]


def test_a_pool_of_prompts_that_is_full_waits_for_pulls() -> None:
    """Blocks of a computed prompt are kept until it was pulled."""
    told = run(
        {
            **MODEL,
            "kv": {"blocks": 41},
            "prefill": {"bandwidth": "10GB/s"},
            "requests": {"in_flight": 8, "prompt": 300, "output": 20, "count": 16},
        }
    ).summary["serving"]
    assert told["completed"] == 16
    assert told["mean_parts_ns"]["all"]["shared"] == 0  # the last token of a pulled prompt is no prefill
    assert max(each["peak_blocks"] for each in told["engines"]) <= 40


@pytest.mark.parametrize(
    ("method", "line", "message"),
    [
        ("fill(self, step)", "raise KeyError(step.why)", "py:5: KeyError: None"),
        (
            "fill(self, step, now)",
            "pass",
            "should have a method fill(step): missing a required argument: 'now'",
        ),
        ("fill(self, step)", "step.tokens[self.waiting[0]] = 20", "r0 20 tokens, and it is not in `running`"),
        ("fill(self, step)", "step.tokens |= {r: 21 for r in self.admitted()}", "r0 21 tokens, of 20 left"),
        ("fill(self, step)", "pass", "the batcher Mine does not say why"),
        ("arrive(self, request)", "pass", "unfinished, but by no replica's batcher: r0, r1, r2 and 57 more"),
        ("fill(self, step)", "step.why = 'full'", "`why` should be one of blocks, budget, seats, not 'full'"),
        (
            "fill(self, step)",
            "step.tokens = None",
            "Mine.fill: the tokens of a step should be a dict, not None",
        ),
    ],
)
def test_a_mistake_of_a_batcher_is_told(tmp_path: Path, method: str, line: str, message: str) -> None:
    own = f"class Mine(Batcher):\n    def {method}:\n        {line}\n"
    own += "    def admitted(self):\n        self.running.append(self.waiting.popleft())\n"
    text = f"from policies.serving.batcher import Batcher, Step\n\n{own}        return self.running\n"
    (tmp_path / f"{tmp_path.name}.py").write_text(text)
    serving = {**LINEAR, "requests": {"rate": "200/s", "prompt": 20, "output": 5, "count": 60}}
    given = {"workload": {"serving": serving}, "policy": f"{tmp_path.name}:Mine"}
    (tmp_path / "s.yaml").write_text(json.dumps(given))
    done = sim("run", tmp_path / "s.yaml", "--allow-code")
    assert message in done.stderr
    assert done.exit_code in (1, 2)


@pytest.mark.parametrize("answer", [None, "0", 1.0, 2, -1])
def test_a_wrong_replica_of_a_router_is_named(answer: Any) -> None:
    class Mine(RequestRouter):
        def route(self, request: Request, loads: Sequence[int]) -> int:
            found: int = answer
            return found

    plugins.register("sim.routers", "mine", Mine)
    try:
        with pytest.raises(InputError, match=r"Mine\.route returned .* 'r0', should be .* from 0 to 1"):
            run({**LINEAR, "parallel": {"replicas": 2}, "router": "mine"})
    finally:
        plugins.unregister("sim.routers", "mine")


def test_expectations_and_sweeps_know_its_results(tmp_path: Path) -> None:
    expect = {
        "goodput": {"at_least": "1/s"},
        "ttft_p99": {"at_most": "1s"},
        "tpot_mean": {"at_most": "1s"},
        "replicas": 1,
        "hit_share": {"at_most": "0%"},
    }
    file = tmp_path / "s.yaml"
    serving = {**LINEAR, "parallel": {"replicas": 1}, "limits": {"ttft": "1s", "tpot": "1s"}}
    file.write_text(json.dumps({"workload": {"serving": serving}, "expect": expect}))
    assert sim("check", file).exit_code == 0
    key = "workload.serving.parallel.replicas"
    found = sim(
        "sweep", file, "--vary", f"{key}=1,2", "--minimise", "replicas", "--subject-to", "goodput>=1/s"
    )
    assert found.exit_code == 0
    assert "best: replicas=1" in found.stdout
    tried = sim("whatif", file, "--only", "tokens")
    assert tried.exit_code == 0
    assert "twice the tokens of a step" in tried.stdout


def test_a_batcher_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from policies.serving.classic import Static\n"
        "class OneByOne(Static):\n"
        "    '''One request at a time.'''\n"
        "    def __init__(self, *, seats: int = 1) -> None:\n"
        "        super().__init__(max_num_seqs=seats)\n"
    )
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps({"workload": {"serving": LINEAR}, "policy": "mine:OneByOne"}))
    refused = sim("run", file)
    assert refused.exit_code == 2
    assert "--allow-code" in refused.stderr
    assert sim("run", file, "--allow-code").exit_code == 0
    other = sim("run", file, "--allow-code", "--policy", "collections:Counter").stderr
    assert "'collections:Counter' should extend policies" in other
    assert "name:" not in other  # which would be that of the scenario


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": None}, "needs model and calibration, or step"),
        ({"kv": {}}, "needs blocks"),
        ({"max_model_len": 50}, "can never be served"),
        ({"kv": {"blocks": 3}}, "more blocks than the 2 there are"),
        ({"router": "prefix-awar", "parallel": {"replicas": 2}}, "did you mean 'prefix-aware'"),
        ({"prefill": {"bandwidth": "1GB/s"}}, "needs model and calibration"),
        ({"model": "llama3-8b"}, "has no effect beside step"),
        ({"requests": {"rate": "8/s", "prompt": 1, "output": 1, "count": 10**8}}, "more than the 10,000,000"),
        (
            {"requests": {"rate": "8/s", "prompt": [3], "output": 1, "count": 5}},
            r"prompt: should have at least 2 items, not \[3\]",
        ),
        ({"calibration": []}, r"^[^\n]*calibration: should be text or a mapping \(KEY: VALUE\), not \[\]"),
        (
            {"requests": {"rate": "1e-300/s", "prompt": 1, "output": 1, "count": 50}},
            "50 requests comes 146 years",
        ),
        ({"requests": {"trace": "no.jsonl"}}, "requests.trace: ([^ ]*no.jsonl): no such file"),
        ({**MODEL, "step": None, "kv": {"blocks": 10**6}}, "1,000,000 blocks take 2.097 TB .* has 85.02 GB"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run({key: value for key, value in {**LINEAR, **change}.items() if value is not None})


def test_a_model_that_leaves_no_room_says_what_helps() -> None:
    more = r"what would help  more GPUs a replica \(parallel.tp\), a smaller dtype"
    with pytest.raises(OutOfMemoryError, match=f"{more}$"):  # the weights alone are too large
        run({**MODEL, "model": "llama3-70b"})
    with pytest.raises(OutOfMemoryError, match=f"{more}, kv.dtype: fp8$"):
        run({**MODEL, "requests": {"in_flight": 1, "prompt": 600_000, "output": 1, "count": 1}})


# -- what a step takes ---------------------------------------------------------------------------------


def _step(*tokens: tuple[int, int]) -> Step:
    """Return a step of (tokens, tokens before them)."""
    made = Step()
    for i, (count, context) in enumerate(tokens):
        request = Request(f"r{i}", 0, count + context, 5)
        made.tokens[request] = count
        made.contexts.append(context)
        made.samples.append(request)
    return made


def test_steps_cost_more_with_more_to_do() -> None:
    step = ModelStep(Architecture(**MODELS["llama3-8b"]), named_calibration("h100-sxm"))
    few, many = step(_step(*[(1, 500)] * 8)), step(_step(*[(1, 500)] * 64))
    longer, prompt = step(_step(*[(1, 8000)] * 64)), step(_step((2048, 0), *[(1, 500)] * 8))
    assert few < many < longer
    assert many < prompt
    # weights of 8 billion parameters in 2 bytes at 3.35 TB/s take 4.8 ms
    assert 4.8 * MS < few < 8 * MS
    padded = {n: step(_step(*[(1, 500)] * n)) for n in (33, 40)}
    assert padded[33] <= padded[40]
    assert {size for size in GRAPH_SIZES if 32 < size <= 40} == {40}


def test_the_faster_all_reduce_is_taken() -> None:
    of = Architecture(**MODELS["llama3-70b"])
    step = ModelStep(of, named_calibration("h200-sxm"), 8)
    assert step.all_reduce_ns(4) == pytest.approx(peer_all_reduce_ns(8, 2 * 4 * of.hidden))
    assert step.all_reduce_ns(4096) < peer_all_reduce_ns(8, 2 * 4096 * of.hidden)


@given(st.floats(1, 3000), st.floats(1, 3000))
def test_between_sizes_a_plane_is_exact(x: float, y: float) -> None:
    sizes = (1, 2, 700, 3000)
    assert interpolate(lambda a, b: 3 * a + 2 * b + 1, (sizes, sizes), x, y) == pytest.approx(
        3 * x + 2 * y + 1
    )


@pytest.mark.parametrize(("times", "beyond"), [((5, 9, 10), (10, 10.5, 12)), ((5, 10, 9), (9, 9, 9))])
def test_beyond_the_last_size_a_line_goes_on_if_it_rises(times: Sequence[int], beyond: Sequence[int]) -> None:
    known = dict(zip((1, 2, 4), times, strict=True))
    assert tuple(interpolate(known.__getitem__, [[1, 2, 4]], size) for size in (4, 5, 8)) == beyond


def test_tables_of_measured_kernels(tmp_path: Path) -> None:
    """Two layers: norms twice, the product once, the embedding once for all; attention of both at once.

    What was measured twice takes the mean.
    """
    (tmp_path / "dense.csv").write_text(
        "layer,tokens,time_us\nembedding,1,1\nembedding,11,1\nlayernorm,1,2\nlayernorm,11,2\nqkv_proj,1,10\nqkv_proj,11,20\n"
    )
    (tmp_path / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,1,100\nlm_head,3,120\n")
    rows = [(0, 0, 1, 10, 5), (0, 0, 1, 20, 7), (8, 0, 0, 0, 9), (8, 0, 1, 10, 12)]
    rows += [(8, 0, 1, 20, 13), (8, 0, 1, 20, 15)]
    head = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
    (tmp_path / "attention.csv").write_text(head + "".join(",".join(map(str, row)) + "\n" for row in rows))
    step = TableStep(tmp_path, layers=2)
    # 1 + 2 (2 + 2 + 10) + 100 + 2 * 6
    assert step(_step((1, 14))) == 141_000
    # the chunk and the decode: 9 tokens take 18 in the product
    assert step(_step((8, 0), (1, 9))) == 1000 * (1 + 2 * (2 + 2 + 18) + 110 + 2 * 12)
    assert TableStep(tmp_path, 2, lambda tokens: 500.0)(_step((1, 14))) == 143_000
    for text, message in (
        ("chunk\n1\n", "cannot be read as a table of .*prefill_chunk"),
        (head, "should have rows"),
        (head + "0,0,1,10,-5\n", "should have rows, and in them numbers from 0 to 1,000"),
    ):
        (tmp_path / "attention.csv").write_text(text)
        with pytest.raises(InputError, match=rf"attention\.csv: {message}"):
            TableStep(tmp_path, layers=2)


def test_a_token_goes_to_its_experts_alone() -> None:
    """DeepSeek V3 has 256 experts, and eight of them take a token."""
    model = Architecture(**MODELS["deepseek-v3"])
    gpu = ModelStep(model, named_calibration("h100-sxm"))
    copies, seats = 8192 * 8, 256
    dispatched = 2 * 7168 * copies
    assert gpu.activations(8192, seats) == pytest.approx(
        dispatched + 2 * 2 * 2048 * copies + 4 * 7168 * 8192 + 4 * seats * model.vocabulary, rel=0.02
    )


@pytest.mark.parametrize("dtype", get_args(DType))
def test_every_type_of_products_is_served(dtype: str) -> None:
    """Weights take what the type says, so narrower ones leave more blocks."""
    assert dtype in ("bf16", "fp16") or blocks_of(dtype) > blocks_of("bf16")


@cache
def blocks_of(dtype: str) -> int:
    """Return the blocks that a served model leaves."""
    told = run({**MODEL, "calibration": "b200-sxm", "dtype": dtype}).summary["serving"]
    return int(told["kv_blocks"])


def test_decodes_after_a_preemption_are_no_recompute() -> None:
    """What was lost is computed again in one step, less what the prefix cache still has."""
    requests = [Request(f"r{i}", i, 16, 12) for i in range(2)]
    batcher = Vllm019(async_scheduling=False)
    batcher.begin(KvBlocks(11, 4, 1), 28)
    serve = Serve(linear_step(MS), [batcher])
    serve.run(requests)
    assert requests[1].preemptions == 1
    assert any(what == "recompute" for _, _, what in serve.events)
    of = Lateness(serve, requests).all.loc["r1"]
    assert of["recompute"] == MS
    assert of["prefill"] + of["decode"] + of["shared"] == 11 * MS


def test_a_replica_without_requests_is_reported() -> None:
    few = {**LINEAR["requests"], "count": 2}
    told = run({**LINEAR, "requests": few, "parallel": {"replicas": 3}}).summary
    assert [each["steps"] > 0 for each in told["serving"]["engines"]] == [True, True, False]
    assert told["serving"]["engines"][2]["peak_blocks"] == 0
