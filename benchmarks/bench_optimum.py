"""How near to the optimum a search comes: best orders found, and bounds proven, on graphs of 50 to 5,000 ops.

    python benchmarks/bench_optimum.py [--limit 20s] [--ops 1000] [--only layered] [--csv FILE]

Graphs are written as files, run as scenarios, and searched by `sim optimum`. `streams` is a GPU with four
streams and a host that takes 2 us a launch, `devices` four GPUs with serial links between each two, where
HEFT has placed the ops. All durations are given, so no op slows another one down. What is printed depends on
how fast the machine is, except what is proven; seconds are CPU time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from devices.machine import make_machine
from scenarios.builders.gpt import Transformer, gpt_graph
from scenarios.importers import read_graph, write_graph
from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from scenarios.variants.optimum import find_optimum, list_schedules
from sim import Graph, GraphBuilder
from sim.base.units import parse_duration
from sim.job.costs import costs_ns

ROOT = Path(__file__).resolve().parents[1]


def drawn(name: str, inputs: list[list[int]], seed: int = 0) -> Graph:
    """Return a graph whose ops take 1 to 100 us and make 10 kB to 1 MB, drawn."""
    rng = np.random.default_rng([seed, len(inputs)])
    builder = GraphBuilder(name)
    for k, row in enumerate(inputs):
        ns, nbytes = int(rng.integers(1_000, 100_001)), int(rng.integers(10_000, 1_000_001))
        builder.op(f"op{k}", inputs=[f"op{p}" for p in row], duration_ns=ns, outputs=nbytes)
    return builder.build()


def layered(n: int) -> Graph:
    """Return layers of ten ops, each of which reads one to three of the layer before."""
    rng = np.random.default_rng(n)
    rows: list[list[int]] = []
    for k in range(n):
        before = range(max(0, k // 10 * 10 - 10), k // 10 * 10)
        most = int(rng.integers(1, 4))
        rows.append(sorted(rng.choice(before, most, replace=False).tolist()) if before else [])
    return drawn("layered", rows)


def series_parallel(n: int) -> Graph:
    """Return a graph made of one edge by replacing edges: by two in a row, or by two side by side."""
    rng = np.random.default_rng(n)
    edges, count = [(0, 1)], 2
    while count < n:
        k = int(rng.integers(len(edges)))
        a, b = edges[k]
        if rng.random() < 0.5:
            edges[k] = (a, count)
        else:
            edges.append((a, count))
        edges.append((count, b))
        count += 1
    after: list[list[int]] = [[] for _ in range(n)]
    pending = [0] * n
    for a, b in edges:
        after[a].append(b)
        pending[b] += 1
    order = [0]
    for op in order:
        for c in after[op]:
            pending[c] -= 1
            if not pending[c]:
                order.append(c)
    place = {op: k for k, op in enumerate(order)}
    rows: list[list[int]] = [[] for _ in range(n)]
    for a, b in edges:
        rows[place[b]].append(place[a])
    return drawn("series-parallel", [sorted(set(row)) for row in rows])


def timed(graph: Graph) -> Graph:
    """Return a graph with the durations of an H200 written into it."""
    ns = costs_ns(graph, make_machine({"devices": {"gpu0": {"preset": "h200-sxm"}}}).devices[0]).tolist()
    edges = graph.edges.within_iteration()
    rows: list[list[int]] = [[] for _ in ns]
    nbytes = [0] * len(ns)
    for p, c, t in zip(edges.producer.tolist(), edges.consumer.tolist(), edges.tensor.tolist(), strict=True):
        rows[c].append(p)
        if t >= 0:
            nbytes[p] = max(nbytes[p], int(graph.tensor_nbytes[t]))
    builder = GraphBuilder(graph.name)
    for k in graph.topological_order.tolist():
        inputs = [f"op{p}" for p in sorted(set(rows[k]))]
        builder.op(f"op{k}", inputs=inputs, duration_ns=max(1000, ns[k]), outputs=nbytes[k])
    return builder.build()


def transformer(n: int) -> Graph:
    """Return a training step of a decoder, one head of 1,024 tokens on an H200."""
    model = Transformer(max(1, n // 31), 1024, 16, 1024, 32768, 1)
    return timed(gpt_graph(model, training=True))


def inception(n: int) -> Graph:
    """Return Inception v1 at batch 32, if so many ops are meant."""
    return timed(read_graph(ROOT / "scenarios/examples/graphs/inception_v1.json.gz", batch=32))


GRAPHS: dict[str, Callable[[int], Graph]] = {
    "layered": layered,
    "series-parallel": series_parallel,
    "transformer": transformer,
    "inception": inception,
}

STREAMS = """\
machine: {devices: {gpu0: {kind: gpu, streams: 4, issue_cost: 2us}}}
workload: {graph: graph.json.gz}
policy: {name: ready-queue, streams: round-robin}
"""
DEVICES = """\
machine:
  devices: {g0: {kind: gpu}, g1: {kind: gpu}, g2: {kind: gpu}, g3: {kind: gpu}}
  links: [{from: g*, to: g*, bandwidth: 50GB/s, latency: 5us, sharing: serial}]
workload: {graph: graph.json.gz}
policy: {name: ready-queue, placement: heft}
"""
PIPELINE = """\
workload:
  pipeline:
    {stages: 4, micro_batches: %d, forward: 1ms, input_grad: 1.1ms, weight_grad: 0.9ms, transfer: 0.1ms}
policy: zb-h1
"""


def cases(sizes: list[int], only: str) -> Iterator[tuple[str, str, Path]]:
    """Yield what is searched: graph, machine, and the file of a scenario."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.yaml"
        for n in sizes:
            for name, make in GRAPHS.items():
                if only not in name or (name == "inception" and n != 200):
                    continue
                graph = make(n)
                write_graph(graph, Path(folder) / "graph.json.gz")
                for machine, text in (("streams", STREAMS), ("devices", DEVICES)):
                    path.write_text(text)
                    yield f"{name} {len(graph):,}", machine, path
            if only in "pipeline":
                path.write_text(PIPELINE % max(1, n // 12))
                yield f"pipeline {max(1, n // 12) * 12:,}", "devices", path


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--limit", default="20s")
    parser.add_argument("--ops", type=int, action="append")
    parser.add_argument("--only", default="")
    parser.add_argument("--machine", default="")
    parser.add_argument("--csv")
    args = parser.parse_args()
    rows = ["graph,machine,policy_ns,list_ns,found_ns,bound_ns,gap,cpu_s,wall_s"]
    for name, machine, path in cases(args.ops or [50, 200, 1000, 5000], args.only):
        if args.machine not in machine:
            continue
        base = run_case(load_scenario(path).case())
        lists = [run_case(case).trace for case in list_schedules(base.case, base.trace.job, True)]
        best_list = min(trace.makespan_ns for trace in lists)
        began, clock = time.process_time(), time.perf_counter()
        found = find_optimum([base], limit_ns=parse_duration(args.limit))
        s, wall = time.process_time() - began, time.perf_counter() - clock
        told = found.to_json()
        ns = base.trace.makespan_ns, best_list, told["makespan_ns"], told["lower_bound_ns"]
        row = [name.replace(",", ""), machine, *ns, f"{told['gap']:.4f}", f"{s:.1f}", f"{wall:.1f}"]
        rows.append(",".join(map(str, row)))
        print(rows[-1], flush=True)
        if args.csv:
            Path(args.csv).write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
