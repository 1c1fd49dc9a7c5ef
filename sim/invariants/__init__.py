"""Conditions that every trace must satisfy, whatever the policy: `check` asserts them or names a violation.

The checks use the graph, the machine and the times, but nothing that the engine computed on its way
(no transfer nodes, no counters), so that an error in the engine cannot hide itself. In this order::

    tasks       each exactly once · ready ≤ issue ≤ start ≤ end · on its device · lasts its duration
    data        transfers exactly once, where needed, never too fast; no op starts before its inputs
                have ended and travelled; pairs that meet by key have the same key, frame and iteration
    lanes       a stream's tasks in issue order, one at a time, gap and launch latency kept; issuers do
                one thing at a time, each at its cost; launch queues hold no more than they can
    failures    ops fail as decided before; no consumer of a failed op ran; queued and independent work
                did; stopped issuers took nothing more; an aborted step sent nothing more; calls that
                run a graph in turn do not overlap, and none follows one that failed
    breakdowns  parts of the machine fail when they are to; nothing goes on there; an aborted step
                ends at once, upon a detection; each attempt is checked as a run of its own
    communicators   collectives of each in order of issue, one at a time; ranks complete, ending together
    order       rows by start, round, lane and id: ties depend on what happened, not on how it was computed
    resources   cores and serial links never in use twice; the makespan is at least every lower bound

All times are integers and nothing has a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sim.invariants import data, failures, resources, tasks
from sim.invariants.checked_columns import Columns
from sim.record.record import Record

__all__ = ["check"]

_INVARIANTS: Final[tuple[Callable[[Columns], None], ...]] = (
    tasks.each_once,
    tasks.times_in_order,
    tasks.releases,
    tasks.places,
    tasks.durations,
    data.transfers_once,
    data.transfers_as_long_as_links_allow,
    data.transfers_have_data,
    data.inputs_are_there,
    data.first_input_is_there,
    data.control_edges,
    data.first_tokens,
    tasks.pairs_have_one_key,
    resources.one_at_a_time,
    resources.launches_take_time,
    resources.issuers_do_one_thing_at_a_time,
    resources.launch_queues_hold_what_they_can,
    tasks.one_at_a_time_in_line,
    tasks.members_fit,
    tasks.members_end_together,
    failures.decided_before,
    failures.stopped_take_nothing,
    failures.aborted_steps_send_nothing,
    failures.calls_in_turn,
    failures.queued_work_runs,
    failures.failures_come_as_foreseen,
    failures.nothing_goes_on_where_a_part_failed,
    failures.an_aborted_step_ends_at_once,
    tasks.rows_are_in_order,
    tasks.transfers_are_in_order,
    resources.cores,
    resources.named_resources,
    resources.serial_links,
    resources.host_threads,
    resources.memory,
    resources.lower_bounds,
)


def check(trace: Record) -> None:
    """Assert that `trace` satisfies every invariant.

    Parameters
    ----------
    trace : Trace

    Raises
    ------
    InvariantError
        The message names the first task or transfer that violates one, with its times.

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
        failures.check_attempts(trace, check)
        return
    columns = Columns(trace)
    for invariant in _INVARIANTS:
        invariant(columns)
