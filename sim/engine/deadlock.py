"""Why a run cannot go on: which tasks remain, what each waits for, and the cycle among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sim.graph.walks import a_cycle
from sim.policy.policy import Policy
from sim.words.errors import StuckError

__all__ = ["deadlock_error"]

_SHOWN = 8


def deadlock_error(
    name: Callable[[int], str],
    waiting: Mapping[int, list[int]],
    policy: Policy,
    starved: Mapping[int, str] | None = None,
) -> StuckError:
    """Build the error for a run in which nothing can happen any more.

    Parameters
    ----------
    name : callable
        What the task with an id is called.
    waiting : mapping of int to list of int
        Ids of the tasks that remain, and of the unfinished producers each of them waits for.
    policy : Policy
    starved : mapping of int to str, optional
        Ids of the tasks that wait for memory, or for a Send, and for which; they come first, being the cause.
    """
    lines = [f"  {name(id)} waits for {what}" for id, what in (starved or {}).items()][:_SHOWN]
    others = {id: producers for id, producers in waiting.items() if id not in (starved or {})}
    for id, producers in list(others.items())[: _SHOWN - len(lines)]:
        if producers:
            more = f" and {len(producers) - 3} more" if len(producers) > 3 else ""
            why = "waits for " + ", ".join(name(p) for p in producers[:3]) + more
        else:
            why = f"has all its inputs; {type(policy).__name__} never issues it, or its stream is blocked"
        lines.append(f"  {name(id)} {why}")
    if len(waiting) > _SHOWN:
        lines.append(f"  ... and {len(waiting) - _SHOWN} more")
    if cycle := a_cycle(waiting):
        lines.append("  cycle: " + " -> ".join(name(id) for id in reversed(cycle)))
    remain = "1 task remains" if len(waiting) == 1 else f"{len(waiting)} tasks remain"
    return StuckError(f"nothing can happen any more and {remain}:\n" + "\n".join(lines))
