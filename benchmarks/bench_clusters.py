"""Clusters: one data-parallel step of 1,000 ops on many GPUs, whole commands by CPU time.

    python benchmarks/bench_clusters.py            the table
    make bench                                     the ratios, held to their budgets

In raw SimPy timeouts for each task of a rank that is simulated, for each message, or for each rank that is
folded::

    1,024 ranks             simulated one by one: plain GPUs, whose collectives have a bandwidth
    1,024 H100              presets of H100 behind a switch: they share SMs, pay for launches, use routes
    64 ranks, flows         every message of every ring goes over the links
    16,384 ranks, folded    plain GPUs, of which one is made; two of them are slower
    16,384 in 2,048 nodes   DGX H100 on rails, NCCL's choice, folded: mostly the description of the machine
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from bench_command import Large, needs_compiler, print_cases, run_of

LAYERS = 250
"""Each has a forward, a backward for its input and its weight, and an update."""


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


def cluster(folder: Path, ranks: int, machine: str, more: str, each: int = 1) -> tuple[list[str], int]:
    """Return what runs a step on so many ranks, and how many ranks, tasks or messages it has."""
    return run_of(scenario(ranks, machine, more), folder), ranks * each


def scenario(ranks: int, machine: str, more: str) -> str:
    """Return the text of a scenario."""
    parameters = ", ".join(f"w{k}: 4MB" for k in range(LAYERS))
    ops = [
        f"    l{k}: {{kind: matmul, inputs: [{before}, w{k}], output: 4MB, duration: 50us}}"
        for k, before in enumerate(["x", *(f"l{k}" for k in range(LAYERS - 1))])
    ]
    return "\n".join(
        (
            f"machine:\n{machine.format(ranks=ranks)}",
            f"workload:\n  inputs: {{x: 4MB}}\n  parameters: {{{parameters}}}\n  ops:",
            *ops,
            f"policy: {{runtime: pytorch-distributed, compile: [training, {{name: ddp, ranks: {ranks}}}]}}",
            more,
        )
    )


def _large(timeouts: float, gib: float, **what: object) -> Large:
    return Large(partial(cluster, **what), timeouts, gib)  # type: ignore[arg-type]


ALL, FOLDED = "fold: false", "fold: true"
SLOW = "noise: {devices: {gpu17: 1.2, gpu99: 1.5}}"
CASES = {
    "1,024 ranks": _large(11, 1.05, ranks=1024, machine=PLAIN, more=ALL, each=1037),
    "1,024 H100": _large(
        15, 1.75, ranks=1024, machine=H100.replace("{model}", "formula"), more=ALL, each=1037
    ),
    "64 ranks, flows": _large(
        36, 0.32, ranks=64, machine=H100.replace("{model}", "flows"), more=ALL, each=4662
    ),
    "16,384 ranks, folded": _large(170, 0.15, ranks=16384, machine=PLAIN, more=SLOW),
    "16,384 in 2,048 nodes": _large(170, 0.15, ranks=16384, machine=DGX, more=FOLDED),
}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_a_step_on_a_cluster(name: str, tmp_path: Path) -> None:
    CASES[name].hold(tmp_path)


if __name__ == "__main__":
    print_cases(CASES, __doc__.splitlines()[0])
