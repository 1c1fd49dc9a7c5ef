"""The what-ifs that `sim whatif` tries of any recording: what helps how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from scenarios.recorded.program import roles
from scenarios.run.trials.straggler import straggler
from sim.explain.facts.communication import inside_ns
from sim.graph.graph import Graph
from sim.job.job import Job
from sim.machine.machine import Machine
from sim.words.errors import UnknownNameError

__all__ = ["Trial", "chosen", "standard_trials"]

MOST_KINDS: Final = 5
"""Kinds of kernel that are tried one by one: those that take longest together."""
_OF_KIND: Final = {"kernel": "kernels of no known kind"}
"""What kinds are called, where that is not clear from their names."""


class Trial(NamedTuple):
    """One what-if.

    Attributes
    ----------
    label : str
    what_if : dict
        As a scenario has it.
    why_not : str
        Why it need not be tried; empty: it is.
    given : bool
        Whether somebody asked for it: a mistake in it is an error then.
    machine, job : callable, optional
        ``machine(machine)`` and ``job(job)`` return each as it would be, where no key of a scenario says it.
    """

    label: str
    what_if: Mapping[str, Any] = MappingProxyType({})
    why_not: str = ""
    given: bool = False
    machine: Callable[[Machine], Machine] | None = None
    job: Callable[[Job], Job] | None = None


def standard_trials(graph: Graph) -> list[Trial]:
    """Return what is tried of a graph, and what cannot be, with the reason.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", kind="matmul", duration_ns=10, device="gpu", attributes={"stream": 7})
    >>> standard_trials(b.build())[4][:2]
    ('matmul twice as fast', {'scale': {'matmul': 'x0.5'}})
    """
    launches = roles.launches(graph).any()
    collectives = roles.collectives(graph).any() or inside_ns(graph).any()
    no_calls = "" if launches else "the recording has no launch calls of the host"
    alone = "" if collectives else "nothing communicates"
    copies = "" if roles.transfers(graph).any() else "nothing is copied between host and device"
    gapless = "" if graph.device_facts else "the recording does not tell the gap between kernels"
    in_a_row = "" if "elementwise" in graph.kinds else "there are no elementwise kernels"
    idle = "" if graph.is_kind("delay").any() else "all idle time is explained"
    host = "" if roles.host_ops(graph).any() else "the recording has nothing of the host"
    return [
        Trial("launch calls twice as fast", {"launch_cost": "x0.5"}, no_calls),
        Trial("launch calls take no time", {"launch_cost": "x0"}, no_calls),
        Trial("CUDA graphs", {"cuda_graph": True}, no_calls),
        Trial("host twice as fast", {"host": "x0.5"}, host),
        *(
            Trial(
                f"{_OF_KIND.get(kind, kind)} twice as fast{_own_communication(graph, kind)}",
                {"scale": {kind: "x0.5"}},
            )
            for kind in _longest_kinds(graph)
        ),
        Trial("all kernels twice as fast", {"scale": {"kernels": "x0.5"}}),
        Trial("elementwise kernels in a row fused", {"fuse": ["elementwise"]}, in_a_row),
        Trial("copies between host and device gone", {"remove": ["transfers"]}, copies),
        Trial("communication twice as fast", {"bandwidth": {"collectives": "x2"}}, alone),
        Trial("communication takes no time", {"scale": {"collectives": "x0"}}, alone),
        Trial("no gaps between kernels", {"gap": "x0"}, gapless),
        Trial("unexplained idle time gone", {"scale": {"delay": "x0"}}, idle),
        *_without_straggler(graph),
    ]


def chosen(trials: list[Trial], only: list[str]) -> list[Trial]:
    """Return the trials that have one of some keys, or a word of it in their label.

    Raises
    ------
    UnknownNameError
        A word is in none of them.
    """
    found: dict[int, Trial] = {}
    for word in only:
        keyed = {n: each for n, each in enumerate(trials) if word in each.what_if}
        fits = keyed or {n: each for n, each in enumerate(trials) if word in each.label}
        if not fits:
            raise UnknownNameError("what-if", word, {key for each in trials for key in each.what_if})
        found |= fits
    return [found[n] for n in sorted(found)]


def _longest_kinds(graph: Graph) -> list[str]:
    """Return the kinds of kernel that take longest together."""
    ops = roles.tasks(graph) & ~roles.collectives(graph) & ~roles.transfers(graph) & (graph.duration_ns > 0)
    total = np.bincount(graph.kind_code[ops], graph.duration_ns[ops], len(graph.kinds))
    first = np.argsort(-total, kind="stable")[:MOST_KINDS]
    return [graph.kinds[code] for code in first.tolist() if total[code] > 0]


def _own_communication(graph: Graph, kind: str) -> str:
    """Return what to say of a kind of which ops communicate themselves: all of their time is halved."""
    return ", what it communicates included" if inside_ns(graph)[graph.is_kind(kind)].any() else ""


def _without_straggler(graph: Graph) -> Iterator[Trial]:
    """Yield what if the rank that is last most were as fast as the median of the others."""
    found = straggler(graph)
    if found is not None:
        rank, factors = found
        label = f"rank {rank}, which is late most, as fast as the others"
        scale = {device: f"x{factor:.4f}" for device, factor in factors.items()}
        why_not = "" if factors else "it has no more to do than they; it began later"
        yield Trial(label, {"scale": scale} if scale else {}, why_not)
