"""What if some ops were not there: ``remove: [DtoH, aten::dropout]``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scenarios.recorded.program.program import Program
from scenarios.recorded.program.select import Names
from sim.graph.graph import Graph
from sim.words.arrays import BoolArray
from sim.words.errors import InputError

__all__ = ["removed"]


def removed(graph: Graph, words: Sequence[str], *, host_work: bool = True) -> Graph:
    """Return a graph without ops (`scenarios.recorded.program.select`); the order of all others stays.

    A kernel goes with its launch call, and with idle time before it that nothing explains; a copy that the
    host waited for goes with the wait.

    Parameters
    ----------
    graph : Graph
    words : sequence of str
    host_work : bool
        Whether the host's work before a call stays: a recording does not tell how much of it the call needed.

    Raises
    ------
    InputError
        A word is about no op, all are gone, or a collective is left that a rank does not take part in.
    """
    which = Names(graph).find_all(words)
    if which.all():
        raise InputError("nothing is left to run")
    _refuse_alone(graph, which)
    program = Program(graph)
    program.drop((graph.op_names[op] for op in np.flatnonzero(which).tolist()), host_work=host_work)
    return program.graph()


def _refuse_alone(graph: Graph, which: BoolArray) -> None:
    """Refuse to take a collective from some ranks only: the others would wait for it, or meet another one."""
    left: dict[str, dict[str, int]] = {}
    for op in graph.in_communicators:
        of = left.setdefault(str(graph.attributes[op]["communicator"]), {})
        pin = graph.pins[int(graph.pin_code[op])]
        of[pin] = of.get(pin, 0) + (not which[op])
    for name, counts in left.items():
        most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
        if counts[most] != counts[least]:
            raise InputError(
                f"of communicator {name!r} {least} would have {counts[least]} collectives left and {most} "
                f"{counts[most]}; remove them on all ranks"
            )
