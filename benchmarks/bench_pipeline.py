"""A large pipeline from its schedule to its numbers: 64 ranks × 4 chunks × 512 micro-batches.

262,144 tasks and 262,000 transfers: generating the order, writing the graph, simulating it, and all that
`sim run --json` tells. The whole is held to what was noted here times `MARGIN`, in raw SimPy timeouts of the
same run for each task and each transfer, by CPU time: how fast the machine is, and how busy, does not count.

    python -m pytest benchmarks/bench_pipeline.py -n 0 -o python_files="bench_*.py"
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench_engine import raw_timeouts

from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario

NOTED = 15.0
"""Raw timeouts a task or transfer."""
MARGIN = 2.0

SCENARIO = """\
workload:
  pipeline: {stages: 256, chunks: 4, micro_batches: 512, forward: 1ms, backward: 2ms, transfer: 0.1ms}
policy: interleaved-1f1b
"""


def timeout_s(n: int = 500_000) -> float:
    """Return what a raw timeout takes at present, with one process a rank."""
    began = time.process_time()
    raw_timeouts(n, 64)
    return (time.process_time() - began) / n


def test_a_large_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    before = timeout_s()
    began = time.process_time()
    told = run_scenario(load_scenario(path)).to_json()
    seconds = time.process_time() - began
    ratio = seconds / (2 * told["tasks"]) / statistics.mean((before, timeout_s()))
    print(f"{told['tasks']:,} tasks in {seconds:.1f} s of CPU, {ratio:.1f} raw timeouts a task or transfer")
    assert told["tasks"] == 2 * 256 * 512
    assert told["pipeline"]["bubble"] < 0.15
    assert ratio <= MARGIN * NOTED
