"""Recorded ranks run together: exposed communication, recorded and simulated, and the effect of a straggler.

    python -m studies.recorded_ranks FOLDER [--slow 2]

::

    rank0.json.gz ┐                 ┌─► as recorded ───► spans, exposed communication, waits for late ranks
    rank1.json.gz ┼─► one graph ────┤
    ...           ┘                 └─► one rank's GPU, or host, 20 % slower ───► who waits

*Exposed* is the time in which a rank communicates and computes nothing, as in Holistic Trace Analysis:
kernels of NCCL communicate, copies and fills are memory, all other kernels compute (``get_kernel_type`` in
hta/utils/utils.py). The time in which a collective waits for a late rank counts, as in a recording.

For comparison there are two plain rules: ranks *alone*, whose collectives keep their recorded times, and
collectives for which *nobody waits*, which take only their transfer time.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer

from scenarios.importers import load_graph
from scenarios.importers.files import files_in
from scenarios.recorded import select as roles
from scenarios.recorded.setup import as_recorded as recorded_times
from scenarios.recorded.setup import run_recorded
from sim import Graph
from sim.base.arrays import BoolArray, IntArray
from sim.base.intervals import union
from sim.base.units import parse_duration, round_half_up
from sim.explain.idle import idle_reasons
from sim.trace import Trace
from studies.program import markdown_table, run

SLOWER: Final = 1.2
"""Slowdown of a straggler."""


class Spans(NamedTuple):
    """Times of each rank, in ns.

    Attributes
    ----------
    span : array of int64
        From the beginning of its recording to the end of its last kernel.
    exposed : array of int64
        Time in which it communicated and computed nothing.
    waited : array of int64
        Time that its collectives waited for a late rank.
    """

    span: IntArray
    exposed: IntArray
    waited: IntArray


def load_ranks(path: Path, format: str | None = "kineto") -> Graph:
    """Return the ranks of a folder together, or the process of a file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* GPU tasks have no launch in the trace")
        return load_graph(path, format=format)


def scaled(graph: Graph, device: str, factor: float) -> Graph:
    """Return the graph with the ops and gaps of a device, or a kind of device, `factor` times as long.

    Transfers of collectives belong to the links, and a host's time before its recording began is unknown:
    they stay.
    """
    ns = graph.duration_ns.copy()
    fixed = graph.is_kind("before") | roles.has_key(graph, "communicator")
    ops = np.flatnonzero(roles.pinned_to(graph, device) & ~fixed)
    ns[ops] = [round_half_up(factor * each) for each in ns[ops].tolist()]
    facts = dict(graph.device_facts)
    for pin, known in graph.device_facts.items():
        if device in (pin, pin.rstrip("0123456789")):
            facts[pin] = {
                key: value if key == "description" else f"{round_half_up(factor * parse_duration(value))}ns"
                for key, value in known.items()
            }
    return replace(graph, duration_ns=ns, device_facts=facts)


def as_recorded(graph: Graph) -> Spans:
    """Return the recorded times of the ranks of a graph."""
    was = recorded_times(graph)
    ran = roles.has_key(graph, "kernel")[was.op]
    return _spans(graph, was.op[ran], was.start_ns[ran], was.end_ns[ran])


def as_simulated(trace: Trace) -> Spans:
    """Return the times of the ranks in a simulated run."""
    start, end = by_op(trace)
    ops = np.flatnonzero(roles.has_key(trace.job.graph, "kernel"))
    return _spans(trace.job.graph, ops, start[ops], end[ops])


def by_op(trace: Trace) -> tuple[IntArray, IntArray]:
    """Return the start and the end of each op of a run of one iteration."""
    rows = np.argsort(trace.tasks["op"])
    return trace.tasks["start_ns"][rows], trace.tasks["end_ns"][rows]


def without_waiting(graph: Graph) -> Graph:
    """Return the graph with collectives that take only their transfer time and meet nobody."""
    attributes = {
        op: {key: value for key, value in own.items() if key != "communicator"}
        for op, own in graph.attributes.items()
    }
    return replace(graph, attributes=attributes)


def _rank_of(graph: Graph, ops: IntArray) -> IntArray:
    """Return the rank of each op; 0 in the graph of one process."""
    names = (graph.op_names[op] for op in ops.tolist())
    ranks = [int(name[4 : name.index("/")]) if name.startswith("rank") else 0 for name in names]
    return np.array(ranks, np.int64)


def _spans(graph: Graph, ops: IntArray, start: IntArray, end: IntArray) -> Spans:
    names = [str(graph.attributes[op]["kernel"]) for op in ops.tolist()]
    communicates = np.array([name.startswith("nccl") for name in names])
    computes = ~communicates & np.array([not name.startswith(("Memcpy", "Memset")) for name in names])
    rank = _rank_of(graph, ops)
    ranks = int(rank.max()) + 1
    begin, last = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    before = np.flatnonzero([name.endswith("/before.thread0") for name in graph.op_names])
    begin[_rank_of(graph, before)] = graph.duration_ns[before]
    np.maximum.at(last, rank, end)

    def covered(which: BoolArray) -> IntArray:
        return union(start[which], end[which], rank[which]).lengths(ranks)

    waited = np.zeros(ranks, np.int64)
    transfer = graph.duration_ns[ops]
    meets = roles.has_key(graph, "recorded_ns")[ops]
    np.add.at(waited, rank[meets], (end - start - transfer)[meets])
    return Spans(last - begin, covered(communicates | computes) - covered(computes), waited)


def waiting_ns(trace: Trace) -> tuple[int, int, int]:
    """Return the host's waits inside calls, recorded and simulated, and its working time."""
    graph, (start, end) = trace.job.graph, by_op(trace)
    point: dict[tuple[str, str], int] = {}
    recorded = waited = work = 0
    for op in range(len(graph)):
        own = graph.attributes.get(op, {})
        if "thread" in own:
            thread = graph.pins[int(graph.pin_code[op])], own["thread"]
            if "recorded_wait_ns" in own:
                recorded += own["recorded_wait_ns"]
                waited += int(start[op]) - point.get(thread, 0)
            work += int(end[op] - start[op]) if graph.kind(op) != "delay" else 0
            point[thread] = int(end[op])
    return recorded, waited, work


# -- tables ---------------------------------------------------------------------------------------


def replay_table(folder: Path, graph: Graph) -> list[list[str]]:
    """Return the rows of the table of ranks as recorded and simulated."""
    was, now = as_recorded(graph), as_simulated(run_recorded(graph))
    nobody = as_simulated(run_recorded(without_waiting(graph)))
    alone = [as_simulated(run_recorded(load_ranks(folder / name))) for name in files_in(folder)]
    rows = []
    for rank in range(len(was.span)):
        pairs = [(was.span, now.span), (was.exposed, now.exposed)]
        row = [str(rank)]
        for recorded, simulated in pairs:
            error = f"{100 * (simulated[rank] / recorded[rank] - 1):+.2f} %"
            row += [ms(recorded[rank]), ms(simulated[rank]), error]
        row += [ms(was.waited[rank]), ms(now.waited[rank])]
        rows.append([*row, ms(alone[rank].exposed[0]), ms(nobody.exposed[rank])])
    return rows


def straggler_table(graph: Graph, slow: int) -> list[list[str]]:
    """Return the rows of the table with one slow rank: waits for late ranks, and the last end."""
    graphs = [graph, *(scaled(graph, f"{kind}{slow}", SLOWER) for kind in ("gpu", "cpu"))]
    runs = [run_recorded(each) for each in graphs]
    late = [{name: why.get("late rank", 0) for name, why in idle_reasons(one).items()} for one in runs]
    found = [as_simulated(one) for one in runs]
    return [
        [f"{rank}{' (slow)' * (rank == slow)}"]
        + [ms(one[f"gpu{rank}"]) for one in late]
        + [ms(one.span[rank]) for one in found]
        for rank in range(len(found[0].span))
    ]


def ms(ns: int | np.integer[Any]) -> str:
    """Return a time in milliseconds, formatted for tables."""
    return f"{int(ns) / 1e6:.3f}"


def main(
    folder: Annotated[Path, typer.Argument(help="traces of all ranks of a job")],
    slow: Annotated[int, typer.Option(help="the rank that is slow")] = 2,
) -> None:
    """Print the recorded and the simulated times of each rank, and what a slow rank costs the others."""
    graph = load_ranks(folder)
    print("As recorded, and run together (ms):\n")
    of = ["recorded", "simulated", "off by"]
    head = ["rank", *(f"span {word}" for word in of), *(f"exposed {word}" for word in of)]
    head += ["waiting recorded", "waiting simulated", "exposed, ranks alone", "exposed, nobody waits"]
    print(markdown_table(head, replay_table(folder, graph)))
    print(f"Rank {slow} is 20 % slower (ms): waits for late ranks, and spans\n")
    cases = ["as recorded", "slow GPU", "slow host"]
    head = ["rank", *(f"waits, {case}" for case in cases), *(f"span, {case}" for case in cases)]
    print(markdown_table(head, straggler_table(graph, slow)))


if __name__ == "__main__":
    run(main)
