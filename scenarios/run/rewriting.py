"""Compiles a graph: applies the rewrites that a scenario lists, before anything is placed or run.

::

    policy: {name: in-order, compile: [prune, constant-folding, {name: fusion, patterns: remapper}]}

    graph ──prune──► ──constant-folding──► ──fusion──► what runs      sim run --show-graph BEFORE AFTER

Steps are applied in the order of the list. A step that needs to know where ops run (its attribute
``placed`` is true, as in `policies.rewrite.partition`) gets a graph in which each op is pinned to the device
that the placement chooses.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any, Final

from policies import linearize, streams
from policies.issue import program_order, ready_queue
from policies.issue.virtual_machine import Sequential
from policies.parallel.folding import fold, why_not
from policies.parallel.parameter_server import ParameterServer
from policies.parallel.rank_grid import OnRanks, Ranked, RankOrder, warn_of_unsummed
from scenarios.run.decisions import RewriteStep
from scenarios.run.scenario import Case
from sim.base.arrays import IntArray
from sim.base.errors import InputError, ScenarioError, UnknownNameError
from sim.graph.graph import Graph
from sim.job import places
from sim.job.build_job import make_job
from sim.job.job import Placement
from sim.machine.machine import Machine


def compile_graph(case: Case, seed: int) -> tuple[Graph, Placement | None, Machine]:
    """Apply the steps in order; return the graph that runs, the placement still to be made, and the machine.

    Estimates that a placement may know are drawn by `seed`.

    Raises
    ------
    ScenarioError
        A step cannot be applied, or removes an op that may fail; the message has its place.
    """
    graph, machine, placement = case.work.graph, case.work.machine, case.decisions.placement
    steps, ranked = case.decisions.compile, None
    for k, step in enumerate(steps):
        rewrite = step.rewrite
        try:
            if isinstance(rewrite, OnRanks):
                if ranked is None:
                    ranked = Ranked.of(graph, machine.accelerators)
                _keep_failures(graph, None)
                ranked = rewrite.rewrite_ranks(ranked)
                for name in ranked.devices or ():
                    if name not in machine.positions:
                        key = "devices" if isinstance(rewrite, RankOrder) else "ranks"
                        raise UnknownNameError("device", name, machine.accelerators).under(key)
                if k + 1 == len(steps) or not isinstance(steps[k + 1].rewrite, OnRanks):
                    warn_of_unsummed(ranked)
                    graph, machine = make_ranks(case, ranked, step)
                    ranked = None
                continue
            if getattr(rewrite, "placed", False):
                job = make_job(
                    graph,
                    machine,
                    placement=placement,
                    knowledge=case.decisions.knowledge,
                    estimate_error=case.decisions.estimate_error,
                    seed=seed,
                    may_fail=False,
                )
                graph, placement = pin_ops(graph, machine, job.device_of), None
            before = graph
            if isinstance(rewrite, ParameterServer):
                policy = case.decisions.policy
                if rewrite.asynchronous and isinstance(policy, program_order.InOrder | Sequential):
                    message = (
                        "servers take pushes as they come, and this policy runs their ops in a fixed order"
                    )
                    raise InputError(f"{message}; name another, such as ready-queue", path=("asynchronous",))
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
            message = error.message if error.path else str(error)
            message = message.removeprefix(f"{step.name}: ")  # some errors begin with it
            raise case.scenario.document.error((*step.loc, *error.path), f"{step.name}: {message}") from error
    return graph, placement, machine


def _keep_failures(before: Graph, after: Graph | None) -> None:
    """Refuse a rewrite that removes an op that may fail; `after` is None if the rewrite renames all ops.

    Raises
    ------
    InputError
        The message names the op.
    """
    may_fail = [op for op, fails in before.attribute("fails").items() if fails]
    names = set(after.op_names) if may_fail and after is not None else ()
    for name in (before.op_names[op] for op in may_fail):
        if name not in names or after is None or not after.attributes.get(after.index(name), {}).get("fails"):
            raise InputError(f"removes the op {name!r}, which may fail; leave out one of the two")


def pin_ops(graph: Graph, machine: Machine, device_of: IntArray) -> Graph:
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


# ----------------------------------------------------------------------------------------------------------
# Whether ranks that do the same are simulated as one: ``fold: auto | true | false``.
#
#     compile: [training, {name: ddp, ranks: 16384}]     ──►  one rank is made, and stands for 16,384
#     noise: {devices: {gpu17: 1.2}}                     ──►  two: gpu17, and gpu0 for the other 16,383
#     noise: {jitter: 0.05}                               ──►  not folded: each rank has its own luck
#
# ``auto`` folds more than 256 ranks, and warns if it cannot; ``true`` folds, or says why that would not be
# exact. `policies.parallel.folding` decides which ranks do the same.

_MOST_UNFOLDED: Final = 256
"""Up to this many ranks are simulated one by one, unless the scenario says otherwise."""

_BY_DEVICE: Final = {room.__name__ for room in (program_order, ready_queue, linearize, streams, places)}
"""Modules whose classes decide for the ops of a device independently of other devices."""


class NotFoldedWarning(UserWarning):
    """Warns that ranks could not be folded, so all are simulated."""


def make_ranks(case: Case, ranked: Ranked, step: RewriteStep) -> tuple[Graph, Machine]:
    """Return the graph of all ranks and its machine, after the last step that changes them.

    Raises
    ------
    ScenarioError
        The scenario asks for folded ranks, and something sets them apart.
    """
    content, machine = case.scenario.content, case.work.machine
    n = ranked.grid.ranks
    if ranked.grid.sizes and (content.fold is True or (content.fold == "auto" and n > _MOST_UNFOLDED)):
        devices = ranked.on_devices()
        reasons = [*_reasons(case, step), *why_not(ranked, devices, machine)]
        if not reasons:
            return fold(ranked, devices, machine, [*_facts(case, devices)])
        reason = f"the ranks cannot be folded: {'; '.join(reasons)}"
        if content.fold is True:
            raise case.scenario.document.error(("fold",), reason)
        warnings.warn(NotFoldedWarning(f"{reason}; all {n:,} are simulated"), stacklevel=2)
    return ranked.graph(), machine


def _reasons(case: Case, step: RewriteStep) -> Iterator[str]:
    """Yield the parts of the scenario that treat ranks individually."""
    content, decisions = case.scenario.content, case.decisions
    noise = content.noise
    if noise is not None and noise.jitter:
        yield "noise.jitter draws the durations of each rank"
    if noise is not None and noise.stragglers:
        yield "noise.stragglers draws the stragglers of each rank"
    if content.faults is not None:
        yield "faults meet one rank and not another"
    if decisions.knowledge in ("mean", "estimate"):
        yield f"knowledge: {decisions.knowledge} is of the ops of all ranks together"
    if decisions.compile[-1] is not step:
        yield f"{decisions.compile[-1].name} rewrites what all ranks run, after {step.name}"
    for decision in ("policy", "placement", "linearize", "streams"):
        decides = getattr(decisions, decision)
        per_device = type(decides).__module__ in _BY_DEVICE and not isinstance(decides, linearize.UserOrder)
        if decides is not None and not per_device:
            yield f"the {decision} {type(decides).__name__} may decide for one rank by what others have"


def _facts(case: Case, ranks: tuple[str, ...]) -> Iterator[dict[str, Hashable]]:
    """Yield the description of each rank, by which ranks are told apart."""
    content, described = case.scenario.content, case.scenario.described_devices
    noisy = {} if content.noise is None else content.noise.devices
    memory = {} if content.memory is None else content.memory.devices
    texts: dict[int, dict[str, Hashable]] = {}  # the devices of an entry with a count share one description
    threads = {name: host.threads for host in case.work.machine.hosts for name in host.serves}
    for name in ranks:
        values: dict[str, Any] = described[name]
        if id(values) not in texts:
            texts[id(values)] = {key: repr(value) for key, value in sorted(values.items())}
        yield {
            **texts[id(values)],
            "noise.devices": noisy.get(name, 1.0),
            "memory.devices": repr(memory.get(name)),
            "threads of its host": threads.get(name, 1),
        }
