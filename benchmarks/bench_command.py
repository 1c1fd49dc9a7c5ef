"""Whole commands by CPU time, each as a ratio to something measured in turn with it.

    python benchmarks/bench_command.py             the table
    make bench                                     the ratios, held to their budgets

A small scenario, in imports of numpy. A graph file of a million ops (layered, as in `bench_engine.py`) and a
pipeline of 64 ranks, 4 chunks and 512 micro-batches, in raw SimPy timeouts for each op, task and transfer.
Run it where Python may write bytecode: what it measures is an installed package, not Python's compiler.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest
from bench_engine import layered, raw_timeouts

from scenarios.importers.graph_json import write_graph
from sim.kernel.run import compiled

ROOT = Path(__file__).parents[1]
SIM = [sys.executable, "-c", "from scenarios.cli import app; app()"]
SMALL = [*SIM, "run", str(ROOT / "scenarios/examples/branches.yaml")]

OPS = 1_000_000
GRAPH = f"""\
machine:
  devices: {{{", ".join(f"d{k}: {{kind: gpu}}" for k in range(8))}}}
workload: {{graph: graph.json}}
policy: ready-queue
"""
PIPELINE = """\
workload:
  pipeline: {stages: 256, chunks: 4, micro_batches: 512, forward: 1ms, backward: 2ms, transfer: 0.1ms}
policy: interleaved-1f1b
"""

MARGIN = 1.3
"""What a machine may need beyond what is noted below."""

IMPORTS = 2.5
"""Imports of numpy that the small scenario takes."""


def cpu_s(command: list[str]) -> float:
    """Return the CPU time of a process, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak_gib(command: list[str]) -> float:
    """Return the memory that a process takes at its peak.

    The peak counts what its parent holds, so that its parent is a new process.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as parent:
        return parent.submit(_peak_gib, command).result()


def _peak_gib(command: list[str]) -> float:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_maxrss / 2**20


def imports_of_numpy(command: list[str], rounds: int = 9) -> float:
    """Return the CPU time of a command in imports of numpy, the median of pairs."""
    numpy = [sys.executable, "-c", "import numpy"]
    cpu_s(command), cpu_s(numpy)  # bytecode and file cache
    return statistics.median(cpu_s(command) / cpu_s(numpy) for _ in range(rounds))


def run_of(text: str, folder: Path) -> list[str]:
    """Return the command that runs a scenario of this text."""
    scenario = folder / "scenario.yaml"
    scenario.write_text(text, encoding="utf-8")
    return [*SIM, "run", str(scenario), "--json"]


def graph(folder: Path) -> tuple[list[str], int]:
    """Return what runs a graph file, and its number of ops."""
    write_graph(layered(OPS), folder / "graph.json")
    return run_of(GRAPH, folder), OPS


def pipeline(folder: Path) -> tuple[list[str], int]:
    """Return what runs a pipeline, and its number of tasks and transfers."""
    return run_of(PIPELINE, folder), 4 * 256 * 512


def timeout_s(n: int = 200_000) -> float:
    """Return the CPU time of a raw timeout."""
    before = time.process_time()
    raw_timeouts(n, 8)
    return (time.process_time() - before) / n


def timeouts_each(command: list[str], n: int, rounds: int = 3) -> tuple[float, float]:
    """Return the CPU seconds of a command, the best of the rounds, and its raw timeouts each, the median."""
    pairs = [(cpu_s(command), timeout_s()) for _ in range(rounds)]
    return min(took for took, _ in pairs), statistics.median(took / n / timeout for took, timeout in pairs)


class Large(NamedTuple):
    """A large command.

    Attributes
    ----------
    made : callable
        Writes what it needs into a folder; returns the command, and by how many its time is divided: ops,
        tasks, messages, ranks, events.
    timeouts : float
        Raw timeouts that each takes.
    gib : float
        Memory at its peak.
    rounds : int
        How often it is measured.
    """

    made: Callable[[Path], tuple[list[str], int]]
    timeouts: float
    gib: float
    rounds: int = 2

    def hold(self, folder: Path) -> None:
        """Hold it to what it may take."""
        command, n = self.made(folder)
        assert timeouts_each(command, n, self.rounds)[1] <= MARGIN * self.timeouts
        assert peak_gib(command) <= MARGIN * self.gib

    def told(self, name: str) -> str:
        """Return a line that says what it takes."""
        with tempfile.TemporaryDirectory() as folder:
            command, n = self.made(Path(folder))
            best, ratio = timeouts_each(command, n, self.rounds)
            gib = peak_gib(command)
        return f"{name} ({n:,}): {best:.2f} s of CPU, {ratio:.1f} raw timeouts each, {gib:.2f} GiB"


def print_cases(cases: Mapping[str, Large], title: str) -> None:
    """Print a line a case, or that of the one that ``--only`` names."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--only", choices=cases, metavar="CASE", help="the case to run")
    only = parser.parse_args().only
    for name in cases if only is None else [only]:
        print(cases[name].told(name), flush=True)


CASES = {"graph": Large(graph, 5.0, 0.8, rounds=3), "pipeline": Large(pipeline, 4.3, 0.45, rounds=3)}

needs_compiler = pytest.mark.skipif(not compiled(), reason="the kernel is not compiled")


@needs_compiler
def test_a_small_scenario_starts_at_once() -> None:
    assert imports_of_numpy(SMALL) <= MARGIN * IMPORTS


@needs_compiler
@pytest.mark.parametrize("what", CASES)
def test_a_large_command(what: str, tmp_path: Path) -> None:
    CASES[what].hold(tmp_path)


def main() -> None:
    """Print a line a command."""
    for name, command in {"sim run branches.yaml": SMALL, "sim --help": [*SIM, "--help"]}.items():
        print(f"{name}: {imports_of_numpy(command):.2f} x import numpy")
    print_cases(CASES, __doc__.splitlines()[0])


if __name__ == "__main__":
    main()
