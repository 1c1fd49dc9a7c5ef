"""A pipeline schedule as a computation graph: every slot of every rank's program is an op.

::

    rank 0   0F0 0F1 ...        op 0F0 on rank0 ──boundary activation──► op 1F0 on rank1
    rank 1       1F0 1F1 ...    op 1B0 on rank1 ──boundary gradient────► op 0B0 on rank0
                                op 0F0 on rank0 ──what B reads─────────► op 0B0 on rank0

What a micro-batch keeps on a rank is a tensor too, read by its backward, so that the memory of a
pipeline needs no extra code: the tensor is alive from F (or R) until the last of B, I and W has ended.

Ops are written in the order of a walk over all programs, each op after its inputs. A rank's ops are thus
in the order of its program, and running a pipeline means issuing every rank's ops in order
(`AsWritten`); all dependencies are edges. Edges follow
`policies.pipeline.pipeline_schedule`; ``tests/scenarios/test_pipeline_workload.py`` compares the outcome with
the independent `policies.pipeline.evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from policies.pipeline.pipeline_schedule import Schedule
from scenarios.builders.pipeline_stage import BESIDE, HOST, Around, PipelineStage, PlacedPipeline
from scenarios.builders.pipeline_writer import PipelineWriter
from sim import Device, Graph, Job, Link, Machine


def rank_name(rank: int) -> str:
    """Return the name of the device on which a rank runs when no machine is given."""
    return f"rank{rank}"


def plain_machine(
    ranks: int,
    transfer_ns: int = 0,
    *,
    pairs: Iterable[tuple[int, int]] | None = None,
    streams: int = 1,
    dispatch_ns: int = 0,
) -> Machine:
    """Return one plain device per rank, and links that take `transfer_ns` whatever they carry.

    Parameters
    ----------
    ranks : int
    transfer_ns : int
        Time between two different ranks; transfers do not contend. 0: no links.
    pairs : iterable of (int, int), optional
        Pairs (from, to) of linked ranks; by default all.
    streams : int
        Streams of each device.
    dispatch_ns : int
        Host time to launch an op.
    """
    devices = tuple(Device(rank_name(r), streams=streams, issue_ns=dispatch_ns) for r in range(ranks))
    if not transfer_ns:
        return Machine(devices)
    from devices.network import make_network

    linked = pairs if pairs is not None else ((a, b) for a in range(ranks) for b in range(ranks) if a != b)
    names = [(rank_name(a), rank_name(b)) for a, b in linked]
    links = tuple(Link(f"{a}->{b}", a, b, latency_ns=transfer_ns, sharing="shared") for a, b in names)
    return Machine(devices, links, network=make_network if links else None)


def crossings(schedule: Schedule, around: Around | None = None) -> list[tuple[int, int]]:
    """Return the pairs of ranks (from, to) between which something is sent, in ascending order."""
    hops = [(s, s + 1) for s in range(schedule.stages - 1)]
    hops += [(skip.source, skip.to) for skip in (around or Around()).portal_skips]
    pairs = {(ranks[a], ranks[b]) for ranks in schedule.placements for a, b in hops if ranks[a] != ranks[b]}
    return sorted(pairs | {(b, a) for a, b in pairs})


def pipeline_graph(
    schedule: Schedule,
    stages: Sequence[PipelineStage],
    devices: Sequence[str] | None = None,
    *,
    around: Around | None = None,
    copy_ns: Callable[[int, int, int], int] | None = None,
    shares: Sequence[tuple[int, int]] = (),
) -> Graph:
    """Build the graph of `schedule`.

    Parameters
    ----------
    schedule : Schedule
    stages : sequence of PipelineStage
        One per stage.
    devices : sequence of str, optional
        Name of each rank's device; by default `rank_name`.
    around : Around, optional
        Optimizer step, gradient all-reduce, skips, and how copies are made.
    copy_ns : callable, optional
        ``copy_ns(source rank, destination rank, nbytes)``, if copies run on compute streams; by
        default they take no time.
    shares : sequence of (int, int), optional
        Part (numerator, denominator) of the stages' times and sizes that each micro-batch takes; by
        default all of them.

    Returns
    -------
    Graph
        One op per slot, with stage, micro-batch and phase; each rank's ops in the order of its program.

    Raises
    ------
    InputError
        A phase has no time, or gradients that are never summed would be reduced.
    StuckError
        The ranks wait for each other.

    Examples
    --------
    >>> from policies.pipeline.evaluate import StageTimes
    >>> from policies.pipeline.registry import generate
    >>> stage = PipelineStage(StageTimes(forward=1, backward=2))
    >>> pipeline_graph(generate("1f1b", ranks=2, micro_batches=2), [stage] * 2)
    <Graph '1f1b': 8 ops, 16 tensors, 8 edges>
    """
    devices = devices or [rank_name(r) for r in range(schedule.ranks)]
    placed = PlacedPipeline(schedule, stages, devices, around or Around())
    return PipelineWriter(placed, copy_ns or (lambda a, b, nbytes: 0), shares).build()


class AsWritten:
    """Program order: the order in which the ops were written (see `sim.job.job.Linearizer`)."""

    def order(self, job: Job) -> Sequence[int]:
        """Return every op in the order of the graph."""
        return np.arange(len(job.graph))  # type: ignore[return-value]


class CommunicationStream:
    """Second stream for work beside the computation, third stream for copies to and from the host."""

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op (see `sim.job.job.StreamAssignment`)."""
        number, graph = {BESIDE: 1, HOST: 2}, job.graph
        stream = np.array([number.get(phase, 0) for phase in (*graph.phases, "")])
        return stream[graph.phase_code]  # type: ignore[return-value]  # the last one: ops without a phase
