"""Large recordings: profiler traces of a million events imported, 45,000 recorded tasks run, by CPU time.

    python benchmarks/bench_recordings.py          the table
    make bench                                     the ratios, held to their budgets

In raw SimPy timeouts for each event, or for each task, whole commands::

    a million events     sim import of one process
    ... of 8 ranks       sim import of the folder of a job
    45,248 tasks         sim run of the graph file that such an import wrote, on streams and a thread
    ... of the trace     sim run of the trace itself, of 337,793 events

The traces are made (`made_recordings.py`).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from bench_command import SIM, Large, needs_compiler, print_cases, run_of
from made_recordings import write_recording

SCENARIO = """\
machine:
  devices:
    gpu: {kind: gpu, streams: 2}
    cpu: {kind: cpu, cores: 1}
workload: {graph: graph.json.gz}
policy: {name: ready-queue, synchronisation: issue, streams: recorded}
"""


def one_process(folder: Path) -> tuple[list[str], int]:
    """Return what imports the trace of one process, and its number of events."""
    events = write_recording(folder / "trace.json.gz", 166)
    return [*SIM, "import", str(folder / "trace.json.gz"), "--out", str(folder / "graph.json.gz")], events


def eight_ranks(folder: Path) -> tuple[list[str], int]:
    """Return what imports the traces of a job, and their number of events."""
    job, out = folder / "job", folder / "graph.json.gz"
    job.mkdir()
    events = [write_recording(job / f"rank{r}.json.gz", 21, rank=r, world_size=8) for r in range(8)]
    return [*SIM, "import", str(job), "--format", "kineto", "--out", str(out)], sum(events)


_OPS_OF_STEP = 2 * 403 + 2
"""Tasks of the GPU and their launches, the host's work and its wait."""


def trace(folder: Path) -> tuple[list[str], int]:
    """Return what runs a trace, and its number of tasks."""
    write_recording(folder / "trace.json.gz", 56)
    return [*SIM, "run", str(folder / "trace.json.gz"), "--json"], 56 * _OPS_OF_STEP


def tasks(folder: Path) -> tuple[list[str], int]:
    """Return what runs an imported recording, and its number of tasks: those of the GPU, and of the host."""
    write_recording(folder / "trace.json.gz", 56)
    out = folder / "graph.json.gz"
    subprocess.run([*SIM, "import", str(folder / "trace.json.gz"), "--out", str(out)], check=True)
    return run_of(SCENARIO, folder), 56 * _OPS_OF_STEP


CASES = {
    "a million events": Large(one_process, 8, 0.5),
    "... of 8 ranks": Large(eight_ranks, 8.5, 0.5),
    "45,248 tasks": Large(tasks, 30, 0.16),
    "... of the trace": Large(trace, 52, 0.2),
}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_a_large_recording(name: str, tmp_path: Path) -> None:
    CASES[name].hold(tmp_path)


if __name__ == "__main__":
    print_cases(CASES, __doc__.splitlines()[0])
