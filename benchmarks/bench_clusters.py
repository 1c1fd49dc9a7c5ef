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

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from bench_command import MARGIN, SIM, needs_compiler, peak_gib, timeouts_each

LAYERS = 250
"""Each has a forward, a backward for its input and its weight, and an update."""


class Case(NamedTuple):
    """What is run.

    Attributes
    ----------
    ranks : int
    machine : str
        Of the scenario.
    more : str
        What else the scenario says.
    n : int
        By how many the time is divided: tasks, messages, ranks.
    timeouts : float
        Raw timeouts that each takes.
    gib : float
        Memory at its peak.
    """

    ranks: int
    machine: str
    more: str
    n: int
    timeouts: float
    gib: float


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

CASES = {
    "1,024 ranks": Case(1024, PLAIN, "fold: false", 1024 * 1037, 11, 1.05),
    "1,024 H100": Case(1024, H100.replace("{model}", "formula"), "fold: false", 1024 * 1037, 15, 1.75),
    "64 ranks, flows": Case(64, H100.replace("{model}", "flows"), "fold: false", 64 * 4662, 36, 0.32),
    "16,384 ranks, folded": Case(
        16384, PLAIN, "noise: {devices: {gpu17: 1.2, gpu99: 1.5}}", 16384, 170, 0.15
    ),
    "16,384 in 2,048 nodes": Case(16384, DGX, "fold: true", 16384, 170, 0.15),
}


def scenario(case: Case) -> str:
    """Return the text of a scenario."""
    n = case.ranks
    parameters = ", ".join(f"w{k}: 4MB" for k in range(LAYERS))
    ops = [
        f"    l{k}: {{kind: matmul, inputs: [{before}, w{k}], output: 4MB, duration: 50us}}"
        for k, before in enumerate(["x", *(f"l{k}" for k in range(LAYERS - 1))])
    ]
    return "\n".join(
        (
            f"machine:\n{case.machine.format(ranks=case.ranks)}",
            f"workload:\n  inputs: {{x: 4MB}}\n  parameters: {{{parameters}}}\n  ops:",
            *ops,
            f"policy: {{runtime: pytorch-distributed, compile: [training, {{name: ddp, ranks: {n}}}]}}",
            case.more,
        )
    )


def command(case: Case, folder: Path) -> list[str]:
    """Return what runs a case."""
    path = folder / "scenario.yaml"
    path.write_text(scenario(case), encoding="utf-8")
    return [*SIM, "run", str(path), "--json"]


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_a_step_on_a_cluster(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    run = command(case, tmp_path)
    assert timeouts_each(run, case.n, rounds=2)[1] <= MARGIN * case.timeouts
    assert peak_gib(run) <= MARGIN * case.gib


def main() -> None:
    """Print a line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="the case to run")
    only = parser.parse_args().only
    for name, case in CASES.items():
        if only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                run = command(case, Path(folder))
                best, ratio = timeouts_each(run, case.n, rounds=2)
                print(
                    f"{name}: {best:.2f} s of CPU, {ratio:.1f} raw timeouts each, {peak_gib(run):.2f} GiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
