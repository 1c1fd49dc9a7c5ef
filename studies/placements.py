"""Greedy, HEFT and auto-tuned placement of one graph over a CPU and two GPUs, against a lower bound.

    python -m studies.placements GRAPH.json.gz ... [--budget 30]
    python -m studies.placements InceptionV3.json.gz ResNet50_train.json.gz --training --times 32

``--training`` turns a forward graph into a training step, and ``--times`` enlarges it; a graph that already
is a training step stays as it is.

HEFT and the greedy placer plan only with durations and copies; the simulator adds what they do not see (a
host that launches op after op, links that carry one copy at a time), so that a single GPU can be better than
either. A search by simulation sees everything, and is never worse than its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import typer

from devices.machine import make_machine
from policies.issue.ready_queue import ReadyQueue
from policies.placement.auto_tune import AutoTune
from policies.placement.list_schedule import Greedy, Heft
from policies.placement.simple import SinglePlacement
from policies.rewrite.backward import OPTIMIZERS, TrainingRewrite
from policies.rewrite.batch import Batch
from policies.rewrite.simplify import BatchNorm
from scenarios.importers import load_graph
from sim import Graph, Machine, simulate
from sim.base.arrays import UNSET
from sim.graph.graph import longest_path_ns
from sim.job.costs import costs_ns
from sim.job.job import Placement
from studies.machines import MACHINES
from studies.program import run

if TYPE_CHECKING:
    import pandas as pd

CPU_AND_TWO_GPUS: Final = MACHINES["a CPU and two GPUs"]
"""Two H200 on NVLink, each on PCIe to a Xeon."""


def placement_bound_ns(graph: Graph, machine: Machine) -> int:
    """Return a lower bound on the makespan of any placement.

    The longer of two: the longest path if every op takes its shortest time on any device; and the
    work of all ops, each where it occupies the least share of a device, spread evenly over the devices.

    Examples
    --------
    >>> from sim import Device, GraphBuilder
    >>> b = GraphBuilder("three")
    >>> for name in "abc":
    ...     _ = b.op(name, duration_by_kind={"gpu": 10, "cpu": 30})
    >>> placement_bound_ns(b.build(), Machine((Device("gpu0"), Device("cpu0", "cpu", workers=1))))
    15
    """
    cost = np.array([costs_ns(graph, device) for device in machine.devices], dtype=float)
    cost[cost == UNSET] = np.inf
    lanes = np.array([device.lanes for device in machine.devices])
    path = int(longest_path_ns(graph, cost.min(axis=0).astype(np.int64)).max())
    work = float((cost / lanes[:, None]).min(axis=0).sum()) / len(machine.devices)
    return max(path, int(work))


def training_step(graph: Graph, times: int = 1) -> Graph:
    """Return a training step, with `times` the samples of a forward graph; a step stays as it is.

    Parameters
    ----------
    graph : Graph
        As imported; a forward graph has no op of an optimizer or gradient.
    times : int

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("layer")
    >>> _ = b.input("x", 400), b.parameter("w", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> step = training_step(b.build(), 2)
    >>> step.op_names, len(training_step(step))
    (('a', 'a/loss_grad', 'a/weight_grad', 'w/update'), 4)
    """
    if not {"assign", "assign_sub", "assign_add", *OPTIMIZERS}.isdisjoint(graph.kinds):
        return graph
    return TrainingRewrite().apply(Batch(times).apply(BatchNorm().apply(graph)))


def compare_placements(graph: Graph, machine: Machine, *, budget: int = 30, seed: int = 0) -> pd.DataFrame:
    """Return one row per placement: makespan, distance from the bound, ops on each device.

    Parameters
    ----------
    graph : Graph
    machine : Machine
    budget : int
        Number of simulations of the search, which starts from the other three.
    seed : int
    """
    import pandas as pd

    fastest = machine.devices[0].name
    placements: dict[str, Placement] = {
        f"all on {fastest}": SinglePlacement(fastest),
        "greedy": Greedy(),
        "HEFT": Heft(),
    }
    placements["auto-tuned"] = AutoTune(start=list(placements.values()), budget=budget, seed=seed)
    bound = placement_bound_ns(graph, machine)
    rows = []
    for name, placement in placements.items():
        trace = simulate(graph, machine, ReadyQueue(), placement=placement)
        ops = np.bincount(trace.job.device_of, minlength=len(machine.devices))
        rows.append(
            {
                "graph": graph.name,
                "placement": name,
                "makespan_ms": trace.makespan_ns / 1e6,
                "bound_ms": bound / 1e6,
                "of bound": round(trace.makespan_ns / bound, 2),
                **{f"ops on {d.name}": int(n) for d, n in zip(machine.devices, ops, strict=True)},
            }
        )
    return pd.DataFrame(rows)


def main(
    graphs: list[str],
    budget: Annotated[int, typer.Option(help="simulations of the search")] = 30,
    training: Annotated[
        bool, typer.Option("--training", help="make training steps of forward graphs")
    ] = False,
    times: Annotated[int, typer.Option(help="samples of those for each that was recorded")] = 1,
) -> None:
    """Print the table of graph files of any known format."""
    import pandas as pd

    machine = make_machine(CPU_AND_TWO_GPUS)
    loaded = [load_graph(path) for path in graphs]
    if training:
        loaded = [training_step(graph, times) for graph in loaded]
    tables = [compare_placements(graph, machine, budget=budget) for graph in loaded]
    print(pd.concat(tables).to_string(index=False))


if __name__ == "__main__":
    run(main)
