"""``python -m studies.serving DATA [--replay FOLDER]``: predicted and measured latencies of served models.

DATA holds ``cluster/serving_silicon.csv.gz``. Each measured point is predicted
as a user would do it, and nothing is fitted. What the points leave open is assumed, once for all: requests
come as InferenceMAX sends them (lengths from four fifths to all, three times as many as are in flight), keys
and values are in fp8 if products are. With a checkout of casys-kaist/LLMServingSim two of its recorded runs
are replayed, too.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from scenarios.run.execute import run_scenario
from scenarios.run.load import read_scenario
from studies.program import run

_PRECISIONS = {"fp8": "fp8", "fp4": "nvfp4", "bf16": "bf16"}
_MODELS = {"meta-llama/Llama-3.1-70B": "llama3-70b"}


def point(row: Any) -> dict[str, Any]:
    """Return the scenario of a measured point."""
    dtype = _PRECISIONS[row.precision]
    most = {"prompt": int(row.isl), "output": int(row.osl)}
    lengths = {name: [round(0.8 * tokens), tokens] for name, tokens in most.items()}
    return {
        "workload": {
            "serving": {
                "model": _MODELS[row.model_path],
                "calibration": row.system.replace("_", "-"),
                "dtype": dtype,
                "kv": {"dtype": "bf16" if dtype == "bf16" else "fp8"},
                "parallel": {"tp": int(row.tp_size)},
                "requests": {"in_flight": int(row.batch_size), **lengths, "count": 3 * int(row.batch_size)},
            }
        }
    }


def served(scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the report of a run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: dict[str, Any] = run_scenario(
            read_scenario(json.dumps(scenario), folder=folder, allow_outside=True)
        ).numbers["serving"]
    return found


def judge_points(path: Path) -> pd.DataFrame:
    """Return measured and predicted latencies in ms, one row per point."""
    rows = pd.read_csv(path)
    rows = rows[(rows.backend == "vllm") & rows.model_path.isin(_MODELS) & (rows["mode"] == "agg")]
    found = []
    for row in rows.sort_values(["system", "precision", "tp_size", "isl", "osl", "batch_size"]).itertuples():
        told = served(point(row), path.parent)
        names = ("system", "precision", "tp_size", "isl", "osl", "batch_size")
        found.append({name: getattr(row, name) for name in names})
        found[-1] |= {"tpot": row.silicon_tpot_ms, "predicted": told["mean_tpot_ms"]}
        found[-1] |= {"ttft": row.silicon_ttft_ms, "predicted_ttft": told["mean_ttft_ms"]}
        print(".", end="", file=sys.stderr, flush=True)
    return pd.DataFrame(found).assign(error=lambda of: of.predicted / of.tpot - 1)


OFFLINE = {
    ("llama3-70b", 2048): {1: 15.882, 2: 17.934, 4: 18.487},
    ("llama3-405b", 128): {1: 3.530, 2: 3.583, 4: 3.734, 8: 3.974, 16: 4.375, 32: 5.130, 64: 6.919,
                           128: 10.340, 256: 17.750},
}  # fmt: skip
"""Model and tokens per answer to prompts of 128 -> seconds by batch, in fp8 on eight MI300X: vLLM's
``benchmark_latency`` by AMD (developer resources, performance results, vLLM 0.10.2, October 2025) and by
Oracle (blogs.oracle.com, serving Llama 3.1 405B, October 2024)."""


def judge_offline(*batches: int) -> pd.DataFrame:
    """Return measured and predicted seconds of batches that begin and end together; default: all."""
    found = []
    for (model, output), measured in OFFLINE.items():
        for batch in batches or measured:
            serving: dict[str, Any] = {"model": model, "calibration": "mi300x", "dtype": "fp8"}
            serving |= {"parallel": {"tp": 8}, "kv": {"dtype": "fp8"}}
            serving["requests"] = {"in_flight": batch, "prompt": 128, "output": output, "count": batch}
            told = served({"workload": {"serving": serving}}, Path())["mean_e2el_ms"] / 1000
            found.append((model, batch, measured[batch], told, told / measured[batch] - 1))
    return pd.DataFrame(found, columns=["model", "batch", "measured", "predicted", "error"])


_PCIE = {"bandwidth": "16GB/s", "latency": {"default": "10us"}}
REPLAYS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-32B": {
        "model": {"name": "llama3-70b", "layers": 64, "hidden": 5120},
        "calibration": {"device": "rtx-pro-6000", "node": _PCIE, "network": _PCIE},
        "parallel": {"tp": 2},
        "kv": {"blocks": 24628},
    },
    "meta-llama/Llama-3.1-8B": {"model": "llama3-8b", "parallel": {"tp": 1}, "kv": {"blocks": 30000}},
}
"""Models of LLMServingSim's recorded runs on RTX PRO 6000 -> what else the scenario says."""


def replay(checkout: Path) -> pd.DataFrame:
    """Return measured and predicted means of recorded runs, replayed with tables of their kernels.

    The trace is that which the benchmark sent: its token ids say which prompts begin alike.
    """
    found = []
    for name, serving in REPLAYS.items():
        folder = checkout / "bench/examples/RTXPRO6000" / name.split("/")[1] / "vllm"
        rows = pd.read_json(folder / "requests.jsonl", lines=True, convert_dates=False)
        # align the two clocks of a recording where the first request is queued
        sent = rows.arrival_time - rows.arrival_time[0] + rows.queued_ts[0]
        measured = {
            "ttft": (rows.first_token_ts - sent).mean(),
            "tpot": ((rows.last_token_ts - rows.first_token_ts) / (rows.output_toks - 1)).mean(),
            "e2el": (rows.last_token_ts - sent).mean(),
        }
        table = f"profiler/perf/RTXPRO6000/{name}/bf16/tp{serving['parallel']['tp']}"
        trace = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["dataset_path"]
        whole = {**serving, "step": {"table": table}, "requests": {"trace": trace}}
        policy = {"name": "vllm-0.19", "max_num_seqs": 128, "max_num_batched_tokens": 2048}
        told = served({"workload": {"serving": whole}, "policy": policy}, checkout)
        found += [(name, metric, 1000 * s, told[f"mean_{metric}_ms"]) for metric, s in measured.items()]
    return pd.DataFrame(found, columns=["model", "metric", "measured", "predicted"]).assign(
        error=lambda of: of.predicted / of.measured - 1
    )


def main(
    data: Path,
    checkout: Annotated[Path | None, typer.Option("--replay", help="a checkout of LLMServingSim")] = None,
) -> None:
    """Judge served latencies of a folder of data, and print the tables."""
    if checkout is not None:
        print(replay(checkout).to_string())
    print(judge_offline().round(3).to_string(index=False))
    found = judge_points(data / "cluster/serving_silicon.csv.gz")
    print(found.round(3).to_string(index=False))
    by = found.assign(absolute=found.error.abs()).groupby(["system", "precision"])
    means = by.agg(points=("error", "size"), error=("absolute", "mean"), bias=("error", "mean"))
    print(means.round(4).to_string())


if __name__ == "__main__":
    run(main)
