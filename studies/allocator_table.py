"""One training step under every allocator, in one table.

::

    python -m studies.allocator_table GRAPH [--device h200-sxm] [--lifetime issue]

    simulate once per allocator ─► makespan, peaks, fragmentation
                       │
                       └──► its allocations and frees, in order ──replay in less and less memory──► fits into

The same graph, in program order on one stream, launched ahead as by a framework; only the memory
allocator differs. The makespan shows the cost of asking the driver for every tensor (`counted`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from devices.machine import make_device
from devices.memory.memory_replay import replay
from devices.memory.registry import MemorySpec, make_allocator
from devices.memory.run_memory import tensor_memory
from devices.memory.trace_readers import MemoryEvent
from policies.issue.program_order import InOrder
from scenarios.importers import load_graph
from sim import Graph, Machine, simulate
from sim.base.errors import InfeasibleError, OutOfMemoryError
from sim.base.units import format_bytes, format_duration
from sim.explain.memory_use import Allocated, allocator_statistics
from sim.trace import Trace
from studies.program import markdown_table, run

DEVICE_MALLOC_NS: Final = 50_000
"""`cudaMalloc`: about 50 us per call from 4 KB to 512 KB, more beyond that (M. Boyer, *Memory management
overhead*, University of Virginia, cs.virginia.edu/~mwb7w/cuda_support; an old GPU); 432 us were reported
for 400 MB (github.com/kokkos/kokkos/issues/317). Larger blocks cost no more here: set your own if it matters.
"""
DEVICE_FREE_NS: Final = 50_000
"""`cudaFree` without its wait for an idle device: assumed to take as long as `cudaMalloc`, as no published
figure was found that tells the call from the wait."""

ALLOCATORS: Final[Mapping[str, MemorySpec]] = {
    "pool": MemorySpec("pool"),
    "bfc": MemorySpec("bfc", options={"allow_growth": True}),
    "caching": MemorySpec("caching", DEVICE_MALLOC_NS, DEVICE_FREE_NS),
    "counted": MemorySpec("counted", DEVICE_MALLOC_NS, DEVICE_FREE_NS),
    "planned (greedy by size)": MemorySpec("planned"),
    "planned (TVM's Relay)": MemorySpec("planned", options={"planner": "relay"}),
    "planned (TVM's Relax)": MemorySpec("planned", options={"planner": "relax"}),
}
"""The allocators that are compared."""


class Row(NamedTuple):
    """Results of a step under one allocator.

    Attributes
    ----------
    allocator : str
    makespan_ns : int
    use : Allocated
        Of the device: peaks of the bytes requested, handed out after rounding, and reserved.
    fits_into_bytes : int
        Smallest device that is large enough (whole MiB); 1 MiB less was tried and did not fit.
    """

    allocator: str
    makespan_ns: int
    use: Allocated
    fits_into_bytes: int


def allocator_rows(
    graph: Graph,
    *,
    device: Mapping[str, Any] | None = None,
    lifetime: str = "issue",
) -> list[Row]:
    """Simulate one step under each of `ALLOCATORS`.

    Parameters
    ----------
    graph : Graph
    device : mapping, optional
        The only device; default: an H200.
    lifetime : str
        See `devices.memory.run_memory`.

    Raises
    ------
    OutOfMemoryError
        The step does not fit.
    """
    machine = Machine((make_device("gpu0", device or {"preset": "h200-sxm"}),))
    rows = []
    for name, spec in ALLOCATORS.items():
        memory = tensor_memory({"gpu0": spec}, lifetime=lifetime)
        trace = simulate(graph, machine, InOrder(synchronisation="issue"), memory=memory)
        [use] = allocator_statistics(trace).values()
        fits_into = _fits_into(events_of(trace), spec, use.peak_in_use_bytes)
        rows.append(Row(name, trace.makespan_ns, use, fits_into))
    return rows


def events_of(trace: Trace) -> list[MemoryEvent]:
    """Return the allocations and frees of a run with one device, in order, for a replay."""
    log, graph = trace.memory, trace.job.graph
    assert log is not None
    rows = zip(log["tensor"].tolist(), log["iteration"].tolist(), log["change"].tolist(), strict=True)
    return [
        MemoryEvent("alloc", f"{tensor}@{iteration}", int(graph.tensor_nbytes[tensor]))
        if change > 0
        else MemoryEvent("free", f"{tensor}@{iteration}")
        for tensor, iteration, change in rows
    ]


def _fits_into(events: list[MemoryEvent], spec: MemorySpec, at_least: int) -> int:
    """Find a sufficient capacity by bisection, in whole MiB, from the bytes in use to twice as much."""

    def fits(mib: int) -> bool:
        try:
            made = make_allocator(spec.allocator, mib << 20, name="gpu0", events=events, **spec.options)
            replay(events, made)
        except (OutOfMemoryError, InfeasibleError):
            return False
        return True

    least, enough = at_least >> 20, (at_least >> 19) + 64
    return bisect_left(range(enough), True, lo=least, key=fits) << 20


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    head = ("allocator", "makespan", "asked for", "in use", "reserved", "unused at the peak", "fits into")
    lines = []
    for row in rows:
        use = row.use
        peaks = (use.peak_requested_bytes, use.peak_in_use_bytes, use.peak_reserved_bytes)
        sizes = (format_bytes(n, iec=True) for n in (*peaks, use.fragmentation_bytes, row.fits_into_bytes))
        lines.append([row.allocator, format_duration(row.makespan_ns), *sizes])
    return markdown_table(head, lines, words=1)


def main(graph: str, device: str = "h200-sxm", lifetime: Literal["issue", "execution"] = "issue") -> None:
    """Print the table of a model in any known format on a device's preset."""
    print(markdown(allocator_rows(load_graph(graph), device={"preset": device}, lifetime=lifetime)), end="")


if __name__ == "__main__":
    run(main)
