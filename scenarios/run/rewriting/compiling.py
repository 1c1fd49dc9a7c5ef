"""Compiling: the rewrites that a scenario lists, applied to its graph before anything is placed or run.

::

    policy: {name: in-order, compile: [prune, constant-folding, {name: fusion, patterns: remapper}]}

    graph ──prune──► ──constant-folding──► ──fusion──► what runs      sim run --show-graph BEFORE AFTER

Steps are applied in the order in which they stand. One that needs to know where ops run (its attribute
``placed`` is true, as of `policies.compile.partition`) gets a graph in which every op is pinned where the
placement puts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from policies.compile.parallel.grid.combined import warn_of_unsummed
from policies.compile.parallel.ranks import OnRanks
from scenarios.run.decisions import Step
from sim.graph.graph import Graph
from sim.job.build_job import make_job
from sim.job.job import Placement
from sim.machine.machine import Machine
from sim.words.arrays import IntArray
from sim.words.errors import InputError, ScenarioError

if TYPE_CHECKING:
    from scenarios.file.document import Document

__all__ = ["compile_graph", "pinned"]


def compile_graph(
    graph: Graph,
    steps: Sequence[Step],
    machine: Machine,
    placement: Placement | None,
    document: Document,
    on_ranks: Callable[[Graph, Step, Machine], tuple[Graph, Machine]],
) -> tuple[Graph, Placement | None, Machine]:
    """Apply the steps in order; return what runs, the placement that is left to make, and the machine.

    Parameters
    ----------
    graph : Graph
    steps : sequence of Step
    machine : Machine
    placement : Placement or None
        For the steps that need to know where ops run.
    document : Document
        For messages.
    on_ranks : callable
        Applies a step that makes all ranks, which may fold them (`scenarios.run.rewriting.folding`).

    Raises
    ------
    ScenarioError
        A step that cannot be applied, or that removes an op that may fail, with its place.
    """
    for step in steps:
        try:
            if getattr(step.rewrite, "placed", False):
                job = make_job(graph, machine, placement=placement, may_fail=False)
                graph, placement = pinned(graph, machine, job.device_of), None
            before = graph
            if isinstance(step.rewrite, OnRanks):
                graph, machine = on_ranks(graph, step, machine)
            else:
                graph = step.rewrite.apply(graph)
            _keep_failures(before, graph)
        except ScenarioError:
            raise
        except InputError as error:
            raise document.error(step.loc, f"{step.name}: {error}") from error
    warn_of_unsummed(graph)
    return graph, placement, machine


def _keep_failures(before: Graph, after: Graph) -> None:
    """Refuse a rewrite after which an op does not fail any more.

    Raises
    ------
    InputError
        Naming the op.
    """
    may_fail = [op for op, attributes in before.attributes.items() if attributes.get("fails")]
    names = set(after.op_names) if may_fail else ()
    for name in (before.op_names[op] for op in may_fail):
        if name not in names or not after.attributes.get(after.index(name), {}).get("fails"):
            raise InputError(f"removes the op {name!r}, which may fail; leave out one of the two")


def pinned(graph: Graph, machine: Machine, device_of: IntArray) -> Graph:
    """Return `graph` with every op pinned to a device by name.

    Parameters
    ----------
    graph : Graph
    machine : Machine
    device_of : array of int
        Device index of every op.
    """
    names = tuple(device.name for device in machine.devices)
    return replace(graph, pins=(*graph.pins, *names), pin_code=device_of + len(graph.pins))
