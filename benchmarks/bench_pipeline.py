"""A large pipeline from its schedule to its numbers: 64 ranks × 4 chunks × 512 micro-batches.

262,144 tasks and 262,000 transfers: generating the order, writing the graph, simulating it, and all that
`sim run --json` tells. The budget of 15 s is for the whole.

    python -m pytest benchmarks/bench_pipeline.py -n 0 -o python_files="bench_*.py"
"""

from __future__ import annotations

import time
from pathlib import Path

from scenarios.load import load_scenario
from scenarios.run import run_scenario

SECONDS = 15.0

SCENARIO = """\
workload:
  pipeline: {stages: 256, chunks: 4, micro_batches: 512, forward: 1ms, backward: 2ms, transfer: 0.1ms}
policy: interleaved-1f1b
"""


def test_a_large_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    began = time.perf_counter()
    told = run_scenario(load_scenario(path)).to_json()
    seconds = time.perf_counter() - began
    print(f"{told['tasks']:,} tasks in {seconds:.1f} s")
    assert told["tasks"] == 2 * 256 * 512
    assert told["pipeline"]["bubble"] < 0.15
    assert seconds < SECONDS
