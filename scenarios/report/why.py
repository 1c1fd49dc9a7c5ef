"""Where the makespan went, and why two runs of the same work differ, in one line.

Begin at the task that ended last and step back to the input that came last, again and again: each step
splits the time since then into executing, travelling and waiting, so the parts of a run add up to its
makespan (`sim.explain.parts`), and the parts of a difference to the difference::

    a executing 40 │ b executing 10                      50 us  out of order: nothing waits
    d held back by the policy 50 │ d executing 30        80 us  in order
                                                         30 slower: +50 held back by the policy, -20 executing

`sim.explain.path.executed_path` steps back along lanes and issuers too, to whoever was in the way; here one
asks not who, but what for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.analysis.bounds import bounds
from sim.explain.facts.derived_columns import Facts
from sim.explain.parts import Chain
from sim.trace import Trace
from sim.words.units import format_duration

__all__ = ["PARTS", "difference", "makespan_parts", "why_fast"]

_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "executing": ("executing", "its chain of ops takes longer to execute"),
    "communication": ("exposed communication", "more of its communication is exposed"),
    "transfer": ("moving data", "its chain moves more data"),
    "link": ("waiting for a link", "its transfers wait for links"),
    "issuer": ("waiting for the host or a worker", "ops wait for the host or a worker"),
    "policy": ("held back by the policy", "the policy holds ready ops back"),
    "stream": ("queued on a stream", "ops queue on their streams"),
    "event": ("waiting for an event", "ops wait for events"),
    "launch": ("launching", "launch latency is exposed"),
    "resources": ("waiting for resources of the device", "ops wait for resources of the device"),
    "memory": ("waiting for memory", "ops wait for memory"),
    "communicator": ("queued on a communicator", "collectives queue on their communicators"),
    "late rank": ("waiting for a late rank", "collectives wait for late ranks"),
    "unexplained": ("idle, and nothing recorded says why", "more of a recording is unexplained"),
    "recovery": ("starting anew after a failure", "parts of the machine fail"),
    "device": ("waiting for the device", "ops wait for the device"),
}
"""Part of a makespan -> what it is called, and why a run is slower when the largest increase is in it."""

PARTS: Final[Mapping[str, str]] = {part: name for part, (name, _) in _PARTS.items() if part != "device"}
"""Parts of a makespan, and what they are called; of a difference, stream and resources together are one."""


def makespan_parts(trace: Trace) -> dict[str, int]:
    """Return the parts of `PARTS` that occur, in ns; they add up to the makespan.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.in_order import InOrder
    >>> b = GraphBuilder("b holds c up")
    >>> for name, inputs, ns in (("a", [], 40), ("b", ["a"], 10), ("c", [], 30)):
    ...     _ = b.op(name, inputs=inputs, duration_ns=ns)
    >>> machine = Machine((Device("cpu0", "cpu", workers=2),))
    >>> makespan_parts(simulate(b.build(), machine, InOrder()))
    {'executing': 30, 'policy': 40}
    """
    return _in_order(Chain(Facts(trace)).parts())


def _in_order(parts: Mapping[str, int]) -> dict[str, int]:
    return {part: parts[part] for part in PARTS if parts.get(part)}


def difference(trace: Trace, best: Trace) -> str:
    """Say in one line why `trace` took longer than `best`.

    The largest increase is the main cause; the other parts follow. A task that is issued waits for the device
    on a stream or for its resources: where both changed, their sum is one part. What a task waits longer for
    others because these, the same ops, last longer is executing.
    """
    f, of_best = Facts(trace), Facts(best)
    chain = Chain(f)
    mine, other = chain.parts(), Chain(of_best).parts()
    more = {part: mine.get(part, 0) - other.get(part, 0) for part in PARTS}
    longer = chain.longer(of_best)
    for part, ns in longer.items():
        more[part] -= ns
    more["executing"] += sum(longer.values())
    total = trace.makespan_ns - best.makespan_ns
    if not any(more.values()):
        return "the same"
    if not total:
        return "equally fast"
    if more["stream"] and more["resources"]:
        more["device"] = more.pop("stream") + more.pop("resources")
    if total < 0:
        return f"{format_duration(-total)} faster: {_terms(more, total)}"
    cause = max(more, key=lambda part: more[part])
    slower = f"{format_duration(total)} slower"
    because = _because(f, of_best, cause, 2 * sum(longer.values()) >= more[cause])
    ns = more.pop(cause)
    if not any(more.values()):
        return f"{slower} because {because}"
    return f"{slower}, mainly because {because} ({_signed(ns)}); {_terms(more, total - ns)}"


def _terms(more: Mapping[str, int], total: int) -> str:
    """Name the three largest parts; sum up the rest, and what is below a twentieth of the largest."""
    largest = sorted((part for part in more if more[part]), key=lambda part: -abs(more[part]))
    shown = [part for part in largest[:3] if 20 * abs(more[part]) >= abs(more[largest[0]])]
    terms = [f"{_signed(more[part])} {_PARTS[part][0]}" for part in shown]
    rest = total - sum(more[part] for part in shown)
    return ", ".join(terms + [f"{_signed(rest)} other"] * (rest != 0))


def _because(f: Facts, best: Facts, part: str, ops_last_longer: bool) -> str:
    """Say what makes a part of the makespan longer; for the host's part, whether it waits for kernels."""
    if part == "issuer" and not _launches_ahead(f) and _launches_ahead(best):
        return "the host waits for each kernel"
    if part == "executing" and ops_last_longer:
        return "its ops take longer to execute"
    return _PARTS[part][1]


def _launches_ahead(f: Facts) -> bool:
    """Whether any launched task was taken before its inputs were there."""
    return bool((~f.by_worker & (f.taken < f.data[: f.n])).any())


def why_fast(trace: Trace, bound_ns: int | None = None) -> str:
    """Say in one line how near a run comes to the lower bound, and what its makespan consists of.

    Parameters
    ----------
    trace : Trace
    bound_ns : int, optional
        A bound that other runs have too; by default the run's own.
    """
    limits, parts = bounds(trace), makespan_parts(trace)
    if not parts:
        return "takes no time"
    largest = sorted(parts, key=lambda part: -parts[part])[:3]
    terms = [f"{format_duration(parts[part])} {PARTS[part]}" for part in largest]
    rest = trace.makespan_ns - sum(parts[part] for part in largest)
    made_of = ", ".join([*terms, *([f"{format_duration(rest)} other"] if rest else [])])
    bound = limits.lower_bound_ns if bound_ns is None else bound_ns
    if limits.loops_counted_once or not bound:
        return made_of
    binding = f" ({limits.binding})" if bound == limits.lower_bound_ns else ""
    if trace.makespan_ns == bound:
        return f"at the lower bound{binding}: {made_of}"
    above = 100 * (trace.makespan_ns / bound - 1)
    return f"{above:.1f}% above the lower bound{binding}: {made_of}"


def _signed(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{format_duration(abs(ns))}"
