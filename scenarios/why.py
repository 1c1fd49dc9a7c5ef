"""Where the makespan went, and why two runs of the same work differ, in one line.

Begin at the task that ended last and step back to the input that came last, again and again: each step
splits the time since then into executing, travelling and waiting, so the parts of a run add up to its
makespan, and the parts of a difference to the difference::

    a executing 40 │ b executing 10                      50 us  out of order: nothing waits
    d held back by the policy 50 │ d executing 30        80 us  in order
                                                         +30 = +50 held back by the policy, -20 executing

`sim.explain.executed_path` steps back along lanes and issuers too, to whoever was in the way; here one
asks not who, but what for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.bounds import bounds
from sim.explain import final_waits
from sim.explain.facts import Facts
from sim.graph import UNSET
from sim.trace import WAITS, Trace
from sim.units import format_duration

__all__ = ["PARTS", "difference", "makespan_parts", "why_fast"]

PARTS: Final[Mapping[str, str]] = {
    "executing": "executing",
    "transfer": "moving data",
    "transfer wait": "waiting for a link",
    "issuer": "waiting for whoever issues",
    "policy": "held back by the policy",
    "stream": "queued behind its stream",
    "event": "waiting for an event",
    "launch": "launching",
    "resources": "waiting for resources of the device",
    "memory": "waiting for memory",
    "start": "waiting",
}
"""Parts of a makespan, and what they are called."""


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
    facts = Facts(trace)
    waits = final_waits(trace, facts)
    parts = dict.fromkeys(PARTS, 0)
    row = int(facts.row_end.argmax()) if len(facts.row_end) else UNSET
    while row != UNSET:
        if row < facts.n:
            start, executes = int(facts.start[row]), "executing"
            waiting = WAITS[int(waits[row])] or "start"
        else:
            start, executes = int(trace.transfers["start_ns"][row - facts.n]), "transfer"
            waiting = "transfer wait"
        parts[executes] += int(facts.row_end[row]) - start
        parts[waiting] += start - int(facts.data[row])
        row = int(facts.last_producer[row])
    return {part: ns for part, ns in parts.items() if ns}


def difference(trace: Trace, best: Trace) -> str:
    """Say in one line why `trace` took longer (or less long) than `best`.

    The largest parts come first, and parts that are too small to matter, below a twentieth of the
    largest, are summed up as the rest.
    """
    mine, other = makespan_parts(trace), makespan_parts(best)
    more = {part: mine.get(part, 0) - other.get(part, 0) for part in PARTS}
    total = trace.makespan_ns - best.makespan_ns
    largest = sorted((part for part in PARTS if more[part]), key=lambda part: -abs(more[part]))
    if not largest:
        return "the same"
    shown = [part for part in largest if 20 * abs(more[part]) >= abs(more[largest[0]])]
    rest = total - sum(more[part] for part in shown)
    terms = [f"{_signed(more[part])} {PARTS[part]}" for part in shown]
    terms += [f"{_signed(rest)} other"] if rest else []
    return f"{_signed(total)}: {', '.join(terms)}"


def why_fast(trace: Trace) -> str:
    """Say in one line how near a run comes to the lower bound, and what its makespan consists of."""
    limits, parts = bounds(trace.job), makespan_parts(trace)
    largest = sorted(parts, key=lambda part: -parts[part])[:3]
    made_of = ", ".join(f"{format_duration(parts[part])} {PARTS[part]}" for part in largest)
    bound = limits.lower_bound_ns
    if not bound:
        return made_of
    if trace.makespan_ns == bound:
        return f"at the lower bound ({limits.binding}): {made_of}"
    above = 100 * (trace.makespan_ns / bound - 1)
    return f"{above:.1f}% above the lower bound ({limits.binding}): {made_of}"


def _signed(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{format_duration(abs(ns))}"
