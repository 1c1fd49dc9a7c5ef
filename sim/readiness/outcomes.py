"""Values of predicates: branch outcomes and trip counts, since ops do not compute here.

An op that produces a predicate carries one of these attributes:

``outcome``
    ``true`` or ``false``; a list, one entry each time the op runs; or ``{"probability": p}``, true with
    probability p, drawn with the seed.
``trips``
    For a ``loop_cond``: the number of iterations of its loop; a list has one entry for each time
    the loop is entered.

A list that ends before the run does is an error: the next value is not specified.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sim.job.job import Job


class Outcomes:
    """The outcomes of one run, drawn in the order in which predicates are evaluated.

    Parameters
    ----------
    job : Job
        Its graph has the attributes, and its seed determines the random outcomes.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder()
    >>> _ = b.op("p", duration_ns=1, attributes={"outcome": [True, False]})
    >>> outcomes = Outcomes(make_job(b.build(), Machine((Device("cpu0", "cpu", workers=1),))))
    >>> [outcomes.branch(0), outcomes.branch(0)]
    [True, False]
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.attributes = job.graph.attributes
        self.evaluations: dict[int, int] = defaultdict(int)
        self.draws: dict[int, np.random.Generator] = {}

    def branch(self, op: int) -> bool:
        """Return the next value of predicate `op`.

        Raises
        ------
        GraphError
            The op has no outcome, or a list that is too short.
        """
        attributes, graph = self.attributes.get(op, {}), self.job.graph
        if "outcome" not in attributes:
            target = "an op that reads it" if graph.kind(op) in ("merge", "exit") else "it"
            accepted = "attributes: {outcome: true}, a list of outcomes, or {probability: 0.5}"
            raise graph.fault(op, f"decides a branch and carries no outcome; give {target} {accepted}")
        outcome: Any = attributes["outcome"]
        nth = self.evaluations[op]
        self.evaluations[op] += 1
        if isinstance(outcome, bool):
            return outcome
        if isinstance(outcome, Mapping):
            if op not in self.draws:
                self.draws[op] = self.job.rng(f"outcome of {graph.op_names[op]}")
            return bool(self.draws[op].random() < outcome["probability"])
        return bool(self._entry(op, "outcome", outcome, nth, "runs"))

    def continues(self, op: int, entry: int, iteration: int) -> bool:
        """Return whether loop condition `op` lets iteration `iteration` run.

        Parameters
        ----------
        op : int
            The ``loop_cond``.
        entry : int
            How many times the loop was entered before.
        iteration : int
            The iteration that would run, from 0.

        Raises
        ------
        GraphError
            The list in `trips` is too short.
        """
        trips: Any = self.attributes.get(op, {}).get("trips")
        if trips is None:
            return self.branch(op)
        count: int = trips if isinstance(trips, int) else self._entry(op, "trips", trips, entry, "is entered")
        return iteration < count

    def _entry(self, op: int, attribute: str, listed: Sequence[Any], nth: int, happens: str) -> Any:
        """Return entry `nth` (from 0) of a list, or raise if it is too short."""
        if nth < len(listed):
            return listed[nth]
        entries = f"{len(listed)} entr{'y' if len(listed) == 1 else 'ies'}, and {happens} for time {nth + 1}"
        advice = "give one entry for each time, or a plain value for all"
        raise self.job.graph.fault(op, f"has {attribute} with {entries}; {advice}", attribute)
