"""Chrome traces without a GPU: the message says what the file seems to be, and what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.importers import load_graph
from sim.base.errors import InputError


def event(category: str | None, name: str = "x", **more: Any) -> dict[str, Any]:
    found = {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 0, "dur": 1, "args": {"correlation": 1}}
    return found | ({} if category is None else {"cat": category}) | more


def process(name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}


OTHERS: dict[str, tuple[Any, str]] = {
    "PyTorch, CPU": (
        {"traceEvents": [event("cpu_op", "aten::mm"), event("user_annotation")]},
        r"CPU alone: profile with ProfilerActivity\.CUDA, too \(2 events: 1 cpu_op, 1 user_annotation\)",
    ),
    "PyTorch, no CUPTI": (
        {"traceEvents": [event("cuda_runtime", "cudaLaunchKernel"), event("cpu_op")]},
        r"calls of the GPU's runtime but not what they launched.*\(2 events",
    ),
    "TensorFlow": (
        {"traceEvents": [process("/job:localhost/replica:0/task:0/device:CPU:0 Compute"), event("Op")]},
        r"TensorFlow or JAX wrote it.* beside it \(2 events: 1 without a category, 1 Op\)",
    ),
    "JAX": (
        {"displayTimeUnit": "ns", "traceEvents": [process("/device:TPU:0"), event(None)]},
        "TensorFlow or JAX",
    ),
    "nobody knows": (
        {"traceEvents": [event(f"c{k}") for k in range(9) for _ in range(9 - k)]},
        r"in the trace \(45 events: 9 c0, 8 c1, 7 c2, 6 c3, 5 c4, \.\.\.\)",
    ),
    "empty": ({"traceEvents": []}, "in the trace, which has no events"),
    "no events at all": ({"traceEvents": []}, "in the trace, which has no events"),
}


@pytest.mark.parametrize("who", OTHERS)
def test_a_trace_without_a_gpu_says_whose_it_may_be(who: str, tmp_path: Path) -> None:
    content, message = OTHERS[who]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as found:
        load_graph(path)
    assert str(found.value).startswith(f"{path}: no kernel, copy or fill of a GPU in the trace")
    assert "\n" not in str(found.value)
