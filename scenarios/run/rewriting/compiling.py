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

from policies.compile.distributed_session import DistributedSession
from policies.compile.parallel.grid.combined import RankOrder, warn_of_unsummed
from policies.compile.parallel.grid.ranked import OnRanks, Ranked
from policies.compile.parallel.parameter_server import ParameterServer
from scenarios.run.decisions import Step
from sim.graph.graph import Graph
from sim.job.build_job import make_job
from sim.job.job import Placement
from sim.machine.machine import Machine
from sim.words.arrays import IntArray
from sim.words.errors import InputError, ScenarioError, UnknownNameError

if TYPE_CHECKING:
    from scenarios.file.document import Document

__all__ = ["compile_graph", "pinned"]

MakeRanks = Callable[[Ranked, Step], tuple[Graph, Machine]]


def compile_graph(
    graph: Graph,
    steps: Sequence[Step],
    machine: Machine,
    placement: Placement | None,
    document: Document,
    make_ranks: MakeRanks,
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
    make_ranks : callable
        Returns what ranks run, and on which machine, after the step that is the last to change them
        (`scenarios.run.rewriting.folding`).

    Raises
    ------
    ScenarioError
        A step that cannot be applied, or that removes an op that may fail, with its place.
    """
    ranked: Ranked | None = None
    for k, step in enumerate(steps):
        rewrite = step.rewrite
        try:
            if isinstance(rewrite, OnRanks):
                if ranked is None:
                    ranked = Ranked.of(graph, machine.accelerators)
                _keep_failures(graph, None)
                ranked = rewrite.ranked(ranked)
                for name in ranked.devices or ():
                    if name not in machine.positions:
                        key = "devices" if isinstance(rewrite, RankOrder) else "ranks"
                        raise UnknownNameError("device", name, machine.accelerators).under(key)
                if k + 1 == len(steps) or not isinstance(steps[k + 1].rewrite, OnRanks):
                    warn_of_unsummed(ranked)
                    graph, machine = make_ranks(ranked, step)
                    ranked = None
                continue
            if getattr(rewrite, "placed", False):
                job = make_job(graph, machine, placement=placement, may_fail=False)
                graph, placement = pinned(graph, machine, job.device_of), None
            before = graph
            if isinstance(rewrite, DistributedSession | ParameterServer):
                graph = rewrite.apply(graph, machine)
            else:
                graph = rewrite.apply(graph)
            if not isinstance(graph, Graph):
                returned = f"{type(rewrite).__name__}.apply returned a {type(graph).__name__}"  # type: ignore[unreachable]
                raise InputError(f"{returned}, should be a Graph")
            _keep_failures(before, graph)
        except ScenarioError:
            raise
        except InputError as error:
            told = error.message if error.path else str(error)
            told = told.removeprefix(f"{step.name}: ")  # with which some errors begin
            raise document.error((*step.loc, *error.path), f"{step.name}: {told}") from error
    return graph, placement, machine


def _keep_failures(before: Graph, after: Graph | None) -> None:
    """Refuse a rewrite after which an op does not fail any more; None: one whose ops have other names.

    Raises
    ------
    InputError
        Naming the op.
    """
    may_fail = [op for op, fails in before.attribute("fails").items() if fails]
    names = set(after.op_names) if may_fail and after is not None else ()
    for name in (before.op_names[op] for op in may_fail):
        if name not in names or after is None or not after.attributes.get(after.index(name), {}).get("fails"):
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
