"""What every trace must satisfy, whatever the policy: `check` asserts it or names the first offender.

The checks read the graph, the machine and the times, and nothing that the engine computed on its way
(no transfer nodes, no counters), so that an error in the engine cannot hide itself. In this order::

    tasks       each exactly once · ready ≤ issue ≤ start ≤ end · on its device · lasts its duration
    data        transfers exactly once, where needed, never too fast; no op starts before its inputs
                have ended and travelled; who meets by key has the same key, frame and iteration
    lanes       a stream's tasks in issue order, one at a time, gap and launch latency kept; issuers do
                one thing at a time, each at its cost; launch queues hold no more than they can
    failures    who fails was decided before; no consumer of what failed ran; what was queued or
                independent did; who stopped took nothing more; an aborted step sent nothing more;
                calls that run a graph in turn do not overlap, and none follows one that failed
    breakdowns  parts of the machine fail when they are to; nothing goes on there; a step that is aborted
                ends at once, when somebody notices; each attempt is checked as a run of its own
    communicators   collectives of each in order of issue, one at a time; ranks complete, ending together
    order       rows by start, round, lane and id: ties go by what happened, never by how it was computed
    resources   cores and serial links never in use twice; the makespan is at least every lower bound

All times are integers and nothing has a tolerance.
"""

from __future__ import annotations

from sim.invariants.checked_columns import Columns
from sim.invariants.data import DATA
from sim.invariants.failures import BREAKDOWNS, FAILURES, whole_of_attempts
from sim.invariants.resources import LANES, RESOURCES
from sim.invariants.tasks import COMMUNICATORS, ORDER, RENDEZVOUS, TASKS
from sim.record.record import Record

__all__ = ["check"]


def check(trace: Record) -> None:
    """Assert that `trace` satisfies every invariant.

    Parameters
    ----------
    trace : Trace

    Raises
    ------
    InvariantError
        Naming the first task or transfer that breaks one, with its times.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=10)
    >>> trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())
    >>> check(trace)
    >>> trace.tasks["end_ns"][0] = 11
    >>> check(trace)
    Traceback (most recent call last):
        ...
    sim.base.errors.InvariantError: op 'a' took 11 ns on gpu0, where it takes 10
    """
    if trace.attempts:
        whole_of_attempts(trace, check)
        return
    columns = Columns(trace)
    for group in (TASKS, DATA, RENDEZVOUS, LANES, COMMUNICATORS, FAILURES, BREAKDOWNS, ORDER, RESOURCES):
        for invariant in group:
            invariant(columns)
