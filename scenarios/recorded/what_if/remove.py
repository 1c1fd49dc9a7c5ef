"""What if some ops were not there: ``remove: [DtoH, aten::dropout]``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scenarios.recorded.program.program import Program
from scenarios.recorded.program.select import Names
from sim.graph.graph import Graph
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
        A word is about no op, or all are gone.
    """
    which = Names(graph).find_all(words)
    if which.all():
        raise InputError("nothing is left to run")
    program = Program(graph)
    program.drop((graph.op_names[op] for op in np.flatnonzero(which).tolist()), host_work=host_work)
    return program.graph()
