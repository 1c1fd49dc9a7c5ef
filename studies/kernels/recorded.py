"""Kernels of recorded programs compared with models of their sizes: cold caches, small shapes, libraries.

::

    python -m studies.kernels.recorded --gpu h100-sxm TRACE.json.gz ...
    python -m studies.kernels.recorded --gpu mi300x --fit TRACE.json.gz ...      devices/cost/fits/mi300x.json

With --fit the models that the GPU borrows are moved to the times of its kernels, and each recording is judged
by models that the others moved. Kernels count if the profiler noted sizes (products, attention, ...) or
bytes, by operator and sizes, and if they ran alone: beside a kernel of another stream one waits for SMs and
memory, which is not part of its cost.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, Final, NamedTuple

import numpy as np

from devices.cost.kernel_costs import EAGER_START_NS, START_COLD, FittedCost, load_fits
from devices.cost.kernel_fits import FOLDER, KernelFits
from devices.presets import device_preset
from scenarios.importers import load_graph
from sim import Device, Graph
from sim.base.units import parse_duration
from studies.kernels.__main__ import write
from studies.kernels.fitting import fit_moved
from studies.kernels.tables import Rows

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


def accompanied(graph: Graph) -> frozenset[int]:
    """Return the recorded kernels during which another stream of their GPU ran one."""
    ops_of = defaultdict(list)
    for op, given in graph.attributes.items():
        if "stream" in given and not given.get("kernel", "Mem").startswith("Mem"):
            ops_of[graph.pin_code[op], given["stream"]].append(op)
    starts = {
        key: np.array([graph.attributes[op]["recorded_start_ns"] for op in ops])
        for key, ops in ops_of.items()
    }
    found: set[int] = set()
    for here, there in permutations(ops_of, 2):
        if here[0] == there[0]:
            ended = np.sort(starts[there] + graph.duration_ns[ops_of[there]])
            begun = np.searchsorted(np.sort(starts[there]), starts[here] + graph.duration_ns[ops_of[here]])
            both = begun > np.searchsorted(ended, starts[here], side="right")
            found.update(np.array(ops_of[here])[both].tolist())
    return frozenset(found)


def compare(path: str, gpu: str, fits: KernelFits) -> list[Recorded]:
    """Return the kernels of a recording that ran alone and whose sizes or bytes are known."""
    graph, took = load_graph(path), defaultdict(list)
    names = [graph.kinds[code] for code in graph.kind_code]
    beside = accompanied(graph)
    floor, gap = (parse_duration(device_preset(gpu)[key]) for key in ("kernel_floor", "gap"))
    cost = FittedCost(fits, least_ns=floor)
    ns = cost.durations_ns(graph, Device("gpu0", gap_ns=gap))
    moved = graph.bytes_read + graph.bytes_written
    for op, given in graph.attributes.items():
        if ns[op] > 0 and op not in beside and not given.get("kernel", "nccl").startswith(("Mem", "nccl")):
            sizes = {name: given[name] for name in SIZES if name in given} or {"bytes": int(moved[op])}
            took[names[op], given.get("operator", ""), repr(sizes)].append(op)
    return [
        Recorded(*key, len(ops), float(graph.duration_ns[ops].mean()), float(ns[ops].mean()))
        for key, ops in took.items()
    ]


def fit(paths: Sequence[str], gpu: str) -> KernelFits:
    """Return models that other GPUs lend, moved by kernels of three recordings or more."""
    gap = parse_duration(device_preset(gpu)["gap"])
    sheet = replace(load_fits(gpu).sheet, generation="")  # excludes fits of the GPU itself
    cost, models = FittedCost(KernelFits(sheet)), {}
    took: dict[tuple[str, str], dict[tuple[str, Any], list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        graph = load_graph(path)
        beside = accompanied(graph)
        for op, kernel in cost.kernels(graph):
            name = graph.attributes.get(op, {}).get("kernel", "nccl")
            if not isinstance(kernel, str) and op not in beside and not name.startswith(("Mem", "nccl")):
                table, dtype, sizes, _ = kernel
                more = EAGER_START_NS if table in START_COLD else -gap * cost.back_to_back(table, dtype)
                ns = float(graph.duration_ns[op])
                took[table, dtype][path, sizes].append(max(ns - more, ns / 4))
    for (table, dtype), found in took.items():
        layer = np.array([path for path, _ in found])
        if len(np.unique(layer)) >= FEWEST:
            each = [dict(sizes) for _, sizes in found]
            columns = {name: np.array([row[name] for row in each]) for name in each[0]}
            rows = Rows(columns, np.array([np.mean(ns) for ns in found.values()]), layer)
            models[table, dtype] = fit_moved(cost.fits.model(table, dtype), rows, sheet)
    return KernelFits(sheet, models=models)


def errors(found: Sequence[Recorded]) -> tuple[float, float, float]:
    """Return the error of the total, the mean relative error per shape, and that per kernel."""
    count, real, ours = (np.array([r[i] for r in found], float) for i in (3, 4, 5))
    off = np.abs(ours / real - 1)
    return (
        float((count * ours).sum() / (count * real).sum() - 1),
        float(off.mean()),
        float(np.average(off, weights=count)),
    )


def main() -> None:
    """Print a row for each operator and sizes, and the errors of all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--gpu", required=True, metavar="PRESET")
    parser.add_argument("--fit", action="store_true", help="write the fits of the GPU")
    given = parser.parse_args()
    fits = dict.fromkeys(given.traces, load_fits(given.gpu))
    if given.fit:
        for key, model in fit(given.traces, given.gpu).models.items():
            write(FOLDER, given.gpu, " ".join(key), model.to_json())
        fits = {path: fit([p for p in given.traces if p != path], given.gpu) for path in given.traces}
    by_path = {path: compare(path, given.gpu, fits[path]) for path in given.traces}
    found = [row for rows in by_path.values() for row in rows]
    for row in sorted(found, key=lambda r: -r.times * r.recorded_ns):
        off = row.predicted_ns / row.recorded_ns - 1
        print(f"{row.times:5} x {row.recorded_ns / 1e3:10.1f} us, {off:+5.0%}  {row.operator} {row.sizes}")
    for name, rows in {**by_path, "all": found}.items():
        total, shape, kernel = errors(rows)
        says = f"total {total:+.1%}, mean error {shape:.1%} a shape, {kernel:.1%} a kernel"
        print(f"{len(rows)} shapes: {says}  {name}")


if __name__ == "__main__":
    main()
