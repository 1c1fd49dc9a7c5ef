"""Kernels of recorded programs compared with models of their sizes: cold caches, small shapes, libraries.

::

    python -m studies.kernels.recorded --gpu h100-sxm TRACE.json.gz ...
    python -m studies.kernels.recorded --gpu mi300x --fit TRACE.json.gz ...      devices/cost/fits/mi300x.json

With --fit the models that the GPU borrows are moved to the times of its kernels, and each recording is judged
by models that the others moved. Kernels count if the profiler noted sizes (products, attention, ...) or
bytes, by operator and sizes, and if they ran alone: beside a kernel or copy of another stream one waits for
SMs and memory, which is not part of its cost. What adds up the parts of a product counts with it.

The twelve of the MI300X are those of studies/what_if_reality/results.md: BERT, ViT, Qwen, TimeSformer, OWLv2,
the six for their kernels alone, and FLUX.1 at 256 x 256. With another FLUX.1 of that table in its place the
fixed time of products is 4 % shorter, that of encoders a quarter longer.

Of the recordings in docs/costs.md, TimeSformer's chose the rules of softmax, of odd and tiny products and of
columns, an A100's training step those of 4-byte loads and, with DLRM's, of reductions. These two are in whole
us, and each kernel takes about 1 us more than in ns: elementwise ones of up to four thread blocks 2.5 to 3.3
us, else 1.9 (V100) and 2.0 (A100); the models say 2. With 1 us added, shapes are 14 and 22 % off, and those
of two other such recordings (A100, V100) 18 and 19 %, without 37 and 34 %. DLRM's products start 2.6 us late
if their kernel was among the last 5, 4.8 among the last 200, 7.2 the first time (H100: always 3): a V100's L2
of 6 MB probably loses their code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer

from devices.cost.kernel_costs import EAGER_START_NS, START_COLD, FittedCost, load_fits
from devices.cost.kernel_fits import FOLDER, KernelFits
from devices.presets import device_preset
from scenarios.importers import load_graph
from sim import Device, Graph
from sim.base.arrays import FloatArray
from sim.base.units import parse_duration
from studies.kernels.__main__ import write
from studies.kernels.fitting import fit_moved
from studies.kernels.tables import Rows
from studies.program import run

FEWEST: Final = 3  # recordings needed to move a table
SIZES: Final = (
    *("m", "n", "k", "batch", "transposed", "rows", "columns"),
    *("seq_len", "kv_len", "heads", "kv_heads", "head_dim", "window", "causal"),
    *("in_channels", "out_channels", "group", "input_shape", "kernel_shape", "strides", "pads", "dilations"),
)


class Recorded(NamedTuple):
    """Kernels of one operator and sizes: their number, mean recorded time, and modelled time."""

    kind: str
    operator: str
    sizes: str
    times: int
    recorded_ns: float
    predicted_ns: float


def ran_alone(graph: Graph) -> set[int]:
    """Return recorded kernels beside which no other stream of their GPU did anything, without collectives."""
    ops_of = defaultdict(list)
    for op, given in graph.attributes.items():
        if "stream" in given and "kernel" in given:
            ops_of[graph.pin_code[op], given["stream"]].append(op)
    starts = {
        key: np.array([graph.attributes[op]["recorded_start_ns"] for op in ops])
        for key, ops in ops_of.items()
    }
    every = {op for ops in ops_of.values() for op in ops}
    found = {op for op in every if not graph.attributes[op]["kernel"].startswith(("nccl", "Mem"))}
    for here, there in permutations(ops_of, 2):
        if here[0] == there[0]:
            ended = np.sort(starts[there] + graph.duration_ns[ops_of[there]])
            begun = np.searchsorted(np.sort(starts[there]), starts[here] + graph.duration_ns[ops_of[here]])
            both = begun > np.searchsorted(ended, starts[here], side="right")
            found.difference_update(np.array(ops_of[here])[both].tolist())
    return found


def recorded_ns(graph: Graph) -> FloatArray:
    """Return what kernels took: a product whose k was cut together with the kernel that adds up the parts."""
    ns, before = graph.duration_ns.astype(float), dict[Any, int]()
    for op, given in sorted(graph.attributes.items()):
        if "kernel" in given and "stream" in given:
            stream = graph.pin_code[op], given["stream"]
            if "splitKreduce" in given["kernel"] and stream in before:
                ns[before[stream]] += ns[op]
            before[stream] = op
    return ns


def compare(graph: Graph, gpu: str, fits: KernelFits) -> list[Recorded]:
    """Return the kernels of a recording that ran alone and whose sizes or bytes are known."""
    alone, took = ran_alone(graph), defaultdict(list)
    names = [graph.kinds[code] for code in graph.kind_code]
    floor, gap = (parse_duration(device_preset(gpu)[key]) for key in ("kernel_floor", "gap"))
    cost = FittedCost(fits, least_ns=floor)
    ns = cost.durations_ns(graph, Device("gpu0", gap_ns=gap))
    moved, recorded = graph.bytes_read + graph.bytes_written, recorded_ns(graph)
    for op, given in graph.attributes.items():
        if ns[op] > 0 and op in alone:
            sizes = {name: given[name] for name in SIZES if name in given} or {"bytes": int(moved[op])}
            took[names[op], given.get("operator", ""), repr(sizes)].append(op)
    return [
        Recorded(*key, len(ops), float(recorded[ops].mean()), float(ns[ops].mean()))
        for key, ops in took.items()
    ]


Took = dict[tuple[str, str, tuple[tuple[str, Any], ...]], float]
"""Mean ns of a kernel as its table would have them, by table, data type and sizes."""


def kernels(graph: Graph, gpu: str) -> Took:
    """Return the kernels of a recording that ran alone and are in a table."""
    gap, took = parse_duration(device_preset(gpu)["gap"]), defaultdict(list)
    alone, recorded, cost = ran_alone(graph), recorded_ns(graph), FittedCost(borrowed(gpu))
    for op, kernel in cost.kernels(graph):
        if not isinstance(kernel, str) and op in alone:
            table, dtype, sizes, _ = kernel
            more = EAGER_START_NS if table in START_COLD else -gap * cost.back_to_back(table, dtype)
            ns = float(recorded[op])
            took[table, dtype, sizes].append(max(ns - more, ns / 4))
    return {key: float(np.mean(ns)) for key, ns in took.items()}


def borrowed(gpu: str) -> KernelFits:
    """Return the models that a GPU takes from others, without fits of its own."""
    return KernelFits(replace(load_fits(gpu).sheet, generation=""))


def fit(took: Mapping[str, Took], gpu: str) -> KernelFits:
    """Return models that other GPUs lend, moved by kernels of three recordings or more."""
    fits, found = borrowed(gpu), defaultdict(list)
    for path, each in took.items():
        for (table, dtype, sizes), ns in each.items():
            found[table, dtype].append((path, dict(sizes), ns))
    for (table, dtype), mine in found.items():
        layer = np.array([path for path, _, _ in mine])
        if len(np.unique(layer)) >= FEWEST:
            columns = {name: np.array([sizes[name] for _, sizes, _ in mine]) for name in mine[0][1]}
            rows = Rows(columns, np.array([ns for _, _, ns in mine]), layer)
            fits.models[table, dtype] = fit_moved(fits.model(table, dtype), rows, fits.sheet)
    return fits


def errors(found: Sequence[Recorded]) -> tuple[float, float, float]:
    """Return the error of the total, the mean relative error per shape, and that per kernel."""
    count, real, ours = (np.array([r[i] for r in found], float) for i in (3, 4, 5))
    off = np.abs(ours / real - 1)
    return (
        float((count * ours).sum() / (count * real).sum() - 1),
        float(off.mean()),
        float(np.average(off, weights=count)),
    )


def main(
    traces: list[str],
    gpu: Annotated[str, typer.Option(metavar="PRESET")],
    write_fits: Annotated[bool, typer.Option("--fit", help="write the fits of the GPU")] = False,
) -> None:
    """Print a row for each operator and sizes, and the errors of all."""
    graphs = {path: load_graph(path) for path in traces}
    fits = dict.fromkeys(graphs, load_fits(gpu))
    if write_fits:
        took = {path: kernels(graph, gpu) for path, graph in graphs.items()}
        for key, model in fit(took, gpu).models.items():
            write(FOLDER, gpu, " ".join(key), model)
        fits = {path: fit({p: took[p] for p in took if p != path}, gpu) for path in graphs}
    by_path = {path: compare(graph, gpu, fits[path]) for path, graph in graphs.items()}
    found = [row for rows in by_path.values() for row in rows]
    for row in sorted(found, key=lambda r: -r.times * r.recorded_ns):
        off = row.predicted_ns / row.recorded_ns - 1
        print(f"{row.times:5} x {row.recorded_ns / 1e3:10.1f} us, {off:+5.0%}  {row.operator} {row.sizes}")
    for name, rows in {**by_path, "all": found}.items():
        total, shape, kernel = errors(rows)
        says = f"total {total:+.1%}, mean error {shape:.1%} a shape, {kernel:.1%} a kernel"
        print(f"{len(rows)} shapes: {says}  {name}")


if __name__ == "__main__":
    run(main)
