"""Whole commands by CPU time, and their memory.

A small scenario, in imports of numpy. All others in raw SimPy timeouts for each op, task and transfer, rank,
message or event::

    graph                   a graph file of a million ops (layered, as in `bench_engine.py`)
    pipeline                64 ranks, 4 chunks, 512 micro-batches
    1,024 ranks             a data-parallel step, one by one: plain GPUs, whose collectives have a bandwidth
    1,024 H100              presets of H100 behind a switch: they share SMs, pay for launches, use routes
    64 ranks, flows         every message of every ring goes over the links
    16,384 ranks, folded    plain GPUs, of which one is made; two of them are slower
    16,384 in 2,048 nodes   DGX H100 on rails, NCCL's choice, folded: mostly the description of the machine
    a million events        sim import of the recording of one process (`made_recordings.py`)
    ... of 8 ranks          sim import of the folder of a job
    45,248 tasks            sim run of the graph file that such an import wrote, on streams and a thread
    ... of the trace        sim run of the trace itself, of 337,793 events

Run it where Python may write bytecode: what it measures is an installed package, not Python's compiler.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from bench_engine import layered
from made_recordings import write_recording
from measure import ROOT, cost, cpu_s, needs_compiler, peak_gib

from scenarios.importers.graph_json import write_graph

SIM = [sys.executable, "-c", "from scenarios.cli import app; app()"]

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
RECORDED = """\
machine:
  devices:
    gpu: {kind: gpu, streams: 2}
    cpu: {kind: cpu, cores: 1}
workload: {graph: graph.json.gz}
policy: {name: ready-queue, synchronisation: issue, streams: recorded}
"""
PLAIN = """\
  devices: {{gpu: {{kind: gpu, count: {ranks}, streams: 2, bandwidth: 1TB/s}}}}
  collectives: {{algorithm: ring, bandwidth: 50GB/s, latency: 5us}}
"""
H100 = """\
  devices: {{gpu: {{preset: h100-sxm, count: {ranks}, streams: 2}}}}
  topology: {{kind: switch, link: {{bandwidth: 50GB/s, latency: 1us}}}}
  collectives: {{model: {model}, algorithm: ring}}
"""
DGX = """\
  preset: dgx-h100
  nodes: 2048
  devices: {{gpu: {{streams: 2}}}}
  collectives: {{model: nccl, gpu: h100, times: tuner}}
"""
SLOW = "noise: {devices: {gpu17: 1.2, gpu99: 1.5}}"

LAYERS = 250
"""Of a data-parallel step; each has a forward, a backward for its input and its weight, and an update."""

STEPS, OPS_OF_STEP = 56, 2 * 403 + 2
"""Of a recording: tasks of the GPU and their launches, the host's work and its wait."""

MARGIN = 1.3
"""What a machine may need beyond what is noted below."""

IMPORTS = 2.5
"""Imports of numpy that the small scenario takes."""


def run_of(text: str, folder: Path) -> list[str]:
    """Return the command that runs a scenario of this text."""
    scenario = folder / "scenario.yaml"
    scenario.write_text(text, encoding="utf-8")
    return [*SIM, "run", str(scenario), "--json"]


def graph(folder: Path) -> list[str]:
    write_graph(layered(OPS), folder / "graph.json")
    return run_of(GRAPH, folder)


def cluster(folder: Path, ranks: int, machine: str, more: str, model: str = "") -> list[str]:
    """Return what runs a step of a data-parallel training on so many ranks."""
    parameters = ", ".join(f"w{k}: 4MB" for k in range(LAYERS))
    ops = [
        f"    l{k}: {{kind: matmul, inputs: [{before}, w{k}], output: 4MB, duration: 50us}}"
        for k, before in enumerate(["x", *(f"l{k}" for k in range(LAYERS - 1))])
    ]
    lines = (
        f"machine:\n{machine.format(ranks=ranks, model=model)}",
        f"workload:\n  inputs: {{x: 4MB}}\n  parameters: {{{parameters}}}\n  ops:",
        *ops,
        f"policy: {{runtime: pytorch-distributed, compile: [training, {{name: ddp, ranks: {ranks}}}]}}",
        more,
    )
    return run_of("\n".join(lines), folder)


def imported(folder: Path, steps: int = 166) -> list[str]:
    """Return what imports the trace of one process."""
    write_recording(folder / "trace.json.gz", steps)
    return [*SIM, "import", str(folder / "trace.json.gz"), "--out", str(folder / "graph.json.gz")]


def eight_ranks(folder: Path) -> list[str]:
    """Return what imports the traces of a job."""
    job, out = folder / "job", folder / "graph.json.gz"
    job.mkdir()
    for r in range(8):
        write_recording(job / f"rank{r}.json.gz", 21, rank=r, world_size=8)
    return [*SIM, "import", str(job), "--format", "kineto", "--out", str(out)]


def trace(folder: Path) -> list[str]:
    write_recording(folder / "trace.json.gz", STEPS)
    return [*SIM, "run", str(folder / "trace.json.gz"), "--json"]


def tasks(folder: Path) -> list[str]:
    subprocess.run(imported(folder, STEPS), check=True)
    return run_of(RECORDED, folder)


class Large(NamedTuple):
    """A large command.

    Attributes
    ----------
    made : callable
        Writes what it needs into a folder; returns the command.
    n : int
        By how many its time is divided.
    timeouts : float
        Raw timeouts that each takes.
    gib : float
        Memory at its peak.
    """

    made: Callable[[Path], list[str]]
    n: int
    timeouts: float
    gib: float


ALL, FOLDED = "fold: false", "fold: true"
CASES = {
    "graph": Large(graph, OPS, 5.0, 0.8),
    "pipeline": Large(partial(run_of, PIPELINE), 4 * 256 * 512, 4.3, 0.45),
    "1,024 ranks": Large(partial(cluster, ranks=1024, machine=PLAIN, more=ALL), 1024 * 1037, 11, 1.05),
    "1,024 H100": Large(
        partial(cluster, ranks=1024, machine=H100, more=ALL, model="formula"), 1024 * 1037, 15, 1.75
    ),
    "64 ranks, flows": Large(
        partial(cluster, ranks=64, machine=H100, more=ALL, model="flows"), 64 * 4662, 27, 0.34
    ),
    "16,384 ranks, folded": Large(partial(cluster, ranks=16384, machine=PLAIN, more=SLOW), 16384, 170, 0.15),
    "16,384 in 2,048 nodes": Large(partial(cluster, ranks=16384, machine=DGX, more=FOLDED), 16384, 170, 0.15),
    "a million events": Large(imported, 1_001_313, 8, 0.5),
    "... of 8 ranks": Large(eight_ranks, 1_013_384, 8.5, 0.5),
    "45,248 tasks": Large(tasks, STEPS * OPS_OF_STEP, 30, 0.16),
    "... of the trace": Large(trace, STEPS * OPS_OF_STEP, 52, 0.2),
}


@needs_compiler
@pytest.mark.parametrize(
    ("arguments", "imports"),
    [(["run", str(ROOT / "scenarios/examples/branches.yaml")], IMPORTS), (["--help"], IMPORTS)],
)
def test_a_small_command_starts_at_once(arguments: list[str], imports: float) -> None:
    """In imports of numpy, the median of pairs."""
    command, numpy = [*SIM, *arguments], [sys.executable, "-c", "import numpy"]
    cpu_s(command), cpu_s(numpy)  # bytecode and file cache
    ratio = statistics.median(cpu_s(command) / cpu_s(numpy) for _ in range(9))
    print(f"sim {arguments[0]}: {ratio:.2f} x import numpy")
    assert ratio <= MARGIN * imports


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_a_large_command(name: str, tmp_path: Path) -> None:
    made, n, timeouts, gib = CASES[name]
    command = made(tmp_path)
    found = cost(partial(cpu_s, command), n, rounds=2)
    peak = peak_gib(command)
    print(f"{name} ({n:,}): {found.us * n / 1e6:.2f} s, {found.timeouts:.1f} raw timeouts, {peak:.2f} GiB")
    assert found.timeouts <= MARGIN * timeouts
    assert peak <= MARGIN * gib
