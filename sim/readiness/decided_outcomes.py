"""What predicates say, decided in program order, so that it does not depend on who runs first.

A list of outcomes has one entry each time its op is asked, and a probability one draw. But a predicate
that does not feed its loop's counter may be asked in iteration 1 before it is in 0, even on one thread::

    outcome: [true, false]       iteration 0    iteration 1
    in the order of time         false          true           where 1 happens to come first
    in program order             true           false          always

So the graph is run once before time 0, without time and one iteration after another, as a plain
program would; what is asked there, and in which tag, is the answer under every runtime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.readiness.tokens import NOTHING_DECIDED, Asked, Tag, TaggedTokenReadiness


def decided(job: Job, flow: Flow) -> Mapping[Asked, bool]:
    """Return what predicates say, by repetition, frames and iterations, and op.

    Parameters
    ----------
    job : Job
        A graph with control flow.
    flow : Flow
        Nodes and edges, transfers included.

    Returns
    -------
    mapping
        Empty where the order does not matter, and where Sends and Recvs that no edge connects decide what
        is dead: there predicates are asked in the order of time.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> from sim.job.transfers import make_flow
    >>> b = GraphBuilder()
    >>> _ = b.op("p", attributes={"outcome": [True, False]})
    >>> _ = b.op("switch", kind="switch", inputs=["p", "p"], outputs=[0, 0])
    >>> job = make_job(b.build(), Machine((Device("cpu0", "cpu", workers=1),)), iterations=2)
    >>> decided(job, make_flow(job))
    {(0, '', 0): True, (1, '', 0): False}
    """
    said = (*job.graph.attribute("outcome").values(), *job.graph.attribute("trips").values())
    if all(isinstance(one, int) for one in said):  # whatever is asked, and however often, says the same
        return NOTHING_DECIDED
    if rendezvous_keys(job.graph).recvs:
        return NOTHING_DECIDED
    program = _ProgramOrder(job, flow)
    if job.iterations == 1 and program.sequential:
        return NOTHING_DECIDED
    for _, roots in groupby(program.roots(), key=lambda task: task.iteration):
        queue = deque(roots)
        while queue:
            queue.extend(program.ended(queue.popleft()))
    return program.said


class _ProgramOrder(TaggedTokenReadiness):
    """One iteration of a loop at a time; keeps what predicates say."""

    def __init__(self, job: Job, flow: Flow) -> None:
        super().__init__(job, flow)
        one = [1] * len(self.structure.parallel_iterations)
        self.sequential = self.structure.parallel_iterations == one
        self.structure = replace(self.structure, parallel_iterations=one)
        self.said: dict[Asked, bool] = {}

    def _ask(self, predicate: int, tag: Tag) -> bool:
        says = super()._ask(predicate, tag)
        self.said[tag.frame.repetition, str(tag), predicate] = says
        return says
